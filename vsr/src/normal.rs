//! Operation within a view ([Mao] 4.2.3): PREPARE, PREPAREOK, commitment, and the signs of life and
//! of progress that keep a primary in the lead.
//!
//! A PREPARE is accepted only on top of the entry that it names (by number alone, logs
//! diverge). A log whose last entry is of the present view is a prefix of its primary's log.

use alloc::sync::Arc;
use alloc::vec;
use alloc::vec::Vec;

use smr::contract::{Output, Role};
use smr::{Content, Entry, Now, OpNumber, ReplicaId, Request, View, Viewstamp};

use crate::message::Message;
use crate::replica::{Out, Replica};
use crate::storage::Change;

impl Replica {
    pub(crate) fn on_request(&mut self, request: Request) {
        assert_eq!(self.role, Role::Primary, "the host asks for admission first");
        self.pending.push_back(request);
    }

    /// Proposes what is pending, as far as the pipeline allows; the rest makes larger batches.
    pub(crate) fn propose(&mut self, now: Now, out: &mut Out) {
        while self.role == Role::Primary
            && !self.pending.is_empty()
            && self.log.last().op.0 - self.commit.0 < self.config.limits.pipeline
            && !self.lags()
        {
            let mut requests = Vec::new();
            let mut bytes = 0;
            while let Some(next) = self.pending.front() {
                bytes += Request::OVERHEAD + next.body.len();
                if !requests.is_empty() && bytes > self.config.limits.batch_bytes {
                    break;
                }
                requests.extend(self.pending.pop_front());
            }
            let entry = self.next_entry(Content::Batch { unix_ms: now.unix_ms, requests });
            self.extend(now, vec![Arc::clone(&entry)], None, out);
            let (all_have, round) = (self.all_have, self.reads.newest());
            self.broadcast(Message::Prepare { entry, all_have, round }, out);
            self.heartbeat_at = now.micros + self.config.timing.heartbeat;
            #[cfg(feature = "planted-bugs")]
            if self.bug(crate::Bug::ReplyBeforeStored) {
                self.commit = self.log.last().op;
                out.push(Output::Commit { through: self.commit, reply: true });
                self.settle(out);
            }
            self.advance_commit(now, out);
        }
        self.flush(out);
    }

    /// Asks all disks to hurry, once everything that somebody waits for is on its way to them.
    pub(crate) fn flush(&mut self, out: &mut Out) {
        if self.lazy() && self.flush_wanted && self.pending.is_empty() {
            self.flush_wanted = false;
            out.push(Output::Flush);
            self.broadcast(Message::Flush { view: self.view }, out);
        }
    }

    pub(crate) fn next_entry(&self, content: Content) -> Arc<Entry> {
        let previous = self.log.last();
        let viewstamp = Viewstamp::new(self.view, previous.op.next());
        let (commit, durable) = (self.commit, self.durable);
        Arc::new(Entry { viewstamp, previous, commit, durable, content })
    }

    /// Makes `entries` the log's tail above `truncate` (or above its end): executes and stores them
    /// together with the present view, as one change.
    pub(crate) fn extend(
        &mut self,
        now: Now,
        entries: Vec<Arc<Entry>>,
        truncate: Option<OpNumber>,
        out: &mut Out,
    ) {
        if let Some(keep) = truncate {
            assert!(!self.leading, "a leader's log is the measure");
            assert!(keep >= self.stable, "what is stable is never dropped");
            self.roll_back(keep, out);
        }
        for entry in &entries {
            self.checkpoints.grown += entry.size();
            self.lag_bytes += if self.lazy() { entry.size() } else { 0 };
            self.log.append(Arc::clone(entry));
            out.push(Output::Execute(Arc::clone(entry)));
        }
        #[cfg(feature = "planted-bugs")]
        let (truncate, entries) = self.truncate_early(now, truncate, entries, out);
        self.store(now, Change { reset: None, truncate, append: entries }, out);
        self.checkpoint_if_due(out);
        self.recall();
    }

    #[cfg(feature = "planted-bugs")]
    fn truncate_early(
        &mut self,
        now: Now,
        truncate: Option<OpNumber>,
        entries: Vec<Arc<Entry>>,
        out: &mut Out,
    ) -> (Option<OpNumber>, Vec<Arc<Entry>>) {
        if truncate.is_none() || !self.bug(crate::Bug::TruncateThenAppend) {
            return (truncate, entries);
        }
        let keep = self.stable.max(self.log.base().op);
        self.store(now, Change { reset: None, truncate: Some(keep), append: Vec::new() }, out);
        (None, self.log.above(keep).cloned().collect())
    }

    /// Drops the log's tail above `keep`, acknowledged or not.
    fn roll_back(&mut self, keep: OpNumber, out: &mut Out) {
        if self.lazy() {
            self.lag_bytes -= self.log.above(keep).map(|entry| entry.size()).sum::<usize>();
        }
        self.log.truncate(keep);
        self.rolled_back += self.commit.0.saturating_sub(keep.0);
        self.commit = self.commit.min(keep);
        out.push(Output::Rollback(keep));
    }

