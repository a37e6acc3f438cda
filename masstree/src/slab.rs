//! Memory for nodes and small buckets: three sizes, carved from large blocks that ask for huge
//! pages ([Mao] 3.3.2, "+Superpage").
//!
//! A random lookup in a tree beyond the caches misses the TLB where it misses the cache, and pays
//! about the same for both; with pages of 2 MiB the TLB covers what it did not before. Threads
//! keep a few dozen free nodes each and trade them in batches, so that the lock is taken once in
//! `BATCH` allocations. Blocks are shared by all trees of the process and stay with it: what a
//! dropped tree leaves is for the next one.

use std::{
    alloc::{Layout, alloc, dealloc, handle_alloc_error},
    cell::RefCell,
    ptr::NonNull,
    sync::{Mutex, PoisonError},
};

/// Nodes that change hands at a time.
const BATCH: usize = 64;

/// A huge page; also the size of the first blocks.
const BLOCK: usize = 2 << 20;

/// Blocks grow with what is in use, up to this.
const BLOCK_MAX: usize = 32 << 20;

/// Which of the sizes. All are multiples of a cache line.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Size {
    Border = 0,
    Interior = 1,
    /// A cache line, for a bucket of short suffixes.
    Line = 2,
}

const SIZES: usize = 3;

impl Size {
    pub(crate) const fn bytes(self) -> usize {
        match self {
            Size::Border => size_of::<crate::border::Border>(),
            Size::Interior => size_of::<crate::interior::Interior>(),
            Size::Line => 64,
        }
    }
}

/// Instruments that watch allocations must see every node's.
const DIRECT: bool = cfg!(any(miri, fuzzing, loom));

/// A free node, which holds the link to the next one.
type Free = Option<NonNull<FreeNode>>;

struct FreeNode {
    next: Free,
}

/// Up to `BATCH` free nodes: a list, or a run of memory never used, or both.
#[derive(Default)]
struct Batch {
    list: Free,
    listed: usize,
    run: Option<NonNull<u8>>,
    run_left: usize,
}

// SAFETY: free nodes are plain memory that whoever holds the batch has to himself.
unsafe impl Send for Batch {}

impl Batch {
    fn is_empty(&self) -> bool {
        self.listed == 0 && self.run_left == 0
    }

    fn take(&mut self, size: Size) -> Option<NonNull<u8>> {
        if let Some(node) = self.list {
            // SAFETY: listed nodes are free memory of ours, and `give` wrote their links.
            self.list = unsafe { node.as_ref() }.next;
            self.listed -= 1;
            return Some(node.cast());
        }
        let node = self.run.filter(|_| self.run_left > 0)?;
        self.run_left -= 1;
        // SAFETY: the run held at least one more node, so this is at most its end.
        self.run = Some(unsafe { node.add(size.bytes()) });
        Some(node)
    }

    fn give(&mut self, node: NonNull<u8>) {
        let node = node.cast::<FreeNode>();
        // SAFETY: the node is free, aligned to a cache line and larger than its link.
        unsafe { node.write(FreeNode { next: self.list }) };
        self.list = Some(node);
        self.listed += 1;
    }
}

/// What all threads share.
struct Shared {
    batches: [Vec<Batch>; SIZES],
    /// What is left of the newest block.
    run: Option<NonNull<u8>>,
    run_bytes: usize,
    total_bytes: usize,
    /// Nodes in use, less what threads have counted for themselves.
    live: isize,
}

// SAFETY: as for `Batch`.
unsafe impl Send for Shared {}

static SHARED: Mutex<Shared> = Mutex::new(Shared {
    batches: [const { Vec::new() }; SIZES],
    run: None,
    run_bytes: 0,
    total_bytes: 0,
    live: 0,
});

impl Shared {
    fn batch(&mut self, size: Size) -> Batch {
        if let Some(batch) = self.batches[size as usize].pop() {
            return batch;
        }
        if self.run_bytes < size.bytes() * BATCH {
            // What is left of the old block is less than a batch, and lost.
            self.add_block();
        }
        let start = self.run.expect("there is a block");
        self.run_bytes -= size.bytes() * BATCH;
        // SAFETY: the block goes on for at least a batch, as just checked.
        self.run = Some(unsafe { start.add(size.bytes() * BATCH) });
        Batch { run: Some(start), run_left: BATCH, ..Batch::default() }
    }

    fn add_block(&mut self) {
        let bytes = (self.total_bytes / 8).next_multiple_of(BLOCK).clamp(BLOCK, BLOCK_MAX);
        let layout = Layout::from_size_align(bytes, BLOCK).expect("a block's layout is valid");
        // SAFETY: the layout is not empty.
        let block = unsafe { alloc(layout) };
        let Some(block) = NonNull::new(block) else { handle_alloc_error(layout) };
        // Small trees are spared the page that would be larger than they are.
        if self.total_bytes > 0 {
            want_huge_pages(block, bytes);
        }
        self.run = Some(block);
        self.run_bytes = bytes;
        self.total_bytes += bytes;
    }
}

