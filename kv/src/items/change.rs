//! Memcached's changes.

use masstree::Guard;
use memcached::{Arithmetic, Delete, Fetch, MAX_VALUE_LEN, Mode};

use super::answer::{Outcome, push_item, push_outcome};
use super::facts::{Facts, cas_of, describe};
use super::{Expires, get};
use crate::request::Strings;
use crate::store::{Space, Store};
use crate::strings::{bytes_of, expire_of};
use crate::value::{Value, is_string, text};

/// A command that may change something.
pub(crate) struct Change<'a> {
    pub store: &'a mut Store,
    pub guard: &'a Guard,
    pub unix_ms: u64,
    pub reply: &'a mut Vec<u8>,
}

impl Change<'_> {
    /// The key's value, if the key exists at the command's time. What has expired is removed.
    fn live(&mut self, key: &[u8]) -> Option<Value> {
        let value = self.store.trees.of(Space::Keys).get(key, self.guard)?;
        if value.header.header.is_expired(self.unix_ms) {
            return self.store.settle(key, self.unix_ms, self.guard);
        }
        Some(value)
    }

    fn fail(&mut self, outcome: Outcome) {
        push_outcome(self.reply, outcome);
    }

    /// Sets a key and returns its value as it is now, or would be if it had not expired already.
    fn put(&mut self, key: &[u8], bytes: &[u8], facts: Facts, expires: Expires) -> Value {
        let version = self.store.next_version();
        let (value, kept) = match expires {
            Expires::At(expire_ms) => (facts.value(bytes, version, expire_ms), true),
            Expires::Already => (facts.value(bytes, version, 0), false),
        };
        self.store.replace(key, kept.then(|| value.clone()), self.guard);
        value
    }

    /// Answers with a value.
    fn done(&mut self, value: &Value, wanted: bool) {
        push_outcome(self.reply, Outcome::Done);
        push_item(self.reply, b"", &describe(value, self.unix_ms, wanted));
    }

    fn expires(&self, exptime: i64) -> Expires {
        Expires::parse(exptime, self.unix_ms)
    }

    /// Changes an item's marks and its expiration, which its cas number does not show.
    fn mark(&mut self, key: &[u8], old: &Value, facts: Facts, touch: Option<i64>) -> Value {
        let facts = Facts { cas: Some(cas_of(old, &facts)), ..facts };
        let expires =
            touch.map_or(Expires::At(old.header.header.expire_ms), |exptime| self.expires(exptime));
        self.put(key, text(old), facts, expires)
    }

    /// `gat`, `gats`
    pub(crate) fn get_and_touch(&mut self, keys: Strings<'_>, exptime: i64) {
        push_outcome(self.reply, Outcome::Done);
        for key in keys {
            let Some(old) = self.live(key).filter(is_string) else { continue };
            let new = self.mark(key, &old, Facts::of(&old), Some(exptime));
            push_item(self.reply, key, &describe(&new, self.unix_ms, true));
        }
    }

    /// `mg`, `touch`
    pub(crate) fn fetch(&mut self, fetch: &Fetch<'_>) {
        let old = match (self.live(&fetch.key), fetch.vivify) {
            (Some(old), _) if is_string(&old) => old,
            (Some(_), Some(_)) => return self.fail(Outcome::WrongType),
            (Some(_), None) | (None, None) => return self.fail(Outcome::NotFound),
            (None, Some(exptime)) => {
                let facts = Facts { sent: true, cas: fetch.new_cas, ..Facts::default() };
                let new = self.put(&fetch.key, b"", facts, self.expires(exptime));
                let item = describe(&new, self.unix_ms, true);
                push_outcome(self.reply, Outcome::Done);
                let item = memcached::write::Item { won: true, sent: false, ..item };
                return push_item(self.reply, b"", &item);
            }
        };
        let before = describe(&old, self.unix_ms, fetch.value);
        let what = get::fetching(fetch, &before);
        push_outcome(self.reply, Outcome::Done);
        if what.reads {
            return push_item(self.reply, b"", &before);
        }
        let facts = Facts::of(&old);
        let new = Facts { sent: facts.sent || what.wins, ..facts };
        let new = self.mark(&fetch.key, &old, new, fetch.touch);
        let item = describe(&new, self.unix_ms, fetch.value);
        let item = memcached::write::Item { won: what.wins, sent: before.sent, ..item };
        push_item(self.reply, b"", &item);
    }

    /// `set`, `add`, `replace`, `append`, `prepend`, `cas`, `ms`
    pub(crate) fn store(&mut self, item: &memcached::Store<'_>) {
        let key = &item.key;
        let old = self.live(key);
        let joins = matches!(item.mode, Mode::Append | Mode::Prepend);
        let exptime = if joins { item.vivify } else { Some(item.exptime) };
        match (&old, item.mode) {
            (Some(_), Mode::Add) | (None, Mode::Replace) => return self.fail(Outcome::NotStored),
            (None, _) if exptime.is_none() => return self.fail(Outcome::NotStored),
            (None, Mode::Set) if item.compare.is_some() => return self.fail(Outcome::NotFound),
            (Some(old), _) if joins && !is_string(old) => return self.fail(Outcome::WrongType),
            _ => {}
        }
        let known = old.as_ref().map_or(Facts::default(), Facts::of);
        let cas = old.as_ref().map(|old| cas_of(old, &known));
        let outdated = item.compare.zip(cas).filter(|(given, cas)| given != cas);
        if outdated.is_some_and(|(given, cas)| !item.invalidate || given > cas) {
            return self.fail(Outcome::Exists);
        }
        let stale = outdated.is_some();
        let joined = joins && old.is_some();
        let facts = Facts {
            flags: if joined { known.flags } else { item.flags },
            stale,
            sent: stale && known.sent,
            cas: item.new_cas,
        };
        // What is stale when it comes lives no longer than what it comes over.
        let expires = match exptime {
            Some(exptime) if !joined && !stale => self.expires(exptime),
            _ => Expires::At(expire_of(&old)),
        };
        let bytes = match item.mode {
            Mode::Append => &[bytes_of(&old), item.value].concat(),
            Mode::Prepend => &[item.value, bytes_of(&old)].concat(),
            _ => item.value,
        };
        if bytes.len() > MAX_VALUE_LEN {
            return self.fail(Outcome::TooLarge);
        }
        let new = self.put(key, bytes, facts, expires);
        self.done(&new, false);
    }

    /// `delete`, `md`
    pub(crate) fn delete(&mut self, delete: &Delete<'_>) {
        let Some(old) = self.live(&delete.key) else { return self.fail(Outcome::NotFound) };
        let known = Facts::of(&old);
        if delete.compare.is_some_and(|given| given != cas_of(&old, &known)) {
            return self.fail(Outcome::Exists);
        }
        if !delete.invalidate && !delete.empty {
            self.store.next_version();
            self.store.replace(&delete.key, None, self.guard);
            return push_outcome(self.reply, Outcome::Done);
        }
        if !is_string(&old) {
            return self.fail(Outcome::WrongType);
        }
        let facts = Facts {
            flags: if delete.empty { 0 } else { known.flags },
            stale: delete.invalidate || known.stale,
            sent: !delete.invalidate && known.sent,
            cas: delete.new_cas,
        };
        let expires = match delete.exptime.filter(|_| delete.invalidate) {
            Some(exptime) => self.expires(exptime),
            None => Expires::At(old.header.header.expire_ms),
        };
        let bytes = if delete.empty { b"" } else { text(&old) };
        let new = self.put(&delete.key, bytes, facts, expires);
        self.done(&new, false);
    }

    /// `incr`, `decr`, `ma`
    pub(crate) fn arithmetic(&mut self, arithmetic: &Arithmetic<'_>) {
        let key = &arithmetic.key;
        let cas = arithmetic.new_cas;
        let (number, facts, expires) = match (self.live(key), arithmetic.create) {
            (None, None) => return self.fail(Outcome::NotFound),
            (None, Some((exptime, initial))) => {
                (initial, Facts { cas, ..Facts::default() }, self.expires(exptime))
            }
            (Some(old), _) => {
                if !is_string(&old) {
                    return self.fail(Outcome::WrongType);
                }
                let known = Facts::of(&old);
                if arithmetic.compare.is_some_and(|given| given != cas_of(&old, &known)) {
                    return self.fail(Outcome::Exists);
                }
                let Some(number) = number(text(&old)) else {
                    return self.fail(Outcome::NotNumeric);
                };
                let number = match arithmetic.decrement {
                    true => number.saturating_sub(arithmetic.delta),
                    false => number.wrapping_add(arithmetic.delta),
                };
                let expires = match arithmetic.exptime {
                    Some(exptime) => self.expires(exptime),
                    None => Expires::At(old.header.header.expire_ms),
                };
                (number, Facts { cas, ..known }, expires)
            }
        };
        let mut digits = Vec::new();
        memcached::write::number(&mut digits, number);
        let new = self.put(key, &digits, facts, expires);
        self.done(&new, true);
    }

    /// `flush_all`: a later one takes the place of one that has not come yet.
    pub(crate) fn flush(&mut self, delay: i64) {
        let flush_ms = match self.expires(delay) {
            Expires::At(time) if time != 0 => time,
            _ => {
                self.store.flush();
                0
            }
        };
        self.store.set_flush_ms(flush_ms);
        push_outcome(self.reply, Outcome::Done);
    }
}

/// A decimal number of 64 bits, as memcached takes it: with spaces behind it, too.
fn number(text: &[u8]) -> Option<u64> {
    let text = text.trim_ascii_end();
    let digits = !text.is_empty() && text.iter().all(u8::is_ascii_digit);
    std::str::from_utf8(text).ok().filter(|_| digits)?.parse().ok()
}
