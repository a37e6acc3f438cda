//! Clients that write and read the register, and check that what they see is linearizable.
//!
//! Every answer names a place in the log, and replicas agree on the log: so a history is
//! linearizable if places follow real time, writes strictly, and a read tells its place's value.
//! Where the group may lose operations (`lazy`) this is judged in the end, of what it has kept.

use std::collections::BTreeMap;

use bytes::Bytes;
use smr::rng::Rng;
use smr::{
    ClientId, ClientMessage, Incarnation, OpNumber, Outcome, ReadRequest, ReplicaId, Reply,
    Request, RequestNumber, View, Viewstamp,
};

const PATIENCE: u64 = 1_500_000;

#[derive(Debug)]
struct Asked {
    is_read: bool,
    durable: bool,
    number: RequestNumber,
    body: Bytes,
    /// How many answers anybody had been given when this was first asked.
    told: usize,
    retry_at: u64,
    refused: Option<(ReplicaId, Outcome)>,
}

struct Client {
    id: ClientId,
    written: u64,
    read: u64,
    asked: Option<Asked>,
    next_at: u64,
    target: ReplicaId,
    /// The view whose log it has seen.
    expected: View,
}

/// An answer.
#[derive(Clone, Copy, Debug)]
pub struct Told {
    pub position: Viewstamp,
    /// What was written there, if it was a write.
    pub value: Option<u64>,
    pub durable: bool,
    /// How many answers had been given when it was asked for.
    before: usize,
    /// When, in nanoseconds.
    pub at: u64,
}

pub struct Clients {
    clients: Vec<Client>,
    replies: BTreeMap<(u64, u64), (ReplicaId, Reply)>,
    sequence: u64,
    replicas: u8,
    rng: Rng,
    value: u64,
    stopped: bool,
    /// The group may lose operations.
    may_lose: bool,
    finished: (u64, u64),
    pub told: Vec<Told>,
    /// The highest places up to each answer, while nothing can be lost.
    floors: Vec<OpNumber>,
    /// What reads saw, by place.
    seen: BTreeMap<Viewstamp, u64>,
    /// Every durable point that anybody was told.
    pub durable: Vec<Viewstamp>,
}

impl Clients {
    pub fn new(count: usize, replicas: u8, may_lose: bool, seed: u64) -> Clients {
        let client = |index: usize| Client {
            id: ClientId { gateway: 100 + index as u32, incarnation: Incarnation(1) },
            written: 0,
            read: 0,
            asked: None,
            next_at: 0,
            target: ReplicaId(0),
            expected: View::default(),
        };
        Clients {
            clients: (0..count).map(client).collect(),
            replies: BTreeMap::new(),
            sequence: 0,
            replicas,
            rng: Rng::new(seed),
            value: 0,
            stopped: false,
            may_lose,
            finished: (0, 0),
            told: Vec::new(),
            floors: Vec::new(),
            seen: BTreeMap::new(),
            durable: Vec::new(),
        }
    }

    /// The largest value ever asked to be written.
    pub fn largest(&self) -> u64 {
        self.value
    }

    pub fn is_idle(&self) -> bool {
        self.clients.iter().all(|client| client.asked.is_none())
    }

    /// Asks nothing new, but one write of every client that shows that the group works.
    pub fn stop(&mut self) {
        for index in 0..self.clients.len() {
            if self.clients[index].asked.is_none() {
                self.ask(index, 0, false);
            }
        }
        self.stopped = true;
    }

    /// What is asked and not answered.
    pub fn open(&self) -> String {
        let open = self.clients.iter().filter_map(|client| {
            client.asked.as_ref().map(|a| {
                (
                    client.id.gateway,
                    client.expected,
                    client.target,
                    client.written,
                    a.number,
                    a.is_read,
                    a.retry_at,
                    &a.refused,
                )
            })
        });
        format!("{:?}", open.collect::<Vec<_>>())
    }

    pub fn finished(&self) -> (u64, u64) {
        self.finished
    }

    pub fn reply(&mut self, at: u64, from: ReplicaId, reply: Reply) {
        self.sequence += 1;
        self.replies.insert((at, self.sequence), (from, reply));
    }

    pub fn next_at(&self) -> Option<u64> {
        let replies = self.replies.first_key_value().map(|(&(at, _), _)| at);
        let due = |client: &Client| match &client.asked {
            Some(asked) => Some(asked.retry_at),
            None => (!self.stopped).then_some(client.next_at),
        };
        self.clients.iter().filter_map(due).chain(replies).min()
    }

