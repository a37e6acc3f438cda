//! The client machine of a gateway: the one of protocols that answer through one replica, or that
//! of NOPaxos, which counts the replies of all of them.

use bytes::Bytes;
use smr::client::{Answer, Client, Finished, Loss, OnLoss, Retry, Sends};
use smr::{ClientId, Now, ReplicaId, Reply, RequestNumber, View, Viewstamp};

/// What a gateway wants sent.
#[derive(Debug, Default)]
pub(crate) struct Outgoing {
    /// To single replicas.
    pub replicas: Sends,
    /// To all of them.
    pub group: Vec<nopaxos::Send>,
}

/// A gateway's client machine.
pub(crate) enum Machine {
    /// It asks the primary.
    Asking(Client),
    /// It asks all, and knows itself what is done.
    Counting(Counting),
}

/// The client machine that counts replies.
pub(crate) struct Counting {
    id: ClientId,
    client: nopaxos::Client,
    /// The view of the last request that was done: of its log something has been seen.
    seen: View,
    /// The newest view heard of.
    view: View,
}

impl Machine {
    /// A machine that asks the primary, and its own replica first.
    pub fn asking(id: ClientId, replicas: u8, retry: Retry) -> Machine {
        let first = ReplicaId(id.gateway as u8);
        Machine::Asking(Client::new(id, replicas, first, retry, OnLoss::Report))
    }

    /// A machine that counts: after `retry` microseconds it asks again, and bodies of more than
    /// `datagram` bytes go to the replicas directly.
    pub fn counting(id: ClientId, replicas: u8, retry: u64, datagram: usize) -> Machine {
        let client = nopaxos::Client::new(id, replicas, retry, datagram);
        let (seen, view) = (View::default(), View::default());
        Machine::Counting(Counting { id, client, seen, view })
    }

    /// Whether reads are requests like all others.
    pub fn logs_reads(&self) -> bool {
        matches!(self, Machine::Counting(_))
    }

    /// Sends a request, or does nothing while the window is full. With `durable` the answer waits
    /// until no crash takes the request back; a machine that counts leaves that to its replica's
    /// durable point.
    pub fn submit(
        &mut self,
        now: Now,
        body: Bytes,
        durable: bool,
        out: &mut Outgoing,
    ) -> Option<RequestNumber> {
        match self {
            Machine::Asking(client) => client.submit(now, body, durable, &mut out.replicas),
            Machine::Counting(counting) => counting.client.submit(now, body, false, &mut out.group),
        }
    }

    /// Sends a read, or does nothing while the window is full.
    ///
    /// # Panics
    /// If it [logs](Machine::logs_reads) reads.
    pub fn read(&mut self, now: Now, body: Bytes, out: &mut Outgoing) -> Option<RequestNumber> {
        match self {
            Machine::Asking(client) => client.read(now, body, &mut out.replicas),
            Machine::Counting(_) => unreachable!("its reads are requests"),
        }
    }

    /// The view whose log has been seen; zero before any has.
    pub fn expected(&self) -> View {
        match self {
            Machine::Asking(client) => client.expected(),
            Machine::Counting(counting) => counting.seen,
        }
    }

    /// What was lost since the last call, if anything was.
    pub fn take_loss(&mut self) -> Option<Loss> {
        match self {
            Machine::Asking(client) => client.take_loss(),
            Machine::Counting(counting) => counting.client.take_loss().map(|loss| {
                let nopaxos::Loss { kept, dropped, replayed, .. } = loss;
                Loss { kept, dropped, replayed }
            }),
        }
    }

    /// A replica that answers for its group has answered.
    pub fn on_reply(&mut self, now: Now, reply: Reply, out: &mut Outgoing) -> Option<Finished> {
        match self {
            Machine::Asking(client) => client.on_reply(now, reply, &mut out.replicas),
            Machine::Counting(_) => None,
        }
    }

    /// One replica's reply, of those that are counted.
    pub fn on_vote(&mut self, now: Now, reply: nopaxos::Reply) -> Option<Finished> {
        let Machine::Counting(Counting { id, client, seen, .. }) = self else { return None };
        let (of, number) = (reply.reply.client, reply.reply.number);
        let ended = |number, answer| Finished { number, read: false, again: false, answer };
        if let Some(done) = client.on_reply(now, reply) {
            *seen = done.view;
            let (position, body) = (done.position, done.body);
            let durable = Viewstamp::default();
            return Some(ended(done.number, Answer::Done { position, durable, body }));
        }
        (of == *id && client.is_retired()).then(|| ended(number, Answer::Retired))
    }

    /// The group is known to be in this view.
    pub fn on_view(&mut self, now: Now, view: View, out: &mut Outgoing) {
        match self {
            Machine::Asking(client) => client.on_view(now, view, &mut out.replicas),
            Machine::Counting(counting) if view > counting.view => {
                counting.view = view;
                counting.client.hurry(now);
                counting.client.timeout(now, &mut out.group);
            }
            Machine::Counting(_) => {}
        }
    }

    /// When [`Machine::timeout`] is due, in [`Now::micros`].
    pub fn deadline(&self) -> Option<u64> {
        match self {
            Machine::Asking(client) => client.deadline(),
            Machine::Counting(counting) => counting.client.deadline(),
        }
    }

    /// Sends again what was not answered for a while.
    pub fn timeout(&mut self, now: Now, out: &mut Outgoing) {
        match self {
            Machine::Asking(client) => client.timeout(now, &mut out.replicas),
            Machine::Counting(counting) => {
                counting.client.timeout(now, &mut out.group);
                out.group.extend(counting.client.in_vain().map(nopaxos::Send::Replicas));
            }
        }
    }
}
