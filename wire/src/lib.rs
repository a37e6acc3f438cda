//! Frames between replicas, clients and operators over a byte stream (TCP). The header's layout is
//! documented at [`Header`].
//!
//! The header has its own checksum so that a damaged length is noticed at once, and not after
//! waiting for bytes that never come. Since it covers the payload's checksum, a header and a
//! payload of different frames never pass for one frame. What a payload means is its kind's
//! business; its codec stands beside the message's type.
#![forbid(unsafe_code)]

mod condition;
mod error;
mod frame;
mod hello;
mod outbox;
mod reader;
mod sequencer;

pub use condition::Condition;
pub use error::Error;
pub use frame::{
    Frame, HEADER_BYTES, Header, Kind, LONGEST_BODY, MAX_PAYLOAD, NO_REPLICA, VERSION, encode_frame,
};
pub use hello::{FIRST_CLIENT, Greeting, HELLO_BYTES, Hello, MAX_NATIVE_CLIENTS};
pub use outbox::Outbox;
pub use reader::FrameReader;
pub use sequencer::{put_sequencer, sequencer};
