//! Every deliberate defect is caught: `cargo test -p nopaxos --features planted-bugs --test
//! planted`.
#![cfg(feature = "planted-bugs")]

mod common;

use common::Plan;
use common::faults::storm;
use common::stories::{
    members_leave_before_others_have_their_log, promise_of_a_former_life, reply_of_a_former_life,
    slow_disks, start_view_of_a_former_life, without_a_quorum,
};
use nopaxos::Bug;
use smr::Durability;

const BUGS: [Bug; 25] = [
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
    Bug::TakesEverything,
    Bug::ForgetsTheStable,
    Bug::CountsTheNewAlone,
    Bug::CountsStrangers,
    Bug::SettlesAtOnce,
    Bug::SuspectsBeforeStored,
    Bug::AnswersBeforeDurable,
];

/// What a seed decides where this defect shows most often.
fn plan(bug: Bug, seed: u64) -> Plan {
    let of_members = [Bug::CountsTheNewAlone, Bug::CountsStrangers];
    let drawn = Plan::draw(seed);
    let mut plan = Plan { changes: of_members.contains(&bug), ..drawn };
    match bug {
        Bug::ReplyBeforeStored => plan.durability = Durability::Sync,
        Bug::ForgetsTheStable => (plan.durability, plan.disasters) = (Durability::Sync, true),
        Bug::ExpectsAnyView | Bug::NoOpUnstored | Bug::ReplaysNothing => {
            (plan.durability, plan.disasters) = (Durability::Lazy, true);
        }
        Bug::AnswersBeforeDurable => {
            (plan.durability, plan.disasters) = (Durability::Lazy, true);
            (plan.durable, plan.disk) = (1_000, 1_500);
        }
        _ => {}
    }
    if bug == Bug::NoOpUnstored {
        // Much is acknowledged before it is on disk.
        plan.limits.ahead = 60;
        (plan.limits.unstable, plan.limits.unstable_bytes) = (400, 100_000);
        plan.disk = 1_500;
    }
    plan
}

/// What a run with or without the defect ends with.
fn run(bug: Bug, with: bool, seed: u64) -> std::thread::Result<()> {
    let planted = with.then_some(bug);
    let calm = Plan { bug: planted, ..Plan::calm(3) };
    let patient = Plan { client_retry: 60_000, ..calm };
    std::panic::catch_unwind(|| match bug {
        // Rare enough among seeds to need their own stories.
        Bug::ClientCountsTheDead => drop(reply_of_a_former_life(patient)),
        Bug::CountsTheDead => drop(promise_of_a_former_life(patient)),
        Bug::RecoverWithoutQuorum => drop(start_view_of_a_former_life(patient)),
        Bug::TakesEverything => drop(without_a_quorum(calm)),
        Bug::SuspectsBeforeStored => drop(slow_disks(calm, seed)),
        Bug::SettlesAtOnce => {
            drop(members_leave_before_others_have_their_log(Plan { replicas: 6, ..patient }));
        }
        _ => drop(storm(Plan { bug: planted, ..plan(bug, seed) }, seed)),
    })
}

fn caught(bug: Bug) -> Option<(u64, String)> {
    let number = |name: &str| std::env::var(name).ok().and_then(|text| text.parse::<u64>().ok());
    // Where it shows soon.
    let start = if bug == Bug::LeaderNumberAlone { 3_000 } else { 0 };
    let first = number("NOPAXOS_FIRST").unwrap_or(start);
    (first..first + number("NOPAXOS_SEEDS").unwrap_or(5_000)).find_map(|seed| {
        let panic = run(bug, true, seed).err()?;
        // What fails without the defect, too, proves nothing.
        run(bug, false, seed).ok()?;
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
