//! The client machine: the one of protocols that answer through one replica, or that of NOPaxos,
//! whose clients send to a sequencer and count the replies of all replicas ([NOPaxos] 5.2.1).

use std::net::{SocketAddr, UdpSocket};

use bytes::Bytes;
use oum::Sender;
use smr::client::{Client, Finished, Loss, OnLoss, Sends};
use smr::{MAX_REPLICAS, Now, ReplicaId, Reply, Request, RequestNumber};

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
    /// The replicas that lead, as they say, and whose disks are nearly full.
    full: [bool; MAX_REPLICAS as usize],
    sends: Vec<nopaxos::Send>,
    datagram: Vec<u8>,
}

impl Counting {
    /// A machine that knows no sequencer yet; it asks again after `retry` microseconds.
    pub fn new(own: Own, replicas: u8, retry: u64, on_loss: OnLoss) -> Counting {
        let mut client = nopaxos::Client::new(own.client, replicas, retry, DATAGRAM);
        client.on_loss(on_loss);
        Counting {
            client,
            sender: Sender::new(own.group),
            way: None,
            full: [false; MAX_REPLICAS as usize],
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

    /// A replica says whether it leads with a disk that is nearly full, or is connected anew.
    pub fn on_full(&mut self, now: Now, replica: ReplicaId, is_full: bool) {
        let before = self.is_held();
        if let Some(known) = self.full.get_mut(replica.index()) {
            *known = is_full;
        }
        if before && !self.is_held() {
            self.client.hurry(now);
            self.client.timeout(now, &mut self.sends);
        }
    }

    /// Whether nothing should be sent, since the leader's disk has no space.
    fn is_held(&self) -> bool {
        self.full.contains(&true)
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
            Machine::Counting(counting) if counting.is_held() => None,
            Machine::Counting(counting) => {
                counting.client.submit(now, body, durable, &mut counting.sends)
            }
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
            Machine::Counting(counting) => counting.client.tentative(),
        }
    }

    pub fn deadline(&self) -> Option<u64> {
        match self {
            Machine::Asking(client) => client.deadline(),
            Machine::Counting(counting) => {
                counting.client.deadline().filter(|_| !counting.is_held())
            }
        }
    }

    pub fn timeout(&mut self, now: Now, sends: &mut Sends) {
        match self {
            Machine::Asking(client) => client.timeout(now, sends),
            Machine::Counting(counting) if counting.is_held() => {}
            Machine::Counting(counting) => {
                counting.client.timeout(now, &mut counting.sends);
                counting.sends.extend(counting.client.in_vain().map(nopaxos::Send::Replicas));
            }
        }
    }

    /// Whether reads are requests like all others.
    pub fn logs_reads(&self) -> bool {
        matches!(self, Machine::Counting(_))
    }
}

#[cfg(test)]
mod tests {
    use smr::{ClientId, GroupId, Incarnation};

    use super::*;

    #[test]
    fn nothing_is_sent_while_the_disk_of_the_one_that_leads_is_full() {
        let client = ClientId { gateway: wire::FIRST_CLIENT, incarnation: Incarnation(1) };
        let own = Own { client, group: GroupId(1) };
        let mut machine = Machine::Counting(Counting::new(own, 3, 1_000, OnLoss::Report));
        let at = |micros| Now { micros, ..Now::default() };
        let submit = |machine: &mut Machine, now| {
            machine.submit(now, Bytes::from_static(b"SET"), false, &mut Sends::new())
        };
        assert!(submit(&mut machine, at(0)).is_some());
        let say = |machine: &mut Machine, now, replica, full| {
            let Machine::Counting(counting) = machine else { unreachable!() };
            counting.sends.clear();
            counting.on_full(now, ReplicaId(replica), full);
            counting.sends.len()
        };
        assert_eq!(say(&mut machine, at(10), 1, true), 0);
        assert_eq!((submit(&mut machine, at(20)), machine.deadline()), (None, None));
        machine.timeout(at(5_000), &mut Sends::new());
        // The lead has passed on before it was freed.
        assert_eq!(say(&mut machine, at(5_000), 2, true), 0, "nor sent again");
        assert_eq!(say(&mut machine, at(6_000), 1, false), 0, "another one's is full");
        assert_eq!(say(&mut machine, at(7_000), 2, false), 1, "what is not done is sent again");
        assert!(submit(&mut machine, at(7_000)).is_some() && machine.deadline().is_some());
    }
}
