//! What goes wrong, and how it ends.

use nopaxos::{Status, Tally};
use oum::Members;
use smr::{Durability, OpNumber, ReplicaId};

use super::{Group, Mail, Plan, Trap};

impl Group {
    pub(super) fn fault(&mut self) {
        let length = [200, 1_000, 4_000, 9_000][self.rng.below(4) as usize];
        let until = self.now + 1 + self.rng.below(length);
        let id = self.victim();
        if self.plan.disasters && self.rng.chance(1, 6) {
            return self.disaster(until);
        }
        if self.plan.changes && self.rng.chance(1, 4) {
            return self.other_members();
        }
        match self.rng.below(14) {
            12 => self.trap = Some(Trap::Gap),
            13 => self.trap = Some(Trap::Change),
            0..=2 => {
                if self.host(id).is_some() && self.may_lose(id) {
                    self.kill(id, until);
                }
            }
            3 | 4 => self.pause(id, until),
            5 | 6 => self.cut(id, until),
            7 => {
                // One way only.
                let other = ReplicaId(self.rng.below(u64::from(self.plan.replicas)) as u8);
                if other != id {
                    self.cuts.push((id, other, until));
                }
            }
            8 => {
                let deaf = self.rng.chance(1, 2);
                self.machine(id).deaf = deaf;
            }
            9 | 10 => {
                let newest = self.sequencers.len() - 1;
                // A sequencer that is only cut off from the controller goes on.
                self.sequencers[newest].alive = self.rng.chance(1, 2);
                let delay = 1 + self.rng.below(length);
                self.post(delay, Mail::NewSequencer);
            }
            _ => {
                // Both at once: its leader, and its session.
                if self.host(id).is_some() && self.may_lose(id) {
                    self.kill(id, until);
                }
                self.post(0, Mail::NewSequencer);
            }
        }
    }

    /// An operator wants other members; one change at a time.
    fn other_members(&mut self) {
        let ids: Vec<ReplicaId> = self.ids().collect();
        let wanted: Vec<_> = ids.into_iter().filter(|_| self.rng.chance(3, 5)).collect();
        if wanted.is_empty() || self.members().is_changing() {
            return;
        }
        let after = Members::of(wanted);
        let whole = |id: ReplicaId| {
            self.host(id).is_some_and(|host| host.protocol().status() != Status::Recovering)
        };
        // Who has forgotten everything must have recovered before it counts.
        let remembers = self.members().change_to(after).is_quorum(whole);
        if self.plan.durability == Durability::Memory && !remembers {
            return;
        }
        let newest = self.sequencers.len() - 1;
        self.sequencers[newest].alive = self.rng.chance(1, 2);
        self.change_members(after);
    }

    /// The sequencer changes in the middle of a gap agreement or of a view change, and the leader
    /// may go, too.
    pub(super) fn spring(&mut self) {
        let Some(trap) = self.trap else { return };
        let is_sprung = |id: ReplicaId| {
            self.runs(id)
                && match trap {
                    Trap::Gap => self.replica(id).waiting().2 > 0,
                    Trap::Change => self.replica(id).status() == Status::ViewChange,
                }
        };
        let Some(id) = self.ids().find(|&id| is_sprung(id)) else { return };
        self.trap = None;
        self.sprung[trap as usize] += 1;
        let delay = self.rng.below(60);
        self.post(delay, Mail::NewSequencer);
        let newest = self.sequencers.len() - 1;
        self.sequencers[newest].alive = self.rng.chance(1, 2);
        let leader = self.replica(id).view_id().leader(self.plan.replicas);
        let until = self.now + 500 + self.rng.below(3_000);
        match self.rng.below(3) {
            0 if self.host(leader).is_some() && self.may_lose(leader) => self.kill(leader, until),
            1 => self.pause(leader, until),
            _ => {}
        }
    }

    /// All crash, or most.
    pub fn disaster(&mut self, until: u64) {
        if self.plan.durability == Durability::Memory {
            return;
        }
        for id in self.ids() {
            let restart = until + self.rng.below(2_000);
            if self.host(id).is_some() && self.rng.chance(4, 5) {
                self.kill(id, restart);
            }
        }
    }

    /// Leaders are hit as often as all others together.
    fn victim(&mut self) -> ReplicaId {
        let any = ReplicaId(self.rng.below(u64::from(self.plan.replicas)) as u8);
        match self.leader() {
            Some(leader) if self.rng.chance(1, 2) => leader,
            _ => any,
        }
    }

    /// The leader of the latest view in status Normal.
    pub fn leader(&self) -> Option<ReplicaId> {
        let leads = |id: &ReplicaId| {
            self.host(*id).is_some_and(|host| {
                let replica = host.protocol();
                let leader = replica.view_id().leader(self.plan.replicas);
                replica.status() == Status::Normal && leader == *id
            })
        };
        let of = |id: ReplicaId| (self.replica(id).view_id().to_view(self.plan.replicas), id);
        self.ids().filter(leads).map(of).max().map(|(_, id)| id)
    }

