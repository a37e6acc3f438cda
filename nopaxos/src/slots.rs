//! The slots of the log, and what has come beyond an open gap.
//!
//! Invariant: `log` has no holes; `ahead` holds what is known of the slots above it, the first of
//! which is not settled. Within a view a slot's number follows from the message's number in its
//! session, and the slots of two replicas differ at most by a NO-OP in one of them ([NOPaxos] A.2,
//! lemma 6). Along the log views only grow, and the replica's own is at or after them all.

use alloc::sync::Arc;
use alloc::vec;
use alloc::vec::Vec;

use smr::contract::Output;
use smr::{Content, Durability, Entry, Log, OpNumber, Request, Viewstamp};

use crate::ahead::Slot;
use crate::bug::Bug;
use crate::replica::{Out, Replica, Status};
use crate::view_id::ViewId;

/// Whether nothing is executed in a slot though a message had its number.
pub(crate) fn is_no_op(entry: &Entry) -> bool {
    matches!(&entry.content, Content::Batch { requests, .. } if requests.is_empty())
}

fn is_same(a: &Entry, b: &Entry) -> bool {
    a.viewstamp == b.viewstamp && is_no_op(a) == is_no_op(b)
}

/// An entry's `commit` is what its own replica knew to be stable, so that its log on disk tells:
/// what a restarted replica votes with has a bound, too. What others have put there counts nothing.
pub(crate) fn note_stable(entry: &mut Arc<Entry>, stable: OpNumber) {
    Arc::make_mut(entry).commit = stable;
}

impl Replica {
    /// The entry of a slot of the present view.
    pub(crate) fn entry(&self, slot: OpNumber, content: Content) -> Arc<Entry> {
        let view = self.view.to_view(self.config.replicas);
        let viewstamp = Viewstamp::new(view, slot);
        let previous = if slot == self.log.last().op.next() {
            self.log.last()
        } else {
            Viewstamp::new(view, OpNumber(slot.0 - 1))
        };
        let (commit, durable) = (OpNumber(0), Viewstamp::default());
        Arc::new(Entry { viewstamp, previous, commit, durable, content })
    }

    /// A request in a slot of the present view.
    pub(crate) fn request_entry(
        &self,
        slot: OpNumber,
        unix_ms: u64,
        request: Request,
    ) -> Arc<Entry> {
        self.entry(slot, Content::Batch { unix_ms, requests: vec![request] })
    }

    /// A NO-OP in a slot of the present view.
    pub(crate) fn no_op(&self, slot: OpNumber) -> Arc<Entry> {
        self.entry(slot, Content::Batch { unix_ms: 0, requests: Vec::new() })
    }

    /// The least view at or after the present one and those of the log.
    pub(crate) fn joined_with_log(&self) -> ViewId {
        self.view.join(ViewId::from_view(self.log.last().view))
    }

    pub(crate) fn append(&mut self, entry: Arc<Entry>) {
        assert!(entry.viewstamp.view >= self.log.last().view, "views only grow along the log");
        if is_no_op(&entry) {
            self.last_no_op = self.last_no_op.max(entry.viewstamp.op);
            self.tally.no_ops += 1;
        }
        self.lineage.extend(entry.viewstamp);
        self.log.append(entry);
    }

    /// The place in `ahead` of a slot above the log, if it is near enough to be kept.
    pub(crate) fn place(&mut self, slot: OpNumber) -> Option<usize> {
        let index = usize::try_from(slot.0.checked_sub(self.log.last().op.0 + 1)?).ok()?;
        let is_far = slot.0 > self.floor().0.saturating_add(self.config.limits.unstable);
        if index >= self.config.limits.ahead || is_far {
            return None;
        }
        self.ahead.reach(index);
        Some(index)
    }

    /// Whether a request is taken into this slot. While what may still change has too many bytes,
    /// only the next one of those that the leader has told of is: it makes room when it becomes
    /// stable, and they are bounded at the leader.
    pub(crate) fn takes(&self, slot: OpNumber) -> bool {
        !self.is_full() || Some(slot) == self.next_told()
    }

    pub(crate) fn is_full(&self) -> bool {
        let unstable = self.log.bytes_above(self.floor()) + self.ahead.bytes();
        unstable >= self.config.limits.unstable_bytes && !self.bug(Bug::TakesEverything)
    }

    /// The slot after the log's end, if the leader has told of it.
    pub(crate) fn next_told(&self) -> Option<OpNumber> {
        Some(self.log.last().op.next()).filter(|&next| self.sync.is_told(next))
    }

