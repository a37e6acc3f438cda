//! Ranges of sorted sets: by rank, by score, or by member where all scores are the same.

use std::ops::{Bound, Range};

use masstree::Guard;
use resp::{Protocol, write};

use crate::call::{ReadCall, WriteCall};
use crate::collection::{PopArguments, pop_arguments, pop_count};
use crate::error::{Error, Outcome};
use crate::lists::range;
use crate::numbers::integer;
use crate::store::Store;
use crate::value::{Head, Kind};
use crate::zsets::{SortedSet, by_score, parse_score, sortable, unsorted, write_score};

/// What the bounds of a range are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum By {
    Rank,
    Score,
    Member,
}

/// A range, the lower bound first.
enum Span<'a> {
    /// The first rank, and the last, perhaps counted from the end.
    Rank(i64, i64),
    Score(Bound<f64>, Bound<f64>),
    Member(Bound<&'a [u8]>, Bound<&'a [u8]>),
    Nothing,
}

impl<'a> Span<'a> {
    fn parse(by: By, low: &'a [u8], high: &'a [u8]) -> Result<Span<'a>, Error> {
        match by {
            By::Rank => Ok(Span::Rank(integer(low)?, integer(high)?)),
            By::Score => {
                let scores = score_bound(low).zip(score_bound(high));
                let (low, high) = scores.ok_or(Error::Text("ERR min or max is not a float"))?;
                Ok(Span::Score(low, high))
            }
            By::Member => {
                let (low_bound, high_bound) = (member_bound(low)?, member_bound(high)?);
                // Nothing is above the highest or below the lowest.
                if low == b"+" || high == b"-" {
                    return Ok(Span::Nothing);
                }
                Ok(Span::Member(low_bound, high_bound))
            }
        }
    }

    /// Whether an entry is below the range, or above it.
    fn compare(&self, score: f64, member: &[u8]) -> (bool, bool) {
        match self {
            Span::Rank(..) | Span::Nothing => (false, false),
            Span::Score(low, high) => (is_below(score, *low), is_above(score, *high)),
            Span::Member(low, high) => (is_below(member, *low), is_above(member, *high)),
        }
    }
}

fn is_below<T: PartialOrd>(item: T, low: Bound<T>) -> bool {
    match low {
        Bound::Included(low) => item < low,
        Bound::Excluded(low) => item <= low,
        Bound::Unbounded => false,
    }
}

fn is_above<T: PartialOrd>(item: T, high: Bound<T>) -> bool {
    match high {
        Bound::Included(high) => item > high,
        Bound::Excluded(high) => item >= high,
        Bound::Unbounded => false,
    }
}

fn score_bound(text: &[u8]) -> Option<Bound<f64>> {
    match text {
        [b'(', text @ ..] => Some(Bound::Excluded(parse_score(text)?)),
        text => Some(Bound::Included(parse_score(text)?)),
    }
}

fn member_bound(text: &[u8]) -> Result<Bound<&[u8]>, Error> {
    match text {
        b"-" | b"+" => Ok(Bound::Unbounded),
        [b'(', member @ ..] => Ok(Bound::Excluded(member)),
        [b'[', member @ ..] => Ok(Bound::Included(member)),
        _ => Err(Error::Text("ERR min or max not valid string range item")),
    }
}

/// A member and its score.
pub(crate) type Scored = (Vec<u8>, f64);

/// Visits all members in the order of their scores from `start` on, or from there backwards, until
/// `visit` returns false.
pub(crate) fn walk(
    store: &Store,
    guard: &Guard,
    head: Head,
    start: Option<&[u8]>,
    reverse: bool,
    mut visit: impl FnMut(&[u8], f64) -> bool,
) {
    let look = |entry: &[u8], _: &_| {
        let Some((key, member)) = entry.split_first_chunk::<8>() else { return true };
        visit(member, unsorted(*key))
    };
    if reverse {
        store.scan_fields_reverse(by_score(head), start, guard, look);
    } else {
        store.scan_fields(by_score(head), start.unwrap_or_default(), guard, look);
    }
}

/// Visits the members of a range until `visit` returns false.
fn each(
    store: &Store,
    guard: &Guard,
    head: Head,
    span: &Span<'_>,
    reverse: bool,
    mut visit: impl FnMut(&[u8], f64) -> bool,
) {
    let start = match span {
        Span::Nothing => return,
        Span::Rank(low, high) => {
            let ranks = range(head.count, *low, *high);
            return each_rank(store, guard, head, ranks, reverse, visit);
        }
        Span::Score(low, high) => score_start(if reverse { *high } else { *low }, reverse),
        Span::Member(low, high) => {
            let end = if reverse { *high } else { *low };
            member_start(store, guard, head, end, reverse)
        }
    };
    walk(store, guard, head, start.as_deref(), reverse, |member, score| {
        let (below, above) = span.compare(score, member);
        let (before, behind) = if reverse { (above, below) } else { (below, above) };
        !behind && (before || visit(member, score))
    });
}

