//! Hash commands. A hash is a head under its key, and its fields under the head's id.

use resp::{Protocol, write};

use crate::call::{ReadCall, WriteCall};
use crate::error::{Error, Outcome};
use crate::numbers::{Number, integer, parse_i64};
use crate::store::{Space, with_field_key};
use crate::strings::{NOT_FINITE, expire_of};
use crate::value::{HashHead, Header, Kind, Value, value};

/// A hash that is being changed.
pub(crate) struct Hash {
    head: HashHead,
    pub expire_ms: u64,
}

/// The hash of a key, new if there is none.
pub(crate) fn open(call: &mut WriteCall<'_>, key: &[u8]) -> Result<Hash, Error> {
    match call.live(key) {
        Some(value) => {
            let head = HashHead::of(&value).ok_or(Error::WrongType)?;
            Ok(Hash { head, expire_ms: value.header.header.expire_ms })
        }
        None => {
            let id = call.store.next_hash_id();
            Ok(Hash { head: HashHead { id, count: 0, earliest_ms: 0, large: false }, expire_ms: 0 })
        }
    }
}

impl Hash {
    /// A field's value.
    pub(crate) fn get(&self, call: &WriteCall<'_>, field: &[u8]) -> Option<Value> {
        if field.len() > crate::MAX_KEY_LEN {
            return None;
        }
        let tree = call.store.trees.of(Space::Fields);
        with_field_key(self.head.id, field, |key| tree.get(key, call.guard))
    }

    /// Sets a field that expires at `expire_ms` (0 for never); returns whether it is new.
    pub(crate) fn set(
        &mut self,
        call: &mut WriteCall<'_>,
        field: &[u8],
        expire_ms: u64,
        bytes: &[u8],
    ) -> bool {
        let header = Header::new(Kind::Field, call.store.next_version(), expire_ms);
        if expire_ms != 0 && (self.head.earliest_ms == 0 || expire_ms < self.head.earliest_ms) {
            self.head.earliest_ms = expire_ms;
        }
        let new = Some(value(header, bytes));
        let previous = with_field_key(self.head.id, field, |key| {
            call.store.put(Space::Fields, key, new, call.guard)
        });
        let limits = &call.store.limits;
        self.head.count = self.head.count.saturating_add(u64::from(previous.is_none()));
        self.head.large |= self.head.count > limits.hash_listpack_entries
            || field.len() > limits.hash_listpack_value
            || bytes.len() > limits.hash_listpack_value;
        previous.is_none()
    }

    /// Removes a field; returns whether it was there.
    pub(crate) fn remove(&mut self, call: &mut WriteCall<'_>, field: &[u8]) -> bool {
        if self.get(call, field).is_none() {
            return false;
        }
        with_field_key(self.head.id, field, |key| {
            call.store.put(Space::Fields, key, None, call.guard);
        });
        self.head.count = self.head.count.saturating_sub(1);
        true
    }

    /// Writes the head, or removes the key if no field is left.
    pub(crate) fn close(self, call: &mut WriteCall<'_>, key: &[u8]) {
        let header = Header::new(Kind::Hash, call.store.next_version(), self.expire_ms);
        let head = (self.head.count > 0).then(|| value(header, &self.head.to_bytes()));
        call.store.replace(key, head, call.guard);
    }
}

fn check_field(field: &[u8]) -> Result<(), Error> {
    if field.len() > crate::MAX_KEY_LEN { Err(Error::KeyTooLong) } else { Ok(()) }
}

/// Sets the pairs; returns how many fields are new.
fn set_pairs(call: &mut WriteCall<'_>, args: &[&[u8]]) -> Result<i64, Error> {
    let (pairs, []) = args[1..].as_chunks::<2>() else { return Err(Error::Arity) };
    for [field, _] in pairs {
        check_field(field)?;
    }
    let mut hash = open(call, args[0])?;
    let mut added = 0;
    for [field, bytes] in pairs {
        added += i64::from(hash.set(call, field, 0, bytes));
    }
    hash.close(call, args[0]);
    Ok(added)
}

/// `HSET key field value ...`
pub(crate) fn hset(call: &mut WriteCall<'_>, args: &[&[u8]]) -> Outcome {
    let added = set_pairs(call, args)?;
    write::integer(call.reply, added);
    Ok(())
}

/// `HMSET key field value ...`
pub(crate) fn hmset(call: &mut WriteCall<'_>, args: &[&[u8]]) -> Outcome {
    set_pairs(call, args)?;
    write::ok(call.reply);
    Ok(())
}

/// `HSETNX key field value`
pub(crate) fn hsetnx(call: &mut WriteCall<'_>, args: &[&[u8]]) -> Outcome {
    check_field(args[1])?;
    let mut hash = open(call, args[0])?;
    let absent = hash.get(call, args[1]).is_none();
    if absent {
        hash.set(call, args[1], 0, args[2]);
        hash.close(call, args[0]);
    }
    write::integer(call.reply, i64::from(absent));
    Ok(())
}

/// `HDEL key field ...`
pub(crate) fn hdel(call: &mut WriteCall<'_>, args: &[&[u8]]) -> Outcome {
    let mut hash = open(call, args[0])?;
    let mut removed = 0;
    for field in &args[1..] {
        removed += i64::from(hash.remove(call, field));
    }
    if removed > 0 {
        hash.close(call, args[0]);
    }
    write::integer(call.reply, removed);
    Ok(())
}

