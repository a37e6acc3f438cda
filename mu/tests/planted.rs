//! Every deliberate defect is caught: `cargo test -p mu --release --features planted-bugs`.
#![cfg(feature = "planted-bugs")]

mod common;

use common::{Plan, storm};
use mu::Bug;
use smr::Durability;

const BUGS: [Bug; 19] = [
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
    Bug::AckBeforeStored,
    Bug::CountSelfBeforeStored,
    Bug::DurableBeforeStored,
    Bug::DurableUnderOldNumber,
    Bug::PromiseNotStored,
    Bug::SlotsNotRestored,
    Bug::ForgetfulUnmarked,
    Bug::MembersUnread,
];

/// Where a defect shows, if it does not everywhere.
fn fits(bug: Bug, plan: &Plan) -> bool {
    match bug {
        Bug::AckBeforeStored | Bug::CountSelfBeforeStored => plan.durability == Durability::Sync,
        Bug::DurableBeforeStored | Bug::DurableUnderOldNumber => {
            plan.durability != Durability::Memory
        }
        Bug::PromiseNotStored => {
            plan.durability != Durability::Memory
                && plan.slowness > 50_000
                && plan.fault_every < 1_000
        }
        Bug::SlotsNotRestored => plan.durability != Durability::Memory,
        // What slow disks lose others must have, and most of them must be away.
        Bug::ForgetfulUnmarked => {
            plan.durability == Durability::Lazy
                && plan.slowness > 50_000
                && plan.fault_every < 4_000
        }
        Bug::MembersUnread => plan.changes && plan.replicas == 5 && plan.fault_every < 4_000,
        _ => plan.durability == Durability::Memory,
    }
}

fn caught(bug: Bug) -> Option<(u64, String)> {
    let most = std::env::var("MU_SEEDS").ok().and_then(|text| text.parse().ok()).unwrap_or(3_000);
    (0..10 * most).filter(|&seed| fits(bug, &Plan::draw(seed))).take(most as usize).find_map(
        |seed| {
            let restless = bug == Bug::MembersUnread;
            let plan = Plan { bug: Some(bug), restless, ..Plan::draw(seed) };
            let panic = std::panic::catch_unwind(|| storm(plan, seed)).err()?;
            let text = panic.downcast_ref::<String>().cloned();
            let text = text.or_else(|| panic.downcast_ref::<&str>().map(ToString::to_string));
            Some((seed, text.unwrap_or_default()))
        },
    )
}

#[test]
fn every_bug_is_caught() {
    std::panic::set_hook(Box::new(|_| {}));
    let mut missed = Vec::new();
    let only = std::env::var("MU_BUG").ok();
    for bug in
        BUGS.into_iter().filter(|bug| only.as_ref().is_none_or(|only| *only == format!("{bug:?}")))
    {
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
