//! A group, its sequencers, clients, network, disks, faults and checkers, from one seed.
#![allow(dead_code)]

pub mod checks;
pub mod clients;
pub mod disk;
pub mod faults;
pub mod plan;
pub mod service;
pub mod stories;

use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;
use nopaxos::{Effect as Own, Event, Message, Replica, Send, Status, Tally};
use oum::{Delivery, Header, Members, Receiver, Sender, Sequencer, Session};
use smr::contract::{Input, Recovered, Trust};
use smr::executor::CheckpointStep;
use smr::rng::Rng;
use smr::{
    CheckpointChunk, Durability, Effect, Executor, GroupId, Host, Identity, Incarnation, Log, Now,
    OpNumber, ReplicaId, Request, To, Viewstamp,
};

use checks::Reference;
use clients::Clients;
use disk::Disk;
pub use plan::Plan;
use service::Register;

pub type Node = Host<Replica, Register>;
type In = Input<Message, Event>;

pub const GROUP: GroupId = GroupId(3);

pub struct Machine {
    /// None while its process has ended.
    host: Option<Node>,
    life: u64,
    receiver: Receiver,
    pub disk: Disk,
    saved: Vec<u8>,
    /// Its executor holds what its protocol has not been told of.
    installing: bool,
    /// Messages of the sequencers do not reach it.
    pub deaf: bool,
    /// Its disk takes what it is given, and stores nothing.
    pub stuck: bool,
    /// It has not crashed since it was last in status Normal.
    pub whole: bool,
    /// It runs again, or goes on, at this time.
    pub restart_at: Option<u64>,
    pub resume_at: Option<u64>,
    /// What waits for it to go on.
    held: Vec<Mail>,
}

enum Mail {
    Peer { from: ReplicaId, life: u64, to: ReplicaId, bytes: Bytes },
    Local { to: ReplicaId, life: u64, input: Box<In> },
    Stored { to: ReplicaId, life: u64 },
    Sequencer { which: usize, bytes: Bytes },
    Packet { to: ReplicaId, bytes: Bytes },
    Body { to: ReplicaId, request: Request },
    Client { bytes: Bytes },
    NewSequencer,
}

impl Mail {
    fn to(&self) -> Option<ReplicaId> {
        match self {
            Mail::Peer { to, .. }
            | Mail::Local { to, .. }
            | Mail::Stored { to, .. }
            | Mail::Body { to, .. }
            | Mail::Packet { to, .. } => Some(*to),
            Mail::Sequencer { .. } | Mail::Client { .. } | Mail::NewSequencer => None,
        }
    }
}

/// One sequencer; after its death its counter is gone.
pub struct OneSequencer {
    counter: Sequencer,
    pub alive: bool,
}

