//! NOPaxos ([NOPaxos] 5): replication of what ordered unreliable multicast delivers, as a
//! deterministic state machine, and the client machine that counts its replies.
//!
//! [`replica`] holds the state and the dispatch. `normal` (5.2.1), `gap` (5.2.2), `view_change`
//! (5.2.3), `sync` (5.2.4), `recovery`, `transfer` and `roster` (5.2.5), `slots` (the log and what
//! waits for a gap), `bodies` (requests longer than a datagram), `storage` (the disk as a peer).
//!
//! Invariants: within a view a leader's log only grows; a replica replies to a request only when
//! all slots before it are filled; a NO-OP is passed only when f + 1 replicas hold it; what is at
//! or below a sync-point never changes; every quorum, the client's too, counts replies of present
//! lives only. Deliberately absent: reads beside the log (they are requests).
#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;

mod ahead;
mod bodies;
mod bug;
mod client;
mod config;
mod event;
mod gap;
mod held;
mod lives;
mod message;
mod normal;
mod recovery;
pub mod replica;
mod roster;
mod slots;
mod storage;
mod sync;
mod timers;
mod transfer;
mod view_change;
mod view_id;

pub use client::{Client, Finished, Loss, Send};
pub use config::{Config, Limits, Timing};
pub use event::{Content, Effect, Event, Ordered, Reply};
pub use lives::Lives;
pub use message::{Body, Message, Suffix};
pub use replica::{Replica, Status, Tally};
pub use view_id::ViewId;

#[cfg(feature = "planted-bugs")]
pub use bug::Bug;
