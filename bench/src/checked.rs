//! A load whose every answer is recorded, over all replicas of a group.
//!
//! Each client has one connection and one request on its way. Registers are set to values that
//! nobody sets again, and read; counters are incremented, and read. When a request fails in any
//! way, its outcome is unknown and the client goes on to the next replica: exactly what an
//! application would have to do.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use resp::Value;

use crate::client::Client;
use crate::history::{Action, History, Operation};
use crate::watch::Watch;

/// How long a client waits for an answer before it calls the outcome unknown.
const PATIENCE: Duration = Duration::from_secs(5);

/// How long a client waits when a replica refuses its connection or answers with an error.
const PAUSE: Duration = Duration::from_millis(2);

/// After this many operations a client moves on to the next replica, unforced, so that all of
/// them keep having clients.
const MOVE_AFTER: u64 = 2000;

/// How long the last reads may take, over all replicas.
const READ_PATIENCE: Duration = Duration::from_secs(60);

/// What the load consists of.
#[derive(Clone, Debug)]
pub struct CheckedOptions {
    /// Where the replicas serve.
    pub addresses: Vec<SocketAddr>,
    /// How many clients.
    pub clients: usize,
    /// Operations per second, of all clients together, at most.
    pub rate: f64,
    /// Keys that are set and read.
    pub registers: u32,
    /// Keys that are incremented and read.
    pub counters: u32,
    /// Where the random choices start.
    pub seed: u64,
}

impl CheckedOptions {
    /// As used by the chaos rounds: few keys, so that operations meet on them.
    pub fn new(addresses: Vec<SocketAddr>) -> Self {
        Self { addresses, clients: 12, rate: 4000.0, registers: 40, counters: 8, seed: 1 }
    }
}

struct Shared {
    options: CheckedOptions,
    prefix: String,
    origin: Instant,
    stop: AtomicBool,
    watch: Watch,
    /// Writes acknowledged so far.
    acknowledged: AtomicU64,
}

impl Shared {
    fn now(&self) -> u64 {
        // Zero is before everything, for the checker.
        self.origin.elapsed().as_nanos() as u64 + 1
    }

    fn key_name(&self, key: u32) -> String {
        if key < self.options.registers {
            format!("{}:r{key}", self.prefix)
        } else {
            format!("{}:c{}", self.prefix, key - self.options.registers)
        }
    }
}

/// A load that is running.
pub struct CheckedLoad {
    shared: Arc<Shared>,
    clients: Vec<JoinHandle<Recording>>,
}

/// Everything that a load recorded.
pub struct Recorded {
    /// What the clients did, the last reads included.
    pub history: History,
    /// Acknowledged writes that the last reads prove to be gone.
    pub lost_writes: u64,
    /// How often each kind of failure was met.
    pub failures: BTreeMap<String, u64>,
}

impl CheckedLoad {
    /// Starts the clients. Keys get a prefix that no other run has used.
    pub fn start(options: CheckedOptions) -> Self {
        let since_1970 = std::time::SystemTime::UNIX_EPOCH.elapsed().unwrap_or_default();
        let prefix = format!("chaos:{:x}:{:x}", std::process::id(), since_1970.as_nanos());
        let watch = Watch::new();
        let stop = AtomicBool::new(false);
        let (origin, acknowledged) = (Instant::now(), AtomicU64::new(0));
        let shared = Arc::new(Shared { options, prefix, origin, stop, watch, acknowledged });
        let clients = (0..shared.options.clients)
            .map(|number| {
                let shared = Arc::clone(&shared);
                std::thread::spawn(move || Session::new(&shared, number).run())
            })
            .collect();
        Self { shared, clients }
    }

    /// Starts watching for the first acknowledged write from now on, by a replica other than this.
    pub fn watch(&self, except: Option<usize>) -> Instant {
        let now = self.shared.now();
        self.shared.watch.begin(now, except);
        self.shared.origin + Duration::from_nanos(now)
    }

    /// How long it took from [`CheckedLoad::watch`] to that write; waits for it.
    pub fn gap(&self, patience: Duration) -> Result<Duration> {
        self.shared.watch.gap(patience)
    }

