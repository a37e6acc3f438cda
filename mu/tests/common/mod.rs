//! A group over the simulated fabric, its clients, its faults and its checkers, from one seed.
#![allow(dead_code)]

pub mod clients;
pub mod service;

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;

use fabric::sim::{Extent, Options, World};
use fabric::{Fabric, RegionId};
use mu::{Config, Event, Limits, Memory, Message, Replica, Timing};
use smr::contract::{Input, Protocol, Recovered, Trust};
use smr::rng::Rng;
use smr::{
    CheckpointChunk, ClientMessage, Effect, Executor, GroupId, Host, Identity, Incarnation, Log,
    Now, OpNumber, ReplicaId, Role, To, Viewstamp,
};

use clients::Clients;
use service::Register;

/// A replica's view of its own simulated memory.
#[derive(Clone)]
pub struct Own {
    world: Rc<RefCell<World>>,
    me: ReplicaId,
}

impl Memory for Own {
    fn load(&self, region: RegionId, offset: u32, words: &mut [u64]) {
        self.world.borrow_mut().port(self.me).load(region, offset, words);
    }
}

type Node = Host<Replica<Own>, Register>;
type In = Input<Message, Event>;

struct Machine {
    /// None while its process has ended.
    host: Option<Node>,
    life: u64,
    paused: bool,
    /// The newest checkpoint, and the one being fetched.
    disk: Option<(Viewstamp, Vec<u8>)>,
    saved: Vec<u8>,
    /// Its deadline that was acted on last.
    restart_at: Option<u64>,
    resume_at: Option<u64>,
    /// What waits for it to go on.
    held: Vec<((u64, u64), Mail)>,
}

enum Mail {
    Peer { from: ReplicaId, life: u64, to: ReplicaId, message: Message },
    Local { to: ReplicaId, life: u64, input: Box<In> },
    Client { to: ReplicaId, message: ClientMessage },
}

/// What a seed may do.
#[derive(Clone, Copy, Debug)]
pub struct Plan {
    pub replicas: u8,
    pub options: Options,
    pub limits: Limits,
    /// Microseconds with faults.
    pub storm: u64,
    /// One fault in so many microseconds, about.
    pub fault_every: u64,
    pub clients: usize,
    /// The environment knows, mostly, whose process does not run.
    pub watched: bool,
    #[cfg(feature = "planted-bugs")]
    pub bug: Option<mu::Bug>,
}

impl Plan {
    /// A plan drawn from a seed.
    pub fn draw(seed: u64) -> Plan {
        let mut rng = Rng::new(seed ^ 0x5eed);
        let mut options = if rng.chance(3, 4) { Options::rough() } else { Options::default() };
        options.by_processor = rng.chance(1, 3);
        options.switch = [2_000, 20_000, 100_000][rng.below(3) as usize];
        let slots = [8, 16, 64][rng.below(3) as usize];
        let kept = slots * (1 + rng.below(6) as u32);
        let outstanding = 1 + rng.below(6);
        let read_slots = 1 + rng.below(7) as u32;
        Plan {
            replicas: if rng.chance(1, 4) { 5 } else { 3 },
            options,
            limits: Limits { slots, kept, outstanding, read_slots, ..Limits::tiny() },
            storm: 10_000 + rng.below(20_000),
            fault_every: [300, 1_000, 4_000][rng.below(3) as usize],
            clients: 1 + rng.below(6) as usize,
            watched: rng.chance(1, 2),
            #[cfg(feature = "planted-bugs")]
            bug: None,
        }
    }
}

/// What happened, for the sum over many seeds.
#[derive(Clone, Copy, Debug, Default)]
pub struct Tally {
    pub operations: u64,
    pub writes: u64,
    pub reads: u64,
    pub kills: u64,
    pub pauses: u64,
    pub cuts: u64,
    pub leaders: u64,
    pub transfers: u64,
    pub recoveries: u64,
    pub halts: u64,
    /// Seeds in which more than f replicas had lost their memory.
    pub lost: u64,
}

impl Tally {
    pub fn add(&mut self, other: &Tally) {
        self.operations += other.operations;
        self.writes += other.writes;
        self.reads += other.reads;
        self.kills += other.kills;
        self.pauses += other.pauses;
        self.cuts += other.cuts;
        self.leaders += other.leaders;
        self.transfers += other.transfers;
        self.recoveries += other.recoveries;
        self.halts += other.halts;
        self.lost += other.lost;
    }
}

