//! An application in the replica's process, with a thread of its own: it speaks the face's protocol
//! as over a connection, through memory instead of a socket ([Mu] 3.3, 6: "handover").
//!
//! Invariant: the loop sleeps only after it has said so and found nothing; who sends looks behind
//! that whether it must be woken.

use std::io::{self, ErrorKind, Read, Write};
use std::net::{Shutdown, TcpStream};

use fabric::handover::{Receiver, Sender, handover};

use crate::poll::Waker;

/// Pieces that are handed over and not taken, each way.
const PIECES: usize = 64;
/// Bytes of a piece at most.
const PIECE: usize = 8 << 10;

/// The application's end. Reading and writing never block: they end with
/// [`ErrorKind::WouldBlock`] where there is nothing to read, or no room. What is read is answers in
/// the order of the commands that were written; the end of what can be read is the replica's end.
pub struct Application {
    requests: Sender,
    answers: Receiver,
    waker: Waker,
    /// A piece of which something was not read yet.
    piece: Vec<u8>,
    read: usize,
}

/// The replica's end.
pub(crate) struct Attached {
    requests: Receiver,
    answers: Sender,
    piece: Vec<u8>,
}

/// Both ends; the waker ends the replica's wait.
pub(crate) fn attach(waker: Waker) -> (Application, Attached) {
    let (requests, requested) = handover(PIECES, PIECE);
    let (answers, answered) = handover(PIECES, PIECE);
    let application =
        Application { requests, answers: answered, waker, piece: Vec::new(), read: 0 };
    (application, Attached { requests: requested, answers, piece: Vec::new() })
}

impl Write for Application {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.requests.is_abandoned() {
            return Err(ErrorKind::BrokenPipe.into());
        }
        let count = bytes.len().min(PIECE);
        if !self.requests.send(&bytes[..count]) {
            return Err(ErrorKind::WouldBlock.into());
        }
        if self.requests.must_wake() {
            self.waker.wake();
        }
        Ok(count)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Read for Application {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if self.read == self.piece.len() {
            // In this order: what was sent before the end is still read.
            let has_ended = self.answers.is_abandoned();
            if !self.answers.receive(&mut self.piece) {
                return if has_ended { Ok(0) } else { Err(ErrorKind::WouldBlock.into()) };
            }
            self.read = 0;
        }
        let count = buffer.len().min(self.piece.len() - self.read);
        buffer[..count].copy_from_slice(&self.piece[self.read..self.read + count]);
        self.read += count;
        Ok(count)
    }
}

impl Drop for Application {
    fn drop(&mut self) {
        // The loop sees the end when it looks.
        self.waker.wake();
    }
}

impl Attached {
    /// Whether there is something to be read.
    pub fn is_ready(&self) -> bool {
        self.requests.has_message() || self.requests.is_abandoned()
    }

    /// The loop is about to sleep; `false` if it must not.
    pub fn sleep(&self) -> bool {
        self.requests.sleep()
    }

    pub fn rise(&self) {
        self.requests.rise();
    }
}

/// What carries a connection's bytes.
pub(crate) enum Link {
    Socket(TcpStream),
    Memory(Box<Attached>),
}

impl Link {
    /// What can be waited for.
    pub fn socket(&self) -> Option<&TcpStream> {
        match self {
            Link::Socket(stream) => Some(stream),
            Link::Memory(_) => None,
        }
    }

    /// Appends what is there, about `space` bytes; returns how many bytes came, none at the end.
    pub fn append(&mut self, input: &mut Vec<u8>, space: usize) -> io::Result<usize> {
        let attached = match self {
            Link::Socket(stream) => {
                input.reserve(space);
                let buffer = rustix::buffer::spare_capacity(input);
                return rustix::io::read(&*stream, buffer).map_err(io::Error::from);
            }
            Link::Memory(attached) => attached,
        };
        // In this order: what was sent before the end is still taken.
        let has_ended = attached.requests.is_abandoned();
        let before = input.len();
        while input.len() - before < space && attached.requests.receive(&mut attached.piece) {
            input.extend_from_slice(&attached.piece);
        }
        match input.len() - before {
            0 if !has_ended => Err(ErrorKind::WouldBlock.into()),
            count => Ok(count),
        }
    }

    /// Nothing more is sent. In memory there is no half of a connection.
    pub fn shutdown(&self) -> io::Result<()> {
        match self {
            Link::Socket(stream) => stream.shutdown(Shutdown::Write),
            Link::Memory(_) => Err(ErrorKind::Unsupported.into()),
        }
    }
}

impl Write for Link {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Link::Socket(stream) => stream.write(bytes),
            Link::Memory(attached) if attached.answers.is_abandoned() => {
                Err(ErrorKind::BrokenPipe.into())
            }
            Link::Memory(attached) => {
                let count = bytes.len().min(PIECE);
                match attached.answers.send(&bytes[..count]) {
                    true => Ok(count),
                    false => Err(ErrorKind::WouldBlock.into()),
                }
            }
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
