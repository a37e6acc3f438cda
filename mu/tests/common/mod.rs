//! A group over the simulated fabric, its clients, its faults and its checkers, from one seed.
#![allow(dead_code)]

pub mod clients;
pub mod disk;
mod faults;
pub mod ledger;
pub mod service;

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;

use fabric::sim::{Options, World};
use fabric::{Fabric, RegionId};
use mu::{Config, Event, LOG, Limits, Memory, Message, Replica, Timing};
use smr::contract::{Input, Protocol, Recovered, Trust};
use smr::rng::Rng;
use smr::{
    ClientMessage, Durability, Effect, Executor, GroupId, Host, Identity, Incarnation, Log, Now,
    OpNumber, ReplicaId, Role, To, Viewstamp,
};

use clients::Clients;
use disk::Disk;
use ledger::Ledger;
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

pub type Node = Host<Replica<Own>, Register>;
type In = Input<Message, Event>;

struct Machine {
    /// None while its process has ended.
    host: Option<Node>,
    life: u64,
    paused: bool,
    disk: Disk,
    /// The disk has lost what it held, and what it had to hold is not all there again: as a marked
    /// data directory.
    lost: bool,
    /// minProposal in its log, as seen last in this life.
    min_proposal: u64,
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
    /// The first members, a bit each.
    pub members: u16,
    pub durability: Durability,
    /// Whether members come and go.
    pub changes: bool,
    /// And often.
    pub restless: bool,
    /// How long a batch takes to reach a disk, at most, in nanoseconds.
    pub slowness: u64,
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
        let five = rng.chance(1, 4);
        let durability = [Durability::Memory, Durability::Sync, Durability::Lazy];
        let durability = durability[(seed % 3) as usize];
        let (slots, kept, outstanding) = match durability {
            Durability::Memory => (slots, kept, outstanding),
            // Leaders that crash before they get anywhere leave entries behind, which fill a ring.
            _ if (seed / 3) % 4 == 3 => (8, kept.max(64), outstanding.min(4)),
            _ => (slots.max(16), kept.max(64), outstanding.min(4)),
        };
        let changes = rng.chance(1, 3);
        let members = if changes && five { [7, 15, 30][rng.below(3) as usize] } else { 31 };
        Plan {
            replicas: if five { 5 } else { 3 },
            members: if five { members } else { 7 },
            durability,
            changes,
            restless: false,
            slowness: [5_000, 50_000, 1_000_000][rng.below(3) as usize],
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
    pub changes: u64,
    /// Crashes of all at once.
    pub blackouts: u64,
    /// Disks that came back empty.
    pub disks: u64,
    pub risky: u64,
    pub rolled_back: u64,
    /// Acknowledged operations that were lost (`lazy`).
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
        self.changes += other.changes;
        self.blackouts += other.blackouts;
        self.disks += other.disks;
        self.risky += other.risky;
        self.rolled_back += other.rolled_back;
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
    pub ledger: Ledger,
    steps: u64,
    /// Members that somebody asked for.
    proposed: Vec<u16>,
    fault_at: u64,
    storming: bool,
    pub tally: Tally,
    last_leader: Option<ReplicaId>,
}

fn timing() -> Timing {
    Timing {
        heartbeat: 50,
        retry: 300,
        stall: 4_000,
        patience: 4_000,
        disk_stall: 12_000,
        reluctance: 5_000,
    }
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
            disk: Disk::new(plan.slowness),
            lost: false,
            min_proposal: 0,
            restart_at: None,
            resume_at: None,
            held: Vec::new(),
        };
        let mut group = Group {
            fabric: Rc::new(RefCell::new(world)),
            machines: (0..plan.replicas).map(|_| machine()).collect(),
            mail: BTreeMap::new(),
            sequence: 0,
            clients: Clients::new(
                plan.clients,
                plan.replicas,
                plan.durability == Durability::Lazy,
                rng.next_u64(),
            ),
            rng,
            cuts: Vec::new(),
            ledger: Ledger::default(),
            steps: 0,
            proposed: Vec::new(),
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
        config.members = plan.members;
        config.durability = plan.durability;
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
        machine.min_proposal = 0;
        let mut recovered = Recovered {
            trust,
            view: smr::View::default(),
            log: Log::new(Viewstamp::default()),
            checkpoint: None,
        };
        if self.plan.durability == Durability::Memory {
            machine.disk = Disk::new(self.plan.slowness);
        } else if trust == Trust::Intact {
            let trust = if machine.lost { Trust::Lost } else { trust };
            recovered = Recovered { trust, ..machine.disk.recovered() };
        }
        let config = Group::config(&self.plan, id, machine.life);
        let memory = Own { world: self.fabric.clone(), me: id };
        let host = Host::new(Replica::new(config, memory), Executor::new(Register::default()));
        machine.host = Some(host);
        self.load(id);
        self.step(id, Input::Start(recovered));
    }

