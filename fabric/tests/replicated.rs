//! Mu over RDMA cards: three processes, each on a card of its own. Leaders are stopped, and wake
//! and write late; cut off, and come back; killed. Then all hold the same, and nothing that was
//! acknowledged is missing.
//!
//! The environment says where: `FABRIC_CARDS=rx1,rx2,rx3`, `FABRIC_ADDRESSES` (where TCP goes, one
//! per process), `FABRIC_PORTS` (the interfaces that are set down for a partition). Without cards
//! it is left out, and says so. The replicas are this program; they take orders line by line.

use std::collections::HashSet;
use std::io::{BufRead, BufReader, Write};
use std::net::{Ipv4Addr, SocketAddrV4, TcpListener, TcpStream};
use std::process::{Child, ChildStdin, Command, ExitCode, Stdio};
use std::sync::mpsc::{Receiver, TryRecvError, channel};
use std::time::{Duration, Instant};

use bytes::Bytes;
use fabric::verbs::{self, Endpoint, Own};
use fabric::{Fabric, RegionId, Status, VerbId};
use mu::{Config, Event, Limits, Memory, Operation, Replica, Timing};
use rustix::net::{AddressFamily, SocketType};
use rustix::process::{Pid, Signal, kill_process};
use smr::contract::{Input, Protocol, Recovered, Trust};
use smr::{
    BadCheckpoint, ClientId, ClientMessage, Context, Effect, Executor, GroupId, Host, Identity,
    Incarnation, Log, Now, Outcome, ReadOutcome, ReplicaId, Request, RequestNumber, Role,
    StateMachine, View, Viewstamp,
};

const PORT: u16 = 47_310;
/// A leader asks this often.
const PACE: Duration = Duration::from_millis(5);
const PATIENCE: Duration = Duration::from_secs(60);

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().collect();
    if let [_, role, id] = &arguments[..]
        && role == "replica"
    {
        replica(ReplicaId(id.parse().expect("an id")));
        return ExitCode::SUCCESS;
    }
    if list("FABRIC_CARDS").is_none() {
        println!("left out: Mu over verbs, since FABRIC_CARDS names no cards");
        return ExitCode::SUCCESS;
    }
    let mut group = Group::start();
    group.serve("from the start", 0, 50);
    for round in 1..=2 {
        group.stopped_leader_wakes(round);
    }
    match list("FABRIC_PORTS") {
        Some(ports) => group.cut_leader_comes_back(&ports[0]),
        None => println!("left out: partitions, since FABRIC_PORTS names no interfaces"),
    }
    let ledger = group.agree(&[0, 1, 2]);
    println!("all three hold the same {} operations", ledger.len());
    group.killed_leader_is_replaced();
    let ledger = group.agree(&[1, 2]);
    println!("the two that are left hold the same {} operations", ledger.len());
    println!("{} acknowledged, none of them missing", group.acknowledged.len());
    assert!(group.refused > 0, "no late write was ever made");
    println!("{} late writes under revoked grants, all refused", group.refused);
    ExitCode::SUCCESS
}

fn list(name: &str) -> Option<Vec<String>> {
    std::env::var(name).ok().map(|names| names.split(',').map(str::to_string).collect())
}

/// What was applied, in order.
#[derive(Default)]
struct Ledger(Vec<u64>);

impl StateMachine for Ledger {
    type Undo = ();

    fn apply(&mut self, _context: Context, request: &[u8], reply: &mut Vec<u8>) {
        self.0.push(u64::from_le_bytes(request.try_into().expect("eight bytes")));
        reply.push(1);
    }

    fn undo(&mut self, (): ()) {
        unreachable!("Mu executes what is decided");
    }

    fn read(&self, _unix_ms: u64, _request: &[u8], reply: &mut Vec<u8>) -> ReadOutcome {
        self.0.iter().for_each(|value| reply.extend_from_slice(&value.to_le_bytes()));
        ReadOutcome::Done
    }

    fn checkpoint_begin(&mut self) {}

    fn checkpoint_next(&mut self, _budget: usize, _out: &mut Vec<u8>) -> bool {
        true
    }

    fn checkpoint_abort(&mut self) {}

    fn restore_begin(&mut self) {}

    fn restore_chunk(&mut self, _chunk: &[u8]) -> Result<(), BadCheckpoint> {
        unreachable!("nobody lacks more than is kept");
    }
}

struct OwnMemory(Own);

impl Memory for OwnMemory {
    fn load(&self, region: RegionId, offset: u32, words: &mut [u64]) {
        self.0.read(region, offset, words);
    }
}

