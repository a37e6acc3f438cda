//! The connection to one replica: made without blocking, greeted, and made again when it breaks.

use std::io::{self, ErrorKind};
use std::net::{SocketAddr, TcpStream};
use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;

use rustix::event::epoll::{self, EventData, EventFlags};
use rustix::net::{AddressFamily, SocketFlags, SocketType, sockopt};
use smr::{ClientId, ClientMessage, GroupId};
use wire::{
    Frame, FrameReader, Greeting, HELLO_BYTES, Header, Hello, Kind, MAX_PAYLOAD, NO_REPLICA,
    Outbox, encode_frame,
};

/// Messages are dropped while this many bytes wait to be sent: the client machine sends them again.
const OUTPUT_BYTES: usize = MAX_PAYLOAD;
/// Reads in one turn, 64 KiB or more each.
const READS_A_TURN: usize = 8;
/// A connection that is not greeted for this long is given up, in microseconds.
const GREETING: u64 = 1_000_000;
/// Pauses before it is made again, in microseconds: they double from the first to the last.
const SHORTEST_PAUSE: u64 = 2_000;
const LONGEST_PAUSE: u64 = 200_000;
/// A connection whose other end is silent for about this long is given up.
const SILENCE: Duration = Duration::from_secs(2);
const PROBE_AFTER: Duration = Duration::from_secs(1);

/// Who greets whom.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Own {
    pub client: ClientId,
    /// Zero before it is known.
    pub group: GroupId,
}

/// One replica's connection.
pub(crate) struct Link {
    /// All addresses of its name, tried in turn.
    addresses: Vec<SocketAddr>,
    tries: usize,
    stream: Option<TcpStream>,
    reader: FrameReader,
    /// Who answers there, once it has.
    pub hello: Option<Hello>,
    greeted: bool,
    output: Outbox,
    writing: bool,
    /// When to connect again, or to give the connection up that is not greeted, in
    /// [`smr::Now::micros`]; `u64::MAX` while it stands.
    due: u64,
    pause: u64,
    /// When it was greeted, in [`smr::Now::micros`].
    since: u64,
    /// Why it was last given up.
    pub trouble: String,
}

impl Link {
    /// `addresses` has at least one.
    pub fn new(addresses: Vec<SocketAddr>) -> Link {
        Link {
            addresses,
            tries: 0,
            stream: None,
            reader: FrameReader::new(HELLO_BYTES),
            hello: None,
            greeted: false,
            output: Outbox::default(),
            writing: false,
            due: 0,
            pause: SHORTEST_PAUSE,
            since: 0,
            trouble: String::new(),
        }
    }

    /// When [`Link::on_time`] has something to do, in [`smr::Now::micros`].
    pub fn due(&self) -> u64 {
        self.due
    }

    /// Connects, if it is time.
    pub fn on_time(&mut self, now: u64, own: Own, index: usize, epoll: &OwnedFd) {
        if now < self.due {
            return;
        }
        if self.stream.is_some() {
            self.lose(now, "it does not greet");
            return;
        }
        match self.dial(own, index, epoll) {
            Ok(stream) => {
                self.stream = Some(stream);
                self.due = now + GREETING;
            }
            Err(error) => self.lose(now, &error.to_string()),
        }
    }

    fn dial(&mut self, own: Own, index: usize, epoll: &OwnedFd) -> io::Result<TcpStream> {
        let address = self.addresses[self.tries % self.addresses.len()];
        self.tries += 1;
        let family = match address {
            SocketAddr::V4(_) => AddressFamily::INET,
            SocketAddr::V6(_) => AddressFamily::INET6,
        };
        let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
        let socket = rustix::net::socket_with(family, SocketType::STREAM, flags, None)?;
        sockopt::set_tcp_nodelay(&socket, true)?;
        sockopt::set_tcp_user_timeout(&socket, SILENCE.as_millis() as u32)?;
        sockopt::set_tcp_keepidle(&socket, PROBE_AFTER)?;
        sockopt::set_tcp_keepintvl(&socket, PROBE_AFTER)?;
        sockopt::set_socket_keepalive(&socket, true)?;
        match rustix::net::connect(&socket, &address) {
            Ok(()) | Err(rustix::io::Errno::INPROGRESS) => {}
            Err(error) => return Err(error.into()),
        }
        // Until it is connected, it is neither readable nor takes bytes.
        let both = EventFlags::IN | EventFlags::OUT;
        epoll::add(epoll, &socket, EventData::new_u64(index as u64), both)?;
        self.writing = true;
        self.reader = FrameReader::new(HELLO_BYTES);
        self.greeted = false;
        self.output.clear();
        Greeting::Client { group: own.group, client: own.client }.encode(self.output.buffer());
        Ok(TcpStream::from(socket))
    }

