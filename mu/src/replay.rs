//! The replayer ([Mu] 4.2): a follower executes the slots of its own log that are decided.
//!
//! What is decided it learns from the slots themselves: each carries its proposer's first undecided
//! operation. That the next slot is there proves nothing: several may be outstanding. Writes of one
//! leader become visible in order, so that a follower that sees a slot holds what came before.

use alloc::collections::VecDeque;
use alloc::sync::Arc;

use smr::{Now, OpNumber, View};

use crate::event::Memory;
use crate::layout::{
    self, DECIDED, DURABLE_POINT, FIRST_UNDECIDED, HEADER, LOG, MIN_PROPOSAL, Slot,
};
use crate::replica::{Out, Replica};

/// Slots that are seen before those of them that are decided are executed.
const BITE: usize = 8;

#[derive(Debug, Default)]
pub(crate) struct Replay {
    /// What was last seen there: another leader writes, if it changes.
    pub(crate) min_proposal: View,
    /// Whole slots above what was executed. A later leader may change those that are not decided.
    pub(crate) seen: VecDeque<Slot>,
    /// Everything up to here is decided.
    pub(crate) decided: OpNumber,
}

impl Replay {
    /// Begins anew above an executed operation.
    pub(crate) fn forget(&mut self, executed: OpNumber) {
        self.seen.clear();
        self.min_proposal = View::default();
        self.decided = self.decided.max(executed);
    }

    /// The last operation that is there, if all below it are.
    pub(crate) fn end(&self, executed: OpNumber) -> OpNumber {
        OpNumber(executed.0 + self.seen.len() as u64)
    }
}

impl<M: Memory> Replica<M> {
    pub(crate) fn replay(&mut self, now: Now, out: &mut Out) {
        if self.installing() {
            return;
        }
        let mut head = [0; 8];
        self.memory.load(LOG, MIN_PROPOSAL, &mut head);
        if View(head[0]) != self.replay.min_proposal {
            self.replay.forget(self.executed.op);
            self.replay.min_proposal = View(head[0]);
            self.view = self.view.max(View(head[0]));
            self.followed = View(head[0]);
            if self.is_durable() {
                self.replay.decided = self.executed.op;
            }
        }
        if !self.is_durable() {
            let fuo = head[FIRST_UNDECIDED as usize];
            self.replay.decided = self.replay.decided.max(OpNumber(fuo.saturating_sub(1)));
        }
        if self.is_durable() {
            self.forget_replaced();
        }
        if self.is_durable() {
            self.see_slots(self.limits().slots as usize);
            return self.replay_log(now, &head, out);
        }
        // Some at a time, so that they are executed while the caches have them. A lap at most: the
        // leader waits for the log head that this ends with.
        while self.see_slots(BITE) == BITE {
            self.execute_decided(out);
        }
        self.execute_decided(out);
    }

    /// Where the log goes to disk a leader waits until its own slots are seen, be they in the place
    /// of others that had been seen before.
    fn forget_replaced(&mut self) {
        let first = self.executed.op.next();
        let limits = *self.limits();
        let mut header = [0; HEADER];
        let stands = |(op, slot): &(u64, &Slot)| {
            self.memory.load(LOG, layout::offset(&limits, OpNumber(*op)), &mut header);
            slot.is_headed(&header)
        };
        let stand = (first.0..).zip(&self.replay.seen).take_while(stands).count();
        self.replay.seen.truncate(stand);
    }

    /// Takes note of whole slots that have appeared, up to `most`; returns how many.
    fn see_slots(&mut self, most: usize) -> usize {
        let (slots, durable) = (self.limits().slots as usize, self.is_durable());
        let before = self.replay.seen.len();
        while self.replay.seen.len() < slots.min(before + most) {
            let op = self.replay.end(self.executed.op).next();
            let Some(slot) = self.load_slot(op) else { break };
            if !durable {
                self.replay.decided = self.replay.decided.max(slot.decided());
            }
            self.replay.seen.push_back(slot);
            #[cfg(feature = "planted-bugs")]
            if self.bug(crate::Bug::ExecuteOnNextSlot) {
                self.replay.decided = self.replay.decided.max(OpNumber(op.0 - 1));
            }
        }
        self.replay.seen.len() - before
    }

