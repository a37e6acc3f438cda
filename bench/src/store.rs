//! `lockstep bench store`: the single-node store ([Mao] 3.2) beside a single Redis, and beside
//! itself while checkpoints follow one another; then recovery after a kill.
//!
//! All servers run side by side and are measured in turns, so that a busy machine hits all of them.
//! A figure is the median of the rounds, a ratio the median of the rounds' ratios.

use std::fmt::Write as _;
use std::fs::File;
use std::io::{Read, Write as _};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use clap::Args;
use serde::Serialize;

use crate::load::{self, LoadOptions};
use crate::workload::{Kind, Mix};

/// Bytes of log after which the store is checkpointed again: all the time under load.
const OFTEN: &str = "16777216";
/// And never.
const NEVER: &str = "1000000000000000";
/// How long a server may take to start.
const READY: Duration = Duration::from_secs(120);
/// Requests on their way per connection.
const PIPELINES: [usize; 2] = [1, 16];

/// What to measure.
#[derive(Args, Clone, Debug)]
pub struct StoreOptions {
    /// Number of keys; all of them are there before anything is measured
    #[arg(long, default_value_t = 1_000_000)]
    pub keys: u64,
    /// Connections
    #[arg(long, default_value_t = 50)]
    pub clients: usize,
    /// Threads that share the connections
    #[arg(long, default_value_t = 1)]
    pub load_threads: usize,
    /// Query threads of the store
    #[arg(long, default_value_t = 2)]
    pub threads: usize,
    /// Seconds that each measurement takes
    #[arg(long, default_value_t = 2.0)]
    pub seconds: f64,
    /// Measurements of each kind, whose median counts
    #[arg(long, default_value_t = 5)]
    pub rounds: usize,
    /// The program of Redis; without it the store is not compared
    #[arg(long, value_name = "PROGRAM")]
    pub redis: Option<PathBuf>,
    /// Where the data is kept, on the disk to be measured, in a new directory that is removed
    /// afterwards
    #[arg(long, default_value = ".")]
    pub dir: PathBuf,
    /// The servers use three ports from here on
    #[arg(long, default_value_t = 7700)]
    pub port: u16,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// A server that ends with this value.
struct Server {
    name: &'static str,
    child: Child,
    address: String,
    log: PathBuf,
}

impl Server {
    fn start(name: &'static str, mut command: Command, port: u16, home: &Path) -> Result<Server> {
        let log = home.join(format!("{name}.log"));
        let file = File::create(&log)?;
        command.stdin(Stdio::null()).stdout(file.try_clone()?).stderr(file);
        let child = command.spawn().with_context(|| format!("cannot start {name}"))?;
        let address = format!("127.0.0.1:{port}");
        let mut server = Server { name, child, address, log };
        let end = Instant::now() + READY;
        // Another server at that port would be measured in the place of one that could not start.
        while matches!(server.child.try_wait(), Ok(None)) && Instant::now() < end {
            if serves(&server.address).is_ok() {
                return Ok(server);
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        bail!("{name} does not serve; it said:\n{}", server.words())
    }

    fn store(name: &'static str, options: &StoreOptions, home: &Path) -> Result<Server> {
        let (port, bytes) = match name {
            "store" => (options.port, NEVER),
            _ => (options.port + 1, OFTEN),
        };
        let mut command = Command::new(std::env::current_exe().context("where is this program?")?);
        command.args(["serve", "--standalone", "--checkpoint-log-bytes", bytes, "--threads"]);
        command.arg(options.threads.to_string());
        command.arg("--resp").arg(format!("127.0.0.1:{port}"));
        command.arg("--dir").arg(home.join(name));
        command.arg("--die-with-parent").arg(std::process::id().to_string());
        Server::start(name, command, port, home)
    }

    fn redis(program: &Path, port: u16, home: &Path) -> Result<Server> {
        std::fs::create_dir(home.join("redis"))?;
        let mut command = Command::new(program);
        command.args(["--appendonly", "yes", "--appendfsync", "everysec", "--save", ""]);
        command.arg("--port").arg(port.to_string()).arg("--dir").arg(home.join("redis"));
        Server::start("redis", command, port, home)
    }

    fn words(&self) -> String {
        std::fs::read_to_string(&self.log).unwrap_or_default()
    }

    /// How many checkpoints it has made, and how long they took together.
    fn checkpoints(&self) -> (usize, Duration) {
        let words = self.words();
        let took = words.lines().filter_map(|line| {
            let (_, after) = line.split_once("checkpoint ")?.1.split_once(" bytes in ")?;
            after.strip_suffix(" ms")?.parse().ok()
        });
        let took: Vec<u64> = took.collect();
        (took.len(), Duration::from_millis(took.iter().sum()))
    }

    fn load(&self, options: &StoreOptions, kind: Kind, pipeline: usize) -> LoadOptions {
        LoadOptions {
            addresses: vec![self.address.clone()],
            clients: options.clients,
            threads: options.load_threads,
            pipeline,
            mix: Mix::only(kind),
            keys: options.keys,
            duration: options.seconds,
            ..LoadOptions::default()
        }
    }

    fn measure(&self, options: &StoreOptions, kind: Kind, pipeline: usize) -> Result<Figure> {
        let report = load::run(&self.load(options, kind, pipeline))?;
        let name = self.name;
        if let Some(error) = &report.first_error {
            bail!("{name} answered {error}");
        }
        ensure!(report.misses + report.unanswered == 0, "{name} did not answer all requests");
        Ok(Figure { per_second: report.total.per_second, p99_us: report.total.p99_us })
    }
}

/// Asks a server whether it serves: one that is loading says so.
fn serves(address: &str) -> Result<()> {
    let mut stream = TcpStream::connect(address)?;
    stream.set_read_timeout(Some(READY))?;
    stream.write_all(b"PING\r\n")?;
    let mut answer = [0; 7];
    stream.read_exact(&mut answer)?;
    ensure!(&answer == b"+PONG\r\n", "it does not serve yet");
    Ok(())
}

impl Drop for Server {
    fn drop(&mut self) {
        // Whoever has ended already needs no killing.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// One measurement, or their medians.
#[derive(Clone, Copy, Debug, Serialize)]
struct Figure {
    per_second: f64,
    p99_us: f64,
}

/// A server beside another one, round by round.
#[derive(Debug, Serialize)]
struct Comparison {
    what: String,
    against: String,
    own: Figure,
    other: Figure,
    /// Of what is done in a second.
    ratio: f64,
    /// Of all rounds.
    rounds: Vec<(Figure, Figure)>,
}

#[derive(Debug, Serialize)]
struct Outcome {
    keys: u64,
    clients: usize,
    threads: usize,
    comparisons: Vec<Comparison>,
    /// Checkpoints that ended meanwhile, how long they took together, and for how long the puts
    /// beside them were measured, in milliseconds. A checkpoint may outlast a measurement.
    checkpoints: usize,
    checkpoints_ms: u64,
    measured_ms: u64,
    recoveries: Vec<Recovery>,
}

/// A start after a kill.
#[derive(Debug, Serialize)]
struct Recovery {
    of: &'static str,
    /// What the store said.
    said: String,
    /// From the start of the process until it served, in milliseconds.
    ms: u64,
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_unstable_by(f64::total_cmp);
    values[values.len() / 2]
}

impl Comparison {
    fn of(what: String, against: &str, rounds: Vec<(Figure, Figure)>) -> Comparison {
        let over = |pick: fn(&(Figure, Figure)) -> f64| median(rounds.iter().map(pick).collect());
        Comparison {
            what,
            against: against.to_owned(),
            own: Figure { per_second: over(|r| r.0.per_second), p99_us: over(|r| r.0.p99_us) },
            other: Figure { per_second: over(|r| r.1.per_second), p99_us: over(|r| r.1.p99_us) },
            ratio: over(|r| r.0.per_second / r.1.per_second),
            rounds,
        }
    }
}

/// Measures, and prints what came out.
///
/// # Errors
/// What keeps a server from running, or an answer that is an error.
pub fn run(options: &StoreOptions) -> Result<()> {
    ensure!(options.rounds > 0, "--rounds must be at least 1");
    ensure!(options.port < u16::MAX - 2, "--port and the two after it must be below 65536");
    let home = options.dir.join(format!("bench-store-{}", std::process::id()));
    std::fs::create_dir(&home).with_context(|| format!("cannot make {}", home.display()))?;
    let measured = measure(options, &home);
    std::fs::remove_dir_all(&home).with_context(|| format!("cannot remove {}", home.display()))?;
    let outcome = measured?;
    match options.json {
        true => println!("{}", serde_json::to_string_pretty(&outcome)?),
        false => print!("{}", table(&outcome)),
    }
    Ok(())
}

fn measure(options: &StoreOptions, home: &Path) -> Result<Outcome> {
    let store = Server::store("store", options, home)?;
    let busy = Server::store("checkpoints", options, home)?;
    let redis = options.redis.as_ref().map(|path| Server::redis(path, options.port + 2, home));
    let redis = redis.transpose()?;
    for server in [&store, &busy].into_iter().chain(&redis) {
        let preload =
            LoadOptions { preload: true, count: Some(1), ..server.load(options, Kind::Set, 1) };
        load::run(&preload)?;
    }
    let mut comparisons = Vec::new();
    for pipeline in PIPELINES {
        for kind in [Kind::Set, Kind::Get] {
            let Some(redis) = &redis else { continue };
            let rounds = (0..options.rounds)
                .map(|_| {
                    let own = store.measure(options, kind, pipeline)?;
                    Ok((own, redis.measure(options, kind, pipeline)?))
                })
                .collect::<Result<_>>()?;
            let what = format!("{}, {pipeline} outstanding", kind.name());
            comparisons.push(Comparison::of(what, "redis", rounds));
        }
    }
    let (mut rounds, before) = (Vec::new(), busy.checkpoints());
    let mut spent = Duration::ZERO;
    for _ in 0..options.rounds {
        let start = Instant::now();
        let own = busy.measure(options, Kind::Set, 16)?;
        spent += start.elapsed();
        rounds.push((own, store.measure(options, Kind::Set, 16)?));
    }
    let after = busy.checkpoints();
    let what = "set, 16 outstanding, while checkpoints run".to_owned();
    comparisons.push(Comparison::of(what, "none run", rounds));
    drop((busy, redis));
    drop(store);
    let recover = |of| {
        let start = Instant::now();
        let again = Server::store(of, options, home)?;
        let (ms, words) = (start.elapsed().as_millis() as u64, again.words());
        let said = words.lines().find(|line| line.contains("recovered")).unwrap_or_default();
        Ok(Recovery { of, said: said.to_owned(), ms })
    };
    let recoveries = ["store", "checkpoints"].into_iter().map(recover).collect::<Result<_>>()?;
    Ok(Outcome {
        keys: options.keys,
        clients: options.clients,
        threads: options.threads,
        comparisons,
        checkpoints: after.0 - before.0,
        checkpoints_ms: (after.1 - before.1).as_millis() as u64,
        measured_ms: spent.as_millis() as u64,
        recoveries,
    })
}

fn table(outcome: &Outcome) -> String {
    let mut text = String::new();
    let Outcome { keys, clients, threads, .. } = outcome;
    let _ = writeln!(text, "{keys} keys, {clients} clients, {threads} query threads");
    for comparison in &outcome.comparisons {
        let Comparison { what, against, own, other, ratio, .. } = comparison;
        let _ = writeln!(
            text,
            "{what}: {:.0}/s (p99 {:.2} ms); {against}: {:.0}/s (p99 {:.2} ms); ratio {ratio:.2}",
            own.per_second,
            own.p99_us / 1e3,
            other.per_second,
            other.p99_us / 1e3,
        );
    }
    let Outcome { checkpoints, checkpoints_ms, measured_ms, .. } = outcome;
    let _ = writeln!(
        text,
        "{checkpoints} checkpoints in {checkpoints_ms} ms, of {measured_ms} ms of such puts"
    );
    for Recovery { of, said, ms } in &outcome.recoveries {
        let how = if *of == "store" { "without checkpoints" } else { "with them" };
        let _ = writeln!(text, "after a kill, {how}: {said}; served after {ms} ms");
    }
    text
}
