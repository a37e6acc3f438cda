//! What the group has committed, seen from outside: a tree of entries, one branch of which (the
//! line) stands, replayed on a reference executor.
//!
//! Invariants that it checks: no two replicas commit different entries at a number, and none ever
//! commits another one later, except that in `lazy` a newer view may cut off the end of the line
//! above what is durable, for good; the entry at a viewstamp determines the state after it; every
//! answer is the reference's answer.

use std::collections::HashMap;
use std::sync::Arc;

use bytes::Bytes;
use smr::{ClientId, Content, Entry, Executor, OpNumber, Outcome, Reply, RequestNumber, Viewstamp};

use crate::service::{Command, TestService};

/// What a checker found.
pub(crate) type Checked<T> = Result<T, String>;

/// A committed entry and what came of it.
struct Known {
    entry: Arc<Entry>,
    answers: Vec<(ClientId, RequestNumber, Bytes)>,
    /// The values of the keys that it touched.
    values: Vec<(u16, u64)>,
}

/// What a commitment means to the ledger.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Commitment {
    /// Nothing new.
    Known,
    /// The line has grown.
    First,
    /// A newer view has cut off the line's end, down to this first operation and up to this last.
    Cut(Viewstamp, Viewstamp),
    /// It was committed on a branch that a newer view had cut off already.
    BornLost,
}

pub(crate) struct Ledger {
    /// Whether what is committed may be lost (`lazy`).
    lazy: bool,
    line: Vec<Viewstamp>,
    tree: HashMap<Viewstamp, Known>,
    reference: Executor<TestService>,
    /// The highest durable point that anybody has told.
    durable: Viewstamp,
    /// The first entry of the newest committed view: it is on disk at a quorum.
    view_start: Viewstamp,
    /// The state after each operation that any replica executed, committed or not.
    digests: HashMap<Viewstamp, u64>,
}

impl Ledger {
    pub(crate) fn new(lazy: bool) -> Ledger {
        Ledger {
            lazy,
            line: Vec::new(),
            tree: HashMap::new(),
            reference: Executor::new(TestService::default()),
            durable: Viewstamp::default(),
            view_start: Viewstamp::default(),
            digests: HashMap::new(),
        }
    }

    /// The last committed operation.
    pub(crate) fn last(&self) -> Viewstamp {
        self.line.last().copied().unwrap_or_default()
    }

    /// The highest durable point that anybody has told.
    pub(crate) fn durable(&self) -> Viewstamp {
        self.durable
    }

    /// The state after the last committed operation.
    pub(crate) fn digest(&self) -> u64 {
        self.reference.machine().digest()
    }

    /// How often a command was executed on the line.
    pub(crate) fn executions(&self, id: u64) -> u32 {
        self.reference.machine().executions(id)
    }

    /// What was committed at a number.
    pub(crate) fn viewstamp_at(&self, op: OpNumber) -> Option<Viewstamp> {
        match op.0.checked_sub(1) {
            None => Some(Viewstamp::default()),
            Some(index) => self.line.get(index as usize).copied(),
        }
    }

    /// Whether an operation was ever committed.
    pub(crate) fn knows(&self, at: Viewstamp) -> bool {
        self.tree.contains_key(&at)
    }

    /// Whether an operation is committed and stands.
    pub(crate) fn stands(&self, at: Viewstamp) -> bool {
        self.viewstamp_at(at.op) == Some(at)
    }

    /// Whether the log that ends with the committed operation `end` holds `at`.
    pub(crate) fn holds(&self, end: Viewstamp, at: Viewstamp) -> bool {
        self.below(end, at.op) == Some(at)
    }

    /// The operation with this number in the log that ends with the committed operation `end`.
    pub(crate) fn below(&self, end: Viewstamp, op: OpNumber) -> Option<Viewstamp> {
        if self.stands(end) && op <= end.op {
            return self.viewstamp_at(op);
        }
        let mut here = end;
        while here.op > op {
            here = self.tree.get(&here)?.entry.previous;
        }
        (here.op == op).then_some(here)
    }

