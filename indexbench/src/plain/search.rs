//! Keys as the plain tree compares them: 16 bytes inline, the rest behind a pointer.

use std::{
    cmp::Ordering,
    ptr::{self, NonNull},
    slice,
};

use super::Design;

/// Bytes of a key that lie in the node.
pub const INLINE: usize = 16;

/// A key that is looked for.
pub struct Probe<'k> {
    pub key: &'k [u8],
    pub words: [u64; 2],
}

/// A key as it lies in a node.
#[derive(Clone, Copy)]
pub struct Stored {
    /// The first 16 bytes, padded with zeros: as big-endian integers, or as they lie in memory.
    pub words: [u64; 2],
    /// The length of a key that ends there; of others, where the rest is (see `long`). Racing
    /// readers may see the rest of another key, so what it points to is never freed nor changed.
    pub rest: *mut u8,
}

impl<'k> Probe<'k> {
    pub fn new<D: Design>(key: &'k [u8]) -> Self {
        let mut bytes = [0; INLINE];
        let inline = key.len().min(INLINE);
        bytes[..inline].copy_from_slice(&key[..inline]);
        Probe { key, words: words::<D>(bytes) }
    }

    fn inline(&self) -> &[u8] {
        &self.key[..self.key.len().min(INLINE)]
    }

    fn rest(&self) -> &[u8] {
        self.key.get(INLINE..).unwrap_or(&[])
    }
}

fn words<D: Design>(bytes: [u8; INLINE]) -> [u64; 2] {
    let (halves, _) = bytes.as_chunks::<8>();
    let word = if D::INTEGERS { u64::from_be_bytes } else { u64::from_ne_bytes };
    [word(halves[0]), word(halves[1])]
}

/// Copies what of a key does not lie in the node to memory from `take`, and returns where that is,
/// or the length of a short key.
pub fn long(probe: &Probe<'_>, take: impl FnOnce(usize) -> NonNull<u8>) -> *mut u8 {
    let rest = probe.rest();
    if rest.is_empty() {
        return ptr::without_provenance_mut(probe.key.len());
    }
    let memory = take(size_of::<usize>() + rest.len());
    // SAFETY: the memory is new, for a length and so many bytes, and aligned to a word.
    unsafe {
        memory.cast::<usize>().write(rest.len());
        let bytes = memory.add(size_of::<usize>());
        bytes.copy_from_nonoverlapping(NonNull::from(rest).cast(), rest.len());
    }
    memory.as_ptr()
}

impl Stored {
    fn is_long(&self) -> bool {
        self.rest.addr() > INLINE
    }

    /// What of the key does not lie in the node.
    fn tail(&self) -> &[u8] {
        if !self.is_long() {
            return &[];
        }
        // SAFETY: only `long` makes words above `INLINE`. What it wrote there is neither changed
        // nor freed before the tree is, and was written before the word was stored with release
        // (partner: the acquire load that this copy comes from).
        unsafe {
            let len = self.rest.cast::<usize>().read();
            slice::from_raw_parts(self.rest.add(size_of::<usize>()), len)
        }
    }

    fn inline<D: Design>(&self) -> [u8; INLINE] {
        let bytes = if D::INTEGERS { u64::to_be_bytes } else { u64::to_ne_bytes };
        let mut all = [0; INLINE];
        all[..8].copy_from_slice(&bytes(self.words[0]));
        all[8..].copy_from_slice(&bytes(self.words[1]));
        all
    }

    /// Replaces `key` by this key's bytes.
    pub fn write_bytes<D: Design>(&self, key: &mut Vec<u8>) {
        key.clear();
        let inline = if self.is_long() { INLINE } else { self.rest.addr() };
        key.extend_from_slice(&self.inline::<D>()[..inline]);
        key.extend_from_slice(self.tail());
    }

    pub fn bytes<D: Design>(&self) -> Vec<u8> {
        let mut key = Vec::new();
        self.write_bytes::<D>(&mut key);
        key
    }

    /// How this key compares with the one that is looked for.
    #[inline(always)]
    pub fn compare<D: Design>(&self, probe: &Probe<'_>) -> Ordering {
        if D::INTEGERS {
            return self.words.cmp(&probe.words).then_with(|| self.compare_rest(probe));
        }
        let inline = self.inline::<D>();
        let end = self.rest.addr().min(INLINE);
        let order = inline[..end].cmp(probe.inline());
        order.then_with(|| self.tail().cmp(probe.rest()))
    }

    /// For keys with the same first bytes, if those are padded.
    fn compare_rest(&self, probe: &Probe<'_>) -> Ordering {
        let (own, other) = (self.rest.addr().min(INLINE + 1), probe.key.len().min(INLINE + 1));
        own.cmp(&other).then_with(|| self.tail().cmp(probe.rest()))
    }
}
