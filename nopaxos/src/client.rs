//! The client's side ([NOPaxos] 5.2.1): a request goes to the sequencer, and is done when f + 1
//! replicas, the leader among them, have it in the same slot of the same view.
//!
//! Replies of former lives are not counted: the client merges what the replies say of everybody's
//! incarnations, and drops those that are older. Requests are numbered without gaps and may be
//! outstanding together; one that was overtaken or dropped on the way is sent again, with those
//! after it. Every request says which view's log the client has seen: where a crash of the whole
//! group may take what was acknowledged (durability `lazy`), a later view's leader answers "wrong
//! view" and how many requests are left, before anything is executed for this client ([Mao]
//! 4.2.3). Deliberately absent: giving up, which is for who gave the request.

use alloc::collections::BTreeMap;
use alloc::vec::Vec;
use bytes::Bytes;

use oum::Members;
use smr::client::OnLoss;
use smr::{
    ClientId, Incarnation, MAX_OUTSTANDING, MAX_REPLICAS, Now, OpNumber, Outcome, ReplicaId,
    Request, RequestNumber, View, Viewstamp,
};

use crate::bug::Bug;
use crate::event::{Content, Ordered, Reply};
use crate::lives::Lives;

/// A request that is done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finished {
    /// Which.
    pub number: RequestNumber,
    /// The view and slot that a quorum agreed on.
    pub view: View,
    /// The slot: the request was executed there, or before.
    pub position: Viewstamp,
    /// The durable point that the leader knew: it covers what it is not smaller than.
    pub durable: Viewstamp,
    /// The service's answer.
    pub body: Bytes,
    /// It was answered before, and its effect was lost: this is the answer of its repetition.
    pub again: bool,
}

/// Acknowledged requests were lost (durability `lazy`).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Loss {
    /// The last of this client's requests that the group has executed and still holds: what was
    /// answered beyond it has no effect.
    pub last: RequestNumber,
    /// Of the log that this client has seen, everything above this slot is lost.
    pub kept: OpNumber,
    /// Requests that were not answered and were not and will not be executed, in order
    /// ([`OnLoss::Report`]). Their numbers are used again.
    pub dropped: Vec<RequestNumber>,
    /// How many acknowledged requests are executed again ([`OnLoss::Replay`]).
    pub replayed: usize,
}

/// Bytes of kept acknowledged requests from which on one request at a time is taken.
const TENTATIVE_BYTES: usize = 16 << 20;

/// How often the time between two sendings is doubled.
const MOST_DOUBLINGS: u32 = 5;

/// A request that was sent more often is sent in vain.
const FEW_TRIES: u32 = 3;

#[derive(Debug)]
struct Heard {
    life: Incarnation,
    view: View,
    position: Viewstamp,
    durable: Viewstamp,
    members: Members,
    body: Bytes,
}

#[derive(Debug)]
struct Asked {
    body: Bytes,
    /// It is done when the durable point covers it.
    durable: bool,
    again: bool,
    resend_at: u64,
    sent_at: u64,
    tries: u32,
    heard: [Option<Heard>; MAX_REPLICAS as usize],
}

impl Asked {
    fn new(body: Bytes, durable: bool, again: bool) -> Asked {
        let heard = [const { None }; MAX_REPLICAS as usize];
        Asked { body, durable, again, resend_at: 0, sent_at: 0, tries: 0, heard }
    }
}

/// What a client wants sent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Send {
    /// The payload of a message to the group, by way of its sequencer.
    Sequencer(Bytes),
    /// To every replica directly: a body that is too long for a datagram.
    Replicas(Request),
}

/// One client of a group.
#[derive(Debug)]
pub struct Client {
    id: ClientId,
    replicas: u8,
    retry: u64,
    datagram: usize,
    last: RequestNumber,
    /// What is not done. All is sent but what was lost and lies beyond the window.
    asked: BTreeMap<RequestNumber, Asked>,
    /// The last request that is done.
    done: RequestNumber,
    /// The view whose log this client has seen; zero before a replica has named one.
    expected: View,
    on_loss: OnLoss,
    /// Done, in these slots, and not known to be durable; only to be replayed.
    tentative: BTreeMap<RequestNumber, (OpNumber, Bytes)>,
    tentative_bytes: usize,
    loss: Option<Loss>,
    lives: Lives,
    retired: bool,
    #[cfg(feature = "planted-bugs")]
    bug: Option<Bug>,
}

