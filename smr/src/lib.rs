//! State machine replication: the words and contracts that every protocol shares.
//!
//! A protocol ([`contract::Protocol`]) turns inputs into outputs. A service
//! ([`machine::StateMachine`]) executes requests. The [`host::Host`] joins the two: it interprets
//! every output that concerns execution, once, for the node and the simulator alike, and leaves the
//! rest (network, disk) to its environment.
//!
//! Invariants: the same inputs give the same outputs; a request is executed at most once
//! ([`client_table::ClientTable`]); what is stable is never rolled back.
#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;

pub mod client;
pub mod client_table;
pub mod codec;
pub mod contract;
pub mod executor;
pub mod fetch;
pub mod host;
pub mod ids;
pub mod lineage;
pub mod log;
pub mod machine;
pub mod request;
pub mod rng;
pub mod stores;

pub use contract::{
    CheckpointChunk, Identity, Input, InputOf, Output, Outputs, Protocol, Recovered, Report, Role,
    StoreBatch, To, Trust,
};
pub use executor::Executor;
pub use host::{Effect, Host};
pub use ids::{
    ClientId, Durability, GroupId, Incarnation, MAX_REPLICAS, Now, OpNumber, OrderedBy, ReadNumber,
    ReplicaId, RequestNumber, StoreNumber, View, Viewstamp,
};
pub use log::{Content, Entry, Log};
pub use machine::{BadCheckpoint, Context, ReadOutcome, StateMachine};
pub use request::{ClientMessage, MAX_OUTSTANDING, Outcome, ReadRequest, Refusal, Reply, Request};
