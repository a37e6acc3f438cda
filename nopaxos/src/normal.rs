//! Normal operation ([NOPaxos] 5.2.1): what the sequencer orders is logged, executed by the leader
//! at once, and replied to by everybody.

use alloc::sync::Arc;
use bytes::Bytes;

use oum::Session;
use smr::contract::Output;
use smr::{Content, Durability, OpNumber, Outcome, Protocol, Viewstamp};

use crate::ahead::Slot;
use crate::bug::Bug;
use crate::event::{Effect, Ordered};
use crate::replica::{Out, Replica, Status};

impl Replica {
    /// A message of the group.
    pub(crate) fn on_ordered(&mut self, session: Session, sequence: u64, payload: Bytes) {
        if session < self.view.session || self.status == Status::Recovering {
            return;
        }
        let ordered = Ordered::decode(payload).ok().map(Arc::new);
        if session == self.view.session && self.status == Status::Normal {
            self.take(sequence, ordered.as_deref());
        } else if let Some(ordered) = ordered {
            self.hold(session, sequence, ordered);
        }
    }

    fn hold(&mut self, session: Session, sequence: u64, ordered: Arc<Ordered>) {
        let kept = self.held.keep((session, sequence), ordered, &self.config.limits);
        self.tally.overflow += u64::from(!kept);
    }

    /// Every replica that reads a payload that is no request has a NO-OP there.
    fn take(&mut self, sequence: u64, ordered: Option<&Ordered>) {
        let Some(slot) = self.slot_of(sequence) else { return };
        if slot <= self.log.last().op {
            self.expected = self.expected.max(sequence.saturating_add(1));
            return;
        }
        self.horizon = self.horizon.max(sequence.saturating_add(1));
        self.expect(sequence);
        if self.place(slot).is_none() || !self.takes(slot) {
            self.tally.overflow += 1;
            return; // as if it had been dropped
        }
        let entry = match ordered {
            None => Some(self.no_op(slot)),
            Some(ordered) if !self.is_of_this_log(ordered) => {
                self.note_stranger(ordered);
                Some(self.no_op(slot))
            }
            Some(ordered) => {
                if ordered.durable {
                    self.raised.insert(slot);
                }
                self.whole_request(slot, ordered)
                    .map(|request| self.request_entry(slot, ordered.unix_ms, request))
            }
        };
        let Some(entry) = entry else {
            return self.expect(sequence.saturating_add(1)); // its body was dropped
        };
        self.fill(slot, entry);
        self.expected = self.expected.max(sequence.saturating_add(1));
    }

    /// Whether a request's client has seen the log of the present view, where that matters. What it
    /// sent before it learned of a loss must not be executed after it. All replicas of a view
    /// decide alike.
    fn is_of_this_log(&self, ordered: &Ordered) -> bool {
        let lazy = self.config.durability == Durability::Lazy && !self.bug(Bug::ExpectsAnyView);
        !lazy || ordered.expected == self.view()
    }

    fn note_stranger(&mut self, ordered: &Ordered) {
        let (crate::event::Content::Whole(request) | crate::event::Content::Digest(request, _)) =
            &ordered.content;
        let has_room = self.strangers.len() < self.config.limits.ahead;
        if self.leads() && (has_room || self.strangers.contains_key(&request.client)) {
            self.strangers.insert(request.client, (request.number, ordered.expected));
        }
    }

    /// Tells clients that expected another view what this log has of theirs, once that is final:
    /// when the view's start is on f + 1 disks.
    pub(crate) fn tell_strangers(&mut self, out: &mut Out) {
        let start = self.lineage.views().last().map_or(OpNumber(0), |&(_, first)| first);
        if self.strangers.is_empty() || !self.leads() || self.durable_point < start {
            return;
        }
        for (client, (number, expected)) in core::mem::take(&mut self.strangers) {
            out.push(Output::WrongView { client, number, expected });
        }
    }

    /// The slot of a message of the view's session, unless it came before the view.
    fn slot_of(&self, sequence: u64) -> Option<OpNumber> {
        let (slot, first) = self.origin;
        Some(OpNumber(slot.0.checked_add(sequence.checked_sub(first)?)?))
    }

    /// All messages before this one have come, or will not.
    pub(crate) fn expect(&mut self, sequence: u64) {
        for missing in self.expected..sequence {
            let Some(slot) = self.slot_of(missing) else { continue };
            if slot <= self.log.last().op {
                continue;
            }
            let Some(index) = self.place(slot).filter(|_| self.takes(slot)) else { return };
            if matches!(self.ahead.get(index), Some(Slot::Unknown)) {
                self.ahead.put(index, Slot::Missing);
                self.gaps.open(slot);
                self.tally.missing += 1;
            }
            self.expected = missing + 1;
        }
    }

