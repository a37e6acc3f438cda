//! Ordered unreliable multicast ([NOPaxos] 3, 4): messages to a group are received in one order by
//! all its members, or announced as dropped.
//!
//! [`Header`] is what travels, [`Sender`] and [`Sequencer`] fill it, [`Receiver`] turns what
//! arrives (late, twice, in any order) into messages, drops and ends of sessions. [`Control`] is
//! how sessions come about. Pure logic: sockets, clocks and the choice of a sequencer belong to
//! others.
//!
//! Invariants: within a session a receiver delivers every sequence number once, in order, as its
//! message or as dropped; no message of another session or group, and no damaged one, is delivered.
#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;

mod control;
mod header;
mod members;
mod receiver;
mod sequencer;

pub use control::{CONTROL_MAGIC, Control, Life};
pub use header::{HEADER_BYTES, Header, Sender, Session, Unreadable};
pub use members::Members;
pub use receiver::{Counts, Delivery, Receiver};
pub use sequencer::{Refused, Sequencer};
