//! Requests that are longer than a datagram: their bodies go to every replica first, and their
//! digests are ordered. A body that is missing when its digest comes makes the message a dropped
//! one: another replica may have it, or it becomes a NO-OP.

use alloc::collections::{BTreeMap, VecDeque};

use bytes::Bytes;

use smr::{ClientId, OpNumber, Request, RequestNumber};

use crate::event::{Content, Ordered};
use crate::replica::{Replica, Status};

type Key = (ClientId, RequestNumber);

/// Bodies without a place, and places without a body.
#[derive(Debug, Default)]
pub(crate) struct Bodies {
    kept: BTreeMap<Key, Bytes>,
    /// In the order of their arrival; those that were used are not here any more.
    order: VecDeque<Key>,
    bytes: usize,
    wanted: BTreeMap<Key, (OpNumber, Ordered)>,
}

/// Bytes that a body takes beside itself.
const OVERHEAD: usize = 64;

impl Bodies {
    fn keep(&mut self, key: Key, body: Bytes, most: usize) {
        self.bytes += body.len() + OVERHEAD;
        match self.kept.insert(key, body) {
            Some(old) => self.bytes -= old.len() + OVERHEAD,
            None => self.order.push_back(key),
        }
        while self.bytes > most {
            let Some(oldest) = self.order.pop_front() else { return };
            let body = self.kept.remove(&oldest).expect("it is kept while it is in order");
            self.bytes -= body.len() + OVERHEAD;
        }
    }

    /// The whole request, if its body has come. Its body stays: the message may be sent again.
    fn whole(&self, ordered: &Ordered) -> Option<Request> {
        let (head, digest) = match &ordered.content {
            Content::Whole(request) => return Some(request.clone()),
            Content::Digest(head, digest) => (head, digest),
        };
        let body = self.kept.get(&(head.client, head.number))?;
        (blake3::hash(body) == *digest).then(|| Request { body: body.clone(), ..head.clone() })
    }

    /// No slot waits for a body any more.
    pub(crate) fn forget_wanted(&mut self) {
        self.wanted.clear();
    }
}

impl Replica {
    /// A client has sent a body ahead.
    pub(crate) fn on_body(&mut self, request: Request) {
        let key = (request.client, request.number);
        self.bodies.keep(key, request.body, self.config.limits.body_bytes);
        let Some((slot, ordered)) = self.bodies.wanted.remove(&key) else { return };
        let Some(request) = self.bodies.whole(&ordered) else { return };
        if self.status != Status::Normal || slot <= self.log.last().op {
            return;
        }
        let entry = self.request_entry(slot, ordered.unix_ms, request);
        self.fill(slot, entry);
    }

    /// The request of an ordered message; if its body is missing, the slot waits for that.
    pub(crate) fn whole_request(&mut self, slot: OpNumber, ordered: &Ordered) -> Option<Request> {
        let whole = self.bodies.whole(ordered);
        if whole.is_none()
            && let Content::Digest(head, _) = &ordered.content
        {
            if self.bodies.wanted.len() >= self.config.limits.ahead {
                let last = self.log.last().op; // another replica had the body
                self.bodies.wanted.retain(|_, (slot, _)| *slot > last);
            }
            self.bodies.wanted.insert((head.client, head.number), (slot, ordered.clone()));
        }
        whole
    }
}
