//! Many lives of many maps, in turn.
//!
//! Every life is lived in a process of its own, so that its memory can be told, and the contestants
//! take turns, so that a slow moment of the machine hits all. The process is this program again,
//! or another one of the same make (`--with`).

mod cases;

use std::{
    collections::BTreeMap,
    io::{IsTerminal, Write},
    path::PathBuf,
    process::Command,
};

use anyhow::{Context, Result, ensure};
use clap::{Args, ValueEnum};
use serde::{Deserialize, Serialize};

use crate::{
    keys::Form,
    life::{Clock, Work},
    reference::{self, Test},
};
pub use cases::Case;
use cases::{Group, groups};

/// Memory that is touched before a life: per key, and at most. Maps take 25 to 60 bytes for a key.
const BYTES_PER_KEY: u64 = 64;
const MOST_TOUCHED: u64 = 4 << 30;
const PAGE: usize = 4096;

/// A part of the evaluation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Part {
    /// Every form of keys, every work, every map
    Workloads,
    /// Gets with keys of 8 to 48 bytes that share all but the last eight ([Mao] figure 3-9)
    Prefix,
    /// What each idea gives: huge pages, integer comparison, prefetch, permutation, the trie of
    /// trees ([Mao] figure 3-8)
    Factors,
    /// One shared tree against one per thread, under skew ([Mao] figure 3-11); needs two threads
    Skew,
    /// The workloads of the authors' own program
    Reference,
}

/// What to measure.
#[derive(Args, Clone, Debug)]
pub struct StudyOptions {
    /// Which parts
    #[arg(long, value_enum, value_delimiter = ',', default_value = "workloads")]
    pub parts: Vec<Part>,
    /// Keys in a map; operations per thread of the part `reference`
    #[arg(long, default_value_t = 200_000)]
    pub keys: u64,
    /// Lives of each map, of which the median counts
    #[arg(long, default_value_t = 3)]
    pub runs: usize,
    /// Numbers of threads
    #[arg(long, value_delimiter = ',', default_value = "1")]
    pub threads: Vec<u64>,
    /// Forms of keys of the part `workloads`: record, decimal, sequential, binary8, prefixN,
    /// grouped
    #[arg(long, value_delimiter = ',', default_value = "decimal,sequential,binary8,prefix40")]
    pub forms: Vec<Form>,
    /// Works of the part `workloads` [default: all]
    #[arg(long, value_enum, value_delimiter = ',')]
    pub works: Vec<Work>,
    /// Tests of the part `reference`
    #[arg(long, value_enum, value_delimiter = ',', default_value = "rw1,rw2g90,rw3,rw4")]
    pub tests: Vec<Test>,
    /// Maps of the parts `workloads` and `reference`: ours, btreemap, skiplist, scc, congee, plain,
    /// plain8 [default: all, and ours alone]
    #[arg(long, value_delimiter = ',')]
    pub maps: Vec<String>,
    /// Another map, or version of ours: a program of the same make, which plays it as `ours`
    #[arg(long, value_name = "NAME=PROGRAM")]
    pub with: Vec<String>,
    /// The authors' own program (mttest), for the part `reference`
    #[arg(long, value_name = "PROGRAM")]
    pub mttest: Option<PathBuf>,
    /// Which time counts
    #[arg(long, value_enum, default_value = "wall")]
    pub clock: Clock,
    /// Keep each thread to a core of its own
    #[arg(long)]
    pub pin: bool,
    /// Where figures and points.json go; made if missing
    #[arg(long)]
    pub out: Option<PathBuf>,
    /// Live one life, given as JSON, and tell about it
    #[arg(long, hide = true, value_name = "JSON")]
    pub play: Option<String>,
    /// Write to so many bytes of memory once
    #[arg(long, hide = true, value_name = "BYTES")]
    pub touch: Option<usize>,
}

/// What was measured, of one map.
#[derive(Clone, Debug, Serialize)]
pub struct Point {
    /// The part of the evaluation.
    pub part: Part,
    /// The number of threads.
    pub threads: u64,
    /// What the keys look like.
    pub form: Form,
    /// What was done; `resident MB` is the process's memory once the map was full.
    pub what: String,
    /// The map.
    pub map: String,
    /// Million operations per second; megabytes.
    pub median: f64,
    /// The single values, in the order of the runs.
    pub samples: Vec<f64>,
}

/// A program that plays contestants.
#[derive(Clone, Debug)]
struct Program {
    path: PathBuf,
    /// What goes before its options.
    prefix: Vec<String>,
}

impl Program {
    /// Runs it, and returns what it tells.
    fn run(&self, options: &[&str]) -> Result<Vec<u8>> {
        let output = Command::new(&self.path)
            .args(&self.prefix)
            .args(options)
            .output()
            .with_context(|| format!("cannot run {}", self.path.display()))?;
        let told = String::from_utf8_lossy(&output.stderr);
        ensure!(output.status.success(), "{} failed: {told}", self.path.display());
        Ok(output.stdout)
    }
}

