//! The number of keys, counted where threads do not meet.

use std::sync::atomic::{AtomicBool, AtomicIsize, Ordering};

/// All but the last have one thread at a time; in the last, those that found no other meet.
const SHARDS: usize = 16;
const COMMON: usize = SHARDS - 1;

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
        // A thread that is being torn down has no shard of its own any more.
        let at = OWN.try_with(|own| own.0).unwrap_or(COMMON);
        let shard = &self.0[at].0;
        // Relaxed: the sum promises nothing about anything else.
        if at == COMMON {
            shard.fetch_add(change, Ordering::Relaxed);
        } else {
            // Nobody else stores here. An addition in one step would wait until the stores of the
            // insert that is counted are done: some of their lines are with other threads.
            shard.store(shard.load(Ordering::Relaxed).wrapping_add(change), Ordering::Relaxed);
        }
    }

    pub(crate) fn sum(&self) -> usize {
        // Relaxed: as above. A sum taken during changes may be off, even below zero.
        let sum: isize = self.0.iter().map(|shard| shard.0.load(Ordering::Relaxed)).sum();
        sum.max(0) as usize
    }
}

/// Which shards, of all counters, have a thread.
static TAKEN: [AtomicBool; COMMON] = [const { AtomicBool::new(false) }; COMMON];

/// The number of a thread's shards.
struct Own(usize);

thread_local! {
    static OWN: Own = Own::take();
}

impl Own {
    fn take() -> Self {
        // Acquire: pairs with the release store in `drop`, so that the sums are known that the
        // thread before left.
        let free = TAKEN.iter().position(|taken| !taken.swap(true, Ordering::Acquire));
        Own(free.unwrap_or(COMMON))
    }
}

impl Drop for Own {
    fn drop(&mut self) {
        if let Some(taken) = TAKEN.get(self.0) {
            taken.store(false, Ordering::Release);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::{sync::Barrier, thread};

    use super::*;

    #[test]
    fn nothing_is_lost_with_more_threads_than_shards() {
        let counter = Counter::new();
        for round in 1..=3 {
            let together = Barrier::new(2 * SHARDS);
            thread::scope(|scope| {
                for _ in 0..2 * SHARDS {
                    scope.spawn(|| {
                        counter.add(1);
                        together.wait();
                        (0..1000).for_each(|i| counter.add(if i % 2 == 0 { 3 } else { -1 }));
                    });
                }
            });
            assert_eq!(counter.sum(), round * 2 * SHARDS * 1001);
        }
    }
}
