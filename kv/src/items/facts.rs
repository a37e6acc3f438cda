//! What stands behind the bytes of an item: its cas number if that is not its version (u64), the
//! client's flags (u32) and one byte of marks. Little-endian.

use crate::value::{Header, Kind, Value, text, value};

const STALE: u8 = 1;
const SENT: u8 = 2;
const OWN_CAS: u8 = 4;

/// What memcached's clients know of an item beside its bytes. A plain string has the default ones.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Facts {
    /// The client's own flags.
    pub flags: u32,
    /// It was invalidated.
    pub stale: bool,
    /// A client was told to renew it.
    pub sent: bool,
    /// Its cas number, if that is not its version.
    pub cas: Option<u64>,
}

impl Facts {
    /// Splits an item's bytes; `None` if they are not an item's.
    #[inline]
    pub(crate) fn split(bytes: &[u8]) -> Option<(&[u8], Facts)> {
        let (rest, &[a, b, c, d, marks]) = bytes.split_last_chunk::<5>()?;
        let flags = u32::from_le_bytes([a, b, c, d]);
        let (rest, cas) = match marks {
            ..OWN_CAS => (rest, None),
            OWN_CAS..8 => {
                let (rest, cas) = rest.split_last_chunk::<8>()?;
                (rest, Some(u64::from_le_bytes(*cas)))
            }
            _ => return None,
        };
        Some((rest, Facts { flags, stale: marks & STALE != 0, sent: marks & SENT != 0, cas }))
    }

    /// Those of a value.
    #[inline]
    pub(crate) fn of(value: &Value) -> Facts {
        match value.header.header.kind() {
            Kind::Item => Facts::split(&value.slice).map_or(Facts::default(), |(_, facts)| facts),
            _ => Facts::default(),
        }
    }

    /// A string with these facts.
    pub(crate) fn value(&self, bytes: &[u8], version: u64, expire_ms: u64) -> Value {
        if *self == Facts::default() {
            return value(Header::new(Kind::String, version, expire_ms), bytes);
        }
        let mut packed = Vec::with_capacity(bytes.len() + 13);
        packed.extend_from_slice(bytes);
        let mut marks = 0;
        if let Some(cas) = self.cas {
            packed.extend_from_slice(&cas.to_le_bytes());
            marks |= OWN_CAS;
        }
        packed.extend_from_slice(&self.flags.to_le_bytes());
        marks |= if self.stale { STALE } else { 0 } | if self.sent { SENT } else { 0 };
        packed.push(marks);
        value(Header::new(Kind::Item, version, expire_ms), &packed)
    }
}

/// A value's cas number.
#[inline]
pub(crate) fn cas_of(value: &Value, facts: &Facts) -> u64 {
    facts.cas.unwrap_or(value.header.header.version())
}

/// A string as an answer tells of it, at this time. `wanted` says whether with its bytes.
#[inline]
pub(crate) fn describe<'a>(
    value: &'a Value,
    unix_ms: u64,
    wanted: bool,
) -> memcached::write::Item<'a> {
    let facts = Facts::of(value);
    let bytes = text(value);
    let left = value.header.header.expire_ms.saturating_sub(unix_ms).div_ceil(1000);
    memcached::write::Item {
        flags: facts.flags,
        cas: cas_of(value, &facts),
        ttl: (value.header.header.expire_ms != 0).then_some(left),
        size: bytes.len(),
        value: if wanted { bytes } else { b"" },
        won: false,
        stale: facts.stale,
        sent: facts.sent,
    }
}
