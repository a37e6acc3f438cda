//! Every deliberate defect is caught: `cargo test -p nopaxos --features planted-bugs --test
//! planted`.
#![cfg(feature = "planted-bugs")]

mod common;

use common::Plan;
use common::faults::storm;
use common::stories::{promise_of_a_former_life, reply_of_a_former_life};
use nopaxos::Bug;
use smr::Durability;

const BUGS: [Bug; 18] = [
    Bug::ClientCountsTheDead,
    Bug::CountsTheDead,
    Bug::ClientForgetsTheLeader,
    Bug::RecoverWithoutQuorum,
    Bug::NoOpWithoutQuorum,
    Bug::MergePrefersRequests,
    Bug::MergeAnyView,
    Bug::ReplyBeyondGap,
    Bug::SyncIgnoresNoOps,
    Bug::SpliceForgets,
    Bug::SessionKeepsPosition,
    Bug::ExecuteBeyondSync,
    Bug::LeaderNumberAlone,
    Bug::ReplyBeforeStored,
    Bug::ExpectsAnyView,
    Bug::NoOpUnstored,
    Bug::ReplaysNothing,
    Bug::VoteBeforeStored,
];

fn caught(bug: Bug) -> Option<(u64, String)> {
    let most = std::env::var("NOPAXOS_SEEDS").ok().and_then(|text| text.parse().ok());
    let first = std::env::var("NOPAXOS_FIRST").ok().and_then(|text| text.parse().ok());
    let first = first.unwrap_or(0);
    (first..first + most.unwrap_or(3_000)).find_map(|seed| {
        let mut plan = Plan { bug: Some(bug), ..Plan::draw(seed) };
        match bug {
            Bug::ReplyBeforeStored => plan.durability = Durability::Sync,
            Bug::ExpectsAnyView | Bug::NoOpUnstored | Bug::ReplaysNothing => {
                (plan.durability, plan.disasters) = (Durability::Lazy, true);
            }
            _ => {}
        }
        // Rare enough among seeds to need its own story.
        let run = || match bug {
            Bug::ClientCountsTheDead => {
                let calm = Plan { client_retry: 60_000, bug: Some(bug), ..Plan::calm(3) };
                drop(reply_of_a_former_life(calm));
            }
            Bug::CountsTheDead => {
                let calm = Plan { client_retry: 60_000, bug: Some(bug), ..Plan::calm(3) };
                drop(promise_of_a_former_life(calm));
            }
            _ => drop(storm(plan, seed)),
        };
        let panic = std::panic::catch_unwind(run).err()?;
        let text = panic.downcast_ref::<String>().cloned();
        let text = text.or_else(|| panic.downcast_ref::<&str>().map(ToString::to_string));
        Some((seed, text.unwrap_or_default()))
    })
}

#[test]
fn every_bug_is_caught() {
    std::panic::set_hook(Box::new(|_| {}));
    let mut missed = Vec::new();
    let only = std::env::var("NOPAXOS_BUG").ok().filter(|name| !name.is_empty());
    for bug in BUGS {
        if only.as_ref().is_some_and(|only| !only.contains(&format!("{bug:?}"))) {
            continue;
        }
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
