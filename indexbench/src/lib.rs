//! The workloads of the index and of the store, and the maps that the index is compared with.
//!
//! - [`keys`] and [`workload`] say which operation comes next on which key: for a map in this
//!   process, and over the wire (`bench::load`);
//! - [`contestants`] are the maps, [`plain`] the B+tree among them that exists for comparison only;
//! - [`life`] puts a map through its workloads, [`skew`] through a skewed one, and [`reference`]
//!   through those of the authors' own program;
//! - [`study`] has many lives lived in turn, each in a process of its own.

pub mod contestants;
pub mod keys;
pub mod life;
pub mod plain;
pub mod reference;
pub mod skew;
pub mod study;
pub mod workload;