impl Client {
    /// A client of a group of so many replicas, which sends again after `retry` microseconds,
    /// and then after twice that, up to 32 times. Bodies of more than `datagram` bytes go to the
    /// replicas directly, and only their digests by way of the sequencer.
    ///
    /// # Panics
    /// If there are no replicas, or more than [`MAX_REPLICAS`].
    pub fn new(id: ClientId, replicas: u8, retry: u64, datagram: usize) -> Client {
        Client {
            id,
            replicas,
            retry,
            datagram,
            last: RequestNumber(0),
            asked: BTreeMap::new(),
            done: RequestNumber(0),
            expected: View::default(),
            on_loss: OnLoss::Report,
            tentative: BTreeMap::new(),
            tentative_bytes: 0,
            loss: None,
            lives: Lives::new(replicas),
            retired: false,
            #[cfg(feature = "planted-bugs")]
            bug: None,
        }
    }

    /// Plants a defect.
    #[cfg(feature = "planted-bugs")]
    pub fn plant(&mut self, bug: Option<Bug>) {
        self.bug = bug;
    }

    #[cfg(feature = "planted-bugs")]
    fn bug(&self, bug: Bug) -> bool {
        self.bug == Some(bug)
    }

    #[cfg(not(feature = "planted-bugs"))]
    fn bug(&self, _: Bug) -> bool {
        false
    }

    /// Who it is.
    pub fn id(&self) -> ClientId {
        self.id
    }

    /// Chooses what to do about acknowledged requests that a crash of the group takes back; without
    /// this it is [`OnLoss::Report`].
    pub fn on_loss(&mut self, on_loss: OnLoss) {
        self.on_loss = on_loss;
    }

    /// What was lost since the last call, if anything was.
    pub fn take_loss(&mut self) -> Option<Loss> {
        self.loss.take()
    }

    /// How many acknowledged requests are kept because they are not known to be durable.
    pub fn tentative(&self) -> usize {
        self.tentative.len()
    }

    /// How many requests are not done.
    pub fn outstanding(&self) -> usize {
        self.asked.len()
    }

    /// Whether a newer life of this client is known to the group: this one is not served any more.
    pub fn is_retired(&self) -> bool {
        self.retired
    }

    /// Sends a request: appends to `sends` what goes where. With `durable` it is done when the
    /// durable point covers it, which in durability `sync` is more than is needed. `None`, and
    /// nothing is sent, if [`MAX_OUTSTANDING`] requests from the oldest one on are not done, or one
    /// is not and too many bytes are kept until they are durable.
    pub fn submit(
        &mut self,
        now: Now,
        body: Bytes,
        durable: bool,
        sends: &mut Vec<Send>,
    ) -> Option<RequestNumber> {
        let is_full = self.tentative_bytes > TENTATIVE_BYTES && !self.asked.is_empty();
        if is_full || self.last.next() >= self.window_end() {
            return None;
        }
        self.last = self.last.next();
        self.asked.insert(self.last, Asked::new(body, durable, false));
        self.send(now, self.last, sends);
        Some(self.last)
    }

    /// The replies to requests below this number are kept by the group.
    fn window_end(&self) -> RequestNumber {
        let oldest = self.asked.keys().next().copied().unwrap_or(self.last.next());
        RequestNumber(oldest.0 + MAX_OUTSTANDING)
    }

    fn send(&mut self, now: Now, number: RequestNumber, sends: &mut Vec<Send>) {
        let oldest_unanswered = *self.asked.keys().next().expect("this one");
        let asked = self.asked.get_mut(&number).expect("it is not done");
        asked.sent_at = now.micros;
        asked.resend_at = now.micros + (self.retry << asked.tries.min(MOST_DOUBLINGS));
        asked.tries += 1;
        let (client, body, durable) = (self.id, asked.body.clone(), asked.durable);
        let mut request = Request { client, number, oldest_unanswered, body };
        let content = if request.body.len() <= self.datagram {
            Content::Whole(request)
        } else {
            sends.push(Send::Replicas(request.clone()));
            let digest = blake3::hash(&core::mem::take(&mut request.body));
            Content::Digest(request, digest.into())
        };
        let mut payload = Vec::new();
        let (unix_ms, expected) = (now.unix_ms, self.expected);
        Ordered { unix_ms, expected, durable, content }.encode(&mut payload);
        sends.push(Send::Sequencer(payload.into()));
    }

