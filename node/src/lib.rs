//! Runs one replica: an event loop on one thread that owns the protocol, the service, the
//! connections to the other replicas and those of clients, with threads beside it for what blocks
//! (the log, checkpoints, connecting).
//!
//! A node is a [`Face`], which speaks with clients, and a service ([`smr::StateMachine`]):
//! ```text
//! let node = Node::open(options, face, service, events)?;
//! node.run(&stop)?;
//! ```
//!
//! [`Front`] is the part of it that faces clients, for a server without a group.
//!
//! Invariants: the only clock is read here; nothing in the loop blocks or waits for a disk; memory
//! is bounded whatever clients and peers do, by not reading from those that ask too much.

#![forbid(unsafe_code)]

mod attached;
mod client;
pub mod clock;
mod controllers;
mod counted;
mod datagrams;
mod dial;
mod disk;
mod effects;
mod error;
mod event;
mod face;
mod family;
mod front;
mod gateway;
mod guest;
mod held;
mod hello;
mod inbound;
mod introduce;
mod joined;
mod machine;
mod member;
mod node;
mod options;
mod peers;
mod poll;
mod replica;
mod sessions;
mod shared;
mod slab;
mod snapshots;
mod start;

pub use attached::Application;
pub use counted::{Counters, Tally};
pub use disk::Emulation;
pub use error::Error;
pub use event::Event;
pub use face::{
    ConnectionId, Desk, Face, Failure, MemoryStatus, MulticastStatus, Note, Order, PeerStatus,
    Status, Step,
};
pub use front::{ALONE, Asked, Front, FrontOptions, alone};
pub use mu::{Change, ChangeError};
pub use node::Node;
pub use options::{Birth, Multicast, Options, Ordering, SharedMemory};
pub use poll::Waker;
pub use replica::Exit;
pub use smr::OrderedBy;
pub use start::holds_replica;
pub use wire::MAX_NATIVE_CLIENTS;