    /// Memory bears f losses at a time.
    fn may_lose(&self, id: ReplicaId) -> bool {
        if self.plan.durability == Durability::Sync {
            return true;
        }
        let whole = |id: ReplicaId| {
            self.host(id).is_some_and(|host| host.protocol().status() != Status::Recovering)
        };
        !whole(id) || self.members().is_quorum(|other| other != id && whole(other))
    }

    pub fn kill(&mut self, id: ReplicaId, restart_at: u64) {
        self.absorb(id);
        let stored = self.rng.below(4) as usize;
        let machine = self.machine(id);
        machine.host = None;
        machine.held.clear();
        machine.resume_at = None;
        machine.restart_at = Some(restart_at);
        machine.disk.crash(stored);
        machine.whole = false;
        self.note_forgetful();
    }

    /// Keeps account of the times at which a crash may take what was acknowledged.
    pub(super) fn note_forgetful(&mut self) {
        let whole = |id: ReplicaId| self.machines[id.index()].whole;
        if !self.members().is_quorum(whole) {
            self.excused_at = Some(self.now);
        }
    }

    pub fn pause(&mut self, id: ReplicaId, until: u64) {
        if self.runs(id) {
            self.machine(id).resume_at = Some(until);
        }
    }

    /// Cuts a replica off from some or all others, both ways.
    pub fn cut(&mut self, id: ReplicaId, until: u64) {
        let all = self.rng.chance(1, 2);
        for other in self.ids() {
            if other != id && (all || self.rng.chance(1, 2)) {
                self.cuts.push((id, other, until));
                self.cuts.push((other, id, until));
            }
        }
    }

    /// Ends all faults: everybody runs, everybody reaches everybody.
    pub fn heal(&mut self) {
        let now = self.now;
        for machine in &mut self.machines {
            machine.restart_at = machine.restart_at.map(|_| now);
            machine.resume_at = machine.resume_at.map(|_| now);
            machine.deaf = false;
            machine.stuck = false;
        }
        self.cuts.clear();
        self.mute.clear();
        self.lose.clear();
        let Plan { loss, duplication, leg_loss, late, spread, stray, .. } = &mut self.plan;
        for chance in [loss, duplication, leg_loss, late, spread, stray] {
            *chance = 0;
        }
        if !self.sequencers.last().expect("there is one").alive {
            self.new_sequencer();
        }
    }

    /// With all faults gone, everything asked for is answered, and every replica gets to the same
    /// state.
    pub fn settle(&mut self) {
        self.heal();
        let give_up = self.now + 300_000;
        for round in 0.. {
            // The last message of a session may have been lost by all but one: another one shows
            // it.
            if round % 40 == 0 {
                let mut payloads = Vec::new();
                let now = self.clock();
                self.clients.stop(now, &mut payloads);
                payloads.into_iter().for_each(|send| self.client_sends(send));
            }
            self.run(self.now + 500, false);
            let states: Vec<_> = self.ids().map(|id| self.state(id)).collect();
            let same = states.windows(2).all(|pair| pair[0] == pair[1]);
            if same && states[0].is_some() && self.clients.is_idle() {
                break;
            }
            assert!(
                self.now < give_up,
                "no progress after healing: idle {} {:?} {:?}",
                self.clients.is_idle(),
                self.statuses(),
                self.ids().map(|id| self.waiting(id)).collect::<Vec<_>>(),
            );
        }
        for id in self.ids() {
            self.absorb(id);
        }
        self.check_history();
    }

    fn state(&self, id: ReplicaId) -> Option<(OpNumber, OpNumber, u64)> {
        let host = self.host(id)?;
        let replica = host.protocol();
        let is_even = replica.stable_point() == replica.log().last().op;
        let normal = replica.status() == Status::Normal && is_even;
        let executor = host.executor();
        normal.then(|| (replica.sync_point(), executor.executed().op, executor.machine().digest))
    }

    fn waiting(&self, id: ReplicaId) -> String {
        let receiver = &self.machines[id.index()].receiver;
        let replica = self.host(id).map(|host| host.protocol().waiting());
        format!("{:?} {:?} {replica:?}", receiver.position(), receiver.deadline())
    }

    /// Adds what a life has counted.
    fn absorb(&mut self, id: ReplicaId) {
        let Some(tally) = self.host(id).map(|host| host.protocol().tally()) else { return };
        let Tally { no_ops, missing, found, views, rolled_back, overflow, nonsense } = tally;
        self.tally.no_ops += no_ops;
        self.tally.missing += missing;
        self.tally.found += found;
        self.tally.views += views;
        self.tally.rolled_back += rolled_back;
        self.tally.overflow += overflow;
        self.tally.nonsense += nonsense;
    }
}

/// One seed from start to end.
pub fn storm(plan: Plan, seed: u64) -> Group {
    let mut group = Group::new(plan, seed);
    group.story = std::env::var_os("NOPAXOS_STORY").is_some();
    group.run(plan.storm, true);
    group.settle();
    group
}
