//! Proofs of leadership: a write to a majority under its grants, posted after the question came.
//! That a leader can read its followers' logs would prove nothing: everybody may. One round serves
//! all reads that wait, and replicas that rejoin.

use alloc::vec::Vec;

use smr::contract::Output;
use smr::{Now, ReadNumber, ReplicaId};

use crate::event::{Memory, Purpose};
use crate::layout::ROUND;
use crate::members;
use crate::message::Message;
use crate::replica::{Out, Replica};

#[derive(Debug, Default)]
pub(crate) struct Rounds {
    /// Never begins anew, so that no late completion counts.
    newest: u64,
    /// When the last one began, in [`Now::micros`].
    began_at: u64,
    /// The round under way, and the last read that it serves.
    under_way: Option<(u64, Option<ReadNumber>)>,
    /// The last read that no round serves yet.
    waiting: Option<ReadNumber>,
    /// Replicas that ask what they must hold, each with the first round that began after.
    asking: Vec<(ReplicaId, u64)>,
}

impl Rounds {
    /// Forgets who waits: this replica does not lead any more.
    pub(crate) fn clear(&mut self) {
        let Rounds { newest, began_at, .. } = *self;
        *self = Rounds { newest, began_at, ..Rounds::default() };
    }

    pub(crate) fn is_busy(&self) -> bool {
        self.under_way.is_some()
    }

    /// The one that asked lives anew.
    pub(crate) fn forget(&mut self, replica: ReplicaId) {
        self.asking.retain(|&(id, _)| id != replica);
    }
}

impl<M: Memory> Replica<M> {
    pub(crate) fn on_read(&mut self, now: Now, read: ReadNumber, out: &mut Out) {
        #[cfg(feature = "planted-bugs")]
        if self.bug(crate::Bug::ReadWithoutQuorum) {
            out.push(Output::ReadReady(read));
            return;
        }
        self.rounds.waiting = Some(read);
        self.begin_round(now, out);
    }

    /// Only of a leader that holds what was decided before it, whatever becomes of its lead.
    pub(crate) fn ask_round(&mut self, now: Now, replica: ReplicaId, out: &mut Out) {
        if !self.rounds.asking.iter().any(|&(id, _)| id == replica) {
            self.rounds.asking.push((replica, self.rounds.newest + 1));
        }
        self.begin_round(now, out);
    }

    /// A leader that has nothing to write must find out, too, that its grants are gone: it may be
    /// the one that all others wait for.
    pub(crate) fn round_tick(&mut self, now: Now, out: &mut Out) {
        if now.micros >= self.rounds.began_at + self.config.timing.retry {
            self.begin_round(now, out);
        }
    }

    fn begin_round(&mut self, now: Now, out: &mut Out) {
        if self.rounds.under_way.is_some() {
            return;
        }
        self.rounds.began_at = now.micros;
        if !self.is_busy() {
            self.lead.progress_at = now.micros;
        }
        self.rounds.newest += 1;
        let round = self.rounds.newest;
        self.rounds.under_way = Some((round, self.rounds.waiting.take()));
        for id in self.replicas().filter(|id| self.followers[id.index()].is_confirmed()) {
            self.write_log(Purpose::Confirm, id, ROUND, round, out);
        }
    }

    pub(crate) fn on_confirmed(&mut self, now: Now, peer: ReplicaId, round: u64, out: &mut Out) {
        let follower = &mut self.followers[peer.index()];
        follower.round = follower.round.max(round);
        let round_of = |id: ReplicaId| {
            let follower = &self.followers[id.index()];
            if follower.is_confirmed() { follower.round } else { 0 }
        };
        let confirmed = self.quorum_value(round_of);
        if let Some((_, read)) = self.rounds.under_way.take_if(|(round, _)| *round <= confirmed) {
            out.extend(read.map(Output::ReadReady));
        }
        let asking = core::mem::take(&mut self.rounds.asking);
        for (id, since) in asking {
            // The vote of the one that asks does not count.
            let voters = self.replicas().filter(|voter| {
                let follower = &self.followers[voter.index()];
                *voter != id && follower.is_confirmed() && follower.round >= since
            });
            let voters: Vec<ReplicaId> = voters.collect();
            if !self.is_quorum(members::set(&voters)) {
                self.rounds.asking.push((id, since));
                continue;
            }
            // Now it grants to this leader: no need to wait.
            self.followers[id.index()].retry_at = now.micros;
            let source = self.checkpoint_source(id);
            let (view, through) = (self.lead.number, self.recent.last().op);
            let above = self.worth_fetching();
            self.send(id, Message::Welcome { view, through, above, source }, out);
            self.reserve(now, id, above);
        }
        let is_asked = self.rounds.asking.iter().any(|&(_, since)| since > self.rounds.newest);
        if self.rounds.waiting.is_some() || is_asked {
            self.begin_round(now, out);
        }
    }
}
