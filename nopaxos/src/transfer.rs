//! State transfer: a replica that lacks what is stable gets it from one that has it, as entries or,
//! where those were trimmed, as a checkpoint ([NOPaxos] 5.3: an ousted leader; 5.2.5).
//!
//! Stable slots are the same in every later log, so they may be taken from any replica in any
//! status. Invariants: while a checkpoint is being installed nothing is executed; who takes slots
//! of a later view than its own leaves its own for that one.

use alloc::vec::Vec;

use smr::contract::Output;
use smr::fetch::Fetch;
use smr::{CheckpointChunk, Now, OpNumber, ReplicaId, Viewstamp};

use crate::message::{Body, Message, Suffix};
use crate::replica::{Out, Replica, Status};
use crate::slots::note_stable;

/// How often one piece is asked for before the transfer is given up.
const TRIES: u32 = 6;

/// The checkpoints of this replica.
#[derive(Debug, Default)]
pub(crate) struct Checkpoints {
    /// The newest that is complete.
    pub(crate) written: Viewstamp,
    writing: Option<Viewstamp>,
    /// Until when it is not replaced, since somebody fetches it, in [`Now::micros`].
    fetched_until: u64,
    pub(crate) fetched: bool,
}

impl Checkpoints {
    pub(crate) fn tick(&mut self, now: Now) {
        self.fetched = now.micros < self.fetched_until;
    }

    fn complete(&mut self, position: Viewstamp) {
        (self.written, self.writing) = (position, None);
    }
}

impl Replica {
    /// Whether the executor's state is being replaced.
    pub(crate) fn installing(&self) -> bool {
        self.transfer.as_ref().is_some_and(Fetch::is_installing)
    }

    pub(crate) fn start_transfer(&mut self, now: Now, from: ReplicaId, out: &mut Out) {
        if self.transfer.is_some() || from == self.me {
            return;
        }
        let retry_at = now.micros + self.config.timing.retry;
        self.transfer = Some(Fetch::new(from, retry_at));
        self.send(from, Body::Fetch { after: self.floor(), position: None, offset: 0 }, out);
    }

    pub(crate) fn retry_transfer(&mut self, now: Now, out: &mut Out) {
        let (after, retry) = (self.floor(), self.config.timing.retry);
        let Some(transfer) = &mut self.transfer else { return };
        if !transfer.is_due(now) {
            return;
        }
        if transfer.ask_again(now.micros + retry) > TRIES {
            self.transfer = None; // who needs it asks somebody, perhaps somebody else
            return;
        }
        let (from, (position, offset)) = (transfer.from(), transfer.next());
        self.send(from, Body::Fetch { after, position, offset }, out);
    }

    pub(crate) fn on_fetch(
        &mut self,
        now: Now,
        to: ReplicaId,
        after: OpNumber,
        position: Option<Viewstamp>,
        offset: u64,
        out: &mut Out,
    ) {
        let written = self.checkpoints.written;
        if position.is_some() || self.log.base().op > after {
            self.checkpoints.fetched_until = now.micros + 4 * self.config.timing.retry;
        }
        let is_whole = self.status != Status::Recovering && !self.installing();
        if is_whole && position.is_some() {
            out.push(Output::ReadCheckpoint { to, position, offset });
        } else if is_whole && self.log.base().op <= after && self.floor() > after {
            let suffix = self.stable_above(after);
            self.send(to, Body::Stable(suffix), out);
        } else if is_whole && written.op > after {
            out.push(Output::ReadCheckpoint { to, position: Some(written), offset });
        } else {
            self.send(to, Body::StateGone, out);
        }
    }

    fn stable_above(&self, after: OpNumber) -> Suffix {
        let (mut entries, mut bytes) = (Vec::new(), 0);
        for entry in self.log.above(after) {
            if entry.viewstamp.op > self.floor() || bytes > self.config.limits.transfer_bytes {
                break;
            }
            bytes += entry.size();
            entries.push(entry.clone());
        }
        let after = self.log.viewstamp_at(after).expect("it is not below the base");
        Suffix { after, entries }
    }

