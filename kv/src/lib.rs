//! The ordered key-value service: Redis and memcached commands on Masstree, deterministic and
//! undoable.
//!
//! The server looks a command up ([`lookup`]), packs many of them into one request ([`request`]),
//! and hands it to [`Store`] through the log (or, where all of them are reads, beside it). The
//! answer holds one finished RESP reply for each ([`reply`]), which only has to be copied to its
//! connection; of a memcached command it holds the facts ([`items`]).
//!
//! Invariants:
//! - All changes of keys go through one primitive, `Store::put` (or swap the trees, for a flush),
//!   which keeps the pre-images that undo and the checkpoint in progress need; or, of a store on
//!   trees that it shares, what repeats the change.
//! - Nothing depends on a clock or a random source: time is the context's, and what a logged
//!   command draws at random comes from its place in the log.
//! - A key whose time has come is never seen by a command, whether or not it was removed yet.

#![forbid(unsafe_code)]

mod bits;
mod call;
mod checkpoint;
mod collection;
mod dispatch;
mod dump;
mod error;
mod expiry;
mod field_expiry;
mod glob;
mod hashes;
mod image;
mod introspect;
pub mod items;
mod keyspace;
mod lcs;
mod lists;
mod numbers;
mod random;
mod random_members;
mod ranges;
mod reach;
pub mod redo;
pub mod reply;
pub mod request;
mod scan;
mod set_algebra;
mod sets;
mod shared;
mod sort;
mod store;
mod strings;
mod table;
#[cfg(test)]
mod tests;
mod transaction;
mod value;
mod zset_algebra;
mod zset_ranges;
mod zsets;

pub use glob::matches as glob_matches;
pub use shared::{Log, Shared};
pub use store::{Limits, Stats, Store, Undo};
pub use table::{Place, Spec, all, lookup, spec};

/// The longest key, and the longest field or member of a collection, in bytes.
pub const MAX_KEY_LEN: usize = masstree::MAX_KEY_LEN - 16;

/// The longest value, in bytes: Redis's default for `proto-max-bulk-len`.
pub const MAX_VALUE_LEN: usize = 512 * 1024 * 1024;
