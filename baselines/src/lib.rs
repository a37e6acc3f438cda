//! The protocols that NOPaxos is compared with ([NOPaxos] 6, Table 1), as small as they can be
//! told: no replication at all, Fast Paxos and Speculative Paxos. VR is the crate `vsr`.
//!
//! In both replicated ones every replica puts a request where it arrives, which is the same
//! place nearly always, and a superquorum of equal places decides ([`replica`] is what they
//! share: the log as a chain of digests, the leader's SYNC, the view change that merges logs).
//! They differ in who counts and when requests are executed: [`fast_paxos`],
//! [`speculative_paxos`].
//!
//! Scope: the normal case, loss and reordering, crashes of up to f replicas, the leader's
//! included. Deliberately absent: the disk and the return of a crashed replica (nothing is
//! stored), state transfer (logs are kept until all replicas have them, so a dead one makes them
//! grow), membership, reads beside the log, a clock for services (the group's time stands at 0),
//! several requests of one client at a time, and protection against a replica that hears nobody
//! and calls for views.
#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;

mod client;
mod config;
pub mod fast_paxos;
mod message;
mod prefix;
pub mod replica;
pub mod speculative_paxos;
pub mod unreplicated;

pub use client::{Client, Finished};
pub use config::{Bug, Config, Timing};
pub use message::{Message, Reply};
pub use prefix::{Digest, Prefix, Vote};

use smr::{ClientId, Protocol, Request, RequestNumber};

/// A request that was executed and committed came again: answer it from the client table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Again {
    /// Whose.
    pub client: ClientId,
    /// Which.
    pub number: RequestNumber,
}

/// What the baselines have in common for who runs them: clients send each request to all replicas,
/// and replicas sign what their hosts answer.
pub trait Baseline: Protocol<Message = Message, Event = Request, Effect = Again> {
    /// A replica that has not started. The first input must be [`smr::Input::Start`].
    ///
    /// # Panics
    /// If the configuration makes no sense.
    fn create(config: Config) -> Self;

    /// Makes this replica's reply of what its host says to a client.
    fn sign(&self, reply: smr::Reply) -> Reply;
}

/// f, the failures that a group of so many replicas bears.
fn f(replicas: u8) -> usize {
    (usize::from(replicas) - 1) / 2
}

/// How many replicas must agree on a place that no leader has chosen: any f + 1 of the group have
/// a majority of them among themselves ([NOPaxos] Table 1: more than 3n/4 there, with n = 2f + 1).
pub fn superquorum(replicas: u8) -> usize {
    let f = f(replicas);
    f + f.div_ceil(2) + 1
}
