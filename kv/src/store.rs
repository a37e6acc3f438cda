//! The state, the one primitive that changes it, and how changes are taken back.
//!
//! Three trees: `Keys` (key to value, or to the head of a collection), `Fields` (a collection's id,
//! big-endian, then field, member or index), and `Expiry` (the time when the key or a field of it
//! expires first, big-endian, then key). A flush swaps all three for empty ones.
//!
//! A store has its trees for itself and keeps what undoes a request; or it is one of several on the
//! same trees and keeps what repeats it (`shared`).

use std::ops::Bound;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use masstree::{Guard, Masstree};
use smallvec::SmallVec;

use crate::checkpoint::Checkpoint;
use crate::image;
use crate::shared::Shared;
use crate::value::{HashHead, Header, Kind, Value, due_ms, entries_of, value};

/// Which tree.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Space {
    Keys = 0,
    Fields = 1,
    Expiry = 2,
}

/// The trees, swapped as one.
pub(crate) struct Trees {
    trees: [Masstree<Value>; 3],
    /// [`Sizes`]: keys, expiring, bytes. Relaxed, here and where they change: each stands for
    /// itself, and who must see a change of its own key's has that key's lock.
    sizes: [AtomicU64; 3],
}

impl Trees {
    pub(crate) fn new() -> Arc<Trees> {
        let trees = [Masstree::new(), Masstree::new(), Masstree::new()];
        Arc::new(Trees { trees, sizes: Default::default() })
    }

    #[inline]
    pub(crate) fn of(&self, space: Space) -> &Masstree<Value> {
        &self.trees[space as usize]
    }

    #[inline]
    pub(crate) fn sizes(&self) -> Sizes {
        let [keys, expiring, bytes] = &self.sizes;
        let size = |of: &AtomicU64| of.load(Ordering::Relaxed);
        Sizes { keys: size(keys), expiring: size(expiring), bytes: size(bytes) }
    }

    /// An entry was put into a tree, or removed, with these weights.
    #[inline]
    fn count(&self, space: Space, come: Option<u64>, gone: Option<u64>) {
        let [keys, expiring, bytes] = &self.sizes;
        let grown = come.unwrap_or(0).wrapping_sub(gone.unwrap_or(0));
        if grown != 0 {
            bytes.fetch_add(grown, Ordering::Relaxed);
        }
        let entries = match space {
            Space::Keys => keys,
            Space::Expiry => expiring,
            Space::Fields => return,
        };
        match (come, gone) {
            (Some(_), None) => entries.fetch_add(1, Ordering::Relaxed),
            (None, Some(_)) => entries.fetch_sub(1, Ordering::Relaxed),
            _ => return,
        };
    }
}

/// State beside the trees that counts upwards.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Totals {
    /// Changes of keys so far: the version of the last one.
    pub changes: u64,
    /// The id of the next collection.
    pub next_hash: u64,
    /// Keys removed because their time had come.
    pub expired: u64,
    /// When all keys are to be removed, in milliseconds since 1970; 0 for never.
    pub flush_ms: u64,
}

/// Sizes of the trees, kept by every change.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Sizes {
    pub keys: u64,
    pub expiring: u64,
    pub bytes: u64,
}

/// What can be chosen. It shows in replies, so it must be the same on all replicas and for ever.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// The most fields of a hash whose encoding is called "listpack".
    pub hash_listpack_entries: u64,
    /// The longest field or value, in bytes, of such a hash.
    pub hash_listpack_value: usize,
    /// The most members of a set of integers whose encoding is called "intset".
    pub set_intset_entries: u64,
    /// The most members of a sorted set whose encoding is called "listpack".
    pub zset_listpack_entries: u64,
    /// The longest member, in bytes, of such a sorted set.
    pub zset_listpack_value: usize,
    /// The longest string that APPEND and SETRANGE may make, in bytes; at most
    /// [`MAX_VALUE_LEN`](crate::MAX_VALUE_LEN).
    pub value_len: usize,
}

impl Default for Limits {
    /// Redis's defaults.
    fn default() -> Limits {
        Limits {
            hash_listpack_entries: 128,
            hash_listpack_value: 64,
            set_intset_entries: 512,
            zset_listpack_entries: 128,
            zset_listpack_value: 64,
            value_len: crate::MAX_VALUE_LEN,
        }
    }
}