    /// DROP-NOTIFICATION.
    pub(crate) fn on_dropped(&mut self, session: Session, first: u64, last: u64) {
        if session == self.view.session && self.status == Status::Normal && first <= last {
            self.horizon = self.horizon.max(last.saturating_add(1));
        }
    }

    /// Takes what came while the view had not started; tells the receiver where to go on.
    pub(crate) fn begin_listening(&mut self, out: &mut Out) {
        let session = self.view.session;
        // The first session ends a view without one; who has recovered in it must be told again.
        let next = if session.0 == 0 { 1 } else { self.next_sequence() };
        self.expected = match self.bug(Bug::SessionKeepsPosition) {
            true => self.expected.max(next),
            false => next,
        };
        self.horizon = self.expected;
        self.origin = (self.log.last().op.next(), self.expected);
        let held = core::mem::take(&mut self.held);
        for ((of, sequence), ordered) in held.into_messages() {
            if of == session && sequence >= self.origin.1 {
                self.take(sequence, Some(&ordered));
            } else if of > session {
                self.hold(of, sequence, ordered);
            }
        }
        let sequence = self.expected;
        out.push(Output::Effect(Effect::Listen { session, sequence }));
    }

    /// Keeps for the next view what this one has received and may not pass on.
    pub(crate) fn stop_listening(&mut self) {
        let (slot, first) = self.origin;
        let above = self.log.last().op.0 + 1;
        let ahead = core::mem::take(&mut self.ahead);
        for (index, known) in ahead.iter().enumerate() {
            let Slot::Request(entry) = known else { continue };
            let Content::Batch { unix_ms, requests } = &entry.content else { continue };
            let Some(request) = requests.first() else { continue };
            let content = crate::event::Content::Whole(request.clone());
            // It is in this view because its client has seen this view's log.
            let (unix_ms, expected) = (*unix_ms, self.view());
            let durable = self.raised.contains(&entry.viewstamp.op);
            let ordered = Ordered { unix_ms, expected, durable, content };
            let sequence = first + (above + index as u64 - slot.0);
            self.hold(self.view.session, sequence, Arc::new(ordered));
        }
    }

    /// The leader executes its log, a follower what is stable; both reply for what their durability
    /// allows.
    pub(crate) fn execute_and_answer(&mut self, out: &mut Out) {
        if self.leads() {
            self.execute(self.log.last().op, out);
        }
        let promised = self.promised();
        while self.answered < promised {
            self.answered = self.answered.next();
            if self.answered <= self.sync_point {
                continue;
            }
            if self.leads() {
                let waits = self.raised.contains(&self.answered);
                if !waits || self.bug(Bug::AnswersBeforeDurable) {
                    out.push(Output::Answer(self.answered));
                }
            } else {
                self.reply(self.answered, out);
            }
        }
        if self.bug(Bug::ReplyBeyondGap) && !self.leads() {
            self.reply_beyond_gap(out);
        }
        if self.bug(Bug::ExecuteBeyondSync) {
            self.execute(self.answered, out);
            let through = self.answered.max(self.sync_point);
            out.push(Output::Commit { through, reply: false });
            out.push(Output::Stable(through));
        }
    }

    /// The durable point has come to `through`: the leader answers what has waited for that.
    pub(crate) fn answer_raised(&mut self, through: OpNumber, out: &mut Out) {
        while let Some(slot) = self.raised.first().copied().filter(|&slot| slot <= through) {
            self.raised.remove(&slot);
            if self.leads() {
                out.push(Output::Answer(slot));
            }
        }
    }

    pub(crate) fn execute(&mut self, through: OpNumber, out: &mut Out) {
        while self.executed < through {
            self.executed = self.executed.next();
            let entry = self.log.get(self.executed).expect("what is not executed is in the log");
            out.push(Output::Execute(entry.clone()));
        }
    }

    /// A follower's REPLY, without a result.
    fn reply(&self, slot: OpNumber, out: &mut Out) {
        let entry = self.log.get(slot).expect("it is above the sync-point");
        self.reply_to(&entry.content, entry.viewstamp, out);
    }

    fn reply_to(&self, content: &Content, position: Viewstamp, out: &mut Out) {
        let Content::Batch { requests, .. } = content else { return };
        for request in requests {
            let reply = smr::Reply {
                client: request.client,
                number: request.number,
                read: false,
                view: self.view(),
                durable: self.durable(),
                outcome: Outcome::Done { position, body: Bytes::new() },
            };
            out.push(Output::Effect(Effect::Reply(self.sign(reply))));
        }
    }

    fn reply_beyond_gap(&self, out: &mut Out) {
        for known in self.ahead.iter() {
            if let Slot::Request(entry) = known {
                self.reply_to(&entry.content, entry.viewstamp, out);
            }
        }
    }
}