/// Runs the parts and prints tables. `prefix` is what goes before these options on this program's
/// own command line. Returns no points if the program was only to live one life.
///
/// # Errors
/// If an option makes no sense, a program fails, or a file cannot be written.
pub fn run(options: &StudyOptions, prefix: &[&str]) -> Result<Vec<Point>> {
    if let Some(json) = &options.play {
        let case: Case = serde_json::from_str(json).context("this is no life")?;
        println!("{}", serde_json::to_string(&case.play()?)?);
        return Ok(Vec::new());
    }
    if let Some(bytes) = options.touch {
        touch(bytes);
        return Ok(Vec::new());
    }
    check(options)?;
    let groups = groups(options)?;
    let lives = groups.iter().map(|group| group.cases.len()).sum::<usize>() * options.runs;
    let own = Program {
        path: std::env::current_exe().context("this program has no path")?,
        prefix: prefix.iter().map(|word| (*word).to_string()).collect(),
    };
    let mut points = Vec::new();
    let mut lived = 0;
    for group in &groups {
        let mut samples: BTreeMap<(usize, usize), Vec<f64>> = BTreeMap::new();
        let mut whats: Vec<String> = Vec::new();
        for _ in 0..options.runs {
            for (at, case) in group.cases.iter().enumerate() {
                lived += 1;
                progress(lived, lives, group, case);
                for (what, value) in measure(options, &own, case)? {
                    let known = whats.iter().position(|known| *known == what);
                    let what = known.unwrap_or_else(|| {
                        whats.push(what);
                        whats.len() - 1
                    });
                    samples.entry((what, at)).or_default().push(value);
                }
            }
        }
        let of_group = samples.into_iter().map(|((what, at), samples)| Point {
            part: group.part,
            threads: group.threads,
            form: group.cases[at].life.form,
            what: whats[what].clone(),
            map: group.cases[at].name.clone(),
            median: median(&samples),
            samples,
        });
        let of_group: Vec<Point> = of_group.collect();
        print_group(group, &of_group);
        points.extend(of_group);
    }
    if let Some(out) = &options.out {
        write_json(options, &points, out)?;
    }
    Ok(points)
}

fn check(options: &StudyOptions) -> Result<()> {
    ensure!(options.keys >= 1000, "--keys must be at least 1000");
    ensure!(options.runs > 0, "--runs must be at least 1");
    ensure!(options.threads.iter().all(|&n| (1..=256).contains(&n)), "--threads are 1 to 256 each");
    ensure!(
        options.mttest.is_none() || options.parts.contains(&Part::Reference),
        "--mttest needs --parts reference"
    );
    Ok(())
}

/// Writes to each page of new memory.
fn touch(bytes: usize) {
    let mut memory = vec![0_u8; bytes];
    memory.iter_mut().step_by(PAGE).for_each(|byte| *byte = 1);
    std::hint::black_box(memory);
}

/// Has one life lived.
fn measure(options: &StudyOptions, own: &Program, case: &Case) -> Result<Vec<(String, f64)>> {
    // The host of a virtual machine takes free memory away after a while, and has to find it anew:
    // seen at 0.4 GB/s, where memory that it has just been asked for is written at 7 GB/s. So a
    // process ends just before that had as much as the map may take.
    let keys = case.life.keys * case.life.threads;
    let bytes = (keys * BYTES_PER_KEY).min(MOST_TOUCHED);
    own.run(&["--touch", &bytes.to_string()])?;
    if let (Some(program), Some(test)) = (&case.authors, case.test()) {
        return reference::run_authors(program, &case.life, test);
    }
    let program = match &case.program {
        Some(path) => &Program { path: path.clone(), prefix: Vec::new() },
        None => own,
    };
    let told = program
        .run(&["--play", &serde_json::to_string(case)?])
        .with_context(|| format!("{} with {} keys failed", case.name, options.keys))?;
    serde_json::from_slice(&told)
        .with_context(|| format!("{} told no rates", program.path.display()))
}

fn median(samples: &[f64]) -> f64 {
    let mut sorted = samples.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted[sorted.len() / 2]
}

fn progress(lived: usize, lives: usize, group: &Group, case: &Case) {
    let mut terminal = std::io::stderr();
    if terminal.is_terminal() {
        // What cannot be shown is not missed.
        let _ = write!(terminal, "\r\x1b[K{lived}/{lives} {} {}", group.title, case.name);
        let _ = if lived == lives { terminal.write_all(b"\r\x1b[K") } else { terminal.flush() };
    }
}

/// Prints a table: what was done downwards, maps across.
fn print_group(group: &Group, points: &[Point]) {
    println!("\n{} ({}), Mop/s", group.title, group.detail);
    let mut whats: Vec<&str> = Vec::new();
    for point in points {
        if !whats.contains(&point.what.as_str()) {
            whats.push(&point.what);
        }
    }
    print!("{:18}", "");
    for case in &group.cases {
        print!("{:>14}", case.name);
    }
    println!();
    for what in whats {
        print!("{what:18}");
        for case in &group.cases {
            match points.iter().find(|point| point.what == what && point.map == case.name) {
                Some(point) => print!("{:>14.3}", point.median),
                None => print!("{:>14}", "-"),
            }
        }
        println!();
    }
}

fn write_json(options: &StudyOptions, points: &[Point], out: &std::path::Path) -> Result<()> {
    #[derive(Serialize)]
    struct Told<'a> {
        keys: u64,
        runs: usize,
        clock: Clock,
        pinned: bool,
        cores: usize,
        points: &'a [Point],
    }
    let told = Told {
        keys: options.keys,
        runs: options.runs,
        clock: options.clock,
        pinned: options.pin,
        cores: std::thread::available_parallelism().map_or(0, usize::from),
        points,
    };
    std::fs::create_dir_all(out).with_context(|| format!("cannot make {}", out.display()))?;
    let path = out.join("points.json");
    std::fs::write(&path, serde_json::to_string_pretty(&told)?)
        .with_context(|| format!("cannot write {}", path.display()))
}
