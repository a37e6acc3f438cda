//! One session of ZooKeeper's protocol, as much of it as a load of writes needs.
//!
//! A frame is a length and that many bytes of jute: numbers are big-endian, texts and buffers have
//! their length before them. A request begins with its xid and type, a reply with the xid, the
//! zxid and an error. A session's replies come in the order of its requests. Absent are watches,
//! pings (who is silent for the session's timeout loses it) and reconnecting.

use std::collections::VecDeque;
use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};

use crate::servers::local;

const TIMEOUT_MS: i32 = 30_000;

/// How long the server may take to open and to close a session.
const PATIENCE: Duration = Duration::from_secs(30);

/// The type of a request that ends the session.
const CLOSE: i32 = -11;

/// All that one may do to a node.
const ALL_RIGHTS: i32 = 31;

/// Any version of a node.
const ANY_VERSION: i32 = -1;

/// A reply's xid, zxid and error.
const REPLY_HEADER: usize = 16;

/// A write, with its type in the protocol.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Operation {
    /// Make a node that does not exist.
    Create = 1,
    /// Replace the data of one that does.
    SetData = 5,
}

/// A session; its socket does not block.
pub struct Session {
    socket: TcpStream,
    output: Vec<u8>,
    sent: usize,
    input: Vec<u8>,
    next_xid: i32,
    /// What was asked and is not answered yet.
    pending: VecDeque<(i32, Instant)>,
}

impl Session {
    /// Opens one.
    pub fn open(port: u16) -> Result<Self> {
        let mut socket = TcpStream::connect_timeout(&local(port), PATIENCE)?;
        socket.set_nodelay(true)?;
        socket.set_read_timeout(Some(PATIENCE))?;
        let mut output = Vec::new();
        frame(&mut output, |output| {
            number(output, 0); // the version of the protocol
            output.extend_from_slice(&0_i64.to_be_bytes()); // the last zxid seen
            number(output, TIMEOUT_MS);
            output.extend_from_slice(&0_i64.to_be_bytes()); // the session: a new one
            buffer(output, &[0; 16]); // its password
            output.push(0); // not only for reading
        });
        socket.write_all(&output)?;
        let mut length = [0; 4];
        socket.read_exact(&mut length).context("no answer to the opening of a session")?;
        let mut reply = vec![0; u32::from_be_bytes(length) as usize];
        socket.read_exact(&mut reply)?;
        // The version of the protocol, then the timeout: zero for a session that is over.
        let timeout = number_at(&reply, 4).context("the answer to an opening is too short")?;
        ensure!(timeout > 0, "the server refused the session");
        socket.set_nonblocking(true)?;
        output.clear();
        let (input, pending) = (Vec::new(), VecDeque::new());
        Ok(Self { socket, output, sent: 0, input, next_xid: 1, pending })
    }

    /// Requests without a reply.
    pub fn pending(&self) -> usize {
        self.pending.len()
    }

    /// Queues a request.
    pub fn request(&mut self, operation: Operation, path: &[u8], data: &[u8], now: Instant) {
        self.pending.push_back((self.next_xid, now));
        frame(&mut self.output, |output| {
            number(output, self.next_xid);
            number(output, operation as i32);
            buffer(output, path);
            buffer(output, data);
            match operation {
                Operation::Create => {
                    number(output, 1); // who has rights
                    number(output, ALL_RIGHTS);
                    buffer(output, b"world");
                    buffer(output, b"anyone");
                    number(output, 0); // persistent, not numbered
                }
                Operation::SetData => number(output, ANY_VERSION),
            }
        });
        self.next_xid += 1;
    }

    /// Writes what can be written.
    pub fn flush(&mut self) -> Result<()> {
        while self.sent < self.output.len() {
            match self.socket.write(&self.output[self.sent..]) {
                Ok(count) => self.sent += count,
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(()),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(error).context("the connection broke"),
            }
        }
        self.output.clear();
        self.sent = 0;
        Ok(())
    }

    /// Takes the replies that have arrived, and hands on how long each took. Returns how many.
    pub fn receive(&mut self, mut answered: impl FnMut(Instant, Duration)) -> Result<usize> {
        let mut chunk = [0; 16 << 10];
        let mut open = true;
        while open {
            match self.socket.read(&mut chunk) {
                Ok(0) => open = false,
                Ok(count) => self.input.extend_from_slice(&chunk[..count]),
                Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(error).context("the connection broke"),
            }
        }
        let now = Instant::now();
        let (mut start, mut replies) = (0, 0);
        while let Some(length) = number_at(&self.input, start) {
            let (body, length) = (start + 4, usize::try_from(length)?);
            let Some(reply) = self.input.get(body..body + length) else { break };
            let Some((xid, from)) = self.pending.pop_front() else {
                bail!("the server sent a reply that nobody asked for");
            };
            check(reply, xid)?;
            answered(now, now.duration_since(from));
            (start, replies) = (body + length, replies + 1);
        }
        // Only now, since its last reply may say why.
        ensure!(open, "the server closed the connection");
        self.input.drain(..start);
        Ok(replies)
    }

