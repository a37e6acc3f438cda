//! The memcached text protocol as a face of the key-value service. Items and Redis strings are the
//! same keys; what changes or reads them goes to the group, the rest is answered here.
//!
//! Invariant: a command that is not answered at once leaves a note of how its answer is to be
//! written, and a meta command also its key and flags; nothing that only the answer needs is in
//! the log.

mod session;
mod stats;

use std::sync::{Arc, Mutex, MutexGuard};

use kv::Store;
use kv::items::{Answer, Outcome};
use memcached::write::{self, Status};
use memcached::{Command, Echo, Front, MAX_VALUE_LEN, Reply};
use node::{Desk, Failure, Note, Step};

use crate::redis::{Bounds, DISK_FULL, failure};
pub use session::Session;
use stats::Counters;

/// The version of memcached whose behaviour is followed.
const VERSION: &str = "1.6.18";

const TOO_LARGE: &str = "SERVER_ERROR object too large for cache";
const NOT_NUMERIC: &str = "CLIENT_ERROR cannot increment or decrement non-numeric value";
const WRONG_TYPE: &str = "CLIENT_ERROR the key holds a Redis collection, not a string";
const GARBLED: &str = "SERVER_ERROR the command was executed, but its answer makes no sense";
const TOO_MANY: &str = "SERVER_ERROR max number of clients reached";

/// How an answer is to be written: the lower byte of a note. Above it is the place of a meta
/// command's echo.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Style {
    Get = 0,
    Gets = 1,
    Silent = 2,
    Store = 3,
    Cas = 4,
    Delete = 5,
    Increment = 6,
    Decrement = 7,
    Touch = 8,
    Flush = 9,
    /// The value was refused as too large, what the key held before is deleted.
    TooLarge = 10,
    Meta = 11,
    Debug = 12,
}

const STYLES: [Style; 13] = [
    Style::Get,
    Style::Gets,
    Style::Silent,
    Style::Store,
    Style::Cas,
    Style::Delete,
    Style::Increment,
    Style::Decrement,
    Style::Touch,
    Style::Flush,
    Style::TooLarge,
    Style::Meta,
    Style::Debug,
];

impl Style {
    fn of(note: Note) -> Style {
        STYLES[usize::from(note.0 as u8)]
    }

    /// How a command's answer is to be written, unless it is a meta command's.
    fn classic(command: &Command<'_>) -> Style {
        match command {
            Command::Get { cas: false, .. } => Style::Get,
            Command::Get { cas: true, .. } => Style::Gets,
            Command::Store(store, _) if store.compare.is_some() => Style::Cas,
            Command::Delete(..) => Style::Delete,
            Command::Arithmetic(change, _) if change.decrement => Style::Decrement,
            Command::Arithmetic(..) => Style::Increment,
            Command::Fetch(..) => Style::Touch,
            Command::FlushAll(..) => Style::Flush,
            _ => Style::Store,
        }
    }
}

/// The face. A clone is the same one.
#[derive(Clone)]
pub struct Memcached {
    bounds: Bounds,
    /// Where its clients come in.
    port: u16,
    /// Where Redis clients do, for texts.
    redis_port: u16,
    /// By thread.
    counters: Arc<[Mutex<Counters>]>,
    thread: usize,
}

impl Memcached {
    /// A face for clients that come in at `port`, and are served by so many threads.
    pub fn new(bounds: Bounds, port: u16, redis_port: u16, threads: usize) -> Memcached {
        let counters = (0..threads).map(|_| Mutex::default()).collect();
        Memcached { bounds, port, redis_port, counters, thread: 0 }
    }

    /// The same face on another thread.
    pub fn on_thread(&self, thread: usize) -> Memcached {
        Memcached { thread, ..self.clone() }
    }

