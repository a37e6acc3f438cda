//! A concurrent ordered map: a trie of B+trees with lock-free readers.
//!
//! The structure is Masstree, [Mao] 3.1: a trie with fan-out 2^64, each of whose nodes (a *layer*)
//! is a B+tree over 8-byte *slices* of the keys. Readers write no shared memory and validate what
//! they read against per-node versions; writers lock single nodes.
//!
//! Invariant: what a reader can reach stays allocated while its `Guard` lives.
//! Deliberately absent: atomic range reads, merging of small nodes, recursion.

mod border;
mod check;
mod collapse;
mod counter;
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
mod node;
mod permutation;
mod put;
mod remove;
mod scan;
mod slot;
mod split;
mod suffix;
mod sync;
mod tree;
mod version;

pub use check::Shape;
pub use guard::{Guard, pin};
pub use key::MAX_KEY_LEN;
pub use slot::Slot;
pub use tree::Masstree;
