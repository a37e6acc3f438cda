//! Replication in the common case: one write per follower ([Mu] 4.2), and what keeps it going:
//! followers brought up to date (Listing 4), log recycling (5.3), batches and several outstanding
//! proposals (7.4).
//!
//! Invariant: a follower is confirmed once everything up to the leader's last proposal has been
//! posted to it; from then on every write goes to it, in order.

use alloc::sync::Arc;
use alloc::vec::Vec;

use fabric::Place;
use smr::{Content, Durability, Entry, MAX_REPLICAS, Now, OpNumber, ReplicaId, Request, Viewstamp};

use crate::attempt::{LeadState, Stage};
use crate::event::{Memory, Operation, Purpose};
use crate::layout::{self, BOARD, DECIDED, DURABLE_POINT, FIRST_UNDECIDED, HEAD, HEADER};
use crate::layout::{Head, LOG, Slot};
use crate::replica::{Out, Replica};

impl<M: Memory> Replica<M> {
    pub(crate) fn on_request(&mut self, request: Request) {
        if self.lead.state != LeadState::Leading || request.body.len() > self.limits().body_bytes()
        {
            self.dropped += 1;
            return;
        }
        self.lead.pending.push_back(request);
    }

    /// Proposes what may be proposed.
    pub(crate) fn propose(&mut self, now: Now, out: &mut Out) {
        while self.lead.state == LeadState::Leading {
            let last = self.recent.last();
            let outstanding = last.op.0 - self.executed.op.0;
            let first = last.op.next() == self.lead.start;
            // What a leader adopts may be more than it would propose itself.
            let is_full = outstanding >= self.limits().outstanding && !first;
            if is_full || !first && self.lead.pending.is_empty() {
                self.lead.blocked_at = None;
                return;
            }
            if !first && (self.disks_lag() || self.must_keep()) {
                return; // memory stays bounded
            }
            if !self.may_reuse(last.op.next()) {
                self.lead.blocked_at.get_or_insert(now.micros);
                return;
            }
            self.lead.blocked_at = None;
            let content = if first {
                Content::ViewStart
            } else {
                Content::Batch { unix_ms: now.unix_ms, requests: self.batch() }
            };
            if outstanding == 0 {
                self.lead.progress_at = now.micros;
            }
            self.propose_next(now, last, content, out);
        }
    }

    /// Whether so much is not durable, here or anywhere, that more would only fill the memory.
    pub(crate) fn disks_lag(&self) -> bool {
        let most = u64::from(self.limits().kept / 2);
        let lag = self.recent.last().op.0 - self.stable.op.0;
        self.is_lazy() && (lag >= most || self.disk_is_full())
    }

    fn propose_next(&mut self, now: Now, previous: Viewstamp, content: Content, out: &mut Out) {
        let viewstamp = Viewstamp::new(self.lead.number, previous.op.next());
        let commit = self.executed.op;
        let durable = if self.is_durable() { self.stable } else { Viewstamp::default() };
        let entry = Entry { viewstamp, previous, commit, durable, content };
        let limits = *self.limits();
        let slot = Slot::new(&limits, self.lead.number, &entry, &mut self.space);
        for id in self.replicas().filter(|id| self.followers[id.index()].is_confirmed()) {
            self.write_slot(id, viewstamp.op, &slot, out);
        }
        let dropped = self.recent.push(slot);
        self.space.take_back(dropped);
        let entry = Arc::new(entry);
        self.lead.proposed.push_back(entry.clone());
        if self.is_durable() {
            self.hold(now, alloc::vec![entry], out);
        }
    }

    /// As many requests as fit a slot.
    fn batch(&mut self) -> Vec<Request> {
        let room = self.limits().slot_words as usize * 8 - layout::OVERHEAD;
        let size = |request: &Request| Request::OVERHEAD + request.body.len();
        let mut used = 0;
        let fits = |request: &&Request| {
            used += size(request);
            used <= room
        };
        let count = self.lead.pending.iter().take(self.limits().batch).take_while(fits).count();
        self.lead.pending.drain(..count).collect()
    }

