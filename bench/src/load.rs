//! Drives any server of the Redis or the memcached protocol and measures it.
//!
//! Closed loop: every connection keeps `pipeline` requests on their way. Open loop (`--rate`):
//! requests have a time at which they are to be sent, and latency counts from that time, so a
//! server that stalls does not hide the requests that it kept from being sent ("coordinated
//! omission").

use std::io::IsTerminal;
use std::net::{SocketAddr, ToSocketAddrs};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use clap::Args;
use indicatif::{ProgressBar, ProgressStyle};

use crate::driver::{Driver, Plan, Tally};
use crate::keys::Form;
pub use crate::report::{Report, Summary, print};
pub use crate::speech::Protocol;
use crate::workload::{KeyDistribution, Kind, Mix, Shape, ValueSize, Workload};

/// What to measure.
#[derive(Args, Clone, Debug)]
pub struct LoadOptions {
    /// Servers; connections are spread over them in turn
    #[arg(long, value_delimiter = ',', default_value = "127.0.0.1:7400", value_name = "HOST:PORT")]
    pub addresses: Vec<String>,
    /// What the servers speak
    #[arg(long, value_enum, default_value = "resp")]
    pub protocol: Protocol,
    /// Connections
    #[arg(long, default_value_t = 50)]
    pub clients: usize,
    /// Requests on their way per connection, in a closed loop
    #[arg(long, default_value_t = 1)]
    pub pipeline: usize,
    /// Threads that share the connections
    #[arg(long, default_value_t = 1)]
    pub threads: usize,
    /// Requests per second over all connections (an open loop); without it, a closed loop
    #[arg(long, value_name = "PER_SECOND")]
    pub rate: Option<f64>,
    /// Operations and their weights, of set, get, incr, krange
    #[arg(long, default_value = "set=1,get=1")]
    pub mix: Mix,
    /// Number of keys
    #[arg(long, default_value_t = 100_000)]
    pub keys: u64,
    /// What keys look like: record, decimal, sequential, binary8, grouped, or prefixN with N bytes
    #[arg(long, default_value = "record")]
    pub form: Form,
    /// How keys are chosen: uniform, sequential, zipfian, zipfian:EXPONENT, or skewed:DELTA, by
    /// which one of 16 parts has so much more than each of the others
    #[arg(long, default_value = "uniform")]
    pub distribution: KeyDistribution,
    /// Bytes per value, or a range LEAST..MOST
    #[arg(long, default_value = "64", value_name = "BYTES")]
    pub value_size: ValueSize,
    /// Keys per krange
    #[arg(long, default_value_t = 10)]
    pub range_length: u32,
    /// Seconds to measure
    #[arg(long, default_value_t = 10.0, value_name = "SECONDS")]
    pub duration: f64,
    /// Stop after this many operations instead
    #[arg(long)]
    pub count: Option<u64>,
    /// Write every key once before measuring
    #[arg(long)]
    pub preload: bool,
    /// Where the random choices start
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// How much is on its way per connection while keys are preloaded.
const PRELOAD_PIPELINE: usize = 64;

impl Default for LoadOptions {
    /// What the command line has by default.
    fn default() -> Self {
        Self {
            addresses: vec!["127.0.0.1:7400".to_string()],
            protocol: Protocol::Resp,
            clients: 50,
            pipeline: 1,
            threads: 1,
            rate: None,
            mix: "set=1,get=1".parse().expect("a constant"),
            keys: 100_000,
            form: Form::Record,
            distribution: KeyDistribution::Uniform,
            value_size: "64".parse().expect("a constant"),
            range_length: 10,
            duration: 10.0,
            count: None,
            preload: false,
            seed: 1,
            json: false,
        }
    }
}

impl LoadOptions {
    fn shape(&self) -> Shape {
        Shape {
            keys: self.keys,
            distribution: self.distribution,
            value_size: self.value_size.clone(),
            mix: self.mix,
        }
    }

