//! A client's connection: its input, and its answers in the order of its commands.

use std::collections::BTreeMap;
use std::io::{self, Read, Write};

use smr::{OpNumber, Viewstamp};

use crate::attached::Link;
use crate::face::ConnectionId;
use crate::poll::Interest;

/// Answers that wait to be sent beyond this many bytes stop the reading of a connection's commands.
pub(crate) const OUTPUT_SOFT: usize = 1 << 20;
/// Unanswered commands of one connection beyond this many stop the reading of more.
const MAX_UNANSWERED: u64 = 16 << 10;
/// So many commands are always taken, however large the answers have been.
const MIN_UNANSWERED: u64 = 4;
/// What is expected of a connection's first answers, in bytes.
const FIRST_ESTIMATE: usize = 8 << 10;
/// Input that cannot be taken yet is read up to this many bytes.
const INPUT_AHEAD: usize = 64 << 10;
/// Buffers above this many bytes are given back when they are empty.
const KEEP_BYTES: usize = 16 << 10;

/// Why the commands of a connection are not taken at the moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stall {
    /// A write waits for the reads before it.
    Reads,
    /// The batch is full and the window too.
    Full,
    /// The face waits for an answer of this connection.
    Face,
    /// The client does not fetch its answers, or has asked too much at a time.
    Output,
}

/// Whether a crash of the group has taken back what the connection has seen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Loss {
    None,
    /// Everything above this; the next command is answered with that.
    Untold(Viewstamp),
    /// The connection was told and ends.
    Told,
}

/// The order of a connection's answers. Commands are numbered as they are taken; what is answered
/// out of turn is kept aside.
#[derive(Debug)]
pub(crate) struct Answers {
    pub place: u32,
    pub generation: u32,
    pub unanswered_writes: u32,
    pub unanswered_reads: u32,
    pub stall: Option<Stall>,
    /// Answers wait until what they tell of is durable, though the group's do not.
    pub durable: bool,
    /// The last operation that an answer has told of.
    pub seen: OpNumber,
    /// The connection's last answered write.
    pub written: Viewstamp,
    pub loss: Loss,
    taken: u64,
    answered: u64,
    early: BTreeMap<u64, Vec<u8>>,
    early_bytes: usize,
    /// About how many bytes an answer of this connection has: what the unanswered will bring.
    estimate: usize,
    output: Vec<u8>,
    sent: usize,
}

impl Answers {
    pub fn new(place: u32, generation: u32) -> Answers {
        Answers {
            place,
            generation,
            unanswered_writes: 0,
            unanswered_reads: 0,
            stall: None,
            durable: false,
            seen: OpNumber(0),
            written: Viewstamp::default(),
            loss: Loss::None,
            taken: 0,
            answered: 0,
            early: BTreeMap::new(),
            early_bytes: 0,
            estimate: FIRST_ESTIMATE,
            output: Vec::new(),
            sent: 0,
        }
    }

    /// Numbers a command that will be answered later.
    pub fn take(&mut self) -> u64 {
        self.taken += 1;
        self.taken - 1
    }

    /// How many commands were taken.
    #[cfg(test)]
    pub fn taken(&self) -> u64 {
        self.taken
    }

    pub fn answer_now(&mut self, write: impl FnOnce(&mut Vec<u8>)) {
        let number = self.take();
        self.answer(number, write);
    }

    /// Answers a command: `write` appends the answer.
    #[inline]
    pub fn answer(&mut self, number: u64, write: impl FnOnce(&mut Vec<u8>)) {
        if number != self.answered {
            let mut early = Vec::new();
            write(&mut early);
            self.learn(early.len());
            self.early_bytes += early.len();
            self.early.insert(number, early);
            return;
        }
        let before = self.output.len();
        write(&mut self.output);
        self.learn(self.output.len() - before);
        self.answered += 1;
        while let Some(early) = self.early.first_entry() {
            if *early.key() != self.answered {
                break;
            }
            let early = early.remove();
            self.early_bytes -= early.len();
            self.output.extend_from_slice(&early);
            self.answered += 1;
        }
    }

    /// Writes those answers anew that wait for earlier ones: what they tell of may be lost.
    pub fn retract_early(&mut self, mut write: impl FnMut(&mut Vec<u8>)) {
        // An empty one is of a client that does not want it.
        for early in self.early.values_mut().filter(|early| !early.is_empty()) {
            self.early_bytes -= early.len();
            early.clear();
            write(early);
            self.early_bytes += early.len();
        }
    }

    /// Follows the sizes of answers: upwards at once, downwards by and by.
    #[inline]
    fn learn(&mut self, bytes: usize) {
        self.estimate = bytes.max(self.estimate - self.estimate / 16);
    }

    /// About how many bytes the next answer will have.
    pub fn estimate(&self) -> usize {
        self.estimate
    }

    pub fn unanswered(&self) -> u64 {
        self.taken - self.answered
    }

    /// Bytes of answers that are not sent.
    pub fn pending(&self) -> usize {
        self.output.len() - self.sent + self.early_bytes
    }

    pub fn sendable(&self) -> bool {
        self.sent < self.output.len()
    }

    fn overloaded(&self) -> bool {
        let unanswered = self.unanswered();
        let coming = unanswered as usize * self.estimate;
        self.pending() > OUTPUT_SOFT
            || unanswered > MAX_UNANSWERED
            || (coming > OUTPUT_SOFT && unanswered >= MIN_UNANSWERED)
    }
}

