//! Workloads over RESP, histograms, checked load.
//!
//! - [`load`] measures any RESP server, with the operations of [`workload`], and [`index`] the
//!   index alone, with the same;
//! - [`checked`] records what clients saw ([`history`]) and [`checker`] judges it;
//! - [`chaos`] kills and pauses the replicas of a running group, or its sequencer, under checked
//!   load;
//! - [`loss`] tells what a crash of the whole group has taken from its clients;
//! - [`lazy`], [`mu`] and [`order`] draw the papers' figures, and [`store`] measures the
//!   single-node store beside a Redis.
//!
//! Nothing but [`mu`] and [`order`], which measure replication without a program around it, knows
//! how a replica works: everything but the index goes over the wire, as a user would.

#![forbid(unsafe_code)]

pub mod chaos;
pub mod checked;
pub mod checker;
mod checkpoints;
pub mod client;
mod cores;
mod driver;
#[cfg(test)]
mod fake;
pub mod history;
pub mod index;
pub mod lazy;
pub mod load;
pub mod loss;
pub mod mu;
pub mod order;
pub mod plot;
mod report;
mod sockets;
mod speech;
pub mod status;
pub mod store;
mod watch;

pub use indexbench::{keys, workload};
