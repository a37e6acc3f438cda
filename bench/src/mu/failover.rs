//! Leaders that fail under load ([Mu] 7.3): how soon the next one has its first entry decided, and
//! whether it has all that was acknowledged.

use std::io::Write;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use bytes::Bytes;
use hdrhistogram::Histogram;
use rustix::process::Signal;
use serde::{Deserialize, Serialize};
use smr::ReplicaId;
use smr::contract::Role;

use super::group::Group;
use super::job::{Seat, Spread, Work, histogram};
use super::process::{Process, Steps, monotonic};
use super::service::{Ledger, numbered};

/// From one request to the next, in microseconds: followers that share a core keep up.
const PACE: u64 = 20;
const PATIENCE: Duration = Duration::from_secs(10);

/// What a process says of itself, as a line of JSON.
#[derive(Debug, Serialize, Deserialize)]
pub(super) enum Event {
    /// Replica 0 leads, all others follow it, and it serves its client, since then.
    Ready(u64),
    /// Another replica leads.
    Led(Report),
}

/// Times in nanoseconds of the monotonic clock.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(super) struct Report {
    suspected: u64,
    permitted: u64,
    caught_up: u64,
    /// Its first entry is decided.
    leads: u64,
    /// Requests that the former leader's client has seen acknowledged,
    acknowledged: u64,
    /// and those that this one has executed;
    executed: u64,
    /// not in their order, or with other bytes.
    wrong: u64,
}

fn say(event: &Event) -> Result<()> {
    let line = serde_json::to_string(event)?;
    println!("{line}");
    Ok(std::io::stdout().flush()?)
}

/// Serves a client until it is killed. Whenever it is stopped and has the lead back it says so.
pub(super) fn lead(seat: &Seat) -> Result<()> {
    let mut process = Process::start(seat, Work::FailOver, Ledger::default())?;
    let parent = rustix::process::getppid();
    let mut next = 0;
    loop {
        process.lead();
        say(&Event::Ready(monotonic()))?;
        while process.leads() {
            let now = monotonic();
            if process.outstanding() == 0 && now >= next {
                next = now + PACE * 1_000;
                let number = process.answered() + 1;
                process.submit(Bytes::copy_from_slice(&numbered(number)));
                process.complete();
            }
            process.turn();
            process.acknowledge();
        }
        if rustix::process::getppid() != parent {
            return Ok(());
        }
    }
}

/// Follows, and says so when it leads.
pub(super) fn follow(seat: &Seat) -> Result<()> {
    let process = Process::start(seat, Work::FailOver, Ledger::default())?;
    let mut led = false;
    process.follow(|process| {
        let role = process.role();
        let leads = role == Role::Primary;
        if leads && !std::mem::replace(&mut led, leads) {
            let Steps { suspected, permitted, caught_up } = process.steps;
            let leads = monotonic();
            let acknowledged = process.acknowledged_by(ReplicaId(0));
            let Ledger { taken: executed, wrong } = *process.service();
            let report =
                Report { suspected, permitted, caught_up, leads, acknowledged, executed, wrong };
            // If nobody reads it, nobody measures.
            let _ = say(&Event::Led(report));
        }
        led = leads;
        if role == Role::Backup {
            process.steps = Steps::default();
        }
    });
    Ok(())
}

/// How a leader fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Failure {
    /// SIGKILL: it ends, its memory stays
    Kill,
    /// SIGSTOP: it stands still in the middle of whatever it does, and goes on later
    Stop,
}

impl Failure {
    fn signal(self) -> Signal {
        match self {
            Failure::Kill => Signal::KILL,
            Failure::Stop => Signal::STOP,
        }
    }
}

/// The parts of a fail-over: names and distributions.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Figures {
    pub(super) failure: Failure,
    pub(super) heartbeat_us: u64,
    pub(super) rounds: u64,
    /// Until the next leader asks for the first permission.
    pub(super) detection: Spread,
    /// Until a majority has granted.
    pub(super) permission_switch: Spread,
    /// Until everything that was decided or accepted is there.
    pub(super) catch_up: Spread,
    /// Until the next leader's first entry is decided.
    pub(super) first_commit: Spread,
    pub(super) all: Spread,
    /// By hundredths of a millisecond, how many fail-overs took so long; the last are longer.
    pub(super) histogram: Vec<u64>,
    /// Changes of leaders while the leader ran.
    pub(super) false_suspicions: u64,
    /// For how long leaders ran.
    pub(super) observed_seconds: f64,
    /// Requests acknowledged before the failures,
    pub(super) acknowledged: u64,
    /// of which so many were missing at the next leader, or wrong.
    pub(super) lost: u64,
}

