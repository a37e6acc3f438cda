//! Clients that write the register, and what they saw.

use super::Plan;
use bytes::Bytes;
use nopaxos::{Client, Loss, Reply, Send};
use smr::client::OnLoss;
use smr::rng::Rng;
use smr::{ClientId, Incarnation, Now, RequestNumber, Viewstamp};

/// One write as its client saw it.
#[derive(Clone, Debug)]
pub struct Operation {
    pub client: usize,
    pub number: RequestNumber,
    pub value: u64,
    pub called: u64,
    /// When it was done, in which slot, and what it found.
    pub done: Option<(u64, Viewstamp, u64)>,
    /// It is done when it is durable.
    pub durable: bool,
    /// The client was told that it has no effect, or none any more.
    pub lost: bool,
}

struct One {
    machine: Client,
    next_at: u64,
}

pub struct Clients {
    all: Vec<One>,
    pub operations: Vec<Operation>,
    rng: Rng,
    window: usize,
    think: u64,
    /// Of a thousand writes so many are to be durable.
    durable: u64,
    stopped: bool,
}

impl Clients {
    pub fn new(plan: &Plan, rng: Rng) -> Clients {
        let one = |index: usize| {
            let id = ClientId { gateway: 100 + index as u32, incarnation: Incarnation(1) };
            let mut machine = Client::new(id, plan.replicas, plan.client_retry, plan.datagram);
            #[cfg(feature = "planted-bugs")]
            machine.plant(plan.bug);
            machine.on_loss(if plan.replay { OnLoss::Replay } else { OnLoss::Report });
            One { machine, next_at: 0 }
        };
        let all = (0..plan.clients).map(one).collect();
        let (window, think, durable) = (plan.client_window, plan.think, plan.durable);
        Clients { all, operations: Vec::new(), rng, window, think, durable, stopped: false }
    }

    pub fn machine(&self, index: usize) -> &Client {
        &self.all[index].machine
    }

    /// Asks nothing new, but one write of every client that shows that the group works.
    pub fn stop(&mut self, now: Now, sends: &mut Vec<Send>) {
        self.stopped = true;
        for index in 0..self.all.len() {
            self.ask(now, index, sends);
        }
    }

    pub fn is_idle(&self) -> bool {
        self.all.iter().all(|one| one.machine.outstanding() == 0)
    }

    pub fn next_at(&self) -> Option<u64> {
        let due = |one: &One| {
            let asks = !self.stopped && one.machine.outstanding() < self.window;
            let ask = asks.then_some(one.next_at);
            ask.into_iter().chain(one.machine.deadline()).min()
        };
        self.all.iter().filter_map(due).min()
    }

    /// One client writes its next value.
    pub fn ask(&mut self, now: Now, index: usize, sends: &mut Vec<Send>) {
        let value = self.operations.len() as u64 + 1;
        let mut sent = Vec::new();
        let mut body = value.to_le_bytes().to_vec();
        body.resize(8 + self.rng.below(40) as usize, 0);
        let durable = self.durable > 0 && self.rng.chance(self.durable, 1_000);
        let one = &mut self.all[index];
        let number = one.machine.submit(now, body.into(), durable, &mut sent);
        let Some(number) = number else { return };
        let called = now.micros;
        self.operations.push(Operation {
            client: index,
            number,
            value,
            called,
            done: None,
            durable,
            lost: false,
        });
        sends.append(&mut sent);
    }

    pub fn act(&mut self, now: Now) -> Vec<Send> {
        let mut sends = Vec::new();
        for index in 0..self.all.len() {
            let one = &mut self.all[index];
            let may_ask = !self.stopped && one.machine.outstanding() < self.window;
            if may_ask && now.micros >= one.next_at {
                one.next_at = now.micros + 1 + self.rng.below(2 * self.think);
                self.ask(now, index, &mut sends);
            }
            let one = &mut self.all[index];
            if one.machine.deadline().is_some_and(|at| at <= now.micros) {
                let mut sent = Vec::new();
                one.machine.timeout(now, &mut sent);
                sends.append(&mut sent);
            }
        }
        sends
    }

    /// Returns the writes that a client has learned to be lost.
    pub fn on_reply(&mut self, now: Now, bytes: Bytes) -> Vec<Operation> {
        let reply = Reply::decode(bytes).expect("what was encoded decodes");
        let index = (reply.reply.client.gateway - 100) as usize;
        let finished = self.all[index].machine.on_reply(now, reply);
        if let Some(loss) = self.all[index].machine.take_loss() {
            return self.lose(index, &loss);
        }
        let Some(finished) = finished else { return Vec::new() };
        let operation = self
            .operations
            .iter_mut()
            .rev()
            .find(|operation| (operation.client, operation.number) == (index, finished.number))
            .expect("it was asked");
        let found = u64::from_le_bytes(finished.body[..].try_into().unwrap_or_default());
        assert_eq!(operation.done.is_some(), finished.again, "a request is done once");
        operation.done = Some((now.micros, finished.position, found));
        assert_eq!(finished.body.len(), 8, "the leader's answer carries the result");
        Vec::new()
    }

    /// A client was told that the effects of what it asked beyond `last` are gone.
    fn lose(&mut self, index: usize, loss: &Loss) -> Vec<Operation> {
        let gone = |operation: &&mut Operation| {
            operation.client == index && operation.number > loss.last && !operation.lost
        };
        let replays = loss.dropped.is_empty() && loss.replayed > 0;
        let mut lost = Vec::new();
        for operation in self.operations.iter_mut().filter(gone) {
            operation.lost = !replays;
            lost.push(operation.clone());
        }
        lost.retain(|operation| operation.done.is_some());
        assert!(!lost.is_empty(), "nothing that was acknowledged is missing");
        assert!(!replays || lost.len() == loss.replayed, "what is not durable is kept");
        lost
    }
}
