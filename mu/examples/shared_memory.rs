//! Mu over shared memory, three processes: `cargo run --release -p mu --example shared_memory`.
//!
//! Latency from propose to commit (64 bytes), throughput (8 outstanding entries of 128 commands of
//! 64 bytes), and fail-over (the leader is killed: detection, permission switch, catch-up, first
//! commit). Leader on core 0, both followers on core 1. Followers execute what they see; all
//! processes are this program. Arguments, all numbers: samples, seconds of load, fail-over rounds,
//! and their heartbeat's period in microseconds.

use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use bytes::Bytes;
use fabric::shm::{Endpoint, Window};
use fabric::{Fabric, RegionId};
use hdrhistogram::Histogram;
use mu::{Config, Event, Limits, Memory, Operation, Replica, Timing};
use rustix::thread::{CpuSet, sched_setaffinity};
use rustix::time::{ClockId, clock_gettime};
use smr::contract::{Input, Protocol, Recovered, Trust};
use smr::{
    BadCheckpoint, ClientId, ClientMessage, Context, Effect, Executor, GroupId, Host, Identity,
    Incarnation, Log, Now, Outcome, ReadOutcome, ReplicaId, Request, RequestNumber, Role,
    StateMachine, View, Viewstamp,
};

const COMMAND: usize = 64;
const BATCH: usize = 128;
const OUTSTANDING: u64 = 8;

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    if arguments.first().is_some_and(|first| first == "replica") {
        return replica(&arguments[1], &arguments[2], &arguments[3], &arguments[4]);
    }
    let number = |index: usize, otherwise: u64| {
        arguments.get(index).map_or(otherwise, |text| text.parse().expect("a number"))
    };
    let (samples, seconds, rounds) = (number(0, 300_000), number(1, 3), number(2, 100));
    println!("{}", alone(&format!("latency:{samples}")));
    println!("{}", alone(&format!("throughput:{seconds}")));
    fail_over(rounds, number(3, 50));
}

/// Sums the bytes of commands of 64 bytes.
#[derive(Default)]
struct Sum(u64);

impl StateMachine for Sum {
    type Undo = ();

    fn apply(&mut self, _context: Context, request: &[u8], reply: &mut Vec<u8>) {
        for command in request.chunks(COMMAND) {
            let word = command.first_chunk().map_or(0, |bytes| u64::from_le_bytes(*bytes));
            self.0 = self.0.wrapping_add(word);
        }
        reply.extend_from_slice(&self.0.to_le_bytes());
    }

    fn undo(&mut self, (): ()) {}

    fn read(&self, _unix_ms: u64, _request: &[u8], _reply: &mut Vec<u8>) -> ReadOutcome {
        ReadOutcome::Done
    }

    fn checkpoint_begin(&mut self) {}

    fn checkpoint_next(&mut self, _budget: usize, _out: &mut Vec<u8>) -> bool {
        true
    }

    fn checkpoint_abort(&mut self) {}

    fn restore_begin(&mut self) {}

    fn restore_chunk(&mut self, _chunk: &[u8]) -> Result<(), BadCheckpoint> {
        Ok(())
    }
}

struct Own(Window);

impl Memory for Own {
    #[inline]
    fn load(&self, region: RegionId, offset: u32, words: &mut [u64]) {
        self.0.read(region, offset, words);
    }
}

type Effects = Vec<Effect<mu::Message, mu::Effect>>;

/// When the steps of a fail-over were reached, in nanoseconds of the monotonic clock.
#[derive(Default)]
struct Steps {
    suspected: u64,
    permitted: u64,
    caught_up: u64,
}

struct Process {
    endpoint: Endpoint,
    host: Host<Replica<Own>, Sum>,
    effects: Effects,
    words: Vec<u64>,
    start: Instant,
    now: Now,
    /// Answers of clients' requests so far.
    answered: u64,
    /// The lead is gone: what is not answered must be asked again.
    refused: bool,
    steps: Steps,
}

