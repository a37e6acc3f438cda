//! The last slots as this replica knows them, for those that lag behind ([Mu] Listing 4).

use alloc::collections::VecDeque;

use smr::{OpNumber, Viewstamp};

use crate::config::Limits;
use crate::layout::Slot;

/// Slots without gaps above `base`, bounded by [`crate::Limits`]: decided ones, and at a leader
/// those that it has proposed.
#[derive(Debug)]
pub(crate) struct Recent {
    base: Viewstamp,
    slots: VecDeque<Slot>,
    /// Of all of them.
    bytes: usize,
    /// The ring: so many are kept in any case.
    least: usize,
    most: usize,
    most_bytes: usize,
}

impl Recent {
    pub(crate) fn new(base: Viewstamp, limits: &Limits) -> Recent {
        let (least, most) = (limits.slots as usize, limits.kept as usize);
        let most_bytes = limits.kept_bytes;
        Recent { base, slots: VecDeque::new(), bytes: 0, least, most, most_bytes }
    }

    pub(crate) fn base(&self) -> OpNumber {
        self.base.op
    }

    /// The last one's identity, or the base's.
    pub(crate) fn last(&self) -> Viewstamp {
        self.slots.back().map_or(self.base, Slot::viewstamp)
    }

    pub(crate) fn get(&self, op: OpNumber) -> Option<&Slot> {
        self.slots.get(usize::try_from(op.0.checked_sub(self.base.op.0 + 1)?).ok()?)
    }

    /// An operation's identity; the base's counts.
    pub(crate) fn viewstamp_at(&self, op: OpNumber) -> Option<Viewstamp> {
        if op == self.base.op {
            return Some(self.base);
        }
        self.get(op).map(Slot::viewstamp)
    }

    /// Returns a slot that is kept no longer, if there is one.
    ///
    /// # Panics
    /// If the slot does not follow the last one.
    pub(crate) fn push(&mut self, slot: Slot) -> Option<Slot> {
        assert_eq!(slot.previous(), self.last(), "values that were decided follow each other");
        assert_eq!(slot.viewstamp().op, self.last().op.next(), "operations have no gaps");
        self.bytes += size(&slot);
        self.slots.push_back(slot);
        let mut dropped = None;
        while self.slots.len() > self.most
            || self.slots.len() > self.least && self.bytes > self.most_bytes
        {
            let first = self.slots.pop_front().expect("there are some");
            self.bytes -= size(&first);
            self.base = first.viewstamp();
            dropped = Some(first);
        }
        dropped
    }

    /// Whether the next slot pushes out the first, or is the last that does not.
    pub(crate) fn is_full(&self) -> bool {
        let (slots, bytes) = (self.slots.len(), self.bytes);
        slots >= self.most || slots >= self.least && bytes >= self.most_bytes
    }

    /// Drops everything above `keep`.
    pub(crate) fn truncate(&mut self, keep: OpNumber) {
        assert!(keep >= self.base.op, "what was executed is kept");
        while self.last().op > keep {
            let last = self.slots.pop_back().expect("above the base");
            self.bytes -= size(&last);
        }
    }
}

fn size(slot: &Slot) -> usize {
    size_of_val(&slot.words()[..])
}
