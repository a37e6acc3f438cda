//! All processes of a simulated fabric, and the verbs under way between them.
//!
//! Invariant: what one process posts for one region of one memory takes effect in that order: the
//! first word of a verb moves after the last one of the verb before it, and is seen by the memory's
//! owner after it.
//! Invariant: a write to an exclusive region has no effect after one under the same grant failed.

use std::collections::{BTreeMap, VecDeque};

use smr::ReplicaId;
use smr::rng::Rng;

use super::flight::{Action, Flight, Part};
use super::memory::{Arrival, Memory};
use super::options::Options;
use super::port::Port;
use crate::contract::{Completion, Geometry, GrantNumber, RegionId, Status, VerbId};

/// How much of a process stands still.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Extent {
    /// Its threads. Its memory answers, and its card does what was posted.
    Process,
    /// Its machine: nothing enters or leaves.
    Machine,
}

pub(crate) struct Process {
    alive: bool,
    life: u32,
    halted: Option<Extent>,
    /// None once the machine is gone.
    pub(crate) memory: Option<Memory>,
    memory_life: u32,
    pub(crate) done: VecDeque<(Completion, Vec<u64>)>,
    /// Events that wait for it to go on, with their places in the queue.
    waiting: Vec<((u64, u64), Event)>,
}

/// What one process has under way to one region of one memory.
#[derive(Clone, Copy, Default)]
struct Channel {
    /// When the last word so far moves.
    moved: u64,
    /// When the last word so far is seen.
    seen: u64,
    /// When the last completion so far comes, of verbs that were not given up.
    finished: u64,
    /// Writes under this grant or lower ones, and set off after this one, fail since it did.
    broken: Option<(GrantNumber, u64)>,
}

enum Event {
    /// A part of a verb's words moves.
    Move { flight: u64, part: u8 },
    /// A verb completes.
    Finish { flight: u64 },
    /// A verb that has not completed never will be known to.
    GiveUp { flight: u64 },
    /// The owner's processor sees words.
    Reveal { process: ReplicaId, memory_life: u32, seen: Box<Seen> },
    /// Words land that should not.
    Late { flight: Box<Flight>, part: u8 },
}

/// Words of a write that have arrived.
struct Seen {
    region: RegionId,
    offset: usize,
    words: Vec<u64>,
    part: Part,
    arrived: Arrival,
}

/// The fabric.
pub struct World {
    pub(crate) geometry: Geometry,
    options: Options,
    rng: Rng,
    now: u64,
    sequence: u64,
    /// What is due, by time and then in the order of scheduling.
    queue: BTreeMap<(u64, u64), Event>,
    pub(crate) processes: Vec<Process>,
    flights: BTreeMap<u64, Flight>,
    channels: Vec<Channel>,
    /// By pair of processes: nothing passes between them.
    cut: Vec<bool>,
}

impl World {
    /// All processes, alive and connected, with memory that is zero.
    ///
    /// # Panics
    /// If the geometry has a number out of its range.
    pub fn new(geometry: Geometry, options: Options, seed: u64) -> World {
        geometry.check();
        let count = usize::from(geometry.processes);
        let process = |id| Process {
            alive: true,
            life: 0,
            halted: None,
            memory: Some(Memory::new(&geometry, ReplicaId(id))),
            memory_life: 0,
            done: VecDeque::new(),
            waiting: Vec::new(),
        };
        World {
            options,
            rng: Rng::new(seed),
            now: 0,
            sequence: 0,
            queue: BTreeMap::new(),
            processes: (0..geometry.processes).map(process).collect(),
            flights: BTreeMap::new(),
            channels: vec![Channel::default(); count * count * geometry.regions.len()],
            cut: vec![false; count * count],
            geometry,
        }
    }

    /// The time of the last event, or what [`World::step`] was told.
    pub fn now(&self) -> u64 {
        self.now
    }

