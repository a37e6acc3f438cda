//! A replica starts: new, from its disk (`sync`, `lazy`), or without what it knew.
//!
//! Invariant: the log has the slots that the disk held, under the number whose entries it ends
//! with, and the promise, before anybody is granted it.

use alloc::sync::Arc;
use alloc::vec::Vec;

use smr::contract::{Output, Recovered, Trust};
use smr::{Entry, Log, Now, OpNumber};

use crate::disk::StoreChange;
use crate::event::{Effect, Memory};
use crate::join::Recovery;
use crate::layout::{self, FORGETFUL, Head, LIFE, Slot};
use crate::loss::Forgetful;
use crate::replica::{Out, Replica};

impl<M: Memory> Replica<M> {
    pub(crate) fn start(&mut self, now: Now, recovered: Recovered, out: &mut Out) {
        let base = recovered.checkpoint.unwrap_or_default();
        self.view = recovered.view.max(base.view);
        self.view_changed_at = now.micros;
        self.set_state(base);
        self.checkpoints.written = base;
        let life = self.config.identity.incarnation;
        self.store(LIFE, life.0, out);
        self.store(layout::known_of(self.me), life.0, out);
        self.tick_at = now.micros;
        self.lead.retry_at = now.micros;
        if self.is_durable() {
            self.start_from_disk(now, recovered, out);
        } else if recovered.trust != Trust::New {
            // In `memory` a restart forgets what was promised and accepted.
            self.recovery = Some(Recovery::new(now));
        }
        self.publish(out);
    }

    fn start_from_disk(&mut self, now: Now, recovered: Recovered, out: &mut Out) {
        let base = self.executed;
        let Recovered { trust, view, log, .. } = recovered;
        if trust == Trust::Lost {
            self.log = Log::new(base);
            self.disk.stores.start(view, base);
            self.recovery = Some(Recovery::new(now));
            let change = StoreChange { reset: Some(base), ..StoreChange::default() };
            return self.store_batch(now, change, out);
        }
        assert_eq!(log.base(), base, "the log begins where the checkpoint ends");
        self.log = log;
        let last = self.log.last();
        self.view = self.view.max(last.view);
        self.disk.stores.start(view, last);
        if self.view > view {
            // A transferred checkpoint may have reached the disk without its view.
            self.store_batch(now, StoreChange::default(), out);
        }
        let entries: Vec<Arc<Entry>> = self.log.above(base.op).cloned().collect();
        self.execute_known(&entries, out);
        self.restore_slots(&entries, out);
        if self.is_lazy() && trust != Trust::New {
            self.forgetful = Some(Forgetful::new(now, view));
            self.store(FORGETFUL, 1, out);
        }
    }

    /// Executes what the entries on disk say is decided.
    fn execute_known(&mut self, entries: &[Arc<Entry>], out: &mut Out) {
        let decided = entries.iter().map(|entry| entry.commit).max().unwrap_or_default();
        let durable = entries.iter().map(|entry| entry.durable.op).max().unwrap_or_default();
        let number = self.log.last().view;
        let limits = *self.limits();
        self.durable_known = self.durable_known.max(durable);
        for entry in entries.iter().take_while(|entry| entry.viewstamp.op <= decided) {
            self.recent.push(Slot::new(&limits, number, entry, &mut self.space));
            self.execute(entry.clone(), out);
            // In step with the execution, so that not all of it has to be undoable at once.
            self.decide(false, out);
        }
    }

    /// The last lap's slots, decided or not, and the promise.
    fn restore_slots(&mut self, entries: &[Arc<Entry>], out: &mut Out) {
        #[cfg(feature = "planted-bugs")]
        if self.bug(crate::Bug::SlotsNotRestored) {
            return;
        }
        let (limits, last) = (*self.limits(), self.log.last());
        let below = OpNumber(last.op.0.saturating_sub(u64::from(limits.slots)));
        for entry in entries.iter().filter(|entry| entry.viewstamp.op > below) {
            let slot = Slot::new(&limits, last.view, entry, &mut self.space);
            let offset = layout::offset(&limits, entry.viewstamp.op);
            out.push(Output::Effect(Effect::Restore { offset, words: slot.words().to_vec() }));
        }
        let words = alloc::vec![self.view.0, self.executed.op.0 + 1];
        out.push(Output::Effect(Effect::Restore { offset: layout::MIN_PROPOSAL, words }));
        let base = self.published.base.max(below).min(self.executed.op);
        self.published = Head { head: self.executed.op, base };
    }
}