    /// What is not done is due now, as if it had never been sent again: the group has another
    /// leader or another sequencer, and what the former one had may be lost.
    pub fn hurry(&mut self, now: Now) {
        for asked in self.asked.values_mut() {
            (asked.resend_at, asked.tries) = (now.micros, 0);
        }
    }

    /// When [`Client::timeout`] is due, in [`Now::micros`].
    pub fn deadline(&self) -> Option<u64> {
        let sent = self.asked.range(..self.window_end());
        sent.map(|(_, asked)| asked.resend_at).min().filter(|_| !self.retired)
    }

    /// Sends again what is due, and all that follow on it: they are not executed before it.
    pub fn timeout(&mut self, now: Now, sends: &mut Vec<Send>) {
        let end = self.window_end();
        let due = self.asked.range(..end).find(|(_, asked)| asked.resend_at <= now.micros);
        let Some((&first, _)) = due.filter(|_| !self.retired) else { return };
        let numbers: Vec<_> = self.asked.range(first..end).map(|(&number, _)| number).collect();
        numbers.into_iter().for_each(|number| self.send(now, number, sends));
    }

    /// The oldest request that is not done, if it was sent again and again. Told to the replicas
    /// directly, as a body is, it tells them that they should have heard of it: that the sequencer
    /// is not heard by any of them, nobody else can know.
    pub fn in_vain(&self) -> Option<Request> {
        let (&number, asked) = self.asked.iter().next()?;
        let (client, oldest_unanswered, body) = (self.id, number, asked.body.clone());
        let request = Request { client, number, oldest_unanswered, body };
        (asked.tries > FEW_TRIES).then_some(request)
    }

    /// A replica's reply. Returns the request that it completes.
    pub fn on_reply(&mut self, now: Now, reply: Reply) -> Option<Finished> {
        let is_ours = reply.reply.client == self.id && !reply.reply.read;
        if !is_ours || reply.lives.replicas() != self.replicas || reply.from.0 >= self.replicas {
            return None;
        }
        self.lives.merge(&reply.lives);
        let (is_leaders, life) = (reply.is_leaders(), reply.lives.of(reply.from));
        let members = reply.members;
        let smr::Reply { number, view, outcome, durable, .. } = reply.reply;
        let (position, body) = match outcome {
            // Of a log that may be lost otherwise: the request is sent again.
            Outcome::Done { .. } if self.expected != View::default() && view != self.expected => {
                return None;
            }
            Outcome::Done { position, body } => (position, body),
            Outcome::Refused(refusal) => {
                self.refused(now, number, is_leaders, refusal);
                return None;
            }
            Outcome::WrongView { expected, kept, last } => {
                let is_present = is_leaders && life >= self.lives.of(reply.from);
                if is_present && expected == self.expected && view > expected {
                    self.on_wrong_view(now, view, kept, last);
                }
                return None;
            }
            Outcome::MustLog => return None,
        };
        let asked = self.asked.get_mut(&number)?;
        if asked.durable && is_leaders && durable.op < position.op {
            // It does not know that this is to be durable.
            asked.resend_at = now.micros + self.retry;
        } else if asked.durable && asked.heard.iter().all(Option::is_none) {
            // It is ordered, and the answer takes as long as the disks do.
            asked.resend_at = now.micros + (self.retry << MOST_DOUBLINGS);
        }
        let heard = &mut asked.heard[reply.from.index()];
        let is_news = heard.as_ref().is_none_or(|old| {
            let before = (old.life, old.view, old.position.op, old.durable.op);
            before < (life, view, position.op, durable.op)
        });
        if is_news {
            *heard = Some(Heard { life, view, position, durable, members, body });
        }
        self.finish(number)
    }

