//! Three real processes, real kills, both protocols.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

const PROGRAM: &str = env!("CARGO_BIN_EXE_orderbook");
const PATIENCE: Duration = Duration::from_secs(20);

/// Below the ports that the kernel gives out, so that they are still free at a restart.
fn free_ports(salt: u32, count: usize) -> Vec<u16> {
    let first = std::process::id().wrapping_mul(89).wrapping_add(salt * 500);
    let ports = (0..500).map(|place| 12_000 + (first.wrapping_add(place) % 20_000) as u16);
    ports.filter(|&port| TcpListener::bind(("127.0.0.1", port)).is_ok()).take(count).collect()
}

struct Group {
    children: [Option<Child>; 3],
    ports: Vec<u16>,
    peers: String,
    flags: &'static [&'static str],
    scratch: PathBuf,
}

impl Group {
    fn start(salt: u32, flags: &'static [&'static str]) -> Group {
        let mut ports = free_ports(salt, 6);
        let peers = ports.split_off(3);
        let peers: Vec<String> = peers.iter().map(|port| format!("127.0.0.1:{port}")).collect();
        let scratch = format!("orderbook-test-{}-{salt}", std::process::id());
        let scratch = std::env::temp_dir().join(scratch);
        std::fs::create_dir_all(&scratch).expect("a directory");
        let children = [const { None }; 3];
        let mut group = Group { children, ports, peers: peers.join(","), flags, scratch };
        for id in 0..3 {
            group.spawn(id, true);
        }
        group
    }

    fn spawn(&mut self, id: usize, bootstrap: bool) {
        let log = std::fs::File::options()
            .create(true)
            .append(true)
            .open(self.scratch.join(format!("{id}.log")))
            .expect("a log");
        let mut command = Command::new(PROGRAM);
        command.arg("serve").arg("--id").arg(id.to_string()).arg("--peers").arg(&self.peers);
        command.arg("--listen").arg(format!("127.0.0.1:{}", self.ports[id]));
        command.arg("--dir").arg(self.scratch.join(id.to_string()));
        command.args(["--segment-bytes", "1048576", "--checkpoint-bytes", "20000"]);
        command.args(self.flags);
        if bootstrap {
            command.arg("--bootstrap");
        }
        command.stdout(Stdio::null()).stderr(log);
        self.children[id] = Some(command.spawn().expect("the program starts"));
    }

    fn kill(&mut self, id: usize) {
        let mut child = self.children[id].take().expect("it runs");
        child.kill().expect("killed");
        child.wait().expect("waited");
    }

    /// The answers of a replica to these lines; none if it cannot be reached or ends before.
    fn ask(&self, id: usize, lines: &[String]) -> Option<Vec<String>> {
        let stream = TcpStream::connect(("127.0.0.1", self.ports[id])).ok()?;
        stream.set_read_timeout(Some(PATIENCE)).ok()?;
        (&stream).write_all((lines.join("\n") + "\n").as_bytes()).ok()?;
        let answers = BufReader::new(&stream).lines().take(lines.len());
        let answers: Vec<String> = answers.collect::<Result<_, _>>().ok()?;
        (answers.len() == lines.len()).then_some(answers)
    }

    fn ask_one(&self, id: usize, line: &str) -> String {
        let answers = self.ask(id, &[line.to_owned()]);
        answers.unwrap_or_else(|| panic!("{line}: no answer: {}", self.logs())).remove(0)
    }

    /// Waits until a replica's answer passes.
    fn wait(&self, id: usize, line: &str, passes: impl Fn(&str) -> bool) -> String {
        let end = Instant::now() + PATIENCE;
        loop {
            let answers = self.ask(id, &[line.to_owned()]);
            let answer = answers.map(|mut answers| answers.remove(0)).unwrap_or_default();
            if passes(&answer) {
                return answer;
            }
            assert!(Instant::now() < end, "replica {id}: {line}: {answer}: {}", self.logs());
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    fn primary(&self) -> usize {
        let end = Instant::now() + PATIENCE;
        loop {
            let leads = |id: &usize| {
                let status = self.ask(*id, &["STATUS".to_owned()]);
                status.is_some_and(|lines| lines[0].contains("ROLE primary"))
            };
            let mut running = (0..3).filter(|&id| self.children[id].is_some());
            if let Some(id) = running.find(leads) {
                return id;
            }
            assert!(Instant::now() < end, "no primary: {}", self.logs());
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    fn logs(&self) -> String {
        let log = |id| std::fs::read_to_string(self.scratch.join(format!("{id}.log")));
        (0..3).map(|id| log(id).unwrap_or_default()).collect()
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        for child in self.children.iter_mut().flatten() {
            let _ = child.kill();
            let _ = child.wait();
        }
        let _ = std::fs::remove_dir_all(&self.scratch);
    }
}

#[test]
fn acknowledged_orders_survive_the_primary() {
    let (mut group, sold) = survive_primaries(0, &[]);
    for id in 0..3 {
        group.kill(id);
    }
    for id in 0..3 {
        group.spawn(id, false);
    }
    let counts = format!("ORDERS 1 SYMBOLS 1 ACCEPTED {sold} TRADES 1800");
    group.wait(0, "DIGEST", |answer| answer.ends_with(&counts));
    // It has taken checkpoints meanwhile.
    group.wait(0, "STATUS", |answer| answer.contains("ROLE") && !answer.contains("CHECKPOINT 0 "));
}

#[test]
fn orders_in_shared_memory_survive_the_primary() {
    survive_primaries(3, &["--order", "mu", "--durability", "memory"]);
}

/// Kills one primary after the other under orders. Returns how many orders were accepted.
fn survive_primaries(salt: u32, flags: &'static [&'static str]) -> (Group, u64) {
    let mut group = Group::start(salt, flags);
    group.wait(1, "LIMIT AAPL SELL 1 1000000", |answer| answer.starts_with("OK"));
    let mut expected = 1_u64;
    for round in 0..3_u64 {
        let primary = group.primary();
        let survivor = (primary + 1) % 3;
        // On both sides of the kill, through the same replica: it finds the new primary by itself.
        for half in 0..2 {
            let order = |n: u64| format!("LIMIT AAPL BUY 10 {}", 100 + round * 10 + n % 7);
            let lines: Vec<String> = (0..300).map(order).collect();
            let answers = group.ask(survivor, &lines).expect("all are answered");
            for answer in answers {
                expected += 1;
                assert_eq!(answer, format!("OK {expected} FILLED 0 RESTING 10 CANCELLED 0"));
            }
            if half == 0 {
                group.kill(primary);
            }
        }
        group.spawn(primary, false);
        let counts = format!("ORDERS {expected} SYMBOLS 1 ACCEPTED {expected} TRADES 0");
        let digest = group.wait(primary, "DIGEST", |answer| answer.ends_with(&counts));
        assert_eq!(group.ask_one(survivor, "DIGEST"), digest);
        // It counts for a majority again: the next one may go.
        let counts =
            |answer: &str| answer.contains("ROLE primary") || answer.contains("ROLE backup");
        group.wait(primary, "STATUS", counts);
    }
    // Everything trades, in the order of price and time, on whichever replica it is asked.
    let answer = group.ask_one(2, "MARKET AAPL SELL 18000");
    let sold = expected + 1;
    assert!(answer.starts_with(&format!("OK {sold} FILLED 18000 RESTING 0 ")), "{answer}");
    assert_eq!(group.ask_one(0, "TOP AAPL"), "TOP AAPL BID 0 0 ASK 1000000 1");
    (group, sold)
}

#[test]
fn a_replayed_feed_gives_the_engines_state_and_answers() {
    let group = Group::start(1, &[]);
    group.wait(0, "DIGEST", |answer| answer.starts_with("DIGEST"));
    let file = group.scratch.join("feed.tape");
    let file = file.to_str().expect("UTF-8");
    let run = |arguments: &[&str]| {
        let output = Command::new(PROGRAM).args(arguments).output().expect("the program runs");
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(output.status.success(), "{text}{}", String::from_utf8_lossy(&output.stderr));
        text
    };
    let fed = run(&["feed", "--count", "20000", "--seed", "5", file]);
    let address = format!("127.0.0.1:{}", group.ports[1]);
    let played = run(&["replay", file, "--address", &address]);
    let state = fed.split([' ', ',']).nth(1).expect("a digest");
    assert_eq!(played.matches(state).count(), 2, "{fed}{played}");
    for id in 0..3 {
        let answer = group.ask_one(id, "DIGEST");
        assert!(answer.starts_with(&format!("DIGEST {state} ")), "{answer}");
    }
}

#[test]
fn a_connection_may_mix_protocols_and_talk_nonsense() {
    let group = Group::start(2, &[]);
    group.wait(0, "LIMIT A BUY 1 7", |answer| answer.starts_with("OK"));
    let mut stream = TcpStream::connect(("127.0.0.1", group.ports[0])).expect("it accepts");
    stream.set_read_timeout(Some(PATIENCE)).expect("set");
    let mut sent = b"\n# a comment\nORDER 1\nNONSENSE\nLIMIT A BUY 0 7\nDEPTH A 1\n".to_vec();
    sent.extend_from_slice(&[0x81, 2, 8, 0, 9, 0, 0, 0, 0, 0, 0, 0]); // cancel 9
    sent.extend_from_slice(&[0x81, 99, 1, 0, 0]); // of no kind
    sent.extend_from_slice(b"PING\r\nQUIT\n");
    stream.write_all(&sent).expect("sent");
    let mut received = Vec::new();
    stream.read_to_end(&mut received).expect("all until it closes");
    let mut expected = b"ORDER 1 A BUY 7 RESTING 1 FILLED 0\n\
        ERR MALFORMED this is not a command\n\
        ERR BAD_QUANTITY a quantity is 1 to 1099511627775\n\
        DEPTH A BIDS 1 7 1 1 ASKS 0\n"
        .to_vec();
    expected.extend_from_slice(&[0x81, 0x84, 0, 0, 0, 0, 0, 0, 0x81, 0x80, 0, 0, 0, 0, 0, 0]);
    expected.extend_from_slice(b"PONG\n");
    let text = String::from_utf8_lossy(&received);
    assert_eq!(received, expected, "{text}");
    for hopeless in [&[b'x'; 200][..], &[0xff, 0, 0, 0], &[0x81, 1, 0xff, 0xff]] {
        let mut stream = TcpStream::connect(("127.0.0.1", group.ports[0])).expect("it accepts");
        stream.set_read_timeout(Some(PATIENCE)).expect("set");
        stream.write_all(hopeless).expect("sent");
        let mut received = Vec::new();
        // It is told why, and the connection ends; what it had yet to say may turn that to a reset.
        let _ = stream.read_to_end(&mut received);
        assert!(received.is_empty() || received.starts_with(b"ERR") || received[1] == 0x80);
    }
}
