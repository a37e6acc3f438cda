//! `cargo xtask compare`: ours beside what others use, on this machine, in one run.
//!
//! Absolute figures drift from machine to machine and from minute to minute, so the servers take
//! turns (A B A B ...), each figure is the median of its repetitions, and what counts is the ratio.
//! Load and servers share the machine's cores, for all alike.

mod batched;
mod etcd;
mod zookeeper;

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use bench::client::{Client, Value};
use bench::load::{self, LoadOptions};
use bench::status::Group;
use bench::workload::{KeyDistribution, Kind, Mix};

use crate::servers::{self, Server, local};

/// Bytes of a value, everywhere.
const VALUE_SIZE: &str = "64";

/// Connections of the throughput runs.
const CONNECTIONS: &str = "50";

/// Keys of the memory measurement.
const MEMORY_KEYS: u64 = 1_000_000;

/// Operations of a run with one client.
const SINGLE_OPERATIONS: usize = 20_000;

/// What to measure.
#[derive(clap::Args)]
pub struct Arguments {
    /// Repetitions of each measurement
    #[arg(long, default_value_t = 3)]
    repetitions: usize,
    /// Requests of a throughput run; with pipelining five times as many
    #[arg(long, default_value_t = 200_000)]
    requests: u64,
    /// Parts to measure
    #[arg(
        long,
        value_enum,
        value_delimiter = ',',
        default_value = "throughput,latency,sync,batched,memory"
    )]
    parts: Vec<Part>,
    /// Seconds of one measurement of batched puts
    #[arg(long, default_value_t = 10)]
    seconds: u64,
    /// What our acknowledgements of batched puts mean; with several, one group each
    #[arg(long, value_delimiter = ',', default_value = "sync")]
    durability: Vec<String>,
    /// Build etcd and its benchmark with Go, below the target directory, if not on the PATH
    #[arg(long)]
    build_etcd: bool,
    /// Install ZooKeeper's Debian package with apt-get, if it is not there
    #[arg(long)]
    install_zookeeper: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum Part {
    /// SET and GET per second
    Throughput,
    /// One client's median
    Latency,
    /// Durable puts per second, beside etcd
    Sync,
    /// Puts of 100 clients with 100 outstanding each, beside etcd and ZooKeeper
    Batched,
    /// Bytes per key
    Memory,
}

/// What a ratio, ours to theirs, should be.
#[derive(Clone, Copy)]
pub enum Target {
    AtLeast(f64),
    AtMost(f64),
}

impl Target {
    fn is_met(self, ratio: f64) -> bool {
        match self {
            Target::AtLeast(least) => ratio >= least,
            Target::AtMost(most) => ratio <= most,
        }
    }

    fn text(self) -> String {
        match self {
            Target::AtLeast(least) => format!("at least {least}"),
            Target::AtMost(most) => format!("at most {most}"),
        }
    }
}

/// One line of the table.
pub struct Row {
    what: String,
    peer: String,
    ours: f64,
    theirs: f64,
    target: Option<Target>,
}

impl Row {
    fn ratio(&self) -> f64 {
        self.ours / self.theirs
    }
}

/// What a load of puts saw.
#[derive(Clone, Copy)]
pub struct Figures {
    per_second: f64,
    p50_us: f64,
    p99_us: f64,
}

/// A Redis, or what took its place.
struct Peer {
    name: String,
    program: PathBuf,
}

