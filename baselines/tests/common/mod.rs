//! A group of one of the baselines with its clients, network, faults and checkers, from one seed.
#![allow(dead_code)]

pub mod service;

use std::collections::BTreeMap;

use baselines::{Again, Baseline, Bug, Client, Config, Message, Timing};
use bytes::Bytes;
use smr::client_table::Admission;
use smr::contract::{Input, Recovered, Trust};
use smr::rng::Rng;
use smr::{
    ClientId, Effect, Executor, Host, Incarnation, Log, Now, OpNumber, Outcome, ReplicaId, Request,
    To, View, Viewstamp,
};

use service::Register;

/// What a seed decides before anything happens. Chances are in a thousand, times in microseconds.
#[derive(Clone, Copy, Debug)]
pub struct Plan {
    pub replicas: u8,
    pub clients: usize,
    pub think: u64,
    pub retry: u64,
    pub sync_every: u64,
    pub loss: u64,
    pub duplication: u64,
    pub delay: u64,
    pub spread: u64,
    pub storm: u64,
    pub fault_every: u64,
    pub crashes: bool,
    pub bug: Option<Bug>,
}

fn pick(rng: &mut Rng, from: &[u64]) -> u64 {
    from[rng.below(from.len() as u64) as usize]
}

impl Plan {
    /// Nothing goes wrong.
    pub fn calm(replicas: u8) -> Plan {
        Plan {
            replicas,
            clients: 2,
            think: 200,
            retry: 2_000,
            sync_every: 16,
            loss: 0,
            duplication: 0,
            delay: 10,
            spread: 0,
            storm: 0,
            fault_every: 1_000,
            crashes: false,
            bug: None,
        }
    }

    /// A plan drawn from a seed.
    pub fn draw(seed: u64, replicas: &[u64]) -> Plan {
        let mut rng = Rng::new(seed ^ 0x0ba5_e11e);
        Plan {
            replicas: pick(&mut rng, replicas) as u8,
            clients: 1 + rng.below(5) as usize,
            think: pick(&mut rng, &[20, 100, 400]),
            retry: pick(&mut rng, &[800, 2_000]),
            sync_every: pick(&mut rng, &[1, 4, 50]),
            loss: pick(&mut rng, &[0, 5, 30, 100]),
            duplication: pick(&mut rng, &[0, 10, 60]),
            delay: 10,
            spread: pick(&mut rng, &[0, 20, 200]),
            storm: pick(&mut rng, &[10_000, 20_000, 40_000]),
            fault_every: pick(&mut rng, &[500, 2_000]),
            crashes: rng.chance(2, 3),
            bug: None,
        }
    }

    fn config(&self, me: ReplicaId, seed: u64) -> Config {
        let mut config = Config::new(me, self.replicas, seed);
        config.timing = Timing { heartbeat: 300, election: 2_500, jitter: 1_000, patience: 900 };
        config.sync_every = self.sync_every;
        #[cfg(feature = "planted-bugs")]
        {
            config.bug = self.bug;
        }
        config
    }
}

enum Mail {
    Request { to: ReplicaId, request: Request },
    Peer { from: ReplicaId, to: ReplicaId, bytes: Bytes },
    Reply { bytes: Bytes },
}

pub struct Node<P: Baseline> {
    pub host: Option<Host<P, Register>>,
    paused_until: u64,
    held: Vec<Mail>,
    /// How much of its service's history was checked.
    seen: usize,
}

/// One write as its client saw it.
#[derive(Clone, Copy, Debug)]
struct Write {
    client: usize,
    value: u64,
    called: u64,
    /// When it was done, in which place, and what it found.
    done: Option<(u64, OpNumber, u64)>,
}

pub struct World<P: Baseline> {
    pub plan: Plan,
    pub now: u64,
    pub nodes: Vec<Node<P>>,
    clients: Vec<(Client, u64)>,
    writes: Vec<Write>,
    mail: BTreeMap<(u64, u64), Mail>,
    posted: u64,
    cuts: Vec<(ReplicaId, ReplicaId, u64)>,
    rng: Rng,
    fault_at: u64,
    stopped: bool,
    /// What is decided: each place's value, and what was found there.
    truth: BTreeMap<u64, (u64, u64)>,
    /// Messages between replicas, by a scenario lost: of these kinds.
    pub lose_requests: Vec<(ReplicaId, u64)>,
    pub events: u64,
}

const MOST_EVENTS: u64 = 2_000_000;

