//! Unions, intersections and differences of sorted sets. A set counts as one with scores of 1.

use std::collections::BTreeMap;

use masstree::Guard;
use resp::write;

use crate::call::{ReadCall, WriteCall};
use crate::collection::get_entry;
use crate::error::{Error, Outcome};
use crate::numbers::integer;
use crate::store::Store;
use crate::value::{Head, Kind, Value};
use crate::zset_ranges::{Scored, store_scored, write_scored};
use crate::zsets::{parse_score, score_of};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Operation {
    Union,
    Intersection,
    Difference,
}

#[derive(Clone, Copy)]
enum Aggregate {
    Sum,
    Least,
    Greatest,
}

impl Aggregate {
    fn apply(self, one: f64, other: f64) -> f64 {
        match self {
            // The sum of opposite infinities is 0, too.
            Aggregate::Sum => or_zero(one + other),
            Aggregate::Least => {
                if other < one {
                    other
                } else {
                    one
                }
            }
            Aggregate::Greatest => {
                if other > one {
                    other
                } else {
                    one
                }
            }
        }
    }
}

fn or_zero(score: f64) -> f64 {
    if score.is_nan() { 0.0 } else { score }
}

/// A set or sorted set that takes part.
#[derive(Clone, Copy)]
struct Source {
    head: Option<Head>,
    has_scores: bool,
    weight: f64,
}

impl Source {
    fn new(value: Option<Value>) -> Result<Source, Error> {
        let Some(value) = value else {
            return Ok(Source { head: None, has_scores: false, weight: 1.0 });
        };
        let kind = value.header.header.kind();
        if !matches!(kind, Kind::Set | Kind::SortedSet) {
            return Err(Error::WrongType);
        }
        let head = Head::of(&value, kind);
        Ok(Source { head, has_scores: kind == Kind::SortedSet, weight: 1.0 })
    }

    fn count(&self) -> u64 {
        self.head.map_or(0, |head| head.count)
    }

    fn score_in(&self, value: &Value) -> f64 {
        if self.has_scores { score_of(value) } else { 1.0 }
    }

    fn score(&self, store: &Store, guard: &Guard, member: &[u8]) -> Option<f64> {
        get_entry(store, guard, self.head?.id, member).map(|value| self.score_in(&value))
    }

    fn each(&self, store: &Store, guard: &Guard, mut visit: impl FnMut(&[u8], f64) -> bool) {
        let Some(head) = self.head else { return };
        store.scan_fields(head.id, b"", guard, |member, value| visit(member, self.score_in(value)));
    }
}

/// Visits what is in all of the sources, with its score, until `visit` returns false.
fn intersect(
    store: &Store,
    guard: &Guard,
    sources: &[Source],
    aggregate: Aggregate,
    mut visit: impl FnMut(&[u8], f64) -> bool,
) {
    let Some((first, others)) = sources.split_first() else { return };
    first.each(store, guard, |member, score| {
        let start = or_zero(score * first.weight);
        let whole = others.iter().try_fold(start, |sum, other| {
            let score = other.score(store, guard, member)?;
            Some(aggregate.apply(sum, score * other.weight))
        });
        whole.is_none_or(|score| visit(member, score))
    });
}

/// The members that an operation leaves, in the order of their scores.
fn compute(
    store: &Store,
    guard: &Guard,
    operation: Operation,
    request: &mut Request,
) -> Vec<Scored> {
    let Request { sources, aggregate, .. } = request;
    if operation != Operation::Difference {
        // Sums of floats depend on the order, and this is Redis's.
        sources.sort_by_key(Source::count);
    }
    let mut members: Vec<Scored> = Vec::new();
    match operation {
        Operation::Intersection => intersect(store, guard, sources, *aggregate, |member, score| {
            members.push((member.to_vec(), score));
            true
        }),
        Operation::Union => {
            let mut union: BTreeMap<Vec<u8>, f64> = BTreeMap::new();
            for source in sources.iter() {
                source.each(store, guard, |member, score| {
                    let score = or_zero(score * source.weight);
                    union
                        .entry(member.to_vec())
                        .and_modify(|sum| *sum = aggregate.apply(*sum, score))
                        .or_insert(score);
                    true
                });
            }
            members.extend(union);
        }
        Operation::Difference => {
            let Some((first, others)) = sources.split_first() else { return members };
            first.each(store, guard, |member, score| {
                if others.iter().all(|other| other.score(store, guard, member).is_none()) {
                    members.push((member.to_vec(), score));
                }
                true
            });
        }
    }
    members.sort_by(|(a, x), (b, y)| {
        x.partial_cmp(y).unwrap_or(std::cmp::Ordering::Equal).then_with(|| a.cmp(b))
    });
    members
}

/// What the arguments ask for.
struct Request {
    sources: Vec<Source>,
    aggregate: Aggregate,
    with_scores: bool,
    limit: u64,
}

/// What a command does with what it computes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Wanted {
    Members,
    Stored,
    Count,
}

/// Which options a command has.
#[derive(Clone, Copy)]
struct Form {
    name: &'static str,
    operation: Operation,
    result: Wanted,
}

