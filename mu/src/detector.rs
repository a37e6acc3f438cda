//! Leader election ([Mu] 5.1): pull-scores over heartbeats, the lowest live id leads, fate sharing.
//!
//! A replica's heartbeat says that it can lead: it stands still while the replica recovers, fetches
//! a state, or has given up the lead because its replication plane got nowhere.

use alloc::vec::Vec;

use fabric::Place;
use smr::{Incarnation, Now, ReplicaId, View};

use crate::attempt::{LeadState, Stage};
use crate::event::{Memory, Operation, Purpose};
use crate::layout::{BOARD, FETCHED, HEARTBEAT, Head, PULSE};
use crate::members;
use crate::replica::{Out, Replica};

/// [Mu] 5.1: scores are 0 to 15, a replica whose score falls below 2 has failed, one whose score
/// rises above 6 is back.
pub(crate) const MOST: u8 = 15;
const FAIL: u8 = 2;
const RECOVER: u8 = 6;
/// After so many periods a replica that others took for failed is back for them.
const SEEN: u64 = RECOVER as u64 + 2;

impl<M: Memory> Replica<M> {
    /// The replica that this one takes for the leader: the lowest id among the members that seem to
    /// live.
    pub fn leader(&self) -> ReplicaId {
        let lives =
            |id: &ReplicaId| *id != self.me && self.peers[id.index()].alive && self.is_member(*id);
        let other = self.replicas().find(lives);
        match other {
            Some(other) if other < self.me || !self.can_lead() => other,
            _ => self.me,
        }
    }

    /// Whether this replica may stand, and so says by its heartbeat.
    pub(crate) fn can_lead(&self) -> bool {
        self.recovery.is_none()
            && self.transfer.is_none()
            && !self.lead.is_resigned
            && self.is_member(self.me)
    }

    pub(crate) fn tick(&mut self, now: Now, out: &mut Out) {
        // A late tick counts for the periods that have passed: who gets a core now and then is
        // slow, and has not failed.
        let period = self.config.timing.heartbeat;
        let periods = 1 + now.micros.saturating_sub(self.tick_at) / period;
        self.tick_at = now.micros + period;
        self.share_fate(now, out);
        if self.can_lead() {
            self.heartbeat += periods;
            self.store(HEARTBEAT, self.heartbeat, out);
        }
        for id in self.replicas().filter(|&id| id != self.me) {
            let peer = &mut self.peers[id.index()];
            if !peer.reading {
                peer.reading = true;
                let from = Place { process: id, region: BOARD, offset: HEARTBEAT };
                self.post(Purpose::Pulse, id, 0, Operation::Read { from, words: PULSE }, out);
            }
        }
        self.elect(now, out);
        self.note_promise(now, out);
        self.collect_durable(now, out);
        if self.lead.state != LeadState::Following {
            self.ask_permissions(now, out);
        }
        if self.lead.state == LeadState::Preparing {
            self.try_choose(now, out);
        }
        if self.lead.state == LeadState::Leading {
            self.inform(now, out);
        }
        if self.lead.state == LeadState::Leading {
            self.round_tick(now, out);
        }
        self.recovery_tick(now, out);
        self.forgetful_tick(now, out);
        self.transfer_tick(now, out);
        // The fabric's event may have come before the memory could be seen.
        self.serve_requests(out);
    }

    pub(crate) fn on_pulse(
        &mut self,
        now: Now,
        from: ReplicaId,
        ok: bool,
        words: &[u64],
        out: &mut Out,
    ) {
        self.peers[from.index()].reading = false;
        if !ok {
            self.unreachable(from);
            return self.elect(now, out);
        }
        // The memory of a former life says nothing about the present one.
        if !self.meet(now, from, Incarnation(words[2]), out) {
            return self.suspect(from);
        }
        self.newest = self.newest.max(View(words[3]));
        let head = Head::unpack(words[1]);
        let peer = &mut self.peers[from.index()];
        peer.head = head;
        peer.stands = words[0] == peer.heartbeat;
        // Reads that saw nothing move while the other had no core are made up for; but who is taken
        // for failed is seen to live before it is back.
        let beats = words[0].saturating_sub(peer.heartbeat).clamp(1, MOST.into()) as u8;
        let gain = if peer.alive { beats } else { 1 };
        peer.score = match peer.stands {
            true => peer.score.saturating_sub(1),
            false => (peer.score + gain).min(MOST),
        };
        peer.heartbeat = words[0];
        peer.alive = if peer.alive { peer.score >= FAIL } else { peer.score > RECOVER };
        self.elect(now, out);
        self.check_head(now, from, head.head, out);
        self.on_fetched(now, from, words[FETCHED as usize]);
        if self.lead.state == LeadState::Leading {
            self.propose(now, out);
        }
    }

