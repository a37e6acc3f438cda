//! A replica of any of the protocols: its socket and its turns.
//!
//! Nothing is stored: what a protocol hands to its disk (views) counts as stored at once, and a
//! replica that ends does not come back.

use std::os::fd::{AsFd, BorrowedFd};
use std::time::Instant;

use anyhow::Result;
use baselines::{Again, Baseline};
use bytes::Bytes;
use nix::sys::socket::SockaddrIn;
use oum::{Delivery, Header, Receiver, Session};
use serde::Serialize;
use smr::client_table::Admission;
use smr::contract::{Input, Protocol, Recovered, To, Trust};
use smr::host::Effects;
use smr::rng::Rng;
use smr::{
    ClientId, ClientMessage, Effect, Executor, GroupId, Host, Incarnation, Log, Now, Outcome,
    ReplicaId, Request, View, Viewstamp,
};

use super::echo::Echo;
use super::turns::{End, Meter, Outcome as Measured, Phase, Turn, Turns};
use super::wire::{Counts, Pieces, Socket, Wire, pieces};
use crate::checkpoints::Checkpoints;

/// The first byte of a datagram; a sequenced one begins with the multicast header's.
pub(super) const PEER: u8 = 1;
pub(super) const CLIENT: u8 = 2;
pub(super) const REPLY: u8 = 3;

pub(super) const GROUP: GroupId = GroupId(1);
const LIFE: Incarnation = Incarnation(1);
/// As many messages wait for others that they have overtaken.
const WINDOW: usize = 8_192;

/// What only one family of protocols wants.
pub(super) enum Own {
    Listen { session: Session, sequence: u64 },
    Reply(nopaxos::Reply),
    Again(Again),
}

/// How a protocol is spoken: what its replicas' places need beyond [`Protocol`].
pub(super) struct Speech<P: Protocol> {
    encode: fn(&P::Message, &mut Vec<u8>),
    decode: fn(Bytes) -> Option<P::Message>,
    /// A client's datagram has come.
    ask: fn(&mut Host<P, Echo>, Now, Bytes, &mut Effects<P>),
    /// What the receiver of ordered multicast delivers, where there is one.
    delivered: fn(Delivery) -> Option<P::Event>,
    own: fn(P::Effect) -> Own,
    reply: fn(&P, smr::Reply, &mut Vec<u8>),
}

/// Viewstamped replication's.
pub(super) fn vr() -> Speech<vsr::Replica> {
    Speech {
        encode: vsr::Message::encode,
        decode: |bytes| vsr::Message::decode(bytes).ok(),
        ask: |host, now, bytes, effects| {
            if let Ok(message) = ClientMessage::decode(bytes) {
                host.client(now, message, effects);
            }
        },
        delivered: |_| None,
        own: |effect| match effect {},
        reply: |_, reply, out| reply.encode(out),
    }
}

/// NOPaxos's.
pub(super) fn nopaxos() -> Speech<nopaxos::Replica> {
    Speech {
        encode: nopaxos::Message::encode,
        decode: |bytes| nopaxos::Message::decode(bytes).ok(),
        ask: |_, _, _, _| unreachable!("requests are short enough for the sequencer"),
        delivered: |delivery| Some(nopaxos::Event::Delivery(delivery)),
        own: |effect| match effect {
            nopaxos::Effect::Listen { session, sequence } => Own::Listen { session, sequence },
            nopaxos::Effect::Reply(reply) => Own::Reply(reply),
        },
        reply: |replica, reply, out| replica.sign(reply).encode(out),
    }
}

/// A baseline's.
pub(super) fn baseline<P: Baseline>() -> Speech<P> {
    Speech {
        encode: baselines::Message::encode,
        decode: |bytes| baselines::Message::decode(bytes).ok(),
        ask: |host, now, bytes, effects| {
            let mut from = smr::codec::Reader::new(bytes);
            if let Ok(request) = Request::decode(&mut from) {
                host.step(now, Input::Event(request), effects);
            }
        },
        delivered: |_| None,
        own: Own::Again,
        reply: |replica, reply, out| replica.sign(reply).encode(out),
    }
}

/// What is lost on its way to a replica, by chances in a million.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub(super) struct Loss {
    /// Of requests: from clients or the sequencer.
    pub(super) requests: u64,
    /// Of messages between replicas.
    pub(super) messages: u64,
}