/// Numbers for INFO.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stats {
    /// Keys, among them those whose time has come but that are not removed yet.
    pub keys: u64,
    /// Keys with a time to live, of their own or of a field.
    pub expiring: u64,
    /// About how many bytes keys and values use, with what the index and the allocator add.
    pub bytes: u64,
    /// Keys removed because their time had come, in the life of the group.
    pub expired: u64,
}

/// One change, as the state before it.
enum Change {
    /// The key's value in a tree; the key is the next `key_len` bytes of the arena.
    Value { space: Space, key_len: u32, previous: Option<Value> },
    /// All trees.
    Flush { trees: Arc<Trees> },
}

/// What it takes to undo one request: the pre-images of what it changed, in order.
#[derive(Default)]
pub struct Undo {
    keys: SmallVec<[u8; 32]>,
    changes: SmallVec<[Change; 1]>,
    totals: Totals,
}

impl std::fmt::Debug for Undo {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Undo").field("changes", &self.changes.len()).finish()
    }
}

/// The service.
pub struct Store {
    pub(crate) trees: Arc<Trees>,
    pub(crate) totals: Totals,
    pub(crate) limits: Limits,
    pub(crate) checkpoint: Option<Checkpoint>,
    /// Counts the reads that draw at random outside the log; not part of the state.
    pub(crate) draws: AtomicU64,
    mark: Value,
    /// The value of entries that are no more than their key, shared by all.
    pub(crate) nothing: Value,
    undo: Undo,
    /// What this store has in common with others.
    pub(crate) shared: Option<Arc<Shared>>,
    /// Where there are others: what was changed, for `redo`.
    pub(crate) redo: Vec<u8>,
    /// Of which turn of the shared trees these are.
    pub(crate) turn: u64,
}

impl Default for Store {
    fn default() -> Store {
        Store::new(Limits::default())
    }
}

impl std::fmt::Debug for Store {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Store").field("totals", &self.totals).field("sizes", &self.sizes()).finish()
    }
}

/// About what one entry of a tree costs beside its bytes: a slot in a node three quarters full, the
/// rest of the key beside it, and for the value its header and the allocator's rounding.
const ENTRY_BYTES: usize = 32;
const VALUE_BYTES: usize = 40;

/// About how many bytes an entry uses.
pub(crate) fn weight(space: Space, key: &[u8], value: &Value) -> u64 {
    let value_bytes = match space {
        Space::Expiry => 0, // shared by all
        // As well.
        Space::Fields if value.slice.is_empty() && value.header.header.version() == 0 => 0,
        Space::Keys | Space::Fields => VALUE_BYTES + value.slice.len(),
    };
    (ENTRY_BYTES + key.len() + value_bytes) as u64
}

/// The place of a key in the expiry index.
fn expiry_entry(expire_ms: u64, key: &[u8]) -> Vec<u8> {
    [&expire_ms.to_be_bytes()[..], key].concat()
}

impl Store {
    /// An empty store.
    pub fn new(limits: Limits) -> Store {
        Store::with(Trees::new(), limits, None)
    }

    pub(crate) fn with(trees: Arc<Trees>, limits: Limits, shared: Option<Arc<Shared>>) -> Store {
        Store {
            trees,
            totals: Totals::default(),
            limits,
            checkpoint: None,
            draws: AtomicU64::new(0),
            mark: value(Header::new(Kind::Mark, 0, 0), b""),
            nothing: value(Header::new(Kind::Field, 0, 0), b""),
            undo: Undo::default(),
            shared,
            redo: Vec::new(),
            turn: 0,
        }
    }

    /// Numbers for INFO.
    pub fn stats(&self) -> Stats {
        let Sizes { keys, expiring, bytes } = self.sizes();
        let expired = self.shared.as_ref().map_or(self.totals.expired, |shared| shared.expired());
        Stats { keys, expiring, bytes, expired }
    }

    #[inline]
    pub(crate) fn sizes(&self) -> Sizes {
        self.trees.sizes()
    }

    /// Drops all state, and the checkpoint in progress.
    pub(crate) fn reset(&mut self) {
        self.trees = Trees::new();
        self.totals = Totals::default();
        self.checkpoint = None;
        self.undo = Undo::default();
    }

