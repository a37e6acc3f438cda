//! libOUM's receiver ([NOPaxos] 3.2): puts a session's messages in order and tells what is missing.
//!
//! A number that is missing while a later one is there is declared dropped only after `patience`,
//! since packets overtake each other. Several gaps wait at the same time. When a message of a later
//! session comes, nothing more of the present one is delivered: what its end lacks cannot be known
//! ([NOPaxos] 4.3). Messages of the later session are kept until somebody listens to it.

use alloc::collections::BTreeMap;
use bytes::Bytes;

use smr::GroupId;

use crate::header::{Header, Session};

/// What a receiver delivers (`getMessage`, [NOPaxos] figure 2).
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Delivery {
    /// The next message.
    Message {
        /// Of this session.
        session: Session,
        /// Its place there, from 1.
        sequence: u64,
        /// What the sender sent.
        payload: Bytes,
    },
    /// DROP-NOTIFICATION for all numbers from `first` to `last`.
    Drop {
        /// Of this session.
        session: Session,
        /// The first missing one.
        first: u64,
        /// The last missing one.
        last: u64,
    },
    /// SESSION-TERMINATED: this later session has begun. Nothing comes until
    /// [`Receiver::listen`], but the news of a still later one.
    Terminated {
        /// The later session.
        session: Session,
    },
}

/// What a receiver has thrown away.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Messages that were there already, or came after they had been declared dropped.
    pub stale: u64,
    /// Messages of other groups, of sessions that have ended, or without a stamp.
    pub foreign: u64,
    /// Messages of a later session for which there was no room.
    pub overflow: u64,
    /// Numbers declared dropped.
    pub dropped: u64,
}

#[derive(Debug)]
struct Waiting {
    arrived: u64,
    payload: Bytes,
}

/// One group's receiver.
#[derive(Debug)]
pub struct Receiver {
    group: GroupId,
    patience: u64,
    window: usize,
    session: Session,
    next: u64,
    /// The message with number `next`, if nothing else waits.
    ready: Option<Bytes>,
    waiting: BTreeMap<u64, Waiting>,
    later: Session,
    later_waiting: BTreeMap<u64, Waiting>,
    /// The later session that was reported.
    reported: Session,
    counts: Counts,
}

impl Receiver {
    /// A receiver that listens to no session yet. It waits `patience` microseconds for what is
    /// missing, and keeps `window` messages (1 or more) that cannot be delivered yet: with more, it
    /// no longer waits.
    ///
    /// # Panics
    /// If `window` is zero.
    pub fn new(group: GroupId, patience: u64, window: usize) -> Receiver {
        assert!(window > 0, "a receiver without a window orders nothing");
        Receiver {
            group,
            patience,
            window,
            session: Session(0),
            next: 1,
            ready: None,
            waiting: BTreeMap::new(),
            later: Session(0),
            later_waiting: BTreeMap::new(),
            reported: Session(0),
            counts: Counts::default(),
        }
    }

    /// Delivers `session` from number `position` on (`listen`, [NOPaxos] figure 2; 1 is a session's
    /// first). What was delivered before is not delivered again, but declared dropped, unless
    /// it still waits here.
    ///
    /// # Panics
    /// If `session` is before the present one: sessions only grow.
    pub fn listen(&mut self, session: Session, position: u64) {
        assert!(session >= self.session, "sessions only grow");
        if let Some(payload) = self.ready.take() {
            self.waiting.insert(self.next, Waiting { arrived: 0, payload });
        }
        if session == self.later {
            self.waiting = core::mem::take(&mut self.later_waiting);
        } else if session > self.session {
            self.waiting.clear();
        }
        self.session = session;
        self.next = position.max(1);
        self.waiting = self.waiting.split_off(&self.next);
        if self.later <= session {
            self.later_waiting.clear();
        }
        // Who listens to a session that has ended is told again.
        self.reported = session;
    }

    /// The session that is listened to, and the next number that it will deliver.
    pub fn position(&self) -> (Session, u64) {
        (self.session, self.next)
    }

    /// What was thrown away since the start.
    pub fn counts(&self) -> Counts {
        self.counts
    }

    /// A message has come from the network at `now` microseconds.
    pub fn receive(&mut self, now: u64, header: &Header, payload: Bytes) {
        let Header { group, session, sequence, .. } = *header;
        if group != self.group || sequence == 0 || session.0 == 0 || session < self.session {
            self.counts.foreign += 1;
            return;
        }
        if session > self.session {
            self.receive_later(now, session, sequence, payload);
            return;
        }
        if sequence < self.next || (self.ready.is_some() && sequence == self.next) {
            self.counts.stale += 1;
            return;
        }
        if sequence == self.next && self.waiting.is_empty() {
            self.ready = Some(payload);
            return;
        }
        if self.waiting.contains_key(&sequence) {
            self.counts.stale += 1;
            return;
        }
        self.waiting.insert(sequence, Waiting { arrived: now, payload });
    }

    fn receive_later(&mut self, now: u64, session: Session, sequence: u64, payload: Bytes) {
        if session < self.later {
            self.counts.foreign += 1;
            return;
        }
        if session > self.later {
            self.later = session;
            self.later_waiting.clear();
        }
        if self.later_waiting.len() >= self.window && !self.later_waiting.contains_key(&sequence) {
            self.counts.overflow += 1;
            return;
        }
        self.later_waiting.entry(sequence).or_insert(Waiting { arrived: now, payload });
    }

    /// The next delivery, if there is one at `now` microseconds. Call it until there is none.
    pub fn poll(&mut self, now: u64) -> Option<Delivery> {
        if self.later > self.session {
            let session = self.later;
            let is_news = session > self.reported;
            self.reported = session;
            return is_news.then_some(Delivery::Terminated { session });
        }
        let session = self.session;
        if let Some(payload) = self.ready.take() {
            let sequence = self.next;
            self.next += 1;
            return Some(Delivery::Message { session, sequence, payload });
        }
        let (&first, waiting) = self.waiting.first_key_value()?;
        if first == self.next {
            let payload = self.waiting.pop_first().expect("just seen").1.payload;
            self.next += 1;
            return Some(Delivery::Message { session, sequence: first, payload });
        }
        let is_over = now >= waiting.arrived.saturating_add(self.patience);
        if !is_over && self.waiting.len() <= self.window {
            return None;
        }
        let missing = self.next;
        self.counts.dropped += first - missing;
        self.next = first;
        Some(Delivery::Drop { session, first: missing, last: first - 1 })
    }

    /// When [`Receiver::poll`] should be called though nothing arrives, in microseconds.
    pub fn deadline(&self) -> Option<u64> {
        if self.later > self.session {
            return None;
        }
        let (_, waiting) = self.waiting.first_key_value()?;
        Some(waiting.arrived.saturating_add(self.patience))
    }
}