fn monotonic() -> u64 {
    let time = clock_gettime(ClockId::Monotonic);
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

impl Process {
    fn new(me: ReplicaId, folder: &Path, limits: Limits, timing: Timing) -> Process {
        let identity = Identity { group: GroupId(1), replica: me, incarnation: Incarnation(1) };
        let config = Config { limits, timing, ..Config::new(identity, 3) };
        let mut endpoint = Endpoint::new(mu::geometry(&config), me).expect("memory");
        attach(&mut endpoint, me, folder);
        let memory = Own(endpoint.window(me).expect("its own"));
        let host = Host::new(Replica::new(config, memory), Executor::new(Sum::default()));
        let mut process = Process {
            endpoint,
            host,
            effects: Vec::new(),
            words: Vec::new(),
            start: Instant::now(),
            now: Now { micros: 0, unix_ms: 0 },
            answered: 0,
            refused: false,
            steps: Steps::default(),
        };
        let (trust, log) = (Trust::New, Log::new(Viewstamp::default()));
        let recovered = Recovered { trust, view: View::default(), log, checkpoint: None };
        process.step(Input::Start(recovered));
        process
    }

    fn step(&mut self, input: Input<mu::Message, Event>) {
        self.host.step(self.now, input, &mut self.effects);
        self.perform();
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
                    let is_done = matches!(reply.outcome, Outcome::Done { .. });
                    self.answered += u64::from(is_done);
                    self.refused |= !is_done;
                }
                // Nobody rejoins here.
                _ => {}
            }
        }
    }

    /// Takes all completions.
    fn complete(&mut self) {
        while let Some(completion) = self.endpoint.poll(&mut self.words) {
            let words = std::mem::take(&mut self.words);
            self.step(Input::Event(Event::Completed { completion, words }));
        }
    }

    /// One turn of the loop: both planes.
    fn turn(&mut self) {
        self.now.micros = self.start.elapsed().as_micros() as u64;
        self.complete();
        self.step(Input::Event(Event::Look));
        if self.host.deadline().is_some_and(|at| self.now.micros >= at) {
            self.step(Input::Timeout);
        }
        self.complete();
    }

    fn leads(&self) -> bool {
        self.host.protocol().report().role == Role::Primary
    }

    fn submit(&mut self, number: u64, body: Bytes) {
        let client = ClientId { gateway: 9, incarnation: Incarnation(1) };
        let oldest_unanswered = RequestNumber(self.answered + 1);
        let request = Request { client, number: RequestNumber(number), oldest_unanswered, body };
        let message = ClientMessage::Request { expected: View(0), durable: false, request };
        self.host.client(self.now, message, &mut self.effects);
        self.perform();
    }
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

/// Connects to all processes of lower ids, then takes those of higher ones.
fn attach(endpoint: &mut Endpoint, me: ReplicaId, folder: &Path) {
    let socket = |id: u8| folder.join(format!("{id}.socket"));
    let listener = UnixListener::bind(socket(me.0)).expect("a socket");
    for lower in 0..me.0 {
        let stream = loop {
            match UnixStream::connect(socket(lower)) {
                Ok(stream) => break stream,
                Err(_) => std::thread::sleep(Duration::from_millis(1)),
            }
        };
        endpoint.attach(stream).expect("attached");
    }
    for _ in me.0 + 1..3 {
        let (stream, _) = listener.accept().expect("connected");
        endpoint.attach(stream).expect("attached");
    }
}

fn pin(core: usize) {
    let mut set = CpuSet::new();
    set.set(core);
    if sched_setaffinity(None, &set).is_err() {
        eprintln!("not pinned to core {core}");
    }
}

