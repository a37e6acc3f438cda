//! Kills and pauses the replicas of a running group, or kills its sequencer, under checked load.
//!
//! Each round does one thing to a group that is whole, measures how long no write is acknowledged,
//! and waits until the group is whole again. In the end every key is read through every replica,
//! and the history of all clients is judged. Where a fault may take something back from clients
//! (durability `lazy`), it is counted and judged what that was.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use clap::{Args, ValueEnum};
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use rustix::process::{Pid, Signal, kill_process};
use serde::Serialize;

use crate::checked::{CheckedLoad, CheckedOptions, Recorded};
use crate::checker;
use crate::history::History;
use crate::loss::{LossLoad, LossOptions, Losses, SYNC_EVERY};
use crate::sockets;
use crate::status::{Group, Multicast, Status};

/// How long a group may take to become whole, and to acknowledge a write.
const PATIENCE: Duration = Duration::from_secs(60);

/// What is done in each round.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Fault {
    /// SIGKILL the primary
    KillPrimary,
    /// SIGKILL any one replica
    KillRandom,
    /// SIGSTOP the primary for a while
    PausePrimary,
    /// SIGKILL every replica at once (for durability sync; with lazy the loss is measured)
    KillAll,
    /// SIGSTOP a backup, SIGKILL all others at once, and wake it when they serve again (for
    /// durability lazy: clients of the stopped one may have seen what the others have lost)
    KillOthers,
    /// SIGKILL the sequencer (order nopaxos), which must be a process on this machine
    KillSequencer,
}

impl Fault {
    fn verb(self) -> &'static str {
        match self {
            Fault::KillPrimary | Fault::KillRandom | Fault::KillSequencer => "killed",
            Fault::PausePrimary => "paused",
            Fault::KillAll => "killed all, of which",
            Fault::KillOthers => "killed all but",
        }
    }
}

