//! The workloads of the authors' own test program (`mttest` of masstree-beta), for any map here,
//! and that program itself, run beside them if it is there.
//!
//! Keys, orders and sizes are those of its tests of the same names; so is the sum over threads of
//! each thread's own rate. Differences: its values are strings in memory of their own, ours are
//! numbers in the node; its random numbers come from another generator.

use std::{path::Path, process::Command, thread, time::Duration};

use anyhow::{Context, Result, ensure};
use clap::ValueEnum;
use rand::{Rng, SeedableRng, rngs::SmallRng, seq::SliceRandom};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::{
    contestants::{Index, Session},
    keys::{Form, decimal_key},
    life::{Life, Timer},
};

/// Operations between two renewals of a session.
const PER_SESSION: u64 = 256;

/// What its sequential keys descend from in `rw4`.
const TOP: u64 = 2_147_483_647;

/// A test.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Test {
    /// Puts of random decimals below 2^31, then gets of all of them in another order.
    Rw1,
    /// Puts of random decimals below 2^32 with nine gets of such to each.
    Rw2g90,
    /// Puts of ascending numbers of eight digits, the same on all threads, then gets of them.
    Rw3,
    /// The same with descending numbers.
    Rw4,
}

impl Test {
    fn name(self) -> &'static str {
        match self {
            Test::Rw1 => "rw1",
            Test::Rw2g90 => "rw2g90",
            Test::Rw3 => "rw3",
            Test::Rw4 => "rw4",
        }
    }
}

/// What a test told, with its rate in million per second.
pub type Rates = Vec<(String, f64)>;

/// Runs a test with `life.keys` operations of each kind per thread.
pub fn play<I: Index>(life: &Life, test: Test, index: &I) -> Rates {
    let (put_timer, get_timer) = (&Timer::new(life), &Timer::new(life));
    let one_thread = &|t: u64| match test {
        Test::Rw1 => random(life, t, index, put_timer, get_timer),
        Test::Rw2g90 => interleaved(life, t, index, put_timer),
        Test::Rw3 => in_order(life, t, index, (put_timer, get_timer), |i| i),
        Test::Rw4 => in_order(life, t, index, (put_timer, get_timer), |i| TOP - i),
    };
    let times: Vec<Vec<Duration>> = thread::scope(|scope| {
        let threads: Vec<_> =
            (0..life.threads).map(|t| scope.spawn(move || one_thread(t))).collect();
        threads.into_iter().map(|t| t.join().expect("no operation panics")).collect()
    });
    let rate = |phase: usize| {
        times.iter().map(|times| life.keys as f64 / times[phase].as_secs_f64() / 1e6).sum()
    };
    let phases: &[&str] = if test == Test::Rw2g90 { &["ops"] } else { &["puts", "gets"] };
    phases
        .iter()
        .enumerate()
        .map(|(i, phase)| (format!("{} {phase}", test.name()), rate(i)))
        .collect()
}

/// A session that renews itself.
struct Renewing<S> {
    session: S,
    left: u64,
}

impl<S: Session> Renewing<S> {
    fn new(session: S) -> Self {
        Renewing { session, left: PER_SESSION }
    }

    fn next(&mut self) -> &S {
        self.left -= 1;
        if self.left == 0 {
            self.session.renew();
            self.left = PER_SESSION;
        }
        &self.session
    }

    fn get_check(&mut self, key: &[u8], value: u64) {
        assert_eq!(self.next().get(key), Some(value), "another value than was put");
    }
}

fn random<I: Index>(life: &Life, t: u64, index: &I, puts: &Timer, gets: &Timer) -> Vec<Duration> {
    let mut rng = SmallRng::seed_from_u64(31_949 + t);
    let numbers: Vec<u32> = (0..life.keys).map(|_| rng.random::<u32>() >> 1).collect();
    let mut session = Renewing::new(index.session());
    let putting = puts.time(t, || {
        for &number in &numbers {
            let number = u64::from(number);
            session.next().put(decimal_key(number).as_ref(), number + 1);
        }
    });
    let mut shuffled = numbers;
    shuffled.shuffle(&mut rng);
    let getting = gets.time(t, || {
        for &number in &shuffled {
            let number = u64::from(number);
            session.get_check(decimal_key(number).as_ref(), number + 1);
        }
    });
    vec![putting, getting]
}

