//! What goes wrong, and when: one fault after the other, of the classes that the seed has switched
//! on, never more at once than the durability promises to bear unless the seed allows a wipe.

use smr::rng::Rng;
use smr::{Durability, Role};

use crate::disk::Damage;
use crate::ledger::Checked;
use crate::options::{FAULT_CLASSES, FaultOptions, Options};
use crate::subject::Subject;
use crate::world::{Event, World};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    Crash,
    CrashMinority,
    CrashAll,
    CrashPrimary,
    CrashInViewChange,
    Pause,
    Isolate,
    IsolatePrimary,
    ClientsOnly,
    OneWay,
    Deaf,
    Mute,
    Split,
    Flap,
    Stall,
    StallPrimary,
    ClockJump,
    LossBurst,
    Damage,
    CrashMost,
    CrashBehindDisks,
    CrashAcrossCut,
    CrashForgetful,
    StallMost,
    Forgetting,
}

const CLASSES: [Fault; FAULT_CLASSES] = [
    Fault::Crash,
    Fault::CrashMinority,
    Fault::CrashAll,
    Fault::CrashPrimary,
    Fault::CrashInViewChange,
    Fault::Pause,
    Fault::Isolate,
    Fault::IsolatePrimary,
    Fault::ClientsOnly,
    Fault::OneWay,
    Fault::Deaf,
    Fault::Mute,
    Fault::Split,
    Fault::Flap,
    Fault::Stall,
    Fault::StallPrimary,
    Fault::ClockJump,
    Fault::LossBurst,
    Fault::Damage,
    Fault::CrashMost,
    Fault::CrashBehindDisks,
    Fault::CrashAcrossCut,
    Fault::CrashForgetful,
    Fault::StallMost,
    Fault::Forgetting,
];

pub(crate) struct Injector {
    pub(crate) rng: Rng,
    options: FaultOptions,
    pub(crate) active: bool,
}

impl Injector {
    pub(crate) fn new(options: &Options, seed: u64) -> Injector {
        Injector { rng: Rng::new(seed), options: options.faults, active: false }
    }

    fn choose(&mut self) -> Option<Fault> {
        let total = self.options.weights.iter().sum();
        if total == 0 {
            return None;
        }
        let mut at = self.rng.below(total);
        for (fault, &weight) in CLASSES.into_iter().zip(&self.options.weights) {
            if at < weight {
                return Some(fault);
            }
            at -= weight;
        }
        unreachable!("the weights sum to the total")
    }

    /// Some time around the mean: mostly short, sometimes long.
    pub(crate) fn around(&mut self, mean: u64) -> u64 {
        let scale = [1, 4, 8, 16, 40][self.rng.below(5) as usize];
        1 + self.rng.below(mean * scale / 8 + 1)
    }
}

impl<P: Subject> World<P> {
    /// From now on things go wrong.
    pub(crate) fn begin_faults(&mut self) {
        self.injector.active = true;
        let first = self.injector.around(self.options.faults.interval);
        self.queue.after(first, Event::Fault);
    }

    pub(crate) fn on_fault(&mut self) -> Checked<()> {
        if !self.injector.active {
            return Ok(());
        }
        if let Some(fault) = self.injector.choose() {
            let victim = self.injector.rng.below(self.nodes.len() as u64) as usize;
            let duration = self.injector.around(self.options.faults.duration);
            self.inflict(fault, victim, duration);
        }
        let next = self.injector.around(self.options.faults.interval);
        self.queue.after(next, Event::Fault);
        Ok(())
    }

    pub(crate) fn with_role(&self, role: Role) -> Option<usize> {
        self.nodes.iter().position(|node| node.role() == Some(role))
    }

    fn inflict(&mut self, fault: Fault, victim: usize, duration: u64) {
        match fault {
            Fault::Crash => self.crash_for(victim, duration),
            Fault::CrashMinority => {
                for step in 0..self.options.f() {
                    self.crash_for((victim + step) % self.nodes.len(), duration);
                }
            }
            Fault::CrashAll => self.crash_all(duration),
            Fault::CrashPrimary => {
                let primary = self.with_role(Role::Primary);
                self.crash_for(primary.unwrap_or(victim), duration);
            }
            Fault::CrashInViewChange => {
                if let Some(candidate) = self.with_role(Role::ViewChange) {
                    self.crash_for(candidate, duration / 4);
                }
            }
            Fault::Pause => self.pause(victim, duration),
            Fault::Stall | Fault::StallPrimary => {
                let primary = self.with_role(Role::Primary);
                let on_primary = fault == Fault::StallPrimary;
                let node = primary.filter(|_| on_primary).unwrap_or(victim);
                self.stall(node, duration);
            }
            Fault::ClockJump => {
                let jump = self.injector.rng.below(20_000);
                let clock = &mut self.nodes[victim].clock;
                clock.unix_ms = clock.unix_ms + jump - 10_000;
                self.note(|| format!("the wall clock of r{victim} jumps"));
            }
            Fault::LossBurst => {
                let before = self.options.network.loss;
                self.network.options.loss = 400_000;
                self.queue.after(duration, Event::LossEnds(before));
            }
            Fault::Damage => self.damage(victim, duration),
            Fault::CrashMost
            | Fault::CrashBehindDisks
            | Fault::CrashAcrossCut
            | Fault::CrashForgetful
            | Fault::StallMost
            | Fault::Forgetting => self.inflict_on_most(fault, victim, duration),
            Fault::Flap => {
                let times = 2 + self.injector.rng.below(5) as u32;
                self.on_flap(victim, times, None);
            }
            Fault::IsolatePrimary | Fault::ClientsOnly => {
                let primary = self.with_role(Role::Primary).unwrap_or(victim);
                // Long enough for the others to elect another one.
                let duration = duration + self.options.times.election;
                self.cut_for(fault, primary, duration);
            }
            Fault::Isolate | Fault::OneWay | Fault::Deaf | Fault::Mute | Fault::Split => {
                self.cut_for(fault, victim, duration);
            }
        }
    }

