//! Real replicas that order by nopaxos: kills of leaders and sequencers, loss, long requests.

mod support;

use std::collections::BTreeMap;
use std::net::{SocketAddr, UdpSocket};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use bytes::Bytes;
use lockstep_client::{Batch, Client, Error, Options, Terms, Ticket};
use oum::{CONTROL_MAGIC, Control, Members, Sequencer, Session};
use resp::Value;
use serde_json::json;
use smr::GroupId;
use support::{Group, bulk, error_of, free_ports, ok};

/// A controller and the sequencers that it has begun, in threads of the test.
struct Network {
    controller: SocketAddr,
    shared: Arc<Shared>,
    sequencer: Option<JoinHandle<()>>,
    thread: Option<JoinHandle<()>>,
}

struct Shared {
    members: Vec<SocketAddr>,
    group: Mutex<GroupId>,
    sequencer: Mutex<SocketAddr>,
    session: AtomicU32,
    /// The sequencer with this session stamps.
    alive: AtomicU32,
    /// Every so many-th copy for a member is lost; 0 loses none.
    lossy: AtomicU32,
    stop: AtomicBool,
}

const GROUP: GroupId = GroupId(0xabc);

impl Network {
    fn start(members: &[u16]) -> Network {
        let socket = UdpSocket::bind("127.0.0.1:0").expect("bound");
        let controller = socket.local_addr().expect("bound");
        let shared = Arc::new(Shared {
            members: members.iter().map(|&port| SocketAddr::from(([127, 0, 0, 1], port))).collect(),
            group: Mutex::new(GROUP),
            sequencer: Mutex::new(controller),
            session: AtomicU32::new(0),
            alive: AtomicU32::new(0),
            lossy: AtomicU32::new(0),
            stop: AtomicBool::new(false),
        });
        let theirs = Arc::clone(&shared);
        let thread = Some(std::thread::spawn(move || theirs.control(&socket)));
        let mut network = Network { controller, shared, sequencer: None, thread };
        network.begin();
        network
    }

    /// Begins a session with a sequencer of its own; the former one, if it lives, goes on.
    fn begin(&mut self) {
        let session = self.shared.session.load(Ordering::SeqCst) + 1;
        let socket = UdpSocket::bind("127.0.0.1:0").expect("bound");
        *self.shared.sequencer.lock().unwrap() = socket.local_addr().expect("bound");
        self.shared.alive.store(session, Ordering::SeqCst);
        let shared = Arc::clone(&self.shared);
        let thread = std::thread::spawn(move || shared.stamp(&socket, session));
        self.shared.session.store(session, Ordering::SeqCst);
        if let Some(before) = self.sequencer.replace(thread) {
            before.join().expect("it stops");
        }
    }

    fn kill_sequencer(&self) {
        self.shared.alive.store(0, Ordering::SeqCst);
    }

    fn lose(&self, every: u32) {
        self.shared.lossy.store(every, Ordering::SeqCst);
    }
}

impl Drop for Network {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::SeqCst);
        self.kill_sequencer();
        for thread in [self.sequencer.take(), self.thread.take()].into_iter().flatten() {
            let _ = thread.join();
        }
    }
}

impl Shared {
    fn control(&self, socket: &UdpSocket) {
        socket.set_read_timeout(Some(Duration::from_millis(5))).expect("set");
        let (mut buffer, mut told) = (vec![0; 1 << 16], 0);
        while !self.stop.load(Ordering::SeqCst) {
            let session = self.session.load(Ordering::SeqCst);
            if session != told {
                told = session;
                self.members.iter().for_each(|&member| self.tell(socket, session, member));
            }
            let Ok((length, from)) = socket.recv_from(&mut buffer) else { continue };
            if let Ok(Control::Ask { group }) =
                Control::decode(&Bytes::copy_from_slice(&buffer[..length]))
            {
                *self.group.lock().unwrap() = group;
                self.tell(socket, session, from);
            }
        }
    }

