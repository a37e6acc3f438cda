//! Joins a protocol and a service: the one place that interprets the outputs which concern
//! execution, admission and replies. What is left for the environment are [`Effect`]s.

use alloc::collections::{BTreeMap, VecDeque};
use alloc::vec::Vec;
use bytes::Bytes;

use crate::client_table::Admission;
use crate::contract::{CheckpointChunk, Input, InputOf, Output, Outputs, Protocol, StoreBatch, To};
use crate::executor::{Answer, CheckpointStep, Executor};
use crate::ids::{ClientId, Now, OpNumber, ReadNumber, ReplicaId, RequestNumber, View, Viewstamp};
use crate::machine::{ReadOutcome, StateMachine};
use crate::request::{Outcome, ReadRequest, Refusal, Reply, Request};

/// What the environment must do. The order of the list matters.
#[derive(Debug)]
pub enum Effect<M, F> {
    /// Send a message to replicas.
    Send(To, M),
    /// Change the disk; answer with [`Input::Stored`].
    Store(StoreBatch),
    /// Send a reply to the gateway that the client names.
    Reply(Reply),
    /// A checkpoint was begun: take its chunks with [`Host::checkpoint_next`], write them, and
    /// answer with [`Input::CheckpointWritten`]. One that is being written is to be thrown away.
    WriteCheckpoint(Viewstamp),
    /// Read a piece of the checkpoint on disk; answer with [`Input::CheckpointChunk`].
    ReadCheckpoint {
        /// For whom.
        to: ReplicaId,
        /// Which checkpoint, or the newest.
        position: Option<Viewstamp>,
        /// From which byte.
        offset: u64,
    },
    /// Keep a piece of another replica's checkpoint.
    SaveChunk(CheckpointChunk),
    /// Check the saved checkpoint, load it with [`Host::restore`], put it in place of the one on
    /// disk, and answer with [`Input::StateInstalled`].
    InstallState(Viewstamp),
    /// The protocol's own.
    Protocol(F),
}

/// A list of effects.
pub type Effects<P> = Vec<Effect<<P as Protocol>::Message, <P as Protocol>::Effect>>;

struct PendingRead {
    number: ReadNumber,
    request: ReadRequest,
}

/// A read that was executed above the committed state: its answer waits.
struct HeldRead {
    position: OpNumber,
    reply: Reply,
}

/// One replica without its network, disk and clock.
pub struct Host<P: Protocol, S: StateMachine> {
    protocol: P,
    executor: Executor<S>,
    outputs: Outputs<P>,
    pending: VecDeque<PendingRead>,
    held: VecDeque<HeldRead>,
    last_read: ReadNumber,
    /// The last request of each client that was handed to the protocol in `accepted_in`; it may be
    /// ahead of the executor while the protocol batches.
    accepted: BTreeMap<ClientId, RequestNumber>,
    accepted_in: View,
}

impl<P: Protocol, S: StateMachine> Host<P, S> {
    /// A replica whose executor holds what the checkpoint on disk held. The first input must be
    /// [`Input::Start`].
    pub fn new(protocol: P, executor: Executor<S>) -> Host<P, S> {
        Host {
            protocol,
            executor,
            outputs: Vec::new(),
            pending: VecDeque::new(),
            held: VecDeque::new(),
            last_read: ReadNumber(0),
            accepted: BTreeMap::new(),
            accepted_in: View::default(),
        }
    }

    /// The protocol.
    pub fn protocol(&self) -> &P {
        &self.protocol
    }

    /// The executor.
    pub fn executor(&self) -> &Executor<S> {
        &self.executor
    }

    /// When [`Input::Timeout`] is due, in [`Now::micros`].
    pub fn deadline(&self) -> Option<u64> {
        self.protocol.deadline()
    }

    /// Hands an input to the protocol and appends what the environment must do. Requests and reads
    /// come through [`Host::request`] and [`Host::read`].
    pub fn step(&mut self, now: Now, input: InputOf<P>, effects: &mut Effects<P>) {
        self.protocol.step(now, input, &mut self.outputs);
        self.interpret(now, effects);
    }

    /// A client's request has arrived.
    pub fn request(&mut self, now: Now, request: Request, effects: &mut Effects<P>) {
        let (client, number) = (request.client, request.number);
        if let Err(refusal) = self.protocol.admission() {
            effects.push(self.refuse(client, number, false, refusal));
            return;
        }
        match self.admit(client, number) {
            Admission::Fresh => {
                self.accepted.insert(client, number);
                self.step(now, Input::Request(request), effects);
            }
            Admission::Duplicate(Some((position, body)))
                if position <= self.executor.committed() =>
            {
                let answer = Answer { client, number, position, body };
                effects.push(reply_to(self.protocol.view(), answer));
            }
            // It will be answered when it commits, or was answered and the client said so.
            Admission::Duplicate(_) => {}
            Admission::Gap => {
                effects.push(self.refuse(client, number, false, Refusal::OutOfOrder));
            }
            Admission::Retired => {
                effects.push(self.refuse(client, number, false, Refusal::Retired));
            }
        }
    }