pub struct Group {
    pub plan: Plan,
    pub now: u64,
    machines: Vec<Machine>,
    mail: BTreeMap<(u64, u64), Mail>,
    sequence: u64,
    pub rng: Rng,
    pub clients: Clients,
    pub sequencers: Vec<OneSequencer>,
    session: u32,
    /// Who counts in each session, from session 0 on.
    pub rosters: Vec<Members>,
    pub cuts: Vec<(ReplicaId, ReplicaId, u64)>,
    pub reference: Reference,
    /// When more than f replicas were forgetful last (durability `lazy`).
    pub excused_at: Option<u64>,
    /// Acknowledged writes that clients have learned to be lost.
    pub lost: Vec<Viewstamp>,
    /// What a fault waits for, and how often each has come.
    pub trap: Option<Trap>,
    pub sprung: [u64; 2],
    /// Multicast messages that a scenario loses: (session, number, replica).
    pub lose: BTreeSet<(u32, u64, u8)>,
    /// Multicast messages that a scenario has come later, by so much.
    pub late: BTreeMap<(u32, u64, u8), u64>,
    /// The replica that gets no bodies ahead.
    pub lose_bodies: Option<ReplicaId>,
    /// How many messages there were between replicas.
    pub sent: u64,
    /// Kinds of messages that a scenario loses, with sender and receiver.
    pub mute: Vec<(&'static str, Option<u8>, Option<u8>)>,
    fault_at: u64,
    storming: bool,
    pub tally: Tally,
    /// Changes of members that have come to their end.
    pub changes: u64,
    pub events: u64,
    pub story: bool,
}

/// What some faults wait for.
#[derive(Clone, Copy, Debug)]
pub enum Trap {
    /// A gap is open.
    Gap,
    /// A view change is under way.
    Change,
}

/// Beyond the end of any run, in microseconds.
const NEVER: u64 = 1 << 40;

/// More than this is a storm of messages, not a run.
const MOST_EVENTS: u64 = 3_000_000;

impl Group {
    pub fn new(plan: Plan, seed: u64) -> Group {
        let mut rng = Rng::new(seed);
        let machine = |_| Machine {
            host: None,
            life: 0,
            receiver: Receiver::new(GROUP, plan.patience, plan.window),
            disk: Disk::default(),
            saved: Vec::new(),
            installing: false,
            deaf: false,
            stuck: false,
            whole: true,
            restart_at: None,
            resume_at: None,
            held: Vec::new(),
        };
        let clients = Clients::new(&plan, Rng::new(rng.next_u64()));
        let mut group = Group {
            machines: (0..plan.replicas).map(machine).collect(),
            now: 0,
            mail: BTreeMap::new(),
            sequence: 0,
            clients,
            sequencers: Vec::new(),
            session: 0,
            rosters: vec![Members::all(plan.replicas)],
            cuts: Vec::new(),
            reference: Reference::new(plan.durability),
            excused_at: None,
            lost: Vec::new(),
            trap: None,
            sprung: [0; 2],
            lose: BTreeSet::new(),
            late: BTreeMap::new(),
            lose_bodies: None,
            sent: 0,
            mute: Vec::new(),
            fault_at: 0,
            storming: false,
            tally: Tally::default(),
            changes: 0,
            events: 0,
            story: false,
            rng,
            plan,
        };
        group.new_sequencer();
        for id in group.ids() {
            group.start(id, Trust::New);
        }
        group
    }

    pub fn ids(&self) -> impl Iterator<Item = ReplicaId> + use<> {
        (0..self.plan.replicas).map(ReplicaId)
    }

    pub fn host(&self, id: ReplicaId) -> Option<&Node> {
        self.machines[id.index()].host.as_ref()
    }

    pub fn replica(&self, id: ReplicaId) -> &Replica {
        self.host(id).expect("it runs").protocol()
    }

    pub fn machine(&mut self, id: ReplicaId) -> &mut Machine {
        &mut self.machines[id.index()]
    }

    pub fn runs(&self, id: ReplicaId) -> bool {
        let machine = &self.machines[id.index()];
        machine.host.is_some() && machine.resume_at.is_none()
    }

    pub fn session(&self) -> Session {
        Session(self.session)
    }

    /// Who counts in the newest session.
    pub fn members(&self) -> Members {
        *self.rosters.last().expect("there is one")
    }

    /// The controller begins a session in which the members become these.
    pub fn change_members(&mut self, after: Members) {
        assert!(!self.members().is_changing(), "one change at a time");
        let changing = self.members().change_to(after);
        self.new_session(changing);
    }

    /// The controller installs the next session, on a sequencer of its own.
    pub fn new_sequencer(&mut self) {
        self.new_session(self.members());
    }

    fn new_session(&mut self, members: Members) {
        self.rosters.push(members);
        self.session += 1;
        let mut counter = Sequencer::default();
        assert!(counter.begin(GROUP, Session(self.session)));
        self.sequencers.push(OneSequencer { counter, alive: true });
    }

    fn clock(&self) -> Now {
        Now { micros: self.now, unix_ms: 1_000_000 + self.now / 1_000 }
    }

