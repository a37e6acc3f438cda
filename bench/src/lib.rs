//! Workloads over RESP, histograms, checked load.
//!
//! - [`load`] measures any RESP server, with the operations of [`workload`];
//! - [`checked`] records what clients saw ([`history`]) and [`checker`] judges it;
//! - [`chaos`] kills and pauses the replicas of a running group under checked load.
//!
//! Nothing here knows how a replica works: everything goes over the wire, as a user would.

#![forbid(unsafe_code)]

pub mod chaos;
pub mod checked;
pub mod checker;
pub mod client;
mod driver;
#[cfg(test)]
mod fake;
pub mod history;
pub mod load;
mod report;
pub mod status;
pub mod workload;