    /// Suspicion is always safe: what a halted replica wrote before stays, and should it go on, its
    /// heartbeat brings it back.
    pub(crate) fn on_halted(&mut self, now: Now, replica: ReplicaId, out: &mut Out) {
        self.suspect(replica);
        self.elect(now, out);
    }

    /// A memory that cannot be reached any more is a suspicion: no write is taken for one that
    /// cannot fail. One that was never reached is that of a process which may be about to start:
    /// whoever is there first does not lead at once, to be displaced by the next.
    pub(crate) fn unreachable(&mut self, replica: ReplicaId) {
        let peer = &mut self.peers[replica.index()];
        if peer.life > Incarnation(0) {
            return self.suspect(replica);
        }
        peer.score = peer.score.saturating_sub(1);
        peer.alive &= peer.score >= FAIL;
    }

    pub(crate) fn suspect(&mut self, replica: ReplicaId) {
        let peer = &mut self.peers[replica.index()];
        if replica != self.me {
            peer.score = 0;
            peer.alive = false;
            self.let_go(replica);
        }
    }

    /// Assigns the replication plane its role ([Mu] 3.1).
    fn elect(&mut self, now: Now, out: &mut Out) {
        let leads = self.leader() == self.me && self.can_lead();
        match self.lead.state {
            LeadState::Following if leads && now.micros >= self.lead.retry_at => {
                self.begin_attempt(now, out);
            }
            LeadState::Following => {}
            // Who has the lead keeps it until another one takes it: there is no time without any.
            LeadState::Leading if self.can_lead() => {}
            _ if !leads => self.abort(now, out),
            _ => {}
        }
    }

    /// Another one has taken the lead, or what was to become one: for it, this replica has failed.
    /// It must be seen to live before it stands again, or the two would take turns.
    pub(crate) fn yield_lead(&mut self, now: Now) {
        let seen_at = now.micros + SEEN * self.config.timing.heartbeat;
        self.lead.retry_at = self.lead.retry_at.max(seen_at);
    }

    /// Whether the replication plane has done its part, and disks have not.
    fn waits_for_disks(&self) -> bool {
        let read = |id: &ReplicaId| self.followers[id.index()].stage == Stage::Read;
        self.is_durable()
            && match self.lead.state {
                LeadState::Following | LeadState::Gathering => false,
                LeadState::Preparing => {
                    let read: Vec<ReplicaId> = self.replicas().filter(read).collect();
                    self.is_quorum(members::set(&read))
                }
                LeadState::Leading => {
                    let last = self.recent.last().op;
                    last > self.executed.op && self.quorum_value(|id| self.acked(id)) >= last.0
                }
            }
    }

    /// Fate sharing ([Mu] 5.1): who gets nowhere must not be taken for a leader that works.
    fn share_fate(&mut self, now: Now, out: &mut Out) {
        let timing = self.config.timing;
        if self.lead.is_resigned {
            if now.micros >= self.lead.retry_at {
                self.lead.is_resigned = false;
                self.lead.progress_at = now.micros; // as much time as the first time
            }
            return;
        }
        // Attempts that come to nothing, one after the other, are no progress.
        let is_idle = match self.lead.state {
            LeadState::Following => self.leader() != self.me || !self.can_lead(),
            LeadState::Gathering | LeadState::Preparing => false,
            LeadState::Leading => !self.is_busy(),
        };
        if is_idle {
            self.lead.progress_at = now.micros;
        }
        let stall = if self.waits_for_disks() { timing.disk_stall } else { timing.stall };
        let since = now.micros.saturating_sub(timing.disk_stall);
        let is_stuck = !is_idle && self.disk.stores.stalled(since);
        if now.micros < self.lead.progress_at + stall && !is_stuck {
            return;
        }
        self.abort(now, out);
        self.lead.retry_at = now.micros + (timing.patience << self.lead.failures);
        self.lead.failures = (self.lead.failures + 1).min(6);
        self.lead.is_resigned = true;
    }
}
