//! A replica's disk: atomic batches that are stored one after the other, and lost if they are not.

use std::collections::VecDeque;
use std::sync::Arc;

use smr::{Entry, Log, OpNumber, StoreBatch, StoreNumber, View, Viewstamp};

#[derive(Default)]
pub struct Disk {
    pub view: View,
    base: Viewstamp,
    entries: Vec<Arc<Entry>>,
    waiting: VecDeque<StoreBatch>,
    /// The newest checkpoint, in chunks with their lengths.
    pub checkpoint: Option<(Viewstamp, Vec<u8>)>,
}

impl Disk {
    pub fn take(&mut self, batch: StoreBatch) {
        self.waiting.push_back(batch);
    }

    /// The oldest batch is stored.
    pub fn finish(&mut self) -> Option<StoreNumber> {
        let batch = self.waiting.pop_front()?;
        let number = batch.number;
        self.apply(batch);
        Some(number)
    }

    fn apply(&mut self, batch: StoreBatch) {
        if let Some(base) = batch.reset {
            self.base = base;
            self.entries.clear();
        }
        if let Some(keep) = batch.truncate {
            self.entries.retain(|entry| entry.viewstamp.op <= keep);
        }
        for entry in batch.append {
            let last = self.entries.last().map_or(self.base, |entry| entry.viewstamp);
            assert_eq!(entry.previous, last, "a gap in the log on disk");
            self.entries.push(entry);
        }
        if let Some(view) = batch.view {
            assert!(view > self.view, "views on disk only grow");
            self.view = view;
        }
        if let Some(through) = batch.trim {
            let gone = self.entries.iter().take_while(|e| e.viewstamp.op <= through).count();
            if let Some(last) = self.entries.drain(..gone).next_back() {
                self.base = last.viewstamp;
            }
        }
    }

    /// The machine crashes: some of what waits is stored.
    pub fn crash(&mut self, stored: usize) {
        for _ in 0..stored.min(self.waiting.len()) {
            self.finish();
        }
        self.waiting.clear();
    }

    /// The disk is replaced by an empty one, but for what every replica knows of itself.
    pub fn forget(&mut self) {
        *self = Disk { view: self.view, ..Disk::default() };
    }

    pub fn holds(&self, viewstamp: Viewstamp) -> bool {
        let position = self.checkpoint.as_ref().map_or(OpNumber(0), |(position, _)| position.op);
        viewstamp.op <= position.max(self.base.op)
            || self.entries.iter().any(|entry| entry.viewstamp == viewstamp)
    }

    /// The log above the checkpoint. A log that does not reach up to it is of no use.
    pub fn log(&mut self) -> Log {
        let base = self.checkpoint.as_ref().map_or(Viewstamp::default(), |(at, _)| *at);
        if self.base != base && !self.entries.iter().any(|entry| entry.viewstamp == base) {
            self.base = base;
            self.entries.clear();
        }
        let mut log = Log::new(base);
        let above = self.entries.iter().filter(|entry| entry.viewstamp.op > base.op);
        above.for_each(|entry| log.append(entry.clone()));
        log
    }
}
