//! A load that tells what a crash of the group has taken from its clients (durability `lazy`).
//!
//! Each client appends numbers to a list of its own, one at a time, and asks for the viewstamp of
//! every append. Some ask for durable answers. In the end the lists tell which appends are there:
//! what is missing must be a suffix of each view, nothing that was reported durable, and no
//! connection may have gone on behind an append of its own that is missing.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use resp::Value;
use serde::Serialize;

use crate::client::Client;
use crate::watch::Watch;

/// One client in so many asks for durability `sync`, if nobody wants it otherwise.
pub const SYNC_EVERY: usize = 5;

/// How long a client waits for an answer before it calls the outcome unknown: longer than a replica
/// is stopped, whose clients are to hear what it has to say then.
const PATIENCE: Duration = Duration::from_secs(30);
/// How long a client waits when a replica refuses its connection or answers with an error.
const PAUSE: Duration = Duration::from_millis(2);
/// How long the last reads may take.
const READ_PATIENCE: Duration = Duration::from_secs(60);
/// What is acknowledged is durable after this long at the latest, however slow the disk and busy
/// the machine: far more than the pause of the log, far less than for ever.
const LATEST: u64 = 5_000_000_000;
/// Of so many lost appends some were seen by connections that outlived the crash, where there are
/// any.
const MANY: u64 = 20;
/// At most so many violations are told.
const MOST_TOLD: usize = 10;

/// What the load consists of.
#[derive(Clone, Debug)]
pub struct LossOptions {
    /// Where the replicas serve.
    pub addresses: Vec<SocketAddr>,
    /// How many clients.
    pub clients: usize,
    /// Appends per second, of all clients together, at most.
    pub rate: f64,
    /// One client in so many asks for durability `sync`.
    pub sync_every: usize,
}

/// An append that was acknowledged.
#[derive(Clone, Copy, Debug)]
struct Append {
    number: u64,
    connection: u64,
    view: u64,
    op: u64,
    /// It was reported to be durable.
    durable: bool,
    /// When it was asked for.
    invoked: u64,
    /// When its acknowledgement came.
    completed: u64,
}

#[derive(Debug, Default)]
struct Recording {
    appends: Vec<Append>,
    unknown: u64,
    failures: BTreeMap<String, u64>,
}

struct Shared {
    options: LossOptions,
    prefix: String,
    origin: Instant,
    stop: AtomicBool,
    watch: Watch,
    acknowledged: AtomicU64,
}

impl Shared {
    fn now(&self) -> u64 {
        self.origin.elapsed().as_nanos() as u64 + 1
    }

    fn key(&self, client: usize) -> String {
        format!("{}:{client}", self.prefix)
    }
}

/// A crash of the group. Times are those of [`Shared::now`].
#[derive(Clone, Copy, Debug)]
struct Crash {
    at: u64,
    /// When the group was whole again; what is asked for from then on is not this crash's to take.
    resumed: Option<u64>,
}

/// What one crash took.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Taken {
    /// Acknowledged appends that are missing.
    pub operations: u64,
    /// Milliseconds from the acknowledgement of the first of them to the crash.
    pub ms: f64,
}

/// What came of a run.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Losses {
    /// What each crash took.
    pub crashes: Vec<Taken>,
    /// Appends that were acknowledged.
    pub acknowledged: u64,
    /// Of these, by connections that ask for durable answers.
    pub acknowledged_durable: u64,
    /// Appends whose outcome the client could not know.
    pub unknown: u64,
    /// Clients that were told of a loss with WRONGVIEW.
    pub told: u64,
    /// What clients met when an outcome was unknown.
    pub failures: BTreeMap<String, u64>,
    /// Promises that were broken.
    pub violations: Vec<String>,
}

impl Losses {
    /// Some connections have outlived the crashes: of those that lost something, some must have
    /// been told so.
    pub fn require_told(&mut self) {
        if self.told == 0 && self.operations() >= MANY {
            let text = "nobody was told of a loss: the run proves nothing";
            self.violations.push(text.to_owned());
        }
    }

