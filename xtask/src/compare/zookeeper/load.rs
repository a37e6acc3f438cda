//! Writes over many sessions that each keep some on their way, as with the asynchronous API.
//!
//! One thread asks the sessions in turn and sleeps a moment when none has anything. With thousands
//! of requests on their way that moment is small beside what each takes, and it makes the driver
//! cheap: many replies are taken at once.

use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use bench::keys::Form;
use bench::workload::{KeyDistribution, Kind, Mix, Shape, ValueSize, Workload};

use super::session::{Operation, Session};
use crate::compare::{Figures, percentile};

const MOMENT: Duration = Duration::from_micros(250);

/// How long no session may have a reply.
const PATIENCE: Duration = Duration::from_secs(30);

/// What is written, and over what.
pub struct Load {
    /// Servers; sessions are spread over them in turn.
    pub ports: Vec<u16>,
    /// Sessions.
    pub sessions: usize,
    /// Requests on their way in each.
    pub outstanding: usize,
    /// Nodes, all below the root.
    pub keys: u64,
    /// Bytes of a node's data.
    pub value_size: usize,
}

impl Load {
    fn workload(&self, distribution: KeyDistribution) -> Workload {
        let shape = Shape {
            keys: self.keys,
            distribution,
            value_size: ValueSize(self.value_size..=self.value_size),
            mix: Mix::only(Kind::Set),
        };
        Workload::new(&shape, 1, 0, 1)
    }
}

/// Makes the nodes, each once.
pub fn create_nodes(load: &Load) -> Result<()> {
    let mut left = load.keys;
    let more = |_| {
        let is_left = left > 0;
        left = left.saturating_sub(1);
        is_left
    };
    drive(load, Operation::Create, KeyDistribution::Sequential, more, |_, _| {})
        .context("cannot create ZooKeeper's nodes")
}

/// Replaces the data of random nodes for a time that begins after the warm-up; acknowledgements
/// count when they arrive within it.
pub fn set_data(load: &Load, warm_up: Duration, time: Duration) -> Result<Figures> {
    let from = Instant::now() + warm_up;
    let until = from + time;
    let mut latencies = Vec::new();
    let answered = |now, latency: Duration| {
        if (from..until).contains(&now) {
            latencies.push(latency.as_secs_f64() * 1e6);
        }
    };
    let more = |now| now < until;
    drive(load, Operation::SetData, KeyDistribution::Uniform, more, answered)
        .context("cannot set the data of ZooKeeper's nodes")?;
    ensure!(!latencies.is_empty(), "ZooKeeper acknowledged nothing in {time:?}");
    latencies.sort_by(f64::total_cmp);
    Ok(Figures {
        per_second: latencies.len() as f64 / time.as_secs_f64(),
        p50_us: percentile(&latencies, 50),
        p99_us: percentile(&latencies, 99),
    })
}

/// Sends as long as there is more, and then waits for the replies.
fn drive(
    load: &Load,
    operation: Operation,
    distribution: KeyDistribution,
    mut more: impl FnMut(Instant) -> bool,
    mut answered: impl FnMut(Instant, Duration),
) -> Result<()> {
    let mut workload = load.workload(distribution);
    let mut sessions = Vec::new();
    for port in load.ports.iter().cycle().take(load.sessions) {
        sessions.push(Session::open(*port)?);
    }
    let mut last_reply = Instant::now();
    loop {
        let now = Instant::now();
        let mut replies = 0;
        for session in &mut sessions {
            replies += session.receive(&mut answered)?;
            while session.pending() < load.outstanding && more(now) {
                let mut path = [b'/'; 17];
                path[1..].copy_from_slice(Form::Record.key(workload.next_key()).as_ref());
                session.request(operation, &path, workload.next_value(), now);
            }
            session.flush()?;
        }
        if sessions.iter().all(|session| session.pending() == 0) {
            break;
        }
        if replies > 0 {
            last_reply = now;
        } else {
            ensure!(now - last_reply < PATIENCE, "no reply in {PATIENCE:?}");
            thread::sleep(MOMENT);
        }
    }
    sessions.into_iter().try_for_each(Session::close)
}
