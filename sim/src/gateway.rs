//! The clients: gateways beside a replica, which die with it, and gateways of their own. Each sends
//! commands through the protocol's client machine and notes what it saw.

use std::collections::HashMap;

use bytes::Bytes;
use smr::client::{Answer, Client, Finished, OnLoss, Retry, Sends};
use smr::rng::Rng;
use smr::{ClientId, Incarnation, Now, ReplicaId, Reply, RequestNumber, Viewstamp};

use crate::ledger::{Checked, show};
use crate::linear::{self, Call, Verdict};
use crate::node::Incoming;
use crate::options::{Keys, Workload};
use crate::service::{Action, Command};
use crate::subject::Subject;
use crate::world::{Event, World};

/// The first id of the gateways that live apart.
pub(crate) const APART: u32 = 100;

pub(crate) struct Gateway {
    pub(crate) id: u32,
    /// The replica beside it.
    pub(crate) home: Option<usize>,
    pub(crate) address: usize,
    pub(crate) life: u64,
    /// None while it is down, or after it was told to stop.
    pub(crate) client: Option<Client>,
    /// Operations that it still has to start.
    pub(crate) left: u32,
    /// Which operation each unanswered request or read is.
    pub(crate) under_way: HashMap<(bool, RequestNumber), usize>,
    timer: Option<u64>,
    /// Which operation each answered request was, where requests may be repeated.
    answered: HashMap<RequestNumber, usize>,
    /// Empty requests for durability, each with what its client had seen before.
    pub(crate) flushes: HashMap<RequestNumber, Viewstamp>,
    /// The last operation whose effect its client may have seen.
    pub(crate) seen: Viewstamp,
    /// What its client does about losses.
    pub(crate) on_loss: OnLoss,
    /// How many of its operations in a hundred are reads.
    reads: u64,
    /// How many of its requests in a hundred wait until they are durable.
    durable: u64,
}

/// One operation as its client saw it.
#[derive(Clone, Debug)]
pub(crate) struct Operation {
    pub(crate) called: u64,
    pub(crate) returned: Option<u64>,
    pub(crate) command: Command,
    pub(crate) found: Option<u64>,
    /// The highest position that any client knew when this one was called.
    floor: Viewstamp,
    pub(crate) position: Option<Viewstamp>,
    /// Whose it is: which gateway, and which of its lives.
    pub(crate) gateway: (usize, u64),
    /// It does not go through the log.
    pub(crate) read: bool,
    /// Its answer had to be durable.
    pub(crate) durable: bool,
    /// Its client was told that it is not executed.
    pub(crate) dropped: bool,
    /// Its client was told that it was executed and lost.
    pub(crate) told_lost: bool,
}

impl Gateway {
    fn new(id: u32, home: Option<usize>, address: usize, left: u32) -> Gateway {
        Gateway {
            id,
            home,
            address,
            life: 0,
            client: None,
            left,
            under_way: HashMap::new(),
            timer: None,
            answered: HashMap::new(),
            flushes: HashMap::new(),
            seen: Viewstamp::default(),
            on_loss: OnLoss::Report,
            reads: 0,
            durable: 0,
        }
    }
}

impl Workload {
    fn key(&self, rng: &mut Rng) -> u16 {
        let keys = u64::from(self.keys);
        let key = match self.choice {
            Keys::Uniform => rng.below(keys),
            Keys::Hot if rng.chance(9, 10) => 0,
            Keys::Hot => rng.below(keys),
            // 2^u - 1 over a uniform u: the density falls as one over the key.
            Keys::Zipf => {
                let bits = u64::from(u64::BITS - keys.leading_zeros());
                let span = 1 << rng.below(bits + 1);
                rng.below(span).min(keys - 1)
            }
        };
        key as u16
    }
}

impl<P: Subject> World<P> {
    /// Creates the gateways that the options ask for; those beside a replica start with it.
    pub(crate) fn create_gateways(&mut self) {
        let workload = self.options.workload;
        for home in 0..usize::from(workload.beside).min(self.nodes.len()) {
            self.gateways.push(Gateway::new(home as u32, Some(home), home, workload.operations));
        }
        for index in 0..workload.apart {
            self.add_gateway(APART + u32::from(index), workload.operations);
        }
        for index in 0..self.gateways.len() {
            let replays = self.workload.chance(workload.replaying, 100);
            let gateway = &mut self.gateways[index];
            if replays {
                gateway.on_loss = OnLoss::Replay;
            }
            // Some only read and some only write: readers may be the last to hear of a change.
            let choice = [workload.reads, workload.reads, 0, 100];
            gateway.reads = choice[self.workload.below(4) as usize];
            gateway.durable = if self.workload.chance(1, 2) { workload.durable } else { 0 };
            if gateway.home.is_none() {
                self.open(index);
            }
        }
    }

