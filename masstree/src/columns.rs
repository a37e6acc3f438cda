//! Values made of columns ([Mao] 3.1.7): a version number and an array of byte strings, in one
//! block that never changes. A put makes a new block, copying the columns that it leaves alone, so
//! that a reader sees all of a put's columns or none.

use std::fmt;

use triomphe::ThinArc;

use crate::{field::RawValue, guard::Guard, slot::Slot, tree::Masstree};

/// The most columns of a value: one more than the greatest column number.
pub const MAX_COLUMNS: usize = 4096;

/// Bytes of a column's end in the block.
const END: usize = size_of::<u32>();

/// What comes before the bytes of a block.
struct Head {
    version: u64,
    columns: u32,
}

/// A value made of columns, numbered from 0, and a version number that counts its puts.
///
/// Cloning counts a reference. Columns that were never put are empty.
///
/// ```
/// use masstree::{Columns, Masstree, pin};
///
/// let tree = Masstree::<Columns>::new();
/// let guard = pin();
/// assert_eq!(tree.put_columns(b"ant", &[(0, b"small"), (2, b"six legs")], &guard).version(), 1);
/// assert_eq!(tree.put_columns(b"ant", &[(1, b"black")], &guard).version(), 2);
///
/// let ant = tree.get_ref(b"ant", &guard).unwrap();
/// assert_eq!(ant.subset([2, 1]).collect::<Vec<_>>(), [&b"six legs"[..], b"black"]);
/// assert_eq!((ant.len(), ant.column(7)), (3, &b""[..]));
/// ```
#[derive(Clone)]
pub struct Columns(ThinArc<Head, u8>);

impl Columns {
    /// A value with these columns, from number 0 on.
    ///
    /// # Panics
    /// If there are more than [`MAX_COLUMNS`], or they have more than 4 GiB together.
    pub fn new<C: AsRef<[u8]>>(version: u64, columns: &[C]) -> Self {
        Self::build(version, columns.len(), |i| columns[i].as_ref())
    }

    /// The value that a put to some columns makes of this one, with the version after this one's.
    /// Of several puts to the same column the last counts.
    ///
    /// # Panics
    /// As [`new`](Self::new), with one more column than the greatest number.
    pub fn with(&self, changes: &[(usize, &[u8])]) -> Self {
        Self::changed(Some(self), changes)
    }

    fn changed(old: Option<&Self>, changes: &[(usize, &[u8])]) -> Self {
        let before = old.map_or(0, Self::len);
        let columns =
            changes.iter().fold(before, |n, &(column, _)| n.max(column.saturating_add(1)));
        Self::build(old.map_or(0, Self::version) + 1, columns, |i| {
            let change = changes.iter().rev().find(|(column, _)| *column == i);
            change.map_or_else(|| old.map_or(&[][..], |old| old.column(i)), |(_, bytes)| bytes)
        })
    }

    /// The ends of the columns, then their bytes.
    fn build<'c>(version: u64, columns: usize, column: impl Fn(usize) -> &'c [u8]) -> Self {
        assert!(columns <= MAX_COLUMNS, "a value has at most {MAX_COLUMNS} columns");
        let mut ends = 0;
        let mut block = Vec::with_capacity(columns * (END + 8));
        for i in 0..columns {
            ends += column(i).len();
            let end = u32::try_from(ends).expect("a value has at most 4 GiB");
            block.extend_from_slice(&end.to_ne_bytes());
        }
        block.reserve_exact(ends);
        (0..columns).for_each(|i| block.extend_from_slice(column(i)));
        Columns(ThinArc::from_header_and_slice(Head { version, columns: columns as u32 }, &block))
    }

    /// How many puts made this value of none, or what it was made with.
    pub fn version(&self) -> u64 {
        self.0.header.header.version
    }

    /// One more than the number of the last column.
    pub fn len(&self) -> usize {
        self.0.header.header.columns as usize
    }

    /// Whether there are no columns.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    fn end(&self, column: usize) -> usize {
        let bytes = &self.0.slice[column * END..(column + 1) * END];
        u32::from_ne_bytes(bytes.try_into().expect("four bytes")) as usize
    }

    /// A column's bytes; none if it was never put.
    pub fn column(&self, column: usize) -> &[u8] {
        if column >= self.len() {
            return &[];
        }
        let start = column.checked_sub(1).map_or(0, |before| self.end(before));
        let bytes = &self.0.slice[self.len() * END..];
        &bytes[start..self.end(column)]
    }

    /// Some columns, in the order asked for: what the paper's get with a list of columns returns.
    pub fn subset<'a>(
        &'a self,
        columns: impl IntoIterator<Item = usize> + 'a,
    ) -> impl Iterator<Item = &'a [u8]> + 'a {
        columns.into_iter().map(|column| self.column(column))
    }

    /// All columns.
    pub fn iter(&self) -> impl Iterator<Item = &[u8]> {
        self.subset(0..self.len())
    }
}

