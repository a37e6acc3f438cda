//! What a replica is told when it starts: who it is, and its times and limits.

use smr::{Durability, Identity};

/// Times in microseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Timing {
    /// A leader synchronises at least this often ([NOPaxos] 5.2.4), which shows that it lives.
    pub heartbeat: u64,
    /// A replica that has not heard its leader for this long, plus up to `jitter`, suspects it; so
    /// it does with a leader of a view that has not started for as long.
    pub election: u64,
    /// The random part of that.
    pub jitter: u64,
    /// A leader whose disk has not answered for this long falls silent; a leader that has got no
    /// request for this long while others have is suspected.
    pub stall: u64,
    /// How long a leader looks for a dropped request before it commits a NO-OP ([NOPaxos] 5.2.2).
    pub gap: u64,
    /// When to ask again.
    pub retry: u64,
    /// How long a restarted replica looks for others that remember everything before it makes do
    /// with what the disks hold (durability `lazy`).
    pub patience: u64,
}

impl Default for Timing {
    fn default() -> Timing {
        Timing {
            heartbeat: 10_000,
            election: 50_000,
            jitter: 20_000,
            stall: 2_000_000,
            gap: 500,
            retry: 5_000,
            patience: 1_000_000,
        }
    }
}

/// Limits that bound memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// How many slots beyond an open gap are kept, from 1. What comes further ahead is taken for
    /// dropped.
    pub ahead: usize,
    /// How many slots beyond what is stable are taken, from 1: with more, nothing is received.
    pub unstable: u64,
    /// The same in bytes of requests, from 1, but for one that exceeds it, and for what the leader
    /// has told of, which is bounded there: VIEW-CHANGE and START-VIEW carry twice as much at most.
    pub unstable_bytes: usize,
    /// A leader synchronises when so many slots were added, from 1.
    pub sync_every: u64,
    /// Entries below the sync-point are kept for replicas that lag behind up to this many bytes;
    /// with more, a checkpoint takes their place.
    pub log_bytes: usize,
    /// An answer to a replica that lags behind carries about this many bytes of entries.
    pub transfer_bytes: usize,
    /// Bodies that came before their digests were ordered are kept up to this many bytes.
    pub body_bytes: usize,
    /// How many slots one message about gaps names at most, from 1.
    pub gap_batch: usize,
}

impl Default for Limits {
    fn default() -> Limits {
        Limits {
            ahead: 65_536,
            unstable: 1 << 17,
            unstable_bytes: 16 << 20,
            sync_every: 512,
            log_bytes: 64 << 20,
            transfer_bytes: 1 << 20,
            body_bytes: 64 << 20,
            gap_batch: 1_024,
        }
    }
}

impl Limits {
    /// Limits so small that tests reach the rare paths.
    pub fn tiny() -> Limits {
        Limits {
            ahead: 12,
            unstable: 40,
            unstable_bytes: 5_000,
            sync_every: 8,
            log_bytes: 2_000,
            transfer_bytes: 600,
            body_bytes: 2_000,
            gap_batch: 3,
        }
    }
}

/// A replica's configuration.
#[derive(Clone, Copy, Debug)]
pub struct Config {
    /// Who it is. The incarnation is on disk before the replica starts.
    pub identity: Identity,
    /// How many replicas the group has, 1 to [`smr::MAX_REPLICAS`].
    pub replicas: u8,
    /// What an acknowledgement means.
    pub durability: Durability,
    /// Times.
    pub timing: Timing,
    /// Limits.
    pub limits: Limits,
    /// Seeds the jitter of timeouts.
    pub seed: u64,
    /// A defect to show.
    #[cfg(feature = "planted-bugs")]
    pub bug: Option<crate::Bug>,
}

impl Config {
    /// A configuration with the default times and limits.
    pub fn new(identity: Identity, replicas: u8, durability: Durability, seed: u64) -> Config {
        Config {
            identity,
            replicas,
            durability,
            timing: Timing::default(),
            limits: Limits::default(),
            seed,
            #[cfg(feature = "planted-bugs")]
            bug: None,
        }
    }

    /// # Panics
    /// If a number is out of its range.
    pub(crate) fn check(&self) {
        let Limits { ahead, unstable, unstable_bytes, sync_every, gap_batch, .. } = self.limits;
        assert!((1..=smr::MAX_REPLICAS).contains(&self.replicas), "1 to 9 replicas");
        assert!(self.identity.replica.0 < self.replicas, "the replica is one of its group");
        assert!(
            ahead > 0 && unstable > 0 && unstable_bytes > 0,
            "nothing is received without room"
        );
        assert!(sync_every > 0 && gap_batch > 0, "nothing moves without them");
    }
}
