//! Viewstamped replication in the form of Lazy VSR ([Mao] chapter 4), as a deterministic state
//! machine: durabilities `memory`, `lazy` and `sync`.
//!
//! Where to find what: [`replica`] holds the state and the dispatch; one file per sub-protocol:
//! `normal` (4.2.3), `view_change` (4.2.5), `resync` (4.2.6), `checkpoint` (4.2.4), `transfer`
//! (a checkpoint from a peer), `recovery` (a replica that lost its state), `forgetful` (one that
//! may have lost the end of it), `reads`. The other side is [`smr::client`].
//!
//! Invariants: a view is on disk before anything is done in it; an operation is acknowledged only
//! when every operation before it is; what was acknowledged by a quorum is in the log of every
//! later primary (in `lazy`, unless more than f replicas are forgetful or silent; what is durable,
//! always); a recovering replica neither votes nor acknowledges.
#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;

mod checkpoint;
mod config;
mod forgetful;
mod message;
mod normal;
mod reads;
mod recovery;
pub mod replica;
mod resync;
mod storage;
mod transfer;
mod view_change;

pub use config::{Config, Limits, Timing};
pub use message::{Incarnations, Message, Standing};
pub use replica::Replica;

/// Deliberate defects, each of which a checker of the simulator must catch.
#[cfg(feature = "planted-bugs")]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bug {
    /// A new view is acted upon without being on disk.
    ViewNotPersisted,
    /// A recovering replica answers elections.
    VoteWhileRecovering,
    /// Re-synchronisation drops the tail of the log before the entries that replace it are there.
    TruncateBeforeState,
    /// Clients are answered when an entry is proposed.
    ReplyBeforeStored,
    /// In `sync`, a backup acknowledges what is only in memory.
    AckBeforeStored,
    /// A PREPARE is accepted by its number alone, whatever precedes it.
    AcceptByNumberOnly,
    /// The voter's comparison of logs is inverted.
    VoteInverted,
    /// One replica short of a quorum commits.
    CommitOnMinority,
    /// Reads do not wait for a confirmation of leadership.
    ReadWithoutQuorum,
    /// Votes and acknowledgements of former lives are counted.
    IncarnationIgnored,
    /// In `sync`, the primary counts itself before its own disk has answered.
    CountSelfBeforeStored,
    /// In `lazy`, what one replica short of a quorum has stored is called durable.
    DurableOnMinority,
    /// In `lazy`, undo information is dropped at commitment.
    UndoDroppedEarly,
    /// In `lazy`, a replica that may have forgotten what it acknowledged votes like any other.
    ForgetfulVoteUnmarked,
    /// In `lazy`, a forgetful replica takes a backup's word for what it must hold.
    RemindedByBackup,
    /// In `lazy`, operations are acknowledged before the view's first entry is on disk.
    AckBeforeViewStored,
    /// Re-synchronisation truncates the log on disk to what is known to be durable, and writes the
    /// entries that replace it, and those it shares, with the next batch.
    TruncateThenAppend,
    /// The client takes what is smaller than the new view for covered by it.
    CoverageByNumber,
    /// In `lazy`, a replica that restarts rolls back what it does not know to be durable.
    TentativeDroppedOnRestart,
}