    fn tell(&self, socket: &UdpSocket, session: u32, to: SocketAddr) {
        let mut bytes = Vec::new();
        let (group, sequencer) = (*self.group.lock().unwrap(), *self.sequencer.lock().unwrap());
        let (session, members) = (Session(session), Members::all(self.members.len() as u8));
        let listen = Control::Listen { group, session, members, sequencer, multicast: None };
        listen.encode(&mut bytes);
        let _ = socket.send_to(&bytes, to);
    }

    fn stamp(&self, socket: &UdpSocket, session: u32) {
        socket.set_read_timeout(Some(Duration::from_millis(5))).expect("set");
        let (mut sequencer, mut buffer, mut copies) = (Sequencer::default(), vec![0; 1 << 16], 0);
        while self.alive.load(Ordering::SeqCst) == session {
            let Ok((length, _)) = socket.recv_from(&mut buffer) else { continue };
            let message = &mut buffer[..length];
            assert_ne!(message[0], CONTROL_MAGIC);
            sequencer.begin(*self.group.lock().unwrap(), Session(session));
            sequencer.stamp(message).expect("a message");
            for member in &self.members {
                copies += 1;
                let lossy = self.lossy.load(Ordering::SeqCst);
                if lossy == 0 || copies % lossy != 0 {
                    let _ = socket.send_to(message, member);
                }
            }
        }
    }
}

fn group(replicas: usize, durability: &'static str, flags: &[&str]) -> (Network, Group) {
    let members = free_ports(replicas);
    let network = Network::start(&members);
    let controller = network.controller.to_string();
    let mut all = vec!["--order", "nopaxos", "--controllers", &controller];
    all.extend(flags);
    let group = Group::ordered(replicas, durability, &all, &members);
    (network, group)
}

fn multicast(group: &Group, id: usize, field: &str) -> serde_json::Value {
    group.status(id, "multicast")[field].clone()
}

#[test]
fn every_replica_serves_and_says_whom_it_listens_to() {
    let (network, group) = group(3, "memory", &[]);
    for id in 0..3 {
        let mut client = group.client(id);
        assert_eq!(client.call(&format!("SET key{id} value{id}")), ok());
        for of in 0..=id {
            assert_eq!(client.call(&format!("GET key{of}")), bulk(&format!("value{of}")));
        }
    }
    let sequencer = network.shared.sequencer.lock().unwrap().to_string();
    for id in 0..3 {
        assert_eq!(group.status(id, "order"), json!("nopaxos"));
        group.wait_until("the session", || multicast(&group, id, "session") == 1);
        assert_eq!(multicast(&group, id, "sequencer"), json!(sequencer));
    }
    let port = group.ports[1].to_string();
    let table = support::run(&["status", "--port", &port]);
    let text = String::from_utf8_lossy(&table.stdout);
    assert!(text.contains("no-ops") && text.contains(&sequencer), "{text}");
    let Value::Bulk(info) = group.client(2).call("INFO lockstep") else { panic!("no text") };
    let info = String::from_utf8_lossy(&info);
    assert!(info.contains("order:nopaxos") && info.contains("session:1"), "{info}");
}

#[test]
fn a_killed_leader_is_replaced_and_rejoins() {
    for durability in ["memory", "sync"] {
        let (_network, mut group) = group(3, durability, &[]);
        let mut acknowledged = 0;
        for _ in 0..3 {
            let killed = group.count_through_the_end_of_the_primary(&mut acknowledged);
            group.wait_until_it_votes(killed);
        }
    }
}

#[test]
fn a_dead_sequencer_is_replaced() {
    let (mut network, group) = group(3, "memory", &[]);
    let mut clients: Vec<_> = (0..3).map(|id| group.client(id)).collect();
    let mut acknowledged = 0;
    for round in 1..=5 {
        for client in &mut clients {
            assert_eq!(client.call("INCR count"), Value::Integer(acknowledged + 1));
            acknowledged += 1;
        }
        network.kill_sequencer();
        for client in &mut clients {
            client.send(&[b"INCR", b"count"]);
        }
        std::thread::sleep(Duration::from_millis(20));
        network.begin();
        let mut answers: Vec<_> =
            clients.iter_mut().map(|client| client.receive().expect("a reply")).collect();
        answers.sort_by_key(|answer| format!("{answer:?}"));
        for answer in answers {
            acknowledged += 1;
            assert_eq!(answer, Value::Integer(acknowledged));
        }
        for id in 0..3 {
            group.wait_until("the session", || multicast(&group, id, "session") == round + 1);
        }
    }
}

