//! From permission to leadership ([Mu] 4.1, Listing 2; catch-up: Listing 3; growing: A.4.4).
//!
//! Each follower goes through: renounce, ask, read heads, promise (minProposal), read slots; then
//! it is brought up to date and confirmed (`accept`). With a majority of heads a number is picked,
//! with a majority of logs the values are chosen. Those that come later join in the same way.
//!
//! Invariant: a value that was decided follows the value that was decided before it. So an accepted
//! value that does not follow what was chosen for the slot before was never decided, and is left.

use alloc::collections::VecDeque;
use alloc::sync::Arc;
use alloc::vec::Vec;

use fabric::{GrantNumber, Place, Status as Ended};
use smr::contract::Output;
use smr::{Entry, Incarnation, Now, OpNumber, ReplicaId, Request, View, Viewstamp};

use crate::disk::StoreChange;
use crate::event::{Memory, Operation, Purpose, Ticket};
use crate::layout::{self, BOARD, EXECUTED, FORGETFUL, HEAD, Head, LIFE, LOG, MIN_PROPOSAL, Slot};
use crate::loss::Short;
use crate::members;
use crate::message::Message;
use crate::permission::{request, seal};
use crate::replica::{Out, Replica};
use crate::reserve::Reserve;

/// What the replication plane does.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum LeadState {
    /// Replays what others write.
    #[default]
    Following,
    /// Collects permissions; no number is picked.
    Gathering,
    /// Reads logs under its number.
    Preparing,
    /// Replicates.
    Leading,
}

/// How far a would-be leader is with a follower.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Stage {
    #[default]
    Idle,
    Renouncing,
    Asking,
    /// Permission is there; minProposal, FUO and the board are being read.
    Heads,
    Granted,
    /// minProposal is being written, slots are being read.
    Slots,
    /// They were read; the write behind the read is not done.
    Checking,
    Read,
    /// It lacks more than its ring holds, and gets it at the pace at which it executes.
    Feeding,
    /// It was brought up to date: every write goes to it.
    Confirmed,
}

/// A leader's book of one follower, itself included.
#[derive(Clone, Debug, Default)]
pub(crate) struct Follower {
    pub(crate) stage: Stage,
    /// Tells this attempt's completions from former ones.
    pub(crate) lease: u16,
    pub(crate) retry_at: u64,
    request: u64,
    pub(crate) grant: GrantNumber,
    min_proposal: Option<View>,
    /// FUO - 1, and then the larger of that and the head.
    decided: OpNumber,
    pub(crate) board: Option<Head>,
    /// Slots above this were read,
    pub(crate) from: OpNumber,
    /// as far as they are whole.
    pub(crate) found: Vec<Slot>,
    /// Everything up to here has been posted to it, before it was confirmed.
    pub(crate) sent: OpNumber,
    /// Everything that goes into its log up to here is there, under this leader's number.
    pub(crate) acked: OpNumber,
    /// Its log head is being read.
    pub(crate) watched: bool,
    /// FUO - 1 as it was told.
    pub(crate) informed: OpNumber,
    /// The last round that it has confirmed.
    pub(crate) round: u64,
    /// The view of the last operation that its board calls executed,
    view: View,
    /// and whether it may have forgotten what it acknowledged.
    pub(crate) forgetful: bool,
    /// Its promise to this number is on its disk.
    pub(crate) promised: bool,
    /// It has this leader's entries up to here on its disk.
    pub(crate) durable: OpNumber,
    /// The durable point as it was told.
    pub(crate) told_durable: OpNumber,
}

impl Follower {
    pub(crate) fn is_confirmed(&self) -> bool {
        self.stage == Stage::Confirmed
    }

    fn at(&self, op: OpNumber) -> Option<&Slot> {
        self.found.get(usize::try_from(op.0.checked_sub(self.from.0 + 1)?).ok()?)
    }
}