/// Buckets of [`Figures::histogram`].
pub(super) const BUCKETS: usize = 500;
const BUCKET: u64 = 10_000;

/// What is counted, round by round.
struct Tally {
    parts: [Histogram<u64>; 5],
    histogram: Vec<u64>,
    rounds: u64,
    false_suspicions: u64,
    observed: Duration,
    acknowledged: u64,
    lost: u64,
}

impl Tally {
    fn new() -> Tally {
        Tally {
            parts: std::array::from_fn(|_| histogram()),
            histogram: vec![0; BUCKETS + 1],
            rounds: 0,
            false_suspicions: 0,
            observed: Duration::ZERO,
            acknowledged: 0,
            lost: 0,
        }
    }

    fn add(&mut self, failed: u64, report: &Report, former: u64) {
        let Report { suspected, permitted, caught_up, leads, .. } = *report;
        let times = [
            suspected - failed,
            permitted - suspected,
            caught_up - permitted,
            leads - caught_up,
            leads - failed,
        ];
        for (part, time) in self.parts.iter_mut().zip(times) {
            part.saturating_record(time.max(1));
        }
        self.histogram[((leads - failed) / BUCKET).min(BUCKETS as u64) as usize] += 1;
        self.rounds += 1;
        self.acknowledged += report.acknowledged - former;
        self.lost += report.acknowledged.saturating_sub(report.executed) + report.wrong;
    }

    fn figures(self, failure: Failure, heartbeat_us: u64) -> Figures {
        let [detection, permission_switch, catch_up, first_commit, all] =
            self.parts.each_ref().map(Spread::of);
        Figures {
            failure,
            heartbeat_us,
            rounds: self.rounds,
            detection,
            permission_switch,
            catch_up,
            first_commit,
            all,
            histogram: self.histogram,
            false_suspicions: self.false_suspicions,
            observed_seconds: self.observed.as_secs_f64(),
            acknowledged: self.acknowledged,
            lost: self.lost,
        }
    }
}

/// Fails leaders until there are so many rounds or the time is over. A killed leader needs a new
/// group; one that was stopped goes on and takes the lead back.
pub(super) fn measure(
    failure: Failure,
    heartbeat_us: u64,
    rounds: u64,
    end: Instant,
    start: impl Fn() -> Result<Group>,
    mut each: impl FnMut(u64),
) -> Result<Figures> {
    let mut tally = Tally::new();
    let mut group = start()?;
    let mut former = 0;
    while tally.rounds < rounds && Instant::now() < end {
        // Not in step with anybody's period.
        let pause = Duration::from_micros(2_000 + tally.rounds * 377 % 5_000);
        if let Some((failed, report)) = fail(&group, failure, pause, &mut tally)? {
            tally.add(failed, &report, former);
            each(tally.rounds);
            former = report.acknowledged;
        }
        match failure {
            Failure::Stop => group.signal(0, Signal::CONT)?,
            Failure::Kill => {
                drop(group);
                group = start()?;
                former = 0;
            }
        }
    }
    ensure!(tally.rounds > 0, "no leader could be made to fail within the time limit");
    Ok(tally.figures(failure, heartbeat_us))
}

/// Waits until replica 0 leads, and makes it fail after a pause. None if another one led before it
/// failed.
fn fail(
    group: &Group,
    failure: Failure,
    pause: Duration,
    tally: &mut Tally,
) -> Result<Option<(u64, Report)>> {
    // What replicas say of themselves may come in another order than it happened.
    let (mut ready, mut led) = (0, 0);
    // Until nobody has said anything for a while.
    while let Some(event) = event(group, if ready > led { pause } else { PATIENCE })? {
        match event {
            Event::Ready(at) => ready = ready.max(at),
            Event::Led(report) => {
                led = led.max(report.leads);
                tally.false_suspicions += 1;
            }
        }
        tally.observed += pause;
    }
    ensure!(
        ready > led,
        "replica 0 has not led for {PATIENCE:?}: the machine is too busy to measure"
    );
    let failed = monotonic();
    group.signal(0, failure.signal())?;
    match event(group, PATIENCE)? {
        Some(Event::Led(report)) if report.suspected > failed => Ok(Some((failed, report))),
        // Whoever leads now was not made to by this failure.
        Some(event) => {
            tally.false_suspicions += u64::from(matches!(event, Event::Led(_)));
            Ok(None)
        }
        None => bail!("nobody has led for {PATIENCE:?} after the leader failed"),
    }
}

/// What a replica says next, if it says it so soon.
fn event(group: &Group, patience: Duration) -> Result<Option<Event>> {
    let Some((_, line)) = group.line(Instant::now() + patience)? else { return Ok(None) };
    serde_json::from_str(&line).map(Some).with_context(|| format!("a replica said {line:?}"))
}
