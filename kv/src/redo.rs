//! Reading back what stores on shared trees have written: records of a log, and images of a
//! checkpoint that was written while commands ran.
//!
//! A record holds the entries of the trees that one command or transaction has changed, as they
//! were afterwards, so that nothing is executed again: of every entry the record with the greatest
//! timestamp counts, wherever it comes from.

use std::ops::Bound;
use std::sync::Arc;

use smr::BadCheckpoint;

use crate::image::{self, LARGEST_COUNT, Reader, Record};
use crate::shared::Shared;
use crate::store::{Space, Store, Trees};

pub use crate::image::Entry;

/// What a record says, one thing after the other.
#[derive(Clone, Copy, Debug)]
pub enum Change<'a> {
    /// An entry is now so.
    Entry(Entry<'a>),
    /// Everything was removed.
    Flush,
    /// Everything is to be removed at this time in milliseconds since 1970; 0 for never.
    FlushAt(u64),
}

impl Entry<'_> {
    /// What tells it from all other entries.
    pub fn place(&self) -> (bool, &[u8]) {
        (self.space == Space::Keys, self.key)
    }
}

/// Takes a record, or a piece of a checkpoint, apart. It ends behind the first thing that makes no
/// sense.
pub fn changes(bytes: &[u8]) -> impl Iterator<Item = Result<Change<'_>, BadCheckpoint>> {
    let mut from = Reader(bytes);
    std::iter::from_fn(move || {
        let [tag] = from.array().ok()?;
        let change = from.record(tag).map(|record| match record {
            Record::Entry(entry) => Change::Entry(entry),
            Record::Flush => Change::Flush,
            Record::FlushAt(time) => Change::FlushAt(time),
        });
        if change.is_err() {
            from = Reader(b"");
        }
        Some(change)
    })
}

impl Store {
    /// Makes an entry what a record says. Several threads may do so at once, if no two of them have
    /// the same entry, while nothing is served.
    ///
    /// # Panics
    /// If the store has its trees for itself.
    pub fn replay(&mut self, entry: &Entry<'_>) {
        let shared = self.shared.as_ref().expect("a store on shared trees");
        if let Some(end) = entry.ids() {
            shared.skip_ids(end);
        }
        entry.put(self, &masstree::pin());
    }

    /// [`Store::replay`] of many, in this order: the waits for memory on the way to them overlap.
    ///
    /// # Panics
    /// If the store has its trees for itself.
    pub fn replay_all(&mut self, entries: &[Entry<'_>]) {
        for space in [Space::Keys, Space::Fields] {
            let wanted = entries.iter().filter(|entry| entry.space == space);
            let keys: Vec<&[u8]> = wanted.map(|entry| entry.key).collect();
            // The values are looked at, too: those that are replaced are waited for as well.
            let mut bytes = 0;
            self.trees.of(space).multi_get_with(&keys, &masstree::pin(), |_, value| {
                bytes += value.map_or(0, |value| value.slice.len());
            });
            std::hint::black_box(bytes);
        }
        entries.iter().for_each(|entry| self.replay(entry));
    }
}

/// One of the trees of which a checkpoint is made; what the third holds follows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tree {
    /// Keys, with strings and the heads of collections.
    Keys,
    /// The entries of collections.
    Fields,
}

impl Tree {
    fn space(self) -> Space {
        match self {
            Tree::Keys => Space::Keys,
            Tree::Fields => Space::Fields,
        }
    }
}

/// The trees as a checkpoint sees them: they change while it is written, but for a flush, which
/// leaves these behind.
#[derive(Clone)]
pub struct Images(Arc<Trees>);

impl std::fmt::Debug for Images {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Images").field(&self.0.sizes()).finish()
    }
}

impl Shared {
    /// The trees as they are now.
    pub fn images(&self) -> Images {
        Images(self.trees())
    }

    /// When everything is to be removed, as [`Change::FlushAt`] says.
    pub fn flush_at(&self) -> u64 {
        self.flush_ms()
    }

    /// What a log or a checkpoint says about that.
    pub fn restore_flush_at(&self, flush_ms: u64) {
        self.set_flush_ms(flush_ms);
    }
}

impl Images {
    /// Appends the entries from `from` on and below `to`, each as it is when it is met, until `out`
    /// has grown by `budget` bytes or more. Returns the first key that was not looked at.
    pub fn write(
        &self,
        tree: Tree,
        from: &[u8],
        to: Option<&[u8]>,
        budget: usize,
        out: &mut Vec<u8>,
    ) -> Option<Vec<u8>> {
        let (end, space) = (out.len() + budget, tree.space());
        let mut next = None;
        self.0.of(space).scan(Bound::Included(from), &masstree::pin(), |key, value| {
            if to.is_some_and(|to| key >= to) {
                return false;
            }
            if out.len() >= end {
                next = Some(key.to_vec());
                return false;
            }
            image::push(out, space, key, Some(value));
            true
        });
        next
    }

    /// A key between the entries from `from` on and below `to`, in the middle if their keys are
    /// spread evenly. `None` if there are fewer than two entries.
    pub fn middle(&self, tree: Tree, from: &[u8], to: Option<&[u8]>) -> Option<Vec<u8>> {
        let (mut first, mut last) = (None, None);
        let (tree, guard) = (self.0.of(tree.space()), &masstree::pin());
        tree.scan(Bound::Included(from), guard, |key, _| {
            first = Some(key.to_vec());
            false
        });
        tree.scan_reverse(to.map_or(Bound::Unbounded, Bound::Excluded), guard, |key, _| {
            last = Some(key.to_vec());
            false
        });
        let (first, last) = first.zip(last).filter(|(first, last)| first < last)?;
        let common = first.iter().zip(&last).take_while(|(a, b)| a == b).count();
        let number = |key: &[u8]| {
            let mut word = [0; 8];
            let rest = &key[common..key.len().min(common + 8)];
            word[..rest.len()].copy_from_slice(rest);
            u64::from_be_bytes(word)
        };
        let (low, high) = (number(&first), number(&last));
        let middle = low + (high - low).div_ceil(2);
        let key = [&last[..common], &middle.to_be_bytes()].concat();
        // Without the zeros that only fill the word up the key is no longer than its neighbours'.
        let length = key.iter().rposition(|&byte| byte != 0).map_or(0, |last| last + 1);
        let key = key[..length.max(common)].to_vec();
        (key > first && key.len() <= masstree::MAX_KEY_LEN).then_some(key)
    }
}

/// No timestamp may be greater: what says so is damaged.
pub const LARGEST_TIMESTAMP: u64 = LARGEST_COUNT;
