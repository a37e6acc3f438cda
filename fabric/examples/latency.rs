//! What shared memory costs: `cargo run --release -p fabric --example latency`.
//!
//! The program starts itself once more; the two processes spin, each pinned to a core where there
//! are two. Figures in nanoseconds; a write is 64 bytes with its check that it counts.

use std::os::unix::net::{UnixListener, UnixStream};
use std::process::Command;
use std::time::Instant;

use fabric::shm::{Endpoint, Window};
use fabric::{
    Access, Fabric, Geometry, GrantNumber, Place, RegionId, RegionSpec, Status, Verb, VerbId,
};
use hdrhistogram::Histogram;
use rustix::thread::{CpuSet, sched_setaffinity};
use smr::ReplicaId;

const LOG: RegionId = RegionId(0);
const LOG_WORDS: u32 = 1 << 17;
const BOARD: RegionId = RegionId(1);
/// 64 bytes.
const SLOT: usize = 8;
const SLOTS: u64 = LOG_WORDS as u64 / SLOT as u64;
const ROUNDS: u64 = 1_000_000;
const GRANT: GrantNumber = GrantNumber(2);
const HERE: ReplicaId = ReplicaId(0);
const THERE: ReplicaId = ReplicaId(1);

fn main() {
    match std::env::args().nth(1) {
        None => measure(),
        Some(socket) => echo(&socket),
    }
}

fn endpoint(me: ReplicaId) -> Endpoint {
    let log = RegionSpec { access: Access::Exclusive, words: LOG_WORDS };
    let board = RegionSpec { access: Access::Open, words: 64 };
    let geometry = Geometry { processes: 2, regions: vec![log, board] };
    Endpoint::new(geometry, me).expect("memory")
}

fn pin(core: usize) {
    let mut set = CpuSet::new();
    set.set(core);
    if sched_setaffinity(None, &set).is_err() {
        println!("not pinned to core {core}");
    }
}

fn grant(endpoint: &mut Endpoint, to: ReplicaId, keep: u32) -> Option<GrantNumber> {
    let keep = 0..keep;
    let keep = std::slice::from_ref(&keep);
    endpoint.post(VerbId(0), Verb::Grant { region: LOG, to, keep });
    endpoint.poll(&mut Vec::new()).expect("done at once").grant
}

fn slot(process: ReplicaId, round: u64) -> Place {
    let offset = (round % SLOTS) as u32 * SLOT as u32;
    Place { process, region: LOG, offset }
}

fn write(endpoint: &mut Endpoint, to: ReplicaId, round: u64) {
    let words = [round; SLOT];
    let status = endpoint.write(slot(to, round), GRANT, words.into_iter());
    assert_eq!(status, Status::Ok);
}

/// Spins until a slot is whole.
fn wait(window: &Window, round: u64) {
    let offset = slot(HERE, round).offset;
    let mut words = [0; SLOT];
    while words != [round; SLOT] {
        window.read(LOG, offset, &mut words);
    }
}

/// The other process: answers every slot with one of its own, then only looks.
fn echo(socket: &str) {
    pin(1);
    let mut endpoint = endpoint(THERE);
    let stream = UnixStream::connect(socket).expect("connected");
    endpoint.attach(stream).expect("attached");
    assert_eq!(grant(&mut endpoint, HERE, LOG_WORDS), Some(GRANT));
    let own = endpoint.window(THERE).expect("its own");
    let theirs = endpoint.window(HERE).expect("attached");
    theirs.write(BOARD, 0, &[1]);
    for round in 1..=ROUNDS {
        wait(&own, round);
        write(&mut endpoint, HERE, round);
    }
    // A replayer that spins on the next slot, and says how far it is.
    for round in ROUNDS + 1..=2 * ROUNDS {
        wait(&own, round);
        theirs.write(BOARD, 0, &[round]);
    }
    // Asleep: nobody looks at the memory.
    std::io::Read::read(&mut std::io::stdin(), &mut [0]).expect("told to end");
}

fn until_told(window: &Window, what: u64) {
    let mut word = [0];
    while word != [what] {
        window.read(BOARD, 0, &mut word);
    }
}

fn report(what: &str, times: &Histogram<u64>) {
    let at = |quantile| times.value_at_quantile(quantile);
    println!("{what}: p50 {} p99 {} p99.9 {}", at(0.5), at(0.99), at(0.999));
}

