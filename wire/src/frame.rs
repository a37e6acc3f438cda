//! A frame's header and its bytes.

use bytes::Bytes;
use smr::{GroupId, Incarnation, ReplicaId};

use crate::Error;

/// The version that this crate writes and reads. It changes with any layout behind it.
pub const VERSION: u16 = 2;
/// Bytes of a header.
pub const HEADER_BYTES: usize = 36;
/// The longest payload, in bytes.
pub const MAX_PAYLOAD: usize = 64 << 20;
/// The longest body of a request or read, in bytes: the entry that carries it must fit into a frame
/// between replicas, with its own bytes.
pub const LONGEST_BODY: usize = MAX_PAYLOAD - (64 << 10);
/// The replica id of a sender that is none: a client, an operator.
pub const NO_REPLICA: ReplicaId = ReplicaId(u8::MAX);

const MAGIC: [u8; 4] = *b"LSTP";

/// What a payload is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Kind {
    /// The first frame in either direction: who is there. Without payload it says only what the
    /// header says.
    Hello = 1,
    /// A message of the group's protocol.
    Replica = 2,
    /// A [`smr::ClientMessage`].
    Client = 3,
    /// A reply to a client: a [`smr::Reply`], or of a protocol whose clients count replies its own.
    Reply = 4,
    /// To a client: who numbers requests ([`crate::put_sequencer`]).
    Sequencer = 5,
    /// To a client: how the sender fares ([`crate::Condition`]).
    Condition = 6,
}

impl Kind {
    fn from_byte(byte: u8) -> Result<Kind, Error> {
        match byte {
            1 => Ok(Kind::Hello),
            2 => Ok(Kind::Replica),
            3 => Ok(Kind::Client),
            4 => Ok(Kind::Reply),
            5 => Ok(Kind::Sequencer),
            6 => Ok(Kind::Condition),
            unknown => Err(Error::Kind(unknown)),
        }
    }
}

/// What is said about a payload.
///
/// | offset | bytes | field |
/// |---|---|---|
/// | 0 | 4 | magic, `LSTP` |
/// | 4 | 2 | version, [`VERSION`] |
/// | 6 | 1 | kind, [`Kind`] |
/// | 7 | 1 | sender's replica id; 255 for a sender that is no replica |
/// | 8 | 8 | group id |
/// | 16 | 8 | sender's incarnation |
/// | 24 | 4 | payload length |
/// | 28 | 4 | crc32c of the payload |
/// | 32 | 4 | crc32c of bytes 0 to 31 |
///
/// All numbers are little-endian.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// What the payload is.
    pub kind: Kind,
    /// The group that it concerns.
    pub group: GroupId,
    /// The sender, or [`NO_REPLICA`].
    pub from: ReplicaId,
    /// The sender's life.
    pub incarnation: Incarnation,
}

/// A received frame.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Frame {
    /// Who sent what.
    pub header: Header,
    /// The payload; it shares the buffer that it was received into.
    pub payload: Bytes,
}

/// Appends a frame whose payload is what `payload` appends. Nothing is copied twice.
///
/// # Errors
/// [`Error::TooLong`] if the payload exceeds [`MAX_PAYLOAD`]; `out` is then as it was.
pub fn encode_frame(
    out: &mut Vec<u8>,
    header: &Header,
    payload: impl FnOnce(&mut Vec<u8>),
) -> Result<(), Error> {
    let start = out.len();
    out.extend_from_slice(&[0; HEADER_BYTES]);
    payload(out);
    let (head, body) = out[start..].split_at_mut(HEADER_BYTES);
    if body.len() > MAX_PAYLOAD {
        let length = body.len() as u64;
        out.truncate(start);
        return Err(Error::TooLong { length, limit: MAX_PAYLOAD as u64 });
    }
    head[0..4].copy_from_slice(&MAGIC);
    head[4..6].copy_from_slice(&VERSION.to_le_bytes());
    head[6] = header.kind as u8;
    head[7] = header.from.0;
    head[8..16].copy_from_slice(&header.group.0.to_le_bytes());
    head[16..24].copy_from_slice(&header.incarnation.0.to_le_bytes());
    head[24..28].copy_from_slice(&(body.len() as u32).to_le_bytes());
    head[28..32].copy_from_slice(&crc32c::crc32c(body).to_le_bytes());
    let checksum = crc32c::crc32c(&head[..32]);
    head[32..36].copy_from_slice(&checksum.to_le_bytes());
    Ok(())
}

/// A header that was taken apart and found sound.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Parsed {
    pub(crate) header: Header,
    pub(crate) length: usize,
    pub(crate) payload_checksum: u32,
}

/// Takes a header apart. `limit` is the longest payload that is taken, in bytes.
pub(crate) fn parse_header(head: &[u8; HEADER_BYTES], limit: usize) -> Result<Parsed, Error> {
    let u32_at = |at: usize| u32::from_le_bytes(field(head, at));
    let u64_at = |at: usize| u64::from_le_bytes(field(head, at));
    // Magic and version come before the checksum: a peer of another version may lay out the rest
    // differently, and should be told so.
    let magic = field::<4>(head, 0);
    if magic != MAGIC {
        return Err(Error::BadMagic(magic));
    }
    let version = u16::from_le_bytes(field(head, 4));
    if version != VERSION {
        return Err(Error::Version(version));
    }
    if crc32c::crc32c(&head[..32]) != u32_at(32) {
        return Err(Error::Checksum { part: "header" });
    }
    let length = u32_at(24) as usize;
    if length > limit {
        return Err(Error::TooLong { length: length as u64, limit: limit as u64 });
    }
    let header = Header {
        kind: Kind::from_byte(head[6])?,
        group: GroupId(u64_at(8)),
        from: ReplicaId(head[7]),
        incarnation: Incarnation(u64_at(16)),
    };
    Ok(Parsed { header, length, payload_checksum: u32_at(28) })
}

fn field<const N: usize>(head: &[u8; HEADER_BYTES], at: usize) -> [u8; N] {
    head[at..at + N].try_into().expect("the field lies within the header")
}
