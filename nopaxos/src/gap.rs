//! Gap agreement ([NOPaxos] 5.2.2), in batches and beside the receiving path: a dropped request is
//! looked for first; what nobody has becomes a NO-OP when f others hold it as one, too.
//!
//! Invariant: once a leader has said GAP-COMMIT, no request enters that slot in its view.

use alloc::collections::BTreeMap;
use alloc::sync::Arc;
use alloc::vec::Vec;

use smr::{Entry, Incarnation, MAX_REPLICAS, Now, OpNumber, ReplicaId};

use crate::ahead::Slot;
use crate::bug::Bug;
use crate::config::Timing;
use crate::message::Body;
use crate::replica::{Out, Replica};
use crate::slots::is_no_op;

#[derive(Debug, Default)]
struct Gap {
    /// When it was last asked for or, once decided, told.
    asked_at: Option<u64>,
    /// When it was first asked for.
    since: u64,
    /// The replicas that miss it, too, one bit each.
    missing: u16,
    /// The leader has said GAP-COMMIT; the lives of those that have agreed.
    agreed: Option<[Option<Incarnation>; MAX_REPLICAS as usize]>,
}

/// The open gaps.
#[derive(Debug, Default)]
pub(crate) struct Gaps {
    open: BTreeMap<OpNumber, Gap>,
}

impl Gaps {
    pub(crate) fn open(&mut self, slot: OpNumber) {
        self.open.entry(slot).or_default();
    }

    /// Its request is there.
    pub(crate) fn close(&mut self, slot: OpNumber) {
        self.open.remove(&slot);
    }

    pub(crate) fn is_open(&self, slot: OpNumber) -> bool {
        self.open.contains_key(&slot)
    }

    pub(crate) fn len(&self) -> usize {
        self.open.len()
    }

    pub(crate) fn clear(&mut self) {
        self.open.clear();
    }

    pub(crate) fn forget_through(&mut self, slot: OpNumber) {
        self.open = self.open.split_off(&slot.next());
    }

    /// When the next of them is to be decided, or to be asked for again.
    pub(crate) fn next_at(&self, leads: bool, full: bool, timing: &Timing) -> Option<u64> {
        let again = again(leads && !full, timing);
        let at = |open: &Gap| match open.asked_at {
            Some(at) if open.agreed.is_some() => at + timing.retry,
            Some(at) if leads && !full => (at + again).min(open.since + timing.gap),
            Some(at) => at + again,
            None => 0,
        };
        self.open.values().map(at).min()
    }
}

/// After how long a dropped request is asked for again. Who was asked may have it and not know yet,
/// behind a gap of its own that its receiver has not given up.
fn again(leads: bool, timing: &Timing) -> u64 {
    // A leader that looks for no time at all does not ask again; a follower does not give up, nor
    // does a leader before it has room.
    if leads { timing.gap / 4 } else { (timing.gap / 4).max(timing.retry / 16) }
}

impl Replica {
    pub(crate) fn settle_gaps(&mut self, now: Now, out: &mut Out) {
        if !self.view_is_stored() {
            return;
        }
        if !self.gap_promises.is_empty() {
            self.keep_gap_promises(out);
        }
        if self.gaps.len() == 0 {
            return;
        }
        if self.leads() {
            self.lead_gaps(now, out);
        }
        self.ask_for_gaps(now, out);
    }

    /// Asks the leader, or as the leader everybody, for what was dropped.
    fn ask_for_gaps(&mut self, now: Now, out: &mut Out) {
        let leads = self.leads();
        let (full, told) = (self.is_full(), self.next_told());
        let front = self.log.last().op.next();
        let again = again(leads && !full, &self.config.timing);
        let mut slots = Vec::new();
        for (&slot, gap) in &mut self.gaps.open {
            let is_due = gap.asked_at.is_none_or(|at| now.micros >= at + again);
            if gap.agreed.is_some() || !is_due {
                continue;
            }
            if gap.asked_at.is_none() || (full && slot != front) {
                gap.since = now.micros; // when there is room it is looked for
            }
            gap.asked_at = Some(now.micros);
            if !full || Some(slot) == told {
                slots.push(slot);
            }
        }
        for batch in slots.chunks(self.config.limits.gap_batch) {
            let body = Body::GapRequest { slots: batch.to_vec() };
            if leads { self.broadcast(body, out) } else { self.send(self.leader(), body, out) }
        }
    }