/// `HINCRBY key field increment`
pub(crate) fn hincrby(call: &mut WriteCall<'_>, args: &[&[u8]]) -> Outcome {
    let by = integer(args[2])?;
    check_field(args[1])?;
    let mut hash = open(call, args[0])?;
    let old = hash.get(call, args[1]);
    let number = match &old {
        Some(value) => {
            parse_i64(&value.slice).ok_or(Error::Text("ERR hash value is not an integer"))?
        }
        None => 0,
    };
    let sum =
        number.checked_add(by).ok_or(Error::Text("ERR increment or decrement would overflow"))?;
    hash.set(call, args[1], expire_of(&old), sum.to_string().as_bytes());
    hash.close(call, args[0]);
    write::integer(call.reply, sum);
    Ok(())
}

/// `HINCRBYFLOAT key field increment`
pub(crate) fn hincrbyfloat(call: &mut WriteCall<'_>, args: &[&[u8]]) -> Outcome {
    let by = Number::parse(args[2]).ok_or(Error::NotFloat)?;
    if by.is_infinite() {
        return Err(Error::Text("ERR value is NaN or Infinity"));
    }
    check_field(args[1])?;
    let mut hash = open(call, args[0])?;
    let old = hash.get(call, args[1]);
    let number = match &old {
        Some(value) => {
            Number::parse(&value.slice).ok_or(Error::Text("ERR hash value is not a float"))?
        }
        None => Number::ZERO,
    };
    let sum = number.add(by).ok_or(Error::Text(NOT_FINITE))?.print();
    hash.set(call, args[1], expire_of(&old), sum.as_bytes());
    hash.close(call, args[0]);
    write::bulk(call.reply, sum.as_bytes());
    Ok(())
}

/// Calls `with` with a field's bytes, if it is there.
fn with_field<R>(
    call: &mut ReadCall<'_>,
    head: Option<HashHead>,
    field: &[u8],
    with: impl FnOnce(&[u8], &mut Vec<u8>) -> R,
) -> Option<R> {
    with_field_value(call, head, field, |value, reply| with(&value.slice, reply))
}

/// The same with all of the value.
pub(crate) fn with_field_value<R>(
    call: &mut ReadCall<'_>,
    head: Option<HashHead>,
    field: &[u8],
    with: impl FnOnce(&Value, &mut Vec<u8>) -> R,
) -> Option<R> {
    let head = head.filter(|_| field.len() <= crate::MAX_KEY_LEN)?;
    let tree = call.store.trees.of(Space::Fields);
    let reply = &mut *call.reply;
    with_field_key(head.id, field, |key| tree.get_with(key, call.guard, |value| with(value, reply)))
}

/// `HGET key field`
pub(crate) fn hget(call: &mut ReadCall<'_>, args: &[&[u8]]) -> Outcome {
    let head = call.hash(args[0])?;
    let found = with_field(call, head, args[1], |bytes, reply| write::bulk(reply, bytes));
    if found.is_none() {
        write::null(call.reply, call.protocol);
    }
    Ok(())
}

/// `HMGET key field ...`
pub(crate) fn hmget(call: &mut ReadCall<'_>, args: &[&[u8]]) -> Outcome {
    let head = call.hash(args[0])?;
    write::array(call.reply, args.len() - 1);
    for field in &args[1..] {
        let found = with_field(call, head, field, |bytes, reply| write::bulk(reply, bytes));
        if found.is_none() {
            write::null(call.reply, call.protocol);
        }
    }
    Ok(())
}

/// `HSTRLEN key field`
pub(crate) fn hstrlen(call: &mut ReadCall<'_>, args: &[&[u8]]) -> Outcome {
    let head = call.hash(args[0])?;
    let length = with_field(call, head, args[1], |bytes, _| bytes.len()).unwrap_or(0);
    write::integer(call.reply, length as i64);
    Ok(())
}

/// `HEXISTS key field`
pub(crate) fn hexists(call: &mut ReadCall<'_>, args: &[&[u8]]) -> Outcome {
    let head = call.hash(args[0])?;
    let found = with_field(call, head, args[1], |_, _| ()).is_some();
    write::integer(call.reply, i64::from(found));
    Ok(())
}

/// `HLEN key`
pub(crate) fn hlen(call: &mut ReadCall<'_>, args: &[&[u8]]) -> Outcome {
    let count = call.hash(args[0])?.map_or(0, |head| head.count);
    write::integer(call.reply, count as i64);
    Ok(())
}

/// Visits all fields of the hash of a key, after `start` was told their number.
fn each_field(
    call: &mut ReadCall<'_>,
    key: &[u8],
    start: impl FnOnce(&mut Vec<u8>, Protocol, usize),
    visit: impl Fn(&mut Vec<u8>, &[u8], &Value),
) -> Outcome {
    let head = call.hash(key)?;
    start(call.reply, call.protocol, head.map_or(0, |head| head.count as usize));
    if let Some(head) = head {
        let reply = &mut *call.reply;
        call.store.scan_fields(head.id, b"", call.guard, |field, value| {
            visit(reply, field, value);
            true
        });
    }
    Ok(())
}

/// `HKEYS key`
pub(crate) fn hkeys(call: &mut ReadCall<'_>, args: &[&[u8]]) -> Outcome {
    each_field(
        call,
        args[0],
        |reply, _, count| write::array(reply, count),
        |reply, field, _| write::bulk(reply, field),
    )
}

/// `HVALS key`
pub(crate) fn hvals(call: &mut ReadCall<'_>, args: &[&[u8]]) -> Outcome {
    each_field(
        call,
        args[0],
        |reply, _, count| write::array(reply, count),
        |reply, _, value| write::bulk(reply, &value.slice),
    )
}

/// `HGETALL key`
pub(crate) fn hgetall(call: &mut ReadCall<'_>, args: &[&[u8]]) -> Outcome {
    each_field(call, args[0], write::map, |reply, field, value| {
        write::bulk(reply, field);
        write::bulk(reply, &value.slice);
    })
}
