//! Joins a protocol and a service: the one place that interprets the outputs which concern
//! execution, admission and replies. What is left for the environment are [`Effect`]s.

use alloc::collections::{BTreeMap, BTreeSet, VecDeque};
use alloc::vec::Vec;
use bytes::Bytes;

use crate::client_table::Admission;
use crate::contract::{CheckpointChunk, Input, InputOf, Output, Outputs, Protocol, StoreBatch, To};
use crate::executor::{Answer, CheckpointStep, Executor};
use crate::ids::{
    ClientId, Durability, Now, OpNumber, ReadNumber, ReplicaId, RequestNumber, View, Viewstamp,
};
use crate::machine::{ReadOutcome, StateMachine};
use crate::request::{ClientMessage, Outcome, ReadRequest, Refusal, Reply, Request};

/// What the environment must do. The order of the list matters.
#[derive(Debug)]
pub enum Effect<M, F> {
    /// Send a message to replicas.
    Send(To, M),
    /// Change the disk; answer with [`Input::Stored`]. In durability `lazy` a moment later will do.
    Store(StoreBatch),
    /// Somebody waits for what was to be stored so far.
    Flush,
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
    client: ClientId,
    number: RequestNumber,
    position: Viewstamp,
    body: Bytes,
}

/// One replica without its network, disk and clock.
pub struct Host<P: Protocol, S: StateMachine> {
    protocol: P,
    executor: Executor<S>,
    outputs: Outputs<P>,
    answers: Vec<Answer>,
    pending: VecDeque<PendingRead>,
    held: VecDeque<HeldRead>,
    /// Requests whose answers must wait until they are stable.
    durable: BTreeSet<(ClientId, RequestNumber)>,
    /// Committed answers to such requests, by their place in the log.
    unstable: BTreeMap<(OpNumber, ClientId, RequestNumber), Answer>,
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
            answers: Vec::new(),
            pending: VecDeque::new(),
            held: VecDeque::new(),
            durable: BTreeSet::new(),
            unstable: BTreeMap::new(),
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

    /// Hands an input to the protocol and appends what the environment must do. What clients say
    /// comes through [`Host::client`].
    pub fn step(&mut self, now: Now, input: InputOf<P>, effects: &mut Effects<P>) {
        if matches!(input, Input::Start(_) | Input::StateInstalled(Some(_))) {
            self.protocol.loaded(self.executor.lineage());
        }
        self.protocol.step(now, input, &mut self.outputs);
        self.interpret(now, effects);
    }

    /// A client has said something.
    pub fn client(&mut self, now: Now, message: ClientMessage, effects: &mut Effects<P>) {
        self.clients(now, core::iter::once(message), effects);
    }

    /// Clients have said all this at once.
    pub fn clients(
        &mut self,
        now: Now,
        messages: impl Iterator<Item = ClientMessage>,
        effects: &mut Effects<P>,
    ) {
        let mut any = false;
        for message in messages {
            match message {
                ClientMessage::Request { expected, durable, request } => {
                    any |= self.request(now, expected, durable, request, effects);
                }
                ClientMessage::Read { expected, request } => {
                    self.read(now, expected, request, effects);
                }
            }
        }
        if any {
            self.step(now, Input::Propose, effects);
        }
    }