impl fmt::Debug for Columns {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let columns: Vec<_> =
            self.iter().map(<[u8]>::escape_ascii).map(|c| c.to_string()).collect();
        f.debug_struct("Columns").field("version", &self.version()).field("of", &columns).finish()
    }
}

impl PartialEq for Columns {
    fn eq(&self, other: &Self) -> bool {
        self.version() == other.version()
            && self.len() == other.len()
            && self.0.slice == other.0.slice
    }
}

impl Eq for Columns {}

// SAFETY: as for `ThinArc`, whose bits these are.
unsafe impl Slot for Columns {
    fn into_raw(self) -> RawValue {
        ThinArc::into_raw(self.0).cast_mut().cast()
    }

    unsafe fn from_raw(raw: RawValue) -> Self {
        // SAFETY: by the caller's promise `raw` came from `into_raw` above.
        Columns(unsafe { ThinArc::from_raw(raw.cast_const().cast()) })
    }

    fn as_raw(&self) -> RawValue {
        ThinArc::as_ptr(&self.0).cast_mut().cast()
    }
}

impl Masstree<Columns> {
    /// Puts some columns of `key`, all at once, leaves the others as they are, and returns the new
    /// value. Of several puts to the same column the last counts.
    ///
    /// # Panics
    /// If the key is longer than [`MAX_KEY_LEN`](crate::MAX_KEY_LEN), or as [`Columns::with`] does.
    pub fn put_columns(&self, key: &[u8], changes: &[(usize, &[u8])], guard: &Guard) -> Columns {
        let mut new = None;
        self.update(key, guard, |old: Option<&Columns>| {
            new = Some(Columns::changed(old, changes));
            new.clone()
        });
        new.expect("an update decides once")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn behaves_like_a_list_of_strings(
            puts in prop::collection::vec(
                prop::collection::vec((0usize..9, prop::collection::vec(any::<u8>(), 0..5)), 0..4),
                1..6,
            )
        ) {
            let mut model: Vec<Vec<u8>> = Vec::new();
            let mut value = Columns::new::<&[u8]>(0, &[]);
            for (i, put) in puts.iter().enumerate() {
                let changes: Vec<(usize, &[u8])> = put.iter().map(|(c, b)| (*c, &b[..])).collect();
                value = value.with(&changes);
                for (column, bytes) in put {
                    model.resize(model.len().max(column + 1), Vec::new());
                    model[*column] = bytes.clone();
                }
                prop_assert_eq!(value.version(), i as u64 + 1);
                prop_assert!(value.iter().eq(model.iter().map(|column| &column[..])));
                prop_assert_eq!(value.column(9), b"");
            }
            prop_assert_eq!(Columns::new(value.version(), &model), value);
        }
    }

    #[test]
    #[should_panic(expected = "at most 4096 columns")]
    fn refuses_numbers_beyond_the_last() {
        Columns::new::<&[u8]>(1, &[]).with(&[(MAX_COLUMNS, b"")]);
    }
}
