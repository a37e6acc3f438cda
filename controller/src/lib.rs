//! The controller of ordered unreliable multicast ([NOPaxos] 3.2, 4.3): it watches the sequencers,
//! picks another one when a group's dies or cannot be heard, and installs a higher session.
//!
//! [`Config`] is what the controllers agree on, a service replicated by viewstamped replication;
//! [`Watch`] decides what is to be probed, proposed and told, without I/O and clock; [`run`] is one
//! controller with its replica and its sockets.
//!
//! Invariants: a session is committed before it is opened; it belongs to one life of one sequencer,
//! and to no other, ever; sessions of a group only grow. Two controllers that both take themselves
//! for the leader can do no harm: the session is compared and set.
#![forbid(unsafe_code)]

mod config;
mod face;
mod link;
mod run;
mod text;
mod watch;

pub use config::{Config, Group, MAX_GROUPS, MAX_SEQUENCERS, MAX_SESSION};
pub use run::{Error, Options, run};
pub use text::{Addresses, Command, ParseError, group_id};
pub use watch::{Act, News, Reason, Timing, Watch};
