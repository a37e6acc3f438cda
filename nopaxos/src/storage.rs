//! The disk as a peer: what goes there in one batch, and what may be said once it is stored. In
//! durability `memory` only the view goes to disk.
//!
//! Invariant: the slots up to `disk` are on disk as the log has them now.

use alloc::sync::Arc;
use alloc::vec::Vec;

use smr::contract::Output;
use smr::{Content, Durability, Entry, Now, OpNumber, StoreBatch, StoreNumber, View, Viewstamp};

use crate::bug::Bug;
use crate::replica::{Out, Replica};
use crate::slots::is_no_op;

/// The state of the disk.
#[derive(Debug, Default)]
pub(crate) struct Stores {
    known: smr::stores::Stores,
    /// The slots up to here were handed to the disk as they are now.
    issued: OpNumber,
    truncate: Option<OpNumber>,
    reset: Option<Viewstamp>,
}

impl Stores {
    /// What the disk held at the start.
    pub(crate) fn start(&mut self, view: View, disk: Viewstamp) {
        self.known.start(view, disk);
        self.issued = disk.op;
    }

    /// The last slot on disk.
    pub(crate) fn disk(&self) -> OpNumber {
        self.known.disk().op
    }

    /// Whether the disk owes an answer since before `since`, in [`Now::micros`].
    pub(crate) fn stalled(&self, since: u64) -> bool {
        self.known.stalled(since)
    }

    /// The slots above `keep` have changed, or are gone.
    pub(crate) fn changed_above(&mut self, keep: Viewstamp) {
        if self.issued > keep.op {
            self.issued = keep.op;
            self.truncate = Some(self.truncate.map_or(keep.op, |before| before.min(keep.op)));
        }
        self.known.clamp(keep);
    }

    /// The log begins anew on `base`, which a checkpoint on disk stands for.
    pub(crate) fn reset(&mut self, base: Viewstamp) {
        self.known.clamp(Viewstamp::default());
        self.known.take_trim();
        self.issued = base.op;
        self.truncate = None;
        self.reset = Some(base);
    }

    /// Slots up to `through` may go from the disk with the next batch.
    pub(crate) fn trim(&mut self, through: OpNumber) {
        self.known.trim(through);
    }
}

impl Replica {
    /// Whether entries go to disk.
    pub(crate) fn logs(&self) -> bool {
        self.config.durability != Durability::Memory
    }

    /// Hands to the disk what it has not got.
    pub(crate) fn store(&mut self, now: Now, out: &mut Out) {
        let view = self.view.to_view(self.config.replicas);
        let stores = &mut self.stores;
        let new_view = (view > stores.known.newest_view()).then_some(view);
        let (mut append, mut truncate, mut reset) = (Vec::new(), None, None);
        let mut trim = None;
        if self.config.durability != Durability::Memory {
            (truncate, reset) = (stores.truncate.take(), stores.reset.take());
            append.extend(self.log.above(stores.issued).cloned());
            if !append.is_empty() || truncate.is_some() || reset.is_some() {
                trim = stores.known.take_trim();
            }
        }
        if new_view.is_none() && append.is_empty() && truncate.is_none() && reset.is_none() {
            return;
        }
        // Votes, replies behind a NO-OP, clients that were told nothing yet, and what asked for it
        // wait for these.
        let awaited = |entry: &Arc<Entry>| {
            let raised = self.raised.contains(&entry.viewstamp.op);
            raised || entry.content == Content::ViewStart || is_no_op(entry)
        };
        let awaited = new_view.is_some() || append.iter().any(awaited);
        stores.issued = self.log.last().op;
        let disk = match self.config.durability {
            Durability::Memory => Viewstamp::default(),
            Durability::Sync | Durability::Lazy => self.log.last(),
        };
        let bytes = append.iter().map(|entry| entry.size()).sum();
        let number = stores.known.issue(now, disk, view, bytes);
        out.push(Output::Store(StoreBatch {
            number,
            reset,
            truncate,
            append,
            view: new_view,
            trim,
        }));
        if self.config.durability == Durability::Lazy && awaited {
            out.push(Output::Flush);
        }
    }

    pub(crate) fn on_stored(&mut self, now: Now, number: StoreNumber) {
        let before = self.view_is_stored();
        self.stores.known.on_stored(number);
        if !before && self.view_is_stored() {
            self.view_was_stored(now);
        }
    }

    /// Whether the present view is on disk: before that nothing is said in it.
    pub(crate) fn view_is_stored(&self) -> bool {
        if self.bug(Bug::VoteBeforeStored) {
            return true;
        }
        self.stores.known.view() >= self.view.to_view(self.config.replicas)
    }

    /// The last slot about which this replica may make promises.
    pub(crate) fn promised(&self) -> OpNumber {
        let last = self.log.last().op;
        match self.config.durability {
            Durability::Memory => last,
            Durability::Sync if self.bug(Bug::ReplyBeforeStored) => last,
            Durability::Sync => self.stores.disk().min(last),
            // Requests may be forgotten; that a request was dropped may not, or it would come back
            // ahead of what was acknowledged since.
            Durability::Lazy
                if self.stores.disk() < self.last_no_op && !self.bug(Bug::NoOpUnstored) =>
            {
                self.stores.disk().min(last)
            }
            Durability::Lazy => last,
        }
    }
}
