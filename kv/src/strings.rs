//! String commands.

use resp::{parse_i64, write};

use crate::call::{ReadCall, WriteCall};
use crate::error::{Error, Outcome};
use crate::expiry::{Expiry, Unit};
use crate::numbers::{Number, integer};
use crate::store::Space;
use crate::value::{Header, Kind, Value, is_string, text, value};

/// A value's time; 0 if there is none.
pub(crate) fn expire_of(value: &Option<Value>) -> u64 {
    value.as_ref().map_or(0, |value| value.header.header.expire_ms)
}

/// The bytes of a string, of none if there is no key.
pub(crate) fn bytes_of(value: &Option<Value>) -> &[u8] {
    value.as_ref().map_or(&[], text)
}

/// `GET key`
pub(crate) fn get(call: &mut ReadCall<'_>, args: &[&[u8]]) -> Outcome {
    let unix_ms = call.unix_ms;
    let reply = &mut *call.reply;
    let answered = call.store.trees.of(Space::Keys).get_with(args[0], call.guard, |value| {
        let header = value.header.header;
        let simple = header.kind() == Kind::String && !header.is_expired(unix_ms);
        if simple {
            write::bulk(reply, &value.slice);
        }
        simple
    });
    if answered == Some(true) {
        return Ok(());
    }
    match call.string(args[0])? {
        Some(value) => write::bulk(call.reply, text(&value)),
        None => write::null(call.reply, call.protocol),
    }
    Ok(())
}

/// `MGET key ...`
pub(crate) fn mget(call: &mut ReadCall<'_>, args: &[&[u8]]) -> Outcome {
    write::array(call.reply, args.len());
    for key in args {
        match call.string(key) {
            Ok(Some(value)) => write::bulk(call.reply, text(&value)),
            Ok(None) | Err(_) => write::null(call.reply, call.protocol),
        }
    }
    Ok(())
}

/// `STRLEN key`
pub(crate) fn strlen(call: &mut ReadCall<'_>, args: &[&[u8]]) -> Outcome {
    let value = call.string(args[0])?;
    write::integer(call.reply, bytes_of(&value).len() as i64);
    Ok(())
}

/// `GETRANGE key start end`
pub(crate) fn getrange(call: &mut ReadCall<'_>, args: &[&[u8]]) -> Outcome {
    let (start, end) = (integer(args[1])?, integer(args[2])?);
    let value = call.string(args[0])?;
    let bytes = bytes_of(&value);
    let len = bytes.len() as i64;
    let from_start = |index: i64| if index < 0 { (len + index.max(-len)).max(0) } else { index };
    let backwards = start < 0 && end < 0 && start > end;
    let (start, end) = (from_start(start), from_start(end).min(len - 1));
    let range = if backwards || start > end { 0..0 } else { start as usize..end as usize + 1 };
    write::bulk(call.reply, &bytes[range]);
    Ok(())
}

/// The options of SET and GETEX.
#[derive(Default)]
struct Options<'a> {
    only_if_absent: bool,
    only_if_present: bool,
    get: bool,
    keep_ttl: bool,
    persist: bool,
    expiry: Option<(Unit, &'a [u8])>,
}

