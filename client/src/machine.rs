//! The client machine: the one of protocols that answer through one replica, or that of NOPaxos,
//! whose clients send to a sequencer and count the replies of all replicas ([NOPaxos] 5.2.1).

use std::net::{SocketAddr, UdpSocket};

use bytes::Bytes;
use oum::Sender;
use smr::client::{Client, Finished, Loss, Sends};
use smr::{Now, Reply, Request, RequestNumber};

use crate::link::Own;

/// Longer requests go to the replicas directly, and only their digests are numbered: what is sent
/// fits into a frame of Ethernet with all its headers.
const DATAGRAM: usize = 1_300;

/// A session's client machine.
pub(crate) enum Machine {
    /// It asks the primary.
    Asking(Client),
    /// It asks all by way of the sequencer, and knows itself what is done.
    Counting(Counting),
}

/// The client machine that counts replies, and its way to the sequencer.
pub(crate) struct Counting {
    client: nopaxos::Client,
    sender: Sender,
    /// Its socket, the session and the sequencer that replicas have told of last.
    way: Option<(UdpSocket, u32, SocketAddr)>,
    sends: Vec<nopaxos::Send>,
    datagram: Vec<u8>,
}

impl Counting {
    /// A machine that knows no sequencer yet; it asks again after `retry` microseconds.
    pub fn new(own: Own, replicas: u8, retry: u64) -> Counting {
        Counting {
            client: nopaxos::Client::new(own.client, replicas, retry, DATAGRAM),
            sender: Sender::new(own.group),
            way: None,
            sends: Vec::new(),
            datagram: Vec::new(),
        }
    }

    /// One replica's reply.
    pub fn on_vote(&mut self, now: Now, vote: nopaxos::Reply) -> Option<nopaxos::Finished> {
        self.client.on_reply(now, vote)
    }

    /// Whether a newer life of this client is known to the group.
    pub fn is_retired(&self) -> bool {
        self.client.is_retired()
    }

    /// A replica tells who numbers requests: if that is news, everything is asked again there.
    pub fn on_sequencer(&mut self, now: Now, session: u32, at: SocketAddr) {
        if self.way.as_ref().is_some_and(|(_, known, _)| session <= *known) {
            return;
        }
        let any: SocketAddr = match at {
            SocketAddr::V4(_) => ([0; 4], 0).into(),
            SocketAddr::V6(_) => ([0_u16; 8], 0).into(),
        };
        // Without a socket nothing is sent; the next session may have more luck.
        let Ok(socket) = UdpSocket::bind(any) else { return };
        if socket.set_nonblocking(true).is_err() {
            return;
        }
        self.way = Some((socket, session, at));
        self.client.hurry(now);
        self.client.timeout(now, &mut self.sends);
    }

    /// Sends to the sequencer what is to be numbered; `direct` gets what goes to all replicas.
    pub fn transmit(&mut self, mut direct: impl FnMut(Request)) {
        for send in self.sends.drain(..) {
            match send {
                nopaxos::Send::Replicas(request) => direct(request),
                nopaxos::Send::Sequencer(payload) => {
                    let Some((socket, _, to)) = &self.way else { continue };
                    self.datagram.clear();
                    self.sender.message(&payload, &mut self.datagram);
                    // What is lost is sent again.
                    let _ = socket.send_to(&self.datagram, to);
                }
            }
        }
    }
}

impl Machine {
    pub fn submit(
        &mut self,
        now: Now,
        body: Bytes,
        durable: bool,
        sends: &mut Sends,
    ) -> Option<RequestNumber> {
        match self {
            Machine::Asking(client) => client.submit(now, body, durable, sends),
            Machine::Counting(counting) => counting.client.submit(now, body, &mut counting.sends),
        }
    }

    /// Sends a read; there is none to a machine that counts, whose reads are requests.
    pub fn read(&mut self, now: Now, body: Bytes, sends: &mut Sends) -> Option<RequestNumber> {
        match self {
            Machine::Asking(client) => client.read(now, body, sends),
            Machine::Counting(_) => None,
        }
    }

    /// The reply of a replica that answers for its group.
    pub fn on_reply(&mut self, now: Now, reply: Reply, sends: &mut Sends) -> Option<Finished> {
        match self {
            Machine::Asking(client) => client.on_reply(now, reply, sends),
            Machine::Counting(_) => None,
        }
    }

    pub fn take_loss(&mut self) -> Option<Loss> {
        match self {
            Machine::Asking(client) => client.take_loss(),
            Machine::Counting(counting) => counting.client.take_loss().map(|loss| {
                let nopaxos::Loss { kept, dropped, replayed, .. } = loss;
                Loss { kept, dropped, replayed }
            }),
        }
    }

    pub fn tentative(&self) -> usize {
        match self {
            Machine::Asking(client) => client.tentative(),
            Machine::Counting(_) => 0,
        }
    }

    pub fn deadline(&self) -> Option<u64> {
        match self {
            Machine::Asking(client) => client.deadline(),
            Machine::Counting(counting) => counting.client.deadline(),
        }
    }

    pub fn timeout(&mut self, now: Now, sends: &mut Sends) {
        match self {
            Machine::Asking(client) => client.timeout(now, sends),
            Machine::Counting(counting) => counting.client.timeout(now, &mut counting.sends),
        }
    }

    /// Whether reads are requests like all others.
    pub fn logs_reads(&self) -> bool {
        matches!(self, Machine::Counting(_))
    }
}
