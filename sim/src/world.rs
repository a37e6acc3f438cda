//! The world: replicas, gateways, network and disks around one queue of events. Here is the loop
//! and what comes to a process; `effects` has what a process wants done, `checks` what is looked at
//! after every step, `faults` what goes wrong.

use std::collections::HashSet;
use std::fmt;

use bytes::Bytes;
use smr::rng::Rng;
use smr::{CheckpointChunk, ClientMessage, Effect, Host, Input, Now, ReplicaId};

use crate::bug::Bug;
use crate::disasters::Disaster;
use crate::faults::Injector;
use crate::gateway::{Gateway, Operation};
use crate::ledger::{Checked, Ledger};
use crate::marks::Marks;
use crate::network::Network;
use crate::node::{Incoming, Node};
use crate::options::Options;
use crate::queue::Queue;
use crate::service::TestService;
use crate::subject::{Subject, Tap};
use crate::truth::Truth;

/// More than this is a storm, not a run: seeds have some thousands.
const MOST_EVENTS: u64 = 500_000;

/// What happens.
#[derive(Debug)]
pub(crate) enum Event {
    /// Something comes to a process: to that life of it, or to whichever is there.
    Process { node: usize, life: Option<u64>, incoming: Incoming },
    /// A sync of a disk is over, unless the machine has crashed since.
    DiskDone { node: usize, life: u64 },
    /// A reply comes to a gateway.
    Reply { gateway: usize, bytes: Bytes },
    /// A gateway's client wants to look at the time.
    GatewayTimer { gateway: usize, due: u64 },
    /// A gateway gets something to do.
    GatewayIssue { gateway: usize, life: u64 },
    /// The next fault.
    Fault,
    /// Several replicas die or are cut off at once.
    Disaster(Disaster),
    /// A cut ends.
    Mend(u64),
    /// A cut that comes and goes: how often still, and which it is while it is there.
    Flap { node: usize, times: u32, cut: Option<u64> },
    /// The network gets its usual losses back.
    LossEnds(u64),
    /// A replica that died starts again.
    Restart { node: usize, life: u64 },
    /// A paused replica goes on.
    Resume { node: usize, life: u64 },
}

/// Where the story of a run goes.
#[derive(Debug, Default)]
pub enum Trace {
    /// Nowhere.
    #[default]
    Off,
    /// To standard output, line by line.
    Print,
    /// Here.
    Keep(Vec<String>),
}

/// How long a stalled disk takes to notice that it is healed, in microseconds.
const STALL_STEP: u64 = 500;

pub(crate) type Effects<P> =
    Vec<Effect<<P as smr::Protocol>::Message, <P as smr::Protocol>::Effect>>;

pub(crate) struct World<P: Subject> {
    pub(crate) options: Options,
    pub(crate) queue: Queue<Event>,
    pub(crate) network: Network,
    pub(crate) nodes: Vec<Node<P>>,
    pub(crate) gateways: Vec<Gateway>,
    pub(crate) history: Vec<Operation>,
    pub(crate) ledger: Ledger,
    pub(crate) truth: Truth,
    /// Logged requests whose answers must be durable.
    pub(crate) durable: HashSet<(smr::ClientId, smr::RequestNumber)>,
    pub(crate) marks: Marks,
    pub(crate) injector: Injector,
    /// Chooses what the clients do.
    pub(crate) workload: Rng,
    pub(crate) trace: Trace,
    pub(crate) filters: Vec<Filter>,
    /// More replicas have lost their state than the durability can bear.
    pub(crate) wiped: bool,
    /// Nobody has the state any more: nothing may be answered from here on.
    pub(crate) gone: bool,
    pub(crate) events: u64,
}

/// A scenario's rule: messages of this name on this link vanish.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Filter {
    pub(crate) name: String,
    pub(crate) from: Option<usize>,
    pub(crate) to: Option<usize>,
}

