//! The native client against real processes, which are killed under load, and whose disk loses what
//! was not synced. A replica is this program, run again.
#![forbid(unsafe_code)]
#![allow(missing_docs)]

mod replicas;

use std::collections::{BTreeMap, BTreeSet};
use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::ops::Bound;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use faultfs::{Command, FaultDisk};
use lockstep_client::load::{self, Load};
use lockstep_client::{
    Batch, Client, Durability, Error, OnLoss, Options, Outcome, Swap, Terms, Ticket, Value,
    Viewstamp,
};
use replicas::Replicas;
use smr::{ClientId, ClientMessage, GroupId, Incarnation, ReadRequest, RequestNumber, View};
use wire::{Greeting, Header, Kind, NO_REPLICA, encode_frame};

fn main() {
    let arguments: Vec<String> = std::env::args().collect();
    if let [_, role, rest @ ..] = &arguments[..]
        && role == "replica"
    {
        return replicas::child(rest);
    }
    let tests: [(&str, fn()); 10] = [
        ("commands", commands),
        ("deadlines_and_bounds", deadlines_and_bounds),
        ("primary_killed_in_sync", || primary_killed(Durability::Sync)),
        ("primary_killed_in_lazy", || primary_killed(Durability::Lazy)),
        ("what_was_lost_is_replayed", what_was_lost_is_replayed),
        ("what_was_lost_is_reported", what_was_lost_is_reported),
        ("a_failed_sync_stops_its_replica", a_failed_sync_stops_its_replica),
        ("a_full_disk_is_waited_for", a_full_disk_is_waited_for),
        ("slow_readers_are_bounded", slow_readers_are_bounded),
        ("nonsense_is_refused", nonsense_is_refused),
    ];
    let filter = arguments.iter().skip(1).find(|argument| !argument.starts_with('-'));
    for (name, test) in tests {
        if filter.is_none_or(|filter| name.contains(filter.as_str())) {
            let start = Instant::now();
            test();
            println!("test {name} ... ok ({:.1?})", start.elapsed());
        }
    }
}

/// A directory that is removed again.
struct Place(PathBuf);

