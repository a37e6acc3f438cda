//! Room in which slots are made: the words of one that nobody keeps any more serve a later one of
//! the same length, so that a steady load allocates nothing for them.

use alloc::sync::Arc;
use alloc::vec::Vec;

use crate::layout::Slot;

/// So many slots' words wait to be used again, at most.
const SPARE: usize = 16;

#[derive(Debug, Default)]
pub(crate) struct Space {
    /// An entry's bytes, until it is known how many words they are.
    pub(crate) bytes: Vec<u8>,
    spare: Vec<Arc<[u64]>>,
}

impl Space {
    /// So many words, of whatever values, that nobody else knows.
    pub(crate) fn words(&mut self, count: usize) -> Arc<[u64]> {
        while let Some(spare) = self.spare.pop() {
            if spare.len() == count && Arc::strong_count(&spare) == 1 {
                return spare;
            }
        }
        core::iter::repeat_n(0, count).collect()
    }

    /// Takes back the words of a slot that is kept no longer.
    pub(crate) fn take_back(&mut self, slot: Option<Slot>) {
        if self.spare.len() < SPARE {
            self.spare.extend(slot.map(Slot::into_words));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Limits;
    use smr::{Content, Entry, OpNumber, View, Viewstamp};

    #[test]
    fn words_that_somebody_knows_are_not_used_again() {
        let entry = Entry {
            viewstamp: Viewstamp::new(View(1), OpNumber(1)),
            previous: Viewstamp::default(),
            commit: OpNumber(0),
            durable: Viewstamp::default(),
            content: Content::ViewStart,
        };
        let mut space = Space::default();
        let slot = Slot::new(&Limits::tiny(), View(1), &entry, &mut space);
        let (words, count) = (slot.words().as_ptr(), slot.words().len());
        space.take_back(Some(slot.clone()));
        assert_ne!(space.words(count).as_ptr(), words, "the slot is kept");
        space.take_back(Some(slot));
        assert_eq!(space.words(count + 1).len(), count + 1, "a slot has its own length");
        let slot = Slot::new(&Limits::tiny(), View(1), &entry, &mut space);
        let words = slot.words().as_ptr();
        space.take_back(Some(slot));
        let mut again = space.words(count);
        assert_eq!(again.as_ptr(), words);
        assert!(Arc::get_mut(&mut again).is_some());
    }
}
