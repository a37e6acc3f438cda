//! `cargo xtask redis-suite`: Redis's own tests against ours.
//!
//! The suite comes from Debian's source package of Redis 7.0.15, fetched below the target
//! directory and never into the repository. Servers that are not Redis itself run it in its
//! external mode. Where the package or Tcl cannot be had, the task says so and ends well.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail, ensure};

use crate::servers::{self, Server};

/// Each suite, with how many tests a real Redis 7.0.15 passes.
const SUITES: &[(&str, usize)] = &[
    ("unit/type/string", 72),
    ("unit/type/incr", 23),
    ("unit/type/hash", 72),
    ("unit/keyspace", 42),
    ("unit/expire", 56),
    ("unit/multi", 32),
    ("unit/scan", 17),
    ("unit/protocol", 19),
    ("unit/quit", 3),
];

/// Tests that need what only a Redis under the suite's own control has.
const DENIED_TAGS: &[&str] =
    &["needs:repl", "needs:debug", "needs:save", "needs:reset", "needs:config-maxmemory", "slow"];

/// The part of the tests that must pass, in percent.
const NEEDED_PERCENT: usize = 97;

/// A suite that takes longer hangs.
const SECONDS_PER_SUITE: &str = "300";

/// What to test.
#[derive(clap::Args)]
pub struct Arguments {
    /// A server that runs already; without it, a demo group is started
    #[arg(long)]
    port: Option<u16>,
    /// Suites, of those known; without it, all
    #[arg(long, value_delimiter = ',')]
    suites: Vec<String>,
    /// Durability of the demo group
    #[arg(long, default_value = "memory")]
    durability: String,
}

struct Outcome {
    suite: &'static str,
    expected: usize,
    passed: usize,
    failed: Vec<String>,
    /// How the suite ended where it did not reach its end.
    aborted: Option<String>,
}

/// Runs the suites; fails if fewer pass than must.
pub fn run(arguments: &Arguments) -> Result<()> {
    let suites = chosen(&arguments.suites)?;
    for program in ["apt-get", "tclsh", "tar", "timeout"] {
        if servers::on_path(program).is_none() {
            println!("SKIPPED: {program} is not installed (Debian: apt-get install tcl)");
            return Ok(());
        }
    }
    let directory = servers::directory("redis-suite")?;
    let source = match source(&directory) {
        Ok(source) => source,
        Err(error) => {
            println!("SKIPPED: Redis's source package cannot be had: {error:#}");
            return Ok(());
        }
    };
    let demo = match arguments.port {
        Some(_) => None,
        None => {
            let data = servers::empty_directory("redis-suite-demo")?;
            Some(Server::demo(&servers::lockstep()?, &data, &arguments.durability)?)
        }
    };
    let port = arguments.port.or(demo.as_ref().map(|demo| demo.port)).context("no port")?;
    let mut outcomes = Vec::new();
    for (suite, expected) in suites {
        let outcome = run_suite(&source, port, suite, expected)?;
        print(&outcome);
        outcomes.push(outcome);
    }
    judge(&outcomes)
}

fn chosen(names: &[String]) -> Result<Vec<(&'static str, usize)>> {
    for name in names {
        let is_known = SUITES.iter().any(|(suite, _)| suite == name);
        ensure!(is_known, "{name} is none of the known suites, which are {SUITES:?}");
    }
    let is_chosen = |suite: &str| names.is_empty() || names.iter().any(|name| name == suite);
    Ok(SUITES.iter().copied().filter(|(suite, _)| is_chosen(suite)).collect())
}

/// The unpacked source, fetched if it is not there yet.
fn source(directory: &Path) -> Result<PathBuf> {
    let find = |prefix: &str, suffix: &str| -> Result<Option<PathBuf>> {
        let mut found = None;
        for entry in fs::read_dir(directory)? {
            let path = entry?.path();
            let name = servers::file_name(&path);
            if name.starts_with(prefix) && name.ends_with(suffix) {
                found = Some(path);
            }
        }
        Ok(found)
    };
    if let Some(source) = find("redis-7.", "")?
        && source.join("runtest").is_file()
    {
        return Ok(source);
    }
    eprintln!("fetching Redis's source package");
    let (sources, lists) = (directory.join("sources"), directory.join("lists"));
    fs::create_dir_all(&sources)?;
    fs::create_dir_all(&lists)?;
    fs::write(sources.join("redis.sources"), source_packages()?)?;
    let apt = |arguments: &[&str]| {
        servers::run(
            Command::new("apt-get")
                .current_dir(directory)
                .arg("-qq")
                .args(["-o", &format!("Dir::Etc::sourceparts={}", sources.display())])
                .args(["-o", "Dir::Etc::sourcelist=/dev/null"])
                .args(["-o", &format!("Dir::State::lists={}", lists.display())])
                .args(arguments),
        )
    };
    apt(&["update"])?;
    apt(&["source", "--download-only", "redis"])?;
    let archive = find("redis_", ".orig.tar.gz")?.context("the package has no source archive")?;
    servers::run(Command::new("tar").current_dir(directory).arg("xzf").arg(archive))?;
    find("redis-7.", "")?.context("the archive has no directory of Redis 7")
}

