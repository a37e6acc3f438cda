//! Sorted sets: their two entries for each member, scores, and the commands on single members.
//!
//! The place of a member is found by walking from the nearer end, which takes time; everything else
//! is found in the trees.

use masstree::Guard;
use resp::{Protocol, write};

use crate::call::{ReadCall, WriteCall};
use crate::collection::{Open, check_members, entry_value, get_entry, put_entry};
use crate::error::{Error, Outcome};
use crate::store::Store;
use crate::value::{Head, Kind, Value};

/// Reads a score as C does: decimal with an exponent, or an infinity.
pub(crate) fn parse_score(text: &[u8]) -> Option<f64> {
    let number: f64 = std::str::from_utf8(text).ok()?.parse().ok()?;
    let mantissa = text.split(|byte| matches!(byte, b'e' | b'E')).next().unwrap_or(text);
    let has_digit =
        |digits: std::ops::RangeInclusive<u8>| mantissa.iter().any(|digit| digits.contains(digit));
    // What is out of range is no number; an infinity is written in letters.
    let out_of_range =
        number.is_infinite() && has_digit(b'0'..=b'9') || number == 0.0 && has_digit(b'1'..=b'9');
    (!number.is_nan() && !out_of_range).then_some(number)
}

/// A score in up to 17 digits, as Redis 7.0 prints it.
pub(crate) fn print_score(score: f64) -> String {
    const DIGITS: i32 = 17;
    if score.is_infinite() {
        return if score > 0.0 { "inf" } else { "-inf" }.to_owned();
    }
    let text = format!("{score:.16e}");
    let (mantissa, exponent) = text.split_once('e').unwrap_or((&text, "0"));
    let exponent: i32 = exponent.parse().unwrap_or(0);
    if (-4..DIGITS).contains(&exponent) {
        let decimals = (DIGITS - 1 - exponent) as usize;
        let fixed = format!("{score:.decimals$}");
        if decimals == 0 {
            return fixed;
        }
        return fixed.trim_end_matches('0').trim_end_matches('.').to_owned();
    }
    let mantissa = mantissa.trim_end_matches('0').trim_end_matches('.');
    let sign = if exponent < 0 { '-' } else { '+' };
    format!("{mantissa}e{sign}{:02}", exponent.abs())
}

/// Appends a score.
pub(crate) fn write_score(reply: &mut Vec<u8>, protocol: Protocol, score: f64) {
    let text = print_score(score);
    match protocol {
        Protocol::V2 => write::bulk(reply, text.as_bytes()),
        Protocol::V3 => {
            reply.push(b',');
            reply.extend_from_slice(text.as_bytes());
            reply.extend_from_slice(b"\r\n");
        }
    }
}

/// The score in a member's entry.
pub(crate) fn score_of(value: &Value) -> f64 {
    value.slice.first_chunk::<8>().map_or(0.0, |bytes| f64::from_le_bytes(*bytes))
}

/// A score in eight bytes that sort as the scores do.
pub(crate) fn sortable(score: f64) -> [u8; 8] {
    let bits = score.to_bits();
    let bits = if bits >> 63 == 1 { !bits } else { bits | 1 << 63 };
    bits.to_be_bytes()
}

/// The score in sortable bytes.
pub(crate) fn unsorted(bytes: [u8; 8]) -> f64 {
    let bits = u64::from_be_bytes(bytes);
    f64::from_bits(if bits >> 63 == 1 { bits & !(1 << 63) } else { !bits })
}

/// The id of the entries in the order of their scores.
pub(crate) fn by_score(head: Head) -> u64 {
    head.id.wrapping_add(1)
}

/// The score of a member.
pub(crate) fn score(store: &Store, guard: &Guard, head: Head, member: &[u8]) -> Option<f64> {
    get_entry(store, guard, head.id, member).map(|value| score_of(&value))
}

/// A sorted set that is being changed.
pub(crate) struct SortedSet(pub Open);

impl SortedSet {
    pub(crate) fn existing(
        call: &mut WriteCall<'_>,
        key: &[u8],
    ) -> Result<Option<SortedSet>, Error> {
        Ok(Open::existing(call, key, Kind::SortedSet)?.map(SortedSet))
    }

    pub(crate) fn new(call: &mut WriteCall<'_>) -> SortedSet {
        SortedSet(Open::new(call, Kind::SortedSet))
    }

