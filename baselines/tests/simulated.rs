//! The baselines under faults, from seeds: `BASELINES_SEEDS=20000 cargo test -p baselines --test
//! simulated`. `BASELINES_SEED=7` runs one seed.

mod common;

use baselines::replica::Tally;
use baselines::{Baseline, fast_paxos, speculative_paxos, unreplicated};
use common::{Plan, World, storm};

fn seeds() -> std::ops::Range<u64> {
    let number = |name: &str| std::env::var(name).ok().and_then(|text| text.parse::<u64>().ok());
    match number("BASELINES_SEED") {
        Some(seed) => seed..seed + 1,
        None => 0..number("BASELINES_SEEDS").unwrap_or(400),
    }
}

fn clean<P: Baseline>(
    name: &str,
    replicas: &[u64],
    tally: impl Fn(&World<P>) -> Tally,
) -> (Tally, u64) {
    let (mut sum, mut writes) = (Tally::default(), 0);
    for seed in seeds() {
        let run = || storm::<P>(Plan::draw(seed, replicas), seed);
        let world = std::panic::catch_unwind(run).unwrap_or_else(|panic| {
            println!("{name}: seed {seed}");
            std::panic::resume_unwind(panic)
        });
        let of = tally(&world);
        sum.views += of.views;
        sum.rolled_back += of.rolled_back;
        sum.adopted += of.adopted;
        sum.slow += of.slow;
        writes += world.writes_done() as u64;
    }
    println!("{name}: {} seeds, {writes} writes, {sum:?}", seeds().count());
    (sum, writes)
}

fn all<S: baselines::replica::Scheme>(world: &World<baselines::replica::Replica<S>>) -> Tally {
    let mut sum = Tally::default();
    for id in world.ids() {
        let Some(replica) = world.replica(id) else { continue };
        let tally = replica.tally();
        sum.views += tally.views;
        sum.rolled_back += tally.rolled_back;
        sum.adopted += tally.adopted;
        sum.slow += tally.slow;
    }
    sum
}

#[test]
fn unreplicated_seeds_are_clean() {
    let plan_has_no_crashes = |_: &World<unreplicated::Replica>| Tally::default();
    clean::<unreplicated::Replica>("unreplicated", &[1], plan_has_no_crashes);
}

#[test]
fn fast_paxos_seeds_are_clean() {
    let (sum, _) = clean::<fast_paxos::Replica>("fast paxos", &[3, 3, 5], all);
    assert!(seeds().count() < 300 || (sum.views > 0 && sum.adopted > 0 && sum.slow > 0));
    assert_eq!(sum.rolled_back, 0, "only what is decided is executed");
}

#[test]
fn speculative_paxos_seeds_are_clean() {
    let (sum, _) = clean::<speculative_paxos::Replica>("speculative paxos", &[3, 3, 5], all);
    let rare = [sum.views, sum.adopted, sum.slow, sum.rolled_back];
    assert!(seeds().count() < 300 || rare.iter().all(|&count| count > 0), "{sum:?}");
}
