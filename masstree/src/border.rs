//! Border nodes ([Mao] 3.1.2 and 3.1.6): the leaves of a layer's tree, in a doubly linked list.
//!
//! Invariant: at any time the borders of a layer that are not deleted cut the slices into ranges
//! `[lowkey, highkey)`. `lowkey` never changes; `highkey` changes only while the node is marked
//! splitting. A node is responsible for a slice exactly if it is not deleted and its range covers
//! it, and that alone, checked under its version or its lock, decides where a key is. The way
//! down through interior nodes only has to lead near.
//! Invariant: all keys with the same slice are in the same border.
//! Invariant: the leftmost border is never deleted before its whole layer is.

use std::{array, ptr::NonNull};

use crate::{
    bucket::{Bucket, Key},
    field::{Byte, Half, Link, LinkOrValue, LinkOrValueCell, RawValue, Ref, Word},
    guard::Guard,
    key::{BUCKET, Kind, LAYER, LONG, Position, Suffix, TINY, TINY_MAX, class_of, pack_tiny},
    node::{Locked, Node},
    permutation::{Permutation, WIDTH},
    slab::Size,
    suffix::Suffixes,
};

/// A border node: six cache lines. What tells whether the node is the right one, and which slots
/// hold keys, is in the first; the slices are in the next two, what the slots lead to in two more.
/// The last, for suffixes short enough to be kept here, is touched for long keys only.
#[repr(C, align(64))]
pub(crate) struct Border {
    pub(crate) node: Node,
    permutation: Word,
    kinds: [Byte; WIDTH],
    /// Not 0 if a slot was freed by a remove since the last counted change (`nremoved`).
    removed: Byte,
    pub(crate) lowkey: u64,
    /// `u64::MAX` for the rightmost border, which covers that slice too.
    pub(crate) highkey: Word,
    pub(crate) next: Link<Border>,
    keyslice: [Word; WIDTH],
    suffixes: Link<Suffixes>,
    link_or_value: [LinkOrValueCell; WIDTH],
    pub(crate) prev: Link<Border>,
    /// Keys up to four bytes beyond their slice, so all 1-to-10-byte decimals, need no other block.
    tiny: [Half; WIDTH],
}

#[cfg(all(not(loom), target_pointer_width = "64"))]
const _: () = {
    assert!(size_of::<Border>() == 6 * 64);
    assert!(std::mem::offset_of!(Border, keyslice) == 64);
    assert!(std::mem::offset_of!(Border, link_or_value) == 3 * 64);
    assert!(std::mem::offset_of!(Border, tiny) == 5 * 64);
};

/// What a slot holds, as readers may see it while it changes: to be used only once the node's
/// version was found unchanged, or under its lock.
#[derive(Clone, Copy)]
pub(crate) struct Raw {
    pub(crate) kind: Kind,
    pub(crate) word: *mut (),
}

impl Raw {
    /// # Safety
    /// Kind and word belong together, and the node that they are from may be used during `'g`.
    pub(crate) unsafe fn resolve<'g>(self, _guard: &'g Guard) -> LinkOrValue<'g> {
        if self.kind < LAYER {
            return LinkOrValue::Value(self.word);
        }
        let target = NonNull::new(self.word).expect("a link is not null");
        if self.kind == LAYER {
            // SAFETY: by the kind it is a node, protected by the guard as in `Link::load`.
            LinkOrValue::Layer(unsafe { Ref::new(target.cast::<Node>()) })
        } else {
            // SAFETY: by the kind it is a bucket, protected by the guard as in `Link::load`.
            LinkOrValue::Bucket(unsafe { Ref::new(target.cast::<Bucket>()) })
        }
    }
}

/// The kind of a slot that holds a link.
fn link_kind(target: LinkOrValue<'_>) -> Option<Kind> {
    match target {
        LinkOrValue::Value(_) => None,
        LinkOrValue::Layer(_) => Some(LAYER),
        LinkOrValue::Bucket(_) => Some(BUCKET),
    }
}

/// One key of a border, or to be put into it.
#[derive(Clone, Copy)]
pub(crate) struct Entry<'a> {
    pub(crate) at: Position,
    pub(crate) target: LinkOrValue<'a>,
    /// Of a long key with a value; empty otherwise.
    pub(crate) suffix: Suffix<'a>,
}

/// Where a position is, or would be, in the order of a node's keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Search {
    Found { slot: usize },
    Missing { index: usize },
}

