//! Writing the state out piece by piece while it changes, and reading it back.
//!
//! A cursor moves over `Keys`, then `Fields`, in key order. Before a key at or above the cursor
//! changes for the first time, its value as of the beginning is kept aside, and the cursor takes
//! that one. A flush takes the trees away from under the store; the checkpoint still has them, and
//! nobody changes them then. `Expiry` follows from `Keys` and is not written.
//!
//! A chunk: a version byte, then records: 1, totals (3 x u64), and what image.rs describes (the
//! time of the next flush only if one is due). Little-endian.

use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::Arc;

use masstree::Guard;
use smr::BadCheckpoint;

use crate::image::{self, LARGEST_COUNT, Reader, Record, TOTALS};
use crate::store::{Space, Store, Totals, Trees};
use crate::value::Value;

const VERSION: u8 = 1;

/// A checkpoint that is being written.
pub(crate) struct Checkpoint {
    trees: Arc<Trees>,
    /// The state beside the trees, until it is written.
    totals: Option<Totals>,
    /// Everything before this is written.
    space: Space,
    key: Vec<u8>,
    /// Of `Keys` and `Fields`: what has changed ahead of the cursor, as of the beginning.
    kept: [BTreeMap<Box<[u8]>, Option<Value>>; 2],
}

impl Checkpoint {
    pub(crate) fn new(trees: &Arc<Trees>, totals: Totals) -> Checkpoint {
        Checkpoint {
            trees: trees.clone(),
            totals: Some(totals),
            space: Space::Keys,
            key: Vec::new(),
            kept: [BTreeMap::new(), BTreeMap::new()],
        }
    }

    /// Told of every change: keeps the previous value if it is ahead of the cursor.
    pub(crate) fn keep(
        &mut self,
        trees: &Arc<Trees>,
        space: Space,
        key: &[u8],
        previous: &Option<Value>,
    ) {
        let ahead = (self.space, &self.key[..]) <= (space, key);
        if space == Space::Expiry || !ahead || !Arc::ptr_eq(trees, &self.trees) {
            return;
        }
        let kept = &mut self.kept[space as usize];
        if !kept.contains_key(key) {
            kept.insert(key.into(), previous.clone());
        }
    }

    /// Appends a chunk of about `budget` bytes; returns whether it was the last.
    pub(crate) fn next(&mut self, budget: usize, out: &mut Vec<u8>, guard: &Guard) -> bool {
        let end = out.len().saturating_add(budget);
        out.push(VERSION);
        if let Some(totals) = self.totals.take() {
            out.push(TOTALS);
            for number in [totals.changes, totals.next_hash, totals.expired] {
                out.extend_from_slice(&number.to_le_bytes());
            }
            if totals.flush_ms != 0 {
                image::push_flush_at(out, totals.flush_ms);
            }
        }
        while self.space < Space::Expiry {
            match self.write_space(end, out, guard) {
                Some(key) => {
                    let kept = &mut self.kept[self.space as usize];
                    *kept = kept.split_off(&key[..]);
                    self.key = key;
                    return false;
                }
                None => {
                    self.kept[self.space as usize].clear();
                    self.space =
                        if self.space == Space::Keys { Space::Fields } else { Space::Expiry };
                    self.key.clear();
                }
            }
        }
        true
    }

    /// Writes the cursor's tree from the cursor on until `out` has `end` bytes; returns the first
    /// key not written. Writes at least one.
    fn write_space(&self, end: usize, out: &mut Vec<u8>, guard: &Guard) -> Option<Vec<u8>> {
        let first = out.len();
        let mut stopped = None;
        let mut write = |key: &[u8], image: Option<&Value>| {
            if out.len() >= end && out.len() > first {
                stopped = Some(key.to_vec());
                return false;
            }
            if image.is_some() {
                image::push(out, self.space, key, image);
            }
            true
        };
        let from = Bound::Included(&self.key[..]);
        let mut kept =
            self.kept[self.space as usize].range::<[u8], _>((from, Bound::Unbounded)).peekable();
        let mut go_on = true;
        self.trees.of(self.space).scan(from, guard, |key, live| {
            while let Some((removed, image)) = kept.next_if(|(kept, _)| kept[..] < *key) {
                go_on = write(removed, image.as_ref());
                if !go_on {
                    return false;
                }
            }
            let image = match kept.next_if(|(kept, _)| kept[..] == *key) {
                Some((_, image)) => image.as_ref(),
                None => Some(live),
            };
            go_on = write(key, image);
            go_on
        });
        while go_on && let Some((removed, image)) = kept.next() {
            go_on = write(removed, image.as_ref());
        }
        stopped
    }
}

/// Adds what a chunk holds to the store.
pub(crate) fn restore(store: &mut Store, chunk: &[u8], guard: &Guard) -> Result<(), BadCheckpoint> {
    let mut from = Reader(chunk);
    if from.array()? != [VERSION] {
        return Err(BadCheckpoint);
    }
    while !from.0.is_empty() {
        let [tag] = from.array()?;
        if tag == TOTALS {
            let (changes, next_hash, expired) = (from.u64()?, from.u64()?, from.u64()?);
            if changes.max(next_hash).max(expired) > LARGEST_COUNT {
                return Err(BadCheckpoint);
            }
            store.totals = Totals { changes, next_hash, expired, flush_ms: 0 };
            continue;
        }
        match from.record(tag)? {
            Record::Entry(entry) if entry.ids().is_none_or(|end| end <= store.totals.next_hash) => {
                entry.put(store, guard);
            }
            Record::FlushAt(flush_ms) => store.totals.flush_ms = flush_ms,
            Record::Entry(_) | Record::Flush => return Err(BadCheckpoint),
        }
    }
    Ok(())
}
