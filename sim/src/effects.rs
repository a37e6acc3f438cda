//! What a process wants done: messages, batches, replies, files.

use bytes::Bytes;
use smr::client_table::Admission;
use smr::executor::CheckpointStep;
use smr::{Effect, Input, Refusal, ReplicaId, Reply, Request, To, Viewstamp};

use crate::disk::CheckpointFile;
use crate::ledger::{Checked, show};
use crate::node::{Incoming, Writing};
use crate::subject::Subject;
use crate::world::{Effects, Event, World, brief};

/// The time between two chunks of a checkpoint that is being written.
const TICK: u64 = 400;

impl<P: Subject> World<P> {
    pub(crate) fn interpret(&mut self, id: usize, effects: Effects<P>) -> Checked<()> {
        for effect in effects {
            match effect {
                Effect::Send(to, message) => self.send(id, to, &message)?,
                Effect::Store(batch) => self.store(id, batch),
                Effect::Flush => {} // its disks begin at once anyway
                Effect::Reply(reply) => self.reply(id, &reply)?,
                Effect::WriteCheckpoint(position) => {
                    self.note(|| format!("r{id} begins checkpoint {}", show(position)));
                    let executed = self.nodes[id].witness.executed.op;
                    if self.lazy() && executed > position.op {
                        self.marks.hit("checkpoint-below-tentative");
                    }
                    if self.nodes[id].writing.is_some() {
                        self.marks.hit("checkpoint-thrown-away");
                    }
                    self.nodes[id].writing = Some(Writing { position, chunks: Vec::new() });
                    self.later(id, TICK, Incoming::CheckpointTick);
                }
                Effect::ReadCheckpoint { to, position, offset } => {
                    let delay = self.nodes[id].disk.duration();
                    self.later(id, delay, Incoming::ReadPiece { to, position, offset });
                }
                Effect::SaveChunk(chunk) => self.nodes[id].save(chunk)?,
                Effect::InstallState(position) => {
                    let delay = self.nodes[id].disk.duration();
                    self.later(id, delay, Incoming::Install(position));
                }
                Effect::Protocol(never) => match never {},
            }
        }
        Ok(())
    }

    pub(crate) fn later(&mut self, id: usize, delay: u64, incoming: Incoming) {
        let life = Some(self.nodes[id].life);
        self.queue.after(delay, Event::Process { node: id, life, incoming });
    }

    fn send(&mut self, id: usize, to: To, message: &P::Message) -> Checked<()> {
        self.check_send(id, message)?;
        if let Some(mark) = P::mark(message) {
            self.marks.hit(mark);
        }
        let mut bytes = Vec::new();
        P::encode(message, &mut bytes);
        let bytes = Bytes::from(bytes);
        let incarnation = self.nodes[id].incarnation;
        let targets = match to {
            To::One(ReplicaId(one)) => usize::from(one)..usize::from(one) + 1,
            To::Others => 0..self.nodes.len(),
        };
        let late = self.options.times.election / 2;
        for target in targets.filter(|&target| target != id) {
            let filtered = self.filters.iter().any(|filter| {
                filter.name == P::name(message)
                    && filter.from.is_none_or(|from| from == id)
                    && filter.to.is_none_or(|to| to == target)
            });
            if filtered {
                continue;
            }
            let now = self.queue.now();
            let copies = self.network.transit(now, id, target);
            if copies[0].is_none_or(|at| at > now + late) {
                self.truth.broken(now, id, target);
            }
            for at in copies.into_iter().flatten() {
                let incoming = Incoming::Message { from: id, incarnation, bytes: bytes.clone() };
                self.queue.at(at, Event::Process { node: target, life: None, incoming });
            }
        }
        Ok(())
    }

