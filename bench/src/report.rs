//! What a load saw, as numbers, a table or JSON.

use std::fmt::Write as _;
use std::time::Duration;

use hdrhistogram::Histogram;
use serde::Serialize;

use crate::driver::Tally;
use crate::load::LoadOptions;
use crate::workload::Kind;

/// What a load was and what it saw.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// Where it went.
    pub addresses: Vec<String>,
    /// Connections.
    pub clients: usize,
    /// Requests on their way per connection; nothing in an open loop.
    pub pipeline: Option<usize>,
    /// Intended requests per second, in an open loop.
    pub rate: Option<f64>,
    /// Operations and their weights.
    pub mix: String,
    /// Number of keys.
    pub keys: u64,
    /// What they look like.
    pub form: String,
    /// How keys were chosen.
    pub distribution: String,
    /// Bytes per value.
    pub value_size: String,
    /// How long it took, draining included.
    pub seconds: f64,
    /// All operations together.
    pub total: Summary,
    /// Each kind that occurred.
    pub kinds: Vec<Summary>,
    /// Error replies.
    pub errors: u64,
    /// The first of them.
    pub first_error: Option<String>,
    /// Reads that found nothing.
    pub misses: u64,
    /// Requests that got no reply in time.
    pub unanswered: u64,
}

/// The latencies of one kind of operation, in microseconds.
#[derive(Clone, Debug, Serialize)]
pub struct Summary {
    /// The name.
    pub name: String,
    /// How many.
    pub operations: u64,
    /// How many per second.
    pub per_second: f64,
    /// The mean.
    pub mean_us: f64,
    /// The median.
    pub p50_us: f64,
    /// One in a hundred took longer.
    pub p99_us: f64,
    /// One in a thousand took longer.
    pub p999_us: f64,
    /// The longest.
    pub max_us: f64,
}

impl Summary {
    fn new(name: &str, latencies: &Histogram<u64>, elapsed: Duration) -> Self {
        let micros = |nanos: u64| nanos as f64 / 1e3;
        let operations = latencies.len();
        Self {
            name: name.to_string(),
            operations,
            per_second: operations as f64 / elapsed.as_secs_f64().max(1e-9),
            mean_us: latencies.mean() / 1e3,
            p50_us: micros(latencies.value_at_quantile(0.5)),
            p99_us: micros(latencies.value_at_quantile(0.99)),
            p999_us: micros(latencies.value_at_quantile(0.999)),
            max_us: micros(latencies.max()),
        }
    }
}

impl Report {
    pub(crate) fn new(options: &LoadOptions, tally: &Tally, elapsed: Duration) -> Self {
        let kinds = Kind::ALL
            .into_iter()
            .map(|kind| (kind, &tally.latencies[kind as usize]))
            .filter(|(_, latencies)| !latencies.is_empty())
            .map(|(kind, latencies)| Summary::new(kind.name(), latencies, elapsed))
            .collect();
        Self {
            addresses: options.addresses.clone(),
            clients: options.clients,
            pipeline: options.rate.is_none().then_some(options.pipeline),
            rate: options.rate,
            mix: options.mix.to_string(),
            keys: options.keys,
            form: options.form.to_string(),
            distribution: options.distribution.to_string(),
            value_size: options.value_size.to_string(),
            seconds: elapsed.as_secs_f64(),
            total: Summary::new("all", &tally.all(), elapsed),
            kinds,
            errors: tally.errors,
            first_error: tally.first_error.clone(),
            misses: tally.misses,
            unanswered: tally.unanswered,
        }
    }

    /// The report as a table.
    pub fn table(&self) -> String {
        let mut text = String::new();
        let how = match (self.pipeline, self.rate) {
            (Some(pipeline), _) => format!("pipeline {pipeline}"),
            (None, rate) => format!("{} requests/s intended", rate.unwrap_or_default()),
        };
        let _ = writeln!(
            text,
            "{} clients, {how}, {} over {} {} keys ({}), {}-byte values, {:.1} s\n",
            self.clients,
            self.mix,
            self.keys,
            self.form,
            self.distribution,
            self.value_size,
            self.seconds,
        );
        let _ = writeln!(
            text,
            "{:<8}{:>12}{:>12}{:>12}{:>12}{:>12}{:>12}",
            "", "operations", "per second", "p50 us", "p99 us", "p99.9 us", "max us",
        );
        let total = (self.kinds.len() != 1).then_some(&self.total);
        for row in self.kinds.iter().chain(total) {
            let _ = writeln!(
                text,
                "{:<8}{:>12}{:>12.0}{:>12.1}{:>12.1}{:>12.1}{:>12.1}",
                row.name,
                row.operations,
                row.per_second,
                row.p50_us,
                row.p99_us,
                row.p999_us,
                row.max_us,
            );
        }
        if self.misses > 0 {
            let _ = writeln!(text, "\n{} reads found nothing", self.misses);
        }
        if let Some(error) = &self.first_error {
            let _ = writeln!(text, "\n{} error replies, the first: {error}", self.errors);
        }
        if self.unanswered > 0 {
            let _ = writeln!(text, "\n{} requests got no reply in time", self.unanswered);
        }
        text
    }
}

/// Prints a report, as a table or as JSON.
pub fn print(report: &Report, json: bool) {
    if json {
        let text = serde_json::to_string_pretty(report).expect("a report is plain data");
        println!("{text}");
    } else {
        print!("{}", report.table());
    }
}
