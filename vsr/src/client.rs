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

/// One gateway's requests.
#[derive(Debug)]
pub struct Client {
    id: ClientId,
    replicas: u8,
    timing: Timing,
    view: View,
    primary: ReplicaId,
    next: RequestNumber,
    outstanding: VecDeque<Request>,
    next_read: RequestNumber,
    reads: BTreeMap<RequestNumber, Bytes>,
    resend_at: Option<u64>,
    /// The next timeout resends to the same replica.
    stay: bool,
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
            resend_at: None,
            stay: false,
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
        let oldest_unanswered = self.outstanding.front().map_or(number, |first| first.number);
        let request = Request { client: self.id, number, oldest_unanswered, body };
        out.push((self.primary, ClientMessage::Request(request.clone())));
        self.outstanding.push_back(request);
        self.arm(now);
        Some(number)
    }

    /// Sends a read, or does nothing and returns `None` while the window is full.
    pub fn read(&mut self, now: Now, body: Bytes, out: &mut Sends) -> Option<RequestNumber> {
        if self.reads.len() as u64 >= MAX_OUTSTANDING / 2 {
            return None;
        }
        let number = self.next_read;
        self.next_read = number.next();
        self.reads.insert(number, body.clone());
        let read = ReadRequest { client: self.id, number, body };
        out.push((self.primary, ClientMessage::Read(read)));
        self.arm(now);
        Some(number)
    }

    fn arm(&mut self, now: Now) {
        self.resend_at.get_or_insert(now.micros + self.timing.retry);
    }

    /// Takes a reply; returns the request that it ends, if it does.
    pub fn on_reply(&mut self, now: Now, reply: Reply, out: &mut Sends) -> Option<Finished> {
        if reply.client != self.id {
            return None;
        }
        let answer = match reply.outcome {
            Outcome::Done { position, body } => {
                self.learn(reply.view);
                self.resend_at = Some(now.micros + self.timing.retry);
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
        let (number, read) = (reply.number, reply.read);
        let known = if read {
            self.reads.remove(&number).is_some()
        } else {
            let index = self.outstanding.iter().position(|request| request.number == number);
            index.and_then(|index| self.outstanding.remove(index)).is_some()
        };
        if self.outstanding() == 0 {
            self.resend_at = None;
        }
        known.then_some(Finished { number, read, answer })
    }

    fn on_refusal(&mut self, now: Now, view: View, refusal: Refusal, out: &mut Sends) {
        self.on_view(now, view, out);
        let elsewhere = view == self.view && view.primary() != self.primary;
        if elsewhere {
            self.primary = view.primary();
        }
        // An earlier request was lost, or another replica leads: the same primary again, soon.
        self.stay = elsewhere || refusal == Refusal::OutOfOrder;
        let soon = now.micros + self.timing.retry / 4;
        self.resend_at = self.resend_at.map(|at| at.min(soon));
    }

    /// A view is known to have been entered: if it is news, its primary gets everything that is
    /// unanswered.
    pub fn on_view(&mut self, now: Now, view: View, out: &mut Sends) {
        if self.learn(view) {
            self.resend(now, out);
        }
    }

    fn learn(&mut self, view: View) -> bool {
        let news = view > self.view;
        if news {
            self.view = view;
            let moved = self.primary != view.primary();
            self.primary = view.primary();
            return moved;
        }
        false
    }

    /// When [`Client::timeout`] is due, in [`Now::micros`].
    pub fn deadline(&self) -> Option<u64> {
        self.resend_at
    }

    /// Nothing was heard for a while: tries the next replica.
    pub fn timeout(&mut self, now: Now, out: &mut Sends) {
        if self.resend_at.is_none_or(|at| now.micros < at) {
            return;
        }
        if !core::mem::take(&mut self.stay) {
            self.primary = ReplicaId((self.primary.0 + 1) % self.replicas);
        }
        self.resend(now, out);
    }

    fn resend(&mut self, now: Now, out: &mut Sends) {
        self.resend_at = (self.outstanding() > 0).then_some(now.micros + self.timing.retry);
        for request in &self.outstanding {
            out.push((self.primary, ClientMessage::Request(request.clone())));
        }
        for (&number, body) in &self.reads {
            let read = ReadRequest { client: self.id, number, body: body.clone() };
            out.push((self.primary, ClientMessage::Read(read)));
        }
    }
}
