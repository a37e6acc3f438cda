//! The number of keys, counted where threads do not meet.

use std::sync::atomic::{AtomicIsize, AtomicUsize, Ordering};

const SHARDS: usize = 16;

/// Apart from its neighbours by two cache lines, which are fetched in pairs.
#[derive(Debug, Default)]
#[repr(align(128))]
struct Shard(AtomicIsize);

/// A sum, exact when nobody is changing it.
#[derive(Debug, Default)]
pub(crate) struct Counter([Shard; SHARDS]);

impl Counter {
    pub(crate) const fn new() -> Self {
        Counter([const { Shard(AtomicIsize::new(0)) }; SHARDS])
    }

    pub(crate) fn add(&self, change: isize) {
        thread_local! {
            static SHARD: usize = {
                static NEXT: AtomicUsize = AtomicUsize::new(0);
                // Relaxed: any spread of threads over shards will do.
                NEXT.fetch_add(1, Ordering::Relaxed) % SHARDS
            };
        }
        // A thread that is being torn down has no shard of its own any more.
        let shard = SHARD.try_with(|shard| *shard).unwrap_or(0);
        // Relaxed: the sum promises nothing about anything else.
        self.0[shard].0.fetch_add(change, Ordering::Relaxed);
    }

    pub(crate) fn sum(&self) -> usize {
        // Relaxed: as above. A sum taken during changes may be off, even below zero.
        let sum: isize = self.0.iter().map(|shard| shard.0.load(Ordering::Relaxed)).sum();
        sum.max(0) as usize
    }
}
