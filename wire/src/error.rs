//! Why a peer's bytes are not a frame.

use core::fmt;

use crate::frame::{MAX_PAYLOAD, VERSION};

/// Why bytes are not a frame. After any of these the stream has lost its framing: close the
/// connection and let the peer connect again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Error {
    /// The stream does not start with the magic: the peer speaks something else.
    BadMagic([u8; 4]),
    /// The peer speaks another version of the protocol.
    Version(u16),
    /// The header's kind is unknown to this version.
    Kind(u8),
    /// A payload of this many bytes is beyond the limit.
    TooLong {
        /// The length in question, in bytes.
        length: u64,
        /// The limit, in bytes.
        limit: u64,
    },
    /// The bytes were damaged on the way.
    Checksum {
        /// `header` or `payload`.
        part: &'static str,
    },
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::BadMagic(found) => write!(
                f,
                "the peer does not speak the replica protocol (it sent {found:02x?}): check that \
                 the address is a replica's peer port"
            ),
            Error::Version(found) => write!(
                f,
                "the peer speaks version {found} of the replica protocol, this program version \
                 {VERSION}: run the same release on all replicas"
            ),
            Error::Kind(kind) => {
                write!(f, "a frame of unknown kind {kind}: run the same release on all replicas")
            }
            Error::TooLong { length, limit } => write!(
                f,
                "a payload of {length} bytes is over the limit of {limit} bytes (never more than \
                 {MAX_PAYLOAD}): send less at a time"
            ),
            Error::Checksum { part } => write!(
                f,
                "the checksum of a frame's {part} is wrong: the connection damages bytes and must \
                 be closed"
            ),
        }
    }
}

impl core::error::Error for Error {}