    /// Whether so much is not durable that nothing more may be proposed.
    fn lags(&self) -> bool {
        self.lazy() && self.lag_bytes > self.config.limits.lag_bytes
    }

    pub(crate) fn on_prepare(
        &mut self,
        now: Now,
        from: ReplicaId,
        entry: Arc<Entry>,
        all_have: OpNumber,
        round: u64,
        out: &mut Out,
    ) {
        let view = entry.viewstamp.view;
        if !self.follows(now, from, view, out) {
            return;
        }
        self.all_have = all_have;
        if self.log.contains(entry.viewstamp) {
            self.acknowledge_round(round, out); // the acknowledgement may have been lost
            return;
        }
        #[cfg(feature = "planted-bugs")]
        if self.bug(crate::Bug::AcceptByNumberOnly)
            && entry.viewstamp.op == self.log.last().op.next()
            && entry.previous != self.log.last()
        {
            let entry = Arc::new(Entry { previous: self.log.last(), ..(*entry).clone() });
            self.extend(now, vec![entry], None, out);
            self.role = Role::Backup;
            self.acknowledge_round(round, out);
            return;
        }
        if self.disk_lags() {
            return; // it comes back by catch-up, and memory stays bounded
        }
        if entry.previous != self.log.last() || self.installing() {
            self.start_catch_up(now, from, view, out);
            return;
        }
        let (commit, durable) = (entry.commit, entry.durable);
        self.extend(now, vec![entry], None, out);
        self.enter_as_backup(now);
        self.learn_commit(commit, out);
        self.learn_durable(durable, out);
        self.trim(now);
        // In `sync` the acknowledgement follows the disk; only a new round is worth an answer now.
        if !self.sync() || round > self.reads.newest() {
            self.acknowledge_round(round, out);
        }
    }

    /// Whether the disk is so far behind that more entries would only fill the memory.
    pub(crate) fn disk_lags(&self) -> bool {
        self.stores.backlog() > self.config.limits.log_bytes
    }

    /// Whether a message of `view`'s primary may be handled in it; answers a stale one, and starts
    /// to catch up with a newer one.
    pub(crate) fn follows(&mut self, now: Now, from: ReplicaId, view: View, out: &mut Out) -> bool {
        if from != view.primary() {
            self.dropped += 1;
            return false;
        }
        if view < self.view {
            self.send(from, Message::StaleView { view: self.view }, out);
            return false;
        }
        if view > self.view {
            // Neither view nor log changes until the new view's log is here.
            self.start_catch_up(now, from, view, out);
            return false;
        }
        self.hear_primary(now);
        self.enter_as_backup(now);
        true
    }

    fn hear_primary(&mut self, now: Now) {
        self.primary_heard_at = now.micros;
        let jitter = self.jitter();
        self.election.heard(now.micros + self.config.timing.election + jitter);
    }

    /// The log's last entry is of the present view, so this replica follows its primary.
    pub(crate) fn enter_as_backup(&mut self, now: Now) {
        if self.role == Role::ViewChange && !self.leading && self.log.last().view == self.view {
            self.role = Role::Backup;
            self.election.leave();
            self.hear_primary(now);
        }
    }

    pub(crate) fn learn_commit(&mut self, commit: OpNumber, out: &mut Out) {
        let through = commit.min(self.log.last().op);
        if through > self.commit && !self.installing() {
            self.commit = through;
            out.push(Output::Commit { through, reply: false });
            self.settle(out);
        }
    }

    /// dp has moved, if this log holds what it names: then the log is covered up to there ([Mao]
    /// 4.3). What is durable is committed.
    pub(crate) fn learn_durable(&mut self, durable: Viewstamp, out: &mut Out) {
        let news = durable.op > self.durable.op && self.log.contains(durable);
        if !news || self.installing() {
            return;
        }
        if self.lazy() {
            let covered = self.log.above(self.durable.op);
            let covered = covered.take_while(|entry| entry.viewstamp.op <= durable.op);
            self.lag_bytes -= covered.map(|entry| entry.size()).sum::<usize>();
        }
        self.durable = durable;
        if !self.leading {
            self.learn_commit(durable.op, out);
        }
        assert!(durable.op <= self.commit, "what is durable is committed");
        self.settle(out);
    }

    /// What is stable may have grown.
    fn settle(&mut self, out: &mut Out) {
        let stable = if self.lazy() { self.durable.op } else { self.commit };
        #[cfg(feature = "planted-bugs")]
        let stable = if self.bug(crate::Bug::UndoDroppedEarly) { self.commit } else { stable };
        if stable > self.stable {
            self.stable = stable;
            out.push(Output::Stable(stable));
        }
    }

    /// Acknowledges what can be acknowledged now.
    pub(crate) fn acknowledge(&mut self, out: &mut Out) {
        self.acknowledge_round(self.reads.newest(), out);
    }

    fn acknowledge_round(&mut self, round: u64, out: &mut Out) {
        self.reads.hear(round);
        if self.role != Role::Backup || !self.view_stored() {
            return;
        }
        let message = Message::PrepareOk {
            view: self.view,
            op: self.acknowledgeable(),
            disk: self.stores.disk(),
            round: self.reads.newest(),
            incarnations: self.incarnations(),
        };
        self.send(self.view.primary(), message, out);
    }