impl Request {
    /// From `numkeys key ... [WEIGHTS weight ...] [AGGREGATE SUM|MIN|MAX] [WITHSCORES]`.
    fn parse(
        args: &[&[u8]],
        form: Form,
        mut live: impl FnMut(&[u8]) -> Option<Value>,
    ) -> Result<Request, Error> {
        let count = integer(args[0])?;
        let Some(count) = usize::try_from(count).ok().filter(|&count| count > 0) else {
            let name = form.name;
            return Err(Error::Owned(format!(
                "ERR at least 1 input key is needed for '{name}' command"
            )));
        };
        let (keys, mut rest) = args[1..].split_at_checked(count).ok_or(Error::Syntax)?;
        if keys.iter().any(|key| key.len() > crate::MAX_KEY_LEN) {
            return Err(Error::KeyTooLong);
        }
        let sources: Result<Vec<_>, _> = keys.iter().map(|key| Source::new(live(key))).collect();
        let mut request = Request {
            sources: sources?,
            aggregate: Aggregate::Sum,
            with_scores: false,
            limit: u64::MAX,
        };
        let computes = form.operation != Operation::Difference && form.result != Wanted::Count;
        while let [option, behind @ ..] = rest {
            let is = |name: &str| option.eq_ignore_ascii_case(name.as_bytes());
            rest = if computes && is("WEIGHTS") && behind.len() >= count {
                for (source, weight) in request.sources.iter_mut().zip(behind) {
                    source.weight = parse_score(weight)
                        .ok_or(Error::Text("ERR weight value is not a float"))?;
                }
                &behind[count..]
            } else if computes && is("AGGREGATE") && !behind.is_empty() {
                request.aggregate = match &behind[0].to_ascii_uppercase()[..] {
                    b"SUM" => Aggregate::Sum,
                    b"MIN" => Aggregate::Least,
                    b"MAX" => Aggregate::Greatest,
                    _ => return Err(Error::Syntax),
                };
                &behind[1..]
            } else if form.result == Wanted::Members && is("WITHSCORES") {
                request.with_scores = true;
                behind
            } else if form.result == Wanted::Count && is("LIMIT") && !behind.is_empty() {
                let refused = Error::Text("ERR LIMIT can't be negative");
                let limit = integer(behind[0]).map_err(|_| refused.clone())?;
                let limit = u64::try_from(limit).map_err(|_| refused)?;
                request.limit = if limit == 0 { u64::MAX } else { limit };
                &behind[1..]
            } else {
                return Err(Error::Syntax);
            };
        }
        Ok(request)
    }
}

fn answer(
    call: &mut ReadCall<'_>,
    args: &[&[u8]],
    name: &'static str,
    operation: Operation,
) -> Outcome {
    let form = Form { name, operation, result: Wanted::Members };
    let mut request = Request::parse(args, form, |key| call.live(key))?;
    let members = compute(call.store, call.guard, operation, &mut request);
    write_scored(call.reply, call.protocol, &members, request.with_scores);
    Ok(())
}

fn store(
    call: &mut WriteCall<'_>,
    args: &[&[u8]],
    name: &'static str,
    operation: Operation,
) -> Outcome {
    let form = Form { name, operation, result: Wanted::Stored };
    let mut request = Request::parse(&args[1..], form, |key| call.live(key))?;
    let members = compute(call.store, call.guard, operation, &mut request);
    store_scored(call, args[0], &members);
    Ok(())
}

/// `ZUNION numkeys key ... [WEIGHTS weight ...] [AGGREGATE SUM|MIN|MAX] [WITHSCORES]`
pub(crate) fn zunion(call: &mut ReadCall<'_>, args: &[&[u8]]) -> Outcome {
    answer(call, args, "zunion", Operation::Union)
}

/// `ZINTER numkeys key ... [WEIGHTS weight ...] [AGGREGATE SUM|MIN|MAX] [WITHSCORES]`
pub(crate) fn zinter(call: &mut ReadCall<'_>, args: &[&[u8]]) -> Outcome {
    answer(call, args, "zinter", Operation::Intersection)
}

/// `ZDIFF numkeys key ... [WITHSCORES]`
pub(crate) fn zdiff(call: &mut ReadCall<'_>, args: &[&[u8]]) -> Outcome {
    answer(call, args, "zdiff", Operation::Difference)
}

/// `ZUNIONSTORE destination numkeys key ... [WEIGHTS weight ...] [AGGREGATE SUM|MIN|MAX]`
pub(crate) fn zunionstore(call: &mut WriteCall<'_>, args: &[&[u8]]) -> Outcome {
    store(call, args, "zunionstore", Operation::Union)
}

/// `ZINTERSTORE destination numkeys key ... [WEIGHTS weight ...] [AGGREGATE SUM|MIN|MAX]`
pub(crate) fn zinterstore(call: &mut WriteCall<'_>, args: &[&[u8]]) -> Outcome {
    store(call, args, "zinterstore", Operation::Intersection)
}

/// `ZDIFFSTORE destination numkeys key ...`
pub(crate) fn zdiffstore(call: &mut WriteCall<'_>, args: &[&[u8]]) -> Outcome {
    store(call, args, "zdiffstore", Operation::Difference)
}

/// `ZINTERCARD numkeys key ... [LIMIT n]`
pub(crate) fn zintercard(call: &mut ReadCall<'_>, args: &[&[u8]]) -> Outcome {
    let form =
        Form { name: "zintercard", operation: Operation::Intersection, result: Wanted::Count };
    let mut request = Request::parse(args, form, |key| call.live(key))?;
    request.sources.sort_by_key(Source::count);
    let mut count = 0;
    intersect(call.store, call.guard, &request.sources, Aggregate::Sum, |_, _| {
        count += 1;
        count < request.limit
    });
    write::integer(call.reply, count as i64);
    Ok(())
}