    /// Ends it, so that the server need not do so later, during another measurement.
    pub fn close(mut self) -> Result<()> {
        ensure!(self.pending.is_empty() && self.output.is_empty(), "requests are on their way");
        frame(&mut self.output, |output| {
            number(output, self.next_xid);
            number(output, CLOSE);
        });
        self.socket.set_nonblocking(false)?;
        self.socket.write_all(&self.output)?;
        let mut reply = [0; 4 + REPLY_HEADER];
        self.socket.read_exact(&mut reply).context("no answer to the end of a session")?;
        check(&reply[4..], self.next_xid)
    }
}

/// A reply must be to this request, and no error.
fn check(reply: &[u8], xid: i32) -> Result<()> {
    ensure!(reply.len() >= REPLY_HEADER, "a reply of {} bytes", reply.len());
    let replied = number_at(reply, 0);
    ensure!(replied == Some(xid), "a reply to {replied:?} where one to {xid} is due");
    let error = number_at(reply, REPLY_HEADER - 4);
    ensure!(error == Some(0), "ZooKeeper's error {error:?}");
    Ok(())
}

fn frame(output: &mut Vec<u8>, write: impl FnOnce(&mut Vec<u8>)) {
    let start = output.len();
    number(output, 0);
    write(output);
    let length = (output.len() - start - 4) as i32;
    output[start..start + 4].copy_from_slice(&length.to_be_bytes());
}

fn number(output: &mut Vec<u8>, number: i32) {
    output.extend_from_slice(&number.to_be_bytes());
}

fn buffer(output: &mut Vec<u8>, bytes: &[u8]) {
    number(output, bytes.len() as i32);
    output.extend_from_slice(bytes);
}

fn number_at(bytes: &[u8], start: usize) -> Option<i32> {
    let bytes = bytes.get(start..start + 4)?;
    Some(i32::from_be_bytes(bytes.try_into().expect("four bytes")))
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;
    use std::thread::{self, JoinHandle};

    use super::*;

    fn read_frame(socket: &mut TcpStream) -> Vec<u8> {
        let mut length = [0; 4];
        socket.read_exact(&mut length).unwrap();
        let mut body = vec![0; u32::from_be_bytes(length) as usize];
        socket.read_exact(&mut body).unwrap();
        body
    }

    fn reply(socket: &mut TcpStream, xid: i32, error: i32) {
        let mut output = Vec::new();
        frame(&mut output, |output| {
            number(output, xid);
            output.extend_from_slice(&7_i64.to_be_bytes());
            number(output, error);
        });
        socket.write_all(&output).unwrap();
    }

    /// A server of one session, which answers each request with its error; it returns the requests.
    fn server(timeout: i32, errors: &'static [i32]) -> (u16, JoinHandle<Vec<Vec<u8>>>) {
        let listener = TcpListener::bind(local(0)).unwrap();
        let port = listener.local_addr().unwrap().port();
        let thread = thread::spawn(move || {
            let mut socket = listener.accept().unwrap().0;
            let mut requests = vec![read_frame(&mut socket)];
            let mut opened = Vec::new();
            frame(&mut opened, |output| {
                number(output, 0);
                number(output, timeout);
                output.extend_from_slice(&1_i64.to_be_bytes());
                buffer(output, &[0; 16]);
                output.push(0);
            });
            socket.write_all(&opened).unwrap();
            for error in errors {
                let request = read_frame(&mut socket);
                reply(&mut socket, number_at(&request, 0).unwrap(), *error);
                requests.push(request);
            }
            requests
        });
        (port, thread)
    }

    fn receive_one(session: &mut Session) -> Result<()> {
        while session.receive(|_, _| {})? == 0 {
            thread::yield_now();
        }
        Ok(())
    }

    #[test]
    fn requests_are_framed_and_answered_in_order() {
        let (port, server) = server(1000, &[0, 0, 0]);
        let mut session = Session::open(port).unwrap();
        session.request(Operation::Create, b"/a", b"x", Instant::now());
        session.request(Operation::SetData, b"/a", b"yz", Instant::now());
        session.flush().unwrap();
        receive_one(&mut session).unwrap();
        while session.pending() > 0 {
            session.receive(|_, _| {}).unwrap();
        }
        session.close().unwrap();
        let requests = server.join().unwrap();
        assert_eq!(requests[0].len(), 45);
        assert_eq!(&requests[1][..15], b"\0\0\0\x01\0\0\0\x01\0\0\0\x02/a\0");
        let set = b"\0\0\0\x02\0\0\0\x05\0\0\0\x02/a\0\0\0\x02yz\xff\xff\xff\xff";
        assert_eq!(requests[2], set);
        assert_eq!(requests[3], b"\0\0\0\x03\xff\xff\xff\xf5");
    }

    #[test]
    fn an_error_is_an_error() {
        let (port, server) = server(1000, &[-101]);
        let mut session = Session::open(port).unwrap();
        session.request(Operation::SetData, b"/absent", b"", Instant::now());
        session.flush().unwrap();
        assert!(receive_one(&mut session).unwrap_err().to_string().contains("-101"));
        server.join().unwrap();
    }

    #[test]
    fn a_refused_session_is_an_error() {
        let (port, server) = server(0, &[]);
        assert!(Session::open(port).is_err());
        server.join().unwrap();
    }
}