impl Border {
    /// A new border, locked, empty, linked to nothing.
    pub(crate) fn new_locked<'g>(lowkey: u64, root: bool) -> Locked<'g, Border> {
        let border = Border {
            node: Node::new_locked(true, root),
            permutation: Word::new(Permutation::EMPTY.to_word()),
            kinds: array::from_fn(|_| Byte::default()),
            removed: Byte::default(),
            lowkey,
            highkey: Word::new(u64::MAX),
            next: Link::none(),
            keyslice: array::from_fn(|_| Word::default()),
            suffixes: Link::none(),
            link_or_value: array::from_fn(|_| LinkOrValueCell::none()),
            prev: Link::none(),
            tiny: array::from_fn(|_| Half::default()),
        };
        Locked::new_node(border, Size::Border)
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

    /// The slot of the key at a position, if it is among those named by `permutation`.
    ///
    /// All slices are compared, in the order of the slots and without a branch: a search in key
    /// order pays one misprediction at random keys. Of sequential keys in cache, where it does not,
    /// this still gets 25 million a second and that one 20.
    ///
    /// Of a single key it is clear where it is: the layers of a prefix that all keys share.
    pub(crate) fn find(&self, permutation: Permutation, at: Position) -> Option<usize> {
        if permutation.len() == 1 {
            let slot = permutation.slot(0);
            return (self.position(slot) == at).then_some(slot);
        }
        let mut equal = 0u32;
        for (slot, slice) in self.keyslice.iter().enumerate() {
            equal |= u32::from(slice.load() == at.slice) << slot;
        }
        while equal != 0 {
            let slot = equal.trailing_zeros() as usize;
            if class_of(self.kinds[slot].load()) == at.class && permutation.has(slot) {
                return Some(slot);
            }
            equal &= equal - 1;
        }
        None
    }

    /// Looks for a position among the keys named by `permutation`: first behind the last of them,
    /// for ascending inserts, and then as `find` does, since for a key that is there no place among
    /// the others is needed. That is looked for in key order, linearly, as in [Mao] 3.1.8.
    pub(crate) fn search(&self, permutation: Permutation, at: Position) -> Search {
        let len = permutation.len();
        let is_before = |index| self.position(permutation.slot(index)) < at;
        if len == 0 || is_before(len - 1) {
            return Search::Missing { index: len };
        }
        if let Some(slot) = self.find(permutation, at) {
            return Search::Found { slot };
        }
        let index = (0..len).find(|index| !is_before(*index)).unwrap_or(len);
        Search::Missing { index }
    }

    pub(crate) fn position(&self, slot: usize) -> Position {
        Position { slice: self.slice(slot), class: class_of(self.kinds[slot].load()) }
    }

    pub(crate) fn slice(&self, slot: usize) -> u64 {
        self.keyslice[slot].load()
    }

    /// What a slot holds, see [`Raw`]. `insert` stores the word first, so that what a reader sees
    /// is at least as new as the kind it sees.
    pub(crate) fn raw(&self, slot: usize) -> Raw {
        let kind = self.kinds[slot].load();
        Raw { kind, word: self.link_or_value[slot].load() }
    }

    /// The suffix of a long key with a value. Some suffix if the slot does not hold one, so
    /// validated as [`Raw`] is.
    pub(crate) fn suffix<'g>(&self, kind: Kind, slot: usize, guard: &'g Guard) -> Suffix<'g> {
        match kind {
            LONG => Suffix::Bytes(self.block_suffix(slot, guard)),
            TINY..LAYER => Suffix::unpack(kind, self.tiny[slot].load()),
            _ => Suffix::NONE,
        }
    }

    /// The suffix in the node's block, validated as [`Raw`] is.
    pub(crate) fn block_suffix<'g>(&self, slot: usize, guard: &'g Guard) -> &'g [u8] {
        self.suffixes.load(guard).map_or(&[], |block| block.suffix(slot))
    }

    /// The suffix in the node itself, packed.
    pub(crate) fn tiny(&self, slot: usize) -> u32 {
        self.tiny[slot].load()
    }

    /// Whether a slot's key, long and with a value, has this suffix. Validated as [`Raw`] is.
    pub(crate) fn has_suffix(&self, kind: Kind, slot: usize, suffix: &[u8], guard: &Guard) -> bool {
        if kind == LONG {
            return self.suffixes.load(guard).is_some_and(|block| block.suffix(slot) == suffix);
        }
        usize::from(kind) == usize::from(TINY) + suffix.len()
            && self.tiny[slot].load() == pack_tiny(suffix)
    }
}

