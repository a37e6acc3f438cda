//! The state: orders in a slab, queued by links at their price level, and the primitives that
//! change it.
//!
//! Invariants:
//! - Whatever changes an order goes through `enqueue`, `detach` or `set_remaining`, which keep the
//!   pre-images that undo and the checkpoint in progress need.
//! - No price level is empty; no book is crossed between commands.
//! - Priorities grow along each queue. They, not the slots, are what replicas agree on.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};

use crate::book::{Book, Level, rank};
use crate::checkpoint::Checkpoint;
use crate::order::{OrderId, Price, Quantity, Refusal, Side, Symbol};
use crate::slab::{NONE, Slab};

/// How much an engine holds. Replicas must agree on it, so it is part of the state: a checkpoint of
/// an engine with other limits is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// The most orders in all books, 1 to 2^24 - 1.
    pub orders: u32,
    /// The most symbols, 1 to 2^16 - 2. A symbol is never forgotten.
    pub symbols: u16,
    /// The most orders that one command trades with, at least 1; what would be left of it then is
    /// cancelled. It bounds the time that a command takes.
    pub fills: u32,
}

impl Default for Limits {
    /// 1,048,576 orders, 4,096 symbols, 4,096 fills.
    fn default() -> Limits {
        Limits { orders: 1 << 20, symbols: 1 << 12, fills: 1 << 12 }
    }
}

/// What is counted. All of it only grows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Totals {
    pub next_order: u64,
    pub next_priority: u64,
    pub next_trade: u64,
}

/// An order in a book.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Resting {
    /// Zero in a free slot.
    pub id: OrderId,
    pub priority: u64,
    pub price: Price,
    pub remaining: u64,
    pub filled: u64,
    pub level: u32,
    pub prev: u32,
    pub next: u32,
    pub book: u16,
    pub side: Side,
}

/// A change and what it takes to undo it.
#[derive(Debug)]
enum Change {
    Enqueued(u32),
    Detached(u32, Resting),
    Set { slot: u32, remaining: u64, filled: u64 },
    Listed,
}

/// What it takes to undo one request.
#[derive(Debug)]
pub struct Undo {
    totals: Totals,
    changes: Vec<Change>,
}

/// Numbers of orders are dense where they are hot, so they index the table as they are; the bits
/// that tell entries of a group apart come from a multiplication. Same on every machine.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Dense(u64);

impl Hasher for Dense {
    #[inline]
    fn finish(&self) -> u64 {
        const LOW: u64 = u64::MAX >> 7;
        (self.0 & LOW) | (self.0.wrapping_mul(GOLDEN) & !LOW)
    }

    fn write(&mut self, bytes: &[u8]) {
        for &byte in bytes {
            self.0 = (self.0 ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
        }
    }

    #[inline]
    fn write_u64(&mut self, number: u64) {
        self.0 = number;
    }
}

type Map<K, V> = HashMap<K, V, BuildHasherDefault<Dense>>;

/// The engine. See the crate's documentation.
#[derive(Debug)]
pub struct Engine {
    pub(crate) limits: Limits,
    pub(crate) totals: Totals,
    pub(crate) orders: Slab<Resting>,
    pub(crate) levels: Slab<Level>,
    pub(crate) books: Vec<Book>,
    symbols: Map<u64, u16>,
    pub(crate) ids: Map<u64, u32>,
    changes: Vec<Change>,
    pub(crate) checkpoint: Option<Checkpoint>,
    /// While a checkpoint is read: how many orders it has.
    pub(crate) restoring: Option<u32>,
}

impl Default for Engine {
    /// An engine with the default limits.
    fn default() -> Engine {
        Engine::new(Limits::default())
    }
}

impl Engine {
    /// An engine without orders.
    ///
    /// # Panics
    /// If a limit is not in its range.
    pub fn new(limits: Limits) -> Engine {
        assert!((1..1 << 24).contains(&limits.orders), "1 to 2^24 - 1 orders");
        assert!((1..u16::MAX).contains(&limits.symbols), "1 to 2^16 - 2 symbols");
        assert!(limits.fills > 0, "at least one fill");
        Engine {
            limits,
            totals: Totals { next_order: 1, next_priority: 1, next_trade: 1 },
            orders: Slab::new(),
            levels: Slab::new(),
            books: Vec::new(),
            symbols: Map::default(),
            // A table that grew while orders go on would stop them for the time that takes.
            ids: Map::with_capacity_and_hasher(limits.orders as usize, Default::default()),
            changes: Vec::new(),
            checkpoint: None,
            restoring: None,
        }
    }

    /// How many orders are in the books.
    pub fn orders(&self) -> u32 {
        self.orders.used()
    }

    pub(crate) fn book_of(&self, symbol: Symbol) -> Result<u16, Refusal> {
        let key = u64::from_le_bytes(symbol.padded());
        self.symbols.get(&fold(key)).copied().ok_or(Refusal::UnknownSymbol)
    }