fn histogram() -> Histogram<u64> {
    Histogram::new_with_bounds(1, 1_000_000_000, 3).expect("bounds")
}

/// The mean of batches of 100, which hides what reading the clock costs.
fn in_batches(what: &str, mut act: impl FnMut(u64)) {
    let mut times = histogram();
    for batch in 0..ROUNDS / 100 {
        let start = Instant::now();
        for round in 0..100 {
            act(batch * 100 + round + 1);
        }
        times.record(start.elapsed().as_nanos() as u64 / 100).expect("in bounds");
    }
    report(what, &times);
}

fn measure() {
    pin(0);
    let mut endpoint = endpoint(HERE);
    let socket = std::env::temp_dir().join(format!("fabric-latency-{}", std::process::id()));
    let listener = UnixListener::bind(&socket).expect("a socket");
    let mut child = Command::new(std::env::current_exe().expect("this program"))
        .arg(&socket)
        .stdin(std::process::Stdio::piped())
        .spawn()
        .expect("started");
    let (stream, _) = listener.accept().expect("connected");
    std::fs::remove_file(&socket).expect("removed");
    endpoint.attach(stream).expect("attached");
    assert_eq!(grant(&mut endpoint, THERE, LOG_WORDS), Some(GRANT));
    let own = endpoint.window(HERE).expect("its own");
    until_told(&own, 1);

    let mut times = histogram();
    for round in 1..=ROUNDS {
        let start = Instant::now();
        write(&mut endpoint, THERE, round);
        wait(&own, round);
        times.record(start.elapsed().as_nanos() as u64).expect("in bounds");
    }
    report("round trip, a write each way between two processes that spin", &times);
    let (mut times, mut clock) = (histogram(), histogram());
    for round in ROUNDS + 1..=2 * ROUNDS {
        let start = Instant::now();
        write(&mut endpoint, THERE, round);
        let written = Instant::now();
        times.record((written - start).as_nanos() as u64).expect("in bounds");
        clock.record(written.elapsed().as_nanos() as u64).expect("in bounds");
        until_told(&own, round);
    }
    report("write while its owner spins on the slot", &times);
    report("of that, reading the clock", &clock);
    in_batches("write, nobody looks", |round| write(&mut endpoint, THERE, round));
    let mut words = Vec::new();
    in_batches("the same by post and poll", |round| {
        let words_of = [round; SLOT];
        let verb = Verb::Write { to: slot(THERE, round), under: GRANT, words: &words_of };
        endpoint.post(VerbId(round), verb);
        let done = endpoint.poll(&mut words).expect("done at once");
        assert_eq!(done.status, Status::Ok);
    });
    in_batches("read of 64 bytes by post and poll", |round| {
        endpoint.post(VerbId(round), Verb::Read { from: slot(THERE, round), words: SLOT as u32 });
        let done = endpoint.poll(&mut words).expect("done at once");
        assert_eq!((done.status, words.len()), (Status::Ok, SLOT));
    });
    drop(child.stdin.take());
    child.wait().expect("it ends");
    switches();
}

/// What handing over a region of 1 MiB costs its owner.
fn switches() {
    for (keep, sweep) in [(0, true), (8 << 10, true), (LOG_WORDS, true), (0, false)] {
        let mut owner = endpoint(HERE);
        let mut times = histogram();
        let to_self = |owner: &mut Endpoint| grant(owner, HERE, keep).expect("granted");
        let mut other = endpoint(THERE);
        let (left, right) = UnixStream::pair().expect("sockets");
        std::thread::scope(|scope| {
            let thread = scope.spawn(|| other.attach(right).expect("attached"));
            owner.attach(left).expect("attached");
            thread.join().expect("no panic");
        });
        for _ in 0..300 {
            other.post(VerbId(0), Verb::Renounce { owner: HERE, region: LOG });
            to_self(&mut owner);
            if sweep {
                owner.sweep(usize::MAX);
            }
            let start = Instant::now();
            grant(&mut owner, THERE, keep).expect("granted");
            times.record(start.elapsed().as_nanos() as u64).expect("in bounds");
        }
        let lane = if sweep { "swept before" } else { "zeroed by the grant" };
        report(&format!("grant of 1 MiB, {} KiB kept, lane {lane}", keep / 128), &times);
    }
}
