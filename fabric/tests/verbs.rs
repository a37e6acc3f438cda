//! What is of RDMA cards alone. Needs `FABRIC_CARDS` (and `FABRIC_PORTS`, to cut the network), as
//! `cargo xtask verbs` sets them; is left out elsewhere, and says so.

mod common;

use std::io::Write;
use std::net::{TcpListener, TcpStream};
use std::process::Command;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::{Duration, Instant};

use common::{BOARD, Carded, LOG, attach_verbs, geometry, place};
use fabric::verbs::{Endpoint, Error, Options, Revocation};
use fabric::{Completion, Fabric, GrantNumber, Place, Status, Verb, VerbId};
use smr::ReplicaId;
use smr::rng::Rng;

const ALL: &[std::ops::Range<u32>] = std::slice::from_ref(&(0..600));
const LONG: Duration = Duration::from_secs(20);

/// The cards, or a word to the user past the harness.
fn cards(test: &str) -> Option<Vec<String>> {
    let cards = Carded::cards();
    if cards.is_none() {
        leave_out(test, "FABRIC_CARDS names no cards (see cargo xtask verbs)");
    }
    cards
}

fn leave_out(test: &str, reason: &str) {
    let notice = format!("left out: {test}: {reason}\n");
    std::io::stderr().write_all(notice.as_bytes()).expect("told");
}

fn endpoint(cards: &[String], process: u8, options: &Options) -> Endpoint {
    let card = cards.get(usize::from(process)).or(cards.last()).cloned();
    let options = Options { card, ..options.clone() };
    Endpoint::new(geometry(), ReplicaId(process), options).expect("the card can be used")
}

/// Options for what must not fail though an emulated machine stands still now and then.
fn patient(revocation: Revocation) -> Options {
    let (silence, patience) = (Duration::from_millis(400), Duration::from_secs(5));
    Options { silence, patience, revocation, ..Options::default() }
}

/// Endpoints 0 and 1.
fn pair(cards: &[String], options: &Options) -> [Endpoint; 2] {
    let mut pair = [0, 1].map(|process| endpoint(cards, process, options));
    let [one, other] = &mut pair;
    for side in attach_verbs(one, other) {
        side.expect("attached");
    }
    settle(&mut pair);
    pair
}

fn settle(endpoints: &mut [Endpoint]) {
    let end = Instant::now() + LONG;
    while endpoints.iter_mut().fold(false, |busy, endpoint| endpoint.turn() | busy) {
        assert!(Instant::now() < end, "it comes to rest");
        std::thread::sleep(Duration::from_micros(50));
    }
}

/// Waits for a completion of the first; the others take part.
fn complete(endpoints: &mut [&mut Endpoint], words: &mut Vec<u64>) -> Completion {
    let end = Instant::now() + LONG;
    loop {
        if let Some(done) = endpoints[0].poll(words) {
            return done;
        }
        for other in &mut endpoints[1..] {
            other.turn();
        }
        assert!(Instant::now() < end, "it completes");
        std::thread::sleep(Duration::from_micros(50));
    }
}

fn write(endpoints: &mut [&mut Endpoint], to: Place, under: GrantNumber, words: &[u64]) -> Status {
    endpoints[0].post(VerbId(0), Verb::Write { to, under, words });
    complete(endpoints, &mut Vec::new()).status
}

fn grant(owner: &mut Endpoint, to: u8) -> Option<GrantNumber> {
    owner.post(VerbId(0), Verb::Grant { region: LOG, to: ReplicaId(to), keep: ALL });
    owner.poll(&mut Vec::new()).expect("it is done at once").grant
}

