//! Several commands with nothing in between, unless a watched key has changed; and the versions
//! that tell whether one has.

use resp::{Protocol, write};
use smr::ReadOutcome;

use crate::dispatch::Surroundings;
use crate::request::{Reader, Strings, Watches};
use crate::store::{Space, Store};
use crate::value::due_ms;

/// What a key's absence has for a version; no change is numbered so.
const ABSENT: u64 = 0;

const MALFORMED: &str = "ERR malformed transaction";

/// The key's version at the call's time; notes the key if its time, or a field's, has come.
fn version(
    store: &Store,
    around: &Surroundings<'_>,
    key: &[u8],
    expired: &mut Vec<Box<[u8]>>,
) -> u64 {
    if key.len() > crate::MAX_KEY_LEN {
        return ABSENT;
    }
    let Some(value) = store.trees.of(Space::Keys).get(key, around.guard) else { return ABSENT };
    let due = due_ms(&value);
    if due != 0 && due <= around.unix_ms {
        expired.push(key.into());
    }
    if value.header.header.is_expired(around.unix_ms) {
        return ABSENT;
    }
    value.header.header.version()
}

/// Answers a versions item.
pub(crate) fn versions(
    store: &Store,
    around: &mut Surroundings<'_>,
    keys: Strings<'_>,
    expired: &mut Vec<Box<[u8]>>,
) {
    for key in keys {
        let version = version(store, around, key, expired);
        around.reply.extend_from_slice(&version.to_le_bytes());
    }
}

/// The number of commands; `None` if something else is among them.
fn count(commands: &[u8]) -> Option<usize> {
    let mut from = Reader::new(commands);
    let mut count = 0;
    while !from.is_empty() {
        from.item().ok()?;
        count += 1;
    }
    Some(count)
}

/// Executes a transaction.
pub(crate) fn apply(
    store: &mut Store,
    around: &mut Surroundings<'_>,
    protocol: Protocol,
    mut watches: Watches<'_>,
    commands: &[u8],
) {
    store.settle_all(watches.map(|(key, _)| key), around);
    let Some(count) = count(commands) else { return write::error(around.reply, MALFORMED) };
    let mut expired = Vec::new();
    if watches.any(|(key, seen)| version(store, around, key, &mut expired) != seen) {
        return write::null_array(around.reply, protocol);
    }
    write::array(around.reply, count);
    let mut from = Reader::new(commands);
    let mut args = Vec::new();
    while let Ok((protocol, item)) = from.item() {
        store.apply_nested(around, protocol, item, &mut args);
    }
}

/// Answers a transaction that changes nothing.
pub(crate) fn read(
    store: &Store,
    around: &mut Surroundings<'_>,
    protocol: Protocol,
    mut watches: Watches<'_>,
    commands: &[u8],
) -> ReadOutcome {
    let Some(count) = count(commands) else {
        write::error(around.reply, MALFORMED);
        return ReadOutcome::Done;
    };
    let mut expired = Vec::new();
    let changed = watches.any(|(key, seen)| version(store, around, key, &mut expired) != seen);
    if !expired.is_empty() {
        return ReadOutcome::MustLog;
    }
    if changed {
        write::null_array(around.reply, protocol);
        return ReadOutcome::Done;
    }
    write::array(around.reply, count);
    let mut from = Reader::new(commands);
    let mut args = Vec::new();
    while let Ok((protocol, item)) = from.item() {
        if store.read_nested(around, protocol, item, &mut args) == ReadOutcome::MustLog {
            return ReadOutcome::MustLog;
        }
    }
    ReadOutcome::Done
}