    fn write_slot(&self, to: ReplicaId, op: OpNumber, slot: &Slot, out: &mut Out) {
        let under = self.followers[to.index()].grant;
        let place = Place { process: to, region: LOG, offset: layout::offset(self.limits(), op) };
        let next = layout::offset(self.limits(), op.next());
        let operation =
            Operation::WriteSlot { to: place, under, words: slot.words().clone(), next };
        self.post(Purpose::Accept, to, op.0, operation, out);
    }

    /// Whether every confirmed follower has executed what the slot of this operation holds ([Mu]
    /// 5.3: minHead), and says so to whoever leads next.
    fn may_reuse(&self, op: OpNumber) -> bool {
        #[cfg(feature = "planted-bugs")]
        if self.bug(crate::Bug::HeadsIgnored) {
            return true;
        }
        op.0 <= self.slowest().1.0 + u64::from(self.limits().slots)
    }

    /// The confirmed follower with the lowest log head.
    fn slowest(&self) -> (ReplicaId, OpNumber) {
        let head = |id: ReplicaId| match id == self.me {
            true => self.published.head,
            false => self.peers[id.index()].head.head,
        };
        let confirmed = self.replicas().filter(|id| self.followers[id.index()].is_confirmed());
        confirmed.map(|id| (id, head(id))).min_by_key(|&(_, head)| head).expect("a majority")
    }

    /// A log head in the way is read more often than the background plane would.
    pub(crate) fn watch_heads(&mut self, out: &mut Out) {
        if self.lead.state != LeadState::Leading {
            return;
        }
        let slowest = self.lead.blocked_at.map(|_| self.slowest().0);
        for id in self.replicas().filter(|&id| id != self.me) {
            let follower = &mut self.followers[id.index()];
            if !follower.watched && (slowest == Some(id) || follower.stage == Stage::Feeding) {
                follower.watched = true;
                let from = Place { process: id, region: BOARD, offset: HEAD };
                self.post(Purpose::Head, id, 0, Operation::Read { from, words: 1 }, out);
            }
        }
    }

    pub(crate) fn on_head(&mut self, now: Now, peer: ReplicaId, head: Head, out: &mut Out) {
        self.followers[peer.index()].watched = false;
        self.peers[peer.index()].head = head;
        self.check_head(now, peer, head.head, out);
        if self.followers[peer.index()].stage == Stage::Feeding {
            self.feed(now, peer, head.head, out);
        }
        if self.lead.state == LeadState::Leading {
            self.propose(now, out);
        }
    }

    /// The last operation that fits the ring of a follower that has executed up to `head`.
    fn reach(&self, head: OpNumber) -> OpNumber {
        self.recent.last().op.min(OpNumber(head.0 + u64::from(self.limits().slots)))
    }

    /// Goes on with a follower that lacked more than its ring holds.
    fn feed(&mut self, now: Now, peer: ReplicaId, head: OpNumber, out: &mut Out) {
        let sent = self.followers[peer.index()].sent;
        if sent < self.recent.base() {
            return self.leave_behind(now, peer, out);
        }
        let reach = self.reach(head).max(sent);
        for op in (sent.0 + 1..=reach.0).map(OpNumber) {
            let slot = self.recent.get(op).expect("above the base");
            self.write_slot(peer, op, &slot.renumbered(self.lead.number), out);
        }
        self.sent(peer, reach, out);
    }

    /// Confirms a follower that has been sent everything; another is told how far it may execute.
    fn sent(&mut self, peer: ReplicaId, sent: OpNumber, out: &mut Out) {
        let decided = self.executed.op.min(sent);
        let is_all = sent == self.recent.last().op;
        let follower = &mut self.followers[peer.index()];
        follower.sent = sent;
        follower.stage = if is_all { Stage::Confirmed } else { Stage::Feeding };
        self.fed(peer, sent, is_all);
        let follower = &self.followers[peer.index()];
        if !is_all && follower.informed < decided {
            self.tell_decided(peer, decided, out);
        }
    }