    pub fn start(&mut self, id: ReplicaId, trust: Trust) {
        let plan = self.plan;
        let machine = &mut self.machines[id.index()];
        machine.life += 1;
        machine.saved.clear();
        machine.installing = false;
        machine.receiver = Receiver::new(GROUP, plan.patience, plan.window);
        let incarnation = Incarnation(machine.life);
        let identity = Identity { group: GROUP, replica: id, incarnation };
        let config = plan.config(identity, self.rng.next_u64());
        let mut executor = Executor::new(Register::default());
        let mut recovered = Recovered {
            trust,
            view: machine.disk.view,
            log: Log::new(Viewstamp::default()),
            checkpoint: None,
        };
        if trust == Trust::Intact && plan.durability != Durability::Memory {
            recovered.log = machine.disk.log();
            if let Some((position, bytes)) = &machine.disk.checkpoint {
                restore(&mut executor, bytes);
                recovered.checkpoint = Some(*position);
            }
        } else {
            machine.disk.forget();
        }
        machine.host = Some(Host::new(Replica::new(config), executor));
        self.step(id, Input::Start(recovered));
        // It asks the controllers at once.
        self.tell_session(id);
    }

    /// The controllers tell a replica of the newest session.
    fn tell_session(&mut self, id: ReplicaId) {
        let (session, members) = (self.session(), self.members());
        if self.runs(id) {
            self.step(id, Input::Event(Event::Session { session, members }));
        }
    }

    /// Members that have changed for good are told to the controllers, which end the change.
    fn end_change(&mut self) {
        let settled =
            |id: ReplicaId| self.runs(id) && self.replica(id).settled() == Some(self.session());
        if self.members().is_changing() && self.ids().any(settled) {
            self.changes += 1;
            self.new_session(self.members().changed());
        }
    }

    pub fn step(&mut self, id: ReplicaId, input: In) {
        let now = self.clock();
        let mut effects = Vec::new();
        let machine = &mut self.machines[id.index()];
        machine.installing &= !matches!(input, Input::StateInstalled(_));
        let host = machine.host.as_mut().expect("it runs");
        host.step(now, input, &mut effects);
        self.perform(id, effects);
        self.check(id);
    }

    fn post(&mut self, delay: u64, mail: Mail) {
        self.sequence += 1;
        self.mail.insert((self.now + delay, self.sequence), mail);
    }

    fn perform(&mut self, id: ReplicaId, effects: Vec<Effect<Message, Own>>) {
        let life = self.machines[id.index()].life;
        for effect in effects {
            match effect {
                Effect::Send(to, message) => {
                    self.check_message(id, &message);
                    for other in self.ids().filter(|&other| other != id) {
                        if to == To::Others || to == To::One(other) {
                            self.send(id, life, other, &message);
                        }
                    }
                }
                Effect::Store(batch) => {
                    self.machines[id.index()].disk.take(batch);
                    let is_stuck = self.machines[id.index()].stuck;
                    let delay = self.plan.disk_delay(&mut self.rng);
                    let delay = if is_stuck { NEVER } else { delay };
                    self.post(delay, Mail::Stored { to: id, life });
                }
                Effect::Reply(reply) => {
                    let reply = self.replica(id).sign(reply);
                    self.reply(id, &reply);
                }
                Effect::Protocol(Own::Reply(reply)) => self.reply(id, &reply),
                Effect::Protocol(Own::Listen { session, sequence }) => {
                    self.machines[id.index()].receiver.listen(session, sequence);
                    let input = Box::new(Input::Timeout); // the receiver may have something
                    self.post(0, Mail::Local { to: id, life, input });
                }
                Effect::WriteCheckpoint(position) => self.write_checkpoint(id, position),
                Effect::ReadCheckpoint { to, position, offset } => {
                    let chunk = self.read_checkpoint(id, position, offset);
                    let input = Box::new(Input::CheckpointChunk { to, chunk });
                    let delay = self.rng.below(50);
                    self.post(delay, Mail::Local { to: id, life, input });
                }
                Effect::SaveChunk(chunk) => {
                    let saved = &mut self.machines[id.index()].saved;
                    if chunk.offset == 0 {
                        saved.clear();
                    }
                    saved.extend_from_slice(&chunk.bytes);
                }
                Effect::InstallState(position) => self.install(id, position),
                Effect::Flush => {}
            }
        }
    }

