//! Many datagrams in one system call, to and from one socket.

use std::io::{self, IoSlice, IoSliceMut};
use std::net::UdpSocket;
use std::os::fd::AsRawFd;

use nix::errno::Errno;
use nix::sys::socket::{MsgFlags, MultiHeaders, SockaddrStorage, recvmmsg, sendmmsg};

/// The most datagrams of one call.
const BATCH: usize = 64;
/// No datagram is longer.
const DATAGRAM_BYTES: usize = 64 << 10;

/// A datagram that has arrived.
#[derive(Clone, Copy, Debug)]
struct Arrived {
    length: usize,
    from: Option<SockaddrStorage>,
}

/// Datagrams that have arrived together.
pub struct Inbound {
    buffers: Vec<Vec<u8>>,
    headers: MultiHeaders<SockaddrStorage>,
    arrived: Vec<Arrived>,
}

impl Inbound {
    /// Room for a batch.
    pub fn new() -> Inbound {
        Inbound {
            buffers: (0..BATCH).map(|_| vec![0; DATAGRAM_BYTES]).collect(),
            headers: MultiHeaders::preallocate(BATCH, None),
            arrived: Vec::with_capacity(BATCH),
        }
    }

    /// Replaces the batch with what has arrived; waits for the first one, as long as the socket's
    /// timeout allows, if `wait` is set. The batch is empty if nothing came.
    pub fn receive(&mut self, socket: &UdpSocket, wait: bool) -> io::Result<()> {
        self.arrived.clear();
        let mut slices: Vec<[IoSliceMut<'_>; 1]> =
            self.buffers.iter_mut().map(|buffer| [IoSliceMut::new(buffer)]).collect();
        let flags = if wait { MsgFlags::MSG_WAITFORONE } else { MsgFlags::MSG_DONTWAIT };
        let headers = &mut self.headers;
        match recvmmsg(socket.as_raw_fd(), headers, slices.iter_mut(), flags, None) {
            Ok(results) => {
                let arrived = results.map(|r| Arrived { length: r.bytes, from: r.address });
                self.arrived.extend(arrived);
                Ok(())
            }
            Err(Errno::EAGAIN | Errno::EINTR) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.arrived.len()
    }

    /// One of them.
    pub fn datagram(&mut self, index: usize) -> &mut [u8] {
        &mut self.buffers[index][..self.arrived[index].length]
    }

    /// Who has sent it.
    pub fn from(&self, index: usize) -> Option<SockaddrStorage> {
        self.arrived[index].from
    }
}

/// Copies of a batch's datagrams that are to be sent.
pub struct Outbound {
    /// Which datagram of the batch.
    indices: Vec<usize>,
    to: Vec<Option<SockaddrStorage>>,
    headers: MultiHeaders<SockaddrStorage>,
}

impl Outbound {
    /// Nothing to be sent yet.
    pub fn new() -> Outbound {
        Outbound {
            indices: Vec::new(),
            to: Vec::new(),
            headers: MultiHeaders::preallocate(BATCH, None),
        }
    }

    /// Adds a copy of a datagram for each of these.
    pub fn push(&mut self, index: usize, to: &[SockaddrStorage]) {
        for &to in to {
            self.indices.push(index);
            self.to.push(Some(to));
        }
    }

    /// Sends all, in their order. Returns how many the system did not take: they are lost.
    pub fn send(&mut self, socket: &UdpSocket, batch: &Inbound) -> u64 {
        let slices: Vec<[IoSlice<'_>; 1]> = self
            .indices
            .iter()
            .map(|&index| [IoSlice::new(&batch.buffers[index][..batch.arrived[index].length])])
            .collect();
        let (mut done, mut lost) = (0, 0);
        while done < slices.len() {
            let end = slices.len().min(done + BATCH);
            let (now, to) = (&slices[done..end], &self.to[done..end]);
            let sent = sendmmsg(
                socket.as_raw_fd(),
                &mut self.headers,
                now,
                to,
                [],
                MsgFlags::MSG_DONTWAIT,
            );
            match sent.map(Iterator::count) {
                // An error is that of the first datagram.
                Ok(0) | Err(_) => {
                    lost += 1;
                    done += 1;
                }
                Ok(count) => done += count,
            }
        }
        self.indices.clear();
        self.to.clear();
        lost
    }
}

/// Sends one datagram; returns whether the system took it.
pub fn send_one(socket: &UdpSocket, datagram: &[u8], to: &SockaddrStorage) -> bool {
    let flags = MsgFlags::MSG_DONTWAIT;
    nix::sys::socket::sendto(socket.as_raw_fd(), datagram, to, flags).is_ok()
}
