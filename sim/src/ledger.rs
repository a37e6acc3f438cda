//! What the group has committed, seen from outside: one sequence for the whole run, replayed on a
//! reference executor.
//!
//! Invariants that it checks: no two replicas commit different entries at a number, and none ever
//! commits another one later; the entry at a viewstamp determines the state after it; every answer
//! is the reference's answer.

use std::collections::HashMap;
use std::sync::Arc;

use bytes::Bytes;
use smr::{ClientId, Content, Entry, Executor, OpNumber, Outcome, Reply, RequestNumber, Viewstamp};

use crate::service::{Command, TestService};

/// What a checker found.
pub(crate) type Checked<T> = Result<T, String>;

pub(crate) struct Ledger {
    entries: Vec<Arc<Entry>>,
    reference: Executor<TestService>,
    answers: HashMap<(ClientId, RequestNumber), (OpNumber, Bytes)>,
    /// Per key, its value from each operation on.
    values: HashMap<u16, Vec<(OpNumber, u64)>>,
    /// The state after each operation that any replica executed, committed or not.
    digests: HashMap<Viewstamp, u64>,
}

impl Ledger {
    pub(crate) fn new() -> Ledger {
        Ledger {
            entries: Vec::new(),
            reference: Executor::new(TestService::default()),
            answers: HashMap::new(),
            values: HashMap::new(),
            digests: HashMap::new(),
        }
    }

    /// The last committed operation.
    pub(crate) fn last(&self) -> Viewstamp {
        self.entries.last().map_or(Viewstamp::default(), |entry| entry.viewstamp)
    }

    /// The state after the last committed operation.
    pub(crate) fn digest(&self) -> u64 {
        self.reference.machine().digest()
    }

    /// What was committed at a number.
    pub(crate) fn viewstamp_at(&self, op: OpNumber) -> Option<Viewstamp> {
        match op.0.checked_sub(1) {
            None => Some(Viewstamp::default()),
            Some(index) => self.entries.get(index as usize).map(|entry| entry.viewstamp),
        }
    }

    /// A replica says that an entry is committed. Returns whether it is the first to say so.
    pub(crate) fn commit(&mut self, entry: &Arc<Entry>) -> Checked<bool> {
        let index = entry.viewstamp.op.0 as usize - 1;
        if let Some(known) = self.entries.get(index) {
            if Arc::ptr_eq(known, entry) || known == entry {
                return Ok(false);
            }
            return Err(format!(
                "agreement: {} was committed at {}, and now {}",
                show(known.viewstamp),
                index + 1,
                show(entry.viewstamp)
            ));
        }
        if entry.previous != self.last() {
            return Err(format!(
                "agreement: {} follows {}, but {} is committed",
                show(entry.viewstamp),
                show(entry.previous),
                show(self.last())
            ));
        }
        self.reference.execute(entry.clone());
        let answers = &mut self.answers;
        self.reference.commit(entry.viewstamp.op, |answer| {
            answers.insert((answer.client, answer.number), (answer.position.op, answer.body));
        });
        self.note_values(entry);
        self.entries.push(entry.clone());
        if self.reference.machine().repeated() > 0 {
            return Err(format!("at most once: {} repeats a command", show(entry.viewstamp)));
        }
        self.executed(entry.viewstamp, self.digest())?;
        Ok(true)
    }

    fn note_values(&mut self, entry: &Entry) {
        let Content::Batch { requests, .. } = &entry.content else { return };
        for command in requests.iter().filter_map(|request| Command::decode(&request.body)) {
            let value = self.reference.machine().value(command.key);
            let values = self.values.entry(command.key).or_default();
            if values.last().map_or(0, |&(_, last)| last) != value {
                values.push((entry.viewstamp.op, value));
            }
        }
    }

    /// A replica's state after an operation.
    pub(crate) fn executed(&mut self, at: Viewstamp, digest: u64) -> Checked<()> {
        let known = *self.digests.entry(at).or_insert(digest);
        if known == digest {
            return Ok(());
        }
        Err(format!("state: two replicas differ after {}", show(at)))
    }