    fn reply(&mut self, id: ReplicaId, reply: &nopaxos::Reply) {
        self.check_reply(id, reply);
        if self.story {
            let smr::Reply { client, number, ref outcome, .. } = reply.reply;
            println!("{:>8} {} -> c{} #{} {outcome:?}", self.now, id.0, client.gateway, number.0);
        }
        let mut bytes = Vec::new();
        reply.encode(&mut bytes);
        let bytes = Bytes::from(bytes);
        for delay in self.plan.transit(&mut self.rng) {
            self.post(delay, Mail::Client { bytes: bytes.clone() });
        }
    }

    fn send(&mut self, from: ReplicaId, life: u64, to: ReplicaId, message: &Message) {
        self.sent += 1;
        let is_cut = |&(a, b, _): &(ReplicaId, ReplicaId, u64)| (a, b) == (from, to);
        let name = match self.story || !self.mute.is_empty() {
            true => kind(message),
            false => String::new(),
        };
        let is_mute = |&(kind, a, b): &(&str, Option<u8>, Option<u8>)| {
            kind == name && a.is_none_or(|a| a == from.0) && b.is_none_or(|b| b == to.0)
        };
        if self.story {
            println!("{:>8} {} -> {} {:?} {}", self.now, from.0, to.0, message.view, name);
        }
        if self.cuts.iter().any(is_cut) || self.mute.iter().any(is_mute) {
            return;
        }
        let mut bytes = Vec::new();
        message.encode(&mut bytes);
        let bytes = Bytes::from(bytes);
        for delay in self.plan.transit(&mut self.rng) {
            self.post(delay, Mail::Peer { from, life, to, bytes: bytes.clone() });
        }
    }

    fn write_checkpoint(&mut self, id: ReplicaId, position: Viewstamp) {
        let machine = &mut self.machines[id.index()];
        let host = machine.host.as_mut().expect("it runs");
        let mut bytes = Vec::new();
        loop {
            match host.checkpoint_next(1_000) {
                CheckpointStep::Chunk(chunk) => {
                    bytes.extend_from_slice(&(chunk.len() as u32).to_le_bytes());
                    bytes.extend_from_slice(&chunk);
                }
                CheckpointStep::Done(at) => {
                    assert_eq!(at, position);
                    break;
                }
            }
        }
        let (life, length) = (machine.life, bytes.len() as u64);
        machine.disk.checkpoint = Some((position, bytes));
        let input = Box::new(Input::CheckpointWritten { position, bytes: length });
        let delay = self.rng.below(300);
        self.post(delay, Mail::Local { to: id, life, input });
    }

    fn read_checkpoint(
        &self,
        id: ReplicaId,
        position: Option<Viewstamp>,
        offset: u64,
    ) -> Option<CheckpointChunk> {
        let (at, bytes) = self.machines[id.index()].disk.checkpoint.as_ref()?;
        if position.is_some_and(|asked| asked != *at) || offset > bytes.len() as u64 {
            return None;
        }
        let rest = &bytes[offset as usize..];
        let piece = rest[..rest.len().min(1_500)].to_vec();
        let total = bytes.len() as u64;
        Some(CheckpointChunk { position: *at, offset, total, bytes: piece.into() })
    }

    fn install(&mut self, id: ReplicaId, position: Viewstamp) {
        let machine = &mut self.machines[id.index()];
        let bytes = machine.saved.clone();
        let executor = machine.host.as_mut().expect("it runs").restore();
        restore(executor, &bytes);
        assert_eq!(executor.executed(), position);
        machine.disk.checkpoint = Some((position, bytes));
        machine.installing = true;
        let life = machine.life;
        let delay = self.rng.below(200);
        let input = Box::new(Input::StateInstalled(Some(position)));
        self.post(delay, Mail::Local { to: id, life, input });
    }

