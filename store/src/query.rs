//! A query thread's part: it owns connections and executes their commands on the shared trees
//! ([Mao] 3.2). Which thread runs it at the moment is `shift`'s affair.

use std::collections::VecDeque;
use std::net::{SocketAddr, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use bytes::Bytes;
use kv::Store;
use node::{ALONE, Asked, ConnectionId, Face, Front, Order, Waker};
use smr::{Durability, OpNumber, Viewstamp};

use crate::Error;
use crate::log::{Logs, Sleeper};

/// Nothing sleeps longer than this, in microseconds.
pub(crate) const LONGEST_SLEEP: u64 = 50_000;
/// How often keys are removed whose time has come, in microseconds, and how many at a time.
const SWEEP_PERIOD: u64 = 100_000;
const SWEEP: usize = 1000;

/// What reaches a query thread from others.
#[derive(Debug, Default)]
pub(crate) struct Inbox {
    pub streams: Mutex<Vec<(TcpStream, SocketAddr, usize)>>,
    pub kills: Mutex<Vec<ConnectionId>>,
    /// There is something. Released with what it is about, acquired by the thread.
    pub any: AtomicBool,
    /// Connections, those on their way included. Changed with the lock of `streams`, so that none
    /// is forgotten; read without it, to share them out by: relaxed.
    pub connections: AtomicUsize,
    /// Once the thread runs.
    pub waker: Mutex<Option<Waker>>,
}

impl Inbox {
    /// Hands over what is there. Returns whether there was anything.
    pub fn empty_into<F: Face>(&self, front: &mut Front<F>) -> bool {
        if !self.any.swap(false, Ordering::Acquire) {
            return false;
        }
        let streams = std::mem::take(&mut *self.streams.lock().expect("nobody panics with it"));
        for (stream, from, entrance) in streams {
            front.admit(stream, from, entrance);
        }
        let kills = std::mem::take(&mut *self.kills.lock().expect("nobody panics with it"));
        kills.into_iter().for_each(|id| front.kill(id));
        true
    }

    /// The thread looks into it soon.
    pub fn ring(&self) {
        self.any.store(true, Ordering::Release);
        if let Some(waker) = &*self.waker.lock().expect("nobody panics with it") {
            waker.wake();
        }
    }
}

/// What the threads have in common.
pub(crate) struct Common<'a> {
    pub logs: &'a Logs,
    pub inboxes: &'a [Inbox],
    pub durability: Durability,
    /// The server is to end.
    pub stop: &'a AtomicBool,
}

/// An answer that waits for the disk.
struct Held {
    asked: Asked,
    position: u64,
    body: Bytes,
}

/// The connections of one query thread, and its log.
pub(crate) struct Query<'a, F: Face<Service = Store>> {
    common: &'a Common<'a>,
    thread: usize,
    front: Front<F>,
    /// When the last turn was, in microseconds.
    turned_at: u64,
    /// How many connections the inbox was told of; more than there can be if it was not.
    connections: usize,
    /// Batches that are to be executed.
    asked: Vec<Asked>,
    held: VecDeque<Held>,
    waits: Arc<AtomicBool>,
    swept_at: u64,
    /// How long answers have been.
    expected: usize,
}

