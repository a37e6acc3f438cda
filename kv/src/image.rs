//! The bytes of an entry of a tree, in checkpoints and in the logs of a shared store.
//!
//! A tag, then: of `KEY` and `FIELD`, which set an entry of `Keys` or `Fields`, key length u32,
//! key, stamp u64, expire_ms u64, value length u32, value; of `NO_KEY` and `NO_FIELD`, which remove
//! one, key length u32, key; of `FLUSH_AT`, the time of the next flush u64; of `FLUSH`, which
//! removes everything, nothing. Little-endian. `Expiry` follows from `Keys` and is not written.

use masstree::Guard;
use smr::BadCheckpoint;

use crate::items::Facts;
use crate::store::{Space, Store};
use crate::value::{Head, Header, Kind, Value, ids_of, value};

/// A checkpoint's totals, which precede everything else there (checkpoint.rs).
pub(crate) const TOTALS: u8 = 1;
const KEY: u8 = 2;
const FIELD: u8 = 3;
const FLUSH_AT: u8 = 4;
const NO_KEY: u8 = 5;
const NO_FIELD: u8 = 6;
const FLUSH: u8 = 7;

/// Nothing that is counted gets further; versions have 56 bits.
pub(crate) const LARGEST_COUNT: u64 = 1 << 55;

/// Appends an entry of `Keys` or `Fields`, or its removal.
#[inline]
pub(crate) fn push(out: &mut Vec<u8>, space: Space, key: &[u8], image: Option<&Value>) {
    let tag = match (space, image) {
        (Space::Keys, Some(_)) => KEY,
        (Space::Keys, None) => NO_KEY,
        (_, Some(_)) => FIELD,
        (_, None) => NO_FIELD,
    };
    out.reserve(25 + key.len() + image.map_or(0, |image| image.slice.len()));
    out.push(tag);
    out.extend_from_slice(&(key.len() as u32).to_le_bytes());
    out.extend_from_slice(key);
    if let Some(image) = image {
        let header = &image.header.header;
        out.extend_from_slice(&header.stamp().to_le_bytes());
        out.extend_from_slice(&header.expire_ms.to_le_bytes());
        out.extend_from_slice(&(image.slice.len() as u32).to_le_bytes());
        out.extend_from_slice(&image.slice);
    }
}

/// Appends that everything was removed.
pub(crate) fn push_flush(out: &mut Vec<u8>) {
    out.push(FLUSH);
}

/// Appends when everything is to be removed, in milliseconds since 1970; 0 for never.
pub(crate) fn push_flush_at(out: &mut Vec<u8>, flush_ms: u64) {
    out.push(FLUSH_AT);
    out.extend_from_slice(&flush_ms.to_le_bytes());
}

/// Takes such bytes apart.
pub(crate) struct Reader<'a>(pub &'a [u8]);

impl<'a> Reader<'a> {
    fn bytes(&mut self, len: usize) -> Result<&'a [u8], BadCheckpoint> {
        let (bytes, rest) = self.0.split_at_checked(len).ok_or(BadCheckpoint)?;
        self.0 = rest;
        Ok(bytes)
    }

    pub(crate) fn array<const N: usize>(&mut self) -> Result<[u8; N], BadCheckpoint> {
        let (bytes, rest) = self.0.split_first_chunk::<N>().ok_or(BadCheckpoint)?;
        self.0 = rest;
        Ok(*bytes)
    }

    pub(crate) fn u64(&mut self) -> Result<u64, BadCheckpoint> {
        Ok(u64::from_le_bytes(self.array()?))
    }

    fn string(&mut self) -> Result<&'a [u8], BadCheckpoint> {
        let len = u32::from_le_bytes(self.array()?);
        self.bytes(len as usize)
    }

    /// What follows the tag that was read last.
    #[inline]
    pub(crate) fn record(&mut self, tag: u8) -> Result<Record<'a>, BadCheckpoint> {
        let space = match tag {
            KEY | NO_KEY => Space::Keys,
            FIELD | NO_FIELD => Space::Fields,
            FLUSH_AT => return self.u64().map(Record::FlushAt),
            FLUSH => return Ok(Record::Flush),
            _ => return Err(BadCheckpoint),
        };
        let key = self.string()?;
        let longest = crate::MAX_KEY_LEN + if space == Space::Keys { 0 } else { 16 };
        let least = if space == Space::Keys { 0 } else { 8 };
        if !(least..=longest).contains(&key.len()) {
            return Err(BadCheckpoint);
        }
        if matches!(tag, NO_KEY | NO_FIELD) {
            return Ok(Record::Entry(Entry { space, key, image: None }));
        }
        let header = Header::from_stamp(self.u64()?, self.u64()?).ok_or(BadCheckpoint)?;
        let entry = Entry { space, key, image: Some((header, self.string()?)) };
        if entry.is_sound() { Ok(Record::Entry(entry)) } else { Err(BadCheckpoint) }
    }
}

/// One record.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Record<'a> {
    Entry(Entry<'a>),
    Flush,
    FlushAt(u64),
}

/// An entry of a tree as it was, or its absence.
#[derive(Clone, Copy, Debug)]
pub struct Entry<'a> {
    pub(crate) space: Space,
    pub(crate) key: &'a [u8],
    image: Option<(Header, &'a [u8])>,
}

impl<'a> Entry<'a> {
    fn is_sound(&self) -> bool {
        let Some((header, bytes)) = self.image else { return true };
        match (self.space, header.kind()) {
            (Space::Keys, Kind::String) => true,
            (Space::Keys, Kind::Item) => Facts::split(bytes).is_some(),
            (Space::Keys, _) => self.ids().is_some_and(|end| end <= LARGEST_COUNT),
            (_, kind) => kind == Kind::Field,
        }
    }

    /// Of a collection's head, the end of its ids.
    pub(crate) fn ids(&self) -> Option<u64> {
        let (header, bytes) = self.image.filter(|_| self.space == Space::Keys)?;
        let (ids, head) = ids_of(header.kind()).zip(Head::from_bytes(bytes))?;
        (head.count <= LARGEST_COUNT).then(|| head.id.saturating_add(ids))
    }

    /// Makes it so in the store.
    pub(crate) fn put(&self, store: &mut Store, guard: &Guard) {
        if self.space == Space::Keys {
            let image = self.image.map(|(header, bytes)| value(header, bytes));
            return store.restore_key(self.key, image, guard);
        }
        let image = self.image.map(|(header, bytes)| {
            let shared = bytes.is_empty() && header == store.nothing.header.header;
            if shared { store.nothing.clone() } else { value(header, bytes) }
        });
        store.exchange(self.space, self.key, image, guard);
    }
}
