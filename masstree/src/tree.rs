//! The map: its operations, in terms of values rather than raw slots.

use std::{
    marker::PhantomData,
    mem::needs_drop,
    ops::{Bound, RangeBounds},
};

use crate::{
    border::Border,
    borrow::Borrowed,
    bucket::Bucket,
    collapse::Emptied,
    counter::Counter,
    entry::Entry,
    field::{Link, LinkOrValue, RawValue, Ref},
    get::{get, top_layer},
    guard::{Guard, pin},
    key::MAX_KEY_LEN,
    multi::multi_get,
    node::Node,
    put::{self, Change},
    range::Range,
    scan::{Direction, scan},
    slot::Slot,
};

/// A concurrent map from byte strings to values, in the keys' lexicographic order ([Mao] 3.1).
///
/// Any number of threads may use it at once. Operations on one key are linearizable; scans are
/// not atomic. A value that was replaced or removed is dropped once no guard is left that could
/// still see it.
///
/// ```
/// use std::{ops::Bound, sync::Arc};
/// use masstree::{Masstree, pin};
///
/// let tree = Masstree::<Arc<u64>>::new();
/// let guard = pin();
/// assert!(tree.put(b"one", Arc::new(1), &guard).is_none());
/// assert_eq!(*tree.put(b"one", Arc::new(10), &guard).unwrap(), 1);
/// tree.put(b"two", Arc::new(2), &guard);
///
/// assert_eq!(tree.get_with(b"one", &guard, |value| **value), Some(10));
/// let mut seen = Vec::new();
/// tree.scan(Bound::Included(b"p"), &guard, |key, value| {
///     seen.push((key.to_vec(), **value));
///     true
/// });
/// assert_eq!(seen, [(b"two".to_vec(), 2)]);
/// assert_eq!(*tree.remove(b"one", &guard).unwrap(), 10);
/// assert_eq!(tree.len(), 1);
/// ```
pub struct Masstree<V: Slot> {
    root: Link<Node>,
    emptied: Emptied,
    len: Counter,
    values: PhantomData<V>,
}

impl<V: Slot> Masstree<V> {
    /// An empty map.
    pub fn new() -> Self {
        let root = Border::new_locked(0, true).as_ref().node();
        Masstree {
            root: Link::to(root),
            emptied: Emptied::default(),
            len: Counter::default(),
            values: PhantomData,
        }
    }

    pub(crate) fn root(&self) -> &Link<Node> {
        &self.root
    }

    #[cfg(all(test, not(loom)))]
    pub(crate) fn emptied(&self) -> &Emptied {
        &self.emptied
    }

    /// Takes out the empty layers that have been left in the tree.
    pub(crate) fn collapse_emptied(&self, guard: &Guard) {
        self.emptied.collapse_all(&self.root, guard);
    }

    fn change(
        &self,
        key: &[u8],
        guard: &Guard,
        decide: impl FnOnce(Option<RawValue>) -> Change,
    ) -> Option<RawValue> {
        put::change((&self.root, &self.emptied), key, guard, decide)
    }

    /// The number of keys: exact when no writer is active, otherwise near.
    pub fn len(&self) -> usize {
        self.len.sum()
    }

    /// Whether `len` is 0.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The value of `key`.
    pub fn get(&self, key: &[u8], guard: &Guard) -> Option<V> {
        self.get_with(key, guard, V::clone)
    }

    /// Applies `f` to the value of `key`, without counting a reference.
    pub fn get_with<R>(&self, key: &[u8], guard: &Guard, f: impl FnOnce(&V) -> R) -> Option<R> {
        // SAFETY: the tree owned the value during this call, under this guard.
        get(&self.root, key, guard).map(|raw| unsafe { look(raw, f) })
    }

    /// Whether `key` has a value.
    pub fn contains_key(&self, key: &[u8], guard: &Guard) -> bool {
        get(&self.root, key, guard).is_some()
    }

    /// Lends the value of `key`.
    ///
    /// ```
    /// # use std::sync::Arc;
    /// let tree = masstree::Masstree::<Arc<String>>::new();
    /// let guard = masstree::pin();
    /// tree.put(b"name", Arc::new("Masstree".into()), &guard);
    /// let name = tree.get_ref(b"name", &guard).unwrap();
    /// tree.remove(b"name", &guard);
    /// assert_eq!(name.as_str(), "Masstree");
    /// ```
    pub fn get_ref<'a>(&'a self, key: &[u8], guard: &'a Guard) -> Option<Borrowed<'a, V>> {
        // SAFETY: the tree owned the value during this call; the guard keeps it from being dropped
        // when it leaves the tree, and the borrow of the tree from being dropped with the tree.
        get(&self.root, key, guard).map(|raw| unsafe { Borrowed::new(raw) })
    }

