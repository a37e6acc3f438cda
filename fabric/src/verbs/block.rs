//! Memory that a card reads and writes.
//!
//! Proof: a block's words are allocated as long as its registration lives, and at one address. The
//! card changes them while this process loads and stores them; they are atomics, so that the
//! compiler reckons with it. A word is whole: it is aligned, and cards and rxe move aligned 64-bit
//! units at once (PCIe writes are split at cache lines at most; the kernel copies by words).
//! Any bits are a valid word.

use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use super::abi::{Mr, access};
use super::card::Domain;
use super::error::Error;

pub(crate) struct Block {
    words: Box<[AtomicU64]>,
    raw: NonNull<Mr>,
    domain: Arc<Domain>,
}

// SAFETY: the words are atomics, and the registration is only read.
unsafe impl Send for Block {}
// SAFETY: as above.
unsafe impl Sync for Block {}

impl Block {
    /// Words for this process's own requests.
    pub(crate) fn local(domain: &Arc<Domain>, words: usize) -> Result<Block, Error> {
        Block::new(domain, words, access::LOCAL_WRITE)
    }

    /// Words that queue pairs of the domain let their peers read, and write if their flags say so.
    pub(crate) fn shared(domain: &Arc<Domain>, words: usize) -> Result<Block, Error> {
        let remote = access::REMOTE_READ | access::REMOTE_WRITE;
        Block::new(domain, words, access::LOCAL_WRITE | remote)
    }

    fn new(domain: &Arc<Domain>, words: usize, access: i32) -> Result<Block, Error> {
        let words: Box<[AtomicU64]> = (0..words).map(|_| AtomicU64::new(0)).collect();
        let (start, len) = (words.as_ptr().cast_mut().cast(), size_of_val(&*words));
        // SAFETY: the domain is open; see the module's proof for the memory.
        let raw = unsafe { (domain.card.library.reg_mr)(domain.raw.as_ptr(), start, len, access) };
        let raw = NonNull::new(raw).ok_or_else(|| Error::last("register memory"))?;
        Ok(Block { words, raw, domain: domain.clone() })
    }

    pub(crate) fn words(&self) -> &[AtomicU64] {
        &self.words
    }

    /// Where the first word is, as cards name it.
    pub(crate) fn address(&self) -> u64 {
        self.words.as_ptr() as u64
    }

    pub(crate) fn local_key(&self) -> u32 {
        // SAFETY: the registration lives as long as the block.
        unsafe { self.raw.as_ref() }.lkey
    }

    pub(crate) fn remote_key(&self) -> u32 {
        // SAFETY: as above.
        unsafe { self.raw.as_ref() }.rkey
    }

    /// Puts words at the block's start.
    pub(crate) fn fill(&self, words: &[u64]) {
        for (cell, &value) in self.words.iter().zip(words) {
            // Relaxed: the card reads them after the request was posted, which is a system call
            // or a write to the card, and both order what was stored before.
            cell.store(value, Ordering::Relaxed);
        }
    }

    /// Puts words at the block's start that are in another.
    pub(crate) fn copy(&self, words: &[AtomicU64]) {
        for (cell, word) in self.words.iter().zip(words) {
            // Acquire and relaxed: as in `take` and in `fill`.
            cell.store(word.load(Ordering::Acquire), Ordering::Relaxed);
        }
    }

    /// Appends the words at the block's start.
    pub(crate) fn take(&self, words: &mut Vec<u64>, count: usize) {
        // Acquire: the completion was seen before; see `Completions::poll`.
        words.extend(self.words[..count].iter().map(|cell| cell.load(Ordering::Acquire)));
    }
}

impl Drop for Block {
    fn drop(&mut self) {
        // SAFETY: no request that uses it is under way: see `Queue::post`.
        let result = unsafe { (self.domain.card.library.dereg_mr)(self.raw.as_ptr()) };
        assert_eq!(result, 0, "memory that a card still uses must not be freed");
    }
}

/// Blocks for requests, used again.
pub(crate) struct Pool {
    domain: Arc<Domain>,
    /// By the binary logarithm of their length.
    free: Vec<Vec<Block>>,
}

impl Pool {
    const SMALLEST: usize = 32;

    pub(crate) fn new(domain: Arc<Domain>) -> Pool {
        Pool { domain, free: (0..usize::BITS).map(|_| Vec::new()).collect() }
    }

    /// A block of so many words or more.
    ///
    /// # Panics
    /// If memory cannot be registered any more: a replica that cannot post stops.
    pub(crate) fn take(&mut self, words: usize) -> Block {
        let len = words.max(Self::SMALLEST).next_power_of_two();
        let free = &mut self.free[len.ilog2() as usize];
        free.pop().unwrap_or_else(|| match Block::local(&self.domain, len) {
            Ok(block) => block,
            Err(error) => panic!("{error}"),
        })
    }

    pub(crate) fn give(&mut self, block: Block) {
        self.free[block.words.len().ilog2() as usize].push(block);
    }
}
