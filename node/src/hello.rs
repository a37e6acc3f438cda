//! Asking a replica which group it belongs to.

use std::io::{self, Read, Write};
use std::time::Duration;

use wire::{FrameReader, Greeting, HELLO_BYTES, Hello};

use crate::dial::connect;

const PATIENCE: Duration = Duration::from_millis(1000);

/// Asks the replica at `address` who it is.
pub(crate) fn ask_group(address: &str) -> io::Result<Hello> {
    let mut stream = connect(address)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    let mut question = Vec::new();
    Greeting::Question.encode(&mut question);
    stream.write_all(&question)?;
    read_hello(&mut stream)
}

/// Takes a replica's hello, and perhaps what comes behind it.
pub(crate) fn read_hello(stream: &mut impl Read) -> io::Result<Hello> {
    let mut reader = FrameReader::new(HELLO_BYTES);
    loop {
        if let Some(frame) = reader.next_frame().map_err(io::Error::other)? {
            return Hello::decode(&frame).ok_or_else(|| io::Error::other("no hello"));
        }
        if reader.fill(stream)? == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
    }
}
