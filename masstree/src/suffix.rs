//! Key suffixes of a border node, in one block that grows with what the node needs ([Mao] 3.1.2,
//! `keysuffixes`).
//!
//! A block is append-only: bytes that a slot's entry ever named are never written again, so a
//! reader with an outdated view reads old bytes, not torn ones. When a block is full, the suffixes
//! still in use move to a new block, sized by their total length, and the old one is retired.
//! Nodes without long keys have no block at all. Deliberately absent: storage inside the node.

use std::{
    alloc::{Layout, alloc, dealloc, handle_alloc_error},
    array,
    ptr::NonNull,
    slice,
};

use crate::{
    field::{Ref, Word},
    permutation::WIDTH,
};

/// The head of a block; `capacity` bytes follow it in the same allocation.
#[repr(C)]
pub(crate) struct Suffixes {
    capacity: usize,
    /// Bytes handed out. Used only under the node's lock.
    used: Word,
    /// Per slot, the start (high half) and length (low half) of its suffix.
    entries: [Word; WIDTH],
}

impl Suffixes {
    /// A block for `live` bytes of suffixes, with some room for more.
    pub(crate) fn with_room_for<'g>(live: usize) -> Ref<'g, Suffixes> {
        let capacity = (live + live / 2).max(32).next_multiple_of(16);
        let layout = Self::layout(capacity);
        // SAFETY: the layout is not empty, it holds at least the head.
        let block = unsafe { alloc(layout) }.cast::<Suffixes>();
        let Some(block) = NonNull::new(block) else { handle_alloc_error(layout) };
        let head =
            Suffixes { capacity, used: Word::new(0), entries: array::from_fn(|_| Word::new(0)) };
        // SAFETY: the block was just allocated with room and alignment for the head.
        unsafe { block.write(head) };
        // SAFETY: the block lives until `free`, which is called after retirement or by the owner
        // of the whole tree, hence after every 'g in which a node could reach it.
        unsafe { Ref::new(block) }
    }

    fn layout(capacity: usize) -> Layout {
        Layout::new::<Suffixes>()
            .extend(Layout::array::<u8>(capacity).expect("suffixes fit the address space"))
            .expect("suffixes fit the address space")
            .0
    }

    /// # Safety
    /// Nobody uses the block any more.
    pub(crate) unsafe fn free(block: NonNull<Suffixes>) {
        // SAFETY: the block is still allocated and the caller is its last user.
        let layout = Self::layout(unsafe { block.as_ref() }.capacity);
        // SAFETY: allocated in `with_room_for` with this very layout; the head needs no drop on
        // any platform, its fields are integers.
        unsafe { dealloc(block.as_ptr().cast(), layout) };
    }
}

impl<'g> Ref<'g, Suffixes> {
    fn bytes(self) -> NonNull<u8> {
        // SAFETY: the bytes follow the head in the same allocation; a byte needs no padding.
        unsafe { self.as_non_null().add(1).cast() }
    }

    /// The suffix of a slot. Meaningful if the slot holds a long key's value; bytes of some earlier
    /// suffix, or none, otherwise.
    pub(crate) fn suffix(self, slot: usize) -> &'g [u8] {
        let entry = self.get().entries[slot].load();
        let (start, len) = ((entry >> 32) as usize, entry as u32 as usize);
        // SAFETY: `append` wrote these bytes before it stored the entry with release, the load
        // above acquired it, and the range is never written again. The block outlives 'g.
        unsafe { slice::from_raw_parts(self.bytes().add(start).as_ptr(), len) }
    }

    /// Whether `len` more bytes fit.
    pub(crate) fn has_room(self, len: usize) -> bool {
        self.get().used.load() as usize + len <= self.get().capacity
    }

    /// Gives `slot` a suffix. The caller holds the node's lock, and there is room.
    pub(crate) fn append(self, slot: usize, suffix: &[u8]) {
        assert!(self.has_room(suffix.len()));
        let start = self.get().used.load() as usize;
        // SAFETY: the range is inside the block, and no entry has named it yet, so no reader looks
        // at it; the node's lock keeps other writers out.
        unsafe {
            self.bytes()
                .add(start)
                .copy_from_nonoverlapping(NonNull::from(suffix).cast::<u8>(), suffix.len());
        }
        self.get().used.store((start + suffix.len()) as u64);
        self.get().entries[slot].store(((start as u64) << 32) | suffix.len() as u64);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn appended_suffixes_stay_readable() {
        let block = Suffixes::with_room_for(5);
        assert_eq!(block.suffix(3), b"");
        block.append(3, b"hello");
        let before = block.suffix(3);
        block.append(4, b"");
        block.append(3, b"other");
        assert_eq!(
            (before, block.suffix(3), block.suffix(4)),
            (&b"hello"[..], &b"other"[..], &b""[..])
        );
        assert!(block.has_room(22) && !block.has_room(23));
        // SAFETY: nothing else uses the block, and `before` is not used again.
        unsafe { Suffixes::free(block.as_non_null()) };
    }
}
