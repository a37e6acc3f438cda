//! Sequencers of ordered unreliable multicast ([NOPaxos] 4.2): what [`oum::Sequencer`] decides,
//! carried by sockets.
//!
//! [`EndHost`] is a program on any machine, without privileges ([NOPaxos] 4.2.3): senders send to
//! its socket, and it sends each message on to every member. `xdp::Xdp` (feature `xdp`) does it
//! where packets come in, for root on Linux.
//!
//! Invariants: a number is given once; a session belongs to one life of the
//! process and is begun once; nothing survives the process.
#![forbid(unsafe_code)]

mod batches;
mod end_host;
#[cfg(feature = "xdp")]
pub mod xdp;

pub use end_host::{Counts, EndHost, Event, MAX_GROUPS};