    /// Adds a gateway that lives apart.
    pub(crate) fn add_gateway(&mut self, id: u32, operations: u32) -> usize {
        let address = self.nodes.len() + (id - APART) as usize;
        self.gateways.push(Gateway::new(id, None, address, operations));
        self.gateways.len() - 1
    }

    /// Whether a gateway's process is paused.
    pub(crate) fn is_beside_paused(&self, index: usize) -> bool {
        self.gateways[index].home.is_some_and(|home| self.nodes[home].paused)
    }

    pub(crate) fn start_beside(&mut self, node: usize) {
        let beside = |gateway: &Gateway| gateway.home == Some(node);
        if let Some(gateway) = self.gateways.iter().position(beside) {
            self.open(gateway);
        }
    }

    pub(crate) fn stop_beside(&mut self, node: usize) {
        for gateway in self.gateways.iter_mut().filter(|gateway| gateway.home == Some(node)) {
            gateway.client = None;
            gateway.under_way.clear();
            gateway.timer = None;
        }
    }

    /// Starts a life of a gateway.
    pub(crate) fn open(&mut self, index: usize) {
        let gateway = &mut self.gateways[index];
        gateway.life += 1;
        if gateway.life > 1 {
            self.marks.hit("gateway-restarted");
        }
        let incarnation = match gateway.home {
            Some(home) => self.nodes[home].incarnation,
            None => Incarnation(gateway.life),
        };
        let replicas = self.options.replicas;
        let first = match gateway.home {
            Some(home) => ReplicaId(home as u8),
            None => ReplicaId(self.workload.below(u64::from(replicas)) as u8),
        };
        let times = self.options.times;
        let retry = Retry::after(times.retry);
        let id = ClientId { gateway: gateway.id, incarnation };
        #[allow(unused_mut)] // only a planted defect changes it
        let mut client = Client::new(id, replicas, first, retry, gateway.on_loss);
        #[cfg(feature = "planted-bugs")]
        {
            let bug = self.options.bug.and_then(crate::Bug::of_vsr);
            client.trusts_numbers = bug == Some(vsr::Bug::CoverageByNumber);
        }
        gateway.client = Some(client);
        gateway.answered.clear();
        gateway.flushes.clear();
        gateway.seen = Viewstamp::default();
        let life = gateway.life;
        self.queue.after(1, Event::GatewayIssue { gateway: index, life });
    }

    pub(crate) fn client_now(&self) -> Now {
        let micros = self.queue.now();
        Now { micros, unix_ms: micros / 1_000 }
    }

    pub(crate) fn on_issue(&mut self, index: usize, life: u64) {
        let workload = self.options.workload;
        let gateway = &self.gateways[index];
        if gateway.life != life || gateway.client.is_none() || gateway.left == 0 {
            return;
        }
        if gateway.under_way.len() < workload.window {
            let (command, read) = self.choose(gateway.reads);
            let durable = !read && self.workload.chance(self.gateways[index].durable, 100);
            if durable && self.lazy() && self.workload.chance(1, 3) {
                self.flush(index);
            }
            if self.issue(index, command, read, durable).is_some() {
                self.gateways[index].left -= 1;
            }
        }
        let think = 1 + self.workload.below(2 * workload.think);
        self.queue.after(think, Event::GatewayIssue { gateway: index, life });
    }

    fn choose(&mut self, reads: u64) -> (Command, bool) {
        let workload = self.options.workload;
        let rng = &mut self.workload;
        let key = workload.key(rng);
        let id = self.history.len() as u64 + 1;
        let padding = rng.below(u64::from(workload.padding) + 1) as u16;
        let read = rng.chance(reads, 100);
        let action = if read {
            Action::Get
        } else if rng.chance(workload.flags, 100) {
            Action::Flag
        } else {
            match rng.below(4) {
                0 | 1 => Action::Put(id),
                2 => Action::Append(id),
                _ => {
                    let last = self.ledger.last();
                    let expected = self.ledger.value_at(key, last).unwrap_or(0);
                    Action::Swap { expected, new: id }
                }
            }
        };
        (Command { id, key, action, padding }, read)
    }

