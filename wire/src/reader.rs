//! Takes frames off a stream of bytes without copying their payloads.

use std::io::{self, Read};

use bytes::BytesMut;

use crate::Error;
use crate::frame::{Frame, HEADER_BYTES, MAX_PAYLOAD, Parsed, parse_header};

/// Bytes of a receive buffer, unless a frame needs more. Payloads share it, so one payload that is
/// kept keeps this much.
const BLOCK: usize = 64 << 10;
/// A read into less space than this is not worth its system call.
const LEAST_SPACE: usize = 4 << 10;

/// Cuts a byte stream into frames. Payloads are slices of the receive buffer.
///
/// Invariant: `buffer[..filled]` was received and is not consumed; the rest is initialised space,
/// zeroed once when its block was allocated and never again, whatever the size of the reads.
#[derive(Debug)]
pub struct FrameReader {
    buffer: BytesMut,
    filled: usize,
    limit: usize,
    /// The header of the frame at the front, once it is there.
    next: Option<Parsed>,
    failed: Option<Error>,
}

impl FrameReader {
    /// A reader at the start of a stream. `limit` is the longest payload taken, in bytes, at most
    /// [`MAX_PAYLOAD`]; the buffer never grows beyond it by more than one block of 64 KiB.
    pub fn new(limit: usize) -> FrameReader {
        FrameReader {
            buffer: BytesMut::new(),
            filled: 0,
            limit: limit.min(MAX_PAYLOAD),
            next: None,
            failed: None,
        }
    }

    /// From now on payloads of up to `limit` bytes are taken, at most [`MAX_PAYLOAD`]. A frame
    /// whose header has been looked at keeps the limit it had.
    pub fn set_limit(&mut self, limit: usize) {
        self.limit = limit.min(MAX_PAYLOAD);
    }

    /// Space to receive into, never empty. What was put there is told by [`FrameReader::received`].
    pub fn space(&mut self) -> &mut [u8] {
        let frame = self.next.map_or(0, |parsed| HEADER_BYTES + parsed.length);
        let short = frame > self.buffer.len() || self.buffer.len() - self.filled < LEAST_SPACE;
        // A frame that the buffer holds completely gets the last bytes of its space.
        if short && !(frame > self.filled && frame <= self.buffer.len()) {
            let mut fresh = BytesMut::zeroed(BLOCK.max(frame).max(self.filled + LEAST_SPACE));
            fresh[..self.filled].copy_from_slice(&self.buffer[..self.filled]);
            self.buffer = fresh;
        }
        &mut self.buffer[self.filled..]
    }

    /// The first `count` bytes of [`FrameReader::space`] were received.
    ///
    /// # Panics
    /// If that is more than the space.
    pub fn received(&mut self, count: usize) {
        assert!(count <= self.buffer.len() - self.filled, "more was received than there is space");
        self.filled += count;
    }

    /// One read from `source` into the buffer. Returns the bytes read; zero at the stream's end.
    ///
    /// # Errors
    /// Those of the read, [`io::ErrorKind::WouldBlock`] included.
    pub fn fill(&mut self, source: &mut impl Read) -> io::Result<usize> {
        let count = source.read(self.space())?;
        self.received(count);
        Ok(count)
    }

    /// Bytes that were received and do not make a whole frame yet.
    pub fn pending(&self) -> usize {
        self.filled
    }

    /// The next whole frame, or `None` until more bytes arrive.
    ///
    /// # Errors
    /// If the bytes are no frame. The stream is then unusable; the same error is returned again.
    pub fn next_frame(&mut self) -> Result<Option<Frame>, Error> {
        if let Some(error) = self.failed {
            return Err(error);
        }
        self.advance().inspect_err(|&error| self.failed = Some(error))
    }

    fn advance(&mut self) -> Result<Option<Frame>, Error> {
        let parsed = match self.next {
            Some(parsed) => parsed,
            None => {
                let Some(head) = self.buffer[..self.filled].first_chunk() else {
                    return Ok(None);
                };
                *self.next.insert(parse_header(head, self.limit)?)
            }
        };
        let total = HEADER_BYTES + parsed.length;
        if self.filled < total {
            return Ok(None);
        }
        if crc32c::crc32c(&self.buffer[HEADER_BYTES..total]) != parsed.payload_checksum {
            return Err(Error::Checksum { part: "payload" });
        }
        let payload = self.buffer.split_to(total).freeze().slice(HEADER_BYTES..);
        self.filled -= total;
        self.next = None;
        Ok(Some(Frame { header: parsed.header, payload }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Header, Kind, encode_frame};
    use smr::{GroupId, Incarnation, ReplicaId};

    fn frame(length: usize) -> Vec<u8> {
        let (group, from, incarnation) = (GroupId(1), ReplicaId(2), Incarnation(3));
        let header = Header { kind: Kind::Hello, group, from, incarnation };
        let mut bytes = Vec::new();
        encode_frame(&mut bytes, &header, |out| out.resize(out.len() + length, 7)).expect("short");
        bytes
    }

    #[test]
    fn a_header_beyond_the_limit_reserves_nothing_until_the_limit_is_raised() {
        let large = frame(1 << 20);
        let mut reader = FrameReader::new(1 << 10);
        reader.fill(&mut &large[..HEADER_BYTES]).expect("a read");
        assert!(reader.next_frame().is_err());
        assert!(reader.space().len() <= BLOCK);

        let mut bytes = frame(1 << 10);
        bytes.extend_from_slice(&large);
        let (mut source, mut reader) = (&bytes[..], FrameReader::new(1 << 10));
        reader.fill(&mut source).expect("a read");
        let first = reader.next_frame().expect("within the limit").expect("whole");
        assert_eq!(first.payload.len(), 1 << 10);
        reader.set_limit(MAX_PAYLOAD);
        let second = loop {
            match reader.next_frame().expect("within the new limit") {
                Some(frame) => break frame,
                None => assert!(reader.fill(&mut source).expect("a read") > 0),
            }
        };
        assert_eq!(second.payload.len(), 1 << 20);
    }
}