    /// As [`Replica::execute_decided`] where the log goes to disk: only slots that follow one
    /// another are one log, and only what that log, or the present leader, calls decided is.
    fn replay_log(&mut self, now: Now, head: &[u64; 8], out: &mut Out) {
        let (leader, grant) = (self.replay.min_proposal, self.permissions.current);
        let pair = |at: u32| {
            let words = [head[at as usize], head[at as usize + 1]];
            layout::unsealed(words, leader, layout::under(at, grant))
        };
        let told = pair(DECIDED).unwrap_or_default();
        self.replay.decided = self.replay.decided.max(told);
        if self.is_lost() {
            return self.go_back(leader, out);
        }
        let mut last = self.executed;
        let mut length = 0;
        for slot in self.replay.seen.iter().take_while(|slot| {
            let follows = slot.previous() == last;
            last = if follows { slot.viewstamp() } else { last };
            follows
        }) {
            length += 1;
            self.replay.decided = self.replay.decided.max(slot.decided());
        }
        let is_broken = length < self.replay.seen.len();
        let (view, lost_under) = self.lost;
        let is_live = last.view >= view;
        // What a leader that fills the log anew calls decided may end below its own first entry.
        let is_fed = leader >= view && grant > lost_under && told > self.executed.op;
        if !is_live {
            self.replay.decided = told;
        }
        if (is_live || is_fed) && !self.disk_is_full() {
            if is_live && last > self.log.last() {
                let entries = self.replay.seen.iter().take(length);
                let entries = entries.map(|slot| Arc::new(slot.entry())).collect();
                self.hold(now, entries, out);
                self.recall(out);
            }
            self.hold_decided(now, length, out);
            self.execute_decided(out);
        }
        if is_broken {
            self.replay.seen.clear(); // a leader may put others there
        }
        // The leader's word counts in its own log alone.
        if let Some(durable) = pair(DURABLE_POINT).filter(|_| self.executed.view == leader) {
            self.durable_known = self.durable_known.max(durable);
            self.settle(out);
        }
    }

    /// What is decided may have to take the place of what was stored and is not.
    fn hold_decided(&mut self, now: Now, length: usize, out: &mut Out) {
        let decided = self.replay.decided;
        let entries = self.replay.seen.iter().take(length);
        let entries = entries.take_while(|slot| slot.viewstamp().op <= decided);
        if entries.clone().any(|slot| !self.log.contains(slot.viewstamp())) {
            let entries = entries.map(|slot| Arc::new(slot.entry())).collect();
            self.hold(now, entries, out);
        }
        self.replay.decided = decided.min(OpNumber(self.executed.op.0 + length as u64));
    }

    /// The disk is so far behind that this replica goes on only as fast as it does: the leader then
    /// sees the log head stand still.
    pub(crate) fn disk_is_full(&self) -> bool {
        let (handed, stored) = (self.log.last().op, self.disk.stores.disk().op);
        handed.0 - stored.0 >= u64::from(self.limits().kept / 2)
    }

    /// The slot of an operation in the own log, if it is whole.
    pub(crate) fn load_slot(&mut self, op: OpNumber) -> Option<Slot> {
        let offset = layout::offset(self.limits(), op);
        let mut header = [0; HEADER];
        self.memory.load(LOG, offset, &mut header);
        let extent = Slot::extent(self.limits(), op, &header);
        #[cfg(feature = "planted-bugs")]
        let extent = match self.bug(crate::Bug::LapIgnored) {
            true => Some(self.limits().slot_words as usize),
            false => extent,
        };
        let mut words = self.space.words(extent?);
        let own = Arc::get_mut(&mut words).expect("nobody else knows it");
        self.memory.load(LOG, offset, own);
        self.whole(op, words)
    }

    fn execute_decided(&mut self, out: &mut Out) {
        let before = self.executed.op;
        while self.executed.op < self.replay.decided {
            let Some(slot) = self.replay.seen.pop_front() else { break };
            // It may have been seen before a later leader put another value there. That came before
            // what says that this operation is decided: its checksum is there, if any of it is.
            let offset = layout::offset(self.limits(), self.executed.op.next());
            let mut header = [0; HEADER];
            self.memory.load(LOG, offset, &mut header);
            let stands = slot.is_headed(&header);
            #[cfg(feature = "planted-bugs")]
            let stands = stands || self.bug(crate::Bug::LapIgnored);
            if !stands {
                self.replay.seen.clear();
                break;
            }
            let entry = Arc::new(slot.entry());
            let dropped = self.recent.push(slot);
            self.space.take_back(dropped);
            self.execute(entry, out);
        }
        if self.executed.op > before {
            self.decide(false, out);
            self.publish(out);
        }
    }
}
