//! The bytes of a request: a batch of items, executed in order and answered one by one.
//!
//! All numbers are little-endian. An item starts with one byte: its kind in the low four bits, and
//! bit 7 set where the replies are to be RESP3.
//!
//! ```text
//! command      kind 1, id u16, count u32, count x (length u32, bytes); the name is not included
//! transaction  kind 2, count u32, count x (length u32, key, version u64), length u32, items
//! versions     kind 3, count u32, count x (length u32, key)
//! sweep        kind 4
//! literal      kind 5, length u32, bytes
//! memcached    kind 6, an operation (items/operation.rs)
//! ```

use resp::Protocol;

use crate::items::{Operation, push_operation};
use crate::table::Spec;

const COMMAND: u8 = 1;
const TRANSACTION: u8 = 2;
const VERSIONS: u8 = 3;
const SWEEP: u8 = 4;
const LITERAL: u8 = 5;
const MEMCACHED: u8 = 6;
const KIND: u8 = 0x0f;
const RESP3: u8 = 0x80;

/// Appends a command. `argv` is the client's whole command, its name included. Answered by the
/// command's reply.
///
/// # Panics
/// If `argv` is empty, or 4 GiB or longer in any respect.
pub fn push_command(out: &mut Vec<u8>, protocol: Protocol, spec: &Spec, argv: &[&[u8]]) {
    let args = &argv[1..];
    out.reserve(7 + args.iter().map(|arg| 4 + arg.len()).sum::<usize>());
    out.push(kind(COMMAND, protocol));
    out.extend_from_slice(&spec.id.to_le_bytes());
    push_strings(out, args.iter().copied());
}

/// Appends a transaction: `commands` holds items made by [`push_command`] and [`push_literal`]. If
/// each watched key still has the version given (from [`push_versions`]), all of them are executed
/// with nothing in between, and answered by an array of their replies; if not, nothing is executed,
/// and the answer is the null array.
///
/// # Panics
/// If anything is 4 GiB or longer.
pub fn push_transaction(
    out: &mut Vec<u8>,
    protocol: Protocol,
    watches: &[(&[u8], u64)],
    commands: &[u8],
) {
    out.push(kind(TRANSACTION, protocol));
    push_length(out, watches.len());
    for (key, version) in watches {
        push_string(out, key);
        out.extend_from_slice(&version.to_le_bytes());
    }
    push_string(out, commands);
}

/// Appends a read of the versions of `keys`, for a WATCH. Answered by a body for
/// [`reply::versions`](crate::reply::versions), not by RESP.
///
/// # Panics
/// If anything is 4 GiB or longer.
pub fn push_versions(out: &mut Vec<u8>, keys: &[&[u8]]) {
    out.push(VERSIONS);
    push_strings(out, keys.iter().copied());
}

/// Appends a removal of keys whose time has come. Answered by `+OK`.
pub fn push_sweep(out: &mut Vec<u8>) {
    out.push(SWEEP);
}

/// Appends an item that does nothing and is answered by `reply`, which must be one RESP reply: the
/// place in a transaction of a command that the server answers itself.
///
/// # Panics
/// If the reply is 4 GiB or longer.
pub fn push_literal(out: &mut Vec<u8>, reply: &[u8]) {
    out.push(LITERAL);
    push_string(out, reply);
}

/// Appends a memcached command that concerns the state (see [`is_write`](crate::items::is_write)).
/// Answered by a body for [`Answer`](crate::items::Answer), not by RESP.
///
/// # Panics
/// If the command does not concern the state, or is 4 GiB or longer.
pub fn push_memcached(out: &mut Vec<u8>, command: &memcached::Command<'_>) {
    out.push(MEMCACHED);
    push_operation(out, command);
}

fn kind(kind: u8, protocol: Protocol) -> u8 {
    match protocol {
        Protocol::V2 => kind,
        Protocol::V3 => kind | RESP3,
    }
}

fn push_length(out: &mut Vec<u8>, length: usize) {
    let length = u32::try_from(length).expect("requests are far below 4 GiB");
    out.extend_from_slice(&length.to_le_bytes());
}