/// Where a walk from a score starts.
fn score_start(end: Bound<f64>, reverse: bool) -> Option<Vec<u8>> {
    let (Bound::Included(score) | Bound::Excluded(score)) = end else { return None };
    let key = u64::from_be_bytes(sortable(score + 0.0));
    // Backwards, from the first entry above all of the score's.
    let key = if reverse { key.checked_add(1)? } else { key };
    Some(key.to_be_bytes().to_vec())
}

/// Where a walk from a member starts if all scores are the same.
fn member_start(
    store: &Store,
    guard: &Guard,
    head: Head,
    end: Bound<&[u8]>,
    reverse: bool,
) -> Option<Vec<u8>> {
    let (Bound::Included(member) | Bound::Excluded(member)) = end else { return None };
    let mut number = None;
    walk(store, guard, head, None, reverse, |_, score| {
        number = Some(score);
        false
    });
    // No member is longer than this, so that at most one too many is looked at.
    let member = &member[..member.len().min(crate::MAX_KEY_LEN)];
    Some([&sortable(number?)[..], member].concat())
}

/// Visits the members with these ranks, from the nearer end.
fn each_rank(
    store: &Store,
    guard: &Guard,
    head: Head,
    ranks: Range<u64>,
    reverse: bool,
    mut visit: impl FnMut(&[u8], f64) -> bool,
) {
    let wanted = ranks.end.saturating_sub(ranks.start);
    let (before, behind) = (ranks.start, head.count.saturating_sub(ranks.end));
    if wanted == 0 {
        return;
    }
    let (mut at, mut turned) = (0u64, Vec::new());
    if before <= behind {
        walk(store, guard, head, None, reverse, |member, score| {
            at += 1;
            at <= before || visit(member, score) && at < ranks.end
        });
        return;
    }
    walk(store, guard, head, None, !reverse, |member, score| {
        at += 1;
        if at > behind {
            turned.push((member.to_vec(), score));
        }
        (turned.len() as u64) < wanted
    });
    for (member, score) in turned.iter().rev() {
        if !visit(member, *score) {
            return;
        }
    }
}

/// A range as the arguments of a command say it.
struct Query<'a> {
    key: &'a [u8],
    span: Span<'a>,
    reverse: bool,
    offset: i64,
    limit: i64,
    with_scores: bool,
}

impl<'a> Query<'a> {
    /// From `key low high [BYSCORE|BYLEX] [REV] [LIMIT offset count] [WITHSCORES]`; what the
    /// command itself says is no option.
    fn parse(
        args: &[&'a [u8]],
        by: Option<By>,
        reverse: Option<bool>,
        stores: bool,
    ) -> Result<Query<'a>, Error> {
        let (mut given_by, mut given_reverse) = (by, reverse);
        let (mut offset, mut limit, mut with_scores) = (0, -1, false);
        let mut options = args[3..].iter();
        while let Some(option) = options.next() {
            let is = |name: &str| option.eq_ignore_ascii_case(name.as_bytes());
            if !stores && is("WITHSCORES") {
                with_scores = true;
            } else if is("LIMIT") && options.len() >= 2 {
                let mut number = || options.next().map_or(Err(Error::Syntax), |text| integer(text));
                (offset, limit) = (number()?, number()?);
            } else if reverse.is_none() && is("REV") {
                given_reverse = Some(true);
            } else if by.is_none() && given_by.is_none() && is("BYLEX") {
                given_by = Some(By::Member);
            } else if by.is_none() && given_by.is_none() && is("BYSCORE") {
                given_by = Some(By::Score);
            } else {
                return Err(Error::Syntax);
            }
        }
        let by = given_by.unwrap_or(By::Rank);
        let reverse = given_reverse.unwrap_or(false);
        if limit != -1 && by == By::Rank {
            return Err(Error::Text(LIMITED_RANKS));
        }
        if with_scores && by == By::Member {
            return Err(Error::Text(
                "ERR syntax error, WITHSCORES not supported in combination with BYLEX",
            ));
        }
        let swapped = reverse && by != By::Rank;
        let (low, high) = if swapped { (args[2], args[1]) } else { (args[1], args[2]) };
        let span = Span::parse(by, low, high)?;
        Ok(Query { key: args[0], span, reverse, offset, limit, with_scores })
    }

