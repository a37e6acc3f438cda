//! Interior nodes ([Mao] figure 3-2).
//!
//! Invariant: `keyslice` ascends, and child `i` leads to slices from `keyslice[i - 1]` up to below
//! `keyslice[i]`. While borders are being removed a slice may lead to a border right of the one
//! responsible for it; the borders' own ranges settle that (border.rs).
//! Invariant: child 0 of the leftmost interior of each level never changes, since splits go to
//! the right and the leftmost border is not deleted before its layer.
//! Invariant: `nkeys` grows only after the child that it uncovers was stored, so a reader that
//! trusts any `nkeys` since its snapshot of the version never follows a link older than that.

use std::array;

use crate::{
    field::{Byte, Link, Ref, Word},
    guard::Guard,
    node::{Locked, Node, prefetch_for_write},
    slab::Size,
};

/// Keys per node: three times the paper's, as many as fit twelve cache lines. A tree has two levels
/// less for it, each of which is a wait for memory or for a branch.
const WIDTH: usize = 46;

/// Keys that a search passes over at a time.
const STRIDE: usize = 8;

/// An interior node.
#[repr(C, align(64))]
pub(crate) struct Interior {
    pub(crate) node: Node,
    nkeys: Byte,
    /// Whether the children are borders. Never changes.
    over_borders: bool,
    keyslice: [Word; WIDTH],
    child: [Link<Node>; WIDTH + 1],
}

#[cfg(all(not(loom), target_pointer_width = "64"))]
const _: () = assert!(size_of::<Interior>() == 12 * 64);

impl Interior {
    /// A new interior, locked, without keys or children.
    fn new_locked<'g>(root: bool, over_borders: bool) -> Locked<'g, Interior> {
        let interior = Interior {
            node: Node::new_locked(false, root),
            nkeys: Byte::default(),
            over_borders,
            keyslice: array::from_fn(|_| Word::default()),
            child: array::from_fn(|_| Link::none()),
        };
        Locked::new_node(interior, Size::Interior)
    }

    /// A new root over the two halves of a split root. Both are locked by the caller.
    pub(crate) fn new_root<'g>(
        left: Ref<'g, Node>,
        slice: u64,
        right: Ref<'g, Node>,
    ) -> Locked<'g, Interior> {
        let root = Self::new_locked(true, left.get().version.is_border());
        root.fill(&[slice], &[left, right]);
        left.get().parent.store(Some(root.as_ref()));
        right.get().parent.store(Some(root.as_ref()));
        root
    }

    pub(crate) fn nkeys(&self) -> usize {
        usize::from(self.nkeys.load())
    }

    pub(crate) fn key(&self, index: usize) -> u64 {
        self.keyslice[index].load()
    }

    pub(crate) fn child<'g>(&self, index: usize, guard: &'g Guard) -> Option<Ref<'g, Node>> {
        self.child[index].load(guard)
    }

    pub(crate) fn is_over_borders(&self) -> bool {
        self.over_borders
    }

    pub(crate) fn is_full(&self) -> bool {
        self.nkeys() == WIDTH
    }

    /// Fetches what is written to by an insert behind the last child.
    pub(crate) fn prefetch_end(&self) {
        let nkeys = self.nkeys();
        prefetch_for_write(self);
        prefetch_for_write(self.keyslice.as_ptr().wrapping_add(nkeys));
        prefetch_for_write(self.child.as_ptr().wrapping_add(nkeys + 1));
    }

    /// The child that leads to `slice`. Linear, as in [Mao] 3.1.8, first in strides. Counting all
    /// smaller keys without a branch saves the mispredictions, but then the next node's address
    /// waits for the keys: with 14 keys a node and 10 million keys lookups were slower by a fifth,
    /// at random as in order.
    #[inline(always)]
    pub(crate) fn child_for<'g>(&self, slice: u64, guard: &'g Guard) -> Option<Ref<'g, Node>> {
        let nkeys = self.nkeys();
        let mut index = 0;
        while index + STRIDE <= nkeys && slice >= self.keyslice[index + STRIDE - 1].load() {
            index += STRIDE;
        }
        while index < nkeys && slice >= self.keyslice[index].load() {
            index += 1;
        }
        self.child[index].load(guard)
    }
}