    /// The key's place, with its value, for changes that depend on the value.
    ///
    /// ```
    /// let tree = masstree::Masstree::<u64>::new();
    /// let guard = masstree::pin();
    /// assert_eq!(tree.entry(b"visits", &guard).or_insert(1), 1);
    ///
    /// let entry = tree.entry(b"visits", &guard);
    /// tree.put(b"visits", 10, &guard);
    /// let entry = entry.replace(None).unwrap_err();
    /// assert_eq!(entry.get(), Some(&10));
    /// assert_eq!(entry.replace(None).unwrap(), Some(10));
    /// assert!(tree.is_empty());
    /// ```
    pub fn entry<'t>(&'t self, key: &'t [u8], guard: &'t Guard) -> Entry<'t, V> {
        Entry::new(self, key, guard)
    }

    /// An iterator over a range of keys, from both ends. A range whose ends are in the wrong order
    /// is empty.
    ///
    /// ```
    /// use std::ops::Bound::{Excluded, Unbounded};
    /// # let tree = masstree::Masstree::<u64>::new();
    /// # let guard = masstree::pin();
    /// for (i, key) in ["ant", "bee", "cat", "dog"].iter().enumerate() {
    ///     tree.put(key.as_bytes(), i as u64, &guard);
    /// }
    /// let keys = |range: masstree::Range<u64>| -> Vec<u64> { range.map(|(_, n)| n).collect() };
    /// assert_eq!(keys(tree.range("b".."d", &guard)), [1, 2]);
    /// assert_eq!(keys(tree.range("bee"..="dog", &guard)), [1, 2, 3]);
    /// assert_eq!(keys(tree.range::<[u8]>((Excluded(&b"bee"[..]), Unbounded), &guard)), [2, 3]);
    ///
    /// let mut backwards = tree.iter(&guard).rev();
    /// assert_eq!(backwards.next(), Some((b"dog".to_vec(), 3)));
    ///
    /// let mut lent = tree.range("c".., &guard);
    /// while let Some((key, value)) = lent.next_entry() {
    ///     assert_eq!((key, *value), (&b"cat"[..], 2));
    ///     break;
    /// }
    /// ```
    pub fn range<'t, K: AsRef<[u8]> + ?Sized>(
        &'t self,
        range: impl RangeBounds<K>,
        guard: &'t Guard,
    ) -> Range<'t, V> {
        Range::new(self, range, guard)
    }

    /// An iterator over the keys that begin with `prefix`, from both ends.
    ///
    /// ```
    /// let tree = masstree::Masstree::<u64>::new();
    /// let guard = masstree::pin();
    /// for (i, key) in ["user/1", "user/2", "users", "visits"].iter().enumerate() {
    ///     tree.put(key.as_bytes(), i as u64, &guard);
    /// }
    /// let users: Vec<u64> = tree.prefix(b"user/", &guard).map(|(_, n)| n).collect();
    /// assert_eq!(users, [0, 1]);
    /// ```
    pub fn prefix<'t>(&'t self, prefix: &[u8], guard: &'t Guard) -> Range<'t, V> {
        // The first key after them all: the last byte that can be raised is, and ends it.
        let mut after = prefix.to_vec();
        while after.pop_if(|byte| *byte == u8::MAX).is_some() {}
        let end = match after.last_mut() {
            Some(last) => {
                *last += 1;
                Bound::Excluded(&after[..])
            }
            None => Bound::Unbounded,
        };
        self.range::<[u8]>((Bound::Included(prefix), end), guard)
    }

    /// An iterator over all keys, from both ends.
    pub fn iter<'t>(&'t self, guard: &'t Guard) -> Range<'t, V> {
        self.range::<[u8]>(.., guard)
    }

    /// The values of many keys, in their order.
    ///
    /// ```
    /// let tree = masstree::Masstree::<u64>::new();
    /// let guard = masstree::pin();
    /// tree.put(b"one", 1, &guard);
    /// assert_eq!(tree.multi_get(&["one", "two"], &guard), [Some(1), None]);
    /// ```
    pub fn multi_get<K: AsRef<[u8]>>(&self, keys: &[K], guard: &Guard) -> Vec<Option<V>> {
        let mut values = vec![None; keys.len()];
        self.multi_get_with(keys, guard, |i, value| values[i] = value.cloned());
        values
    }

    /// Hands the number and the value of each key to `f`, in no particular order.
    ///
    /// Faster than one lookup after the other in trees beyond the caches, since the waits for
    /// memory overlap ([Mao] 3.1.8). Each lookup is linearizable; all together are not atomic.
    pub fn multi_get_with<K: AsRef<[u8]>>(
        &self,
        keys: &[K],
        guard: &Guard,
        mut f: impl FnMut(usize, Option<&V>),
    ) {
        multi_get(&self.root, keys, guard, |i, raw| match raw {
            // SAFETY: the tree owned the value during this call, under this guard.
            Some(raw) => unsafe { look(raw, |value| f(i, Some(value))) },
            None => f(i, None),
        });
    }

    /// Sets the value of `key` and returns the previous one.
    ///
    /// # Panics
    /// If the key is longer than [`MAX_KEY_LEN`].
    pub fn put(&self, key: &[u8], value: V, guard: &Guard) -> Option<V> {
        check_key(key);
        let new = value.into_raw();
        let old = self.change(key, guard, |_| Change::Set(new));
        if old.is_none() {
            self.len.add(1);
        }
        old.map(|raw| release(raw, guard))
    }

    /// Removes `key` and returns its value.
    pub fn remove(&self, key: &[u8], guard: &Guard) -> Option<V> {
        let old = self.change(key, guard, |old| match old {
            Some(_) => Change::Remove,
            None => Change::Keep,
        })?;
        self.len.add(-1);
        Some(release(old, guard))
    }

    /// Sets the value of `key` if it has none; otherwise fails with the one it has.
    ///
    /// # Panics
    /// If the key is longer than [`MAX_KEY_LEN`].
    pub fn insert_if_absent(&self, key: &[u8], value: V, guard: &Guard) -> Result<(), V> {
        match self.compare_and_set(key, guard, None, Some(value)) {
            Ok(_) => Ok(()),
            Err(current) => Err(current.expect("only a present key differs from none")),
        }
    }

    /// Makes `new` the value of `key`, where none means no such key, if its value is `expected`:
    /// that very pointer, not an equal value. Returns the previous value, which is `expected`; or
    /// fails with the current one.
    ///
    /// # Panics
    /// If the key is longer than [`MAX_KEY_LEN`].
    pub fn compare_and_set(
        &self,
        key: &[u8],
        guard: &Guard,
        expected: Option<&V>,
        new: Option<V>,
    ) -> Result<Option<V>, Option<V>> {
        check_key(key);
        let expected = expected.map(V::as_raw);
        let new = new.map(V::into_raw);
        let mut matched = false;
        let old = self.change(key, guard, |current| {
            matched = current == expected;
            match (matched, new, current) {
                (true, Some(new), _) => Change::Set(new),
                (true, None, Some(_)) => Change::Remove,
                _ => Change::Keep,
            }
        });
        if !matched {
            // SAFETY: `new` came from `into_raw` above, and the tree did not take it.
            drop(new.map(|raw| unsafe { V::from_raw(raw) }));
            // SAFETY: the tree owned the value during this call, under this guard.
            return Err(old.map(|raw| unsafe { look(raw, V::clone) }));
        }
        self.len.add(isize::from(new.is_some()) - isize::from(old.is_some()));
        Ok(old.map(|raw| release(raw, guard)))
    }

    /// Makes what `change` makes of the key's value its value, where none means no such key, and
    /// returns the previous one. No other change of the key comes between.
    ///
    /// `change` runs once, while the part of the tree that holds the key is locked: it should be
    /// short, and must not use a tree.
    ///
    /// ```
    /// let tree = masstree::Masstree::<u64>::new();
    /// let guard = masstree::pin();
    /// tree.update(b"visits", &guard, |n| Some(n.copied().unwrap_or(0) + 1));
    /// assert_eq!(tree.update(b"visits", &guard, |n| n.map(|n| n + 1)), Some(1));
    /// assert_eq!(tree.update(b"visits", &guard, |_| None), Some(2));
    /// assert!(tree.is_empty());
    /// ```
    ///
    /// # Panics
    /// If the key is longer than [`MAX_KEY_LEN`], or `change` panics: then nothing has changed.
    pub fn update(
        &self,
        key: &[u8],
        guard: &Guard,
        change: impl FnOnce(Option<&V>) -> Option<V>,
    ) -> Option<V> {
        check_key(key);
        let mut there_now = false;
        let old = self.change(key, guard, |current| {
            // SAFETY: the tree owns the value, and keeps it while the node is locked.
            let seen = current.map(|raw| unsafe { Borrowed::new(raw) });
            let new = change(seen.as_deref());
            there_now = new.is_some();
            match (new, current) {
                (Some(new), _) => Change::Set(new.into_raw()),
                (None, Some(_)) => Change::Remove,
                (None, None) => Change::Keep,
            }
        });
        self.len.add(isize::from(there_now) - isize::from(old.is_some()));
        old.map(|raw| release(raw, guard))
    }

    /// Visits keys in ascending order from `start` on, until `visit` returns false.
    ///
    /// Every key that is present during the whole scan is visited exactly once. Of keys that come
    /// or go meanwhile some are visited, in order too. `visit` may use the tree.
    pub fn scan(
        &self,
        start: Bound<&[u8]>,
        guard: &Guard,
        mut visit: impl FnMut(&[u8], &V) -> bool,
    ) {
        scan(&self.root, start, Direction::Ascending, guard, |key, raw| {
            // SAFETY: the tree owned the value during this call, under this guard.
            unsafe { look(raw, |value| visit(key, value)) }
        });
    }

    /// Visits keys in descending order from the upper end `start` on, until `visit` returns false.
    /// Promises what `scan` promises.
    pub fn scan_reverse(
        &self,
        start: Bound<&[u8]>,
        guard: &Guard,
        mut visit: impl FnMut(&[u8], &V) -> bool,
    ) {
        scan(&self.root, start, Direction::Descending, guard, |key, raw| {
            // SAFETY: the tree owned the value during this call, under this guard.
            unsafe { look(raw, |value| visit(key, value)) }
        });
    }
}

