//! Durability `lazy` when more than f replicas are forgetful or out of reach: who may have
//! forgotten what it acknowledged, and how a replica leaves a log that the group has lost.
//!
//! A replica that restarts holds what its disk held, perhaps not the last that it acknowledged from
//! memory. It says so on its board, and an election does not rest on it, until a leader of its own
//! or a later view, which counts no former life any more, has named the end of its log, and this
//! replica holds that.
//!
//! What was executed and is not in the log of the leader is undone down to the stable point. Where
//! no more than f are missing a leader's log has all that was decided before it, so what differs
//! from it proves the loss.

use alloc::vec::Vec;

use smr::contract::Output;
use smr::{Now, OpNumber, ReplicaId, View, Viewstamp};

use crate::attempt::{LeadState, Stage};
use crate::event::Memory;
use crate::layout::{self, FORGETFUL, Head};
use crate::members;
use crate::message::Message;
use crate::recent::Recent;
use crate::replica::{Out, Replica};

/// What a replica that restarted does to remember.
#[derive(Debug)]
pub(crate) struct Forgetful {
    retry_at: u64,
    /// The highest view on disk: a former life acknowledged nothing in a higher one.
    view: View,
    /// With this operation the log holds all that was acknowledged.
    target: Option<Viewstamp>,
}

impl Forgetful {
    pub(crate) fn new(now: Now, view: View) -> Forgetful {
        Forgetful { retry_at: now.micros, view, target: None }
    }
}

/// Since when a would-be leader has had a majority, but not of replicas that remember everything,
/// and when it last had. Nothing that was decided meanwhile, by anybody, is known to it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Short {
    since: u64,
    last: u64,
}

impl<M: Memory> Replica<M> {
    pub(crate) fn forgetful_tick(&mut self, now: Now, out: &mut Out) {
        let retry = self.config.timing.retry;
        let Some(forgetful) = &mut self.forgetful else { return };
        if now.micros >= forgetful.retry_at {
            forgetful.retry_at = now.micros + retry;
            out.push(Output::Send(smr::To::Others, Message::Recall));
        }
    }

    /// The asker's former lives count no more: their followers were dropped when this life was met.
    pub(crate) fn on_recall(&mut self, from: ReplicaId, out: &mut Out) {
        if self.is_open() {
            let (view, through) = (self.lead.number, self.recent.last().op);
            self.send(from, Message::Recalled { view, through }, out);
        }
    }

    pub(crate) fn on_recalled(&mut self, view: View, through: OpNumber, out: &mut Out) {
        if let Some(forgetful) = self.forgetful.as_mut().filter(|f| view >= f.view) {
            let target = Viewstamp::new(view, through);
            forgetful.target = forgetful.target.max(Some(target));
            self.recall(out);
        }
    }

    /// The log has grown: it may hold everything again.
    pub(crate) fn recall(&mut self, out: &mut Out) {
        let target = self.forgetful.as_ref().and_then(|forgetful| forgetful.target);
        if target.is_some_and(|target| self.log.last() >= target) {
            self.remember(out);
        }
    }

    pub(crate) fn remember(&mut self, out: &mut Out) {
        if self.forgetful.take().is_some() {
            self.store(FORGETFUL, 0, out);
        }
    }

    fn remembers(&self, replica: ReplicaId) -> bool {
        #[cfg(feature = "planted-bugs")]
        if self.bug(crate::Bug::ForgetfulUnmarked) {
            return true;
        }
        match replica == self.me {
            true => self.forgetful.is_none(),
            false => !self.followers[replica.index()].forgetful,
        }
    }