    /// Lets time pass, until `until` (microseconds).
    pub fn run(&mut self, until: u64, storm: bool) {
        self.storming = storm;
        while self.now < until {
            self.now = self.next_at().clamp(self.now, until);
            self.deliver();
            self.tick();
            self.end_change();
            if storm {
                self.spring();
            }
            let sent = self.clients.act(self.clock());
            sent.into_iter().for_each(|send| self.client_sends(send));
            if storm && self.now >= self.fault_at {
                self.fault_at = self.now + 1 + self.rng.below(2 * self.plan.fault_every);
                self.fault();
            }
            self.events += 1;
            assert!(self.events < MOST_EVENTS, "a storm of messages");
        }
    }

    pub fn client_sends(&mut self, send: Send) {
        let request = match send {
            Send::Sequencer(payload) => return self.multicast(payload),
            Send::Replicas(request) => request,
        };
        let lost = self.lose_bodies;
        for to in self.ids().filter(|&to| Some(to) != lost) {
            for delay in self.plan.leg(&mut self.rng) {
                self.post(delay, Mail::Body { to, request: request.clone() });
            }
        }
    }

    /// A client's payload goes to the sequencer that it knows.
    pub fn multicast(&mut self, payload: Bytes) {
        let mut bytes = Vec::new();
        Sender::new(GROUP).message(&payload, &mut bytes);
        let newest = self.sequencers.len() - 1;
        // Some clients know an older one still.
        let which = if self.rng.chance(1, 20) { newest.saturating_sub(1) } else { newest };
        for delay in self.plan.transit(&mut self.rng) {
            let bytes = Bytes::copy_from_slice(&bytes);
            self.post(delay, Mail::Sequencer { which, bytes });
        }
    }

    fn next_at(&self) -> u64 {
        let of = |id: ReplicaId| {
            let machine = &self.machines[id.index()];
            let host = machine.host.as_ref().filter(|_| machine.resume_at.is_none());
            let due = host.and_then(Host::deadline);
            let packets = host.and_then(|_| machine.receiver.deadline());
            [due, packets, machine.restart_at, machine.resume_at].into_iter().flatten().min()
        };
        let machines = self.ids().filter_map(of);
        let mail = self.mail.first_key_value().map(|(&(at, _), _)| at);
        let cuts = self.cuts.iter().map(|&(_, _, at)| at);
        let faults = self.storming.then_some(self.fault_at);
        machines
            .chain(mail)
            .chain(cuts)
            .chain(faults)
            .chain(self.clients.next_at())
            .min()
            .unwrap_or(u64::MAX)
            .max(self.now + 1)
    }

    fn deliver(&mut self) {
        while let Some(first) = self.mail.first_entry() {
            if first.key().0 > self.now {
                break;
            }
            let mail = first.remove();
            if let Some(to) = mail.to() {
                let machine = &mut self.machines[to.index()];
                if machine.resume_at.is_some() && machine.host.is_some() {
                    machine.held.push(mail);
                    continue;
                }
                if machine.host.is_none() {
                    continue;
                }
            }
            self.deliver_one(mail);
        }
    }

    fn deliver_one(&mut self, mail: Mail) {
        match mail {
            Mail::Peer { from, life, to, bytes } => {
                let message = Message::decode(bytes).expect("what was encoded decodes");
                let incarnation = Incarnation(life);
                self.step(to, Input::Message { from, incarnation, message });
            }
            Mail::Local { to, life, input } => {
                if self.machines[to.index()].life == life {
                    self.step(to, *input);
                    self.receive(to);
                }
            }
            Mail::Stored { to, life } => {
                if self.machines[to.index()].life == life
                    && let Some(number) = self.machines[to.index()].disk.finish()
                {
                    self.step(to, Input::Stored(number));
                }
            }
            Mail::Sequencer { which, bytes } => self.stamp(which, &bytes),
            Mail::Packet { to, bytes } => {
                if self.machines[to.index()].deaf {
                    return;
                }
                let (header, payload) = Header::decode(&bytes).expect("undamaged");
                let machine = &mut self.machines[to.index()];
                machine.receiver.receive(self.now, &header, payload);
                self.receive(to);
            }
            Mail::Client { bytes } => {
                let now = self.clock();
                let lost = self.clients.on_reply(now, bytes);
                lost.iter().for_each(|operation| self.check_loss(operation));
            }
            Mail::Body { to, request } => self.step(to, Input::Event(Event::Body(request))),
            Mail::NewSequencer => self.new_sequencer(),
        }
    }