/// The replication plane in the leader's role.
#[derive(Debug, Default)]
pub(crate) struct Lead {
    pub(crate) state: LeadState,
    /// propNum.
    pub(crate) number: View,
    /// The first operation of this leader's own.
    pub(crate) start: OpNumber,
    /// What is chosen or proposed and not decided.
    pub(crate) proposed: VecDeque<Arc<Entry>>,
    pub(crate) pending: VecDeque<Request>,
    /// The next attempt.
    pub(crate) retry_at: u64,
    /// When something was last decided, or there was nothing to do.
    pub(crate) progress_at: u64,
    /// Since when a follower's log head is in the way.
    pub(crate) blocked_at: Option<u64>,
    /// It got nowhere and leaves the lead to others until `retry_at`,
    pub(crate) is_resigned: bool,
    /// for the so-manieth time.
    pub(crate) failures: u32,
    /// The members before and after the change that this attempt makes.
    pub(crate) change: Option<(u16, u16)>,
    /// The members that the log of a majority named when it was read last.
    pub(crate) hint: Option<u16>,
    /// Whose majorities are needed.
    pub(crate) configs: Vec<u16>,
    pub(crate) short: Option<Short>,
    /// Who has asked to be brought back since this attempt began: until somebody leads, nobody is
    /// granted its log.
    pub(crate) without_memory: u16,
    /// What is kept for a replica that fetches a checkpoint,
    pub(crate) reserve: Option<Reserve>,
    /// and not before this time.
    pub(crate) reserve_at: u64,
    /// Permission requests made.
    asked: u32,
}

impl<M: Memory> Replica<M> {
    pub(crate) fn begin_attempt(&mut self, now: Now, out: &mut Out) {
        self.lead.state = LeadState::Gathering;
        self.lead.configs = alloc::vec![self.members(), self.next_members()];
        self.lead.without_memory = 0;
        self.ask_permissions(now, out);
    }

    /// Asks those that have not been asked, or whose answer is overdue. A replica without a
    /// heartbeat may well answer: it cannot lead, which is another matter.
    pub(crate) fn ask_permissions(&mut self, now: Now, out: &mut Out) {
        for id in self.replicas() {
            let follower = &mut self.followers[id.index()];
            let waits = matches!(follower.stage, Stage::Idle | Stage::Asking);
            if !waits || now.micros < follower.retry_at {
                continue;
            }
            let lease = follower.lease.wrapping_add(1);
            *follower = Follower { lease, stage: Stage::Renouncing, ..Follower::default() };
            self.post(Purpose::Renounce, id, 0, Operation::Renounce { owner: id }, out);
        }
    }

    /// A step with a follower has ended.
    pub(crate) fn on_step(
        &mut self,
        now: Now,
        ticket: Ticket,
        status: Ended,
        words: &[u64],
        out: &mut Out,
    ) {
        let peer = ticket.peer;
        #[cfg(feature = "planted-bugs")]
        let status = match ticket.purpose {
            Purpose::Promise | Purpose::Accept | Purpose::Inform | Purpose::Confirm
                if self.bug(crate::Bug::RefusalIgnored) && status == Ended::Refused =>
            {
                Ended::Ok
            }
            _ => status,
        };
        if status != Ended::Ok {
            return self.lose(now, peer, status, out);
        }
        match ticket.purpose {
            Purpose::Renounce => self.ask(now, peer, out),
            Purpose::LogHead => {
                let follower = &mut self.followers[peer.index()];
                follower.min_proposal = Some(View(words[0]));
                follower.decided = follower.decided.max(OpNumber(words[1].saturating_sub(1)));
                self.on_heads(now, peer, out);
            }
            Purpose::BoardHead => self.on_board(now, peer, words, out),
            Purpose::Promise => self.on_promised(now, peer, out),
            Purpose::Slots => self.on_slots(peer, OpNumber(ticket.argument), words, out),
            Purpose::Accept => self.on_accepted(now, peer, OpNumber(ticket.argument), out),
            Purpose::Head => self.on_head(now, peer, Head::unpack(words[0]), out),
            Purpose::Confirm => self.on_confirmed(now, peer, ticket.argument, out),
            _ => {}
        }
    }