    /// Sends an operation, unless the client's window is full; returns its place in the history.
    pub(crate) fn issue(
        &mut self,
        index: usize,
        command: Command,
        read: bool,
        durable: bool,
    ) -> Option<usize> {
        let now = self.client_now();
        let client = self.gateways[index].client.as_mut()?;
        let mut sends = Vec::new();
        let body = Bytes::from(command.encode());
        let number = if read {
            client.read(now, body, &mut sends)?
        } else {
            client.submit(now, body, durable, &mut sends)?
        };
        let operation = self.history.len();
        let known = self.history.iter().filter_map(|operation| operation.position);
        let floor = known.filter(|&position| self.ledger.stands(position)).max();
        let gateway = &mut self.gateways[index];
        gateway.under_way.insert((read, number), operation);
        let (id, life) = (gateway.id, gateway.life);
        self.history.push(Operation {
            called: now.micros,
            returned: None,
            command,
            found: None,
            floor: floor.unwrap_or_default(),
            position: None,
            gateway: (index, life),
            read,
            durable,
            dropped: false,
            told_lost: false,
        });
        self.note(|| format!("g{id} calls #{operation} {:?} on {}", command.action, command.key));
        self.send_client(index, sends);
        Some(operation)
    }

    pub(crate) fn send_client(&mut self, index: usize, sends: Sends) {
        let address = self.gateways[index].address;
        for (ReplicaId(to), message) in sends {
            let node = usize::from(to);
            let mut bytes = Vec::new();
            message.encode(&mut bytes);
            let bytes = Bytes::from(bytes);
            for at in self.network.transit(self.queue.now(), address, node).into_iter().flatten() {
                let incoming = Incoming::Client(bytes.clone());
                self.queue.at(at, Event::Process { node, life: None, incoming });
            }
        }
        self.arm_gateway(index);
    }

    fn arm_gateway(&mut self, index: usize) {
        let gateway = &mut self.gateways[index];
        let deadline = gateway.client.as_ref().and_then(Client::deadline);
        if let Some(due) = deadline
            && gateway.timer.is_none_or(|timer| timer > due)
        {
            gateway.timer = Some(due);
            self.queue.at(due, Event::GatewayTimer { gateway: index, due });
        }
    }

    pub(crate) fn on_gateway_timer(&mut self, index: usize, due: u64) {
        let now = self.client_now();
        let gateway = &mut self.gateways[index];
        if gateway.timer != Some(due) {
            return;
        }
        gateway.timer = None;
        let Some(client) = &mut gateway.client else { return };
        let mut sends = Vec::new();
        if client.deadline().is_some_and(|deadline| deadline <= now.micros) {
            client.timeout(now, &mut sends);
        }
        self.send_client(index, sends);
    }

    pub(crate) fn on_reply(&mut self, index: usize, bytes: Bytes) -> Checked<()> {
        let Ok(reply) = Reply::decode(bytes) else {
            return Err("codec: an encoded reply does not decode".into());
        };
        let now = self.client_now();
        let Some(client) = &mut self.gateways[index].client else { return Ok(()) };
        let mut sends = Vec::new();
        let finished = client.on_reply(now, reply, &mut sends);
        let loss = client.take_loss();
        self.send_client(index, sends);
        if let Some(loss) = loss {
            self.learn_loss(index, &loss)?;
        }
        match finished {
            Some(finished) => self.finish(index, &finished),
            None => Ok(()),
        }
    }