impl<'a> Options<'a> {
    fn parse(args: &[&'a [u8]], for_set: bool) -> Result<Options<'a>, Error> {
        let mut options = Options::default();
        let mut args = args.iter();
        while let Some(option) = args.next() {
            let is = |name: &str| option.eq_ignore_ascii_case(name.as_bytes());
            let none = options.expiry.is_none();
            if for_set && is("NX") && !options.only_if_present {
                options.only_if_absent = true;
            } else if for_set && is("XX") && !options.only_if_absent {
                options.only_if_present = true;
            } else if for_set && is("GET") {
                options.get = true;
            } else if for_set && is("KEEPTTL") && none {
                options.keep_ttl = true;
            } else if !for_set && is("PERSIST") && none {
                options.persist = true;
            } else {
                let unit = [
                    ("EX", Unit::Seconds),
                    ("PX", Unit::Milliseconds),
                    ("EXAT", Unit::UnixSeconds),
                    ("PXAT", Unit::UnixMilliseconds),
                ]
                .into_iter()
                .find_map(|(name, unit)| is(name).then_some(unit))
                .ok_or(Error::Syntax)?;
                let same = options.expiry.is_none_or(|(other, _)| other == unit);
                if options.keep_ttl || options.persist || !same {
                    return Err(Error::Syntax);
                }
                options.expiry = Some((unit, args.next().ok_or(Error::Syntax)?));
            }
        }
        Ok(options)
    }

    /// The time that the options say, in milliseconds since 1970.
    fn expire_ms(&self, unix_ms: u64) -> Result<Option<u64>, Error> {
        let Some((unit, text)) = self.expiry else { return Ok(None) };
        Expiry::positive(integer(text)?, unit, unix_ms).map(Some)
    }
}

/// `SET key value [NX|XX] [GET] [EX s|PX ms|EXAT s|PXAT ms|KEEPTTL]`
pub(crate) fn set(call: &mut WriteCall<'_>, args: &[&[u8]]) -> Outcome {
    let (key, bytes) = (args[0], args[1]);
    if args.len() == 2 {
        call.set_string(key, 0, bytes);
        write::ok(call.reply);
        return Ok(());
    }
    let options = Options::parse(&args[2..], true)?;
    let expire_ms = options.expire_ms(call.unix_ms)?.unwrap_or(0);
    let looks =
        options.get || options.only_if_absent || options.only_if_present || options.keep_ttl;
    let old = if looks { call.live(key) } else { None };
    if options.get {
        match &old {
            Some(old) if !is_string(old) => return Err(Error::WrongType),
            Some(old) => write::bulk(call.reply, text(old)),
            None => write::null(call.reply, call.protocol),
        }
    }
    let refused =
        options.only_if_absent && old.is_some() || options.only_if_present && old.is_none();
    if !refused {
        let expire_ms = if options.keep_ttl { expire_of(&old) } else { expire_ms };
        call.set_string(key, expire_ms, bytes);
    }
    match (options.get, refused) {
        (true, _) => {}
        (false, true) => write::null(call.reply, call.protocol),
        (false, false) => write::ok(call.reply),
    }
    Ok(())
}

/// `SETNX key value`
pub(crate) fn setnx(call: &mut WriteCall<'_>, args: &[&[u8]]) -> Outcome {
    let absent = call.live(args[0]).is_none();
    if absent {
        call.set_string(args[0], 0, args[1]);
    }
    write::integer(call.reply, i64::from(absent));
    Ok(())
}

fn set_for(call: &mut WriteCall<'_>, args: &[&[u8]], unit: Unit) -> Outcome {
    let expire_ms = Expiry::positive(integer(args[1])?, unit, call.unix_ms)?;
    call.set_string(args[0], expire_ms, args[2]);
    write::ok(call.reply);
    Ok(())
}

/// `SETEX key seconds value`
pub(crate) fn setex(call: &mut WriteCall<'_>, args: &[&[u8]]) -> Outcome {
    set_for(call, args, Unit::Seconds)
}

/// `PSETEX key milliseconds value`
pub(crate) fn psetex(call: &mut WriteCall<'_>, args: &[&[u8]]) -> Outcome {
    set_for(call, args, Unit::Milliseconds)
}

/// `GETEX key [EX s|PX ms|EXAT s|PXAT ms|PERSIST]`
pub(crate) fn getex(call: &mut WriteCall<'_>, args: &[&[u8]]) -> Outcome {
    let options = Options::parse(&args[1..], false)?;
    let Some(value) = call.string(args[0])? else {
        write::null(call.reply, call.protocol);
        return Ok(());
    };
    let expire_ms = options.expire_ms(call.unix_ms)?;
    write::bulk(call.reply, text(&value));
    match expire_ms {
        Some(expire_ms) if expire_ms <= call.unix_ms => {
            call.remove(args[0]);
        }
        Some(expire_ms) => {
            call.set_expiry(args[0], expire_ms, &value);
        }
        None if options.persist && value.header.header.expire_ms != 0 => {
            call.set_expiry(args[0], 0, &value);
        }
        None => {}
    }
    Ok(())
}

/// Replies with a string or null.
fn reply_string(call: &mut WriteCall<'_>, value: &Option<Value>) {
    match value {
        Some(value) => write::bulk(call.reply, text(value)),
        None => write::null(call.reply, call.protocol),
    }
}

/// `GETDEL key`
pub(crate) fn getdel(call: &mut WriteCall<'_>, args: &[&[u8]]) -> Outcome {
    let value = call.string(args[0])?;
    reply_string(call, &value);
    if value.is_some() {
        call.remove(args[0]);
    }
    Ok(())
}

/// `GETSET key value`
pub(crate) fn getset(call: &mut WriteCall<'_>, args: &[&[u8]]) -> Outcome {
    let value = call.string(args[0])?;
    reply_string(call, &value);
    call.set_string(args[0], 0, args[1]);
    Ok(())
}

/// `MSET key value ...`
pub(crate) fn mset(call: &mut WriteCall<'_>, args: &[&[u8]]) -> Outcome {
    let (pairs, []) = args.as_chunks::<2>() else { return Err(Error::Arity) };
    for [key, bytes] in pairs {
        call.set_string(key, 0, bytes);
    }
    write::ok(call.reply);
    Ok(())
}

/// `MSETNX key value ...`
pub(crate) fn msetnx(call: &mut WriteCall<'_>, args: &[&[u8]]) -> Outcome {
    let (pairs, []) = args.as_chunks::<2>() else { return Err(Error::Arity) };
    let absent = pairs.iter().all(|[key, _]| call.live(key).is_none());
    if absent {
        for [key, bytes] in pairs {
            call.set_string(key, 0, bytes);
        }
    }
    write::integer(call.reply, i64::from(absent));
    Ok(())
}

/// Refuses strings that would become too long.
fn check_length(call: &WriteCall<'_>, start: u64, added: usize) -> Result<usize, Error> {
    let length = start.saturating_add(added as u64);
    if length > call.store.limits.value_len as u64 {
        return Err(Error::Text("ERR string exceeds maximum allowed size (proto-max-bulk-len)"));
    }
    Ok(length as usize)
}

/// `APPEND key value`
pub(crate) fn append(call: &mut WriteCall<'_>, args: &[&[u8]]) -> Outcome {
    let old = call.string(args[0])?;
    let bytes = bytes_of(&old);
    let length = check_length(call, bytes.len() as u64, args[1].len())?;
    call.set_string(args[0], expire_of(&old), &[bytes, args[1]].concat());
    write::integer(call.reply, length as i64);
    Ok(())
}

/// `SETRANGE key offset value`
pub(crate) fn setrange(call: &mut WriteCall<'_>, args: &[&[u8]]) -> Outcome {
    let offset = integer(args[1])?;
    let offset = u64::try_from(offset).map_err(|_| Error::Text("ERR offset is out of range"))?;
    let old = call.string(args[0])?;
    let bytes = bytes_of(&old);
    if args[2].is_empty() {
        write::integer(call.reply, bytes.len() as i64);
        return Ok(());
    }
    let end = check_length(call, offset, args[2].len())?;
    let mut new = Vec::with_capacity(end.max(bytes.len()));
    new.extend_from_slice(bytes);
    new.resize(end.max(bytes.len()), 0);
    new[end - args[2].len()..end].copy_from_slice(args[2]);
    call.set_string(args[0], expire_of(&old), &new);
    write::integer(call.reply, new.len() as i64);
    Ok(())
}

fn increment(call: &mut WriteCall<'_>, key: &[u8], by: i64) -> Outcome {
    let old = call.string(key)?;
    let number = match &old {
        Some(old) => integer(text(old))?,
        None => 0,
    };
    let sum =
        number.checked_add(by).ok_or(Error::Text("ERR increment or decrement would overflow"))?;
    // The reply is the new value between a colon and a line end.
    let start = call.reply.len();
    write::integer(call.reply, sum);
    let header = Header::new(Kind::String, call.store.next_version(), expire_of(&old));
    let digits = &call.reply[start + 1..call.reply.len() - 2];
    call.store.replace(key, Some(value(header, digits)), call.guard);
    Ok(())
}

/// `INCR key`
pub(crate) fn incr(call: &mut WriteCall<'_>, args: &[&[u8]]) -> Outcome {
    increment(call, args[0], 1)
}

/// `DECR key`
pub(crate) fn decr(call: &mut WriteCall<'_>, args: &[&[u8]]) -> Outcome {
    increment(call, args[0], -1)
}

/// `INCRBY key increment`
pub(crate) fn incrby(call: &mut WriteCall<'_>, args: &[&[u8]]) -> Outcome {
    increment(call, args[0], integer(args[1])?)
}

/// `DECRBY key decrement`
pub(crate) fn decrby(call: &mut WriteCall<'_>, args: &[&[u8]]) -> Outcome {
    let by = integer(args[1])?.checked_neg();
    increment(call, args[0], by.ok_or(Error::Text("ERR decrement would overflow"))?)
}

/// `INCRBYFLOAT key increment`
pub(crate) fn incrbyfloat(call: &mut WriteCall<'_>, args: &[&[u8]]) -> Outcome {
    let old = call.string(args[0])?;
    let number = match &old {
        Some(old) => Number::parse(text(old)).ok_or(Error::NotFloat)?,
        None => Number::ZERO,
    };
    let by = Number::parse(args[1]).ok_or(Error::NotFloat)?;
    let sum = number.add(by).ok_or(Error::Text(NOT_FINITE))?.print();
    call.set_string(args[0], expire_of(&old), sum.as_bytes());
    write::bulk(call.reply, sum.as_bytes());
    Ok(())
}

/// What an addition of floats fails with.
pub(crate) const NOT_FINITE: &str = "ERR increment would produce NaN or Infinity";

/// `CAS key expected new`: if the key holds the string `expected`, sets it to `new`, with the same
/// time to live, and replies 1; if it holds another, replies 0; if there is no key, null.
pub(crate) fn cas(call: &mut WriteCall<'_>, args: &[&[u8]]) -> Outcome {
    let Some(old) = call.string(args[0])? else {
        write::null(call.reply, call.protocol);
        return Ok(());
    };
    let equal = text(&old) == args[1];
    if equal {
        call.set_string(args[0], old.header.header.expire_ms, args[2]);
    }
    write::integer(call.reply, i64::from(equal));
    Ok(())
}

/// What OBJECT ENCODING calls a string.
pub(crate) fn encoding(bytes: &[u8]) -> &'static str {
    const EMBEDDED: usize = 44;
    if parse_i64(bytes).is_some() {
        "int"
    } else if bytes.len() <= EMBEDDED {
        "embstr"
    } else {
        "raw"
    }
}