#[test]
fn many_at_once_end_in_order_and_each_sees_what_came_before() {
    let Some(cards) = cards("many at once") else { return };
    let mut pair = pair(&cards, &patient(Revocation::FlagsThenState));
    let number = grant(&mut pair[0], 1).expect("granted");
    let [owner, writer] = &mut pair;
    // More than a queue pair takes, and reads between writes: a write must not overtake a read.
    for value in 1..=300_u64 {
        let (to, words) = (place(0, LOG, 3), [value, value]);
        writer.post(VerbId(2 * value), Verb::Write { to, under: number, words: &words });
        writer.post(VerbId(2 * value + 1), Verb::Read { from: to, words: 2 });
    }
    for value in 1..=300 {
        let mut words = Vec::new();
        let done = complete(&mut [writer, owner], &mut words);
        assert_eq!((done.id, done.status), (VerbId(2 * value), Status::Ok));
        let done = complete(&mut [writer, owner], &mut words);
        assert_eq!((done.id, done.status), (VerbId(2 * value + 1), Status::Ok));
        assert_eq!(words, [value, value]);
    }
    assert_eq!(writer.poll(&mut Vec::new()), None);
}

/// What the writer of the race is told, and what it answers.
enum Order {
    Stream(GrantNumber, u64),
    Renounce,
}

/// Words of a slot, slots, and writes under way.
const SLOT: usize = 8;
const SLOTS: u64 = 16;
const AHEAD: u64 = 4;

/// Writes slot after slot until one is refused; the last that completed.
fn stream(endpoint: &mut Endpoint, under: GrantNumber, first: u64) -> u64 {
    let (mut posted, mut completed, mut refused) = (first, first - 1, 0);
    let mut words = Vec::new();
    loop {
        while refused == 0 && posted <= completed + AHEAD {
            let to = place(0, LOG, (posted % SLOTS) as u32 * SLOT as u32);
            let words = [posted; SLOT];
            endpoint.post(VerbId(posted), Verb::Write { to, under, words: &words });
            posted += 1;
        }
        match endpoint.poll(&mut words) {
            Some(Completion { id, status: Status::Ok, .. }) => {
                assert_eq!((id, refused), (VerbId(completed + 1), 0), "no holes");
                completed += 1;
            }
            Some(Completion { status, .. }) => {
                assert_eq!(status, Status::Refused, "its owner is there");
                refused += 1;
            }
            None => std::thread::yield_now(),
        }
        if completed + refused + 1 == posted && refused > 0 {
            return completed;
        }
    }
}

fn race_writer(mut endpoint: Endpoint, orders: &Receiver<Order>, answers: &Sender<u64>) {
    loop {
        let answer = match orders.try_recv() {
            Ok(Order::Stream(number, first)) => stream(&mut endpoint, number, first),
            Ok(Order::Renounce) => {
                let owner = ReplicaId(0);
                endpoint.post(VerbId(0), Verb::Renounce { owner, region: LOG });
                let done = complete(&mut [&mut endpoint], &mut Vec::new());
                assert_eq!(done.status, Status::Ok);
                0
            }
            Err(std::sync::mpsc::TryRecvError::Empty) => {
                endpoint.turn();
                std::thread::sleep(Duration::from_micros(100));
                continue;
            }
            Err(std::sync::mpsc::TryRecvError::Disconnected) => return,
        };
        answers.send(answer).expect("the owner listens");
    }
}

fn answer(owner: &mut Endpoint, answers: &Receiver<u64>) -> u64 {
    let end = Instant::now() + LONG;
    loop {
        owner.turn();
        if let Ok(answer) = answers.try_recv() {
            return answer;
        }
        assert!(Instant::now() < end, "the writer answers");
        std::thread::sleep(Duration::from_micros(100));
    }
}

