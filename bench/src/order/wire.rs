//! The transport of all protocols: a UDP socket that takes and gives many datagrams at a time.
//!
//! What is sent in a turn leaves at its end, datagrams of one length to one address in one system
//! call (UDP_SEGMENT), and arrives in one (UDP_GRO); they are counted, and lost by the measurements
//! of loss, one by one. Messages between replicas that are longer than a datagram go in pieces.

use std::collections::BTreeMap;
use std::io::{IoSlice, IoSliceMut};
use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4, UdpSocket};
use std::ops::Range;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::time::Duration;

use anyhow::{Context, Result};
use bytes::{Buf, Bytes};
use nix::errno::Errno;
use nix::sys::socket::{
    ControlMessage, ControlMessageOwned, MsgFlags, SockaddrIn, recvmsg, sendmsg, setsockopt,
    sockopt,
};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use serde::Serialize;

/// Receptions in one turn; each may hold many datagrams.
const BATCH: usize = 8;
/// The longest reception.
const LONGEST: usize = 64 << 10;
/// The longest datagram that is sent.
const DATAGRAM: usize = 8 << 10;
/// The most datagrams that leave together.
const SEGMENTS: usize = 60;
/// What is asked of the system for a socket's queues, in bytes.
const QUEUE: usize = 8 << 20;

/// What went through a socket.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub(super) struct Counts {
    /// Datagrams.
    pub(super) received: u64,
    pub(super) sent: u64,
    /// System calls that brought or took something.
    pub(super) calls: u64,
    /// Datagrams that the system did not take.
    pub(super) unsent: u64,
}

impl Counts {
    pub(super) fn and(self, other: Counts) -> Counts {
        Counts {
            received: self.received + other.received,
            sent: self.sent + other.sent,
            calls: self.calls + other.calls,
            unsent: self.unsent + other.unsent,
        }
    }

    pub(super) fn since(self, before: Counts) -> Counts {
        Counts {
            received: self.received - before.received,
            sent: self.sent - before.sent,
            calls: self.calls - before.calls,
            unsent: self.unsent - before.unsent,
        }
    }
}

/// What leaves for one address at the end of the turn.
struct Outgoing {
    to: SockaddrIn,
    bytes: Vec<u8>,
    /// Where each datagram ends.
    ends: Vec<usize>,
}

/// A socket that waits for its thread.
pub(super) struct Socket {
    socket: UdpSocket,
    shares: bool,
}

/// A thread's socket.
pub(super) struct Wire {
    socket: UdpSocket,
    /// The most datagrams that leave together.
    segments: usize,
    buffer: Vec<u8>,
    control: Vec<u8>,
    outgoing: Vec<Outgoing>,
    pub(super) counts: Counts,
}

fn address(port: u16) -> SockaddrIn {
    SocketAddrV4::new(Ipv4Addr::LOCALHOST, port).into()
}

impl Socket {
    /// A socket on loopback. Datagrams share system calls if it `shares`.
    pub(super) fn bind(shares: bool) -> Result<Socket> {
        let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).context("cannot make a socket")?;
        Socket::prepare(socket, shares)
    }

    fn prepare(socket: UdpSocket, shares: bool) -> Result<Socket> {
        socket.set_nonblocking(true)?;
        setsockopt(&socket, sockopt::UdpGroSegment, &shares)
            .context("the system has no UDP_GRO")?;
        // Only who is root gets more than the system's limit.
        if setsockopt(&socket, sockopt::RcvBufForce, &QUEUE).is_err() {
            setsockopt(&socket, sockopt::RcvBuf, &QUEUE)?;
        }
        Ok(Socket { socket, shares })
    }

    /// A socket that hears a multicast address on loopback; port 0 makes the system choose one.
    pub(super) fn join(shares: bool, group: SockaddrIn) -> Result<Socket> {
        use rustix::net;
        let socket = net::socket(net::AddressFamily::INET, net::SocketType::DGRAM, None)?;
        net::sockopt::set_socket_reuseaddr(&socket, true)?;
        net::bind(&socket, &SocketAddrV4::new(group.ip(), group.port()))?;
        let socket = UdpSocket::from(socket);
        socket.join_multicast_v4(&group.ip(), &Ipv4Addr::LOCALHOST).context("no multicast")?;
        Socket::prepare(socket, shares)
    }

    /// Its address, as the system wants it.
    pub(super) fn address(&self) -> SockaddrIn {
        match self.socket.local_addr().expect("it is bound") {
            SocketAddr::V4(address) => address.into(),
            SocketAddr::V6(address) => unreachable!("{address} was not asked for"),
        }
    }
}

