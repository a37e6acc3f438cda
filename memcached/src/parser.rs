//! Finds commands in a client's bytes: lines, and data blocks behind some of them.
//!
//! A line ends with LF, or CR LF. A data block has the length that its line says and always ends
//! with CR LF. Behind a refused line the block is skipped if the line says its length and was
//! refused for what else it says; what stands behind a line of the wrong form is taken for the next
//! command, as memcached takes it.

use crate::command::{Command, Reply};
use crate::line::Tokens;
use crate::{MAX_LINE, MAX_RETRIEVAL_LINE, classic, meta};

/// What is at the front of a client's bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Front<'a> {
    /// A command of this many bytes.
    Command(Command<'a>, usize),
    /// A command that is refused; it has this many bytes, and perhaps a data block that comes next
    /// as [`Front::Skipped`].
    Refused(Refusal<'a>, usize),
    /// This many bytes of a refused data block.
    Skipped(usize),
    /// No whole command. This many more bytes are known to be missing, at least 1.
    Short(usize),
    /// The bytes cannot be told apart from here on: the connection must end, after this text.
    Lost(&'static str),
    /// A browser, perhaps on behalf of somebody else: the connection must end without a word.
    Http,
}

/// An answer to a command that is not executed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal<'a> {
    /// The line to answer, without its end.
    pub text: &'static str,
    /// The client wants no answer (`noreply`).
    pub silent: bool,
    /// The value that was to be set is too large: what the key held before must go, or the client
    /// would go on reading it.
    pub remove: Option<std::borrow::Cow<'a, [u8]>>,
}

impl Refusal<'_> {
    pub(crate) fn new(text: &'static str) -> Refusal<'static> {
        Refusal { text, silent: false, remove: None }
    }
}

pub(crate) const ERROR: &str = "ERROR";
pub(crate) const BAD_FORMAT: &str = "CLIENT_ERROR bad command line format";
const BAD_CHUNK: &str = "CLIENT_ERROR bad data chunk";
const LINE_TOO_LONG: &str = "CLIENT_ERROR line too long";
const BINARY: &str = "CLIENT_ERROR the binary protocol is not supported: use the text protocol";
pub(crate) const TOO_LARGE: &str = "SERVER_ERROR object too large for cache";

/// The first byte of a request of the binary protocol.
const BINARY_MAGIC: u8 = 0x80;

/// What a line means.
pub(crate) enum Meaning<'a> {
    /// All of a command.
    Whole(Command<'a>),
    /// A command whose value, empty yet, is this many bytes behind the line.
    Block(Command<'a>, usize),
    /// Nothing, and behind the line there is nothing either.
    Refused(Refusal<'a>),
    /// Nothing, and this many bytes of data block are behind the line.
    RefusedBlock(Refusal<'a>, usize),
    /// A request of HTTP.
    Http,
}

/// The parser of one connection.
#[derive(Clone, Debug)]
pub struct Parser {
    value_len: usize,
    /// Bytes at the front of the input in which no line ends.
    scanned: usize,
    /// Bytes of a refused data block that are still to come.
    skip: usize,
}

impl Parser {
    /// A parser that takes values of up to `value_len` bytes.
    pub fn new(value_len: usize) -> Parser {
        Parser { value_len, scanned: 0, skip: 0 }
    }

    /// Looks at the front of `input`. The caller drops what was a command, refused or skipped
    /// before it calls again; otherwise it calls again with the same bytes and more.
    pub fn parse<'a>(&mut self, input: &'a [u8]) -> Front<'a> {
        if self.skip > 0 {
            let count = self.skip.min(input.len());
            self.skip -= count;
            return if count > 0 { Front::Skipped(count) } else { Front::Short(1) };
        }
        if input.first() == Some(&BINARY_MAGIC) {
            return Front::Lost(BINARY);
        }
        let Some(end) = self.line_end(input) else {
            if input.len() >= longest_line(input) {
                return Front::Lost(LINE_TOO_LONG);
            }
            self.scanned = input.len();
            return Front::Short(1);
        };
        if end >= longest_line(input) {
            return Front::Lost(LINE_TOO_LONG);
        }
        let line = input[..end].strip_suffix(b"\r").unwrap_or(&input[..end]);
        self.scanned = end;
        let front = self.command(line, input, end + 1);
        if !matches!(front, Front::Short(_)) {
            self.scanned = 0;
        }
        front
    }

    fn line_end(&self, input: &[u8]) -> Option<usize> {
        let from = self.scanned.min(input.len());
        input[from..].iter().position(|&byte| byte == b'\n').map(|at| from + at)
    }

    /// The command whose line is the first `start` bytes of the input.
    fn command<'a>(&mut self, line: &'a [u8], input: &'a [u8], start: usize) -> Front<'a> {
        match meaning(line, self.value_len) {
            Meaning::Whole(command) => Front::Command(command, start),
            Meaning::Refused(refusal) => Front::Refused(refusal, start),
            Meaning::Http => Front::Http,
            Meaning::RefusedBlock(refusal, length) => {
                self.skip = length.saturating_add(2);
                Front::Refused(refusal, start)
            }
            Meaning::Block(command, length) => {
                let end = start + length + 2;
                let Some(block) = input.get(start..end) else {
                    return Front::Short(end - input.len());
                };
                match block.strip_suffix(b"\r\n") {
                    Some(value) => Front::Command(with_value(command, value), end),
                    None => {
                        let silent = matches!(&command, Command::Store(_, Reply::Silent));
                        Front::Refused(Refusal { silent, ..Refusal::new(BAD_CHUNK) }, end)
                    }
                }
            }
        }
    }
}

/// A line may name many keys only where that makes sense.
fn longest_line(input: &[u8]) -> usize {
    let many = [&b"get "[..], b"gets ", b"gat ", b"gats "];
    match many.iter().any(|name| input.starts_with(name)) {
        true => MAX_RETRIEVAL_LINE,
        false => MAX_LINE,
    }
}

fn meaning(line: &[u8], value_len: usize) -> Meaning<'_> {
    let mut tokens = Tokens::new(line);
    let Some(name) = tokens.next() else { return Meaning::Refused(Refusal::new(ERROR)) };
    match name {
        [b'm', code] => meta::parse(*code, tokens, value_len),
        _ => classic::parse(name, tokens, value_len),
    }
}

fn with_value<'a>(mut command: Command<'a>, value: &'a [u8]) -> Command<'a> {
    if let Command::Store(store, _) = &mut command {
        store.value = value;
    }
    command
}