/// Measures and prints.
pub fn run(arguments: &Arguments) -> Result<()> {
    ensure!(arguments.repetitions > 0, "--repetitions must be at least 1");
    let lockstep = servers::lockstep()?;
    let directory = servers::empty_directory("compare")?;
    let peers = peers();
    let mut rows = Vec::new();
    let has_part = |part| arguments.parts.contains(&part);
    let benchmark =
        servers::on_path("redis-benchmark").or_else(|| servers::on_path("valkey-benchmark"));
    if benchmark.is_none() {
        skip("redis-benchmark is not on the PATH (Debian: apt-get install redis-tools)");
    }
    for peer in &peers {
        if let Some(benchmark) = &benchmark
            && has_part(Part::Throughput)
        {
            rows.extend(throughput(arguments, &lockstep, &directory, peer, benchmark)?);
        }
        if has_part(Part::Latency) {
            rows.extend(latency(arguments, &lockstep, &directory, peer)?);
        }
    }
    let beside_etcd = has_part(Part::Sync) || has_part(Part::Batched);
    let etcd = beside_etcd.then(|| found("etcd", etcd::find(arguments.build_etcd))).flatten();
    if has_part(Part::Sync)
        && let (Some(benchmark), Some(tools)) = (&benchmark, &etcd)
    {
        rows.push(sync(arguments, &lockstep, &directory, tools, benchmark)?);
    }
    if has_part(Part::Batched) {
        let zookeeper = found("ZooKeeper", zookeeper::find(arguments.install_zookeeper));
        rows.extend(batched::measure(&batched::Setup {
            lockstep: &lockstep,
            directory: &directory,
            durabilities: &arguments.durability,
            etcd: etcd.as_ref(),
            zookeeper: zookeeper.as_ref(),
            repetitions: arguments.repetitions,
            seconds: arguments.seconds,
        })?);
    }
    for peer in &peers {
        if has_part(Part::Memory) {
            rows.push(memory(&lockstep, &directory, peer)?);
        }
    }
    print(&rows, arguments.json);
    Ok(())
}

fn skip(why: &str) {
    eprintln!("SKIPPED: {why}");
}

/// A rival, or nothing and the reason on standard error.
fn found<T>(name: &str, rival: Result<T>) -> Option<T> {
    rival.inspect_err(|error| skip(&format!("no comparison with {name}: {error:#}"))).ok()
}

fn peers() -> Vec<Peer> {
    let mut peers = Vec::new();
    for name in ["redis-server", "valkey-server"] {
        match servers::on_path(name) {
            Some(program) => peers.push(Peer { name: name.replace("-server", ""), program }),
            None => skip(&format!("{name} is not on the PATH")),
        }
    }
    peers
}

/// One Redis with two asynchronous replicas; the primary comes last, so that it is dropped first
/// and its replicas need not be served any more.
fn replicated(peer: &Peer, directory: &Path) -> Result<Vec<Server>> {
    let primary = Server::redis(&peer.program, &directory.join("primary"), None)?;
    let mut servers = vec![];
    for name in ["replica-1", "replica-2"] {
        servers.push(Server::redis(&peer.program, &directory.join(name), Some(primary.port))?);
    }
    servers.push(primary);
    Ok(servers)
}

/// The port of the group's primary: where a client that looks for speed would connect.
fn primary_port(demo: &Server) -> Result<u16> {
    let statuses = demo.group().wait_until_whole(Duration::from_secs(30))?;
    let primary = Group::primary(&statuses).context("the group has no primary")?;
    Ok(demo.port + primary as u16)
}

