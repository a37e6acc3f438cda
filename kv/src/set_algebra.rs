//! Intersections, unions and differences of sets.

use std::collections::BTreeSet;

use masstree::Guard;
use resp::write;

use crate::call::{ReadCall, WriteCall};
use crate::error::{Error, Outcome};
use crate::numbers::integer;
use crate::sets::{Set, contains};
use crate::store::Store;
use crate::value::{Head, Kind};

#[derive(Clone, Copy)]
enum Operation {
    Intersection,
    Union,
    Difference,
}

/// Visits members of all of the sets until `visit` returns false.
fn intersect(
    store: &Store,
    guard: &Guard,
    sets: &[Option<Head>],
    mut visit: impl FnMut(&[u8]) -> bool,
) {
    let sets: Option<Vec<Head>> = sets.iter().copied().collect();
    let Some(smallest) = sets.iter().flatten().min_by_key(|head| head.count) else { return };
    store.scan_fields(smallest.id, b"", guard, |member, _| {
        let in_all = sets.iter().flatten().all(|head| contains(store, guard, *head, member));
        !in_all || visit(member)
    });
}

fn compute(
    store: &Store,
    guard: &Guard,
    operation: Operation,
    sets: &[Option<Head>],
) -> BTreeSet<Vec<u8>> {
    let mut members = BTreeSet::new();
    match operation {
        Operation::Intersection => intersect(store, guard, sets, |member| {
            members.insert(member.to_vec());
            true
        }),
        Operation::Union => {
            for head in sets.iter().flatten() {
                store.scan_fields(head.id, b"", guard, |member, _| {
                    members.insert(member.to_vec());
                    true
                });
            }
        }
        Operation::Difference => {
            let Some((Some(first), others)) = sets.split_first() else { return members };
            store.scan_fields(first.id, b"", guard, |member, _| {
                let mut others = others.iter().flatten();
                if !others.any(|head| contains(store, guard, *head, member)) {
                    members.insert(member.to_vec());
                }
                true
            });
        }
    }
    members
}

fn answer(call: &mut ReadCall<'_>, args: &[&[u8]], operation: Operation) -> Outcome {
    let sets: Result<Vec<_>, _> = args.iter().map(|key| call.head(key, Kind::Set)).collect();
    let members = compute(call.store, call.guard, operation, &sets?);
    write::set(call.reply, call.protocol, members.len());
    for member in members {
        write::bulk(call.reply, &member);
    }
    Ok(())
}

fn store(call: &mut WriteCall<'_>, args: &[&[u8]], operation: Operation) -> Outcome {
    let sets: Result<Vec<_>, _> = args[1..].iter().map(|key| call.head(key, Kind::Set)).collect();
    let members = compute(call.store, call.guard, operation, &sets?);
    let count = members.len();
    if count > 0 {
        let mut set = Set::new(call);
        for member in members {
            set.add(call, &member);
        }
        set.close(call, args[0]);
    } else if call.live(args[0]).is_some() {
        call.remove(args[0]);
    }
    write::integer(call.reply, count as i64);
    Ok(())
}

/// `SINTER key ...`
pub(crate) fn sinter(call: &mut ReadCall<'_>, args: &[&[u8]]) -> Outcome {
    answer(call, args, Operation::Intersection)
}

/// `SUNION key ...`
pub(crate) fn sunion(call: &mut ReadCall<'_>, args: &[&[u8]]) -> Outcome {
    answer(call, args, Operation::Union)
}

/// `SDIFF key ...`
pub(crate) fn sdiff(call: &mut ReadCall<'_>, args: &[&[u8]]) -> Outcome {
    answer(call, args, Operation::Difference)
}

/// `SINTERSTORE destination key ...`
pub(crate) fn sinterstore(call: &mut WriteCall<'_>, args: &[&[u8]]) -> Outcome {
    store(call, args, Operation::Intersection)
}

/// `SUNIONSTORE destination key ...`
pub(crate) fn sunionstore(call: &mut WriteCall<'_>, args: &[&[u8]]) -> Outcome {
    store(call, args, Operation::Union)
}

/// `SDIFFSTORE destination key ...`
pub(crate) fn sdiffstore(call: &mut WriteCall<'_>, args: &[&[u8]]) -> Outcome {
    store(call, args, Operation::Difference)
}

/// The keys of `numkeys key ... [LIMIT n]`, and the limit.
fn cardinality_arguments<'a, 'b>(args: &'a [&'b [u8]]) -> Result<(&'a [&'b [u8]], u64), Error> {
    let refused = Error::Text("ERR numkeys should be greater than 0");
    let count = integer(args[0]).map_err(|_| refused.clone())?;
    let count = usize::try_from(count).ok().filter(|&count| count > 0).ok_or(refused)?;
    let Some((keys, rest)) = args[1..].split_at_checked(count) else {
        return Err(Error::Text("ERR Number of keys can't be greater than number of args"));
    };
    let (pairs, rest) = rest.as_chunks::<2>();
    let mut limit = 0;
    for [name, number] in pairs {
        if !name.eq_ignore_ascii_case(b"LIMIT") {
            return Err(Error::Syntax);
        }
        let refused = Error::Text("ERR LIMIT can't be negative");
        let number = integer(number).map_err(|_| refused.clone())?;
        limit = u64::try_from(number).map_err(|_| refused)?;
    }
    if !rest.is_empty() {
        return Err(Error::Syntax);
    }
    if keys.iter().any(|key| key.len() > crate::MAX_KEY_LEN) {
        return Err(Error::KeyTooLong);
    }
    Ok((keys, if limit == 0 { u64::MAX } else { limit }))
}

/// `SINTERCARD numkeys key ... [LIMIT n]`
pub(crate) fn sintercard(call: &mut ReadCall<'_>, args: &[&[u8]]) -> Outcome {
    let (keys, limit) = cardinality_arguments(args)?;
    let sets: Result<Vec<_>, _> = keys.iter().map(|key| call.head(key, Kind::Set)).collect();
    let mut count = 0;
    intersect(call.store, call.guard, &sets?, |_| {
        count += 1;
        count < limit
    });
    write::integer(call.reply, count as i64);
    Ok(())
}