/// The machine's own package sources, for source packages.
fn source_packages() -> Result<String> {
    let folder = Path::new("/etc/apt/sources.list.d");
    let listed =
        fs::read_dir(folder).with_context(|| format!("{} is unreadable", folder.display()))?;
    let mut sources = String::new();
    for file in listed {
        let path = file?.path();
        if path.extension().is_some_and(|extension| extension == "sources") {
            sources += &fs::read_to_string(path)?.replace("Types: deb\n", "Types: deb-src\n");
            sources.push('\n');
        }
    }
    ensure!(!sources.is_empty(), "there are no package sources in {}", folder.display());
    Ok(sources)
}

fn run_suite(source: &Path, port: u16, suite: &'static str, expected: usize) -> Result<Outcome> {
    let mut command = Command::new("timeout");
    command
        .current_dir(source)
        .args([SECONDS_PER_SUITE, "./runtest", "--host", "127.0.0.1"])
        .args(["--port", &port.to_string()])
        .args(["--singledb", "--ignore-encoding", "--ignore-digest", "--single", suite])
        // A test that uses a command that is not there fails; without this it ends its suite.
        .arg("--durable");
    for tag in DENIED_TAGS {
        command.args(["--tags", &format!("-{tag}")]);
    }
    let output = command.stdin(Stdio::null()).output().context("cannot run the suite")?;
    let text = without_colours(&String::from_utf8_lossy(&output.stdout));
    Ok(count(suite, expected, &text))
}

fn count(suite: &'static str, expected: usize, text: &str) -> Outcome {
    let passed = text.lines().filter(|line| line.starts_with("[ok]")).count();
    let lines: Vec<&str> = text.lines().map(str::trim).collect();
    let line = |number: usize| lines.get(number).copied().unwrap_or_default();
    let failure = |number: usize| {
        let name = line(number).strip_prefix("[err]: ")?;
        // The line below says why. Of an error that is not an assertion it lacks the start, and the
        // next one has the whole.
        let reason = line(number + 1);
        let whole = Some(line(number + 2)).filter(|whole| whole.ends_with(reason));
        Some(format!("{name}: {}", whole.unwrap_or(reason)))
    };
    let failed = (0..lines.len()).filter_map(failure).collect();
    let finished = text.lines().any(|line| line.contains("done]: "));
    let aborted = (!finished).then(|| {
        let words: Vec<&str> = text.lines().filter(|line| !line.trim().is_empty()).collect();
        let exception = words.iter().position(|line| line.starts_with("[exception]"));
        let from = exception.unwrap_or(words.len().saturating_sub(5));
        words[from..].iter().take(8).copied().collect::<Vec<_>>().join("\n      ")
    });
    Outcome { suite, expected, passed, failed, aborted }
}

/// Drops what colours a terminal: an escape, a bracket, and all up to a letter.
fn without_colours(text: &str) -> String {
    let mut plain = String::with_capacity(text.len());
    let mut letters = text.chars();
    while let Some(letter) = letters.next() {
        if letter == '\u{1b}' {
            letters.by_ref().find(char::is_ascii_alphabetic);
        } else {
            plain.push(letter);
        }
    }
    plain
}

fn print(outcome: &Outcome) {
    let Outcome { suite, expected, passed, .. } = outcome;
    println!("{suite:<20} {passed:>4} of {expected:>4}, {} failed", outcome.failed.len());
    for failure in &outcome.failed {
        println!("    {failure}");
    }
    if let Some(words) = &outcome.aborted {
        println!("    the suite did not reach its end:\n      {words}");
    }
}

fn judge(outcomes: &[Outcome]) -> Result<()> {
    let passed: usize = outcomes.iter().map(|outcome| outcome.passed).sum();
    let expected: usize = outcomes.iter().map(|outcome| outcome.expected).sum();
    let percent = 100.0 * passed as f64 / expected.max(1) as f64;
    println!("{passed} of the {expected} that Redis 7.0.15 passes: {percent:.1} %");
    if passed * 100 < expected * NEEDED_PERCENT {
        bail!("at least {NEEDED_PERCENT} % must pass");
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_reference_is_known() {
        assert_eq!(SUITES.iter().map(|(_, expected)| expected).sum::<usize>(), 336);
        assert!(chosen(&["unit/nothing".to_string()]).is_err());
        assert_eq!(chosen(&["unit/quit".to_string()]).unwrap(), [("unit/quit", 3)]);
        assert_eq!(chosen(&[]).unwrap().len(), SUITES.len());
    }

    #[test]
    fn results_are_counted_without_their_colours() {
        let text = "\u{1b}[0;32m[ok]\u{1b}[0m: a\n\u{1b}[0;31m[err]\u{1b}[0m: b in tests/c.tcl\n\
                    nown\nERR unknown\n\
                    \u{1b}[0;34m[1/1 done]\u{1b}[0m: unit/quit (0 seconds)\n";
        let outcome = count("unit/quit", 3, &without_colours(text));
        assert_eq!((outcome.passed, outcome.failed.len()), (1, 1));
        assert_eq!(outcome.failed[0], "b in tests/c.tcl: ERR unknown");
        assert!(outcome.aborted.is_none());
        assert!(judge(&[outcome]).is_err());
    }

    #[test]
    fn an_abort_is_told_with_its_reason() {
        let text = "[ok]: a\n[exception]: Executing test client: ERR x.\nERR x\n    while y\n";
        let outcome = count("unit/quit", 3, text);
        assert!(outcome.aborted.unwrap().starts_with("[exception]"));
    }
}
