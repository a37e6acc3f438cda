//! The memcached text protocol for servers: the classic commands and the meta commands, as
//! memcached 1.6 has them (its doc/protocol.txt).
//!
//! Two parts, neither of which does any input or output:
//! - [`Parser`] finds the commands of a client in a byte buffer, without copying them;
//! - [`mod@write`] appends answers to a `Vec<u8>`.
//!
//! Invariant: parsing does not depend on how the bytes were cut into pieces on their way here.
//!
//! Deliberately absent: the binary protocol, which memcached itself has deprecated, UDP, and SASL.

#![forbid(unsafe_code)]

mod classic;
mod command;
mod line;
mod meta;
mod parser;
#[cfg(test)]
mod tests;
pub mod write;

pub use command::{Arithmetic, Command, Delete, Fetch, Keys, Mode, Reply, Store};
pub use meta::{Echo, MetaCode};
pub use parser::{Front, Parser, Refusal};

/// The longest key, in bytes.
pub const MAX_KEY_LEN: usize = 250;

/// The longest value, in bytes.
pub const MAX_VALUE_LEN: usize = 1 << 20;

/// The longest command line, in bytes with its end, of commands other than `get` and its kind.
pub const MAX_LINE: usize = 2048;

/// The longest line of `get`, `gets`, `gat` and `gats`, which may name many keys, in bytes.
pub const MAX_RETRIEVAL_LINE: usize = 256 << 10;

/// The longest opaque token of a meta command, in bytes.
pub const MAX_OPAQUE: usize = 32;