    /// Acknowledged appends that are missing.
    pub fn operations(&self) -> u64 {
        self.crashes.iter().map(|taken| taken.operations).sum()
    }
}

/// A load that is running.
pub struct LossLoad {
    shared: Arc<Shared>,
    clients: Vec<JoinHandle<Recording>>,
    crashes: Vec<Crash>,
}

impl LossLoad {
    /// Starts the clients.
    pub fn start(options: LossOptions) -> Self {
        let since_1970 = std::time::SystemTime::UNIX_EPOCH.elapsed().unwrap_or_default();
        let shared = Arc::new(Shared {
            options,
            prefix: format!("loss:{:x}:{:x}", std::process::id(), since_1970.as_nanos()),
            origin: Instant::now(),
            stop: AtomicBool::new(false),
            watch: Watch::new(),
            acknowledged: AtomicU64::new(0),
        });
        let clients = (0..shared.options.clients).map(|number| {
            let shared = Arc::clone(&shared);
            std::thread::spawn(move || run(&shared, number))
        });
        let clients = clients.collect();
        Self { shared, clients, crashes: Vec::new() }
    }

    /// The group crashes now.
    pub fn crash(&mut self) {
        self.crashes.push(Crash { at: self.shared.now(), resumed: None });
    }

    /// The group is whole again.
    pub fn resume(&mut self) {
        let now = self.shared.now();
        for crash in self.crashes.iter_mut().filter(|crash| crash.resumed.is_none()) {
            crash.resumed = Some(now);
        }
    }

    /// Starts watching for the first acknowledged write from now on.
    pub fn watch(&self) -> Instant {
        let now = self.shared.now();
        self.shared.watch.begin(now, None);
        self.shared.origin + Duration::from_nanos(now)
    }

    /// How long it took from [`LossLoad::watch`] to that write; waits for it.
    ///
    /// # Errors
    /// If there is none in time.
    pub fn gap(&self, patience: Duration) -> Result<Duration> {
        self.shared.watch.gap(patience)
    }

    /// How many appends have been acknowledged so far.
    pub fn acknowledged(&self) -> u64 {
        self.shared.acknowledged.load(Ordering::Relaxed)
    }

    /// Stops the clients, reads all lists and judges.
    ///
    /// # Errors
    /// If the lists cannot be read.
    pub fn finish(self) -> Result<Losses> {
        self.shared.stop.store(true, Ordering::Relaxed);
        let mut losses = Losses::default();
        losses.crashes.resize(self.crashes.len(), Taken::default());
        let mut all = Vec::new();
        for (client, thread) in self.clients.into_iter().enumerate() {
            let recording = thread.join().expect("a client does not panic");
            losses.unknown += recording.unknown;
            for (failure, count) in recording.failures {
                *losses.failures.entry(failure).or_insert(0) += count;
            }
            all.push((client, recording.appends));
        }
        losses.told = losses.failures.get("WRONGVIEW").copied().unwrap_or(0);
        let lists = read_lists(&self.shared)?;
        let sync_every = self.shared.options.sync_every;
        let mut judge = Judge { losses, cuts: BTreeMap::new(), crashes: &self.crashes };
        for ((client, appends), list) in all.into_iter().zip(lists) {
            judge.client(client, client.is_multiple_of(sync_every), &appends, &list);
        }
        judge.check_suffixes();
        judge.check_proof();
        judge.losses.violations.truncate(MOST_TOLD);
        Ok(judge.losses)
    }
}

/// Of a view: the last kept operation and the first lost one.
type Cut = (Option<u64>, Option<u64>);

struct Judge<'a> {
    losses: Losses,
    cuts: BTreeMap<u64, Cut>,
    crashes: &'a [Crash],
}

