//! Buckets: what a layer is while it has few keys.
//!
//! A layer takes a node at least, and of short random keys most layers would have two keys. So keys
//! that share a slice share a bucket first, which bursts into a layer when it overflows, as in the
//! burst tries of Heinz, Zobel and Williams (2002). Not in [Mao].
//!
//! Invariant: a bucket holds 2 to `MOST` suffixes, none empty, in ascending order. They never
//! change: who adds or takes a key makes a new bucket under the border's lock, stores the link to
//! it over the old one's, and retires that. A reader of the old one sees what was there when the
//! link was replaced, or later values: something that was there during its operation.
//! Invariant: values are stored, in place, and copied to a new bucket under the border's lock only.

use std::{
    alloc::{Layout, alloc, dealloc, handle_alloc_error},
    ops::{Deref, DerefMut},
    ptr::{self, NonNull},
    slice,
};

use crate::{
    field::{LinkOrValue, LinkOrValueCell, RawValue, Ref},
    guard::Guard,
    slab::{self, Size},
};

/// Keys in a bucket. With suffixes of two bytes so many just fit a cache line.
pub(crate) const MOST: usize = 4;

/// The head of a bucket. In the same memory the values follow, then the suffixes' bytes.
#[repr(C, align(8))]
pub(crate) struct Bucket {
    len: u32,
    /// Where each suffix ends, counted from the start of the first.
    ends: [u32; MOST],
}

/// A suffix and its key's value.
pub(crate) type Key<'k> = (&'k [u8], RawValue);

/// The keys of a bucket, or one more.
pub(crate) struct Keys<'k> {
    keys: [Key<'k>; MOST + 1],
    len: usize,
}

impl<'k> Keys<'k> {
    pub(crate) fn pair(a: Key<'k>, b: Key<'k>) -> Self {
        let mut keys = Keys { keys: [(&[], ptr::null_mut()); MOST + 1], len: 2 };
        (keys.keys[0], keys.keys[1]) = if a.0 < b.0 { (a, b) } else { (b, a) };
        keys
    }

    pub(crate) fn insert(&mut self, index: usize, key: Key<'k>) {
        self.len += 1;
        self.keys[index..self.len].rotate_right(1);
        self.keys[index] = key;
    }

    pub(crate) fn remove(&mut self, index: usize) {
        self.keys[index..self.len].rotate_left(1);
        self.len -= 1;
    }
}

impl<'k> Deref for Keys<'k> {
    type Target = [Key<'k>];

    fn deref(&self) -> &[Key<'k>] {
        &self.keys[..self.len]
    }
}

impl DerefMut for Keys<'_> {
    fn deref_mut(&mut self) -> &mut Self::Target {
        &mut self.keys[..self.len]
    }
}

impl Bucket {
    /// A bucket of these keys, which ascend.
    pub(crate) fn of<'g>(keys: &[Key<'_>]) -> Ref<'g, Bucket> {
        assert!((2..=MOST).contains(&keys.len()));
        let mut head = Bucket { len: keys.len() as u32, ends: [0; MOST] };
        let mut total = 0;
        for (end, (suffix, _)) in head.ends.iter_mut().zip(keys) {
            total += suffix.len() as u32;
            *end = total;
        }
        let layout = head.layout();
        let bucket = if layout.size() <= Size::Line.bytes() {
            slab::take(Size::Line)
        } else {
            // SAFETY: the layout is not empty, it holds at least the head.
            let memory = unsafe { alloc(layout) };
            NonNull::new(memory).unwrap_or_else(|| handle_alloc_error(layout))
        };
        let bucket = bucket.cast::<Bucket>();
        // SAFETY: the memory is new, and has room and alignment for the head.
        unsafe { bucket.write(head) };
        // SAFETY: the bucket lives until `free`, which is called after retirement or by the owner
        // of the whole tree, hence after every 'g in which a border could lead to it.
        let bucket: Ref<'g, Bucket> = unsafe { Ref::new(bucket) };
        for (index, (suffix, value)) in keys.iter().enumerate() {
            let cell = LinkOrValueCell::none();
            cell.store(LinkOrValue::Value(*value));
            let start = bucket.start(index);
            // SAFETY: the layout has room for these, and nobody knows of the bucket yet.
            unsafe {
                bucket.values().add(index).write(cell);
                let from = NonNull::from(*suffix).cast::<u8>();
                bucket.bytes().add(start).copy_from_nonoverlapping(from, suffix.len());
            }
        }
        bucket
    }

    fn layout(&self) -> Layout {
        let (len, bytes) = (self.len as usize, self.ends[self.len as usize - 1] as usize);
        let values = Layout::array::<LinkOrValueCell>(len).expect("a few values");
        let bytes = Layout::array::<u8>(bytes).expect("a few keys fit the address space");
        let (layout, _) = Layout::new::<Bucket>().extend(values).expect("a few values");
        layout.extend(bytes).expect("a few keys fit the address space").0
    }

    /// Where a suffix starts.
    fn start(&self, index: usize) -> usize {
        index.checked_sub(1).map_or(0, |before| self.ends[before] as usize)
    }

    pub(crate) fn len(&self) -> usize {
        self.len as usize
    }

    /// Gives the memory back. The values are somebody else's.
    ///
    /// # Safety
    /// Nobody uses the bucket any more.
    pub(crate) unsafe fn free(bucket: NonNull<Bucket>) {
        // SAFETY: the bucket is still allocated and the caller is its last user.
        let layout = unsafe { bucket.as_ref() }.layout();
        if layout.size() <= Size::Line.bytes() {
            // SAFETY: `of` took the memory with this size, and nobody uses it any more.
            unsafe { slab::give(bucket.cast(), Size::Line) };
        } else {
            // SAFETY: allocated in `of` with this layout. Nothing in it needs a drop.
            unsafe { dealloc(bucket.as_ptr().cast(), layout) };
        }
    }
}

