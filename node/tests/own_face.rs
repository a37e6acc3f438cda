//! A service and a face of their own on a node: what it takes to write an application.
//!
//! The service adds numbers up. Its protocol is lines: `add N` changes the sum, `sum` reads it.

use std::io::{BufRead, BufReader, ErrorKind, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use node::{
    Application, Birth, ConnectionId, Desk, Exit, Face, Failure, Node, Note, Options, Step,
};
use smr::{BadCheckpoint, Context, Durability, GroupId, Now, ReadOutcome, ReplicaId, StateMachine};

/// Requests are batches of numbers of 8 bytes; reads of single zero bytes.
#[derive(Default)]
struct Sum(u64);

impl StateMachine for Sum {
    type Undo = u64;

    fn apply(&mut self, _: Context, request: &[u8], reply: &mut Vec<u8>) -> u64 {
        let before = self.0;
        for number in request.as_chunks::<8>().0 {
            self.0 = self.0.wrapping_add(u64::from_le_bytes(*number));
            reply.extend_from_slice(&self.0.to_le_bytes());
        }
        before
    }

    fn undo(&mut self, before: u64) {
        self.0 = before;
    }

    fn read(&self, _: u64, request: &[u8], reply: &mut Vec<u8>) -> ReadOutcome {
        for _ in request.as_chunks::<8>().0 {
            reply.extend_from_slice(&self.0.to_le_bytes());
        }
        ReadOutcome::Done
    }

    fn checkpoint_begin(&mut self) {}

    fn checkpoint_next(&mut self, _: usize, out: &mut Vec<u8>) -> bool {
        out.extend_from_slice(&self.0.to_le_bytes());
        true
    }

    fn checkpoint_abort(&mut self) {}

    fn restore_begin(&mut self) {}

    fn restore_chunk(&mut self, chunk: &[u8]) -> Result<(), BadCheckpoint> {
        self.0 = u64::from_le_bytes(chunk.try_into().map_err(|_| BadCheckpoint)?);
        Ok(())
    }
}

struct Lines;

impl Face for Lines {
    type Service = Sum;
    type Session = ();

    fn open(&mut self, _: ConnectionId, _: usize, _: &str, _: Now) {}

    fn take(&mut self, (): &mut (), input: &[u8], desk: &mut Desk<'_, Sum>) -> Step {
        let Some(end) = input.iter().position(|&byte| byte == b'\n') else { return Step::More(1) };
        let line = std::str::from_utf8(&input[..end]).unwrap_or_default();
        let submitted = match line.split_once(' ') {
            Some(("add", number)) => {
                let number = number.parse().unwrap_or(0_u64);
                desk.write(Note(0), |body| body.extend_from_slice(&number.to_le_bytes()))
            }
            // A read may be logged behind writes: adding nothing is its equal.
            _ if line == "sum" => desk.read(Note(0), |body| body.extend_from_slice(&[0; 8])),
            _ => {
                desk.answer(|out| out.extend_from_slice(b"what?\n"));
                true
            }
        };
        if submitted { Step::Taken(end + 1) } else { Step::Wait }
    }

    fn items(answer: &[u8]) -> impl Iterator<Item = &[u8]> {
        answer.chunks(8)
    }

    fn answer(&mut self, (): &mut (), _: Note, item: &[u8], out: &mut Vec<u8>) {
        let sum = u64::from_le_bytes(item.try_into().expect("the service answers with 8 bytes"));
        out.extend_from_slice(format!("{sum}\n").as_bytes());
    }

    fn fail(&mut self, (): &mut (), _: Note, why: Failure, out: &mut Vec<u8>) {
        out.extend_from_slice(format!("{why:?}\n").as_bytes());
    }

    fn reject(&mut self, _: usize, _: &mut Vec<u8>) {}

    fn close(&mut self, _: ConnectionId, (): ()) {}
}

fn free_address() -> String {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    listener.local_addr().expect("bound").to_string()
}

#[test]
fn a_group_of_one_adds_up_and_remembers() {
    let directory = std::env::temp_dir().join(format!("node-face-{}", std::process::id()));
    std::fs::create_dir_all(&directory).expect("a directory");
    let clients = free_address();
    let options = Options::new(
        directory.clone(),
        ReplicaId(0),
        vec![free_address()],
        clients.clone(),
        Durability::Sync,
        Birth::Bootstrap(GroupId(1)),
    );
    for life in 0..2_u64 {
        let stop = Arc::new(AtomicBool::new(false));
        let (stopping, options) = (Arc::clone(&stop), options.clone());
        let replica = std::thread::spawn(move || {
            let events = Box::new(|event: &node::Event| println!("{event}"));
            let node = Node::open(options, Lines, Sum::default(), events).expect("it opens");
            node.run(&stopping).expect("it runs")
        });
        let stream = loop {
            match TcpStream::connect(&clients) {
                Ok(stream) => break stream,
                Err(_) => std::thread::sleep(std::time::Duration::from_millis(5)),
            }
        };
        (&stream).write_all(b"sum\nadd 2\nadd 3\nsum\nhello\nsum\n").expect("sent");
        let lines = BufReader::new(&stream).lines().take(6);
        let lines: Vec<String> = lines.map(|line| line.expect("an answer")).collect();
        let sums = [0, 2, 5, 5].map(|sum| (sum + life * 5).to_string());
        let last = sums[3].clone();
        let [first, two, five, again] = sums;
        assert_eq!(lines, [first, two, five, again, "what?".to_owned(), last]);
        stop.store(true, Ordering::Relaxed);
        assert_eq!(replica.join().expect("it ends"), Exit::Stopped);
    }
    std::fs::remove_dir_all(&directory).expect("removed");
}

/// Sends lines and takes their answers, as many as there is room for at a time.
fn ask(application: &mut Application, mut lines: &[u8], answers: usize) -> Vec<u64> {
    let end = std::time::Instant::now() + std::time::Duration::from_secs(60);
    let (mut found, mut text, mut chunk) = (Vec::new(), Vec::new(), [0; 1000]);
    while found.len() < answers {
        assert!(std::time::Instant::now() < end, "{} of {answers} answers", found.len());
        match application.write(lines) {
            Ok(count) => lines = &lines[count..],
            Err(error) => assert_eq!(error.kind(), ErrorKind::WouldBlock),
        }
        match application.read(&mut chunk) {
            Ok(count) => text.extend_from_slice(&chunk[..count]),
            Err(error) => assert_eq!(error.kind(), ErrorKind::WouldBlock),
        }
        while let Some(end) = text.iter().position(|&byte| byte == b'\n') {
            let line: Vec<u8> = text.drain(..=end).collect();
            let number = String::from_utf8(line).expect("text");
            found.push(number.trim_end().parse().expect("a sum"));
        }
    }
    found
}

#[test]
fn an_application_in_the_process_needs_no_socket() {
    let directory = std::env::temp_dir().join(format!("node-memory-{}", std::process::id()));
    std::fs::create_dir_all(&directory).expect("a directory");
    let mut options = Options::new(
        directory.clone(),
        ReplicaId(0),
        vec![free_address()],
        free_address(),
        Durability::Memory,
        Birth::Bootstrap(GroupId(1)),
    );
    for spin in [0, 50] {
        options.spin = spin;
        let stop = Arc::new(AtomicBool::new(false));
        let (stopping, options) = (Arc::clone(&stop), options.clone());
        let (give, take) = std::sync::mpsc::channel();
        let replica = std::thread::spawn(move || {
            let events = Box::new(|event: &node::Event| println!("{event}"));
            let mut node = Node::open(options, Lines, Sum::default(), events).expect("it opens");
            give.send([node.attach(), node.attach()]).expect("it is waited for");
            node.run(&stopping).expect("it runs")
        });
        let [mut application, mut other] = take.recv().expect("both");
        // One at a time, so that the loop sleeps in between; then more than there is room for.
        for number in 1..=100 {
            std::thread::sleep(std::time::Duration::from_micros(number * 20));
            assert_eq!(ask(&mut application, b"add 1\n", 1), [number]);
        }
        let sums = ask(&mut application, &b"add 1\n".repeat(100_000), 100_000);
        assert_eq!(sums, (101..=100_100).collect::<Vec<u64>>());
        drop(application);
        assert_eq!(ask(&mut other, b"sum\n", 1), [100_100]);
        stop.store(true, Ordering::Relaxed);
        assert_eq!(replica.join().expect("it ends"), Exit::Stopped);
        assert_eq!(other.read(&mut [0]).expect("the end"), 0);
        assert_eq!(other.write(b"x").expect_err("nobody").kind(), ErrorKind::BrokenPipe);
        std::fs::remove_dir_all(&directory).expect("removed");
        std::fs::create_dir_all(&directory).expect("a directory");
    }
    std::fs::remove_dir_all(&directory).expect("removed");
}