    /// A replica says that an entry is committed.
    pub(crate) fn commit(&mut self, entry: &Arc<Entry>) -> Checked<Commitment> {
        let at = entry.viewstamp;
        if let Some(Known { entry: known, .. }) = self.tree.get(&at) {
            if Arc::ptr_eq(known, entry) || known == entry {
                return Ok(Commitment::Known);
            }
            return Err(format!("agreement: {} is committed with two contents", show(at)));
        }
        let last = self.last();
        if entry.previous == last {
            self.grow(entry)?;
            return Ok(Commitment::First);
        }
        let previous = entry.previous;
        let known = previous == Viewstamp::default() || self.tree.contains_key(&previous);
        if !self.lazy || !known {
            return Err(format!(
                "agreement: {} follows {}, but {} is committed",
                show(at),
                show(previous),
                show(last)
            ));
        }
        if at.view <= last.view {
            let mut branch = self.replay(previous);
            self.record(entry, &mut branch)?;
            return Ok(Commitment::BornLost);
        }
        if !self.stands(previous) {
            return Err(format!("loss: {} comes back below {}", show(previous), show(at)));
        }
        let floor =
            if self.durable.op > self.view_start.op { self.durable } else { self.view_start };
        if previous.op < floor.op {
            return Err(format!(
                "durability: {} was durable, and {} lacks it",
                show(floor),
                show(at)
            ));
        }
        let first = self.line[previous.op.0 as usize];
        self.line.truncate(previous.op.0 as usize);
        self.reference = self.replay(previous);
        self.grow(entry)?;
        Ok(Commitment::Cut(first, last))
    }

    fn grow(&mut self, entry: &Arc<Entry>) -> Checked<()> {
        let mut reference =
            std::mem::replace(&mut self.reference, Executor::new(TestService::default()));
        let recorded = self.record(entry, &mut reference);
        self.reference = reference;
        self.line.push(entry.viewstamp);
        if entry.content == Content::ViewStart {
            self.view_start = entry.viewstamp;
        }
        recorded
    }

    /// The state after the committed operation `end`, from the beginning.
    fn replay(&self, end: Viewstamp) -> Executor<TestService> {
        let mut entries = Vec::new();
        let mut here = end;
        while let Some(known) = self.tree.get(&here) {
            entries.push(known.entry.clone());
            here = known.entry.previous;
        }
        let mut executor = Executor::new(TestService::default());
        entries.into_iter().rev().for_each(|entry| executor.execute(entry));
        executor.commit(end.op, |_| {});
        executor
    }

    fn record(&mut self, entry: &Arc<Entry>, executor: &mut Executor<TestService>) -> Checked<()> {
        let at = entry.viewstamp;
        executor.execute(entry.clone());
        let mut answers = Vec::new();
        executor.commit(at.op, |answer| answers.push((answer.client, answer.number, answer.body)));
        let mut values = Vec::new();
        if let Content::Batch { requests, .. } = &entry.content {
            for command in requests.iter().filter_map(|request| Command::decode(&request.body)) {
                values.push((command.key, executor.machine().value(command.key)));
            }
        }
        self.tree.insert(at, Known { entry: entry.clone(), answers, values });
        if executor.machine().repeated() > 0 {
            return Err(format!("at most once: {} repeats a command", show(at)));
        }
        self.executed(at, executor.machine().digest())
    }

    /// Somebody says that this is durable: it stands, and for ever.
    pub(crate) fn note_durable(&mut self, at: Viewstamp) -> Checked<()> {
        if !self.stands(at) {
            return Err(format!("durability: {} is called durable, and does not stand", show(at)));
        }
        if at.op > self.durable.op {
            self.durable = at;
        }
        Ok(())
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
        if !self.stands(at) {
            return Err(format!("checkpoint: {} was never committed", show(at)));
        }
        if at == Viewstamp::default() {
            return Ok(());
        }
        if self.lazy && at.op > self.durable.op {
            return Err(format!("checkpoint: {} is not durable", show(at)));
        }
        self.executed(at, digest)
    }