impl<'g> Ref<'g, Bucket> {
    fn values(self) -> NonNull<LinkOrValueCell> {
        // SAFETY: the values follow the head in the same memory, and need no padding.
        unsafe { self.as_non_null().add(1).cast() }
    }

    fn bytes(self) -> NonNull<u8> {
        // SAFETY: the bytes follow the values in the same memory; a byte needs no padding.
        unsafe { self.values().add(self.get().len()).cast() }
    }

    fn cell(self, index: usize) -> &'g LinkOrValueCell {
        assert!(index < self.get().len());
        // SAFETY: `of` wrote so many cells, and the bucket outlives 'g.
        unsafe { self.values().add(index).as_ref() }
    }

    pub(crate) fn suffix(self, index: usize) -> &'g [u8] {
        assert!(index < self.get().len());
        let (start, end) = (self.get().start(index), self.get().ends[index] as usize);
        // SAFETY: `of` wrote these bytes, they never change, and the bucket outlives 'g.
        unsafe { slice::from_raw_parts(self.bytes().add(start).as_ptr(), end - start) }
    }

    pub(crate) fn value(self, index: usize) -> RawValue {
        self.cell(index).load()
    }

    /// Gives a key another value. Under the border's lock.
    pub(crate) fn set_value(self, index: usize, value: RawValue) {
        self.cell(index).store(LinkOrValue::Value(value));
    }

    /// The place of a suffix, or where it would be.
    pub(crate) fn search(self, suffix: &[u8]) -> Result<usize, usize> {
        for index in 0..self.get().len() {
            match self.suffix(index).cmp(suffix) {
                std::cmp::Ordering::Less => {}
                std::cmp::Ordering::Equal => return Ok(index),
                std::cmp::Ordering::Greater => return Err(index),
            }
        }
        Err(self.get().len())
    }

    /// The value of the key with this suffix. Apart, so that lookups without buckets stay short.
    #[inline(never)]
    pub(crate) fn find(self, suffix: &[u8]) -> Option<RawValue> {
        (0..self.get().len()).find(|&i| self.suffix(i) == suffix).map(|i| self.value(i))
    }

    /// All keys. Under the border's lock, if the values are to stay the tree's.
    pub(crate) fn keys(self) -> Keys<'g> {
        let mut keys = Keys { keys: [(&[], ptr::null_mut()); MOST + 1], len: self.get().len() };
        for index in 0..keys.len {
            keys.keys[index] = (self.suffix(index), self.value(index));
        }
        keys
    }

    /// Frees a bucket to which no link is left when no guard can reach it any more.
    pub(crate) fn retire(self, guard: &Guard) {
        let bucket = self.as_non_null();
        // SAFETY: only threads that are pinned now can hold it, and they are gone when this runs.
        // Buckets have no ties to a thread.
        unsafe { guard.retire(move || Bucket::free(bucket)) };
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    fn value(n: usize) -> RawValue {
        ptr::without_provenance_mut(n)
    }

    #[test]
    fn suffixes_and_values_are_found() {
        let long = [b'x'; 300];
        let mut keys = Keys::pair((b"b", value(2)), (b"a", value(1)));
        for (index, key) in [(2, (&long[..], value(4))), (2, (&b"c"[..], value(3)))] {
            let bucket = Bucket::of(&keys);
            assert_eq!(bucket.search(key.0), Err(index));
            assert_eq!(bucket.find(key.0), None);
            keys.insert(index, key);
            // SAFETY: nothing else uses the bucket.
            unsafe { Bucket::free(bucket.as_non_null()) };
        }
        let bucket = Bucket::of(&keys);
        for (n, suffix) in [(1, &b"a"[..]), (2, b"b"), (3, b"c"), (4, &long)] {
            assert_eq!(bucket.search(suffix), Ok(n - 1));
            assert_eq!(bucket.find(suffix), Some(value(n)));
        }
        bucket.set_value(1, value(20));
        let mut keys = bucket.keys();
        keys.remove(0);
        assert_eq!(*keys, [(&b"b"[..], value(20)), (&b"c"[..], value(3)), (&long[..], value(4))]);
        // SAFETY: nothing else uses the bucket, and what borrows from it is not used again.
        unsafe { Bucket::free(bucket.as_non_null()) };
    }

    #[test]
    fn few_short_keys_fit_a_cache_line() {
        let keys = [&b"ab"[..], b"cd", b"ef", b"gh"].map(|suffix| (suffix, value(1)));
        let bucket = Bucket::of(&keys);
        assert_eq!(bucket.get().layout().size(), Size::Line.bytes());
        // SAFETY: nothing else uses the bucket.
        unsafe { Bucket::free(bucket.as_non_null()) };
    }
}