impl<P: Subject> World<P> {
    /// A world in which nothing has started.
    pub(crate) fn new(options: Options, trace: Trace) -> World<P> {
        let mut rng = Rng::new(options.seed);
        let replicas = usize::from(options.replicas);
        let nodes = (0..replicas).map(|id| Node::new(id, &options, &mut rng)).collect();
        // Scenarios add gateways as they go.
        let addresses = replicas + usize::from(options.workload.apart) + 4;
        World {
            network: Network::new(options.network, addresses, rng.next_u64()),
            injector: Injector::new(&options, rng.next_u64()),
            workload: Rng::new(rng.next_u64()),
            queue: Queue::new(),
            nodes,
            gateways: Vec::new(),
            history: Vec::new(),
            ledger: Ledger::new(options.durability == smr::Durability::Lazy),
            truth: Truth::new(&options),
            durable: HashSet::new(),
            marks: Marks::default(),
            trace,
            filters: Vec::new(),
            wiped: false,
            gone: false,
            events: 0,
            options,
        }
    }

    /// Notes a line of the story; it is not even written if nobody listens.
    pub(crate) fn note(&mut self, line: impl FnOnce() -> String) {
        let now = self.queue.now();
        match &mut self.trace {
            Trace::Off => {}
            Trace::Print => println!("{:>4}.{:06} {}", now / 1_000_000, now % 1_000_000, line()),
            Trace::Keep(lines) => {
                lines.push(format!("{:>4}.{:06} {}", now / 1_000_000, now % 1_000_000, line()));
            }
        }
    }

    /// Whether the story is told.
    pub(crate) fn traced(&self) -> bool {
        !matches!(self.trace, Trace::Off)
    }

    /// Lets everything happen that is due within `duration`.
    pub(crate) fn run(&mut self, duration: u64) -> Checked<()> {
        let until = self.queue.now() + duration;
        while let Some(event) = self.queue.pop(until) {
            self.events += 1;
            self.look();
            if self.events > MOST_EVENTS {
                return Err(format!("livelock: more than {MOST_EVENTS} events"));
            }
            self.happen(event)?;
        }
        Ok(())
    }

    fn happen(&mut self, event: Event) -> Checked<()> {
        match event {
            Event::Process { node, life, incoming } => {
                let target = &mut self.nodes[node];
                if !target.is_up() || life.is_some_and(|life| life != target.life) {
                    return Ok(());
                }
                if target.paused {
                    target.inbox.push(incoming);
                    return Ok(());
                }
                self.deliver(node, incoming)
            }
            Event::DiskDone { node, life } => {
                self.on_disk_done(node, life);
                Ok(())
            }
            Event::Reply { gateway, .. }
            | Event::GatewayTimer { gateway, .. }
            | Event::GatewayIssue { gateway, .. }
                if self.is_beside_paused(gateway) =>
            {
                self.queue.after(1_000, event);
                Ok(())
            }
            Event::Reply { gateway, bytes } => self.on_reply(gateway, bytes),
            Event::GatewayTimer { gateway, due } => {
                self.on_gateway_timer(gateway, due);
                Ok(())
            }
            Event::GatewayIssue { gateway, life } => {
                self.on_issue(gateway, life);
                Ok(())
            }
            Event::Fault => self.on_fault(),
            Event::Disaster(disaster) => {
                self.on_disaster(&disaster);
                Ok(())
            }
            Event::Mend(cut) => {
                self.note(|| format!("cut {cut} is mended"));
                self.network.mend(cut);
                Ok(())
            }
            Event::Flap { node, times, cut } => {
                self.on_flap(node, times, cut);
                Ok(())
            }
            Event::LossEnds(loss) => {
                self.network.options.loss = loss;
                Ok(())
            }
            Event::Restart { node, life } => {
                let target = &self.nodes[node];
                if target.is_up() || target.life != life {
                    return Ok(());
                }
                self.start(node)
            }
            Event::Resume { node, life } => {
                if self.nodes[node].life == life {
                    self.resume(node);
                }
                Ok(())
            }
        }
    }

    /// Starts a replica's process.
    pub(crate) fn start(&mut self, id: usize) -> Checked<()> {
        let recovered = self.nodes[id].start(&self.options, &mut self.ledger)?;
        // Whoever lost nothing is forgetful all the same until it has taken part again.
        let life = self.nodes[id].life;
        self.note(|| {
            let trust = recovered.trust;
            format!("r{id} starts, life {life}, {trust:?}, view {}", recovered.view.0)
        });
        if recovered.checkpoint.is_some() {
            self.marks.hit("restarted-from-checkpoint");
        }
        let view = recovered.view;
        self.step(id, |host, now, effects| host.step(now, Input::Start(recovered), effects))?;
        if self.nodes[id].host.as_ref().is_some_and(|host| host_view(host) < view) {
            return Err(format!("view: r{id} started below the view on its disk"));
        }
        self.start_beside(id);
        Ok(())
    }