    fn store(&mut self, id: usize, batch: smr::StoreBatch) {
        if batch.reset.is_some() {
            self.marks.hit("disk-reset");
        }
        if batch.truncate.is_some() {
            self.marks.hit("disk-truncate");
        }
        if batch.trim.is_some() {
            self.marks.hit("disk-trim");
        }
        let node = &mut self.nodes[id];
        let cures = !node.forgetful;
        node.disk.submit(batch, cures);
        if node.disk.groups() {
            self.marks.hit("group-commit");
        }
        self.sync(id);
    }

    fn reply(&mut self, id: usize, reply: &Reply) -> Checked<()> {
        if !reply.read {
            self.ledger.replied(reply)?;
            self.check_reply(id, reply)?;
        }
        if self.gone && matches!(reply.outcome, smr::Outcome::Done { .. }) {
            return Err(format!("state lost: r{id} serves a group that has no state"));
        }
        match reply.outcome {
            smr::Outcome::WrongView { .. } => self.marks.hit("wrong-view"),
            smr::Outcome::MustLog => self.marks.hit("must-log"),
            smr::Outcome::Refused(Refusal::OutOfOrder) => self.marks.hit("out-of-order"),
            _ => {}
        }
        let known = |gateway: &crate::gateway::Gateway| gateway.id == reply.client.gateway;
        let Some(gateway) = self.gateways.iter().position(known) else { return Ok(()) };
        if self.traced() {
            let (gateway, number) = (reply.client.gateway, reply.number.0);
            let text = brief(&reply.outcome);
            self.note(|| format!("g{gateway} <- r{id} answer {number} {text}"));
        }
        let mut bytes = Vec::new();
        reply.encode(&mut bytes);
        let bytes = Bytes::from(bytes);
        let address = self.gateways[gateway].address;
        for at in self.network.transit(self.queue.now(), id, address).into_iter().flatten() {
            self.queue.at(at, Event::Reply { gateway, bytes: bytes.clone() });
        }
        Ok(())
    }

    pub(crate) fn mark_request(&mut self, id: usize, request: &Request) {
        let host = self.nodes[id].host.as_ref().expect("it is up");
        if smr::Protocol::admission(host.protocol()).is_err() {
            return;
        }
        match host.executor().admit(request.client, request.number) {
            Admission::Duplicate(Some((at, _))) if at.op <= host.executor().committed() => {
                self.marks.hit("duplicate-answered");
            }
            Admission::Retired => self.marks.hit("retired"),
            _ => {}
        }
    }

    pub(crate) fn checkpoint_tick(&mut self, id: usize) -> Checked<()> {
        let budget = self.nodes[id].disk.piece();
        let node = &mut self.nodes[id];
        let Some(writing) = &mut node.writing else { return Ok(()) };
        let host = node.host.as_mut().expect("it is up");
        match host.checkpoint_next(budget) {
            CheckpointStep::Chunk(chunk) => {
                writing.chunks.push(chunk);
                self.later(id, TICK, Incoming::CheckpointTick);
            }
            CheckpointStep::Done(_) => {
                let Writing { position, chunks } = node.writing.take().expect("just seen");
                let file = CheckpointFile::of_chunks(position, &chunks);
                let delay = self.nodes[id].disk.duration();
                self.later(id, delay, Incoming::CheckpointPut(file));
            }
        }
        Ok(())
    }

    pub(crate) fn install(&mut self, id: usize, position: Viewstamp) -> Checked<()> {
        let bug = self.options.bug;
        let node = &mut self.nodes[id];
        let installed = match node.take_saved(position) {
            None => None,
            Some(file) => {
                let mut host = node.host.take().expect("it is up");
                node.writing = None;
                let loaded = node.load(host.restore(), &file, bug, &mut self.ledger);
                node.host = Some(host);
                loaded?;
                node.disk.put_checkpoint(file);
                Some(position)
            }
        };
        self.marks.hit(if installed.is_some() { "state-installed" } else { "state-damaged" });
        self.note(|| format!("r{id} installs {}: {}", show(position), installed.is_some()));
        let input = Input::StateInstalled(installed);
        self.step(id, |host, now, effects| host.step(now, input, effects))
    }
}
