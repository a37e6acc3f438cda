//! `lockstep serve --standalone` as its users see it.

mod support;

use std::io::{Read, Write};
use std::net::TcpStream;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use resp::Value;
use support::{Client, PROGRAM, Scratch, bulk, free_ports, ok};

/// A server, which is killed when it goes.
struct Standalone {
    child: Child,
    port: u16,
}

impl Standalone {
    /// Starts one and waits until it serves.
    fn start(scratch: &Scratch, flags: &[&str]) -> Standalone {
        let server = Standalone::spawn(scratch, flags);
        wait_until_served(&mut server.client());
        server
    }

    /// Starts one and waits until it listens.
    fn spawn(scratch: &Scratch, flags: &[&str]) -> Standalone {
        let port = free_ports(1)[0];
        let log = std::fs::File::create(scratch.0.join("log")).expect("a log");
        let mut command = Command::new(PROGRAM);
        command.args(["serve", "--standalone", "--resp", &format!("127.0.0.1:{port}"), "--dir"]);
        command.arg(scratch.0.join("data")).args(flags).stdout(Stdio::null()).stderr(log);
        command.arg("--die-with-parent").arg(std::process::id().to_string());
        let server = Standalone { child: command.spawn().expect("it starts"), port };
        let end = Instant::now() + support::PATIENCE;
        while Client::try_connect(port).is_none() {
            assert!(Instant::now() < end, "{:?}", std::fs::read_to_string(scratch.0.join("log")));
            std::thread::sleep(Duration::from_millis(10));
        }
        server
    }

    fn client(&self) -> Client {
        Client::try_connect(self.port).expect("it accepts")
    }

    fn kill(mut self) {
        self.child.kill().expect("killed");
        self.child.wait().expect("waited");
    }
}

/// Waits until the data is there: until then a server listens and says so.
fn wait_until_served(client: &mut Client) {
    let end = Instant::now() + support::PATIENCE;
    while client.call("PING") != Value::Simple(b"PONG".to_vec()) {
        assert!(Instant::now() < end, "it does not serve");
        std::thread::sleep(Duration::from_millis(10));
    }
}