/// What to do, to which group.
#[derive(Args, Clone, Debug)]
pub struct ChaosOptions {
    /// What is done in each round
    #[arg(value_enum)]
    pub fault: Fault,
    /// Rounds
    #[arg(long, default_value_t = 5)]
    pub rounds: u32,
    /// The port of the first replica; the others have the next ones
    #[arg(long, default_value_t = 7400)]
    pub port: u16,
    /// Replicas in the group
    #[arg(long, default_value_t = 3)]
    pub replicas: u16,
    /// Seconds for which a primary is paused
    #[arg(long, default_value_t = 3.0, value_name = "SECONDS")]
    pub pause: f64,
    /// Seconds between the rounds
    #[arg(long, default_value_t = 0.5, value_name = "SECONDS")]
    pub settle: f64,
    /// Clients of the checked load
    #[arg(long, default_value_t = 12)]
    pub clients: usize,
    /// Operations per second of the checked load, at most
    #[arg(long, default_value_t = 4000.0)]
    pub rate: f64,
    /// Where the random choices start
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// What happened in a round.
#[derive(Clone, Debug, Serialize)]
pub struct Round {
    /// The replica that was hit; nothing if it was the sequencer.
    pub replica: Option<usize>,
    /// What it was.
    pub role: String,
    /// Milliseconds until the next write was acknowledged, by another replica if one was hit.
    pub gap_ms: f64,
    /// Milliseconds until the group was whole again.
    pub whole_ms: f64,
}

/// What happened in all.
#[derive(Clone, Debug, Serialize)]
pub struct ChaosReport {
    /// What was done.
    pub fault: Fault,
    /// What the group promised.
    pub durability: String,
    /// What happened in each round.
    pub rounds: Vec<Round>,
    /// The median of the gaps, in milliseconds.
    pub gap_median_ms: f64,
    /// One gap in ten was longer.
    pub gap_p90_ms: f64,
    /// The longest gap.
    pub gap_max_ms: f64,
    /// Operations of all clients, the last reads included.
    pub operations: usize,
    /// Writes that were acknowledged.
    pub acknowledged_writes: u64,
    /// Operations whose outcome the client could not know.
    pub unknown_outcomes: u64,
    /// Acknowledged writes that were gone in the end.
    pub lost_writes: u64,
    /// Whether the history is linearizable; nothing if the checker could not decide.
    pub linearizable: Option<bool>,
    /// Why it is not.
    pub violation: Option<String>,
    /// What the clients met when an outcome was unknown.
    pub failures: BTreeMap<String, u64>,
    /// What the crashes took back, where that may happen; the history is not judged then.
    pub losses: Option<Losses>,
}

impl ChaosReport {
    /// Whether nothing was lost and everything can be explained; where a loss may happen, whether
    /// it was as it may be.
    pub fn passed(&self) -> bool {
        if let Some(losses) = &self.losses {
            return losses.violations.is_empty();
        }
        self.lost_writes == 0 && self.linearizable == Some(true)
    }
}

/// Runs the rounds. The group must be running; killed replicas are restarted by whoever runs it.
pub fn run(options: &ChaosOptions) -> Result<ChaosReport> {
    ensure!(options.rounds > 0, "--rounds must be at least 1");
    ensure!(options.clients > 0, "--clients must be at least 1");
    ensure!(options.replicas > 0, "--replicas must be at least 1");
    ensure!(options.port.checked_add(options.replicas).is_some(), "--port is too high");
    for (name, value) in [("pause", options.pause), ("rate", options.rate)] {
        ensure!(value > 0.0 && value < 1e9, "--{name} must be positive");
    }
    ensure!((0.0..1e9).contains(&options.settle), "--settle must not be negative");
    let group = Group::local(options.port, options.replicas);
    let statuses = group.wait_until_whole(PATIENCE)?;
    let pids: BTreeSet<i32> = statuses.iter().map(|status| status.pid).collect();
    ensure!(pids.len() == statuses.len(), "the replicas are not processes of their own: {pids:?}");
    let durability = statuses[0].durability.clone();
    let crashes = matches!(options.fault, Fault::KillAll | Fault::KillOthers);
    if crashes && durability == "memory" {
        bail!(
            "this would lose the state of the group: its durability is memory. Start it with \
             --durability sync or lazy."
        );
    }
    if crashes && durability == "lazy" {
        let mut load = LossLoad::start(LossOptions {
            addresses: group.addresses.clone(),
            clients: options.clients,
            rate: options.rate,
            sync_every: SYNC_EVERY,
        });
        let rounds = run_rounds(options, &group, &mut load)?;
        let mut losses = load.finish()?;
        if options.fault == Fault::KillOthers {
            losses.require_told();
        }
        return Ok(loss_report(options, durability, rounds, losses));
    }
    let mut checked = CheckedOptions::new(group.addresses.clone());
    checked.clients = options.clients;
    checked.rate = options.rate;
    checked.seed = options.seed;
    let mut load = CheckedLoad::start(checked);
    let rounds = run_rounds(options, &group, &mut load)?;
    Ok(report(options, durability, rounds, load.finish()?))
}

/// What the rounds need of the load beside them.
trait Load {
    /// Acknowledged operations may be lost from here on.
    fn crash(&mut self);
    /// The group is whole again.
    fn resume(&mut self);
    /// Watches for the first acknowledged write from now on, by a replica other than this.
    fn watch(&self, except: Option<usize>) -> Instant;
    /// Waits for that write.
    fn gap(&self, patience: Duration) -> Result<Duration>;
}

impl Load for CheckedLoad {
    fn crash(&mut self) {}

    fn resume(&mut self) {}

    fn watch(&self, except: Option<usize>) -> Instant {
        CheckedLoad::watch(self, except)
    }

    fn gap(&self, patience: Duration) -> Result<Duration> {
        CheckedLoad::gap(self, patience)
    }
}

impl Load for LossLoad {
    fn crash(&mut self) {
        LossLoad::crash(self);
    }

    fn resume(&mut self) {
        LossLoad::resume(self);
    }

    fn watch(&self, _: Option<usize>) -> Instant {
        LossLoad::watch(self)
    }

