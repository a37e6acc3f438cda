//! Sharing against partitioning under skew ([Mao] 3.3.6, figure 3-11).
//!
//! Gets from one shared tree, and from as many trees as there are threads, of which each serves its
//! own partition alone. In the second case the requests of a partition wait for its thread, so the
//! slowest thread's time counts; the first has no slowest partition. Unlike the paper's, the
//! partitions are trees with locks.

use std::thread;

use crate::{
    contestants::{Index, Ours, Session},
    life::{Life, Timer},
    workload::{KeyDistribution, Kind, Mix, Shape, ValueSize, Workload},
};

/// Operations between two renewals of a session.
const PER_SESSION: u64 = 256;

/// The rates of gets, in million per second, at each skewness.
pub fn measure(life: &Life, partitioned: bool, deltas: &[f64]) -> Vec<f64> {
    let trees: Vec<Ours> = match partitioned {
        true => (0..life.threads).map(|_| Ours::new()).collect(),
        false => vec![Ours::new()],
    };
    let parts = life.threads;
    for (i, tree) in trees.iter().enumerate() {
        let mut session = tree.session();
        let (from, to) = if partitioned { part(life, i as u64) } else { (0, life.keys) };
        for number in from..to {
            session.put(life.form.key(number).as_ref(), number);
            if number % PER_SESSION == 0 {
                session.renew();
            }
        }
    }
    deltas
        .iter()
        .map(|&delta| {
            let hot = (1.0 + delta) / (parts as f64 + delta);
            let share = |t: u64| match (partitioned, t) {
                (false, _) => life.keys / parts,
                (true, 0) => (life.keys as f64 * hot) as u64,
                (true, _) => (life.keys as f64 * (1.0 - hot)) as u64 / (parts - 1),
            };
            gets(life, &trees, delta, share)
        })
        .collect()
}

/// The numbers of a partition's keys.
fn part(life: &Life, t: u64) -> (u64, u64) {
    (life.keys * t / life.threads, life.keys * (t + 1) / life.threads)
}

/// Has each thread do its share of gets: of its own partition's keys, evenly, if there are several
/// trees, otherwise of all keys, with the skew.
fn gets(life: &Life, trees: &[Ours], delta: f64, share: impl Fn(u64) -> u64 + Sync) -> f64 {
    let timer = &Timer::new(life);
    let share = &share;
    let one_thread = &|t: u64| {
        let (from, to) = if trees.len() > 1 { part(life, t) } else { (0, life.keys) };
        let distribution = match trees.len() {
            1 => KeyDistribution::Skewed { parts: life.threads, delta },
            _ => KeyDistribution::Uniform,
        };
        let (value_size, mix) = (ValueSize(8..=8), Mix::only(Kind::Get));
        let shape = Shape { keys: to - from, distribution, value_size, mix };
        let mut workload = Workload::new(&shape, 1, t, life.threads);
        timer.time(t, || {
            let mut session = trees[t as usize % trees.len()].session();
            for i in 0..share(t) {
                let key = life.form.key(from + workload.next_key());
                assert!(session.get(key.as_ref()).is_some(), "a key was lost");
                if i % PER_SESSION == 0 {
                    session.renew();
                }
            }
        })
    };
    let longest = thread::scope(|scope| {
        let threads: Vec<_> =
            (0..life.threads).map(|t| scope.spawn(move || one_thread(t))).collect();
        let times = threads.into_iter().map(|t| t.join().expect("no get panics"));
        times.max().expect("there is a thread")
    });
    let done: u64 = (0..life.threads).map(share).sum();
    done as f64 / longest.as_secs_f64() / 1e6
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{keys::Form, life::Clock};

    #[test]
    fn every_request_finds_its_key_in_its_partition() {
        let form = Form::Sequential;
        let life =
            Life { form, keys: 1000, threads: 3, clock: Clock::Wall, pin: false, works: vec![] };
        for partitioned in [false, true] {
            let rates = measure(&life, partitioned, &[0.0, 9.0]);
            assert!(rates.len() == 2 && rates.iter().all(|rate| *rate > 0.0));
        }
    }
}
