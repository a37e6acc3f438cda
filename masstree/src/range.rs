//! Iterators over ranges of keys, from both ends.

use std::{
    borrow::Cow,
    fmt,
    ops::{Bound, RangeBounds},
};

use crate::{
    borrow::Borrowed,
    guard::Guard,
    scan::{Cursor, Direction},
    slot::Slot,
    tree::Masstree,
};

/// An iterator over the keys of a range and their values: made by [`Masstree::range`].
///
/// Every key that is present during the whole iteration is visited exactly once, in order. Of keys
/// that come or go meanwhile some are visited. As an [`Iterator`] it hands out copies of keys and
/// clones of values; [`next_entry`](Range::next_entry) lends them instead.
pub struct Range<'t, V: Slot> {
    tree: &'t Masstree<V>,
    guard: &'t Guard,
    /// What is still to come is between these.
    low: Bound<Vec<u8>>,
    high: Bound<Vec<u8>>,
    front: Option<Cursor<'t, 'static>>,
    back: Option<Cursor<'t, 'static>>,
    done: bool,
}

fn is_above(key: &[u8], low: &Bound<Vec<u8>>) -> bool {
    match low {
        Bound::Unbounded => true,
        Bound::Included(low) => key >= &low[..],
        Bound::Excluded(low) => key > &low[..],
    }
}

fn is_below(key: &[u8], high: &Bound<Vec<u8>>) -> bool {
    match high {
        Bound::Unbounded => true,
        Bound::Included(high) => key <= &high[..],
        Bound::Excluded(high) => key < &high[..],
    }
}

/// Makes `key` an excluded end, in the memory of the old one.
fn exclude(bound: &mut Bound<Vec<u8>>, key: &[u8]) {
    let mut memory = match std::mem::replace(bound, Bound::Unbounded) {
        Bound::Included(memory) | Bound::Excluded(memory) => memory,
        Bound::Unbounded => Vec::new(),
    };
    memory.clear();
    memory.extend_from_slice(key);
    *bound = Bound::Excluded(memory);
}

impl<'t, V: Slot> Range<'t, V> {
    pub(crate) fn new<K: AsRef<[u8]> + ?Sized>(
        tree: &'t Masstree<V>,
        range: impl RangeBounds<K>,
        guard: &'t Guard,
    ) -> Self {
        let own = |bound: Bound<&K>| bound.map(|key| key.as_ref().to_vec());
        let (low, high) = (own(range.start_bound()), own(range.end_bound()));
        Range { tree, guard, low, high, front: None, back: None, done: false }
    }

    /// The next key and its value, lent.
    pub fn next_entry(&mut self) -> Option<(&[u8], Borrowed<'t, V>)> {
        if self.done {
            return None;
        }
        let cursor = self.front.get_or_insert_with(|| {
            let start = self.low.clone().map(Cow::Owned);
            Cursor::new(self.tree.root(), start, Direction::Ascending, self.guard)
        });
        let mut found = None;
        cursor.run(|key, raw| {
            found = is_below(key, &self.high).then_some(raw);
            false
        });
        self.done = found.is_none();
        let raw = found?;
        exclude(&mut self.low, cursor.key());
        // SAFETY: the tree owned the value during this call, and tree and guard stay borrowed.
        Some((cursor.key(), unsafe { Borrowed::new(raw) }))
    }

    /// The last key that is left and its value, lent.
    pub fn next_entry_back(&mut self) -> Option<(&[u8], Borrowed<'t, V>)> {
        if self.done {
            return None;
        }
        let cursor = self.back.get_or_insert_with(|| {
            let start = self.high.clone().map(Cow::Owned);
            Cursor::new(self.tree.root(), start, Direction::Descending, self.guard)
        });
        let mut found = None;
        cursor.run(|key, raw| {
            found = is_above(key, &self.low).then_some(raw);
            false
        });
        self.done = found.is_none();
        let raw = found?;
        exclude(&mut self.high, cursor.key());
        // SAFETY: the tree owned the value during this call, and tree and guard stay borrowed.
        Some((cursor.key(), unsafe { Borrowed::new(raw) }))
    }
}

impl<V: Slot> Iterator for Range<'_, V> {
    type Item = (Vec<u8>, V);

    fn next(&mut self) -> Option<Self::Item> {
        self.next_entry().map(|(key, value)| (key.to_vec(), value.clone()))
    }
}

impl<V: Slot> DoubleEndedIterator for Range<'_, V> {
    fn next_back(&mut self) -> Option<Self::Item> {
        self.next_entry_back().map(|(key, value)| (key.to_vec(), value.clone()))
    }
}

impl<V: Slot> std::iter::FusedIterator for Range<'_, V> {}

impl<V: Slot> fmt::Debug for Range<'_, V> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Range").field("low", &self.low).field("high", &self.high).finish()
    }
}
