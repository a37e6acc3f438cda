//! Times to live of single fields of a hash, as Redis has them since 7.4.
//!
//! A hash's head knows when the first of its fields expires, and the expiry index has the hash
//! under that time. Whoever comes to the hash later than that removes what has expired first, which
//! looks at all of the hash's fields; so no other command has to know that fields expire.

use resp::{parse_i64, write};

use crate::call::{ReadCall, WriteCall};
use crate::error::{Error, Outcome};
use crate::expiry::{Conditions, Expiry, Unit};
use crate::hashes::{open, with_field_value};
use crate::numbers::integer;

const NO_FIELD: i64 = -2;
const NO_TIME: i64 = -1;

/// The fields in `FIELDS n field ...`.
fn fields<'a, 'b>(args: &'a [&'b [u8]]) -> Result<&'a [&'b [u8]], Error> {
    let [word, count, fields @ ..] = args else { return Err(Error::Arity) };
    if !word.eq_ignore_ascii_case(b"FIELDS") {
        return Err(Error::Text(
            "ERR Mandatory argument FIELDS is missing or not at the right position",
        ));
    }
    match parse_i64(count) {
        Some(count) if count > 0 && count as usize == fields.len() => Ok(fields),
        Some(count) if count > 0 => {
            Err(Error::Text("ERR The `numfields` parameter must match the number of arguments"))
        }
        _ => Err(Error::Text("ERR Parameter `numFields` should be greater than 0")),
    }
}

fn expire_in(call: &mut WriteCall<'_>, args: &[&[u8]], unit: Unit) -> Outcome {
    let unconditional = args[2].eq_ignore_ascii_case(b"FIELDS");
    let (options, rest) = args[2..].split_at(usize::from(!unconditional));
    let conditions = Conditions::parse(options)?;
    let number = integer(args[1])?;
    if number < 0 {
        return Err(Error::Text("ERR invalid expire time, must be >= 0"));
    }
    let when = Expiry::any(number, unit, call.unix_ms)?;
    let fields = fields(rest)?;
    let mut hash = open(call, args[0])?;
    write::array(call.reply, fields.len());
    let mut changed = false;
    for field in fields {
        let old = hash.get(call, field);
        let outcome = match &old {
            None => NO_FIELD,
            Some(old) if !conditions.allow(old.header.header.expire_ms, when) => 0,
            Some(old) => match u64::try_from(when) {
                Ok(when) if when > call.unix_ms => {
                    hash.set(call, field, when, &old.slice);
                    1
                }
                _ => {
                    hash.remove(call, field);
                    2
                }
            },
        };
        changed |= outcome > 0;
        write::integer(call.reply, outcome);
    }
    if changed {
        hash.close(call, args[0]);
    }
    Ok(())
}

/// `HEXPIRE key seconds [NX|XX|GT|LT] FIELDS n field ...`
pub(crate) fn hexpire(call: &mut WriteCall<'_>, args: &[&[u8]]) -> Outcome {
    expire_in(call, args, Unit::Seconds)
}

/// `HPEXPIRE key milliseconds [NX|XX|GT|LT] FIELDS n field ...`
pub(crate) fn hpexpire(call: &mut WriteCall<'_>, args: &[&[u8]]) -> Outcome {
    expire_in(call, args, Unit::Milliseconds)
}

/// `HEXPIREAT key seconds [NX|XX|GT|LT] FIELDS n field ...`
pub(crate) fn hexpireat(call: &mut WriteCall<'_>, args: &[&[u8]]) -> Outcome {
    expire_in(call, args, Unit::UnixSeconds)
}

/// `HPEXPIREAT key milliseconds [NX|XX|GT|LT] FIELDS n field ...`
pub(crate) fn hpexpireat(call: &mut WriteCall<'_>, args: &[&[u8]]) -> Outcome {
    expire_in(call, args, Unit::UnixMilliseconds)
}

/// `HPERSIST key FIELDS n field ...`
pub(crate) fn hpersist(call: &mut WriteCall<'_>, args: &[&[u8]]) -> Outcome {
    let fields = fields(&args[1..])?;
    let mut hash = open(call, args[0])?;
    write::array(call.reply, fields.len());
    let mut changed = false;
    for field in fields {
        let outcome = match hash.get(call, field) {
            None => NO_FIELD,
            Some(old) if old.header.header.expire_ms == 0 => NO_TIME,
            Some(old) => {
                hash.set(call, field, 0, &old.slice);
                changed = true;
                1
            }
        };
        write::integer(call.reply, outcome);
    }
    if changed {
        hash.close(call, args[0]);
    }
    Ok(())
}

/// Replies with what `show` makes of each field's time and the present.
fn times(call: &mut ReadCall<'_>, args: &[&[u8]], show: impl Fn(u64, u64) -> u64) -> Outcome {
    let fields = fields(&args[1..])?;
    let head = call.hash(args[0])?;
    write::array(call.reply, fields.len());
    let now = call.unix_ms;
    for field in fields {
        let time = with_field_value(call, head, field, |value, _| value.header.header.expire_ms);
        let number = match time {
            None => NO_FIELD,
            Some(0) => NO_TIME,
            Some(expire_ms) => show(expire_ms, now) as i64,
        };
        write::integer(call.reply, number);
    }
    Ok(())
}

/// Milliseconds in whole seconds, a part counted as one.
fn seconds(ms: u64) -> u64 {
    ms.div_ceil(1000)
}

/// `HTTL key FIELDS n field ...`
pub(crate) fn httl(call: &mut ReadCall<'_>, args: &[&[u8]]) -> Outcome {
    times(call, args, |expire_ms, now| seconds(expire_ms.saturating_sub(now)))
}

/// `HPTTL key FIELDS n field ...`
pub(crate) fn hpttl(call: &mut ReadCall<'_>, args: &[&[u8]]) -> Outcome {
    times(call, args, |expire_ms, now| expire_ms.saturating_sub(now))
}

/// `HEXPIRETIME key FIELDS n field ...`
pub(crate) fn hexpiretime(call: &mut ReadCall<'_>, args: &[&[u8]]) -> Outcome {
    times(call, args, |expire_ms, _| seconds(expire_ms))
}

/// `HPEXPIRETIME key FIELDS n field ...`
pub(crate) fn hpexpiretime(call: &mut ReadCall<'_>, args: &[&[u8]]) -> Outcome {
    times(call, args, |expire_ms, _| expire_ms)
}