/// Where a replica is and whom it knows.
pub(super) struct Seat {
    pub(super) me: ReplicaId,
    pub(super) socket: Socket,
    /// Hears the sequencer where it sends to all at once.
    pub(super) multicast: Option<Socket>,
    pub(super) peers: Vec<SockaddrIn>,
    pub(super) clients: SockaddrIn,
    pub(super) loss: Loss,
    /// A message that has overtaken others waits for them so long, in microseconds.
    pub(super) patience: u64,
    pub(super) turns: Turns,
}

/// What a replica says in the end.
pub(super) struct Report {
    pub(super) measured: Measured,
    /// How many requests of each client it has executed.
    pub(super) executed: Vec<u64>,
    pub(super) report: smr::Report,
}

/// One client's identity.
pub(super) fn client_id(index: usize) -> ClientId {
    ClientId { gateway: 100 + index as u32, incarnation: LIFE }
}

/// A replica in its place.
pub(super) struct Member<P: Protocol> {
    me: ReplicaId,
    speech: Speech<P>,
    wire: Wire,
    multicast: Option<Wire>,
    peers: Vec<SockaddrIn>,
    clients: SockaddrIn,
    loss: Loss,
    turns: Turns,
    host: Host<P, Echo>,
    effects: Effects<P>,
    receiver: Receiver,
    checkpoints: Checkpoints,
    pieces: Pieces,
    /// Numbers the messages that were sent.
    sent: u32,
    rng: Rng,
    now: Now,
    meter: Meter,
    datagrams: Vec<Bytes>,
    /// How many clients there are.
    count: usize,
}

impl<P: Protocol> Member<P> {
    /// Starts a replica.
    pub(super) fn start(seat: Seat, replica: P, speech: Speech<P>, count: usize) -> Member<P> {
        let Seat { me, socket, multicast, peers, clients, loss, patience, turns } = seat;
        let mut member = Member {
            me,
            speech,
            wire: Wire::new(socket),
            multicast: multicast.map(Wire::new),
            peers,
            clients,
            loss,
            turns,
            host: Host::new(replica, Executor::new(Echo)),
            effects: Vec::new(),
            receiver: Receiver::new(GROUP, patience, WINDOW),
            checkpoints: Checkpoints::default(),
            pieces: Pieces::default(),
            sent: 0,
            rng: Rng::new(u64::from(me.0) + 1),
            now: Now { micros: 0, unix_ms: 0 },
            meter: Meter::default(),
            datagrams: Vec::new(),
            count,
        };
        let (view, log) = (View::default(), Log::new(Viewstamp::default()));
        let recovered = Recovered { trust: Trust::New, view, log, checkpoint: None };
        member.step(Input::Start(recovered));
        member
    }
}

impl<P: Protocol> Turn for Member<P> {
    fn turn(&mut self) -> Result<bool> {
        self.meter.observe(self.turns.phase(), self.counts());
        let start = Instant::now();
        self.now = self.turns.now(start);
        let mut datagrams = std::mem::take(&mut self.datagrams);
        self.wire.receive(&mut datagrams)?;
        if let Some(multicast) = &mut self.multicast {
            multicast.receive(&mut datagrams)?;
        }
        let idle = datagrams.is_empty();
        datagrams.drain(..).for_each(|datagram| self.take(datagram));
        self.datagrams = datagrams;
        self.deliver();
        if self.host.deadline().is_some_and(|at| self.now.micros >= at) {
            self.step(Input::Timeout);
        }
        self.wire.flush();
        if !idle {
            self.meter.busy(start);
        }
        Ok(!idle)
    }

    fn due(&self) -> Option<u64> {
        [self.host.deadline(), self.receiver.deadline()].into_iter().flatten().min()
    }

    fn fds(&self) -> Vec<BorrowedFd<'_>> {
        [&self.wire].into_iter().chain(&self.multicast).map(AsFd::as_fd).collect()
    }

    fn end(mut self: Box<Self>) -> End {
        self.meter.observe(Phase::Over, self.counts());
        let table = self.host.executor().clients();
        let executed = (0..self.count).map(|index| table.last(client_id(index)).0).collect();
        let report = self.host.protocol().report();
        End::Replica(Report { measured: self.meter.outcome(), executed, report })
    }
}

impl<P: Protocol> Member<P> {
    fn counts(&self) -> Counts {
        let heard = self.multicast.as_ref().map_or(Counts::default(), |wire| wire.counts);
        self.wire.counts.and(heard)
    }

