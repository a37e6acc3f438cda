//! Executes the log on a service: once, undoably, with the replies held until they may be sent.
//!
//! Invariants: `stable <= committed <= executed`. `applied` holds exactly the executed entries
//! above `stable`, oldest first, so that any of them can be undone. A reply leaves only at or below
//! `committed` (or by [`Executor::answers`], for clients that count replies), and a checkpoint
//! holds nothing above `stable`. What lies between the two is tentative ([Mao] 4.2.1):
//! acknowledged, and yet it may have to be undone.

use alloc::collections::VecDeque;
use alloc::sync::Arc;
use alloc::vec::Vec;
use bytes::Bytes;
use smallvec::SmallVec;

use crate::client_table::{Admission, ClientTable, SessionUndo};
use crate::codec::{Reader, Writer};
use crate::ids::{ClientId, OpNumber, RequestNumber, View, Viewstamp};
use crate::lineage::Lineage;
use crate::log::{Content, Entry};
use crate::machine::{BadCheckpoint, Context, ReadOutcome, StateMachine};
use crate::request::{Refusal, Request};

/// One executed request and how to take it back.
#[derive(Debug)]
struct Executed<U> {
    client: ClientId,
    number: RequestNumber,
    session: SessionUndo,
    state: U,
}

/// One executed entry that can be undone.
#[derive(Debug)]
struct Applied<U> {
    entry: Arc<Entry>,
    previous_unix_ms: u64,
    requests: SmallVec<[Executed<U>; 1]>,
}

/// An answer that may now go to its client.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answer {
    /// To whom.
    pub client: ClientId,
    /// To which request.
    pub number: RequestNumber,
    /// The operation that executed it.
    pub position: Viewstamp,
    /// The service's answer.
    pub body: Bytes,
}

/// What became of a request for the next piece of a checkpoint.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CheckpointStep {
    /// The next chunk; more may follow.
    Chunk(Vec<u8>),
    /// All chunks are out: this is the checkpoint's position.
    Done(Viewstamp),
}

#[derive(Debug)]
enum Checkpoint {
    Header(Viewstamp, Vec<u8>),
    Body(Viewstamp),
    Complete(Viewstamp),
}

/// A service with its client table, the group's time, and what can still be undone.
#[derive(Debug)]
pub struct Executor<S: StateMachine> {
    machine: S,
    clients: ClientTable,
    lineage: Lineage,
    executed: Viewstamp,
    committed: OpNumber,
    stable: OpNumber,
    unix_ms: u64,
    applied: VecDeque<Applied<S::Undo>>,
    checkpoint: Option<Checkpoint>,
    /// Where the service writes its answer.
    reply: Vec<u8>,
    answered: Answered,
}

/// Longer answers are hardly ever like the one before.
const SHORT: usize = 64;

/// The last short answer. One that is like it shares its memory: most are, and what is kept until
/// it is durable is in no cache any more when it is freed.
#[derive(Debug, Default)]
struct Answered(Bytes);

impl Answered {
    /// Moves an answer out of where it was written.
    fn take(&mut self, reply: &mut Vec<u8>) -> Bytes {
        if reply.len() > SHORT {
            // Without spare room, since `Bytes` allocates once more to remember that.
            return Bytes::from(core::mem::take(reply).into_boxed_slice());
        }
        if self.0 != *reply {
            self.0 = Bytes::copy_from_slice(reply);
        }
        reply.clear();
        self.0.clone()
    }
}

const CHECKPOINT_VERSION: u8 = 2;

impl<S: StateMachine> Executor<S> {
    /// A service in its initial state, before the first operation.
    pub fn new(machine: S) -> Executor<S> {
        Executor {
            machine,
            clients: ClientTable::default(),
            lineage: Lineage::default(),
            executed: Viewstamp::default(),
            committed: OpNumber(0),
            stable: OpNumber(0),
            unix_ms: 0,
            applied: VecDeque::new(),
            checkpoint: None,
            reply: Vec::new(),
            answered: Answered::default(),
        }
    }

    /// The service.
    pub fn machine(&self) -> &S {
        &self.machine
    }

    /// The client table.
    pub fn clients(&self) -> &ClientTable {
        &self.clients
    }

    /// The last executed operation.
    pub fn executed(&self) -> Viewstamp {
        self.executed
    }

    /// The last committed operation that was executed.
    pub fn committed(&self) -> OpNumber {
        self.committed
    }

    /// The last operation that will never be undone.
    pub fn stable(&self) -> OpNumber {
        self.stable
    }

    /// The last executed operation of `view`, if there is one ([Mao] 4.2.3: the last viewstamp in
    /// ev).
    pub fn last_of(&self, view: View) -> Option<OpNumber> {
        self.lineage.last_of(view, self.executed.op)
    }

    /// Which operations have been executed.
    pub fn lineage(&self) -> &Lineage {
        &self.lineage
    }

