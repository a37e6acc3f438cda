//! Network, disk, clock and process faults from one seed, and the checkers.
//!
//! A [`run_seed`] is one world on one thread: replicas ([`smr::Host`] around a protocol and a small
//! test service), their disks and skewed clocks, a faulty network and clients. The seed decides
//! everything, and the same seed gives the same run. After a time of chaos everything is healed and
//! must work again. `queue`, `network`, `disk`, `node` and `service` are the environment; `ledger`,
//! `linear`, `truth`, `losses` and `checks` look for violations; `faults`, `disasters` and
//! `options` choose what goes wrong; `scenario` runs text files instead of seeds.
//!
//! Invariant: nothing here reads a real clock or a random source that the seed does not determine.
#![forbid(unsafe_code)]

mod bug;
mod checks;
mod disasters;
mod disk;
mod effects;
mod faults;
mod gateway;
mod ledger;
mod linear;
mod losses;
mod marks;
mod network;
mod node;
mod options;
mod queue;
mod run;
mod scenario;
mod service;
mod subject;
mod truth;
mod world;

pub use bug::Bug;
pub use marks::{EXPECTED, Marks};
pub use options::{
    DiskOptions, FaultOptions, Keys, NetworkOptions, Options, Overrides, Times, Workload,
};
pub use run::{Outcome, Summary, find, run_many, run_seed};
pub use scenario::run_scenario;
pub use service::{Action, Command, TestService};
pub use smr::Durability;
pub use subject::{Promise, Setup, Subject};
pub use vsr::Replica as Vsr;
pub use world::Trace;