    /// How many writes have been acknowledged so far.
    pub fn acknowledged(&self) -> u64 {
        self.shared.acknowledged.load(Ordering::Relaxed)
    }

    /// Stops the clients, reads every key through every replica, and hands out the recording.
    pub fn finish(self) -> Result<Recorded> {
        self.shared.stop.store(true, Ordering::Relaxed);
        let mut history = History::default();
        let mut failures = BTreeMap::new();
        for client in self.clients {
            let recording = client.join().expect("a client does not panic");
            history.operations.extend(recording.operations);
            for (failure, count) in recording.failures {
                *failures.entry(failure).or_insert(0) += count;
            }
        }
        let reads = last_reads(&self.shared)?;
        let lost_writes = history.lost_writes(&reads);
        history.operations.extend(reads);
        Ok(Recorded { history, lost_writes, failures })
    }
}

/// Reads every key through every replica.
fn last_reads(shared: &Shared) -> Result<Vec<Operation>> {
    let deadline = Instant::now() + READ_PATIENCE;
    let keys = shared.options.registers + shared.options.counters;
    let mut reads = Vec::new();
    for replica in 0..shared.options.addresses.len() {
        let mut session = Session::new(shared, replica);
        session.client = u32::MAX - replica as u32;
        for key in 0..keys {
            while !session.perform(key, Action::Get(None)) {
                session.replica = replica;
                if Instant::now() > deadline {
                    let failures = session.recording.failures;
                    bail!("replica {replica} does not answer reads: {failures:?}");
                }
            }
        }
        reads.extend(session.recording.operations);
    }
    Ok(reads)
}

#[derive(Default)]
struct Recording {
    operations: Vec<Operation>,
    failures: BTreeMap<String, u64>,
}

struct Session<'a> {
    shared: &'a Shared,
    client: u32,
    replica: usize,
    connection: Option<Client>,
    rng: SmallRng,
    /// Counts the values written, so that each is unique.
    written: i64,
    recording: Recording,
}

impl<'a> Session<'a> {
    fn new(shared: &'a Shared, number: usize) -> Self {
        Self {
            shared,
            client: number as u32,
            replica: number % shared.options.addresses.len(),
            connection: None,
            rng: SmallRng::seed_from_u64(shared.options.seed.wrapping_add(number as u64)),
            written: 0,
            recording: Recording::default(),
        }
    }

    fn run(mut self) -> Recording {
        let options = &self.shared.options;
        let interval = Duration::from_secs_f64(options.clients as f64 / options.rate);
        let mut next = Instant::now();
        let mut since_move = 0;
        while !self.shared.stop.load(Ordering::Relaxed) {
            let (key, action) = self.choose();
            if self.perform(key, action) {
                since_move += 1;
            }
            if since_move == MOVE_AFTER {
                since_move = 0;
                self.move_on();
            }
            // After a pause the schedule starts anew: no burst to catch up.
            next = (next + interval).max(Instant::now());
            std::thread::sleep(next - Instant::now().min(next));
        }
        self.recording
    }

    fn choose(&mut self) -> (u32, Action) {
        let options = &self.shared.options;
        let key = match self.rng.random_ratio(1, 3) {
            true => options.registers + self.rng.random_range(0..options.counters),
            false => self.rng.random_range(0..options.registers),
        };
        let action = if self.rng.random_ratio(2, 5) {
            Action::Get(None)
        } else if key >= options.registers {
            Action::Increment(None)
        } else {
            self.written += 1;
            Action::Set((i64::from(self.client) << 40) + self.written)
        };
        (key, action)
    }

    fn move_on(&mut self) {
        self.connection = None;
        // Any other one: were it always the next, all would gather at one that stands still.
        let count = self.shared.options.addresses.len();
        let further = self.rng.random_range(1..count.max(2));
        self.replica = (self.replica + further) % count;
    }

