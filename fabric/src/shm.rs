//! Shared memory between the processes of one machine: protection against the end of a process,
//! not of the machine.
//!
//! Each process keeps its regions in one memfd of fixed size and hands it to every peer over a Unix
//! socket. An exclusive region has a *lane* per process, and a holder word that names the lane that
//! is the region's image. A store by a writer that was stopped can't be prevented after the fact,
//! so it goes where nobody looks. `docs/fabric.md` has the argument, `crate::holder` the steps.
//!
//! Processes trust each other as threads do: all of them can write all of the memory.

mod endpoint;
mod error;
mod greeting;
mod lanes;
mod layout;
mod mapping;
mod segment;
mod vigil;

pub use endpoint::{Acquaintance, Endpoint, Introduction};
pub use error::Error;
pub use segment::Window;
