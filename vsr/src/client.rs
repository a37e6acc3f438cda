//! The client machine: numbers requests, finds the primary, resends, and knows which reply suffices
//! (one, from the primary). It runs in every gateway and in the simulator.
//!
//! Invariant: logged requests are sent to any one replica in the order of their numbers, and a
//! number is never used for two bodies.

use alloc::collections::{BTreeMap, VecDeque};
use alloc::vec::Vec;
use bytes::Bytes;

use smr::{
    ClientId, ClientMessage, MAX_OUTSTANDING, Now, OpNumber, Outcome, ReadRequest, Refusal,
    ReplicaId, Reply, Request, RequestNumber, View,
};

use crate::config::Timing;

/// Messages to replicas.
pub type Sends = Vec<(ReplicaId, ClientMessage)>;

/// How a request ended for its client.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    /// Executed.
    Done {
        /// By this operation, or for a read after it.
        position: OpNumber,
        /// The service's answer.
        body: Bytes,
    },
    /// The read must be sent as a request.
    MustLog,
    /// A newer life of this gateway is at work: stop. The outcome is unknown.
    Retired,
    /// The group's state is gone, and with it the request's effect if it had one.
    StateLost,
}

/// A request that has ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finished {
    /// Which.
    pub number: RequestNumber,
    /// Whether it was a read; reads are numbered apart.
    pub read: bool,
    /// How it ended.
    pub answer: Answer,
}

/// A request or read that is unanswered, and when it was last sent, in [`Now::micros`].
#[derive(Debug)]
struct Sent<T> {
    what: T,
    at: u64,
}

/// One gateway's requests.
#[derive(Debug)]
pub struct Client {
    id: ClientId,
    replicas: u8,
    timing: Timing,
    view: View,
    primary: ReplicaId,
    next: RequestNumber,
    outstanding: VecDeque<Sent<Request>>,
    next_read: RequestNumber,
    reads: BTreeMap<RequestNumber, Sent<Bytes>>,
    /// When a replica last executed something for this client, in [`Now::micros`].
    served_at: u64,
    /// Who leads, according to the last replica that does not.
    hint: Option<ReplicaId>,
    tries: u32,
    /// A refusal asked for another try at this time.
    again_at: Option<u64>,
}

impl Client {
    /// A client that has not asked anything yet, and tries `first` first.
    pub fn new(id: ClientId, replicas: u8, first: ReplicaId, timing: Timing) -> Client {
        Client {
            id,
            replicas,
            timing,
            view: View::default(),
            primary: first,
            next: RequestNumber(1),
            outstanding: VecDeque::new(),
            next_read: RequestNumber(1),
            reads: BTreeMap::new(),
            served_at: 0,
            hint: None,
            tries: 0,
            again_at: None,
        }
    }

    /// The replica that requests go to.
    pub fn primary(&self) -> ReplicaId {
        self.primary
    }

    /// How many logged requests and reads are unanswered.
    pub fn outstanding(&self) -> usize {
        self.outstanding.len() + self.reads.len()
    }

    /// Sends a request, or does nothing and returns `None` while the window is full.
    pub fn submit(&mut self, now: Now, body: Bytes, out: &mut Sends) -> Option<RequestNumber> {
        if self.outstanding.len() as u64 >= MAX_OUTSTANDING / 2 {
            return None;
        }
        let number = self.next;
        self.next = number.next();
        let oldest_unanswered = self.outstanding.front().map_or(number, |first| first.what.number);
        let request = Request { client: self.id, number, oldest_unanswered, body };
        out.push((self.primary, ClientMessage::Request(request.clone())));
        self.outstanding.push_back(Sent { what: request, at: now.micros });
        Some(number)
    }

