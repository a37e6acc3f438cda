//! Memcached's reads.

use masstree::Guard;
use memcached::Fetch;
use memcached::write::Item;

use super::answer::{Outcome, push_item, push_outcome};
use super::facts::describe;
use crate::request::Strings;
use crate::store::{Space, Store};
use crate::value::{Value, is_string};

/// `get`, `gets`. Returns `false` if a key's time has come: the log must say so first.
#[inline]
pub(crate) fn get(
    store: &Store,
    guard: &Guard,
    unix_ms: u64,
    keys: Strings<'_>,
    reply: &mut Vec<u8>,
) -> bool {
    push_outcome(reply, Outcome::Done);
    for key in keys {
        let alive = store.trees.of(Space::Keys).get_with(key, guard, |value| {
            let alive = !value.header.header.is_expired(unix_ms);
            if alive && is_string(value) {
                push_item(reply, key, &describe(value, unix_ms, true));
            }
            alive
        });
        if alive == Some(false) {
            return false;
        }
    }
    true
}

/// What fetching an item does to it.
pub(crate) struct Fetching {
    /// The client is told to renew it, and nobody else will be.
    pub wins: bool,
    /// Nothing changes.
    pub reads: bool,
}

/// What `mg` does to an item that is there.
pub(crate) fn fetching(fetch: &Fetch<'_>, item: &Item<'_>) -> Fetching {
    let low = fetch
        .recache
        .zip(item.ttl)
        .is_some_and(|(below, left)| u64::try_from(below).is_ok_and(|below| left < below));
    let wins = !item.sent && (item.stale || low);
    Fetching { wins, reads: !wins && fetch.touch.is_none() }
}

/// `mg`, `me`. Returns `false` if that changes something.
pub(crate) fn fetch(
    store: &Store,
    guard: &Guard,
    unix_ms: u64,
    fetch: &Fetch<'_>,
    reply: &mut Vec<u8>,
) -> bool {
    let value: Option<Value> = store.trees.of(Space::Keys).get(&fetch.key, guard);
    let Some(value) = value else {
        push_outcome(reply, Outcome::NotFound);
        return fetch.vivify.is_none();
    };
    if value.header.header.is_expired(unix_ms) {
        return false;
    }
    if !is_string(&value) {
        let outcome = fetch.vivify.map_or(Outcome::NotFound, |_| Outcome::WrongType);
        push_outcome(reply, outcome);
        return true;
    }
    let item = describe(&value, unix_ms, fetch.value);
    push_outcome(reply, Outcome::Done);
    push_item(reply, b"", &item);
    fetching(fetch, &item).reads
}
