//! HRANDFIELD, SRANDMEMBER and ZRANDMEMBER.

use resp::{Protocol, write};

use crate::call::ReadCall;
use crate::error::{Error, Outcome};
use crate::numbers::integer;
use crate::random::{Entry, Pool};
use crate::value::{Kind, Value};
use crate::zsets::{score_of, write_score};

/// The most fields that a negative count may ask for.
const MOST: usize = 1 << 24;

/// The entries to draw from.
fn pool<'a>(call: &ReadCall<'a>, id: u64, count: u64) -> Pool<'a> {
    Pool { store: call.store, guard: call.guard, seed: call.seed, id, count }
}

/// `HRANDFIELD key [count [WITHVALUES]]`
pub(crate) fn hrandfield(call: &mut ReadCall<'_>, args: &[&[u8]]) -> Outcome {
    let Some((count, with_values)) = parse(&args[1..], "WITHVALUES")? else {
        let head = call.hash(args[0])?;
        let field = head.and_then(|head| pool(call, head.id, head.count).repeated(1).pop());
        match field {
            Some((field, _)) => write::bulk(call.reply, &field),
            None => write::null(call.reply, call.protocol),
        }
        return Ok(());
    };
    let Some(head) = call.hash(args[0])? else {
        write::array(call.reply, 0);
        return Ok(());
    };
    let fields = drawn(&pool(call, head.id, head.count), count)?;
    reply(call, &fields, with_values, |call, value| write::bulk(call.reply, &value.slice));
    Ok(())
}

/// That many entries: each at most once, or, of a negative count, drawn each time from all.
fn drawn(pool: &Pool<'_>, count: i64) -> Result<Vec<Entry>, Error> {
    let wanted = usize::try_from(count.unsigned_abs()).unwrap_or(usize::MAX);
    if count >= 0 {
        Ok(pool.distinct(wanted))
    } else if wanted <= MOST {
        Ok(pool.repeated(wanted))
    } else {
        Err(Error::Text("ERR value is out of range"))
    }
}

/// `SRANDMEMBER key [count]`
pub(crate) fn srandmember(call: &mut ReadCall<'_>, args: &[&[u8]]) -> Outcome {
    let count = match &args[1..] {
        [] => None,
        [count] => Some(integer(count)?),
        _ => return Err(Error::Syntax),
    };
    let head = call.head(args[0], Kind::Set)?;
    match (count, head) {
        (None, head) => {
            let member = head.and_then(|head| pool(call, head.id, head.count).repeated(1).pop());
            match member {
                Some((member, _)) => write::bulk(call.reply, &member),
                None => write::null(call.reply, call.protocol),
            }
        }
        (Some(_), None) => write::array(call.reply, 0),
        (Some(count), Some(head)) => {
            let members = drawn(&pool(call, head.id, head.count), count)?;
            reply(call, &members, false, |_, _| ());
        }
    }
    Ok(())
}

/// `ZRANDMEMBER key [count [WITHSCORES]]`
pub(crate) fn zrandmember(call: &mut ReadCall<'_>, args: &[&[u8]]) -> Outcome {
    let Some((count, with_scores)) = parse(&args[1..], "WITHSCORES")? else {
        let head = call.head(args[0], Kind::SortedSet)?;
        let member = head.and_then(|head| pool(call, head.id, head.count).repeated(1).pop());
        match member {
            Some((member, _)) => write::bulk(call.reply, &member),
            None => write::null(call.reply, call.protocol),
        }
        return Ok(());
    };
    let Some(head) = call.head(args[0], Kind::SortedSet)? else {
        write::array(call.reply, 0);
        return Ok(());
    };
    let members = drawn(&pool(call, head.id, head.count), count)?;
    reply(call, &members, with_scores, |call, value| {
        write_score(call.reply, call.protocol, score_of(value));
    });
    Ok(())
}

fn parse(args: &[&[u8]], option_name: &str) -> Result<Option<(i64, bool)>, Error> {
    let Some((count, rest)) = args.split_first() else { return Ok(None) };
    let count = integer(count)?;
    if count == i64::MIN {
        return Err(Error::Owned(format!(
            "ERR value is out of range, value must between {} and {}",
            -i64::MAX,
            i64::MAX
        )));
    }
    match rest {
        [] => Ok(Some((count, false))),
        [option] if option.eq_ignore_ascii_case(option_name.as_bytes()) => {
            if count.abs() > i64::MAX / 2 {
                return Err(Error::Text("ERR value is out of range"));
            }
            Ok(Some((count, true)))
        }
        _ => Err(Error::Syntax),
    }
}

fn reply(
    call: &mut ReadCall<'_>,
    entries: &[Entry],
    with_values: bool,
    write_value: impl Fn(&mut ReadCall<'_>, &Value),
) {
    let flat = with_values && call.protocol == Protocol::V2;
    write::array(call.reply, if flat { entries.len() * 2 } else { entries.len() });
    for (entry, value) in entries {
        if with_values && !flat {
            write::array(call.reply, 2);
        }
        write::bulk(call.reply, entry);
        if with_values {
            write_value(call, value);
        }
    }
}
