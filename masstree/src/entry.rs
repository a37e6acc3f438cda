//! A key and the value that it was seen to have.

use std::fmt;

use crate::{guard::Guard, slot::Slot, tree::Masstree};

/// A key's place in the tree, with the value that it has or has not: made by [`Masstree::entry`].
///
/// No lock is held. What is changed through an entry is changed only if the key still has the
/// value that the entry shows.
pub struct Entry<'t, V: Slot> {
    tree: &'t Masstree<V>,
    guard: &'t Guard,
    key: &'t [u8],
    seen: Option<V>,
}

impl<'t, V: Slot> Entry<'t, V> {
    pub(crate) fn new(tree: &'t Masstree<V>, key: &'t [u8], guard: &'t Guard) -> Self {
        Entry { tree, guard, key, seen: tree.get(key, guard) }
    }

    /// The key.
    pub fn key(&self) -> &'t [u8] {
        self.key
    }

    /// The value that the key was seen to have.
    pub fn get(&self) -> Option<&V> {
        self.seen.as_ref()
    }

    /// Makes `new` the key's value, where none means no such key, if it still has the value that
    /// was seen, and returns that. Otherwise fails with an entry that shows the current value.
    ///
    /// # Panics
    /// If the key is longer than [`MAX_KEY_LEN`](crate::MAX_KEY_LEN).
    pub fn replace(self, new: Option<V>) -> Result<Option<V>, Self> {
        let Entry { tree, guard, key, seen } = self;
        let done = tree.compare_and_set(key, guard, seen.as_ref(), new);
        done.map_err(|seen| Entry { tree, guard, key, seen })
    }

    /// The key's value, which is `value` if it had none.
    ///
    /// # Panics
    /// If the key is longer than [`MAX_KEY_LEN`](crate::MAX_KEY_LEN).
    pub fn or_insert(self, value: V) -> V {
        if let Some(seen) = self.seen {
            return seen;
        }
        match self.tree.insert_if_absent(self.key, value.clone(), self.guard) {
            Ok(()) => value,
            Err(current) => current,
        }
    }
}

impl<V: Slot + fmt::Debug> fmt::Debug for Entry<'_, V> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Entry").field("key", &self.key).field("seen", &self.seen).finish()
    }
}
