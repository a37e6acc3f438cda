//! One seed from beginning to end: chaos, then healing, then everything must work again; and many
//! seeds on several threads.

use std::cell::RefCell;
use std::panic::{self, AssertUnwindSafe};
use std::sync::Once;
use std::sync::atomic::{AtomicU64, Ordering};

use smr::Role;

use crate::bug::Bug;
use crate::ledger::Checked;
use crate::marks::Marks;
use crate::options::{Options, Overrides};
use crate::subject::Subject;
use crate::world::{Event, Trace, World};

/// How long a healed group may take to be of one mind and answer everything, in microseconds.
const SETTLE: u64 = 20_000_000;

/// How a seed ended.
#[derive(Debug)]
pub struct Outcome {
    /// Which seed.
    pub seed: u64,
    /// What a checker found.
    pub violation: Option<String>,
    /// The branches that were reached.
    pub marks: Marks,
    /// How many events happened.
    pub events: u64,
    /// How many operations the clients called.
    pub operations: u64,
    /// The story, if it was to be kept.
    pub trace: Vec<String>,
}

thread_local! {
    static PANIC: RefCell<Option<String>> = const { RefCell::new(None) };
    static QUIET: RefCell<bool> = const { RefCell::new(false) };
}

/// Panics in a run are findings: they are kept for the outcome instead of being printed.
fn keep_panics() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let before = panic::take_hook();
        panic::set_hook(Box::new(move |info| {
            if QUIET.with_borrow(|quiet| *quiet) {
                PANIC.set(Some(info.to_string().replace('\n', " ")));
            } else {
                before(info);
            }
        }));
    });
}

/// Runs one seed of the protocol `P`.
pub fn run_seed<P: Subject>(seed: u64, overrides: Overrides, trace: Trace) -> Outcome {
    keep_panics();
    let options = Options::new(seed, overrides);
    let mut world = World::<P>::new(options, trace);
    world.describe();
    QUIET.set(true);
    // The world is only looked at after a panic, for what it has counted.
    let result = panic::catch_unwind(AssertUnwindSafe(|| world.live()));
    QUIET.set(false);
    let violation = match result {
        Ok(Ok(())) => None,
        Ok(Err(violation)) => Some(violation),
        Err(_) => Some(PANIC.take().unwrap_or_else(|| "panic".into())),
    };
    if let Some(violation) = &violation {
        world.note(|| format!("VIOLATION {violation}"));
    }
    Outcome {
        seed,
        violation,
        marks: world.marks,
        events: world.events,
        operations: world.history.len() as u64,
        trace: if let Trace::Keep(lines) = world.trace { lines } else { Vec::new() },
    }
}

impl<P: Subject> World<P> {
    fn describe(&mut self) {
        if self.traced() {
            let options = format!("{:?}", self.options);
            self.note(|| options);
        }
    }

    fn live(&mut self) -> Checked<()> {
        self.create_gateways();
        for id in 0..self.nodes.len() {
            self.start(id)?;
        }
        self.begin_faults();
        self.run(self.options.chaos)?;
        self.heal()?;
        self.ask_again();
        if self.gone {
            self.expect_state_lost()?;
        } else if self.wiped {
            self.run(500_000)?;
        } else {
            self.expect_progress()?;
        }
        self.check_history()
    }

    /// A few more operations for every gateway, to show that the healed group serves.
    fn ask_again(&mut self) {
        self.options.workload.think = 1_000;
        for index in 0..self.gateways.len() {
            let gateway = &mut self.gateways[index];
            gateway.left = gateway.left.min(20) + 3;
            let life = gateway.life;
            self.queue.after(1, Event::GatewayIssue { gateway: index, life });
        }
    }

    fn expect_state_lost(&mut self) -> Checked<()> {
        let until = self.queue.now() + SETTLE;
        while self.queue.now() < until {
            self.run(20_000)?;
            if self.nodes.iter().all(|node| node.role() == Some(Role::StateLost)) {
                return Ok(());
            }
        }
        Err(format!("liveness: nobody has the state, and not all say so: {}", self.roles()))
    }

