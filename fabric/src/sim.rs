//! The fabric from one seed: one thread, no clock, the caller moves time and causes the faults.
//!
//! Verbs travel like those of a network card. Words of one write land one by one, in any order;
//! verbs of different processes overtake each other; a revocation cuts a write in the middle; a
//! write completes before the owner's processor sees it ([Mu] 4.2, "Replayer": a card confirms what
//! it has taken over, not what has reached the memory). But who sees a word of a write sees all
//! that the same process wrote there before: x86 stores and strictly ordered regions of a card keep
//! that order. What [`crate::Fabric`] promises holds under all options but
//! [`Options::late_after_revoke`].
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