#[test]
fn dropped_messages_are_found_or_passed_by() {
    let (network, group) = group(3, "memory", &[]);
    network.lose(7);
    let mut clients: Vec<_> = (0..3).map(|id| group.client(id)).collect();
    for number in 0..100 {
        for client in &mut clients {
            client.send(&[b"INCR", b"count"]);
        }
        let mut values: Vec<i64> = clients
            .iter_mut()
            .map(|client| match client.receive().expect("a reply") {
                Value::Integer(value) => value,
                other => panic!("{other:?}"),
            })
            .collect();
        values.sort_unstable();
        assert_eq!(values, [3 * number + 1, 3 * number + 2, 3 * number + 3]);
    }
    let found = |id| multicast(&group, id, "found").as_u64().expect("a count");
    assert!((0..3).map(found).sum::<u64>() > 0, "{}", group.logs());
}

#[test]
fn long_requests_and_long_answers_pass() {
    let (_network, group) = group(3, "memory", &[]);
    for id in 0..3 {
        let mut client = group.client(id);
        for length in [1_000, 1_300, 5_000, 100_000, 3 << 20] {
            let value = vec![b'x'; length];
            assert_eq!(client.try_call(&[b"SET", b"key", &value]).expect("a reply"), ok());
            let other = &mut group.client((id + 1) % 3);
            assert_eq!(other.call("GET key"), Value::Bulk(value));
        }
        let long = vec![b'x'; 5 << 20];
        let text = error_of(&client.try_call(&[b"SET", b"key", &long]).expect("a reply"));
        assert!(text.contains("not executed") && text.contains("--order vsr"), "{text}");
    }
}

#[test]
fn native_clients_count_replies_through_the_end_of_leaders_and_sequencers() {
    let (mut network, mut group) = group(3, "memory", &[]);
    let peers: Vec<String> = (0..3).map(|id| group.peer_address(id).to_owned()).collect();
    let mut client = Client::connect(&peers, Options::default()).expect("a group");
    client.set(b"key", b"value").expect("set");
    assert_eq!(client.get(b"key").expect("read"), Some(b"value".to_vec()));
    let long = vec![b'x'; 200_000];
    client.set(b"long", &long).expect("set");
    assert_eq!(client.get(b"long").expect("read").as_ref(), Some(&long));
    let mut count = 0;
    for round in 0..4 {
        let primary = group.primary();
        for step in 0..60 {
            if step == 20 && round % 2 == 0 {
                group.kill(primary);
            } else if step == 20 {
                network.kill_sequencer();
                network.begin();
            }
            count += 1;
            assert_eq!(client.incr(b"count", 1).expect("counted"), count, "round {round}");
        }
        if round % 2 == 0 {
            group.spawn(primary, false);
            group.wait_until_it_votes(primary);
        }
    }
    // Many under way.
    let mut batch = Batch::new();
    for _ in 0..200 {
        batch.clear();
        batch.incr(b"count", 1);
        client.submit(&batch).expect("taken");
    }
    let end = Instant::now() + support::PATIENCE;
    while client.session().outstanding() > 0 && Instant::now() < end {
        client.session().poll(Duration::from_millis(100)).expect("polled");
        while let Some(done) = client.session().next_done() {
            done.result.expect("executed");
        }
    }
    let total = (count + 200).to_string();
    assert_eq!(client.get(b"count").expect("read"), Some(total.clone().into_bytes()));
    assert_eq!(group.client(0).call("GET count"), bulk(&total));
}

fn native(group: &Group, options: Options) -> Client {
    let peers: Vec<String> = (0..3).map(|id| group.peer_address(id).to_owned()).collect();
    Client::connect(&peers, options).expect("a group")
}