struct Process {
    endpoint: Endpoint,
    host: Host<Replica<OwnMemory>, Ledger>,
    effects: Vec<Effect<mu::Message, mu::Effect>>,
    words: Vec<u64>,
    start: Instant,
    me: ReplicaId,
    now: Now,
    /// The request under way, or the next.
    number: u64,
    is_asked: bool,
    asks_at: Instant,
    /// Writes to logs that are under way.
    writes: HashSet<VerbId>,
}

fn writes_log(operation: &Operation) -> bool {
    match operation {
        Operation::WriteSlot { .. } => true,
        Operation::Write { to, .. } => to.region == mu::LOG,
        _ => false,
    }
}

/// Connects from one's own address, so that packets cross the network even within one machine.
fn connect(from: Ipv4Addr, to: SocketAddrV4) -> TcpStream {
    loop {
        let socket = rustix::net::socket(AddressFamily::INET, SocketType::STREAM, None);
        let socket = socket.expect("a socket");
        rustix::net::bind(&socket, &SocketAddrV4::new(from, 0)).expect("an own address");
        if rustix::net::connect(&socket, &to).is_ok() {
            return TcpStream::from(socket);
        }
        std::thread::sleep(Duration::from_millis(20));
    }
}

fn attach(endpoint: &mut Endpoint, me: ReplicaId) {
    let addresses = list("FABRIC_ADDRESSES").unwrap_or(vec!["127.0.0.1".into(); 3]);
    let addresses: Vec<Ipv4Addr> =
        addresses.iter().map(|address| address.parse().expect("an IPv4 address")).collect();
    let own = addresses[me.index()];
    let listener = TcpListener::bind((own, PORT + u16::from(me.0))).expect("a socket");
    let mut join = |stream: TcpStream| {
        stream.set_read_timeout(Some(Duration::from_secs(20))).expect("a timeout");
        endpoint.attach(stream).expect("attached");
    };
    for lower in 0..me.0 {
        let to = SocketAddrV4::new(addresses[usize::from(lower)], PORT + u16::from(lower));
        join(connect(own, to));
    }
    for _ in me.0 + 1..3 {
        join(listener.accept().expect("connected").0);
    }
}

impl Process {
    fn new(me: ReplicaId) -> Process {
        let identity = Identity { group: GroupId(1), replica: me, incarnation: Incarnation(1) };
        let limits = Limits { slots: 512, slot_words: 40, ..Limits::default() };
        // Emulated machines stand still now and then.
        let (retry, stall) = (200_000, 3_000_000);
        let timing =
            Timing { heartbeat: 100_000, retry, stall, patience: stall, ..Timing::default() };
        let config = Config { limits, timing, ..Config::new(identity, 3) };
        let cards = list("FABRIC_CARDS").expect("cards");
        let options = verbs::Options {
            card: cards.get(me.index()).or(cards.last()).cloned(),
            silence: Duration::from_millis(100),
            patience: Duration::from_secs(1),
            ..verbs::Options::default()
        };
        let mut endpoint = Endpoint::new(mu::geometry(&config), me, options).expect("a card");
        attach(&mut endpoint, me);
        let memory = OwnMemory(endpoint.own());
        let start = Instant::now();
        let mut process = Process {
            host: Host::new(Replica::new(config, memory), Executor::new(Ledger::default())),
            endpoint,
            effects: Vec::new(),
            words: Vec::new(),
            start,
            me,
            now: Now { micros: 0, unix_ms: 0 },
            number: 1,
            is_asked: false,
            asks_at: start,
            writes: HashSet::new(),
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
                    if let mu::Effect::Post(id, operation) = &effect
                        && writes_log(operation)
                    {
                        self.writes.insert(*id);
                    }
                    effect.perform(&mut self.endpoint);
                }
                Effect::Reply(reply) if reply.number == RequestNumber(self.number) => {
                    self.is_asked = false;
                    if let Outcome::Done { .. } = reply.outcome {
                        println!("acknowledged {}", u64::from(self.me.0) << 32 | self.number);
                        self.number += 1;
                    }
                }
                // Nobody has lost its memory, so the messages for that are never needed.
                _ => {}
            }
        }
    }

    fn complete(&mut self) {
        while let Some(completion) = self.endpoint.poll(&mut self.words) {
            if self.writes.remove(&completion.id) && completion.status == Status::Refused {
                println!("refused");
            }
            let words = std::mem::take(&mut self.words);
            self.step(Input::Event(Event::Completed { completion, words }));
        }
    }

    fn turn(&mut self) {
        self.now.micros = self.start.elapsed().as_micros() as u64;
        self.complete();
        self.step(Input::Event(Event::Look));
        if self.host.deadline().is_some_and(|at| self.now.micros >= at) {
            self.step(Input::Timeout);
        }
    }

    fn leads(&self) -> bool {
        self.host.protocol().report().role == Role::Primary
    }

    /// Asks for the next operation, or for the former one again.
    fn ask(&mut self) {
        if self.is_asked || Instant::now() < self.asks_at {
            return;
        }
        self.is_asked = true;
        self.asks_at = Instant::now() + PACE;
        let client = ClientId { gateway: u32::from(self.me.0) + 10, incarnation: Incarnation(1) };
        let number = RequestNumber(self.number);
        let value = u64::from(self.me.0) << 32 | self.number;
        let body = Bytes::copy_from_slice(&value.to_le_bytes());
        let request = Request { client, number, oldest_unanswered: number, body };
        let message = ClientMessage::Request { expected: View(0), durable: false, request };
        self.host.client(self.now, message, &mut self.effects);
        self.perform();
    }
}