    fn stamp(&mut self, which: usize, bytes: &Bytes) {
        let sequencer = &mut self.sequencers[which];
        if !sequencer.alive {
            return;
        }
        let mut bytes = bytes.to_vec();
        let header = sequencer.counter.stamp(&mut bytes).expect("a sender's message");
        let bytes = Bytes::from(bytes);
        if self.story {
            println!("{:>8} stamped {:?} #{}", self.now, header.session, header.sequence);
        }
        for to in self.ids() {
            if self.lose.contains(&(header.session.0, header.sequence, to.0)) {
                continue;
            }
            let late = self.late.get(&(header.session.0, header.sequence, to.0)).copied();
            for delay in self.plan.leg(&mut self.rng) {
                self.post(delay + late.unwrap_or(0), Mail::Packet { to, bytes: bytes.clone() });
            }
        }
    }

    /// Hands to a replica what its receiver has for it.
    fn receive(&mut self, id: ReplicaId) {
        while self.runs(id) {
            let Some(delivery) = self.machines[id.index()].receiver.poll(self.now) else { return };
            if let Delivery::Terminated { .. } = delivery {
                self.tell_session(id);
            } else {
                self.step(id, Input::Event(Event::Delivery(delivery)));
            }
        }
    }

    fn tick(&mut self) {
        for id in self.ids() {
            let now = self.now;
            let machine = &mut self.machines[id.index()];
            if machine.restart_at.is_some_and(|at| now >= at) {
                machine.restart_at = None;
                let trust = match self.plan.durability {
                    Durability::Memory => Trust::Lost,
                    Durability::Sync | Durability::Lazy => Trust::Intact,
                };
                self.start(id, trust);
            }
            let machine = &mut self.machines[id.index()];
            if machine.resume_at.is_some_and(|at| now >= at) {
                machine.resume_at = None;
                let held = std::mem::take(&mut machine.held);
                for mail in held {
                    if self.host(id).is_some() {
                        self.deliver_one(mail);
                    }
                }
            }
            if !self.runs(id) {
                continue;
            }
            if self.host(id).and_then(Host::deadline).is_some_and(|at| now >= at) {
                self.step(id, Input::Timeout);
            }
            self.receive(id);
        }
        let now = self.now;
        self.cuts.retain(|&(_, _, until)| now < until);
    }

    /// What a message is called in the paper, or here.
    pub fn statuses(&self) -> Vec<Option<(Status, nopaxos::ViewId, OpNumber, OpNumber)>> {
        let of = |host: &Node| {
            let replica = host.protocol();
            let last = replica.log().last().op;
            (replica.status(), replica.view_id(), replica.sync_point(), last)
        };
        self.ids().map(|id| self.host(id).map(of)).collect()
    }
}

/// The first word of a message's body.
fn kind(message: &Message) -> String {
    let text = format!("{:?}", message.body);
    text.split(|c: char| !c.is_alphanumeric()).next().unwrap_or_default().to_string()
}

fn restore(executor: &mut Executor<Register>, bytes: &[u8]) {
    executor.restore_begin();
    let (mut rest, mut number) = (bytes, 0);
    while let Some((len, after)) = rest.split_first_chunk::<4>() {
        let (chunk, after) = after.split_at(u32::from_le_bytes(*len) as usize);
        executor.restore_chunk(number, chunk).expect("a checkpoint");
        (rest, number) = (after, number + 1);
    }
}