    fn ask(&mut self, now: Now, peer: ReplicaId, out: &mut Out) {
        self.lead.asked += 1;
        let request = request(self.config.identity.incarnation.0, self.lead.asked);
        let follower = &mut self.followers[peer.index()];
        follower.stage = Stage::Asking;
        follower.request = request;
        follower.retry_at = now.micros + 5 * self.config.timing.retry;
        let word = layout::request_of(self.me);
        self.write_board(Purpose::Request, peer, word, &[request], out);
    }

    /// Looks for acknowledgements of grants.
    pub(crate) fn collect_grants(&mut self, out: &mut Out) {
        for id in self.replicas() {
            if self.followers[id.index()].stage != Stage::Asking {
                continue;
            }
            let mut ack = [0; 2];
            self.memory.load(BOARD, layout::ack_of(id), &mut ack);
            let follower = &mut self.followers[id.index()];
            let grant = GrantNumber(ack[0]);
            if ack[0] == 0 || seal(follower.request, grant) != ack[1] {
                continue;
            }
            follower.grant = grant;
            follower.stage = Stage::Heads;
            // The grant is in force: nobody else writes this log from here on.
            let from = Place { process: id, region: LOG, offset: MIN_PROPOSAL };
            self.post(Purpose::LogHead, id, 0, Operation::Read { from, words: 2 }, out);
            self.read_board(id, out);
        }
    }

    fn read_board(&self, peer: ReplicaId, out: &mut Out) {
        let from = Place { process: peer, region: BOARD, offset: 0 };
        let words = layout::BOARD_HEAD;
        self.post(Purpose::BoardHead, peer, 0, Operation::Read { from, words }, out);
    }

    fn on_board(&mut self, now: Now, peer: ReplicaId, words: &[u64], out: &mut Out) {
        let lease = self.followers[peer.index()].lease;
        // Lives spread with the quorum: who counts on a former life's memory is told so.
        for id in self.replicas() {
            let life = Incarnation(words[layout::known_of(id) as usize]);
            self.meet(now, id, life, out);
        }
        if !self.meet(now, peer, Incarnation(words[LIFE as usize]), out) {
            return self.lose(now, peer, Ended::Gone, out);
        }
        let view = View(words[EXECUTED as usize]);
        let seal = Self::head_seal(view, words[HEAD as usize]);
        if self.is_durable() && words[EXECUTED as usize + 1] != seal {
            return self.read_board(peer, out); // of two moments
        }
        let follower = &mut self.followers[peer.index()];
        if follower.lease == lease {
            let head = Head::unpack(words[HEAD as usize]);
            follower.board = Some(head);
            follower.view = view;
            follower.forgetful = words[FORGETFUL as usize] != 0;
            follower.decided = follower.decided.max(head.head);
            self.peers[peer.index()].head = head;
            self.on_heads(now, peer, out);
        }
    }

    fn on_heads(&mut self, now: Now, peer: ReplicaId, out: &mut Out) {
        let follower = &self.followers[peer.index()];
        let (Some(min_proposal), Some(board)) = (follower.min_proposal, follower.board) else {
            return;
        };
        let is_ahead = follower.decided > self.executed.op && !self.is_durable();
        if is_ahead && board.base > self.executed.op {
            return self.fall_behind(now, peer, board.base, out);
        }
        if board.head < self.recent.base() {
            return self.leave_behind(now, peer, out);
        }
        self.followers[peer.index()].stage = Stage::Granted;
        match self.lead.state {
            LeadState::Following => unreachable!("its completions are of a former lease"),
            LeadState::Gathering => self.try_number(now, out),
            // Somebody else has been here with a higher number.
            _ if min_proposal > self.lead.number => self.abort(now, out),
            _ => self.promise(peer, out),
        }
    }

