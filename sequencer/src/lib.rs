//! Sequencers of ordered unreliable multicast ([NOPaxos] 4.2): what [`oum::Sequencer`] decides,
//! carried by sockets.
//!
//! [`EndHost`] is a program on any machine, without privileges ([NOPaxos] 4.2.3): senders send to
//! its socket, and it sends each message on to every member. Where messages are stamped by others,
//! a [`ControlPlane`] answers the controller: for a switch that runs `p4/sequencer.p4`
//! ([`p4::Switch`]), and for the kernel, which stamps where packets come in (`xdp::Xdp`, feature
//! `xdp`; for root on Linux).
//!
//! Invariants: a number is given once; a session belongs to one life of the
//! process and is begun once; nothing survives the process.
#![forbid(unsafe_code)]

mod batches;
mod control_plane;
mod end_host;
mod opening;
pub mod p4;
#[cfg(feature = "xdp")]
pub mod xdp;

pub use control_plane::{ControlPlane, Error, Plane};
pub use end_host::{Batches, Counts, EndHost, Event, MAX_GROUPS};
