//! State transfer: a replica whose log ends below everybody's fetches a checkpoint, piece by piece,
//! and puts it in the place of its state when it is complete and sound.
//!
//! Invariant: between `InstallState` and `StateInstalled` neither the log nor what is known of it
//! changes (the executor holds no state then), and this replica neither leads nor stands for
//! election.

use smr::contract::Output;
use smr::fetch::Fetch;
use smr::{CheckpointChunk, Log, Now, ReplicaId, View, Viewstamp};

use crate::message::Message;
use crate::replica::{Out, Replica};
use crate::storage::Change;

/// How often one piece is asked for before another replica is asked from the beginning.
const TRIES: u32 = 30;

/// A checkpoint on its way to this replica.
#[derive(Debug)]
pub(crate) struct Transfer {
    pub(crate) fetch: Fetch,
    /// The view in which it was asked for.
    view: View,
}

impl Replica {
    /// Whether the executor's state is being replaced.
    pub(crate) fn installing(&self) -> bool {
        self.transfer.as_ref().is_some_and(|transfer| transfer.fetch.is_installing())
    }

    pub(crate) fn on_need_state(&mut self, now: Now, from: ReplicaId, view: View, out: &mut Out) {
        if self.catch_up.is_none() || self.transfer.is_some() || self.leading {
            return;
        }
        self.catch_up = None;
        let retry_at = now.micros + self.config.timing.retry;
        self.transfer = Some(Transfer { fetch: Fetch::new(from, retry_at), view });
        self.send(from, Message::FetchState { position: None, offset: 0 }, out);
    }

    pub(crate) fn transfer_timeout(&mut self, now: Now, out: &mut Out) {
        let retry = self.config.timing.retry;
        let Some(Transfer { fetch, .. }) = &mut self.transfer else { return };
        if !fetch.is_due(now) {
            return;
        }
        if fetch.ask_again(now.micros + retry) > TRIES || self.leading {
            self.transfer = None;
            return;
        }
        let (from, (position, offset)) = (fetch.from(), fetch.next());
        self.send(from, Message::FetchState { position, offset }, out);
    }

    pub(crate) fn on_fetch_state(
        &mut self,
        now: Now,
        to: ReplicaId,
        position: Option<Viewstamp>,
        offset: u64,
        out: &mut Out,
    ) {
        if self.recovery.is_some() {
            return; // any other replica's checkpoint is stable state, whatever its view
        }
        self.hear_follower(now, to);
        self.fetching(now);
        let written = self.checkpoints.written;
        if position.is_some() {
            out.push(Output::ReadCheckpoint { to, position, offset });
        } else if written.op >= self.log.base().op && written.op.0 > 0 {
            out.push(Output::ReadCheckpoint { to, position: Some(written), offset });
        } else {
            self.begin_checkpoint(out); // the other asks again
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
        let Some(Transfer { fetch, .. }) = &mut self.transfer else { return };
        if !fetch.expects(from, &chunk) {
            return;
        }
        // The log may have reached the checkpoint meanwhile: what it holds above, perhaps
        // acknowledged, must not go.
        let reached = self.log.contains(chunk.position) || chunk.position.op <= self.stable;
        if reached || self.leading {
            self.transfer = None;
            return;
        }
        let whole = fetch.take(&chunk, now.micros + self.config.timing.retry);
        let ((position, offset), installed) = (fetch.next(), chunk.position);
        out.push(Output::SaveChunk(chunk));
        if !whole {
            self.send(from, Message::FetchState { position, offset }, out);
            return;
        }
        self.checkpoint_dropped();
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
        assert!(transfer.fetch.is_installing() && !self.leading);
        let Some(position) = position else { return };
        assert!(position.op > self.stable, "a transfer never goes back");
        assert!(!self.log.contains(position), "a transfer takes nothing that the log holds");
        // The checkpoint may be younger than the view in which it was asked for.
        let view = transfer.view.max(position.view);
        if view > self.view {
            self.set_view(now, view, out);
        }
        self.log = Log::new(position);
        // A log that ended elsewhere may have been acknowledged further.
        self.rolled_back += self.commit.0.saturating_sub(position.op.0);
        self.commit = position.op;
        self.stable = position.op;
        if self.logs() {
            self.durable = position;
        }
        self.lag_bytes = 0;
        self.checkpoint_installed(position);
        self.store(now, Change { reset: Some(position), ..Change::default() }, out);
        self.recall();
        self.enter_as_backup(now);
        self.start_catch_up(now, transfer.fetch.from(), view, out);
        self.recovery_progress(now, out);
    }
}
