//! Keys as sequences of 8-byte slices ([Mao] 3.1.2).
//!
//! In one layer a key is a slice, compared as a big-endian integer, and a class: the number of its
//! bytes in this layer, or `LONG` when it goes on below. Since a short slice is padded with zeros,
//! ordering by slice and then by class is the lexicographic order.

/// The longest key that the tree stores, in bytes.
pub const MAX_KEY_LEN: usize = 65_536;

/// Bytes per slice.
pub(crate) const SLICE: usize = 8;

/// The class of keys with more than a slice left: they have a suffix, or are in the next layer.
pub(crate) const LONG: u8 = 9;

/// Beyond every class: a position after all keys with the same slice.
pub(crate) const PAST: u8 = 10;

/// The longest suffix that is kept in the node itself.
pub(crate) const TINY_MAX: usize = 4;

/// What a slot holds, in a byte: a short key's class, with its value; `LONG`, for a value whose
/// key's suffix is in the node's block; `TINY` and the suffix's length; `LAYER` or `BUCKET`.
pub(crate) type Kind = u8;

/// See [`Kind`].
pub(crate) const TINY: Kind = 16;

/// See [`Kind`]. The slot leads to the next layer.
pub(crate) const LAYER: Kind = 32;

/// See [`Kind`]. The slot leads to a bucket: kinds from `LAYER` on are links.
pub(crate) const BUCKET: Kind = 33;

/// The class of a slot's key.
pub(crate) fn class_of(kind: Kind) -> u8 {
    kind.min(LONG)
}

/// The first slice of what is left of a key.
pub(crate) fn slice(rest: &[u8]) -> u64 {
    match rest.first_chunk::<SLICE>() {
        Some(bytes) => u64::from_be_bytes(*bytes),
        None => {
            let mut bytes = [0; SLICE];
            bytes[..rest.len()].copy_from_slice(rest);
            u64::from_be_bytes(bytes)
        }
    }
}

/// Where a key stands in a layer's order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Position {
    pub(crate) slice: u64,
    pub(crate) class: u8,
}

impl Position {
    /// Before every key of a layer.
    pub(crate) const FIRST: Position = Position { slice: 0, class: 0 };
    /// After every key of a layer.
    pub(crate) const LAST: Position = Position { slice: u64::MAX, class: PAST };

    /// The position of a key with `rest` left in the layer.
    pub(crate) fn of(rest: &[u8]) -> Self {
        Position { slice: slice(rest), class: rest.len().min(LONG as usize) as u8 }
    }
}

/// What a key has below the layer in which `rest` is left of it; empty for a short key.
pub(crate) fn suffix(rest: &[u8]) -> &[u8] {
    rest.get(SLICE..).unwrap_or(&[])
}

/// A suffix of up to `TINY_MAX` bytes as one number.
pub(crate) fn pack_tiny(suffix: &[u8]) -> u32 {
    suffix.iter().rev().fold(0, |packed, byte| packed << 8 | u32::from(*byte))
}

/// A key's suffix as it is stored: outside the node, or taken out of it.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Suffix<'a> {
    Bytes(&'a [u8]),
    Tiny([u8; TINY_MAX], u8),
}

impl Suffix<'_> {
    pub(crate) const NONE: Suffix<'static> = Suffix::Bytes(&[]);

    pub(crate) fn unpack(kind: Kind, packed: u32) -> Self {
        Suffix::Tiny(packed.to_le_bytes(), (kind - TINY).min(TINY_MAX as u8))
    }

    pub(crate) fn as_bytes(&self) -> &[u8] {
        match self {
            Suffix::Bytes(bytes) => bytes,
            Suffix::Tiny(bytes, len) => &bytes[..usize::from(*len)],
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn positions_order_like_keys() {
        let mut keys: Vec<&[u8]> = vec![
            b"",
            b"\0",
            b"\0\0",
            b"\0\0\0\0\0\0\0\0",
            b"\0\0\0\0\0\0\0\0\0",
            b"a",
            b"a\0",
            b"ab",
            b"abcdefg",
            b"abcdefg\0",
            b"abcdefgh",
            b"abcdefghi",
            b"\xff\xff\xff\xff\xff\xff\xff\xff",
        ];
        keys.sort();
        for pair in keys.windows(2) {
            assert!(Position::of(pair[0]) < Position::of(pair[1]), "{pair:?}");
        }
        assert_eq!(Position::of(b""), Position::FIRST);
        assert!(Position::of(&[0xff; 9]) < Position::LAST);
    }

    #[test]
    fn tiny_suffixes_survive_packing() {
        for suffix in [&b"x"[..], b"\0\0", b"abc", b"\xff\0\xff\0"] {
            let kind = TINY + suffix.len() as u8;
            assert_eq!(Suffix::unpack(kind, pack_tiny(suffix)).as_bytes(), suffix);
        }
    }

    #[test]
    fn suffixes_start_after_the_slice() {
        assert_eq!(suffix(b"abcdefgh"), b"");
        assert_eq!(suffix(b"abc"), b"");
        assert_eq!(suffix(b"abcdefghij"), b"ij");
    }
}