fn throughput(
    arguments: &Arguments,
    lockstep: &Path,
    directory: &Path,
    peer: &Peer,
    benchmark: &Path,
) -> Result<Vec<Row>> {
    let demo = Server::demo(lockstep, &directory.join("memory"), "memory")?;
    let single = Server::redis(&peer.program, &directory.join("single"), None)?;
    let group = replicated(peer, directory)?;
    let ports = [primary_port(&demo)?, single.port, group[2].port];
    let mut rows = Vec::new();
    for (test, pipeline, against, target) in [
        ("SET", 1, 2, Target::AtLeast(0.6)),
        ("SET", 16, 2, Target::AtLeast(0.6)),
        ("GET", 1, 1, Target::AtLeast(0.6)),
        ("GET", 16, 1, Target::AtLeast(0.4)),
    ] {
        let requests = arguments.requests * if pipeline > 1 { 5 } else { 1 };
        let mut figures = [const { Vec::new() }; 3];
        for round in 0..arguments.repetitions {
            for (port, figures) in ports.iter().zip(&mut figures) {
                eprintln!("{test} -P {pipeline}, round {}, port {port}", round + 1);
                let run = Run { test, pipeline, requests, connections: CONNECTIONS, keys: None };
                figures.push(run.per_second(benchmark, *port)?);
            }
        }
        let [ours, single, replicated] = figures.map(median);
        let what = format!("{test} per second, {CONNECTIONS} clients, -P {pipeline}");
        let names = [format!("{} alone", peer.name), format!("{} + 2 replicas", peer.name)];
        for (index, (name, theirs)) in names.into_iter().zip([single, replicated]).enumerate() {
            let target = (index + 1 == against).then_some(target);
            rows.push(Row { what: what.clone(), peer: name, ours, theirs, target });
        }
    }
    Ok(rows)
}

/// A run of redis-benchmark.
struct Run {
    test: &'static str,
    pipeline: u32,
    requests: u64,
    connections: &'static str,
    /// Random keys, as many; without, there is one key.
    keys: Option<&'static str>,
}

impl Run {
    fn per_second(&self, benchmark: &Path, port: u16) -> Result<f64> {
        let mut command = Command::new(benchmark);
        command
            .args(["-p", &port.to_string(), "-t", &self.test.to_lowercase(), "-d", VALUE_SIZE])
            .args(["-c", self.connections, "-n", &self.requests.to_string()])
            .args(["-P", &self.pipeline.to_string(), "--csv"]);
        if let Some(keys) = self.keys {
            command.args(["-r", keys]);
        }
        let printed = servers::run(&mut command)?;
        parse_csv(&printed, self.test)
            .with_context(|| format!("cannot understand redis-benchmark:\n{printed}"))
    }
}

/// The requests per second of a test.
fn parse_csv(printed: &str, test: &str) -> Option<f64> {
    let line = printed.lines().find(|line| line.starts_with(&format!("\"{test}\"")))?;
    line.split(',').nth(1)?.trim_matches('"').parse().ok()
}

fn latency(
    arguments: &Arguments,
    lockstep: &Path,
    directory: &Path,
    peer: &Peer,
) -> Result<Vec<Row>> {
    let demo = Server::demo(lockstep, &directory.join("latency"), "memory")?;
    let group = replicated(peer, directory)?;
    let (ours, theirs) = (primary_port(&demo)?, group[2].port);
    let value = [b'x'; 64];
    let set: &[&[u8]] = &[b"SET", b"key:one", &value];
    let get: &[&[u8]] = &[b"GET", b"key:one"];
    let wait: &[&[u8]] = &[b"WAIT", b"1", b"0"];
    let mut rows = Vec::new();
    for (what, our_commands, their_commands, peer_does, target) in [
        ("SET", &[set][..], &[set, wait][..], " + WAIT 1", Some(Target::AtMost(2.0))),
        ("GET", &[get][..], &[get][..], "", None),
    ] {
        let (mut our_figures, mut their_figures) = (Vec::new(), Vec::new());
        for round in 0..arguments.repetitions {
            eprintln!("{what} of one client, round {}", round + 1);
            our_figures.push(one_client(ours, our_commands)?);
            their_figures.push(one_client(theirs, their_commands)?);
        }
        rows.push(Row {
            what: format!("{what} of one client, p50 in us"),
            peer: format!("{} + 2 replicas{peer_does}", peer.name),
            ours: median(our_figures),
            theirs: median(their_figures),
            target,
        });
    }
    Ok(rows)
}