    /// What this thread counts.
    fn counters(&self) -> MutexGuard<'_, Counters> {
        self.counters[self.thread].lock().expect("nobody panics with it")
    }

    /// See [`node::Face::take`].
    pub fn take(
        &mut self,
        session: &mut Session,
        input: &[u8],
        desk: &mut Desk<'_, Store>,
    ) -> Step {
        let before = session.parser.clone();
        let (taken, length) = match session.parser.parse(input) {
            Front::Command(Command::Quit, _) => return Step::Close,
            Front::Command(command, length) => (self.dispatch(session, &command, desk), length),
            Front::Refused(refusal, length) => match &refusal.remove {
                Some(key) => (self.refuse_large(key, refusal.silent, desk), length),
                None => {
                    self.counters().too_large += u64::from(refusal.text == TOO_LARGE);
                    answer(desk, refusal.silent, refusal.text);
                    (true, length)
                }
            },
            Front::Skipped(length) => (true, length),
            Front::Short(missing) => return Step::More(missing),
            Front::Lost(text) => {
                answer(desk, false, text);
                return Step::Close;
            }
            Front::Http => return Step::Close,
        };
        if taken {
            return Step::Taken(length);
        }
        // The same bytes will come again.
        session.parser = before;
        Step::Wait
    }

    /// Returns whether the command was taken.
    fn dispatch(
        &mut self,
        session: &mut Session,
        command: &Command<'_>,
        desk: &mut Desk<'_, Store>,
    ) -> bool {
        let Some(writes) = kv::items::is_write(command) else {
            self.local(command, desk);
            return true;
        };
        if desk.status().disk_full && grows(command) {
            let silent = reply_of(command) == Reply::Silent;
            answer(desk, silent, &format!("SERVER_ERROR {DISK_FULL}"));
            return true;
        }
        let (style, echo) = match (command, reply_of(command)) {
            (_, Reply::Silent) => (Style::Silent, None),
            (_, Reply::Classic) => (Style::classic(command), None),
            (Command::Debug(..), Reply::Meta(echo)) => (Style::Debug, Some(echo)),
            (_, Reply::Meta(echo)) => (Style::Meta, Some(echo)),
        };
        let place = echo.map_or(0, |echo| session.keep(&echo));
        let note = Note(style as u32 | place << 8);
        let push = |body: &mut Vec<u8>| kv::request::push_memcached(body, command);
        let taken = if writes { desk.write(note, push) } else { desk.read(note, push) };
        if taken {
            self.counters().took(command);
        } else if echo.is_some() {
            session.drop_echo(place);
        }
        taken
    }

    /// A value that is too large replaces what the key has by nothing.
    fn refuse_large(&mut self, key: &[u8], silent: bool, desk: &mut Desk<'_, Store>) -> bool {
        let style = if silent { Style::Silent } else { Style::TooLarge };
        let delete = memcached::Delete {
            key: key.into(),
            compare: None,
            invalidate: false,
            empty: false,
            exptime: None,
            new_cas: None,
        };
        let command = Command::Delete(delete, Reply::Classic);
        let push = |body: &mut Vec<u8>| kv::request::push_memcached(body, &command);
        let taken = desk.write(Note(style as u32), push);
        self.counters().too_large += u64::from(taken);
        taken
    }

    /// Answers what needs neither the state nor the group.
    fn local(&mut self, command: &Command<'_>, desk: &mut Desk<'_, Store>) {
        match command {
            Command::Version => answer(desk, false, &format!("VERSION {VERSION}")),
            Command::Verbosity(reply) => answer(desk, *reply == Reply::Silent, "OK"),
            Command::NoOp => answer(desk, false, "MN"),
            Command::Stats(which) => {
                let mut text = Vec::new();
                self.stats(which, desk, &mut text);
                desk.answer(|out| out.extend_from_slice(&text));
            }
            _ => {}
        }
    }

    /// See [`node::Face::answer`].
    #[inline]
    pub fn answer(&mut self, session: &mut Session, note: Note, item: &[u8], out: &mut Vec<u8>) {
        let style = Style::of(note);
        let found = Answer::parse(item);
        match (style, found) {
            (Style::Meta | Style::Debug, found) => {
                let packed = session.take_echo(note.0 >> 8);
                match (found, Echo::unpack(&packed)) {
                    (Some(found), Some(echo)) => self.answer_meta(style, &echo, found, out),
                    _ => write::line(out, GARBLED),
                }
            }
            (Style::Silent, _) => {}
            (_, None) => write::line(out, GARBLED),
            (Style::Get | Style::Gets, Some(found)) => {
                let mut counters = self.counters();
                for found in found {
                    counters.get_hits += 1;
                    write::value(out, found.key, &found.item, style == Style::Gets);
                }
                write::end(out);
            }
            (_, Some(found)) => {
                self.counters().became(style, found.outcome);
                answer_classic(style, found, out);
            }
        }
    }

    fn answer_meta(
        &mut self,
        style: Style,
        echo: &Echo<'_>,
        mut found: Answer<'_>,
        out: &mut Vec<u8>,
    ) {
        let outcome = found.outcome;
        let item = found.next().map(|found| found.item);
        if style == Style::Debug {
            return write::debug(out, echo, item.as_ref());
        }
        self.counters().meta(echo.code, outcome, item.as_ref());
        let status = match outcome {
            Outcome::Done => Status::Done,
            Outcome::NotFound => Status::NotFound,
            Outcome::Exists => Status::Exists,
            Outcome::NotStored => Status::NotStored,
            other => return write::line(out, error(other)),
        };
        write::meta(out, echo, status, item.as_ref());
    }

    /// See [`node::Face::fail`].
    pub fn fail(&mut self, session: &mut Session, note: Note, why: Failure, out: &mut Vec<u8>) {
        let style = Style::of(note);
        if matches!(style, Style::Meta | Style::Debug) {
            session.drop_echo(note.0 >> 8);
        }
        if style != Style::Silent {
            let text = failure(why, self.redis_port);
            let text = text.strip_prefix("ERR ").unwrap_or(&text);
            write::line(out, &format!("SERVER_ERROR {text}"));
        }
    }

    /// See [`node::Face::reject`].
    pub fn reject(out: &mut Vec<u8>) {
        write::line(out, TOO_MANY);
    }

    /// What is kept for a new connection.
    pub fn open() -> Session {
        Session::new(MAX_VALUE_LEN)
    }
}

