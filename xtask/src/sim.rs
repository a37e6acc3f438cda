//! `cargo xtask sim`: one seed with its story, or many with a summary.

use std::num::NonZeroUsize;
use std::time::Instant;

use anyhow::{bail, ensure};
use clap::{Args, ValueEnum};
use sim::{Bug, Overrides, Summary, Trace};

/// From how many seeds on every mark must have been reached.
const ENOUGH: u64 = 1_000;

/// Which seeds, and of what kind.
#[derive(Args)]
pub struct Arguments {
    /// Run this seed and tell its story; with --seeds, the first of so many.
    #[arg(long)]
    seed: Option<u64>,
    /// Run so many seeds and print a summary.
    #[arg(long)]
    seeds: Option<u64>,
    /// Only groups of this durability.
    #[arg(long)]
    durability: Option<Durability>,
    /// Only groups of so many replicas.
    #[arg(long, value_parser = clap::value_parser!(u8).range(1..=9))]
    replicas: Option<u8>,
    /// How many seeds run at a time; as many as there are cores if not said.
    #[arg(long)]
    threads: Option<NonZeroUsize>,
    /// Plant this defect (`list` names them); those of a protocol need --features planted-bugs.
    #[arg(long)]
    bug: Option<String>,
    /// Stop after so many failing seeds.
    #[arg(long, default_value_t = 10)]
    failures: u64,
}

#[derive(Clone, Copy, ValueEnum)]
enum Durability {
    /// Acknowledged when in memory at a quorum.
    Memory,
    /// Acknowledged when in memory at a quorum; the disks follow.
    Lazy,
    /// Acknowledged when on disk at a quorum.
    Sync,
}

impl Arguments {
    fn overrides(&self) -> anyhow::Result<Overrides> {
        let bug = match &self.bug {
            None => None,
            Some(name) => match Bug::named(name) {
                Some(bug) => Some(bug),
                None => {
                    let names: Vec<String> = Bug::all().into_iter().map(Bug::name).collect();
                    bail!("there is no defect {name} here; there are: {}", names.join(" "));
                }
            },
        };
        let durability = self.durability.map(Durability::of_sim);
        Ok(Overrides { durability, replicas: self.replicas, bug })
    }

    /// The options that replay a seed just as it was.
    fn replay(&self) -> String {
        let mut options = String::new();
        if let Some(durability) = self.durability {
            options.push_str(&format!(" --durability {}", durability.of_sim().name()));
        }
        if let Some(replicas) = self.replicas {
            options.push_str(&format!(" --replicas {replicas}"));
        }
        if let Some(bug) = &self.bug {
            options.push_str(&format!(" --bug {bug}"));
        }
        options
    }
}

impl Durability {
    fn of_sim(self) -> sim::Durability {
        match self {
            Durability::Memory => sim::Durability::Memory,
            Durability::Lazy => sim::Durability::Lazy,
            Durability::Sync => sim::Durability::Sync,
        }
    }
}

/// Runs the task.
///
/// # Errors
/// If a checker finds a violation, or a long run misses a mark.
pub fn run(arguments: &Arguments) -> anyhow::Result<()> {
    let overrides = arguments.overrides()?;
    match (arguments.seed, arguments.seeds) {
        (Some(seed), None) => tell(seed, overrides),
        (first, count) => {
            let (first, count) = (first.unwrap_or(1), count.unwrap_or(100));
            summarize(arguments, overrides, first, count)
        }
    }
}

fn tell(seed: u64, overrides: Overrides) -> anyhow::Result<()> {
    let outcome = sim::run_seed::<sim::Vsr>(seed, overrides, Trace::Print);
    match outcome.violation {
        None => {
            println!("seed {seed}: {} events, nothing found", outcome.events);
            Ok(())
        }
        Some(violation) => bail!("seed {seed}: {violation}"),
    }
}

fn summarize(
    arguments: &Arguments,
    overrides: Overrides,
    first: u64,
    count: u64,
) -> anyhow::Result<()> {
    let cores = || std::thread::available_parallelism().map_or(1, NonZeroUsize::get);
    let threads = arguments.threads.map_or_else(cores, NonZeroUsize::get);
    let started = Instant::now();
    let summary = sim::run_many::<sim::Vsr>(first, count, threads, overrides, arguments.failures);
    let seconds = started.elapsed().as_secs_f64();
    print(&summary, seconds);
    for (seed, violation) in &summary.failures {
        println!("seed {seed}: {violation}");
        println!("    cargo xtask sim --seed {seed}{}", arguments.replay());
    }
    ensure!(summary.failures.is_empty(), "{} seeds failed", summary.failures.len());
    let missing = summary.marks.missing();
    let whole = overrides == Overrides::default() && count >= ENOUGH;
    ensure!(!whole || missing.is_empty(), "never reached: {}", missing.join(" "));
    Ok(())
}

fn print(summary: &Summary, seconds: f64) {
    for (mark, count) in summary.marks.counts() {
        println!("{count:>10} {mark}");
    }
    println!(
        "{} seeds in {seconds:.1} s ({:.0} a second), {} events, {} operations",
        summary.seeds,
        summary.seeds as f64 / seconds,
        summary.events,
        summary.operations
    );
}
