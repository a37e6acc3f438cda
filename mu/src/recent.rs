//! The last slots as this replica knows them, for those that lag behind ([Mu] Listing 4).

use alloc::collections::VecDeque;

use smr::{OpNumber, Viewstamp};

use crate::layout::Slot;

/// Slots without gaps above `base`, [`crate::Limits::kept`] at most: decided ones, and at a leader
/// those that it has proposed.
#[derive(Debug)]
pub(crate) struct Recent {
    base: Viewstamp,
    slots: VecDeque<Slot>,
    most: usize,
}

impl Recent {
    pub(crate) fn new(base: Viewstamp, most: u32) -> Recent {
        Recent { base, slots: VecDeque::new(), most: most as usize }
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

    /// # Panics
    /// If the slot does not follow the last one.
    pub(crate) fn push(&mut self, slot: Slot) {
        assert_eq!(slot.previous(), self.last(), "values that were decided follow each other");
        assert_eq!(slot.viewstamp().op, self.last().op.next(), "operations have no gaps");
        self.slots.push_back(slot);
        if self.slots.len() > self.most {
            self.base = self.slots.pop_front().expect("there are some").viewstamp();
        }
    }

    /// Drops everything above `keep`.
    pub(crate) fn truncate(&mut self, keep: OpNumber) {
        assert!(keep >= self.base.op, "what was executed is kept");
        self.slots.truncate((keep.0 - self.base.op.0) as usize);
    }
}
