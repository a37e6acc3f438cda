//! Shared memory between real processes, of which some are stopped or killed in the middle of a
//! write. The test's own process has the endpoints 0, the owner, and 2; endpoint 1 is a child, the
//! same program, that does what it is told line by line.

mod common;

use std::io::{BufRead, BufReader, Write};
use std::ops::Range;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

use common::{BOARD, LOG, Rig, Shared, attach, geometry, place};
use fabric::{Fabric, GrantNumber, Status, Verb, VerbId, shm};
use rustix::process::{Pid, Signal, WaitOptions, kill_process, waitpid};
use smr::ReplicaId;
use smr::rng::Rng;

const OWNER: ReplicaId = ReplicaId(0);
const WRITER: ReplicaId = ReplicaId(1);
const WORDS: usize = 600;
const ALL: &[Range<u32>] = std::slice::from_ref(&(0..600));
/// The first words are written last.
const FIRST: usize = 8;
/// Words of a slot of a stream, and slots.
const SLOT: usize = 8;
const SLOTS: u64 = 16;

fn main() {
    let arguments: Vec<String> = std::env::args().collect();
    if let [_, role, socket] = &arguments[..]
        && role == "writer"
    {
        return writer(socket);
    }
    let tests: [(&str, fn()); 5] = [
        ("stopped_in_the_middle_of_the_greeting", stopped_in_the_middle_of_the_greeting),
        ("stopped_in_the_middle_of_a_write", stopped_in_the_middle_of_a_write),
        ("killed_in_the_middle_of_a_write", killed_in_the_middle_of_a_write),
        ("what_completed_is_adopted", what_completed_is_adopted),
        ("strangers_are_turned_away", strangers_are_turned_away),
    ];
    let filter = arguments.iter().skip(1).find(|argument| !argument.starts_with('-'));
    for (name, test) in tests {
        if filter.is_none_or(|filter| name.contains(filter.as_str())) {
            test();
            println!("test {name} ... ok");
        } else {
            println!("test {name} ... left out");
        }
    }
}

/// The child: endpoint 1.
fn writer(socket: &str) {
    let mut endpoint = shm::Endpoint::new(geometry(), WRITER).expect("memory");
    let stream = UnixStream::connect(socket).expect("the owner listens");
    stream.set_read_timeout(Some(Duration::from_secs(30))).expect("a timeout");
    assert_eq!(endpoint.attach(stream).expect("attached"), OWNER);
    for line in std::io::stdin().lines() {
        let line = line.expect("a line");
        let mut words = line.split(' ');
        let command = words.next().expect("a command");
        let numbers: Vec<u64> = words.map(|word| word.parse().expect("a number")).collect();
        match (command, &numbers[..]) {
            ("write", &[number, value, stop]) => {
                let status = write(&mut endpoint, GrantNumber(number), value, stop as usize);
                println!("{status:?}");
            }
            ("stream", &[number, first]) => {
                println!("{}", stream_slots(&mut endpoint, GrantNumber(number), first));
            }
            ("renounce", &[]) => {
                endpoint.post(VerbId(0), Verb::Renounce { owner: OWNER, region: LOG });
                let done = endpoint.poll(&mut Vec::new()).expect("it is done");
                println!("{:?}", done.status);
            }
            _ => panic!("no such command: {line}"),
        }
    }
}

/// Words that are all the same; before word `stop` the process gets a signal.
struct Interrupted {
    value: u64,
    at: usize,
    stop: usize,
    signal: Signal,
}

impl Iterator for Interrupted {
    type Item = u64;

    fn next(&mut self) -> Option<u64> {
        if self.at == self.stop {
            kill_process(rustix::process::getpid(), self.signal).expect("signalled");
        }
        self.at += 1;
        (self.at <= WORDS).then_some(self.value)
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        let left = WORDS.saturating_sub(self.at);
        (left, Some(left))
    }
}

impl ExactSizeIterator for Interrupted {}

/// Stops before word `stop`; above 10,000, kills before word `stop` - 10,000. Behind the last word
/// it does so before it looks whether the write counts.
fn write(endpoint: &mut shm::Endpoint, under: GrantNumber, value: u64, stop: usize) -> Status {
    let (stop, signal) =
        if stop >= 10_000 { (stop - 10_000, Signal::KILL) } else { (stop, Signal::STOP) };
    let to = place(0, LOG, 0);
    if stop == WORDS {
        endpoint.post(VerbId(0), Verb::Write { to, under, words: &[value; WORDS] });
        kill_process(rustix::process::getpid(), signal).expect("signalled");
        return endpoint.poll(&mut Vec::new()).expect("it is done").status;
    }
    endpoint.write(to, under, Interrupted { value, at: 0, stop, signal })
}