    /// A replica loaded a checkpoint.
    pub(crate) fn restored(&mut self, at: Viewstamp, digest: u64) -> Checked<()> {
        if self.viewstamp_at(at.op) != Some(at) {
            return Err(format!("checkpoint: {} was never committed", show(at)));
        }
        if at == Viewstamp::default() {
            return Ok(());
        }
        self.executed(at, digest)
    }

    /// A reply to a logged request left a replica.
    pub(crate) fn replied(&self, reply: &Reply) -> Checked<()> {
        let Outcome::Done { position, body } = &reply.outcome else { return Ok(()) };
        match self.answers.get(&(reply.client, reply.number)) {
            Some((at, expected)) if *at == position.op && expected == body => Ok(()),
            Some((at, _)) => Err(format!(
                "reply: request {} of gateway {} is answered as of {}, not {}, or otherwise",
                reply.number.0, reply.client.gateway, position.op.0, at.0
            )),
            None => Err(format!(
                "reply: request {} of gateway {} is answered, but not committed",
                reply.number.0, reply.client.gateway
            )),
        }
    }

    /// The value of a key after an operation, if that is committed.
    pub(crate) fn value_at(&self, key: u16, op: OpNumber) -> Option<u64> {
        if op.0 > self.entries.len() as u64 {
            return None;
        }
        let Some(values) = self.values.get(&key) else { return Some(0) };
        let after = values.partition_point(|&(at, _)| at <= op);
        Some(if after == 0 { 0 } else { values[after - 1].1 })
    }
}

/// A viewstamp as the traces show it: round, primary and number.
pub(crate) fn show(viewstamp: Viewstamp) -> String {
    let view = viewstamp.view.0;
    format!("<{}.{},{}>", view >> 8, view & 0xff, viewstamp.op.0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::service::Action;
    use smr::{Request, View};

    fn entry(view: u64, op: u64, previous: Viewstamp, action: Action) -> Arc<Entry> {
        let body = Command { id: op, key: 1, action, padding: 0 }.encode();
        let request = Request {
            client: ClientId::default(),
            number: RequestNumber(op),
            oldest_unanswered: RequestNumber(1),
            body: body.into(),
        };
        Arc::new(Entry {
            viewstamp: Viewstamp::new(View(view), OpNumber(op)),
            previous,
            commit: OpNumber(0),
            durable: Viewstamp::default(),
            content: Content::Batch { unix_ms: 5, requests: vec![request] },
        })
    }

    #[test]
    fn another_entry_at_a_committed_number_is_seen() {
        let mut ledger = Ledger::new();
        let first = entry(1, 1, Viewstamp::default(), Action::Put(4));
        assert_eq!(ledger.commit(&first), Ok(true));
        assert_eq!(ledger.commit(&first), Ok(false));
        let other = entry(2, 1, Viewstamp::default(), Action::Put(4));
        assert!(ledger.commit(&other).is_err());
        let gap = entry(2, 2, other.viewstamp, Action::Put(6));
        assert!(ledger.commit(&gap).is_err());
    }

    #[test]
    fn values_and_answers_are_those_of_the_sequence() {
        let mut ledger = Ledger::new();
        let first = entry(1, 1, Viewstamp::default(), Action::Put(4));
        let second = entry(1, 2, first.viewstamp, Action::Put(7));
        assert_eq!(ledger.commit(&first), Ok(true));
        assert_eq!(ledger.commit(&second), Ok(true));
        assert_eq!(ledger.value_at(1, OpNumber(0)), Some(0));
        assert_eq!(ledger.value_at(1, OpNumber(1)), Some(4));
        assert_eq!(ledger.value_at(1, OpNumber(2)), Some(7));
        assert_eq!(ledger.value_at(1, OpNumber(3)), None);
        assert!(ledger.executed(second.viewstamp, 1).is_err());
        let mut reply = Reply {
            client: ClientId::default(),
            number: RequestNumber(2),
            read: false,
            view: View(1),
            durable: Viewstamp::default(),
            outcome: Outcome::Done {
                position: Viewstamp::new(View(1), OpNumber(2)),
                body: Bytes::copy_from_slice(&4_u64.to_le_bytes()),
            },
        };
        assert_eq!(ledger.replied(&reply), Ok(()));
        reply.number = RequestNumber(3);
        assert!(ledger.replied(&reply).is_err());
    }
}