    /// Starts to note changes for one request.
    pub(crate) fn begin(&mut self) {
        match self.shared {
            None => self.undo = Undo { totals: self.totals, ..Undo::default() },
            Some(_) => self.redo.clear(),
        }
    }

    /// Ends the request: what was noted.
    pub(crate) fn end(&mut self) -> Undo {
        std::mem::take(&mut self.undo)
    }

    /// Takes a request back.
    pub(crate) fn take_back(&mut self, undo: Undo, guard: &Guard) {
        let mut end = undo.keys.len();
        for change in undo.changes.into_iter().rev() {
            match change {
                Change::Value { space, key_len, previous } => {
                    let start = end - key_len as usize;
                    self.exchange(space, &undo.keys[start..end], previous, guard);
                    end = start;
                }
                Change::Flush { trees } => self.trees = trees,
            }
        }
        self.totals = undo.totals;
    }

    /// The next version, for a change about to be made.
    #[inline]
    pub(crate) fn next_version(&mut self) -> u64 {
        self.totals.changes = match &self.shared {
            None => self.totals.changes + 1,
            Some(shared) => shared.tick(),
        };
        self.totals.changes
    }

    /// The id of a hash about to be made.
    pub(crate) fn next_hash_id(&mut self) -> u64 {
        self.next_ids(1)
    }

    /// The first of the ids of a collection about to be made.
    pub(crate) fn next_ids(&mut self, count: u64) -> u64 {
        let id = match &self.shared {
            None => self.totals.next_hash,
            Some(shared) => shared.take_ids(count),
        };
        self.totals.next_hash = id.wrapping_add(count);
        id
    }

    /// When all keys are to be removed, in milliseconds since 1970; 0 for never.
    fn flush_ms(&self) -> u64 {
        self.shared.as_ref().map_or(self.totals.flush_ms, |shared| shared.flush_ms())
    }

    pub(crate) fn set_flush_ms(&mut self, flush_ms: u64) {
        if let Some(shared) = &self.shared
            && shared.set_flush_ms(flush_ms) != flush_ms
        {
            image::push_flush_at(&mut self.redo, flush_ms);
        }
        self.totals.flush_ms = flush_ms;
    }

    /// The write primitive: sets or removes a key of a tree, and returns what it had.
    #[inline]
    pub(crate) fn put(
        &mut self,
        space: Space,
        key: &[u8],
        value: Option<Value>,
        guard: &Guard,
    ) -> Option<Value> {
        if self.shared.is_some() {
            if space != Space::Expiry {
                image::push(&mut self.redo, space, key, value.as_ref());
            }
            return self.exchange(space, key, value, guard);
        }
        let previous = self.exchange(space, key, value, guard);
        self.undo.keys.extend_from_slice(key);
        let change = Change::Value { space, key_len: key.len() as u32, previous: previous.clone() };
        self.undo.changes.push(change);
        previous
    }

    /// [`Store::put`] without the note for undo.
    #[inline]
    pub(crate) fn exchange(
        &mut self,
        space: Space,
        key: &[u8],
        value: Option<Value>,
        guard: &Guard,
    ) -> Option<Value> {
        let come = value.as_ref().map(|value| weight(space, key, value));
        let tree = self.trees.of(space);
        let previous = match value {
            Some(value) => tree.put(key, value, guard),
            None => tree.remove(key, guard),
        };
        let gone = previous.as_ref().map(|value| weight(space, key, value));
        self.trees.count(space, come, gone);
        if let Some(checkpoint) = &mut self.checkpoint {
            checkpoint.keep(&self.trees, space, key, &previous);
        }
        previous
    }

    /// Sets or removes a key with all that belongs to it: its entry in the expiry index, and the
    /// entries of the collection that it held and no longer holds. Returns what it had.
    #[inline]
    pub(crate) fn replace(
        &mut self,
        key: &[u8],
        value: Option<Value>,
        guard: &Guard,
    ) -> Option<Value> {
        let kept = value.as_ref().and_then(entries_of).map(|(_, id, _)| id);
        let previous = self.replace_head(key, value, guard);
        if let Some((ids, id, _)) = previous.as_ref().and_then(entries_of)
            && kept != Some(id)
        {
            for id in id..id.saturating_add(ids) {
                self.drop_fields(id, guard);
            }
        }
        previous
    }

