//! The end-host sequencer ([NOPaxos] 4.2.3): receives a batch, stamps it, sends it to the members
//! one by one. What cannot be sent is lost, as anywhere in the network, and counted.

use std::collections::BTreeMap;
use std::fmt;
use std::io;
use std::net::{SocketAddr, UdpSocket};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use bytes::Bytes;
use nix::sys::socket::SockaddrStorage;
use oum::{CONTROL_MAGIC, Control, Life, Refused, Sequencer, Session};
use smr::GroupId;

use crate::batches::{Inbound, Outbound, send_one};

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
}

impl fmt::Display for Counts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Counts { stamped, unsent, unreadable, restamped, unknown_group, refused } = self;
        write!(
            f,
            "{stamped} messages stamped, {unsent} copies not sent; refused: {unreadable} \
             unreadable, {restamped} stamped before, {unknown_group} to unknown groups, {refused} \
             control messages"
        )
    }
}

/// What an operator may want to know.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// A session has begun.
    Opened {
        /// Of this group.
        group: GroupId,
        /// Its number.
        session: Session,
        /// How many members it has.
        members: usize,
    },
}

impl fmt::Display for Event {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Event::Opened { group, session, members } = self;
        write!(f, "group {:x}: session {} with {members} members", group.0, session.0)
    }
}

/// A sequencer with its socket.
pub struct EndHost {
    socket: UdpSocket,
    life: Life,
    sequencer: Sequencer,
    members: BTreeMap<GroupId, Vec<SockaddrStorage>>,
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
        let mut life = [0; 8];
        rustix::rand::getrandom(&mut life, rustix::rand::GetRandomFlags::empty())?;
        Ok(EndHost {
            socket,
            life: Life(u64::from_ne_bytes(life)),
            sequencer: Sequencer::default(),
            members: BTreeMap::new(),
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

    /// Stamps until `stop` is set; returns what it has done. After the last datagram it looks for
    /// the next one for as long as `spin` before it sleeps.
    ///
    /// # Errors
    /// If the socket fails.
    pub fn run(mut self, spin: Duration, stop: &AtomicBool) -> io::Result<Counts> {
        let (mut inbound, mut outbound) = (Inbound::new(), Outbound::new());
        let mut busy_until = None;
        // Relaxed: the flag stands for itself.
        while !stop.load(Ordering::Relaxed) {
            let spins = busy_until.is_some_and(|end| Instant::now() < end);
            inbound.receive(&self.socket, !spins)?;
            if inbound.len() > 0 {
                self.forward(&mut inbound, &mut outbound);
                busy_until = (!spin.is_zero()).then(|| Instant::now() + spin);
            }
        }
        Ok(self.counts)
    }

    fn forward(&mut self, inbound: &mut Inbound, outbound: &mut Outbound) {
        for index in 0..inbound.len() {
            let datagram = inbound.datagram(index);
            if datagram.first() == Some(&CONTROL_MAGIC) {
                let datagram = Bytes::copy_from_slice(datagram);
                // What was stamped before goes to the members that it was stamped for.
                self.counts.unsent += outbound.send(&self.socket, inbound);
                self.on_control(&datagram, inbound.from(index));
                continue;
            }
            match self.sequencer.stamp(datagram) {
                Ok(header) => {
                    self.counts.stamped += 1;
                    outbound.push(index, &self.members[&header.group]);
                }
                Err(Refused::Unreadable(_)) => self.counts.unreadable += 1,
                Err(Refused::Stamped) => self.counts.restamped += 1,
                Err(Refused::UnknownGroup(_)) => self.counts.unknown_group += 1,
            }
        }
        self.counts.unsent += outbound.send(&self.socket, inbound);
    }

    fn on_control(&mut self, datagram: &Bytes, from: Option<SockaddrStorage>) {
        let group = match Control::decode(datagram) {
            Ok(Control::Open { group, session, life, members }) => {
                if !self.on_open(group, session, life, &members) {
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
    ) -> bool {
        let present = self.sequencer.session(group);
        if life != self.life || (present.is_none() && self.members.len() >= MAX_GROUPS) {
            return false;
        }
        if present.is_some_and(|(present, _)| present == session) {
            return true; // the answer was lost
        }
        let begins = self.sequencer.begin(group, session);
        if begins {
            self.members.insert(group, members.iter().map(|&member| member.into()).collect());
            (self.events)(&Event::Opened { group, session, members: members.len() });
        }
        begins
    }
}