impl Place {
    fn new(name: &str) -> Place {
        let name = format!("lockstep-client-{name}-{}", std::process::id());
        Place(std::env::temp_dir().join(name))
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn patient(on_loss: OnLoss) -> Options {
    let terms = Terms { deadline: None, ..Terms::default() };
    Options { on_loss, terms, ..Options::default() }
}

fn commands() {
    let place = Place::new("commands");
    let replicas = Replicas::start(&place.0, Durability::Sync);
    let mut client = replicas.client(Options::default());
    assert_eq!(client.get(b"a").expect("read"), None);
    client.set(b"a", b"1").expect("set");
    assert_eq!(client.get(b"a").expect("read").as_deref(), Some(&b"1"[..]));
    assert_eq!(client.cas(b"a", b"2", b"3").expect("compared"), Swap::Different);
    assert_eq!(client.cas(b"a", b"1", b"3").expect("compared"), Swap::Swapped);
    assert_eq!(client.cas(b"b", b"1", b"3").expect("compared"), Swap::Absent);
    assert_eq!(client.incr(b"a", 4).expect("added"), 7);
    for key in [&b"k1"[..], b"k2", b"k3", b"k4"] {
        client.set(key, key).expect("set");
    }
    client.command(&[b"RPUSH", b"k35", b"x"]).expect("a list");
    let (low, high) = (Bound::Excluded(&b"k1"[..]), Bound::Included(&b"k4"[..]));
    let found = client.range(low, high, 3).expect("read");
    let keys: Vec<&[u8]> = found.iter().map(|(key, _)| &key[..]).collect();
    assert_eq!(keys, [&b"k2"[..], b"k3", b"k35"]);
    assert_eq!(found[0].1.as_deref(), Some(&b"k2"[..]));
    assert_eq!(found[2].1, None);
    assert_eq!(client.range(Bound::Unbounded, Bound::Unbounded, 99).expect("read").len(), 6);
    assert!(client.del(b"k1").expect("removed"));
    assert!(!client.del(b"k1").expect("removed"));
    let error = client.incr(b"k35", 1).expect_err("a list is no number");
    assert!(matches!(&error, Error::Service(text) if text.starts_with("WRONGTYPE")), "{error}");

    let mut batch = Batch::new();
    batch.set(b"x", b"5").incr(b"x", 1).incr(b"k35", 1).get(b"x");
    let answer = client.run(&batch).expect("executed");
    let replies: Vec<Result<Value, Error>> = answer.replies().collect();
    assert!(matches!(replies[1], Ok(Value::Integer(6))));
    assert!(matches!(replies[2], Err(Error::Service(_))));
    assert!(matches!(&replies[3], Ok(Value::Bulk(six)) if six == b"6"));

    let written = client.session().viewstamp();
    assert_eq!(written, answer.position);
    let durable = client.session().flush().expect("flushed");
    assert!(durable.op >= written.op && client.session().durable_point() == durable);
    // A key whose time has come is removed through the log.
    client.command(&[b"SET", b"soon", b"gone", b"PX", b"1"]).expect("set");
    std::thread::sleep(Duration::from_millis(5));
    assert_eq!(client.get(b"soon").expect("read"), None);
}

fn deadlines_and_bounds() {
    let place = Place::new("deadlines");
    let mut replicas = Replicas::start(&place.0, Durability::Memory);
    let options = Options { tickets: 100, ..Options::default() };
    let mut client = replicas.client(options);
    client.set(b"a", b"1").expect("set");
    replicas.kill(1);
    replicas.kill(2);
    let terms = Terms { deadline: Some(Duration::from_millis(300)), durable: false };
    let mut batch = Batch::new();
    batch.incr(b"n", 1);
    let tickets: Vec<Ticket> =
        (0..100).map(|_| client.submit_on(&batch, terms).expect("submitted")).collect();
    assert!(matches!(client.submit(&batch), Err(Error::Full)));
    let outcomes: Vec<Outcome> =
        tickets.iter().map(|&t| client.wait(t).expect_err("no quorum").outcome()).collect();
    // What the window took was sent, the rest was not.
    assert_eq!(outcomes.iter().filter(|&&o| o == Outcome::Unknown).count(), 32);
    assert!(outcomes[32..].iter().all(|&outcome| outcome == Outcome::NotExecuted));
    assert!(matches!(client.wait(tickets[0]), Err(Error::UnknownTicket)));
    // One that was fetched is not waited for while others are open.
    let patient = Terms { deadline: None, ..terms };
    client.submit_on(&batch, patient).expect("submitted");
    assert!(matches!(client.wait(tickets[1]), Err(Error::UnknownTicket)));
    let huge = bytes::Bytes::from(vec![0; wire::LONGEST_BODY + 1]);
    assert!(matches!(client.session().submit(huge, terms), Err(Error::TooLong { .. })));
    let options = Options { connect: Duration::from_millis(300), ..Options::default() };
    let nowhere = Client::connect(&["127.0.0.1:1"], options).map(|_| ());
    assert!(matches!(nowhere, Err(Error::Unreachable { .. })));
}

/// What a client of increments has seen.
#[derive(Default)]
struct Seen {
    submitted: u64,
    /// The counter after each increment and where that is, as last told.
    sums: BTreeMap<Ticket, (i64, Viewstamp)>,
    again: BTreeSet<Ticket>,
    dropped: BTreeSet<Ticket>,
}

impl Seen {
    /// Keeps 20 increments under way for `duration`.
    fn drive(&mut self, client: &mut Client, duration: Duration) {
        let end = Instant::now() + duration;
        let mut batch = Batch::new();
        batch.incr(b"n", 1);
        while Instant::now() < end {
            while client.session().outstanding() < 20 {
                client.submit(&batch).expect("submitted");
                self.submitted += 1;
            }
            self.poll(client);
        }
    }

    /// Keeps increments under way until this holds, which a busy machine may take a minute for.
    fn drive_until(&mut self, client: &mut Client, mut holds: impl FnMut(&Seen) -> bool) {
        let end = Instant::now() + Duration::from_secs(60);
        while !holds(self) {
            assert!(Instant::now() < end, "it does not come about");
            self.drive(client, Duration::from_millis(50));
        }
    }

    /// Waits for all answers.
    fn finish(&mut self, client: &mut Client) {
        while client.session().outstanding() > 0 {
            self.poll(client);
        }
    }

    fn poll(&mut self, client: &mut Client) {
        client.session().poll(Duration::from_millis(10)).expect("polled");
        while let Some(done) = client.session().next_done() {
            if done.again {
                self.again.insert(done.ticket);
            }
            match done.result {
                Ok(answer) => {
                    let Some(Ok(Value::Integer(sum))) = answer.replies().next() else {
                        panic!("{answer:?}");
                    };
                    self.sums.insert(done.ticket, (sum, answer.position));
                }
                Err(Error::Dropped) => assert!(self.dropped.insert(done.ticket)),
                Err(error) => panic!("{error}"),
            }
        }
    }

    /// That the increments were executed once each, in the order of their submission.
    fn check(&self, client: &mut Client, acknowledged: usize) {
        let sums: Vec<i64> = self.sums.values().map(|(sum, _)| *sum).collect();
        assert_eq!(sums, (1..=acknowledged as i64).collect::<Vec<i64>>());
        let last = client.get(b"n").expect("read").expect("a counter");
        assert_eq!(String::from_utf8_lossy(&last), acknowledged.to_string());
    }
}

fn primary_killed(durability: Durability) {
    let place = Place::new(&format!("killed-{}", durability.name()));
    let mut replicas = Replicas::start(&place.0, durability);
    let mut client = replicas.client(patient(OnLoss::Replay));
    let mut seen = Seen::default();
    for _ in 0..3 {
        seen.drive(&mut client, Duration::from_millis(500));
        let primary = client.session().viewstamp().view.primary();
        replicas.kill(primary.index());
        seen.drive(&mut client, Duration::from_millis(1500));
        replicas.start_missing();
        seen.drive(&mut client, Duration::from_millis(500));
    }
    seen.finish(&mut client);
    println!("{}: {} increments", durability.name(), seen.submitted);
    seen.check(&mut client, seen.submitted as usize);
    assert!(client.session().take_loss().is_none(), "one crash at a time loses nothing");
}

/// A disk that obeys, if there can be one.
fn fault_disk(name: &str) -> Option<FaultDisk> {
    let path = std::env::temp_dir().join(format!("lockstep-client-{name}-{}", std::process::id()));
    FaultDisk::mount(&path).inspect_err(|reason| eprintln!("SKIPPED {name}: {reason}")).ok()
}

/// Nobody knows what a disk has dropped whose sync failed. In `lazy` nobody waits for it either:
/// the replica must stop all the same, and costs the others nothing.
fn a_failed_sync_stops_its_replica() {
    let Some(disk) = fault_disk("failed-sync") else { return };
    let mut replicas = Replicas::start(disk.path(), Durability::Lazy);
    let mut client = replicas.client(patient(OnLoss::Replay));
    let mut seen = Seen::default();
    seen.drive(&mut client, Duration::from_millis(300));
    disk.command(Command::FailFsync { after: 50 });
    let mut gone = 0;
    seen.drive_until(&mut client, |_| {
        gone += replicas.reap();
        gone > 0
    });
    // Two of three go on.
    let before = seen.sums.len();
    seen.drive_until(&mut client, |seen| seen.sums.len() > before + 20);
    assert_eq!(gone + replicas.reap(), 1, "of one disk one sync failed");
    replicas.start_missing();
    seen.drive(&mut client, Duration::from_millis(1000));
    seen.finish(&mut client);
    // What the restarted replica has, and one more, is enough.
    let last = client.session().flush().expect("flushed");
    assert!(last.op.0 > 0);
    seen.check(&mut client, seen.submitted as usize);
    assert!(client.session().take_loss().is_none());
    drop((replicas, disk));
}

/// While the disks are full, writes wait and reads do not; with space again nothing is missing,
/// after a crash of all replicas neither.
fn a_full_disk_is_waited_for() {
    let Some(disk) = fault_disk("full") else { return };
    let mut replicas = Replicas::start(disk.path(), Durability::Lazy);
    let mut client = replicas.client(patient(OnLoss::Replay));
    let mut seen = Seen::default();
    seen.drive(&mut client, Duration::from_millis(300));
    disk.command(Command::Full { free: 0 });
    // The space is looked at now and then; then nothing is accepted that has none.
    let mut before = usize::MAX;
    for half_second in 0.. {
        assert!(half_second < 120, "it accepts what has no space");
        if std::mem::replace(&mut before, seen.sums.len()) == seen.sums.len() {
            break;
        }
        seen.drive(&mut client, Duration::from_millis(500));
    }
    let count = client.get(b"n").expect("a read needs none").expect("a counter");
    assert_eq!(String::from_utf8_lossy(&count), before.to_string());
    disk.command(Command::Ok);
    // There is space again.
    seen.drive_until(&mut client, |seen| seen.sums.len() > before);
    seen.finish(&mut client);
    client.session().flush().expect("flushed");
    replicas.kill_all();
    disk.drop_unsynced();
    replicas.start_missing();
    seen.check(&mut client, seen.submitted as usize);
    assert!(client.session().take_loss().is_none(), "all of it was durable");
    drop((replicas, disk));
}

/// A group in `lazy` on a slow disk, whose power goes while a client has 20 increments under way.
fn power_cut(name: &str, on_loss: OnLoss) -> Option<(Replicas, Client, Seen, FaultDisk)> {
    let disk = fault_disk(name)?;
    let mut replicas = Replicas::start(disk.path(), Durability::Lazy);
    let mut client = replicas.client(patient(on_loss));
    let mut seen = Seen::default();
    seen.drive(&mut client, Duration::from_millis(300));
    disk.command(Command::Stall { ms: 40 });
    seen.drive(&mut client, Duration::from_millis(700));
    disk.command(Command::Cut { after: 0 });
    replicas.kill_all();
    // What the dead have answered is still taken.
    seen.poll(&mut client);
    disk.drop_unsynced();
    disk.command(Command::Ok);
    replicas.start_missing();
    seen.drive(&mut client, Duration::from_millis(3000));
    seen.finish(&mut client);
    Some((replicas, client, seen, disk))
}

fn what_was_lost_is_replayed() {
    let cut = power_cut("replay", OnLoss::Replay);
    let Some((replicas, mut client, seen, disk)) = cut else { return };
    let loss = client.session().take_loss().expect("a slow disk loses something");
    println!("{} increments, {} of them executed again", seen.submitted, loss.replayed);
    assert!(loss.replayed > 0 && loss.dropped.is_empty());
    assert_eq!(seen.again.len(), loss.replayed);
    seen.check(&mut client, seen.submitted as usize);
    client.session().flush().expect("flushed");
    assert_eq!(client.session().tentative(), 0);
    drop((replicas, disk));
}

fn what_was_lost_is_reported() {
    let cut = power_cut("report", OnLoss::Report);
    let Some((replicas, mut client, mut seen, disk)) = cut else { return };
    let loss = client.session().take_loss().expect("a slow disk loses something");
    assert_eq!(seen.dropped, loss.dropped.iter().copied().collect());
    let before = seen.sums.len();
    // What was answered in an earlier view, above what was kept, is gone.
    let last_view = client.session().viewstamp().view;
    let kept = loss.kept;
    seen.sums.retain(|_, (_, position)| position.view == last_view || position.op <= kept);
    let lost = before - seen.sums.len();
    println!("{} increments, {lost} lost, {} dropped", seen.submitted, seen.dropped.len());
    assert!(lost > 0 && seen.again.is_empty());
    assert_eq!(seen.sums.len() + lost + seen.dropped.len(), seen.submitted as usize);
    seen.check(&mut client, seen.sums.len());
    drop((replicas, disk));
}

/// A client by hand, which has greeted.
struct Raw {
    stream: TcpStream,
    client: ClientId,
}

impl Raw {
    fn connect(address: &str, gateway: u32) -> Raw {
        let stream = TcpStream::connect(address).expect("connected");
        stream.set_read_timeout(Some(Duration::from_secs(5))).expect("set");
        let client = ClientId { gateway, incarnation: Incarnation(1) };
        let mut raw = Raw { stream, client };
        let mut hello = Vec::new();
        Greeting::Client { group: GroupId(0), client }.encode(&mut hello);
        raw.stream.write_all(&hello).expect("sent");
        raw
    }

    fn frame(&self, kind: Kind, payload: &[u8]) -> Vec<u8> {
        let header = Header {
            kind,
            group: GroupId(7),
            from: NO_REPLICA,
            incarnation: self.client.incarnation,
        };
        let mut frame = Vec::new();
        encode_frame(&mut frame, &header, |out| out.extend_from_slice(payload)).expect("short");
        frame
    }

    fn read(&self, client: ClientId, number: u64, body: &[u8]) -> Vec<u8> {
        let number = RequestNumber(number);
        let request = ReadRequest { client, number, body: body.to_vec().into() };
        let mut message = Vec::new();
        ClientMessage::Read { expected: View(0), request }.encode(&mut message);
        self.frame(Kind::Client, &message)
    }

    /// Whether the replica closes the connection.
    fn is_closed(&mut self) -> bool {
        let mut buffer = [0; 4096];
        loop {
            match self.stream.read(&mut buffer) {
                Ok(0) => return true,
                Ok(_) => {}
                Err(error) => return error.kind() == ErrorKind::ConnectionReset,
            }
        }
    }
}

fn slow_readers_are_bounded() {
    let place = Place::new("slow");
    let replicas = Replicas::start(&place.0, Durability::Memory);
    let mut client = replicas.client(Options::default());
    client.set(b"large", &vec![7; 4 << 20]).expect("set");
    let primary = client.session().viewstamp().view.primary().index();
    let before = replicas.memory(primary);
    let mut slow: Vec<Raw> =
        (0..8).map(|n| Raw::connect(&replicas.peers[primary], 0x7000_0000 + n)).collect();
    let mut batch = Batch::new();
    batch.get(b"large");
    let mut most = 0;
    for (number, raw) in (1..=100).flat_map(|n| (0..8).map(move |raw| (n, raw))) {
        let raw = &mut slow[raw];
        let message = raw.read(raw.client, number, batch.body());
        // Nothing is read from it: the replica stops reading, or hangs up.
        let _ = raw.stream.write_all(&message);
        most = most.max(replicas.memory(primary));
    }
    let load = Load { duration: Duration::from_secs(1), value_bytes: 100, ..Load::default() };
    let mut longest = Duration::ZERO;
    let each = |sample: load::Sample| longest = longest.max(sample.took);
    let tally = load::run(&mut [client], &load, each, |_, error| panic!("{error}"));
    let answered = tally.expect("it runs").answered;
    most = most.max(replicas.memory(primary));
    println!(
        "{} MiB more beside 800 reads of 4 MiB; {answered} requests, longest {longest:.1?}",
        (most - before) >> 20
    );
    assert!(most - before < 700 << 20, "{} bytes more", most - before);
    assert!(answered > 100 && longest < Duration::from_secs(3), "{answered} in {longest:?}");
}

fn nonsense_is_refused() {
    let place = Place::new("nonsense");
    let replicas = Replicas::start(&place.0, Durability::Memory);
    let mut client = replicas.client(Options::default());
    client.set(b"a", b"1").expect("set");
    let address = &replicas.peers[0];
    let id = |gateway| ClientId { gateway, incarnation: Incarnation(1) };
    let attempt = |gateway: u32, bytes: &dyn Fn(&Raw) -> Vec<u8>| {
        let mut raw = Raw::connect(address, gateway);
        let bytes = bytes(&raw);
        let _ = raw.stream.write_all(&bytes);
        raw.is_closed()
    };
    assert!(attempt(0x7000_0000, &|_| b"GET / HTTP/1.1\r\n\r\n and more of it, and more".to_vec()));
    assert!(attempt(0x7000_0001, &|raw| raw.frame(Kind::Client, b"\x07")));
    assert!(attempt(0x7000_0002, &|raw| raw.frame(Kind::Replica, b"")));
    assert!(attempt(0x7000_0003, &|raw| raw.read(id(0x7000_0004), 1, b"")));
    // It fits into a client's frame, and what carries it among replicas would fit into none.
    let long = vec![0; wire::LONGEST_BODY + 1];
    assert!(attempt(0x7000_0007, &|raw| raw.read(raw.client, 1, &long)));
    assert!(attempt(3, &|_| Vec::new()), "a replica's id is no client's");
    // A newer connection of the same client takes the older one's place.
    let mut older = Raw::connect(address, 0x7000_0005);
    std::thread::sleep(Duration::from_millis(50));
    let _newer = Raw::connect(address, 0x7000_0005);
    assert!(older.is_closed());
    // Sound bytes are answered, if only by a refusal.
    let mut sound = Raw::connect(address, 0x7000_0006);
    let message = sound.read(sound.client, 1, b"");
    sound.stream.write_all(&message).expect("sent");
    let mut answers = vec![0; 36 + 2 + 36 + 12];
    sound.stream.read_exact(&mut answers).expect("a hello and a reply");
    assert_eq!(client.get(b"a").expect("read").as_deref(), Some(&b"1"[..]));
}
