//! The client of all baselines: a request goes to every replica, and is done when one says that it
//! is decided, or a superquorum has it in the same place behind the same log.
//!
//! One request at a time; sent again when it has not been answered for a while. Deliberately
//! absent: giving up, which is for who gave the request.

use bytes::Bytes;
use smr::{ClientId, MAX_REPLICAS, Now, Outcome, Request, RequestNumber, View, Viewstamp};

#[cfg(feature = "planted-bugs")]
use crate::config::Bug;
use crate::message::Reply;
use crate::prefix::Digest;

/// A request that is done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finished {
    /// Which.
    pub number: RequestNumber,
    /// Its place.
    pub position: Viewstamp,
    /// The service's answer.
    pub body: Bytes,
}

/// What a replica has said of the request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Heard {
    view: View,
    position: Viewstamp,
    digest: Digest,
}

/// One client of a group.
#[derive(Debug)]
pub struct Client {
    id: ClientId,
    needed: usize,
    retry: u64,
    number: RequestNumber,
    /// The request that is not done, and when to send it again.
    asked: Option<(Bytes, u64)>,
    heard: [Option<Heard>; MAX_REPLICAS as usize],
}

impl Client {
    /// A client of a group of so many replicas, which sends again after `retry` microseconds.
    pub fn new(id: ClientId, replicas: u8, retry: u64) -> Client {
        let heard = [None; MAX_REPLICAS as usize];
        let (needed, number) = (crate::superquorum(replicas), RequestNumber(0));
        Client { id, needed, retry, number, asked: None, heard }
    }

    /// Plants a defect.
    #[cfg(feature = "planted-bugs")]
    pub fn plant(&mut self, bug: Option<Bug>, replicas: u8) {
        if bug == Some(Bug::BelieveMajority) {
            self.needed = crate::f(replicas) + 1;
        }
    }

    /// Whether a request is not done.
    pub fn is_waiting(&self) -> bool {
        self.asked.is_some()
    }

    /// The next request, for all replicas.
    ///
    /// # Panics
    /// If the one before is not done.
    pub fn submit(&mut self, now: Now, body: Bytes) -> Request {
        assert!(self.asked.is_none(), "one request at a time");
        self.number = self.number.next();
        self.heard = [None; MAX_REPLICAS as usize];
        self.asked = Some((body, 0));
        self.send(now)
    }

    fn send(&mut self, now: Now) -> Request {
        let (body, again_at) = self.asked.as_mut().expect("it is not done");
        *again_at = now.micros + self.retry;
        let (client, number, body) = (self.id, self.number, body.clone());
        Request { client, number, oldest_unanswered: number, body }
    }

    /// When [`Client::timeout`] is due, in [`Now::micros`].
    pub fn deadline(&self) -> Option<u64> {
        self.asked.as_ref().map(|&(_, again_at)| again_at)
    }

    /// The request again, for all replicas, if it is due.
    pub fn timeout(&mut self, now: Now) -> Option<Request> {
        let is_due = self.deadline().is_some_and(|at| now.micros >= at);
        is_due.then(|| self.send(now))
    }

    /// A replica's reply. Returns the request that it completes.
    pub fn on_reply(&mut self, reply: Reply) -> Option<Finished> {
        let Reply { from, committed, digest, reply } = reply;
        if reply.client != self.id || reply.number != self.number || self.asked.is_none() {
            return None;
        }
        let Outcome::Done { position, body } = reply.outcome else { return None };
        let news = Heard { view: reply.view, position, digest };
        let heard = &mut self.heard[from.index()];
        // What it said in a former view, it may have undone since.
        if heard.is_none_or(|old| old.view <= news.view) {
            *heard = Some(news);
        }
        let equal = self.heard.iter().filter(|&&heard| heard == Some(news)).count();
        if !committed && equal < self.needed {
            return None;
        }
        self.asked = None;
        Some(Finished { number: self.number, position, body })
    }
}
