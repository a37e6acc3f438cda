//! A closed loop of sets through the native client: throughput and latencies.
#![forbid(unsafe_code)]

use std::time::Duration;

use anyhow::{Result, bail};
use clap::Parser;
use hdrhistogram::Histogram;
use lockstep_client::load::{self, Load};
use lockstep_client::{Client, OnLoss, Options};

/// What takes longer, in microseconds, is not told apart.
const LONGEST: u64 = 60_000_000;

#[derive(Parser)]
struct Flags {
    /// The replicas, as in their --peers
    #[arg(long, value_delimiter = ',', required = true, value_name = "HOST:PORT")]
    addresses: Vec<String>,
    /// Clients, each with connections of its own
    #[arg(long, default_value_t = 1)]
    clients: usize,
    /// Requests under way per client
    #[arg(long, default_value_t = 20)]
    outstanding: usize,
    /// Commands per request
    #[arg(long, default_value_t = 1)]
    batch: usize,
    /// Bytes of a value
    #[arg(long, default_value_t = 1024)]
    size: usize,
    /// Keys
    #[arg(long, default_value_t = 100_000)]
    keys: u64,
    /// Which share of the requests is answered only when it is durable, 0 to 1
    #[arg(long, default_value_t = 0.0)]
    durable: f64,
    /// Requests that fall due in a second, of all clients together, instead of one per answer
    #[arg(long)]
    rate: Option<f64>,
    /// Keep nothing that may have to be replayed: report losses
    #[arg(long)]
    report: bool,
    /// How long to submit
    #[arg(long, default_value_t = 5.0)]
    seconds: f64,
}

fn main() -> Result<()> {
    let flags = Flags::parse();
    if flags.rate.is_some_and(|rate| rate.is_nan() || rate <= 0.0) {
        bail!("--rate must be above zero");
    }
    let on_loss = if flags.report { OnLoss::Report } else { OnLoss::Replay };
    let options = Options { on_loss, ..Options::default() };
    let mut clients = Vec::new();
    for _ in 0..flags.clients {
        clients.push(Client::connect(&flags.addresses, options)?);
    }
    let load = Load {
        outstanding: flags.outstanding,
        batch: flags.batch,
        value_bytes: flags.size,
        keys: flags.keys,
        durable: flags.durable,
        rate: flags.rate,
        duration: Duration::from_secs_f64(flags.seconds),
        ..Load::default()
    };
    let mut histogram = Histogram::<u64>::new_with_bounds(1, LONGEST, 3)?;
    let mut first = None;
    let each = |sample: load::Sample| histogram.saturating_record(sample.took.as_micros() as u64);
    let tally = load::run(&mut clients, &load, each, |_, error| {
        first.get_or_insert(error);
    })?;
    let rate = tally.answered as f64 / tally.elapsed.as_secs_f64();
    let at = |quantile: f64| histogram.value_at_quantile(quantile);
    println!(
        "{} requests of {} commands, {} failed, {} losses: {rate:.0} requests/s, {:.0} commands/s, \
         p50 {} us, p99 {} us, p99.9 {} us, max {} us",
        tally.answered,
        flags.batch,
        tally.failed,
        tally.losses,
        rate * flags.batch as f64,
        at(0.5),
        at(0.99),
        at(0.999),
        histogram.max(),
    );
    match first {
        Some(error) => bail!("the first failure: {error}"),
        None => Ok(()),
    }
}