impl<P: Baseline> World<P> {
    pub fn new(plan: Plan, seed: u64) -> World<P> {
        let mut rng = Rng::new(seed);
        let client = |index: usize| {
            let id = ClientId { gateway: 100 + index as u32, incarnation: Incarnation(1) };
            #[allow(unused_mut)]
            let mut client = Client::new(id, plan.replicas, plan.retry);
            #[cfg(feature = "planted-bugs")]
            client.plant(plan.bug, plan.replicas);
            (client, 0)
        };
        let node = |id| {
            let replica = P::create(plan.config(ReplicaId(id), rng.next_u64()));
            let host = Host::new(replica, Executor::new(Register::default()));
            Node { host: Some(host), paused_until: 0, held: Vec::new(), seen: 0 }
        };
        let nodes = (0..plan.replicas).map(node).collect();
        let mut world = World {
            nodes,
            clients: (0..plan.clients).map(client).collect(),
            now: 0,
            writes: Vec::new(),
            mail: BTreeMap::new(),
            posted: 0,
            cuts: Vec::new(),
            fault_at: 0,
            stopped: false,
            truth: BTreeMap::new(),
            lose_requests: Vec::new(),
            events: 0,
            rng,
            plan,
        };
        for id in world.ids() {
            let (view, log) = (View::default(), Log::new(Viewstamp::default()));
            let recovered = Recovered { trust: Trust::New, view, log, checkpoint: None };
            world.step(id, Input::Start(recovered));
        }
        world
    }

    pub fn ids(&self) -> impl Iterator<Item = ReplicaId> + use<P> {
        (0..self.plan.replicas).map(ReplicaId)
    }

    pub fn replica(&self, id: ReplicaId) -> Option<&P> {
        self.nodes[id.index()].host.as_ref().map(Host::protocol)
    }

    pub fn writes_done(&self) -> usize {
        self.writes.iter().filter(|write| write.done.is_some()).count()
    }

    fn clock(&self) -> Now {
        Now { micros: self.now, unix_ms: 1_000 }
    }

    fn post(&mut self, mail: impl Fn() -> Mail) {
        if self.rng.chance(self.plan.loss, 1_000) {
            return;
        }
        let copies = 1 + usize::from(self.rng.chance(self.plan.duplication, 1_000));
        for _ in 0..copies {
            let delay = self.plan.delay + self.rng.below(self.plan.spread + 1);
            self.posted += 1;
            self.mail.insert((self.now + delay, self.posted), mail());
        }
    }

    fn multicast(&mut self, request: &Request) {
        for to in self.ids() {
            let lost = (to, request.number.0);
            if let Some(index) = self.lose_requests.iter().position(|&rule| rule == lost) {
                self.lose_requests.swap_remove(index);
                continue;
            }
            self.post(|| Mail::Request { to, request: request.clone() });
        }
    }

    fn step(&mut self, id: ReplicaId, input: Input<Message, Request>) {
        let now = self.clock();
        let Some(host) = self.nodes[id.index()].host.as_mut() else { return };
        let mut effects = Vec::new();
        host.step(now, input, &mut effects);
        for effect in effects {
            self.perform(id, effect);
        }
        self.check(id);
    }

    fn perform(&mut self, id: ReplicaId, effect: Effect<Message, Again>) {
        match effect {
            Effect::Send(to, message) => {
                let mut bytes = Vec::new();
                message.encode(&mut bytes);
                let bytes = Bytes::from(bytes);
                assert_eq!(Message::decode(bytes.clone()).as_ref(), Ok(&message));
                for other in self.ids().filter(|&other| other != id) {
                    let is_cut = self.cuts.iter().any(|&(a, b, _)| (a, b) == (id, other));
                    if !is_cut && (to == To::Others || to == To::One(other)) {
                        self.post(|| Mail::Peer { from: id, to: other, bytes: bytes.clone() });
                    }
                }
            }
            Effect::Reply(reply) => self.reply(id, reply),
            Effect::Protocol(Again { client, number }) => {
                let host = self.nodes[id.index()].host.as_ref().expect("it runs");
                let Admission::Duplicate(Some((position, body))) =
                    host.executor().admit(client, number)
                else {
                    panic!("what is decided was executed, and its reply is kept");
                };
                let (view, durable) = (View::default(), Viewstamp::default());
                let outcome = Outcome::Done { position, body };
                let reply = smr::Reply { client, number, read: false, view, durable, outcome };
                self.reply(id, reply);
            }
            other => panic!("nothing is stored: {other:?}"),
        }
    }

