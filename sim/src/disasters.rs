//! Faults that take more than a minority, or the memory of the right one at the wrong moment: what
//! durability `lazy` must come back from.

use smr::{Durability, Role};

use crate::faults::Fault;
use crate::subject::Subject;
use crate::world::{Event, World};

/// What happens when the stage is set.
#[derive(Clone, Debug)]
pub(crate) struct Disaster {
    /// Who dies.
    crash: Vec<usize>,
    /// Who is cut off from the others.
    isolate: Option<usize>,
    /// Those who died are back before anybody is missed.
    quick: bool,
}

impl<P: Subject> World<P> {
    pub(crate) fn inflict_on_most(&mut self, fault: Fault, victim: usize, duration: u64) {
        let most = self.options.f() + 1;
        let all = self.nodes.len();
        let crash: Vec<usize> = (0..most).map(|step| (victim + step) % all).collect();
        let mut disaster = Disaster { crash, isolate: None, quick: false };
        match fault {
            Fault::CrashForgetful => {
                // Who is coming back falls again.
                let forgets = |node: &&crate::node::Node<P>| node.is_up() && node.forgets();
                let again = self.nodes.iter().find(forgets).map(|node| node.id);
                if let Some(id) = again {
                    self.crash_for(id, duration / 4);
                }
                return;
            }
            Fault::StallMost => {
                disaster.crash.iter().for_each(|&id| self.stall(id, duration));
                return;
            }
            Fault::CrashAcrossCut => {
                // Figure 4-1 of [Mao]: one is away and remembers what the others forget.
                disaster.crash = (0..all).filter(|&id| id != victim).collect();
                disaster.isolate = Some(victim);
            }
            Fault::Forgetting => {
                self.set_forgetting(victim);
                return;
            }
            _ => {}
        }
        if fault == Fault::CrashMost {
            self.on_disaster(&disaster);
            return;
        }
        // Until then a tail grows that is on no disk.
        let duration = duration.max(self.options.times.election);
        disaster.crash.iter().for_each(|&id| self.stall(id, duration));
        let delay = duration / 2 + self.injector.rng.below(duration / 2 + 1);
        self.queue.after(delay, Event::Disaster(disaster));
    }

    /// The primary and one backup have what nobody else has. Then the backup forgets it, and the
    /// primary is cut off for a while: no election may cost anything before the patience is over.
    fn set_forgetting(&mut self, victim: usize) {
        let Some(primary) = self.with_role(Role::Primary).filter(|_| self.options.f() > 0) else {
            return;
        };
        let others = self.nodes.len() - 1;
        let backups: Vec<usize> =
            (1..=others).map(|step| (primary + step) % (others + 1)).collect();
        let victim = backups[victim % others];
        let keep = self.options.f();
        let deaf = backups.iter().filter(|&&id| id != victim).skip(keep - 1);
        let deaf = deaf.fold(0_u64, |mask, &id| mask | (1 << id));
        let time = self.options.times.election * 2 / 3;
        let cut = self.network.cut(|from, to| from == primary && to < 64 && deaf & (1 << to) != 0);
        self.note(|| format!("cut {cut}: r{victim} and some more hear r{primary}"));
        self.queue.after(time, Event::Mend(cut));
        self.stall(victim, time + 1_000);
        let disaster = Disaster { crash: vec![victim], isolate: Some(primary), quick: true };
        self.queue.after(time, Event::Disaster(disaster));
    }

    pub(crate) fn on_disaster(&mut self, disaster: &Disaster) {
        let memory = self.options.durability == Durability::Memory && !self.options.faults.wipe;
        if !self.injector.active || memory {
            return;
        }
        let duration = self.injector.around(self.options.faults.duration);
        if let Some(away) = disaster.isolate {
            let times = self.options.times;
            let patience = if disaster.quick { 0 } else { times.patience };
            let longer = patience + 4 * times.election;
            self.cut_for(Fault::Isolate, away, longer + duration);
        }
        for &id in &disaster.crash {
            let most = if disaster.quick { self.options.times.election / 8 } else { duration / 2 };
            let delay = 1 + self.injector.rng.below(most + 1);
            self.crash_for(id, delay);
        }
    }

    pub(crate) fn stall(&mut self, node: usize, duration: u64) {
        let until = self.queue.now() + duration;
        self.note(|| format!("the disk of r{node} stalls for {duration}"));
        let disk = &mut self.nodes[node].disk;
        disk.stalled_until = until.max(disk.stalled_until);
    }
}
