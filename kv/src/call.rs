//! What a command sees while it runs: its arguments' surroundings, and the keys that exist for it.

use masstree::Guard;
use resp::Protocol;

use crate::error::Error;
use crate::store::{Space, Store};
use crate::value::{HashHead, Head, Header, Kind, Value, due_ms, is_string, value};

/// A command that changes nothing.
pub(crate) struct ReadCall<'a> {
    pub store: &'a Store,
    pub guard: &'a Guard,
    pub unix_ms: u64,
    pub protocol: Protocol,
    pub reply: &'a mut Vec<u8>,
    /// Where the command's random draws start.
    pub seed: u64,
    /// The keys met whose time, or whose fields' time, has come. In the log they are settled
    /// afterwards (those that are arguments, before as well); beside the log the command is given
    /// up for the log.
    pub expired: &'a mut Vec<Box<[u8]>>,
    pub logged: bool,
}

impl ReadCall<'_> {
    /// The key's value, if the key exists at the command's time.
    #[inline]
    pub(crate) fn live(&mut self, key: &[u8]) -> Option<Value> {
        let value = self.store.trees.of(Space::Keys).get(key, self.guard)?;
        self.is_live(key, &value).then_some(value)
    }

    /// Whether a value found under this key exists at the command's time; notes it if not.
    #[inline]
    pub(crate) fn is_live(&mut self, key: &[u8], value: &Value) -> bool {
        if !is_due(value, self.unix_ms) {
            return true;
        }
        self.expired.push(key.into());
        !value.header.header.is_expired(self.unix_ms) && self.has_live_field(value)
    }

    /// Whether a hash has a field that exists at the command's time.
    fn has_live_field(&self, value: &Value) -> bool {
        let mut found = false;
        if let Some(head) = HashHead::of(value) {
            self.store.scan_fields(head.id, b"", self.guard, |_, value| {
                found = !value.header.header.is_expired(self.unix_ms);
                !found
            });
        }
        found
    }

    /// Whether going on is of no use, because the command will be run again in the log.
    pub(crate) fn is_void(&self) -> bool {
        !self.logged && !self.expired.is_empty()
    }

    /// The string of a key.
    pub(crate) fn string(&mut self, key: &[u8]) -> Result<Option<Value>, Error> {
        self.live(key).map(string).transpose()
    }

    /// The head of the list, set or sorted set of a key.
    pub(crate) fn head(&mut self, key: &[u8], kind: Kind) -> Result<Option<Head>, Error> {
        self.live(key).map(|value| Head::of(&value, kind).ok_or(Error::WrongType)).transpose()
    }

    /// The head of the hash of a key.
    pub(crate) fn hash(&mut self, key: &[u8]) -> Result<Option<HashHead>, Error> {
        self.live(key).map(|value| hash(&value)).transpose()
    }
}

/// A command that may change something.
pub(crate) struct WriteCall<'a> {
    pub store: &'a mut Store,
    pub guard: &'a Guard,
    pub unix_ms: u64,
    pub protocol: Protocol,
    pub reply: &'a mut Vec<u8>,
    /// Where the command's random draws start.
    pub seed: u64,
}

impl WriteCall<'_> {
    /// The key's value, if the key exists at the command's time. What has expired is removed.
    #[inline]
    pub(crate) fn live(&mut self, key: &[u8]) -> Option<Value> {
        let value = self.store.trees.of(Space::Keys).get(key, self.guard)?;
        if is_due(&value, self.unix_ms) {
            return self.store.settle(key, self.unix_ms, self.guard);
        }
        Some(value)
    }

    /// The string of a key.
    pub(crate) fn string(&mut self, key: &[u8]) -> Result<Option<Value>, Error> {
        self.live(key).map(string).transpose()
    }

    /// The head of the list, set or sorted set of a key.
    pub(crate) fn head(&mut self, key: &[u8], kind: Kind) -> Result<Option<Head>, Error> {
        self.live(key).map(|value| Head::of(&value, kind).ok_or(Error::WrongType)).transpose()
    }

    /// Sets a key to a string that expires at `expire_ms` (0 for never). Returns what it had.
    #[inline]
    pub(crate) fn set_string(&mut self, key: &[u8], expire_ms: u64, bytes: &[u8]) -> Option<Value> {
        let header = Header::new(Kind::String, self.store.next_version(), expire_ms);
        self.store.replace(key, Some(value(header, bytes)), self.guard)
    }

    /// Gives a key the value that it has, to expire at `expire_ms` (0 for never).
    pub(crate) fn set_expiry(&mut self, key: &[u8], expire_ms: u64, old: &Value) {
        let header = Header::new(old.header.header.kind(), self.store.next_version(), expire_ms);
        self.store.replace(key, Some(value(header, &old.slice)), self.guard);
    }

    /// Removes a key. Returns what it had.
    pub(crate) fn remove(&mut self, key: &[u8]) -> Option<Value> {
        self.store.next_version();
        self.store.replace(key, None, self.guard)
    }
}

#[inline]
fn is_due(value: &Value, unix_ms: u64) -> bool {
    let due = due_ms(value);
    due != 0 && due <= unix_ms
}

fn string(value: Value) -> Result<Value, Error> {
    if is_string(&value) { Ok(value) } else { Err(Error::WrongType) }
}

fn hash(value: &Value) -> Result<HashHead, Error> {
    HashHead::of(value).ok_or(Error::WrongType)
}
