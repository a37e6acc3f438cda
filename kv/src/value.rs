//! What the trees hold: a header and bytes in one allocation with a reference count.

use triomphe::ThinArc;

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
    /// The value of a hash's field.
    Field = 3,
}

impl Header {
    pub(crate) fn new(kind: Kind, version: u64, expire_ms: u64) -> Header {
        Header { stamp: version << 8 | kind as u64, expire_ms }
    }

    /// From what [`Header::stamp`] gave; `None` if there is no such kind.
    pub(crate) fn from_stamp(stamp: u64, expire_ms: u64) -> Option<Header> {
        (stamp & 0xff <= Kind::Field as u64).then_some(Header { stamp, expire_ms })
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
        let mut bytes = [0; Self::LEN];
        bytes[..8].copy_from_slice(&self.id.to_le_bytes());
        bytes[8..16].copy_from_slice(&self.count.to_le_bytes());
        bytes[16..24].copy_from_slice(&self.earliest_ms.to_le_bytes());
        bytes[24] = u8::from(self.large);
        bytes
    }

    /// `None` if the bytes are not a head.
    pub(crate) fn from_bytes(bytes: &[u8]) -> Option<HashHead> {
        let bytes: &[u8; Self::LEN] = bytes.try_into().ok()?;
        Some(HashHead {
            id: u64::from_le_bytes(bytes[..8].try_into().ok()?),
            count: u64::from_le_bytes(bytes[8..16].try_into().ok()?),
            earliest_ms: u64::from_le_bytes(bytes[16..24].try_into().ok()?),
            large: bytes[24] != 0,
        })
    }

    /// The head in a value, if it is a hash.
    pub(crate) fn of(value: &Value) -> Option<HashHead> {
        if value.header.header.kind() == Kind::Hash {
            HashHead::from_bytes(&value.slice)
        } else {
            None
        }
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
