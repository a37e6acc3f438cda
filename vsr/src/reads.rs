//! Linearizable reads without the log (contracts: "Reads"): a read may be executed once a quorum
//! has confirmed this primary's view in a round that began after the read arrived. One round serves
//! all reads that wait for it, and rides on what is sent anyhow.

use alloc::collections::VecDeque;

use smr::Now;
use smr::contract::Output;

use crate::replica::{Out, Read, Replica};

/// The rounds under way.
#[derive(Debug, Default)]
pub(crate) struct Reads {
    /// At a leader the newest round begun, at a backup the newest heard.
    newest: u64,
    /// Rounds that are not confirmed, each with the last read it serves.
    under_way: VecDeque<(u64, Read)>,
    /// The last read that no round serves yet.
    waiting: Option<Read>,
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
    pub(crate) fn on_read(&mut self, now: Now, read: Read, out: &mut Out) {
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
            self.begin_round(now, out);
        }
    }

    fn begin_round(&mut self, now: Now, out: &mut Out) {
        let Some(read) = self.reads.waiting.take() else { return };
        self.reads.newest += 1;
        self.reads.under_way.push_back((self.reads.newest, read));
        self.send_commit(now, out);
    }

    pub(crate) fn confirm_reads(&mut self, now: Now, out: &mut Out) {
        let me = self.me;
        let confirmed =
            self.quorum_value(|id| if id == me { u64::MAX } else { self.peers[id.index()].round });
        let mut ready = None;
        while self.reads.under_way.front().is_some_and(|&(round, _)| round <= confirmed) {
            ready = self.reads.under_way.pop_front().map(|(_, read)| read);
        }
        if let Some(read) = ready {
            out.push(Output::ReadReady(read));
            self.begin_round(now, out);
        }
    }
}
