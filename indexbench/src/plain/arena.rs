//! Memory that is given back all at once, in blocks that ask for huge pages, as Masstree's nodes
//! have them.

use std::{
    alloc::{Layout, alloc, dealloc, handle_alloc_error},
    ptr::NonNull,
    sync::Mutex,
};

use rustix::mm::{Advice, madvise};

/// A huge page and more.
const BLOCK: usize = 32 << 20;
const HUGE_PAGE: usize = 2 << 20;

/// A cache line. Everything is handed out in multiples of `SMALL`, nodes of whole lines.
const LINE: usize = 64;
const SMALL: usize = 8;

#[derive(Default)]
struct Blocks {
    all: Vec<NonNull<u8>>,
    /// Where the next node goes, and how much is left of its block; nodes come from below.
    next: usize,
    /// Where what was last handed out begins that is no node; that comes from above.
    end: usize,
}

/// The memory of one tree.
#[derive(Default)]
pub struct Arena(Mutex<Blocks>);

// SAFETY: the blocks are plain memory that the arena owns.
unsafe impl Send for Arena {}
// SAFETY: as above, and the lock orders those who take from it.
unsafe impl Sync for Arena {}

fn layout() -> Layout {
    Layout::from_size_align(BLOCK, HUGE_PAGE).expect("a block's layout is valid")
}

impl Arena {
    /// Memory of so many bytes: aligned to a cache line if that is a multiple of one, else to a
    /// word.
    pub fn take(&self, bytes: usize) -> NonNull<u8> {
        assert!(bytes < BLOCK);
        let mut blocks = self.0.lock().expect("no panic under this lock");
        let rounded = bytes.next_multiple_of(SMALL);
        if blocks.end - blocks.next < rounded {
            blocks.add();
        }
        let offset = if bytes.is_multiple_of(LINE) {
            blocks.next += bytes;
            blocks.next - bytes
        } else {
            blocks.end -= rounded;
            blocks.end
        };
        let block = *blocks.all.last().expect("there is a block");
        // SAFETY: the offset is inside the block, as just checked.
        unsafe { block.add(offset) }
    }
}

impl Blocks {
    fn add(&mut self) {
        // SAFETY: the layout is not empty.
        let block = unsafe { alloc(layout()) };
        let Some(block) = NonNull::new(block) else { handle_alloc_error(layout()) };
        // SAFETY: the range is a block of ours. The system may refuse, which costs speed only.
        let _ = unsafe { madvise(block.as_ptr().cast(), BLOCK, Advice::LinuxHugepage) };
        self.all.push(block);
        (self.next, self.end) = (0, BLOCK);
    }
}

impl Drop for Arena {
    fn drop(&mut self) {
        let blocks = self.0.get_mut().expect("no panic under this lock");
        for block in blocks.all.drain(..) {
            // SAFETY: allocated in `add` with this layout; what was in it needs no drop, and the
            // tree that used it is gone.
            unsafe { dealloc(block.as_ptr(), layout()) };
        }
    }
}