    fn admit(&mut self, client: ClientId, number: RequestNumber) -> Admission {
        if self.accepted_in != self.protocol.view() {
            self.accepted.clear();
            self.accepted_in = self.protocol.view();
        }
        match self.accepted.get(&client) {
            Some(&last) if number == last.next() => Admission::Fresh,
            Some(&last) if number <= last && number > self.executor.clients().last(client) => {
                Admission::Duplicate(None)
            }
            _ => self.executor.admit(client, number),
        }
    }

    /// A client's read has arrived.
    pub fn read(&mut self, now: Now, request: ReadRequest, effects: &mut Effects<P>) {
        if let Err(refusal) = self.protocol.admission() {
            effects.push(self.refuse(request.client, request.number, true, refusal));
            return;
        }
        self.last_read.0 += 1;
        self.pending.push_back(PendingRead { number: self.last_read, request });
        self.step(now, Input::Read(self.last_read), effects);
    }

    /// The next piece of the checkpoint that is being written.
    pub fn checkpoint_next(&mut self, budget: usize) -> CheckpointStep {
        self.executor.checkpoint_next(budget)
    }

    /// Gives access to the executor to load a checkpoint, before `Start` or for
    /// [`Effect::InstallState`].
    pub fn restore(&mut self) -> &mut Executor<S> {
        &mut self.executor
    }

    fn refuse(
        &self,
        client: ClientId,
        number: RequestNumber,
        read: bool,
        refusal: Refusal,
    ) -> Effect<P::Message, P::Effect> {
        let view = self.protocol.view();
        Effect::Reply(Reply { client, number, read, view, outcome: Outcome::Refused(refusal) })
    }

    fn interpret(&mut self, now: Now, effects: &mut Effects<P>) {
        let mut outputs = core::mem::take(&mut self.outputs);
        for output in outputs.drain(..) {
            match output {
                Output::Execute(entry) => self.executor.execute(entry),
                Output::Commit { through, reply } => self.commit(through, reply, effects),
                Output::Rollback(keep) => {
                    self.executor.rollback(keep);
                    assert!(self.held.iter().all(|read| read.position <= keep), "deposed first");
                }
                Output::ReadReady(through) => self.execute_reads(now, through, effects),
                Output::Deposed => self.depose(effects),
                Output::WriteCheckpoint(position) => {
                    assert_eq!(position, self.executor.checkpoint_begin());
                    effects.push(Effect::WriteCheckpoint(position));
                }
                Output::Send(to, message) => effects.push(Effect::Send(to, message)),
                Output::Store(batch) => effects.push(Effect::Store(batch)),
                Output::ReadCheckpoint { to, position, offset } => {
                    effects.push(Effect::ReadCheckpoint { to, position, offset });
                }
                Output::SaveChunk(chunk) => effects.push(Effect::SaveChunk(chunk)),
                Output::InstallState(position) => effects.push(Effect::InstallState(position)),
                Output::Effect(effect) => effects.push(Effect::Protocol(effect)),
            }
        }
        self.outputs = outputs;
    }

    fn commit(&mut self, through: OpNumber, reply: bool, effects: &mut Effects<P>) {
        let view = self.protocol.view();
        self.executor.commit(through, |answer| {
            if reply {
                effects.push(reply_to(view, answer));
            }
        });
        while self.held.front().is_some_and(|read| read.position <= through) {
            let read = self.held.pop_front().expect("just seen");
            effects.push(Effect::Reply(read.reply));
        }
    }

    fn execute_reads(&mut self, now: Now, through: ReadNumber, effects: &mut Effects<P>) {
        while self.pending.front().is_some_and(|read| read.number <= through) {
            let PendingRead { request, .. } = self.pending.pop_front().expect("just seen");
            let position = self.executor.executed().op;
            let mut body = Vec::new();
            let outcome = match self.executor.read(now.unix_ms, &request.body, &mut body) {
                ReadOutcome::Done => Outcome::Done { position, body: Bytes::from(body) },
                ReadOutcome::MustLog => Outcome::MustLog,
            };
            let ReadRequest { client, number, .. } = request;
            let reply = Reply { client, number, read: true, view: self.protocol.view(), outcome };
            if position <= self.executor.committed() {
                effects.push(Effect::Reply(reply));
            } else {
                self.held.push_back(HeldRead { position, reply });
            }
        }
    }

    fn depose(&mut self, effects: &mut Effects<P>) {
        self.accepted.clear();
        let refusal = Outcome::Refused(Refusal::NotPrimary);
        let view = self.protocol.view();
        for PendingRead { request: ReadRequest { client, number, .. }, .. } in
            self.pending.drain(..)
        {
            let outcome = refusal.clone();
            effects.push(Effect::Reply(Reply { client, number, read: true, view, outcome }));
        }
        for held in self.held.drain(..) {
            effects.push(Effect::Reply(Reply { outcome: refusal.clone(), ..held.reply }));
        }
    }
}

fn reply_to<M, F>(view: View, answer: Answer) -> Effect<M, F> {
    let Answer { client, number, position, body } = answer;
    let outcome = Outcome::Done { position, body };
    Effect::Reply(Reply { client, number, read: false, view, outcome })
}
