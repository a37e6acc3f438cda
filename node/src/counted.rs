//! What a process counts for its clients, on one thread or on several: each counts for itself, and
//! whoever asks gets the sums.

use std::ops::AddAssign;
use std::sync::{Arc, Mutex};

/// What the node counts. All numbers are since the start of the process.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Commands taken from clients that change the state.
    pub writes: u64,
    /// Commands taken from clients that read it.
    pub reads: u64,
    /// Batches of them that were sent to the group.
    pub batches: u64,
    /// Commands that were answered with a [`Failure`](crate::Failure).
    pub failures: u64,
    /// Client connections accepted.
    pub accepted: u64,
    /// Client connections turned away because there were too many.
    pub rejected: u64,
    /// Turns of the event loop.
    pub turns: u64,
    /// Peer connections refused: another group, or nonsense.
    pub refused_peers: u64,
    /// Frames of peers that made no sense.
    pub nonsense: u64,
    /// Frames dropped because a peer did not keep up.
    pub dropped_frames: u64,
    /// Batches written to the log's disk.
    pub stored: u64,
    /// Forced writes of the log.
    pub syncs: u64,
}

impl AddAssign for Counters {
    fn add_assign(&mut self, other: Counters) {
        self.writes += other.writes;
        self.reads += other.reads;
        self.batches += other.batches;
        self.failures += other.failures;
        self.accepted += other.accepted;
        self.rejected += other.rejected;
        self.turns += other.turns;
        self.refused_peers += other.refused_peers;
        self.nonsense += other.nonsense;
        self.dropped_frames += other.dropped_frames;
        self.stored += other.stored;
        self.syncs += other.syncs;
    }
}

/// One thread's connections, and what it has counted.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Share {
    pub connections: usize,
    pub counters: Counters,
}

/// What every thread of a server has counted, up to its last turn. A clone is the same one.
#[derive(Clone, Debug, Default)]
pub struct Tally(Arc<[Mutex<Share>]>);

impl Tally {
    /// For so many threads.
    pub fn new(threads: usize) -> Tally {
        Tally((0..threads).map(|_| Mutex::default()).collect())
    }

    pub(crate) fn threads(&self) -> usize {
        self.0.len()
    }

    /// A thread has counted so far.
    pub(crate) fn publish(&self, thread: usize, share: Share) {
        *self.0[thread].lock().expect("nobody panics with it") = share;
    }

    /// The sum of what is `own`, of this thread, and of what the others have counted.
    pub(crate) fn sum(&self, thread: usize, own: Share) -> Share {
        let mut sum = own;
        for (_, share) in self.0.iter().enumerate().filter(|(other, _)| *other != thread) {
            let share = *share.lock().expect("nobody panics with it");
            sum.connections += share.connections;
            sum.counters += share.counters;
        }
        sum
    }
}