fn replica(me: ReplicaId) {
    let (orders_in, orders) = channel();
    std::thread::spawn(move || {
        for line in std::io::stdin().lines() {
            // The other end is gone when the process ends.
            orders_in.send(line.expect("a line")).ok();
        }
    });
    let mut process = Process::new(me);
    let (mut led, mut serves) = (false, true);
    loop {
        let leads = process.leads();
        if leads != led {
            println!("{}", if leads { "leads" } else { "follows" });
            process.is_asked &= leads;
            led = leads;
        }
        // Before the turn: who was stopped writes before it learns what has happened.
        if leads && serves {
            process.ask();
        }
        process.turn();
        match orders.try_recv() {
            Ok(order) if order == "rest" => serves = false,
            Ok(order) if order == "go on" => serves = true,
            Ok(order) => {
                assert_eq!(order, "ledger");
                let ledger = &process.host.executor().machine().0;
                let ledger: Vec<String> = ledger.iter().map(u64::to_string).collect();
                println!("ledger {}", ledger.join(" "));
            }
            Err(TryRecvError::Empty) => {}
            Err(TryRecvError::Disconnected) => return, // its parent has ended
        }
        std::thread::sleep(Duration::from_micros(300));
    }
}

struct Member {
    child: Child,
    orders: ChildStdin,
    answers: Receiver<String>,
    leads: bool,
    ledger: Option<Vec<u64>>,
    /// How many of its requests were acknowledged.
    served: usize,
}

/// The three processes, as their parent sees them.
struct Group {
    members: Vec<Member>,
    acknowledged: Vec<u64>,
    refused: usize,
    start: Instant,
}

impl Group {
    fn start() -> Group {
        let member = |id: usize| {
            let mut child = Command::new(std::env::current_exe().expect("this program"))
                .args(["replica", &id.to_string()])
                .stdin(Stdio::piped())
                .stdout(Stdio::piped())
                .spawn()
                .expect("started");
            let orders = child.stdin.take().expect("piped");
            let out = BufReader::new(child.stdout.take().expect("piped"));
            let (lines, answers) = channel();
            std::thread::spawn(move || {
                for line in out.lines() {
                    lines.send(line.expect("a line")).ok();
                }
            });
            Member { child, orders, answers, leads: false, ledger: None, served: 0 }
        };
        let members = (0..3).map(member).collect();
        Group { members, acknowledged: Vec::new(), refused: 0, start: Instant::now() }
    }

    fn say(&self, text: std::fmt::Arguments<'_>) {
        println!("[{:6.2} s] {text}", self.start.elapsed().as_secs_f64());
    }

    fn listen(&mut self) {
        for member in &mut self.members {
            while let Ok(line) = member.answers.try_recv() {
                match line.split_once(' ').unwrap_or((&line, "")) {
                    ("leads", _) => member.leads = true,
                    ("follows", _) => member.leads = false,
                    ("refused", _) => self.refused += 1,
                    ("acknowledged", value) => {
                        member.served += 1;
                        self.acknowledged.push(value.parse().expect("a number"));
                    }
                    ("ledger", values) => {
                        let values = values.split_whitespace();
                        let ledger = values.map(|value| value.parse().expect("a number"));
                        member.ledger = Some(ledger.collect());
                    }
                    _ => panic!("it says {line}"),
                }
            }
        }
    }

