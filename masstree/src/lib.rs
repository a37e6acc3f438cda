//! A concurrent ordered map: a trie of B+trees with lock-free readers.
//!
//! The structure is Masstree, [Mao] 3.1: a trie with fan-out 2^64, each of whose nodes (a *layer*)
//! is a B+tree over 8-byte *slices* of the keys. Readers write no shared memory and validate what
//! they read against per-node versions; writers lock single nodes.
//!
//! Invariant: what a reader can reach stays allocated while its `Guard` lives.
//! Deliberately absent: atomic range reads, merging of small nodes, recursion.
//!
//! What follows is the crate's README.
#![doc = include_str!("../README.md")]

mod batch;
mod border;
mod borrow;
mod bucket;
mod check;
mod collapse;
mod columns;
mod counter;
mod entry;
mod field;
mod find;
mod get;
mod guard;
mod hook;
mod interior;
#[cfg(test)]
mod interleaved;
mod key;
mod layer;
#[cfg(all(test, loom))]
mod modelled;
mod multi;
mod node;
mod permutation;
mod put;
mod range;
mod remove;
mod scan;
mod slab;
mod slot;
mod split;
mod suffix;
mod sync;
mod tree;
mod version;

pub use borrow::Borrowed;
pub use check::Shape;
pub use columns::{Columns, MAX_COLUMNS};
pub use entry::Entry;
pub use guard::{Guard, pin, waiting};
pub use key::MAX_KEY_LEN;
pub use range::Range;
pub use slab::live_nodes;
pub use slot::Slot;
pub use tree::Masstree;