    /// Returns whether the protocol has got it.
    fn request(
        &mut self,
        now: Now,
        expected: View,
        durable: bool,
        request: Request,
        effects: &mut Effects<P>,
    ) -> bool {
        let (client, number) = (request.client, request.number);
        if let Err(outcome) = self.welcome(client, expected) {
            effects.push(self.reply(client, number, false, outcome));
            return false;
        }
        let admission = self.admit(client, number);
        let fresh = admission == Admission::Fresh;
        match admission {
            Admission::Fresh => {
                self.accepted.insert(client, number);
                if durable {
                    self.durable.insert((client, number));
                }
                self.step(now, Input::Request(request), effects);
                if durable {
                    self.step(now, Input::Flush, effects);
                }
            }
            Admission::Duplicate(Some((position, body)))
                if position.op <= self.executor.committed() =>
            {
                if durable {
                    self.durable.insert((client, number));
                }
                self.answer(Answer { client, number, position, body }, effects);
            }
            // An empty request only asks whether what was executed is durable. It may wait while so
            // many others are answered that its own reply, empty too, is not kept any more.
            Admission::Duplicate(None)
                if durable
                    && request.body.is_empty()
                    && number <= self.executor.clients().last(client) =>
            {
                // Otherwise it waits already.
                if self.durable.insert((client, number)) {
                    let (position, body) = (self.executor.executed(), Bytes::new());
                    let answer = Answer { client, number, position, body };
                    self.unstable.insert((position.op, client, number), answer);
                    self.stabilise(self.executor.stable(), effects);
                }
            }
            // It will be answered when it commits, or was answered and the client said so.
            Admission::Duplicate(_) => {
                if durable && number > self.executor.clients().last(client) {
                    self.durable.insert((client, number));
                }
            }
            Admission::Gap => {
                let outcome = Outcome::Refused(Refusal::OutOfOrder);
                effects.push(self.reply(client, number, false, outcome));
            }
            Admission::Retired => {
                let outcome = Outcome::Refused(Refusal::Retired);
                effects.push(self.reply(client, number, false, outcome));
            }
        }
        fresh
    }

    /// Whether something is taken from a client that expects this view. Where acknowledged
    /// operations can be lost the client must name one: what it sent before it knew any could
    /// otherwise come late, and be executed after the client was told that it is lost.
    fn welcome(&self, client: ClientId, expected: View) -> Result<(), Outcome> {
        self.protocol.admission().map_err(Outcome::Refused)?;
        let any = || self.protocol.report().durability != Durability::Lazy;
        if expected == self.protocol.view() || (expected == View::default() && any()) {
            return Ok(());
        }
        Err(self.wrong_view(client, expected))
    }