    /// [`Store::replace`] that leaves a collection's entries where they are.
    #[inline]
    pub(crate) fn replace_head(
        &mut self,
        key: &[u8],
        value: Option<Value>,
        guard: &Guard,
    ) -> Option<Value> {
        let due = value.as_ref().map_or(0, due_ms);
        let previous = self.put(Space::Keys, key, value, guard);
        let before = previous.as_ref().map_or(0, due_ms);
        if before != due {
            if before != 0 {
                self.put(Space::Expiry, &expiry_entry(before, key), None, guard);
            }
            if due != 0 {
                let mark = Some(self.mark.clone());
                self.put(Space::Expiry, &expiry_entry(due, key), mark, guard);
            }
        }
        previous
    }

    /// Sets or removes a key as a checkpoint or a log says, with its entry in the expiry index.
    pub(crate) fn restore_key(&mut self, key: &[u8], value: Option<Value>, guard: &Guard) {
        let due = value.as_ref().map_or(0, due_ms);
        let previous = self.exchange(Space::Keys, key, value, guard);
        let before = previous.as_ref().map_or(0, due_ms);
        if before != 0 {
            self.exchange(Space::Expiry, &expiry_entry(before, key), None, guard);
        }
        if due != 0 {
            let mark = Some(self.mark.clone());
            self.exchange(Space::Expiry, &expiry_entry(due, key), mark, guard);
        }
    }

    /// Removes a key whose time has come, or the fields of its hash whose time has come. Returns
    /// what the key has now.
    pub(crate) fn settle(&mut self, key: &[u8], unix_ms: u64, guard: &Guard) -> Option<Value> {
        let value = self.trees.of(Space::Keys).get(key, guard)?;
        if value.header.header.is_expired(unix_ms) {
            self.replace(key, None, guard);
            self.totals.expired += 1;
            if let Some(shared) = &self.shared {
                shared.count_expired();
            }
            self.next_version();
            return None;
        }
        match HashHead::of(&value) {
            Some(head) if head.earliest_ms != 0 && head.earliest_ms <= unix_ms => {
                self.settle_fields(key, &value, head, unix_ms, guard)
            }
            _ => Some(value),
        }
    }

    fn settle_fields(
        &mut self,
        key: &[u8],
        value_before: &Value,
        mut head: HashHead,
        unix_ms: u64,
        guard: &Guard,
    ) -> Option<Value> {
        let (mut due, mut earliest) = (Vec::new(), u64::MAX);
        self.scan_fields(head.id, b"", guard, |field, value| {
            let expire_ms = value.header.header.expire_ms;
            if value.header.header.is_expired(unix_ms) {
                due.push(field.to_vec());
            } else if expire_ms != 0 {
                earliest = earliest.min(expire_ms);
            }
            true
        });
        for field in &due {
            self.put(Space::Fields, &field_key(head.id, field), None, guard);
        }
        head.count = head.count.saturating_sub(due.len() as u64);
        head.earliest_ms = if earliest == u64::MAX { 0 } else { earliest };
        let header = value_before.header.header;
        // Without a removal only the bound was too low, which is no change.
        let version = if due.is_empty() { header.version() } else { self.next_version() };
        let header = Header::new(Kind::Hash, version, header.expire_ms);
        let settled = (head.count > 0).then(|| value(header, &head.to_bytes()));
        self.replace(key, settled.clone(), guard);
        settled
    }

    fn drop_fields(&mut self, id: u64, guard: &Guard) {
        let mut fields = Vec::new();
        self.scan_fields(id, b"", guard, |field, _| {
            fields.push(field.to_vec());
            true
        });
        for field in fields {
            self.put(Space::Fields, &field_key(id, &field), None, guard);
        }
    }

    /// Visits the entries under an id from `start` on, in order, until `visit` returns false.
    pub(crate) fn scan_fields(
        &self,
        id: u64,
        start: &[u8],
        guard: &Guard,
        mut visit: impl FnMut(&[u8], &Value) -> bool,
    ) {
        let start = field_key(id, start);
        let prefix = id.to_be_bytes();
        let tree = self.trees.of(Space::Fields);
        tree.scan(Bound::Included(&start), guard, |key, value| match key.strip_prefix(&prefix) {
            Some(field) => visit(field, value),
            None => false,
        });
    }