    /// The group's time, in milliseconds since 1970.
    pub fn unix_ms(&self) -> u64 {
        self.unix_ms
    }

    /// Executes the next entry.
    ///
    /// # Panics
    /// If it does not follow the last one executed.
    pub fn execute(&mut self, entry: Arc<Entry>) {
        assert_eq!(entry.previous, self.executed, "execution follows the log");
        let previous_unix_ms = self.unix_ms;
        let mut executed = SmallVec::new();
        self.executed = entry.viewstamp;
        self.lineage.extend(entry.viewstamp);
        if let Content::Batch { unix_ms, requests } = &entry.content {
            self.unix_ms = self.unix_ms.max(*unix_ms);
            executed.reserve_exact(requests.len());
            for (index, request) in requests.iter().enumerate() {
                if self.clients.admit(request.client, request.number) != Admission::Fresh {
                    continue; // decided alike by every replica
                }
                let position = entry.viewstamp.op;
                let context = Context { position, index: index as u32, unix_ms: self.unix_ms };
                let state = self.machine.apply(context, &request.body, &mut self.reply);
                let reply = self.answered.take(&mut self.reply);
                let session = self.clients.record(request, entry.viewstamp, reply);
                let (client, number) = (request.client, request.number);
                executed.push(Executed { client, number, session, state });
            }
        }
        self.applied.push_back(Applied { entry, previous_unix_ms, requests: executed });
    }

    /// Everything up to `through` is acknowledged: hands its answers to `answer`.
    ///
    /// # Panics
    /// If it has not been executed.
    pub fn commit(&mut self, through: OpNumber, mut answer: impl FnMut(Answer)) {
        assert!(through <= self.executed.op, "only what was executed can be committed");
        let (from, to) = (self.undoable(self.committed), self.undoable(through));
        if from >= to {
            return;
        }
        self.committed = through;
        for executed in self.applied.range(from..to).flat_map(|applied| &applied.requests) {
            let Executed { client, number, .. } = *executed;
            // A reply that the client already has (it was executed in a former view, too) is
            // pruned: there is nobody to answer.
            if let Admission::Duplicate(Some((position, body))) = self.clients.admit(client, number)
            {
                answer(Answer { client, number, position, body });
            }
        }
    }

    /// The answers to the requests of an executed operation that is not stable, at its own place:
    /// also where an earlier operation executed them. An error for a request that was not executed,
    /// since one of its client's before it was not, or the client has ended.
    ///
    /// # Panics
    /// If it is stable, or has not been executed.
    pub fn answers(&self, op: OpNumber, mut answer: impl FnMut(&Request, Result<Answer, Refusal>)) {
        assert!(op > self.stable && op <= self.executed.op, "it can be undone");
        let entry = &self.applied[self.undoable(op) - 1].entry;
        let Content::Batch { requests, .. } = &entry.content else { return };
        for request in requests {
            let Request { client, number, .. } = *request;
            match self.clients.admit(client, number) {
                Admission::Duplicate(Some((at, body))) if at.op <= op => {
                    let position = entry.viewstamp;
                    answer(request, Ok(Answer { client, number, position, body }));
                }
                // It could not be executed here, whether or not a later operation has done it.
                Admission::Duplicate(Some(_)) | Admission::Gap | Admission::Fresh => {
                    answer(request, Err(Refusal::OutOfOrder));
                }
                Admission::Retired => answer(request, Err(Refusal::Retired)),
                // The client has said that it has its answer.
                Admission::Duplicate(None) => {}
            }
        }
    }

    /// How many of the entries that can be undone lie at or below `op`.
    fn undoable(&self, op: OpNumber) -> usize {
        (op.0 - self.stable.0) as usize
    }

    /// Everything up to `through` stands for ever: forgets how to undo it.
    ///
    /// # Panics
    /// If it is not committed.
    pub fn stabilise(&mut self, through: OpNumber) {
        assert!(through <= self.committed, "only what is acknowledged can be stable");
        while self.stable < through {
            let applied = self.applied.pop_front().expect("executed and not stable");
            self.stable = applied.entry.viewstamp.op;
        }
        self.lineage.forget_oldest();
    }

    /// Takes back everything above `keep`, acknowledged or not.
    ///
    /// # Panics
    /// If that would take back what is stable.
    pub fn rollback(&mut self, keep: OpNumber) {
        assert!(keep >= self.stable, "what is stable stands");
        while self.executed.op > keep {
            let applied = self.applied.pop_back().expect("executed and not stable");
            for executed in applied.requests.into_iter().rev() {
                self.machine.undo(executed.state);
                self.clients.undo(executed.session);
            }
            self.executed = applied.entry.previous;
            self.unix_ms = applied.previous_unix_ms;
        }
        self.lineage.truncate(keep);
        self.committed = self.committed.min(keep);
    }

