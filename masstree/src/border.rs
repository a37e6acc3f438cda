//! Border nodes ([Mao] 3.1.2 and 3.1.6): the leaves of a layer's tree, in a doubly linked list.
//!
//! Invariant: at any time the borders of a layer that are not deleted cut the slices into ranges
//! `[lowkey, highkey)`. `lowkey` never changes; `highkey` changes only while the node is marked
//! splitting. A node is responsible for a slice exactly if it is not deleted and its range covers
//! it, and that alone, checked under its version or its lock, decides where a key is. The way
//! down through interior nodes only has to lead near.
//! Invariant: all keys with the same slice are in the same border.
//! Invariant: the leftmost border is never deleted before its whole layer is.

use std::array;

use crate::{
    field::{Byte, Link, LinkOrValue, LinkOrValueCell, Ref, Word},
    guard::Guard,
    key::{LONG, Position},
    node::{Locked, Node},
    permutation::{Permutation, WIDTH},
    suffix::Suffixes,
};

/// A border node.
#[repr(C, align(64))]
pub(crate) struct Border {
    pub(crate) node: Node,
    permutation: Word,
    /// Each key's class, see key.rs.
    keylen: [Byte; WIDTH],
    /// Not 0 if a slot was freed by a remove since the last counted change (`nremoved`).
    removed: Byte,
    keyslice: [Word; WIDTH],
    link_or_value: [LinkOrValueCell; WIDTH],
    suffixes: Link<Suffixes>,
    pub(crate) next: Link<Border>,
    pub(crate) prev: Link<Border>,
    pub(crate) lowkey: u64,
    /// `u64::MAX` for the rightmost border, which covers that slice too.
    pub(crate) highkey: Word,
}

/// One key of a border, or to be put into it.
#[derive(Clone, Copy)]
pub(crate) struct Entry<'a> {
    pub(crate) at: Position,
    pub(crate) target: LinkOrValue<'a>,
    /// Of a long key with a value; empty otherwise.
    pub(crate) suffix: &'a [u8],
}

/// Where a position is, or would be, in the order of a node's keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Search {
    Found { index: usize, slot: usize },
    Missing { index: usize },
}

impl Border {
    /// A new border, locked, empty, linked to nothing.
    pub(crate) fn new_locked<'g>(lowkey: u64, root: bool) -> Locked<'g, Border> {
        Locked::new_node(Box::new(Border {
            node: Node::new_locked(true, root),
            permutation: Word::new(Permutation::EMPTY.to_word()),
            keylen: array::from_fn(|_| Byte::default()),
            removed: Byte::default(),
            keyslice: array::from_fn(|_| Word::default()),
            link_or_value: array::from_fn(|_| LinkOrValueCell::none()),
            suffixes: Link::none(),
            next: Link::none(),
            prev: Link::none(),
            lowkey,
            highkey: Word::new(u64::MAX),
        }))
    }

    pub(crate) fn is_full(&self) -> bool {
        self.permutation().len() == WIDTH
    }

    pub(crate) fn permutation(&self) -> Permutation {
        Permutation::from_word(self.permutation.load())
    }

    /// The next border, if `slice` is beyond this one's range.
    pub(crate) fn next_if_beyond<'g>(
        &self,
        slice: u64,
        guard: &'g Guard,
    ) -> Option<Ref<'g, Border>> {
        // A reader may see the two fields of different moments; its version check finds out.
        if slice < self.highkey.load() { None } else { self.next.load(guard) }
    }

    /// Looks for a position among the keys named by `permutation`. Linear, as in [Mao] 3.1.8.
    pub(crate) fn search(&self, permutation: Permutation, at: Position) -> Search {
        for index in 0..permutation.len() {
            let slot = permutation.slot(index);
            let slice = self.keyslice[slot].load();
            if slice < at.slice {
                continue;
            }
            let here = Position { slice, class: self.keylen[slot].load() };
            if here == at {
                return Search::Found { index, slot };
            }
            if here > at {
                return Search::Missing { index };
            }
        }
        Search::Missing { index: permutation.len() }
    }

    pub(crate) fn position(&self, slot: usize) -> Position {
        Position { slice: self.keyslice[slot].load(), class: self.keylen[slot].load() }
    }

    /// What a slot leads to; `None` only if the slot was never used.
    pub(crate) fn target<'g>(&self, slot: usize, guard: &'g Guard) -> Option<LinkOrValue<'g>> {
        self.link_or_value[slot].load(guard)
    }

    pub(crate) fn target_cell(&self, slot: usize) -> &LinkOrValueCell {
        &self.link_or_value[slot]
    }

    /// The suffix of a long key with a value.
    pub(crate) fn suffix<'g>(&self, slot: usize, guard: &'g Guard) -> &'g [u8] {
        self.suffixes.load(guard).map_or(&[], |block| block.suffix(slot))
    }

    /// The key in a slot that was filled, as readers may see it while it changes: the caller
    /// validates.
    pub(crate) fn entry<'g>(&self, slot: usize, guard: &'g Guard) -> Option<Entry<'g>> {
        let at = self.position(slot);
        let target = self.target(slot, guard)?;
        let suffix = match target {
            LinkOrValue::Value(_) if at.class == LONG => self.suffix(slot, guard),
            _ => &[],
        };
        Some(Entry { at, target, suffix })
    }
}