    /// Visits the entries under an id from `end` down, which is included, or from the last one.
    pub(crate) fn scan_fields_reverse(
        &self,
        id: u64,
        end: Option<&[u8]>,
        guard: &Guard,
        mut visit: impl FnMut(&[u8], &Value) -> bool,
    ) {
        let prefix = id.to_be_bytes();
        let end = match (end, id.checked_add(1)) {
            (Some(end), _) => Bound::Included(field_key(id, end)),
            (None, Some(next)) => Bound::Excluded(next.to_be_bytes().to_vec()),
            (None, None) => Bound::Unbounded,
        };
        let tree = self.trees.of(Space::Fields);
        tree.scan_reverse(end.as_ref().map(|end| &end[..]), guard, |key, value| {
            match key.strip_prefix(&prefix) {
                Some(field) => visit(field, value),
                None => false,
            }
        });
    }

    /// Swaps all trees for empty ones.
    pub(crate) fn flush(&mut self) {
        let trees = std::mem::replace(&mut self.trees, Trees::new());
        match &self.shared {
            None => self.undo.changes.push(Change::Flush { trees }),
            Some(shared) => {
                shared.swap(&self.trees);
                image::push_flush(&mut self.redo);
            }
        }
        self.next_version();
    }

    /// Whether the time has come to remove all keys.
    #[inline]
    pub(crate) fn flush_is_due(&self, unix_ms: u64) -> bool {
        let flush_ms = self.flush_ms();
        flush_ms != 0 && flush_ms <= unix_ms
    }

    /// When something is to be done that no command asks for.
    pub(crate) fn next_due(&self, guard: &Guard) -> Option<u64> {
        let flush = Some(self.flush_ms()).filter(|&time| time != 0);
        self.earliest_expiry(guard).into_iter().chain(flush).min()
    }

    /// The time of the first key to expire.
    fn earliest_expiry(&self, guard: &Guard) -> Option<u64> {
        if self.sizes().expiring == 0 {
            return None;
        }
        let mut earliest = None;
        let tree = self.trees.of(Space::Expiry);
        tree.scan(Bound::Unbounded, guard, |entry, _| {
            earliest = entry.first_chunk::<8>().map(|time| u64::from_be_bytes(*time));
            false
        });
        earliest
    }

    /// Settles at most `limit` keys whose time has come, the oldest first.
    pub(crate) fn sweep(&mut self, unix_ms: u64, limit: usize, guard: &Guard) {
        for key in self.due_keys(unix_ms, limit, guard) {
            self.settle(&key, unix_ms, guard);
        }
    }

    /// At most `limit` keys whose time has come, the oldest first.
    pub(crate) fn due_keys(&self, unix_ms: u64, limit: usize, guard: &Guard) -> Vec<Vec<u8>> {
        let mut due: Vec<Vec<u8>> = Vec::new();
        if self.sizes().expiring == 0 {
            return due;
        }
        let tree = self.trees.of(Space::Expiry);
        tree.scan(Bound::Unbounded, guard, |entry, _| {
            let Some((time, key)) = entry.split_first_chunk::<8>() else { return false };
            if u64::from_be_bytes(*time) > unix_ms || due.len() == limit {
                return false;
            }
            due.push(key.to_vec());
            true
        });
        due
    }
}

/// Calls `with` with the place of a hash's field, made without an allocation if it is short.
#[inline]
pub(crate) fn with_field_key<R>(id: u64, field: &[u8], with: impl FnOnce(&[u8]) -> R) -> R {
    const SHORT: usize = 64;
    let length = 8 + field.len();
    if length > SHORT {
        return with(&field_key(id, field));
    }
    let mut key = [0; SHORT];
    key[..8].copy_from_slice(&id.to_be_bytes());
    key[8..length].copy_from_slice(field);
    with(&key[..length])
}

/// The place of a hash's field.
pub(crate) fn field_key(id: u64, field: &[u8]) -> Vec<u8> {
    [&id.to_be_bytes()[..], field].concat()
}
