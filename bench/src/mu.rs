//! `lockstep bench mu`: the evaluation of Mu ([Mu] 7) over again between processes of one machine,
//! as tables, plots and JSON.
//!
//! Every measurement has a group of its own: a leader on a core, its followers, which execute what
//! they see, on other ones or, where there are too few, together on one. What is compared is
//! measured in turn within one run. Who is preempted, or loses the lead, is counted beside the
//! figures, so that a busy machine can be told from a slow protocol.

mod copy;
mod failover;
mod figures;
mod group;
mod job;
mod latency;
mod mail;
mod process;
mod served;
mod service;
mod throughput;

use std::io::{IsTerminal, Write};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, bail, ensure};
use clap::{Args, ValueEnum};
use indicatif::{ProgressBar, ProgressStyle};
use serde::Serialize;

pub use failover::Failure;
use group::Group;
use job::{Attachment, COMMAND, Job, Latency, Outcome, Service, Throughput, Work};
use process::REPLICAS;

/// A part of the evaluation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Part {
    /// Replication latency by payload: stand-alone, and attached to the key-value store (Figures
    /// 3 and 4)
    Latency,
    /// The order book, unreplicated and replicated, on the same attachment (Figure 5), and its
    /// throughput
    Orders,
    /// The key-value store over RESP and memcached's protocol, one replica alone against three
    /// (Figure 5)
    Keys,
    /// Leaders that fail under load, with the parts of a fail-over (Figure 6)
    FailOver,
    /// Leaders that run under full load and are taken for failed
    Suspicions,
    /// Latency against throughput by batch and outstanding requests (Figure 7), and the bandwidth
    /// between the processes that bounds it
    Throughput,
}

/// What to measure.
#[derive(Args, Clone, Debug)]
pub struct MuOptions {
    /// Which parts; with the default settings they take about 12 minutes on a quiet machine
    #[arg(
        long,
        value_enum,
        value_delimiter = ',',
        default_value = "latency,orders,keys,fail-over,suspicions,throughput"
    )]
    pub parts: Vec<Part>,
    /// Cores, by number, of: the leader, its two followers, and an application that has a thread
    /// of its own. On two cores the last three share one
    #[arg(long, value_delimiter = ',', default_value = "0,1,1,1", value_name = "CORE")]
    pub cores: Vec<usize>,
    /// Bytes of a request
    #[arg(long, value_delimiter = ',', default_value = "32,64,128,256,512,1024,4096")]
    pub payloads: Vec<usize>,
    /// Samples of a latency, after a tenth as many to warm up
    #[arg(long, default_value_t = 1_000_000)]
    pub samples: u64,
    /// Requests per second where latency counts from the intended start
    #[arg(long, default_value_t = 200_000)]
    pub rate: u64,
    /// How leaders fail
    #[arg(long, value_enum, value_delimiter = ',', default_value = "kill,stop")]
    pub failures: Vec<Failure>,
    /// Fail-overs, of each kind and with each heartbeat
    #[arg(long, default_value_t = 1_000)]
    pub rounds: u64,
    /// Periods of the failure detector, in microseconds; the first is every other part's. On a busy
    /// machine a leader that gets no core for 14 of them is taken for failed: there, 5000 or more
    #[arg(long, value_delimiter = ',', default_value = "250", value_name = "MICROS")]
    pub heartbeats: Vec<u64>,
    /// Commands of 64 bytes per request
    #[arg(long, value_delimiter = ',', default_value = "1,2,4,8,16,32,64,128")]
    pub batches: Vec<usize>,
    /// Requests on their way
    #[arg(long, value_delimiter = ',', default_value = "1,2,4,8")]
    pub outstanding: Vec<u64>,
    /// Seconds that each measurement of throughput takes; those of suspicions take ten times as
    /// long
    #[arg(long, default_value_t = 2.0)]
    pub seconds: f64,
    /// Seconds after which a part fails that is not done; fail-overs end with fewer rounds
    #[arg(long, default_value_t = 600)]
    pub limit: u64,
    /// The servers of the key-value store use 16 ports from here on
    #[arg(long, default_value_t = 7650)]
    pub port: u16,
    /// Where figures go; made if missing
    #[arg(long, default_value = "mu-figures")]
    pub out: PathBuf,
}