impl Wire {
    pub(super) fn new(Socket { socket, shares }: Socket) -> Wire {
        Wire {
            socket,
            segments: if shares { SEGMENTS } else { 1 },
            buffer: vec![0; LONGEST],
            control: nix::cmsg_space!(i32),
            outgoing: Vec::new(),
            counts: Counts::default(),
        }
    }

    /// Appends what has arrived, one item a datagram.
    pub(super) fn receive(&mut self, into: &mut Vec<Bytes>) -> Result<()> {
        for _ in 0..BATCH {
            let mut slices = [IoSliceMut::new(&mut self.buffer)];
            let control = Some(&mut self.control[..]);
            let fd = self.socket.as_raw_fd();
            let flags = MsgFlags::MSG_DONTWAIT;
            let (bytes, segment) = match recvmsg::<()>(fd, &mut slices, control, flags) {
                Ok(message) => {
                    let segment = message.cmsgs()?.find_map(|control| match control {
                        ControlMessageOwned::UdpGroSegments(bytes) => Some(bytes as usize),
                        _ => None,
                    });
                    (message.bytes, segment.unwrap_or(message.bytes))
                }
                Err(Errno::EAGAIN | Errno::EINTR) => return Ok(()),
                Err(error) => return Err(error).context("cannot receive"),
            };
            self.counts.calls += 1;
            let mut rest = Bytes::copy_from_slice(&self.buffer[..bytes]);
            while !rest.is_empty() {
                into.push(rest.split_to(segment.min(rest.len())));
                self.counts.received += 1;
            }
            // Where one comes at a time it is not worth looking for another one.
            if segment == bytes {
                return Ok(());
            }
        }
        Ok(())
    }

    /// Adds a datagram, which `write` appends to a buffer.
    pub(super) fn queue(&mut self, to: SockaddrIn, write: impl FnOnce(&mut Vec<u8>)) {
        let index = self.outgoing.iter().position(|outgoing| outgoing.to == to);
        let index = index.unwrap_or_else(|| {
            self.outgoing.push(Outgoing { to, bytes: Vec::new(), ends: Vec::new() });
            self.outgoing.len() - 1
        });
        let outgoing = &mut self.outgoing[index];
        write(&mut outgoing.bytes);
        outgoing.ends.push(outgoing.bytes.len());
    }

    /// Sends what was added.
    pub(super) fn flush(&mut self) {
        for index in 0..self.outgoing.len() {
            let mut outgoing = std::mem::replace(
                &mut self.outgoing[index],
                Outgoing { to: address(0), bytes: Vec::new(), ends: Vec::new() },
            );
            let mut first = 0;
            while let Some(run) = next_run(&outgoing.ends, first, self.segments) {
                let start = if first == 0 { 0 } else { outgoing.ends[first - 1] };
                let end = outgoing.ends[run.end - 1];
                let segment = outgoing.ends[first] - start;
                self.send(&outgoing.bytes[start..end], segment, run.len(), outgoing.to);
                first = run.end;
            }
            outgoing.bytes.clear();
            outgoing.ends.clear();
            self.outgoing[index] = outgoing;
        }
    }

    fn send(&mut self, bytes: &[u8], segment: usize, count: usize, to: SockaddrIn) {
        let length = segment as u16;
        let control = [ControlMessage::UdpGsoSegments(&length)];
        let control = if count > 1 { &control[..] } else { &[] };
        let slices = [IoSlice::new(bytes)];
        let fd = self.socket.as_raw_fd();
        self.counts.calls += 1;
        match sendmsg(fd, &slices, control, MsgFlags::MSG_DONTWAIT, Some(&to)) {
            Ok(_) => self.counts.sent += count as u64,
            Err(_) => self.counts.unsent += count as u64, // lost, as anywhere in a network
        }
    }
}

impl AsFd for Wire {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

/// Waits until something arrives at one of these, but not for long.
pub(super) fn wait<'w>(fds: impl Iterator<Item = BorrowedFd<'w>>, most: Duration) {
    let mut fds: Vec<_> = fds.map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN)).collect();
    let most = Timespec { tv_sec: most.as_secs() as i64, tv_nsec: i64::from(most.subsec_nanos()) };
    // Interrupted or over: the caller looks.
    let _ = poll(&mut fds, Some(&most));
}

