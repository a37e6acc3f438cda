//! The key space: commands instead of bytes.

use std::ops::Bound;

use resp::Value;

use crate::blocks::Blocks;
use crate::{Answer, Batch, Error, Options, Session, Terms, Ticket};

/// What became of a compare-and-swap.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Swap {
    /// The value was the expected one and has been replaced.
    Swapped,
    /// The key has another value.
    Different,
    /// There is no such key.
    Absent,
}

/// A key and its string; `None` if the key holds something else, such as a list.
pub type Pair = (Vec<u8>, Option<Vec<u8>>);

/// A client of a group whose service is the key space ([`kv`]).
///
/// Each blocking method is one request of one command on the session's terms
/// ([`Options::terms`](crate::Options::terms)): it is linearizable, and if it fails,
/// [`Error::outcome`] says whether it was executed. Keys are bytes, and ordered as such.
pub struct Client {
    session: Session,
    batch: Batch,
    blocks: Blocks,
}

impl Client {
    /// See [`Session::connect`].
    ///
    /// # Errors
    /// See [`Session::connect`].
    pub fn connect<A: AsRef<str>>(addresses: &[A], options: Options) -> Result<Client, Error> {
        let session = Session::connect(addresses, options)?;
        Ok(Client { session, batch: Batch::new(), blocks: Blocks::default() })
    }

    /// The session, to poll it, fetch answers, and ask about durability and losses.
    pub fn session(&mut self) -> &mut Session {
        &mut self.session
    }

    /// Submits a batch on the session's terms; it is logged if a command in it may change
    /// something.
    ///
    /// # Errors
    /// See [`Session::submit`].
    pub fn submit(&mut self, batch: &Batch) -> Result<Ticket, Error> {
        self.submit_on(batch, self.session.terms())
    }

    /// Submits a batch on terms of its own.
    ///
    /// # Errors
    /// See [`Session::submit`].
    pub fn submit_on(&mut self, batch: &Batch, terms: Terms) -> Result<Ticket, Error> {
        let body = self.blocks.copy(batch.body());
        match batch.writes() {
            true => self.session.submit(body, terms),
            false => self.session.read(body, terms),
        }
    }

    /// See [`Session::wait`].
    ///
    /// # Errors
    /// See [`Session::wait`].
    pub fn wait(&mut self, ticket: Ticket) -> Result<Answer, Error> {
        self.session.wait(ticket)
    }

    /// Executes a batch: submits it and waits.
    ///
    /// # Errors
    /// See [`Session::wait`]. Those of single commands are among [`Answer::replies`].
    pub fn run(&mut self, batch: &Batch) -> Result<Answer, Error> {
        let ticket = self.submit(batch)?;
        self.wait(ticket)
    }

    /// Executes any command, its name first. See [`Batch::command`].
    ///
    /// # Errors
    /// [`Error::Service`] if the command fails, and those of every request.
    pub fn command(&mut self, command: &[&[u8]]) -> Result<Value, Error> {
        let mut batch = std::mem::take(&mut self.batch);
        batch.clear();
        let answer = match batch.command(command) {
            Ok(batch) => self.run(batch),
            Err(error) => Err(error),
        };
        self.batch = batch;
        answer?.reply()
    }

    /// Sets a string.
    ///
    /// # Errors
    /// Those of [`Client::command`].
    pub fn set(&mut self, key: &[u8], value: &[u8]) -> Result<(), Error> {
        self.command(&[b"SET", key, value]).map(|_| ())
    }

    /// Reads a string.
    ///
    /// # Errors
    /// Those of [`Client::command`].
    pub fn get(&mut self, key: &[u8]) -> Result<Option<Vec<u8>>, Error> {
        match self.command(&[b"GET", key])? {
            Value::Bulk(value) => Ok(Some(value)),
            Value::Null => Ok(None),
            _ => Err(Error::Garbled),
        }
    }

    /// Removes a key; whether it was there.
    ///
    /// # Errors
    /// Those of [`Client::command`].
    pub fn del(&mut self, key: &[u8]) -> Result<bool, Error> {
        match self.command(&[b"DEL", key])? {
            Value::Integer(count) => Ok(count > 0),
            _ => Err(Error::Garbled),
        }
    }

    /// Replaces `expected` by `new` if that is the key's value.
    ///
    /// # Errors
    /// Those of [`Client::command`].
    pub fn cas(&mut self, key: &[u8], expected: &[u8], new: &[u8]) -> Result<Swap, Error> {
        match self.command(&[b"CAS", key, expected, new])? {
            Value::Integer(1) => Ok(Swap::Swapped),
            Value::Integer(0) => Ok(Swap::Different),
            Value::Null => Ok(Swap::Absent),
            _ => Err(Error::Garbled),
        }
    }

    /// Adds `by` to a number, which is zero if the key is not there; the sum.
    ///
    /// # Errors
    /// Those of [`Client::command`].
    pub fn incr(&mut self, key: &[u8], by: i64) -> Result<i64, Error> {
        match self.command(&[b"INCRBY", key, by.to_string().as_bytes()])? {
            Value::Integer(sum) => Ok(sum),
            _ => Err(Error::Garbled),
        }
    }

    /// The first `limit` keys between two bounds, in order, with their strings.
    ///
    /// # Errors
    /// Those of [`Client::command`]; [`Error::AnswerTooLong`] beyond 64 MiB.
    pub fn range(
        &mut self,
        low: Bound<&[u8]>,
        high: Bound<&[u8]>,
        limit: usize,
    ) -> Result<Vec<Pair>, Error> {
        let (low, high) = (bound(low, b"-"), bound(high, b"+"));
        let limit = limit.min(i64::MAX as usize).to_string();
        let limit = limit.as_bytes();
        let found = self.command(&[b"KRANGE", &low, &high, b"LIMIT", limit, b"WITHVALUES"])?;
        let Value::Array(pairs) = found else { return Err(Error::Garbled) };
        pairs.into_iter().map(|found| pair(found).ok_or(Error::Garbled)).collect()
    }
}

/// A bound as KRANGE takes it.
fn bound(bound: Bound<&[u8]>, open: &[u8]) -> Vec<u8> {
    match bound {
        Bound::Included(key) => [b"[", key].concat(),
        Bound::Excluded(key) => [b"(", key].concat(),
        Bound::Unbounded => open.to_vec(),
    }
}

fn pair(value: Value) -> Option<Pair> {
    let Value::Array(pair) = value else { return None };
    match <[Value; 2]>::try_from(pair).ok()? {
        [Value::Bulk(key), Value::Bulk(value)] => Some((key, Some(value))),
        [Value::Bulk(key), Value::Null] => Some((key, None)),
        _ => None,
    }
}
