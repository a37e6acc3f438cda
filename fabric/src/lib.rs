//! One-sided memory ([Mu] 2.3, 3.2): regions of atomic 64-bit words that their owner's peers read
//! and write without the owner's processor.
//!
//! [`handover`] is beside it: messages from one thread to another through memory.
//! [`Fabric`] is one process's face; its back ends are [`shm`] (processes of one machine),
//! [`verbs`] (RDMA cards) and [`sim`] (one seed decides). `docs/fabric.md` has the arguments.
//!
//! Invariant: a write to an exclusive region that completes with [`Status::Ok`] is in the region
//! for every later holder, within the words that its owner kept.
//! Invariant: a store that arrives after its grant was revoked changes nothing that anybody reads
//! after the next grant.
//! Deliberately absent: atomicity beyond a word (checksum what must be whole), compare-and-swap
//! (its outcome is unknowable after an error), liveness (memory outlives its process).

mod contract;
pub mod handover;
// Under loom the shared memory that uses the rest of it is left out.
#[cfg_attr(loom, allow(dead_code))]
mod holder;
#[cfg(all(test, loom))]
mod modelled;
#[cfg(not(loom))]
pub mod shm;
pub mod sim;
mod sync;
#[cfg(not(loom))]
pub mod verbs;
mod words;

pub use contract::{
    Access, Completion, Fabric, Geometry, GrantNumber, Place, RegionId, RegionSpec, Status, Verb,
    VerbId,
};
