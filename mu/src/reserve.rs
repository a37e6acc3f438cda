//! What a leader keeps for a replica that fetches a checkpoint: the slots above it. Without that,
//! a group that decides more than it keeps while a checkpoint travels would never take a replica
//! back.
//!
//! The replica's board says how much of the checkpoint is there. In step with that the leader lets
//! go of slots below the checkpoint; where more would have to go it proposes nothing, so that a
//! group slows down as far as the replica needs, and only if it decides more than it keeps.
//!
//! Invariant: a replica that gets nowhere holds nobody up for longer than `disk_stall`, and not
//! again soon.

use smr::{Now, OpNumber, ReplicaId};

use crate::attempt::{LeadState, Stage};
use crate::event::Memory;
use crate::replica::Replica;

/// All of a checkpoint, as boards tell it.
pub(crate) const WHOLE: u64 = 1 << 16;
/// After a replica that got nowhere nothing is kept for any, for so many `disk_stall`.
const REST: u64 = 16;

/// What is kept, and for whom.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Reserve {
    replica: ReplicaId,
    /// The first slot that was kept when this began is above here,
    base: OpNumber,
    /// and the first that the replica will need above here.
    above: OpNumber,
    /// How much of the checkpoint it has, of [`WHOLE`].
    fetched: u64,
    /// When it has got nowhere for too long, in [`Now::micros`].
    until: u64,
}

impl<M: Memory> Replica<M> {
    /// A replica was told to fetch a checkpoint of `above` or later.
    pub(crate) fn reserve(&mut self, now: Now, replica: ReplicaId, above: OpNumber) {
        let base = self.recent.base();
        let is_other = self.lead.reserve.is_some_and(|reserve| reserve.replica != replica);
        let rests = now.micros < self.lead.reserve_at;
        if self.lead.state != LeadState::Leading || above <= base || is_other || rests {
            return;
        }
        let until = now.micros + self.config.timing.disk_stall;
        let until = self.lead.reserve.map_or(until, |reserve| reserve.until);
        self.lead.reserve = Some(Reserve { replica, base, above, fetched: 0, until });
    }

    /// Whether another slot would push out what is kept for a replica.
    pub(crate) fn must_keep(&self) -> bool {
        let Some(Reserve { base, above, fetched, .. }) = self.lead.reserve else { return false };
        let room = above.0 - base.0;
        // Not all of it: a large slot takes the place of several small ones.
        let free = room / 2 + room * fetched / (3 * WHOLE);
        self.recent.is_full() && self.recent.base().0 >= base.0 + free
    }

    /// What a replica's board says.
    pub(crate) fn on_fetched(&mut self, now: Now, replica: ReplicaId, fetched: u64) {
        let head = self.peers[replica.index()].head.head;
        let patience = self.config.timing.disk_stall;
        let Some(reserve) = &mut self.lead.reserve else { return };
        if reserve.replica != replica {
            return;
        }
        if reserve.fetched != fetched {
            reserve.fetched = fetched.min(WHOLE);
            reserve.until = now.micros + patience;
        }
        let follower = &mut self.followers[replica.index()];
        if head >= reserve.above && follower.stage == Stage::Idle {
            follower.retry_at = now.micros; // it is there
        }
    }

    /// A replica was sent slots up to `sent`: it is confirmed if these were all.
    pub(crate) fn fed(&mut self, replica: ReplicaId, sent: OpNumber, is_all: bool) {
        let Some(reserve) = self.lead.reserve.as_mut().filter(|r| r.replica == replica) else {
            return;
        };
        reserve.above = reserve.above.max(sent);
        if is_all {
            self.let_go(replica);
        }
    }

    /// Nothing is kept for a replica that has failed.
    pub(crate) fn let_go(&mut self, replica: ReplicaId) {
        self.lead.reserve.take_if(|reserve| reserve.replica == replica);
    }

    pub(crate) fn reserve_tick(&mut self, now: Now) {
        if self.lead.reserve.take_if(|reserve| now.micros >= reserve.until).is_some() {
            self.lead.reserve_at = now.micros + REST * self.config.timing.disk_stall;
        }
    }
}