    fn take(&mut self, datagram: Bytes) {
        let Some(&kind) = datagram.first() else { return };
        let loss = self.loss;
        let lost = if kind == PEER { loss.messages } else { loss.requests };
        if lost > 0 && self.rng.chance(lost, 1_000_000) {
            return;
        }
        match kind {
            CLIENT => {
                (self.speech.ask)(&mut self.host, self.now, datagram.slice(1..), &mut self.effects);
                self.perform();
            }
            PEER if datagram.len() > 2 => {
                let from = ReplicaId(datagram[1]);
                let Some(message) = self.pieces.take(from.0, datagram.slice(2..)) else { return };
                let Some(message) = (self.speech.decode)(message) else { return };
                self.step(Input::Message { from, incarnation: LIFE, message });
            }
            _ => {
                if let Ok((header, payload)) = Header::decode(&datagram) {
                    self.receiver.receive(self.now.micros, &header, payload);
                    self.deliver();
                }
            }
        }
    }

    /// Hands over what the receiver has put in order.
    fn deliver(&mut self) {
        while let Some(delivery) = self.receiver.poll(self.now.micros) {
            if let Some(event) = (self.speech.delivered)(delivery) {
                self.step(Input::Event(event));
            }
        }
    }

    fn step(&mut self, input: Input<P::Message, P::Event>) {
        self.host.step(self.now, input, &mut self.effects);
        self.perform();
    }

    fn perform(&mut self) {
        let mut effects = std::mem::take(&mut self.effects);
        let mut inputs = Vec::new();
        for effect in effects.drain(..) {
            match effect {
                Effect::Send(to, message) => self.send(to, &message),
                Effect::Reply(reply) => self.reply(reply),
                Effect::Store(batch) => inputs.push(Input::Stored(batch.number)),
                Effect::Flush => {}
                Effect::Protocol(effect) => self.perform_own((self.speech.own)(effect)),
                Effect::WriteCheckpoint(position) => {
                    let bytes = self.checkpoints.write(&mut self.host);
                    inputs.push(Input::CheckpointWritten { position, bytes });
                }
                Effect::ReadCheckpoint { to, position, offset } => {
                    let chunk = self.checkpoints.read(position, offset);
                    inputs.push(Input::CheckpointChunk { to, chunk });
                }
                Effect::SaveChunk(chunk) => self.checkpoints.save(&chunk),
                Effect::InstallState(position) => {
                    let installed = self.checkpoints.install(position, &mut self.host);
                    inputs.push(Input::StateInstalled(installed.ok().map(|()| position)));
                }
            }
        }
        self.effects = effects;
        inputs.into_iter().for_each(|input| self.step(input));
    }

    fn perform_own(&mut self, own: Own) {
        match own {
            Own::Listen { session, sequence } => self.receiver.listen(session, sequence),
            Own::Reply(reply) => {
                self.wire.queue(self.clients, |out| {
                    out.push(REPLY);
                    reply.encode(out);
                });
            }
            Own::Again(Again { client, number }) => {
                let kept = self.host.executor().admit(client, number);
                if let Admission::Duplicate(Some((position, body))) = kept {
                    let (view, durable) = (self.host.protocol().view(), Viewstamp::default());
                    let outcome = Outcome::Done { position, body };
                    self.reply(smr::Reply { client, number, read: false, view, durable, outcome });
                }
            }
        }
    }

    fn reply(&mut self, reply: smr::Reply) {
        let protocol = self.host.protocol();
        self.wire.queue(self.clients, |out| {
            out.push(REPLY);
            (self.speech.reply)(protocol, reply, out);
        });
    }

    fn send(&mut self, to: To, message: &P::Message) {
        let mut bytes = Vec::new();
        (self.speech.encode)(message, &mut bytes);
        self.sent = self.sent.wrapping_add(1);
        let me = self.me;
        for (id, &address) in self.peers.iter().enumerate() {
            if id == me.index() || !(to == To::Others || to == To::One(ReplicaId(id as u8))) {
                continue;
            }
            for (header, piece) in pieces(&bytes, self.sent) {
                self.wire.queue(address, |out| {
                    out.extend_from_slice(&[PEER, me.0]);
                    out.extend_from_slice(&header);
                    out.extend_from_slice(piece);
                });
            }
        }
    }
}
