//! Waiting for sockets, and waking the loop from other threads.

use std::io::{self, ErrorKind};
use std::mem::MaybeUninit;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use rustix::event::epoll::{self, CreateFlags, Event, EventData, EventFlags};
use rustix::event::{EventfdFlags, Timespec, eventfd};

use crate::clock;

/// What an event is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Token {
    /// Another thread has something.
    Wake,
    /// Clients want to connect, at the entrance with this number.
    Clients(u32),
    /// Peers want to connect.
    Peers,
    /// A connection from a peer, by its place.
    Inbound(u32),
    /// A connection to a peer, by its place.
    Outbound(u32),
    /// A client's connection, by its place.
    Client(u32),
    /// The end of a process that shares memory, by its id.
    Memory(u32),
    /// A socket for the group's messages.
    Multicast,
}

impl Token {
    fn pack(self) -> u64 {
        let (kind, place) = match self {
            Token::Wake => (0, 0),
            Token::Clients(entrance) => (1, entrance),
            Token::Peers => (2, 0),
            Token::Inbound(place) => (3, place),
            Token::Outbound(place) => (4, place),
            Token::Client(place) => (5, place),
            Token::Memory(place) => (6, place),
            Token::Multicast => (7, 0),
        };
        kind << 32 | u64::from(place)
    }

    fn unpack(packed: u64) -> Token {
        let place = packed as u32;
        match packed >> 32 {
            0 => Token::Wake,
            1 => Token::Clients(place),
            2 => Token::Peers,
            3 => Token::Inbound(place),
            4 => Token::Outbound(place),
            5 => Token::Client(place),
            6 => Token::Memory(place),
            7 => Token::Multicast,
            _ => unreachable!("only packed tokens are registered"),
        }
    }
}

/// What is to be waited for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Interest {
    pub read: bool,
    pub write: bool,
}

impl Interest {
    pub const NOTHING: Interest = Interest { read: false, write: false };
    pub const READ: Interest = Interest { read: true, write: false };

    fn flags(self) -> EventFlags {
        let mut flags = EventFlags::empty();
        flags.set(EventFlags::IN, self.read);
        flags.set(EventFlags::OUT, self.write);
        flags
    }
}

/// Something that a socket is ready for. An error shows as both.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ready {
    pub token: Token,
    pub read: bool,
    pub write: bool,
}

/// The set of sockets that the loop waits for.
pub(crate) struct Poll {
    epoll: OwnedFd,
    waker: Waker,
}

const EVENTS_A_TURN: usize = 1024;

/// Readable while [`Poll::wait`] would not wait.
impl AsFd for Poll {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.epoll.as_fd()
    }
}

impl Poll {
    pub fn new() -> io::Result<Poll> {
        let epoll = epoll::create(CreateFlags::CLOEXEC)?;
        let wake = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        let waker = Waker(Arc::new(wake));
        let poll = Poll { epoll, waker };
        poll.add(&*poll.waker.0, Token::Wake, Interest::READ)?;
        Ok(poll)
    }

    pub fn waker(&self) -> Waker {
        self.waker.clone()
    }

    pub fn add(&self, fd: impl AsFd, token: Token, interest: Interest) -> io::Result<()> {
        let data = EventData::new_u64(token.pack());
        Ok(epoll::add(&self.epoll, fd, data, interest.flags())?)
    }

    pub fn change(&self, fd: impl AsFd, token: Token, interest: Interest) -> io::Result<()> {
        let data = EventData::new_u64(token.pack());
        Ok(epoll::modify(&self.epoll, fd, data, interest.flags())?)
    }

    /// Waits up to `micros` (for ever if `None`) and appends what is ready.
    pub fn wait(&self, micros: Option<u64>, ready: &mut Vec<Ready>) -> io::Result<()> {
        let timeout = micros.map(|micros| Timespec {
            tv_sec: (micros / 1_000_000) as i64,
            tv_nsec: (micros % 1_000_000) as i64 * 1000,
        });
        let mut buffer = [const { MaybeUninit::<Event>::uninit() }; EVENTS_A_TURN];
        let events = match epoll::wait(&self.epoll, &mut buffer, timeout.as_ref()) {
            Ok((events, _)) => events,
            Err(rustix::io::Errno::INTR) => return Ok(()),
            Err(error) => return Err(error.into()),
        };
        for event in events {
            let (token, flags) = (Token::unpack(event.data.u64()), event.flags);
            if token == Token::Wake {
                self.waker.drain();
            }
            let broken = flags.intersects(EventFlags::ERR | EventFlags::HUP);
            let read = broken || flags.contains(EventFlags::IN);
            ready.push(Ready { token, read, write: broken || flags.contains(EventFlags::OUT) });
        }
        Ok(())
    }
}

/// A listener that the poll watches. Without a file descriptor for it a connection stays where it
/// is and its listener ready, so the listener is left alone for a while then: the loop would spin.
pub(crate) struct Door {
    listener: TcpListener,
    token: Token,
    /// Until when it is left alone, in [`smr::Now::micros`].
    rest: Option<u64>,
}

/// How long a listener that cannot accept is left alone, in microseconds.
const REST: u64 = 100_000;

impl Door {
    /// `listener` does not block and is in the poll under `token`.
    pub fn new(listener: TcpListener, token: Token) -> Door {
        Door { listener, token, rest: None }
    }

    /// The next connection, which does not block either.
    pub fn accept(&mut self, poll: &Poll) -> Option<(TcpStream, SocketAddr)> {
        loop {
            match self.listener.accept() {
                Ok((stream, from)) => {
                    let ready =
                        stream.set_nonblocking(true).and_then(|()| stream.set_nodelay(true));
                    if ready.is_ok() {
                        return Some((stream, from));
                    }
                }
                Err(error) => match error.kind() {
                    ErrorKind::WouldBlock => return None,
                    ErrorKind::Interrupted | ErrorKind::ConnectionAborted => {}
                    _ => {
                        self.turn(poll, Interest::NOTHING);
                        self.rest = Some(clock::now().micros + REST);
                        return None;
                    }
                },
            }
        }
    }

    /// Ends the rest once it is over.
    pub fn reopen(&mut self, poll: &Poll) {
        if self.rest.is_some_and(|end| end <= clock::now().micros) {
            self.rest = None;
            self.turn(poll, Interest::READ);
        }
    }

    fn turn(&self, poll: &Poll, interest: Interest) {
        // It is registered: only a kernel without memory refuses, and then nothing else works.
        let _ = poll.change(&self.listener, self.token, interest);
    }
}

/// Ends the loop's wait from any thread.
#[derive(Clone, Debug)]
pub struct Waker(Arc<OwnedFd>);

impl Waker {
    /// The loop looks at its queues soon.
    pub fn wake(&self) {
        // It can only fail because the counter is full: then the loop is awake anyhow.
        let _ = rustix::io::write(&*self.0, &1_u64.to_ne_bytes());
    }

    fn drain(&self) {
        let _ = rustix::io::read(&*self.0, &mut [0; 8]);
    }
}
