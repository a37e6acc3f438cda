//! How one embeds Mu: `cargo run --release -p mu --example embed`.
//!
//! Three replicas of a counter, each on a thread with an endpoint of its own, as if they were
//! processes. A replica is a state machine: its thread gives it the time, what has become of its
//! verbs, and a look at its memory, and does what it wants done. Measurements, with processes, are
//! in `lockstep bench mu`.
//!
//! Left out: messages and checkpoints, which only those need that come back without their memory.

use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use bytes::Bytes;
use fabric::shm::{Endpoint, Window};
use fabric::{Fabric, RegionId};
use mu::{Config, Event, Memory, Replica, Timing};
use smr::contract::{Input, Protocol, Recovered, Role, Trust};
use smr::{
    BadCheckpoint, ClientId, ClientMessage, Context, Effect, Executor, GroupId, Host, Identity,
    Incarnation, Log, Now, Outcome, ReadOutcome, ReplicaId, Request, RequestNumber, StateMachine,
    View, Viewstamp,
};

const REPLICAS: u8 = 3;
const REQUESTS: u64 = 100_000;
/// The sum of all requests' numbers.
const TOTAL: u64 = REQUESTS * (REQUESTS + 1) / 2;

/// The service: adds numbers up, and answers with the sum.
#[derive(Default)]
struct Counter(u64);

impl StateMachine for Counter {
    type Undo = ();

    fn apply(&mut self, _: Context, request: &[u8], reply: &mut Vec<u8>) {
        // Any bytes are a valid request.
        self.0 += request.first_chunk().map_or(0, |bytes| u64::from_le_bytes(*bytes));
        reply.extend_from_slice(&self.0.to_le_bytes());
    }

    fn undo(&mut self, (): ()) {
        unreachable!("Mu executes what is decided");
    }

    fn read(&self, _: u64, _: &[u8], reply: &mut Vec<u8>) -> ReadOutcome {
        reply.extend_from_slice(&self.0.to_le_bytes());
        ReadOutcome::Done
    }

    fn checkpoint_begin(&mut self) {}

    fn checkpoint_next(&mut self, _: usize, out: &mut Vec<u8>) -> bool {
        out.extend_from_slice(&self.0.to_le_bytes());
        true
    }

    fn checkpoint_abort(&mut self) {}

    fn restore_begin(&mut self) {
        self.0 = 0;
    }

    fn restore_chunk(&mut self, chunk: &[u8]) -> Result<(), BadCheckpoint> {
        self.0 = u64::from_le_bytes(chunk.try_into().map_err(|_| BadCheckpoint)?);
        Ok(())
    }
}

/// The log is in the replica's own regions: this is how it reads them.
struct Own(Window);

impl Memory for Own {
    fn load(&self, region: RegionId, offset: u32, words: &mut [u64]) {
        self.0.read(region, offset, words);
    }
}

struct Node {
    endpoint: Endpoint,
    host: Host<Replica<Own>, Counter>,
    start: Instant,
    effects: Vec<Effect<mu::Message, mu::Effect>>,
    words: Vec<u64>,
    /// The last answer: which request's, and the sum.
    answer: (u64, u64),
}

impl Node {
    fn new(config: Config, endpoint: Endpoint) -> Node {
        let memory = Own(endpoint.window(config.identity.replica).expect("its own"));
        let host = Host::new(Replica::new(config, memory), Executor::new(Counter::default()));
        let (effects, words, start) = (Vec::new(), Vec::new(), Instant::now());
        let mut node = Node { endpoint, host, start, effects, words, answer: (0, 0) };
        let (trust, log) = (Trust::New, Log::new(Viewstamp::default()));
        let recovered = Recovered { trust, view: View::default(), log, checkpoint: None };
        node.step(Input::Start(recovered));
        node
    }

    fn now(&self) -> Now {
        Now { micros: self.start.elapsed().as_micros() as u64, unix_ms: 0 }
    }

    fn step(&mut self, input: Input<mu::Message, Event>) {
        self.host.step(self.now(), input, &mut self.effects);
        self.perform();
    }