    fn check(&self) -> Result<()> {
        ensure!(self.clients > 0, "--clients must be at least 1");
        ensure!(self.pipeline > 0, "--pipeline must be at least 1");
        ensure!(self.threads > 0, "--threads must be at least 1");
        ensure!(self.keys > 0, "--keys must be at least 1");
        self.protocol.check(self.mix, self.form)?;
        ensure!(self.duration > 0.0 && self.duration < 1e6, "--duration must be positive");
        if let Some(rate) = self.rate {
            ensure!(rate.is_finite() && rate > 0.0, "--rate must be positive");
        }
        Ok(())
    }
}

/// Runs the load and says what it saw.
pub fn run(options: &LoadOptions) -> Result<Report> {
    options.check()?;
    let addresses = resolve(&options.addresses)?;
    if options.preload {
        preload(options, &addresses)?;
    }
    let limit = match options.count {
        Some(count) => Limit::Count(count),
        None => Limit::Time(Duration::from_secs_f64(options.duration)),
    };
    let phase = Phase {
        name: "measuring",
        shape: options.shape(),
        pipeline: options.pipeline,
        rate: options.rate,
        limit,
    };
    let (tally, elapsed) = phase.run(options, &addresses)?;
    Ok(Report::new(options, &tally, elapsed))
}

fn resolve(addresses: &[String]) -> Result<Vec<SocketAddr>> {
    let mut resolved = Vec::new();
    for address in addresses {
        let found = address
            .to_socket_addrs()
            .with_context(|| format!("{address:?} is not HOST:PORT"))?
            .next();
        resolved.push(found.with_context(|| format!("{address:?} has no address"))?);
    }
    ensure!(!resolved.is_empty(), "no address was given");
    Ok(resolved)
}

fn preload(options: &LoadOptions, addresses: &[SocketAddr]) -> Result<()> {
    let mut shape = options.shape();
    shape.mix = Mix::only(Kind::Set);
    shape.distribution = KeyDistribution::Sequential;
    let phase = Phase {
        name: "preloading",
        shape,
        pipeline: PRELOAD_PIPELINE,
        rate: None,
        limit: Limit::Count(options.keys),
    };
    // One thread and one stream, or keys near the borders of the shares might be missed.
    let single = LoadOptions { threads: 1, ..options.clone() };
    let (tally, _) = phase.run(&single, addresses)?;
    if let Some(error) = &tally.first_error {
        bail!("preloading failed: {error}");
    }
    Ok(())
}

#[derive(Clone, Copy)]
enum Limit {
    Count(u64),
    Time(Duration),
}

/// A load with one shape.
struct Phase {
    name: &'static str,
    shape: Shape,
    pipeline: usize,
    rate: Option<f64>,
    limit: Limit,
}

impl Phase {
    fn run(&self, options: &LoadOptions, addresses: &[SocketAddr]) -> Result<(Tally, Duration)> {
        let threads = options.threads.min(options.clients);
        let mut drivers = Vec::new();
        for thread in 0..threads {
            let mine: Vec<SocketAddr> = (thread..options.clients)
                .step_by(threads)
                .map(|client| addresses[client % addresses.len()])
                .collect();
            let plan = Plan {
                pipeline: self.pipeline,
                rate: self.rate.map(|rate| rate / threads as f64),
                count: match self.limit {
                    Limit::Count(count) => Some(share(count, thread, threads)),
                    Limit::Time(_) => None,
                },
                time: match self.limit {
                    Limit::Count(_) => None,
                    Limit::Time(time) => Some(time),
                },
                range_length: options.range_length,
                form: options.form,
                protocol: options.protocol,
            };
            let workload = Workload::new(&self.shape, options.seed, thread as u64, threads as u64);
            drivers.push(Driver::connect(&mine, workload, plan)?);
        }
        self.drive(drivers)
    }

    fn drive(&self, drivers: Vec<Driver>) -> Result<(Tally, Duration)> {
        let done = AtomicU64::new(0);
        let started = Instant::now();
        std::thread::scope(|scope| {
            let handles: Vec<_> = drivers
                .into_iter()
                .map(|driver| scope.spawn(|| driver.run(started, &done)))
                .collect();
            let progress = Progress::new(self);
            while !handles.iter().all(|handle| handle.is_finished()) {
                std::thread::sleep(Duration::from_millis(if progress.visible { 100 } else { 2 }));
                progress.show(self.limit, started, done.load(Ordering::Relaxed));
            }
            progress.bar.finish_and_clear();
            let mut total = Tally::new();
            for handle in handles {
                let tally = handle.join().expect("a driver does not panic")?;
                total.add(&tally);
            }
            let ended = total.ended.unwrap_or_else(Instant::now);
            Ok((total, ended.duration_since(started)))
        })
    }
}

/// This thread's share of a count.
fn share(count: u64, thread: usize, threads: usize) -> u64 {
    let (thread, threads) = (thread as u64, threads as u64);
    count / threads + u64::from(thread < count % threads)
}

/// A bar, where there is a terminal to show it on.
struct Progress {
    bar: ProgressBar,
    visible: bool,
}

impl Progress {
    fn new(phase: &Phase) -> Self {
        let visible = std::io::stderr().is_terminal();
        let length = match phase.limit {
            Limit::Count(count) => count,
            Limit::Time(time) => time.as_millis() as u64,
        };
        let bar = if visible { ProgressBar::new(length) } else { ProgressBar::hidden() };
        let style = ProgressStyle::with_template("{prefix} {wide_bar} {msg}")
            .expect("the template is a constant");
        bar.set_style(style);
        bar.set_prefix(phase.name);
        Self { bar, visible }
    }