/// A connection.
pub(crate) struct Client<S> {
    pub stream: Link,
    pub id: ConnectionId,
    pub session: S,
    pub answers: Answers,
    /// Bytes that were read and not taken.
    pub input: Vec<u8>,
    /// How many more bytes the command at the front of the input is known to need.
    pub missing: usize,
    /// Nothing more is taken; closed once everything is answered and sent.
    pub closing: bool,
    /// The client sends no more; what it has sent is still taken.
    pub ended: bool,
    /// It is in the list of connections whose commands wait.
    pub listed: bool,
    pub interest: Interest,
    /// It is in the list of connections to be flushed.
    pub dirty: bool,
    /// Everything is sent and the sending half is closed; what the client still sends is dropped
    /// until it closes, too: closed at once, the last answers might not reach it.
    pub draining: bool,
}

/// What a read brought.
pub(crate) enum Arrival {
    /// This many bytes, at the front of the shared buffer.
    Shared(usize),
    /// Bytes that were appended to the connection's own input.
    Own,
    Nothing,
    End,
}

impl<S> Client<S> {
    /// One read: into `shared` if nothing is left over from before, or else behind what is.
    pub fn read(&mut self, shared: &mut [u8]) -> io::Result<Arrival> {
        let read = match &mut self.stream {
            Link::Socket(stream) if self.input.is_empty() && self.missing <= shared.len() => {
                stream.read(shared).map(|n| if n > 0 { Arrival::Shared(n) } else { Arrival::End })
            }
            link => {
                let space = self.missing.clamp(INPUT_AHEAD, 1 << 20);
                let read = link.append(&mut self.input, space);
                read.map(|n| if n > 0 { Arrival::Own } else { Arrival::End })
            }
        };
        match read {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(Arrival::Nothing),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => Ok(Arrival::Nothing),
            read => read,
        }
    }

    /// Whether commands may be taken as far as this connection goes.
    pub fn open_for_commands(&mut self) -> bool {
        if self.closing {
            return false;
        }
        if self.answers.overloaded() {
            self.answers.stall = Some(Stall::Output);
            return false;
        }
        true
    }

    /// Whether the reason for the stall has gone, `full` saying whether the batches are.
    pub fn may_resume(&self, full: bool) -> bool {
        match self.answers.stall {
            None => false,
            Some(Stall::Reads) => self.answers.unanswered_reads == 0,
            Some(Stall::Full) => !full,
            // Which of the answers the face waits for is its own affair.
            Some(Stall::Face) => {
                self.answers.unanswered_reads + self.answers.unanswered_writes == 0
            }
            Some(Stall::Output) => !self.answers.overloaded(),
        }
    }

    /// Forgets the first `count` bytes of the input.
    pub fn consume(&mut self, count: usize) {
        if count == self.input.len() {
            self.input.clear();
            if self.input.capacity() > KEEP_BYTES {
                self.input = Vec::new();
            }
        } else if count > 0 {
            self.input.drain(..count);
        }
    }

    /// Sends what is there. Returns whether the connection lives.
    pub fn flush(&mut self) -> bool {
        let answers = &mut self.answers;
        while answers.sent < answers.output.len() {
            match self.stream.write(&answers.output[answers.sent..]) {
                Ok(0) => return false,
                Ok(count) => answers.sent += count,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(_) => return false,
            }
        }
        if answers.sent == answers.output.len() {
            answers.output.clear();
            answers.sent = 0;
            if answers.output.capacity() > KEEP_BYTES * 4 {
                answers.output = Vec::new();
            }
        } else if answers.sent > OUTPUT_SOFT {
            answers.output.drain(..answers.sent);
            answers.sent = 0;
        }
        true
    }

    /// Whether it can be closed: nothing more is taken and nothing is owed.
    pub fn finished(&self) -> bool {
        let over = self.closing || (self.ended && self.answers.stall.is_none());
        over && self.answers.unanswered() == 0 && !self.answers.sendable()
    }

    /// Begins to drain if that is called for. Returns whether the connection stays open.
    pub fn drain(&mut self) -> bool {
        let told = self.answers.loss == Loss::Told && !self.ended;
        if !self.draining && told && self.stream.shutdown().is_ok() {
            self.draining = true;
            self.forget_input();
        }
        self.draining
    }

    /// What was read is not taken any more.
    pub fn forget_input(&mut self) {
        self.consume(self.input.len());
        self.missing = 0;
    }

    /// What to wait for.
    pub fn wanted(&self) -> Interest {
        let stalled = self.answers.stall.is_some();
        let ahead = if stalled { INPUT_AHEAD } else { usize::MAX };
        Interest {
            read: self.draining || !self.closing && !self.ended && self.input.len() < ahead,
            write: self.answers.sendable(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_leave_in_the_order_of_their_commands() {
        let mut answers = Answers::new(0, 1);
        let first = answers.take();
        answers.answer_now(|out| out.push(b'2'));
        let third = answers.take();
        answers.answer_now(|out| out.push(b'4'));
        answers.answer(third, |out| out.push(b'3'));
        assert!(!answers.sendable());
        assert_eq!((answers.unanswered(), answers.pending()), (4, 3));
        answers.answer(first, |out| out.push(b'1'));
        assert_eq!(answers.output, b"1234");
        assert_eq!((answers.unanswered(), answers.pending()), (0, 4));
        answers.answer_now(|out| out.push(b'5'));
        assert_eq!(answers.output, b"12345");
    }
}