    fn gap(&self, patience: Duration) -> Result<Duration> {
        LossLoad::gap(self, patience)
    }
}

fn run_rounds(options: &ChaosOptions, group: &Group, load: &mut dyn Load) -> Result<Vec<Round>> {
    let mut rng = SmallRng::seed_from_u64(options.seed);
    let mut rounds = Vec::new();
    for number in 1..=options.rounds {
        std::thread::sleep(Duration::from_secs_f64(options.settle));
        let round = round(options, group, load, &mut rng)
            .with_context(|| format!("round {number} of {}", options.rounds))?;
        let hit = match round.replica {
            Some(id) => format!("replica {id} ({})", round.role),
            None => format!("the {}", round.role),
        };
        eprintln!(
            "round {number}/{}: {} {hit}: next write after {:.1} ms, whole in {:.0} ms",
            options.rounds,
            options.fault.verb(),
            round.gap_ms,
            round.whole_ms,
        );
        rounds.push(round);
    }
    Ok(rounds)
}

fn round(
    options: &ChaosOptions,
    group: &Group,
    load: &mut dyn Load,
    rng: &mut SmallRng,
) -> Result<Round> {
    let statuses = group.wait_until_whole(PATIENCE)?;
    let primary = Group::primary(&statuses).context("a whole group has a primary")?;
    if options.fault == Fault::KillSequencer {
        return sequencer_round(group, load, &statuses[primary]);
    }
    let replica = match options.fault {
        Fault::KillRandom => rng.random_range(0..statuses.len()),
        Fault::KillOthers => {
            let further = rng.random_range(1..statuses.len().max(2));
            (primary + further) % statuses.len()
        }
        _ => primary,
    };
    let mut paused = None;
    let hit: Vec<&Status> = match options.fault {
        Fault::KillAll => statuses.iter().collect(),
        Fault::KillOthers => {
            paused = Some(Paused::new(&statuses[replica])?);
            statuses.iter().filter(|status| status.pid != statuses[replica].pid).collect()
        }
        _ => vec![&statuses[replica]],
    };
    if options.fault == Fault::PausePrimary {
        paused = Some(Paused::new(&statuses[replica])?);
    } else {
        for status in &hit {
            signal(status, Signal::KILL)?;
        }
    }
    load.crash();
    let except = (options.fault != Fault::KillAll).then_some(replica);
    let hit_at = load.watch(except);
    if options.fault == Fault::PausePrimary {
        let pause = Duration::from_secs_f64(options.pause);
        std::thread::sleep(pause.saturating_sub(hit_at.elapsed()));
        paused = None;
    }
    let gap = load.gap(PATIENCE)?;
    drop(paused);
    wait_until_back(options, group, &hit)?;
    load.resume();
    Ok(Round {
        replica: Some(replica),
        role: statuses[replica].role.clone(),
        gap_ms: gap.as_secs_f64() * 1e3,
        whole_ms: hit_at.elapsed().as_secs_f64() * 1e3,
    })
}

/// Kills the sequencer that the primary listens to. The group is whole again when it listens to
/// another session and the sequencer runs as another process.
fn sequencer_round(group: &Group, load: &mut dyn Load, primary: &Status) -> Result<Round> {
    let Some(Multicast { session, sequencer: Some(address) }) = primary.multicast else {
        bail!("the group has no sequencer: only with order nopaxos there is one");
    };
    let killed = sockets::owner(address)?
        .with_context(|| format!("no process here has the sequencer's UDP address {address}"))?;
    // It might be this program's own, if the address is another machine's.
    ensure!(killed > 1 && killed != std::process::id() as i32, "{killed} is not to be killed");
    let pid = Pid::from_raw(killed).context("a positive pid")?;
    kill_process(pid, Signal::KILL).context("cannot kill the sequencer")?;
    let hit_at = load.watch(None);
    let gap = load.gap(PATIENCE)?;
    let deadline = Instant::now() + PATIENCE;
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        let statuses = group.wait_until_whole(left)?;
        let moved = |status: &Status| status.multicast.is_some_and(|now| now.session > session);
        let runs = sockets::owner(address)?.is_some_and(|owner| owner != killed);
        if statuses.iter().all(moved) && runs {
            break;
        }
        ensure!(Instant::now() < deadline, "the killed sequencer at {address} was not replaced");
        std::thread::sleep(Duration::from_millis(10));
    }
    Ok(Round {
        replica: None,
        role: "sequencer".to_owned(),
        gap_ms: gap.as_secs_f64() * 1e3,
        whole_ms: hit_at.elapsed().as_secs_f64() * 1e3,
    })
}

