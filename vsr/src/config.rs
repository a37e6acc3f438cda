//! What a replica is told when it starts: who it is, and its times and limits.

use smr::{Durability, Identity};

/// Times in microseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Timing {
    /// A primary speaks at least this often.
    pub heartbeat: u64,
    /// A backup that has not heard an acceptable message from its primary for this long, plus up to
    /// `election_jitter`, suspects it; a primary that has not heard from a quorum for this long
    /// gives up the lead. [Mao] 4.2.5 has three seconds.
    pub election: u64,
    /// The random part of the election timeout.
    pub election_jitter: u64,
    /// A primary whose disk has not answered for this long gives up the lead.
    pub stall: u64,
    /// How long a candidate looks for votes of replicas that have not forgotten anything before it
    /// makes do with [Mao]'s rule and reports that acknowledged operations may be lost (durability
    /// `lazy`; contracts: forgetful votes).
    pub patience: u64,
    /// When to ask again: catch-up, state transfer, recovery, a client's request.
    pub retry: u64,
}

impl Default for Timing {
    fn default() -> Timing {
        Timing {
            heartbeat: 25_000,
            election: 200_000,
            election_jitter: 100_000,
            stall: 2_000_000,
            patience: 1_000_000,
            retry: 100_000,
        }
    }
}

/// Limits that bound memory and batches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// How many entries may be proposed and not committed.
    pub pipeline: u64,
    /// Requests are batched into one entry up to this many bytes; a larger one travels alone.
    pub batch_bytes: usize,
    /// Entries are kept for replicas that lag behind, up to this many bytes above what is needed.
    pub log_bytes: usize,
    /// A primary proposes nothing more while so many bytes of entries are not durable (durability
    /// `lazy`): entries above the durable point are in memory, with their undo information and the
    /// replies to them, which are not counted.
    pub lag_bytes: usize,
    /// A checkpoint is written after four times as many bytes of entries as the last one took, but
    /// after this many at least and eight times this many at most (durabilities `sync`, `lazy`).
    /// The first one of a life comes up to one interval later, by the replica's number.
    pub checkpoint_bytes: usize,
    /// A catch-up answer carries about this many bytes of entries.
    pub catch_up_bytes: usize,
    /// How many confirmation rounds for reads may be under way.
    pub read_rounds: usize,
}

impl Default for Limits {
    fn default() -> Limits {
        Limits {
            pipeline: 8,
            batch_bytes: 1 << 20,
            log_bytes: 64 << 20,
            lag_bytes: 32 << 20,
            checkpoint_bytes: 64 << 20,
            catch_up_bytes: 1 << 20,
            read_rounds: 4,
        }
    }
}

impl Limits {
    /// Limits so small that tests reach the rare paths.
    pub fn tiny() -> Limits {
        Limits {
            pipeline: 3,
            batch_bytes: 400,
            log_bytes: 2_000,
            lag_bytes: 1_500,
            checkpoint_bytes: 2_500,
            catch_up_bytes: 600,
            read_rounds: 2,
        }
    }
}

/// A replica's configuration.
#[derive(Clone, Copy, Debug)]
pub struct Config {
    /// Who it is.
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
}
