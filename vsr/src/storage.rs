//! The disk as a peer: which batches are on their way, and what is known to be stored.
//!
//! Invariant: `disk` is a viewstamp of the present log (or its base), and everything up to it is on
//! disk. A truncation therefore lowers it at once, before the disk has heard of it.

use alloc::collections::VecDeque;
use alloc::sync::Arc;
use alloc::vec::Vec;

use smr::contract::Output;
use smr::{Content, Durability, Entry, Now, OpNumber, StoreBatch, StoreNumber, View, Viewstamp};

use crate::replica::{Out, Replica};

#[derive(Debug)]
struct Outstanding {
    number: StoreNumber,
    issued_at: u64,
    /// The log's last viewstamp on disk once the batch is stored.
    disk: Viewstamp,
    view: View,
    bytes: usize,
}

/// The state of the disk.
#[derive(Debug, Default)]
pub(crate) struct Stores {
    last: StoreNumber,
    outstanding: VecDeque<Outstanding>,
    /// The sum of their bytes.
    backlog: usize,
    disk: Viewstamp,
    view: View,
    trim: Option<OpNumber>,
}

/// What a batch does beside adopting the present view.
#[derive(Default)]
pub(crate) struct Change {
    pub(crate) reset: Option<Viewstamp>,
    pub(crate) truncate: Option<OpNumber>,
    pub(crate) append: Vec<Arc<Entry>>,
}

impl Stores {
    /// What the disk held at the start: nothing but the view in durability `memory`.
    pub(crate) fn start(&mut self, view: View, disk: Viewstamp) {
        self.view = view;
        self.disk = disk;
    }

    /// diskOpMax.
    pub(crate) fn disk(&self) -> Viewstamp {
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

    /// Bytes of entries that the disk has not stored yet.
    pub(crate) fn backlog(&self) -> usize {
        self.backlog
    }

    /// Whether everything handed to the disk is stored.
    pub(crate) fn idle(&self) -> bool {
        self.outstanding.is_empty()
    }

    /// Entries up to `through` may go from the disk with the next batch.
    pub(crate) fn trim(&mut self, through: OpNumber) {
        self.trim = Some(through);
    }

    fn clamp(&mut self, keep: Viewstamp) {
        for batch in &mut self.outstanding {
            if batch.disk.op > keep.op {
                batch.disk = keep;
            }
        }
        if self.disk.op > keep.op {
            self.disk = keep;
        }
    }
}

impl Replica {
    /// Stores a change together with the present view. In durability `memory` only the view goes to
    /// disk, and nothing at all if it is there already.
    pub(crate) fn store(&mut self, now: Now, change: Change, out: &mut Out) {
        if let Some(keep) = change.truncate {
            let keep = self.log.viewstamp_at(keep).expect("the log was truncated to it");
            self.stores.clamp(keep);
        }
        if change.reset.is_some() {
            self.stores.clamp(Viewstamp::default());
        }
        let newest = self.stores.outstanding.back().map_or(self.stores.view, |batch| batch.view);
        let view = (self.view > newest).then_some(self.view);
        #[cfg(feature = "planted-bugs")]
        let view = if self.bug(crate::Bug::ViewNotPersisted) {
            self.stores.view = self.view;
            None
        } else {
            view
        };
        let change = if self.logs() { change } else { Change::default() };
        let empty = change.append.is_empty() && change.truncate.is_none() && change.reset.is_none();
        if view.is_none() && empty {
            return;
        }
        self.stores.last.0 += 1;
        // Votes and the acknowledgement of a view's first entry wait for the disk.
        let starts = |entry: &Arc<Entry>| entry.content == Content::ViewStart;
        let awaited = view.is_some() || change.append.iter().any(starts);
        let disk = if self.logs() { self.log.last() } else { self.stores.disk };
        let bytes = change.append.iter().map(|entry| entry.size()).sum();
        self.stores.backlog += bytes;
        self.stores.outstanding.push_back(Outstanding {
            number: self.stores.last,
            issued_at: now.micros,
            disk,
            view: view.unwrap_or(newest),
            bytes,
        });
        out.push(Output::Store(StoreBatch {
            number: self.stores.last,
            reset: change.reset,
            truncate: change.truncate,
            append: change.append,
            view,
            trim: self.stores.trim.take().filter(|_| self.logs()),
        }));
        if self.lazy() && awaited {
            out.push(Output::Flush);
        }
    }

    pub(crate) fn on_stored(&mut self, now: Now, number: StoreNumber, out: &mut Out) {
        while self.stores.outstanding.front().is_some_and(|batch| batch.number <= number) {
            let batch = self.stores.outstanding.pop_front().expect("just seen");
            self.stores.disk = batch.disk;
            self.stores.backlog -= batch.bytes;
            self.stores.view = self.stores.view.max(batch.view);
        }
        if self.recovery.is_some() {
            self.recovery_progress(now, out);
            return;
        }
        self.election_stored(now, out);
        if self.leading {
            self.advance(now, out);
        } else {
            self.acknowledge(out);
        }
    }

    /// Whether everything that this replica may say in its view is backed by a stored view.
    pub(crate) fn view_stored(&self) -> bool {
        self.stores.view() >= self.view
    }

    /// The last operation that this replica can acknowledge in its view: on disk in `sync`, and in
    /// memory otherwise; but in `lazy` nothing before the view's first entry is on disk ([Mao]
    /// 4.2.5, step 6), which makes final how the view before ended.
    pub(crate) fn acknowledgeable(&self) -> OpNumber {
        if !self.view_stored() {
            return OpNumber(0);
        }
        #[cfg(feature = "planted-bugs")]
        if self.bug(crate::Bug::AckBeforeStored) && !self.leading
            || self.bug(crate::Bug::CountSelfBeforeStored) && self.leading
            || self.bug(crate::Bug::AckBeforeViewStored)
        {
            return self.log.last().op;
        }
        match self.config.durability {
            Durability::Memory => self.log.last().op,
            Durability::Sync => self.stores.disk().op,
            Durability::Lazy if self.stores.disk().view == self.view => self.log.last().op,
            Durability::Lazy => OpNumber(0),
        }
    }
}