/// Asks for huge pages; the system may refuse, which costs speed only.
fn want_huge_pages(block: NonNull<u8>, bytes: usize) {
    #[cfg(target_os = "linux")]
    {
        use rustix::mm::{Advice, madvise};
        // SAFETY: the range is a block of ours, and the advice does not change its contents.
        let _ = unsafe { madvise(block.as_ptr().cast(), bytes, Advice::LinuxHugepage) };
    }
    #[cfg(not(target_os = "linux"))]
    let _ = (block, bytes);
}

fn shared() -> std::sync::MutexGuard<'static, Shared> {
    // The lists are whole at every moment at which a panic is possible.
    SHARED.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A thread's own free nodes: per size the batch in use, and perhaps a full one.
#[derive(Default)]
struct Cache {
    current: [Batch; SIZES],
    spare: [Option<Batch>; SIZES],
    /// Nodes taken less nodes given back, since the last count.
    live: isize,
}

impl Cache {
    fn take(&mut self, size: Size) -> NonNull<u8> {
        let at = size as usize;
        self.live += 1;
        loop {
            if let Some(node) = self.current[at].take(size) {
                return node;
            }
            self.current[at] = self.spare[at].take().unwrap_or_else(|| shared().batch(size));
        }
    }

    fn give(&mut self, node: NonNull<u8>, size: Size) {
        let at = size as usize;
        self.live -= 1;
        if self.current[at].listed >= BATCH {
            let full = std::mem::take(&mut self.current[at]);
            if let Some(older) = self.spare[at].replace(full) {
                shared().batches[at].push(older);
            }
        }
        self.current[at].give(node);
    }
}

impl Drop for Cache {
    fn drop(&mut self) {
        let mut shared = shared();
        shared.live += self.live;
        for (at, list) in shared.batches.iter_mut().enumerate() {
            let own = [Some(std::mem::take(&mut self.current[at])), self.spare[at].take()];
            list.extend(own.into_iter().flatten().filter(|batch| !batch.is_empty()));
        }
    }
}

thread_local! {
    static CACHE: RefCell<Cache> = RefCell::default();
}

fn layout(size: Size) -> Layout {
    Layout::from_size_align(size.bytes(), 64).expect("a node's layout is valid")
}

/// Memory for a node, aligned to a cache line, with nothing written to it yet.
pub(crate) fn take(size: Size) -> NonNull<u8> {
    if DIRECT {
        // SAFETY: the layout is not empty.
        let node = unsafe { alloc(layout(size)) };
        return NonNull::new(node).unwrap_or_else(|| handle_alloc_error(layout(size)));
    }
    CACHE.try_with(|cache| cache.borrow_mut().take(size)).unwrap_or_else(|_| {
        // The thread is being torn down.
        let mut batch = shared().batch(size);
        let node = batch.take(size).expect("a batch is not empty");
        let mut shared = shared();
        shared.live += 1;
        shared.batches[size as usize].push(batch);
        node
    })
}

/// Takes a node's memory back.
///
/// # Safety
/// It came from `take` with the same size, and nobody uses it any more.
pub(crate) unsafe fn give(node: NonNull<u8>, size: Size) {
    if DIRECT {
        // SAFETY: allocated in `take` with this layout; the caller is its last user.
        return unsafe { dealloc(node.as_ptr(), layout(size)) };
    }
    let kept = CACHE.try_with(|cache| cache.borrow_mut().give(node, size));
    if kept.is_err() {
        // As above.
        let mut batch = Batch::default();
        batch.give(node);
        let mut shared = shared();
        shared.live -= 1;
        shared.batches[size as usize].push(batch);
    }
}

/// How many nodes all trees of the process use, small buckets and those included that wait for
/// guards to go. Exact once all other threads that have changed trees are gone. Always 0 under Miri
/// and fuzzers, which watch every allocation themselves.
pub fn live_nodes() -> usize {
    let own = CACHE.try_with(|cache| std::mem::take(&mut cache.borrow_mut().live)).unwrap_or(0);
    let mut shared = shared();
    shared.live += own;
    shared.live.max(0) as usize
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn nodes_are_apart_aligned_and_used_again() {
        let mut nodes: Vec<_> = (0..1000).map(|_| take(Size::Interior)).collect();
        nodes.sort();
        assert!(nodes.iter().all(|node| node.addr().get() % 64 == 0));
        let bytes = Size::Interior.bytes();
        assert!(nodes.windows(2).all(|pair| pair[1].addr().get() - pair[0].addr().get() >= bytes));
        for node in &nodes {
            // SAFETY: the node was taken above, and is not used after this.
            unsafe { give(*node, Size::Interior) };
        }
        let before = shared().total_bytes;
        let again: Vec<_> = (0..1000).map(|_| take(Size::Interior)).collect();
        assert!(again.iter().filter(|node| nodes.binary_search(node).is_ok()).count() > 500);
        for node in again {
            // SAFETY: as above.
            unsafe { give(node, Size::Interior) };
        }
        assert!(shared().total_bytes <= before + BLOCK_MAX);
    }
}