    pub fn act(&mut self, now: u64) -> Vec<(ReplicaId, ClientMessage)> {
        while let Some(first) = self.replies.first_entry() {
            if first.key().0 > now {
                break;
            }
            let (from, reply) = first.remove();
            self.on_reply(now, from, reply);
        }
        let mut sent = Vec::new();
        for index in 0..self.clients.len() {
            let client = &self.clients[index];
            if client.asked.is_none() && !self.stopped && now >= client.next_at {
                let is_read = self.rng.chance(1, 3);
                self.ask(index, now, is_read);
            }
            let replicas = u64::from(self.replicas);
            let client = &mut self.clients[index];
            let Some(asked) = &mut client.asked else { continue };
            if now < asked.retry_at {
                continue;
            }
            if asked.retry_at > 0 && self.rng.chance(1, 2) {
                client.target = ReplicaId(self.rng.below(replicas) as u8);
            }
            asked.retry_at = now + PATIENCE;
            if asked.is_read {
                client.read += 1;
                asked.number = RequestNumber(client.read);
            }
            sent.push((client.target, message(client.id, client.expected, asked)));
        }
        sent
    }

    fn ask(&mut self, index: usize, now: u64, is_read: bool) {
        let client = &mut self.clients[index];
        let mut body = Vec::new();
        if !is_read {
            client.written += 1;
            self.value += 1;
            body.extend_from_slice(&self.value.to_le_bytes());
            let padding = self.rng.below(90) as usize;
            body.resize(8 + padding, self.value as u8);
        }
        client.asked = Some(Asked {
            is_read,
            durable: !is_read && self.may_lose && self.rng.chance(1, 8),
            number: RequestNumber(client.written),
            body: body.into(),
            told: self.told.len(),
            retry_at: now,
            refused: None,
        });
    }

    fn on_reply(&mut self, now: u64, from: ReplicaId, reply: Reply) {
        let Some(index) = self.clients.iter().position(|client| client.id == reply.client) else {
            return;
        };
        self.durable.push(reply.durable);
        let client = &mut self.clients[index];
        let Some(asked) = &mut client.asked else { return };
        if asked.number != reply.number || asked.is_read != reply.read {
            return;
        }
        let (position, body) = match reply.outcome {
            Outcome::Done { position, body } => (position, body),
            Outcome::WrongView { expected, last, .. } => {
                // Who answers in a lower view does not lead any more.
                if expected == client.expected && reply.view > client.expected {
                    client.expected = reply.view;
                    // Numbers that the log does not hold can be used again.
                    if asked.is_read {
                        client.written = last.0;
                    } else if last < asked.number {
                        asked.number = last.next();
                        client.written = asked.number.0;
                    }
                    client.target = from;
                    asked.retry_at = now;
                }
                return;
            }
            outcome => {
                asked.refused = Some((from, outcome));
                // Whoever refuses may know who leads.
                let leader = reply.view.primary();
                let knows = leader != from && leader.0 < self.replicas && self.rng.chance(3, 4);
                let any = ReplicaId(self.rng.below(u64::from(self.replicas)) as u8);
                client.target = if knows { leader } else { any };
                asked.retry_at = asked.retry_at.min(now + 1 + self.rng.below(200_000));
                return;
            }
        };
        let Asked { is_read, durable, told: before, .. } = *asked;
        let value = if is_read { &body[..] } else { &asked.body[..8] };
        let value = u64::from_le_bytes(value.try_into().expect("a value"));
        client.asked = None;
        client.target = from;
        client.next_at = now + self.rng.below(100_000);
        if is_read {
            let seen = *self.seen.entry(position).or_insert(value);
            assert_eq!(seen, value, "two values at one place");
            self.finished.1 += 1;
        } else {
            self.finished.0 += 1;
        }
        let value = (!is_read).then_some(value);
        self.told.push(Told { position, value, durable, before, at: now });
        if !self.may_lose {
            let floor = before.checked_sub(1).map_or(OpNumber(0), |last| self.floors[last]);
            in_order(position.op, floor, is_read);
            let last = self.floors.last().copied().unwrap_or_default();
            self.floors.push(last.max(position.op));
        }
    }

    /// Judges what the group has kept.
    pub fn judge(&self, is_kept: impl Fn(Viewstamp) -> bool) {
        let mut floors = Vec::new();
        let mut last = OpNumber(0);
        for told in &self.told {
            if is_kept(told.position) {
                let floor = told.before.checked_sub(1).map_or(OpNumber(0), |last| floors[last]);
                in_order(told.position.op, floor, told.value.is_none());
                last = last.max(told.position.op);
            }
            floors.push(last);
        }
    }
}

fn in_order(place: OpNumber, floor: OpNumber, is_read: bool) {
    if is_read {
        assert!(place >= floor, "a read of the past: {place:?} < {floor:?}");
    } else {
        assert!(place > floor, "a write in the past: {place:?}, {floor:?}");
    }
}

fn message(client: ClientId, expected: View, asked: &Asked) -> ClientMessage {
    let (number, body) = (asked.number, asked.body.clone());
    if asked.is_read {
        let request = ReadRequest { client, number, body };
        return ClientMessage::Read { expected, request };
    }
    let request = Request { client, number, oldest_unanswered: number, body };
    ClientMessage::Request { expected, durable: asked.durable, request }
}
