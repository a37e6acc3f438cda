//! At most once, written once ([Mao] 4.4.2). The table is part of the replicated state: every
//! replica decides alike, and it travels in checkpoints.

use alloc::boxed::Box;
use alloc::collections::{BTreeMap, VecDeque};
use alloc::vec::Vec;
use bytes::Bytes;
use smallvec::SmallVec;

use crate::codec::{Malformed, Reader, Writer};
use crate::ids::{ClientId, Incarnation, MAX_REPLICAS, OpNumber, RequestNumber, Viewstamp};
use crate::request::{MAX_OUTSTANDING, Request};

/// A reply that is kept until the client has said that it has it.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Kept {
    number: RequestNumber,
    position: Viewstamp,
    reply: Bytes,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Session {
    incarnation: Incarnation,
    last: RequestNumber,
    /// The operation that executed it.
    used: OpNumber,
    kept: VecDeque<Kept>,
}

/// What the table says to a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Admission {
    /// The client's next request: execute it.
    Fresh,
    /// Executed before. The reply is there unless the client said that it had it.
    Duplicate(Option<(Viewstamp, Bytes)>),
    /// An earlier request of the client has not been executed: do not execute this one.
    Gap,
    /// A newer life of the gateway is known: do not execute.
    Retired,
}

/// What it takes to undo [`ClientTable::record`].
#[derive(Clone, Debug)]
pub struct SessionUndo(Undo);

#[derive(Clone, Debug)]
enum Undo {
    /// The request continued a session: forget its reply, and keep those again that it pruned.
    Continued { gateway: u32, used: OpNumber, pruned: SmallVec<[Kept; 1]> },
    /// The request opened a session in the place of what was there, or of one long unused.
    Opened { gateway: u32, old: Option<Box<Session>>, evicted: Option<(u32, Box<Session>)> },
}

/// Sessions beyond this many retire those unused for longest, but never a replica's own.
const MAX_SESSIONS: usize = 4096;

/// The sessions of all gateways.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ClientTable {
    sessions: BTreeMap<u32, Session>,
}

impl ClientTable {
    /// What to do with a request.
    pub fn admit(&self, client: ClientId, number: RequestNumber) -> Admission {
        let Some(session) = self.sessions.get(&client.gateway) else {
            return if number.0 == 1 { Admission::Fresh } else { Admission::Gap };
        };
        if client.incarnation < session.incarnation {
            return Admission::Retired;
        }
        if client.incarnation > session.incarnation {
            return if number.0 == 1 { Admission::Fresh } else { Admission::Gap };
        }
        if number <= session.last {
            let kept = session.kept.iter().find(|kept| kept.number == number);
            return Admission::Duplicate(kept.map(|kept| (kept.position, kept.reply.clone())));
        }
        if number == session.last.next() { Admission::Fresh } else { Admission::Gap }
    }

    /// The number of the client's last executed request; zero if it has no session.
    pub fn last(&self, client: ClientId) -> RequestNumber {
        match self.sessions.get(&client.gateway) {
            Some(session) if session.incarnation == client.incarnation => session.last,
            _ => RequestNumber(0),
        }
    }

    /// Records an admitted request's execution.
    ///
    /// # Panics
    /// If the request was not [`Admission::Fresh`].
    pub fn record(&mut self, request: &Request, position: Viewstamp, reply: Bytes) -> SessionUndo {
        let Request { client, number, oldest_unanswered, .. } = *request;
        assert_eq!(self.admit(client, number), Admission::Fresh, "executed twice: {client:?}");
        let gateway = client.gateway;
        let continues =
            self.sessions.get(&gateway).is_some_and(|s| s.incarnation == client.incarnation);
        let opened = (!continues).then(|| {
            let session = Session { incarnation: client.incarnation, ..Session::default() };
            let old = self.sessions.insert(gateway, session).map(Box::new);
            Undo::Opened { gateway, old, evicted: self.evict(gateway) }
        });
        let session = self.sessions.get_mut(&gateway).expect("inserted above");
        let used = core::mem::replace(&mut session.used, position.op);
        session.last = number;
        let done = |kept: &Kept| {
            kept.number < oldest_unanswered || kept.number.0 + MAX_OUTSTANDING <= number.0
        };
        let pruned = session.kept.iter().take_while(|kept| done(kept)).count();
        let pruned = session.kept.drain(..pruned).collect();
        session.kept.push_back(Kept { number, position, reply });
        SessionUndo(opened.unwrap_or(Undo::Continued { gateway, used, pruned }))
    }

    /// Makes room for the session that was just opened.
    fn evict(&mut self, opened: u32) -> Option<(u32, Box<Session>)> {
        if self.sessions.len() <= MAX_SESSIONS {
            return None;
        }
        let guest = |gateway: u32| gateway >= u32::from(MAX_REPLICAS) && gateway != opened;
        let others = self.sessions.iter().filter(|&(&gateway, _)| guest(gateway));
        let (&gateway, _) = others.min_by_key(|&(&gateway, session)| (session.used, gateway))?;
        self.sessions.remove(&gateway).map(|session| (gateway, Box::new(session)))
    }