    /// Whether these replicas may decide what the log is: a majority that remembers everything; or
    /// any majority, if it is all members, or after a patience: else the group would stand still.
    pub(crate) fn may_rest_on(&mut self, now: Now, read: &[ReplicaId]) -> bool {
        let timing = self.config.timing;
        if !self.is_lazy() {
            return true;
        }
        let sound: Vec<ReplicaId> = read.iter().copied().filter(|&id| self.remembers(id)).collect();
        if self.is_quorum(members::set(&sound)) {
            return true;
        }
        // It waits for others, and its heartbeat goes on.
        self.lead.progress_at = now.micros;
        let pause = 4 * timing.stall;
        let going_on = |short: &Short| now.micros < short.last + pause;
        let since = self.lead.short.filter(going_on).map_or(now.micros, |short| short.since);
        self.lead.short = Some(Short { since, last: now.micros });
        let all = self.lead.configs.iter().fold(0, |all, &members| all | members);
        let has_all = members::set(read) & all == all;
        // Who answers, and whose disk is slow, is not silent.
        let answers = |id: &ReplicaId| {
            let stage = self.followers[id.index()].stage;
            all & members::bit(*id) != 0
                && !read.contains(id)
                && !matches!(stage, Stage::Idle | Stage::Renouncing | Stage::Asking)
        };
        let is_answered = self.replicas().any(|id| answers(&id));
        let patience = timing.reluctance + if is_answered { timing.disk_stall } else { 0 };
        if has_all || now.micros >= since + patience {
            self.risky_elections += 1;
            return true;
        }
        false
    }

    /// Whether the log that the present leader writes here lacks what this replica has executed:
    /// an entry of the leader's own stands at or below its end, or the leader's log, up to an own
    /// entry of the leader or to what it calls decided, does not follow it.
    pub(crate) fn is_lost(&mut self) -> bool {
        let leader = self.replay.min_proposal;
        if !self.is_lazy() || self.executed.view >= leader {
            return false;
        }
        let ring = u64::from(self.limits().slots);
        let first = self.stable.op.0.max(self.executed.op.0.saturating_sub(ring)) + 1;
        for op in (first..=self.executed.op.0).map(OpNumber) {
            if self.load_slot(op).is_some_and(|slot| slot.viewstamp().view == leader) {
                return true;
            }
        }
        let seen = &self.replay.seen;
        if seen.front().is_none_or(|slot| slot.previous() == self.executed) {
            return false;
        }
        let follows = seen.iter().zip(seen.iter().skip(1));
        let run = 1 + follows.take_while(|(one, next)| next.previous() == one.viewstamp()).count();
        self.replay.decided > self.executed.op
            || seen.iter().take(run).any(|slot| slot.viewstamp().view == leader)
    }

    /// Undoes what the group has lost, down to what cannot be, and executes nothing more of a log
    /// that ends below `view`. The leader sees the log head fall, and brings this replica up to
    /// date from there.
    pub(crate) fn go_back(&mut self, view: View, out: &mut Out) {
        assert!(self.is_lazy(), "what was decided is lost in `lazy` alone");
        assert_eq!(self.lead.state, LeadState::Following);
        let keep = self.stable;
        self.lost = (self.lost.0.max(view), self.permissions.current);
        if self.executed.op == keep.op {
            return;
        }
        self.rolled_back += self.executed.op.0 - keep.op.0;
        out.push(Output::Rollback(keep.op));
        self.executed = keep;
        match keep.op >= self.recent.base() {
            true => self.recent.truncate(keep.op),
            false => self.recent = Recent::new(keep, self.limits()),
        }
        self.published = Head { head: keep.op, base: keep.op };
        self.replay.forget(keep.op);
        self.replay.decided = keep.op;
        self.publish(out);
    }

    /// A follower's log head has fallen below where it was brought up to date from.
    pub(crate) fn check_head(&mut self, now: Now, peer: ReplicaId, head: OpNumber, out: &mut Out) {
        let follower = &self.followers[peer.index()];
        let is_fed = matches!(follower.stage, Stage::Feeding | Stage::Confirmed);
        if self.is_lazy() && is_fed && head < follower.from {
            self.drop_follower(now, peer, 0, out);
        }
    }

    /// The pair under which a board tells the view of what was executed.
    pub(crate) fn head_seal(view: View, head: u64) -> u64 {
        layout::sealed(view, head, OpNumber(0))[1]
    }
}