impl MuOptions {
    fn check(&self) -> Result<()> {
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        ensure!(
            self.cores.len() == 4,
            "--cores must name four cores: the leader's, two followers', the application's"
        );
        ensure!(
            self.cores.iter().all(|&core| core < cores),
            "--cores: this machine's cores are 0 to {}",
            cores - 1
        );
        ensure!(
            self.payloads.iter().all(|bytes| (8..=65_536).contains(bytes)),
            "--payloads must be between 8 and 65536 bytes"
        );
        ensure!(self.samples > 0 && self.rounds > 0, "--samples and --rounds must be at least 1");
        ensure!(
            (1..=10_000_000).contains(&self.rate),
            "--rate must be between 1 and 10000000 requests per second"
        );
        ensure!(
            !self.heartbeats.is_empty()
                && self.heartbeats.iter().all(|us| (10..=1_000_000).contains(us)),
            "--heartbeats must be between 10 and 1000000 microseconds"
        );
        ensure!(
            self.batches.iter().all(|batch| (1..=1_024).contains(batch)),
            "--batches must be between 1 and 1024 commands"
        );
        ensure!(
            self.outstanding.iter().all(|outstanding| (1..=128).contains(outstanding)),
            "--outstanding must be between 1 and 128 requests"
        );
        ensure!(
            self.seconds > 0.0 && self.seconds < 3600.0,
            "--seconds must be more than 0 and less than 3600"
        );
        ensure!(self.port <= u16::MAX - 16, "--port must be at most {}", u16::MAX - 16);
        Ok(())
    }
}

/// A measurement of latency.
#[derive(Clone, Debug, Serialize)]
struct LatencyPoint {
    part: Part,
    #[serde(flatten)]
    what: Latency,
    #[serde(flatten)]
    outcome: Outcome,
}

/// A measurement of throughput; without a protocol it is the bound.
#[derive(Clone, Debug, Serialize)]
struct ThroughputPoint {
    part: Part,
    protocol: bool,
    heartbeat_us: u64,
    #[serde(flatten)]
    what: Throughput,
    #[serde(flatten)]
    outcome: Outcome,
}

impl ThroughputPoint {
    fn per_second(&self) -> f64 {
        self.outcome.commands as f64 / self.outcome.seconds
    }
}

/// Everything that was measured.
#[derive(Debug, Default, Serialize)]
struct Points {
    /// Of the machine, before: processes that want a core.
    load_before: f64,
    load_after: f64,
    cores: Vec<usize>,
    latency: Vec<LatencyPoint>,
    throughput: Vec<ThroughputPoint>,
    fail_over: Vec<failover::Figures>,
    keys: Vec<served::Figures>,
}

/// Runs the parts, writes figures and JSON, and prints the tables. A part that fails takes nothing
/// from the others.
///
/// # Errors
/// If an option makes no sense, a process fails, a part takes longer than it may, or a file cannot
/// be written.
pub fn run(options: &MuOptions) -> Result<()> {
    options.check()?;
    std::fs::create_dir_all(&options.out)
        .with_context(|| format!("cannot make {}", options.out.display()))?;
    let bar = progress(options);
    let mut points = Points {
        load_before: crate::cores::load(),
        cores: options.cores.clone(),
        ..Points::default()
    };
    let mut failed = Ok(());
    for &part in &options.parts {
        let end = Instant::now() + Duration::from_secs(options.limit);
        let bench = Bench { options, part, end, bar: &bar };
        if let Err(error) = bench.run(&mut points) {
            let error = error.context(format!("{part:?} is not complete"));
            bar.suspend(|| eprintln!("lockstep: {error:#}"));
            failed = Err(anyhow!("parts are missing from the figures"));
        }
    }
    bar.finish_and_clear();
    points.load_after = crate::cores::load();
    figures::write(&points, &options.out)?;
    figures::print(&points);
    println!("plots and points.json are in {}", options.out.display());
    failed
}

/// One part under way.
struct Bench<'a> {
    options: &'a MuOptions,
    part: Part,
    end: Instant,
    bar: &'a ProgressBar,
}

