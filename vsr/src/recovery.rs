//! Recovery of a replica that restarted without its state: durability `memory`, or a new disk.
//!
//! It votes for nothing and acknowledges nothing until f + 1 others know its new life, one of them
//! leads the newest view among theirs, and the log reaches what that leader had when it answered.
//! Then the leader's log holds all that this replica's former lives acknowledged. When more than f
//! replicas are recovering at one moment that can never be: the state is lost, and only an operator
//! can go on (contracts: STATELOST).

use alloc::vec::Vec;

use smr::contract::Role;
use smr::{Incarnation, Now, ReplicaId, View, Viewstamp};

use crate::message::{Message, Standing};
use crate::replica::{Out, Replica};
use crate::storage::Change;

#[derive(Clone, Copy, Debug)]
struct Answer {
    view: View,
    last: Viewstamp,
    standing: Standing,
    life: Incarnation,
    received_at: u64,
    /// The replica was recovering when the newest question was sent: this life of it had said so
    /// before, and says so in answer to that question.
    surely_recovering: bool,
}

/// What a recovering replica has been told.
#[derive(Debug)]
pub(crate) struct Recovery {
    pub(crate) retry_at: u64,
    /// The first question's number and the newest one's.
    attempts: (u64, u64),
    asked_at: u64,
    answers: Vec<Option<Answer>>,
    /// The leader to copy, and how far its log must be copied at least.
    target: Option<(ReplicaId, Viewstamp)>,
}

impl Replica {
    pub(crate) fn start_recovery(&mut self, now: Now, out: &mut Out) {
        self.role = Role::Recovering;
        let first = self.rng.next_u64() >> 1;
        self.recovery = Some(Recovery {
            retry_at: now.micros,
            attempts: (first, first),
            asked_at: now.micros,
            answers: alloc::vec![None; usize::from(self.config.replicas)],
            target: None,
        });
        let base = self.log.base();
        self.store(now, Change { reset: Some(base), ..Change::default() }, out);
        self.recovery_timeout(now, out);
    }

    pub(crate) fn allowed_while_recovering(&self, message: &Message) -> bool {
        #[cfg(feature = "planted-bugs")]
        if self.bug(crate::Bug::VoteWhileRecovering) {
            return true;
        }
        matches!(
            message,
            Message::Recovery { .. }
                | Message::RecoveryOk { .. }
                | Message::CatchUpOk { .. }
                | Message::NeedState { .. }
                | Message::StateChunk(_)
                | Message::StateGone
        )
    }

    pub(crate) fn recovery_timeout(&mut self, now: Now, out: &mut Out) {
        let (retry, quorum) = (self.config.timing.retry, self.quorum());
        let Some(recovery) = &mut self.recovery else { return };
        if now.micros < recovery.retry_at {
            return;
        }
        let sure = |answer: &&Answer| answer.surely_recovering;
        let lost = 1 + recovery.answers.iter().flatten().filter(sure).count();
        // For good: none of them can ever hear from f + 1 that are not.
        if lost >= quorum && recovery.target.is_none() {
            self.role = Role::StateLost;
        }
        recovery.retry_at = now.micros + retry;
        recovery.asked_at = now.micros;
        recovery.attempts.1 += 1;
        for answer in recovery.answers.iter_mut().flatten() {
            answer.surely_recovering = false;
        }
        let attempt = recovery.attempts.1;
        self.broadcast(Message::Recovery { attempt }, out);
        self.assess(now, out);
    }

    pub(crate) fn on_recovery(&mut self, from: ReplicaId, attempt: u64, out: &mut Out) {
        let standing = match self.role {
            Role::Primary => Standing::Primary,
            Role::Backup => Standing::Backup,
            Role::ViewChange => Standing::ViewChange,
            // With a target it needs nobody's vote any more: it only copies.
            Role::Recovering if self.recovery.as_ref().is_some_and(|r| r.target.is_some()) => {
                Standing::ViewChange
            }
            Role::Recovering | Role::StateLost => Standing::Recovering,
        };
        let (view, last, incarnations) = (self.view, self.log.last(), self.incarnations());
        let answer = Message::RecoveryOk { attempt, view, last, standing, incarnations };
        self.send(from, answer, out);
    }

    #[allow(clippy::too_many_arguments)] // a message's fields
    pub(crate) fn on_recovery_ok(
        &mut self,
        now: Now,
        from: ReplicaId,
        attempt: u64,
        view: View,
        last: Viewstamp,
        standing: Standing,
        out: &mut Out,
    ) {
        let Some(recovery) = &mut self.recovery else { return };
        let (first, newest) = recovery.attempts;
        if attempt < first || attempt > newest {
            return;
        }
        let life = self.peers[from.index()].incarnation;
        let before = recovery.answers[from.index()];
        let surely_recovering = standing == Standing::Recovering
            && before.is_some_and(|before| {
                before.standing == standing
                    && before.life == life
                    && (before.surely_recovering
                        || attempt == newest && before.received_at < recovery.asked_at)
            });
        let received_at = now.micros;
        let answer = Answer { view, last, standing, life, received_at, surely_recovering };
        recovery.answers[from.index()] = Some(answer);
        self.assess(now, out);
    }

    /// Decides from the answers whom to copy.
    fn assess(&mut self, now: Now, out: &mut Out) {
        let quorum = self.quorum();
        let Some(recovery) = &mut self.recovery else { return };
        let answers = recovery.answers.iter().enumerate();
        let known = answers.filter_map(|(id, answer)| answer.map(|a| (ReplicaId(id as u8), a)));
        let (mut normal, mut newest) = (0, None::<(ReplicaId, Answer)>);
        for (id, answer) in known {
            match answer.standing {
                Standing::Recovering | Standing::ViewChange => {}
                Standing::Primary | Standing::Backup => {
                    normal += 1;
                    let leads = answer.standing == Standing::Primary;
                    if newest.is_none_or(|(_, best)| {
                        answer.view > best.view || (answer.view == best.view && leads)
                    }) {
                        newest = Some((id, answer));
                    }
                }
            }
        }
        let Some((leader, answer)) = newest else { return };
        if normal < quorum || answer.standing != Standing::Primary {
            return;
        }
        let better = |&(_, last): &(ReplicaId, Viewstamp)| last.view < answer.last.view;
        if recovery.target.as_ref().is_none_or(better) {
            recovery.target = Some((leader, answer.last));
        }
        let view = answer.view;
        if !self.recovery_progress(now, out) {
            self.start_catch_up(now, leader, view, out);
        }
    }

    /// Ends the recovery once the target is reached and stored. True if it has ended.
    pub(crate) fn recovery_progress(&mut self, now: Now, out: &mut Out) -> bool {
        let Some(target) = self.recovery.as_ref().and_then(|recovery| recovery.target) else {
            return false;
        };
        if self.log.last() < target.1 || self.installing() {
            return false;
        }
        self.store(now, Change::default(), out);
        if !self.stores.idle() {
            return false;
        }
        self.recovery = None;
        self.role = Role::ViewChange;
        self.election.due_at = now.micros + self.config.timing.election + self.jitter();
        self.enter_as_backup(now);
        self.acknowledge(out);
        true
    }
}
