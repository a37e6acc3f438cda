//! Commands of the key space, packed into one request, and their answers.

use kv::{Place, Spec};
use resp::{Protocol, Value};

use crate::{Answer, Error};

/// Commands that are executed in their order with nothing in between, all of them or, if a crash
/// intervenes, none. A command that fails fails alone. One request of many commands costs little
/// more than one of one.
#[derive(Clone, Debug, Default)]
pub struct Batch {
    body: Vec<u8>,
    commands: usize,
    writes: bool,
}

impl Batch {
    /// An empty batch.
    pub fn new() -> Batch {
        Batch::default()
    }

    /// Adds any command that replicas execute, its name first, as a Redis client would send it.
    /// Cursors of scans are passed as they are: start with an empty one, and end when one comes
    /// back empty.
    ///
    /// # Errors
    /// [`Error::NoCommand`]; the batch is as it was then.
    pub fn command(&mut self, command: &[&[u8]]) -> Result<&mut Batch, Error> {
        let name = command.first().copied().unwrap_or_default();
        let spec = kv::lookup(name)
            .filter(|spec| spec.accepts(command.len()) && spec.place != Place::Local)
            .ok_or_else(|| Error::NoCommand(String::from_utf8_lossy(name).into_owned()))?;
        Ok(self.push(spec, command))
    }

    fn push(&mut self, spec: &Spec, command: &[&[u8]]) -> &mut Batch {
        kv::request::push_command(&mut self.body, Protocol::V3, spec, command);
        self.commands += 1;
        self.writes |= spec.place == Place::Write;
        self
    }

    fn known(&mut self, command: &[&[u8]]) -> &mut Batch {
        let spec = kv::lookup(command[0]).expect("a command of the table");
        self.push(spec, command)
    }

    /// Sets a string. Answered by `OK`.
    pub fn set(&mut self, key: &[u8], value: &[u8]) -> &mut Batch {
        self.known(&[b"SET", key, value])
    }

    /// Reads a string. Answered by it or null.
    pub fn get(&mut self, key: &[u8]) -> &mut Batch {
        self.known(&[b"GET", key])
    }

    /// Removes a key. Answered by 1 if it was there, otherwise 0.
    pub fn del(&mut self, key: &[u8]) -> &mut Batch {
        self.known(&[b"DEL", key])
    }

    /// Adds to a number. Answered by the sum.
    pub fn incr(&mut self, key: &[u8], by: i64) -> &mut Batch {
        self.known(&[b"INCRBY", key, by.to_string().as_bytes()])
    }

    /// Replaces `expected` by `new`. Answered by 1, by 0 if the key has another value, and by null
    /// if there is none.
    pub fn cas(&mut self, key: &[u8], expected: &[u8], new: &[u8]) -> &mut Batch {
        self.known(&[b"CAS", key, expected, new])
    }

    /// How many commands it has.
    pub fn len(&self) -> usize {
        self.commands
    }

    /// Whether it has none.
    pub fn is_empty(&self) -> bool {
        self.commands == 0
    }

    /// Whether a command in it may change something, so that it must be logged.
    pub fn writes(&self) -> bool {
        self.writes
    }

    /// Its bytes as a request.
    pub fn body(&self) -> &[u8] {
        &self.body
    }

    /// Removes all commands; the memory is used again.
    pub fn clear(&mut self) {
        self.body.clear();
        self.commands = 0;
        self.writes = false;
    }
}

/// The answers to a batch's commands, in their order.
#[derive(Clone, Debug)]
pub struct Replies<'a>(kv::reply::Items<'a>);

impl Answer {
    /// The answers to the commands of the batch that this answers. None at all if the answer was
    /// too long to be sent.
    pub fn replies(&self) -> Replies<'_> {
        Replies(kv::reply::items(&self.body))
    }

    /// The answer to the only command.
    pub(crate) fn reply(&self) -> Result<Value, Error> {
        self.replies().next().ok_or(Error::AnswerTooLong)?
    }
}

impl Iterator for Replies<'_> {
    type Item = Result<Value, Error>;

    fn next(&mut self) -> Option<Result<Value, Error>> {
        let item = self.0.next()?;
        Some(match Value::parse(item) {
            Ok((Value::Error(text), _)) => {
                Err(Error::Service(String::from_utf8_lossy(&text).into_owned()))
            }
            Ok((value, _)) => Ok(value),
            Err(_) => Err(Error::Garbled),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn batches_know_what_they_hold() {
        let mut batch = Batch::new();
        batch.get(b"a");
        assert!(!batch.writes());
        batch.command(&[b"hset", b"h", b"f", b"v"]).expect("a command");
        assert_eq!((batch.len(), batch.writes()), (2, true));
        for wrong in [&[&b"nosuch"[..]][..], &[b"get"], &[b"client", b"list"], &[]] {
            assert!(matches!(batch.command(wrong), Err(Error::NoCommand(_))));
        }
        assert_eq!(batch.len(), 2);
        batch.clear();
        assert!(batch.is_empty() && batch.body().is_empty() && !batch.writes());
    }
}