impl<V: Slot> Default for Masstree<V> {
    fn default() -> Self {
        Self::new()
    }
}

impl<V: Slot> std::fmt::Debug for Masstree<V> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Masstree").field("len", &self.len()).finish_non_exhaustive()
    }
}

impl<V: Slot> Drop for Masstree<V> {
    fn drop(&mut self) {
        let guard = pin();
        // A list of what is left to free, since layers may be thousands deep.
        let mut left = vec![layer_top(top_layer(&self.root, &guard), &guard)];
        while let Some(node) = left.pop() {
            let is_border = node.get().version.is_border();
            if is_border {
                let border = node.border().lock();
                let permutation = border.permutation();
                for index in 0..permutation.len() {
                    match border.target(permutation.slot(index), &guard) {
                        LinkOrValue::Layer(next) => left.push(layer_top(next, &guard)),
                        // SAFETY: a live slot owns its value, and is not looked at again.
                        LinkOrValue::Value(raw) => drop(unsafe { V::from_raw(raw) }),
                        LinkOrValue::Bucket(bucket) => {
                            for (_, raw) in bucket.keys().iter() {
                                // SAFETY: as above, for each of the bucket's keys.
                                drop(unsafe { V::from_raw(*raw) });
                            }
                            // SAFETY: the slot held the only link to it.
                            unsafe { Bucket::free(bucket.as_non_null()) };
                        }
                    }
                }
            } else {
                let interior = node.interior();
                left.extend((0..=interior.nkeys()).filter_map(|i| interior.child(i, &guard)));
            }
            // SAFETY: we have the tree to ourselves, each node has one place in it, and this one
            // is not used again. Nodes that left the tree before are not met here.
            unsafe { node.free(is_border) };
        }
    }
}

