//! What is known of the slots above the log, which has no holes: the first of them is not settled.

use alloc::collections::VecDeque;
use alloc::sync::Arc;

use smr::Entry;

/// What is known of a slot above the log.
#[derive(Clone, Debug)]
pub(crate) enum Slot {
    /// Its message has not come yet.
    Unknown,
    /// Its message was dropped on the way here.
    Missing,
    /// The leader has decided that nothing is executed in it.
    NoOp,
    /// Its request.
    Request(Arc<Entry>),
}

impl Slot {
    fn size(&self) -> usize {
        match self {
            Slot::Request(entry) => entry.size(),
            Slot::Unknown | Slot::Missing | Slot::NoOp => 0,
        }
    }
}

/// The slots above the log, by their distance from its end.
#[derive(Debug, Default)]
pub(crate) struct Ahead {
    slots: VecDeque<Slot>,
    bytes: usize,
}

impl Ahead {
    pub(crate) fn len(&self) -> usize {
        self.slots.len()
    }

    /// The sum of the entries' [`Entry::size`].
    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    pub(crate) fn get(&self, index: usize) -> Option<&Slot> {
        self.slots.get(index)
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &Slot> {
        self.slots.iter()
    }

    /// Has a place for this slot.
    pub(crate) fn reach(&mut self, index: usize) {
        if self.slots.len() <= index {
            self.slots.resize(index + 1, Slot::Unknown);
        }
    }

    /// # Panics
    /// If there is no place for the slot.
    pub(crate) fn put(&mut self, index: usize, slot: Slot) {
        self.bytes += slot.size();
        self.bytes -= core::mem::replace(&mut self.slots[index], slot).size();
    }

    /// Drops the first `count` of them, or all.
    pub(crate) fn pass(&mut self, count: usize) {
        for slot in self.slots.drain(..count.min(self.slots.len())) {
            self.bytes -= slot.size();
        }
    }
}
