//! Mu ([Mu]): consensus by one-sided writes under exclusive permission, as a deterministic state
//! machine over `fabric`'s words. Durabilities `memory`, `lazy` and `sync`.
//!
//! [`replica`] holds the state and the dispatch. Replication plane: `attempt` (4.1, from permission
//! to adoption), `accept` (4.1, 4.2), `replay` (4.2), `layout`. Background plane: `detector` (5.1),
//! `permission` (5.2). `rounds` (reads); `join`, `transfer`, `reserve` (rejoin); `members` (5.4);
//! `disk`, `restart`, `leftover` and `loss` (durability). docs/protocols/mu.md.
//!
//! Invariants: what a majority holds under one number is chosen by every later leader; a replica
//! executes only what is decided, so only `lazy` ever rolls back, and only what the group has lost;
//! a replica that lost its memory grants nothing until it holds all that its former lives helped to
//! decide.
#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;

mod accept;
mod attempt;
mod config;
mod detector;
mod disk;
mod event;
mod join;
mod layout;
mod leftover;
mod loss;
mod members;
mod message;
mod permission;
mod recent;
mod replay;
pub mod replica;
mod reserve;
mod restart;
mod rounds;
mod space;
mod transfer;

pub use config::{Config, Limits, Timing};
pub use event::{Change, ChangeError, Effect, Event, Memory, Operation};
pub use layout::{BOARD, LOG, geometry, round, slot_in, slot_place};
pub use message::Message;
pub use replica::{Replica, Status};

/// Deliberate defects, each of which a checker must catch.
#[cfg(feature = "planted-bugs")]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bug {
    /// A new leader takes its predecessors' accepted values for empty slots.
    AdoptNothing,
    /// A new leader reads its own log alone.
    PrepareSkipped,
    /// Of several accepted values the one with the lowest number is adopted.
    AdoptLowest,
    /// A follower executes a slot as soon as the next one is there.
    ExecuteOnNextSlot,
    /// One replica short of a majority commits.
    CommitAtMinority,
    /// A write that was refused counts as done: as if grants revoked nothing.
    RefusalIgnored,
    /// Slots are used again before every confirmed follower has executed them.
    HeadsIgnored,
    /// A slot of a former lap is read as one of this lap: as if reuse came without zeroing.
    LapIgnored,
    /// A torn slot is read as a whole one.
    ChecksumIgnored,
    /// A replica that lost its memory grants permission at once.
    GrantWhileRecovering,
    /// Reads do not wait for a confirmation of leadership.
    ReadWithoutQuorum,
    /// In `sync`, what a majority's memories hold is decided.
    AckBeforeStored,
    /// In `sync`, a leader counts itself before its own disk has answered.
    CountSelfBeforeStored,
    /// A follower tells its leader of entries that its disk has not stored.
    DurableBeforeStored,
    /// A follower tells its leader how long its log on disk is, whoever's entries are its end.
    DurableUnderOldNumber,
    /// A promise counts before it is on disk.
    PromiseNotStored,
    /// A replica that restarts opens its log without the slots that its disk held.
    SlotsNotRestored,
    /// In `lazy`, a replica that restarts is believed to remember everything.
    ForgetfulUnmarked,
    /// A would-be leader counts with the members that it has executed, whatever the logs that it
    /// reads name.
    MembersUnread,
}