/// The median time, in microseconds, of sending these commands at once and having every reply.
fn one_client(port: u16, commands: &[&[&[u8]]]) -> Result<f64> {
    let mut client = Client::connect(local(port), Duration::from_secs(10))?;
    let mut times = Vec::with_capacity(SINGLE_OPERATIONS);
    for number in 0..SINGLE_OPERATIONS + SINGLE_OPERATIONS / 10 {
        let started = Instant::now();
        let replies = client.request_all(commands)?;
        let time = started.elapsed().as_secs_f64() * 1e6;
        let failed = replies.iter().find(|reply| matches!(reply, Value::Error(_)));
        ensure!(failed.is_none(), "port {port} answers {failed:?}");
        // The first tenth warms up.
        if number >= SINGLE_OPERATIONS / 10 {
            times.push(time);
        }
    }
    Ok(median(times))
}

fn sync(
    arguments: &Arguments,
    lockstep: &Path,
    directory: &Path,
    tools: &etcd::Tools,
    benchmark: &Path,
) -> Result<Row> {
    let demo = Server::demo(lockstep, &directory.join("sync"), "sync")?;
    let cluster = etcd::Cluster::start(tools, &directory.join("etcd"))?;
    let port = primary_port(&demo)?;
    let requests = arguments.requests;
    let run =
        Run { test: "SET", pipeline: 16, requests, connections: "63", keys: Some(etcd::KEY_SPACE) };
    let load = etcd::Load { connections: 100, clients: 1000, value_size: 64 };
    let (mut ours, mut theirs) = (Vec::new(), Vec::new());
    for round in 0..arguments.repetitions {
        eprintln!("durable puts, round {}", round + 1);
        ours.push(run.per_second(benchmark, port)?);
        theirs.push(cluster.puts(tools, &load, requests / 2)?.per_second);
    }
    Ok(Row {
        what: "durable puts per second, about 1,000 outstanding".to_string(),
        peer: format!("etcd {}, 3 nodes", tools.version),
        ours: median(ours),
        theirs: median(theirs),
        target: Some(Target::AtLeast(4.0)),
    })
}

fn memory(lockstep: &Path, directory: &Path, peer: &Peer) -> Result<Row> {
    eprintln!("memory of {MEMORY_KEYS} keys");
    let demo = Server::demo(lockstep, &directory.join("memory-ours"), "memory")?;
    let group = demo.group();
    let replicas = || -> Result<Vec<u64>> {
        let statuses = group.wait_until_whole(Duration::from_secs(30))?;
        statuses.iter().map(|status| resident(status.pid as u32)).collect()
    };
    let before = replicas()?;
    fill(demo.port)?;
    let after = replicas()?;
    let mut grown: Vec<f64> =
        before.iter().zip(&after).map(|(before, after)| per_key(*before, *after)).collect();
    grown.sort_by(f64::total_cmp);
    eprintln!("bytes per key of our replicas: {grown:.1?}");
    drop(demo);
    let server = Server::redis(&peer.program, &directory.join("memory-theirs"), None)?;
    let before = resident(server.pid())?;
    fill(server.port)?;
    let theirs = per_key(before, resident(server.pid())?);
    Ok(Row {
        what: "resident bytes per key (16-byte key, 64-byte value), largest replica".to_string(),
        peer: peer.name.clone(),
        ours: *grown.last().context("a group has replicas")?,
        theirs,
        target: Some(Target::AtMost(1.5)),
    })
}

/// Sets every key once, and lets the server come to rest.
fn fill(port: u16) -> Result<()> {
    let options = LoadOptions {
        addresses: vec![local(port).to_string()],
        clients: 8,
        pipeline: 32,
        mix: Mix::only(Kind::Set),
        keys: MEMORY_KEYS,
        distribution: KeyDistribution::Sequential,
        count: Some(MEMORY_KEYS),
        ..LoadOptions::default()
    };
    let report = load::run(&options)?;
    ensure!(report.errors == 0, "a server refused a key: {:?}", report.first_error);
    std::thread::sleep(Duration::from_secs(3));
    let mut client = Client::connect(local(port), Duration::from_secs(10))?;
    let size = client.request(&[b"DBSIZE"])?;
    ensure!(
        size == Value::Integer(MEMORY_KEYS as i64),
        "DBSIZE is {size:?} after {MEMORY_KEYS} keys"
    );
    Ok(())
}