fn interleaved<I: Index>(life: &Life, t: u64, index: &I, timer: &Timer) -> Vec<Duration> {
    let mut rng = SmallRng::seed_from_u64(31_949 + t);
    let offset: u32 = rng.random::<u32>() >> 1;
    let number = |i: u32| u64::from(offset.wrapping_add(i).wrapping_mul(2_654_435_761));
    let mut session = Renewing::new(index.session());
    let mut puts = 0;
    vec![timer.time(t, || {
        for _ in 0..life.keys {
            if puts == 0 || rng.random_range(0..65_536) >= 58_982 {
                let number = number(puts);
                session.next().put(decimal_key(number).as_ref(), number + 1);
                puts += 1;
            } else {
                let number = number(rng.random_range(0..puts));
                session.get_check(decimal_key(number).as_ref(), number + 1);
            }
        }
    })]
}

fn in_order<I: Index>(
    life: &Life,
    t: u64,
    index: &I,
    (puts, gets): (&Timer, &Timer),
    number: impl Fn(u64) -> u64,
) -> Vec<Duration> {
    let key = |i: u64| Form::Sequential.key(number(i));
    let mut session = Renewing::new(index.session());
    let putting = puts.time(t, || {
        for i in 0..life.keys {
            session.next().put(key(i).as_ref(), i + 1);
        }
    });
    let getting = gets.time(t, || {
        for i in 0..life.keys {
            session.get_check(key(i).as_ref(), i + 1);
        }
    });
    vec![putting, getting]
}

/// Runs a test with the authors' program.
///
/// # Errors
/// If it does not start, fails, or tells something else than expected.
pub fn run_authors(program: &Path, life: &Life, test: Test) -> Result<Rates> {
    let mut command = Command::new(program);
    command.arg(format!("-j{}", life.threads)).arg(format!("--limit={}", life.keys));
    // It would stop after ten seconds, whatever the limit.
    command.args(["--duration=3600", "--no-notebook"]);
    if life.pin {
        command.arg("--pin");
    }
    command.arg(test.name());
    let output = command.output().with_context(|| format!("cannot run {}", program.display()))?;
    let told = [output.stdout, output.stderr].concat();
    let told = String::from_utf8_lossy(&told);
    ensure!(output.status.success(), "{} failed: {told}", program.display());
    rates_told(&told, test, life.threads)
}

/// Adds the rates of all threads up, of which each tells its own in a line of JSON.
fn rates_told(told: &str, test: Test, threads: u64) -> Result<Rates> {
    let reports: Vec<Value> = told
        .lines()
        .filter_map(|line| line.find("{\"table\"").map(|start| &line[start..]))
        .map(serde_json::from_str)
        .collect::<Result<_, _>>()
        .context("a report is no JSON")?;
    ensure!(reports.len() as u64 == threads, "{} of {threads} threads reported", reports.len());
    let phases: &[&str] = if test == Test::Rw2g90 { &["ops"] } else { &["puts", "gets"] };
    phases
        .iter()
        .map(|phase| {
            let rate = |report: &Value| report[format!("{phase}_per_sec")].as_f64();
            let sum: Option<f64> = reports.iter().map(rate).sum();
            let sum = sum.with_context(|| format!("a report lacks {phase}_per_sec"))?;
            Ok((format!("{} {phase}", test.name()), sum / 1e6))
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        contestants::{Locked, Ours},
        life::Clock,
    };

    #[test]
    fn all_tests_pass_with_two_threads() {
        let form = Form::Decimal;
        let life =
            Life { form, keys: 2000, threads: 2, clock: Clock::Wall, pin: false, works: vec![] };
        for &test in Test::value_variants() {
            let (ours, locked) =
                (play(&life, test, &Ours::new()), play(&life, test, &Locked::new()));
            let names = |rates: &Rates| rates.iter().map(|rate| rate.0.clone()).collect::<Vec<_>>();
            assert_eq!(names(&ours), names(&locked));
            assert!(ours.iter().all(|(_, rate)| *rate > 0.0));
        }
    }

    #[test]
    fn what_the_authors_program_tells_is_added_up() {
        let report = |thread: u64, puts: f64, gets: f64| {
            format!(
                "{thread}: {{\"table\":\"mb\",\"test\":\"rw1\",\"trial\":0,\"thread\":{thread},\
                 \"puts_per_sec\":{puts},\"gets_per_sec\":{gets}}}\n"
            )
        };
        let (first, second) = (report(0, 1_324_492.0, 1.5e6), report(1, 1_324_397.0, 1.4e6));
        let told = format!("1/1 rw1/m\n0: now getting\n{first}{second}EXPERIMENT x0\n");
        let told = &told[..];
        let rates = rates_told(told, Test::Rw1, 2).expect("well formed");
        assert_eq!(rates[0].0, "rw1 puts");
        assert!((rates[0].1 - 2.648_889).abs() < 1e-9 && (rates[1].1 - 2.9).abs() < 1e-9);
        rates_told(told, Test::Rw1, 3).expect_err("a thread is missing");
        rates_told(told, Test::Rw2g90, 2).expect_err("no ops");
    }
}