    fn find(&self, store: &Store, guard: &Guard, head: Option<Head>) -> Vec<Scored> {
        let mut found = Vec::new();
        let (Some(head), Ok(offset)) = (head, u64::try_from(self.offset)) else { return found };
        let limit = usize::try_from(self.limit).unwrap_or(usize::MAX);
        if limit == 0 || offset >= head.count && offset > 0 {
            return found;
        }
        let mut skipped = 0;
        each(store, guard, head, &self.span, self.reverse, |member, score| {
            if skipped < offset {
                skipped += 1;
                return true;
            }
            found.push((member.to_vec(), score));
            found.len() < limit
        });
        found
    }
}

const LIMITED_RANKS: &str = "ERR syntax error, LIMIT is only supported in combination with either \
    BYSCORE or BYLEX";

/// Appends members, with their scores behind them or, in RESP3, in pairs.
pub(crate) fn write_scored(
    reply: &mut Vec<u8>,
    protocol: Protocol,
    members: &[Scored],
    with_scores: bool,
) {
    let flat = with_scores && protocol == Protocol::V2;
    write::array(reply, if flat { members.len() * 2 } else { members.len() });
    for (member, score) in members {
        if with_scores && !flat {
            write::array(reply, 2);
        }
        write::bulk(reply, member);
        if with_scores {
            write_score(reply, protocol, *score);
        }
    }
}

fn reply_range(
    call: &mut ReadCall<'_>,
    args: &[&[u8]],
    by: Option<By>,
    reverse: Option<bool>,
) -> Outcome {
    let query = Query::parse(args, by, reverse, false)?;
    let head = call.head(query.key, Kind::SortedSet)?;
    let found = query.find(call.store, call.guard, head);
    write_scored(call.reply, call.protocol, &found, query.with_scores);
    Ok(())
}

/// `ZRANGE key start stop [BYSCORE|BYLEX] [REV] [LIMIT offset count] [WITHSCORES]`
pub(crate) fn zrange(call: &mut ReadCall<'_>, args: &[&[u8]]) -> Outcome {
    reply_range(call, args, None, None)
}

/// `ZREVRANGE key start stop [WITHSCORES]`
pub(crate) fn zrevrange(call: &mut ReadCall<'_>, args: &[&[u8]]) -> Outcome {
    reply_range(call, args, Some(By::Rank), Some(true))
}

/// `ZRANGEBYSCORE key min max [WITHSCORES] [LIMIT offset count]`
pub(crate) fn zrangebyscore(call: &mut ReadCall<'_>, args: &[&[u8]]) -> Outcome {
    reply_range(call, args, Some(By::Score), Some(false))
}

/// `ZREVRANGEBYSCORE key max min [WITHSCORES] [LIMIT offset count]`
pub(crate) fn zrevrangebyscore(call: &mut ReadCall<'_>, args: &[&[u8]]) -> Outcome {
    reply_range(call, args, Some(By::Score), Some(true))
}

/// `ZRANGEBYLEX key min max [LIMIT offset count]`
pub(crate) fn zrangebylex(call: &mut ReadCall<'_>, args: &[&[u8]]) -> Outcome {
    reply_range(call, args, Some(By::Member), Some(false))
}

/// `ZREVRANGEBYLEX key max min [LIMIT offset count]`
pub(crate) fn zrevrangebylex(call: &mut ReadCall<'_>, args: &[&[u8]]) -> Outcome {
    reply_range(call, args, Some(By::Member), Some(true))
}

/// Makes a key a sorted set of these members, or removes it if there are none.
pub(crate) fn store_scored(call: &mut WriteCall<'_>, key: &[u8], members: &[Scored]) {
    if !members.is_empty() {
        let mut set = SortedSet::new(call);
        for (member, score) in members {
            set.set(call, member, *score);
        }
        set.close(call, key);
    } else if call.live(key).is_some() {
        call.remove(key);
    }
    write::integer(call.reply, members.len() as i64);
}

/// `ZRANGESTORE destination source start stop [BYSCORE|BYLEX] [REV] [LIMIT offset count]`
pub(crate) fn zrangestore(call: &mut WriteCall<'_>, args: &[&[u8]]) -> Outcome {
    let query = Query::parse(&args[1..], None, None, true)?;
    let head = call.head(query.key, Kind::SortedSet)?;
    let found = query.find(call.store, call.guard, head);
    store_scored(call, args[0], &found);
    Ok(())
}

