//! The control plane of a sequencer whose messages no process sees: answers the controller, and
//! begins sessions where messages are stamped, in the kernel or in a switch.

use std::collections::BTreeMap;
use std::fmt;
use std::io;
use std::net::{SocketAddr, SocketAddrV4, UdpSocket};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use bytes::Bytes;
use oum::{Control, Life, Session};
use smr::GroupId;

use crate::opening::Opening;
use crate::{Counts, Event};

/// A signal to stop is seen at the latest after this.
const LONGEST_WAIT: Duration = Duration::from_millis(50);

/// Why the sequencer cannot be, or cannot go on.
#[derive(Debug)]
pub enum Error {
    /// The program that stamps, or its tables.
    Plane(String),
    /// The socket.
    Socket(io::Error),
    /// A member cannot be reached in the way that it must be.
    Member(SocketAddr, String),
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::Plane(what) => write!(f, "the program that stamps: {what}"),
            Error::Socket(error) => write!(f, "the socket: {error}"),
            Error::Member(at, why) => write!(f, "member {at}: {why}"),
        }
    }
}

impl std::error::Error for Error {}

impl From<io::Error> for Error {
    fn from(error: io::Error) -> Error {
        Error::Socket(error)
    }
}

/// Where messages are stamped.
pub trait Plane {
    /// So many groups, and no more.
    const GROUPS: usize;

    /// Begins a session of a group, higher than those before it: as one change, whose first message
    /// gets number 1, and none of the session before it a number twice.
    ///
    /// # Errors
    /// [`Error::Member`], and nothing has changed, if one of the members cannot be reached.
    fn begin(
        &mut self,
        group: GroupId,
        session: Session,
        members: &[SocketAddrV4],
    ) -> Result<(), Error>;

    /// How many messages the session of a group has had; 0 without one.
    ///
    /// # Errors
    /// If it cannot be asked.
    fn stamped(&mut self, group: GroupId) -> Result<u64, Error>;

    /// What it has done since its start, control messages aside.
    ///
    /// # Errors
    /// If it cannot be asked.
    fn counts(&mut self) -> Result<Counts, Error>;
}

/// A sequencer, as its controller sees it.
pub struct ControlPlane<P> {
    plane: P,
    socket: UdpSocket,
    life: Life,
    sessions: BTreeMap<GroupId, Session>,
    counts: Counts,
    events: Box<dyn FnMut(&Event) + Send>,
}

impl<P: Plane> ControlPlane<P> {
    /// A sequencer without sessions, asked by its controller over `socket`. `events` is told what
    /// an operator should know.
    ///
    /// # Errors
    /// If the system gives no random number.
    pub fn new(
        plane: P,
        socket: UdpSocket,
        events: Box<dyn FnMut(&Event) + Send>,
    ) -> Result<ControlPlane<P>, Error> {
        socket.set_read_timeout(Some(LONGEST_WAIT))?;
        let mut life = [0; 8];
        let flags = rustix::rand::GetRandomFlags::empty();
        rustix::rand::getrandom(&mut life, flags).map_err(io::Error::from)?;
        let (life, sessions) = (Life(u64::from_ne_bytes(life)), BTreeMap::new());
        Ok(ControlPlane { plane, socket, life, sessions, counts: Counts::default(), events })
    }

    /// Answers the controller until `stop` is set; returns what was done.
    ///
    /// # Errors
    /// If the socket fails, or where messages are stamped.
    pub fn run(mut self, stop: &AtomicBool) -> Result<Counts, Error> {
        let mut buffer = vec![0; 1 << 16];
        // Relaxed: the flag stands for itself.
        while !stop.load(Ordering::Relaxed) {
            match self.socket.recv_from(&mut buffer) {
                Ok((length, from)) => {
                    self.receive(&Bytes::copy_from_slice(&buffer[..length]), from)?;
                }
                Err(error) if is_timeout(&error) => {}
                Err(error) => return Err(error.into()),
            }
        }
        let Counts { unreadable, refused, unsent, .. } = self.counts;
        let counts = self.plane.counts()?;
        Ok(Counts { unreadable: counts.unreadable + unreadable, refused, unsent, ..counts })
    }

    fn receive(&mut self, datagram: &Bytes, from: SocketAddr) -> Result<(), Error> {
        let group = match Control::decode(datagram) {
            // Copies for the members are made where messages are stamped: no multicast address.
            Ok(Control::Open { group, session, life, members, .. }) => {
                match self.on_open(group, session, life, &members) {
                    Ok(true) => {}
                    // The controller learns that the session is not open, and takes another one.
                    Ok(false) | Err(Error::Member(..)) => self.counts.refused += 1,
                    Err(error) => return Err(error),
                }
                group
            }
            Ok(Control::Probe { group }) => group,
            Ok(_) => {
                self.counts.refused += 1;
                return Ok(());
            }
            // Among them what begins like a message and is none, in fragments for instance.
            Err(_) => {
                self.counts.unreadable += 1;
                return Ok(());
            }
        };
        let session = self.sessions.get(&group).copied().unwrap_or_default();
        let stamped = self.plane.stamped(group)?;
        let mut answer = Vec::new();
        Control::Opened { group, session, life: self.life, stamped }.encode(&mut answer);
        if self.socket.send_to(&answer, from).is_err() {
            self.counts.unsent += 1;
        }
        Ok(())
    }

    /// Begins a session. Returns whether it is the group's one now.
    fn on_open(
        &mut self,
        group: GroupId,
        session: Session,
        life: Life,
        members: &[SocketAddr],
    ) -> Result<bool, Error> {
        let present = self.sessions.get(&group).copied();
        let has_room = self.sessions.len() < P::GROUPS;
        match Opening::of(session, present, life == self.life, has_room) {
            Opening::Refused => return Ok(false),
            Opening::Repeated => return Ok(true),
            Opening::Begins => {}
        }
        let four = |&member: &SocketAddr| match member {
            SocketAddr::V4(at) => Ok(at),
            SocketAddr::V6(_) => Err(Error::Member(member, "it has no IPv4 address".to_owned())),
        };
        let members: Vec<SocketAddrV4> = members.iter().map(four).collect::<Result<_, _>>()?;
        self.plane.begin(group, session, &members)?;
        self.sessions.insert(group, session);
        (self.events)(&Event::Opened { group, session, members: members.len(), multicast: None });
        Ok(true)
    }
}

fn is_timeout(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted)
}