    /// Sends a read, or does nothing and returns `None` while the window is full.
    pub fn read(&mut self, now: Now, body: Bytes, out: &mut Sends) -> Option<RequestNumber> {
        if self.reads.len() as u64 >= MAX_OUTSTANDING / 2 {
            return None;
        }
        let number = self.next_read;
        self.next_read = number.next();
        self.reads.insert(number, Sent { what: body.clone(), at: now.micros });
        let read = ReadRequest { client: self.id, number, body };
        out.push((self.primary, ClientMessage::Read(read)));
        Some(number)
    }

    /// Takes a reply; returns the request that it ends, if it does.
    pub fn on_reply(&mut self, now: Now, reply: Reply, out: &mut Sends) -> Option<Finished> {
        if reply.client != self.id {
            return None;
        }
        let (number, read) = (reply.number, reply.read);
        let answer = match reply.outcome {
            Outcome::Done { position, body } => {
                self.served_at = now.micros;
                Answer::Done { position, body }
            }
            Outcome::MustLog => Answer::MustLog,
            Outcome::Refused(Refusal::StateLost) => Answer::StateLost,
            Outcome::Refused(Refusal::Retired) => Answer::Retired,
            Outcome::Refused(refusal) => {
                self.on_refusal(now, reply.view, refusal, out);
                return None;
            }
        };
        let known = if read {
            self.reads.remove(&number).is_some()
        } else {
            let index = self.outstanding.iter().position(|sent| sent.what.number == number);
            index.and_then(|index| self.outstanding.remove(index)).is_some()
        };
        self.on_view(now, reply.view, out);
        known.then_some(Finished { number, read, answer })
    }

    /// An election is running, another replica leads, or an earlier request was lost. The view
    /// named is a hint: it may be one that was never entered, or long over.
    fn on_refusal(&mut self, now: Now, view: View, refusal: Refusal, out: &mut Sends) {
        if refusal != Refusal::OutOfOrder {
            self.hint = Some(view.primary());
            self.on_view(now, view, out);
        }
        self.again_at.get_or_insert(now.micros + self.timing.retry / 4);
    }

    fn next_replica(&mut self) {
        self.primary = ReplicaId((self.primary.0 + 1) % self.replicas);
    }

    /// A view is known to have been entered: if it is news, its primary gets everything that is
    /// unanswered.
    pub fn on_view(&mut self, now: Now, view: View, out: &mut Sends) {
        if view > self.view {
            self.view = view;
            if self.primary != view.primary() {
                self.primary = view.primary();
                self.resend(now, out);
            }
        }
    }

    /// When [`Client::timeout`] is due, in [`Now::micros`].
    pub fn deadline(&self) -> Option<u64> {
        let oldest = self.oldest()?;
        let due = oldest + self.timing.retry;
        Some(self.again_at.map_or(due, |again| again.min(due)))
    }

    fn oldest(&self) -> Option<u64> {
        let write = self.outstanding.front().map(|sent| sent.at);
        let read = self.reads.first_key_value().map(|(_, sent)| sent.at);
        write.into_iter().chain(read).min()
    }

    /// Sends again what was not answered for a while, to the next replica if this one serves
    /// nothing.
    pub fn timeout(&mut self, now: Now, out: &mut Sends) {
        if self.deadline().is_none_or(|due| now.micros < due) {
            return;
        }
        let retry = self.timing.retry;
        if self.served_at + retry <= now.micros {
            // Hints may point in a circle: every few tries the next replica has its turn.
            self.tries += 1;
            match self.hint.take() {
                Some(hint) if !self.tries.is_multiple_of(4) => self.primary = hint,
                _ => self.next_replica(),
            }
        }
        self.resend(now, out);
    }

    fn resend(&mut self, now: Now, out: &mut Sends) {
        self.again_at = None;
        for sent in &mut self.outstanding {
            sent.at = now.micros;
            out.push((self.primary, ClientMessage::Request(sent.what.clone())));
        }
        for (&number, sent) in &mut self.reads {
            sent.at = now.micros;
            let read = ReadRequest { client: self.id, number, body: sent.what.clone() };
            out.push((self.primary, ClientMessage::Read(read)));
        }
    }
}
