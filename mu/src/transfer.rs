//! State transfer: a replica fetches a checkpoint of another one, piece by piece, and puts it in
//! place of its state when it is complete ([Mu] 5.4: from a follower).
//!
//! Invariant: while a checkpoint is being installed nothing is executed, no permission is switched,
//! and this replica does not stand for the lead.

use smr::contract::Output;
use smr::fetch::Fetch;
use smr::{CheckpointChunk, Log, Now, OpNumber, ReplicaId, Viewstamp};

use crate::attempt::LeadState;
use crate::disk::StoreChange;
use crate::event::Memory;
use crate::layout::FETCHED;
use crate::message::Message;
use crate::replica::{Out, Replica};
use crate::reserve::WHOLE;

/// How often one piece is asked for before the transfer is given up.
const TRIES: u32 = 10;
/// After so many retries without a question nobody fetches a checkpoint any more.
const TRIES_LATER: u64 = 4;

/// A checkpoint on its way to this replica.
#[derive(Debug)]
pub(crate) struct Transfer {
    fetch: Fetch,
    /// It must reach at least so far.
    above: OpNumber,
}

/// The checkpoints that this replica writes for others.
#[derive(Debug, Default)]
pub(crate) struct Checkpoints {
    /// The newest that is complete.
    pub(crate) written: Viewstamp,
    writing: Option<Viewstamp>,
    /// Bytes of entries since the last one was begun.
    pub(crate) grown: usize,
    /// When a piece was last fetched, in [`Now::micros`], unless that is long ago.
    pub(crate) fetched_at: Option<u64>,
}

impl<M: Memory> Replica<M> {
    /// Whether the executor's state is being replaced.
    pub(crate) fn installing(&self) -> bool {
        self.transfer.as_ref().is_some_and(|transfer| transfer.fetch.is_installing())
    }

    /// Whom a replica should ask: rather a follower than this leader.
    pub(crate) fn checkpoint_source(&self, asker: ReplicaId) -> ReplicaId {
        let serves = |id: &ReplicaId| {
            *id != self.me && *id != asker && self.followers[id.index()].is_confirmed()
        };
        self.replicas().find(serves).unwrap_or(self.me)
    }

    /// How new a checkpoint must be for this leader to go on from there: while it travels more is
    /// decided, and what is kept moves on.
    pub(crate) fn worth_fetching(&self) -> OpNumber {
        match self.recent.base().0 {
            0 => OpNumber(0),
            base => OpNumber(self.executed.op.0 - (self.executed.op.0 - base) / 4),
        }
    }

    /// A leader cannot bring this replica up to date.
    pub(crate) fn on_need_state(
        &mut self,
        now: Now,
        above: OpNumber,
        source: ReplicaId,
        out: &mut Out,
    ) {
        if above > self.executed.op && self.lead.state == LeadState::Following {
            self.start_transfer(now, source, above, out);
        }
    }

    pub(crate) fn start_transfer(
        &mut self,
        now: Now,
        from: ReplicaId,
        above: OpNumber,
        out: &mut Out,
    ) {
        if self.transfer.is_some() || from == self.me || from.0 >= self.config.replicas {
            return;
        }
        let retry_at = now.micros + self.config.timing.retry;
        self.transfer = Some(Transfer { fetch: Fetch::new(from, retry_at), above });
        self.store(FETCHED, 0, out);
        self.send(from, Message::FetchState { position: None, offset: 0, above }, out);
    }

    pub(crate) fn transfer_tick(&mut self, now: Now, out: &mut Out) {
        let retry = self.config.timing.retry;
        let is_old = |at: &mut u64| now.micros >= *at + TRIES_LATER * retry;
        self.checkpoints.fetched_at.take_if(is_old);
        let Some(Transfer { fetch, above }) = &mut self.transfer else { return };
        if !fetch.is_due(now) {
            return;
        }
        if fetch.ask_again(now.micros + retry) > TRIES {
            self.transfer = None;
            return;
        }
        let (from, (position, offset), above) = (fetch.from(), fetch.next(), *above);
        self.send(from, Message::FetchState { position, offset, above }, out);
    }

