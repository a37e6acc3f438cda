//! The clients of a measurement: one loop, one socket, each client with one request on its way
//! ("closed loop": who is slow is asked less often, so that latency under stalls looks better than
//! an open load would see it; coordinated omission).

use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use bytes::Bytes;
use hdrhistogram::Histogram;
use nix::sys::socket::SockaddrIn;
use smr::client::{OnLoss, Retry, Sends};
use smr::codec::Writer;
use smr::{ClientMessage, Now, ReplicaId};

use super::Order;
use super::member::{CLIENT, GROUP, REPLY, client_id};
use super::turns::{Meter, Outcome, Phase, Turn, Turns};
use super::wire::{Socket, Wire};

/// A client asks again after so many microseconds.
pub(super) const RETRY: u64 = 5_000;
/// How often clients' deadlines are looked at, in microseconds.
const LOOK: u64 = 1_000;

/// Where requests go.
pub(super) struct Routes {
    pub(super) replicas: Vec<SockaddrIn>,
    /// The present sequencer.
    pub(super) sequencer: Option<SockaddrIn>,
}

enum Machine {
    /// Asks the primary (VR).
    Primary(Box<smr::client::Client>),
    /// Asks through the sequencer, and counts replies.
    Sequenced(Box<nopaxos::Client>),
    /// Asks all replicas.
    All(Box<baselines::Client>),
}

struct One {
    machine: Machine,
    asked: Instant,
    answered: u64,
}

/// All clients of a measurement.
pub(super) struct Load {
    wire: Wire,
    routes: Routes,
    clients: Vec<One>,
    sender: oum::Sender,
    sends: Sends,
    ordered: Vec<nopaxos::Send>,
    body: Bytes,
    turns: Turns,
    /// Who else is on this core.
    pub(super) here: Vec<Box<dyn Turn>>,
    /// Latencies in nanoseconds, of the measured phase.
    pub(super) latencies: Histogram<u64>,
    /// Requests that were answered per bucket, and the bucket's microseconds, if somebody wants it.
    pub(super) timeline: Option<(u64, Vec<u64>)>,
}

impl Load {
    pub(super) fn new(
        order: Order,
        socket: Socket,
        routes: Routes,
        clients: usize,
        bytes: usize,
        turns: Turns,
    ) -> Load {
        let replicas = routes.replicas.len() as u8;
        let machine = |index| match order {
            Order::Vr | Order::VrBatched => Machine::Primary(Box::new(smr::client::Client::new(
                client_id(index),
                replicas,
                ReplicaId(0),
                Retry::after(RETRY),
                OnLoss::Report,
            ))),
            Order::Nopaxos => Machine::Sequenced(Box::new(nopaxos::Client::new(
                client_id(index),
                replicas,
                RETRY,
                bytes,
            ))),
            Order::Unreplicated | Order::FastPaxos | Order::SpeculativePaxos => {
                Machine::All(Box::new(baselines::Client::new(client_id(index), replicas, RETRY)))
            }
        };
        let one = |index| One { machine: machine(index), asked: Instant::now(), answered: 0 };
        Load {
            wire: Wire::new(socket),
            routes,
            clients: (0..clients).map(one).collect(),
            sender: oum::Sender::new(GROUP),
            sends: Vec::new(),
            ordered: Vec::new(),
            body: vec![0x5a; bytes].into(),
            turns,
            here: Vec::new(),
            latencies: Histogram::new_with_bounds(1, 60_000_000_000, 3).expect("constant bounds"),
            timeline: None,
        }
    }

    /// How many of each client's requests were answered.
    pub(super) fn answered(&self) -> Vec<u64> {
        self.clients.iter().map(|client| client.answered).collect()
    }

    /// Clients send to this sequencer from now on.
    pub(super) fn reroute(&mut self, sequencer: SockaddrIn) {
        self.routes.sequencer = Some(sequencer);
    }

    /// Asks until the phases are over: `warm_up`, then `measured`. Calls `each` every turn. Returns
    /// what it did, and how long the measured phase was.
    pub(super) fn run(
        &mut self,
        warm_up: Duration,
        measured: Duration,
        limit: Instant,
        mut each: impl FnMut(&mut Load, Phase, Now),
    ) -> Result<(Outcome, Duration)> {
        let (mut meter, mut datagrams) = (Meter::default(), Vec::new());
        let mut look_at = 0;
        let start = Instant::now();
        let now = self.turns.now(start);
        for index in 0..self.clients.len() {
            self.ask(index, start, now);
        }
        self.wire.flush();
        // The group serves: it may have had to choose a leader.
        let mut served: Option<Instant> = None;
        loop {
            let start = Instant::now();
            let passed = served.map_or(Duration::ZERO, |served| start - served);
            let phase = match passed {
                passed if passed < warm_up => Phase::WarmUp,
                passed if passed < warm_up + measured => Phase::Measured,
                _ => Phase::Over,
            };
            meter.observe(phase, self.wire.counts);
            if phase != self.turns.phase() {
                self.turns.stage.set(phase);
            }
            if phase == Phase::Over {
                return Ok((meter.outcome(), passed - warm_up));
            }
            let now = self.turns.now(start);
            self.wire.receive(&mut datagrams)?;
            let received = datagrams.len();
            for datagram in datagrams.drain(..) {
                self.take(&datagram, phase, start, now);
            }
            if now.micros >= look_at {
                look_at = now.micros + LOOK;
                self.look(now);
                ensure!(start < limit, "the measurement took longer than --limit-s allows");
            }
            if served.is_none() && received > 0 && self.clients.iter().any(|one| one.answered > 0) {
                served = Some(start);
            }
            each(self, phase, now);
            self.wire.flush();
            if received > 0 {
                meter.busy(start);
            }
            let mut idle = received == 0;
            for one in &mut self.here {
                idle &= !one.turn()?;
            }
            if idle {
                self.turns.rest(&self.here, Some((&self.wire, look_at)));
            }
        }
    }