/// A writer at full speed is revoked, again and again: what completed is there when the revocation
/// is, and nothing comes later.
#[test]
fn nothing_comes_after_a_revocation() {
    let Some(cards) = cards("the race of revocation and writes") else { return };
    let mut cut = 0;
    for revocation in [Revocation::FlagsThenState, Revocation::State] {
        let [mut owner, writer] = pair(&cards, &patient(revocation));
        let (order, orders) = channel();
        let (answers_in, answers) = channel();
        let thread = std::thread::spawn(move || race_writer(writer, &orders, &answers_in));
        let mut rng = Rng::new(7);
        let (mut first, mut completed) = (SLOTS, 0);
        let mut grants = 0;
        while grants < 40 || cut == 0 && grants < 1_000 {
            grants += 1;
            let number = grant(&mut owner, 1).expect("granted");
            order.send(Order::Stream(number, first)).expect("the writer listens");
            let end = Instant::now() + LONG;
            let mut seen = [0; SLOT * SLOTS as usize];
            while seen.iter().all(|&word| word < first) {
                owner.turn();
                owner.load(LOG, 0, &mut seen);
                assert!(Instant::now() < end, "the writer begins");
            }
            let until = Instant::now() + Duration::from_micros(rng.below(5_000));
            while Instant::now() < until {
                owner.turn();
            }
            owner.post(VerbId(1), Verb::Revoke { region: LOG });
            owner.load(LOG, 0, &mut seen);
            let revoked = owner.poll(&mut Vec::new()).expect("done at once");
            assert_eq!(revoked.status, Status::Ok);
            let last = answer(&mut owner, &answers);
            for value in first.max((last + AHEAD + 1).saturating_sub(SLOTS))..=last {
                let slot = &seen[(value % SLOTS) as usize * SLOT..][..SLOT];
                assert_eq!(slot, [value; SLOT], "what completed is there ({revocation:?})");
            }
            completed += last + 1 - first;
            cut += u32::from(seen.iter().any(|&word| word > last));
            order.send(Order::Renounce).expect("the writer listens");
            answer(&mut owner, &answers);
            let mut later = [0; SLOT * SLOTS as usize];
            owner.load(LOG, 0, &mut later);
            assert_eq!(later, seen, "nothing comes after a revocation ({revocation:?})");
            first = last + AHEAD + 1;
        }
        println!(
            "{revocation:?}: {completed} writes completed in {grants} grants, {cut} so far cut"
        );
        drop(order);
        thread.join().expect("no panic");
    }
    assert!(cut > 0, "the race was never met");
}

fn set_link(port: &str, state: &str) {
    let status = Command::new("ip").args(["link", "set", port, state]).status().expect("ip runs");
    assert!(status.success(), "ip link set {port} {state}");
}

#[test]
fn what_is_out_of_reach_is_known_in_tens_of_milliseconds_and_comes_back() {
    let Some(cards) = cards("a cut network") else { return };
    let Ok(ports) = std::env::var("FABRIC_PORTS") else {
        return leave_out("a cut network", "FABRIC_PORTS names no interfaces");
    };
    let port = ports.split(',').nth(1).expect("a port of process 1");
    let mut pair = pair(&cards, &Options { patience: LONG, ..Options::default() });
    let number = grant(&mut pair[1], 0).expect("granted");
    let [one, other] = &mut pair;
    let mut both = [one, other];
    assert_eq!(write(&mut both, place(1, LOG, 0), number, &[1]), Status::Ok);
    assert_eq!(write(&mut both, place(1, BOARD, 1), GrantNumber(0), &[1]), Status::Ok);
    set_link(port, "down");
    // First on a connection that has worked: the read is tried again on the next one.
    for attempt in 1..=2 {
        let start = Instant::now();
        both[0].post(VerbId(1), Verb::Read { from: place(1, BOARD, 0), words: 1 });
        let done = complete(&mut both, &mut Vec::new());
        assert_eq!(done.status, Status::Gone);
        let elapsed = start.elapsed();
        println!("attempt {attempt}: out of reach after {elapsed:?}");
        assert!(elapsed < Duration::from_millis(1_000), "{elapsed:?}, in an emulated machine");
    }
    assert_eq!(write(&mut both, place(1, LOG, 1), number, &[2]), Status::Gone);
    set_link(port, "up");
    let end = Instant::now() + LONG;
    loop {
        both[0].post(VerbId(1), Verb::Read { from: place(1, LOG, 0), words: 1 });
        let mut words = Vec::new();
        if complete(&mut both, &mut words).status == Status::Ok {
            assert_eq!(words, [1]);
            break;
        }
        assert!(Instant::now() < end, "the connection comes back");
    }
    let again = write(&mut both, place(1, LOG, 0), number, &[3]);
    assert_eq!(again, Status::Refused, "once a write has failed, every later one is refused");
    both[0].post(VerbId(2), Verb::Renounce { owner: ReplicaId(1), region: LOG });
    assert_eq!(complete(&mut both, &mut Vec::new()).status, Status::Ok);
    let number = grant(both[1], 0).expect("it has renounced");
    assert_eq!(write(&mut both, place(1, LOG, 0), number, &[4]), Status::Ok);
}

