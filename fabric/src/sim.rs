//! The fabric from one seed: one thread, no clock, the caller moves time and causes the faults.
//!
//! Verbs travel like those of a network card. Words of one write land one by one, in any order;
//! verbs of different processes overtake each other; a revocation cuts a write in the middle; a
//! write completes before the owner's processor sees it ([Mu] 4.2, "Replayer"; errata: "A write's
//! completion is not its visibility"). What [`crate::Fabric`] promises holds under all options
//! but [`Options::late_after_revoke`].
//!
//! Deliberately absent: bit errors, and machines that lose memory without ending.

mod flight;
mod memory;
mod options;
mod port;
mod world;

pub use options::Options;
pub use port::Port;
pub use world::{Extent, World};
