//! Groups of real processes for tests, and a client that shows every byte.

#![allow(dead_code, missing_docs)] // each test file uses a part

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use resp::{ReplyParser, Value, write};

pub const PROGRAM: &str = env!("CARGO_BIN_EXE_lockstep");
/// What a busy machine may take for what a quiet one does in a second.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// Ports that nobody listens on. They lie below those that the kernel gives to outgoing
/// connections, and each is handed out once, so that they are still free when a replica restarts.
pub fn free_ports(count: usize) -> Vec<u16> {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let first = std::process::id().wrapping_mul(97);
    let ports = std::iter::repeat_with(|| {
        let place = first.wrapping_add(NEXT.fetch_add(1, Ordering::Relaxed)) % 20_000;
        12_000 + place as u16
    });
    ports.filter(|&port| TcpListener::bind(("127.0.0.1", port)).is_ok()).take(count).collect()
}

/// A directory that goes with the test.
pub struct Scratch(pub PathBuf);

impl Scratch {
    pub fn new() -> Scratch {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        let name = format!("lockstep-test-{}-{number}", std::process::id());
        let path = std::env::temp_dir().join(name);
        std::fs::create_dir_all(&path).expect("a scratch directory");
        Scratch(path)
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// Starts the program; what it says is added to the log with this name.
pub fn program(name: &str, scratch: &Scratch, flags: &[&str]) -> Child {
    let log = scratch.0.join(format!("{name}.log"));
    let log = std::fs::File::options().create(true).append(true).open(log).expect("a log");
    let mut command = Command::new(PROGRAM);
    command.args(flags).arg("--die-with-parent").arg(std::process::id().to_string());
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(log);
    command.spawn().expect("the program starts")
}

/// Gives a controller's operator a line, and returns its answer.
pub fn command(controller: &str, line: &str) -> String {
    let mut stream = TcpStream::connect(controller).expect("it listens");
    stream.set_read_timeout(Some(PATIENCE)).expect("a timeout");
    writeln!(stream, "{line}").expect("sent");
    let mut answer = String::new();
    BufReader::new(stream).read_line(&mut answer).expect("answered");
    answer.trim().to_owned()
}

/// A controller at `peer` with its `face` for operators, that has these sequencers and creates
/// `created`, a group `a1` with its members' addresses; and that group's replicas.
pub fn controlled(
    durability: &'static str,
    scratch: &Scratch,
    [peer, face, sequencers, created]: [&str; 4],
    own: &[u16],
) -> (Child, Group) {
    let dir = scratch.0.join("controller");
    let flags = ["controller", "--id", "0", "--peers", peer, "--listen", face];
    let more = ["--sequencers", sequencers, "--group", created, "--bootstrap", "--dir"];
    let dir = dir.to_str().expect("text");
    let controller = program("controller", scratch, &[&flags[..], &more, &[dir]].concat());
    let flags = ["--order", "nopaxos", "--controllers", peer, "--group", "a1"];
    // On a busy machine sequencers are left for less, and one after the other.
    let patient = ["--command-timeout-ms", "60000"];
    let flags = [&flags[..], &patient].concat();
    (controller, Group::ordered(own.len(), durability, &flags, own))
}

/// A group of `serve` processes.
pub struct Group {
    children: Vec<Option<Child>>,
    pub ports: Vec<u16>,
    /// Where memcached clients come in.
    pub memcached: Vec<u16>,
    /// Where sequencers reach the replicas, of a group that has one.
    multicast: Vec<u16>,
    peers: String,
    durability: &'static str,
    flags: Vec<String>,
    pub scratch: Scratch,
    /// Where the replicas have their directories.
    disk: PathBuf,
}

impl Group {
    pub fn start(replicas: usize, durability: &'static str, flags: &[&str]) -> Group {
        Group::ordered(replicas, durability, flags, &[])
    }

    /// A group of three whose data, but not whose output, is on this disk.
    pub fn on(disk: &Path, durability: &'static str) -> Group {
        Group::placed(3, durability, &[], &[], Some(disk))
    }

    /// A group whose replicas listen to a sequencer on these ports.
    pub fn ordered(
        replicas: usize,
        durability: &'static str,
        flags: &[&str],
        multicast: &[u16],
    ) -> Group {
        Group::placed(replicas, durability, flags, multicast, None)
    }

    fn placed(
        replicas: usize,
        durability: &'static str,
        flags: &[&str],
        multicast: &[u16],
        disk: Option<&Path>,
    ) -> Group {
        let scratch = Scratch::new();
        let mut ports = free_ports(replicas * 3);
        let memcached = ports.split_off(replicas * 2);
        let peers: Vec<String> =
            ports.split_off(replicas).iter().map(|port| format!("127.0.0.1:{port}")).collect();
        let mut group = Group {
            children: (0..replicas).map(|_| None).collect(),
            ports,
            memcached,
            multicast: multicast.to_vec(),
            peers: peers.join(","),
            durability,
            flags: flags.iter().map(|&flag| flag.to_owned()).collect(),
            disk: disk.map_or_else(|| scratch.0.clone(), Path::to_owned),
            scratch,
        };
        for id in 0..replicas {
            group.spawn(id, true);
        }
        for id in 0..replicas {
            group.wait_until_served(id);
        }
        group
    }

    /// Where the other replicas reach it.
    pub fn peer_address(&self, id: usize) -> &str {
        self.peers.split(',').nth(id).expect("one of the group")
    }

    pub fn pid(&self, id: usize) -> rustix::process::Pid {
        let child = self.children[id].as_ref().expect("it runs");
        rustix::process::Pid::from_raw(child.id() as i32).expect("a pid")
    }

    pub fn dir(&self, id: usize) -> PathBuf {
        self.disk.join(id.to_string())
    }

    pub fn spawn(&mut self, id: usize, bootstrap: bool) {
        let mut command = Command::new(PROGRAM);
        let log = std::fs::File::options()
            .create(true)
            .append(true)
            .open(self.scratch.0.join(format!("{id}.log")))
            .expect("a log");
        command.arg("serve").arg("--id").arg(id.to_string()).arg("--peers").arg(&self.peers);
        command.arg("--resp").arg(format!("127.0.0.1:{}", self.ports[id]));
        command.arg("--memcached-port").arg(self.memcached[id].to_string());
        command.arg("--dir").arg(self.dir(id)).args(["--durability", self.durability]);
        command.args(["--segment-bytes", "1048576"]).args(&self.flags);
        if let Some(port) = self.multicast.get(id) {
            command.arg("--multicast").arg(format!("127.0.0.1:{port}"));
        }
        command.arg("--die-with-parent").arg(std::process::id().to_string());
        if bootstrap {
            command.arg("--bootstrap");
        }
        command.stdout(Stdio::null()).stderr(log);
        self.children[id] = Some(command.spawn().expect("the program starts"));
    }

    /// A command through the replica passes the group.
    pub fn wait_until_served(&self, id: usize) {
        let end = Instant::now() + PATIENCE;
        loop {
            let served = Client::try_connect(self.ports[id])
                .and_then(|mut client| client.try_call(&[b"GET", b"served"]).ok());
            if served.is_some_and(|reply| !matches!(reply, Value::Error(_))) {
                return;
            }
            assert!(Instant::now() < end, "replica {id} does not serve: {}", self.logs());
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    pub fn client(&self, id: usize) -> Client {
        Client::try_connect(self.ports[id]).expect("the replica accepts")
    }

    pub fn kill(&mut self, id: usize) {
        let mut child = self.children[id].take().expect("it runs");
        child.kill().expect("killed");
        child.wait().expect("waited");
    }

    /// The replicas that have ended by themselves, each with whether it says that all was well.
    pub fn ended(&mut self) -> Vec<(usize, bool)> {
        let mut ended = Vec::new();
        for (id, child) in self.children.iter_mut().enumerate() {
            if let Some(status) = child.as_mut().and_then(|child| child.try_wait().expect("asked"))
            {
                *child = None;
                ended.push((id, status.success()));
            }
        }
        ended
    }

    /// Stops in good order; returns whether the exit code was 0.
    pub fn terminate(&mut self, id: usize) -> bool {
        let pid = self.pid(id);
        let mut child = self.children[id].take().expect("it runs");
        rustix::process::kill_process(pid, rustix::process::Signal::TERM).expect("signalled");
        child.wait().expect("waited").success()
    }

    /// A field of the replica's status; `Null` if it does not answer.
    pub fn status(&self, id: usize, field: &str) -> serde_json::Value {
        let reply = Client::try_connect(self.ports[id])
            .and_then(|mut client| client.try_call(&[b"LOCKSTEP.STATUS"]).ok());
        match reply {
            Some(Value::Bulk(text)) => {
                serde_json::from_slice::<serde_json::Value>(&text).expect("JSON")[field].clone()
            }
            _ => serde_json::Value::Null,
        }
    }

    /// Waits until the replica's status has this value.
    pub fn wait_for(&self, id: usize, field: &str, value: &serde_json::Value) {
        let end = Instant::now() + PATIENCE;
        while self.status(id, field) != *value {
            let now = self.status(id, field);
            assert!(Instant::now() < end, "replica {id}: {field} is {now}: {}", self.logs());
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    pub fn primary(&self) -> usize {
        let end = Instant::now() + PATIENCE;
        loop {
            let mut ids = 0..self.children.len();
            let found =
                ids.find(|&id| self.children[id].is_some() && self.status(id, "role") == "primary");
            if let Some(id) = found {
                return id;
            }
            assert!(Instant::now() < end, "no primary: {}", self.logs());
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    /// Waits until this holds.
    pub fn wait_until(&self, what: &str, mut holds: impl FnMut() -> bool) {
        let end = Instant::now() + PATIENCE;
        while !holds() {
            assert!(Instant::now() < end, "{what}: {}", self.logs());
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    /// Waits until the replica has its memory again and votes: the next one may end.
    pub fn wait_until_it_votes(&self, id: usize) {
        let votes = || matches!(self.status(id, "role").as_str(), Some("primary" | "backup"));
        self.wait_until("it rejoins", votes);
    }

    /// Counts through the end of the primary, of a group of three, and has it serve again. Returns
    /// who it was.
    pub fn count_through_the_end_of_the_primary(&mut self, acknowledged: &mut i64) -> usize {
        let primary = self.primary();
        let mut client = self.client((primary + 1) % 3);
        let mut count = || {
            for _ in 0..50 {
                assert_eq!(client.call("INCR count"), Value::Integer(*acknowledged + 1));
                *acknowledged += 1;
            }
        };
        count();
        self.kill(primary);
        // The gateway finds the new primary by itself.
        count();
        self.spawn(primary, false);
        self.wait_until_served(primary);
        assert_eq!(self.client(primary).call("GET count"), bulk(&acknowledged.to_string()));
        primary
    }

    /// Kills all of a group of three, twice, and finds so many keys, which are durable, again.
    pub fn keep_through_the_end_of_all(&mut self, keys: usize) {
        let mut client = self.client(1);
        if self.durability == "lazy" {
            assert_eq!(client.call("LOCKSTEP.DURABILITY sync"), ok());
        }
        for number in 0..keys {
            assert_eq!(client.call(&format!("SET key{number} {number}")), ok());
        }
        for _ in 0..2 {
            (0..3).for_each(|id| self.kill(id));
            (0..3).for_each(|id| self.spawn(id, false));
            self.wait_until_served(0);
            let mut client = self.client(0);
            for number in 0..keys {
                let value = client.call(&format!("GET key{number}"));
                assert_eq!(value, bulk(&number.to_string()), "{}", self.durability);
            }
        }
    }

    pub fn logs(&self) -> String {
        let log = |id: usize| std::fs::read_to_string(self.scratch.0.join(format!("{id}.log")));
        (0..self.children.len()).map(|id| log(id).unwrap_or_default()).collect()
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        for child in self.children.iter_mut().flatten() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// A client.
pub struct Client {
    pub stream: TcpStream,
    input: Vec<u8>,
}

impl Client {
    pub fn try_connect(port: u16) -> Option<Client> {
        let stream = TcpStream::connect(("127.0.0.1", port)).ok()?;
        stream.set_nodelay(true).ok()?;
        stream.set_read_timeout(Some(PATIENCE)).ok()?;
        Some(Client::over(stream))
    }

    pub fn over(stream: TcpStream) -> Client {
        Client { stream, input: Vec::new() }
    }

    pub fn send(&mut self, command: &[&[u8]]) {
        let mut bytes = Vec::new();
        write::command(&mut bytes, command);
        self.stream.write_all(&bytes).expect("sent");
    }

    pub fn receive(&mut self) -> std::io::Result<Value> {
        let mut parser = ReplyParser::new();
        let mut chunk = vec![0; 1 << 16];
        loop {
            if parser.parse(&self.input).expect("a reply").is_some() {
                let (value, length) = Value::parse(&self.input).expect("a reply");
                self.input.drain(..length);
                return Ok(value);
            }
            match self.stream.read(&mut chunk)? {
                0 => return Err(std::io::ErrorKind::UnexpectedEof.into()),
                count => self.input.extend_from_slice(&chunk[..count]),
            }
        }
    }

    pub fn try_call(&mut self, command: &[&[u8]]) -> std::io::Result<Value> {
        let mut bytes = Vec::new();
        write::command(&mut bytes, command);
        self.stream.write_all(&bytes)?;
        self.receive()
    }

    /// A command of words.
    pub fn call(&mut self, command: &str) -> Value {
        let words: Vec<&[u8]> = command.split(' ').map(str::as_bytes).collect();
        self.try_call(&words).unwrap_or_else(|error| panic!("{command}: {error}"))
    }
}

pub fn bulk(text: &str) -> Value {
    Value::Bulk(text.as_bytes().to_vec())
}

/// The text of an error.
pub fn error_of(reply: &Value) -> String {
    match reply {
        Value::Error(text) => String::from_utf8_lossy(text).into_owned(),
        other => panic!("no error: {other:?}"),
    }
}

pub fn ok() -> Value {
    Value::Simple(b"OK".to_vec())
}

/// Runs the program to its end.
pub fn run(arguments: &[&str]) -> Output {
    Command::new(PROGRAM).args(arguments).output().expect("the program runs")
}
