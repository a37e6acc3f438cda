//! The tree beside other ordered maps, on the workloads of [Mao] 3.3 and a few more.
//!
//! `cargo bench -p masstree` takes a quick look. The real thing is
//! `cargo bench -p masstree -- --keys 10000000 --runs 5 --threads 1,2 --json out.json`.
//!
//! Every life of a map is a process of its own, so that its memory can be told, and the contestants
//! take turns, so that a slow moment of the machine hits all. `--with NAME=PROGRAM` adds another
//! build of this program, of which it runs "ours", say one of an older version of the tree.

mod contestants;
mod keys;
mod workload;

use std::{
    collections::BTreeMap,
    fmt::Write,
    process::{Command, exit},
};

use contestants::{Congee, Locked, Ours, Scc, Skiplist};
use keys::Kind;
use workload::{Clock, Run};

/// As recommended by most of the contestants, and what the server runs with.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

const CONTESTANTS: [&str; 5] = ["ours", "btreemap", "skiplist", "scc", "congee"];

struct Options {
    keys: u64,
    runs: usize,
    threads: Vec<u64>,
    clock: Clock,
    work: String,
    kinds: Vec<Kind>,
    /// Names, and the programs that play them.
    contestants: Vec<(String, String)>,
    json: Option<String>,
}

fn usage(problem: &str) -> ! {
    eprintln!(
        "{problem}\noptions: --keys N --runs N --threads N,N --kinds NAME,NAME --only NAME,NAME \
         --with NAME=PROGRAM --json FILE \
         --clock wall|cpu --work NAME,NAME"
    );
    exit(2)
}

fn clock_named(name: &str) -> Clock {
    match name {
        "wall" => Clock::Wall,
        "cpu" => Clock::Cpu,
        _ => usage("a clock is wall or cpu"),
    }
}

fn options() -> Options {
    let this = std::env::current_exe().expect("the program has a path").display().to_string();
    let mut options = Options {
        keys: 200_000,
        runs: 3,
        threads: vec![1],
        clock: Clock::Wall,
        work: String::new(),
        kinds: Kind::ALL.to_vec(),
        contestants: CONTESTANTS.map(|name| (name.to_string(), this.clone())).to_vec(),
        json: None,
    };
    let mut arguments = std::env::args().skip(1);
    while let Some(option) = arguments.next() {
        if option == "--bench" {
            continue;
        }
        let value = arguments.next().unwrap_or_else(|| usage("a value is missing"));
        let number = || value.parse().unwrap_or_else(|_| usage("a number was expected"));
        let has = |name: &str| value.split(',').any(|wanted| wanted == name);
        match option.as_str() {
            "--keys" => options.keys = number(),
            "--runs" => options.runs = number() as usize,
            "--threads" => {
                options.threads = value
                    .split(',')
                    .map(|n| n.parse().unwrap_or_else(|_| usage("a number was expected")))
                    .collect();
            }
            "--clock" => options.clock = clock_named(&value),
            "--work" => options.work = value,
            "--kinds" => options.kinds.retain(|kind| has(kind.name())),
            "--only" => options.contestants.retain(|(name, _)| has(name)),
            "--with" => match value.split_once('=') {
                Some((name, program)) => options.contestants.push((name.into(), program.into())),
                None => usage("--with wants NAME=PROGRAM"),
            },
            "--json" => options.json = Some(value),
            _ => usage("an unknown option"),
        }
    }
    options
}

fn list(names: &str) -> Vec<String> {
    names.split(',').filter(|name| !name.is_empty()).map(str::to_string).collect()
}

/// The process's resident memory in bytes, where the system tells.
fn resident() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap_or("0");
    let kib = line.split_whitespace().next().and_then(|n| n.parse::<u64>().ok());
    kib.unwrap_or(0) * 1024
}

