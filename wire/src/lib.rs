//! Frames between replicas, clients and operators over a byte stream (TCP).
//!
//! A frame is a fixed header and a payload. All numbers are little-endian.
//!
//! | offset | bytes | field |
//! |---|---|---|
//! | 0 | 4 | magic, `LSTP` |
//! | 4 | 2 | version, [`VERSION`] |
//! | 6 | 1 | kind, [`Kind`] |
//! | 7 | 1 | sender's replica id; 255 for a sender that is no replica |
//! | 8 | 8 | group id |
//! | 16 | 8 | sender's incarnation |
//! | 24 | 4 | payload length |
//! | 28 | 4 | crc32c of the payload |
//! | 32 | 4 | crc32c of bytes 0 to 31 |
//!
//! The header has its own checksum so that a damaged length is noticed at once, and not after
//! waiting for bytes that never come. Since it covers the payload's checksum, a header and a
//! payload of different frames never pass for one frame.
//! What a payload means is its kind's business; its codec stands beside the message's type.
#![forbid(unsafe_code)]

mod error;
mod frame;
mod reader;

pub use error::Error;
pub use frame::{
    Frame, HEADER_BYTES, Header, Kind, MAX_PAYLOAD, NO_REPLICA, VERSION, encode_frame,
};
pub use reader::FrameReader;
