//! One key space under several threads, without a log that orders them ([Mao] 3.2): each thread has
//! a [`Store`] of its own on the same trees, and the commands are the same.
//!
//! A command holds the locks of its keys' stripes, in ascending order, so that what it does to
//! several keys, or to a collection's entries, happens at once for every other command. Without
//! locks run reads of one string, whose value is one block, and walks over the key space, which are
//! not atomic. (The trees take any number of writers, but a command is many operations on them:
//! making each command a compare-and-set would have been a second implementation of all of them.)
//!
//! Invariants: a change of an entry happens under the lock of its key's stripe, and so do the
//! choice of its timestamp and its way into the log; so timestamps order the changes of every entry
//! as they happened, and one record holds all that a command or transaction has changed.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};

use masstree::Guard;
use resp::{Protocol, write};
use smr::ReadOutcome;

use crate::dispatch::{MALFORMED, Surroundings};
use crate::random::mix;
use crate::reach::{Locks, Reach, reach};
use crate::reply::push_item;
use crate::request::{self, Item, Reader};
use crate::store::{Limits, Store, Trees};

/// Bits of a stripe's number: with 50 threads at work on random keys one command in twenty waits.
const STRIPE_BITS: u32 = 10;
pub(crate) const STRIPES: usize = 1 << STRIPE_BITS;

/// Alone in its cache line, so that nobody else's line moves with it.
#[derive(Debug, Default)]
#[repr(align(64))]
struct Line<T>(T);

/// What stores on the same trees have in common.
#[derive(Debug)]
pub struct Shared {
    limits: Limits,
    /// The timestamp given out last. Whoever sees a timestamp's effects and takes another gets a
    /// greater one: all accesses are read-modify-writes or acquire what one of them released.
    clock: Line<AtomicU64>,
    /// The id of the next collection; relaxed, since only its being given out once matters.
    next_id: Line<AtomicU64>,
    stripes: Box<[Line<Mutex<()>>]>,
    slot: RwLock<Slot>,
    /// How often the trees in `slot` were changed, written under its lock. Acquired by every
    /// command: who knows that a flush was answered sees it.
    turn: AtomicU64,
    /// Relaxed, both: figures, and a time that is looked at again under all locks.
    expired: AtomicU64,
    flush_ms: AtomicU64,
}

struct Slot(Arc<Trees>);

impl std::fmt::Debug for Slot {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Slot")
    }
}

/// The locks of a command.
enum Held<'a> {
    One { _stripe: MutexGuard<'a, ()> },
    Many { _stripes: Vec<MutexGuard<'a, ()>> },
}

impl Shared {
    /// An empty key space whose timestamps go on above `clock`.
    pub fn new(limits: Limits, clock: u64) -> Arc<Shared> {
        Arc::new(Shared {
            limits,
            clock: Line(AtomicU64::new(clock)),
            next_id: Line::default(),
            stripes: (0..STRIPES).map(|_| Line::default()).collect(),
            slot: RwLock::new(Slot(Trees::new())),
            turn: AtomicU64::new(0),
            expired: AtomicU64::new(0),
            flush_ms: AtomicU64::new(0),
        })
    }

    /// A store on these trees, for one thread.
    pub fn store(self: &Arc<Shared>) -> Store {
        Store::with(self.trees(), self.limits, Some(self.clone()))
    }

    /// The timestamp given out last: all that has happened has it or a lower one.
    pub fn clock(&self) -> u64 {
        self.clock.0.load(Ordering::Acquire)
    }

    /// Makes all later timestamps greater than this one.
    pub fn advance(&self, clock: u64) {
        self.clock.0.fetch_max(clock, Ordering::AcqRel);
    }

    /// The next timestamp.
    #[inline]
    pub fn tick(&self) -> u64 {
        self.clock.0.fetch_add(1, Ordering::AcqRel) + 1
    }

    pub(crate) fn take_ids(&self, count: u64) -> u64 {
        self.next_id.0.fetch_add(count, Ordering::Relaxed)
    }

    /// Ids below `end` are taken.
    pub(crate) fn skip_ids(&self, end: u64) {
        self.next_id.0.fetch_max(end, Ordering::Relaxed);
    }

    pub(crate) fn expired(&self) -> u64 {
        self.expired.load(Ordering::Relaxed)
    }

    pub(crate) fn count_expired(&self) {
        self.expired.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn flush_ms(&self) -> u64 {
        self.flush_ms.load(Ordering::Relaxed)
    }

    /// Returns what it was.
    pub(crate) fn set_flush_ms(&self, flush_ms: u64) -> u64 {
        self.flush_ms.swap(flush_ms, Ordering::Relaxed)
    }

    pub(crate) fn trees(&self) -> Arc<Trees> {
        self.slot.read().unwrap_or_else(PoisonError::into_inner).0.clone()
    }

    /// Puts other trees in the place of the present ones. All stripes are locked.
    pub(crate) fn swap(&self, trees: &Arc<Trees>) {
        let mut slot = self.slot.write().unwrap_or_else(PoisonError::into_inner);
        slot.0 = trees.clone();
        self.turn.fetch_add(1, Ordering::Release);
    }

    fn lock_one(&self, stripe: u16) -> MutexGuard<'_, ()> {
        self.stripes[usize::from(stripe)].0.lock().expect("no command has panicked")
    }

    /// Locks what a command reaches, in ascending order.
    fn lock(&self, locks: Locks, stripes: &mut Vec<u16>) -> Held<'_> {
        if locks == Locks::Everything {
            let all = (0..STRIPES as u16).map(|stripe| self.lock_one(stripe));
            return Held::Many { _stripes: all.collect() };
        }
        if let [one] = stripes[..] {
            return Held::One { _stripe: self.lock_one(one) };
        }
        stripes.sort_unstable();
        stripes.dedup();
        Held::Many { _stripes: stripes.iter().map(|&stripe| self.lock_one(stripe)).collect() }
    }
}