    /// Writes FUO. In `sync` and `lazy` it is bound to the leader's number and the grant: what was
    /// called decided before may be another log's.
    fn tell_decided(&mut self, peer: ReplicaId, decided: OpNumber, out: &mut Out) {
        self.followers[peer.index()].informed = decided;
        if self.is_durable() {
            self.write_pair(peer, DECIDED, decided, out);
        } else {
            self.write_log(Purpose::Inform, peer, FIRST_UNDECIDED, decided.0 + 1, out);
        }
    }

    fn write_pair(&self, to: ReplicaId, offset: u32, op: OpNumber, out: &mut Out) {
        let under = self.followers[to.index()].grant;
        let words = layout::sealed(self.lead.number, layout::under(offset, under), op);
        let place = Place { process: to, region: LOG, offset };
        let operation = Operation::Write { to: place, under, words, count: 2 };
        self.post(Purpose::Inform, to, 0, operation, out);
    }

    /// Brings a follower up to date (Listing 4), as far as its ring reaches, and confirms it.
    pub(crate) fn confirm(&mut self, now: Now, peer: ReplicaId, out: &mut Out) {
        let from = self.followers[peer.index()].from;
        if from < self.recent.base() {
            return self.leave_behind(now, peer, out);
        }
        let found = core::mem::take(&mut self.followers[peer.index()].found);
        let mut found = found.iter();
        let reach = self.reach(self.followers[peer.index()].board.expect("read before").head);
        for op in (from.0 + 1..=reach.0).map(OpNumber) {
            let slot = self.recent.get(op).expect("above the base").clone();
            match found.next() {
                Some(same) if same.value() == slot.value() => {
                    if op > self.executed.op {
                        self.renumber(peer, op, same, out);
                    }
                }
                _ => self.write_slot(peer, op, &slot.renumbered(self.lead.number), out),
            }
        }
        self.followers[peer.index()].acked = from;
        self.sent(peer, reach.max(from), out);
    }

    /// Writes the leader's number to a value that is there.
    fn renumber(&self, to: ReplicaId, op: OpNumber, slot: &Slot, out: &mut Out) {
        let (word, words) = slot.renumbering(self.lead.number);
        let offset = layout::offset(self.limits(), op) + word;
        let under = self.followers[to.index()].grant;
        let place = Place { process: to, region: LOG, offset };
        let operation = Operation::Write { to: place, under, words, count: 2 };
        self.post(Purpose::Accept, to, op.0, operation, out);
    }

    /// A write is done: with a majority, what it wrote is decided.
    pub(crate) fn on_accepted(&mut self, now: Now, peer: ReplicaId, op: OpNumber, out: &mut Out) {
        let follower = &mut self.followers[peer.index()];
        follower.acked = follower.acked.max(op);
        let before = self.executed.op;
        self.advance(now, out);
        if peer == self.me && self.executed.op == before {
            self.publish(out);
        }
        if peer == self.me || self.executed.op > before {
            self.propose(now, out);
        }
    }

    /// Executes what is decided, and learns what is durable.
    pub(crate) fn advance(&mut self, now: Now, out: &mut Out) {
        if self.lead.state != LeadState::Leading {
            return;
        }
        let decided = self.decidable();
        if decided > self.executed.op.0 {
            while self.executed.op.0 < decided {
                let entry = self.lead.proposed.pop_front().expect("proposed and not decided");
                self.execute(entry, out);
            }
            // Answers name this leader's view, of which nothing is decided before its first entry.
            self.decide(self.executed.op >= self.lead.start, out);
            self.lead.progress_at = now.micros;
            if self.executed.op >= self.lead.start {
                self.lead.failures = 0;
                self.remember(out); // how the views before ended is final
            }
            self.publish(out);
        }
        if self.is_lazy() {
            let durable = OpNumber(self.quorum_value(|id| self.durable_at(id)));
            self.durable_known = self.durable_known.max(durable.min(self.executed.op));
            self.settle(out);
        }
        self.members_settled(now, out);
    }

