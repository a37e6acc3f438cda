//! Writing the state out piece by piece while it changes, and reading it back.
//!
//! A cursor moves over the slots of orders. Before a slot at or above it changes for the first
//! time, the order that it held at the beginning is kept aside, to be written by and by. The order
//! of records means nothing: queues are put together from priorities once the last has come.
//!
//! A chunk: version u8, whether it is the last u8, then records. 1, once and first: limits (orders
//! u32, symbols u16, fills u32), next order, priority and trade u64, count of orders u32, count of
//! symbols u16, symbols of 8 bytes each. 2, an order: number, priority, price, remaining, filled
//! (u64 each), book u16, side u8. Little-endian.

use smr::BadCheckpoint;

use crate::book::Level;
use crate::engine::{Engine, Limits, Resting, Totals};
use crate::order::{MAX_PRICE, MAX_QUANTITY, OrderId, Price, Side, Symbol};
use crate::slab::{NONE, Slab};

const VERSION: u8 = 1;
const HEAD: u8 = 1;
const ORDER: u8 = 2;
/// No group lives long enough to count further.
const LARGEST_COUNT: u64 = 1 << 62;

/// A checkpoint that is being written.
#[derive(Debug)]
pub(crate) struct Checkpoint {
    /// The state beside the orders, until it is written.
    head: Option<Vec<u8>>,
    /// Slots before this are written.
    cursor: u32,
    /// Slots from this on were not there at the beginning.
    end: u32,
    /// A bit for each slot that has changed ahead of the cursor.
    changed: Vec<u64>,
    /// What these slots held at the beginning.
    kept: Vec<Resting>,
}

impl Checkpoint {
    #[inline]
    pub fn keep(&mut self, orders: &Slab<Resting>, slot: u32) {
        if slot < self.cursor || slot >= self.end {
            return;
        }
        let (word, bit) = (&mut self.changed[slot as usize / 64], 1 << (slot % 64));
        if *word & bit == 0 {
            *word |= bit;
            if orders[slot].id.0 != 0 {
                self.kept.push(orders[slot]);
            }
        }
    }

    fn next(&mut self, orders: &Slab<Resting>, budget: usize, out: &mut Vec<u8>) -> bool {
        let end = out.len().saturating_add(budget);
        let flag = out.len() + 1;
        out.extend_from_slice(&[VERSION, 0]);
        if let Some(head) = self.head.take() {
            out.extend_from_slice(&head);
        }
        let mut first = true;
        let mut room = |out: &Vec<u8>| std::mem::take(&mut first) || out.len() < end;
        while !self.kept.is_empty() && room(out) {
            push_order(out, &self.kept.pop().expect("there is one"));
        }
        while self.cursor < self.end && room(out) {
            let slot = self.cursor;
            let changed = self.changed[slot as usize / 64] & 1 << (slot % 64) != 0;
            if !changed && orders[slot].id.0 != 0 {
                push_order(out, &orders[slot]);
            }
            self.cursor += 1;
        }
        let last = self.cursor >= self.end && self.kept.is_empty();
        out[flag] = u8::from(last);
        last
    }
}

fn push_order(out: &mut Vec<u8>, order: &Resting) {
    out.push(ORDER);
    for number in [order.id.0, order.priority, order.price.0, order.remaining, order.filled] {
        out.extend_from_slice(&number.to_le_bytes());
    }
    out.extend_from_slice(&order.book.to_le_bytes());
    out.push(order.side as u8);
}

impl Engine {
    pub(crate) fn begin_checkpoint(&mut self) {
        let mut head = vec![HEAD];
        head.extend_from_slice(&self.limits.orders.to_le_bytes());
        head.extend_from_slice(&self.limits.symbols.to_le_bytes());
        head.extend_from_slice(&self.limits.fills.to_le_bytes());
        let Totals { next_order, next_priority, next_trade } = self.totals;
        for number in [next_order, next_priority, next_trade] {
            head.extend_from_slice(&number.to_le_bytes());
        }
        head.extend_from_slice(&self.orders.used().to_le_bytes());
        head.extend_from_slice(&(self.books.len() as u16).to_le_bytes());
        head.extend(self.books.iter().flat_map(|book| book.symbol.padded()));
        let end = self.orders.slots();
        self.checkpoint = Some(Checkpoint {
            head: Some(head),
            cursor: 0,
            end,
            changed: vec![0; (end as usize).div_ceil(64)],
            kept: Vec::new(),
        });
    }

    /// Appends a chunk of about `budget` bytes; returns whether it was the last.
    pub(crate) fn next_chunk(&mut self, budget: usize, out: &mut Vec<u8>) -> bool {
        let checkpoint = self.checkpoint.as_mut().expect("a checkpoint was begun");
        let last = checkpoint.next(&self.orders, budget, out);
        if last {
            self.checkpoint = None;
        }
        last
    }

