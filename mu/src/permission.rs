//! Permission management ([Mu] 5.2), the side of the log's owner: requests are served one at a
//! time, in the order of their requesters' ids, and each at most once.

use core::ops::Range;

use fabric::GrantNumber;
use smr::{Incarnation, MAX_REPLICAS, Now, OpNumber, ReplicaId};

use crate::attempt::LeadState;
use crate::event::{Memory, Operation, Purpose};
use crate::layout::{self, BOARD, LOG, REQUESTS, Slot};
use crate::replica::{Out, Replica};

#[derive(Debug, Default)]
pub(crate) struct Permissions {
    /// By requester: the last request that was served, or passed over.
    served: [u64; MAX_REPLICAS as usize],
    /// A switch is under way, for this request.
    switching: Option<u64>,
    /// The grant in force.
    pub(crate) current: GrantNumber,
}

/// A permission request: unique among all of its requester's lives.
pub(crate) fn request(life: u64, count: u32) -> u64 {
    life << 32 | u64::from(count)
}

/// Binds a request to its grant: the two words of an acknowledgement may come apart.
pub(crate) fn seal(request: u64, grant: GrantNumber) -> u64 {
    request ^ grant.0.wrapping_mul(0x9e37_79b9_7f4a_7c15)
}

fn life_of(request: u64) -> u64 {
    request >> 32
}

impl<M: Memory> Replica<M> {
    pub(crate) fn serve_requests(&mut self, out: &mut Out) {
        if self.permissions.switching.is_some() || self.installing() {
            return;
        }
        let mut requests = [0; MAX_REPLICAS as usize];
        let requests = &mut requests[..usize::from(self.config.replicas)];
        self.memory.load(BOARD, REQUESTS, requests);
        for (id, &mut request) in (0..).map(ReplicaId).zip(requests) {
            let served = self.permissions.served[id.index()];
            let is_former = life_of(request) < self.peers[id.index()].life.0;
            if request == 0 || request == served || is_former || !self.may_grant(id, request) {
                continue;
            }
            self.permissions.served[id.index()] = request;
            self.permissions.switching = Some(request);
            self.post(Purpose::Revoke, id, 0, Operation::Revoke, out);
            return;
        }
    }

    /// Nobody writes the log now, and all that was written is to be seen: hands it on, with the
    /// slots that somebody may still ask for. A leader that hands it to another has lost the lead,
    /// and decides nothing more: how far it got, its board says before the next holder knows that
    /// it is one (`leftover`).
    pub(crate) fn on_revoked(&mut self, now: Now, to: ReplicaId, out: &mut Out) {
        if to != self.me && self.lead.state == LeadState::Leading {
            self.abort(now, out);
            self.yield_lead(now);
        }
        let kept = self.needed_slots();
        if self.published.base.0 < kept.start {
            // Nobody who has executed less may look here for what is decided.
            self.published.base = OpNumber(kept.start);
            self.publish(out);
        }
        let keep = layout::words_of(self.limits(), kept);
        self.post(Purpose::Grant, to, 0, Operation::Grant { to, keep }, out);
    }

    /// Operations above the first number and up to the last whose slots a leader may read: those
    /// that not everybody has executed, up to the last that may be accepted. What this log has
    /// voted for lies without gaps above what this replica has executed: writes take effect in
    /// order, and a value that is proposed again stays whole (`layout`).
    fn needed_slots(&self) -> Range<u64> {
        let heads = self.replicas().map(|id| match id == self.me {
            true => self.published.head,
            false => self.peers[id.index()].head.head,
        });
        let lowest = heads.min().expect("there is one replica, at least").min(self.executed.op);
        let mut last = self.executed.op;
        let mut header = [0; layout::HEADER];
        let slots = u64::from(self.limits().slots);
        // However far back others are: what is above counts.
        while last.0 - self.executed.op.0 < slots {
            let next = last.next();
            self.memory.load(LOG, layout::offset(self.limits(), next), &mut header);
            if Slot::extent(self.limits(), next, &header).is_none() {
                break;
            }
            last = next;
        }
        // Of what lies further back the ring holds nothing any more.
        lowest.0.max(last.0.saturating_sub(slots))..last.0
    }

    /// A replica that was removed is granted nothing. One that lost its memory grants to the leader
    /// that brings it back alone, in the life in which it said so.
    fn may_grant(&self, to: ReplicaId, request: u64) -> bool {
        #[cfg(feature = "planted-bugs")]
        if self.bug(crate::Bug::GrantWhileRecovering) {
            return true;
        }
        match &self.recovery {
            Some(recovery) => recovery.is_led_by(to, Incarnation(life_of(request))),
            None => self.is_member(to) || !self.is_member(self.me),
        }
    }

    /// The switch is done, or was refused: then the requester asks again.
    pub(crate) fn on_granted(&mut self, to: ReplicaId, grant: Option<GrantNumber>, out: &mut Out) {
        let request = self.permissions.switching.take().expect("one switch at a time");
        if let Some(grant) = grant {
            self.permissions.current = grant;
            let words = [grant.0, seal(request, grant)];
            self.write_board(Purpose::Ack, to, layout::ack_of(self.me), &words, out);
        }
        self.serve_requests(out);
    }
}
