//! What a protocol knows of its disk: which batches are on their way, and what is stored.
//!
//! Invariant: `disk` is a viewstamp of the present log (or its base), and everything up to it is on
//! disk. A change below it therefore lowers it at once, before the disk has heard of it.

use alloc::collections::VecDeque;

use crate::ids::{Now, OpNumber, StoreNumber, View, Viewstamp};

#[derive(Debug)]
struct Outstanding {
    number: StoreNumber,
    issued_at: u64,
    disk: Viewstamp,
    view: View,
    bytes: usize,
}

/// A disk as its replica sees it.
#[derive(Debug, Default)]
pub struct Stores {
    last: StoreNumber,
    outstanding: VecDeque<Outstanding>,
    /// The sum of their bytes.
    backlog: usize,
    disk: Viewstamp,
    view: View,
    trim: Option<OpNumber>,
}

impl Stores {
    /// What the disk held at the start: the view, and the log up to `disk`.
    pub fn start(&mut self, view: View, disk: Viewstamp) {
        self.view = view;
        self.disk = disk;
    }

    /// The last operation on disk (diskOpMax, [Mao] 4.2.2).
    pub fn disk(&self) -> Viewstamp {
        self.disk
    }

    /// The highest view on disk.
    pub fn view(&self) -> View {
        self.view
    }

    /// The highest view that is on disk or on its way there.
    pub fn newest_view(&self) -> View {
        self.outstanding.back().map_or(self.view, |batch| batch.view)
    }

    /// Whether the disk owes an answer since before `since`, in [`Now::micros`].
    pub fn stalled(&self, since: u64) -> bool {
        self.outstanding.front().is_some_and(|batch| batch.issued_at < since)
    }

    /// Bytes of entries that the disk has not stored yet.
    pub fn backlog(&self) -> usize {
        self.backlog
    }

    /// Whether everything handed to the disk is stored.
    pub fn idle(&self) -> bool {
        self.outstanding.is_empty()
    }

    /// The log has changed above `keep`, or ends there.
    pub fn clamp(&mut self, keep: Viewstamp) {
        let known = self.outstanding.iter_mut().map(|batch| &mut batch.disk);
        for disk in known.chain([&mut self.disk]).filter(|disk| disk.op > keep.op) {
            *disk = keep;
        }
    }

    /// A batch goes to the disk. Once it is stored, the log is there up to `disk`, and the highest
    /// view is `view`. Returns its number.
    pub fn issue(&mut self, now: Now, disk: Viewstamp, view: View, bytes: usize) -> StoreNumber {
        self.last.0 += 1;
        self.backlog += bytes;
        let (number, issued_at) = (self.last, now.micros);
        self.outstanding.push_back(Outstanding { number, issued_at, disk, view, bytes });
        number
    }

    /// Every batch up to this one is stored.
    pub fn on_stored(&mut self, number: StoreNumber) {
        while self.outstanding.front().is_some_and(|batch| batch.number <= number) {
            let batch = self.outstanding.pop_front().expect("just seen");
            self.disk = batch.disk;
            self.view = self.view.max(batch.view);
            self.backlog -= batch.bytes;
        }
    }

    /// Entries up to `through` may go from the disk with the next batch.
    pub fn trim(&mut self, through: OpNumber) {
        self.trim = Some(through);
    }

    /// What the next batch may trim.
    pub fn take_trim(&mut self) -> Option<OpNumber> {
        self.trim.take()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(view: u64, op: u64) -> Viewstamp {
        Viewstamp::new(View(view), OpNumber(op))
    }

    #[test]
    fn what_was_cut_off_is_not_on_disk_when_its_batch_is_stored() {
        let (mut stores, now) = (Stores::default(), Now { micros: 7, unix_ms: 0 });
        stores.start(View(1), at(1, 2));
        let first = stores.issue(now, at(1, 9), View(1), 100);
        stores.clamp(at(1, 5));
        let second = stores.issue(now, at(2, 6), View(2), 10);
        assert_eq!((stores.disk(), stores.view(), stores.backlog()), (at(1, 2), View(1), 110));
        assert_eq!(
            (stores.newest_view(), stores.stalled(7), stores.stalled(8)),
            (View(2), false, true)
        );
        stores.on_stored(first);
        assert_eq!((stores.disk(), stores.view(), stores.backlog()), (at(1, 5), View(1), 10));
        stores.on_stored(second);
        assert_eq!((stores.disk(), stores.view(), stores.idle()), (at(2, 6), View(2), true));
        stores.clamp(at(1, 1));
        assert_eq!(stores.disk(), at(1, 1));
    }
}
