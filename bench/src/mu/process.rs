//! One process of a group that replicates over shared memory: its loop, its client and its clock.

use std::collections::VecDeque;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use bytes::Bytes;
use fabric::shm::{Endpoint, Window};
use fabric::{Access, Fabric, RegionId, RegionSpec};
use mu::{Config, Event, Limits, Memory, Operation, Replica, Timing};
use rustix::time::{ClockId, clock_gettime};
use smr::contract::{Input, Protocol, Recovered, Role, Trust};
use smr::{
    ClientId, ClientMessage, Effect, Executor, GroupId, Host, Identity, Incarnation, Log, Now,
    Outcome, ReplicaId, Request, RequestNumber, StateMachine, View, Viewstamp,
};

use super::job::{Seat, Work};
use super::mail::Mail;
use crate::cores::pin;

/// [Mu] 7: all experiments show 3-way replication.
pub(super) const REPLICAS: u8 = 3;

/// A third region of each process, open: how many requests its client has seen acknowledged. It
/// outlives the process, so that others can tell what must not be lost.
const ACKNOWLEDGED: RegionId = RegionId(2);
/// Words that an idle follower zeroes at a time, for grants to come.
const SWEEP: usize = 1_024;
/// Bytes of a ring: what the second cache of one core holds.
const RING: usize = 1 << 20;
const CLIENT: ClientId = ClientId { gateway: 9, incarnation: Incarnation(1) };

/// Times: the heartbeat's alone is measured. What else is late on shared cores is no defect.
fn timing(seat: &Seat) -> Timing {
    Timing { heartbeat: seat.heartbeat, stall: 1_000_000, ..Timing::default() }
}

/// Slots as long as the requests, in a ring that caches hold: where the words of a slot come from
/// memory and go back there a lap later, that takes most of the time. Fail-overs have the default
/// slots.
pub(super) fn limits(work: Work) -> Limits {
    let outstanding = work.outstanding();
    // A would-be leader finds what was outstanding, and mostly no more.
    let read_slots = outstanding.min(8) as u32 + 1;
    let default = Limits { outstanding, batch: 1, read_slots, ..Limits::default() };
    if matches!(work, Work::FailOver) {
        return default;
    }
    let overhead = default.slot_words as usize * 8 - default.body_bytes();
    let slot_words = (work.request_bytes() + overhead).div_ceil(64) * 8;
    // Of latency a lap must take long: at its end the leader may wait for a follower that has no
    // core.
    let least = if matches!(work, Work::Latency(_)) { 512 } else { 32 };
    let slots = (RING / (8 * slot_words)).clamp(least, default.slots as usize) as u32;
    Limits { slots, kept: 2 * slots, slot_words: slot_words as u32, ..default }
}

struct Own(Window);

impl Memory for Own {
    #[inline]
    fn load(&self, region: RegionId, offset: u32, words: &mut [u64]) {
        self.0.read(region, offset, words);
    }
}

/// When the steps of a fail-over were reached, in nanoseconds of the monotonic clock; 0 if not yet.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Steps {
    pub(super) suspected: u64,
    pub(super) permitted: u64,
    pub(super) caught_up: u64,
}

impl Steps {
    fn observe(&mut self, operation: &Operation) {
        match operation {
            Operation::Renounce { .. } if self.suspected == 0 => self.suspected = monotonic(),
            // The first write to a log is that of minProposal: a majority has granted.
            Operation::Write { to, .. } if to.region == mu::LOG && self.permitted == 0 => {
                self.permitted = monotonic();
            }
            Operation::WriteSlot { .. } if self.caught_up == 0 => self.caught_up = monotonic(),
            _ => {}
        }
    }
}

