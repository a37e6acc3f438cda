//! The disk of all replicas, and its power.
//!
//! Invariant: this process never reads or writes below the mount itself. If it was killed in the
//! middle, the kernel would wait for an answer of its dead threads for ever.

use std::ops::Range;
use std::time::Duration;

use anyhow::Result;
use faultfs::FaultDisk;
use rand::Rng;
use rand::rngs::SmallRng;

use super::replicas::Replicas;

/// So many changes and syncs may still reach the disk when its power goes.
const LAST_OPERATIONS: Range<u64> = 0..7;

/// So many milliseconds the processes live on after that.
const LAST_MS: Range<u64> = 0..7;

/// Decides when the disk loses what.
pub struct Power<'a> {
    disk: &'a FaultDisk,
    torn: bool,
    rng: SmallRng,
    /// How often the power went.
    pub cuts: u32,
    /// How often it met something that was not synced.
    pub telling_cuts: u32,
}

impl<'a> Power<'a> {
    /// With `torn`, every other cut leaves a random part of what was not synced.
    pub fn new(disk: &'a FaultDisk, torn: bool, rng: SmallRng) -> Self {
        Self { disk, torn, rng, cuts: 0, telling_cuts: 0 }
    }

    /// Cuts the power of disk and replicas. Returns how many files and directories
    /// had something that was not synced.
    pub fn cut(&mut self, replicas: &mut Replicas) -> Result<usize> {
        replicas.all_run()?;
        // The disk goes a moment before the processes, so that what they have under way is not
        // finished while they die; and it goes between two of its operations, where chance alone
        // seldom hits. What is not stored may not be acknowledged in that moment either.
        self.disk.cut(self.rng.random_range(LAST_OPERATIONS));
        self.sleep(LAST_MS);
        self.disk.cut(0);
        replicas.kill()?;
        let unsynced = self.disk.unsynced();
        if self.torn && self.cuts.is_multiple_of(2) {
            self.disk.tear_unsynced(self.rng.random());
        } else {
            self.disk.drop_unsynced();
        }
        self.cuts += 1;
        self.telling_cuts += u32::from(unsynced > 0);
        Ok(unsynced)
    }

    /// Sleeps for so many milliseconds, chosen from a range.
    pub fn sleep(&mut self, milliseconds: Range<u64>) -> Duration {
        let duration = Duration::from_millis(self.rng.random_range(milliseconds));
        std::thread::sleep(duration);
        duration
    }

    /// How many syncs the disk has done so far.
    pub fn syncs(&self) -> u64 {
        self.disk.syncs()
    }
}