    fn reply(&mut self, id: ReplicaId, reply: smr::Reply) {
        let signed = self.replica(id).expect("it runs").sign(reply);
        let mut bytes = Vec::new();
        signed.encode(&mut bytes);
        let bytes = Bytes::from(bytes);
        self.post(|| Mail::Reply { bytes: bytes.clone() });
    }

    fn check(&mut self, id: ReplicaId) {
        let node = &mut self.nodes[id.index()];
        let executor = node.host.as_ref().expect("it runs").executor();
        let history = &executor.machine().history;
        while let Some(&(position, value, found)) = history.get(node.seen)
            && position <= executor.stable().0
        {
            let known = *self.truth.entry(position).or_insert((value, found));
            assert_eq!(known, (value, found), "agreement: two values at {position}");
            node.seen += 1;
        }
    }

    /// Lets time pass, until `until`.
    pub fn run(&mut self, until: u64, storm: bool) {
        while self.now < until {
            self.now = self.next_at(storm).clamp(self.now + 1, until.max(self.now + 1));
            self.deliver();
            for id in self.ids() {
                let node = &mut self.nodes[id.index()];
                if self.now < node.paused_until {
                    continue;
                }
                for mail in std::mem::take(&mut node.held) {
                    self.deliver_one(mail);
                }
                let host = self.nodes[id.index()].host.as_ref();
                if host.and_then(Host::deadline).is_some_and(|at| self.now >= at) {
                    self.step(id, Input::Timeout);
                }
            }
            self.act();
            if storm && self.now >= self.fault_at {
                self.fault_at = self.now + 1 + self.rng.below(2 * self.plan.fault_every);
                self.fault();
            }
            let now = self.now;
            self.cuts.retain(|&(_, _, until)| now < until);
            self.events += 1;
            assert!(self.events < MOST_EVENTS, "a storm of messages");
        }
    }

    fn next_at(&self, storm: bool) -> u64 {
        let nodes = self.nodes.iter().filter_map(|node| {
            let due = node.host.as_ref().and_then(Host::deadline)?;
            Some(due.max(node.paused_until))
        });
        let held = self.nodes.iter().filter(|node| !node.held.is_empty());
        let clients = self.clients.iter().filter_map(|(client, next_at)| {
            if client.is_waiting() {
                client.deadline()
            } else {
                (!self.stopped).then_some(*next_at)
            }
        });
        let mail = self.mail.first_key_value().map(|(&(at, _), _)| at);
        nodes
            .chain(held.map(|node| node.paused_until))
            .chain(clients)
            .chain(mail)
            .chain(storm.then_some(self.fault_at))
            .min()
            .unwrap_or(u64::MAX)
    }

    fn deliver(&mut self) {
        while let Some(first) = self.mail.first_entry() {
            if first.key().0 > self.now {
                break;
            }
            let mail = first.remove();
            self.deliver_one(mail);
        }
    }

    fn deliver_one(&mut self, mail: Mail) {
        match mail {
            Mail::Request { to, .. } | Mail::Peer { to, .. }
                if self.now < self.nodes[to.index()].paused_until =>
            {
                self.nodes[to.index()].held.push(mail);
            }
            Mail::Request { to, request } => self.step(to, Input::Event(request)),
            Mail::Peer { from, to, bytes } => {
                let message = Message::decode(bytes).expect("what was encoded decodes");
                self.step(to, Input::Message { from, incarnation: Incarnation(1), message });
            }
            Mail::Reply { bytes } => self.on_reply(bytes),
        }
    }

    fn on_reply(&mut self, bytes: Bytes) {
        let reply = baselines::Reply::decode(bytes).expect("what was encoded decodes");
        let index = (reply.reply.client.gateway - 100) as usize;
        let Some(finished) = self.clients[index].0.on_reply(reply) else { return };
        let of_client = |write: &&mut Write| write.client == index;
        let write = self.writes.iter_mut().rev().find(of_client).expect("it was asked");
        assert!(write.done.is_none(), "a request is done once");
        let found = u64::from_le_bytes(finished.body[..].try_into().expect("eight bytes"));
        write.done = Some((self.now, finished.position.op, found));
        self.clients[index].1 = self.now + 1 + self.rng.below(2 * self.plan.think);
    }

    fn act(&mut self) {
        for index in 0..self.clients.len() {
            let (client, next_at) = &self.clients[index];
            if !client.is_waiting() && !self.stopped && self.now >= *next_at {
                self.write(index);
            }
            let now = self.clock();
            if let Some(request) = self.clients[index].0.timeout(now) {
                self.multicast(&request);
            }
        }
    }