    fn has(&self, stage: Stage) -> impl Iterator<Item = ReplicaId> {
        self.replicas().filter(move |id| self.followers[id.index()].stage == stage)
    }

    /// Picks a number with a majority, this replica among it (Listing 2, prepare phase).
    fn try_number(&mut self, now: Now, out: &mut Out) {
        let granted: Vec<ReplicaId> = self.has(Stage::Granted).collect();
        if !self.is_quorum(members::set(&granted)) || !granted.contains(&self.me) {
            return;
        }
        let seen = granted.iter().filter_map(|id| self.followers[id.index()].min_proposal).max();
        let above = seen.unwrap_or_default().max(self.view);
        let life = self.config.identity.incarnation.0;
        self.view = layout::next_number(above, self.next_members(), life, self.me);
        self.lead.number = self.view;
        self.lead.state = LeadState::Preparing;
        if self.is_durable() {
            self.store_batch(now, StoreChange::default(), out);
        }
        for id in granted {
            self.promise(id, out);
        }
    }

    /// Raises minProposal, then reads the slots from where this replica or the follower is.
    fn promise(&mut self, peer: ReplicaId, out: &mut Out) {
        self.write_log(Purpose::Promise, peer, MIN_PROPOSAL, self.lead.number.0, out);
        let executed = self.executed.op;
        let follower = &mut self.followers[peer.index()];
        follower.stage = Stage::Slots;
        follower.from = follower.board.expect("read before").head.min(executed);
        follower.found.clear();
        self.read_slots(peer, out);
    }

    /// Reads the next slots, with a write behind: reading needs no permission, and slots that were
    /// read after another leader was granted the log are another leader's. False if the whole ring
    /// has been read.
    fn read_slots(&mut self, peer: ReplicaId, out: &mut Out) -> bool {
        let limits = *self.limits();
        let follower = &self.followers[peer.index()];
        let read = follower.found.len() as u64;
        let next = OpNumber(follower.from.0 + read + 1);
        let slots = u64::from(limits.slots);
        let before_wrap = slots - next.0 % slots;
        let count = u64::from(limits.read_slots).min(before_wrap).min(slots - read);
        if count == 0 {
            return false;
        }
        let from = Place { process: peer, region: LOG, offset: layout::offset(&limits, next) };
        let words = count as u32 * limits.slot_words;
        self.post(Purpose::Slots, peer, next.0, Operation::Read { from, words }, out);
        self.write_log(Purpose::Promise, peer, MIN_PROPOSAL, self.lead.number.0, out);
        true
    }

    fn on_slots(&mut self, peer: ReplicaId, first: OpNumber, words: &[u64], out: &mut Out) {
        let size = self.limits().slot_words as usize;
        let mut ended = false;
        for (op, words) in (first.0..).map(OpNumber).zip(words.chunks_exact(size)) {
            let Some(slot) = self.parse(op, words) else {
                ended = true;
                break;
            };
            self.followers[peer.index()].found.push(slot);
        }
        if ended || !self.read_slots(peer, out) {
            self.followers[peer.index()].stage = Stage::Checking;
        }
    }

    /// A write of minProposal is done: what was read before it was read under the grant.
    fn on_promised(&mut self, now: Now, peer: ReplicaId, out: &mut Out) {
        let follower = &mut self.followers[peer.index()];
        if follower.stage != Stage::Checking {
            return;
        }
        follower.stage = Stage::Read;
        let end = follower.from.0 + follower.found.len() as u64;
        let (decided, base) = (follower.decided, follower.board.expect("read before").base);
        if !self.is_durable() && decided > self.executed.op && decided.0 > end {
            // Its slots were used again since.
            return self.fall_behind(now, peer, base.max(self.executed.op.next()), out);
        }
        match self.lead.state {
            LeadState::Preparing => self.try_choose(now, out),
            // In `lazy` it may have been lost.
            _ if decided > self.recent.last().op && !self.is_lazy() => self.abort(now, out),
            _ => {
                self.confirm(now, peer, out);
                self.propose(now, out);
            }
        }
    }