    /// A slot above the log has this request. False if it was known before, or is not taken.
    pub(crate) fn fill(&mut self, slot: OpNumber, mut entry: Arc<Entry>) -> bool {
        let Some(index) = self.place(slot) else { return false };
        let is_open = matches!(self.ahead.get(index), Some(Slot::Unknown | Slot::Missing));
        if is_open && self.takes(slot) {
            note_stable(&mut entry, self.floor());
            self.ahead.put(index, Slot::Request(entry));
            self.gaps.close(slot);
            return true;
        }
        false
    }

    /// Moves what is settled from `ahead` to the log.
    pub(crate) fn advance(&mut self) {
        while let Some(front) = self.ahead.get(0) {
            let slot = self.log.last().op.next();
            let entry = match front {
                Slot::Request(entry) => entry.clone(),
                Slot::NoOp if !self.gaps.is_open(slot) => self.no_op(slot),
                Slot::NoOp | Slot::Unknown | Slot::Missing => return,
            };
            self.ahead.pass(1);
            self.append(entry);
        }
    }

    /// Makes the log hold these entries, the first of which follows a slot that it holds. What
    /// stands above them stays if it follows on them. What was executed otherwise is undone.
    pub(crate) fn splice(&mut self, entries: &[Arc<Entry>], out: &mut Out) {
        let differs = |entry: &&Arc<Entry>| {
            self.log.get(entry.viewstamp.op).is_none_or(|own| !is_same(own, entry))
        };
        let known = |entry: &&Arc<Entry>| entry.viewstamp.op <= self.log.base().op;
        let Some(first) = entries.iter().filter(|entry| !known(entry)).position(|e| differs(&e))
        else {
            return;
        };
        let first = first + entries.iter().filter(known).count();
        let end = entries.last().expect("one of them differs").viewstamp;
        let keep = OpNumber(entries[first].viewstamp.op.0 - 1);
        assert!(keep >= self.floor(), "what is stable stands");
        let mut suffix = entries[first..].to_vec();
        if self.log.contains(end) && !self.bug(Bug::SpliceForgets) {
            suffix.extend(self.log.above(end.op).cloned());
        }
        if keep < self.log.last().op {
            self.cut(keep, out);
        }
        suffix.into_iter().for_each(|entry| self.append(entry));
    }

    /// What stands up to here will never change: the sync-point, or where acknowledged requests can
    /// be lost the durable point.
    pub(crate) fn floor(&self) -> OpNumber {
        match self.config.durability {
            Durability::Lazy => self.durable_point,
            Durability::Memory | Durability::Sync => self.sync_point,
        }
    }

    /// Drops every slot above `keep`.
    pub(crate) fn cut(&mut self, keep: OpNumber, out: &mut Out) {
        self.log.truncate(keep);
        self.lineage.truncate(keep);
        self.stores.changed_above(self.log.last());
        if self.executed > keep {
            self.tally.rolled_back += self.executed.0 - keep.0;
            out.push(Output::Rollback(keep));
            self.executed = keep;
        }
        self.answered = self.answered.min(keep);
        self.sync_point = self.sync_point.min(keep);
        self.last_no_op = self.last_no_op.min(keep);
        self.raised.split_off(&keep.next());
    }

    /// Puts the log on a checkpoint that is in the executor. Slots above it stay if they follow.
    pub(crate) fn rebase(&mut self, position: Viewstamp) {
        let last = self.log.last().op;
        if self.log.contains(position) {
            self.log.trim(position.op);
            self.stores.trim(position.op);
        } else {
            self.log = Log::new(position);
            self.stores.reset(position);
        }
        let above: Vec<_> = self.log.above(position.op).map(|entry| entry.viewstamp).collect();
        above.into_iter().for_each(|viewstamp| self.lineage.extend(viewstamp));
        self.executed = position.op;
        self.answered = self.answered.max(position.op);
        self.shift_ahead(last);
    }

    /// The log's end has moved from `before`, not through `ahead`.
    pub(crate) fn shift_ahead(&mut self, before: OpNumber) {
        if self.status == Status::Normal {
            let passed = self.log.last().op.0.saturating_sub(before.0) as usize;
            self.ahead.pass(passed);
            let last = self.log.last().op;
            self.gaps.forget_through(last);
        }
    }

    /// The number in `session` of the message that follows on the log's end: 1 if the log has
    /// nothing of that session. Each view of a session takes one slot for its start.
    pub(crate) fn next_sequence(&self) -> u64 {
        let session = self.view.session;
        let of_session = |view: smr::View| ViewId::from_view(view).session == session;
        let mut views = self.lineage.views().iter().filter(|(view, _)| of_session(*view));
        let Some(&(_, first)) = views.next() else { return 1 };
        let starts = 1 + views.count() as u64;
        self.log.last().op.0 - first.0 + 2 - starts
    }
}
