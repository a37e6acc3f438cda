//! Groups under faults, from seeds: `MU_SEEDS=100000 cargo test -p mu --release --test simulated`.
//! `MU_SEED=7` runs one seed.

mod common;

use common::{Plan, Tally, storm};

#[test]
fn seeds_are_clean() {
    let number = |name: &str| std::env::var(name).ok().and_then(|text| text.parse::<u64>().ok());
    let seeds = match number("MU_SEED") {
        Some(seed) => seed..seed + 1,
        None => {
            let first = number("MU_FIRST").unwrap_or(0);
            first..first + number("MU_SEEDS").unwrap_or(150)
        }
    };
    let start = std::time::Instant::now();
    let count = seeds.end - seeds.start;
    let mut sum = Tally::default();
    let only = number("MU_ONLY"); // 0: memory, 1: sync, 2: lazy
    for seed in seeds.filter(|seed| only.is_none_or(|only| seed % 3 == only)) {
        let one = std::panic::catch_unwind(|| storm(Plan::draw(seed), seed));
        match one {
            Ok(tally) => sum.add(&tally),
            Err(panic) => {
                println!("seed {seed}");
                std::panic::resume_unwind(panic);
            }
        }
    }
    let rate = count as f64 / start.elapsed().as_secs_f64();
    println!("{count} seeds, {rate:.0} a second: {sum:?}");
}

/// Seeds that have shown defects: a would-be leader that took a log for shorter than it was, seals
/// that a torn write of a former life fitted, patience that went on through a leadership, a replica
/// that left a lost log and was not fed, a full ring and two disks lost.
#[test]
fn seeds_that_once_failed_are_clean() {
    for seed in [236, 437, 2_057, 2_222, 3_003_733, 5_009_397, 6_002_516, 10_003_649, 70_107_334] {
        storm(Plan::draw(seed), seed);
    }
}

/// Words that land after their grant was revoked (soft-RoCE does that when only access flags
/// change) break the fabric's contract, and with it Mu: the checkers must see it.
#[test]
fn writes_after_a_revocation_are_seen_to_break_agreement() {
    let breaks = |seed| {
        let mut plan = Plan::draw(seed);
        plan.options.late_after_revoke = 1_000_000;
        plan.options.late_after_revoke_by = 2_000_000;
        plan.fault_every = 300;
        std::panic::catch_unwind(|| storm(plan, seed)).is_err()
    };
    let first = (0..3_000).find(|&seed| breaks(seed));
    println!("seen with seed {first:?}");
    assert!(first.is_some(), "nothing was noticed");
}
