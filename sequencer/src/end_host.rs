//! The end-host sequencer ([NOPaxos] 4.2.3): receives a batch, stamps it, sends it to the members
//! one by one, or once where they hear a multicast address that can be sent to through the
//! interface that it listens on. What cannot be sent is lost, as anywhere in the network, and
//! counted.

use std::collections::BTreeMap;
use std::fmt;
use std::io;
use std::net::{IpAddr, SocketAddr, SocketAddrV4, UdpSocket};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use bytes::Bytes;
use nix::sys::socket::SockaddrStorage;
use oum::{CONTROL_MAGIC, Control, Header, Life, Refused, Sequencer, Session};
use smr::GroupId;

use crate::batches::{Inbound, Outbound, join_arriving, send_one};
use crate::opening::Opening;

/// A sequencer serves so many groups, and no more.
pub const MAX_GROUPS: usize = 4096;
/// What is asked of the system for the socket's queues, in bytes; it may give less.
const QUEUE_BYTES: usize = 4 << 20;
/// A signal to stop is seen at the latest after this.
const LONGEST_WAIT: Duration = Duration::from_millis(50);

/// What a sequencer has done since its start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Messages that got a number.
    pub stamped: u64,
    /// Copies for members that the system did not take.
    pub unsent: u64,
    /// Datagrams that were no messages, damaged ones included.
    pub unreadable: u64,
    /// Messages that a sequencer had stamped before.
    pub restamped: u64,
    /// Messages to groups that have no session here.
    pub unknown_group: u64,
    /// Control messages that made no sense or came too late.
    pub refused: u64,
    /// System calls that brought or took messages.
    pub calls: u64,
}

impl fmt::Display for Counts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Counts { stamped, unsent, unreadable, restamped, unknown_group, refused, .. } = self;
        write!(
            f,
            "{stamped} messages stamped, {unsent} copies not sent; refused: {unreadable} \
             unreadable, {restamped} stamped before, {unknown_group} to unknown groups, {refused} \
             control messages"
        )
    }
}

/// What an operator may want to know.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// A session has begun.
    Opened {
        /// Of this group.
        group: GroupId,
        /// Its number.
        session: Session,
        /// How many members it has.
        members: usize,
        /// Where they get the one copy of each message; a copy each without it.
        multicast: Option<SocketAddrV4>,
    },
    /// The members hear this address, but there is no way to it from here: each gets a copy.
    NoWay {
        /// Of this group.
        group: GroupId,
        /// The multicast address.
        multicast: SocketAddrV4,
        /// What the system says.
        why: String,
    },
}

impl fmt::Display for Event {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Event::Opened { group, session, members, multicast } => {
                write!(f, "group {:x}: session {} with {members} members", group.0, session.0)?;
                multicast.map_or(Ok(()), |at| write!(f, " at {at}"))
            }
            Event::NoWay { group, multicast, why } => write!(
                f,
                "group {:x}: cannot send to {multicast}: {why}; a copy goes to each member",
                group.0
            ),
        }
    }
}

/// Room for what a turn receives and sends.
pub struct Batches {
    inbound: Inbound,
    outbound: Outbound,
}

impl Batches {
    /// Room for so many datagrams in one system call, at least 1.
    pub fn of(most: usize) -> Batches {
        Batches { inbound: Inbound::new(most), outbound: Outbound::new(most) }
    }
}

impl Default for Batches {
    fn default() -> Batches {
        Batches::of(64)
    }
}

/// A sequencer with its socket.
pub struct EndHost {
    socket: UdpSocket,
    life: Life,
    sequencer: Sequencer,
    /// Where each group's messages go.
    copies: BTreeMap<GroupId, Vec<SockaddrStorage>>,
    counts: Counts,
    events: Box<dyn FnMut(&Event) + Send>,
}

impl EndHost {
    /// A sequencer without sessions that listens on `listen`. `events` is told what an operator
    /// should know.
    ///
    /// # Errors
    /// If the address cannot be had, or the system gives no random number.
    pub fn open(listen: SocketAddr, events: Box<dyn FnMut(&Event) + Send>) -> io::Result<EndHost> {
        let socket = UdpSocket::bind(listen)?;
        socket.set_read_timeout(Some(LONGEST_WAIT))?;
        // Shorter queues only lose more.
        let _ = rustix::net::sockopt::set_socket_recv_buffer_size(&socket, QUEUE_BYTES);
        let _ = rustix::net::sockopt::set_socket_send_buffer_size(&socket, QUEUE_BYTES);
        join_arriving(&socket);
        leave_through(&socket, listen.ip())?;
        let mut life = [0; 8];
        rustix::rand::getrandom(&mut life, rustix::rand::GetRandomFlags::empty())?;
        Ok(EndHost {
            socket,
            life: Life(u64::from_ne_bytes(life)),
            sequencer: Sequencer::default(),
            copies: BTreeMap::new(),
            counts: Counts::default(),
            events,
        })
    }

    /// Where it listens.
    ///
    /// # Errors
    /// If the system does not say.
    pub fn address(&self) -> io::Result<SocketAddr> {
        self.socket.local_addr()
    }

    /// What it has done.
    pub fn counts(&self) -> Counts {
        self.counts
    }