    /// Whether the replica that has answered is still there.
    pub fn stands(&self) -> bool {
        self.greeted
    }

    /// Gives the connection up; it is made again after a pause.
    pub fn lose(&mut self, now: u64, why: &str) {
        // One that is closed as soon as it is greeted would be made again without end.
        if self.greeted && self.since + GREETING <= now {
            self.pause = SHORTEST_PAUSE;
        }
        self.stream = None;
        self.greeted = false;
        self.output.clear();
        self.due = now + self.pause;
        self.pause = (self.pause * 2).min(LONGEST_PAUSE);
        why.clone_into(&mut self.trouble);
    }

    /// Whether anything is to be sent.
    pub fn has_output(&self) -> bool {
        self.output.pending() > 0 && !self.writing
    }

    /// Queues a message, if there is a connection and it keeps up.
    pub fn send(&mut self, own: Own, message: &ClientMessage) {
        if self.stream.is_none() || self.output.pending() > OUTPUT_BYTES {
            return;
        }
        let Own { client, group } = own;
        let (from, incarnation) = (NO_REPLICA, client.incarnation);
        let header = Header { kind: Kind::Client, group, from, incarnation };
        // Bodies are bounded below a frame.
        let _ = encode_frame(self.output.buffer(), &header, |out| message.encode(out));
    }

    /// Sends what is queued, as far as it goes.
    pub fn flush(&mut self, index: usize, epoll: &OwnedFd) -> io::Result<()> {
        let Some(stream) = &mut self.stream else { return Ok(()) };
        self.output.flush(stream)?;
        let writing = self.output.pending() > 0;
        if writing != self.writing {
            let out = if writing { EventFlags::OUT } else { EventFlags::empty() };
            let data = EventData::new_u64(index as u64);
            epoll::modify(epoll, stream.as_fd(), data, EventFlags::IN | out)?;
            self.writing = writing;
        }
        Ok(())
    }

    /// Reads what has arrived: appends the frames behind the greeting.
    pub fn read(&mut self, own: Own, now: u64, frames: &mut Vec<Frame>) -> Result<(), String> {
        for _ in 0..READS_A_TURN {
            let Some(stream) = &mut self.stream else { return Ok(()) };
            let space = self.reader.space().len();
            let count = match self.reader.fill(stream) {
                Ok(0) => return Err("the replica has closed the connection".to_owned()),
                Ok(count) => count,
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(()),
                Err(error) if error.kind() == ErrorKind::Interrupted => continue,
                Err(error) => return Err(error.to_string()),
            };
            while let Some(frame) = self.reader.next_frame().map_err(|error| error.to_string())? {
                if self.greeted {
                    frames.push(frame);
                } else {
                    self.greet(own, now, &frame)?;
                }
            }
            if count < space {
                return Ok(());
            }
        }
        Ok(())
    }

    fn greet(&mut self, own: Own, now: u64, frame: &Frame) -> Result<(), String> {
        let hello = Hello::decode(frame).ok_or("what answers is no replica")?;
        let group = hello.identity.group;
        if own.group != GroupId(0) && group != own.group {
            return Err(format!("it belongs to group {:016x}, not {:016x}", group.0, own.group.0));
        }
        self.hello = Some(hello);
        self.greeted = true;
        self.since = now;
        self.due = u64::MAX;
        self.reader.set_limit(MAX_PAYLOAD);
        Ok(())
    }
}
