//! Streams of commands in files, to be played again. A tape is the eight letters `OBTAPE01` and
//! then commands in the binary protocol.

use std::fmt;
use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::Path;

use smr::{Context, OpNumber, StateMachine};

use crate::engine::{Engine, mix};
use crate::frame::{self, Front};
use crate::order::Command;

const MAGIC: &[u8; 8] = b"OBTAPE01";

/// Why there is no tape.
#[derive(Debug)]
pub enum TapeError {
    /// The file cannot be read or written.
    Io(io::Error),
    /// The file is something else.
    NotATape,
    /// There is no command at this byte of the file; it may have been cut off.
    Damaged(usize),
}

impl fmt::Display for TapeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            TapeError::Io(error) => error.fmt(f),
            TapeError::NotATape => f.write_str("this is not a tape of commands"),
            TapeError::Damaged(place) => write!(f, "there is no command at byte {place}"),
        }
    }
}

impl std::error::Error for TapeError {}

impl From<io::Error> for TapeError {
    fn from(error: io::Error) -> TapeError {
        TapeError::Io(error)
    }
}

/// A stream of commands, all of which are known to make sense.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tape {
    bytes: Vec<u8>,
}

impl Tape {
    /// Records commands.
    pub fn record(commands: impl Iterator<Item = Command>) -> Tape {
        let mut bytes = Vec::new();
        commands.for_each(|command| frame::push_command(&mut bytes, &command));
        Tape { bytes }
    }

    /// Writes a file.
    ///
    /// # Errors
    /// [`TapeError::Io`].
    pub fn save(&self, path: &Path) -> Result<(), TapeError> {
        let mut file = BufWriter::new(File::create(path)?);
        file.write_all(MAGIC)?;
        file.write_all(&self.bytes)?;
        Ok(file.flush()?)
    }

    /// Reads a file.
    ///
    /// # Errors
    /// If it cannot be read, is no tape, or has something else than commands on it.
    pub fn load(path: &Path) -> Result<Tape, TapeError> {
        Tape::from_bytes(&std::fs::read(path)?)
    }

    /// Reads what a file holds.
    ///
    /// # Errors
    /// As [`Tape::load`].
    pub fn from_bytes(file: &[u8]) -> Result<Tape, TapeError> {
        let bytes = file.strip_prefix(MAGIC).ok_or(TapeError::NotATape)?;
        let mut at = 0;
        while at < bytes.len() {
            let Front::Command(_, length) = frame::front(&bytes[at..]) else {
                return Err(TapeError::Damaged(MAGIC.len() + at));
            };
            at += length;
        }
        Ok(Tape { bytes: bytes.to_vec() })
    }

    /// The commands as bytes of the binary protocol, `count` (at least 1) at a time.
    pub fn batches(&self, count: usize) -> impl Iterator<Item = &[u8]> {
        let mut rest = &self.bytes[..];
        std::iter::from_fn(move || {
            let mut length = 0;
            for _ in 0..count {
                let Front::Command(_, more) = frame::front(&rest[length..]) else { break };
                length += more;
            }
            let (batch, behind) = rest.split_at(length);
            rest = behind;
            (length > 0).then_some(batch)
        })
    }

    /// How many commands there are.
    pub fn count(&self) -> usize {
        self.batches(1).count()
    }

    /// Executes all commands, `batch` at a time, and returns a digest of the answers.
    pub fn play(&self, engine: &mut Engine, batch: usize) -> Transcript {
        let mut transcript = Transcript::default();
        let mut reply = Vec::new();
        for (request, number) in self.batches(batch).zip(1..) {
            reply.clear();
            let context = Context { position: OpNumber(number), index: 0, unix_ms: 0 };
            engine.apply(context, request, &mut reply);
            frame::answers(&reply).for_each(|answer| transcript.add(answer));
        }
        transcript
    }
}

/// A digest of answers, in their order, however they were batched.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Transcript(pub u64);

impl Transcript {
    /// Adds a whole answer.
    pub fn add(&mut self, answer: &[u8]) {
        let (words, rest) = answer.as_chunks::<8>();
        let mut last = [0; 8];
        last[..rest.len()].copy_from_slice(rest);
        for word in words.iter().chain([&last]) {
            self.0 = mix(&[self.0, u64::from_le_bytes(*word)]);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::feed::{Feed, Shape};

    #[test]
    fn a_tape_plays_the_same_however_it_is_cut() {
        let mut feed = Feed::new(Shape::default());
        let tape = Tape::record(feed.by_ref().take(5_000));
        assert_eq!(tape.count(), 5_000);
        let mut whole = Engine::default();
        let transcript = tape.play(&mut whole, usize::MAX);
        for batch in [1, 7, 128] {
            let mut engine = Engine::default();
            assert_eq!(tape.play(&mut engine, batch), transcript);
            assert_eq!(engine.digest(), whole.digest());
        }
        assert_eq!(feed.engine().digest(), whole.digest());
    }

    #[test]
    fn what_is_no_tape_is_refused() {
        let tape = Tape::record(Feed::new(Shape::default()).take(10));
        let file = [&MAGIC[..], &tape.bytes].concat();
        assert_eq!(Tape::from_bytes(&file).expect("whole"), tape);
        assert!(matches!(Tape::from_bytes(b"OBTAPE02"), Err(TapeError::NotATape)));
        let cut = Tape::from_bytes(&file[..file.len() - 1]);
        assert!(matches!(cut, Err(TapeError::Damaged(_))), "{cut:?}");
    }
}