pub struct Group {
    pub plan: Plan,
    pub fabric: Rc<RefCell<World>>,
    machines: Vec<Machine>,
    mail: BTreeMap<(u64, u64), Mail>,
    sequence: u64,
    rng: Rng,
    pub clients: Clients,
    cuts: Vec<(ReplicaId, ReplicaId, u64)>,
    /// By operation: what every replica that executed it must agree on.
    decided: BTreeMap<OpNumber, (Viewstamp, u64)>,
    fault_at: u64,
    storming: bool,
    pub tally: Tally,
    last_leader: Option<ReplicaId>,
}

fn timing() -> Timing {
    Timing { heartbeat: 50, retry: 300, stall: 4_000, patience: 4_000 }
}

impl Group {
    pub fn new(plan: Plan, seed: u64) -> Group {
        let mut rng = Rng::new(seed);
        let mut config = Group::config(&plan, ReplicaId(0), 1);
        config.replicas = plan.replicas;
        let world = World::new(mu::geometry(&config), plan.options, rng.next_u64());
        let machine = || Machine {
            host: None,
            life: 0,
            paused: false,
            disk: None,
            saved: Vec::new(),
            restart_at: None,
            resume_at: None,
            held: Vec::new(),
        };
        let mut group = Group {
            fabric: Rc::new(RefCell::new(world)),
            machines: (0..plan.replicas).map(|_| machine()).collect(),
            mail: BTreeMap::new(),
            sequence: 0,
            clients: Clients::new(plan.clients, plan.replicas, rng.next_u64()),
            rng,
            cuts: Vec::new(),
            decided: BTreeMap::new(),
            fault_at: plan.fault_every,
            storming: false,
            tally: Tally::default(),
            last_leader: None,
            plan,
        };
        for id in group.ids() {
            group.start(id, Trust::New);
        }
        group
    }

    fn config(plan: &Plan, replica: ReplicaId, life: u64) -> Config {
        let identity = Identity { group: GroupId(1), replica, incarnation: Incarnation(life) };
        let mut config = Config::new(identity, plan.replicas);
        config.timing = timing();
        config.limits = plan.limits;
        #[cfg(feature = "planted-bugs")]
        {
            config.bug = plan.bug;
        }
        config
    }

    pub fn ids(&self) -> impl Iterator<Item = ReplicaId> + use<> {
        (0..self.plan.replicas).map(ReplicaId)
    }

    pub fn micros(&self) -> u64 {
        self.fabric.borrow().now() / 1_000
    }

    fn now(&self) -> Now {
        let micros = self.micros();
        Now { micros, unix_ms: micros / 1_000 }
    }

    fn start(&mut self, id: ReplicaId, trust: Trust) {
        let machine = &mut self.machines[id.index()];
        machine.life += 1;
        machine.disk = None;
        machine.saved.clear();
        let config = Group::config(&self.plan, id, machine.life);
        let memory = Own { world: self.fabric.clone(), me: id };
        let host = Host::new(Replica::new(config, memory), Executor::new(Register::default()));
        machine.host = Some(host);
        let recovered = Recovered {
            trust,
            view: smr::View::default(),
            log: Log::new(Viewstamp::default()),
            checkpoint: None,
        };
        self.step(id, Input::Start(recovered));
    }

    /// Whether a process can act.
    pub fn runs(&self, id: ReplicaId) -> bool {
        let machine = &self.machines[id.index()];
        machine.host.is_some() && !machine.paused
    }

    pub fn host(&self, id: ReplicaId) -> Option<&Node> {
        self.machines[id.index()].host.as_ref()
    }

    pub fn role(&self, id: ReplicaId) -> Option<Role> {
        self.host(id).map(|host| host.protocol().report().role)
    }

    fn step(&mut self, id: ReplicaId, input: In) {
        let now = self.now();
        let mut effects = Vec::new();
        let host = self.machines[id.index()].host.as_mut().expect("it runs");
        host.step(now, input, &mut effects);
        self.perform(id, effects);
    }

    fn client_says(&mut self, id: ReplicaId, message: ClientMessage) {
        let now = self.now();
        let mut effects = Vec::new();
        let host = self.machines[id.index()].host.as_mut().expect("it runs");
        host.client(now, message, &mut effects);
        self.perform(id, effects);
    }

    fn post(&mut self, delay: u64, mail: Mail) {
        self.sequence += 1;
        let at = self.fabric.borrow().now() + delay;
        self.mail.insert((at, self.sequence), mail);
    }

    fn local(&mut self, id: ReplicaId, input: In) {
        let life = self.machines[id.index()].life;
        let delay = self.rng.below(200_000);
        self.post(delay, Mail::Local { to: id, life, input: Box::new(input) });
    }