    /// Kills a replica's process. `keep` of its unacknowledged batches reach the disk.
    pub(crate) fn crash(&mut self, id: usize, keep: Option<usize>) {
        if !self.nodes[id].is_up() {
            return;
        }
        self.note(|| format!("r{id} crashes"));
        if self.lazy() && self.nodes[id].forgets() {
            self.marks.hit("crash-while-forgetful");
        }
        if self.nodes[id].disk.is_busy() {
            self.marks.hit("crash-tears-batches");
        }
        self.nodes[id].stop(keep);
        if self.options.durability == smr::Durability::Memory {
            self.nodes[id].forgetful = true;
        }
        self.stop_beside(id);
        let forgetful = self.nodes.iter().filter(|node| node.forgetful).count();
        self.wiped |= forgetful > self.options.f();
        if self.nodes.iter().all(|node| !node.is_up()) {
            self.marks.hit("crash-of-all");
            self.gone |= self.options.durability == smr::Durability::Memory;
        }
    }

    pub(crate) fn resume(&mut self, id: usize) {
        let node = &mut self.nodes[id];
        if !node.is_up() || !node.paused {
            return;
        }
        node.paused = false;
        let life = Some(node.life);
        for incoming in std::mem::take(&mut node.inbox) {
            self.queue.after(0, Event::Process { node: id, life, incoming });
        }
        self.note(|| format!("r{id} goes on"));
    }

    fn on_disk_done(&mut self, id: usize, life: u64) {
        let now = self.queue.now();
        let node = &mut self.nodes[id];
        if !node.is_up() || node.life != life {
            return;
        }
        if now < node.disk.stalled_until {
            // What heals the disk ends its stall early.
            let again = node.disk.stalled_until.min(now + STALL_STEP);
            self.queue.at(again, Event::DiskDone { node: id, life });
            return;
        }
        let number = node.disk.synced();
        if self.options.bug != Some(Bug::StoredEarly) {
            let incoming = Incoming::Stored(number);
            self.queue.after(0, Event::Process { node: id, life: Some(life), incoming });
        }
        self.sync(id);
    }

    /// Starts a sync of what is queued, unless one is under way.
    pub(crate) fn sync(&mut self, id: usize) {
        let node = &mut self.nodes[id];
        let life = node.life;
        let Some(duration) = node.disk.sync() else { return };
        self.queue.after(duration, Event::DiskDone { node: id, life });
        if self.options.bug == Some(Bug::StoredEarly) {
            let incoming = Incoming::Stored(self.nodes[id].disk.syncing());
            self.queue.after(0, Event::Process { node: id, life: Some(life), incoming });
        }
    }

    /// Hands an input to a process and does what follows.
    pub(crate) fn step(
        &mut self,
        id: usize,
        input: impl FnOnce(&mut Host<Tap<P>, TestService>, Now, &mut Effects<P>),
    ) -> Checked<()> {
        let world = self.queue.now();
        let node = &mut self.nodes[id];
        let now = node.clock.now(world);
        let host = node.host.as_mut().expect("only what is up takes steps");
        let mut effects = Vec::new();
        input(host, now, &mut effects);
        self.after_step(id)?;
        self.interpret(id, effects)?;
        self.arm(id);
        Ok(())
    }

    fn arm(&mut self, id: usize) {
        let node = &mut self.nodes[id];
        let Some(host) = &node.host else { return };
        let Some(deadline) = host.deadline() else { return };
        let due = node.clock.world(deadline).max(self.queue.now());
        if node.timer.is_none_or(|timer| timer > due) {
            node.timer = Some(due);
            let life = Some(node.life);
            self.queue.at(due, Event::Process { node: id, life, incoming: Incoming::Timer(due) });
        }
    }

