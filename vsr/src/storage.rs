//! The disk as a peer: what goes there in one batch, and what may be said once it is stored.

use alloc::sync::Arc;
use alloc::vec::Vec;

use smr::contract::Output;
use smr::{Content, Durability, Entry, Now, OpNumber, StoreBatch, StoreNumber, Viewstamp};

use crate::replica::{Out, Replica};

/// What a batch does beside adopting the present view.
#[derive(Default)]
pub(crate) struct Change {
    pub(crate) reset: Option<Viewstamp>,
    pub(crate) truncate: Option<OpNumber>,
    pub(crate) append: Vec<Arc<Entry>>,
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
        let newest = self.stores.newest_view();
        let view = (self.view > newest).then_some(self.view);
        #[cfg(feature = "planted-bugs")]
        let view = if self.bug(crate::Bug::ViewNotPersisted) {
            self.stores.start(self.view, self.stores.disk());
            None
        } else {
            view
        };
        let change = if self.logs() { change } else { Change::default() };
        let empty = change.append.is_empty() && change.truncate.is_none() && change.reset.is_none();
        if view.is_none() && empty {
            return;
        }
        // Votes and the acknowledgement of a view's first entry wait for the disk.
        let starts = |entry: &Arc<Entry>| entry.content == Content::ViewStart;
        let awaited = view.is_some() || change.append.iter().any(starts);
        let disk = if self.logs() { self.log.last() } else { self.stores.disk() };
        let bytes = change.append.iter().map(|entry| entry.size()).sum();
        let number = self.stores.issue(now, disk, view.unwrap_or(newest), bytes);
        out.push(Output::Store(StoreBatch {
            number,
            reset: change.reset,
            truncate: change.truncate,
            append: change.append,
            view,
            trim: self.stores.take_trim().filter(|_| self.logs()),
        }));
        if self.lazy() && awaited {
            out.push(Output::Flush);
        }
    }

    pub(crate) fn on_stored(&mut self, now: Now, number: StoreNumber, out: &mut Out) {
        self.stores.on_stored(number);
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