    fn perform(&mut self, id: ReplicaId, effects: Vec<Effect<Message, mu::Effect>>) {
        let life = self.machines[id.index()].life;
        for effect in effects {
            match effect {
                Effect::Protocol(effect) => effect.perform(&mut self.fabric.borrow_mut().port(id)),
                Effect::Send(to, message) => {
                    for other in self.ids().filter(|&other| other != id) {
                        if to == To::Others || to == To::One(other) {
                            self.send(id, life, other, message.clone());
                        }
                    }
                }
                Effect::Reply(reply) => {
                    let delay = self.rng.below(20_000);
                    let at = self.fabric.borrow().now() + delay;
                    self.clients.reply(at, id, reply);
                }
                Effect::WriteCheckpoint(position) => self.write_checkpoint(id, position),
                Effect::ReadCheckpoint { to, position, offset } => {
                    let chunk = self.read_checkpoint(id, position, offset);
                    self.local(id, Input::CheckpointChunk { to, chunk });
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
                Effect::Store(_) => unreachable!("nothing is stored in `memory`"),
            }
        }
        self.check(id);
    }

    fn send(&mut self, from: ReplicaId, life: u64, to: ReplicaId, message: Message) {
        let is_cut =
            |&(a, b, _): &(ReplicaId, ReplicaId, u64)| (a, b) == (from, to) || (b, a) == (from, to);
        if self.cuts.iter().any(is_cut) || self.rng.chance(1, 50) {
            return;
        }
        let delay = 1_000 + self.rng.below(50_000);
        self.post(delay, Mail::Peer { from, life, to, message });
    }

    fn write_checkpoint(&mut self, id: ReplicaId, position: Viewstamp) {
        let machine = &mut self.machines[id.index()];
        let host = machine.host.as_mut().expect("it runs");
        let mut bytes = Vec::new();
        loop {
            match host.checkpoint_next(1_000) {
                smr::executor::CheckpointStep::Chunk(chunk) => {
                    bytes.extend_from_slice(&(chunk.len() as u32).to_le_bytes());
                    bytes.extend_from_slice(&chunk);
                }
                smr::executor::CheckpointStep::Done(at) => {
                    assert_eq!(at, position);
                    break;
                }
            }
        }
        let length = bytes.len() as u64;
        machine.disk = Some((position, bytes));
        self.local(id, Input::CheckpointWritten { position, bytes: length });
    }

    fn read_checkpoint(
        &self,
        id: ReplicaId,
        position: Option<Viewstamp>,
        offset: u64,
    ) -> Option<CheckpointChunk> {
        let (at, bytes) = self.machines[id.index()].disk.as_ref()?;
        if position.is_some_and(|asked| asked != *at) || offset > bytes.len() as u64 {
            return None;
        }
        let rest = &bytes[offset as usize..];
        let piece = rest[..rest.len().min(2_000)].to_vec();
        let total = bytes.len() as u64;
        Some(CheckpointChunk { position: *at, offset, total, bytes: piece.into() })
    }

    fn install(&mut self, id: ReplicaId, position: Viewstamp) {
        let machine = &mut self.machines[id.index()];
        let bytes = machine.saved.clone();
        let executor = machine.host.as_mut().expect("it runs").restore();
        executor.restore_begin();
        let (mut rest, mut number) = (&bytes[..], 0);
        while let Some((len, after)) = rest.split_first_chunk::<4>() {
            let (chunk, after) = after.split_at(u32::from_le_bytes(*len) as usize);
            executor.restore_chunk(number, chunk).expect("a checkpoint");
            (rest, number) = (after, number + 1);
        }
        assert_eq!(executor.executed(), position);
        machine.disk = Some((position, bytes));
        self.tally.transfers += 1;
        self.local(id, Input::StateInstalled(Some(position)));
    }

    /// Agreement (A.7), validity (A.4), and what else can be seen from outside.
    fn check(&mut self, id: ReplicaId) {
        let host = self.machines[id.index()].host.as_ref().expect("it runs");
        let executor = host.executor();
        assert_eq!(executor.executed().op, executor.committed(), "only decided values execute");
        let state = (executor.executed(), executor.machine().digest);
        let known = *self.decided.entry(executor.executed().op).or_insert(state);
        assert_eq!(known, state, "two values were decided for one slot (A.7)");
        let value = executor.machine().value;
        assert!(value <= self.clients.largest(), "a value that nobody proposed (A.4)");
        if host.protocol().report().role == Role::Primary && self.last_leader != Some(id) {
            self.last_leader = Some(id);
            self.tally.leaders += 1;
        }
    }

    /// Lets time pass, until `until` (microseconds).
    pub fn run(&mut self, until: u64, storm: bool) {
        let until = until * 1_000;
        self.storming = storm;
        while self.fabric.borrow().now() < until {
            let at = self.next_at().min(until);
            let noticed = self.fabric.borrow_mut().step(at);
            if let Some(id) = noticed {
                self.notice(id);
                continue;
            }
            self.deliver();
            self.tick();
            self.clients_act();
            if storm && self.micros() >= self.fault_at {
                self.fault_at = self.micros() + 1 + self.rng.below(2 * self.plan.fault_every);
                self.fault();
            }
        }
    }

    fn next_at(&self) -> u64 {
        let due = |id| {
            let host = self.host(id).filter(|_| self.runs(id));
            host.and_then(Host::deadline).map(|at| at * 1_000)
        };
        let ticks = self.ids().filter_map(due);
        let mail = self.mail.first_key_value().map(|(&(at, _), _)| at);
        let ends = self.machines.iter().flat_map(|m| [m.restart_at, m.resume_at]).flatten();
        let ends = ends.chain(self.cuts.iter().map(|&(_, _, at)| at)).map(|at| at * 1_000);
        let faults = self.storming.then_some(self.fault_at * 1_000);
        let fabric = self.fabric.borrow();
        let all = ticks.chain(mail).chain(ends).chain(faults).chain(self.clients.next_at());
        // Something overdue belongs to one that cannot act.
        let now = fabric.now();
        all.chain(fabric.next_at()).map(|at| at.max(now + 1)).min().unwrap_or(u64::MAX)
    }

    fn notice(&mut self, id: ReplicaId) {
        if !self.runs(id) {
            return;
        }
        let mut words = Vec::new();
        loop {
            let completion = self.fabric.borrow_mut().port(id).poll(&mut words);
            let Some(completion) = completion else { break };
            let words = std::mem::take(&mut words);
            self.step(id, Input::Event(Event::Completed { completion, words }));
        }
        self.step(id, Input::Event(Event::Look));
    }

    fn deliver(&mut self) {
        let now = self.fabric.borrow().now();
        while let Some(first) = self.mail.first_entry() {
            let key = *first.key();
            if key.0 > now {
                break;
            }
            let mail = first.remove();
            let to = match &mail {
                Mail::Peer { to, .. } | Mail::Local { to, .. } | Mail::Client { to, .. } => *to,
            };
            if self.machines[to.index()].paused {
                self.machines[to.index()].held.push((key, mail));
                continue;
            }
            if self.machines[to.index()].host.is_none() {
                continue;
            }
            match mail {
                Mail::Peer { from, life, to, message } => {
                    let incarnation = Incarnation(life);
                    self.step(to, Input::Message { from, incarnation, message });
                }
                Mail::Local { to, life, input } => {
                    if self.machines[to.index()].life == life {
                        self.step(to, *input);
                    }
                }
                Mail::Client { to, message } => self.client_says(to, message),
            }
        }
    }

    fn tick(&mut self) {
        let now = self.micros();
        for id in self.ids() {
            let machine = &mut self.machines[id.index()];
            if machine.resume_at.is_some_and(|at| now >= at) {
                machine.resume_at = None;
                machine.paused = false;
                self.mail.extend(machine.held.drain(..));
                self.fabric.borrow_mut().resume(id);
                self.notice(id);
            }
            let machine = &mut self.machines[id.index()];
            if machine.restart_at.is_some_and(|at| now >= at) {
                machine.restart_at = None;
                self.fabric.borrow_mut().restart(id);
                self.start(id, Trust::Intact);
                self.tally.recoveries += 1;
            }
            let due = self.host(id).filter(|_| self.runs(id)).and_then(Host::deadline);
            if due.is_some_and(|at| now >= at) {
                self.step(id, Input::Timeout);
                self.notice(id);
                self.look_after(id);
            }
        }
        let (mended, cuts) = self.cuts.iter().partition(|&&(_, _, at)| now >= at);
        self.cuts = cuts;
        let mended: Vec<(ReplicaId, ReplicaId, u64)> = mended;
        for (a, b, _) in mended {
            self.fabric.borrow_mut().mend(a, b);
        }
    }

    /// Answers a replica's doubts, wrongly now and then.
    fn look_after(&mut self, id: ReplicaId) {
        if !self.plan.watched {
            return;
        }
        let doubted: Vec<ReplicaId> =
            self.host(id).into_iter().flat_map(|host| host.protocol().doubted()).collect();
        for other in doubted {
            if !self.runs(other) || self.rng.chance(1, 100) {
                self.tally.halts += 1;
                self.step(id, Input::Event(Event::Halted(other)));
            }
        }
    }

    fn clients_act(&mut self) {
        let now = self.fabric.borrow().now();
        for (to, message) in self.clients.act(now) {
            let delay = self.rng.below(20_000);
            self.post(delay, Mail::Client { to, message });
        }
    }

    /// Replicas that hold what they must, or stand still and will.
    fn whole(&self) -> usize {
        let whole = |id: &ReplicaId| {
            self.host(*id).is_some_and(|host| !host.protocol().status().recovering)
        };
        self.ids().filter(whole).count()
    }

    fn fault(&mut self) {
        let id = ReplicaId(self.rng.below(u64::from(self.plan.replicas)) as u8);
        // Leaders are hit as often as all others together.
        let id = match self.last_leader {
            Some(leader) if self.rng.chance(1, 2) => leader,
            _ => id,
        };
        let length = [100, 500, 2_000, 6_000][self.rng.below(4) as usize];
        let until = self.micros() + 1 + self.rng.below(length);
        match self.rng.below(5) {
            0 => {
                let majority = usize::from(self.plan.replicas) / 2 + 1;
                let is_whole = self.host(id).is_some_and(|h| !h.protocol().status().recovering);
                if self.host(id).is_some() && (self.whole() > majority || !is_whole) {
                    self.kill(id, until);
                }
            }
            1 | 2 => self.pause(id, until),
            _ => {
                let other = ReplicaId(self.rng.below(u64::from(self.plan.replicas)) as u8);
                let is_cut = self
                    .cuts
                    .iter()
                    .any(|&(a, b, _)| (a, b) == (id, other) || (b, a) == (id, other));
                if other != id && !is_cut {
                    self.tally.cuts += 1;
                    self.fabric.borrow_mut().cut(id, other);
                    self.cuts.push((id, other, until));
                }
            }
        }
    }

    pub fn kill(&mut self, id: ReplicaId, restart_at: u64) {
        self.tally.kills += 1;
        let machine = &mut self.machines[id.index()];
        machine.host = None;
        machine.paused = false;
        machine.held.clear();
        machine.resume_at = None;
        machine.restart_at = Some(restart_at);
        let mut fabric = self.fabric.borrow_mut();
        if self.rng.chance(1, 3) {
            fabric.wreck(id);
        } else {
            fabric.kill(id);
        }
    }

    pub fn pause(&mut self, id: ReplicaId, until: u64) {
        if !self.runs(id) {
            return;
        }
        self.tally.pauses += 1;
        let extent = if self.rng.chance(1, 2) { Extent::Process } else { Extent::Machine };
        self.machines[id.index()].paused = true;
        self.machines[id.index()].resume_at = Some(until);
        self.fabric.borrow_mut().pause(id, extent);
    }

    /// Ends all faults: everybody runs, everybody reaches everybody.
    pub fn heal(&mut self) {
        let now = self.micros();
        for machine in &mut self.machines {
            machine.restart_at = machine.restart_at.map(|_| now);
            machine.resume_at = machine.resume_at.map(|_| now);
        }
        for cut in &mut self.cuts {
            cut.2 = now;
        }
        self.fabric.borrow_mut().set_options(Options::default());
        self.plan.watched = false;
    }

    /// Termination (A.10): with all faults gone, everything asked for is answered, and every
    /// replica gets to the same state.
    pub fn settle(&mut self) {
        self.heal();
        self.clients.stop();
        let start = self.micros();
        let give_up = start + 400_000;
        loop {
            self.run(self.micros() + 1_000, false);
            let states: Vec<_> = self.ids().map(|id| self.state(id)).collect();
            let same = states.windows(2).all(|pair| pair[0] == pair[1]);
            if same && states[0].is_some() && self.clients.is_idle() {
                break;
            }
            assert!(
                self.micros() < give_up,
                "no progress after healing (A.10): {states:?} idle {} {:?}",
                self.clients.is_idle(),
                self.ids()
                    .map(|id| (self.role(id), self.host(id).map(|h| h.protocol().status())))
                    .collect::<Vec<_>>()
            );
        }
        self.tally.operations = self.decided.last_key_value().map_or(0, |(op, _)| op.0);
        (self.tally.writes, self.tally.reads) = self.clients.finished();
    }

    fn state(&self, id: ReplicaId) -> Option<(Viewstamp, u64)> {
        let host = self.host(id).filter(|host| !host.protocol().status().recovering)?;
        Some((host.executor().executed(), host.executor().machine().digest))
    }
}

/// One seed from start to end.
pub fn storm(plan: Plan, seed: u64) -> Tally {
    let mut group = Group::new(plan, seed);
    group.run(plan.storm, true);
    group.settle();
    group.tally
}