    /// How far the log is decided: written at a majority; and in `sync` on disk there. In `lazy` a
    /// replica counts once the leader's first entry is on its disk: then its log is this leader's,
    /// and how the views before ended is final. Where the ring has no room for a first entry, what
    /// was adopted is decided when nothing else is left.
    fn decidable(&self) -> u64 {
        #[cfg(feature = "planted-bugs")]
        if self.bug(crate::Bug::AckBeforeStored) {
            return self.quorum_value(|id| self.acked(id));
        }
        if self.is_only_log() {
            return self.recent.last().op.0;
        }
        match self.config.durability {
            Durability::Memory => self.quorum_value(|id| self.acked(id)),
            Durability::Sync => self.quorum_value(|id| self.acked(id).min(self.durable_at(id))),
            Durability::Lazy => {
                let held = |id| match self.durable_at(id) >= self.lead.start.0 {
                    true => self.acked(id),
                    false => 0,
                };
                self.quorum_value(held)
            }
        }
    }

    /// How far a replica has accepted this leader's slots, if it has promised to.
    pub(crate) fn acked(&self, id: ReplicaId) -> u64 {
        let follower = &self.followers[id.index()];
        let counts = follower.is_confirmed() && self.has_promised(id);
        if counts { follower.acked.0 } else { 0 }
    }

    /// What a majority has reached, of all whose majorities are needed.
    pub(crate) fn quorum_value(&self, value: impl Fn(ReplicaId) -> u64) -> u64 {
        let of = |members: &u16| {
            let mut values = [0; MAX_REPLICAS as usize];
            let mut count = 0;
            for id in self.replicas().filter(|id| members & crate::members::bit(*id) != 0) {
                values[count] = value(id);
                count += 1;
            }
            let values = &mut values[..count];
            values.sort_unstable_by(|a, b| b.cmp(a));
            #[cfg(feature = "planted-bugs")]
            if self.bug(crate::Bug::CommitAtMinority) {
                return values[(count / 2).saturating_sub(1)];
            }
            values[count / 2]
        };
        self.lead.configs.iter().map(of).min().expect("of a leader")
    }

    /// Tells followers, and disks, what is decided when no slot will soon (A.4.3), and leaves
    /// behind who holds up the reuse of slots.
    pub(crate) fn inform(&mut self, now: Now, out: &mut Out) {
        let executed = self.executed.op;
        if self.recent.last().op == executed {
            let me = self.me;
            for id in self.replicas().filter(|&id| id != me) {
                let follower = &self.followers[id.index()];
                if follower.is_confirmed() && follower.informed < executed {
                    self.tell_decided(id, executed, out);
                }
                self.tell_durable(id, out);
            }
            if self.is_durable() && executed == self.lead.start && self.may_reuse(executed.next()) {
                // Only the next entry says on disk that the first is decided: groups that stop
                // again and again, asked for nothing, would leave a ring of first entries.
                let content = Content::Batch { unix_ms: now.unix_ms, requests: Vec::new() };
                self.lead.progress_at = now.micros;
                self.propose_next(now, self.executed, content, out);
            }
        }
        self.reserve_tick(now);
        let patience = self.config.timing.stall / 2;
        let (slowest, head) = self.slowest();
        let others = |id: &ReplicaId| *id != slowest && self.followers[id.index()].is_confirmed();
        let others: Vec<ReplicaId> = self.replicas().filter(others).collect();
        if self.lead.blocked_at.is_some_and(|at| now.micros >= at + patience)
            && self.is_quorum(crate::members::set(&others))
            && slowest != self.me
            && head < executed
        {
            self.drop_follower(now, slowest, 5, out);
            self.propose(now, out);
        }
    }

    /// Tells a follower the durable point when no slot will soon.
    fn tell_durable(&mut self, id: ReplicaId, out: &mut Out) {
        let (lazy, durable) = (self.is_lazy(), self.stable.op);
        let follower = &mut self.followers[id.index()];
        if lazy && follower.is_confirmed() && follower.told_durable < durable {
            follower.told_durable = durable;
            self.write_pair(id, DURABLE_POINT, durable, out);
        }
    }

    /// Whether somebody waits for this leader.
    pub(crate) fn is_busy(&self) -> bool {
        self.recent.last().op > self.executed.op
            || self.lead.blocked_at.is_some()
            || self.rounds.is_busy()
    }
}

const _: () = assert!(layout::OVERHEAD > HEADER * 8, "a batch has a head of its own");
