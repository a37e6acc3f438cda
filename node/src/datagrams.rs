//! A UDP socket that does not block; what has arrived is taken many datagrams at a time.

use std::io::{self, ErrorKind, IoSliceMut};
use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4, SocketAddrV6, UdpSocket};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};

use bytes::Bytes;
use nix::errno::Errno;
use nix::sys::socket::{MsgFlags, MultiHeaders, SockaddrStorage, recvmmsg};
use rustix::net;

/// Datagrams of one system call.
const BATCH: usize = 32;
/// No datagram is longer.
const DATAGRAM_BYTES: usize = 64 << 10;
/// What the system is asked for to keep datagrams until they are taken, in bytes.
const QUEUE_BYTES: usize = 8 << 20;

/// The socket.
pub(crate) struct Datagrams {
    socket: UdpSocket,
    headers: MultiHeaders<SockaddrStorage>,
    buffers: Vec<Vec<u8>>,
}

impl Datagrams {
    /// A socket at `address`, `host:port`.
    pub fn bind(address: &str) -> io::Result<Datagrams> {
        Datagrams::over(UdpSocket::bind(address)?)
    }

    /// A socket that hears a multicast address, as others on this machine may, through the
    /// interface with the address `interface`; one of the system's choice if that is unspecified.
    pub fn join(multicast: SocketAddrV4, interface: Ipv4Addr) -> io::Result<Datagrams> {
        let (kind, flags) = (net::SocketType::DGRAM, net::SocketFlags::CLOEXEC);
        let socket = net::socket_with(net::AddressFamily::INET, kind, flags, None)?;
        net::sockopt::set_socket_reuseaddr(&socket, true)?;
        // To this address alone: what is sent to others with its port is not for this socket.
        net::bind(&socket, &multicast)?;
        let socket = UdpSocket::from(socket);
        socket.join_multicast_v4(multicast.ip(), &interface)?;
        Datagrams::over(socket)
    }

    fn over(socket: UdpSocket) -> io::Result<Datagrams> {
        socket.set_nonblocking(true)?;
        // Beyond the system's bound only with privileges. A shorter queue loses more.
        if net::sockopt::set_socket_recv_buffer_size_force(&socket, QUEUE_BYTES).is_err() {
            let _ = net::sockopt::set_socket_recv_buffer_size(&socket, QUEUE_BYTES);
        }
        let buffers = (0..BATCH).map(|_| vec![0; DATAGRAM_BYTES]).collect();
        Ok(Datagrams { socket, headers: MultiHeaders::preallocate(BATCH, None), buffers })
    }

    /// Where it is bound, if the system says.
    pub fn address(&self) -> Option<SocketAddr> {
        self.socket.local_addr().ok()
    }

    /// Hands out what has arrived, up to a batch. Returns whether there may be more.
    pub fn receive(&mut self, mut each: impl FnMut(Bytes, SocketAddr)) -> bool {
        let mut buffers = self.buffers.iter_mut();
        let mut slices: [[IoSliceMut<'_>; 1]; BATCH] =
            std::array::from_fn(|_| [IoSliceMut::new(buffers.next().expect("one for each"))]);
        let (fd, flags) = (self.socket.as_raw_fd(), MsgFlags::MSG_DONTWAIT);
        let received = recvmmsg(fd, &mut self.headers, slices.iter_mut(), flags, None);
        let arrived: Vec<(usize, Option<SocketAddr>)> = match received {
            Ok(results) => results.map(|one| (one.bytes, one.address.and_then(plain))).collect(),
            Err(error) => return error == Errno::EINTR,
        };
        for (&(length, from), buffer) in arrived.iter().zip(&self.buffers) {
            if let Some(from) = from {
                each(Bytes::copy_from_slice(&buffer[..length]), from);
            }
        }
        arrived.len() == BATCH
    }

    /// Sends a datagram. `false` if the system does not take it, or it is too long for the way.
    pub fn send(&self, datagram: &[u8], to: SocketAddr) -> bool {
        loop {
            match self.socket.send_to(datagram, to) {
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                sent => return sent.is_ok(),
            }
        }
    }
}

impl AsFd for Datagrams {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

fn plain(address: SockaddrStorage) -> Option<SocketAddr> {
    let four = address.as_sockaddr_in().map(|&four| SocketAddr::V4(SocketAddrV4::from(four)));
    four.or_else(|| address.as_sockaddr_in6().map(|&six| SocketAddr::V6(SocketAddrV6::from(six))))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_has_arrived_comes_in_batches_and_in_order() {
        let mut ours = Datagrams::bind("127.0.0.1:0").expect("bound");
        let to = ours.address().expect("bound");
        let other = Datagrams::bind("127.0.0.1:0").expect("bound");
        let count = BATCH + 5;
        for number in 0..count {
            assert!(other.send(&vec![number as u8; number + 1], to));
        }
        let mut arrived = Vec::new();
        let from = other.address().expect("bound");
        let mut take = |datagram: Bytes, of: SocketAddr| {
            assert_eq!(of, from);
            arrived.push(datagram);
        };
        assert!(ours.receive(&mut take), "there is more");
        assert!(!ours.receive(&mut take));
        assert!(!ours.receive(&mut take), "nothing is there");
        assert_eq!(arrived.len(), count);
        for (number, datagram) in arrived.iter().enumerate() {
            assert_eq!(datagram[..], vec![number as u8; number + 1]);
        }
    }

    #[test]
    fn what_is_too_long_for_a_datagram_is_not_sent() {
        let ours = Datagrams::bind("127.0.0.1:0").expect("bound");
        let to = ours.address().expect("bound");
        assert!(!ours.send(&vec![0; 70 << 10], to));
        assert!(ours.send(&vec![0; 61 << 10], to));
    }
}