    /// Adds what a chunk holds to the state.
    pub(crate) fn add_chunk(&mut self, chunk: &[u8]) -> Result<(), BadCheckpoint> {
        let mut from = Reader(chunk);
        let [version, last] = from.array()?;
        if version != VERSION || last > 1 {
            return Err(BadCheckpoint);
        }
        while !from.0.is_empty() {
            match from.array()? {
                [HEAD] => self.add_head(&mut from)?,
                [ORDER] => self.add_order(&mut from)?,
                _ => return Err(BadCheckpoint),
            }
        }
        if last == 1 { self.add_queues() } else { Ok(()) }
    }

    fn add_head(&mut self, from: &mut Reader<'_>) -> Result<(), BadCheckpoint> {
        let orders = u32::from_le_bytes(from.array()?);
        let symbols = u16::from_le_bytes(from.array()?);
        let fills = u32::from_le_bytes(from.array()?);
        let (next_order, next_priority, next_trade) = (from.u64()?, from.u64()?, from.u64()?);
        let expected = u32::from_le_bytes(from.array()?);
        let listed = u16::from_le_bytes(from.array()?);
        let counts = [next_order, next_priority, next_trade];
        let sound = Limits { orders, symbols, fills } == self.limits
            && counts.iter().all(|count| (1..LARGEST_COUNT).contains(count))
            && expected <= self.limits.orders
            && self.restoring.is_none()
            && self.books.is_empty()
            && self.orders.used() == 0;
        if !sound {
            return Err(BadCheckpoint);
        }
        self.restoring = Some(expected);
        self.totals = Totals { next_order, next_priority, next_trade };
        for _ in 0..listed {
            let symbol = Symbol::from_padded(from.array()?).ok_or(BadCheckpoint)?;
            if self.book_of(symbol).is_ok() || self.list(symbol).is_err() {
                return Err(BadCheckpoint);
            }
        }
        self.forget_changes();
        Ok(())
    }

    /// Adds an order that is not queued yet.
    fn add_order(&mut self, from: &mut Reader<'_>) -> Result<(), BadCheckpoint> {
        let (id, priority, price) = (from.u64()?, from.u64()?, from.u64()?);
        let (remaining, filled) = (from.u64()?, from.u64()?);
        let book = u16::from_le_bytes(from.array()?);
        let [side] = from.array()?;
        let side = Side::from_byte(side).ok_or(BadCheckpoint)?;
        let sound = (1..self.totals.next_order).contains(&id)
            && (1..self.totals.next_priority).contains(&priority)
            && (1..=MAX_PRICE).contains(&price)
            && (1..=MAX_QUANTITY).contains(&remaining)
            && usize::from(book) < self.books.len()
            && self.restoring.is_some_and(|expected| self.orders.used() < expected);
        if !sound {
            return Err(BadCheckpoint);
        }
        let (id, price) = (OrderId(id), Price(price));
        let (level, prev, next) = (NONE, NONE, NONE);
        let order =
            Resting { id, priority, price, remaining, filled, level, prev, next, book, side };
        let slot = self.orders.insert(order);
        // The same order twice?
        if self.ids.insert(id.0, slot).is_some() { Err(BadCheckpoint) } else { Ok(()) }
    }

    /// Queues all orders that have come.
    fn add_queues(&mut self) -> Result<(), BadCheckpoint> {
        if self.restoring.take() != Some(self.orders.used()) {
            return Err(BadCheckpoint);
        }
        let mut slots: Vec<u32> = (0..self.orders.slots()).collect();
        slots.sort_unstable_by_key(|&slot| self.orders[slot].priority);
        let twice = |pair: &[u32]| self.orders[pair[0]].priority == self.orders[pair[1]].priority;
        if slots.windows(2).any(twice) {
            return Err(BadCheckpoint);
        }
        slots.into_iter().for_each(|slot| self.link_last(slot));
        let crossed = |levels: &Slab<Level>| {
            self.books.iter().any(|book| {
                let (bid, ask) =
                    (book.touch(Side::Buy, levels).0, book.touch(Side::Sell, levels).0);
                ask.0 != 0 && bid >= ask
            })
        };
        if crossed(&self.levels) { Err(BadCheckpoint) } else { Ok(()) }
    }
}

struct Reader<'a>(&'a [u8]);

impl Reader<'_> {
    fn array<const N: usize>(&mut self) -> Result<[u8; N], BadCheckpoint> {
        let (bytes, rest) = self.0.split_first_chunk::<N>().ok_or(BadCheckpoint)?;
        self.0 = rest;
        Ok(*bytes)
    }

    fn u64(&mut self) -> Result<u64, BadCheckpoint> {
        Ok(u64::from_le_bytes(self.array()?))
    }
}