/// A layer's root, in a tree at rest.
pub(crate) fn layer_top<'g>(entrance: Ref<'g, Node>, guard: &'g Guard) -> Ref<'g, Node> {
    let mut node = entrance;
    while let Some(parent) = node.get().parent.load(guard) {
        node = parent.node();
    }
    node
}

fn check_key(key: &[u8]) {
    assert!(key.len() <= MAX_KEY_LEN, "a key has at most {MAX_KEY_LEN} bytes, not {}", key.len());
}

/// Lends a value of the tree to `f`.
///
/// # Safety
/// The tree's reference to the value is not dropped before `f` returns.
unsafe fn look<V: Slot, R>(raw: RawValue, f: impl FnOnce(&V) -> R) -> R {
    // SAFETY: by the caller's promise.
    let value: Borrowed<'_, V> = unsafe { Borrowed::new(raw) };
    f(&value)
}

/// Returns a value that has left the tree to the caller, as a clone, since readers that are pinned
/// may still be looking at, or about to clone, the tree's own. That one is dropped after them.
fn release<V: Slot>(raw: RawValue, guard: &Guard) -> V {
    if !needs_drop::<V>() {
        // SAFETY: values that need no drop may be made any number of times.
        return unsafe { V::from_raw(raw) };
    }
    // SAFETY: the tree's own reference is alive until it is retired below.
    let value = unsafe { look(raw, V::clone) };
    // SAFETY: the last link to the value is gone, and a `Slot` is `Send`.
    unsafe { guard.retire(move || drop(V::from_raw(raw))) };
    value
}
