//! The disk as a peer: which batches are on their way, and what is known to be stored. In
//! durability `memory` only the view goes to disk.
//!
//! Invariant: the slots up to `disk` are on disk as the log has them now. A change of a slot
//! therefore lowers it at once, before the disk has heard of it.

use alloc::collections::VecDeque;
use alloc::vec::Vec;

use smr::contract::Output;
use smr::{Durability, Now, OpNumber, StoreBatch, StoreNumber, View, Viewstamp};

use crate::bug::Bug;
use crate::replica::{Out, Replica};

#[derive(Debug)]
struct Outstanding {
    number: StoreNumber,
    issued_at: u64,
    disk: OpNumber,
    view: View,
}

/// The state of the disk.
#[derive(Debug, Default)]
pub(crate) struct Stores {
    last: StoreNumber,
    outstanding: VecDeque<Outstanding>,
    disk: OpNumber,
    view: View,
    /// The slots up to here were handed to the disk as they are now.
    issued: OpNumber,
    truncate: Option<OpNumber>,
    reset: Option<Viewstamp>,
    trim: Option<OpNumber>,
}

impl Stores {
    /// What the disk held at the start.
    pub(crate) fn start(&mut self, view: View, disk: OpNumber) {
        self.view = view;
        self.disk = disk;
        self.issued = disk;
    }

    /// The last slot on disk.
    pub(crate) fn disk(&self) -> OpNumber {
        self.disk
    }

    /// The highest view on disk.
    pub(crate) fn view(&self) -> View {
        self.view
    }

    /// Whether the disk owes an answer since before `since`, in [`Now::micros`].
    pub(crate) fn stalled(&self, since: u64) -> bool {
        self.outstanding.front().is_some_and(|batch| batch.issued_at < since)
    }

    /// The slots above `keep` have changed, or are gone.
    pub(crate) fn changed_above(&mut self, keep: OpNumber) {
        if self.issued > keep {
            self.issued = keep;
            self.truncate = Some(self.truncate.map_or(keep, |before| before.min(keep)));
        }
        self.disk = self.disk.min(keep);
        for batch in &mut self.outstanding {
            batch.disk = batch.disk.min(keep);
        }
    }

    /// The log begins anew on `base`, which a checkpoint on disk stands for.
    pub(crate) fn reset(&mut self, base: Viewstamp) {
        self.outstanding.iter_mut().for_each(|batch| batch.disk = OpNumber(0));
        self.disk = OpNumber(0);
        self.issued = base.op;
        self.truncate = None;
        self.trim = None;
        self.reset = Some(base);
    }

    /// Slots up to `through` may go from the disk with the next batch.
    pub(crate) fn trim(&mut self, through: OpNumber) {
        self.trim = Some(through);
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
        let newest = stores.outstanding.back().map_or(stores.view, |batch| batch.view);
        let new_view = (view > newest).then_some(view);
        let (mut append, mut truncate, mut reset) = (Vec::new(), None, None);
        let mut trim = None;
        if self.config.durability != Durability::Memory {
            (truncate, reset) = (stores.truncate.take(), stores.reset.take());
            append.extend(self.log.above(stores.issued).cloned());
            if !append.is_empty() || truncate.is_some() || reset.is_some() {
                trim = stores.trim.take();
            }
        }
        if new_view.is_none() && append.is_empty() && truncate.is_none() && reset.is_none() {
            return;
        }
        stores.issued = self.log.last().op;
        stores.last.0 += 1;
        let number = stores.last;
        let disk = if self.config.durability == Durability::Memory {
            OpNumber(0)
        } else {
            self.log.last().op
        };
        let issued_at = now.micros;
        stores.outstanding.push_back(Outstanding { number, issued_at, disk, view });
        out.push(Output::Store(StoreBatch {
            number,
            reset,
            truncate,
            append,
            view: new_view,
            trim,
        }));
    }

    pub(crate) fn on_stored(&mut self, number: StoreNumber) {
        let stores = &mut self.stores;
        while stores.outstanding.front().is_some_and(|batch| batch.number <= number) {
            let batch = stores.outstanding.pop_front().expect("just seen");
            stores.disk = stores.disk.max(batch.disk);
            stores.view = stores.view.max(batch.view);
        }
    }

    /// Whether the present view is on disk: before that nothing is said in it.
    pub(crate) fn view_is_stored(&self) -> bool {
        if self.bug(Bug::VoteBeforeStored) {
            return true;
        }
        self.stores.view() >= self.view.to_view(self.config.replicas)
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
            Durability::Lazy if self.stores.disk() < self.last_no_op => {
                self.stores.disk().min(last)
            }
            Durability::Lazy => last,
        }
    }
}
