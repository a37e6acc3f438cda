//! What happens because time has passed.

use smr::Now;

use crate::bug::Bug;
use crate::config::Config;
use crate::message::Body;
use crate::replica::{Out, Replica, Status};

/// When what is due, in [`Now::micros`].
#[derive(Debug, Default)]
pub(crate) struct Timers {
    heartbeat_at: u64,
    suspect_at: u64,
    retry_at: u64,
    /// When the leader last had as many requests as this follower.
    progress_at: u64,
}

impl Timers {
    pub(crate) fn start(&mut self, now: Now, config: &Config) {
        self.retry_at = now.micros + config.timing.retry;
        self.progress_at = now.micros;
    }
}

impl Replica {
    /// The leader, or who is to lead, gets another while.
    pub(crate) fn suspect_later(&mut self, now: Now) {
        let jitter = self.rng.below(self.config.timing.jitter + 1);
        self.timers.suspect_at = now.micros + self.config.timing.election + jitter;
    }

    pub(crate) fn begin_timers(&mut self, now: Now) {
        self.timers.heartbeat_at = now.micros + self.config.timing.heartbeat;
        self.timers.progress_at = now.micros;
        self.suspect_later(now);
    }

    /// The present view is on disk. Whom its start depends on may need as long for that.
    pub(crate) fn view_was_stored(&mut self, now: Now) {
        let took = (now.micros - self.change.changed_at).min(self.config.timing.stall);
        if self.status == Status::ViewChange {
            self.suspect_later(Now { micros: now.micros + took, ..now });
        }
    }

    /// The leader speaks, and its log ends here. One that gets no requests while others do is of no
    /// use: leadership follows progress.
    pub(crate) fn heard_leader(&mut self, now: Now, through: smr::OpNumber) {
        if through >= self.sync.matched.max(self.sync_point).next() || through >= self.log.last().op
        {
            self.timers.progress_at = now.micros;
        }
        if now.micros < self.timers.progress_at + self.config.timing.stall {
            self.suspect_later(now);
            self.change.hear();
        }
    }

    /// Who has not stored this view could not vote in the next one either, however slow its disk
    /// is.
    fn may_suspect(&self) -> bool {
        let waits = self.view_is_stored() || self.bug(Bug::SuspectsBeforeStored);
        waits && !self.leads() && self.status != Status::Recovering
    }

    fn waits(&self) -> bool {
        self.status != Status::Normal
            || self.transfer.is_some()
            || self.sync.lags(self.log.last().op)
    }

    pub(crate) fn next_tick(&self) -> u64 {
        let timing = &self.config.timing;
        let (leads, timers) = (self.leads(), &self.timers);
        let heartbeat = leads.then_some(timers.heartbeat_at);
        let suspect = self.may_suspect().then_some(timers.suspect_at);
        let retry = self.waits().then_some(timers.retry_at);
        let gaps = if self.view_is_stored() {
            self.gaps.next_at(leads, self.is_full(), timing)
        } else {
            None
        };
        [heartbeat, suspect, retry, gaps].into_iter().flatten().min().unwrap_or(u64::MAX)
    }

    pub(crate) fn tick(&mut self, now: Now, out: &mut Out) {
        let timing = self.config.timing;
        self.checkpoints.tick(now);
        if self.leads() && now.micros >= self.timers.heartbeat_at {
            self.timers.heartbeat_at = now.micros + timing.heartbeat;
            // A leader whose disk stalls must not keep the lead.
            let stalled = self.stores.stalled(now.micros.saturating_sub(timing.stall));
            self.sync.prepare_due = !stalled;
        }
        if !self.waits() {
            self.timers.retry_at = now.micros + timing.retry;
        } else if now.micros >= self.timers.retry_at {
            self.timers.retry_at = now.micros + timing.retry;
            self.retry(now, out);
        }
        if self.may_suspect() && now.micros >= self.timers.suspect_at {
            self.timers.suspect_at = now.micros + timing.retry;
            self.suspect(now, out);
        }
    }

    /// Asks again for everything that has not come.
    fn retry(&mut self, now: Now, out: &mut Out) {
        match self.status {
            Status::Recovering => self.retry_recovery(now, out),
            Status::ViewChange => {
                self.broadcast(Body::ViewChangeReq, out);
                self.change.voted = false;
                if self.leader() != self.me {
                    self.send(self.leader(), Body::AskView, out);
                }
            }
            Status::Normal => self.ask_for_synchronised(),
        }
        self.retry_transfer(now, out);
    }
}