    fn wrong_view(&self, client: ClientId, expected: View) -> Outcome {
        let kept = self.executor.last_of(expected).unwrap_or_default();
        Outcome::WrongView { expected, kept, last: self.executor.clients().last(client) }
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

    fn read(&mut self, now: Now, expected: View, request: ReadRequest, effects: &mut Effects<P>) {
        if let Err(outcome) = self.welcome(request.client, expected) {
            effects.push(self.reply(request.client, request.number, true, outcome));
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

    fn reply(
        &self,
        client: ClientId,
        number: RequestNumber,
        read: bool,
        outcome: Outcome,
    ) -> Effect<P::Message, P::Effect> {
        let (view, durable) = (self.protocol.view(), self.protocol.durable());
        Effect::Reply(Reply { client, number, read, view, durable, outcome })
    }

    /// Answers a request, or keeps the answer until it is stable.
    fn answer(&mut self, answer: Answer, effects: &mut Effects<P>) {
        let Answer { client, number, position, .. } = answer;
        if !self.durable.is_empty() && self.durable.contains(&(client, number)) {
            if position.op > self.executor.stable() {
                self.unstable.insert((position.op, client, number), answer);
                return;
            }
            self.durable.remove(&(client, number));
        }
        let Answer { position, body, .. } = answer;
        effects.push(self.reply(client, number, false, Outcome::Done { position, body }));
    }

    fn interpret(&mut self, now: Now, effects: &mut Effects<P>) {
        let mut outputs = core::mem::take(&mut self.outputs);
        for output in outputs.drain(..) {
            match output {
                Output::Execute(entry) => self.executor.execute(entry),
                Output::Answer(op) => self.answer_early(op, effects),
                Output::WrongView { client, number, expected } => {
                    let outcome = self.wrong_view(client, expected);
                    effects.push(self.reply(client, number, false, outcome));
                }
                Output::Commit { through, reply } => self.commit(through, reply, effects),
                Output::Stable(through) => self.stabilise(through, effects),
                Output::Rollback(keep) => {
                    self.executor.rollback(keep);
                    assert!(self.held.iter().all(|read| read.position.op <= keep), "deposed first");
                }
                Output::ReadReady(through) => self.execute_reads(now, through, effects),
                Output::Deposed => self.depose(effects),
                Output::WriteCheckpoint(position) => {
                    assert_eq!(position, self.executor.checkpoint_begin());
                    effects.push(Effect::WriteCheckpoint(position));
                }
                Output::Send(to, message) => effects.push(Effect::Send(to, message)),
                Output::Store(batch) => effects.push(Effect::Store(batch)),
                Output::Flush => effects.push(Effect::Flush),
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

    fn answer_early(&mut self, op: OpNumber, effects: &mut Effects<P>) {
        let (executor, protocol) = (&self.executor, &self.protocol);
        let (view, durable) = (protocol.view(), protocol.durable());
        executor.answers(op, |request, answer| {
            let outcome = match answer {
                Ok(Answer { position, body, .. }) => Outcome::Done { position, body },
                Err(refusal) => Outcome::Refused(refusal),
            };
            let (client, number) = (request.client, request.number);
            let reply = Reply { client, number, read: false, view, durable, outcome };
            effects.push(Effect::Reply(reply));
        });
    }

    fn commit(&mut self, through: OpNumber, reply: bool, effects: &mut Effects<P>) {
        let mut answers = core::mem::take(&mut self.answers);
        self.executor.commit(through, |answer| {
            if reply {
                answers.push(answer);
            }
        });
        for answer in answers.drain(..) {
            self.answer(answer, effects);
        }
        self.answers = answers;
        while self.held.front().is_some_and(|read| read.position.op <= through) {
            let HeldRead { client, number, position, body } =
                self.held.pop_front().expect("just seen");
            effects.push(self.reply(client, number, true, Outcome::Done { position, body }));
        }
    }

    fn stabilise(&mut self, through: OpNumber, effects: &mut Effects<P>) {
        self.executor.stabilise(through);
        while let Some(first) = self.unstable.first_entry() {
            if first.key().0 > through {
                break;
            }
            let answer = first.remove();
            self.answer(answer, effects);
        }
    }

    fn execute_reads(&mut self, now: Now, through: ReadNumber, effects: &mut Effects<P>) {
        while self.pending.front().is_some_and(|read| read.number <= through) {
            let PendingRead { request, .. } = self.pending.pop_front().expect("just seen");
            let position = self.executor.executed();
            let ReadRequest { client, number, body: question } = request;
            let mut body = Vec::new();
            match self.executor.read(now.unix_ms, &question, &mut body) {
                ReadOutcome::Done => {
                    let body = Bytes::from(body);
                    if position.op <= self.executor.committed() {
                        let outcome = Outcome::Done { position, body };
                        effects.push(self.reply(client, number, true, outcome));
                    } else {
                        self.held.push_back(HeldRead { client, number, position, body });
                    }
                }
                ReadOutcome::MustLog => {
                    effects.push(self.reply(client, number, true, Outcome::MustLog));
                }
            }
        }
    }

    fn depose(&mut self, effects: &mut Effects<P>) {
        self.accepted.clear();
        self.durable.clear();
        self.unstable.clear();
        let pending = core::mem::take(&mut self.pending);
        let held = core::mem::take(&mut self.held);
        let pending = pending.into_iter().map(|read| (read.request.client, read.request.number));
        let held = held.into_iter().map(|read| (read.client, read.number));
        for (client, number) in pending.chain(held) {
            let outcome = Outcome::Refused(Refusal::NotPrimary);
            effects.push(self.reply(client, number, true, outcome));
        }
    }
}
