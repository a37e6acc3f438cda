//! The client's side ([NOPaxos] 5.2.1): a request goes to the sequencer, and is done when f + 1
//! replicas, the leader among them, have it in the same slot of the same view.
//!
//! Replies of former lives are not counted: the client merges what the replies say of everybody's
//! incarnations, and drops those that are older. Requests are numbered without gaps and may be
//! outstanding together; one that was overtaken or dropped on the way is sent again, with those
//! after it. Deliberately absent: giving up, which is for who gave the request.

use alloc::collections::BTreeMap;
use alloc::vec::Vec;
use bytes::Bytes;

use smr::{
    ClientId, Incarnation, MAX_OUTSTANDING, MAX_REPLICAS, Now, Outcome, ReplicaId, Request,
    RequestNumber, View, Viewstamp,
};

use crate::bug::Bug;
use crate::event::{Content, Ordered, Reply};
use crate::lives::Lives;

/// A request that is done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finished {
    /// Which.
    pub number: RequestNumber,
    /// The view and slot that f + 1 replicas agreed on.
    pub view: View,
    /// The slot: the request was executed there, or before.
    pub position: Viewstamp,
    /// The service's answer.
    pub body: Bytes,
}

/// How often the time between two sendings is doubled.
const MOST_DOUBLINGS: u32 = 5;

#[derive(Debug)]
struct Heard {
    life: Incarnation,
    view: View,
    position: Viewstamp,
    body: Bytes,
}

#[derive(Debug)]
struct Asked {
    body: Bytes,
    resend_at: u64,
    sent_at: u64,
    tries: u32,
    heard: [Option<Heard>; MAX_REPLICAS as usize],
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
    asked: BTreeMap<RequestNumber, Asked>,
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

    /// How many requests are not done.
    pub fn outstanding(&self) -> usize {
        self.asked.len()
    }

    /// Whether a newer life of this client is known to the group: this one is not served any more.
    pub fn is_retired(&self) -> bool {
        self.retired
    }

    /// Sends a request: appends to `sends` what goes where. `None`, and
    /// nothing is sent, if [`MAX_OUTSTANDING`] requests from the oldest one on are not done.
    pub fn submit(
        &mut self,
        now: Now,
        body: Bytes,
        sends: &mut Vec<Send>,
    ) -> Option<RequestNumber> {
        let oldest = self.asked.keys().next().map_or(self.last.0 + 1, |number| number.0);
        if self.last.0 + 1 >= oldest + MAX_OUTSTANDING {
            return None;
        }
        self.last = self.last.next();
        let heard = [const { None }; MAX_REPLICAS as usize];
        let asked = Asked { body, resend_at: 0, sent_at: 0, tries: 0, heard };
        self.asked.insert(self.last, asked);
        self.send(now, self.last, sends);
        Some(self.last)
    }

    fn send(&mut self, now: Now, number: RequestNumber, sends: &mut Vec<Send>) {
        let oldest_unanswered = *self.asked.keys().next().expect("this one");
        let asked = self.asked.get_mut(&number).expect("it is not done");
        asked.sent_at = now.micros;
        asked.resend_at = now.micros + (self.retry << asked.tries.min(MOST_DOUBLINGS));
        asked.tries += 1;
        let (client, body) = (self.id, asked.body.clone());
        let mut request = Request { client, number, oldest_unanswered, body };
        let content = if request.body.len() <= self.datagram {
            Content::Whole(request)
        } else {
            sends.push(Send::Replicas(request.clone()));
            let digest = blake3::hash(&core::mem::take(&mut request.body));
            Content::Digest(request, digest.into())
        };
        let mut payload = Vec::new();
        Ordered { unix_ms: now.unix_ms, content }.encode(&mut payload);
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
        self.asked.values().map(|asked| asked.resend_at).min().filter(|_| !self.retired)
    }

    /// Sends again what is due, and all that follow on it: they are not executed before it.
    pub fn timeout(&mut self, now: Now, sends: &mut Vec<Send>) {
        let due = self.asked.iter().find(|(_, asked)| asked.resend_at <= now.micros);
        let Some((&first, _)) = due.filter(|_| !self.retired) else { return };
        let numbers: Vec<_> = self.asked.range(first..).map(|(&number, _)| number).collect();
        numbers.into_iter().for_each(|number| self.send(now, number, sends));
    }

    /// A replica's reply. Returns the request that it completes.
    pub fn on_reply(&mut self, now: Now, reply: Reply) -> Option<Finished> {
        let is_ours = reply.reply.client == self.id && !reply.reply.read;
        if !is_ours || reply.lives.replicas() != self.replicas || reply.from.0 >= self.replicas {
            return None;
        }
        self.lives.merge(&reply.lives);
        let (is_leaders, life) = (reply.is_leaders(), reply.lives.of(reply.from));
        let smr::Reply { number, view, outcome, .. } = reply.reply;
        let (position, body) = match outcome {
            Outcome::Done { position, body } => (position, body),
            Outcome::Refused(refusal) => {
                self.refused(now, number, is_leaders, refusal);
                return None;
            }
            Outcome::WrongView { .. } | Outcome::MustLog => return None,
        };
        let heard = &mut self.asked.get_mut(&number)?.heard[reply.from.index()];
        let is_news = heard
            .as_ref()
            .is_none_or(|old| (old.life, old.view, old.position.op) < (life, view, position.op));
        if is_news {
            *heard = Some(Heard { life, view, position, body });
        }
        self.finish(number)
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

    /// Whether f + 1 present lives, the leader's among them, agree on view and slot.
    fn finish(&mut self, number: RequestNumber) -> Option<Finished> {
        let count_dead = self.bug(Bug::ClientCountsTheDead);
        let heard = &self.asked.get(&number)?.heard;
        let counts = |&(id, heard): &(usize, &Heard)| {
            count_dead || heard.life >= self.lives.of(ReplicaId(id as u8))
        };
        let all = || {
            let some =
                heard.iter().enumerate().filter_map(|(id, heard)| Some((id, heard.as_ref()?)));
            some.filter(counts)
        };
        let quorum = (usize::from(self.replicas) - 1) / 2 + 1;
        let leads = |id: usize, heard: &Heard| heard.view.primary().index() == id;
        let any = self.bug(Bug::ClientForgetsTheLeader);
        let agreed = |leader: &Heard| {
            let same =
                |other: &Heard| (other.view, other.position) == (leader.view, leader.position);
            all().filter(|(_, other)| same(other)).count() >= quorum
        };
        let (_, leader) = all().find(|&(id, heard)| (any || leads(id, heard)) && agreed(heard))?;
        let (view, position, body) = (leader.view, leader.position, leader.body.clone());
        self.asked.remove(&number);
        Some(Finished { number, view, position, body })
    }
}
