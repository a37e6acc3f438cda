//! What the processes of a measurement are told, and what its leader says when it is done: lines
//! of JSON, as arguments and on the standard output.

use std::path::PathBuf;

use hdrhistogram::Histogram;
use serde::{Deserialize, Serialize};

/// A process and its work.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Job {
    pub(super) seat: Seat,
    pub(super) work: Work,
}

/// A process's place in its group. Replica 0 leads.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Seat {
    pub(super) id: u8,
    /// Where the sockets are by which processes find each other.
    pub(super) folder: PathBuf,
    pub(super) core: usize,
    /// The core of the leader's application, where that has a thread of its own.
    pub(super) application_core: usize,
    /// Microseconds.
    pub(super) heartbeat: u64,
}

/// What is measured.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(super) enum Work {
    /// Requests one after the other.
    Latency(Latency),
    /// As many requests as may be outstanding.
    Throughput(Throughput),
    /// Load that goes on while leaders fail, in requests of 64 bytes.
    FailOver,
    /// Bytes moved to the followers and read there, without a protocol.
    Copy(Throughput),
}

impl Work {
    /// The longest request, in bytes.
    pub(super) fn request_bytes(self) -> usize {
        match self {
            Work::Latency(latency) => latency.service.request_bytes(latency.bytes),
            Work::Throughput(load) | Work::Copy(load) => load.service.request_bytes(load.bytes()),
            Work::FailOver => COMMAND,
        }
    }

    pub(super) fn outstanding(self) -> u64 {
        match self {
            Work::Throughput(load) | Work::Copy(load) => load.outstanding,
            _ => 1,
        }
    }
}

/// Bytes of a command, where the service has none of its own ([Mu] 7).
pub(super) const COMMAND: usize = 64;

/// What executes requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum Service {
    /// Next to nothing: it sums the first words of commands of 64 bytes.
    Sum,
    /// The key-value store, setting one of 100,000 keys to a value of so many bytes.
    Keys,
    /// The order book, fed as by an exchange.
    Orders,
}

impl Service {
    fn request_bytes(self, payload: usize) -> usize {
        match self {
            Service::Sum => payload,
            Service::Keys => payload + 64,
            Service::Orders => payload.max(64),
        }
    }

    pub(super) fn name(self) -> &'static str {
        match self {
            Service::Sum => "none",
            Service::Keys => "key-value store",
            Service::Orders => "order book",
        }
    }
}

/// How the application and its replica meet ([Mu] 7.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum Attachment {
    /// One thread is both.
    Direct,
    /// A thread each, and `fabric::handover` between them.
    Handover,
}

impl Attachment {
    pub(super) fn name(self) -> &'static str {
        match self {
            Attachment::Direct => "direct",
            Attachment::Handover => "handover",
        }
    }
}

#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(super) struct Latency {
    pub(super) service: Service,
    pub(super) attachment: Attachment,
    /// Without replication the service alone executes, on the same attachment.
    pub(super) replicated: bool,
    /// Bytes of a request or value.
    pub(super) bytes: usize,
    pub(super) samples: u64,
    /// Nanoseconds from one request's intended start to the next one's, from where its latency
    /// counts; none: each begins when the one before has been answered.
    pub(super) interval: Option<u64>,
}

#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(super) struct Throughput {
    pub(super) service: Service,
    /// Commands per request.
    pub(super) batch: usize,
    /// Requests.
    pub(super) outstanding: u64,
    pub(super) seconds: f64,
}

impl Throughput {
    pub(super) fn bytes(&self) -> usize {
        self.batch * COMMAND
    }
}

/// What a leader says when it is done.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Outcome {
    pub(super) latency: Spread,
    /// Commands that were answered.
    pub(super) commands: u64,
    pub(super) seconds: f64,
    /// How often the lead was lost: somebody took this process for failed.
    pub(super) deposed: u64,
    /// How often the scheduler took the core from the thread that measured.
    pub(super) preempted: u64,
    /// For how much of the time the leader could do nothing, since a follower had not made room.
    pub(super) waited_seconds: f64,
}

/// A distribution, in nanoseconds.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Spread {
    pub(super) samples: u64,
    pub(super) mean: f64,
    pub(super) p1: u64,
    pub(super) p50: u64,
    pub(super) p99: u64,
    pub(super) p999: u64,
    pub(super) max: u64,
}

impl Spread {
    pub(super) fn of(times: &Histogram<u64>) -> Spread {
        let at = |quantile| times.value_at_quantile(quantile);
        Spread {
            samples: times.len(),
            mean: times.mean(),
            p1: at(0.01),
            p50: at(0.5),
            p99: at(0.99),
            p999: at(0.999),
            max: times.max(),
        }
    }
}

/// Times in nanoseconds, up to a minute.
pub(super) fn histogram() -> Histogram<u64> {
    Histogram::new_with_bounds(1, 60_000_000_000, 3).expect("constant bounds")
}