impl Judge<'_> {
    fn client(&mut self, client: usize, sync: bool, appends: &[Append], list: &[u64]) {
        let kept: BTreeSet<u64> = list.iter().copied().collect();
        let known: BTreeSet<u64> = appends.iter().map(|append| append.number).collect();
        // One whose outcome is unknown may be executed late.
        let ordered = list.iter().filter(|number| known.contains(number)).is_sorted();
        if kept.len() < list.len() || !ordered {
            self.broken(format!("client {client}: an append was executed twice or out of order"));
        }
        let mut lost_on = None;
        for append in appends {
            self.losses.acknowledged += 1;
            self.losses.acknowledged_durable += u64::from(sync);
            let cut = self.cuts.entry(append.view).or_default();
            if kept.contains(&append.number) {
                cut.0 = cut.0.max(Some(append.op));
                if lost_on == Some(append.connection) {
                    self.broken(format!("client {client} was not told of its loss: {append:?}"));
                }
                continue;
            }
            lost_on = Some(append.connection);
            cut.1 = Some(cut.1.map_or(append.op, |first| first.min(append.op)));
            if sync || append.durable {
                self.broken(format!("client {client}: durable, and lost: {append:?}"));
            }
            self.attribute(append);
        }
    }

    /// Finds the crash that took a lost append.
    fn attribute(&mut self, append: &Append) {
        let next = self.crashes.iter().position(|crash| crash.at >= append.completed);
        let before = next.unwrap_or(self.crashes.len()).checked_sub(1);
        let index = match (next, before) {
            // Its acknowledgement was on its way when the crash came: a later process knows nothing
            // of the request.
            (_, Some(before)) if append.invoked < self.crashes[before].at => before,
            (Some(next), _) => next,
            // A replica woke.
            (None, Some(before))
                if self.crashes[before].resumed.is_none_or(|at| append.invoked < at) =>
            {
                before
            }
            _ => return self.broken(format!("lost without a crash: {append:?}")),
        };
        let early = self.crashes[index].at.saturating_sub(append.completed);
        let taken = &mut self.losses.crashes[index];
        taken.operations += 1;
        taken.ms = taken.ms.max(early as f64 / 1e6);
        if early > LATEST {
            let seconds = LATEST / 1_000_000_000;
            self.broken(format!("acknowledged {seconds} s before the crash, and lost: {append:?}"));
        }
    }

    /// Promises that nobody was given have not been tested.
    fn check_proof(&mut self) {
        if self.losses.acknowledged_durable == 0 {
            self.broken("no durable append was acknowledged: the run proves nothing".to_owned());
        }
    }

    fn check_suffixes(&mut self) {
        for (view, cut) in std::mem::take(&mut self.cuts) {
            if let (Some(kept), Some(lost)) = cut
                && kept >= lost
            {
                let text = format!("in view {view} operation {lost} is lost and {kept} is kept");
                self.broken(text);
            }
        }
    }

    fn broken(&mut self, text: String) {
        self.losses.violations.push(text);
    }
}

/// One client.
fn run(shared: &Shared, number: usize) -> Recording {
    let options = &shared.options;
    let interval = Duration::from_secs_f64(options.clients as f64 / options.rate);
    let mut recording = Recording::default();
    let mut connection: Option<Client> = None;
    let (mut connections, mut next) = (0, 0);
    let mut due = Instant::now();
    while !shared.stop.load(Ordering::Relaxed) {
        // Always the same replica: another may be stopped and take connections all the same.
        let address = options.addresses[number % options.addresses.len()];
        let sync = number.is_multiple_of(options.sync_every);
        let done = match &mut connection {
            None => {
                connections += 1;
                connect(address, sync).map(|client| connection = Some(client))
            }
            Some(client) => {
                next += 1;
                append(shared, client, number, next).map(|mut append| {
                    append.connection = connections;
                    recording.appends.push(append);
                })
            }
        };
        if let Err(failure) = done {
            recording.unknown += u64::from(connection.is_some());
            *recording.failures.entry(failure).or_insert(0) += 1;
            connection = None;
            std::thread::sleep(PAUSE);
        }
        due = (due + interval).max(Instant::now());
        std::thread::sleep(due - Instant::now().min(due));
    }
    recording
}