fn per_key(before: u64, after: u64) -> f64 {
    after.saturating_sub(before) as f64 / MEMORY_KEYS as f64
}

/// The resident memory of a process, in bytes.
fn resident(pid: u32) -> Result<u64> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status"))?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let kilobytes = line.and_then(|line| line.trim().strip_suffix("kB"));
    let kilobytes: u64 = kilobytes.context("no VmRSS")?.trim().parse()?;
    Ok(kilobytes * 1024)
}

fn median(mut figures: Vec<f64>) -> f64 {
    figures.sort_by(f64::total_cmp);
    figures.get(figures.len() / 2).copied().unwrap_or(f64::NAN)
}

/// The figure that so many in a hundred do not exceed, of figures in order.
fn percentile(sorted: &[f64], percent: usize) -> f64 {
    let index = (sorted.len() * percent).div_ceil(100).saturating_sub(1);
    sorted.get(index).copied().unwrap_or(f64::NAN)
}

fn print(rows: &[Row], json: bool) {
    if json {
        let rows: Vec<serde_json::Value> = rows.iter().map(as_json).collect();
        let text = serde_json::to_string_pretty(&rows).expect("rows are plain data");
        println!("{text}");
        return;
    }
    println!("| what | ours | peer | theirs | ratio | target | met |");
    println!("|---|---|---|---|---|---|---|");
    for row in rows {
        let ratio = row.ratio();
        let met = match row.target.map(|target| target.is_met(ratio)) {
            Some(true) => "yes",
            Some(false) => "NO",
            None => "",
        };
        println!(
            "| {} | {:.0} | {} | {:.0} | {ratio:.2} | {} | {met} |",
            row.what,
            row.ours,
            row.peer,
            row.theirs,
            row.target.map(Target::text).unwrap_or_default(),
        );
    }
}

fn as_json(row: &Row) -> serde_json::Value {
    serde_json::json!({
        "what": row.what,
        "ours": row.ours,
        "peer": row.peer,
        "theirs": row.theirs,
        "ratio": row.ratio(),
        "target": row.target.map(Target::text),
        "met": row.target.map(|target| target.is_met(row.ratio())),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn targets_go_both_ways() {
        assert!(Target::AtLeast(0.6).is_met(0.7) && !Target::AtLeast(0.6).is_met(0.5));
        assert!(Target::AtMost(2.0).is_met(1.9) && !Target::AtMost(2.0).is_met(f64::NAN));
    }

    #[test]
    fn benchmarks_are_understood() {
        let printed = "\"test\",\"rps\",\"avg_latency_ms\"\n\"SET\",\"468274.41\",\"1.550\"\n";
        assert_eq!(parse_csv(printed, "SET"), Some(468_274.41));
        assert_eq!(parse_csv(printed, "GET"), None);
    }

    #[test]
    fn a_median_is_in_the_middle() {
        assert_eq!(median(vec![3.0, 1.0, 2.0]), 2.0);
        assert!(median(Vec::new()).is_nan());
    }

    #[test]
    fn percentiles_are_figures_that_were_seen() {
        let sorted: Vec<f64> = (1..=200).map(f64::from).collect();
        assert_eq!((percentile(&sorted, 50), percentile(&sorted, 99)), (100.0, 198.0));
        assert_eq!(percentile(&[7.0], 99), 7.0);
        assert!(percentile(&[], 50).is_nan());
    }

    #[test]
    fn this_process_has_memory() {
        assert!(resident(std::process::id()).unwrap() > 100_000);
    }
}
