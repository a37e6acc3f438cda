//! The TCP connection between two processes. It also says that the other process has ended.

use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;

use super::error::Error;
use super::frame::{HEADER, Hello, Message};

/// What may wait to be sent. Every message is sent once per event of a connection, so a peer for
/// which so much waits has stopped, or speaks otherwise.
const MOST_WAITING: usize = 64 << 10;

pub(crate) struct Link {
    stream: TcpStream,
    inbox: Vec<u8>,
    outbox: Vec<u8>,
    /// Nothing comes from there any more, and nothing goes there.
    closed: bool,
}

impl Link {
    /// Exchanges hellos; `check` says whether the other's is acceptable. Both sides agree, or both
    /// fail.
    pub(crate) fn greet(
        mut stream: TcpStream,
        own: Hello,
        check: impl FnOnce(&Hello) -> Result<(), Error>,
    ) -> Result<(Link, Hello), Error> {
        const SILENT: &str = "hear from the peer";
        stream.set_nodelay(true).map_err(|e| Error::os("set up the connection", e))?;
        say(&mut stream, &Message::Hello(own))?;
        let Message::Hello(hello) = hear(&mut stream)? else {
            return Err(Error::NotAPeer { what: "it does not greet as one" });
        };
        check(&hello)?;
        say(&mut stream, &Message::Agreed)?;
        match hear(&mut stream) {
            Ok(Message::Agreed) => {}
            Err(Error::Os { source, .. }) if source.kind() != ErrorKind::UnexpectedEof => {
                return Err(Error::os(SILENT, source));
            }
            _ => return Err(Error::NotAPeer { what: "it did not agree" }),
        }
        stream.set_nonblocking(true).map_err(|e| Error::os("set up the connection", e))?;
        let (inbox, outbox) = Default::default();
        Ok((Link { stream, inbox, outbox, closed: false }, hello))
    }

    pub(crate) fn send(&mut self, message: &Message) {
        if self.closed {
            return;
        }
        message.encode(&mut self.outbox);
        self.flush();
        if self.outbox.len() > MOST_WAITING {
            self.close();
        }
    }

    /// Sends what waits, as far as the connection takes it.
    fn flush(&mut self) {
        while !self.closed && !self.outbox.is_empty() {
            match self.stream.write(&self.outbox) {
                Ok(count) => drop(self.outbox.drain(..count)),
                Err(e) if e.kind() == ErrorKind::Interrupted => {}
                Err(e) if e.kind() == ErrorKind::WouldBlock => return,
                Err(_) => self.close(),
            }
        }
    }

    /// The next message, if one has come. Nonsense closes the connection.
    pub(crate) fn receive(&mut self) -> Option<Message> {
        self.flush();
        if self.closed {
            return None;
        }
        if let Some(message) = self.take() {
            return Some(message);
        }
        let mut space = [0; 1_024];
        loop {
            match self.stream.read(&mut space) {
                Ok(0) => self.closed = true,
                Ok(count) => self.inbox.extend_from_slice(&space[..count]),
                Err(e) if e.kind() == ErrorKind::Interrupted => continue,
                Err(e) if e.kind() == ErrorKind::WouldBlock => {}
                Err(_) => self.closed = true,
            }
            return self.take();
        }
    }

    /// The first whole message in the inbox.
    fn take(&mut self) -> Option<Message> {
        let (header, rest) = self.inbox.split_first_chunk::<HEADER>()?;
        let decoded = Message::length(header).and_then(|length| {
            let Some(body) = rest.get(..length) else { return Ok(None) };
            Ok(Some((Message::decode(header, body)?, HEADER + length)))
        });
        match decoded {
            Ok(Some((message, taken))) => {
                self.inbox.drain(..taken);
                Some(message)
            }
            Ok(None) => None,
            Err(_) => {
                self.close();
                None
            }
        }
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.closed
    }

    /// Closes it: the peer said what makes no sense.
    pub(crate) fn close(&mut self) {
        self.closed = true;
        // The peer may have closed it before.
        self.stream.shutdown(std::net::Shutdown::Both).ok();
    }

    /// Whether the other side has closed it, asked at the socket.
    pub(crate) fn has_ended(&self) -> bool {
        if self.closed {
            return true;
        }
        match self.stream.peek(&mut [0]) {
            Ok(count) => count == 0,
            Err(e) => !matches!(e.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted),
        }
    }
}

fn say(stream: &mut TcpStream, message: &Message) -> Result<(), Error> {
    let mut frame = Vec::new();
    message.encode(&mut frame);
    stream.write_all(&frame).map_err(|e| Error::os("greet the peer", e))
}

fn hear(stream: &mut TcpStream) -> Result<Message, Error> {
    let failed = |e| Error::os("hear from the peer", e);
    let mut header = [0; HEADER];
    stream.read_exact(&mut header).map_err(failed)?;
    let mut body = vec![0; Message::length(&header)?];
    stream.read_exact(&mut body).map_err(failed)?;
    Message::decode(&header, &body)
}
