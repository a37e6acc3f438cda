//! What the trees hold: a header and bytes in one allocation with a reference count.

use triomphe::ThinArc;

use crate::items::Facts;

/// A value of any tree. Never changed in place: whoever holds one keeps that state.
pub(crate) type Value = ThinArc<Header, u8>;

/// What precedes a value's bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Header {
    /// The version in the upper 56 bits, the kind in the lower 8.
    stamp: u64,
    /// Milliseconds since 1970 at which the value ceases to exist; 0 for never.
    pub expire_ms: u64,
}

/// What a value's bytes are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// An entry of the expiry index: none.
    Mark = 0,
    /// A string.
    String = 1,
    /// A [`HashHead`].
    Hash = 2,
    /// The value of a hash's field, or another entry of a collection.
    Field = 3,
    /// A [`Head`] of a list.
    List = 4,
    /// A [`Head`] of a set.
    Set = 5,
    /// A [`Head`] of a sorted set.
    SortedSet = 6,
    /// A string with what only memcached's clients know of it: its bytes and then
    /// [`Facts`](crate::items::Facts).
    Item = 7,
}

impl Header {
    pub(crate) fn new(kind: Kind, version: u64, expire_ms: u64) -> Header {
        Header { stamp: version << 8 | kind as u64, expire_ms }
    }

    /// From what [`Header::stamp`] gave; `None` if there is no such kind.
    pub(crate) fn from_stamp(stamp: u64, expire_ms: u64) -> Option<Header> {
        (stamp & 0xff <= Kind::Item as u64).then_some(Header { stamp, expire_ms })
    }

    pub(crate) fn stamp(&self) -> u64 {
        self.stamp
    }

    /// The number of the change that made the value, from 1.
    pub(crate) fn version(&self) -> u64 {
        self.stamp >> 8
    }

    #[inline]
    pub(crate) fn kind(&self) -> Kind {
        match self.stamp as u8 {
            0 => Kind::Mark,
            1 => Kind::String,
            2 => Kind::Hash,
            4 => Kind::List,
            5 => Kind::Set,
            6 => Kind::SortedSet,
            7 => Kind::Item,
            _ => Kind::Field,
        }
    }

    /// Whether the value no longer exists at `unix_ms`.
    #[inline]
    pub(crate) fn is_expired(&self, unix_ms: u64) -> bool {
        self.expire_ms != 0 && self.expire_ms <= unix_ms
    }
}

#[inline]
pub(crate) fn value(header: Header, bytes: &[u8]) -> Value {
    ThinArc::from_header_and_slice(header, bytes)
}

/// The bytes of a string, without what else is known of an item.
#[inline]
pub(crate) fn text(value: &Value) -> &[u8] {
    match value.header.header.kind() {
        Kind::Item => Facts::split(&value.slice).map_or(&value.slice, |(text, _)| text),
        _ => &value.slice,
    }
}

/// Whether the value is a string.
#[inline]
pub(crate) fn is_string(value: &Value) -> bool {
    matches!(value.header.header.kind(), Kind::String | Kind::Item)
}

/// What a key that holds a hash says about it; its fields are in a tree of their own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct HashHead {
    /// What the keys of its fields start with; used once only.
    pub id: u64,
    /// The number of its fields, from 1.
    pub count: u64,
    /// No field expires before this time in milliseconds since 1970; 0 if none ever does.
    pub earliest_ms: u64,
    /// Whether it ever went beyond the limits of what Redis keeps in a listpack.
    pub large: bool,
}

impl HashHead {
    pub(crate) const LEN: usize = 25;

    pub(crate) fn to_bytes(self) -> [u8; Self::LEN] {
        pack_head([self.id, self.count, self.earliest_ms], self.large)
    }

    /// `None` if the bytes are not a head.
    pub(crate) fn from_bytes(bytes: &[u8]) -> Option<HashHead> {
        let ([id, count, earliest_ms], large) = unpack_head(bytes)?;
        Some(HashHead { id, count, earliest_ms, large })
    }

    /// The head in a value, if it is a hash.
    #[inline]
    pub(crate) fn of(value: &Value) -> Option<HashHead> {
        if value.header.header.kind() == Kind::Hash {
            HashHead::from_bytes(&value.slice)
        } else {
            None
        }
    }
}

fn pack_head(numbers: [u64; 3], large: bool) -> [u8; HashHead::LEN] {
    let mut bytes = [0; HashHead::LEN];
    for (place, number) in bytes.as_chunks_mut::<8>().0.iter_mut().zip(numbers) {
        *place = number.to_le_bytes();
    }
    bytes[24] = u8::from(large);
    bytes
}

fn unpack_head(bytes: &[u8]) -> Option<([u64; 3], bool)> {
    let bytes: &[u8; HashHead::LEN] = bytes.try_into().ok()?;
    let number = |at: usize| u64::from_le_bytes(bytes.as_chunks::<8>().0[at]);
    Some(([number(0), number(1), number(2)], bytes[24] != 0))
}

/// What a key that holds a list, a set or a sorted set says about it; its entries are where those
/// of hashes are.
///
/// An entry of a list has an index for a key, big-endian; all indexes from `first` on are taken. A
/// set's is a member. A sorted set has two for each member: under its id the member, with the score
/// as value; under the id after that the score, such that scores sort as numbers, and the member.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Head {
    /// What the keys of its entries start with; used once only.
    pub id: u64,
    /// The number of its elements or members, from 1.
    pub count: u64,
    /// The index of a list's first element.
    pub first: u64,
    /// Whether it ever went beyond what Redis keeps in an intset or a listpack.
    pub large: bool,
}

impl Head {
    /// Where a list starts, with as much room before it as behind it.
    pub(crate) const MIDDLE: u64 = 1 << 63;

    pub(crate) fn new(id: u64) -> Head {
        Head { id, count: 0, first: Head::MIDDLE, large: false }
    }

    pub(crate) fn to_bytes(self) -> [u8; HashHead::LEN] {
        pack_head([self.id, self.count, self.first], self.large)
    }

    /// `None` if the bytes are not a head.
    pub(crate) fn from_bytes(bytes: &[u8]) -> Option<Head> {
        let ([id, count, first], large) = unpack_head(bytes)?;
        Some(Head { id, count, first, large })
    }

    /// The head in a value of this kind.
    pub(crate) fn of(value: &Value, kind: Kind) -> Option<Head> {
        if value.header.header.kind() == kind { Head::from_bytes(&value.slice) } else { None }
    }
}

/// Of a value that is a collection's head, the number of ids that the collection has, the first of
/// them, and the number of entries under each.
#[inline]
pub(crate) fn entries_of(value: &Value) -> Option<(u64, u64, u64)> {
    let ids = ids_of(value.header.header.kind())?;
    Head::from_bytes(&value.slice).map(|head| (ids, head.id, head.count))
}

/// The number of ids that a collection of this kind has.
#[inline]
pub(crate) fn ids_of(kind: Kind) -> Option<u64> {
    match kind {
        Kind::String | Kind::Item | Kind::Mark | Kind::Field => None,
        Kind::Hash | Kind::List | Kind::Set => Some(1),
        Kind::SortedSet => Some(2),
    }
}

/// When the next thing in a value of `Keys` expires, itself or a field of its hash; 0 for never.
#[inline]
pub(crate) fn due_ms(value: &Value) -> u64 {
    let own = value.header.header.expire_ms;
    match HashHead::of(value).map_or(0, |head| head.earliest_ms) {
        0 => own,
        earliest if own == 0 => earliest,
        earliest => own.min(earliest),
    }
}