    /// Chooses the values of all slots with a majority, and leads.
    pub(crate) fn try_choose(&mut self, now: Now, out: &mut Out) {
        let promised = |id: &ReplicaId| self.has_promised(*id);
        let all: Vec<ReplicaId> = self.has(Stage::Read).filter(promised).collect();
        let is_known = |id: &&ReplicaId| !self.is_durable() || self.log_of(**id).is_some();
        let read: Vec<ReplicaId> = all.iter().filter(is_known).copied().collect();
        let set = members::set(&read);
        self.lead.configs = alloc::vec![self.members()];
        if !self.is_quorum(set) || !read.contains(&self.me) {
            // Where it matters that a log cannot be read, another replica should lead.
            let is_behind = self.is_quorum(members::set(&all));
            let unknown = all.into_iter().find(|id| !read.contains(id));
            if let Some(source) = unknown.filter(|_| is_behind) {
                self.fall_behind(now, source, self.executed.op.next(), out);
            }
            return;
        }
        let (chosen, decided) = match self.choose(&read) {
            Ok(chosen) => chosen,
            Err(newer) => {
                self.abort(now, out);
                return self.go_back(newer, out);
            }
        };
        if !self.settle_members(&chosen, decided) {
            return self.abort(now, out);
        }
        let heard = set | self.lead.without_memory;
        let is_full = chosen.len() >= self.limits().slots as usize && self.some_are_unread(heard);
        if is_full || !self.is_quorum(set) || !self.may_rest_on(now, &read) {
            return; // others may come
        }
        self.adopt(now, chosen, decided, out);
        self.lead.state = LeadState::Leading;
        self.followed = self.lead.number;
        self.lead.start = self.recent.last().op.next();
        self.lead.blocked_at = None;
        self.lead.progress_at = now.micros;
        self.view_changed_at = now.micros;
        let confirmed: Vec<ReplicaId> = self.has(Stage::Read).collect();
        for id in confirmed {
            if self.lead.state == LeadState::Leading {
                self.confirm(now, id, out);
            }
        }
        if self.lead.state == LeadState::Leading {
            self.propose(now, out);
        }
    }

    /// The slots above what was executed, and how far they are decided; or the view of a log that
    /// shows that this replica's is lost.
    fn choose(&self, read: &[ReplicaId]) -> Result<(Vec<Slot>, OpNumber), View> {
        #[cfg(feature = "planted-bugs")]
        let only = [self.me];
        #[cfg(feature = "planted-bugs")]
        let read = if self.bug(crate::Bug::PrepareSkipped) { &only[..] } else { read };
        if self.is_durable() { self.choose_log(read) } else { Ok(self.choose_values(read)) }
    }

    /// Executes what is decided of the chosen slots, and makes the others its own proposals.
    fn adopt(&mut self, now: Now, chosen: Vec<Slot>, decided: OpNumber, out: &mut Out) {
        let entries: Vec<Arc<Entry>> = chosen.iter().map(|slot| Arc::new(slot.entry())).collect();
        if self.is_durable() {
            self.hold(now, entries.clone(), out);
        }
        for (slot, entry) in chosen.into_iter().zip(entries) {
            if entry.viewstamp.op <= decided {
                self.recent.push(slot);
                self.execute(entry, out);
            } else {
                self.recent.push(slot.renumbered(self.lead.number));
                self.lead.proposed.push_back(entry);
            }
        }
        self.decide(false, out);
    }

