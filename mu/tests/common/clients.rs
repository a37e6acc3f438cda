//! Clients that write and read the register, and check that what they see is linearizable.
//!
//! Every answer names a place in the log, and replicas agree on the log: so a history is
//! linearizable if places follow real time, writes strictly, and a read tells its place's value.

use std::collections::BTreeMap;

use bytes::Bytes;
use smr::rng::Rng;
use smr::{
    ClientId, ClientMessage, Incarnation, OpNumber, Outcome, ReadRequest, ReplicaId, Reply,
    Request, RequestNumber, View,
};

const PATIENCE: u64 = 1_500_000;

struct Asked {
    is_read: bool,
    number: RequestNumber,
    body: Bytes,
    /// The highest place that anybody had been told when this was first asked.
    floor: OpNumber,
    retry_at: u64,
}

struct Client {
    id: ClientId,
    written: u64,
    read: u64,
    asked: Option<Asked>,
    next_at: u64,
    target: ReplicaId,
}

pub struct Clients {
    clients: Vec<Client>,
    replies: BTreeMap<(u64, u64), (ReplicaId, Reply)>,
    sequence: u64,
    replicas: u8,
    rng: Rng,
    value: u64,
    told: OpNumber,
    stopped: bool,
    finished: (u64, u64),
    /// By value: the place where it was written, of writes that were answered.
    places: BTreeMap<u64, OpNumber>,
    /// What reads saw: (place, value).
    seen: BTreeMap<OpNumber, u64>,
}

impl Clients {
    pub fn new(count: usize, replicas: u8, seed: u64) -> Clients {
        let client = |index: usize| Client {
            id: ClientId { gateway: 100 + index as u32, incarnation: Incarnation(1) },
            written: 0,
            read: 0,
            asked: None,
            next_at: 0,
            target: ReplicaId(0),
        };
        Clients {
            clients: (0..count).map(client).collect(),
            replies: BTreeMap::new(),
            sequence: 0,
            replicas,
            rng: Rng::new(seed),
            value: 0,
            told: OpNumber(0),
            stopped: false,
            finished: (0, 0),
            places: BTreeMap::new(),
            seen: BTreeMap::new(),
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
            sent.push((client.target, message(client.id, asked)));
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
            number: RequestNumber(client.written),
            body: body.into(),
            floor: self.told,
            retry_at: now,
        });
    }

    fn on_reply(&mut self, now: u64, from: ReplicaId, reply: Reply) {
        let Some(index) = self.clients.iter().position(|client| client.id == reply.client) else {
            return;
        };
        let client = &mut self.clients[index];
        let Some(asked) = &mut client.asked else { return };
        if asked.number != reply.number || asked.is_read != reply.read {
            return;
        }
        let Outcome::Done { position, body } = reply.outcome else {
            // Whoever refuses may know who leads.
            let leader = reply.view.primary();
            let knows = leader != from && leader.0 < self.replicas && self.rng.chance(3, 4);
            let any = ReplicaId(self.rng.below(u64::from(self.replicas)) as u8);
            client.target = if knows { leader } else { any };
            asked.retry_at = asked.retry_at.min(now + 1 + self.rng.below(200_000));
            return;
        };
        let place = position.op;
        if asked.is_read {
            assert!(place >= asked.floor, "a read of the past: {place:?} < {:?}", asked.floor);
            let value = u64::from_le_bytes(body[..].try_into().expect("a value"));
            let seen = *self.seen.entry(place).or_insert(value);
            assert_eq!(seen, value, "two values at one place");
            self.finished.1 += 1;
        } else {
            assert!(place > asked.floor, "a write in the past: {place:?}, {:?}", asked.floor);
            let value = u64::from_le_bytes(asked.body[..8].try_into().expect("a value"));
            self.places.insert(value, place);
            self.finished.0 += 1;
        }
        self.told = self.told.max(place);
        client.asked = None;
        client.target = from;
        client.next_at = now + self.rng.below(100_000);
    }
}

fn message(client: ClientId, asked: &Asked) -> ClientMessage {
    let (number, body, expected) = (asked.number, asked.body.clone(), View::default());
    if asked.is_read {
        let request = ReadRequest { client, number, body };
        return ClientMessage::Read { expected, request };
    }
    let request = Request { client, number, oldest_unanswered: number, body };
    ClientMessage::Request { expected, durable: false, request }
}