fn connect(address: SocketAddr, sync: bool) -> Result<Client, String> {
    let kind = |error: std::io::Error| format!("connect: {}", error.kind());
    let mut client = Client::connect(address, PATIENCE).map_err(kind)?;
    if sync {
        let reply = client.request(&[b"LOCKSTEP.DURABILITY", b"sync"]).map_err(kind)?;
        if reply != Value::Simple(b"OK".to_vec()) {
            return Err(format!("durability sync is refused: {reply:?}"));
        }
    }
    Ok(client)
}

/// Appends a number; the answer and its viewstamp come together.
fn append(
    shared: &Shared,
    client: &mut Client,
    number: usize,
    next: u64,
) -> Result<Append, String> {
    let (key, value) = (shared.key(number), next.to_string());
    let invoked = shared.now();
    let replies = client
        .request_some(&[&[b"RPUSH", key.as_bytes(), value.as_bytes()], &[b"LOCKSTEP.VIEWSTAMP"]])
        .map_err(|error| format!("connection: {}", error.kind()))?;
    let completed = shared.now();
    match &replies[..] {
        [Value::Integer(_), Value::Array(fields)] => {
            shared.acknowledged.fetch_add(1, Ordering::Relaxed);
            let replica = number % shared.options.addresses.len();
            shared.watch.acknowledged(invoked, completed, replica);
            let field = |index| match fields.get(index) {
                Some(Value::Integer(number)) => Ok(*number as u64),
                other => Err(format!("no viewstamp: {other:?}")),
            };
            let (view, op, durable) = (field(1)?, field(3)?, field(5)? == 1);
            Ok(Append { number: next, connection: 0, view, op, durable, invoked, completed })
        }
        [Value::Error(text), ..] | [_, Value::Error(text)] => {
            let text = String::from_utf8_lossy(text);
            Err(text.split_whitespace().next().unwrap_or("empty error").to_string())
        }
        other => Err(format!("replies of the wrong type: {other:?}")),
    }
}

/// What each client's list holds.
fn read_lists(shared: &Shared) -> Result<Vec<Vec<u64>>> {
    let deadline = Instant::now() + READ_PATIENCE;
    (0..shared.options.clients)
        .map(|number| {
            loop {
                let address = shared.options.addresses[0];
                match read_list(address, &shared.key(number)) {
                    Ok(list) => return Ok(list),
                    Err(error) if Instant::now() > deadline => return Err(error),
                    Err(_) => std::thread::sleep(PAUSE),
                }
            }
        })
        .collect()
}

