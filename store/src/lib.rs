//! The single-node store of [Mao] 3.2: query threads that own connections and run commands on one
//! shared tree, a log for each of them, checkpoints while they serve. The commands are those of the
//! replicated server, written for one thread: one locks the stripes of its keys, in order, and runs
//! as it is (`kv`'s shared.rs says why). What it changed is one record in its thread's log.
//!
//! Invariants:
//! - A log holds all records of its thread up to its last mark; so all logs together hold all up to
//!   the least of their last marks, the cut-off. A thread without work makes marks, too.
//! - What is acknowledged as durable is below the least mark on disk.
//! - Records above a cut-off are never applied, in later recoveries either.
//! - After a failed write or fsync nothing is acknowledged any more: the server ends.
//!
//! Deliberately absent: replication, a choice of several disks, repair of damaged files.

#![forbid(unsafe_code)]

mod checkpoint;
mod error;
mod lobby;
mod log;
mod manifest;
mod parallel;
mod query;
mod recovery;
mod server;
mod shift;
mod writer;

pub use error::Error;
pub use recovery::Report;
pub use server::{Event, Options, Server};