impl<'a, F: Face<Service = Store>> Query<'a, F> {
    pub fn open(common: &'a Common<'a>, thread: usize, mut front: Front<F>) -> Query<'a, F> {
        front.status.loading = false;
        let waits = Arc::new(AtomicBool::new(false));
        let sleeper = Sleeper { waker: front.waker(), waits: waits.clone() };
        common.logs.sleepers.lock().expect("nobody panics with it").push(sleeper);
        Query {
            common,
            thread,
            front,
            turned_at: 0,
            connections: usize::MAX,
            asked: Vec::new(),
            held: VecDeque::new(),
            waits,
            swept_at: 0,
            expected: 4096,
        }
    }

    /// Whether nothing is under way and nothing is to be sent.
    pub fn is_idle(&self) -> bool {
        self.held.is_empty() && self.front.is_idle()
    }

    /// For how many microseconds after the last turn nothing is due but the usual.
    pub fn pause(&self) -> u64 {
        self.front.pause()
    }

    /// Does on `store` what there is to do, if there is anything or if it is `due`; without a wait.
    /// Returns whether there was.
    pub fn turn(&mut self, store: &mut Store, due: bool) -> Result<bool, Error> {
        let came = self.front.wait(0, store);
        let came = came.map_err(|e| Error::os("wait for", "sockets", e))?;
        let now = self.front.now().micros;
        if !came && !due && now < self.turned_at + LONGEST_SLEEP {
            return Ok(false);
        }
        self.turned_at = now;
        self.look_into_inbox();
        store.follow();
        self.release();
        loop {
            self.front.take(store, &mut self.asked);
            if self.asked.is_empty() {
                break;
            }
            let mut asked = std::mem::take(&mut self.asked);
            asked.drain(..).for_each(|asked| self.execute(store, asked));
            self.asked = asked;
        }
        if let Some(last) = self.held.back() {
            self.common.logs.force(last.position);
        }
        self.release();
        self.sweep(store);
        self.report();
        for order in self.front.flush() {
            obey(order, self.common.inboxes, self.common.stop);
        }
        Ok(came)
    }

    fn look_into_inbox(&mut self) {
        if self.common.inboxes[self.thread].empty_into(&mut self.front) {
            // Of those that came some may be gone already: the inbox is told how many there are.
            self.connections = usize::MAX;
        }
    }

    fn execute(&mut self, store: &mut Store, asked: Asked) {
        let (logs, thread) = (self.common.logs, self.thread);
        let mut reply = Vec::with_capacity(self.expected);
        if !asked.read {
            logs.wait_for_room(thread);
        }
        let durable = self.common.durability != Durability::Memory;
        store.serve(self.front.now().unix_ms, &asked.body, &mut reply, &mut |shared, record| {
            if durable {
                logs.open(thread).push(shared, record);
            }
        });
        self.expected = reply.len().max(self.expected - self.expected / 16).max(256);
        // Everything that the answer tells of has a timestamp up to this one.
        let position = logs.shared.clock();
        let body = Bytes::from(reply);
        let barrier = asked.body.is_empty();
        if barrier || self.common.durability == Durability::Sync {
            self.held.push_back(Held { asked, position, body });
        } else {
            self.front.answer(&asked, position, body);
        }
    }

    /// Gives out what has waited for the disk, and says whether anything still does.
    fn release(&mut self) {
        let logs = self.common.logs;
        // SeqCst: before it looks at the marks (see `Logs::stored`).
        self.waits.store(!self.held.is_empty(), Ordering::SeqCst);
        let durable = logs.durable();
        self.front.durable(durable);
        while self.held.front().is_some_and(|held| held.position <= durable) {
            let Held { asked, position, body } = self.held.pop_front().expect("just seen");
            self.front.answer(&asked, position, body);
        }
    }

    /// The first thread removes what no command asks for.
    fn sweep(&mut self, store: &mut Store) {
        let now = self.front.now();
        if self.thread > 0 || now.micros < self.swept_at + SWEEP_PERIOD {
            return;
        }
        let (logs, thread) = (self.common.logs, self.thread);
        let durable = self.common.durability != Durability::Memory;
        let swept = store.serve_sweep(now.unix_ms, SWEEP, &mut |shared, record| {
            if durable {
                logs.open(thread).push(shared, record);
            }
        });
        // As many again at once, if there may be more.
        self.swept_at = if swept < SWEEP { now.micros } else { 0 };
    }

    fn report(&mut self) {
        let logs = self.common.logs;
        let (clock, durable) = (logs.shared.clock(), logs.durable());
        let (batches, syncs) = logs.forced(self.thread);
        self.front.logged(batches, syncs);
        let at = |op| Viewstamp::new(ALONE, OpNumber(op));
        let status = &mut self.front.status;
        status.report.op = at(clock);
        status.report.commit = OpNumber(clock);
        status.report.disk = at(durable);
        status.report.durable = at(durable);
        // A figure: relaxed.
        status.disk_full = logs.full.load(Ordering::Relaxed) > 0;
        let inbox = &self.common.inboxes[self.thread];
        let connections = self.front.connections();
        if connections != self.connections {
            // With the lock: see `Inbox::connections`.
            let coming = inbox.streams.lock().expect("nobody panics with it");
            inbox.connections.store(connections + coming.len(), Ordering::Relaxed);
            self.connections = connections;
        }
    }
}

/// Does what a face has ordered and its own thread has not done.
pub(crate) fn obey(order: Order, inboxes: &[Inbox], stop: &AtomicBool) {
    match order {
        // Another thread's.
        Order::Kill(id) => {
            // Ids go round the threads.
            let inbox = &inboxes[(id.0 % inboxes.len() as u64) as usize];
            inbox.kills.lock().expect("nobody panics with it").push(id);
            inbox.ring();
        }
        // Relaxed: the flag stands for itself.
        Order::Shutdown => stop.store(true, Ordering::Relaxed),
        // There is no group whose state could be lost, or whose members could change.
        Order::StartOver(_) | Order::Change(_) => {}
    }
}