/// Writes slot after slot, two at a time, until one is refused; returns the last that completed.
fn stream_slots(endpoint: &mut shm::Endpoint, under: GrantNumber, first: u64) -> u64 {
    let mut done = Vec::new();
    for pair in (first..).step_by(2) {
        for value in [pair, pair + 1] {
            let to = place(0, LOG, (value % SLOTS) as u32 * SLOT as u32);
            endpoint.post(VerbId(value), Verb::Write { to, under, words: &[value; SLOT] });
        }
        let statuses = [(); 2].map(|()| endpoint.poll(&mut done).expect("it is done").status);
        match statuses {
            [Status::Ok, Status::Ok] => {}
            [Status::Ok, _] => return pair,
            [_, second] => {
                assert_eq!(second, Status::Refused, "a refused grant stays refused");
                return pair - 1;
            }
        }
    }
    unreachable!("the grant is revoked")
}

/// The child, as its parent sees it.
struct Writer {
    child: Child,
    orders: ChildStdin,
    answers: BufReader<ChildStdout>,
}

impl Writer {
    /// Starts a process and attaches it to the owner.
    fn start(owner: &mut shm::Endpoint) -> Writer {
        let (writer, stream) = Writer::connect();
        assert_eq!(owner.attach(stream).expect("attached"), WRITER);
        writer
    }

    /// Starts a process, which waits for the owner's greeting.
    fn connect() -> (Writer, UnixStream) {
        let name = format!("fabric-{}-{:?}", std::process::id(), Instant::now());
        let name: String = name.chars().filter(|c| c.is_alphanumeric() || *c == '-').collect();
        let socket: PathBuf = std::env::temp_dir().join(name);
        let listener = UnixListener::bind(&socket).expect("a socket");
        let mut child = Command::new(std::env::current_exe().expect("this program"))
            .arg("writer")
            .arg(&socket)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("started");
        let (stream, _) = listener.accept().expect("the child connects");
        std::fs::remove_file(&socket).expect("removed");
        let orders = child.stdin.take().expect("piped");
        let answers = BufReader::new(child.stdout.take().expect("piped"));
        (Writer { child, orders, answers }, stream)
    }

    fn order(&mut self, order: std::fmt::Arguments<'_>) {
        writeln!(self.orders, "{order}").expect("it listens");
    }

    fn answer(&mut self) -> String {
        let mut line = String::new();
        self.answers.read_line(&mut line).expect("it answers");
        line.trim().to_string()
    }

    fn signal(&self, signal: Signal) {
        kill_process(self.pid(), signal).expect("signalled");
    }

    fn pid(&self) -> Pid {
        Pid::from_child(&self.child)
    }

    /// Waits until it stands still, or has ended.
    fn wait(&self) {
        let waited = waitpid(Some(self.pid()), WaitOptions::UNTRACED).expect("a child");
        let (_, status) = waited.expect("something has happened to it");
        assert!(status.stopped() || status.signaled(), "{status:?}");
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        _ = self.child.kill();
        _ = self.child.wait();
    }
}

/// Endpoints 0 and 2 here, 1 in a child.
fn start() -> (Shared, Writer) {
    let mut shared = Shared::new(Some(1));
    let writer = Writer::start(owner(&mut shared));
    (shared, writer)
}

fn owner(shared: &mut Shared) -> &mut shm::Endpoint {
    shared.0[0].as_mut().expect("it lives")
}

/// What a write of `value` over `before` leaves after its first words.
fn half_written(value: u64, before: u64, words: usize) -> Vec<u64> {
    let is_written = |index| words == WORDS || (FIRST..words).contains(&index);
    (0..WORDS).map(|index| if is_written(index) { value } else { before }).collect()
}

/// With a timeout on its stream a process that goes on is interrupted where it waits.
fn stopped_in_the_middle_of_the_greeting() {
    let mut shared = Shared::new(Some(1));
    let (mut writer, stream) = Writer::connect();
    for _ in 0..3 {
        std::thread::sleep(Duration::from_millis(100));
        writer.signal(Signal::STOP);
        writer.wait();
        writer.signal(Signal::CONT);
    }
    std::thread::sleep(Duration::from_millis(100));
    assert_eq!(owner(&mut shared).attach(stream).expect("attached"), WRITER);
    writer.order(format_args!("renounce"));
    assert_eq!(writer.answer(), "Ok");
}