#[test]
fn native_clients_are_told_that_the_state_is_lost() {
    let (_network, mut group) = group(3, "memory", &[]);
    let mut client = native(&group, Options::default());
    client.set(b"key", b"value").expect("set");
    (0..3).for_each(|id| group.kill(id));
    (0..3).for_each(|id| group.spawn(id, false));
    for id in 0..3 {
        group.wait_for(id, "role", &json!("state-lost"));
    }
    let start = Instant::now();
    let error = client.set(b"key", b"again").expect_err("nothing is there");
    assert!(matches!(error, Error::StateLost), "{error}");
    assert!(start.elapsed() < Duration::from_secs(5), "before its deadline: {:?}", start.elapsed());
}

/// Increments of one native client: what each was told last, and how many were told twice.
#[derive(Default)]
struct Counted {
    sums: BTreeMap<Ticket, i64>,
    again: usize,
}

impl Counted {
    /// Keeps 20 under way for so long, or waits for the last of them.
    fn drive(&mut self, client: &mut Client, duration: Option<Duration>) {
        let end = Instant::now() + duration.unwrap_or(support::PATIENCE);
        let mut batch = Batch::new();
        batch.incr(b"n", 1);
        while Instant::now() < end {
            while duration.is_some() && client.session().outstanding() < 20 {
                client.submit(&batch).expect("submitted");
            }
            client.session().poll(Duration::from_millis(5)).expect("polled");
            while let Some(done) = client.session().next_done() {
                let answer = done.result.expect("executed");
                let Some(Ok(lockstep_client::Value::Integer(sum))) = answer.replies().next() else {
                    panic!("{answer:?}");
                };
                self.again += usize::from(done.again);
                self.sums.insert(done.ticket, sum);
            }
            if duration.is_none() && client.session().outstanding() == 0 {
                return;
            }
        }
    }
}

#[test]
fn native_clients_execute_again_what_a_crash_of_all_has_taken() {
    // What waits for the disk is in the processes alone, and goes with them.
    let slow = ["--emulate-disk-latency", "25000"];
    let (_network, mut group) = group(3, "lazy", &slow);
    let terms = Terms { deadline: None, ..Terms::default() };
    let mut client = native(&group, Options { terms, ..Options::default() });
    let mut counted = Counted::default();
    counted.drive(&mut client, Some(Duration::from_millis(1500)));
    (0..3).for_each(|id| group.kill(id));
    (0..3).for_each(|id| group.spawn(id, false));
    counted.drive(&mut client, Some(Duration::from_millis(4000)));
    counted.drive(&mut client, None);
    let loss = client.session().take_loss().expect("a slow disk loses something");
    println!("{} increments, {} of them executed again", counted.sums.len(), loss.replayed);
    assert!(loss.replayed > 0 && loss.dropped.is_empty());
    let total = counted.sums.len() as i64;
    let sums: Vec<i64> = counted.sums.into_values().collect();
    assert_eq!(sums, (1..=total).collect::<Vec<i64>>(), "once each, in their order");
    assert_eq!(client.get(b"n").expect("read"), Some(total.to_string().into_bytes()));
}

#[test]
fn native_clients_wait_for_the_disks_where_they_ask_for_it() {
    const WRITE: Duration = Duration::from_millis(25);
    let (_network, mut group) = group(3, "lazy", &["--emulate-disk-latency", "25000"]);
    let mut client = native(&group, Options::default());
    client.set(b"key", b"lazy").expect("set");
    let mut batch = Batch::new();
    batch.set(b"key", b"durable");
    let start = Instant::now();
    let terms = Terms { durable: true, ..Terms::default() };
    let ticket = client.submit_on(&batch, terms).expect("taken");
    let answer = client.session().wait(ticket).expect("executed");
    assert!(start.elapsed() >= WRITE, "{:?}", start.elapsed());
    assert!(answer.durable.op >= answer.position.op, "{answer:?}");
    client.set(b"other", b"flushed").expect("set");
    let flushed = client.session().flush().expect("durable");
    assert!(flushed.op > answer.position.op, "{flushed:?}");
    (0..3).for_each(|id| group.kill(id));
    (0..3).for_each(|id| group.spawn(id, false));
    assert_eq!(client.get(b"key").expect("read"), Some(b"durable".to_vec()));
    assert_eq!(client.get(b"other").expect("read"), Some(b"flushed".to_vec()));
    assert_eq!(client.session().take_loss(), None, "all that was answered was durable");
}

