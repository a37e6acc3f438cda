//! The body that answers a memcached command: an outcome (one byte), then what was found or made.
//!
//! Of each item: marks (one byte: 1 won, 2 stale, 4 sent, 8 expires), flags u32, cas u64, seconds
//! left u64, size u32, key length u32, key (only where several were asked for), value length u32,
//! value. Little-endian.

use memcached::write::Item;

/// What became of a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// It was executed. Of `get` and its kind also if nothing was found.
    Done = 0,
    /// No such item.
    NotFound = 1,
    /// It has another cas number.
    Exists = 2,
    /// The mode's condition was not met.
    NotStored = 3,
    /// The value would become larger than [`memcached::MAX_VALUE_LEN`].
    TooLarge = 4,
    /// The value is not a decimal number of 64 bits.
    NotNumeric = 5,
    /// The key holds a collection.
    WrongType = 6,
}

const OUTCOMES: [Outcome; 7] = [
    Outcome::Done,
    Outcome::NotFound,
    Outcome::Exists,
    Outcome::NotStored,
    Outcome::TooLarge,
    Outcome::NotNumeric,
    Outcome::WrongType,
];

const WON: u8 = 1;
const STALE: u8 = 2;
const SENT: u8 = 4;
const EXPIRES: u8 = 8;

pub(crate) fn push_outcome(reply: &mut Vec<u8>, outcome: Outcome) {
    reply.push(outcome as u8);
}

/// Appends an item, with its key where several were asked for.
#[inline]
pub(crate) fn push_item(reply: &mut Vec<u8>, key: &[u8], item: &Item<'_>) {
    reply.reserve(33 + key.len() + item.value.len());
    let marks = [(item.won, WON), (item.stale, STALE), (item.sent, SENT)];
    let marks = marks.iter().filter(|(set, _)| *set).fold(0, |marks, (_, mark)| marks | mark);
    reply.push(marks | if item.ttl.is_some() { EXPIRES } else { 0 });
    reply.extend_from_slice(&item.flags.to_le_bytes());
    reply.extend_from_slice(&item.cas.to_le_bytes());
    reply.extend_from_slice(&item.ttl.unwrap_or(0).to_le_bytes());
    reply.extend_from_slice(&(item.size as u32).to_le_bytes());
    for bytes in [key, item.value] {
        reply.extend_from_slice(&(bytes.len() as u32).to_le_bytes());
        reply.extend_from_slice(bytes);
    }
}

/// An answer taken apart.
#[derive(Clone, Copy, Debug)]
pub struct Answer<'a> {
    /// What became of the command.
    pub outcome: Outcome,
    items: &'a [u8],
}

/// An item in an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Found<'a> {
    /// Its key, if several were asked for.
    pub key: &'a [u8],
    /// The item.
    pub item: Item<'a>,
}

impl<'a> Answer<'a> {
    /// Takes the body apart that answers a memcached command; `None` if it is something else.
    #[inline]
    pub fn parse(body: &'a [u8]) -> Option<Answer<'a>> {
        let (&outcome, items) = body.split_first()?;
        Some(Answer { outcome: *OUTCOMES.get(usize::from(outcome))?, items })
    }
}

impl<'a> Iterator for Answer<'a> {
    type Item = Found<'a>;

    #[inline]
    fn next(&mut self) -> Option<Found<'a>> {
        let mut from = Reader(self.items);
        let [marks] = from.array()?;
        let flags = u32::from_le_bytes(from.array()?);
        let cas = u64::from_le_bytes(from.array()?);
        let ttl = u64::from_le_bytes(from.array()?);
        let size = u32::from_le_bytes(from.array()?) as usize;
        let (key, value) = (from.string()?, from.string()?);
        self.items = from.0;
        let item = Item {
            flags,
            cas,
            ttl: (marks & EXPIRES != 0).then_some(ttl),
            size,
            value,
            won: marks & WON != 0,
            stale: marks & STALE != 0,
            sent: marks & SENT != 0,
        };
        Some(Found { key, item })
    }
}

struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    #[inline]
    fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (bytes, rest) = self.0.split_first_chunk::<N>()?;
        self.0 = rest;
        Some(*bytes)
    }

    #[inline]
    fn string(&mut self) -> Option<&'a [u8]> {
        let length = u32::from_le_bytes(self.array()?) as usize;
        let (bytes, rest) = self.0.split_at_checked(length)?;
        self.0 = rest;
        Some(bytes)
    }
}
