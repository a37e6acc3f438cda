//! Checkers that find nothing prove nothing: every planted defect must be caught, and how soon is
//! part of the promise.

use sim::{Bug, Durability, Overrides, Trace, Vsr, find, run_seed};

/// Within how many seeds a defect must be caught.
fn patience(bug: Bug) -> u64 {
    match bug.name().as_str() {
        "CorruptionIgnored" | "UndoForgotten" | "VoteWhileRecovering" => 1_000,
        "ForgetfulVoteUnmarked" | "RemindedByBackup" => 3_000,
        "TruncateBeforeState" | "AcceptByNumberOnly" | "ReadWithoutQuorum" => 15_000,
        _ => 100,
    }
}

#[test]
fn every_planted_defect_is_caught() {
    let missed: Vec<String> = Bug::all()
        .into_iter()
        .filter(|&bug| find::<Vsr>(bug, patience(bug)).is_none())
        .map(Bug::name)
        .collect();
    assert!(missed.is_empty(), "not caught: {}", missed.join(" "));
}

#[test]
fn a_seed_replays_exactly() {
    for seed in 1..20 {
        let story = || {
            let outcome = run_seed::<Vsr>(seed, Overrides::default(), Trace::Keep(Vec::new()));
            (outcome.trace, outcome.marks, outcome.events)
        };
        assert!(story() == story(), "seed {seed} gives two stories");
    }
}

/// Seeds that found something once, and the durability that was asked for.
const FOUND: [(u64, Option<Durability>, &str); 6] = [
    (1_071_808, Some(Durability::Lazy), "a checkpoint came late and took what was acknowledged"),
    (1_707, None, "a commitment arrived while the state was being replaced"),
    (
        13_966,
        Some(Durability::Lazy),
        "a first request, sent before any view was known, came after its loss was told",
    ),
    (
        101_567,
        Some(Durability::Lazy),
        "patience ran out while one with a longer log stood for election, too",
    ),
    (
        103_177,
        Some(Durability::Lazy),
        "f + 1 marked votes of which one had forgotten nothing cut the patience short",
    ),
    (
        8_006_598,
        Some(Durability::Lazy),
        "a write under way stayed stuck on a disk that had healed, as the checker did not know",
    ),
];

#[test]
fn what_was_found_stays_mended() {
    for (seed, durability, what) in FOUND {
        let overrides = Overrides { durability, ..Overrides::default() };
        let outcome = run_seed::<Vsr>(seed, overrides, Trace::Off);
        assert_eq!(outcome.violation, None, "seed {seed}: {what}");
    }
}

#[test]
fn some_seeds_find_nothing() {
    let summary = sim::run_many::<Vsr>(1, 300, 2, Overrides::default(), 3);
    assert!(summary.failures.is_empty(), "{:?}", summary.failures);
}