/// Answers a command here and now.
fn answer(desk: &mut Desk<'_, Store>, silent: bool, text: &str) {
    match silent {
        true => desk.answer(|_| {}),
        false => desk.answer(|out| write::line(out, text)),
    }
}

/// How a command wants to be answered.
fn reply_of<'a>(command: &Command<'a>) -> Reply<'a> {
    match command {
        Command::Fetch(_, reply)
        | Command::Store(_, reply)
        | Command::Delete(_, reply)
        | Command::Arithmetic(_, reply)
        | Command::FlushAll(_, reply)
        | Command::Verbosity(reply) => *reply,
        Command::Debug(_, echo) => Reply::Meta(*echo),
        Command::Get { .. }
        | Command::Stats(_)
        | Command::Version
        | Command::NoOp
        | Command::Quit => Reply::Classic,
    }
}

/// Whether a command may need more space than before.
fn grows(command: &Command<'_>) -> bool {
    match command {
        Command::Store(..) | Command::Arithmetic(..) => true,
        Command::Fetch(fetch, _) => fetch.vivify.is_some(),
        _ => false,
    }
}

/// The line for an outcome that is an error in every protocol.
fn error(outcome: Outcome) -> &'static str {
    match outcome {
        Outcome::TooLarge => TOO_LARGE,
        Outcome::NotNumeric => NOT_NUMERIC,
        Outcome::WrongType => WRONG_TYPE,
        Outcome::Done | Outcome::NotFound | Outcome::Exists | Outcome::NotStored => GARBLED,
    }
}

/// The answer to a classic command other than `get` and its kind.
fn answer_classic(style: Style, mut found: Answer<'_>, out: &mut Vec<u8>) {
    let text = match (found.outcome, style) {
        (_, Style::TooLarge) => TOO_LARGE,
        (Outcome::Done, Style::Increment | Style::Decrement) => {
            let number = found.next().map_or(&b""[..], |found| found.item.value);
            out.extend_from_slice(number);
            return out.extend_from_slice(b"\r\n");
        }
        (Outcome::Done, Style::Delete) => "DELETED",
        (Outcome::Done, Style::Touch) => "TOUCHED",
        (Outcome::Done, Style::Flush) => "OK",
        (Outcome::Done, _) => "STORED",
        (Outcome::NotFound, _) => "NOT_FOUND",
        (Outcome::Exists, _) => "EXISTS",
        (Outcome::NotStored, _) => "NOT_STORED",
        (other, _) => error(other),
    };
    write::line(out, text);
}