    /// Sets a member's score; returns whether the member is new. Of the two zeros only one is kept,
    /// as by Redis in a listpack.
    pub(crate) fn set(&mut self, call: &mut WriteCall<'_>, member: &[u8], score: f64) -> bool {
        let (head, score) = (&mut self.0.head, score + 0.0);
        let entry = entry_value(call.store, &score.to_le_bytes());
        let nothing = call.store.nothing.clone();
        let old = put_entry(call, head.id, member, Some(entry)).map(|old| sortable(score_of(&old)));
        let new = sortable(score);
        if old != Some(new) {
            if let Some(old) = old {
                put_entry(call, by_score(*head), &[&old[..], member].concat(), None);
            }
            put_entry(call, by_score(*head), &[&new[..], member].concat(), Some(nothing));
        }
        head.count = head.count.saturating_add(u64::from(old.is_none()));
        let limits = &call.store.limits;
        head.large |=
            head.count > limits.zset_listpack_entries || member.len() > limits.zset_listpack_value;
        old.is_none()
    }

    /// Removes a member; returns whether it was there.
    pub(crate) fn remove(&mut self, call: &mut WriteCall<'_>, member: &[u8]) -> bool {
        let head = &mut self.0.head;
        let Some(old) = score(call.store, call.guard, *head, member) else { return false };
        put_entry(call, head.id, member, None);
        put_entry(call, by_score(*head), &[&sortable(old)[..], member].concat(), None);
        head.count = head.count.saturating_sub(1);
        true
    }

    pub(crate) fn close(self, call: &mut WriteCall<'_>, key: &[u8]) {
        self.0.close(call, key);
    }
}

/// The options of ZADD.
#[derive(Default)]
struct Options {
    only_new: bool,
    only_old: bool,
    only_greater: bool,
    only_less: bool,
    count_changed: bool,
    increment: bool,
}

impl Options {
    /// Takes options off the front.
    fn parse<'a, 'b>(mut args: &'a [&'b [u8]]) -> (Options, &'a [&'b [u8]]) {
        let mut options = Options::default();
        while let [option, rest @ ..] = args {
            let option = match &option.to_ascii_uppercase()[..] {
                b"NX" => &mut options.only_new,
                b"XX" => &mut options.only_old,
                b"GT" => &mut options.only_greater,
                b"LT" => &mut options.only_less,
                b"CH" => &mut options.count_changed,
                b"INCR" => &mut options.increment,
                _ => break,
            };
            *option = true;
            args = rest;
        }
        (options, args)
    }

    fn check(&self, pairs: usize) -> Result<(), Error> {
        let Options { only_new, only_old, only_greater, only_less, .. } = *self;
        if only_new && only_old {
            return Err(Error::Text("ERR XX and NX options at the same time are not compatible"));
        }
        if only_greater && only_less || only_new && (only_greater || only_less) {
            return Err(Error::Text(
                "ERR GT, LT, and/or NX options at the same time are not compatible",
            ));
        }
        if self.increment && pairs > 1 {
            return Err(Error::Text("ERR INCR option supports a single increment-element pair"));
        }
        Ok(())
    }

    /// The score that a member gets; `None` if it is left as it is.
    fn new_score(&self, old: Option<f64>, given: f64) -> Result<Option<f64>, Error> {
        let Some(old) = old else { return Ok((!self.only_old).then_some(given)) };
        if self.only_new {
            return Ok(None);
        }
        let new = if self.increment { old + given } else { given };
        if new.is_nan() {
            return Err(Error::Text("ERR resulting score is not a number (NaN)"));
        }
        let refused = self.only_less && new >= old || self.only_greater && new <= old;
        Ok((!refused).then_some(new))
    }
}

fn add(call: &mut WriteCall<'_>, key: &[u8], options: &Options, args: &[&[u8]]) -> Outcome {
    let (pairs, rest) = args.as_chunks::<2>();
    if pairs.is_empty() || !rest.is_empty() {
        return Err(Error::Syntax);
    }
    options.check(pairs.len())?;
    let scores: Option<Vec<f64>> = pairs.iter().map(|[score, _]| parse_score(score)).collect();
    let scores = scores.ok_or(Error::NotFloat)?;
    check_members(&pairs.iter().map(|[_, member]| *member).collect::<Vec<_>>())?;
    let mut set = match SortedSet::existing(call, key)? {
        Some(set) => set,
        None => SortedSet::new(call),
    };
    let (mut added, mut updated, mut last) = (0, 0, None);
    for ([_, member], given) in pairs.iter().zip(scores) {
        let old = score(call.store, call.guard, set.0.head, member);
        last = options.new_score(old, given)?;
        if let Some(new) = last
            && old != Some(new)
        {
            set.set(call, member, new);
            added += i64::from(old.is_none());
            updated += i64::from(old.is_some());
        }
    }
    if added + updated > 0 {
        set.close(call, key);
    }
    match last {
        _ if !options.increment => {
            let count = if options.count_changed { added + updated } else { added };
            write::integer(call.reply, count);
        }
        Some(score) => write_score(call.reply, call.protocol, score),
        None => write::null(call.reply, call.protocol),
    }
    Ok(())
}

