//! What a replica is told when it starts: who it is, and its times and limits.

use smr::{Durability, Identity};

/// Times in microseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Timing {
    /// The background plane's period: a replica increments its heartbeat, and reads those of the
    /// others, this often ([Mu] 5.1). A process that ends is noticed after 14 periods.
    pub heartbeat: u64,
    /// When to try again: a permission, a join, a transfer.
    pub retry: u64,
    /// A leader, or would-be leader, whose replication plane has got nowhere for this long stops
    /// its heartbeat and gives up the lead (fate sharing, [Mu] 5.1). A follower that holds up the
    /// reuse of slots for this long is left behind.
    pub stall: u64,
    /// How long such a replica leaves the lead to others at first; doubled, up to 64 times, for
    /// each further time that it gets nowhere.
    pub patience: u64,
    /// In `sync` and `lazy`: as `stall`, for a leader or would-be leader that waits only for disks.
    pub disk_stall: u64,
    /// In `lazy`: how long a would-be leader looks for replicas that have not forgotten anything
    /// before it makes do with any majority, and reports that acknowledged operations may be lost:
    /// a group whose majority has forgotten would stand still for ever otherwise.
    pub reluctance: u64,
}

impl Default for Timing {
    fn default() -> Timing {
        Timing {
            heartbeat: 50,
            retry: 2_000,
            stall: 20_000,
            patience: 100_000,
            disk_stall: 2_000_000,
            reluctance: 1_000_000,
        }
    }
}

/// Limits that bound memory and batches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// How many slots the ring has, 8 to 2^20.
    pub slots: u32,
    /// How many slots a replica keeps in memory beside, for those that lag behind should it lead:
    /// `slots` or more. A group that would decide more than so many operations while a checkpoint
    /// travels decides fewer. In `lazy` a leader proposes nothing while half as many operations are
    /// not durable.
    pub kept: u32,
    /// How many bytes they may have, but for the last `slots`.
    pub kept_bytes: usize,
    /// Words of 64 bits per slot, 24 to 2^20. Slots are laid out one after the other; a multiple
    /// of 8 that is no power of two spreads them over the cache. A request whose body is longer
    /// than [`Limits::body_bytes`] can't be taken.
    pub slot_words: u32,
    /// How many entries may be proposed and not committed, from 1 ([Mu] 7.4: "outstanding").
    pub outstanding: u64,
    /// How many requests go into one entry at most, from 1 ([Mu] 7.4: "batching").
    pub batch: usize,
    /// How many slots of a follower a new leader reads at a time, from 1.
    pub read_slots: u32,
    /// In `sync` and `lazy` a checkpoint is written after so many bytes of entries.
    pub checkpoint_bytes: usize,
}

impl Default for Limits {
    /// Slots of 2,112 bytes, 4 MiB in all.
    fn default() -> Limits {
        Limits {
            slots: 2_048,
            kept: 65_536,
            kept_bytes: 64 << 20,
            slot_words: 264,
            outstanding: 8,
            batch: 128,
            read_slots: 64,
            checkpoint_bytes: 64 << 20,
        }
    }
}

impl Limits {
    /// Limits so small that tests reach the rare paths.
    pub fn tiny() -> Limits {
        Limits {
            slots: 16,
            kept: 96,
            kept_bytes: 10_000,
            slot_words: 40,
            outstanding: 4,
            batch: 3,
            read_slots: 5,
            checkpoint_bytes: 4_000,
        }
    }

    /// The longest body of a request that fits a slot, in bytes.
    pub fn body_bytes(&self) -> usize {
        self.slot_words as usize * 8 - crate::layout::OVERHEAD - smr::Request::OVERHEAD
    }
}

/// A replica's configuration.
#[derive(Clone, Copy, Debug)]
pub struct Config {
    /// Who it is. The incarnation is on disk before the replica starts.
    pub identity: Identity,
    /// How many replicas the fabric reaches, members or not, 1 to [`smr::MAX_REPLICAS`].
    pub replicas: u8,
    /// The members that the group began with, a bit each; what the log says of later ones goes
    /// before.
    pub members: u16,
    /// What an acknowledgement means.
    pub durability: Durability,
    /// Times.
    pub timing: Timing,
    /// Limits.
    pub limits: Limits,
    /// A defect to show.
    #[cfg(feature = "planted-bugs")]
    pub bug: Option<crate::Bug>,
}

impl Config {
    /// A configuration in durability `memory`, all replicas members, with the default times and
    /// limits.
    pub fn new(identity: Identity, replicas: u8) -> Config {
        Config {
            identity,
            replicas,
            members: if replicas < 16 { (1 << replicas) - 1 } else { 0 },
            durability: Durability::Memory,
            timing: Timing::default(),
            limits: Limits::default(),
            #[cfg(feature = "planted-bugs")]
            bug: None,
        }
    }

    /// # Panics
    /// If a number is out of its range.
    pub(crate) fn check(&self) {
        let Limits { slots, kept, slot_words, outstanding, batch, read_slots, .. } = self.limits;
        assert!((1..=smr::MAX_REPLICAS).contains(&self.replicas), "1 to 9 replicas");
        assert!(self.identity.replica.0 < self.replicas, "the replica is one of its group");
        let reach = (1_u32 << self.replicas) - 1;
        assert!(self.members > 0 && u32::from(self.members) & !reach == 0, "members are replicas");
        assert!((8..=1 << 20).contains(&slots), "8 to 2^20 slots");
        assert!(kept >= slots, "the ring is kept, at least");
        assert!((24..=1 << 20).contains(&slot_words), "24 to 2^20 words a slot");
        assert!(outstanding > 0 && outstanding < u64::from(slots), "1 to slots - 1 outstanding");
        assert!(batch > 0 && read_slots > 0, "nothing moves without them");
    }
}