pub(crate) fn push_string(out: &mut Vec<u8>, bytes: &[u8]) {
    push_length(out, bytes.len());
    out.extend_from_slice(bytes);
}

pub(crate) fn push_strings<'a>(out: &mut Vec<u8>, strings: impl Iterator<Item = &'a [u8]> + Clone) {
    push_length(out, strings.clone().count());
    for string in strings {
        push_string(out, string);
    }
}

/// The bytes are not a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Malformed;

/// One item, with its strings still packed.
#[derive(Clone, Debug)]
pub(crate) enum Item<'a> {
    Command { id: u16, args: Strings<'a> },
    Transaction { watches: Watches<'a>, commands: &'a [u8] },
    Versions(Strings<'a>),
    Sweep,
    Literal(&'a [u8]),
    Memcached(Operation<'a>),
}

/// Strings one after the other; known to be whole.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Strings<'a>(Reader<'a>);

impl<'a> Iterator for Strings<'a> {
    type Item = &'a [u8];

    #[inline]
    fn next(&mut self) -> Option<&'a [u8]> {
        self.0.string().ok()
    }
}

/// Watched keys and versions; known to be whole.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Watches<'a>(Reader<'a>);

impl<'a> Iterator for Watches<'a> {
    type Item = (&'a [u8], u64);

    fn next(&mut self) -> Option<(&'a [u8], u64)> {
        Some((self.0.string().ok()?, self.0.u64().ok()?))
    }
}

/// Takes a request, or a transaction's commands, apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    pub(crate) fn new(bytes: &'a [u8]) -> Reader<'a> {
        Reader(bytes)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    #[inline]
    pub(crate) fn item(&mut self) -> Result<(Protocol, Item<'a>), Malformed> {
        let first = self.array::<1>()?[0];
        let protocol = if first & RESP3 == 0 { Protocol::V2 } else { Protocol::V3 };
        let item = match first & KIND {
            COMMAND => {
                let id = u16::from_le_bytes(self.array()?);
                Item::Command { id, args: self.strings()? }
            }
            TRANSACTION => {
                let watches = self.watches()?;
                Item::Transaction { watches, commands: self.string()? }
            }
            VERSIONS => Item::Versions(self.strings()?),
            SWEEP => Item::Sweep,
            LITERAL => Item::Literal(self.string()?),
            MEMCACHED => Item::Memcached(Operation::read(self)?),
            _ => return Err(Malformed),
        };
        Ok((protocol, item))
    }

    #[inline]
    fn bytes(&mut self, length: usize) -> Result<&'a [u8], Malformed> {
        let (bytes, rest) = self.0.split_at_checked(length).ok_or(Malformed)?;
        self.0 = rest;
        Ok(bytes)
    }

    #[inline]
    pub(crate) fn array<const N: usize>(&mut self) -> Result<[u8; N], Malformed> {
        let (bytes, rest) = self.0.split_first_chunk::<N>().ok_or(Malformed)?;
        self.0 = rest;
        Ok(*bytes)
    }

    #[inline]
    fn length(&mut self) -> Result<usize, Malformed> {
        Ok(u32::from_le_bytes(self.array()?) as usize)
    }

    pub(crate) fn u64(&mut self) -> Result<u64, Malformed> {
        Ok(u64::from_le_bytes(self.array()?))
    }

    #[inline]
    pub(crate) fn string(&mut self) -> Result<&'a [u8], Malformed> {
        let length = self.length()?;
        self.bytes(length)
    }

    #[inline]
    pub(crate) fn strings(&mut self) -> Result<Strings<'a>, Malformed> {
        let count = self.length()?;
        let start = self.0;
        for _ in 0..count {
            self.string()?;
        }
        Ok(Strings(Reader(&start[..start.len() - self.0.len()])))
    }

    fn watches(&mut self) -> Result<Watches<'a>, Malformed> {
        let count = self.length()?;
        let start = self.0;
        for _ in 0..count {
            self.string()?;
            self.u64()?;
        }
        Ok(Watches(Reader(&start[..start.len() - self.0.len()])))
    }
}