    /// Stamps until `stop` is set; returns what it has done. After the last datagram it looks for
    /// the next one for as long as `spin` before it sleeps.
    ///
    /// # Errors
    /// If the socket fails.
    pub fn run(mut self, spin: Duration, stop: &AtomicBool) -> io::Result<Counts> {
        let mut batches = Batches::default();
        let mut busy_until = None;
        // Relaxed: the flag stands for itself.
        while !stop.load(Ordering::Relaxed) {
            let spins = busy_until.is_some_and(|end| Instant::now() < end);
            if self.turn(&mut batches, !spins)? {
                busy_until = (!spin.is_zero()).then(|| Instant::now() + spin);
            }
        }
        Ok(self.counts)
    }

    /// Stamps what has arrived, and sends it on. Waits for the first message, though not for long,
    /// if `wait` is set. Returns whether anything came.
    ///
    /// # Errors
    /// If the socket fails.
    pub fn turn(&mut self, batches: &mut Batches, wait: bool) -> io::Result<bool> {
        let Batches { inbound, outbound } = batches;
        inbound.receive(&self.socket, wait)?;
        for index in 0..inbound.len() {
            let datagram = inbound.datagram(index);
            if datagram.first() == Some(&CONTROL_MAGIC) {
                let datagram = Bytes::copy_from_slice(datagram);
                // What was stamped before goes to the members that it was stamped for.
                outbound.send(&self.socket, inbound);
                self.on_control(&datagram, inbound.from(index));
                continue;
            }
            match self.sequencer.stamp(datagram) {
                Ok(Header { group, .. }) => {
                    self.counts.stamped += 1;
                    outbound.push(inbound, index, group, &self.copies[&group]);
                }
                Err(Refused::Unreadable(_)) => self.counts.unreadable += 1,
                Err(Refused::Stamped) => self.counts.restamped += 1,
                Err(Refused::UnknownGroup(_)) => self.counts.unknown_group += 1,
            }
        }
        outbound.send(&self.socket, inbound);
        self.counts.unsent += std::mem::take(&mut outbound.unsent);
        self.counts.calls += std::mem::take(&mut inbound.calls);
        self.counts.calls += std::mem::take(&mut outbound.calls);
        Ok(inbound.len() > 0)
    }

    fn on_control(&mut self, datagram: &Bytes, from: Option<SockaddrStorage>) {
        let group = match Control::decode(datagram) {
            Ok(Control::Open { group, session, life, members, multicast }) => {
                if !self.on_open(group, session, life, &members, multicast) {
                    self.counts.refused += 1;
                }
                group
            }
            Ok(Control::Probe { group }) => group,
            Ok(_) | Err(_) => {
                self.counts.refused += 1;
                return;
            }
        };
        let (session, stamped) = self.sequencer.session(group).unwrap_or_default();
        let mut answer = Vec::new();
        Control::Opened { group, session, life: self.life, stamped }.encode(&mut answer);
        if from.is_none_or(|from| !send_one(&self.socket, &answer, &from)) {
            self.counts.unsent += 1;
        }
    }

    /// Begins a session. Returns whether it is the group's one now.
    fn on_open(
        &mut self,
        group: GroupId,
        session: Session,
        life: Life,
        members: &[SocketAddr],
        multicast: Option<SocketAddrV4>,
    ) -> bool {
        let present = self.sequencer.session(group).map(|(present, _)| present);
        let has_room = self.copies.len() < MAX_GROUPS;
        match Opening::of(session, present, life == self.life, has_room) {
            Opening::Refused => return false,
            Opening::Repeated => return true,
            Opening::Begins => assert!(self.sequencer.begin(group, session), "sessions grow"),
        }
        let multicast = multicast.filter(|&at| match self.reach(at) {
            Ok(()) => true,
            Err(error) => {
                let why = error.to_string();
                (self.events)(&Event::NoWay { group, multicast: at, why });
                false
            }
        });
        let copies = match multicast {
            Some(at) => vec![SocketAddr::from(at).into()],
            None => members.iter().copied().map(Into::into).collect(),
        };
        self.copies.insert(group, copies);
        (self.events)(&Event::Opened { group, session, members: members.len(), multicast });
        true
    }

    /// Whether the system knows a way to a multicast address; nothing is sent.
    fn reach(&self, multicast: SocketAddrV4) -> io::Result<()> {
        let own = self.socket.local_addr()?.ip();
        if own.is_ipv6() {
            return Err(io::Error::new(io::ErrorKind::Unsupported, "it listens on IPv6"));
        }
        let probe = UdpSocket::bind((own, 0))?;
        leave_through(&probe, own)?;
        probe.connect(multicast)
    }
}

/// Has what is multicast leave through the interface with this address; one of the system's choice
/// if it is unspecified.
fn leave_through(socket: &UdpSocket, own: IpAddr) -> io::Result<()> {
    match own {
        IpAddr::V4(own) if !own.is_unspecified() => {
            Ok(rustix::net::sockopt::set_ip_multicast_if(socket, &own)?)
        }
        _ => Ok(()),
    }
}

/// For who waits for several things at a time.
impl AsFd for EndHost {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}
