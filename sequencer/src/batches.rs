//! Many datagrams in one system call, to and from one socket.
//!
//! Datagrams of one length that follow each other to the same members go to each of them as one
//! (UDP_SEGMENT): the kernel's way from a socket to a member is walked once for all of them, and
//! the datagrams part where the network wants them apart.

use std::io::{self, IoSlice, IoSliceMut};
use std::net::UdpSocket;
use std::ops::Range;
use std::os::fd::AsRawFd;

use nix::errno::Errno;
use nix::sys::socket::{
    ControlMessage, ControlMessageOwned, MsgFlags, MultiHeaders, SockaddrStorage, recvmmsg,
    sendmmsg, setsockopt, sockopt,
};
use smr::GroupId;

/// No datagram is longer, nor what arrives or leaves as one.
const DATAGRAM_BYTES: usize = 64 << 10;
/// The most receptions in one call, each of which may hold many datagrams of one sender.
const RECEPTIONS: usize = 8;
/// The most datagrams that leave as one, and their bytes, headers aside.
const SEGMENTS: usize = 60;
const SEGMENTS_BYTES: usize = DATAGRAM_BYTES - 1024;

/// A datagram that has arrived: where it is, and who has sent it.
#[derive(Clone, Debug)]
struct Arrived {
    buffer: usize,
    place: Range<usize>,
    from: Option<SockaddrStorage>,
}

/// Datagrams that have arrived together.
pub struct Inbound {
    most: usize,
    buffers: Vec<Vec<u8>>,
    arrived: Vec<Arrived>,
    /// System calls that brought something.
    pub calls: u64,
}

/// Lets datagrams that came as one arrive as one, where the system can.
pub fn join_arriving(socket: &UdpSocket) {
    let _ = setsockopt(socket, sockopt::UdpGroSegment, &true);
}

impl Inbound {
    /// Room for so many receptions at a time, [`RECEPTIONS`] at the most.
    pub fn new(most: usize) -> Inbound {
        let most = most.min(RECEPTIONS);
        let buffers = (0..most).map(|_| vec![0; DATAGRAM_BYTES]).collect();
        Inbound { most, buffers, arrived: Vec::new(), calls: 0 }
    }

    /// Replaces the batch with what has arrived; waits for the first one, as long as the socket's
    /// timeout allows, if `wait` is set. The batch is empty if nothing came.
    pub fn receive(&mut self, socket: &UdpSocket, wait: bool) -> io::Result<()> {
        self.arrived.clear();
        let mut slices: Vec<[IoSliceMut<'_>; 1]> =
            self.buffers.iter_mut().map(|buffer| [IoSliceMut::new(buffer)]).collect();
        let flags = if wait { MsgFlags::MSG_WAITFORONE } else { MsgFlags::MSG_DONTWAIT };
        // Anew: a reception shortens the room for the next one's control message.
        let mut headers: MultiHeaders<SockaddrStorage> =
            MultiHeaders::preallocate(self.most, Some(nix::cmsg_space!(i32)));
        let results = match recvmmsg(socket.as_raw_fd(), &mut headers, &mut slices, flags, None) {
            Ok(results) => results,
            Err(Errno::EAGAIN | Errno::EINTR) => return Ok(()),
            Err(error) => return Err(error.into()),
        };
        self.calls += 1;
        for (buffer, result) in results.enumerate() {
            let segment = result.cmsgs()?.find_map(|control| match control {
                ControlMessageOwned::UdpGroSegments(bytes) => usize::try_from(bytes).ok(),
                _ => None,
            });
            let segment = segment.unwrap_or(result.bytes).max(1);
            // An empty datagram is one, too.
            for start in (0..result.bytes.max(1)).step_by(segment) {
                let place = start..result.bytes.min(start + segment);
                self.arrived.push(Arrived { buffer, place, from: result.address });
            }
        }
        Ok(())
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.arrived.len()
    }

    /// One of them.
    pub fn datagram(&mut self, index: usize) -> &mut [u8] {
        let Arrived { buffer, place, .. } = self.arrived[index].clone();
        &mut self.buffers[buffer][place]
    }

    fn bytes(&self, index: usize) -> &[u8] {
        let Arrived { buffer, place, .. } = &self.arrived[index];
        &self.buffers[*buffer][place.clone()]
    }

    /// Who has sent it.
    pub fn from(&self, index: usize) -> Option<SockaddrStorage> {
        self.arrived[index].from
    }
}

/// Datagrams that leave as one.
#[derive(Debug)]
struct Run {
    group: GroupId,
    /// Of all but the last, which may be shorter.
    length: usize,
    bytes: usize,
    /// Places in `indices` and `to`.
    datagrams: Range<usize>,
    to: Range<usize>,
}

/// Copies of a batch's datagrams that are to be sent.
pub struct Outbound {
    most: usize,
    /// Which datagrams of the batch.
    indices: Vec<usize>,
    to: Vec<Option<SockaddrStorage>>,
    runs: Vec<Run>,
    /// For datagrams that leave alone, and for those that leave as one.
    headers: [MultiHeaders<SockaddrStorage>; 2],
    /// System calls that took something.
    pub calls: u64,
    /// Copies that the system did not take: they are lost.
    pub unsent: u64,
}

impl Outbound {
    /// Nothing to be sent yet; so many copies leave in one call.
    pub fn new(most: usize) -> Outbound {
        Outbound {
            most,
            indices: Vec::new(),
            to: Vec::new(),
            runs: Vec::new(),
            headers: [None, Some(nix::cmsg_space!(u16))]
                .map(|control| MultiHeaders::preallocate(most, control)),
            calls: 0,
            unsent: 0,
        }
    }