    pub(crate) fn cut_for(&mut self, fault: Fault, victim: usize, duration: u64) {
        let other = self.injector.rng.below(self.nodes.len() as u64) as usize;
        let side = self.injector.rng.next_u64();
        let replicas = self.nodes.len();
        let in_side = |address: usize| side & (1 << address) != 0;
        // Half of the cuts leave the clients alone.
        let all = side & (1 << 40) != 0 && fault != Fault::ClientsOnly;
        let counts = |address: usize| all || address < replicas;
        let cut = self.network.cut(|from, to| {
            counts(from)
                && counts(to)
                && match fault {
                    Fault::Isolate | Fault::IsolatePrimary | Fault::ClientsOnly => {
                        from == victim || to == victim
                    }
                    Fault::OneWay => from == victim && to == other,
                    Fault::Deaf => to == victim,
                    Fault::Mute => from == victim,
                    _ => in_side(from) != in_side(to),
                }
        });
        self.note(|| format!("cut {cut}: {fault:?} of r{victim} (r{other})"));
        self.queue.after(duration, Event::Mend(cut));
    }

    pub(crate) fn on_flap(&mut self, node: usize, times: u32, cut: Option<u64>) {
        if let Some(cut) = cut {
            self.network.mend(cut);
        }
        if times == 0 || !self.injector.active {
            return;
        }
        let next = match cut {
            Some(_) => None,
            None => Some(self.network.cut(|from, to| from == node || to == node)),
        };
        self.note(|| format!("r{node} flaps"));
        let period = self.injector.around(self.options.times.election);
        let times = times - u32::from(next.is_none());
        self.queue.after(period, Event::Flap { node, times, cut: next });
    }

    pub(crate) fn pause(&mut self, id: usize, duration: u64) {
        let node = &mut self.nodes[id];
        if !node.is_up() || node.paused {
            return;
        }
        node.paused = true;
        let life = node.life;
        self.note(|| format!("r{id} is paused"));
        self.queue.after(duration, Event::Resume { node: id, life });
    }

    /// Whether one more replica may die without losing the group's state.
    fn may_crash(&self, id: usize) -> bool {
        if self.options.durability != Durability::Memory || self.options.faults.wipe {
            return true;
        }
        let others = self.nodes.iter().filter(|node| node.forgetful && node.id != id).count();
        others < self.options.f()
    }

    pub(crate) fn crash_for(&mut self, id: usize, duration: u64) {
        if !self.nodes[id].is_up() || !self.may_crash(id) {
            return;
        }
        let keep = if self.injector.rng.chance(1, 2) { Some(0) } else { None };
        self.crash(id, keep);
        let life = self.nodes[id].life;
        self.queue.after(duration, Event::Restart { node: id, life });
    }

    fn crash_all(&mut self, duration: u64) {
        let wipe = self.options.faults.wipe;
        if self.options.durability == Durability::Memory && !wipe {
            return;
        }
        for id in 0..self.nodes.len() {
            let delay = 1 + self.injector.rng.below(duration + 1);
            self.crash_for(id, delay);
        }
    }

    fn damage(&mut self, id: usize, duration: u64) {
        let others = self.nodes.iter().filter(|node| node.disk.lost && node.id != id).count();
        let bearable = others < self.options.f();
        if !(bearable || self.options.faults.wipe) || !self.may_crash(id) {
            return;
        }
        if !self.nodes[id].is_up() {
            return;
        }
        self.crash_for(id, duration);
        let damages = [Damage::Record, Damage::Checkpoint, Damage::Gone];
        let damage = damages[self.injector.rng.below(3) as usize];
        let damage = self.nodes[id].disk.damage(damage);
        self.nodes[id].forgetful = true;
        self.wiped |= !bearable;
        self.marks.hit(match damage {
            Damage::Record => "damaged-record",
            Damage::Checkpoint => "damaged-checkpoint",
            Damage::Gone => "damaged-disk-gone",
        });
        self.note(|| format!("the disk of r{id} is damaged: {damage:?}"));
    }

    /// Everything works again from here on.
    pub(crate) fn heal(&mut self) -> Checked<()> {
        self.note(|| "everything is healed".into());
        self.injector.active = false;
        self.network.heal();
        self.filters.clear();
        for id in 0..self.nodes.len() {
            self.nodes[id].disk.heal();
            self.resume(id);
            if !self.nodes[id].is_up() {
                self.start(id)?;
            }
        }
        Ok(())
    }
}