/// Plays one contestant, and prints what it measured.
fn play(name: &str, run: &Run) {
    let (rates, resident) = match name {
        "btreemap" => run.all::<Locked>(resident),
        "skiplist" => run.all::<Skiplist>(resident),
        "scc" => run.all::<Scc>(resident),
        "congee" => run.all::<Congee>(resident),
        _ => run.all::<Ours>(resident),
    };
    for (what, rate) in rates {
        println!("{what}={rate}");
    }
    println!("resident MB={}", resident as f64 / 1e6);
}

/// Has a contestant played by a process of its own.
fn measure(name: &str, program: &str, run: &Run) -> Vec<(String, f64)> {
    let arguments = [
        "play".to_string(),
        name.to_string(),
        run.kind.name().to_string(),
        run.keys.to_string(),
        run.threads.to_string(),
        if run.clock == Clock::Cpu { "cpu" } else { "wall" }.to_string(),
        run.work.join(","),
    ];
    let output = Command::new(program).args(arguments).output().expect("the program starts");
    if !output.status.success() {
        eprintln!("{name} failed: {}", String::from_utf8_lossy(&output.stderr));
        return Vec::new();
    }
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    text.lines()
        .filter_map(|line| line.split_once('='))
        .filter_map(|(what, rate)| Some((what.to_string(), rate.parse().ok()?)))
        .collect()
}

type Samples = BTreeMap<(u64, &'static str, String, String), Vec<f64>>;

fn median(samples: &[f64]) -> f64 {
    let mut sorted = samples.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted[sorted.len() / 2]
}

/// Prints one table: workloads down, contestants across.
fn print_table(options: &Options, order: &[String], threads: u64, kind: Kind, samples: &Samples) {
    println!("\n{} keys of kind {}, {threads} thread(s), Mop/s", options.keys, kind.name());
    print!("{:18}", "");
    for (name, _) in &options.contestants {
        print!("{name:>11}");
    }
    println!();
    for what in order {
        print!("{what:18}");
        for (name, _) in &options.contestants {
            let at = (threads, kind.name(), what.clone(), name.clone());
            match samples.get(&at) {
                Some(samples) => print!("{:>11.3}", median(samples)),
                None => print!("{:>11}", "-"),
            }
        }
        println!();
    }
}

fn json(options: &Options, samples: &Samples) -> String {
    let mut out = format!("{{\n  \"keys\": {},\n  \"results\": [", options.keys);
    for (i, ((threads, kind, what, name), samples)) in samples.iter().enumerate() {
        let comma = if i == 0 { "" } else { "," };
        write!(
            out,
            "{comma}\n    {{\"threads\": {threads}, \"kind\": \"{kind}\", \"what\": \"{what}\", \
             \"contestant\": \"{name}\", \"median\": {}, \"samples\": {samples:?}}}",
            median(samples)
        )
        .expect("a string takes everything");
    }
    out + "\n  ]\n}\n"
}

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    if let [first, name, kind, keys, threads, clock, work] = &arguments[..]
        && first == "play"
    {
        let kind = Kind::ALL.into_iter().find(|k| k.name() == kind).expect("a known kind");
        let number = |text: &String| text.parse().expect("a number");
        let (keys, threads, clock) = (number(keys), number(threads), clock_named(clock));
        return play(name, &Run { kind, keys, threads, clock, work: list(work) });
    }
    let options = options();
    let mut samples = Samples::new();
    for &threads in &options.threads {
        for &kind in &options.kinds {
            let work = list(&options.work);
            let run = Run { kind, keys: options.keys, threads, clock: options.clock, work };
            let mut order: Vec<String> = Vec::new();
            for _ in 0..options.runs {
                for (name, program) in &options.contestants {
                    if name == "congee" && !kind.is_fixed() {
                        continue;
                    }
                    for (what, rate) in measure(name, program, &run) {
                        if !order.contains(&what) {
                            order.push(what.clone());
                        }
                        let at = (threads, kind.name(), what, name.clone());
                        samples.entry(at).or_default().push(rate);
                    }
                }
            }
            print_table(&options, &order, threads, kind, &samples);
        }
    }
    if let Some(path) = &options.json {
        std::fs::write(path, json(&options, &samples)).expect("the file can be written");
    }
}
