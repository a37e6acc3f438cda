//! Re-synchronisation ([Mao] 4.2.6): a replica that missed operations, or holds some that its group
//! forgot, copies what differs from a replica of the view.
//!
//! Neither view nor log changes before the entries that replace them are there, and then in one
//! atomic batch. Entries arrive in pieces; each piece leaves a prefix of the leader's log, which is
//! safe to hold: what it replaced was not acknowledged by a quorum, or is lost by the rules of
//! `lazy`; nothing durable is ever replaced.

use alloc::sync::Arc;
use alloc::vec::Vec;

use smr::contract::Role;
use smr::{Entry, Now, OpNumber, ReplicaId, View, Viewstamp};

use crate::message::Message;
use crate::replica::{Out, Replica};

/// How often one question is asked before the next message of the primary must start it anew.
const TRIES: u32 = 4;

/// An unanswered CATCHUP.
#[derive(Debug)]
pub(crate) struct CatchUp {
    pub(crate) retry_at: u64,
    from: ReplicaId,
    view: View,
    tries: u32,
}

impl Replica {
    pub(crate) fn start_catch_up(&mut self, now: Now, from: ReplicaId, view: View, out: &mut Out) {
        let asked = |catch_up: &CatchUp| catch_up.view >= view && now.micros < catch_up.retry_at;
        if self.transfer.is_some() || self.catch_up.as_ref().is_some_and(asked) {
            return;
        }
        #[cfg(feature = "planted-bugs")]
        if self.bug(crate::Bug::TruncateBeforeState) && view > self.view && !self.leading {
            self.set_view(now, view, out);
            self.extend(now, Vec::new(), Some(self.commit), out);
        }
        self.ask(now, from, view, 1, out);
    }

    fn ask(&mut self, now: Now, from: ReplicaId, view: View, tries: u32, out: &mut Out) {
        let retry_at = now.micros + self.config.timing.retry;
        self.catch_up = Some(CatchUp { retry_at, from, view, tries });
        self.send(from, Message::CatchUp { view, tails: self.log.tails() }, out);
    }

    pub(crate) fn resync_timeout(&mut self, now: Now, out: &mut Out) {
        let Some(CatchUp { retry_at, from, view, tries }) = self.catch_up else { return };
        if now.micros < retry_at {
            return;
        }
        if tries >= TRIES || self.leading {
            self.catch_up = None;
            return;
        }
        // Any replica of the view may answer: the one asked may be gone.
        let mut next = ReplicaId((from.0 + 1) % self.config.replicas);
        if next == self.me {
            next = ReplicaId((next.0 + 1) % self.config.replicas);
        }
        self.ask(now, next, view, tries + 1, out);
    }

    /// Whether this replica's log is a prefix of (or is) the log of its view's leader.
    pub(crate) fn in_view(&self) -> bool {
        (self.leading || self.role == Role::Backup) && self.log.last().view == self.view
    }

    /// A replica that catches up with this leader follows it, though it cannot acknowledge yet.
    pub(crate) fn hear_follower(&mut self, now: Now, from: ReplicaId) {
        if self.leading {
            self.peers[from.index()].heard_at = now.micros;
        }
    }

    pub(crate) fn on_catch_up(
        &mut self,
        now: Now,
        from: ReplicaId,
        view: View,
        tails: &[Viewstamp],
        out: &mut Out,
    ) {
        if view < self.view {
            self.send(from, Message::StaleView { view: self.view }, out);
        }
        if view != self.view || !self.in_view() {
            return;
        }
        self.hear_follower(now, from);
        let Some(common) = self.log.common(tails) else {
            self.send(from, Message::NeedState { view }, out);
            return;
        };
        let mut bytes = 0;
        let limit = self.config.limits.catch_up_bytes;
        let fits = |entry: &&Arc<Entry>| {
            let first = bytes == 0;
            bytes += entry.size();
            first || bytes <= limit
        };
        let entries = self.log.above(common.op).take_while(fits).cloned().collect();
        let (last, commit) = (self.log.last(), self.commit);
        self.send(from, Message::CatchUpOk { view, last, commit, entries }, out);
    }

    #[allow(clippy::too_many_arguments)] // a message's fields
    pub(crate) fn on_catch_up_ok(
        &mut self,
        now: Now,
        from: ReplicaId,
        view: View,
        last: Viewstamp,
        commit: OpNumber,
        entries: Vec<Arc<Entry>>,
        out: &mut Out,
    ) {
        let asked = self.catch_up.as_ref().is_some_and(|catch_up| catch_up.view == view);
        let stale = view < self.view && self.recovery.is_none();
        if !asked || stale || self.installing() || self.leading || self.disk_lags() {
            return;
        }
        let (end, empty) = (entries.last().map_or(last, |e| e.viewstamp), entries.is_empty());
        let mut fresh = entries;
        fresh.retain(|entry| !self.log.contains(entry.viewstamp));
        if !self.fits_log(&fresh) {
            self.dropped += 1;
            return;
        }
        if fresh.is_empty() && !empty {
            return; // a duplicate: the next piece has been asked for
        }
        if !fresh.is_empty() {
            if view > self.view {
                self.set_view(now, view, out);
            }
            let previous = fresh[0].previous;
            let truncate = (previous != self.log.last()).then_some(previous.op);
            let durable = fresh[fresh.len() - 1].durable;
            self.extend(now, fresh, truncate, out);
            self.learn_durable(durable, out);
        }
        self.catch_up = None;
        if self.log.last() == end {
            self.learn_commit(commit, out);
        }
        if self.log.last() == end && end < last {
            self.ask(now, from, view, 1, out);
        }
        self.enter_as_backup(now);
        self.acknowledge(out);
        self.recovery_progress(now, out);
    }

    /// Whether the entries follow each other, and the first of them something in the log.
    fn fits_log(&self, entries: &[Arc<Entry>]) -> bool {
        entries.first().is_none_or(|first| self.log.contains(first.previous))
            && entries.windows(2).all(|pair| pair[1].previous == pair[0].viewstamp)
    }
}