    fn ask(&mut self, index: usize, start: Instant, now: Now) {
        let one = &mut self.clients[index];
        one.asked = start;
        let body = self.body.clone();
        match &mut one.machine {
            Machine::Primary(client) => {
                let number = client.submit(now, body, false, &mut self.sends);
                assert!(number.is_some(), "it waits for nothing");
            }
            Machine::Sequenced(client) => {
                let number = client.submit(now, body, false, &mut self.ordered);
                assert!(number.is_some(), "it waits for nothing");
            }
            Machine::All(client) => {
                let request = client.submit(now, body);
                multicast(&mut self.wire, &self.routes, &request);
            }
        }
        self.post();
    }

    /// Sends what the machines want sent.
    fn post(&mut self) {
        for (to, message) in self.sends.drain(..) {
            self.wire.queue(self.routes.replicas[to.index()], |out| {
                out.push(CLIENT);
                ClientMessage::encode(&message, out);
            });
        }
        for send in self.ordered.drain(..) {
            let nopaxos::Send::Sequencer(payload) = send else {
                unreachable!("requests are short enough for the sequencer")
            };
            let Some(to) = self.routes.sequencer else { continue };
            self.wire.queue(to, |out| self.sender.message(&payload, out));
        }
    }

    fn take(&mut self, datagram: &Bytes, phase: Phase, start: Instant, now: Now) {
        if datagram.first() != Some(&REPLY) {
            return;
        }
        // The client's place is in its id; whoever it is, its machine checks the rest.
        let Some(index) = self.finish(datagram.slice(1..), now) else { return };
        let one = &mut self.clients[index];
        one.answered += 1;
        if phase == Phase::Measured {
            let took = Instant::now() - one.asked;
            self.latencies.saturating_record(took.as_nanos() as u64);
        }
        if let Some((bucket, counts)) = &mut self.timeline {
            let at = (now.micros / *bucket) as usize;
            if counts.len() <= at {
                counts.resize(at + 1, 0);
            }
            counts[at] += 1;
        }
        self.ask(index, start.max(Instant::now()), now);
    }

    /// Gives a reply to its client; returns which one is done by it.
    fn finish(&mut self, bytes: Bytes, now: Now) -> Option<usize> {
        let of = |client: smr::ClientId| Some((client.gateway.checked_sub(100)?) as usize);
        match &self.clients[0].machine {
            Machine::Primary(_) => {
                let reply = smr::Reply::decode(bytes).ok()?;
                let index = of(reply.client)?;
                let Machine::Primary(client) = &mut self.clients.get_mut(index)?.machine else {
                    return None;
                };
                let done = client.on_reply(now, reply, &mut self.sends).is_some();
                self.post();
                done.then_some(index)
            }
            Machine::Sequenced(_) => {
                let reply = nopaxos::Reply::decode(bytes).ok()?;
                let index = of(reply.reply.client)?;
                let Machine::Sequenced(client) = &mut self.clients.get_mut(index)?.machine else {
                    return None;
                };
                client.on_reply(now, reply).map(|_| index)
            }
            Machine::All(_) => {
                let reply = baselines::Reply::decode(bytes).ok()?;
                let index = of(reply.reply.client)?;
                let Machine::All(client) = &mut self.clients.get_mut(index)?.machine else {
                    return None;
                };
                client.on_reply(reply).map(|_| index)
            }
        }
    }

    /// Asks again where it is due.
    fn look(&mut self, now: Now) {
        for one in &mut self.clients {
            match &mut one.machine {
                Machine::Primary(client) => {
                    if client.deadline().is_some_and(|at| now.micros >= at) {
                        client.timeout(now, &mut self.sends);
                    }
                }
                Machine::Sequenced(client) => {
                    if client.deadline().is_some_and(|at| now.micros >= at) {
                        client.timeout(now, &mut self.ordered);
                    }
                }
                Machine::All(client) => {
                    if let Some(request) = client.timeout(now) {
                        multicast(&mut self.wire, &self.routes, &request);
                    }
                }
            }
        }
        self.post();
    }
}

/// One thread sends all requests to all replicas, so that they come in one order: the root switch
/// of [NOPaxos] 6.
fn multicast(wire: &mut Wire, routes: &Routes, request: &smr::Request) {
    for &to in &routes.replicas {
        wire.queue(to, |out| {
            out.push(CLIENT);
            request.encode(&mut Writer::new(out));
        });
    }
}