/// `ZADD key [NX|XX] [GT|LT] [CH] [INCR] score member ...`
pub(crate) fn zadd(call: &mut WriteCall<'_>, args: &[&[u8]]) -> Outcome {
    let (options, pairs) = Options::parse(&args[1..]);
    add(call, args[0], &options, pairs)
}

/// `ZINCRBY key increment member`
pub(crate) fn zincrby(call: &mut WriteCall<'_>, args: &[&[u8]]) -> Outcome {
    add(call, args[0], &Options { increment: true, ..Options::default() }, &args[1..])
}

/// `ZREM key member ...`
pub(crate) fn zrem(call: &mut WriteCall<'_>, args: &[&[u8]]) -> Outcome {
    let mut removed = 0;
    if let Some(mut set) = SortedSet::existing(call, args[0])? {
        for member in &args[1..] {
            removed += i64::from(set.remove(call, member));
        }
        if removed > 0 {
            set.close(call, args[0]);
        }
    }
    write::integer(call.reply, removed);
    Ok(())
}

/// `ZCARD key`
pub(crate) fn zcard(call: &mut ReadCall<'_>, args: &[&[u8]]) -> Outcome {
    let count = call.head(args[0], Kind::SortedSet)?.map_or(0, |head| head.count);
    write::integer(call.reply, count as i64);
    Ok(())
}

fn reply_score(call: &mut ReadCall<'_>, head: Option<Head>, member: &[u8]) {
    match head.and_then(|head| score(call.store, call.guard, head, member)) {
        Some(score) => write_score(call.reply, call.protocol, score),
        None => write::null(call.reply, call.protocol),
    }
}

/// `ZSCORE key member`
pub(crate) fn zscore(call: &mut ReadCall<'_>, args: &[&[u8]]) -> Outcome {
    let head = call.head(args[0], Kind::SortedSet)?;
    reply_score(call, head, args[1]);
    Ok(())
}

/// `ZMSCORE key member ...`
pub(crate) fn zmscore(call: &mut ReadCall<'_>, args: &[&[u8]]) -> Outcome {
    let head = call.head(args[0], Kind::SortedSet)?;
    write::array(call.reply, args.len() - 1);
    for member in &args[1..] {
        reply_score(call, head, member);
    }
    Ok(())
}

/// The number of members before this one.
fn rank(call: &mut ReadCall<'_>, args: &[&[u8]], reverse: bool) -> Outcome {
    let head = call.head(args[0], Kind::SortedSet)?;
    let (store, guard) = (call.store, call.guard);
    let found = head.and_then(|head| Some((head, score(store, guard, head, args[1])?)));
    let Some((head, score)) = found else {
        write::null(call.reply, call.protocol);
        return Ok(());
    };
    let entry = [&sortable(score)[..], args[1]].concat();
    let mut rank = 0;
    let visit = |other: &[u8], _: &Value| {
        let before = other != &entry[..];
        rank += i64::from(before);
        before
    };
    if reverse {
        store.scan_fields_reverse(by_score(head), None, guard, visit);
    } else {
        store.scan_fields(by_score(head), b"", guard, visit);
    }
    write::integer(call.reply, rank);
    Ok(())
}

/// `ZRANK key member`
pub(crate) fn zrank(call: &mut ReadCall<'_>, args: &[&[u8]]) -> Outcome {
    rank(call, args, false)
}

/// `ZREVRANK key member`
pub(crate) fn zrevrank(call: &mut ReadCall<'_>, args: &[&[u8]]) -> Outcome {
    rank(call, args, true)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scores_are_printed_as_by_c() {
        for (text, printed) in [
            ("0.1", "0.10000000000000001"),
            ("3", "3"),
            ("-2.5", "-2.5"),
            ("1e16", "10000000000000000"),
            ("1e17", "1e+17"),
            ("123456789012345678", "1.2345678901234568e+17"),
            ("1e-5", "1.0000000000000001e-05"),
            ("0.0001", "0.0001"),
            ("1e300", "1.0000000000000001e+300"),
            ("-0", "-0"),
            ("+inf", "inf"),
            ("-Infinity", "-inf"),
        ] {
            assert_eq!(print_score(parse_score(text.as_bytes()).unwrap()), printed, "{text}");
        }
        for text in ["", "nan", "1e400", "1e-400", " 1", "1 ", "abc", "--1"] {
            assert_eq!(parse_score(text.as_bytes()), None, "{text}");
        }
    }

    #[test]
    fn sortable_scores_sort() {
        let scores = [f64::NEG_INFINITY, -1e300, -1.0, -1e-300, 0.0, 5e-324, 1.0, f64::INFINITY];
        assert!(scores.is_sorted_by_key(|score| sortable(*score)));
        assert_eq!(scores.map(|score| unsorted(sortable(score))), scores);
    }
}