    /// The log of `view`, whose start is durable, holds this client's requests up to `last`, and
    /// nothing that was sent before can be executed in it any more.
    fn on_wrong_view(&mut self, now: Now, view: View, kept: OpNumber, last: RequestNumber) {
        self.expected = view;
        if self.done > last {
            self.done = last;
            match self.on_loss {
                OnLoss::Report => self.give_up(kept, last),
                OnLoss::Replay => self.repeat(kept, last),
            }
        }
        self.asked.values_mut().for_each(|asked| asked.resend_at = now.micros);
    }

    /// Numbering goes on behind what was executed.
    fn give_up(&mut self, kept: OpNumber, last: RequestNumber) {
        let dropped = self.asked.split_off(&last.next()).into_keys().collect();
        self.last = last;
        self.loss = Some(Loss { last, kept, dropped, replayed: 0 });
    }

    /// What was lost goes ahead of what was under way, with the numbers it had.
    fn repeat(&mut self, kept: OpNumber, last: RequestNumber) {
        let lost = self.tentative.split_off(&last.next());
        let replayed = lost.len();
        for (number, (_, body)) in lost {
            self.tentative_bytes -= body.len();
            if !self.bug(Bug::ReplaysNothing) {
                self.asked.insert(number, Asked::new(body, false, true));
            }
        }
        self.loss = Some(Loss { last, kept, dropped: Vec::new(), replayed });
    }

    /// A request is done: keeps it if it may have to be replayed, and what is durable no longer.
    fn keep(&mut self, number: RequestNumber, at: OpNumber, body: Bytes, durable: OpNumber) {
        self.done = self.done.max(number);
        if self.on_loss == OnLoss::Replay && self.expected != View::default() {
            self.tentative_bytes += body.len();
            self.tentative.insert(number, (at, body));
        }
        while let Some(first) = self.tentative.first_entry()
            && first.get().0 <= durable
        {
            self.tentative_bytes -= first.remove().1.len();
        }
    }

    /// The leader did not execute a request since one before it is missing: sends that one again,
    /// once.
    fn refused(&mut self, now: Now, number: RequestNumber, by_leader: bool, why: smr::Refusal) {
        match why {
            smr::Refusal::OutOfOrder if by_leader => {
                let Some(asked) = self.asked.get(&number) else { return };
                let sent_at = asked.sent_at;
                if let Some((_, first)) = self.asked.iter_mut().next()
                    && first.sent_at <= sent_at
                {
                    let soon = (self.retry / 8) << first.tries.min(MOST_DOUBLINGS);
                    first.resend_at = first.resend_at.min(now.micros + soon);
                }
            }
            smr::Refusal::Retired => self.retired = true,
            _ => {}
        }
    }

    /// Whether present lives of a quorum, the leader's among them, agree on view and slot.
    fn finish(&mut self, number: RequestNumber) -> Option<Finished> {
        let count_dead = self.bug(Bug::ClientCountsTheDead);
        let Asked { heard, durable, .. } = self.asked.get(&number)?;
        let hasty = !durable || self.bug(Bug::AnswersBeforeDurable);
        let waits = |leader: &Heard| !hasty && leader.durable.op < leader.position.op;
        let counts = |&(id, heard): &(usize, &Heard)| {
            count_dead || heard.life >= self.lives.of(ReplicaId(id as u8))
        };
        let all = || {
            let some =
                heard.iter().enumerate().filter_map(|(id, heard)| Some((id, heard.as_ref()?)));
            some.filter(counts)
        };
        let leads = |id: usize, heard: &Heard| heard.view.primary().index() == id;
        let any = self.bug(Bug::ClientForgetsTheLeader);
        let agreed = |leader: &Heard| {
            let same =
                |other: &Heard| (other.view, other.position) == (leader.view, leader.position);
            let agrees = |id: ReplicaId| all().any(|(of, other)| of == id.index() && same(other));
            leader.members.is_quorum(agrees)
        };
        let may_end = |heard: &Heard| agreed(heard) && !waits(heard);
        let (_, leader) = all().find(|&(id, heard)| (any || leads(id, heard)) && may_end(heard))?;
        let Heard { view, position, durable, .. } = *leader;
        let body = leader.body.clone();
        let asked = self.asked.remove(&number).expect("just seen");
        self.keep(number, position.op, asked.body, durable.op);
        Some(Finished { number, view, position, durable, body, again: asked.again })
    }
}
