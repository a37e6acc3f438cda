//! Groups under faults, from seeds: `NOPAXOS_SEEDS=100000 cargo test -p nopaxos --test simulated`.
//! `NOPAXOS_SEED=7` runs one seed, `NOPAXOS_STORY=1` prints its messages; with `NOPAXOS_LAZY=1` all
//! groups are lazy, and crash as a whole.

mod common;

use common::Plan;
use common::faults::storm;
use nopaxos::Tally;
use smr::Durability;

/// So many reach every rare branch: few of them crash a lazy group so that it loses something.
const SEEDS: u64 = 3_000;

const HAVE_FAILED: &[u64] = &[
    1_014_075, // a leader that had got slots of a later view started its own above them
];

#[test]
fn seeds_are_clean() {
    let number = |name: &str| std::env::var(name).ok().and_then(|text| text.parse::<u64>().ok());
    let seeds = match number("NOPAXOS_SEED") {
        Some(seed) => seed..seed + 1,
        None => {
            let first = number("NOPAXOS_FIRST").unwrap_or(0);
            first..first + number("NOPAXOS_SEEDS").unwrap_or(SEEDS)
        }
    };
    let start = std::time::Instant::now();
    let count = seeds.end - seeds.start;
    let (mut sum, mut operations, mut stable) = (Tally::default(), 0, 0);
    let (mut lost, mut sprung, mut changes) = (0, [0; 2], 0);
    let lazy = number("NOPAXOS_LAZY").is_some();
    for seed in seeds {
        let mut plan = Plan::draw(seed);
        if lazy {
            (plan.durability, plan.disasters) = (Durability::Lazy, true);
        }
        match std::panic::catch_unwind(|| storm(plan, seed)) {
            Ok(group) => {
                lost += group.lost.len() as u64;
                changes += group.changes;
                sprung = [sprung[0] + group.sprung[0], sprung[1] + group.sprung[1]];
                operations += group.clients.operations.len();
                stable += group.reference.stable().0;
                sum.no_ops += group.tally.no_ops;
                sum.missing += group.tally.missing;
                sum.found += group.tally.found;
                sum.views += group.tally.views;
                sum.rolled_back += group.tally.rolled_back;
                sum.overflow += group.tally.overflow;
            }
            Err(panic) => {
                println!("seed {seed}");
                std::panic::resume_unwind(panic);
            }
        }
    }
    let rate = count as f64 / start.elapsed().as_secs_f64();
    println!("{count} seeds, {rate:.0} a second: {operations} operations, {stable} slots, {sum:?}");
    println!("lost by rule {lost}; members changed {changes} times");
    println!("sessions ended in gaps and view changes {sprung:?}");
    if count >= SEEDS {
        let [in_gap, in_change] = sprung;
        let rare = [sum.no_ops, sum.found, sum.views, sum.rolled_back, sum.overflow, lost, changes];
        let mut rare = rare.into_iter().chain([in_gap, in_change]);
        assert!(rare.all(|count| count > 0), "a rare branch was never reached");
    }
}

#[test]
fn seeds_that_have_failed_are_clean() {
    for &seed in HAVE_FAILED {
        storm(Plan::draw(seed), seed);
    }
}
