//! Pinning: what a thread may see stays allocated while it is pinned.
//!
//! The guard is a type of this crate, so that a guard of a foreign collector, which would protect
//! nothing here, cannot be handed to the tree.

use std::cell::Cell;

use crate::counter::Counter;

/// After so many retired items a thread hands them over and helps to free older ones, up to four
/// times as many.
const RETIRED_PER_FLUSH: u32 = 128;

/// What is retired and not yet freed.
static WAITING: Counter = Counter::new();

thread_local! {
    static RETIRED: Cell<u32> = const { Cell::new(0) };
}

/// Proof that the thread is pinned. No value or node that the tree held at any time while the guard
/// lives is freed before the guard is dropped, so keep guards short.
pub struct Guard(crossbeam_epoch::Guard);

/// Pins the current thread. Pinning again while pinned is cheap.
pub fn pin() -> Guard {
    Guard(crossbeam_epoch::pin())
}

/// How many values, nodes and blocks of suffixes, of all trees of the process, are no longer in use
/// and wait until no guard is left that could see them. Near, while threads are at work.
///
/// Some thousands are usual. A number that keeps growing means that a guard stays: readers are
/// never stopped and writers never wait, so it is memory that grows.
pub fn waiting() -> usize {
    WAITING.sum()
}

impl Guard {
    /// Lets memory retired until now be freed, as if the guard were dropped and taken anew.
    pub fn repin(&mut self) {
        self.0.repin();
    }

    /// Hands this thread's retired memory over for freeing, by whichever thread comes first.
    pub fn flush(&self) {
        self.0.flush();
    }

    /// Runs `free` once no guard that exists now is left.
    ///
    /// # Safety
    /// `free` may run on any thread, and what it frees can no longer be reached from the tree.
    pub(crate) unsafe fn retire(&self, free: impl FnOnce()) {
        WAITING.add(1);
        let free = || {
            free();
            WAITING.add(-1);
        };
        // SAFETY: the caller vouches for running on another thread; every closure of this crate
        // owns what it captures.
        unsafe { self.0.defer_unchecked(free) }
        // Left alone, the collector frees some 500 items every 128 pins: a caller that changes
        // thousands of values per pin would outrun it without bound.
        let due = RETIRED.with(|retired| {
            retired.set(retired.get().wrapping_add(1));
            retired.get().is_multiple_of(RETIRED_PER_FLUSH)
        });
        if due {
            self.0.flush();
        }
    }
}

impl std::fmt::Debug for Guard {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Guard")
    }
}
