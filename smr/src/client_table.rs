//! At most once, written once ([Mao] 4.4.2). The table is part of the replicated state: every
//! replica decides alike, and it travels in checkpoints.

use alloc::collections::{BTreeMap, VecDeque};
use alloc::vec::Vec;
use bytes::Bytes;

use crate::codec::{Malformed, Reader, Writer};
use crate::ids::{ClientId, Incarnation, OpNumber, RequestNumber};
use crate::request::{MAX_OUTSTANDING, Request};

/// A reply that is kept until the client has said that it has it.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Kept {
    number: RequestNumber,
    position: OpNumber,
    reply: Bytes,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Session {
    incarnation: Incarnation,
    last: RequestNumber,
    kept: VecDeque<Kept>,
}

/// What the table says to a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Admission {
    /// The client's next request: execute it.
    Fresh,
    /// Executed before. The reply is there unless the client said that it had it.
    Duplicate(Option<(OpNumber, Bytes)>),
    /// An earlier request of the client has not been executed: do not execute this one.
    Gap,
    /// A newer life of the gateway is known: do not execute.
    Retired,
}

/// What it takes to undo [`ClientTable::record`].
#[derive(Clone, Debug)]
pub enum SessionUndo {
    /// The request continued a session: forget the last reply.
    Continued(ClientId),
    /// The request opened a session in the place of what was there.
    Opened(u32, Option<OldSession>),
}

/// A session that a newer one replaced.
#[derive(Clone, Debug)]
pub struct OldSession(Session);

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
    pub fn record(&mut self, request: &Request, position: OpNumber, reply: Bytes) -> SessionUndo {
        let Request { client, number, oldest_unanswered, .. } = *request;
        assert_eq!(self.admit(client, number), Admission::Fresh, "executed twice: {client:?}");
        let continues =
            self.sessions.get(&client.gateway).is_some_and(|s| s.incarnation == client.incarnation);
        let undo = if continues {
            SessionUndo::Continued(client)
        } else {
            let opened = Session { incarnation: client.incarnation, ..Session::default() };
            let old = self.sessions.insert(client.gateway, opened);
            SessionUndo::Opened(client.gateway, old.map(OldSession))
        };
        let session = self.sessions.get_mut(&client.gateway).expect("inserted above");
        session.last = number;
        while session.kept.front().is_some_and(|kept| {
            kept.number < oldest_unanswered || kept.number.0 + MAX_OUTSTANDING <= number.0
        }) {
            session.kept.pop_front();
        }
        session.kept.push_back(Kept { number, position, reply });
        undo
    }

    /// Takes back the most recent record that has not been taken back. Replies that it pruned stay
    /// pruned: the client has them.
    pub fn undo(&mut self, undo: SessionUndo) {
        match undo {
            SessionUndo::Continued(client) => {
                let session = self.sessions.get_mut(&client.gateway).expect("it was continued");
                // Gone already if a later request said that the client has it.
                session.kept.pop_back_if(|kept| kept.number == session.last);
                session.last = RequestNumber(session.last.0 - 1);
            }
            SessionUndo::Opened(gateway, old) => {
                self.sessions.remove(&gateway);
                if let Some(OldSession(session)) = old {
                    self.sessions.insert(gateway, session);
                }
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
            out.u32(session.kept.len() as u32);
            for kept in &session.kept {
                out.u64(kept.number.0);
                out.u64(kept.position.0);
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
        for _ in 0..from.count(24)? {
            let gateway = from.u32()?;
            let incarnation = Incarnation(from.u64()?);
            let last = from.request_number()?;
            let mut kept = VecDeque::new();
            for _ in 0..from.count(20)? {
                let (number, position) = (from.request_number()?, from.op()?);
                kept.push_back(Kept { number, position, reply: from.bytes()? });
            }
            sessions.insert(gateway, Session { incarnation, last, kept });
        }
        Ok(ClientTable { sessions })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
        table.record(&request(1, 1, 1), OpNumber(5), Bytes::from_static(b"a"));
        table.record(&request(1, 2, 1), OpNumber(6), Bytes::from_static(b"b"));
        let kept = Some((OpNumber(5), Bytes::from_static(b"a")));
        assert_eq!(table.admit(client, RequestNumber(1)), Admission::Duplicate(kept));
        table.record(&request(1, 3, 2), OpNumber(7), Bytes::new());
        assert_eq!(table.admit(client, RequestNumber(1)), Admission::Duplicate(None));
        assert_eq!(table.admit(client, RequestNumber(5)), Admission::Gap);
    }

    #[test]
    fn a_newer_life_retires_the_older_and_undo_brings_it_back() {
        let mut table = ClientTable::default();
        table.record(&request(1, 1, 1), OpNumber(1), Bytes::new());
        let before = table.clone();
        let undo = table.record(&request(2, 1, 1), OpNumber(2), Bytes::new());
        assert_eq!(table.admit(request(1, 2, 1).client, RequestNumber(2)), Admission::Retired);
        table.undo(undo);
        assert_eq!(table, before);
    }

    #[test]
    fn a_table_survives_its_bytes() {
        let mut table = ClientTable::default();
        table.record(&request(1, 1, 1), OpNumber(1), Bytes::from_static(b"x"));
        let mut out = Vec::new();
        table.encode(&mut out);
        let mut from = Reader::new(Bytes::from(out));
        assert_eq!(ClientTable::decode(&mut from), Ok(table));
    }
}
