//! What a replica is told when it starts.

use smr::ReplicaId;

/// Times in microseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Timing {
    /// A leader synchronises at least this often, which shows that it lives.
    pub heartbeat: u64,
    /// A replica that has not heard its leader for this long, plus up to `jitter`, calls for a view
    /// of its own; so it does with a view that has not started for as long.
    pub election: u64,
    /// The random part of that.
    pub jitter: u64,
    /// When something in its log has not been decided for this long, a leader settles it in a new
    /// view. More than `heartbeat`.
    pub patience: u64,
}

impl Default for Timing {
    fn default() -> Timing {
        Timing { heartbeat: 2_000, election: 100_000, jitter: 40_000, patience: 10_000 }
    }
}

/// A replica's configuration.
#[derive(Clone, Copy, Debug)]
pub struct Config {
    /// Its place in the group.
    pub me: ReplicaId,
    /// How many replicas there are: an odd number, up to [`smr::MAX_REPLICAS`].
    pub replicas: u8,
    /// Times.
    pub timing: Timing,
    /// A leader synchronises when so many requests were added, from 1.
    pub sync_every: u64,
    /// Seeds the jitter of timeouts.
    pub seed: u64,
    /// A defect to show.
    #[cfg(feature = "planted-bugs")]
    pub bug: Option<Bug>,
}

impl Config {
    /// A configuration with the default times.
    pub fn new(me: ReplicaId, replicas: u8, seed: u64) -> Config {
        Config {
            me,
            replicas,
            timing: Timing::default(),
            sync_every: 256,
            seed,
            #[cfg(feature = "planted-bugs")]
            bug: None,
        }
    }

    /// # Panics
    /// If a number is out of its range.
    pub(crate) fn check(&self) {
        let odd = self.replicas % 2 == 1 && self.replicas <= smr::MAX_REPLICAS;
        assert!(odd, "1, 3, 5, 7 or 9 replicas");
        assert!(self.me.0 < self.replicas, "the replica is one of its group");
        assert!(self.sync_every > 0, "nothing moves without it");
        assert!(self.timing.patience > self.timing.heartbeat, "patience outlasts a heartbeat");
    }

    #[cfg(feature = "planted-bugs")]
    pub(crate) fn bug(&self, bug: Bug) -> bool {
        self.bug == Some(bug)
    }

    #[cfg(not(feature = "planted-bugs"))]
    pub(crate) fn bug(&self, _: Bug) -> bool {
        false
    }
}

/// Deliberate defects, each of which the tests must catch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bug {
    /// Unreplicated: some requests are answered, and then undone.
    UndoAnswered,
    /// Fast Paxos: f + 1 equal places decide.
    DecideOnMajority,
    /// Fast Paxos: a follower takes the leader's word for what it has in its own log.
    CommitByNumber,
    /// A new leader takes its own log for the group's.
    MergeOwnLog,
    /// What a view started with is not kept by the next one unless many report it.
    MergeForgetsStart,
    /// Speculative Paxos: f + 1 equal replies make a client believe.
    BelieveMajority,
    /// Speculative Paxos: the log is replaced, and what was executed stays.
    SkipRollback,
}