    fn deliver(&mut self, id: usize, incoming: Incoming) -> Checked<()> {
        match incoming {
            Incoming::Message { from, incarnation, bytes } => {
                let Ok(message) = P::decode(bytes) else {
                    return Err("codec: an encoded message does not decode".into());
                };
                if self.traced() {
                    self.note(|| format!("r{id} <- r{from} {}", brief(&message)));
                }
                let from = ReplicaId(from as u8);
                let input = Input::Message { from, incarnation, message };
                self.step(id, |host, now, effects| host.step(now, input, effects))
            }
            Incoming::Client(bytes) => self.deliver_client(id, bytes),
            Incoming::Turn => self.deliver_said(id),
            Incoming::Stored(number) => {
                self.note(|| format!("r{id} stored {}", number.0));
                self.step(id, |host, now, effects| host.step(now, Input::Stored(number), effects))
            }
            Incoming::Timer(due) => self.deliver_timer(id, due),
            Incoming::CheckpointTick => self.checkpoint_tick(id),
            Incoming::CheckpointPut(file) => {
                let (position, bytes) = (file.position, file.bytes.len() as u64);
                let in_place = self.nodes[id].disk.checkpoint().map(|file| file.position.op);
                if in_place.is_some_and(|in_place| in_place >= position.op) {
                    return Ok(()); // a transferred one overtook it
                }
                self.nodes[id].disk.put_checkpoint(file);
                self.marks.hit("checkpoint-written");
                self.note(|| format!("r{id} checkpoint written {}", crate::ledger::show(position)));
                let input = Input::CheckpointWritten { position, bytes };
                self.step(id, |host, now, effects| host.step(now, input, effects))
            }
            Incoming::ReadPiece { to, position, offset } => {
                let chunk: Option<CheckpointChunk> = self.nodes[id].piece(position, offset);
                let input = Input::CheckpointChunk { to, chunk };
                self.step(id, |host, now, effects| host.step(now, input, effects))
            }
            Incoming::Install(position) => self.install(id, position),
        }
    }

    fn deliver_timer(&mut self, id: usize, due: u64) -> Checked<()> {
        let world = self.queue.now();
        let node = &mut self.nodes[id];
        if node.timer != Some(due) {
            return Ok(());
        }
        node.timer = None;
        let now = node.clock.now(world);
        let host = node.host.as_ref().expect("looked at before");
        if host.deadline().is_none_or(|deadline| deadline > now.micros) {
            self.arm(id);
            return Ok(());
        }
        self.step(id, |host, now, effects| host.step(now, Input::Timeout, effects))
    }

    fn deliver_client(&mut self, id: usize, bytes: Bytes) -> Checked<()> {
        let Ok(message) = ClientMessage::decode(bytes) else {
            return Err("codec: an encoded client message does not decode".into());
        };
        match &message {
            ClientMessage::Request { request, durable, .. } => {
                if *durable {
                    self.durable.insert((request.client, request.number));
                }
                self.note(|| {
                    let client = request.client;
                    format!("r{id} <- g{} request {}", client.gateway, request.number.0)
                });
                self.mark_request(id, request);
            }
            ClientMessage::Read { request, .. } => {
                let (gateway, number) = (request.client.gateway, request.number.0);
                self.note(|| format!("r{id} <- g{gateway} read {number}"));
            }
        }
        let said = &mut self.nodes[id].said;
        said.push(message);
        if self.options.gather == 0 {
            return self.deliver_said(id);
        }
        if said.len() == 1 {
            self.later(id, self.options.gather, Incoming::Turn);
        }
        Ok(())
    }

    fn deliver_said(&mut self, id: usize) -> Checked<()> {
        let said = std::mem::take(&mut self.nodes[id].said);
        if said.len() > 1 {
            self.marks.hit("said-together");
        }
        self.step(id, |host, now, effects| host.clients(now, said.into_iter(), effects))
    }
}

fn host_view<P: Subject>(host: &Host<Tap<P>, TestService>) -> smr::View {
    smr::Protocol::view(host.protocol())
}

/// A message on one short line: the numbers without the names of their types.
pub(crate) fn brief(message: &impl fmt::Debug) -> String {
    const LENGTH: usize = 240;
    let mut text = format!("{message:?}");
    for noise in ["Viewstamp ", "View(", "OpNumber(", "Incarnation(", "ReplicaId("] {
        text = text.replace(noise, "");
    }
    text = text.replace("),", ",").replace(") }", " }").replace(")]", "]");
    if text.len() > LENGTH {
        let end = (0..=LENGTH).rev().find(|&end| text.is_char_boundary(end)).unwrap_or(0);
        text.truncate(end);
        text.push_str("...");
    }
    text
}
