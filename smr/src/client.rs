//! The client machine of protocols that answer through one replica: numbers requests, finds the
//! primary, resends, and knows which reply suffices (one, from the primary). It runs in every
//! gateway, in the native client and in the simulator.
//!
//! Every request says which view's log the client has seen (ev, [Mao] 4.2.3). A primary of another
//! view answers "wrong view" and tells how much of that log it holds: the client then knows exactly
//! what was lost, if anything was, before anything else is executed for it.
//!
//! Invariants: logged requests are sent to any one replica in the order of their numbers; within
//! one expected view a number is never used for two bodies. Everything in `tentative` is in the log
//! of the view `expected`.

use alloc::collections::{BTreeMap, VecDeque};
use alloc::vec::Vec;
use bytes::Bytes;

use crate::ids::{ClientId, Now, OpNumber, ReplicaId, RequestNumber, View, Viewstamp};
use crate::request::{
    ClientMessage, MAX_OUTSTANDING, Outcome, ReadRequest, Refusal, Reply, Request,
};

/// How many logged requests may be under way, and how many reads.
const WINDOW: usize = MAX_OUTSTANDING as usize / 2;
/// Bytes of tentative requests from which on a client that keeps them asks for durability.
const TENTATIVE_BYTES: usize = 16 << 20;

/// When a client asks again, in microseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Retry {
    /// After so long without an answer.
    pub silence: u64,
    /// So long after a refusal, and twice as long after each further one, up to a quarter of
    /// `silence`.
    pub refusal: u64,
}

impl Retry {
    /// After a refusal in a quarter of the time.
    pub fn after(silence: u64) -> Retry {
        Retry { silence, refusal: silence / 4 }
    }
}

/// Messages to replicas.
pub type Sends = Vec<(ReplicaId, ClientMessage)>;

/// What a client does about acknowledged operations that a crash of the group has taken back
/// (durability `lazy`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OnLoss {
    /// Tells of it, and gives up what was under way.
    Report,
    /// Keeps acknowledged requests until they are durable, and sends those that were lost again, in
    /// order, before anything else ([Mao] 4.2.3, step 1).
    Replay,
}

/// Acknowledged operations were lost.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Loss {
    /// Of what this client has seen, everything above this operation.
    pub kept: OpNumber,
    /// Requests of this client that were not answered and were not and will not be executed, in
    /// order ([`OnLoss::Report`]).
    pub dropped: Vec<RequestNumber>,
    /// How many of its acknowledged requests are executed again ([`OnLoss::Replay`]).
    pub replayed: usize,
}

/// How a request ended for its client.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    /// Executed.
    Done {
        /// By this operation, or for a read after it.
        position: Viewstamp,
        /// The durable point that the primary knew (dp). It covers what it is not smaller than:
        /// both are of one log.
        durable: Viewstamp,
        /// The service's answer.
        body: Bytes,
    },
    /// The read must be sent as a request.
    MustLog,
    /// A newer life of this gateway is at work: stop. The outcome is unknown.
    Retired,
    /// The group's state is gone, and with it the request's effect if it had one.
    StateLost,
}

/// A request that has ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finished {
    /// Which.
    pub number: RequestNumber,
    /// Whether it was a read; reads are numbered apart.
    pub read: bool,
    /// It was answered before, and its effect was lost: this is the answer of its repetition.
    pub again: bool,
    /// How it ended.
    pub answer: Answer,
}

/// A logged request.
#[derive(Clone, Debug)]
struct Write {
    request: Request,
    durable: bool,
    again: bool,
}

/// A request or read that is unanswered, and when it was last sent, in [`Now::micros`].
#[derive(Debug)]
struct Sent<T> {
    what: T,
    at: u64,
}

/// One gateway's requests.
#[derive(Debug)]
pub struct Client {
    id: ClientId,
    replicas: u8,
    retry: Retry,
    on_loss: OnLoss,
    /// The newest view heard of: where to send.
    view: View,
    primary: ReplicaId,
    /// ev: the view whose log this client has seen; zero before it has seen any.
    expected: View,
    /// The highest operation seen in that log.
    seen: OpNumber,
    next: RequestNumber,
    outstanding: VecDeque<Sent<Write>>,
    /// Acknowledged and not known to be durable, each with its operation's number, in the order of
    /// their own numbers; only to be replayed.
    tentative: VecDeque<(OpNumber, Write)>,
    tentative_bytes: usize,
    /// Lost requests that wait for the window.
    replay: VecDeque<Write>,
    loss: Option<Loss>,
    next_read: RequestNumber,
    reads: BTreeMap<RequestNumber, Sent<Bytes>>,
    /// When a replica last executed something for this client, in [`Now::micros`].
    served_at: u64,
    /// Who leads, according to the last replica that does not.
    hint: Option<ReplicaId>,
    tries: u32,
    /// Refusals since something was executed that asked for another try.
    refusals: u32,
    /// A refusal asked for another try at this time.
    again_at: Option<u64>,
    /// A defect to show: what is smaller than the new view is taken for covered by it.
    #[cfg(feature = "planted-bugs")]
    pub trusts_numbers: bool,
}