fn replica(id: &str, folder: &str, what: &str, amount: &str) {
    let me = ReplicaId(id.parse().expect("an id"));
    let amount: u64 = amount.parse().expect("a number");
    pin(usize::from(me.0 > 0));
    let small = Limits { slots: 4_096, slot_words: 40, ..Limits::default() };
    let large = Limits {
        slots: 512,
        kept: 2_048,
        slot_words: 1_064,
        outstanding: OUTSTANDING,
        batch: 1,
        read_slots: 8,
        ..Limits::default()
    };
    // With two followers on one core, a heartbeat may stand still for a time slice.
    let patient = Timing { heartbeat: 20_000, stall: 1_000_000, ..Timing::default() };
    let (limits, timing) = match what {
        "throughput" => (large, patient),
        "latency" => (small, patient),
        _ => (small, Timing { heartbeat: amount, stall: 1_000_000, ..Timing::default() }),
    };
    let mut process = Process::new(me, Path::new(folder), limits, timing);
    if me.0 > 0 {
        return follow(process, what == "failover");
    }
    while !process.leads() || process.host.protocol().status().confirmed != [true; 3] {
        process.turn();
    }
    match what {
        "latency" => latency(process, amount),
        "throughput" => throughput(process, amount),
        _ => load(process),
    }
}

/// Replays, and reports when it leads.
fn follow(mut process: Process, mut reports: bool) {
    let parent = rustix::process::getppid();
    let (mut idle, mut leads, mut ended_at) = (0_u32, false, None);
    loop {
        let before = process.host.executor().executed();
        process.turn();
        let role = process.host.protocol().report().role;
        if role == Role::Backup {
            process.steps = Steps::default();
        }
        let led = std::mem::replace(&mut leads, role == Role::Primary);
        if reports && leads && !led {
            let Steps { suspected, permitted, caught_up } = process.steps;
            reports &= !process.endpoint.has_ended(ReplicaId(0));
            println!("{suspected} {permitted} {caught_up} {}", monotonic());
        }
        idle = if process.host.executor().executed() == before { idle + 1 } else { 0 };
        if idle > 20 {
            std::thread::yield_now();
        }
        if reports && idle.is_multiple_of(1_024) && process.endpoint.has_ended(ReplicaId(0)) {
            let ended = *ended_at.get_or_insert(process.now.micros);
            // It led before, or has fallen behind: nothing to measure.
            if leads || process.now.micros > ended + 1_000_000 {
                println!("0 0 0 0");
                reports = false;
            }
        }
        // Orphans end.
        if idle.is_multiple_of(4_096) && rustix::process::getppid() != parent {
            return;
        }
    }
}

fn latency(mut process: Process, samples: u64) {
    let mut times = Histogram::<u64>::new_with_bounds(1, 10_000_000_000, 3).expect("bounds");
    let body = Bytes::from(vec![7; COMMAND]);
    let warm_up = samples / 10;
    for number in 1..=samples + warm_up {
        let start = Instant::now();
        process.submit(number, body.clone());
        process.complete();
        while process.answered < number {
            process.turn();
            assert!(process.leads(), "the lead was lost: the machine is too busy to measure");
        }
        let elapsed = start.elapsed().as_nanos() as u64;
        if number > warm_up {
            times.record(elapsed).expect("in bounds");
        }
        process.turn();
    }
    let at = |quantile| times.value_at_quantile(quantile);
    println!(
        "propose to commit, {COMMAND} bytes, {samples} samples, ns: \
         p1 {} p50 {} p99 {} p99.9 {} max {}",
        at(0.01),
        at(0.5),
        at(0.99),
        at(0.999),
        times.max()
    );
}

fn throughput(mut process: Process, seconds: u64) {
    let body = Bytes::from(vec![7; COMMAND * BATCH]);
    let start = Instant::now();
    let mut asked = 0;
    while start.elapsed() < Duration::from_secs(seconds) {
        for _ in 0..64 {
            while asked < process.answered + OUTSTANDING {
                asked += 1;
                process.submit(asked, body.clone());
            }
            process.complete();
        }
        process.turn();
        assert!(process.leads(), "the lead was lost: the machine is too busy to measure");
    }
    let commands = process.answered * BATCH as u64;
    let rate = commands as f64 / start.elapsed().as_secs_f64() / 1e6;
    println!(
        "{OUTSTANDING} outstanding entries of {BATCH} commands of {COMMAND} bytes: \
         {rate:.2} M commands/s, {:.2} GB/s per copy",
        rate * COMMAND as f64 / 1e3
    );
}

