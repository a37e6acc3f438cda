//! For tests: a RESP server in this process, correct or lying.

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex};

use resp::{ReplyParser, Value, write};

/// What the server does wrong, with every so-many-th command that it concerns.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Lie {
    /// Nothing.
    None,
    /// It answers `-TIMEOUT` or closes the connection, having executed the command or not.
    Flaky(u64),
    /// It acknowledges a `SET` that it does not execute.
    LostWrite(u64),
    /// It answers a `GET` with the value before the last.
    StaleRead(u64),
    /// It executes an `INCR` twice.
    DoubleIncrement(u64),
}

#[derive(Default)]
struct State {
    values: BTreeMap<Vec<u8>, Vec<u8>>,
    before: BTreeMap<Vec<u8>, Vec<u8>>,
    commands: u64,
}

/// A server with one state behind several addresses. Its threads end with the process.
pub(crate) struct Fake {
    pub addresses: Vec<SocketAddr>,
}

impl Fake {
    pub(crate) fn start(addresses: usize, lie: Lie) -> Self {
        let state = Arc::new(Mutex::new(State::default()));
        let start = |_| {
            let listener = TcpListener::bind("127.0.0.1:0").unwrap();
            let address = listener.local_addr().unwrap();
            let state = Arc::clone(&state);
            std::thread::spawn(move || {
                for socket in listener.incoming() {
                    let state = Arc::clone(&state);
                    std::thread::spawn(move || serve(socket.unwrap(), &state, lie));
                }
            });
            address
        };
        Self { addresses: (0..addresses).map(start).collect() }
    }
}

fn serve(mut socket: TcpStream, state: &Mutex<State>, lie: Lie) {
    let mut input = Vec::new();
    let mut chunk = [0; 16384];
    let mut parser = ReplyParser::new();
    loop {
        let count = socket.read(&mut chunk).unwrap_or(0);
        if count == 0 {
            return;
        }
        input.extend_from_slice(&chunk[..count]);
        let mut output = Vec::new();
        // A command is an array of strings, as a reply may be.
        while let Some(shape) = parser.parse(&input).unwrap() {
            let (command, _) = Value::parse(&input[..shape.len]).unwrap();
            input.drain(..shape.len);
            let Value::Array(command) = command else { panic!("not a command") };
            let command: Vec<&[u8]> = command.iter().filter_map(Value::as_bytes).collect();
            if !state.lock().unwrap().answer(&command, lie, &mut output) {
                return;
            }
        }
        if socket.write_all(&output).is_err() {
            return;
        }
    }
}

impl State {
    /// Returns false if the connection is to be closed.
    fn answer(&mut self, command: &[&[u8]], lie: Lie, output: &mut Vec<u8>) -> bool {
        self.commands += 1;
        let turn = |every: u64| self.commands.is_multiple_of(every);
        if let Lie::Flaky(every) = lie
            && turn(every)
        {
            let choice = self.commands / every;
            if choice.is_multiple_of(2) {
                self.execute(command, Lie::None, &mut Vec::new());
            }
            write::error(output, "TIMEOUT no answer in time");
            return !choice.is_multiple_of(3);
        }
        self.execute(command, lie, output);
        true
    }

    fn execute(&mut self, command: &[&[u8]], lie: Lie, output: &mut Vec<u8>) {
        let turn = |every: u64| self.commands.is_multiple_of(every);
        match *command {
            [b"SET", key, value] => {
                let lost = matches!(lie, Lie::LostWrite(every) if turn(every));
                if !lost {
                    self.put(key, value.to_vec());
                }
                write::ok(output);
            }
            [b"GET", key] => {
                let stale = matches!(lie, Lie::StaleRead(every) if turn(every));
                let map = if stale { &self.before } else { &self.values };
                match map.get(key) {
                    Some(value) => write::bulk(output, value),
                    None => write::null(output, resp::Protocol::V2),
                }
            }
            [b"INCR", key] => {
                let twice = matches!(lie, Lie::DoubleIncrement(every) if turn(every));
                let old = self.values.get(key).map_or(0, |value| resp::parse_i64(value).unwrap());
                let new = old + if twice { 2 } else { 1 };
                self.put(key, new.to_string().into_bytes());
                write::integer(output, new);
            }
            [b"KRANGE", first, ..] => {
                let found: Vec<_> = self.values.range(first.to_vec()..).take(10).collect();
                write::array(output, found.len());
                for (key, _) in found {
                    write::bulk(output, key);
                }
            }
            _ => write::error(output, "ERR unknown command"),
        }
    }

    fn put(&mut self, key: &[u8], value: Vec<u8>) {
        if let Some(old) = self.values.insert(key.to_vec(), value) {
            self.before.insert(key.to_vec(), old);
        }
    }
}