/// Nanoseconds, the same in all processes.
pub(super) fn monotonic() -> u64 {
    let time = clock_gettime(ClockId::Monotonic);
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

/// A replica with one client, which repeats what a change of leaders has dropped.
pub(super) struct Process<S: StateMachine> {
    me: ReplicaId,
    endpoint: Endpoint,
    host: Host<Replica<Own>, S>,
    effects: Vec<Effect<mu::Message, mu::Effect>>,
    words: Vec<u64>,
    mail: Mail,
    /// What effects have led to.
    inputs: VecDeque<Input<mu::Message, Event>>,
    start: Instant,
    now: Now,
    /// Requests that are not answered, oldest first.
    waiting: VecDeque<Bytes>,
    answered: u64,
    /// The last answer.
    pub(super) answer: Bytes,
    leads: bool,
    /// How often the lead was lost.
    pub(super) deposed: u64,
    pub(super) steps: Steps,
}

impl<S: StateMachine> Process<S> {
    /// Starts the replica and attaches it to the others.
    pub(super) fn start(seat: &Seat, work: Work, service: S) -> Result<Process<S>> {
        pin(seat.core);
        let me = ReplicaId(seat.id);
        let identity = Identity { group: GroupId(1), replica: me, incarnation: Incarnation(1) };
        let (limits, timing) = (limits(work), timing(seat));
        let config = Config { limits, timing, ..Config::new(identity, REPLICAS) };
        let mut geometry = mu::geometry(&config);
        geometry.regions.push(RegionSpec { access: Access::Open, words: 8 });
        let mut endpoint = Endpoint::new(geometry, me).context("cannot make shared memory")?;
        let mail = Mail::open(seat)?;
        attach(&mut endpoint, seat)?;
        let memory = Own(endpoint.window(me).expect("its own"));
        let host = Host::new(Replica::new(config, memory), Executor::new(service));
        let mut process = Process {
            me,
            endpoint,
            host,
            effects: Vec::new(),
            words: Vec::new(),
            mail,
            inputs: VecDeque::new(),
            start: Instant::now(),
            now: Now { micros: 0, unix_ms: 0 },
            waiting: VecDeque::new(),
            answered: 0,
            answer: Bytes::new(),
            leads: false,
            deposed: 0,
            steps: Steps::default(),
        };
        let (trust, log) = (Trust::New, Log::new(Viewstamp::default()));
        let recovered = Recovered { trust, view: View::default(), log, checkpoint: None };
        process.step(Input::Start(recovered));
        Ok(process)
    }

    fn step(&mut self, input: Input<mu::Message, Event>) {
        self.host.step(self.now, input, &mut self.effects);
        self.perform();
        while let Some(input) = self.inputs.pop_front() {
            self.host.step(self.now, input, &mut self.effects);
            self.perform();
        }
    }

    fn perform(&mut self) {
        for effect in self.effects.drain(..) {
            match effect {
                Effect::Protocol(effect) => {
                    if let mu::Effect::Post(_, operation) = &effect {
                        self.steps.observe(operation);
                    }
                    effect.perform(&mut self.endpoint);
                }
                Effect::Reply(reply) => {
                    let expected = reply.number == RequestNumber(self.answered + 1);
                    if let Outcome::Done { body, .. } = reply.outcome
                        && expected
                    {
                        self.answered += 1;
                        self.waiting.pop_front();
                        self.answer = body;
                    }
                }
                Effect::Send(to, message) => self.mail.send(to, &message),
                Effect::WriteCheckpoint(position) => {
                    let bytes = self.mail.checkpoints.write(&mut self.host);
                    self.inputs.push_back(Input::CheckpointWritten { position, bytes });
                }
                Effect::ReadCheckpoint { to, position, offset } => {
                    let chunk = self.mail.checkpoints.read(position, offset);
                    self.inputs.push_back(Input::CheckpointChunk { to, chunk });
                }
                Effect::SaveChunk(chunk) => self.mail.checkpoints.save(&chunk),
                Effect::InstallState(position) => {
                    let installed = self.mail.checkpoints.install(position, &mut self.host);
                    installed.expect("checkpoints are whole");
                    self.inputs.push_back(Input::StateInstalled(Some(position)));
                }
                Effect::Store(_) | Effect::Flush => unreachable!("durability is memory"),
            }
        }
    }

    /// Takes all completions.
    #[inline]
    pub(super) fn complete(&mut self) {
        while let Some(completion) = self.endpoint.poll(&mut self.words) {
            let words = std::mem::take(&mut self.words);
            self.step(Input::Event(Event::Completed { completion, words }));
        }
    }

    /// One turn of the loop: both planes.
    pub(super) fn turn(&mut self) {
        self.now.micros = self.start.elapsed().as_micros() as u64;
        self.complete();
        self.step(Input::Event(Event::Look));
        if self.host.deadline().is_some_and(|at| self.now.micros >= at) {
            while let Some((from, message)) = self.mail.next() {
                let incarnation = Incarnation(1);
                self.step(Input::Message { from, incarnation, message });
            }
            self.step(Input::Timeout);
            self.complete();
            // Who leads goes on whoever has failed.
            if !self.leads {
                self.look_after();
            }
        }
        self.complete();
        let leads = self.role() == Role::Primary;
        let led = std::mem::replace(&mut self.leads, leads);
        if led && !self.leads {
            self.deposed += 1;
        } else if !led && self.leads {
            // What was proposed may be decided or not: the replicas know it by its number.
            for (number, body) in (self.answered + 1..).zip(self.waiting.clone()) {
                self.send(number, body);
            }
        }
    }

    /// Answers the replica's doubts whether others run.
    fn look_after(&mut self) {
        for other in (0..REPLICAS).map(ReplicaId) {
            let is_doubted = self.host.protocol().doubted().any(|doubted| doubted == other);
            if is_doubted && self.endpoint.is_halted(other) {
                self.step(Input::Event(Event::Halted(other)));
            }
        }
    }

    pub(super) fn role(&self) -> Role {
        self.host.protocol().report().role
    }

    /// Whether this leader waits for a follower to make room in its log.
    pub(super) fn is_held_up(&self) -> bool {
        self.leads && self.host.protocol().waits()
    }

    pub(super) fn leads(&self) -> bool {
        self.leads
    }

    /// Takes turns until this replica leads and all others follow it.
    pub(super) fn lead(&mut self) {
        while !self.leads || !self.host.protocol().status().confirmed.iter().all(|&is| is) {
            self.turn();
        }
    }

    /// The client sends its next request, whose number is returned.
    #[inline]
    pub(super) fn submit(&mut self, body: Bytes) -> u64 {
        self.waiting.push_back(body.clone());
        let number = self.answered + self.waiting.len() as u64;
        if self.leads {
            self.send(number, body);
        }
        number
    }

    fn send(&mut self, number: u64, body: Bytes) {
        let oldest_unanswered = RequestNumber(self.answered + 1);
        let request =
            Request { client: CLIENT, number: RequestNumber(number), oldest_unanswered, body };
        let message = ClientMessage::Request { expected: View(0), durable: false, request };
        self.host.client(self.now, message, &mut self.effects);
        self.perform();
    }

    /// How many requests were answered.
    #[inline]
    pub(super) fn answered(&self) -> u64 {
        self.answered
    }

    /// How many requests are not answered.
    #[inline]
    pub(super) fn outstanding(&self) -> u64 {
        self.waiting.len() as u64
    }

    /// Takes turns until a request is answered.
    #[inline]
    pub(super) fn wait(&mut self, number: u64) {
        self.complete();
        while self.answered < number {
            self.turn();
        }
    }

    /// Says in memory that outlives this process how many requests were acknowledged.
    pub(super) fn acknowledge(&mut self) {
        let status = self.endpoint.store(ACKNOWLEDGED, 0, &[self.answered]);
        assert_eq!(status, fabric::Status::Ok, "an open region can be stored to");
    }

    /// What another process has acknowledged.
    pub(super) fn acknowledged_by(&self, process: ReplicaId) -> u64 {
        let mut word = [0];
        let window = self.endpoint.window(process).expect("attached at the start");
        window.read(ACKNOWLEDGED, 0, &mut word);
        word[0]
    }

    /// How many of the client's requests this replica has executed.
    pub(super) fn executed(&self) -> u64 {
        self.host.executor().clients().last(CLIENT).0
    }

    pub(super) fn service(&self) -> &S {
        self.host.executor().machine()
    }

    /// Goes on until all followers have executed everything and none was left behind: what was
    /// measured was the work of a whole group.
    pub(super) fn finish(&mut self) -> Result<()> {
        let end = Instant::now() + Duration::from_secs(10);
        let me = self.me;
        for follower in (0..REPLICAS).map(ReplicaId).filter(|&id| id != me) {
            while self.acknowledged_by(follower) < self.answered {
                self.turn();
                ensure!(
                    Instant::now() < end,
                    "replica {} was left behind at request {} of {}: the machine is too busy to \
                     measure",
                    follower.0,
                    self.acknowledged_by(follower),
                    self.answered
                );
            }
        }
        Ok(())
    }

    /// Follows, and calls `each` every turn, until the process that started this one has ended.
    pub(super) fn follow(mut self, mut each: impl FnMut(&mut Process<S>)) {
        let parent = rustix::process::getppid();
        let mut idle = 0_u32;
        loop {
            let before = self.host.executor().executed();
            self.turn();
            each(&mut self);
            idle = if self.host.executor().executed() == before { idle + 1 } else { 0 };
            // Others, perhaps the other follower or an application, may need this core.
            if idle > 0 {
                self.endpoint.sweep(SWEEP);
                std::thread::yield_now();
            }
            if idle % 64 == 1 {
                // Here a follower's: how far it has executed.
                let executed = self.executed();
                self.endpoint.store(ACKNOWLEDGED, 0, &[executed]);
            }
            if idle % 4_096 == 1 && rustix::process::getppid() != parent {
                return;
            }
        }
    }
}

/// Connects to all processes of lower ids, then takes those of higher ones.
pub(super) fn attach(endpoint: &mut Endpoint, seat: &Seat) -> Result<()> {
    let socket = |id: u8| socket(&seat.folder, id);
    let listener = UnixListener::bind(socket(seat.id)).context("cannot make a socket")?;
    for lower in 0..seat.id {
        let stream = loop {
            match UnixStream::connect(socket(lower)) {
                Ok(stream) => break stream,
                Err(_) => std::thread::sleep(Duration::from_millis(1)),
            }
        };
        endpoint.attach(stream).context("cannot attach")?;
    }
    for _ in seat.id + 1..REPLICAS {
        let (stream, _) = listener.accept().context("nobody connects")?;
        endpoint.attach(stream).context("cannot attach")?;
    }
    Ok(())
}

fn socket(folder: &Path, id: u8) -> PathBuf {
    folder.join(format!("{id}.socket"))
}
