//! Writing the state out piece by piece while it changes, and reading it back.
//!
//! A cursor moves over `Keys`, then `Fields`, in key order. Before a key at or above the cursor
//! changes for the first time, its value as of the beginning is kept aside, and the cursor takes
//! that one. A flush takes the trees away from under the store; the checkpoint still has them, and
//! nobody changes them then. `Expiry` follows from `Keys` and is not written.
//!
//! A chunk: a version byte, then records: 1, totals (3 x u64); 4, the time of the next flush (u64,
//! only if one is due); or 2 (key) or 3 (field), key length u32, key, stamp u64, expire_ms u64,
//! value length u32, value. Little-endian.

use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::Arc;

use masstree::Guard;
use smr::BadCheckpoint;

use crate::items::Facts;
use crate::store::{Space, Store, Totals, Trees};
use crate::value::{Head, Header, Kind, Value, ids_of, value};

const VERSION: u8 = 1;
const TOTALS: u8 = 1;
const KEY: u8 = 2;
const FIELD: u8 = 3;
const FLUSH: u8 = 4;

/// No group lives long enough to count further; versions have 56 bits.
const LARGEST_COUNT: u64 = 1 << 55;

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
                out.push(FLUSH);
                out.extend_from_slice(&totals.flush_ms.to_le_bytes());
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
        let tag = if self.space == Space::Keys { KEY } else { FIELD };
        let first = out.len();
        let mut stopped = None;
        let mut write = |key: &[u8], image: Option<&Value>| {
            if out.len() >= end && out.len() > first {
                stopped = Some(key.to_vec());
                return false;
            }
            if let Some(image) = image {
                push_record(out, tag, key, image);
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

fn push_record(out: &mut Vec<u8>, tag: u8, key: &[u8], image: &Value) {
    let header = &image.header.header;
    out.push(tag);
    out.extend_from_slice(&(key.len() as u32).to_le_bytes());
    out.extend_from_slice(key);
    out.extend_from_slice(&header.stamp().to_le_bytes());
    out.extend_from_slice(&header.expire_ms.to_le_bytes());
    out.extend_from_slice(&(image.slice.len() as u32).to_le_bytes());
    out.extend_from_slice(&image.slice);
}

struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    fn bytes(&mut self, len: usize) -> Result<&'a [u8], BadCheckpoint> {
        let (bytes, rest) = self.0.split_at_checked(len).ok_or(BadCheckpoint)?;
        self.0 = rest;
        Ok(bytes)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], BadCheckpoint> {
        let (bytes, rest) = self.0.split_first_chunk::<N>().ok_or(BadCheckpoint)?;
        self.0 = rest;
        Ok(*bytes)
    }

    fn u64(&mut self) -> Result<u64, BadCheckpoint> {
        Ok(u64::from_le_bytes(self.array()?))
    }

    fn string(&mut self) -> Result<&'a [u8], BadCheckpoint> {
        let len = u32::from_le_bytes(self.array()?);
        self.bytes(len as usize)
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
        if tag == FLUSH {
            store.totals.flush_ms = from.u64()?;
            continue;
        }
        let key = from.string()?;
        let header = Header::from_stamp(from.u64()?, from.u64()?).ok_or(BadCheckpoint)?;
        let bytes = from.string()?;
        let sound = key.len() <= crate::MAX_KEY_LEN
            && match (tag, header.kind()) {
                (KEY, Kind::String) => true,
                (KEY, Kind::Item) => Facts::split(bytes).is_some(),
                (KEY, kind) => {
                    ids_of(kind).zip(Head::from_bytes(bytes)).is_some_and(|(ids, head)| {
                        head.id <= store.totals.next_hash.saturating_sub(ids)
                            && head.id < store.totals.next_hash
                            && head.count <= LARGEST_COUNT
                    })
                }
                _ => false,
            };
        let field = tag == FIELD
            && header.kind() == Kind::Field
            && (8..=crate::MAX_KEY_LEN + 16).contains(&key.len());
        if sound {
            store.restore_key(key, value(header, bytes), guard);
        } else if field {
            let shared = bytes.is_empty() && header == store.nothing.header.header;
            let entry = if shared { store.nothing.clone() } else { value(header, bytes) };
            store.exchange(Space::Fields, key, Some(entry), guard);
        } else {
            return Err(BadCheckpoint);
        }
    }
    Ok(())
}