    fn finish(&mut self, index: usize, finished: &Finished) -> Checked<()> {
        if !finished.read && self.gateways[index].flushes.contains_key(&finished.number) {
            return match finished.answer {
                Answer::Done { .. } => self.flushed(index, finished.number),
                _ => Ok(()),
            };
        }
        let key = (finished.read, finished.number);
        let gateway = &mut self.gateways[index];
        let id = gateway.id;
        let known = gateway.under_way.remove(&key);
        let again = || gateway.answered.get(&finished.number).filter(|_| finished.again).copied();
        let Some(operation) = known.or_else(again) else {
            return Err(format!("client: gateway {id} has an answer to nothing"));
        };
        if !finished.read && gateway.on_loss == OnLoss::Replay {
            gateway.answered.insert(finished.number, operation);
        }
        if finished.again {
            self.marks.hit("replayed");
        }
        match &finished.answer {
            Answer::Done { position, body, .. } => {
                self.done(index, operation, finished.read, *position, body)
            }
            Answer::MustLog => {
                // The same operation again, ordered this time.
                let (now, mut sends) = (self.client_now(), Vec::new());
                let body = Bytes::from(self.history[operation].command.encode());
                let client = self.gateways[index].client.as_mut().expect("it took the reply");
                self.history[operation].read = false;
                if let Some(number) = client.submit(now, body, false, &mut sends) {
                    self.gateways[index].under_way.insert((false, number), operation);
                }
                self.send_client(index, sends);
                Ok(())
            }
            Answer::Retired => Err(format!("client: the living gateway {id} is retired")),
            Answer::StateLost if !self.wiped => {
                Err(format!("state lost: gateway {id} is told so without need"))
            }
            Answer::StateLost => {
                self.gateways[index].client = None;
                self.gateways[index].left = 0;
                self.gateways[index].under_way.clear();
                self.note(|| format!("g{id} learns that the state is lost"));
                Ok(())
            }
        }
    }

    /// An operation has its answer: the log's answer, at a place that respects real time.
    fn done(
        &mut self,
        index: usize,
        number: usize,
        read: bool,
        position: Viewstamp,
        body: &[u8],
    ) -> Checked<()> {
        let now = self.queue.now();
        self.check_seen(index, position)?;
        let operation = &mut self.history[number];
        let Ok(found) = body.try_into().map(u64::from_le_bytes) else {
            return Err(format!("reply: operation {number} got an answer of {} bytes", body.len()));
        };
        let key = operation.command.key;
        if read && self.ledger.value_at(key, position) != Some(found) {
            return Err(format!(
                "read: operation {number} found {found:#x} in key {key} as of {}, which the log \
                 does not say",
                show(position)
            ));
        }
        let floor = operation.floor;
        // A read may see no more than was known; a later write has a later position.
        let sees = self.ledger.holds(position, floor) && (read || position != floor);
        if !sees && self.ledger.stands(floor) {
            return Err(format!(
                "real time: operation {number} is as of {}, called when {} was known",
                show(position),
                show(floor)
            ));
        }
        if operation.durable && self.lazy() && position.op > self.ledger.durable().op {
            let position = show(position);
            return Err(format!("durability: operation {number} of {position} is not durable"));
        }
        let operation = &mut self.history[number];
        operation.returned = Some(now);
        operation.found = Some(found);
        operation.position = Some(position);
        let id = self.gateways[index].id;
        self.note(|| format!("g{id} has #{number} = {found:#x} as of {}", position.op.0));
        Ok(())
    }

    /// Whether every client has all its answers.
    pub(crate) fn clients_are_done(&self) -> bool {
        self.gateways.iter().all(|gateway| {
            let idle = |client: &Client| {
                gateway.left == 0 && gateway.under_way.is_empty() && client.outstanding() == 0
            };
            gateway.client.as_ref().is_none_or(idle)
        })
    }

    /// Whether the clients' history is linearizable, key by key.
    pub(crate) fn check_history(&mut self) -> Checked<()> {
        self.check_outcomes()?;
        let mut keys: HashMap<u16, Vec<Call>> = HashMap::new();
        for operation in &self.history {
            let Operation { called, returned, found, .. } = *operation;
            let lost = operation.position.is_some_and(|position| !self.ledger.stands(position));
            let again = !operation.read && self.ledger.executions(operation.command.id) > 0;
            if operation.dropped || (lost && !again) {
                continue;
            }
            // Sent again by a client that did not live to see the answer.
            let (returned, found) = if lost { (None, None) } else { (returned, found) };
            let Command { key, action, .. } = operation.command;
            keys.entry(key).or_default().push(Call { called, returned, action, found });
        }
        for (key, calls) in keys {
            match linear::check(&calls) {
                Verdict::Linearizable => {}
                Verdict::Undecided => self.marks.hit("linearizability-undecided"),
                Verdict::Violation => {
                    return Err(format!("linearizability: no order explains key {key}"));
                }
            }
        }
        Ok(())
    }
}
