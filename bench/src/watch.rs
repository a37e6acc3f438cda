//! Waits for the first write that was asked for after an instant, and acknowledged.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Result, bail};

/// A watch over the acknowledgements of a load. Times are nanoseconds since the load's origin.
pub(crate) struct Watch {
    /// Writes invoked later count. `u64::MAX` while nobody watches.
    after: AtomicU64,
    /// Acknowledgements of this replica do not count.
    except: AtomicUsize,
    /// When the earliest such acknowledgement came.
    seen: AtomicU64,
}

impl Watch {
    pub(crate) fn new() -> Self {
        let never = || AtomicU64::new(u64::MAX);
        Self { after: never(), except: AtomicUsize::new(usize::MAX), seen: never() }
    }

    /// Begins to watch, for acknowledgements by a replica other than this.
    pub(crate) fn begin(&self, now: u64, except: Option<usize>) {
        self.except.store(except.unwrap_or(usize::MAX), Ordering::Relaxed);
        self.seen.store(u64::MAX, Ordering::Relaxed);
        // Pairs with the load in `Watch::acknowledged`: who sees the time sees the rest.
        self.after.store(now, Ordering::Release);
    }

    /// How long it took from [`Watch::begin`] to that write; waits for it.
    pub(crate) fn gap(&self, patience: Duration) -> Result<Duration> {
        let after = self.after.load(Ordering::Relaxed);
        let started = Instant::now();
        loop {
            let seen = self.seen.load(Ordering::Acquire);
            if seen != u64::MAX {
                // A later acknowledgement of an earlier time would be microseconds away.
                self.after.store(u64::MAX, Ordering::Relaxed);
                return Ok(Duration::from_nanos(seen.saturating_sub(after)));
            }
            if started.elapsed() > patience {
                bail!("no write was acknowledged for {patience:?}: is the group still alive?");
            }
            std::thread::sleep(Duration::from_micros(200));
        }
    }

    /// A write was acknowledged.
    pub(crate) fn acknowledged(&self, invoked: u64, completed: u64, replica: usize) {
        // Pairs with the store in `Watch::begin`.
        let after = self.after.load(Ordering::Acquire);
        if invoked > after && self.except.load(Ordering::Relaxed) != replica {
            self.seen.fetch_min(completed, Ordering::AcqRel);
        }
    }
}