impl Drop for Standalone {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn what_was_synced_survives_a_kill_whatever_it_is() {
    let scratch = Scratch::new();
    let server = Standalone::start(&scratch, &["--threads", "3"]);
    let mut clients = [server.client(), server.client(), server.client()];
    assert_eq!(clients[0].call("MSET a 1 b 2 c 3"), ok());
    assert_eq!(clients[1].call("HSET h f 1 g 2"), Value::Integer(2));
    assert_eq!(clients[2].call("ZADD z 1 x 2 y"), Value::Integer(2));
    assert_eq!(clients[0].call("MULTI"), ok());
    clients[0].call("INCR a");
    clients[0].call("RENAME b d");
    assert_eq!(clients[0].call("EXEC"), Value::Array(vec![Value::Integer(2), ok()]));
    assert_eq!(clients[1].call("EXPIRE c 1000"), Value::Integer(1));
    assert_eq!(clients[1].call("DEL nothing"), Value::Integer(0));
    for client in &mut clients {
        let synced = Value::Array(vec![Value::Integer(1), Value::Integer(0)]);
        assert_eq!(client.call("WAITAOF 1 0 0"), synced);
    }
    assert_eq!(clients[2].call("LOCKSTEP.DURABILITY sync"), ok());
    assert_eq!(clients[2].call("SET last 1"), ok());
    server.kill();
    let server = Standalone::start(&scratch, &["--threads", "2"]);
    let mut client = server.client();
    assert_eq!(
        client.call("MGET a b d last"),
        Value::Array(vec![bulk("2"), Value::Null, bulk("2"), bulk("1"),])
    );
    assert_eq!(client.call("HGET h g"), bulk("2"));
    assert_eq!(client.call("ZSCORE z y"), bulk("2"));
    let Value::Integer(left) = client.call("TTL c") else { panic!("a number") };
    assert!((900..=1000).contains(&left), "{left} s");
    let keys = ["a", "c", "d", "h", "last", "z"].map(bulk).to_vec();
    assert_eq!(client.call("KRANGE - +"), Value::Array(keys));
}

#[test]
fn clients_are_told_that_the_store_recovers_and_keep_their_connections() {
    let scratch = Scratch::new();
    let server = Standalone::start(&scratch, &[]);
    let mut client = server.client();
    assert_eq!(client.call("LOCKSTEP.DURABILITY sync"), ok());
    assert_eq!(client.call("SET a 1"), ok());
    server.kill();
    // It waits for what is written into the pipe.
    let manifest = scratch.0.join("data/manifest");
    let bytes = std::fs::read(&manifest).expect("a manifest");
    std::fs::remove_file(&manifest).expect("removed");
    let made = Command::new("mkfifo").arg(&manifest).status().expect("mkfifo runs");
    assert!(made.success());

    let server = Standalone::spawn(&scratch, &["--threads", "2"]);
    let mut client = server.client();
    let refused = |answer: Value, with: &[u8]| match answer {
        Value::Error(text) => assert!(text.starts_with(with), "{text:?}"),
        other => panic!("{other:?}"),
    };
    for command in ["PING", "GET a", "SET a 2", "DBSIZE", "WAITAOF 1 0 0"] {
        refused(client.call(command), b"LOADING ");
    }
    assert_eq!(client.call("CLIENT SETNAME me"), ok());
    assert_eq!(client.call("MULTI"), ok());
    refused(client.call("SET a 3"), b"LOADING ");
    refused(client.call("EXEC"), b"EXECABORT ");
    let info = |client: &mut Client, line: &str| match client.call("INFO") {
        Value::Bulk(text) => assert!(String::from_utf8_lossy(&text).contains(line), "{line}"),
        other => panic!("{other:?}"),
    };
    info(&mut client, "\nloading:1\r");

    std::fs::write(&manifest, bytes).expect("it is read");
    wait_until_served(&mut client);
    assert_eq!(client.call("GET a"), bulk("1"));
    assert_eq!(client.call("CLIENT GETNAME"), bulk("me"));
    info(&mut client, "\nloading:0\r");
}

#[test]
fn cursors_clients_and_watches_are_known_on_all_threads() {
    let scratch = Scratch::new();
    let server = Standalone::start(&scratch, &["--threads", "2", "--durability", "memory"]);
    let (mut one, mut other) = (server.client(), server.client());
    for key in 0..30 {
        one.call(&format!("SET key{key:02} v"));
    }
    let Value::Array(page) = one.call("SCAN 0 COUNT 20") else { panic!("a page") };
    let cursor = String::from_utf8_lossy(page[0].as_bytes().expect("a cursor")).into_owned();
    let Value::Array(page) = other.call(&format!("SCAN {cursor} COUNT 20")) else { panic!() };
    assert_eq!(page[0], bulk("0"));
    assert!(matches!(&page[1], Value::Array(keys) if keys.len() == 10), "{page:?}");
    // Those that looked whether the server was there are gone by and by.
    let end = Instant::now() + support::PATIENCE;
    let listed = |client: &mut Client| match client.call("CLIENT LIST") {
        Value::Bulk(list) => String::from_utf8_lossy(&list).lines().count(),
        other => panic!("a list: {other:?}"),
    };
    while listed(&mut one) != 2 {
        assert!(Instant::now() < end, "{} clients", listed(&mut one));
    }
    assert_eq!(one.call("WATCH key00"), ok());
    assert_eq!(other.call("SET key00 w"), ok());
    assert_eq!(one.call("MULTI"), ok());
    one.call("SET key01 w");
    assert_eq!(one.call("EXEC"), Value::Null);
}

#[test]
fn figures_are_of_the_server_whatever_thread_is_asked() {
    let (scratch, memcached) = (Scratch::new(), free_ports(1)[0].to_string());
    let server = Standalone::start(&scratch, &["--threads", "2", "--memcached-port", &memcached]);
    let mut clients = [server.client(), server.client()];
    let thread = |client: &mut Client| match client.call("CLIENT ID") {
        Value::Integer(id) => id % 2,
        other => panic!("an id: {other:?}"),
    };
    // Whoever looked whether the server was there may still be counted: then both are at one.
    let first = thread(&mut clients[0]);
    let end = Instant::now() + support::PATIENCE;
    while thread(&mut clients[1]) == first {
        assert!(Instant::now() < end, "all connections are of thread {first}");
        clients[1] = server.client();
    }
    let info = |client: &mut Client| match client.call("INFO") {
        Value::Bulk(text) => String::from_utf8(text).expect("a text"),
        other => panic!("a text: {other:?}"),
    };
    for round in 1..=3 {
        for client in &mut clients {
            assert_eq!(client.call("SET a b"), ok());
            assert_eq!(client.call("GET a"), bulk("b"));
        }
        for client in &mut clients {
            let (line, text) = (format!("total_commands_processed:{}", round * 4), info(client));
            assert!(text.lines().any(|found| found == line), "{line} is not in {text}");
        }
    }
    // The one that looked whether the server was there has gone meanwhile.
    let end = Instant::now() + support::PATIENCE;
    while !clients.iter_mut().all(|client| info(client).contains("\nconnected_clients:2\r")) {
        assert!(Instant::now() < end, "{}", info(&mut clients[0]));
    }
    let stats = |commands: &str| {
        let mut stream = TcpStream::connect(format!("127.0.0.1:{memcached}")).expect("it accepts");
        write!(stream, "{commands}quit\r\n").expect("sent");
        let mut text = String::new();
        stream.read_to_string(&mut text).expect("an answer");
        text
    };
    for _ in 0..4 {
        stats("set c 0 0 1\r\nx\r\nget c\r\n");
    }
    for _ in 0..2 {
        let text = stats("stats\r\n");
        for line in ["STAT cmd_set 4", "STAT get_hits 4", "STAT threads 2"] {
            assert!(text.lines().any(|found| found == line), "{line} is not in {text}");
        }
    }
    assert!(stats("stats reset\r\n").contains("RESET"));
    assert!(stats("stats\r\n").contains("STAT get_hits 0\r\n"));
}

#[test]
fn what_makes_no_sense_is_refused_with_what_to_do() {
    let refused = |flags: &[&str], expected: &str| {
        let output = Command::new(PROGRAM).arg("serve").args(flags).output().expect("it runs");
        let text = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(!output.status.success() && text.contains(expected), "{flags:?}: {text}");
    };
    refused(&["--standalone"], "--dir (or `dir` in the file) is needed");
    refused(&["--standalone", "--dir", "x", "--id", "1"], "--id is for replicas");
    refused(&["--standalone", "--dir", "x", "--spin-us", "1"], "--spin-us is for replicas");
    refused(
        &["--standalone", "--dir", "x", "--controllers", "a:1"],
        "--controllers is for replicas",
    );
    refused(&["--standalone", "--dir", "x", "--threads", "0"], "between 1 and 256");
    refused(&["--threads", "2"], "for --standalone alone");
    let scratch = Scratch::new();
    let server = Standalone::start(&scratch, &[]);
    let data = scratch.0.join("data");
    let data = data.to_str().expect("a path");
    refused(&["--standalone", "--resp", "127.0.0.1:0", "--dir", data], "in use by another process");
    server.kill();
    std::fs::remove_file(scratch.0.join("data/manifest")).expect("removed");
    refused(&["--standalone", "--resp", "127.0.0.1:0", "--dir", data], "holds no store");
}