fn read_list(address: SocketAddr, key: &str) -> Result<Vec<u64>> {
    let mut client = Client::connect(address, PATIENCE)?;
    let reply = client.request(&[b"LRANGE", key.as_bytes(), b"0", b"-1"])?;
    let Value::Array(items) = reply else { bail!("the list cannot be read: {reply:?}") };
    let number = |item: &Value| {
        let text = item.as_bytes().context("a number")?;
        Ok(String::from_utf8_lossy(text).parse()?)
    };
    items.iter().map(number).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn append(number: u64, connection: u64, op: u64) -> Append {
        let completed = number * 1_000_000;
        let invoked = completed - 1;
        Append { number, connection, view: 1, op, durable: false, invoked, completed }
    }

    fn judged(sync: bool, appends: &[Append], list: &[u64]) -> Losses {
        judged_by(&[Crash { at: 4_000_000, resumed: Some(8_000_000) }], sync, appends, list)
    }

    fn judged_by(crashes: &[Crash], sync: bool, appends: &[Append], list: &[u64]) -> Losses {
        let losses = Losses { crashes: vec![Taken::default(); crashes.len()], ..Losses::default() };
        let mut judge = Judge { losses, cuts: BTreeMap::new(), crashes };
        judge.client(1, sync, appends, list);
        judge.check_suffixes();
        judge.losses
    }

    #[test]
    fn a_loss_that_no_crash_explains_is_noticed() {
        let explained = |crashes: &[Crash], lost: Append| {
            let losses = judged_by(crashes, false, &[lost], &[]);
            assert!(losses.violations.len() <= 1, "{:?}", losses.violations);
            losses.violations.is_empty()
        };
        let crash = |at, resumed: u64| Crash { at, resumed: (resumed > 0).then_some(resumed) };
        assert!(!explained(&[], append(3, 1, 5)));
        assert!(explained(&[crash(4_000_000, 8_000_000)], append(3, 1, 5)));
        // On its way when the crash came; asked for when all was well again.
        assert!(explained(&[crash(4_000_000, 8_000_000)], append(7, 1, 5)));
        assert!(!explained(&[crash(4_000_000, 8_000_000)], append(9, 1, 5)));
        assert!(explained(&[crash(4_000_000, 0)], append(9, 1, 5)));
        let next = |at| [crash(4_000_000, 8_000_000), crash(at, 0)];
        assert!(explained(&next(10_000_000), append(9, 1, 5)));
        assert!(!explained(&next(LATEST + 10_000_000), append(9, 1, 5)), "it was durable by then");
    }

    #[test]
    fn an_acknowledgement_under_way_is_of_the_crash_that_it_outlived() {
        let crash = |at| Crash { at, resumed: Some(at + 1_000_000) };
        let crashes = [crash(2_999_999), crash(100_000_000)];
        let under_way = Append { invoked: 2_000_000, ..append(3, 1, 5) };
        let losses = judged_by(&crashes, false, &[under_way, append(4, 2, 6)], &[]);
        let early = Taken { operations: 1, ms: 0.0 };
        assert_eq!(losses.crashes, [early, Taken { operations: 1, ms: 96.0 }]);
        assert!(losses.violations.is_empty(), "{:?}", losses.violations);
    }

    #[test]
    fn a_run_that_gave_no_promise_proves_nothing() {
        let mut judge = Judge { losses: Losses::default(), cuts: BTreeMap::new(), crashes: &[] };
        judge.check_proof();
        assert_eq!(judge.losses.violations.len(), 1);
        let taken = Taken { operations: MANY, ms: 1.0 };
        for (told, violations) in [(0, 1), (1, 0)] {
            let mut losses = Losses { crashes: vec![taken], told, ..Losses::default() };
            losses.require_told();
            assert_eq!(losses.violations.len(), violations);
        }
    }

    #[test]
    fn a_lost_suffix_is_counted_and_not_a_violation() {
        let appends = [append(1, 1, 5), append(2, 1, 6), append(3, 1, 7)];
        let losses = judged(false, &appends, &[1]);
        assert_eq!(losses.crashes, [Taken { operations: 2, ms: 2.0 }]);
        assert!(losses.violations.is_empty(), "{:?}", losses.violations);
    }

    #[test]
    fn broken_promises_are_noticed() {
        let appends = [append(1, 1, 5), append(2, 1, 6), append(3, 2, 7)];
        let hole = judged(false, &appends, &[1, 3]).violations;
        assert!(hole[0].contains("operation 6 is lost and 7 is kept"), "{hole:?}");
        let untold = judged(false, &[append(1, 1, 5), append(2, 1, 6)], &[2]).violations;
        assert!(untold[0].contains("was not told"), "{untold:?}");
        assert!(judged(true, &appends, &[1]).violations[0].contains("durable, and lost"));
        let durable = Append { durable: true, ..appends[1] };
        assert!(judged(false, &[appends[0], durable], &[1]).violations[0].contains("durable"));
        assert!(judged(false, &appends, &[1, 1, 2, 3]).violations[0].contains("twice"));
        assert!(judged(false, &appends, &[2, 1, 3]).violations[0].contains("out of order"));
        assert!(judged(false, &appends, &[1, 2, 3, 0]).violations.is_empty(), "0 came late");
    }
}
