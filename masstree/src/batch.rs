//! A scan's copy of a border.

use std::ptr;

use crate::{
    border::{Border, Raw},
    field::Ref,
    find::BORDER_LINES,
    get::prefetch_link,
    guard::Guard,
    key::{Kind, LAYER, LONG, Suffix, TINY},
    permutation::{Permutation, WIDTH},
};

/// A copy of a border, slot by slot. Meaningful once the border was found unchanged.
pub(crate) struct Batch<'g> {
    /// None before the first copy.
    pub(crate) border: Option<Ref<'g, Border>>,
    pub(crate) next: Option<Ref<'g, Border>>,
    pub(crate) highkey: u64,
    pub(crate) permutation: Permutation,
    pub(crate) slices: [u64; WIDTH],
    pub(crate) raws: [Raw; WIDTH],
    /// Whether the border's last cache line was needed.
    any_tiny: bool,
    tiny: [u32; WIDTH],
    /// Of slots that have one, in the node's block.
    suffixes: [&'g [u8]; WIDTH],
}

impl Default for Batch<'_> {
    fn default() -> Self {
        Batch {
            border: None,
            next: None,
            highkey: 0,
            permutation: Permutation::EMPTY,
            slices: [0; WIDTH],
            raws: [Raw { kind: 0, word: ptr::null_mut() }; WIDTH],
            any_tiny: false,
            tiny: [0; WIDTH],
            suffixes: [&[]; WIDTH],
        }
    }
}

impl<'g> Batch<'g> {
    pub(crate) fn copy(&mut self, border: Ref<'g, Border>, guard: &'g Guard) {
        self.border = Some(border);
        self.permutation = border.permutation();
        self.next = border.next.load(guard);
        self.highkey = border.highkey.load();
        let (mut any_tiny, mut any_long) = (false, false);
        for slot in 0..WIDTH {
            self.slices[slot] = border.slice(slot);
            let raw = border.raw(slot);
            any_tiny |= (TINY..LAYER).contains(&raw.kind);
            any_long |= raw.kind == LONG;
            self.raws[slot] = raw;
        }
        self.any_tiny = any_tiny;
        if any_tiny {
            for slot in 0..WIDTH {
                self.tiny[slot] = border.tiny(slot);
            }
        }
        if any_long {
            for index in 0..self.permutation.len() {
                let slot = self.permutation.slot(index);
                if self.raws[slot].kind == LONG {
                    self.suffixes[slot] = border.get().block_suffix(slot, guard);
                }
            }
        }
    }

    /// The cache lines of a neighbour that is probably alike.
    pub(crate) fn lines(&self) -> usize {
        if self.any_tiny { BORDER_LINES } else { BORDER_LINES - 1 }
    }

    /// The suffix of a long key with a value.
    pub(crate) fn suffix(&self, slot: usize) -> Suffix<'g> {
        let kind: Kind = self.raws[slot].kind;
        match kind {
            LONG => Suffix::Bytes(self.suffixes[slot]),
            TINY..LAYER => Suffix::unpack(kind, self.tiny[slot]),
            _ => Suffix::NONE,
        }
    }

    /// Has the layers and buckets that a scan will enter fetched while it delivers what comes
    /// before them.
    pub(crate) fn prefetch_links(&self) {
        for index in 0..self.permutation.len() {
            let raw = self.raws[self.permutation.slot(index)];
            if raw.kind >= LAYER {
                prefetch_link(raw);
            }
        }
    }
}
