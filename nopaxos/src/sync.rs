//! Synchronisation ([NOPaxos] 5.2.4): up to the sync-point f + 1 replicas hold what the leader
//! holds, so that everybody may execute it and nothing of it ever changes.
//!
//! SYNC-PREPARE says where NO-OPs are; the requests between them are the same everywhere, and who
//! lacks one asks for it as for any gap.

use smr::contract::Output;
use smr::{Durability, Incarnation, MAX_REPLICAS, Now, OpNumber, ReplicaId};

use crate::ahead::Slot;
use crate::bug::Bug;
use crate::config::Limits;
use crate::message::Body;
use crate::replica::{Out, Replica};
use crate::slots::is_no_op;

/// A leader synchronises this often while it fills its log up to the bound of its bytes.
const SYNCS_A_BOUND: usize = 4;

#[derive(Clone, Copy, Debug, Default)]
struct Vote {
    life: Incarnation,
    through: OpNumber,
    disk: OpNumber,
}

/// The state of the synchronisation in a view.
#[derive(Debug, Default)]
pub(crate) struct Sync {
    /// A follower: up to here its log is the leader's.
    pub(crate) matched: OpNumber,
    /// Up to here it has applied the leader's NO-OPs.
    target: OpNumber,
    /// The leader's sync-point and durable point.
    leader: OpNumber,
    durable: OpNumber,
    /// What it has told the leader last; it owes an answer, too.
    replied: OpNumber,
    replied_disk: OpNumber,
    reply_due: bool,
    /// The leader: what followers have told.
    votes: [Vote; MAX_REPLICAS as usize],
    /// The end of its last SYNC-PREPARE.
    prepared: OpNumber,
    pub(crate) prepare_due: bool,
}

impl Sync {
    /// A view has started with the leader's log up to `matched`.
    pub(crate) fn begin(&mut self, matched: OpNumber) {
        *self = Sync { matched, target: matched, prepare_due: true, ..Sync::default() };
    }

    /// What is stable has come in another way.
    pub(crate) fn reach(&mut self, stable: OpNumber) {
        self.matched = self.matched.max(stable);
        self.target = self.target.max(stable);
    }

    /// Whether the leader has said that this slot is settled.
    pub(crate) fn is_told(&self, slot: OpNumber) -> bool {
        slot <= self.target
    }

    /// Whether something is missing that the leader has.
    pub(crate) fn lags(&self, last: OpNumber) -> bool {
        self.target > last
    }
}

impl Replica {
    pub(crate) fn settle_sync(&mut self, out: &mut Out) {
        if self.leads() {
            self.lead_sync(out);
        } else {
            self.follow_sync(out);
        }
    }

    fn lead_sync(&mut self, out: &mut Out) {
        let Limits { sync_every, unstable_bytes, .. } = self.config.limits;
        let told = self.sync.prepared.max(self.sync_point);
        let bytes = self.log.bytes_above(told).saturating_sub(self.log.bytes_above(self.answered));
        let is_much = self.answered.0 >= told.0 + sync_every;
        if is_much || bytes > unstable_bytes / SYNCS_A_BOUND || self.raised_above(told) {
            self.sync.prepare_due = true;
        }
        if core::mem::take(&mut self.sync.prepare_due) {
            self.sync.prepared = self.answered;
            let body = self.sync_prepare(self.sync_point);
            self.broadcast(body, out);
        }
        let durable = self.reached(|vote| vote.disk.min(vote.through), self.stores.disk());
        let through = self.reached(|vote| vote.through, self.answered);
        let before = (self.sync_point, self.durable_point);
        if through > self.sync_point {
            self.advance_sync(through, out);
        }
        self.advance_durable(durable, out);
        if (self.sync_point, self.durable_point) != before {
            self.broadcast(self.sync_commit(), out);
        }
    }

    /// Whether there is something above `told` that only has to be synchronised to be durable, or
    /// on the followers' disks, too.
    fn raised_above(&self, told: OpNumber) -> bool {
        let own = if self.logs() { self.stores.disk() } else { self.answered };
        let last = self.raised.range(..=own.min(self.answered)).next_back();
        last.is_some_and(|&slot| slot > told)
    }

    /// Step 1.
    fn sync_prepare(&self, base: OpNumber) -> Body {
        let through = self.answered;
        let told = self.log.above(base).take_while(|entry| entry.viewstamp.op <= through);
        let no_ops = told.filter(|entry| is_no_op(entry)).map(|entry| entry.viewstamp.op).collect();
        let (sync_point, durable) = (self.sync_point, self.durable_point);
        Body::SyncPrepare { base, through, no_ops, sync_point, durable }
    }