/// Load without end, at a pace that followers on one core keep: the process is killed. Should it
/// lose the lead before, it goes on later.
fn load(mut process: Process) {
    println!("ready");
    let body = Bytes::from(vec![7; COMMAND]);
    let (mut number, mut next) = (0, 0);
    loop {
        if process.answered == number && process.leads() && process.now.micros >= next {
            next = process.now.micros + 20;
            number += 1;
            process.submit(number, body.clone());
        }
        process.turn();
        if process.refused {
            process.refused = false;
            number = process.answered;
        }
        if !process.leads() && number > process.answered {
            number = process.answered;
        }
    }
}

struct Three {
    folder: PathBuf,
    children: Vec<Child>,
}

impl Three {
    fn start(what: &str, amount: &str) -> Three {
        let unique = format!("mu-{}-{}", std::process::id(), monotonic());
        let folder = std::env::temp_dir().join(unique);
        std::fs::create_dir(&folder).expect("a folder");
        let child = |id: u8| {
            Command::new(std::env::current_exe().expect("this program"))
                .args(["replica", &id.to_string(), folder.to_str().expect("text"), what, amount])
                .stdout(Stdio::piped())
                .spawn()
                .expect("started")
        };
        Three { children: (0..3).map(child).collect(), folder }
    }
}

impl Drop for Three {
    fn drop(&mut self) {
        for child in &mut self.children {
            // It may have ended.
            child.kill().ok();
            child.wait().ok();
        }
        std::fs::remove_dir_all(&self.folder).ok();
    }
}

/// A measurement that the leader makes and prints.
fn alone(what: &str) -> String {
    let (what, amount) = what.split_once(':').expect("what and how much");
    let mut three = Three::start(what, amount);
    let mut text = String::new();
    let output = three.children[0].stdout.as_mut().expect("piped");
    output.read_to_string(&mut text).expect("text");
    text.trim_end().to_string()
}

fn fail_over(rounds: u64, heartbeat: u64) {
    let names = ["detection", "permission switch", "catch-up", "first commit", "all"];
    let mut parts: Vec<Histogram<u64>> = names
        .iter()
        .map(|_| Histogram::new_with_bounds(1, 10_000_000_000, 3).expect("bounds"))
        .collect();
    let (mut false_suspicions, mut elsewhere) = (0, 0);
    for round in 0..rounds {
        let mut three = Three::start("failover", &heartbeat.to_string());
        let mut line = String::new();
        let output = three.children[0].stdout.take().expect("piped");
        BufReader::new(output).read_line(&mut line).expect("ready");
        // Not in step with anybody's period.
        std::thread::sleep(Duration::from_micros(50_000 + round * 377 % 5_000));
        let killed = monotonic();
        three.children[0].kill().expect("killed");
        let output = three.children[1].stdout.take().expect("piped");
        let mut reports = BufReader::new(output).lines();
        let [suspected, permitted, caught_up, committed] = loop {
            let report = reports.next().expect("a report").expect("text");
            let steps: Vec<u64> =
                report.split_whitespace().map(|word| word.parse().expect("a time")).collect();
            let steps: [u64; 4] = steps.try_into().expect("a report has four times");
            if steps[0] > killed || steps[0] == 0 {
                break steps;
            }
            false_suspicions += 1;
        };
        if suspected == 0 {
            elsewhere += 1;
            continue;
        }
        let times = [
            suspected - killed,
            permitted - suspected,
            caught_up - permitted,
            committed - caught_up,
            committed - killed,
        ];
        for (part, time) in parts.iter_mut().zip(times) {
            part.record(time.max(1)).expect("in bounds");
        }
    }
    println!(
        "fail-over, heartbeat {heartbeat} us, {rounds} rounds, us; {false_suspicions} false \
         suspicions beside, {elsewhere} rounds in which another one led or had fallen behind:"
    );
    for (name, part) in names.iter().zip(&parts) {
        let at = |quantile| part.value_at_quantile(quantile) as f64 / 1e3;
        println!("  {name}: p50 {:.1} p99 {:.1} max {:.1}", at(0.5), at(0.99), at(1.0));
    }
    std::io::stdout().flush().expect("written");
}
