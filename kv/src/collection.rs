//! What lists, sets and sorted sets have in common: opening, changing and closing one.

use masstree::Guard;

use crate::call::WriteCall;
use crate::error::Error;
use crate::numbers::integer;
use crate::store::{Space, Store, with_field_key};
use crate::value::{Head, Header, Kind, Value, ids_of, value};

/// A list, set or sorted set that is being changed.
pub(crate) struct Open {
    pub head: Head,
    kind: Kind,
    expire_ms: u64,
}

impl Open {
    /// The collection of a key, if there is one.
    pub(crate) fn existing(
        call: &mut WriteCall<'_>,
        key: &[u8],
        kind: Kind,
    ) -> Result<Option<Open>, Error> {
        let Some(value) = call.live(key) else { return Ok(None) };
        let head = Head::of(&value, kind).ok_or(Error::WrongType)?;
        Ok(Some(Open { head, kind, expire_ms: value.header.header.expire_ms }))
    }

    /// The collection of a key, new if there is none.
    pub(crate) fn of(call: &mut WriteCall<'_>, key: &[u8], kind: Kind) -> Result<Open, Error> {
        Ok(match Open::existing(call, key, kind)? {
            Some(open) => open,
            None => Open::new(call, kind),
        })
    }

    /// An empty collection.
    pub(crate) fn new(call: &mut WriteCall<'_>, kind: Kind) -> Open {
        let ids = ids_of(kind).expect("the kind of a collection");
        Open { head: Head::new(call.store.next_ids(ids)), kind, expire_ms: 0 }
    }

    /// The same for a collection that expires at `expire_ms` (0 for never).
    pub(crate) fn close_until(self, call: &mut WriteCall<'_>, key: &[u8], expire_ms: u64) {
        Open { expire_ms, ..self }.close(call, key);
    }

    /// Writes the head, or removes the key if nothing is left.
    pub(crate) fn close(self, call: &mut WriteCall<'_>, key: &[u8]) {
        let header = Header::new(self.kind, call.store.next_version(), self.expire_ms);
        let head = (self.head.count > 0).then(|| value(header, &self.head.to_bytes()));
        call.store.replace(key, head, call.guard);
    }
}

/// Sets or removes an entry; returns what it had.
pub(crate) fn put_entry(
    call: &mut WriteCall<'_>,
    id: u64,
    entry: &[u8],
    value: Option<Value>,
) -> Option<Value> {
    with_field_key(id, entry, |key| call.store.put(Space::Fields, key, value, call.guard))
}

/// The value of an entry.
pub(crate) fn get_entry(store: &Store, guard: &Guard, id: u64, entry: &[u8]) -> Option<Value> {
    if entry.len() > crate::MAX_KEY_LEN {
        return None;
    }
    with_field_key(id, entry, |key| store.trees.of(Space::Fields).get(key, guard))
}

/// A value of an entry.
pub(crate) fn entry_value(store: &Store, bytes: &[u8]) -> Value {
    if bytes.is_empty() {
        return store.nothing.clone();
    }
    value(Header::new(Kind::Field, 0, 0), bytes)
}

/// What a command is told that pops from the first of several keys.
pub(crate) struct PopArguments<'a, 'b> {
    pub keys: &'a [&'b [u8]],
    /// Which end, in the words of the command.
    pub end: &'b [u8],
    pub count: usize,
}

/// From `numkeys key ... end [COUNT n]`.
pub(crate) fn pop_arguments<'a, 'b>(args: &'a [&'b [u8]]) -> Result<PopArguments<'a, 'b>, Error> {
    let positive = |text: &[u8], refused: &'static str| {
        let number = integer(text).ok().and_then(|number| usize::try_from(number).ok());
        number.filter(|&number| number > 0).ok_or(Error::Text(refused))
    };
    let keys = positive(args[0], "ERR numkeys should be greater than 0")?;
    let (keys, rest) = args[1..].split_at_checked(keys).ok_or(Error::Syntax)?;
    if keys.iter().any(|key| key.len() > crate::MAX_KEY_LEN) {
        return Err(Error::KeyTooLong);
    }
    match rest {
        [end] => Ok(PopArguments { keys, end, count: 1 }),
        [end, option, count] if option.eq_ignore_ascii_case(b"COUNT") => {
            let count = positive(count, "ERR count should be greater than 0")?;
            Ok(PopArguments { keys, end, count })
        }
        _ => Err(Error::Syntax),
    }
}

/// Refuses members that are too long for the trees.
pub(crate) fn check_members(members: &[&[u8]]) -> Result<(), Error> {
    if members.iter().any(|member| member.len() > crate::MAX_KEY_LEN) {
        return Err(Error::KeyTooLong);
    }
    Ok(())
}

/// The optional count that ends a SPOP, ZPOPMIN or ZPOPMAX.
pub(crate) fn pop_count(args: &[&[u8]]) -> Result<Option<usize>, Error> {
    let refused = Error::Text("ERR value is out of range, must be positive");
    match args {
        [] => Ok(None),
        [count] => {
            let count = integer(count).map_err(|_| refused.clone())?;
            Ok(Some(usize::try_from(count).map_err(|_| refused)?))
        }
        _ => Err(Error::Syntax),
    }
}