    pub(crate) fn slot_of(&self, id: OrderId) -> Result<u32, Refusal> {
        let closed = if (1..self.totals.next_order).contains(&id.0) {
            Refusal::ClosedOrder
        } else {
            Refusal::UnknownOrder
        };
        self.ids.get(&id.0).copied().ok_or(closed)
    }

    /// Opens a book for a new symbol.
    pub(crate) fn list(&mut self, symbol: Symbol) -> Result<u16, Refusal> {
        if self.books.len() >= usize::from(self.limits.symbols) {
            return Err(Refusal::SymbolsFull);
        }
        let book = self.books.len() as u16;
        self.books.push(Book::new(symbol));
        self.symbols.insert(fold(u64::from_le_bytes(symbol.padded())), book);
        self.changes.push(Change::Listed);
        Ok(book)
    }

    /// Queues an order behind those of its price. Its links are set here.
    #[inline]
    pub(crate) fn enqueue(&mut self, order: Resting) {
        self.keep(self.orders.next());
        let slot = self.orders.insert(order);
        self.ids.insert(order.id.0, slot);
        self.link_last(slot);
        self.changes.push(Change::Enqueued(slot));
    }

    #[inline]
    pub(crate) fn link_last(&mut self, slot: u32) {
        let order = &mut self.orders[slot];
        let rank = rank(order.side, order.price);
        let ladder = self.books[usize::from(order.book)].ladder_mut(order.side);
        (order.next, order.prev) = (NONE, NONE);
        let Some(found) = ladder.find(rank) else {
            let level = self.levels.insert(only(order, slot));
            ladder.add(rank, level);
            order.level = level;
            return;
        };
        order.level = found;
        let level = &mut self.levels[found];
        level.quantity += order.remaining;
        level.count += 1;
        order.prev = level.tail;
        level.tail = slot;
        let prev = order.prev;
        self.orders[prev].next = slot;
    }

    /// Takes an order out of its book.
    #[inline]
    pub(crate) fn detach(&mut self, slot: u32) {
        let order = self.unlink(slot);
        self.orders.free(slot);
        if let (NONE, NONE) = (order.prev, order.next) {
            self.levels.free(order.level);
        }
        self.changes.push(Change::Detached(slot, order));
    }

    /// Takes an order off its queue. Its slot, and its level's if that is empty now, are the
    /// caller's to free.
    #[inline]
    fn unlink(&mut self, slot: u32) -> Resting {
        self.keep(slot);
        let order = self.orders[slot];
        self.orders[slot].id = OrderId(0);
        self.ids.remove(&order.id.0);
        let level = &mut self.levels[order.level];
        level.quantity -= order.remaining;
        level.count -= 1;
        match order.prev {
            NONE => level.head = order.next,
            prev => self.orders[prev].next = order.next,
        }
        match order.next {
            NONE => level.tail = order.prev,
            next => self.orders[next].prev = order.prev,
        }
        if level.count == 0 {
            let book = &mut self.books[usize::from(order.book)];
            book.ladder_mut(order.side).remove(rank(order.side, order.price));
        }
        order
    }

    /// Changes what remains of an order and what was traded of it. It keeps its place.
    #[inline]
    pub(crate) fn set_remaining(&mut self, slot: u32, remaining: u64, filled: u64) {
        self.keep(slot);
        let order = &mut self.orders[slot];
        self.changes.push(Change::Set { slot, remaining: order.remaining, filled: order.filled });
        let level = &mut self.levels[order.level];
        level.quantity = level.quantity - order.remaining + remaining;
        (order.remaining, order.filled) = (remaining, filled);
    }

    /// Keeps what the checkpoint in progress has yet to write of a slot that is about to change.
    #[inline]
    fn keep(&mut self, slot: u32) {
        if let Some(checkpoint) = &mut self.checkpoint {
            checkpoint.keep(&self.orders, slot);
        }
    }

    /// Hands over what has changed since the last time. `totals` are those of that time.
    pub(crate) fn take_undo(&mut self, totals: Totals) -> Undo {
        Undo { totals, changes: std::mem::take(&mut self.changes) }
    }

    /// What has changed cannot be undone.
    pub(crate) fn forget_changes(&mut self) {
        self.changes.clear();
    }

    /// Takes changes back, the last first.
    pub(crate) fn take_back(&mut self, undo: Undo) {
        self.totals = undo.totals;
        for change in undo.changes.into_iter().rev() {
            match change {
                Change::Enqueued(slot) => {
                    let order = self.unlink(slot);
                    self.orders.free(slot);
                    if let (NONE, NONE) = (order.prev, order.next) {
                        self.levels.free(order.level);
                    }
                }
                Change::Detached(slot, order) => self.reattach(slot, order),
                Change::Set { slot, remaining, filled } => {
                    self.set_remaining(slot, remaining, filled);
                    self.forget_changes();
                }
                Change::Listed => {
                    let book = self.books.pop().expect("it was listed");
                    self.symbols.remove(&fold(u64::from_le_bytes(book.symbol.padded())));
                }
            }
        }
    }

