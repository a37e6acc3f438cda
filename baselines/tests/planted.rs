//! Every deliberate defect is caught: `cargo test -p baselines --features planted-bugs --test
//! planted`.
#![cfg(feature = "planted-bugs")]

mod common;

use baselines::{Baseline, Bug, fast_paxos, speculative_paxos, unreplicated};
use common::{Plan, storm};

/// The first seed whose run fails, and how.
fn caught<P: Baseline>(bug: Bug, replicas: &[u64]) -> Option<(u64, String)> {
    (0..4_000).find_map(|seed| {
        let plan = Plan { bug: Some(bug), ..Plan::draw(seed, replicas) };
        let panic = std::panic::catch_unwind(|| drop(storm::<P>(plan, seed))).err()?;
        let text = panic.downcast_ref::<String>().cloned();
        let text = text.or_else(|| panic.downcast_ref::<&str>().map(ToString::to_string));
        Some((seed, text.unwrap_or_default()))
    })
}

#[test]
fn every_bug_is_caught() {
    std::panic::set_hook(Box::new(|_| {}));
    let many = [3, 5];
    let found = [
        (Bug::UndoAnswered, caught::<unreplicated::Replica>(Bug::UndoAnswered, &[1])),
        (Bug::DecideOnMajority, caught::<fast_paxos::Replica>(Bug::DecideOnMajority, &many)),
        (Bug::CommitByNumber, caught::<fast_paxos::Replica>(Bug::CommitByNumber, &many)),
        (Bug::MergeOwnLog, caught::<fast_paxos::Replica>(Bug::MergeOwnLog, &many)),
        (Bug::MergeForgetsStart, caught::<fast_paxos::Replica>(Bug::MergeForgetsStart, &many)),
        (Bug::MergeOwnLog, caught::<speculative_paxos::Replica>(Bug::MergeOwnLog, &many)),
        (Bug::BelieveMajority, caught::<speculative_paxos::Replica>(Bug::BelieveMajority, &many)),
        (Bug::SkipRollback, caught::<speculative_paxos::Replica>(Bug::SkipRollback, &many)),
    ];
    for (bug, how) in &found {
        let (seed, how) = how.clone().unwrap_or((u64::MAX, "NOT CAUGHT".to_owned()));
        println!("{bug:?}: seed {seed}: {}", how.lines().next().unwrap_or_default());
    }
    assert!(found.iter().all(|(_, how)| how.is_some()), "a bug was not caught");
}