    fn sync_commit(&self) -> Body {
        Body::SyncCommit { sync_point: self.sync_point, durable: self.durable_point }
    }

    /// The highest slot that a quorum has reached, this leader included.
    fn reached(&self, of: impl Fn(&Vote) -> OpNumber, own: OpNumber) -> OpNumber {
        self.counting().reached(|id| {
            let vote = &self.sync.votes[id.index()];
            match id {
                id if id == self.me => own,
                id if self.counts(id, vote.life) => of(vote),
                _ => OpNumber(0),
            }
        })
    }

    pub(crate) fn on_sync_ask(&mut self, from: ReplicaId, base: OpNumber, out: &mut Out) {
        let body = if base < self.log.base().op {
            let base = self.log.base().op;
            Body::GapReply { base, entries: Default::default(), missing: Default::default() }
        } else {
            self.sync_prepare(base)
        };
        self.send(from, body, out);
    }

    pub(crate) fn on_sync_reply(
        &mut self,
        from: ReplicaId,
        life: Incarnation,
        through: OpNumber,
        disk: OpNumber,
    ) {
        let vote = &mut self.sync.votes[from.index()];
        if through > self.log.last().op {
            self.tally.nonsense += 1;
        } else if life > vote.life {
            *vote = Vote { life, through, disk };
        } else if life == vote.life {
            vote.through = vote.through.max(through);
            vote.disk = vote.disk.max(disk);
        }
    }

    /// Step 2.
    pub(crate) fn on_sync_prepare(
        &mut self,
        now: Now,
        base: OpNumber,
        through: OpNumber,
        no_ops: &[OpNumber],
        out: &mut Out,
    ) {
        self.heard_leader(now, through);
        self.sync.reply_due = true;
        if base > self.sync.target {
            self.send(self.leader(), Body::SyncAsk { from: self.sync.target }, out);
            return;
        }
        let mut target = through;
        let matched = self.sync.matched;
        for &slot in no_ops.iter().filter(|&&slot| slot > matched) {
            if !self.bug(Bug::SyncIgnoresNoOps) && !self.mark_no_op(slot, out) {
                target = OpNumber(slot.0 - 1); // too far ahead as yet
                break;
            }
        }
        self.sync.target = self.sync.target.max(target);
    }

    /// Step 4.
    pub(crate) fn on_sync_commit(&mut self, sync_point: OpNumber, durable: OpNumber) {
        self.sync.leader = self.sync.leader.max(sync_point);
        self.sync.durable = self.sync.durable.max(durable);
    }

    fn follow_sync(&mut self, out: &mut Out) {
        let reached = self.sync.target.min(self.log.last().op);
        self.sync.matched = self.sync.matched.max(reached);
        let stable = self.sync.leader.min(self.sync.matched);
        if stable > self.sync_point {
            self.advance_sync(stable, out);
        }
        self.advance_durable(self.sync.durable, out);
        let through = self.sync.matched.min(self.promised());
        let disk = self.stores.disk();
        let is_news = through > self.sync.replied || (self.logs() && disk > self.sync.replied_disk);
        if self.sync.reply_due || (is_news && self.sync.leader > OpNumber(0)) {
            self.sync.reply_due = false;
            (self.sync.replied, self.sync.replied_disk) = (through, disk);
            self.send(self.leader(), Body::SyncReply { through, disk }, out);
        }
    }

    /// Asks for what the leader has synchronised and the sequencer's messages have not brought.
    pub(crate) fn ask_for_synchronised(&mut self) {
        let last = self.log.last().op.0;
        for slot in (last + 1..=self.sync.target.0).map(OpNumber) {
            let Some(index) = self.place(slot) else { return };
            if matches!(self.ahead.get(index), Some(Slot::Unknown | Slot::Missing)) {
                self.gaps.open(slot);
            }
        }
    }

    /// Up to here nothing changes any more: executes it, and keeps the log within its bounds.
    pub(crate) fn advance_sync(&mut self, through: OpNumber, out: &mut Out) {
        self.execute(through, out);
        self.sync_point = through;
        out.push(Output::Commit { through, reply: false });
        if self.config.durability != Durability::Lazy {
            self.durable_point = through;
            self.answer_raised(through, out);
            out.push(Output::Stable(through));
            self.consider_checkpoint(out);
        }
    }

    /// Up to here f + 1 disks hold the log.
    pub(crate) fn advance_durable(&mut self, through: OpNumber, out: &mut Out) {
        let through = through.min(self.sync_point);
        if self.config.durability == Durability::Lazy && through > self.durable_point {
            self.durable_point = through;
            self.answer_raised(through, out);
            out.push(Output::Stable(through));
            self.consider_checkpoint(out);
        }
    }
}