impl Bench<'_> {
    fn run(&self, points: &mut Points) -> Result<()> {
        match self.part {
            Part::Latency | Part::Orders => {
                for latency in latencies(self.options, self.part) {
                    points.latency.push(self.latency(latency)?);
                }
            }
            Part::FailOver => {
                let kinds = self.options.heartbeats.len() * self.options.failures.len();
                for &heartbeat in &self.options.heartbeats {
                    for &failure in &self.options.failures {
                        // Each has its share of the time that is left.
                        let share = (kinds - points.fail_over.len()) as u32;
                        let left = self.end.saturating_duration_since(Instant::now());
                        let end = Instant::now() + left / share;
                        points.fail_over.push(self.fail_over(failure, heartbeat, end)?);
                    }
                }
            }
            Part::Keys => {
                let each = |message| {
                    self.say(message);
                    self.bar.inc(1);
                };
                points.keys = served::measure(self.options, each)?;
            }
            Part::Suspicions | Part::Throughput => {}
        }
        for (load, protocol, heartbeat) in throughputs(self.options, self.part) {
            points.throughput.push(self.throughput(load, protocol, heartbeat)?);
        }
        Ok(())
    }

    fn say(&self, message: String) {
        self.bar.set_message(message);
    }

    fn latency(&self, what: Latency) -> Result<LatencyPoint> {
        let attachment = what.attachment.name();
        self.say(format!("{}, {attachment}, {} bytes", what.service.name(), what.bytes));
        let replicas = if what.replicated { REPLICAS } else { 1 };
        let heartbeat = self.options.heartbeats[0];
        let group = Group::start(self.options, replicas, heartbeat, Work::Latency(what))?;
        let outcome = group.outcome(self.end)?;
        self.bar.inc(1);
        Ok(LatencyPoint { part: self.part, what, outcome })
    }

    fn throughput(
        &self,
        what: Throughput,
        protocol: bool,
        heartbeat_us: u64,
    ) -> Result<ThroughputPoint> {
        self.say(format!("{} outstanding, {} commands each", what.outstanding, what.batch));
        let work = if protocol { Work::Throughput(what) } else { Work::Copy(what) };
        let outcome =
            Group::start(self.options, REPLICAS, heartbeat_us, work)?.outcome(self.end)?;
        self.bar.inc(1);
        Ok(ThroughputPoint { part: self.part, protocol, heartbeat_us, what, outcome })
    }

    fn fail_over(
        &self,
        failure: Failure,
        heartbeat: u64,
        end: Instant,
    ) -> Result<failover::Figures> {
        let rounds = self.options.rounds;
        let start = || Group::start(self.options, REPLICAS, heartbeat, Work::FailOver);
        let each = |round| {
            self.say(format!("{failure:?}, heartbeat {heartbeat} us, round {round}/{rounds}"));
        };
        let figures = failover::measure(failure, heartbeat, rounds, end, start, each)?;
        self.bar.inc(1);
        Ok(figures)
    }
}

/// The measurements of latency of a part.
fn latencies(options: &MuOptions, part: Part) -> Vec<Latency> {
    let samples = options.samples;
    let paced = Some(1_000_000_000 / options.rate);
    let of = |service, attachment, replicated, bytes, interval| Latency {
        service,
        attachment,
        replicated,
        bytes,
        samples,
        interval,
    };
    use Attachment::{Direct, Handover};
    match part {
        Part::Latency => {
            let by_size = |&bytes: &usize| {
                [
                    of(Service::Sum, Direct, true, bytes, None),
                    of(Service::Sum, Direct, true, bytes, paced),
                    of(Service::Sum, Handover, true, bytes, None),
                    of(Service::Keys, Direct, true, bytes, None),
                    of(Service::Keys, Direct, false, bytes, None),
                    of(Service::Keys, Handover, true, bytes, None),
                    of(Service::Keys, Handover, false, bytes, None),
                ]
            };
            options.payloads.iter().flat_map(by_size).collect()
        }
        Part::Orders => {
            let each = |attachment| {
                [false, true].map(|replicated| {
                    [None, paced].map(|interval| {
                        of(Service::Orders, attachment, replicated, COMMAND, interval)
                    })
                })
            };
            [Direct, Handover].into_iter().flat_map(each).flatten().collect()
        }
        _ => Vec::new(),
    }
}