impl<'g> Locked<'g, Border> {
    /// What a live slot leads to.
    pub(crate) fn target(&self, slot: usize, guard: &'g Guard) -> LinkOrValue<'g> {
        // SAFETY: kind and word change only under the lock, which we hold.
        unsafe { self.raw(slot).resolve(guard) }
    }

    /// The key in a live slot.
    pub(crate) fn entry(&self, slot: usize, guard: &'g Guard) -> Entry<'g> {
        let suffix = self.suffix(self.kinds[slot].load(), slot, guard);
        Entry { at: self.position(slot), target: self.target(slot, guard), suffix }
    }

    /// Whether a slot's key, long and with a value, has this suffix.
    pub(crate) fn key_has_suffix(&self, slot: usize, suffix: &[u8], guard: &Guard) -> bool {
        self.has_suffix(self.kinds[slot].load(), slot, suffix, guard)
    }

    /// Gives the key in a live slot another value. Readers see the old one or the new one: no mark
    /// needed ([Mao] 3.1.6, "Updates").
    pub(crate) fn set_value(&self, slot: usize, value: RawValue) {
        self.link_or_value[slot].store(LinkOrValue::Value(value));
    }

    /// Lets a live slot lead to a layer or a bucket, which holds what the slot held.
    pub(crate) fn set_link(&self, slot: usize, target: LinkOrValue<'_>) {
        // A reader must not take the pointer for a value, or for the other kind of link.
        self.word().mark_inserting();
        self.link_or_value[slot].store(target);
        self.kinds[slot].store(link_kind(target).expect("a layer or a bucket"));
    }

    /// Lets a slot that leads to a bucket lead to the next one. Readers see the old one or the new
    /// one: no mark needed.
    pub(crate) fn replace_bucket(&self, slot: usize, new: Ref<'_, Bucket>) {
        self.link_or_value[slot].store(LinkOrValue::Bucket(new));
    }

    /// Puts the last key of a bucket, long and with a value, into the slot that led there.
    pub(crate) fn set_single(&self, slot: usize, (suffix, value): Key<'_>, guard: &Guard) {
        self.word().mark_inserting();
        let kind = self.set_suffix(slot, suffix, guard);
        self.set_value(slot, value);
        self.kinds[slot].store(kind);
    }

    /// Replaces one entrance of a layer by a better one, if a live slot still leads to the old one.
    pub(crate) fn replace_layer(&self, slot: usize, old: Ref<'g, Node>, new: Ref<'g, Node>) {
        let raw = self.raw(slot);
        let is_old = raw.kind == LAYER && raw.word == old.as_non_null().as_ptr().cast();
        if is_old && self.permutation().has(slot) {
            self.link_or_value[slot].store(LinkOrValue::Layer(new));
        }
    }

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
        self.link_or_value[slot].store(entry.target);
        let kind = link_kind(entry.target).unwrap_or_else(|| match entry.at.class {
            LONG => self.set_suffix(slot, entry.suffix.as_bytes(), guard),
            short => short,
        });
        self.kinds[slot].store(kind);
        // Last: this store makes the key visible (partner: the load in `permutation`).
        self.permutation.store(permutation.to_word());
    }

    /// Takes the key in a live slot out. What it led to is the caller's from here on.
    pub(crate) fn take(&self, slot: usize) {
        let mut permutation = self.permutation();
        let mut indices = 0..permutation.len();
        let index = indices.find(|&index| permutation.slot(index) == slot);
        permutation.remove(index.expect("the slot is live"));
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

    /// Makes room, in a node that has none yet, for the suffixes that need it.
    pub(crate) fn reserve_suffixes<'a>(&self, entries: impl Iterator<Item = Entry<'a>>) {
        let lengths = entries.map(|entry| entry.suffix.as_bytes().len());
        let total: usize = lengths.filter(|len| *len > TINY_MAX).sum();
        if total > 0 {
            self.suffixes.store(Some(Suffixes::with_room_for(total)));
        }
    }

    /// Stores a suffix where there is room for it, and returns the kind that says where.
    fn set_suffix(&self, slot: usize, suffix: &[u8], guard: &Guard) -> Kind {
        if suffix.len() <= TINY_MAX {
            self.tiny[slot].store(pack_tiny(suffix));
            return TINY + suffix.len() as u8;
        }
        self.set_block_suffix(slot, suffix, guard);
        LONG
    }

    fn set_block_suffix(&self, slot: usize, suffix: &[u8], guard: &Guard) {
        let old = self.suffixes.load(guard);
        if let Some(block) = old
            && block.has_room(suffix.len())
        {
            block.append(slot, suffix);
            return;
        }
        let permutation = self.permutation();
        let live = (0..permutation.len())
            .map(|index| permutation.slot(index))
            .filter_map(|slot| Some((slot, old?)).filter(|_| self.kinds[slot].load() == LONG));
        let total: usize = live.clone().map(|(slot, old)| old.suffix(slot).len()).sum();
        let block = Suffixes::with_room_for(total + suffix.len());
        for (slot, old) in live {
            block.append(slot, old.suffix(slot));
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