    fn expect_progress(&mut self) -> Checked<()> {
        let until = self.queue.now() + SETTLE;
        while self.queue.now() < until {
            self.run(10_000)?;
            if self.clients_are_done() && self.is_settled() {
                return Ok(());
            }
        }
        Err(format!("liveness: the healed group does not settle: {}", self.roles()))
    }

    /// Whether every replica has the same state, all of it committed, under one primary.
    pub(crate) fn is_settled(&self) -> bool {
        let last = self.ledger.last();
        let alike = self.nodes.iter().all(|node| {
            let Some(host) = &node.host else { return false };
            let executor = host.executor();
            let report = smr::Protocol::report(host.protocol());
            let calm = !report.forgetful && report.durable.op == last.op;
            executor.executed() == last
                && executor.committed() == last.op
                && executor.machine().digest() == self.ledger.digest()
                && (calm || !self.lazy())
        });
        let count = |role| self.nodes.iter().filter(|node| node.role() == Some(role)).count();
        alike && count(Role::Primary) == 1 && count(Role::Backup) == self.nodes.len() - 1
    }

    fn roles(&self) -> String {
        let one = |node: &crate::node::Node<P>| match &node.witness.report {
            Some(report) => format!(
                "r{} {} view {} op {} commit {}",
                node.id,
                report.role.name(),
                report.view.0,
                report.op.op.0,
                report.commit.0
            ),
            None => format!("r{} down", node.id),
        };
        let nodes: Vec<String> = self.nodes.iter().map(one).collect();
        let waiting: usize = self.gateways.iter().map(|gateway| gateway.under_way.len()).sum();
        format!("{}; {waiting} operations wait", nodes.join(", "))
    }
}

/// What many seeds gave.
#[derive(Debug, Default)]
pub struct Summary {
    /// How many seeds ran.
    pub seeds: u64,
    /// The seeds that failed, in order, with what was found.
    pub failures: Vec<(u64, String)>,
    /// The branches that were reached in all of them.
    pub marks: Marks,
    /// How many events happened.
    pub events: u64,
    /// How many operations the clients called.
    pub operations: u64,
}

impl Summary {
    fn add(&mut self, outcome: Outcome) {
        self.seeds += 1;
        self.marks.add(&outcome.marks);
        self.events += outcome.events;
        self.operations += outcome.operations;
        if let Some(violation) = outcome.violation {
            self.failures.push((outcome.seed, violation));
        }
    }

    fn merge(&mut self, other: Summary) {
        self.seeds += other.seeds;
        self.marks.add(&other.marks);
        self.events += other.events;
        self.operations += other.operations;
        self.failures.extend(other.failures);
    }
}

/// Runs `count` seeds from `first` on, on `threads` threads; stops early after `most` failures.
pub fn run_many<P: Subject>(
    first: u64,
    count: u64,
    threads: usize,
    overrides: Overrides,
    most: u64,
) -> Summary {
    let next = AtomicU64::new(first);
    let failed = AtomicU64::new(0);
    let worker = || {
        let mut summary = Summary::default();
        loop {
            // Relaxed: the counters hand out work and publish nothing.
            let seed = next.fetch_add(1, Ordering::Relaxed);
            if seed >= first + count || failed.load(Ordering::Relaxed) >= most {
                return summary;
            }
            let outcome = run_seed::<P>(seed, overrides, Trace::Off);
            failed.fetch_add(u64::from(outcome.violation.is_some()), Ordering::Relaxed);
            summary.add(outcome);
        }
    };
    let mut summary = Summary::default();
    std::thread::scope(|scope| {
        let workers: Vec<_> = (0..threads.max(1)).map(|_| scope.spawn(worker)).collect();
        for worker in workers {
            summary.merge(worker.join().expect("a run's panics are caught"));
        }
    });
    summary.failures.sort();
    summary
}

/// The first seed that catches a planted defect, among `most`.
pub fn find<P: Subject>(bug: Bug, most: u64) -> Option<u64> {
    let overrides = Overrides { bug: Some(bug), ..Overrides::default() };
    let seed = |seed: &u64| run_seed::<P>(*seed, overrides, Trace::Off).violation.is_some();
    (1..=most).find(seed)
}