    fn show(&self, limit: Limit, started: Instant, done: u64) {
        if !self.visible {
            return;
        }
        let elapsed = started.elapsed();
        self.bar.set_position(match limit {
            Limit::Count(_) => done,
            Limit::Time(_) => elapsed.as_millis() as u64,
        });
        self.bar.set_message(format!("{:.0}/s", done as f64 / elapsed.as_secs_f64()));
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;
    use crate::fake::{Fake, Lie};

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        options: LoadOptions,
    }

    fn options(fake: &Fake, arguments: &[&str]) -> LoadOptions {
        let addresses: Vec<String> = fake.addresses.iter().map(ToString::to_string).collect();
        let addresses = addresses.join(",");
        let line = ["load", "--addresses", &addresses, "--keys", "100"];
        Line::parse_from(line.iter().chain(arguments)).options
    }

    #[test]
    fn the_command_line_has_the_same_defaults() {
        let parsed = Line::parse_from(["load"]).options;
        assert_eq!(format!("{parsed:?}"), format!("{:?}", LoadOptions::default()));
    }

    #[test]
    fn shares_add_up() {
        let shares: Vec<u64> = (0..3).map(|thread| share(11, thread, 3)).collect();
        assert_eq!(shares, [4, 4, 3]);
    }

    #[test]
    fn addresses_are_resolved_or_explained() {
        let addresses = ["127.0.0.1:1".to_string(), "localhost:2".to_string()];
        assert_eq!(resolve(&addresses).unwrap().len(), 2);
        assert!(resolve(&["nowhere".to_string()]).is_err());
        assert!(resolve(&[]).is_err());
    }

    #[test]
    fn a_counted_closed_loop_does_exactly_that_much() {
        let fake = Fake::start(2, Lie::None);
        let arguments = ["--count", "5000", "--clients", "7", "--pipeline", "3", "--threads", "2"];
        let mut options = options(&fake, &arguments);
        options.mix = "set=1,get=1,incr=1,krange=1".parse().unwrap();
        options.preload = true;
        let report = run(&options).unwrap();
        assert_eq!(report.total.operations, 5000);
        assert_eq!(report.kinds.len(), 4);
        assert_eq!((report.errors, report.misses, report.unanswered), (0, 0, 0));
        assert!(report.table().contains("krange"));
        assert!(report.total.p50_us > 0.0 && report.total.p50_us <= report.total.max_us);
    }

    #[test]
    fn values_larger_than_the_buffers_pass() {
        let fake = Fake::start(1, Lie::None);
        let arguments = ["--count", "200", "--clients", "2", "--pipeline", "4", "--keys", "3"];
        let mut options = options(&fake, &arguments[..6]);
        options.keys = 3;
        options.value_size = "200000..300000".parse().unwrap();
        options.preload = true;
        let report = run(&options).unwrap();
        assert_eq!((report.total.operations, report.errors, report.misses), (200, 0, 0));
    }

    #[test]
    fn an_open_loop_keeps_its_rate() {
        let fake = Fake::start(1, Lie::None);
        let report = run(&options(&fake, &["--rate", "2000", "--duration", "0.5"])).unwrap();
        assert!((900..=1001).contains(&report.total.operations), "{}", report.total.operations);
        assert_eq!(report.unanswered, 0);
    }

    #[test]
    fn errors_are_counted_and_shown() {
        let fake = Fake::start(1, Lie::Flaky(3));
        let arguments = ["--count", "1", "--clients", "1", "--mix", "get"];
        // The third command is the first to fail, and the connection stays open after it.
        let mut options = options(&fake, &arguments);
        options.count = Some(4);
        let report = run(&options).unwrap();
        assert_eq!(report.errors, 1);
        assert!(report.table().contains("TIMEOUT"));
    }
}