    #[allow(clippy::too_many_arguments)] // a message's fields
    pub(crate) fn on_prepare_ok(
        &mut self,
        now: Now,
        from: ReplicaId,
        view: View,
        op: OpNumber,
        disk: Viewstamp,
        round: u64,
        out: &mut Out,
    ) {
        if view != self.view || !self.leading {
            return;
        }
        let own_last = self.log.last().op;
        let peer = &mut self.peers[from.index()];
        peer.acknowledged = peer.acknowledged.max(op.min(own_last));
        peer.disk = peer.disk.max(disk);
        peer.round = peer.round.max(round);
        peer.heard_at = now.micros;
        self.advance(now, out);
        self.confirm_reads(out);
    }

    /// Recomputes what a quorum holds.
    pub(crate) fn advance(&mut self, now: Now, out: &mut Out) {
        self.advance_commit(now, out);
        let me = self.me;
        let own = self.stores.disk();
        let durable =
            self.quorum_value(|id| if id == me { own } else { self.peers[id.index()].disk });
        #[cfg(feature = "planted-bugs")]
        let minority = self.bug(crate::Bug::DurableOnMinority) && own.op <= self.commit;
        #[cfg(feature = "planted-bugs")]
        let durable = if minority { own } else { durable };
        // A viewstamp of an older view may be one that this log dropped ([Mao], lemma 4.3.6).
        if durable.view == self.view {
            self.learn_durable(durable, out);
        }
        self.all_have = self.held_by_all();
        self.trim(now);
        self.propose(now, out);
    }

    /// The last operation that every replica holds: in memory, or on disk if entries go there
    /// (property 6 of [Mao] 4.2.1).
    fn held_by_all(&self) -> OpNumber {
        let own = if self.logs() { self.stores.disk().op } else { self.acknowledgeable() };
        let others = self.peers.iter().enumerate().filter(|&(id, _)| id != self.me.index());
        let held =
            others.map(|(_, peer)| if self.logs() { peer.disk.op } else { peer.acknowledged });
        held.chain([own]).min().unwrap_or(own)
    }

    /// An operation is committed when f + 1 replicas acknowledge it in this view. Entries of older
    /// views commit only together with this view's first (step 7 of [Mao] 4.2.5).
    fn advance_commit(&mut self, now: Now, out: &mut Out) {
        let own = self.acknowledgeable();
        let me = self.me;
        let through = self
            .quorum_value(|id| if id == me { own } else { self.peers[id.index()].acknowledged });
        if through <= self.commit || through < self.view_start {
            return;
        }
        if self.role != Role::Primary {
            self.become_primary(now);
        }
        self.commit = through;
        out.push(Output::Commit { through, reply: true });
        self.settle(out);
        self.trim(now);
    }

    #[allow(clippy::too_many_arguments)] // a message's fields
    pub(crate) fn on_commit(
        &mut self,
        now: Now,
        from: ReplicaId,
        view: View,
        last: Viewstamp,
        commit: OpNumber,
        durable: Viewstamp,
        round: u64,
        out: &mut Out,
    ) {
        if !self.follows(now, from, view, out) {
            return;
        }
        if self.log.last().view == view {
            self.learn_commit(commit, out);
            self.learn_durable(durable, out);
            self.trim(now);
        }
        if !self.log.contains(last) && self.log.last() < last {
            self.start_catch_up(now, from, view, out);
        }
        self.acknowledge_round(round, out);
    }

    pub(crate) fn send_commit(&mut self, now: Now, out: &mut Out) {
        self.heartbeat_at = now.micros + self.config.timing.heartbeat;
        let message = self.commit_message();
        self.broadcast(message, out);
    }

    pub(crate) fn commit_message(&self) -> Message {
        Message::Commit {
            view: self.view,
            last: self.log.last(),
            commit: self.commit,
            durable: self.durable,
            all_have: self.all_have,
            round: self.reads.newest(),
        }
    }

    /// A leader's duties: to speak, and to see whether it still makes progress.
    pub(crate) fn leader_timeout(&mut self, now: Now, out: &mut Out) {
        if now.micros < self.heartbeat_at {
            return;
        }
        // Leadership follows progress: a disk may stall, or nobody answer.
        let timing = self.config.timing;
        let stalled = self.stores.stalled(now.micros.saturating_sub(timing.stall));
        let me = self.me;
        let heard = self
            .quorum_value(|id| if id == me { u64::MAX } else { self.peers[id.index()].heard_at });
        let since = heard.max(self.view_changed_at);
        // In `lazy` a slow disk of a minority must cost nothing, not even the primary's.
        let behind = self.disk_lags() && self.stores.disk().op < self.durable.op;
        if stalled || behind || now.micros > since.saturating_add(timing.election) {
            self.resign(now, out);
            return;
        }
        if self.role == Role::Primary {
            self.send_commit(now, out);
        } else {
            self.send_elect_accept(now, out);
        }
    }
}