/// The measurements of throughput of a part: with or without a protocol, and the heartbeat.
fn throughputs(options: &MuOptions, part: Part) -> Vec<(Throughput, bool, u64)> {
    let heartbeat = options.heartbeats[0];
    let of = |service, batch, outstanding| {
        let seconds = options.seconds;
        Throughput { service, batch, outstanding, seconds }
    };
    let mut loads = Vec::new();
    match part {
        Part::Throughput => {
            for &outstanding in &options.outstanding {
                for &batch in &options.batches {
                    loads.push((of(Service::Sum, batch, outstanding), true, heartbeat));
                }
            }
            let largest = options.batches.iter().max();
            loads.extend(largest.map(|&batch| (of(Service::Sum, batch, 1), false, heartbeat)));
        }
        Part::Orders => {
            let batches =
                [1, 16, 128].map(|batch| (of(Service::Orders, batch, 8), true, heartbeat));
            loads.extend(batches);
        }
        Part::Suspicions => {
            for &heartbeat in &options.heartbeats {
                let seconds = 10.0 * options.seconds;
                let load = Throughput { seconds, ..of(Service::Sum, 1, 1) };
                loads.push((load, true, heartbeat));
            }
        }
        _ => {}
    }
    loads
}

fn progress(options: &MuOptions) -> ProgressBar {
    let count = |&part: &Part| match part {
        Part::FailOver => options.heartbeats.len() * options.failures.len(),
        Part::Keys => served::COUNT,
        _ => latencies(options, part).len() + throughputs(options, part).len(),
    };
    let bar = ProgressBar::new(options.parts.iter().map(count).sum::<usize>() as u64);
    if !std::io::stderr().is_terminal() {
        return ProgressBar::hidden();
    }
    let style = ProgressStyle::with_template("{bar:30} {pos}/{len} {elapsed}  {msg}");
    bar.with_style(style.expect("a constant"))
}

/// What a process of a measurement does; `job` comes from [`run`].
///
/// # Errors
/// If the process cannot do its work.
pub fn process(job: &str) -> Result<()> {
    let Job { seat, work } = serde_json::from_str(job)
        .context("this is for the processes that `lockstep bench mu` starts by itself")?;
    let leads = seat.id == 0;
    let outcome = match work {
        Work::FailOver if leads => return failover::lead(&seat),
        Work::FailOver => return failover::follow(&seat),
        Work::Copy(load) if leads => copy::lead(&seat, load)?,
        Work::Copy(load) => return copy::follow(&seat, &load),
        Work::Latency(Latency { service, .. }) | Work::Throughput(Throughput { service, .. }) => {
            let outcome = match service {
                Service::Sum => serve(&seat, work, service::Sum::default()),
                Service::Keys => serve(&seat, work, kv::Store::default()),
                Service::Orders => serve(&seat, work, orderbook::Engine::default()),
            };
            match outcome? {
                Some(outcome) => outcome,
                None => return Ok(()),
            }
        }
    };
    println!("{}", serde_json::to_string(&outcome)?);
    std::io::stdout().flush()?;
    Ok(())
}

/// Leads and measures, or follows until the measurement is over.
fn serve<S: smr::StateMachine + Send>(
    seat: &job::Seat,
    work: Work,
    service: S,
) -> Result<Option<Outcome>> {
    if seat.id > 0 {
        process::Process::start(seat, work, service)?.follow(|_| {});
        return Ok(None);
    }
    match work {
        Work::Latency(latency) => latency::lead(seat, latency, service).map(Some),
        Work::Throughput(load) => throughput::lead(seat, load, service).map(Some),
        Work::FailOver | Work::Copy(_) => bail!("these have services of their own"),
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        options: MuOptions,
    }

    fn check(arguments: &[&str]) -> Result<()> {
        let line = Line::try_parse_from([&["mu"], arguments].concat())?;
        line.options.check()
    }

    #[test]
    fn bad_options_are_refused_in_words() {
        for (option, value, why) in [
            ("--cores", "0,0", "four cores"),
            ("--cores", "0,0,0,70000", "cores are 0 to"),
            ("--payloads", "4", "between 8"),
            ("--samples", "0", "at least 1"),
            ("--rate", "0", "--rate"),
            ("--heartbeats", "5", "between 10"),
            ("--batches", "0", "between 1"),
            ("--outstanding", "129", "between 1"),
            ("--seconds", "0", "more than 0"),
            ("--parts", "speed", "invalid value"),
        ] {
            let one_core: &[&str] = if option == "--cores" { &[] } else { &["--cores", "0,0,0,0"] };
            let error = check(&[one_core, &[option, value]].concat()).expect_err(option);
            let text = error.to_string();
            assert!(text.contains(why), "{option} {value}: {text}");
        }
        check(&["--cores", "0,0,0,0"]).expect("the defaults make sense");
    }
}