impl Client {
    /// A client that has not asked anything yet, and tries `first` first.
    pub fn new(
        id: ClientId,
        replicas: u8,
        first: ReplicaId,
        retry: Retry,
        on_loss: OnLoss,
    ) -> Client {
        Client {
            id,
            replicas,
            retry,
            on_loss,
            view: View::default(),
            primary: first,
            expected: View::default(),
            seen: OpNumber(0),
            next: RequestNumber(1),
            outstanding: VecDeque::new(),
            tentative: VecDeque::new(),
            tentative_bytes: 0,
            replay: VecDeque::new(),
            loss: None,
            next_read: RequestNumber(1),
            reads: BTreeMap::new(),
            served_at: 0,
            hint: None,
            tries: 0,
            refusals: 0,
            again_at: None,
            #[cfg(feature = "planted-bugs")]
            trusts_numbers: false,
        }
    }

    /// The replica that requests go to.
    pub fn primary(&self) -> ReplicaId {
        self.primary
    }

    /// The view whose log this client has seen (ev); zero before it has seen any.
    pub fn expected(&self) -> View {
        self.expected
    }

    /// How many logged requests and reads are unanswered.
    pub fn outstanding(&self) -> usize {
        self.outstanding.len() + self.replay.len() + self.reads.len()
    }

    /// How many acknowledged requests are kept because they are not known to be durable.
    pub fn tentative(&self) -> usize {
        self.tentative.len()
    }

    /// What was lost since the last call, if anything was.
    pub fn take_loss(&mut self) -> Option<Loss> {
        self.loss.take()
    }

    /// Sends a request, or does nothing and returns `None` while the window is full or an
    /// unanswered request is so old that its answer would not be kept any longer. With `durable`
    /// the answer comes when no crash with disks intact can take the request back any more.
    pub fn submit(
        &mut self,
        now: Now,
        body: Bytes,
        durable: bool,
        out: &mut Sends,
    ) -> Option<RequestNumber> {
        let number = self.next;
        if !self.replay.is_empty() || !self.has_room(number) {
            return None;
        }
        self.next = number.next();
        let oldest_unanswered =
            self.outstanding.front().map_or(number, |first| first.what.request.number);
        let request = Request { client: self.id, number, oldest_unanswered, body };
        let durable = durable || self.tentative_bytes > TENTATIVE_BYTES;
        self.send(now, Write { request, durable, again: false }, out);
        Some(number)
    }

    /// Whether a request with this number may be under way beside the others.
    fn has_room(&self, number: RequestNumber) -> bool {
        // An empty request is answered even if its answer was not kept.
        let kept = |sent: &&Sent<Write>| !sent.what.request.body.is_empty();
        let oldest = self.outstanding.iter().find(kept).map(|sent| sent.what.request.number);
        self.outstanding.len() < WINDOW
            && oldest.is_none_or(|oldest| number.0 < oldest.0 + MAX_OUTSTANDING)
    }

    /// Whether lost requests are being executed again.
    fn replaying(&self) -> bool {
        !self.replay.is_empty() || self.outstanding.iter().any(|sent| sent.what.again)
    }

    fn send(&mut self, now: Now, write: Write, out: &mut Sends) {
        out.push((self.primary, self.message(&write)));
        self.outstanding.push_back(Sent { what: write, at: now.micros });
    }

    fn message(&self, write: &Write) -> ClientMessage {
        let (expected, durable) = (self.expected, write.durable);
        ClientMessage::Request { expected, durable, request: write.request.clone() }
    }

    /// Sends a read, or does nothing and returns `None` while the window is full or lost requests,
    /// whose effects it would miss, are being executed again.
    pub fn read(&mut self, now: Now, body: Bytes, out: &mut Sends) -> Option<RequestNumber> {
        if self.reads.len() >= WINDOW || self.replaying() {
            return None;
        }
        let number = self.next_read;
        self.next_read = number.next();
        self.reads.insert(number, Sent { what: body.clone(), at: now.micros });
        let request = ReadRequest { client: self.id, number, body };
        out.push((self.primary, ClientMessage::Read { expected: self.expected, request }));
        Some(number)
    }