#[test]
fn a_process_that_ends_is_gone_at_once() {
    let Some(cards) = cards("the end of a process") else { return };
    let [mut one, other] = pair(&cards, &Options { patience: LONG, ..Options::default() });
    assert!(!one.has_ended(ReplicaId(1)));
    drop(other);
    let start = Instant::now();
    let gone = write(&mut [&mut one], place(1, BOARD, 0), GrantNumber(0), &[1]);
    assert_eq!(gone, Status::Gone);
    println!("gone after {:?}", start.elapsed());
    assert!(one.has_ended(ReplicaId(1)));
}

#[test]
fn who_attaches_again_holds_nothing() {
    let Some(cards) = cards("attaching again") else { return };
    let mut pair = pair(&cards, &patient(Revocation::FlagsThenState));
    let number = grant(&mut pair[0], 1).expect("granted");
    let [owner, writer] = &mut pair;
    let to = place(0, LOG, 0);
    assert_eq!(write(&mut [writer, owner], to, number, &[1]), Status::Ok);
    for side in attach_verbs(owner, writer) {
        side.expect("attached");
    }
    assert_eq!(write(&mut [writer, owner], to, number, &[2]), Status::Refused);
    let number = grant(owner, 1).expect("it need not renounce");
    assert_eq!(write(&mut [writer, owner], to, number, &[3]), Status::Ok);
    let mut word = [0];
    owner.load(LOG, 0, &mut word);
    assert_eq!(word, [3]);
}

#[test]
fn completions_of_a_former_connection_are_not_taken_for_new_ones() {
    let Some(cards) = cards("late completions") else { return };
    let [mut owner, mut writer] = pair(&cards, &patient(Revocation::FlagsThenState));
    assert_eq!(owner.store(BOARD, 3, &[7]), Status::Ok);
    let (to, none) = (place(0, BOARD, 0), GrantNumber(0));
    writer.post(VerbId(1), Verb::Write { to, under: none, words: &[1] });
    // It is done, and the card has said so, but nobody has looked.
    std::thread::sleep(Duration::from_millis(300));
    for side in attach_verbs(&mut owner, &mut writer) {
        side.expect("attached");
    }
    writer.post(VerbId(2), Verb::Read { from: place(0, BOARD, 3), words: 1 });
    let mut words = Vec::new();
    let mut both = [&mut writer, &mut owner];
    let former = complete(&mut both, &mut words);
    assert_eq!((former.id, former.status), (VerbId(1), Status::Gone));
    let done = complete(&mut both, &mut words);
    assert_eq!((done.id, done.status, words), (VerbId(2), Status::Ok, vec![7]));
}

#[test]
fn strangers_are_turned_away() {
    let Some(cards) = cards("strangers") else { return };
    let options = patient(Revocation::FlagsThenState);
    let mut pair = pair(&cards, &options);
    let mut shape = geometry();
    shape.regions[BOARD.index()].words += 1;
    let card = Options { card: cards.last().cloned(), ..options.clone() };
    let mut stranger = Endpoint::new(shape, ReplicaId(2), card).expect("the card can be used");
    let mut twin = endpoint(&cards, 0, &options);
    for other in [&mut stranger, &mut twin] {
        for side in attach_verbs(&mut pair[0], other) {
            assert!(matches!(side, Err(Error::NotAPeer { .. })), "{side:?}");
        }
    }
    let listener = TcpListener::bind("127.0.0.1:0").expect("a socket");
    let address = listener.local_addr().expect("bound");
    let mut client = TcpStream::connect(address).expect("connected");
    client.write_all(b"SSH-2.0-OpenSSH_9.2p1 Debian-2\r\n").expect("written");
    let here = pair[0].attach(listener.accept().expect("connected").0);
    assert!(matches!(here, Err(Error::NotAPeer { .. })), "{here:?}");
    let [owner, writer] = &mut pair;
    let to = place(0, BOARD, 0);
    let ok = write(&mut [writer, owner], to, GrantNumber(0), &[3]);
    assert_eq!(ok, Status::Ok, "nothing has changed for the others");
}