/// A replica that stands still until this is dropped, whatever becomes of the others.
struct Paused<'a>(&'a Status);

impl<'a> Paused<'a> {
    fn new(status: &'a Status) -> Result<Paused<'a>> {
        signal(status, Signal::STOP)?;
        Ok(Paused(status))
    }
}

impl Drop for Paused<'_> {
    fn drop(&mut self) {
        if let Err(error) = signal(self.0, Signal::CONT) {
            eprintln!("{error:#}");
        }
    }
}

fn signal(status: &Status, signal: Signal) -> Result<()> {
    // Zero and negative numbers mean groups of processes, and 1 the whole machine.
    ensure!(status.pid > 1, "{} is no process to be killed", status.pid);
    let pid = Pid::from_raw(status.pid).context("a positive pid")?;
    kill_process(pid, signal)
        .with_context(|| format!("cannot send a signal to replica {} (pid {pid:?})", status.id))
}

/// Waits until the group is whole, and the killed replicas run as other processes.
fn wait_until_back(options: &ChaosOptions, group: &Group, hit: &[&Status]) -> Result<()> {
    let deadline = Instant::now() + PATIENCE;
    loop {
        let statuses =
            group.wait_until_whole(deadline.saturating_duration_since(Instant::now()))?;
        let is_old = |status: &Status| hit.iter().any(|old| old.pid == status.pid);
        if options.fault == Fault::PausePrimary || !statuses.iter().any(is_old) {
            return Ok(());
        }
        if Instant::now() > deadline {
            bail!("a killed replica still answers");
        }
        std::thread::sleep(Duration::from_millis(10));
    }
}

fn report(
    options: &ChaosOptions,
    durability: String,
    rounds: Vec<Round>,
    recorded: Recorded,
) -> ChaosReport {
    let mut gaps: Vec<f64> = rounds.iter().map(|round| round.gap_ms).collect();
    gaps.sort_by(f64::total_cmp);
    let verdict = checker::check(&recorded.history);
    ChaosReport {
        fault: options.fault,
        durability,
        rounds,
        gap_median_ms: quantile(&gaps, 0.5),
        gap_p90_ms: quantile(&gaps, 0.9),
        gap_max_ms: quantile(&gaps, 1.0),
        operations: recorded.history.operations.len(),
        acknowledged_writes: recorded.history.acknowledged_writes(),
        unknown_outcomes: recorded.history.unknown(),
        lost_writes: recorded.lost_writes,
        linearizable: verdict.linearizable(),
        violation: verdict.explanation(),
        failures: recorded.failures,
        losses: None,
    }
}

fn loss_report(
    options: &ChaosOptions,
    durability: String,
    rounds: Vec<Round>,
    losses: Losses,
) -> ChaosReport {
    let recorded = Recorded {
        history: History::default(),
        lost_writes: losses.operations(),
        failures: losses.failures.clone(),
    };
    ChaosReport {
        operations: (losses.acknowledged + losses.unknown) as usize,
        acknowledged_writes: losses.acknowledged,
        unknown_outcomes: losses.unknown,
        linearizable: None,
        losses: Some(losses),
        ..report(options, durability, rounds, recorded)
    }
}

/// The smallest of the sorted values that so large a part does not exceed.
fn quantile(sorted: &[f64], part: f64) -> f64 {
    let rank = (sorted.len() as f64 * part).ceil() as usize;
    sorted.get(rank.saturating_sub(1)).copied().unwrap_or(f64::NAN)
}