    /// Puts an order back where it was.
    fn reattach(&mut self, slot: u32, order: Resting) {
        self.keep(slot);
        self.orders.unfree(slot, order);
        self.ids.insert(order.id.0, slot);
        if let (NONE, NONE) = (order.prev, order.next) {
            self.levels.unfree(order.level, only(&order, slot));
            let book = &mut self.books[usize::from(order.book)];
            book.ladder_mut(order.side).add(rank(order.side, order.price), order.level);
            return;
        }
        let level = &mut self.levels[order.level];
        level.quantity += order.remaining;
        level.count += 1;
        match order.prev {
            NONE => level.head = slot,
            prev => self.orders[prev].next = slot,
        }
        match order.next {
            NONE => level.tail = slot,
            next => self.orders[next].prev = slot,
        }
    }

    /// A digest of the whole state: equal for equal states, and most likely for no others (it is no
    /// proof against forgery). Reads all orders, in about 10 ms per million.
    pub fn digest(&self) -> u64 {
        let Totals { next_order, next_priority, next_trade } = self.totals;
        let seed = mix(&[next_order, next_priority, next_trade]);
        let symbols = self.books.iter().map(|book| u64::from_le_bytes(book.symbol.padded()));
        let seed = symbols.fold(seed, |digest, symbol| mix(&[digest, symbol]));
        // A sum, so that slots, in whose order this goes, make no difference.
        let orders = (0..self.orders.slots()).map(|slot| &self.orders[slot]);
        let live = orders.filter(|order| order.id.0 != 0);
        let sum = live.fold(0_u64, |sum, order| sum.wrapping_add(order.digest()));
        mix(&[seed, sum])
    }

    /// Panics if the structure contradicts itself. Slow; for tests.
    #[doc(hidden)]
    pub fn check(&self) {
        let mut seen = 0;
        for (number, book) in self.books.iter().enumerate() {
            assert_eq!(self.book_of(book.symbol), Ok(number as u16));
            for side in [Side::Buy, Side::Sell] {
                for (at, slot) in book.ladder(side).iter() {
                    assert_eq!(rank(side, self.levels[slot].price), at);
                    seen += self.check_level(slot, number as u16, side);
                }
            }
            let bid = book.touch(Side::Buy, &self.levels).0;
            let ask = book.touch(Side::Sell, &self.levels).0;
            assert!(bid < ask || ask.0 == 0, "{} is crossed", book.symbol);
        }
        assert_eq!(seen, self.orders.used());
        assert_eq!(seen as usize, self.ids.len());
        assert!(seen <= self.limits.orders);
    }

    fn check_level(&self, slot: u32, book: u16, side: Side) -> u32 {
        let level = &self.levels[slot];
        let (mut quantity, mut count, mut prev, mut priority) = (0, 0, NONE, 0);
        let mut at = level.head;
        while at != NONE {
            let order = &self.orders[at];
            assert_eq!((order.level, order.prev, order.book), (slot, prev, book));
            assert_eq!((order.side, order.price), (side, level.price));
            assert!(order.priority > priority && order.remaining > 0);
            assert_eq!(self.ids.get(&order.id.0), Some(&at));
            priority = order.priority;
            quantity += order.remaining;
            count += 1;
            (prev, at) = (at, order.next);
        }
        assert!(count > 0, "an empty level");
        assert_eq!((level.quantity, level.count, level.tail), (quantity, count, prev));
        count
    }
}

impl Resting {
    fn digest(&self) -> u64 {
        let place = u64::from(self.book) << 1 | self.side as u64;
        let Resting { id, priority, price, remaining, filled, .. } = *self;
        mix(&[id.0, priority, price.0, remaining, filled, place])
    }

    pub fn quantity(&self) -> Quantity {
        Quantity(self.remaining)
    }
}

/// A level with one order.
fn only(order: &Resting, slot: u32) -> Level {
    let (price, quantity) = (order.price, order.remaining);
    Level { price, quantity, count: 1, head: slot, tail: slot }
}

/// Spreads the letters of a symbol over the bits that index a table; no two become one.
#[inline]
fn fold(key: u64) -> u64 {
    let product = key.wrapping_mul(GOLDEN);
    product ^ (product >> 32)
}

/// A hash of some words, for digests.
pub(crate) fn mix(words: &[u64]) -> u64 {
    words.iter().fold(0x2545_f491_4f6c_dd1d, |hash: u64, &word| {
        let product = u128::from(hash ^ word) * u128::from(GOLDEN);
        (product as u64 ^ (product >> 64) as u64).wrapping_add(hash.rotate_left(23))
    })
}

const GOLDEN: u64 = 0x9e37_79b9_7f4a_7c15;