impl Locked<'_, Border> {
    /// Adds a key as the one at `index` in key order. The node is not full.
    pub(crate) fn insert(&self, index: usize, entry: Entry<'_>, guard: &Guard) {
        let mut permutation = self.permutation();
        let slot = permutation.insert(index);
        if self.removed.load() != 0 {
            // [Mao] 3.1.6, "Removes": a reader may still be looking at a removed key in this very
            // slot, and must not take the new value for the old key's.
            self.word().mark_inserting();
            self.removed.store(0);
        }
        self.keyslice[slot].store(entry.at.slice);
        self.keylen[slot].store(entry.at.class);
        if entry.at.class == LONG && matches!(entry.target, LinkOrValue::Value(_)) {
            self.set_suffix(slot, entry.suffix, guard);
        }
        self.link_or_value[slot].store(entry.target);
        // Last: this store makes the key visible (partner: the load in `permutation`).
        self.permutation.store(permutation.to_word());
    }

    /// Takes the key at `index` out. What it led to is the caller's from here on.
    pub(crate) fn take(&self, index: usize) {
        let mut permutation = self.permutation();
        permutation.remove(index);
        self.removed.store(1);
        self.permutation.store(permutation.to_word());
    }

    /// Forgets all but the first `len` keys. The node is marked splitting: what was freed may be
    /// reused at once.
    pub(crate) fn truncate(&self, len: usize) {
        let mut permutation = self.permutation();
        permutation.truncate(len);
        self.permutation.store(permutation.to_word());
        self.removed.store(0);
    }

    /// Makes room for suffixes of `total` bytes in a node that has none.
    pub(crate) fn reserve_suffixes(&self, total: usize) {
        if total > 0 {
            self.suffixes.store(Some(Suffixes::with_room_for(total)));
        }
    }

    fn set_suffix(&self, slot: usize, suffix: &[u8], guard: &Guard) {
        let old = self.suffixes.load(guard);
        if let Some(block) = old
            && block.has_room(suffix.len())
        {
            block.append(slot, suffix);
            return;
        }
        let permutation = self.permutation();
        let live = (0..permutation.len()).map(|index| permutation.slot(index)).filter(|&slot| {
            self.keylen[slot].load() == LONG
                && matches!(self.target(slot, guard), Some(LinkOrValue::Value(_)))
        });
        let total: usize = live.clone().map(|slot| self.suffix(slot, guard).len()).sum();
        let block = Suffixes::with_room_for(total + suffix.len());
        for slot in live {
            block.append(slot, self.suffix(slot, guard));
        }
        block.append(slot, suffix);
        if old.is_some() {
            // The new block lacks the suffix of a key that meanwhile became a layer; a reader that
            // saw the key's value before that must not conclude that the key is missing.
            self.word().mark_inserting();
        }
        self.suffixes.store(Some(block));
        if let Some(old) = old.map(Ref::as_non_null) {
            // SAFETY: the only link to the old block was just replaced, and bytes belong to no
            // thread.
            unsafe { guard.retire(move || Suffixes::free(old)) };
        }
    }
}

impl Drop for Border {
    fn drop(&mut self) {
        if let Some(block) = self.suffixes.exclusive() {
            // SAFETY: the node is being freed, so nobody can reach its block.
            unsafe { Suffixes::free(block) };
        }
    }
}