    /// A client that waits for nothing writes its next value.
    pub fn write(&mut self, client: usize) {
        let value = self.writes.len() as u64 + 1;
        let now = self.clock();
        let body = Bytes::copy_from_slice(&value.to_le_bytes());
        let request = self.clients[client].0.submit(now, body);
        self.writes.push(Write { client, value, called: self.now, done: None });
        self.multicast(&request);
    }

    fn fault(&mut self) {
        let length = [200, 1_000, 4_000][self.rng.below(3) as usize];
        let until = self.now + 1 + self.rng.below(length);
        let id = ReplicaId(self.rng.below(u64::from(self.plan.replicas)) as u8);
        let other = ReplicaId(self.rng.below(u64::from(self.plan.replicas)) as u8);
        match self.rng.below(8) {
            0 if self.plan.crashes => self.crash(id),
            0..=2 => self.nodes[id.index()].paused_until = until,
            3 | 4 => self.cuts.extend([(id, other, until), (other, id, until)]),
            5 => self.cuts.push((id, other, until)),
            _ => {
                for other in self.ids() {
                    self.cuts.extend([(id, other, until), (other, id, until)]);
                }
            }
        }
    }

    /// Ends a replica for ever, unless f have ended already.
    pub fn crash(&mut self, id: ReplicaId) {
        let dead = self.nodes.iter().filter(|node| node.host.is_none()).count();
        if dead < (usize::from(self.plan.replicas) - 1) / 2 {
            self.nodes[id.index()].host = None;
        }
    }

    /// All faults end, but for the dead. Everything asked for is answered, and everybody who is
    /// left gets to the same state.
    pub fn settle(&mut self) {
        let Plan { loss, duplication, spread, .. } = &mut self.plan;
        (*loss, *duplication, *spread) = (0, 0, 0);
        self.cuts.clear();
        self.lose_requests.clear();
        self.nodes.iter_mut().for_each(|node| node.paused_until = 0);
        self.stopped = true;
        let give_up = self.now + 300_000;
        loop {
            self.run(self.now + 1_000, false);
            let states: Vec<_> = self.nodes.iter().filter_map(|n| n.host.as_ref()).collect();
            let state = |host: &&Host<P, Register>| {
                let (executor, report) = (host.executor(), host.protocol().report());
                (executor.executed(), executor.stable(), report.op, executor.machine().value)
            };
            let first = state(&states[0]);
            let even = first.1 == first.2.op && states.iter().all(|host| state(host) == first);
            if even && self.clients.iter().all(|(client, _)| !client.is_waiting()) {
                break;
            }
            let reports: Vec<_> = states.iter().map(state).collect();
            assert!(self.now < give_up, "no progress after healing: {reports:?}");
        }
        self.check_history();
    }

    /// What was acknowledged is there, once, with the answer that was given, in an order that
    /// respects real time (linearizability of a register).
    fn check_history(&self) {
        let places: BTreeMap<u64, (u64, u64)> =
            self.truth.iter().map(|(&at, &(value, found))| (value, (at, found))).collect();
        assert_eq!(places.len(), self.truth.len(), "a value was executed twice");
        let mut done = Vec::new();
        for write in &self.writes {
            let Some((returned, place, found)) = write.done else { continue };
            let Some(&(executed, before)) = places.get(&write.value) else {
                panic!("acknowledged and lost: {write:?}");
            };
            // One that came again may have a place behind the one that executed it.
            assert!(executed <= place.0, "executed after it was acknowledged: {write:?}");
            assert_eq!(before, found, "told what never was: {write:?}");
            done.push((write.called, returned, executed));
        }
        let mut returns: Vec<_> = done.iter().map(|&(_, returned, at)| (returned, at)).collect();
        returns.sort_unstable();
        done.sort_unstable();
        let (mut latest, mut index) = (0, 0);
        for (called, _, executed) in done {
            while index < returns.len() && returns[index].0 < called {
                latest = returns[index].1.max(latest);
                index += 1;
            }
            assert!(executed > latest, "linearizability: place {executed} after {latest}");
        }
    }
}

/// One seed from start to end.
pub fn storm<P: Baseline>(plan: Plan, seed: u64) -> World<P> {
    let mut world = World::new(plan, seed);
    world.run(plan.storm, true);
    world.settle();
    world
}