    /// Takes back the most recent record that has not been taken back.
    pub fn undo(&mut self, undo: SessionUndo) {
        match undo.0 {
            Undo::Continued { gateway, used, pruned } => {
                let session = self.sessions.get_mut(&gateway).expect("it was continued");
                let undone = session.kept.pop_back().expect("the last reply is kept");
                assert_eq!(undone.number, session.last, "the last one first");
                session.last = RequestNumber(session.last.0 - 1);
                session.used = used;
                pruned.into_iter().rev().for_each(|kept| session.kept.push_front(kept));
            }
            Undo::Opened { gateway, old, evicted } => {
                self.sessions.remove(&gateway);
                self.sessions.extend(old.map(|session| (gateway, *session)));
                self.sessions.extend(evicted.map(|(gateway, session)| (gateway, *session)));
            }
        }
    }

    /// Appends the whole table.
    pub fn encode(&self, out: &mut Vec<u8>) {
        let mut out = Writer::new(out);
        out.u32(self.sessions.len() as u32);
        for (&gateway, session) in &self.sessions {
            out.u32(gateway);
            out.u64(session.incarnation.0);
            out.u64(session.last.0);
            out.u64(session.used.0);
            out.u32(session.kept.len() as u32);
            for kept in &session.kept {
                out.u64(kept.number.0);
                out.viewstamp(kept.position);
                out.bytes(&kept.reply);
            }
        }
    }

    /// Takes a table from the front.
    ///
    /// # Errors
    /// If the bytes are not a table.
    pub fn decode(from: &mut Reader) -> Result<ClientTable, Malformed> {
        let mut sessions = BTreeMap::new();
        for _ in 0..from.count(32)? {
            let gateway = from.u32()?;
            let incarnation = Incarnation(from.u64()?);
            let (last, used) = (from.request_number()?, from.op()?);
            let mut kept = VecDeque::new();
            for _ in 0..from.count(28)? {
                let (number, position) = (from.request_number()?, from.viewstamp()?);
                kept.push_back(Kept { number, position, reply: from.bytes()? });
            }
            sessions.insert(gateway, Session { incarnation, last, used, kept });
        }
        Ok(ClientTable { sessions })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(op: u64) -> Viewstamp {
        Viewstamp::new(crate::ids::View(256), OpNumber(op))
    }

    fn request(incarnation: u64, number: u64, oldest: u64) -> Request {
        Request {
            client: ClientId { gateway: 1, incarnation: Incarnation(incarnation) },
            number: RequestNumber(number),
            oldest_unanswered: RequestNumber(oldest),
            body: Bytes::new(),
        }
    }

    #[test]
    fn numbers_are_executed_once_and_in_order() {
        let mut table = ClientTable::default();
        let client = request(1, 1, 1).client;
        assert_eq!(table.admit(client, RequestNumber(2)), Admission::Gap);
        table.record(&request(1, 1, 1), at(5), Bytes::from_static(b"a"));
        table.record(&request(1, 2, 1), at(6), Bytes::from_static(b"b"));
        let kept = Some((at(5), Bytes::from_static(b"a")));
        assert_eq!(table.admit(client, RequestNumber(1)), Admission::Duplicate(kept));
        table.record(&request(1, 3, 2), at(7), Bytes::new());
        assert_eq!(table.admit(client, RequestNumber(1)), Admission::Duplicate(None));
        assert_eq!(table.admit(client, RequestNumber(5)), Admission::Gap);
    }

    #[test]
    fn a_newer_life_retires_the_older_and_undo_brings_it_back() {
        let mut table = ClientTable::default();
        table.record(&request(1, 1, 1), at(1), Bytes::new());
        let before = table.clone();
        let undo = table.record(&request(2, 1, 1), at(2), Bytes::new());
        assert_eq!(table.admit(request(1, 2, 1).client, RequestNumber(2)), Admission::Retired);
        table.undo(undo);
        assert_eq!(table, before);
    }

    #[test]
    fn undo_brings_back_the_replies_that_were_pruned() {
        let mut table = ClientTable::default();
        table.record(&request(1, 1, 1), at(1), Bytes::from_static(b"a"));
        table.record(&request(1, 2, 1), at(2), Bytes::from_static(b"b"));
        let before = table.clone();
        let undo = table.record(&request(1, 3, 3), at(3), Bytes::new());
        table.undo(undo);
        assert_eq!(table, before);
    }

    #[test]
    fn the_session_unused_for_longest_makes_room_and_undo_brings_it_back() {
        let mut table = ClientTable::default();
        let of = |gateway: u32| {
            let mut request = request(1, 1, 1);
            request.client.gateway = gateway;
            request
        };
        table.record(&of(2), at(1), Bytes::new()); // a replica's, unused for longest of all
        for gateway in 100..100 + MAX_SESSIONS as u32 - 1 {
            table.record(&of(gateway), at(100 + u64::from(gateway ^ 1)), Bytes::new());
        }
        let before = table.clone();
        let undo = table.record(&of(9999), at(9999), Bytes::new());
        assert_eq!(table.sessions.len(), MAX_SESSIONS);
        let last = [2, 100, 101].map(|gateway| table.last(of(gateway).client).0);
        assert_eq!(last, [1, 1, 0]);
        table.undo(undo);
        assert_eq!(table, before);
    }

    #[test]
    fn a_table_survives_its_bytes() {
        let mut table = ClientTable::default();
        table.record(&request(1, 1, 1), at(1), Bytes::from_static(b"x"));
        let mut out = Vec::new();
        table.encode(&mut out);
        let mut from = Reader::new(Bytes::from(out));
        assert_eq!(ClientTable::decode(&mut from), Ok(table));
    }
}