impl<'g> Locked<'g, Interior> {
    /// The place of a child that is known to be here.
    pub(crate) fn index_of(&self, child: Ref<'_, Node>, guard: &Guard) -> usize {
        // From the end, for ascending inserts.
        (0..=self.nkeys())
            .rev()
            .find(|&index| self.child(index, guard).is_some_and(|c| c == child))
            .expect("a locked parent holds its child")
    }

    /// Inserts `right` after the child at `index`. The node is not full and is marked.
    pub(crate) fn insert(&self, index: usize, slice: u64, right: Ref<'g, Node>, guard: &Guard) {
        let nkeys = self.nkeys();
        assert!(!self.is_full());
        for i in (index..nkeys).rev() {
            self.keyslice[i + 1].store(self.key(i));
            self.child[i + 2].store(self.child(i + 1, guard));
        }
        self.keyslice[index].store(slice);
        self.child[index + 1].store(Some(right));
        self.nkeys.store(nkeys as u8 + 1);
        right.get().parent.store(Some(self.as_ref()));
    }

    /// Inserts `right` after the child at `index` of a full node, moving the upper half to a new
    /// sibling; of a node that is filled in ascending order, as it seems, the upper two
    /// children only, so that nodes stay full ([Mao] 3.1.3 has this for borders). Returns the
    /// sibling, locked and marked, and the slice that separates the two. The node is marked
    /// splitting.
    pub(crate) fn split_insert(
        &self,
        index: usize,
        slice: u64,
        right: Ref<'g, Node>,
        ascending: bool,
        guard: &'g Guard,
    ) -> (Locked<'g, Interior>, u64) {
        let child = |i| self.child(i, guard).expect("a full node has all its children");
        let keys: [u64; WIDTH + 1] = array::from_fn(|i| match i {
            _ if i < index => self.key(i),
            _ if i == index => slice,
            _ => self.key(i - 1),
        });
        let children: [Ref<'g, Node>; WIDTH + 2] = array::from_fn(|i| match i {
            _ if i <= index => child(i),
            _ if i == index + 1 => right,
            _ => child(i - 1),
        });
        let middle = if ascending && index == WIDTH { WIDTH - 1 } else { WIDTH / 2 };
        let sibling = Interior::new_locked(false, self.over_borders);
        sibling.word().mark_splitting();
        sibling.fill(&keys[middle + 1..], &children[middle + 1..]);
        for moved in &children[middle + 1..] {
            // Protected by our lock, as the old parent, and by the sibling's, as the new one.
            moved.get().parent.store(Some(sibling.as_ref()));
        }
        self.fill(&keys[..middle], &children[..=middle]);
        if index < middle {
            right.get().parent.store(Some(self.as_ref()));
        }
        (sibling, keys[middle])
    }

    /// Takes the child at `index` out of a node with at least two. If it was the first, returns
    /// the slice from which the new first child leads on. The node is marked.
    pub(crate) fn remove(&self, index: usize, guard: &Guard) -> Option<u64> {
        let nkeys = self.nkeys();
        assert!(nkeys > 0);
        let first_key = self.key(0);
        for i in index.max(1)..nkeys {
            self.keyslice[i - 1].store(self.key(i));
        }
        for i in index..nkeys {
            self.child[i].store(self.child(i + 1, guard));
        }
        self.nkeys.store(nkeys as u8 - 1);
        (index == 0).then_some(first_key)
    }

    /// Replaces the slice from which the child at `index`, not the first, leads on. The node is
    /// marked.
    pub(crate) fn set_lower_end(&self, index: usize, slice: u64) {
        self.keyslice[index - 1].store(slice);
    }

    fn fill(&self, keys: &[u64], children: &[Ref<'g, Node>]) {
        for (field, key) in self.keyslice.iter().zip(keys) {
            field.store(*key);
        }
        for (field, child) in self.child.iter().zip(children) {
            field.store(Some(*child));
        }
        self.nkeys.store(keys.len() as u8);
    }
}