/// The datagrams from `first` on that can leave together: of one length, the last one no longer.
fn next_run(ends: &[usize], first: usize, most: usize) -> Option<Range<usize>> {
    let start = if first == 0 { 0 } else { ends[first - 1] };
    let length = ends.get(first)? - start;
    let mut last = first;
    while last + 1 < ends.len()
        && last + 1 - first < most
        && ends[last + 1] - ends[last] == length
        && ends[last + 1] - start <= LONGEST - 1024
    {
        last += 1;
    }
    Some(first..last + 1)
}

/// Bytes before a piece's own: the message's number, the piece's, and how many there are.
const PIECE_HEADER: usize = 8;

/// A message in pieces that fit datagrams; `number` tells it from the sender's others.
pub(super) fn pieces(message: &[u8], number: u32) -> impl Iterator<Item = (Vec<u8>, &[u8])> {
    let room = DATAGRAM - 64;
    let count = message.len().div_ceil(room).max(1) as u16;
    (0..count).zip(message.chunks(room)).map(move |(index, bytes)| {
        let mut header = number.to_le_bytes().to_vec();
        header.extend_from_slice(&index.to_le_bytes());
        header.extend_from_slice(&count.to_le_bytes());
        (header, bytes)
    })
}

/// Puts pieces together, of each sender those of the newest message.
#[derive(Default)]
pub(super) struct Pieces {
    of: BTreeMap<u8, (u32, Vec<Option<Bytes>>)>,
}

impl Pieces {
    /// Takes a piece; returns the message that it completes.
    pub(super) fn take(&mut self, from: u8, mut piece: Bytes) -> Option<Bytes> {
        if piece.len() < PIECE_HEADER {
            return None;
        }
        let (number, index, count) = (piece.get_u32_le(), piece.get_u16_le(), piece.get_u16_le());
        if count == 1 {
            return Some(piece);
        }
        let (newest, slots) = self.of.entry(from).or_default();
        if *newest != number || slots.len() != usize::from(count) {
            (*newest, *slots) = (number, vec![None; usize::from(count)]);
        }
        *slots.get_mut(usize::from(index))? = Some(piece);
        if slots.iter().any(Option::is_none) {
            return None;
        }
        let whole: Vec<u8> = slots.drain(..).flatten().flatten().collect();
        Some(whole.into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_are_of_one_length() {
        let ends = [10, 20, 30, 35, 45];
        assert_eq!(next_run(&ends, 0, SEGMENTS), Some(0..3));
        assert_eq!(next_run(&ends, 3, SEGMENTS), Some(3..4));
        assert_eq!(next_run(&ends, 4, SEGMENTS), Some(4..5));
        assert_eq!(next_run(&ends, 5, SEGMENTS), None);
        let many: Vec<usize> = (1..=100).map(|n| n * 8).collect();
        assert_eq!(next_run(&many, 0, SEGMENTS), Some(0..SEGMENTS));
    }

    #[test]
    fn datagrams_arrive_one_by_one() {
        let (one, other) = (Socket::bind(true).expect("bound"), Socket::bind(true).expect("bound"));
        let to = other.address();
        let (mut one, mut other) = (Wire::new(one), Wire::new(other));
        let sent: Vec<Vec<u8>> = (0..100_u8).map(|n| vec![n; 20 + usize::from(n / 50)]).collect();
        sent.iter().for_each(|bytes| one.queue(to, |out| out.extend_from_slice(bytes)));
        one.flush();
        assert_eq!((one.counts.sent, one.counts.unsent), (100, 0));
        let mut got = Vec::new();
        while got.len() < 100 {
            wait([other.as_fd()].into_iter(), Duration::from_secs(1));
            let before = got.len();
            other.receive(&mut got).expect("received");
            assert!(got.len() > before, "{} of 100", got.len());
        }
        assert!(got.iter().zip(&sent).all(|(got, sent)| got[..] == sent[..]));
    }

    #[test]
    fn pieces_make_the_message() {
        let message: Vec<u8> = (0..100_000_u32).map(|n| n as u8).collect();
        let mut held = Pieces::default();
        let mut all: Vec<Bytes> = pieces(&message, 7)
            .map(|(mut header, bytes)| {
                header.extend_from_slice(bytes);
                header.into()
            })
            .collect();
        all.reverse();
        let last = all.pop().expect("several");
        assert!(all.into_iter().all(|piece| held.take(1, piece).is_none()));
        assert_eq!(held.take(1, last).expect("whole")[..], message[..]);
    }
}