/// The stripe of a key.
#[inline]
pub(crate) fn stripe_of(key: &[u8]) -> u16 {
    let (words, rest) = key.as_chunks::<8>();
    let mut last = [0; 8];
    last[..rest.len()].copy_from_slice(rest);
    let mut hash = key.len() as u64;
    for word in words.iter().chain([&last]) {
        hash = (hash ^ u64::from_le_bytes(*word)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        hash ^= hash >> 32;
    }
    (hash.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> (64 - STRIPE_BITS)) as u16
}

/// Takes what a command has changed, a record for [`redo`](crate::redo), and gives it a timestamp
/// ([`Shared::tick`]). The changed keys are locked meanwhile.
pub type Log<'a> = &'a mut dyn FnMut(&Shared, &[u8]);

impl Store {
    /// Executes the items of a request one by one, beside the other stores on the same trees.
    /// `log` takes what each has changed while nobody else can see it.
    ///
    /// # Panics
    /// If the store has its trees for itself.
    pub fn serve(&mut self, unix_ms: u64, request: &[u8], reply: &mut Vec<u8>, log: Log<'_>) {
        let shared = self.shared.clone().expect("a store on shared trees");
        let guard = &masstree::pin();
        self.refresh(&shared);
        if self.flush_is_due(unix_ms) {
            self.flush_due(&shared, unix_ms, log);
        }
        let draw = self.draws.fetch_add(1, Ordering::Relaxed);
        let around = &mut Surroundings { guard, unix_ms, reply, seed: mix(draw) };
        let mut from = Reader::new(request);
        let (mut args, mut stripes) = (Vec::new(), Vec::new());
        while !from.is_empty() {
            let item = from.item();
            let sound = item.is_ok();
            push_item(around, |around| match item {
                Ok((protocol, item)) => {
                    let reach = reach(&item, &mut args, &mut stripes);
                    let call = (protocol, item, reach);
                    self.serve_item(&shared, around, call, &mut args, &mut stripes, log);
                }
                Err(request::Malformed) => write::error(around.reply, MALFORMED),
            });
            if !sound {
                break;
            }
        }
    }

    fn serve_item<'a>(
        &mut self,
        shared: &Shared,
        around: &mut Surroundings<'_>,
        (protocol, item, reach): (Protocol, Item<'a>, Reach),
        args: &mut Vec<&'a [u8]>,
        stripes: &mut Vec<u16>,
        log: Log<'_>,
    ) {
        let start = around.reply.len();
        self.refresh(shared);
        if reach.free {
            if self.read_item(around, protocol, item.clone(), args) == ReadOutcome::Done {
                return;
            }
            // A key's time has come: it is removed.
            around.reply.truncate(start);
        }
        let held = shared.lock(reach.locks, stripes);
        self.refresh(shared);
        if reach.reads {
            if self.read_item(around, protocol, item.clone(), args) == ReadOutcome::Done {
                return;
            }
            around.reply.truncate(start);
        }
        self.begin();
        self.apply_item(around, protocol, item, args);
        self.record(shared, log);
        drop(held);
    }

    /// Lets go of trees that another store's flush has replaced. Every command does that, too.
    ///
    /// # Panics
    /// If the store has its trees for itself.
    pub fn follow(&mut self) {
        let shared = self.shared.clone().expect("a store on shared trees");
        self.refresh(&shared);
    }

    /// Ends what [`Store::begin`] began. The locks are still held.
    #[inline]
    fn record(&mut self, shared: &Shared, log: Log<'_>) {
        if !self.redo.is_empty() {
            log(shared, &self.redo);
        }
    }

    /// Follows a flush by another thread.
    #[inline]
    fn refresh(&mut self, shared: &Shared) {
        let turn = shared.turn.load(Ordering::Acquire);
        if turn != self.turn {
            self.turn = turn;
            self.trees = shared.trees();
        }
    }

    #[cold]
    fn flush_due(&mut self, shared: &Shared, unix_ms: u64, log: Log<'_>) {
        let held = shared.lock(Locks::Everything, &mut Vec::new());
        self.refresh(shared);
        if self.flush_is_due(unix_ms) {
            self.begin();
            self.flush();
            self.set_flush_ms(0);
            self.record(shared, log);
        }
        drop(held);
    }

    /// Removes at most `limit` keys whose time has come. Returns how many there were.
    ///
    /// # Panics
    /// If the store has its trees for itself.
    pub fn serve_sweep(&mut self, unix_ms: u64, limit: usize, log: Log<'_>) -> usize {
        let shared = self.shared.clone().expect("a store on shared trees");
        self.refresh(&shared);
        if self.flush_is_due(unix_ms) {
            self.flush_due(&shared, unix_ms, log);
        }
        let guard: &Guard = &masstree::pin();
        let due = self.due_keys(unix_ms, limit, guard);
        for key in &due {
            let held = shared.lock_one(stripe_of(key));
            self.refresh(&shared);
            self.begin();
            self.settle(key, unix_ms, guard);
            self.record(&shared, log);
            drop(held);
        }
        due.len()
    }
}
