//! Ordered ranges of keys, which Redis does not have.
//!
//! A range goes from `start` to `end`, both included. A bound is `-` or `+` for the lowest and the
//! highest of all keys, `[key` or just `key` for one that belongs to the range, `(key` for one that
//! does not. A key that starts with one of these four has to be written with `[`.

use std::ops::Bound;

use resp::{Protocol, write};

use crate::call::ReadCall;
use crate::error::{Error, Outcome};
use crate::numbers::integer;
use crate::store::Space;
use crate::value::{Value, is_string, text};

/// The keys between two bounds; `None` if there can be none.
struct Range<'a> {
    low: Bound<&'a [u8]>,
    high: Bound<&'a [u8]>,
}

impl<'a> Range<'a> {
    fn parse(start: &'a [u8], end: &'a [u8]) -> Option<Range<'a>> {
        let (low, high) = match (start, end) {
            (b"+", _) | (_, b"-") => return None,
            (b"-", b"+") => (Bound::Unbounded, Bound::Unbounded),
            (b"-", end) => (Bound::Unbounded, bound(end)),
            (start, b"+") => (bound(start), Bound::Unbounded),
            (start, end) => (bound(start), bound(end)),
        };
        Some(Range { low, high })
    }

    fn is_below(&self, key: &[u8]) -> bool {
        match self.low {
            Bound::Included(low) => key < low,
            Bound::Excluded(low) => key <= low,
            Bound::Unbounded => false,
        }
    }

    fn is_above(&self, key: &[u8]) -> bool {
        match self.high {
            Bound::Included(high) => key > high,
            Bound::Excluded(high) => key >= high,
            Bound::Unbounded => false,
        }
    }

    /// Visits the keys in the range that exist until `visit` returns false.
    fn visit(
        &self,
        call: &mut ReadCall<'_>,
        reverse: bool,
        mut visit: impl FnMut(&[u8], &Value) -> bool,
    ) {
        let (store, guard) = (call.store, call.guard);
        let tree = store.trees.of(Space::Keys);
        let mut look = |key: &[u8], value: &Value| {
            let before = if reverse { self.is_above(key) } else { self.is_below(key) };
            let behind = if reverse { self.is_below(key) } else { self.is_above(key) };
            if before || behind {
                return !behind;
            }
            if call.is_live(key, value) { visit(key, value) } else { !call.is_void() }
        };
        if reverse {
            tree.scan_reverse(clip(self.high), guard, &mut look);
        } else {
            tree.scan(clip(self.low), guard, &mut look);
        }
    }
}

fn bound(text: &[u8]) -> Bound<&[u8]> {
    match text {
        [b'(', key @ ..] => Bound::Excluded(key),
        [b'[', key @ ..] | key => Bound::Included(key),
    }
}

/// A bound that the tree takes: no key is longer than a clipped one and starts with it, so at most
/// the clipped one itself is visited too much, and `look` sees to that.
fn clip(bound: Bound<&[u8]>) -> Bound<&[u8]> {
    match bound {
        Bound::Included(key) | Bound::Excluded(key) if key.len() > crate::MAX_KEY_LEN => {
            Bound::Included(&key[..crate::MAX_KEY_LEN])
        }
        other => other,
    }
}

/// `KRANGE start end [LIMIT n] [WITHVALUES] [REV]`: the keys of a range in order, from the end with
/// REV, at most `n` if it is not negative. With values, each key is followed by its string, or by
/// null if it holds something else; in RESP3 they are pairs.
pub(crate) fn krange(call: &mut ReadCall<'_>, args: &[&[u8]]) -> Outcome {
    let (mut limit, mut with_values, mut reverse) = (usize::MAX, false, false);
    let mut options = args[2..].iter();
    while let Some(option) = options.next() {
        if option.eq_ignore_ascii_case(b"LIMIT") {
            let number = integer(options.next().ok_or(Error::Syntax)?)?;
            limit = usize::try_from(number).unwrap_or(usize::MAX);
        } else if option.eq_ignore_ascii_case(b"WITHVALUES") {
            with_values = true;
        } else if option.eq_ignore_ascii_case(b"REV") {
            reverse = true;
        } else {
            return Err(Error::Syntax);
        }
    }
    let protocol = call.protocol;
    let pairs = with_values && protocol == Protocol::V3;
    let (mut count, mut replies) = (0, Vec::new());
    if limit > 0
        && let Some(range) = Range::parse(args[0], args[1])
    {
        range.visit(call, reverse, |key, value| {
            count += 1;
            if pairs {
                write::array(&mut replies, 2);
            }
            write::bulk(&mut replies, key);
            if with_values && is_string(value) {
                write::bulk(&mut replies, text(value));
            } else if with_values {
                write::null(&mut replies, protocol);
            }
            count < limit
        });
    }
    write::array(call.reply, if with_values && !pairs { count * 2 } else { count });
    call.reply.extend_from_slice(&replies);
    Ok(())
}

/// `KCOUNT start end`: the number of keys in a range.
pub(crate) fn kcount(call: &mut ReadCall<'_>, args: &[&[u8]]) -> Outcome {
    let mut count = 0;
    if let Some(range) = Range::parse(args[0], args[1]) {
        range.visit(call, false, |_, _| {
            count += 1;
            true
        });
    }
    write::integer(call.reply, count);
    Ok(())
}
