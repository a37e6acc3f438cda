//! View change ([NOPaxos] 5.2.3): another leader, another session, or both at once.
//!
//! Invariants: a replica's view only grows, number by number; it is on disk before the replica
//! votes for it; a view is left for another leader only when every quorum has a replica that
//! suspects the present one, so that one deaf replica drags nobody along. The end of a session is a
//! fact, and needs no agreement.

use alloc::sync::Arc;
use alloc::vec::Vec;

use smr::{Content, Entry, Incarnation, MAX_REPLICAS, Now, OpNumber, ReplicaId, View};

use crate::ahead::Ahead;
use crate::bug::Bug;
use crate::message::{Body, Message, Suffix};
use crate::replica::{Out, Replica, Status};
use crate::slots::{is_no_op, note_stable};
use crate::view_id::ViewId;

const REPLICAS: usize = MAX_REPLICAS as usize;

/// The state of leaving and starting views.
#[derive(Debug, Default)]
pub(crate) struct Change {
    /// VIEW-CHANGE messages for the present view, with the lives of their senders.
    votes: [Option<(Incarnation, Suffix)>; REPLICAS],
    /// When each replica last said that it suspects the present leader.
    suspects: [Option<u64>; REPLICAS],
    /// Whether this replica's own vote was sent, or counts.
    pub(crate) voted: bool,
    pub(crate) changed_at: u64,
    /// The view in which a former life, whose promises stand, was the last to speak: this life does
    /// not vote there again.
    pub(crate) muted: Option<ViewId>,
}

impl Change {
    fn begin(&mut self, now: Now) {
        *self = Change { changed_at: now.micros, muted: self.muted, ..Change::default() };
    }

    /// The leader was heard by this replica.
    pub(crate) fn hear(&mut self) {
        self.suspects = [None; REPLICAS];
    }
}

impl Replica {
    /// This replica does not hear the leader, or the view does not start.
    pub(crate) fn suspect(&mut self, now: Now, out: &mut Out) {
        self.broadcast(Body::Suspect, out);
        self.change.suspects[self.me.index()] = Some(now.micros);
    }

    /// Suspicions are counted within a view: whoever is behind comes along first, or the replicas
    /// of a view whose leader is dead could not reach those that missed its start.
    pub(crate) fn on_suspect(&mut self, now: Now, from: ReplicaId, view: ViewId, out: &mut Out) {
        let joined = self.view.join(view);
        if joined != self.view {
            self.start_view_change(now, joined, out);
        }
        if view == self.view {
            self.change.suspects[from.index()] = Some(now.micros);
        } else {
            self.send(from, Body::ViewChangeReq, out);
        }
    }

    /// Step 1.
    pub(crate) fn start_view_change(&mut self, now: Now, view: ViewId, out: &mut Out) {
        assert!(view > self.view, "views only grow");
        if self.status == Status::Normal {
            self.stop_listening();
        }
        self.view = self.led(view);
        self.status = Status::ViewChange;
        self.leave_view(now);
        self.broadcast(Body::ViewChangeReq, out);
    }

    fn leave_view(&mut self, now: Now) {
        self.ahead = Ahead::default();
        self.gaps.clear();
        self.gap_promises.clear();
        self.strangers.clear();
        self.raised.clear();
        self.bodies.forget_wanted();
        self.sync.begin(OpNumber(0));
        self.change.begin(now);
        self.begin_timers(now);
    }

    pub(crate) fn on_view_change(
        &mut self,
        now: Now,
        from: ReplicaId,
        message: Message,
        out: &mut Out,
    ) {
        let joined = match self.bug(Bug::LeaderNumberAlone) {
            true if message.view.leader_number > self.view.leader_number => message.view,
            true => self.view,
            false => self.view.join(message.view),
        };
        if joined != self.view {
            if self.bug(Bug::LeaderNumberAlone) {
                self.view = joined;
                self.status = Status::ViewChange;
                self.leave_view(now);
            } else {
                self.start_view_change(now, joined, out);
            }
        }
        if message.view != self.view || self.leader() != self.me {
            return;
        }
        if self.status == Status::Normal {
            self.on_ask_view(from, out); // it has missed START-VIEW
        } else if let Body::ViewChange(suffix) = message.body {
            self.change.votes[from.index()] = Some((message.lives.of(from), suffix));
        }
    }

