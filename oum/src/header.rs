//! The header in front of every message of a group ([NOPaxos] 4.2), 32 bytes in network order:
//!
//! | at | bytes | what |
//! |---|---|---|
//! | 0 | 1 | 0x4f |
//! | 1 | 1 | version, 1 |
//! | 2 | 2 | Internet checksum (RFC 1071) of the header |
//! | 4 | 4 | session; 0 until a sequencer has stamped it |
//! | 8 | 8 | group |
//! | 16 | 8 | sequence number in the session, from 1; 0 until stamped |
//! | 24 | 4 | CRC-32C of the group's 8 bytes and the payload |
//! | 28 | 4 | length of the payload, in bytes |
//!
//! Two checksums, since a switch can renew the first and not compute the second.

use alloc::vec::Vec;
use bytes::Bytes;

use smr::GroupId;

/// The header's length in bytes.
pub const HEADER_BYTES: usize = 32;

const MAGIC: u8 = 0x4f;
const VERSION: u8 = 1;

/// A session of a group's sequencer ([NOPaxos] 3.2), from 1: an interval in which one counter
/// orders the group's messages. Zero is before the first.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Session(pub u32);

/// A message's place in its session, 1 being the first: the header of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// To whom.
    pub group: GroupId,
    /// The sequencer's session; 0 on the way to the sequencer.
    pub session: Session,
    /// The place in the session, from 1; 0 on the way to the sequencer.
    pub sequence: u64,
    /// Over group and payload.
    pub payload_crc: u32,
    /// The payload's length in bytes.
    pub length: u32,
}

/// Why bytes are not a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unreadable {
    /// Too short, not of this format, or not as long as it says.
    Malformed,
    /// Of a version that this program does not know.
    Version(u8),
    /// A checksum is wrong.
    Damaged,
}

impl core::fmt::Display for Unreadable {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self {
            Unreadable::Malformed => f.write_str("not a multicast message"),
            Unreadable::Version(version) => {
                write!(f, "multicast version {version}; this program knows version {VERSION}")
            }
            Unreadable::Damaged => f.write_str("a damaged multicast message"),
        }
    }
}

impl core::error::Error for Unreadable {}

fn ones_complement_sum(header: &[u8; HEADER_BYTES]) -> u16 {
    let words =
        header.chunks_exact(2).map(|pair| u32::from(u16::from_be_bytes([pair[0], pair[1]])));
    let mut sum: u32 = words.sum();
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    sum as u16
}

fn payload_crc(group: GroupId, payload: &[u8]) -> u32 {
    crc32c::crc32c_append(crc32c::crc32c(&group.0.to_be_bytes()), payload)
}

impl Header {
    /// The header's bytes, with their checksum.
    pub fn encode(&self) -> [u8; HEADER_BYTES] {
        let mut bytes = [0; HEADER_BYTES];
        bytes[0] = MAGIC;
        bytes[1] = VERSION;
        bytes[4..8].copy_from_slice(&self.session.0.to_be_bytes());
        bytes[8..16].copy_from_slice(&self.group.0.to_be_bytes());
        bytes[16..24].copy_from_slice(&self.sequence.to_be_bytes());
        bytes[24..28].copy_from_slice(&self.payload_crc.to_be_bytes());
        bytes[28..32].copy_from_slice(&self.length.to_be_bytes());
        let checksum = !ones_complement_sum(&bytes);
        bytes[2..4].copy_from_slice(&checksum.to_be_bytes());
        bytes
    }

    /// Reads the header at the front of a message and checks it. The payload is not looked at.
    ///
    /// # Errors
    /// If there is none, or it is damaged.
    pub fn peek(message: &[u8]) -> Result<Header, Unreadable> {
        let bytes = message.first_chunk::<HEADER_BYTES>().ok_or(Unreadable::Malformed)?;
        if bytes[0] != MAGIC {
            return Err(Unreadable::Malformed);
        }
        if bytes[1] != VERSION {
            return Err(Unreadable::Version(bytes[1]));
        }
        if ones_complement_sum(bytes) != 0xffff {
            return Err(Unreadable::Damaged);
        }
        let u32_at = |at: usize| u32::from_be_bytes(*bytes[at..].first_chunk().expect("32 bytes"));
        let u64_at = |at: usize| u64::from_be_bytes(*bytes[at..].first_chunk().expect("32 bytes"));
        let header = Header {
            session: Session(u32_at(4)),
            group: GroupId(u64_at(8)),
            sequence: u64_at(16),
            payload_crc: u32_at(24),
            length: u32_at(28),
        };
        if message.len() != HEADER_BYTES + header.length as usize {
            return Err(Unreadable::Malformed);
        }
        Ok(header)
    }

    /// Reads a whole message, and checks that it is as it was sent.
    ///
    /// # Errors
    /// If it is not.
    pub fn decode(message: &Bytes) -> Result<(Header, Bytes), Unreadable> {
        let header = Header::peek(message)?;
        let payload = message.slice(HEADER_BYTES..);
        if payload_crc(header.group, &payload) != header.payload_crc {
            return Err(Unreadable::Damaged);
        }
        Ok((header, payload))
    }
}

/// libOUM's sender ([NOPaxos] figure 2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sender {
    group: GroupId,
}

impl Sender {
    /// A sender to `group`.
    pub fn new(group: GroupId) -> Sender {
        Sender { group }
    }

    /// Appends the message that carries `payload`, to be sent to the group's sequencer.
    ///
    /// # Panics
    /// If the payload has 4 GiB or more.
    pub fn message(&self, payload: &[u8], out: &mut Vec<u8>) {
        let header = Header {
            group: self.group,
            session: Session(0),
            sequence: 0,
            payload_crc: payload_crc(self.group, payload),
            length: u32::try_from(payload.len()).expect("a payload is below 4 GiB"),
        };
        out.extend_from_slice(&header.encode());
        out.extend_from_slice(payload);
    }
}
