//! First entries that failed leaders have left behind (durabilities `sync` and `lazy`).
//!
//! There nothing of a leader's is decided before its own first entry is on a majority's disks. Each
//! leader that fails before would leave its entry to the next one, and a slot with it, until the
//! ring is full. So a would-be leader drops, from the end of the log that it has chosen, the first
//! entries of former leaders that were never decided. Nobody asked for them.
//!
//! Who can have decided such an entry, with nothing chosen above it, is its leader: a later one
//! decides what it adopted together with its own first entry, on disks of a majority, of which one
//! was read, and the chosen log, which ends highest, would have that, too; or it decides it when
//! all logs are that one ([`Replica::is_only_log`]), under its number. So it never was, if
//! - its leader's log was read in the same life, does not have it under another number, and its log
//!   head is below: whoever grants its log to another has given up the lead before, and said how
//!   far it got; or
//! - those that may have stored the entry are no majority.

use alloc::vec::Vec;

use smr::{Content, OpNumber, ReplicaId, Viewstamp};

use crate::event::Memory;
use crate::layout::{self, Slot};
use crate::members::{bit, is_majority};
use crate::replica::Replica;

impl<M: Memory> Replica<M> {
    /// Drops what may go from the end of a log that is decided up to `decided`.
    pub(crate) fn drop_leftovers(
        &self,
        chosen: &mut Vec<Slot>,
        decided: OpNumber,
        read: &[ReplicaId],
    ) {
        while let Some(last) = chosen.last() {
            let at = last.viewstamp();
            let is_first = at.op > decided && last.entry().content == Content::ViewStart;
            if !is_first || !self.is_leftover(at, read) {
                return;
            }
            chosen.pop();
        }
    }

    /// Whether an entry at the end of the chosen log was never decided, for certain.
    fn is_leftover(&self, at: Viewstamp, read: &[ReplicaId]) -> bool {
        let head = |id: &ReplicaId| {
            let board = self.followers[id.index()].board;
            board.expect("read before").head
        };
        let leader = at.view.primary();
        if read.contains(&leader) {
            let life = self.peers[leader.index()].life;
            let slot = self.slot_read(leader, at);
            let adopted = slot.is_some_and(|slot| slot.number() != at.view);
            if layout::is_of_life(at.view, life) && head(&leader) < at.op && !adopted {
                return true;
            }
        }
        let lacks = |id: &&ReplicaId| head(id) < at.op && self.slot_read(**id, at).is_none();
        let without = read.iter().filter(lacks).fold(0, |set, id| set | bit(*id));
        let members = self.named_by(at.view);
        !is_majority(members & !without, members)
    }
}