    /// Somebody speaks in another view, or in this one before it has started here.
    pub(crate) fn on_other_view(&mut self, from: ReplicaId, view: ViewId, out: &mut Out) {
        let is_ahead = view > self.view || (view == self.view && self.status != Status::Normal);
        if is_ahead && view.leader(self.config.replicas) == from {
            self.send(from, Body::AskView, out);
        }
    }

    pub(crate) fn on_ask_view(&mut self, from: ReplicaId, out: &mut Out) {
        if self.leads() && self.view_is_stored() {
            let suffix = self.suffix();
            self.send(from, Body::StartView(suffix), out);
        }
    }

    /// The log above what is stable.
    fn suffix(&self) -> Suffix {
        let after = self.log.viewstamp_at(self.floor()).expect("the log reaches down to it");
        Suffix { after, entries: self.log.above(after.op).cloned().collect() }
    }

    pub(crate) fn settle_change(&mut self, now: Now, out: &mut Out) {
        if self.status == Status::Recovering {
            return;
        }
        let fresh = now.micros.saturating_sub(self.config.timing.election);
        let suspects = &self.change.suspects;
        let suspects = |id: ReplicaId| suspects[id.index()].is_some_and(|at| at >= fresh);
        let is_left = self.change.suspects[self.me.index()].is_some();
        if is_left && self.counting().meets_quorums(suspects) {
            self.start_view_change(now, self.view.next_leader(), out);
        }
        if self.status != Status::ViewChange
            || self.installing()
            || self.change.muted == Some(self.view)
        {
            return;
        }
        let on_disk = !self.logs() || self.stores.disk() >= self.log.last().op;
        let is_stored = self.view_is_stored() && on_disk;
        if !self.change.voted && (is_stored || self.bug(Bug::VoteBeforeStored)) {
            self.change.voted = true;
            if self.leader() != self.me {
                self.send(self.leader(), Body::ViewChange(self.suffix()), out);
            }
        }
        if self.change.voted && self.leader() == self.me {
            self.try_start_view(now, out);
        }
    }

    /// Step 2: with f + 1 votes, merges the logs of the last view in which any of them was Normal.
    fn try_start_view(&mut self, now: Now, out: &mut Out) {
        let votes: Vec<(ReplicaId, &Suffix)> = self
            .ids()
            .filter_map(|id| self.change.votes[id.index()].as_ref().map(|vote| (id, vote)))
            .filter(|(id, (life, _))| self.counts(*id, *life))
            .map(|(id, (_, suffix))| (id, suffix))
            .collect();
        let has_voted = |id: ReplicaId| votes.iter().any(|(from, _)| *from == id);
        if !self.counting().is_quorum(|id| id == self.me || has_voted(id)) {
            return;
        }
        let own = self.log.last().view;
        let last = votes.iter().map(|(_, suffix)| suffix.last().view).fold(own, View::max);
        let any = self.bug(Bug::MergeAnyView);
        let good: Vec<&(ReplicaId, &Suffix)> =
            votes.iter().filter(|(_, suffix)| any || suffix.last().view == last).collect();
        // What lies below a good log's beginning is stable, and may be missing here.
        let highest = good.iter().max_by_key(|(_, suffix)| suffix.after.op);
        if let Some(&&(owner, suffix)) = highest
            && suffix.after.op > self.floor()
        {
            self.start_transfer(now, owner, out);
            return;
        }
        let base = self.floor();
        let suffixes: Vec<&Suffix> = good.iter().map(|(_, suffix)| *suffix).collect();
        let merged = self.merge(base, &suffixes, any || own == last);
        self.adopt(base, &merged, last, out);
        let (view, previous) = (self.view.to_view(self.config.replicas), self.log.last());
        let viewstamp = smr::Viewstamp::new(view, previous.op.next());
        let (commit, durable) = (self.floor(), smr::Viewstamp::default());
        let content = Content::ViewStart;
        self.append(Arc::new(Entry { viewstamp, previous, commit, durable, content }));
        self.begin_view(now, self.log.last().op, out);
        self.broadcast(Body::StartView(self.suffix()), out);
    }