fn count(call: &mut ReadCall<'_>, args: &[&[u8]], by: By) -> Outcome {
    let span = Span::parse(by, args[1], args[2])?;
    let mut count = 0;
    if let Some(head) = call.head(args[0], Kind::SortedSet)? {
        each(call.store, call.guard, head, &span, false, |_, _| {
            count += 1;
            true
        });
    }
    write::integer(call.reply, count);
    Ok(())
}

/// `ZCOUNT key min max`
pub(crate) fn zcount(call: &mut ReadCall<'_>, args: &[&[u8]]) -> Outcome {
    count(call, args, By::Score)
}

/// `ZLEXCOUNT key min max`
pub(crate) fn zlexcount(call: &mut ReadCall<'_>, args: &[&[u8]]) -> Outcome {
    count(call, args, By::Member)
}

fn remove(call: &mut WriteCall<'_>, args: &[&[u8]], by: By) -> Outcome {
    let span = Span::parse(by, args[1], args[2])?;
    let mut found = Vec::new();
    if let Some(mut set) = SortedSet::existing(call, args[0])? {
        each(call.store, call.guard, set.0.head, &span, false, |member, _| {
            found.push(member.to_vec());
            true
        });
        for member in &found {
            set.remove(call, member);
        }
        if !found.is_empty() {
            set.close(call, args[0]);
        }
    }
    write::integer(call.reply, found.len() as i64);
    Ok(())
}

/// `ZREMRANGEBYRANK key start stop`
pub(crate) fn zremrangebyrank(call: &mut WriteCall<'_>, args: &[&[u8]]) -> Outcome {
    remove(call, args, By::Rank)
}

/// `ZREMRANGEBYSCORE key min max`
pub(crate) fn zremrangebyscore(call: &mut WriteCall<'_>, args: &[&[u8]]) -> Outcome {
    remove(call, args, By::Score)
}

/// `ZREMRANGEBYLEX key min max`
pub(crate) fn zremrangebylex(call: &mut WriteCall<'_>, args: &[&[u8]]) -> Outcome {
    remove(call, args, By::Member)
}

fn pop(call: &mut WriteCall<'_>, args: &[&[u8]], highest: bool) -> Outcome {
    let count = pop_count(&args[1..])?;
    let wanted = count.unwrap_or(1);
    let found = match SortedSet::existing(call, args[0])? {
        Some(set) if wanted > 0 => pop_several(call, set, args[0], highest, wanted),
        _ => Vec::new(),
    };
    match (count, found.first()) {
        (None, Some((member, score))) => {
            write::array(call.reply, 2);
            write::bulk(call.reply, member);
            write_score(call.reply, call.protocol, *score);
        }
        _ => write_scored(call.reply, call.protocol, &found, true),
    }
    Ok(())
}

/// Removes members at one end, and returns them.
fn pop_several(
    call: &mut WriteCall<'_>,
    mut set: SortedSet,
    key: &[u8],
    highest: bool,
    count: usize,
) -> Vec<Scored> {
    let mut found = Vec::new();
    walk(call.store, call.guard, set.0.head, None, highest, |member, score| {
        found.push((member.to_vec(), score));
        found.len() < count
    });
    for (member, _) in &found {
        set.remove(call, member);
    }
    set.close(call, key);
    found
}

/// `ZMPOP numkeys key ... MIN|MAX [COUNT n]`
pub(crate) fn zmpop(call: &mut WriteCall<'_>, args: &[&[u8]]) -> Outcome {
    let PopArguments { keys, end, count } = pop_arguments(args)?;
    let highest = match &end.to_ascii_uppercase()[..] {
        b"MIN" => false,
        b"MAX" => true,
        _ => return Err(Error::Syntax),
    };
    for key in keys {
        let Some(set) = SortedSet::existing(call, key)? else { continue };
        let found = pop_several(call, set, key, highest, count);
        write::array(call.reply, 2);
        write::bulk(call.reply, key);
        write::array(call.reply, found.len());
        for (member, score) in found {
            write::array(call.reply, 2);
            write::bulk(call.reply, &member);
            write_score(call.reply, call.protocol, score);
        }
        return Ok(());
    }
    write::null_array(call.reply, call.protocol);
    Ok(())
}

/// `ZPOPMIN key [count]`
pub(crate) fn zpopmin(call: &mut WriteCall<'_>, args: &[&[u8]]) -> Outcome {
    pop(call, args, false)
}

/// `ZPOPMAX key [count]`
pub(crate) fn zpopmax(call: &mut WriteCall<'_>, args: &[&[u8]]) -> Outcome {
    pop(call, args, true)
}