    /// In `memory`: what the follower that is furthest has decided (Listing 3), and then slot by
    /// slot the accepted value with the highest number.
    fn choose_values(&self, read: &[ReplicaId]) -> (Vec<Slot>, OpNumber) {
        let decided = |id: &&ReplicaId| self.followers[id.index()].decided;
        let furthest = *read.iter().max_by_key(decided).expect("a majority");
        let decided = self.followers[furthest.index()].decided.max(self.executed.op);
        let slot = |op| self.followers[furthest.index()].at(OpNumber(op)).expect("it was read");
        let mut chosen: Vec<Slot> =
            (self.executed.op.0 + 1..=decided.0).map(|op| slot(op).clone()).collect();
        loop {
            let last = chosen.last().map_or(self.executed, Slot::viewstamp);
            let Some(slot) = self.adopted(read, last) else { return (chosen, decided) };
            chosen.push(slot);
        }
    }

    /// The accepted value of the next slot with the highest number (Listing 2: adoption).
    fn adopted(&self, read: &[ReplicaId], last: Viewstamp) -> Option<Slot> {
        let found = read.iter().filter_map(|id| self.followers[id.index()].at(last.op.next()));
        let mut follows = found.filter(|slot| slot.previous() == last);
        #[cfg(feature = "planted-bugs")]
        if self.bug(crate::Bug::AdoptNothing) {
            return None;
        }
        #[cfg(feature = "planted-bugs")]
        if self.bug(crate::Bug::AdoptLowest) {
            return follows.min_by_key(|slot| slot.number()).cloned();
        }
        let first = follows.next()?;
        let highest = |best: &'_ Slot, slot: &'_ Slot| slot.number() > best.number();
        let best = follows.fold(first, |best, slot| if highest(best, slot) { slot } else { best });
        Some(best.clone())
    }

    /// In `sync` and `lazy`: the log that ends with the highest viewstamp. Numbers of slots are not
    /// on disk; but nothing is decided before its leader's own first entry is on a majority's, so
    /// that a log with a higher view holds all that was decided in lower ones.
    fn choose_log(&self, read: &[ReplicaId]) -> Result<(Vec<Slot>, OpNumber), View> {
        let logs = read.iter().filter_map(|&id| self.log_of(id));
        let (tip, run) = logs.max_by_key(|(tip, run)| (*tip, run.len())).expect("a majority");
        let executed = self.executed;
        if tip <= executed {
            return Ok((Vec::new(), executed.op));
        }
        let above = executed.op.next();
        let follows = match run.first() {
            None => false,
            Some(first) if first.viewstamp().op == above => first.previous() == executed,
            Some(_) => run.iter().any(|slot| slot.viewstamp() == executed),
        };
        if !follows {
            return Err(tip.view);
        }
        let mut chosen: Vec<Slot> =
            run.iter().filter(|slot| slot.viewstamp().op >= above).cloned().collect();
        let claims = chosen.iter().map(Slot::decided).max().unwrap_or_default();
        let end = chosen.last().map_or(executed.op, |slot| slot.viewstamp().op);
        let decided = claims.min(end).max(executed.op);
        self.drop_leftovers(&mut chosen, decided, read);
        Ok((chosen, decided))
    }

    /// The slot of this entry in the log of a follower, as it was read.
    pub(crate) fn slot_read(&self, id: ReplicaId, at: Viewstamp) -> Option<&Slot> {
        self.log_of(id)?.1.iter().find(|slot| slot.viewstamp() == at)
    }

    /// The end of a follower's log, and its slots that were read and are a part of it: they go on
    /// from its log head, or lead to it. None if its end cannot be known: the slots below its head
    /// that this replica lacks are not there any more, and what is above was not read.
    fn log_of(&self, id: ReplicaId) -> Option<(Viewstamp, &[Slot])> {
        let follower = &self.followers[id.index()];
        let head = Viewstamp::new(follower.view, follower.board.expect("read before").head);
        let found = &follower.found[..];
        let breaks = found.windows(2).position(|pair| pair[1].previous() != pair[0].viewstamp());
        let run = &found[..breaks.map_or(found.len(), |index| index + 1)];
        if head.op > follower.from {
            let leads_there = run.iter().any(|slot| slot.viewstamp() == head);
            return run.last().filter(|_| leads_there).map(|last| (last.viewstamp(), run));
        }
        match (run.first(), run.last()) {
            (Some(first), Some(last)) if first.previous() == head => Some((last.viewstamp(), run)),
            _ => Some((head, &[])),
        }
    }