    pub(crate) fn on_fetch_state(
        &mut self,
        now: Now,
        to: ReplicaId,
        position: Option<Viewstamp>,
        offset: u64,
        above: OpNumber,
        out: &mut Out,
    ) {
        if self.recovery.is_some() || self.installing() {
            return; // any other replica's state is decided
        }
        let written = self.checkpoints.written;
        self.checkpoints.fetched_at = Some(now.micros);
        if position.is_some() {
            out.push(Output::ReadCheckpoint { to, position, offset });
        } else if written.op >= above && written.op.0 > 0 {
            out.push(Output::ReadCheckpoint { to, position: Some(written), offset });
        } else if self.stable.op >= above {
            self.begin_checkpoint(out); // the other asks again
        }
    }

    /// In `sync` and `lazy` the log on disk is trimmed to a checkpoint now and then; one that is
    /// being fetched is not replaced soon.
    pub(crate) fn checkpoint_if_due(&mut self, out: &mut Out) {
        let due = self.limits().checkpoint_bytes;
        let due = if self.checkpoints.fetched_at.is_some() { due.saturating_mul(8) } else { due };
        if self.is_durable() && self.checkpoints.grown >= due {
            self.begin_checkpoint(out);
        }
    }

    fn begin_checkpoint(&mut self, out: &mut Out) {
        let is_new = self.stable.op > self.checkpoints.written.op;
        if is_new && self.checkpoints.writing.is_none() && !self.installing() {
            self.checkpoints.writing = Some(self.stable);
            self.checkpoints.grown = 0;
            out.push(Output::WriteCheckpoint(self.stable));
        }
    }

    /// A later position than the one asked for will do.
    pub(crate) fn on_checkpoint_written(&mut self, position: Viewstamp) {
        if self.checkpoints.writing.is_some_and(|asked| asked.op <= position.op) {
            assert!(position.op <= self.stable.op, "a checkpoint holds what is stable");
            self.checkpoints.written = position;
            self.checkpoints.writing = None;
            if self.is_durable() {
                self.disk.stores.trim(position.op);
            }
        }
    }

    pub(crate) fn on_checkpoint_chunk(
        &mut self,
        to: ReplicaId,
        chunk: Option<CheckpointChunk>,
        out: &mut Out,
    ) {
        let message = chunk.map_or(Message::StateGone, Message::StateChunk);
        self.send(to, message, out);
    }

    pub(crate) fn on_state_chunk(
        &mut self,
        now: Now,
        from: ReplicaId,
        chunk: CheckpointChunk,
        out: &mut Out,
    ) {
        let retry = self.config.timing.retry;
        let Some(Transfer { fetch, above }) = &mut self.transfer else { return };
        if !fetch.expects(from, &chunk) {
            return;
        }
        if chunk.position.op <= self.executed.op || self.lead.state != LeadState::Following {
            self.transfer = None;
            return;
        }
        let whole = fetch.take(&chunk, now.micros + retry);
        let fetched = fetch.next().1 * WHOLE / chunk.total.max(1);
        let ((position, offset), above, installed) = (fetch.next(), *above, chunk.position);
        out.push(Output::SaveChunk(chunk));
        self.store(FETCHED, fetched, out);
        if !whole {
            self.send(from, Message::FetchState { position, offset, above }, out);
            return;
        }
        self.checkpoints.writing = None;
        out.push(Output::InstallState(installed));
    }

    pub(crate) fn on_state_gone(&mut self, from: ReplicaId) {
        if self.transfer.as_ref().is_some_and(|t| t.fetch.asks(from)) {
            self.transfer = None;
        }
    }

    pub(crate) fn on_state_installed(
        &mut self,
        now: Now,
        position: Option<Viewstamp>,
        out: &mut Out,
    ) {
        let transfer = self.transfer.take().expect("a transfer was being installed");
        assert!(transfer.fetch.is_installing() && self.lead.state == LeadState::Following);
        let Some(position) = position else { return };
        assert!(position.op > self.executed.op, "a transfer never goes back");
        self.set_state(position);
        self.view = self.view.max(position.view);
        self.checkpoints = Checkpoints { written: position, ..Checkpoints::default() };
        if self.log.contains(position) {
            self.log.trim(position.op); // what it holds above may count
        } else {
            self.log = Log::new(position);
            if self.is_durable() {
                let reset = Some(position);
                self.store_batch(now, StoreChange { reset, ..StoreChange::default() }, out);
            }
        }
        self.recall(out);
        self.publish(out);
        self.serve_requests(out);
    }
}
