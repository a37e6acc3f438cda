//! Linearizable reads without the log (contracts: "Reads"): a read may be executed once a quorum
//! has confirmed this primary's view in a round that began after the read arrived. One round serves
//! all reads that wait for it, and rides on what is sent anyhow.

use alloc::collections::VecDeque;

use smr::contract::Output;
use smr::{ReadNumber, ReplicaId};

use crate::replica::{Out, Replica, ReplicaSet};

/// The rounds under way.
#[derive(Debug, Default)]
pub(crate) struct Reads {
    /// At a leader the newest round begun, at a backup the newest heard.
    newest: u64,
    /// Rounds that are not confirmed, each with the last read it serves.
    under_way: VecDeque<(u64, ReadNumber)>,
    /// The last read that no round serves yet.
    waiting: Option<ReadNumber>,
}

impl Reads {
    pub(crate) fn newest(&self) -> u64 {
        self.newest
    }

    pub(crate) fn hear(&mut self, round: u64) {
        self.newest = self.newest.max(round);
    }

    /// Forgets the reads. Round numbers go on within the view, so that no late answer counts anew.
    pub(crate) fn clear(&mut self) {
        self.under_way.clear();
        self.waiting = None;
    }
}

impl Replica {
    pub(crate) fn on_read(&mut self, read: ReadNumber, out: &mut Out) {
        #[cfg(feature = "planted-bugs")]
        if self.bug(crate::Bug::ReadWithoutQuorum) {
            out.push(Output::ReadReady(read));
            return;
        }
        if self.config.replicas == 1 {
            out.push(Output::ReadReady(read));
            return;
        }
        self.reads.waiting = Some(read);
        if self.reads.under_way.len() < self.config.limits.read_rounds {
            self.begin_round(out);
        }
    }

    /// Asks just enough replicas, those that answered last; the others need not wake up for it. If
    /// one of them is gone, the next heartbeat carries the round to all.
    fn begin_round(&mut self, out: &mut Out) {
        let Some(read) = self.reads.waiting.take() else { return };
        self.reads.newest += 1;
        self.reads.under_way.push_back((self.reads.newest, read));
        let mut asked = ReplicaSet::of(self.me);
        while asked.len() < self.quorum() {
            let others = (0..self.config.replicas).map(ReplicaId).filter(|&id| !asked.has(id));
            let next = others.max_by_key(|id| self.peers[id.index()].heard_at);
            let next = next.expect("a quorum is not more than all");
            asked.insert(next);
            self.send(next, self.commit_message(), out);
        }
    }

    pub(crate) fn confirm_reads(&mut self, out: &mut Out) {
        let me = self.me;
        let confirmed =
            self.quorum_value(|id| if id == me { u64::MAX } else { self.peers[id.index()].round });
        let mut ready = None;
        while self.reads.under_way.front().is_some_and(|&(round, _)| round <= confirmed) {
            ready = self.reads.under_way.pop_front().map(|(_, read)| read);
        }
        if let Some(read) = ready {
            out.push(Output::ReadReady(read));
            self.begin_round(out);
        }
    }
}