    /// Adds a copy of a datagram for each member of a group.
    pub fn push(&mut self, batch: &Inbound, index: usize, group: GroupId, to: &[SockaddrStorage]) {
        let length = batch.arrived[index].place.len();
        let next = self.indices.len();
        self.indices.push(index);
        let most = SEGMENTS.min(self.most);
        if let Some(run) = self.runs.last_mut()
            && run.group == group
            && run.datagrams.len() < most
            && length <= run.length
            && run.bytes == run.length * run.datagrams.len()
            && run.bytes + length <= SEGMENTS_BYTES
        {
            run.bytes += length;
            run.datagrams.end = next + 1;
            return;
        }
        let first = self.to.len();
        self.to.extend(to.iter().copied().map(Some));
        let (datagrams, to) = (next..next + 1, first..self.to.len());
        self.runs.push(Run { group, length, bytes: length, datagrams, to });
    }

    /// Sends all, in their order.
    pub fn send(&mut self, socket: &UdpSocket, batch: &Inbound) {
        let slices: Vec<IoSlice<'_>> =
            self.indices.iter().map(|&index| IoSlice::new(batch.bytes(index))).collect();
        let runs = std::mem::take(&mut self.runs);
        let alone = |run: &Run| run.datagrams.len() == 1;
        // One call for many that leave alone, and one for a run to all members.
        for runs in runs.chunk_by(|one, next| alone(one) && alone(next)) {
            let (mut messages, mut to) = (Vec::new(), Vec::new());
            for run in runs {
                messages.extend(run.to.clone().map(|_| &slices[run.datagrams.clone()]));
                to.extend_from_slice(&self.to[run.to.clone()]);
            }
            let segment = (!alone(&runs[0])).then_some(runs[0].length as u16);
            self.transmit(socket, &messages, &to, segment);
        }
        self.runs = runs;
        self.runs.clear();
        self.indices.clear();
        self.to.clear();
    }

    fn transmit(
        &mut self,
        socket: &UdpSocket,
        messages: &[&[IoSlice<'_>]],
        to: &[Option<SockaddrStorage>],
        segment: Option<u16>,
    ) {
        let control = segment.as_ref().map(ControlMessage::UdpGsoSegments);
        let control = control.as_slice();
        let headers = &mut self.headers[control.len()];
        let mut done = 0;
        while done < messages.len() {
            let end = messages.len().min(done + self.most);
            let (now, addresses) = (&messages[done..end], &to[done..end]);
            let flags = MsgFlags::MSG_DONTWAIT;
            let sent = sendmmsg(socket.as_raw_fd(), headers, now, addresses, control, flags);
            self.calls += 1;
            match sent.map(Iterator::count) {
                // An error is that of the first message.
                Ok(0) | Err(_) => {
                    for datagram in messages[done] {
                        let again = segment.is_some() && {
                            // The way there may take them one by one alone.
                            self.calls += 1;
                            to[done].is_some_and(|to| send_one(socket, datagram, &to))
                        };
                        self.unsent += u64::from(!again);
                    }
                    done += 1;
                }
                Ok(count) => done += count,
            }
        }
    }
}

/// Sends one datagram; returns whether the system took it.
pub fn send_one(socket: &UdpSocket, datagram: &[u8], to: &SockaddrStorage) -> bool {
    let flags = MsgFlags::MSG_DONTWAIT;
    nix::sys::socket::sendto(socket.as_raw_fd(), datagram, to, flags).is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn socket() -> UdpSocket {
        let socket = UdpSocket::bind("127.0.0.1:0").expect("a socket");
        socket.set_read_timeout(Some(std::time::Duration::from_secs(5))).expect("a timeout");
        socket
    }

    /// Sends these on, half of them to one group; returns the calls for sending.
    fn forward(sent: &[Vec<u8>], most: usize) -> u64 {
        let (outside, here, members) = (socket(), socket(), [socket(), socket(), socket()]);
        join_arriving(&here);
        let at = here.local_addr().expect("bound");
        let addresses = members.each_ref().map(|m| m.local_addr().expect("bound").into());
        let (mut inbound, mut outbound) = (Inbound::new(most), Outbound::new(most));
        let mut gone = 0;
        for bytes in sent {
            outside.send_to(bytes, at).expect("sent");
        }
        while gone < sent.len() {
            inbound.receive(&here, true).expect("received");
            for index in 0..inbound.len() {
                assert_eq!(inbound.datagram(index)[..], sent[gone]);
                outbound.push(&inbound, index, GroupId(gone as u64 / 50), &addresses);
                gone += 1;
            }
            outbound.send(&here, &inbound);
        }
        assert_eq!(outbound.unsent, 0);
        let mut buffer = vec![0; DATAGRAM_BYTES];
        for member in &members {
            for bytes in sent {
                let length = member.recv(&mut buffer).expect("forwarded");
                assert_eq!(buffer[..length], bytes[..]);
            }
        }
        outbound.calls
    }

    #[test]
    fn what_leaves_together_arrives_one_by_one_and_in_order() {
        let alike: Vec<Vec<u8>> = (0..100).map(|n| vec![n; 40]).collect();
        assert!(forward(&alike, 64) <= 30);
        assert_eq!(forward(&alike, 1), 300);
        let mixed: Vec<Vec<u8>> = (0..100).map(|n| vec![n; 40 + usize::from(n % 9 / 4)]).collect();
        forward(&mixed, 64);
        // None of these fits another one's datagram.
        let long: Vec<Vec<u8>> = (0..5).map(|n| vec![n; 40_000 + usize::from(n)]).collect();
        forward(&long, 64);
    }
}