    /// Takes a reply; returns the request that it ends, if it does. Ask [`Client::take_loss`]
    /// afterwards.
    pub fn on_reply(&mut self, now: Now, reply: Reply, out: &mut Sends) -> Option<Finished> {
        if reply.client != self.id {
            return None;
        }
        let Reply { number, read, view, durable, .. } = reply;
        let answer = match reply.outcome {
            Outcome::Done { position, body } => {
                if self.expected == View::default() {
                    self.expected = view;
                }
                if view != self.expected {
                    return None; // of a log that may be lost: the request is sent again
                }
                self.served_at = now.micros;
                self.refusals = 0;
                Answer::Done { position, durable, body }
            }
            Outcome::WrongView { expected, kept, last } => {
                // Otherwise it answers something that was sent again since.
                if expected == self.expected && view > expected {
                    self.on_wrong_view(now, view, kept, last, out);
                }
                return None;
            }
            Outcome::MustLog => Answer::MustLog,
            Outcome::Refused(Refusal::StateLost) => Answer::StateLost,
            Outcome::Refused(Refusal::Retired) => Answer::Retired,
            Outcome::Refused(refusal) => {
                self.on_refusal(now, view, refusal, out);
                return None;
            }
        };
        let known = if read {
            self.reads.remove(&number).map(|_| false)
        } else {
            let index = self.outstanding.iter().position(|sent| sent.what.request.number == number);
            let sent = index.and_then(|index| self.outstanding.remove(index));
            sent.map(|sent| self.on_written(sent.what, &answer))
        };
        if let Answer::Done { position, durable, .. } = &answer {
            self.seen = self.seen.max(position.op);
            self.forget_durable(durable.op);
        }
        self.go_on(now, known == Some(true), out);
        self.on_view(now, view, out);
        known.map(|again| Finished { number, read, again, answer })
    }

    /// Sends what waited: lost requests for the window, and reads for the last of those.
    fn go_on(&mut self, now: Now, repeated: bool, out: &mut Sends) {
        while let Some(write) = self.next_replay() {
            self.send(now, write, out);
        }
        if repeated && !self.replaying() {
            self.resend_reads(now, out);
        }
    }

    fn next_replay(&mut self) -> Option<Write> {
        let number = self.replay.front()?.request.number;
        if self.has_room(number) { self.replay.pop_front() } else { None }
    }

    /// A logged request has ended: keeps it if it may have to be replayed. Returns whether it was.
    fn on_written(&mut self, write: Write, answer: &Answer) -> bool {
        let again = write.again;
        if let Answer::Done { position, .. } = answer
            && self.on_loss == OnLoss::Replay
        {
            self.tentative_bytes += write.request.body.len();
            let number = write.request.number;
            let place = self.place_of(number);
            assert!(self.tentative.get(place).is_none_or(|(_, next)| next.request.number > number));
            self.tentative.insert(place, (position.op, write));
        }
        again
    }

    /// Where in `tentative` those begin that are not below `number`: mostly at its end.
    fn place_of(&self, number: RequestNumber) -> usize {
        if self.tentative.back().is_none_or(|(_, last)| last.request.number < number) {
            return self.tentative.len();
        }
        self.tentative.partition_point(|(_, write)| write.request.number < number)
    }

    /// Everything up to `durable` survives any crash with disks intact.
    fn forget_durable(&mut self, durable: OpNumber) {
        while self.tentative.front().is_some_and(|&(op, _)| op <= durable) {
            let (_, write) = self.tentative.pop_front().expect("just seen");
            self.tentative_bytes -= write.request.body.len();
        }
    }

    /// The primary of `view` holds the log of the expected view up to `kept`, and this client's
    /// requests up to `last`.
    fn on_wrong_view(
        &mut self,
        now: Now,
        view: View,
        kept: OpNumber,
        last: RequestNumber,
        out: &mut Sends,
    ) {
        #[cfg(feature = "planted-bugs")]
        let kept = if self.trusts_numbers { self.seen } else { kept };
        self.expected = view;
        let lost = self.seen > kept;
        self.seen = self.seen.min(kept);
        if lost {
            match self.on_loss {
                OnLoss::Report => self.give_up(kept, last),
                OnLoss::Replay => self.repeat(kept, last),
            }
        }
        (self.view, self.primary) = (self.view.max(view), view.primary());
        self.resend(now, out);
    }

    /// Numbering goes on behind what was executed. Nothing that was sent with these numbers before
    /// can be executed any more: it carries an old view, and the new view's start is durable.
    fn give_up(&mut self, kept: OpNumber, last: RequestNumber) {
        let mut dropped = Vec::new();
        self.outstanding.retain(|sent| {
            let executed = sent.what.request.number <= last;
            if !executed {
                dropped.push(sent.what.request.number);
            }
            executed
        });
        self.next = last.next();
        self.loss = Some(Loss { kept, dropped, replayed: 0 });
    }