fn stopped_in_the_middle_of_a_write() {
    let (mut shared, mut writer) = start();
    let mut before = 0;
    for (round, stop) in [(1, 0), (2, 1), (3, 300), (4, WORDS - 1), (5, WORDS)] {
        let value = 10 * round;
        let rig: &mut dyn Rig = &mut shared;
        let number = rig.grant(0, LOG, 1, ALL).expect("granted").0;
        writer.order(format_args!("write {number} {value} {stop}"));
        writer.wait();
        assert!(owner(&mut shared).is_halted(WRITER) && !owner(&mut shared).has_ended(WRITER));
        let rig: &mut dyn Rig = &mut shared;
        let torn = half_written(value, before, stop);
        assert_eq!(rig.load(0, LOG, 0, WORDS), torn, "it is in the middle of a write");

        rig.revoke(0, LOG);
        assert_eq!(rig.grant(0, LOG, 1, ALL), None, "its stores are still to come");
        let next = rig.grant(0, LOG, 2, ALL).expect("granted");
        assert_eq!(rig.write(2, place(0, LOG, 7), next, &[value + 1]), Status::Ok);
        let mut expected = torn;
        expected[7] = value + 1;
        owner(&mut shared).sweep(usize::MAX);

        writer.signal(Signal::CONT);
        assert_eq!(writer.answer(), "Refused");
        assert!(!owner(&mut shared).is_halted(WRITER), "it waits for an order");
        let rig: &mut dyn Rig = &mut shared;
        assert_eq!(rig.load(0, LOG, 0, WORDS), expected, "late stores are harmless");
        assert_eq!(rig.read(2, place(0, LOG, 0), 600), expected, "late stores are harmless");

        writer.order(format_args!("renounce"));
        assert_eq!(writer.answer(), "Ok");
        // On odd rounds idle time suffices to zero its lane, on even ones the grant must.
        let budget = if round % 2 == 1 { WORDS } else { 10 };
        owner(&mut shared).sweep(budget);
        let rig: &mut dyn Rig = &mut shared;
        let number = rig.grant(0, LOG, 1, &[0..8, 20..600]).expect("it has renounced").0;
        expected[8..20].fill(0);
        assert_eq!(rig.load(0, LOG, 0, WORDS), expected, "nothing of the late stores is left");
        before = value + 5;
        writer.order(format_args!("write {number} {before} {}", WORDS + 1));
        assert_eq!(writer.answer(), "Ok");
        assert_eq!(rig.load(0, LOG, 0, WORDS), vec![before; WORDS]);
        writer.order(format_args!("renounce"));
        assert_eq!(writer.answer(), "Ok");
        rig.renounce(2, 0, LOG);
    }
}

fn killed_in_the_middle_of_a_write() {
    for stop in [0, 1, 300, WORDS] {
        let (mut shared, mut writer) = start();
        let rig: &mut dyn Rig = &mut shared;
        let number = rig.grant(0, LOG, 1, ALL).expect("granted").0;
        writer.order(format_args!("write {number} 5 {}", 10_000 + stop));
        writer.wait();
        assert!(owner(&mut shared).is_halted(WRITER));
        let end = Instant::now() + Duration::from_secs(10);
        while !owner(&mut shared).has_ended(WRITER) {
            assert!(Instant::now() < end, "the owner learns that the process has ended");
        }
        let rig: &mut dyn Rig = &mut shared;
        let torn = half_written(5, 0, stop);
        rig.revoke(0, LOG);
        assert_eq!(rig.load(0, LOG, 0, WORDS), torn, "its memory and its words stay");
        let next = rig.grant(0, LOG, 2, ALL).expect("granted");
        assert_eq!(rig.write(2, place(0, LOG, 0), next, &[6]), Status::Ok);

        let mut writer = Writer::start(owner(&mut shared));
        let rig: &mut dyn Rig = &mut shared;
        let number = rig.grant(0, LOG, 1, &[]).expect("its successor has no store to come").0;
        assert_eq!(rig.load(0, LOG, 0, WORDS), [0; WORDS], "it begins with what is kept");
        writer.order(format_args!("write {number} 8 {}", WORDS + 1));
        assert_eq!(writer.answer(), "Ok");
        assert_eq!(rig.load(0, LOG, 0, WORDS), [8; WORDS]);
    }
}

