//! Times to live.

use resp::write;

use crate::call::{ReadCall, WriteCall};
use crate::error::{Error, Outcome};
use crate::numbers::integer;

/// What a time argument counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Unit {
    Seconds,
    Milliseconds,
    UnixSeconds,
    UnixMilliseconds,
}

/// Turns time arguments into times.
pub(crate) struct Expiry;

impl Expiry {
    /// The time in milliseconds since 1970, perhaps past.
    pub(crate) fn any(number: i64, unit: Unit, unix_ms: u64) -> Result<i64, Error> {
        let ms = match unit {
            Unit::Seconds | Unit::UnixSeconds => {
                number.checked_mul(1000).ok_or(Error::InvalidExpire)?
            }
            Unit::Milliseconds | Unit::UnixMilliseconds => number,
        };
        let base = match unit {
            Unit::Seconds | Unit::Milliseconds => i64::try_from(unix_ms).unwrap_or(i64::MAX),
            Unit::UnixSeconds | Unit::UnixMilliseconds => 0,
        };
        ms.checked_add(base).ok_or(Error::InvalidExpire)
    }

    /// The same for SET and its kind, which take no number below 1.
    pub(crate) fn positive(number: i64, unit: Unit, unix_ms: u64) -> Result<u64, Error> {
        if number <= 0 {
            return Err(Error::InvalidExpire);
        }
        Expiry::any(number, unit, unix_ms).map(i64::unsigned_abs)
    }
}

/// Conditions of EXPIRE on the time that the key has.
#[derive(Default)]
pub(crate) struct Conditions {
    none: bool,
    some: bool,
    later: bool,
    sooner: bool,
}

impl Conditions {
    pub(crate) fn parse(args: &[&[u8]]) -> Result<Conditions, Error> {
        let mut conditions = Conditions::default();
        for option in args {
            let condition = match &option.to_ascii_uppercase()[..] {
                b"NX" => &mut conditions.none,
                b"XX" => &mut conditions.some,
                b"GT" => &mut conditions.later,
                b"LT" => &mut conditions.sooner,
                _ => {
                    let option: String =
                        String::from_utf8_lossy(option).chars().take(128).collect();
                    return Err(Error::Owned(format!("ERR Unsupported option {option}")));
                }
            };
            *condition = true;
        }
        let Conditions { none, some, later, sooner } = conditions;
        if none && (some || later || sooner) {
            return Err(Error::Text(
                "ERR NX and XX, GT or LT options at the same time are not compatible",
            ));
        }
        if later && sooner {
            return Err(Error::Text("ERR GT and LT options at the same time are not compatible"));
        }
        Ok(conditions)
    }

    /// Whether a key with this time (0 for none) may get the time `when`.
    pub(crate) fn allow(&self, has: u64, when: i64) -> bool {
        let none = has == 0;
        let has = i64::try_from(has).unwrap_or(i64::MAX);
        !(self.none && !none
            || self.some && none
            || self.later && (none || when <= has)
            || self.sooner && !none && when >= has)
    }
}

fn expire_in(call: &mut WriteCall<'_>, args: &[&[u8]], unit: Unit) -> Outcome {
    let conditions = Conditions::parse(&args[2..])?;
    let when = Expiry::any(integer(args[1])?, unit, call.unix_ms)?;
    let Some(old) = call.live(args[0]) else {
        write::integer(call.reply, 0);
        return Ok(());
    };
    let header = &old.header.header;
    if !conditions.allow(header.expire_ms, when) {
        write::integer(call.reply, 0);
        return Ok(());
    }
    match u64::try_from(when) {
        Ok(when) if when > call.unix_ms => {
            call.set_expiry(args[0], when, &old);
        }
        _ => {
            call.remove(args[0]);
        }
    }
    write::integer(call.reply, 1);
    Ok(())
}

/// `EXPIRE key seconds [NX|XX|GT|LT]`
pub(crate) fn expire(call: &mut WriteCall<'_>, args: &[&[u8]]) -> Outcome {
    expire_in(call, args, Unit::Seconds)
}

/// `PEXPIRE key milliseconds [NX|XX|GT|LT]`
pub(crate) fn pexpire(call: &mut WriteCall<'_>, args: &[&[u8]]) -> Outcome {
    expire_in(call, args, Unit::Milliseconds)
}

/// `EXPIREAT key seconds [NX|XX|GT|LT]`
pub(crate) fn expireat(call: &mut WriteCall<'_>, args: &[&[u8]]) -> Outcome {
    expire_in(call, args, Unit::UnixSeconds)
}

/// `PEXPIREAT key milliseconds [NX|XX|GT|LT]`
pub(crate) fn pexpireat(call: &mut WriteCall<'_>, args: &[&[u8]]) -> Outcome {
    expire_in(call, args, Unit::UnixMilliseconds)
}

/// `PERSIST key`
pub(crate) fn persist(call: &mut WriteCall<'_>, args: &[&[u8]]) -> Outcome {
    let old = call.live(args[0]).filter(|value| value.header.header.expire_ms != 0);
    if let Some(old) = &old {
        call.set_expiry(args[0], 0, old);
    }
    write::integer(call.reply, i64::from(old.is_some()));
    Ok(())
}

/// Replies -2 if there is no key, -1 if it never expires, or what `show` makes of its time.
fn time_of(call: &mut ReadCall<'_>, key: &[u8], show: impl FnOnce(u64, u64) -> u64) -> Outcome {
    let number = match call.live(key).map(|value| value.header.header.expire_ms) {
        None => -2,
        Some(0) => -1,
        Some(expire_ms) => show(expire_ms, call.unix_ms) as i64,
    };
    write::integer(call.reply, number);
    Ok(())
}

/// Milliseconds in the nearest whole seconds.
fn seconds(ms: u64) -> u64 {
    ms.saturating_add(500) / 1000
}

/// `TTL key`
pub(crate) fn ttl(call: &mut ReadCall<'_>, args: &[&[u8]]) -> Outcome {
    time_of(call, args[0], |expire_ms, now| seconds(expire_ms - now))
}

/// `PTTL key`
pub(crate) fn pttl(call: &mut ReadCall<'_>, args: &[&[u8]]) -> Outcome {
    time_of(call, args[0], |expire_ms, now| expire_ms - now)
}

/// `EXPIRETIME key`
pub(crate) fn expiretime(call: &mut ReadCall<'_>, args: &[&[u8]]) -> Outcome {
    time_of(call, args[0], |expire_ms, _| seconds(expire_ms))
}

/// `PEXPIRETIME key`
pub(crate) fn pexpiretime(call: &mut ReadCall<'_>, args: &[&[u8]]) -> Outcome {
    time_of(call, args[0], |expire_ms, _| expire_ms)
}