    /// What was lost goes ahead of what was under way, with the numbers it had.
    fn repeat(&mut self, kept: OpNumber, last: RequestNumber) {
        let lost = self.tentative.split_off(self.place_of(last.next()));
        let replayed = lost.len();
        let mut queue: VecDeque<Write> = VecDeque::new();
        for (_, mut write) in lost {
            self.tentative_bytes -= write.request.body.len();
            write.again = true;
            queue.push_back(write);
        }
        while self.outstanding.back().is_some_and(|sent| sent.what.request.number > last) {
            let sent = self.outstanding.pop_back().expect("just seen");
            self.replay.push_front(sent.what);
        }
        queue.append(&mut self.replay);
        queue.make_contiguous().sort_by_key(|write| write.request.number);
        // The answers to come are wanted, whatever the client had before.
        let oldest = self.outstanding.front().map(|sent| sent.what.request.number);
        let oldest = oldest.or_else(|| queue.front().map(|write| write.request.number));
        for write in &mut queue {
            let known = &mut write.request.oldest_unanswered;
            *known = oldest.map_or(*known, |oldest| oldest.min(*known));
        }
        self.replay = queue;
        while let Some(write) = self.next_replay() {
            self.outstanding.push_back(Sent { what: write, at: 0 });
        }
        self.loss = Some(Loss { kept, dropped: Vec::new(), replayed });
    }

    /// An election is running, another replica leads, or an earlier request was lost. The view
    /// named is a hint: it may be one that was never entered, or long over.
    fn on_refusal(&mut self, now: Now, view: View, refusal: Refusal, out: &mut Sends) {
        if refusal != Refusal::OutOfOrder {
            self.hint = Some(view.primary());
            self.on_view(now, view, out);
        }
        if self.again_at.is_none() {
            let most = (self.retry.silence / 4).max(self.retry.refusal);
            let pause = (self.retry.refusal << self.refusals).min(most);
            self.refusals = (self.refusals + 1).min(16);
            self.again_at = Some(now.micros + pause);
        }
    }

    fn next_replica(&mut self) {
        self.primary = ReplicaId((self.primary.0 + 1) % self.replicas);
    }

    /// A view is known to have been entered: if it is news, its primary gets everything that is
    /// unanswered.
    pub fn on_view(&mut self, now: Now, view: View, out: &mut Sends) {
        if view > self.view {
            self.view = view;
            if self.primary != view.primary() {
                self.primary = view.primary();
                self.resend(now, out);
            }
        }
    }

    /// When [`Client::timeout`] is due, in [`Now::micros`].
    pub fn deadline(&self) -> Option<u64> {
        let oldest = self.oldest()?;
        let due = oldest + self.retry.silence;
        Some(self.again_at.map_or(due, |again| again.min(due)))
    }

    fn oldest(&self) -> Option<u64> {
        let write = self.outstanding.front().map(|sent| sent.at);
        let read = self.reads.first_key_value().map(|(_, sent)| sent.at);
        write.into_iter().chain(read).min()
    }

    /// Sends again what was not answered for a while, to the next replica if this one serves
    /// nothing.
    pub fn timeout(&mut self, now: Now, out: &mut Sends) {
        if self.deadline().is_none_or(|due| now.micros < due) {
            return;
        }
        let retry = self.retry.silence;
        if self.served_at + retry <= now.micros {
            // Hints may point in a circle: every few tries the next replica has its turn.
            self.tries += 1;
            match self.hint.take() {
                Some(hint) if !self.tries.is_multiple_of(4) => self.primary = hint,
                _ => self.next_replica(),
            }
        }
        self.resend(now, out);
    }

    fn resend(&mut self, now: Now, out: &mut Sends) {
        self.again_at = None;
        for sent in &mut self.outstanding {
            sent.at = now.micros;
        }
        let writes = self.outstanding.iter().map(|sent| self.message(&sent.what));
        out.extend(writes.map(|message| (self.primary, message)));
        self.resend_reads(now, out);
    }

    /// Sends all reads again, unless they have to wait for lost requests.
    fn resend_reads(&mut self, now: Now, out: &mut Sends) {
        let held = self.replaying();
        for (&number, sent) in &mut self.reads {
            sent.at = now.micros;
            if held {
                continue;
            }
            let request = ReadRequest { client: self.id, number, body: sent.what.clone() };
            let message = ClientMessage::Read { expected: self.expected, request };
            out.push((self.primary, message));
        }
    }
}