/// Prints a report, as text or as JSON.
pub fn print(report: &ChaosReport, json: bool) {
    if json {
        let text = serde_json::to_string_pretty(report).expect("a report is plain data");
        println!("{text}");
        return;
    }
    println!("rounds                     {}", report.rounds.len());
    println!(
        "gap until the next write   median {:.1} ms, p90 {:.1} ms, max {:.1} ms",
        report.gap_median_ms, report.gap_p90_ms, report.gap_max_ms
    );
    println!("operations                 {}", report.operations);
    println!("acknowledged writes        {}", report.acknowledged_writes);
    println!("acknowledged writes lost   {}", report.lost_writes);
    println!("unknown outcomes           {} {:?}", report.unknown_outcomes, report.failures);
    if let Some(losses) = &report.losses {
        print_losses(losses);
        println!("{}", if report.passed() { "passed" } else { "FAILED" });
        return;
    }
    println!(
        "linearizable               {}",
        match report.linearizable {
            Some(true) => "yes",
            Some(false) => "NO",
            None => "undecided",
        }
    );
    if let Some(violation) = &report.violation {
        println!("{violation}");
    }
    println!("{}", if report.passed() { "passed" } else { "FAILED" });
}

/// Prints what crashes took back.
pub fn print_losses(losses: &Losses) {
    let each = losses.crashes.iter().map(|taken| format!("{}", taken.operations));
    let most = losses.crashes.iter().map(|taken| taken.ms).fold(0.0, f64::max);
    println!("lost, crash by crash       {}", each.collect::<Vec<_>>().join(" "));
    println!("oldest lost operation      {most:.1} ms before its crash");
    println!("acknowledged as durable    {}", losses.acknowledged_durable);
    println!("told with WRONGVIEW        {}", losses.told);
    println!("broken promises            {}", losses.violations.len());
    for violation in &losses.violations {
        println!("    {violation}");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::history::{Action, Operation};

    fn options() -> ChaosOptions {
        ChaosOptions {
            fault: Fault::KillPrimary,
            rounds: 1,
            port: 1,
            replicas: 3,
            pause: 1.0,
            settle: 0.0,
            clients: 1,
            rate: 1.0,
            seed: 1,
            json: false,
        }
    }

    fn judged(operations: Vec<Operation>, lost_writes: u64) -> ChaosReport {
        let history = History { operations };
        let recorded = Recorded { history, lost_writes, failures: BTreeMap::new() };
        let round =
            |gap_ms| Round { replica: Some(0), role: "primary".to_string(), gap_ms, whole_ms: 1.0 };
        report(&options(), "memory".to_string(), vec![round(3.0), round(1.0), round(2.0)], recorded)
    }

    #[test]
    fn quantiles() {
        let values: Vec<f64> = (1..=10).map(f64::from).collect();
        assert_eq!(quantile(&values, 0.5), 5.0);
        assert_eq!(quantile(&values, 0.9), 9.0);
        assert_eq!(quantile(&values, 1.0), 10.0);
        assert!(quantile(&[], 0.5).is_nan());
    }

    #[test]
    fn a_report_fails_on_loss_and_on_violation() {
        let operation = |action, invoked| Operation {
            client: 0,
            key: 0,
            action,
            invoked,
            completed: Some(invoked + 1),
        };
        let write = operation(Action::Set(1), 1);
        let good = judged(vec![write, operation(Action::Get(Some(1)), 3)], 0);
        assert!(good.passed());
        assert_eq!((good.gap_median_ms, good.gap_max_ms), (2.0, 3.0));
        assert!(!judged(vec![write], 1).passed());
        let bad = judged(vec![write, operation(Action::Get(None), 3)], 0);
        assert!(!bad.passed());
        assert!(bad.violation.unwrap().contains("SET 1"));
    }

    #[test]
    fn processes_that_nobody_should_kill_are_not_killed() {
        for pid in [-1, 0, 1] {
            let status = Status {
                id: 0,
                pid,
                role: "primary".to_string(),
                view: 1,
                op_number: 0,
                commit_number: 0,
                durability: String::new(),
                forgetful: false,
                multicast: None,
            };
            assert!(signal(&status, Signal::KILL).is_err());
        }
    }

    #[test]
    fn a_group_that_is_not_there_is_reported() {
        let group = Group::local(1, 3);
        let error = group.wait_until_whole(Duration::ZERO).unwrap_err().to_string();
        assert!(error.contains("replica 2: no replica listens on 127.0.0.1:3"), "{error}");
    }
}