    fn perform(&mut self) {
        for effect in self.effects.drain(..) {
            match effect {
                Effect::Protocol(effect) => effect.perform(&mut self.endpoint),
                Effect::Reply(reply) => {
                    if let Outcome::Done { body, .. } = reply.outcome {
                        let sum = body[..].try_into().expect("eight bytes");
                        self.answer = (reply.number.0, u64::from_le_bytes(sum));
                    }
                }
                _ => {} // see above
            }
        }
    }

    /// One turn of the loop.
    fn turn(&mut self) {
        while let Some(completion) = self.endpoint.poll(&mut self.words) {
            let words = std::mem::take(&mut self.words);
            self.step(Input::Event(Event::Completed { completion, words }));
        }
        self.step(Input::Event(Event::Look));
        if self.host.deadline().is_some_and(|at| self.now().micros >= at) {
            self.step(Input::Timeout);
        }
    }

    fn leads(&self) -> bool {
        self.host.protocol().report().role == Role::Primary
    }

    fn sum(&self) -> u64 {
        self.host.executor().machine().0
    }

    fn ask(&mut self, number: u64) {
        let client = ClientId { gateway: 9, incarnation: Incarnation(1) };
        let body = Bytes::copy_from_slice(&number.to_le_bytes());
        let (number, oldest_unanswered) = (RequestNumber(number), RequestNumber(number));
        let request = Request { client, number, oldest_unanswered, body };
        let message = ClientMessage::Request { expected: View(0), durable: false, request };
        self.host.client(self.now(), message, &mut self.effects);
        self.perform();
    }

    /// The lowest id leads. It asks, and asks again for what a change of leaders may have dropped:
    /// what was executed is not executed twice.
    fn lead(&mut self) {
        let start = Instant::now();
        for number in 1..=REQUESTS {
            let mut again = Instant::now();
            while self.answer.0 < number {
                if self.leads() && Instant::now() >= again {
                    self.ask(number);
                    again = Instant::now() + Duration::from_millis(100);
                }
                self.turn();
            }
        }
        assert_eq!(self.answer.1, TOTAL);
        let each = start.elapsed().as_nanos() as u64 / REQUESTS;
        println!("{REQUESTS} requests, one after the other, {each} ns each");
        // Followers execute what they know to be decided: the leader tells them soon.
        let told = Instant::now() + Duration::from_millis(50);
        while Instant::now() < told {
            self.turn();
        }
    }
}

/// Endpoints that have each other's memory. Processes would connect through sockets with names.
fn endpoints(config: &Config) -> Vec<Endpoint> {
    let new = |id| Endpoint::new(mu::geometry(config), ReplicaId(id)).expect("memory");
    let mut endpoints: Vec<Endpoint> = (0..REPLICAS).map(new).collect();
    for high in 1..endpoints.len() {
        let (lower, rest) = endpoints.split_at_mut(high);
        for low in lower {
            let (here, there) = UnixStream::pair().expect("sockets");
            std::thread::scope(|scope| {
                let other = scope.spawn(|| low.attach(here));
                rest[0].attach(there).expect("attached");
                other.join().expect("no panic").expect("attached");
            });
        }
    }
    endpoints
}

fn config(id: u8) -> Config {
    let replica = ReplicaId(id);
    let identity = Identity { group: GroupId(1), replica, incarnation: Incarnation(1) };
    // Threads on few cores stand still for a while.
    let timing = Timing { heartbeat: 5_000, stall: 1_000_000, ..Timing::default() };
    Config { timing, ..Config::new(identity, REPLICAS) }
}

fn main() {
    let done = &AtomicBool::new(false);
    std::thread::scope(|scope| {
        for (id, endpoint) in (0..).zip(endpoints(&config(0))) {
            scope.spawn(move || {
                let mut node = Node::new(config(id), endpoint);
                if id == 0 {
                    node.lead();
                    // Relaxed: the flag carries nothing else.
                    done.store(true, Ordering::Relaxed);
                }
                while !done.load(Ordering::Relaxed) {
                    node.turn();
                    std::thread::yield_now();
                }
                println!("replica {id} has counted to {}", node.sum());
            });
        }
    });
}