    pub(crate) fn on_transfer(
        &mut self,
        now: Now,
        from: ReplicaId,
        message: Message,
        out: &mut Out,
    ) {
        let Some(transfer) = &self.transfer else { return };
        if !transfer.asks(from) {
            return;
        }
        // A replica in status Normal must not find itself with slots of a later view.
        if self.leads() || (self.status == Status::Normal && message.view != self.view) {
            self.transfer = None;
            return;
        }
        match message.body {
            Body::Stable(suffix) => self.on_stable(now, suffix, out),
            Body::StateChunk(chunk) => self.on_state_chunk(now, from, chunk, out),
            _ => self.transfer = None,
        }
    }

    fn on_stable(&mut self, now: Now, mut suffix: Suffix, out: &mut Out) {
        self.transfer = None;
        let (end, before) = (suffix.last().op, self.log.last().op);
        if end <= self.floor() || !self.log.contains(suffix.after) {
            return;
        }
        for entry in &mut suffix.entries {
            let slot = entry.viewstamp.op;
            note_stable(entry, slot);
        }
        self.splice(&suffix.entries, out);
        self.shift_ahead(before);
        self.advance_sync(end.max(self.sync_point), out);
        self.advance_durable(end, out);
        self.sync.reach(end);
        self.resume(now, out);
    }

    /// What is stable has come: asks at once for what follows. If it is of a later view, the others
    /// have left this one: votes that they gave before must not start it above slots of that view.
    fn resume(&mut self, now: Now, out: &mut Out) {
        self.change.voted = false;
        let joined = self.joined_with_log();
        let view = match self.status {
            Status::Normal => return,
            Status::ViewChange => {
                if joined != self.view {
                    self.start_view_change(now, joined, out);
                }
                self.view
            }
            Status::Recovering => {
                self.view = joined;
                self.latest_told().unwrap_or(joined)
            }
        };
        let leader = view.leader(self.config.replicas);
        if leader != self.me {
            self.send(leader, Body::AskView, out);
        }
    }

    fn on_state_chunk(&mut self, now: Now, from: ReplicaId, chunk: CheckpointChunk, out: &mut Out) {
        let (after, retry) = (self.floor(), self.config.timing.retry);
        let is_news = chunk.position.op > after;
        let Some(transfer) = &mut self.transfer else { return };
        if !transfer.expects(from, &chunk) {
            return;
        }
        if !is_news {
            self.transfer = None;
            return;
        }
        let whole = transfer.take(&chunk, now.micros + retry);
        let ((position, offset), installed) = (transfer.next(), chunk.position);
        out.push(Output::SaveChunk(chunk));
        if !whole {
            self.send(from, Body::Fetch { after, position, offset }, out);
            return;
        }
        self.checkpoints.writing = None;
        out.push(Output::InstallState(installed));
    }

    pub(crate) fn on_state_installed(
        &mut self,
        now: Now,
        position: Option<Viewstamp>,
        out: &mut Out,
    ) {
        self.transfer = None;
        let Some(position) = position else { return };
        assert!(position.op > self.floor(), "a transfer never goes back");
        self.rebase(position);
        self.sync_point = position.op;
        self.durable_point = position.op;
        self.sync.reach(position.op);
        self.checkpoints.complete(position);
        self.resume(now, out);
    }

    /// Bounds what is kept below the sync-point.
    pub(crate) fn consider_checkpoint(&mut self, out: &mut Out) {
        let (stable, most) = (self.floor(), self.config.limits.log_bytes);
        let most = if self.checkpoints.fetched { 8 * most } else { most };
        if self.log.bytes() > most
            && self.checkpoints.writing.is_none()
            && stable > self.checkpoints.written.op
            && !self.installing()
        {
            let position = self.log.viewstamp_at(stable).expect("it is in the log");
            self.checkpoints.writing = Some(position);
            out.push(Output::WriteCheckpoint(position));
        }
    }

    pub(crate) fn on_checkpoint_written(&mut self, position: Viewstamp, _bytes: u64) {
        if self.checkpoints.writing == Some(position) {
            self.checkpoints.complete(position);
            if self.log.contains(position) {
                self.log.trim(position.op);
                self.stores.trim(position.op);
            }
        }
    }

    pub(crate) fn on_checkpoint_chunk(
        &mut self,
        to: ReplicaId,
        chunk: Option<CheckpointChunk>,
        out: &mut Out,
    ) {
        self.send(to, chunk.map_or(Body::StateGone, Body::StateChunk), out);
    }
}