#[test]
fn connections_get_the_durability_that_they_ask_for() {
    let (_network, group) = group(3, "lazy", &["--emulate-disk-latency", "25000"]);
    for id in 0..3 {
        let (mut lazy, mut sync) = (group.client(id), group.client(id));
        assert_eq!(sync.call("LOCKSTEP.DURABILITY sync"), ok());
        let start = Instant::now();
        assert_eq!(sync.call("SET key sync"), ok());
        assert!(start.elapsed() >= Duration::from_millis(25), "{:?}", start.elapsed());
        assert_eq!(lazy.call("SET key lazy"), ok());
        let both = Value::Array(vec![Value::Integer(1), Value::Integer(1)]);
        assert_eq!(lazy.call("WAITAOF 1 1 0"), both);
    }
}

#[test]
fn disks_slower_than_elections_elect() {
    for durability in ["memory", "lazy", "sync"] {
        let (_network, mut group) = group(3, durability, &["--emulate-disk-latency", "200000"]);
        assert_eq!(group.client(0).call("SET key value"), ok());
        let primary = group.primary();
        group.kill(primary);
        let mut client = group.client((primary + 1) % 3);
        assert_eq!(client.call("GET key"), bulk("value"), "{durability}");
    }
}

#[test]
fn a_replica_that_was_away_fetches_the_state() {
    let (_network, mut group) = group(3, "memory", &[]);
    group.kill(2);
    let mut client = group.client(0);
    let value = vec![b'v'; 60_000];
    for number in 0..2_000 {
        client.send(&[b"SET", format!("key{}", number % 50).as_bytes(), &value]);
    }
    for _ in 0..2_000 {
        assert_eq!(client.receive().expect("a reply"), ok());
    }
    group.spawn(2, false);
    group.wait_until_served(2);
    group.wait_for(2, "keys", &json!(50));
    group.wait_for(2, "role", &json!("backup"));
    let primary = group.primary();
    group.kill(primary);
    assert_eq!(group.client(2).call("GET key7"), Value::Bulk(value));
}

#[test]
fn a_whole_group_that_was_killed_has_what_its_durability_says() {
    for durability in ["sync", "lazy"] {
        let (_network, mut group) = group(3, durability, &[]);
        group.keep_through_the_end_of_all(50);
    }
    let (_network, mut group) = group(3, "memory", &[]);
    assert_eq!(group.client(0).call("SET key value"), ok());
    (0..3).for_each(|id| group.kill(id));
    (0..3).for_each(|id| group.spawn(id, false));
    for id in 0..3 {
        group.wait_for(id, "role", &json!("state-lost"));
    }
    let text = error_of(&group.client(1).call("GET key"));
    assert!(text.starts_with("STATELOST") && text.contains("bootstrap --accept-loss"), "{text}");
}

#[test]
fn without_a_majority_commands_end_with_an_error() {
    let (_network, mut group) = group(3, "memory", &["--command-timeout-ms", "400"]);
    group.kill(1);
    group.kill(2);
    let mut client = group.client(0);
    for command in ["SET key value", "GET key"] {
        let text = error_of(&client.call(command));
        assert!(text.starts_with("TIMEOUT") || text.starts_with("UNAVAILABLE"), "{text}");
    }
    assert_eq!(client.call("PING"), Value::Simple(b"PONG".to_vec()));
}

#[test]
fn without_controllers_or_an_address_it_does_not_start() {
    let start = |flags: &[&str]| {
        let all = ["serve", "--id", "0", "--peers", "127.0.0.1:1", "--dir", "/nonexistent/dir"];
        let all: Vec<&str> = all.iter().chain(flags).copied().collect();
        let output = support::run(&all);
        assert!(!output.status.success());
        String::from_utf8_lossy(&output.stderr).into_owned()
    };
    let nopaxos = ["--order", "nopaxos", "--controllers", "127.0.0.1:2"];
    assert!(start(&nopaxos).contains("--multicast"));
    assert!(start(&nopaxos[..2]).contains("--controllers"));
    assert!(start(&nopaxos[2..]).contains("--order nopaxos alone"));
}