    /// What the client table says to a request. A reply that it holds may not be committed yet.
    pub fn admit(&self, client: ClientId, number: RequestNumber) -> Admission {
        self.clients.admit(client, number)
    }

    /// Answers a read on the executed state.
    pub fn read(&self, unix_ms: u64, request: &[u8], reply: &mut Vec<u8>) -> ReadOutcome {
        self.machine.read(unix_ms.max(self.unix_ms), request, reply)
    }

    /// Starts a checkpoint of the stable state and returns its position. What is executed above it
    /// is undone for a moment and done again. A checkpoint that is being written is given up.
    pub fn checkpoint_begin(&mut self) -> Viewstamp {
        self.checkpoint_abort();
        let above: Vec<_> = self.applied.iter().map(|applied| applied.entry.clone()).collect();
        let committed = self.committed;
        self.rollback(self.stable);
        let position = self.executed;
        let mut header = Vec::new();
        let mut out = Writer::new(&mut header);
        out.u8(CHECKPOINT_VERSION);
        out.viewstamp(position);
        out.u64(self.unix_ms);
        self.lineage.encode(&mut out);
        self.clients.encode(&mut header);
        self.machine.checkpoint_begin();
        self.checkpoint = Some(Checkpoint::Header(position, header));
        above.into_iter().for_each(|entry| self.execute(entry));
        self.committed = committed;
        position
    }

    /// Gives up the checkpoint that is being written, if any.
    pub fn checkpoint_abort(&mut self) {
        if let Some(Checkpoint::Header(..) | Checkpoint::Body(_)) = self.checkpoint.take() {
            self.machine.checkpoint_abort();
        }
    }

    /// The next piece of the checkpoint, of about `budget` bytes.
    ///
    /// # Panics
    /// If no checkpoint is being written.
    pub fn checkpoint_next(&mut self, budget: usize) -> CheckpointStep {
        match self.checkpoint.take().expect("a checkpoint was begun") {
            Checkpoint::Header(position, header) => {
                self.checkpoint = Some(Checkpoint::Body(position));
                CheckpointStep::Chunk(header)
            }
            Checkpoint::Body(position) => {
                let mut chunk = Vec::new();
                let last = self.machine.checkpoint_next(budget, &mut chunk);
                let next = if last { Checkpoint::Complete } else { Checkpoint::Body };
                self.checkpoint = Some(next(position));
                CheckpointStep::Chunk(chunk)
            }
            Checkpoint::Complete(position) => CheckpointStep::Done(position),
        }
    }

    /// Drops all state and expects the chunks of a checkpoint, in order.
    pub fn restore_begin(&mut self) {
        self.checkpoint_abort();
        self.applied.clear();
        self.clients = ClientTable::default();
        self.lineage = Lineage::default();
        self.executed = Viewstamp::default();
        self.committed = OpNumber(0);
        self.stable = OpNumber(0);
        self.unix_ms = 0;
        self.machine.restore_begin();
    }

    /// Takes the chunk with this number, from zero.
    ///
    /// # Errors
    /// If the chunk is not what [`Executor::checkpoint_next`] makes.
    pub fn restore_chunk(&mut self, number: u64, chunk: &[u8]) -> Result<(), BadCheckpoint> {
        if number > 0 {
            return self.machine.restore_chunk(chunk);
        }
        let mut from = Reader::new(Bytes::copy_from_slice(chunk));
        let mut header = || {
            if from.u8()? != CHECKPOINT_VERSION {
                return Err(crate::codec::Malformed);
            }
            let (position, unix_ms) = (from.viewstamp()?, from.u64()?);
            let lineage = Lineage::decode(&mut from)?;
            Ok((position, unix_ms, lineage, ClientTable::decode(&mut from)?))
        };
        let (executed, unix_ms, lineage, clients) = header().map_err(|_| BadCheckpoint)?;
        from.finish().map_err(|_| BadCheckpoint)?;
        self.executed = executed;
        self.committed = executed.op;
        self.stable = executed.op;
        self.lineage = lineage;
        self.unix_ms = unix_ms;
        self.clients = clients;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_equal_short_answers_share_memory() {
        let mut answered = Answered::default();
        let mut take = |reply: &[u8]| {
            let mut written = reply.to_vec();
            let taken = answered.take(&mut written);
            assert_eq!((&taken[..], written.len()), (reply, 0));
            taken
        };
        let (first, second, other) = (take(b"OK"), take(b"OK"), take(b"OKAY"));
        assert_eq!(first.as_ptr(), second.as_ptr());
        assert_ne!(first.as_ptr(), other.as_ptr());
        let (long, again) = (take(&[1; SHORT + 1]), take(&[1; SHORT + 1]));
        assert_ne!(long.as_ptr(), again.as_ptr());
        assert_eq!((&first[..], &other[..], take(b"").len()), (&b"OK"[..], &b"OKAY"[..], 0));
    }
}