    /// When something happens next, unless somebody posts or goes on before.
    pub fn next_at(&self) -> Option<u64> {
        self.queue.first_key_value().map(|(&(at, _), _)| at.max(self.now))
    }

    /// Moves time on to the next event, due by `until`, that a process can notice: a completion,
    /// or words in its memory. Returns the process, or none if time is `until` now.
    pub fn step(&mut self, until: u64) -> Option<ReplicaId> {
        while let Some(entry) = self.queue.first_entry() {
            let key @ (at, _) = *entry.key();
            if at > until {
                break;
            }
            let event = entry.remove();
            self.now = self.now.max(at);
            if let Some(process) = self.stalled_by(&event) {
                self.processes[process.index()].waiting.push((key, event));
                continue;
            }
            if let Some(process) = self.happen(event) {
                return Some(process);
            }
        }
        self.now = self.now.max(until);
        None
    }

    /// A process's face to the fabric.
    ///
    /// # Panics
    /// If the process has ended or stands still: it can do nothing.
    pub fn port(&mut self, process: ReplicaId) -> Port<'_> {
        let state = &self.processes[process.index()];
        assert!(state.alive && state.halted.is_none(), "the process can do nothing");
        Port { world: self, me: process }
    }

    /// Other options for what is posted from now on.
    pub fn set_options(&mut self, options: Options) {
        self.options = options;
    }

    /// A process stands still, until [`World::resume`].
    pub fn pause(&mut self, process: ReplicaId, extent: Extent) {
        self.processes[process.index()].halted = Some(extent);
    }

    /// A process goes on where it stood.
    pub fn resume(&mut self, process: ReplicaId) {
        let state = &mut self.processes[process.index()];
        state.halted = None;
        let again = self.now.saturating_add(self.options.timeout);
        for ((at, sequence), event) in state.waiting.drain(..) {
            // At its old place in the queue: what is first stays first. But timers run anew.
            let at = if let Event::GiveUp { .. } = event { again } else { at };
            self.queue.insert((at, sequence), event);
        }
    }

    /// A process ends; its memory stays. What it has posted is done by its card, or is not, or in
    /// part.
    ///
    /// # Panics
    /// If it has ended before.
    pub fn kill(&mut self, process: ReplicaId) {
        self.resume(process);
        let state = &mut self.processes[process.index()];
        assert!(state.alive, "it has ended before");
        state.alive = false;
        state.life += 1;
        state.done.clear();
        let (rng, by_processor) = (&mut self.rng, self.options.by_processor);
        let mut stopped = Vec::new();
        self.flights.retain(|_, flight| {
            if flight.from != process {
                return true;
            }
            let channel = (flight.to, flight.region);
            // What comes after a verb that is not done is not done either.
            let goes_on = !flight.action.is_switch()
                && !by_processor
                && !stopped.contains(&channel)
                && rng.chance(1, 2);
            if !goes_on {
                stopped.push(channel);
            }
            goes_on
        });
    }

    /// A machine ends, with its process and its memory.
    ///
    /// # Panics
    /// If it is gone already.
    pub fn wreck(&mut self, process: ReplicaId) {
        if self.processes[process.index()].alive {
            self.kill(process);
        }
        self.resume(process);
        self.flights.retain(|_, flight| flight.from != process);
        let state = &mut self.processes[process.index()];
        assert!(state.memory.take().is_some(), "it is gone already");
        state.memory_life += 1;
    }

    /// A new process in the place of one that has ended, with fresh memory, known to its peers.
    ///
    /// # Panics
    /// If the former process has not ended.
    pub fn restart(&mut self, process: ReplicaId) {
        self.flights.retain(|_, flight| flight.from != process);
        let fresh = Memory::new(&self.geometry, process);
        let state = &mut self.processes[process.index()];
        assert!(!state.alive, "its former process has not ended");
        state.alive = true;
        state.memory = Some(fresh);
        state.memory_life += 1;
        let me = process.index();
        for (_, peer) in self.processes.iter_mut().enumerate().filter(|&(id, _)| id != me) {
            if let Some(memory) = &mut peer.memory {
                memory.process_ended(process);
            }
        }
        for id in 0..self.geometry.processes {
            for region in 0..self.geometry.regions.len() {
                for (from, to) in [(process, ReplicaId(id)), (ReplicaId(id), process)] {
                    self.channel(from, to, RegionId(region as u8)).broken = None;
                }
            }
        }
    }

    /// Nothing passes between two processes, until [`World::mend`].
    pub fn cut(&mut self, one: ReplicaId, other: ReplicaId) {
        self.set_cut(one, other, true);
    }

    /// Takes a cut away.
    pub fn mend(&mut self, one: ReplicaId, other: ReplicaId) {
        self.set_cut(one, other, false);
    }

    fn set_cut(&mut self, one: ReplicaId, other: ReplicaId, cut: bool) {
        let count = self.processes.len();
        self.cut[one.index() * count + other.index()] = cut;
        self.cut[other.index() * count + one.index()] = cut;
    }

    fn channel(&mut self, from: ReplicaId, to: ReplicaId, region: RegionId) -> &mut Channel {
        let pair = from.index() * self.processes.len() + to.index();
        &mut self.channels[pair * self.geometry.regions.len() + region.index()]
    }

    /// The present moment, for words that arrive now.
    pub(crate) fn arrival(&mut self) -> Arrival {
        self.sequence += 1;
        Arrival(self.sequence)
    }

    fn schedule(&mut self, at: u64, event: Event) {
        self.sequence += 1;
        self.queue.insert((at, self.sequence), event);
    }

    /// A verb sets off.
    pub(crate) fn launch(
        &mut self,
        from: ReplicaId,
        id: VerbId,
        to: ReplicaId,
        region: RegionId,
        offset: usize,
        action: Action,
    ) {
        let options = self.options;
        let mut start = self.now;
        if action.is_switch() {
            start += self.rng.below(options.switch + 1);
        } else {
            start += options.delay + self.rng.below(options.spread + 1);
            if self.rng.chance(options.late, 1_000_000) {
                start += self.rng.below(options.late_by + 1);
            }
        }
        start = start.max(self.channel(from, to, region).moved);
        let torn = action.len() > 1 && self.rng.chance(options.tear, 1_000_000);
        let parts = if torn { 2 + self.rng.below(3) as u8 } else { 1 };
        let seed = self.rng.next_u64();
        let mut moments = [start; 4];
        if torn {
            moments = moments.map(|at| at + self.rng.below(options.tear_by + 1));
        }
        let moments = &mut moments[..usize::from(parts)];
        if (Part { len: action.len(), seed, parts, part: 0 }).is_ascending() {
            moments.sort_unstable();
        }
        let last = *moments.iter().max().expect("at least one part");
        self.channel(from, to, region).moved = last;
        self.sequence += 1;
        let key = self.sequence;
        for (part, &at) in (0..).zip(moments.iter()) {
            self.schedule(at, Event::Move { flight: key, part });
        }
        let give_up = last.saturating_add(options.timeout);
        if !action.is_switch() {
            self.schedule(give_up, Event::GiveUp { flight: key });
        }
        let flight = Flight {
            key,
            id,
            from,
            life: self.processes[from.index()].life,
            to,
            memory_life: self.processes[to.index()].memory_life,
            region,
            offset,
            action,
            seed,
            parts,
            moved: 0,
            give_up: (give_up, self.sequence),
            status: Status::Ok,
            grant: None,
        };
        self.flights.insert(key, flight);
    }

    /// The process that must go on before this can happen.
    fn stalled_by(&self, event: &Event) -> Option<ReplicaId> {
        let machine = |id: ReplicaId| self.processes[id.index()].halted == Some(Extent::Machine);
        match event {
            Event::Move { flight, .. } => {
                let flight = self.flights.get(flight)?;
                // What its processor does stops with it.
                let by_processor = flight.action.is_switch() || self.options.by_processor;
                let halted = self.processes[flight.from.index()].halted;
                if halted == Some(Extent::Machine) || halted.is_some() && by_processor {
                    return Some(flight.from);
                }
                machine(flight.to).then_some(flight.to)
            }
            Event::Finish { flight } => {
                let flight = self.flights.get(flight)?;
                machine(flight.from).then_some(flight.from)
            }
            Event::GiveUp { flight } => {
                let flight = self.flights.get(flight)?;
                let halted = self.processes[flight.from.index()].halted;
                halted.is_some().then_some(flight.from)
            }
            Event::Reveal { process, .. } => machine(*process).then_some(*process),
            Event::Late { flight, .. } => machine(flight.to).then_some(flight.to),
        }
    }

    /// Lets an event happen; returns the process that can notice.
    fn happen(&mut self, event: Event) -> Option<ReplicaId> {
        match event {
            Event::Move { flight, part } => self.on_move(flight, part),
            Event::Finish { flight } => self.on_finish(flight),
            Event::GiveUp { flight } => {
                let mut flight = self.flights.remove(&flight)?;
                self.fail(&mut flight, Status::Gone);
                self.complete(flight)
            }
            Event::Reveal { process, memory_life, seen } => {
                let state = &mut self.processes[process.index()];
                if state.memory_life != memory_life {
                    return None;
                }
                let Seen { region, offset, words, part, arrived } = *seen;
                let region = state.memory.as_mut()?.region_mut(region);
                region.reveal(offset, &words, part, arrived);
                Some(process)
            }
            Event::Late { flight, part } => {
                let Action::Write { words, .. } = &flight.action else { return None };
                let arrived = self.arrival();
                let state = &mut self.processes[flight.to.index()];
                if state.memory_life != flight.memory_life {
                    return None;
                }
                let region = state.memory.as_mut()?.region_mut(flight.region);
                region.place(flight.offset, words, flight.part(part), arrived);
                region.reveal(flight.offset, words, flight.part(part), arrived);
                Some(flight.to)
            }
        }
    }

    /// The memory that a verb goes to can be reached.
    fn reaches(&self, flight: &Flight) -> bool {
        let to = &self.processes[flight.to.index()];
        let pair = flight.from.index() * self.processes.len() + flight.to.index();
        to.memory.is_some() && to.memory_life == flight.memory_life && !self.cut[pair]
    }

    fn on_move(&mut self, key: u64, part: u8) -> Option<ReplicaId> {
        let mut flight = self.flights.remove(&key)?;
        if flight.status == Status::Ok {
            if self.reaches(&flight) {
                self.take_effect(&mut flight, part);
            } else {
                self.fail(&mut flight, Status::Gone);
            }
            flight.moved += 1;
            let refused = flight.status == Status::Refused;
            let whole = flight.status == Status::Ok && flight.moved == flight.parts;
            if refused || whole {
                let at = self.now + self.rng.below(self.options.acknowledge + 1);
                let channel = self.channel(flight.from, flight.to, flight.region);
                channel.finished = channel.finished.max(at);
                let at = channel.finished;
                self.schedule(at, Event::Finish { flight: key });
            }
        }
        self.flights.insert(key, flight);
        None
    }

    /// A write that fails takes those behind it along.
    fn fail(&mut self, flight: &mut Flight, status: Status) {
        flight.status = status;
        if let Action::Write { under, exclusive: true, .. } = flight.action {
            let channel = self.channel(flight.from, flight.to, flight.region);
            // The newest grant, and the first write that failed under it.
            if channel.broken.is_none_or(|(g, key)| g < under || g == under && key > flight.key) {
                channel.broken = Some((under, flight.key));
            }
        }
    }

    fn is_broken(&mut self, flight: &Flight) -> bool {
        let channel = *self.channel(flight.from, flight.to, flight.region);
        matches!(flight.action, Action::Write { under, exclusive: true, .. }
            if channel.broken.is_some_and(|(grant, key)| under <= grant && flight.key > key))
    }

    fn take_effect(&mut self, flight: &mut Flight, part: u8) {
        if self.is_broken(flight) {
            flight.status = Status::Refused;
            return;
        }
        let forget = self.rng.chance(self.options.forget, 1_000_000);
        let arrived = self.arrival();
        let memory = self.processes[flight.to.index()].memory.as_mut().expect("it is reached");
        let region = memory.region_mut(flight.region);
        let moving = flight.part(part);
        match &mut flight.action {
            Action::Write { under, words, .. } => {
                if !region.may_write(flight.from, *under) {
                    let was_revoked = region.was_revoked(flight.from, *under);
                    self.fail(flight, Status::Refused);
                    if was_revoked {
                        self.maybe_late(flight, part);
                    }
                    return;
                }
                region.place(flight.offset, words, moving, arrived);
                let words = words.clone();
                self.show(flight, words, moving, arrived);
            }
            Action::Read { words } => region.fetch(flight.offset, words, moving),
            Action::Grant { to, keep } => {
                flight.grant = region.grant(*to, keep, forget);
                if flight.grant.is_none() {
                    flight.status = Status::Refused;
                }
            }
            Action::Revoke => region.revoke(),
            Action::Renounce => region.renounce(flight.from),
        }
    }

    /// Words have arrived: their owner's processor sees them now, or later.
    fn show(&mut self, flight: &Flight, words: Vec<u64>, part: Part, arrived: Arrival) {
        let options = self.options;
        let mut at = self.now;
        if self.rng.chance(options.hidden, 1_000_000) {
            at += self.rng.below(options.hidden_by + 1);
        }
        let channel = self.channel(flight.from, flight.to, flight.region);
        // Not before what arrived before it.
        at = at.max(channel.seen);
        channel.seen = at;
        let &Flight { to: process, memory_life, region, offset, .. } = flight;
        let seen = Box::new(Seen { region, offset, words, part, arrived });
        self.schedule(at, Event::Reveal { process, memory_life, seen });
    }

    fn maybe_late(&mut self, flight: &Flight, part: u8) {
        let options = self.options;
        let Action::Write { under, exclusive, words } = &flight.action else { return };
        if self.rng.chance(options.late_after_revoke, 1_000_000) {
            let at = self.now + self.rng.below(options.late_after_revoke_by + 1);
            let action =
                Action::Write { under: *under, exclusive: *exclusive, words: words.clone() };
            let flight = Box::new(Flight { action, ..*flight });
            self.schedule(at, Event::Late { flight, part });
        }
    }

    fn on_finish(&mut self, key: u64) -> Option<ReplicaId> {
        let mut flight = self.flights.remove(&key)?;
        // The acknowledgement can be lost as well, and then those behind it do not count.
        let is_lost = !self.reaches(&flight) || self.is_broken(&flight);
        if flight.status == Status::Ok && is_lost {
            self.fail(&mut flight, Status::Gone);
            self.flights.insert(key, flight);
            return None;
        }
        self.complete(flight)
    }

    fn complete(&mut self, flight: Flight) -> Option<ReplicaId> {
        if !flight.action.is_switch() {
            self.queue.remove(&flight.give_up);
        }
        let from = &mut self.processes[flight.from.index()];
        if from.life != flight.life {
            return None;
        }
        let completion = Completion { id: flight.id, status: flight.status, grant: flight.grant };
        let words = match flight.action {
            Action::Read { words } if flight.status == Status::Ok => words,
            _ => Vec::new(),
        };
        from.done.push_back((completion, words));
        Some(flight.from)
    }
}