    /// Step 1: decides what was not found; step 3: passes what f others have agreed to.
    fn lead_gaps(&mut self, now: Now, out: &mut Out) {
        let (gap_time, retry) = (self.config.timing.gap, self.config.timing.retry);
        let (me, members) = (self.me, self.counting());
        // While it is full, only what the rest waits for is decided.
        let (full, front) = (self.is_full(), self.log.last().op.next());
        let (mut tell, mut passed, mut decided) = (Vec::new(), Vec::new(), Vec::new());
        let (lives, count_dead) = (self.lives, self.bug(Bug::CountsTheDead));
        let no_quorum = self.bug(Bug::NoOpWithoutQuorum);
        for (&slot, gap) in &mut self.gaps.open {
            let Some(agreed) = &gap.agreed else {
                let is_over = gap.asked_at.is_some() && now.micros >= gap.since + gap_time;
                let misses = |id: ReplicaId| id == me || gap.missing & 1 << id.0 != 0;
                let may_be_found = full && slot != front;
                if (is_over && !may_be_found) || members.counting().all(misses) {
                    gap.agreed = Some([None; MAX_REPLICAS as usize]);
                    gap.asked_at = Some(now.micros);
                    decided.push(slot);
                    tell.push(slot);
                }
                continue;
            };
            let agrees = |id: ReplicaId| {
                agreed[id.index()].is_some_and(|life| count_dead || life >= lives.of(id))
            };
            if no_quorum || members.is_quorum(|id| id == me || agrees(id)) {
                passed.push(slot);
            } else if gap.asked_at.is_none_or(|at| now.micros >= at + retry) {
                gap.asked_at = Some(now.micros);
                tell.push(slot);
            }
        }
        for slot in decided {
            let index = self.place(slot).expect("it was kept when it was opened");
            self.ahead.put(index, Slot::NoOp);
        }
        for batch in tell.chunks(self.config.limits.gap_batch) {
            self.broadcast(Body::GapCommit { slots: batch.to_vec() }, out);
        }
        passed.into_iter().for_each(|slot| self.gaps.close(slot));
    }

    /// Step 2, of a follower.
    pub(crate) fn on_gap_commit(&mut self, slots: &[OpNumber], out: &mut Out) {
        for &slot in slots {
            if self.mark_no_op(slot, out) {
                self.gap_promises.insert(slot);
            }
        }
    }

    /// Puts a NO-OP of the leader in its slot, over a request if there is one. False if the slot is
    /// too far ahead, or stable.
    pub(crate) fn mark_no_op(&mut self, slot: OpNumber, out: &mut Out) -> bool {
        if slot <= self.sync_point {
            return false;
        }
        if slot <= self.log.last().op {
            let entry = self.log.get(slot).expect("it is above the sync-point").clone();
            let is_of_view = entry.viewstamp.view == self.view.to_view(self.config.replicas);
            if is_of_view && !is_no_op(&entry) {
                let no_op = self.no_op(slot);
                self.splice(&[no_op], out);
            }
            return is_of_view;
        }
        let Some(index) = self.place(slot) else { return false };
        self.ahead.put(index, Slot::NoOp);
        self.gaps.close(slot);
        true
    }

    /// The leader has a NO-OP in this slot. False if the slot was known before.
    fn learn_no_op(&mut self, slot: OpNumber) -> bool {
        let Some(index) = self.place(slot) else { return false };
        let is_open = matches!(self.ahead.get(index), Some(Slot::Unknown | Slot::Missing));
        if is_open {
            self.ahead.put(index, Slot::NoOp);
            self.gaps.close(slot);
        }
        is_open
    }

    /// GAP-COMMIT-REP, when all slots up to it are filled, and where it must be on disk.
    fn keep_gap_promises(&mut self, out: &mut Out) {
        let through = self.promised();
        let mut kept = core::mem::take(&mut self.gap_promises);
        self.gap_promises = kept.split_off(&through.next());
        let slots: Vec<_> = kept.into_iter().collect();
        for batch in slots.chunks(self.config.limits.gap_batch) {
            self.send(self.leader(), Body::GapCommitRep { slots: batch.to_vec() }, out);
        }
    }

    pub(crate) fn on_gap_commit_rep(
        &mut self,
        from: ReplicaId,
        life: Incarnation,
        slots: &[OpNumber],
    ) {
        for slot in slots {
            if let Some(agreed) = self.gaps.open.get_mut(slot).and_then(|gap| gap.agreed.as_mut()) {
                agreed[from.index()] = Some(life);
            }
        }
    }

    pub(crate) fn on_gap_request(&mut self, from: ReplicaId, slots: &[OpNumber], out: &mut Out) {
        let (mut entries, mut missing, mut bytes) = (Vec::new(), Vec::new(), 0);
        for &slot in slots {
            if bytes > self.config.limits.transfer_bytes {
                break;
            }
            let above = slot.0.checked_sub(self.log.last().op.0 + 1);
            let known = above.and_then(|index| self.ahead.get(usize::try_from(index).ok()?));
            match (self.log.get(slot), known) {
                (Some(entry), _) | (None, Some(Slot::Request(entry))) => {
                    bytes += entry.size();
                    entries.push(entry.clone());
                }
                (None, Some(Slot::Missing)) => missing.push(slot),
                _ => {}
            }
        }
        let base = self.log.base().op;
        self.send(from, Body::GapReply { base, entries, missing }, out);
    }

    pub(crate) fn on_gap_reply(
        &mut self,
        now: Now,
        from: ReplicaId,
        base: OpNumber,
        entries: Vec<Arc<Entry>>,
        missing: &[OpNumber],
        out: &mut Out,
    ) {
        let view = self.view.to_view(self.config.replicas);
        let of_leader = from == self.leader();
        for entry in entries {
            let (slot, is_no_op) = (entry.viewstamp.op, is_no_op(&entry));
            // Only the leader can say that there is nothing.
            if entry.viewstamp.view != view || (is_no_op && !of_leader) {
                continue;
            }
            let found = if is_no_op { self.learn_no_op(slot) } else { self.fill(slot, entry) };
            self.tally.found += u64::from(found);
        }
        for slot in missing {
            if let Some(gap) = self.gaps.open.get_mut(slot) {
                gap.missing |= 1 << from.0;
            }
        }
        if of_leader && base > self.sync.matched {
            self.start_transfer(now, from, out);
        }
    }
}