    /// This replica cannot lead before it has fetched what a follower executed and no log holds.
    fn fall_behind(&mut self, now: Now, source: ReplicaId, above: OpNumber, out: &mut Out) {
        self.abort(now, out);
        self.start_transfer(now, source, above, out);
    }

    /// A follower needs what this leader does not have any more: it must fetch a checkpoint.
    pub(crate) fn leave_behind(&mut self, now: Now, peer: ReplicaId, out: &mut Out) {
        let source = self.checkpoint_source(peer);
        let above = self.worth_fetching();
        self.send(peer, Message::NeedState { above, source }, out);
        self.reserve(now, peer, above);
        self.drop_follower(now, peer, 5, out);
    }

    /// A follower's memory cannot be written or read.
    fn lose(&mut self, now: Now, peer: ReplicaId, status: Ended, out: &mut Out) {
        // A refusal comes from a memory that answers: another leader was granted it.
        if status == Ended::Gone {
            self.unreachable(peer);
        }
        let before = self.lead.state;
        self.drop_follower(now, peer, 1, out);
        if status == Ended::Refused && before != self.lead.state {
            self.yield_lead(now);
        }
    }

    /// Goes on without a follower, if a majority is left.
    pub(crate) fn drop_follower(&mut self, now: Now, peer: ReplicaId, waits: u64, out: &mut Out) {
        let follower = &mut self.followers[peer.index()];
        let lease = follower.lease.wrapping_add(1);
        let retry_at = now.micros + waits * self.config.timing.retry;
        *follower = Follower { lease, retry_at, ..Follower::default() };
        let confirmed: Vec<ReplicaId> = self.has(Stage::Confirmed).collect();
        let is_short =
            self.lead.state == LeadState::Leading && !self.is_quorum(members::set(&confirmed));
        if is_short || self.lead.state != LeadState::Following && peer == self.me {
            self.abort(now, out);
        }
    }

    /// A replica lives anew: what its former life's memory holds does not count any more.
    pub(crate) fn forget_life(&mut self, now: Now, peer: ReplicaId, out: &mut Out) {
        self.suspect(peer);
        self.rounds.forget(peer);
        if self.followers[peer.index()].stage != Stage::Idle {
            self.drop_follower(now, peer, 0, out);
        }
    }

    /// Gives up the attempt, or the lead (Listing 2: abort).
    pub(crate) fn abort(&mut self, now: Now, out: &mut Out) {
        let state = core::mem::take(&mut self.lead.state);
        if state == LeadState::Following {
            return;
        }
        for id in self.replicas() {
            if self.followers[id.index()].grant > GrantNumber(0) {
                // So that the owner can clear up before it grants its log to this replica again.
                self.post(Purpose::Renounce, id, 0, Operation::Renounce { owner: id }, out);
            }
            let follower = &mut self.followers[id.index()];
            let lease = follower.lease.wrapping_add(1);
            *follower = Follower { lease, ..Follower::default() };
        }
        self.lead.pending.clear();
        self.lead.proposed.clear();
        self.lead.configs.clear();
        self.lead.change = None;
        self.lead.reserve = None;
        self.rounds.clear();
        self.recent.truncate(self.executed.op);
        // The lower id goes first, should two fight.
        let turns = 1 + u64::from(self.me.0);
        self.lead.retry_at = now.micros + turns * self.config.timing.retry;
        if self.published.head < self.executed.op {
            // What was decided without the own log's word.
            self.published = Head { head: self.executed.op, base: self.executed.op };
        }
        self.publish(out);
        self.replay.forget(self.executed.op);
        if state == LeadState::Leading {
            out.push(Output::Deposed);
        }
    }
}
