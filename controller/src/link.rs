//! The watch's connection to its own controller's face, which passes on to the group what it is
//! asked. Never waits.

use std::collections::VecDeque;
use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};

use crate::text::{Command, ParseError, Shown, read_all, read_group};
use smr::GroupId;

use crate::config::Group;

/// Commands without an answer; further ones are not taken.
const WINDOW: usize = 64;

/// What the group has answered.
#[derive(Debug)]
pub enum Answer {
    /// To `show`.
    All(Shown),
    /// To a command about a group, whatever it asked for: the group as it is now.
    Group(GroupId, Group),
    /// To a command about a sequencer.
    Done,
    /// The command was not executed, or perhaps not.
    Refused(String),
}

/// The connection.
#[derive(Debug)]
pub struct Link {
    to: SocketAddr,
    stream: Option<TcpStream>,
    output: Vec<u8>,
    input: Vec<u8>,
    /// What has not been answered.
    asked: VecDeque<Asked>,
}

/// What was asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Asked {
    /// For everything.
    Show,
    /// For something else.
    Change,
}

impl Link {
    /// A connection that will be made to this address.
    pub fn new(to: SocketAddr) -> Link {
        let (output, input) = (Vec::new(), Vec::new());
        Link { to, stream: None, output, input, asked: VecDeque::new() }
    }

    /// The socket, if there is a connection.
    pub fn stream(&self) -> Option<&TcpStream> {
        self.stream.as_ref()
    }

    /// Whether `show` was asked and is not answered.
    pub fn shows(&self) -> bool {
        self.asked.contains(&Asked::Show)
    }

    /// Asks something of the group. Returns whether it could be asked.
    pub fn ask(&mut self, command: &Command) -> bool {
        if self.asked.len() >= WINDOW || !self.connect() {
            return false;
        }
        self.output.extend_from_slice(format!("{command}\n").as_bytes());
        self.asked.push_back(if command.reads() { Asked::Show } else { Asked::Change });
        self.flush();
        self.stream.is_some()
    }

    fn connect(&mut self) -> bool {
        if self.stream.is_none() {
            // Over loopback this is done at once, or refused.
            let stream = TcpStream::connect(self.to).and_then(|stream| {
                stream.set_nodelay(true)?;
                stream.set_nonblocking(true)?;
                Ok(stream)
            });
            self.stream = stream.ok();
        }
        self.stream.is_some()
    }

    fn flush(&mut self) {
        let Some(stream) = &mut self.stream else { return };
        match stream.write(&self.output) {
            Ok(count) => drop(self.output.drain(..count)),
            Err(error) if error.kind() == ErrorKind::WouldBlock => {}
            Err(_) => self.close(),
        }
    }

    /// Drops the connection; what was not answered never will be.
    pub fn close(&mut self) {
        *self = Link::new(self.to);
    }

    /// Takes the answers that have come.
    ///
    /// # Errors
    /// If an answer makes no sense: it is of another program.
    pub fn answers(&mut self) -> Result<Vec<Answer>, ParseError> {
        self.flush();
        let mut chunk = [0; 1 << 16];
        while let Some(stream) = &mut self.stream {
            match stream.read(&mut chunk) {
                Ok(0) => self.close(),
                Ok(count) => self.input.extend_from_slice(&chunk[..count]),
                Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                Err(_) => self.close(),
            }
        }
        let mut answers = Vec::new();
        while let Some(end) = self.input.iter().position(|&byte| byte == b'\n') {
            let line = String::from_utf8_lossy(&self.input[..end]).into_owned();
            self.input.drain(..=end);
            self.asked.pop_front();
            answers.push(read(&line)?);
        }
        Ok(answers)
    }
}

fn read(line: &str) -> Result<Answer, ParseError> {
    Ok(match line.split_once(' ') {
        Some(("all", rest)) => Answer::All(read_all(rest)?),
        Some(("group", rest)) => {
            let (id, group) = read_group(rest)?;
            Answer::Group(id, group)
        }
        Some(("error", why)) => Answer::Refused(why.to_owned()),
        _ => Answer::Done,
    })
}