    /// A reply to a logged request left a replica.
    pub(crate) fn replied(&self, reply: &Reply) -> Checked<()> {
        let Outcome::Done { position, body } = &reply.outcome else { return Ok(()) };
        if body.is_empty() {
            return Ok(()); // an empty request may be answered as of any later operation
        }
        let (number, gateway) = (reply.number.0, reply.client.gateway);
        let Some(known) = self.tree.get(position) else {
            return Err(format!("reply: request {number} of gateway {gateway} is not committed"));
        };
        let mine = |(client, number, _): &&(ClientId, RequestNumber, Bytes)| {
            (*client, *number) == (reply.client, reply.number)
        };
        match known.answers.iter().find(mine) {
            Some((_, _, expected)) if expected == body => Ok(()),
            known => Err(format!(
                "reply: request {number} of gateway {gateway} is answered as of {}, {}",
                show(*position),
                if known.is_some() { "otherwise" } else { "which did not execute it" }
            )),
        }
    }

    /// The value of a key after a committed operation.
    pub(crate) fn value_at(&self, key: u16, at: Viewstamp) -> Option<u64> {
        let mut here = at;
        while here != Viewstamp::default() {
            let known = self.tree.get(&here)?;
            if let Some(&(_, value)) = known.values.iter().find(|&&(touched, _)| touched == key) {
                return Some(value);
            }
            here = known.entry.previous;
        }
        Some(0)
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
        let mut ledger = Ledger::new(false);
        let first = entry(1, 1, Viewstamp::default(), Action::Put(4));
        assert_eq!(ledger.commit(&first), Ok(Commitment::First));
        assert_eq!(ledger.commit(&first), Ok(Commitment::Known));
        let other = entry(2, 1, Viewstamp::default(), Action::Put(4));
        assert!(ledger.commit(&other).is_err());
        let gap = entry(2, 2, other.viewstamp, Action::Put(6));
        assert!(ledger.commit(&gap).is_err());
    }

    #[test]
    fn values_and_answers_are_those_of_the_sequence() {
        let mut ledger = Ledger::new(false);
        let first = entry(1, 1, Viewstamp::default(), Action::Put(4));
        let second = entry(1, 2, first.viewstamp, Action::Put(7));
        assert_eq!(ledger.commit(&first), Ok(Commitment::First));
        assert_eq!(ledger.commit(&second), Ok(Commitment::First));
        assert_eq!(ledger.value_at(1, Viewstamp::default()), Some(0));
        assert_eq!(ledger.value_at(1, first.viewstamp), Some(4));
        assert_eq!(ledger.value_at(1, second.viewstamp), Some(7));
        assert_eq!(ledger.value_at(1, Viewstamp::new(View(1), OpNumber(3))), None);
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

    #[test]
    fn a_newer_view_cuts_the_end_off_for_good() {
        let mut ledger = Ledger::new(true);
        let first = entry(1, 1, Viewstamp::default(), Action::Put(4));
        let second = entry(1, 2, first.viewstamp, Action::Put(7));
        let third = entry(1, 3, second.viewstamp, Action::Put(8));
        for entry in [&first, &second] {
            assert_eq!(ledger.commit(entry), Ok(Commitment::First));
        }
        let newer = entry(2, 2, first.viewstamp, Action::Append(9));
        let cut = Commitment::Cut(second.viewstamp, second.viewstamp);
        assert_eq!(ledger.commit(&newer), Ok(cut));
        assert_eq!(ledger.commit(&second), Ok(Commitment::Known));
        assert_eq!(ledger.commit(&third), Ok(Commitment::BornLost));
        assert!(ledger.stands(first.viewstamp) && !ledger.stands(second.viewstamp));
        assert!(ledger.holds(third.viewstamp, first.viewstamp));
        assert!(!ledger.holds(newer.viewstamp, second.viewstamp));
        assert_eq!(ledger.value_at(1, third.viewstamp), Some(8));
        // It stays lost.
        let back = entry(3, 4, third.viewstamp, Action::Put(5));
        assert!(ledger.commit(&back).is_err());
        // And what is durable stays.
        assert_eq!(ledger.note_durable(newer.viewstamp), Ok(()));
        assert!(ledger.note_durable(second.viewstamp).is_err());
        let over = entry(3, 2, first.viewstamp, Action::Put(6));
        assert!(ledger.commit(&over).is_err());
    }
}
