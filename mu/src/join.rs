//! Rejoin of a replica that lost its memory: [Mu] 5.4 fixes the members and lets none come back.
//!
//! 1. It makes its new life known; f + 1 others take note and show it on their boards. From then on
//!    no leader counts the memory of its former life: a would-be leader reads a majority's boards.
//! 2. It asks; a leader confirms its lead by a round that begins then, without the asker's vote,
//!    and names the last operation of its log. All that former lives helped to decide is at or
//!    below, and so it is in the memory of that leader's life.
//! 3. It fetches a checkpoint if the leader's slots do not reach down to it, and grants its log to
//!    that life alone, until it holds what was named. Then it votes like any other.

use smr::contract::{Output, To};
use smr::{Incarnation, Now, OpNumber, ReplicaId, View};

use crate::event::Memory;
use crate::layout;
use crate::members::{bit, is_majority};
use crate::message::Message;
use crate::replica::{Out, Replica};

/// How many retries a leader has to bring a replica back before it asks again.
const PATIENCE: u64 = 20;

#[derive(Debug)]
struct Welcome {
    leader: ReplicaId,
    view: View,
    through: OpNumber,
    until: u64,
}

/// What a replica without memory has reached.
#[derive(Debug)]
pub(crate) struct Recovery {
    /// By replica, a bit: it has noted the new life,
    known_by: u16,
    /// or it has said since the last time of asking that it lost its own memory, too.
    lost: u16,
    is_hopeless: bool,
    /// The highest view that was executed anywhere, as far as is known: it names the members.
    view: View,
    welcome: Option<Welcome>,
    retry_at: u64,
}

impl Recovery {
    pub(crate) fn new(now: Now) -> Recovery {
        Recovery {
            known_by: 0,
            lost: 0,
            is_hopeless: false,
            view: View::default(),
            welcome: None,
            retry_at: now.micros,
        }
    }

    /// The leader that brings this replica back.
    pub(crate) fn leader(&self) -> Option<ReplicaId> {
        self.welcome.as_ref().map(|welcome| welcome.leader)
    }

    /// Whether this is the life of the leader that brings this replica back. A later one may lack
    /// what was named, and the log of this replica with what it has of it is no vote.
    pub(crate) fn is_led_by(&self, replica: ReplicaId, life: Incarnation) -> bool {
        let is_it =
            |welcome: &Welcome| welcome.leader == replica && layout::is_of_life(welcome.view, life);
        self.welcome.as_ref().is_some_and(is_it)
    }

    /// More than f replicas have lost their memory: nobody can say what was decided.
    pub(crate) fn is_hopeless(&self) -> bool {
        self.is_hopeless
    }
}

impl<M: Memory> Replica<M> {
    pub(crate) fn on_message(
        &mut self,
        now: Now,
        from: ReplicaId,
        life: Incarnation,
        message: Message,
        out: &mut Out,
    ) {
        if from == self.me || from.0 >= self.config.replicas || !self.meet(now, from, life, out) {
            self.dropped += 1;
            return;
        }
        match message {
            Message::Join => {
                let (recovering, view) = (self.recovery.is_some(), self.executed.view);
                self.send(from, Message::JoinOk { recovering, view }, out);
            }
            Message::JoinOk { recovering, view } => self.on_join_ok(from, recovering, view),
            Message::Ask => self.on_ask(now, from, out),
            Message::Welcome { view, through, above, source } => {
                self.on_welcome(now, from, view, through, out);
                if self.recovery.as_ref().is_some_and(|r| r.leader() == Some(from)) {
                    self.on_need_state(now, above, source, out);
                }
            }
            Message::NeedState { above, source } => self.on_need_state(now, above, source, out),
            Message::FetchState { position, offset, above } => {
                self.on_fetch_state(now, from, position, offset, above, out);
            }
            Message::StateChunk(chunk) => self.on_state_chunk(now, from, chunk, out),
            Message::StateGone => self.on_state_gone(from),
            Message::Flush => out.push(Output::Flush),
            Message::Recall => self.on_recall(from, out),
            Message::Recalled { view, through } => self.on_recalled(view, through, out),
        }
    }

    fn on_join_ok(&mut self, from: ReplicaId, is_recovering: bool, view: View) {
        let Some(recovery) = &mut self.recovery else { return };
        let bit = bit(from);
        recovery.view = recovery.view.max(view);
        if is_recovering {
            recovery.lost |= bit;
            recovery.known_by &= !bit;
        } else {
            recovery.lost &= !bit;
            recovery.known_by |= bit;
        }
    }

    /// A leader whose ring is full of what it adopted waits for all (`is_only_log`), also for who
    /// has lost its memory: that one is brought back before anything is decided, once the leader's
    /// own log holds what was adopted.
    fn on_ask(&mut self, now: Now, from: ReplicaId, out: &mut Out) {
        self.lead.without_memory |= bit(from);
        if self.is_open() || self.lacks_room() && self.acked(self.me) >= self.recent.last().op.0 {
            self.ask_round(now, from, out);
        }
    }

    fn on_welcome(
        &mut self,
        now: Now,
        leader: ReplicaId,
        view: View,
        through: OpNumber,
        out: &mut Out,
    ) {
        let Some(recovery) = &mut self.recovery else { return };
        if recovery.welcome.as_ref().is_some_and(|welcome| welcome.view >= view) {
            return;
        }
        let until = now.micros + PATIENCE * self.config.timing.retry;
        recovery.welcome = Some(Welcome { leader, view, through, until });
        self.serve_requests(out);
    }

    /// Whether this replica holds what it must.
    pub(crate) fn check_recovered(&mut self, now: Now) {
        let Some(Recovery { welcome: Some(welcome), .. }) = &self.recovery else { return };
        if self.installing() || self.replay.end(self.executed.op) < welcome.through {
            return;
        }
        if self.is_durable() && self.log.last().op < welcome.through {
            return; // the disk has not even been handed it
        }
        // Slots above what was executed are the welcoming leader's, or a later one's.
        if self.executed.op >= welcome.through || self.replay.min_proposal >= welcome.view {
            self.recovery = None;
            self.lead.retry_at = now.micros + self.config.timing.retry;
        }
    }

    pub(crate) fn recovery_tick(&mut self, now: Now, out: &mut Out) {
        let retry = self.config.timing.retry;
        let busy = self.transfer.is_some();
        let view = self.recovery.as_ref().map_or(self.executed.view, |recovery| recovery.view);
        let members = self.named_by(view.max(self.executed.view));
        let Some(recovery) = &mut self.recovery else { return };
        if now.micros < recovery.retry_at {
            return;
        }
        recovery.retry_at = now.micros + retry;
        if recovery.welcome.as_ref().is_some_and(|w| now.micros >= w.until) && !busy {
            recovery.welcome = None;
        }
        let lost = core::mem::take(&mut recovery.lost) | bit(self.me);
        recovery.is_hopeless = !is_majority(members & !lost, members);
        if recovery.welcome.is_none() {
            let is_known = is_majority(recovery.known_by, members);
            out.push(Output::Send(To::Others, Message::Join));
            if is_known {
                out.push(Output::Send(To::Others, Message::Ask));
            }
        }
    }
}
