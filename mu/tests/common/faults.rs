//! What goes wrong: processes and machines that end or stand still, cuts, disks, operators.

use fabric::sim::Extent;
use mu::{Change, ChangeError, Event};
use smr::contract::Input;
use smr::{Durability, ReplicaId, Role};

use super::Group;
use super::disk::Disk;

impl Group {
    /// Whether a replica can lose its memory, in `memory`: a majority of the members stays whole.
    fn may_kill(&self, id: ReplicaId) -> bool {
        let recovering =
            |id: ReplicaId| self.host(id).is_none_or(|host| host.protocol().status().recovering);
        if self.plan.durability != Durability::Memory || recovering(id) {
            return true;
        }
        let whole = self.ids().filter(|&other| other != id && !recovering(other));
        let whole = whole.fold(0, |set, id| set | 1_u16 << id.0);
        let keeps = |members: u16| 2 * (members & whole).count_ones() > members.count_ones();
        self.all_members().into_iter().all(keeps)
    }

    /// Whether a disk can be lost: those of a majority of the members hold all they had to.
    fn may_lose(&self, id: ReplicaId) -> bool {
        let is_whole = |other: &ReplicaId| *other != id && !self.machines[other.index()].lost;
        let whole = self.ids().filter(is_whole).fold(0, |set, id| set | 1_u16 << id.0);
        let keeps = |members: u16| 2 * (members & whole).count_ones() > members.count_ones();
        self.plan.durability != Durability::Memory && self.all_members().into_iter().all(keeps)
    }

    /// The disk of a process that has ended is replaced by an empty one.
    pub fn lose_disk(&mut self, id: ReplicaId) {
        self.tally.disks += 1;
        let machine = &mut self.machines[id.index()];
        machine.disk = Disk::new(self.plan.slowness);
        machine.lost = true;
    }

    /// No disk does anything before this time, in microseconds.
    pub fn stick_disks(&mut self, until: u64) {
        for machine in &mut self.machines {
            machine.disk.stick(until * 1_000);
        }
    }

    pub(super) fn fault(&mut self) {
        let id = ReplicaId(self.rng.below(u64::from(self.plan.replicas)) as u8);
        // Leaders are hit as often as all others together.
        let id = match self.last_leader {
            Some(leader) if self.rng.chance(1, 2) => leader,
            _ => id,
        };
        let length = [100, 500, 2_000, 6_000][self.rng.below(4) as usize];
        let until = self.micros() + 1 + self.rng.below(length);
        match self.rng.below(8) {
            0 => {
                if self.host(id).is_some() && self.may_kill(id) {
                    self.kill(id, until);
                    if self.rng.chance(1, 4) && self.may_lose(id) {
                        self.lose_disk(id);
                    }
                }
            }
            1 | 2 => self.pause(id, until),
            3 if self.plan.changes => self.change(),
            4..=7 if self.plan.restless => self.change(),
            4 if self.plan.durability != Durability::Memory => {
                self.machines[id.index()].disk.stick(until * 1_000);
            }
            5 if self.plan.durability != Durability::Memory && self.rng.chance(1, 4) => {
                self.blackout(length);
            }
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

    /// All crash at once, and come back one by one.
    pub fn blackout(&mut self, length: u64) {
        self.tally.blackouts += 1;
        for id in self.ids() {
            let back = self.micros() + 1 + self.rng.below(length);
            if self.host(id).is_some() {
                self.kill(id, back);
            }
        }
    }

    /// An operator adds or removes a replica.
    fn change(&mut self) {
        let id = ReplicaId(self.rng.below(u64::from(self.plan.replicas)) as u8);
        let Some(leader) = self.leader() else { return };
        let change = match self.members(leader) & 1 << id.0 {
            0 => Change::Add(id),
            _ => Change::Remove(id),
        };
        if self.leaves_enough(leader, change) && self.change_to(change).is_ok() {
            self.tally.changes += 1;
        }
    }

    /// An operator asks the leader for a change.
    pub fn change_to(&mut self, change: Change) -> Result<(), ChangeError> {
        let leader = self.leader().ok_or(ChangeError::NotLeading)?;
        self.host(leader).expect("it runs").protocol().may_change(change)?;
        let members = self.members(leader);
        self.proposed.push(match change {
            Change::Add(id) => members | 1 << id.0,
            Change::Remove(id) => members & !(1 << id.0),
        });
        self.step(leader, Input::Event(Event::Change(change)));
        Ok(())
    }

    /// A replica that calls itself leader, and can act.
    pub fn leader(&self) -> Option<ReplicaId> {
        self.ids().find(|&id| self.runs(id) && self.role(id) == Some(Role::Primary))
    }

    /// The members as a replica knows them.
    pub fn members(&self, id: ReplicaId) -> u16 {
        self.host(id).expect("it runs").protocol().members()
    }

    /// In `memory`: the members that stay must not have lost their memory meanwhile.
    fn leaves_enough(&self, leader: ReplicaId, change: Change) -> bool {
        let members = self.members(leader);
        let members = match change {
            Change::Add(id) => members | 1 << id.0,
            Change::Remove(id) => members & !(1 << id.0),
        };
        let whole = self
            .ids()
            .filter(|&id| self.host(id).is_some_and(|host| !host.protocol().status().recovering));
        let whole = whole.fold(0, |set, id| set | 1_u16 << id.0);
        members.count_ones() >= 2 && 2 * (members & whole).count_ones() > members.count_ones()
    }

    pub fn kill(&mut self, id: ReplicaId, restart_at: u64) {
        self.tally.kills += 1;
        let machine = &mut self.machines[id.index()];
        machine.host = None;
        machine.paused = false;
        machine.held.clear();
        machine.resume_at = None;
        machine.restart_at = Some(restart_at);
        machine.disk.crash(&mut self.rng);
        machine.disk.stuck_until = 0;
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
}