    /// Performs an operation and records what came of it. Returns whether it was answered.
    fn perform(&mut self, key: u32, action: Action) -> bool {
        if self.connection.is_none() {
            let address = self.shared.options.addresses[self.replica];
            match Client::connect(address, PATIENCE) {
                Ok(connection) => self.connection = Some(connection),
                Err(error) => {
                    self.fail(format!("connect: {}", error.kind()));
                    return false;
                }
            }
        }
        let connection = self.connection.as_mut().expect("connected above");
        let name = self.shared.key_name(key);
        let invoked = self.shared.now();
        let reply = match action {
            Action::Set(value) => {
                connection.request(&[b"SET", name.as_bytes(), value.to_string().as_bytes()])
            }
            Action::Get(_) => connection.request(&[b"GET", name.as_bytes()]),
            Action::Increment(_) => connection.request(&[b"INCR", name.as_bytes()]),
        };
        let completed = self.shared.now();
        let mut operation =
            Operation { client: self.client, key, action, invoked, completed: None };
        let answered = match reply {
            Ok(reply) => answered(action, &reply),
            Err(error) => Err(format!("connection: {}", error.kind())),
        };
        match answered {
            Ok(action) => {
                operation.action = action;
                operation.completed = Some(completed);
                if operation.is_write() {
                    self.acknowledged(invoked, completed);
                }
                self.recording.operations.push(operation);
                true
            }
            Err(failure) => {
                self.recording.operations.push(operation);
                self.fail(failure);
                false
            }
        }
    }

    fn fail(&mut self, failure: String) {
        *self.recording.failures.entry(failure).or_insert(0) += 1;
        self.move_on();
        std::thread::sleep(PAUSE);
    }

    fn acknowledged(&self, invoked: u64, completed: u64) {
        self.shared.acknowledged.fetch_add(1, Ordering::Relaxed);
        self.shared.watch.acknowledged(invoked, completed, self.replica);
    }
}

/// The action with its answer, or why there is none.
fn answered(action: Action, reply: &Value) -> Result<Action, String> {
    if let Value::Error(text) = reply {
        let text = String::from_utf8_lossy(text);
        return Err(text.split_whitespace().next().unwrap_or("empty error").to_string());
    }
    match (action, reply) {
        (Action::Set(_), Value::Simple(_)) => Ok(action),
        (Action::Get(_), Value::Null) => Ok(Action::Get(None)),
        (Action::Get(_), Value::Bulk(text)) => match resp::parse_i64(text) {
            Some(value) => Ok(Action::Get(Some(value))),
            None => Err("a value that nobody wrote".to_string()),
        },
        (Action::Increment(_), Value::Integer(value)) => Ok(Action::Increment(Some(*value))),
        _ => Err("a reply of the wrong type".to_string()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::checker::{Verdict, check};
    use crate::fake::{Fake, Lie};

    fn record(lie: Lie) -> Recorded {
        let fake = Fake::start(3, lie);
        let mut options = CheckedOptions::new(fake.addresses);
        (options.registers, options.counters) = (6, 2);
        options.rate = 20_000.0;
        let load = CheckedLoad::start(options);
        std::thread::sleep(Duration::from_millis(400));
        load.watch(Some(0));
        assert!(load.gap(Duration::from_secs(5)).unwrap() < Duration::from_secs(5));
        load.finish().unwrap()
    }

    #[test]
    fn a_correct_server_passes() {
        let recorded = record(Lie::None);
        assert_eq!(check(&recorded.history), Verdict::Linearizable);
        assert_eq!(recorded.lost_writes, 0);
        assert!(recorded.history.acknowledged_writes() > 100);
        assert_eq!(recorded.history.unknown(), 0, "{:?}", recorded.failures);
    }

    #[test]
    fn a_flaky_server_passes_too() {
        let recorded = record(Lie::Flaky(17));
        assert_eq!(check(&recorded.history), Verdict::Linearizable);
        assert_eq!(recorded.lost_writes, 0);
        assert!(recorded.history.unknown() > 10);
        assert!(recorded.failures.contains_key("TIMEOUT"), "{:?}", recorded.failures);
    }

    #[test]
    fn lies_are_noticed() {
        for lie in [Lie::LostWrite(50), Lie::StaleRead(50), Lie::DoubleIncrement(50)] {
            let recorded = record(lie);
            let verdict = check(&recorded.history);
            assert!(matches!(verdict, Verdict::Violated(_)), "{lie:?} passed: {verdict:?}");
        }
    }
}
