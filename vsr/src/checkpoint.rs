//! Checkpoints and the recycling of the log ([Mao] 4.2.4). In `sync` and `lazy` a checkpoint is
//! written when the log has grown enough; in `memory` only for a replica that fetches one.
//!
//! Invariants: a checkpoint holds stable operations only (the executor sees to it), so that no undo
//! information is ever written: tentative operations are in the log. An entry leaves the memory
//! only when it is stable, and the disk only when it is in this replica's checkpoint.

use smr::contract::Output;
use smr::{Now, Viewstamp};

use crate::replica::{Out, Replica};

/// The checkpoint on disk and the one being written.
#[derive(Debug, Default)]
pub(crate) struct Checkpoints {
    /// The newest one on disk.
    pub(crate) written: Viewstamp,
    /// Its size in bytes, if this life has written it.
    bytes: usize,
    /// Bytes of entries since the last one was begun.
    pub(crate) grown: usize,
    writing: Option<Viewstamp>,
    /// When a replica last fetched a piece, in [`Now::micros`]: the entries above it are kept.
    fetched_at: Option<u64>,
}

impl Replica {
    /// The next one is due when the log has grown by four times what the last one took, so that at
    /// most a fifth of what is written are checkpoints, but within bounds, for the sake of a
    /// restart. A life's first one waits for the replica's turn, so that the group's replicas write
    /// theirs one after another and the others go on at full speed. What is tentative is undone and
    /// done again for it: while that is much, it waits a while.
    pub(crate) fn checkpoint_if_due(&mut self, out: &mut Out) {
        let limits = self.config.limits;
        let (least, most) = (limits.checkpoint_bytes, limits.checkpoint_bytes.saturating_mul(8));
        let interval = self.checkpoints.bytes.saturating_mul(4).clamp(least, most);
        let (id, replicas) = (self.config.identity.replica.0, self.config.replicas);
        let first = self.checkpoints.bytes == 0;
        let turn = if first { interval / usize::from(replicas) * usize::from(id) } else { 0 };
        let due = interval + turn;
        let grown = self.checkpoints.grown;
        let late = grown >= due.saturating_mul(2);
        if self.logs() && grown >= due && (late || self.lag_bytes <= limits.lag_bytes / 4) {
            self.begin_checkpoint(out);
        }
    }

    /// Begins a checkpoint of the stable state unless one is being written.
    pub(crate) fn begin_checkpoint(&mut self, out: &mut Out) {
        let checkpoints = &mut self.checkpoints;
        let nothing_new = self.stable <= checkpoints.written.op;
        if nothing_new || checkpoints.writing.is_some() || self.installing() {
            return;
        }
        let position = self.log.viewstamp_at(self.stable).expect("trimmed up to it at most");
        self.checkpoints.grown = 0;
        self.checkpoints.writing = Some(position);
        out.push(Output::WriteCheckpoint(position));
    }

    /// A later position than the one asked for will do: the environment may have had to begin
    /// again, or have made one on its own account.
    pub(crate) fn on_checkpoint_written(&mut self, position: Viewstamp, bytes: u64) {
        assert!(position.op <= self.stable, "a checkpoint holds stable operations only");
        if self.checkpoints.writing.is_some_and(|asked| asked.op <= position.op) {
            self.checkpoints.writing = None;
        }
        if position.op > self.checkpoints.written.op {
            self.checkpoints.written = position;
            self.checkpoints.bytes = bytes as usize;
            if self.logs() {
                self.stores.trim(position.op);
            }
        }
    }

    /// The state was replaced by a transferred checkpoint.
    pub(crate) fn checkpoint_installed(&mut self, position: Viewstamp) {
        self.checkpoints.written = position;
        self.checkpoints.writing = None;
        self.checkpoints.grown = 0;
    }

    /// Gives up the checkpoint that is being written.
    pub(crate) fn checkpoint_dropped(&mut self) {
        self.checkpoints.writing = None;
    }

    pub(crate) fn fetching(&mut self, now: Now) {
        self.checkpoints.fetched_at = Some(now.micros);
    }

    /// Drops entries from memory that nobody needs: all replicas have them, or the limit says that
    /// who does not must come back by checkpoint (contracts: dpMin after a bound). While one is
    /// fetched the entries above it are kept. The disk keeps what this replica's next start needs.
    pub(crate) fn trim(&mut self, now: Now) {
        let patience = 20 * self.config.timing.retry;
        let fetched = self.checkpoints.fetched_at.is_some_and(|at| now.micros < at + patience);
        let written = self.checkpoints.written.op;
        let allowed = if fetched { written.min(self.stable) } else { self.stable };
        self.log.trim(allowed.min(self.all_have));
        while self.log.bytes() > self.config.limits.log_bytes && self.log.base().op < allowed {
            self.log.trim(self.log.base().op.next());
        }
    }
}
