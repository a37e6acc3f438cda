//! Every deliberate defect is caught: `cargo test -p mu --release --features planted-bugs`.
#![cfg(feature = "planted-bugs")]

mod common;

use common::{Plan, storm};
use mu::Bug;

const BUGS: [Bug; 11] = [
    Bug::AdoptNothing,
    Bug::PrepareSkipped,
    Bug::AdoptLowest,
    Bug::ExecuteOnNextSlot,
    Bug::CommitAtMinority,
    Bug::RefusalIgnored,
    Bug::HeadsIgnored,
    Bug::LapIgnored,
    Bug::ChecksumIgnored,
    Bug::GrantWhileRecovering,
    Bug::ReadWithoutQuorum,
];

fn caught(bug: Bug) -> Option<(u64, String)> {
    let most = std::env::var("MU_SEEDS").ok().and_then(|text| text.parse().ok()).unwrap_or(3_000);
    (0..most).find_map(|seed| {
        let plan = Plan { bug: Some(bug), ..Plan::draw(seed) };
        let panic = std::panic::catch_unwind(|| storm(plan, seed)).err()?;
        let text = panic.downcast_ref::<String>().cloned();
        let text = text.or_else(|| panic.downcast_ref::<&str>().map(ToString::to_string));
        Some((seed, text.unwrap_or_default()))
    })
}

#[test]
fn every_bug_is_caught() {
    std::panic::set_hook(Box::new(|_| {}));
    let mut missed = Vec::new();
    for bug in BUGS {
        match caught(bug) {
            Some((seed, how)) => {
                let how = how.lines().next().unwrap_or_default().chars().take(90);
                println!("{bug:?}: seed {seed}: {}", how.collect::<String>());
            }
            None => missed.push(bug),
        }
    }
    assert!(missed.is_empty(), "not caught: {missed:?}");
}
