//! The replayer ([Mu] 4.2): a follower executes the slots of its own log that are decided.
//!
//! What is decided it learns from the slots themselves: each carries its proposer's first undecided
//! operation. That the next slot is there proves nothing: several may be outstanding. Writes of one
//! leader become visible in order, so that a follower that sees a slot holds what came before.

use alloc::collections::VecDeque;
use alloc::sync::Arc;

use smr::contract::Output;
use smr::{OpNumber, View};

use crate::event::Memory;
use crate::layout::{self, HEADER, LOG, MIN_PROPOSAL, Slot};
use crate::replica::{Out, Replica};

#[derive(Debug, Default)]
pub(crate) struct Replay {
    /// What was last seen there: another leader writes, if it changes.
    pub(crate) min_proposal: View,
    /// Whole slots above what was executed. A later leader may change those that are not decided.
    seen: VecDeque<Slot>,
    /// Everything up to here is decided.
    decided: OpNumber,
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
    pub(crate) fn replay(&mut self, out: &mut Out) {
        if self.installing() {
            return;
        }
        let mut head = [0; 2];
        self.memory.load(LOG, MIN_PROPOSAL, &mut head);
        if View(head[0]) != self.replay.min_proposal {
            self.replay.forget(self.executed.op);
            self.replay.min_proposal = View(head[0]);
            self.view = self.view.max(View(head[0]));
            self.followed = View(head[0]);
        }
        self.replay.decided = self.replay.decided.max(OpNumber(head[1].saturating_sub(1)));
        let most = self.limits().slots as usize;
        while self.replay.seen.len() < most {
            let op = self.replay.end(self.executed.op).next();
            let Some(slot) = self.load_slot(op) else { break };
            self.replay.decided = self.replay.decided.max(slot.decided());
            self.replay.seen.push_back(slot);
            #[cfg(feature = "planted-bugs")]
            if self.bug(crate::Bug::ExecuteOnNextSlot) {
                self.replay.decided = self.replay.decided.max(OpNumber(op.0 - 1));
            }
        }
        self.execute_decided(out);
    }

    /// The slot of an operation in the own log, if it is whole.
    fn load_slot(&mut self, op: OpNumber) -> Option<Slot> {
        let offset = layout::offset(self.limits(), op);
        let mut words = core::mem::take(&mut self.scratch);
        self.memory.load(LOG, offset, &mut words[..HEADER]);
        let extent = Slot::extent(self.limits(), op, &words);
        #[cfg(feature = "planted-bugs")]
        let extent = match self.bug(crate::Bug::LapIgnored) {
            true => Some(words.len()),
            false => extent,
        };
        let slot = extent.and_then(|extent| {
            self.memory.load(LOG, offset, &mut words[..extent]);
            self.parse(op, &words[..extent])
        });
        self.scratch = words;
        slot
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
            if !slot.is_headed(&header) {
                self.replay.seen.clear();
                break;
            }
            let entry = Arc::new(slot.entry());
            self.recent.push(slot);
            self.execute(entry, out);
        }
        let through = self.executed.op;
        if through > before {
            out.push(Output::Commit { through, reply: false });
            out.push(Output::Stable(through));
            self.publish(out);
        }
    }
}