    fn wait(&mut self, what: &str, mut until: impl FnMut(&Group) -> bool) {
        let end = Instant::now() + PATIENCE;
        loop {
            self.listen();
            if until(self) {
                return;
            }
            for (id, member) in self.members.iter_mut().enumerate() {
                if let Ok(Some(status)) = member.child.try_wait() {
                    assert_eq!(status.code(), None, "replica {id} has failed");
                }
            }
            assert!(Instant::now() < end, "waited too long: {what}");
            std::thread::sleep(Duration::from_millis(2));
        }
    }

    fn order(&mut self, id: usize, order: &str) {
        writeln!(self.members[id].orders, "{order}").expect("it listens");
    }

    fn signal(&self, id: usize, signal: Signal) {
        kill_process(Pid::from_child(&self.members[id].child), signal).expect("signalled");
    }

    /// That replica leads, and so many more requests of its own are acknowledged.
    fn serve(&mut self, when: &str, leader: usize, requests: usize) {
        let goal = self.members[leader].served + requests;
        self.wait(when, |group| group.members[leader].served > goal - requests);
        self.say(format_args!("replica {leader} leads {when}"));
        // Nobody else leads (one that is stopped, cut off or dead cannot say that it does not).
        let alone = |group: &Group| leader > 0 || !group.members[1..].iter().any(|m| m.leads);
        self.wait(when, |group| group.members[leader].served >= goal && alone(group));
    }

    fn stopped_leader_wakes(&mut self, round: u32) {
        self.signal(0, Signal::STOP);
        self.say(format_args!("round {round}: replica 0 is stopped"));
        self.serve("instead of the stopped one", 1, 20);
        self.signal(0, Signal::CONT);
        self.serve("after it was woken", 0, 20);
    }

    fn cut_leader_comes_back(&mut self, port: &str) {
        set_link(port, "down");
        self.say(format_args!("replica 0 is cut off"));
        self.serve("instead of the one cut off", 1, 1);
        let served = self.members[0].served;
        self.serve("instead of the one cut off", 1, 20);
        assert_eq!(self.members[0].served, served, "who is cut off acknowledges nothing");
        set_link(port, "up");
        self.say(format_args!("the cut is mended"));
        self.serve("after it came back", 0, 20);
    }

    fn killed_leader_is_replaced(&mut self) {
        for id in 0..3 {
            self.order(id, "go on");
        }
        self.serve("again", 0, 20);
        self.signal(0, Signal::KILL);
        self.say(format_args!("replica 0 is killed"));
        self.serve("instead of the killed one", 1, 20);
    }

    /// Lets everything come to rest, and compares.
    fn agree(&mut self, members: &[usize]) -> Vec<u64> {
        for &id in members {
            self.order(id, "rest");
        }
        let end = Instant::now() + PATIENCE;
        loop {
            std::thread::sleep(Duration::from_millis(300));
            for &id in members {
                self.members[id].ledger = None;
                self.order(id, "ledger");
            }
            let all = |group: &Group| members.iter().all(|&id| group.members[id].ledger.is_some());
            self.wait("every replica shows its ledger", all);
            let ledgers = members.iter().map(|&id| self.members[id].ledger.take().expect("shown"));
            let ledgers: Vec<Vec<u64>> = ledgers.collect();
            let shortest = ledgers.iter().map(Vec::len).min().expect("replicas");
            for ledger in &ledgers {
                assert_eq!(ledger[..shortest], ledgers[0][..shortest], "replicas disagree");
            }
            if ledgers.iter().all(|ledger| ledger.len() == shortest) {
                self.check(&ledgers[0]);
                return ledgers.into_iter().next().expect("one");
            }
            assert!(Instant::now() < end, "a replica stays behind");
        }
    }

    fn check(&self, ledger: &[u64]) {
        let set: HashSet<u64> = ledger.iter().copied().collect();
        assert_eq!(set.len(), ledger.len(), "an operation was executed twice");
        for value in &self.acknowledged {
            assert!(set.contains(value), "{value} was acknowledged and is missing");
        }
        for id in 0..3 {
            let of_one: Vec<_> = ledger.iter().filter(|&&value| value >> 32 == id).collect();
            assert!(of_one.is_sorted(), "the requests of a client are in order");
        }
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        for member in &mut self.members {
            // It may have ended.
            member.child.kill().ok();
            member.child.wait().ok();
        }
    }
}

fn set_link(port: &str, state: &str) {
    let status = Command::new("ip").args(["link", "set", port, state]).status().expect("ip runs");
    assert!(status.success(), "ip link set {port} {state}");
}
