//! What a client asks for. Classic and meta commands that do the same are the same here; they
//! differ in how they are answered ([`Reply`]).

use std::borrow::Cow;

use crate::line::Tokens;
use crate::meta::Echo;

/// A key as the store has it: the bytes on the line, or what they decode to.
pub(crate) type Key<'a> = Cow<'a, [u8]>;

/// How a command wants to be answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reply<'a> {
    /// As a classic command.
    Classic,
    /// As a classic command with `noreply`: not at all, whatever becomes of it.
    Silent,
    /// As a meta command, with what it wants to have back.
    Meta(Echo<'a>),
}

/// Keys of one command line, one after the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Keys<'a>(pub(crate) Tokens<'a>);

impl<'a> Iterator for Keys<'a> {
    type Item = &'a [u8];

    fn next(&mut self) -> Option<&'a [u8]> {
        self.0.next()
    }
}

/// When a storage command stores.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// Always.
    Set,
    /// If there is no such key.
    Add,
    /// If there is.
    Replace,
    /// Behind what the key holds.
    Append,
    /// Before what the key holds.
    Prepend,
}

/// `set`, `add`, `replace`, `append`, `prepend`, `cas`, `ms`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Store<'a> {
    /// The key.
    pub key: Key<'a>,
    /// When it stores.
    pub mode: Mode,
    /// The client's own flags.
    pub flags: u32,
    /// The expiration time in seconds, as the client gave it: 0 for never, negative for at once, up
    /// to 30 days from now, above that since 1970.
    pub exptime: i64,
    /// Only over this cas number.
    pub compare: Option<u64>,
    /// Over a higher cas number, too, but marked stale.
    pub invalidate: bool,
    /// The cas number that the item is to have.
    pub new_cas: Option<u64>,
    /// What `append` and `prepend` make a missing item with: its expiration time.
    pub vivify: Option<i64>,
    /// The data block.
    pub value: &'a [u8],
}

/// `delete`, `md`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Delete<'a> {
    /// The key.
    pub key: Key<'a>,
    /// Only at this cas number.
    pub compare: Option<u64>,
    /// The item is not removed, but marked stale.
    pub invalidate: bool,
    /// The item is not removed, but its value and flags are.
    pub empty: bool,
    /// The expiration time of an item that stays.
    pub exptime: Option<i64>,
    /// The cas number of an item that stays.
    pub new_cas: Option<u64>,
}

/// `incr`, `decr`, `ma`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Arithmetic<'a> {
    /// The key.
    pub key: Key<'a>,
    /// What is added or taken away.
    pub delta: u64,
    /// It is taken away.
    pub decrement: bool,
    /// Only at this cas number.
    pub compare: Option<u64>,
    /// The item's new expiration time.
    pub exptime: Option<i64>,
    /// A missing item is made, with this expiration time and this number.
    pub create: Option<(i64, u64)>,
    /// The cas number that the item is to have.
    pub new_cas: Option<u64>,
}

/// `mg`, `me`, `touch`: one item.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fetch<'a> {
    /// The key.
    pub key: Key<'a>,
    /// The value is wanted.
    pub value: bool,
    /// The item's new expiration time.
    pub touch: Option<i64>,
    /// A missing item is made, empty and with this expiration time, for the client to fill.
    pub vivify: Option<i64>,
    /// The cas number of an item so made.
    pub new_cas: Option<u64>,
    /// The client wants to renew an item that has fewer seconds than this left, if nobody does.
    pub recache: Option<i64>,
}

/// One command.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Command<'a> {
    /// `get`, `gets`, `gat`, `gats`: `touch` is the items' new expiration time.
    Get {
        /// Their keys, one or more.
        keys: Keys<'a>,
        /// The answer has cas numbers.
        cas: bool,
        /// The new expiration time.
        touch: Option<i64>,
    },
    /// `mg`, `touch`.
    Fetch(Fetch<'a>, Reply<'a>),
    /// `me`: as `mg`, answered for people.
    Debug(Fetch<'a>, Echo<'a>),
    /// `set` and its kind, `ms`.
    Store(Store<'a>, Reply<'a>),
    /// `delete`, `md`.
    Delete(Delete<'a>, Reply<'a>),
    /// `incr`, `decr`, `ma`.
    Arithmetic(Arithmetic<'a>, Reply<'a>),
    /// `flush_all`: when, as an expiration time; now if it is not above 0.
    FlushAll(i64, Reply<'a>),
    /// `stats`, with what is asked for; empty for the general ones.
    Stats(&'a [u8]),
    /// `version`
    Version,
    /// `verbosity`, which sets nothing.
    Verbosity(Reply<'a>),
    /// `mn`
    NoOp,
    /// `quit`
    Quit,
}