    /// Loads the checkpoint on disk into the executor.
    fn load(&mut self, id: ReplicaId) {
        let machine = &mut self.machines[id.index()];
        let executor = machine.host.as_mut().expect("it runs").restore();
        executor.restore_begin();
        for (number, chunk) in (0..).zip(machine.disk.chunks()) {
            executor.restore_chunk(number, &chunk).expect("a checkpoint");
        }
        let position = machine.disk.checkpoint.as_ref().map(|checkpoint| checkpoint.0);
        assert_eq!(executor.executed(), position.unwrap_or_default());
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
                    let chunk = self.machines[id.index()].disk.read(position, offset);
                    self.local(id, Input::CheckpointChunk { to, chunk });
                }
                Effect::SaveChunk(chunk) => {
                    let saved = &mut self.machines[id.index()].disk.saved;
                    if chunk.offset == 0 {
                        saved.clear();
                    }
                    saved.extend_from_slice(&chunk.bytes);
                }
                Effect::InstallState(position) => self.install(id, position),
                Effect::Flush => {
                    let now = self.fabric.borrow().now();
                    self.machines[id.index()].disk.hurry(now);
                }
                Effect::Store(batch) => {
                    assert_ne!(self.plan.durability, Durability::Memory, "nothing is stored");
                    let now = self.fabric.borrow().now();
                    self.machines[id.index()].disk.hand(now, batch, &mut self.rng);
                }
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
        machine.disk.checkpoint = Some((position, bytes));
        self.local(id, Input::CheckpointWritten { position, bytes: length });
    }

    fn install(&mut self, id: ReplicaId, position: Viewstamp) {
        self.machines[id.index()].disk.install(position);
        self.load(id);
        self.tally.transfers += 1;
        self.local(id, Input::StateInstalled(Some(position)));
    }

    /// Agreement (A.7), validity (A.4), and what else can be seen from outside.
    fn check(&mut self, id: ReplicaId) {
        self.steps += 1;
        let host = self.machines[id.index()].host.as_ref().expect("it runs");
        let (executor, report) = (host.executor(), host.protocol().report());
        let executed = executor.executed();
        assert_eq!(executed.op, executor.committed(), "only decided values execute");
        let digest = executor.machine().digest;
        let value = executor.machine().value;
        assert!(value <= self.clients.largest(), "a value that nobody proposed (A.4)");
        self.ledger.executed(self.plan.durability, executed, digest);
        let durable = report.durable;
        if durable != Viewstamp::default() && self.clients.durable.last() != Some(&durable) {
            self.clients.durable.push(durable);
        }
        if report.role == Role::Primary {
            self.check_primary(id, executed, durable);
            if self.last_leader != Some(id) {
                self.last_leader = Some(id);
                self.tally.leaders += 1;
            }
        }
        self.check_log(id, executed);
    }

    /// What a leader has executed, a majority of its members has accepted (A.1), and has on disk as
    /// the durability says.
    fn check_primary(&self, id: ReplicaId, executed: Viewstamp, durable: Viewstamp) {
        let members = self.host(id).expect("it runs").protocol().members();
        let majority = members.count_ones() as usize / 2 + 1;
        let count = |holds: &dyn Fn(ReplicaId) -> bool| {
            self.ids().filter(|&id| members & 1 << id.0 != 0 && holds(id)).count()
        };
        if self.plan.durability == Durability::Memory {
            return;
        }
        let stored = if self.plan.durability == Durability::Sync { executed } else { durable };
        let holds = |machine: &Machine| machine.lost || machine.disk.holds(stored);
        let on_disk = count(&|id| holds(&self.machines[id.index()]));
        assert!(on_disk >= majority, "{stored:?} is on {on_disk} disks of {majority}");
    }

    /// The own log: minProposal only grows; a decided value is not replaced (A.2); what the holder
    /// of the highest number wrote has no holes below (A.11).
    fn check_log(&mut self, id: ReplicaId, executed: Viewstamp) {
        let limits = self.plan.limits;
        let load =
            |offset, words: &mut [u64]| self.fabric.borrow_mut().port(id).load(LOG, offset, words);
        let mut head = [0];
        load(0, &mut head);
        let known = &mut self.machines[id.index()].min_proposal;
        assert!(head[0] >= *known, "minProposal falls");
        *known = head[0];
        let slot = |op: OpNumber| {
            let (offset, words) = mu::slot_place(&limits, op);
            let mut words = vec![0; words as usize];
            load(offset, &mut words);
            mu::slot_in(&limits, op, &words)
        };
        if self.plan.durability != Durability::Lazy
            && executed.op.0 > 0
            && let Some((_, there)) = slot(executed.op)
        {
            let later = there.view.0 < executed.view.0; // a stale one that was never decided
            assert!(there == executed || later, "a decided value was replaced (A.2)");
        }
        // A leader that fills anew what a lost log has left may end before its own slots.
        let host = self.machines[id.index()].host.as_ref().expect("it runs");
        if !self.steps.is_multiple_of(32) || host.protocol().report().rolled_back > 0 {
            return;
        }
        let mut hole = None;
        let mut above = None;
        for op in (1..=u64::from(limits.slots)).map(|ahead| OpNumber(executed.op.0 + ahead)) {
            match slot(op) {
                Some((number, _)) if number.0 == head[0] && hole.is_some() => above = Some(op),
                Some(_) => {}
                None => hole = hole.or(Some(op)),
            }
        }
        assert!(above.is_none(), "a hole {hole:?} below {above:?} (A.11)");
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
            self.disks_act();
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
        // "Never" is the highest number.
        let ends = ends.chain(self.cuts.iter().map(|&(_, _, at)| at));
        let ends = ends.map(|at| at.saturating_mul(1_000));
        let disks = self.machines.iter().filter_map(|machine| machine.disk.next_at());
        let faults = self.storming.then_some(self.fault_at * 1_000);
        let fabric = self.fabric.borrow();
        let all =
            ticks.chain(mail).chain(ends).chain(disks).chain(faults).chain(self.clients.next_at());
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
        for (a, b, _) in self.cuts.extract_if(.., |&mut (_, _, at)| now >= at) {
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

    fn disks_act(&mut self) {
        let now = self.fabric.borrow().now();
        for id in self.ids() {
            let machine = &mut self.machines[id.index()];
            // Once it does not recover any more and all that it has handed over is there.
            let is_idle = machine.lost && machine.disk.next_at().is_none();
            let host = machine.host.as_ref().filter(|_| is_idle);
            if host.is_some_and(|host| !host.protocol().status().recovering) {
                machine.lost = false;
            }
            if machine.host.is_some()
                && let Some(number) = machine.disk.advance(now)
            {
                let life = machine.life;
                let input = Box::new(Input::Stored(number));
                self.post(0, Mail::Local { to: id, life, input });
            }
        }
        if self.plan.durability == Durability::Lazy && self.is_short() {
            self.ledger.short_at = Some(now);
        }
    }

    /// Whether a majority of some members is forgetful or out of reach (`lazy`).
    fn is_short(&self) -> bool {
        let is_missing = |id: ReplicaId| {
            let is_cut = self.cuts.iter().any(|&(a, b, _)| a == id || b == id);
            let forgetful = |host: &Node| host.protocol().report().forgetful;
            let lost = self.machines[id.index()].lost;
            is_cut || lost || !self.runs(id) || self.host(id).is_none_or(forgetful)
        };
        let missing =
            self.ids().filter(|&id| is_missing(id)).fold(0, |set, id| set | 1_u16 << id.0);
        let short = |members: u16| 2 * (members & !missing).count_ones() <= members.count_ones();
        self.all_members().into_iter().any(short)
    }

    /// The members, as anybody that has not lost its memory knows them.
    fn all_members(&self) -> Vec<u16> {
        let known = self.ids().filter_map(|id| self.host(id));
        let known = known.filter(|host| host.executor().executed().op.0 > 0);
        let mut all: Vec<u16> = known.map(|host| host.protocol().members()).collect();
        all.push(self.plan.members);
        all.extend(&self.proposed);
        all
    }

    fn clients_act(&mut self) {
        let now = self.fabric.borrow().now();
        for (to, message) in self.clients.act(now) {
            let delay = self.rng.below(20_000);
            self.post(delay, Mail::Client { to, message });
        }
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
        for machine in &mut self.machines {
            machine.disk.stuck_until = 0;
            machine.disk.slowness = machine.disk.slowness.min(50_000);
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
                "no progress after healing (A.10): {states:?} {:?} idle {}",
                self.ids()
                    .map(|id| self.host(id).map(|h| (h.protocol().report(), h.protocol().status())))
                    .collect::<Vec<_>>(),
                self.clients.open()
            );
        }
        self.tally.operations = self.ledger.last().0;
        (self.tally.writes, self.tally.reads) = self.clients.finished();
        let executor = self.host(ReplicaId(0)).expect("it runs").executor();
        let end = executor.executed().op;
        // Views are remembered in `lazy`; nothing is ever lost otherwise.
        let is_kept = |at: Viewstamp| match self.plan.durability {
            Durability::Lazy => executor.last_of(at.view).is_some_and(|last| at.op <= last),
            _ => at.op <= end,
        };
        let is_written = |value: u64| executor.machine().written.contains(&value);
        let lost = self.ledger.judge(self.plan.durability, &self.clients, is_kept, is_written);
        self.tally.lost = lost;
        for id in self.ids() {
            let report = self.host(id).expect("it runs").protocol().report();
            self.tally.risky += report.risky_elections;
            self.tally.rolled_back += report.rolled_back;
        }
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