/// The race itself, a few hundred times: a writer at full speed is revoked, half of the times
/// while it is stopped somewhere.
fn what_completed_is_adopted() {
    let (mut shared, mut writer) = start();
    let mut rng = Rng::new(1);
    let mut first = SLOTS;
    let mut torn = 0;
    for round in 0..400 {
        let rig: &mut dyn Rig = &mut shared;
        let number = rig.grant(0, LOG, 1, ALL).expect("granted").0;
        writer.order(format_args!("stream {number} {first}"));
        let pause = Instant::now() + Duration::from_nanos(rng.below(300_000));
        while rig.load(0, LOG, 0, 128).iter().all(|&word| word < first) {}
        while Instant::now() < pause {}
        let stops = round % 2 == 0;
        if stops {
            writer.signal(Signal::STOP);
            writer.wait();
        }
        rig.revoke(0, LOG);
        rig.grant(0, LOG, 0, ALL).expect("granted");
        owner(&mut shared).sweep(usize::MAX);
        let rig: &mut dyn Rig = &mut shared;
        let adopted = rig.load(0, LOG, 0, 128);
        if stops {
            writer.signal(Signal::CONT);
        }
        let last: u64 = writer.answer().parse().expect("a number");
        for value in first.max(last + 3 - SLOTS)..=last {
            let slot = &adopted[(value % SLOTS) as usize * SLOT..][..SLOT];
            assert_eq!(slot, [value; SLOT], "what completed was adopted");
        }
        let next = &adopted[((last + 1) % SLOTS) as usize * SLOT..][..SLOT];
        torn += u32::from(next.contains(&(last + 1)));
        assert!(adopted.iter().all(|&word| word <= last + 2), "nothing after a refused pair");
        writer.order(format_args!("renounce"));
        assert_eq!(writer.answer(), "Ok");
        assert_eq!(rig.load(0, LOG, 0, 128), adopted, "late stores are harmless");
        first = last + 3;
    }
    assert!(torn > 0, "the race was never met");
}

fn strangers_are_turned_away() {
    let (mut shared, mut writer) = start();
    let owner = owner(&mut shared);
    let grant = Verb::Grant { region: LOG, to: WRITER, keep: ALL };
    let granted = |owner: &mut shm::Endpoint| {
        owner.post(VerbId(0), grant);
        owner.poll(&mut Vec::new()).expect("it is done").grant
    };
    let number = granted(owner).expect("granted").0;
    writer.signal(Signal::STOP);
    writer.wait();
    let mut successor = shm::Endpoint::new(geometry(), WRITER).expect("memory");
    let (here, there) = attach(owner, &mut successor);
    assert!(matches!(here, Err(shm::Error::StillAttached(WRITER))), "a stopped process lives");
    assert!(matches!(there, Err(shm::Error::NotAPeer { .. })), "it must not renounce for another");
    successor.post(VerbId(0), Verb::Renounce { owner: OWNER, region: LOG });
    assert_eq!(successor.poll(&mut Vec::new()).expect("it is done").status, Status::Gone);
    assert_eq!(granted(owner), None);
    assert!(!owner.has_ended(WRITER));
    writer.signal(Signal::CONT);
    writer.order(format_args!("write {number} 5 {}", WORDS + 1));
    assert_eq!(writer.answer(), "Ok", "nothing has changed for it");

    let mut shape = geometry();
    shape.regions[BOARD.index()].words += 1;
    let mut stranger = shm::Endpoint::new(shape, ReplicaId(2)).expect("memory");
    let (here, there) = attach(owner, &mut stranger);
    assert!(matches!(here, Err(shm::Error::NotAPeer { .. })));
    assert!(matches!(there, Err(shm::Error::NotAPeer { .. })));
    let mut twin = shm::Endpoint::new(geometry(), OWNER).expect("memory");
    assert!(matches!(attach(owner, &mut twin).0, Err(shm::Error::NotAPeer { .. })));
    let (here, mut there) = UnixStream::pair().expect("sockets");
    there.write_all(b"SSH-2.0-").expect("written");
    assert!(matches!(owner.attach(here), Err(shm::Error::NotAPeer { .. })));
}
