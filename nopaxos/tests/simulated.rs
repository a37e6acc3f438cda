//! Groups under faults, from seeds: `NOPAXOS_SEEDS=100000 cargo test -p nopaxos --test simulated`.
//! `NOPAXOS_SEED=7` runs one seed, `NOPAXOS_STORY=1` prints its messages.

mod common;

use common::Plan;
use common::faults::storm;
use nopaxos::Tally;

#[test]
fn seeds_are_clean() {
    let number = |name: &str| std::env::var(name).ok().and_then(|text| text.parse::<u64>().ok());
    let seeds = match number("NOPAXOS_SEED") {
        Some(seed) => seed..seed + 1,
        None => {
            let first = number("NOPAXOS_FIRST").unwrap_or(0);
            first..first + number("NOPAXOS_SEEDS").unwrap_or(300)
        }
    };
    let start = std::time::Instant::now();
    let count = seeds.end - seeds.start;
    let (mut sum, mut operations, mut stable) = (Tally::default(), 0, 0);
    for seed in seeds {
        match std::panic::catch_unwind(|| storm(Plan::draw(seed), seed)) {
            Ok(group) => {
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
    if count >= 300 {
        let rare = [sum.no_ops, sum.found, sum.views, sum.rolled_back, sum.overflow];
        assert!(rare.iter().all(|&count| count > 0), "a rare branch was never reached");
    }
}
