//! The Redis serialization protocol, versions 2 and 3, for servers and for clients.
//!
//! Three parts, none of which does any input or output:
//! - [`Parser`] finds the commands of a client in a byte buffer, without copying them;
//! - [`mod@write`] appends replies to a `Vec<u8>`;
//! - [`ReplyParser`] and [`Value`] find and decode replies, for clients.
//!
//! Invariant: parsing does not depend on how the bytes were cut into pieces on their way here, and
//! a byte that was looked at is not looked at again when more arrive.

#![forbid(unsafe_code)]

mod number;
mod reply;
mod request;
mod split;
mod value;
pub mod write;

pub use number::parse_i64;
pub use reply::{BadReply, ReplyParser, Shape};
pub use request::{Command, Limits, MAX_ARGUMENTS, MAX_INLINE, Parser, ProtocolError};
pub use split::{Unbalanced, split_arguments};
pub use value::Value;

/// The version of the protocol that a connection speaks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Protocol {
    /// RESP2, what a connection starts with.
    #[default]
    V2,
    /// RESP3, after `HELLO 3`.
    V3,
}
