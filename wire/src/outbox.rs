//! Bytes on their way into a socket that does not block.

use std::io::{self, ErrorKind, Write};

/// The memory is given back above this many bytes.
const KEEP_BYTES: usize = 1 << 20;

/// What waits to be sent over one connection.
#[derive(Debug, Default)]
pub struct Outbox {
    bytes: Vec<u8>,
    /// How many of them were sent.
    sent: usize,
}

impl Outbox {
    /// Where frames are appended, behind what is there.
    pub fn buffer(&mut self) -> &mut Vec<u8> {
        &mut self.bytes
    }

    /// How many bytes wait.
    pub fn pending(&self) -> usize {
        self.bytes.len() - self.sent
    }

    /// Forgets what waits: the connection is another one.
    pub fn clear(&mut self) {
        self.bytes.clear();
        self.sent = 0;
    }

    /// Sends what waits, until the socket takes no more.
    ///
    /// # Errors
    /// What ended the connection.
    pub fn flush(&mut self, stream: &mut impl Write) -> io::Result<()> {
        while self.sent < self.bytes.len() {
            match stream.write(&self.bytes[self.sent..]) {
                Ok(0) => return Err(ErrorKind::WriteZero.into()),
                Ok(count) => self.sent += count,
                Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        if self.pending() == 0 {
            self.clear();
            if self.bytes.capacity() > KEEP_BYTES {
                self.bytes = Vec::new();
            }
        } else if self.sent > self.bytes.len() / 2 {
            self.bytes.drain(..self.sent);
            self.sent = 0;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Takes so many bytes, and then says that it would block.
    struct Socket {
        room: usize,
        got: Vec<u8>,
    }

    impl Write for Socket {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            if self.room == 0 {
                return Err(ErrorKind::WouldBlock.into());
            }
            let count = bytes.len().min(self.room).min(3);
            self.room -= count;
            self.got.extend_from_slice(&bytes[..count]);
            Ok(count)
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn everything_goes_out_once_and_in_order() {
        let mut outbox = Outbox::default();
        let mut socket = Socket { room: 7, got: Vec::new() };
        outbox.buffer().extend_from_slice(b"0123456789");
        outbox.flush(&mut socket).expect("it only blocks");
        assert_eq!((outbox.pending(), &socket.got[..]), (3, &b"0123456"[..]));
        outbox.buffer().extend_from_slice(b"ab");
        socket.room = 100;
        outbox.flush(&mut socket).expect("there is room");
        assert_eq!((outbox.pending(), &socket.got[..]), (0, &b"0123456789ab"[..]));
        assert!(outbox.buffer().is_empty());
    }
}
