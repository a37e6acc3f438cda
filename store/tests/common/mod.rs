//! A store that runs in the test's process, and its clients.
#![allow(dead_code)] // each test uses its part

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

use kv::Place;
use node::{ConnectionId, Desk, Face, Failure, Note, Step};
use resp::{Limits, Parser, Protocol, ReplyParser, Value, write};
use smr::{Durability, Now};
use store::{Error, Event, Options, Report, Server};

/// Redis's protocol, as far as the tests go; `SYNC` asks for durability `sync`.
pub struct Plain;

impl Face for Plain {
    type Service = kv::Store;
    type Session = Parser;

    fn open(&mut self, _: ConnectionId, _: usize, _: &str, _: Now) -> Parser {
        Parser::new(Limits::default())
    }

    fn take(&mut self, parser: &mut Parser, input: &[u8], desk: &mut Desk<'_, kv::Store>) -> Step {
        let Some(length) = parser.parse(input).expect("sound requests") else {
            return Step::More(1);
        };
        let command = parser.command(input);
        let name = command.get(0).expect("a name");
        if name == b"SYNC" {
            assert!(desk.set_durability(Durability::Sync));
            desk.answer(write::ok);
            return Step::Taken(length);
        }
        let spec = kv::lookup(name).expect("a known command");
        let push = |body: &mut Vec<u8>| {
            command.with_slices(|argv| {
                kv::request::push_command(body, Protocol::V2, spec, argv);
            });
        };
        let submitted = match spec.place {
            Place::Write => desk.write(Note(0), push),
            _ => desk.read(Note(0), push),
        };
        if submitted { Step::Taken(length) } else { Step::Wait }
    }

    fn items(answer: &[u8]) -> impl Iterator<Item = &[u8]> {
        kv::reply::items(answer)
    }

    fn answer(&mut self, _: &mut Parser, _: Note, item: &[u8], out: &mut Vec<u8>) {
        out.extend_from_slice(item);
    }

    fn fail(&mut self, _: &mut Parser, _: Note, why: Failure, out: &mut Vec<u8>) {
        write::error(out, &format!("FAILED {why:?}"));
    }

    fn reject(&mut self, _: usize, _: &mut Vec<u8>) {}

    fn close(&mut self, _: ConnectionId, _: Parser) {}
}

/// Options for small tests.
pub fn options(directory: &Path, threads: usize) -> Options {
    let directory = directory.to_owned();
    let mut options = Options::new(directory, "127.0.0.1:0".to_owned(), Durability::Lazy);
    (options.threads, options.log_step) = (threads, 1 << 16);
    options
}

/// A store that serves.
pub struct Running {
    pub address: SocketAddr,
    pub report: Report,
    pub events: Arc<Mutex<Vec<Event>>>,
    stop: Arc<AtomicBool>,
    thread: JoinHandle<Result<(), Error>>,
}

impl Running {
    pub fn start(options: Options) -> Result<Running, Error> {
        let server = Server::open(options)?;
        let address = server.addresses()[0];
        let (stop, events) = (Arc::new(AtomicBool::new(false)), Arc::new(Mutex::new(Vec::new())));
        let (flag, told) = (stop.clone(), events.clone());
        let (tell, ready) = std::sync::mpsc::channel();
        let thread = std::thread::spawn(move || {
            server.run(
                &flag,
                |_| Plain,
                move |event| {
                    if let Event::Recovered(report) = event {
                        // Nobody waits twice.
                        let _ = tell.send(report.clone());
                    }
                    told.lock().unwrap().push(event.clone());
                },
            )
        });
        match ready.recv() {
            Ok(report) => Ok(Running { address, report, events, stop, thread }),
            Err(_) => Err(thread.join().expect("no panic").expect_err("it did not recover")),
        }
    }

    pub fn client(&self) -> Client {
        Client::connect(self.address)
    }

    /// Has it stop soon.
    pub fn stop(&self) {
        self.stop.store(true, Ordering::Relaxed);
    }

    /// Stops it in good order, or waits for its failure.
    pub fn end(self) -> Result<(), Error> {
        self.stop.store(true, Ordering::Relaxed);
        self.thread.join().expect("no panic")
    }

    pub fn checkpoints(&self) -> usize {
        let events = self.events.lock().unwrap();
        events.iter().filter(|event| matches!(event, Event::Checkpoint { .. })).count()
    }
}

/// A client.
pub struct Client {
    stream: TcpStream,
    input: Vec<u8>,
}

impl Client {
    pub fn connect(address: SocketAddr) -> Client {
        let stream = TcpStream::connect(address).expect("the store listens");
        stream.set_nodelay(true).expect("a socket");
        stream.set_read_timeout(Some(Duration::from_secs(20))).expect("a socket");
        Client { stream, input: Vec::new() }
    }

    pub fn send(&mut self, words: &[&str]) {
        let argv: Vec<&[u8]> = words.iter().map(|word| word.as_bytes()).collect();
        let mut request = Vec::new();
        write::command(&mut request, &argv);
        // The server may be gone: that shows when the answer is read.
        let _ = self.stream.write_all(&request);
    }

    /// The next answer; `None` if the connection has ended.
    pub fn answer(&mut self) -> Option<Value> {
        let mut parser = ReplyParser::new();
        loop {
            if parser.parse(&self.input).expect("a sound reply").is_some() {
                let (value, length) = Value::parse(&self.input).expect("a whole reply");
                self.input.drain(..length);
                return Some(value);
            }
            let mut chunk = [0; 4096];
            match self.stream.read(&mut chunk) {
                Ok(0) | Err(_) => return None,
                Ok(count) => self.input.extend_from_slice(&chunk[..count]),
            }
        }
    }

    pub fn call(&mut self, line: &str) -> Option<Value> {
        self.send(&line.split(' ').collect::<Vec<_>>());
        self.answer()
    }

    /// A number that a key holds; 0 if it holds nothing.
    pub fn number(&mut self, key: &str) -> u64 {
        match self.call(&format!("GET {key}")).expect("an answer") {
            Value::Null => 0,
            value => std::str::from_utf8(value.as_bytes().unwrap()).unwrap().parse().unwrap(),
        }
    }
}

/// An empty directory.
pub fn directory(name: &str) -> std::path::PathBuf {
    let path = std::env::temp_dir().join(format!("store-{name}-{}", std::process::id()));
    let _ = std::fs::remove_dir_all(&path);
    std::fs::create_dir(&path).expect("a temporary directory");
    path
}