    /// A slot is a NO-OP if it is one in any of the logs, else it has its request.
    fn merge(&self, base: OpNumber, suffixes: &[&Suffix], with_own: bool) -> Vec<Arc<Entry>> {
        let prefer_requests = self.bug(Bug::MergePrefersRequests);
        let mut merged = Vec::new();
        let mut slot = base;
        loop {
            slot = slot.next();
            let own = self.log.get(slot).filter(|_| with_own);
            let of = |suffix: &&Suffix| {
                let index = slot.0.checked_sub(suffix.after.op.0 + 1)?;
                suffix.entries.get(usize::try_from(index).ok()?).cloned()
            };
            let all = suffixes.iter().filter_map(of).chain(own.cloned());
            match all.max_by_key(|entry| is_no_op(entry) != prefer_requests) {
                Some(entry) => merged.push(entry),
                None => return merged,
            }
        }
    }

    /// Makes the log `entries` above `base`; what it has above them stays only if it was of the
    /// same view.
    fn adopt(&mut self, base: OpNumber, entries: &[Arc<Entry>], last: View, out: &mut Out) {
        self.splice(entries, out);
        let end = entries.last().map_or(base, |entry| entry.viewstamp.op);
        if self.log.last().op > end && self.log.last().view != last {
            self.cut(end, out);
        }
    }

    /// Step 3. The guard is the authors' specification's: a strictly newer view, or the present one
    /// that has not started here.
    pub(crate) fn on_start_view(
        &mut self,
        now: Now,
        from: ReplicaId,
        message: Message,
        out: &mut Out,
    ) {
        let Message { view, lives, body: Body::StartView(suffix), .. } = message else { return };
        if view.leader(self.config.replicas) != from || self.installing() {
            self.tally.nonsense += u64::from(!self.installing());
            return;
        }
        let is_wanted = match self.status {
            Status::Recovering => view >= self.view && self.may_recover_in(view, &lives),
            Status::ViewChange => view >= self.view,
            Status::Normal => view > self.view,
        };
        // Who lacks what is stable may have got it from others before this START-VIEW has come.
        let is_late = suffix.last().op < self.floor();
        if !is_wanted || is_late {
            return;
        }
        if suffix.after.op > self.floor() {
            if self.status != Status::Recovering && view != self.view {
                self.start_view_change(now, view, out);
            }
            self.start_transfer(now, from, out);
            return;
        }
        if self.status == Status::Normal {
            self.stop_listening();
        }
        self.view = view;
        let end = suffix.last();
        let floor = self.floor();
        let mut above: Vec<_> =
            suffix.entries.into_iter().filter(|e| e.viewstamp.op > floor).collect();
        above.iter_mut().for_each(|entry| note_stable(entry, floor));
        self.adopt(end.op, &above, view.to_view(self.config.replicas), out);
        self.begin_view(now, end.op, out);
    }

    fn begin_view(&mut self, now: Now, matched: OpNumber, out: &mut Out) {
        self.leave_view(now);
        self.status = Status::Normal;
        self.transfer = None;
        self.sync.begin(matched);
        self.answered = self.sync_point;
        self.tally.views += 1;
        self.begin_listening(out);
    }
}
