//! The command table: what the server must know about a command before it runs, and what runs it.
//!
//! Invariant: a command's id is its place in the table and is written to logs, so rows are only
//! ever added at the end.

use crate::call::{ReadCall, WriteCall};
use crate::error::Outcome;
use crate::{
    bits, dump, expiry, field_expiry, hashes, introspect, keyspace, lcs, lists, random,
    random_members, ranges, scan, set_algebra, sets, sort, strings, zset_algebra, zset_ranges,
    zsets,
};

/// Where a command is executed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// By the server that has the connection. In a batch it is an error; in a transaction its place
    /// is taken by a literal.
    Local,
    /// By [`Store`](crate::Store), which it does not change: beside the log, or in it.
    Read,
    /// By [`Store`](crate::Store), through the log.
    Write,
}

/// What executes a command. The arguments are those after the name; their number fits the arity.
#[derive(Clone, Copy)]
pub(crate) enum Run {
    Local,
    Read(fn(&mut ReadCall<'_>, &[&[u8]]) -> Outcome),
    Write(fn(&mut WriteCall<'_>, &[&[u8]]) -> Outcome),
}

/// One command.
#[derive(Clone, Copy)]
pub struct Spec {
    /// Its number in requests and logs: its place in [`all`].
    pub id: u16,
    /// Its name in lower case.
    pub name: &'static str,
    /// The number of arguments with the name; if negative, the least number.
    pub arity: i8,
    /// Where it is executed.
    pub place: Place,
    /// Whether it may need more memory than before (Redis's `denyoom`).
    pub grows: bool,
    /// Its flags, as COMMAND gives them.
    pub flags: &'static [&'static str],
    /// Its family, as COMMAND DOCS gives it ("string", "generic", ...).
    pub group: &'static str,
    /// The place of the first key in the command with its name; 0 if there is none.
    pub first_key: i8,
    /// The place of the last key; if negative, counted from the end.
    pub last_key: i8,
    /// The distance between two keys.
    pub step: i8,
    /// The place, in the command with its name, of a scan cursor. The server replaces it: "0" by
    /// the empty string, any other number by the token that it stands for, which is what an earlier
    /// reply of the command had as its first element. An empty token in a reply means the end
    /// ("0").
    pub cursor: Option<usize>,
    pub(crate) run: Run,
}

impl Spec {
    /// Whether the command may have this many arguments, its name included.
    #[inline]
    pub fn accepts(&self, argc: usize) -> bool {
        let least = usize::from(self.arity.unsigned_abs());
        if self.arity < 0 { argc >= least } else { argc == least }
    }

    /// Whether the command has this flag.
    pub fn has_flag(&self, flag: &str) -> bool {
        self.flags.contains(&flag)
    }
}

impl std::fmt::Debug for Spec {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Spec").field("id", &self.id).field("name", &self.name).finish()
    }
}

/// All commands, by id.
pub fn all() -> &'static [Spec] {
    &TABLE
}

/// The command with this id.
#[inline]
pub fn spec(id: u16) -> Option<&'static Spec> {
    TABLE.get(usize::from(id))
}

/// The command with this name, in any case.
#[inline]
pub fn lookup(name: &[u8]) -> Option<&'static Spec> {
    let packed = pack(name)?;
    let mut slot = slot_of(packed);
    loop {
        let (known, id) = SLOTS[slot];
        if id == EMPTY {
            return None;
        }
        if known == packed {
            return Some(&TABLE[usize::from(id)]);
        }
        slot = (slot + 1) % SLOTS.len();
    }
}

/// A name in lower case as one number: no name is longer than 16 bytes, and none starts with a zero
/// byte, which would not count.
#[inline]
const fn pack(name: &[u8]) -> Option<u128> {
    if name.is_empty() || name.len() > 16 || name[0] == 0 {
        return None;
    }
    let mut packed = 0;
    let mut at = 0;
    while at < name.len() {
        packed = packed << 8 | name[at].to_ascii_lowercase() as u128;
        at += 1;
    }
    Some(packed)
}

const EMPTY: u16 = u16::MAX;

/// Where the search for a packed name starts.
#[inline]
const fn slot_of(packed: u128) -> usize {
    let folded = (packed as u64) ^ ((packed >> 64) as u64).rotate_left(29);
    (folded.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 55) as usize
}

static SLOTS: [(u128, u16); 512] = {
    let mut slots = [(0, EMPTY); 512];
    let mut id = 0;
    while id < TABLE.len() {
        let Some(packed) = pack(TABLE[id].name.as_bytes()) else {
            panic!("a name of 1..=16 bytes")
        };
        let mut slot = slot_of(packed);
        while slots[slot].1 != EMPTY {
            slot = (slot + 1) % slots.len();
        }
        slots[slot] = (packed, id as u16);
        id += 1;
    }
    slots
};

type Keys = [i8; 3];
const NO_KEY: Keys = [0, 0, 0];
const KEY: Keys = [1, 1, 1];
const TWO: Keys = [1, 2, 1];
const KEYS: Keys = [1, -1, 1];
const PAIRS: Keys = [1, -1, 2];
const SECOND: Keys = [2, 2, 1];
const FROM_SECOND: Keys = [2, -1, 1];

type Flags = &'static [&'static str];
const NONE: Flags = &[];
const FAST: Flags = &["fast"];
const LOADING: Flags = &["loading", "stale"];
const LOADING_FAST: Flags = &["loading", "stale", "fast"];
const NOSCRIPT: Flags = &["noscript"];
const ALWAYS: Flags = &["noscript", "loading", "stale", "fast", "no_auth", "allow_busy"];
const ROLE: Flags = &["noscript", "loading", "stale", "fast"];
const ADMIN: Flags = &["admin", "noscript", "loading", "stale"];
const MULTI: Flags = &["noscript", "loading", "stale", "fast", "allow_busy"];
const EXEC: Flags = &["noscript", "loading", "stale", "skip_slowlog"];
const READ: Flags = &["readonly"];
const READ_MOVABLE: Flags = &["readonly", "movablekeys"];
const READ_FAST: Flags = &["readonly", "fast"];
const WRITE: Flags = &["write"];
const WRITE_ONLY_MOVABLE: Flags = &["write", "movablekeys"];
const WRITE_FAST: Flags = &["write", "fast"];
const WRITE_GROWS: Flags = &["write", "denyoom"];
const WRITE_MOVABLE: Flags = &["write", "denyoom", "movablekeys"];
const WRITE_GROWS_FAST: Flags = &["write", "denyoom", "fast"];

const fn row(name: &'static str, arity: i8, keys: Keys, flags: Flags, group: &'static str) -> Spec {
    Spec {
        id: 0,
        name,
        arity,
        place: Place::Local,
        grows: false,
        flags,
        group,
        first_key: keys[0],
        last_key: keys[1],
        step: keys[2],
        cursor: None,
        run: Run::Local,
    }
}

const fn local(
    name: &'static str,
    arity: i8,
    keys: Keys,
    flags: Flags,
    group: &'static str,
) -> Spec {
    row(name, arity, keys, flags, group)
}

const fn read(
    name: &'static str,
    arity: i8,
    keys: Keys,
    flags: Flags,
    group: &'static str,
    run: fn(&mut ReadCall<'_>, &[&[u8]]) -> Outcome,
) -> Spec {
    let mut spec = row(name, arity, keys, flags, group);
    spec.place = Place::Read;
    spec.run = Run::Read(run);
    spec
}

const fn write(
    name: &'static str,
    arity: i8,
    keys: Keys,
    flags: Flags,
    group: &'static str,
    run: fn(&mut WriteCall<'_>, &[&[u8]]) -> Outcome,
) -> Spec {
    let mut spec = row(name, arity, keys, flags, group);
    spec.place = Place::Write;
    // Of the flags of writes, those of growing ones alone have a second word of seven letters.
    spec.grows = flags.len() > 1 && flags[1].len() == "denyoom".len();
    spec.run = Run::Write(run);
    spec
}

/// The command that ends in a cursor at `place`.
const fn cursor(mut spec: Spec, place: usize) -> Spec {
    spec.cursor = Some(place);
    spec
}

const fn numbered<const N: usize>(mut table: [Spec; N]) -> [Spec; N] {
    let mut id = 0;
    while id < N {
        table[id].id = id as u16;
        id += 1;
    }
    table
}

#[rustfmt::skip] // one row a line
static TABLE: [Spec; 178] = numbered([
    local("ping", -1, NO_KEY, FAST, "connection"),
    local("echo", 2, NO_KEY, LOADING_FAST, "connection"),
    local("quit", -1, NO_KEY, ALWAYS, "connection"),
    local("reset", 1, NO_KEY, ALWAYS, "connection"),
    local("hello", -1, NO_KEY, ALWAYS, "connection"),
    local("auth", -2, NO_KEY, ALWAYS, "connection"),
    local("select", 2, NO_KEY, LOADING_FAST, "connection"),
    local("client", -2, NO_KEY, NONE, "connection"),
    local("command", -1, NO_KEY, LOADING, "connection"),
    local("info", -1, NO_KEY, LOADING, "server"),
    local("config", -2, NO_KEY, NONE, "server"),
    local("function", -2, NO_KEY, NONE, "scripting"),
    local("time", 1, NO_KEY, LOADING_FAST, "server"),
    local("role", 1, NO_KEY, ROLE, "server"),
    local("wait", 3, NO_KEY, NOSCRIPT, "connection"),
    local("waitaof", 4, NO_KEY, NOSCRIPT, "connection"),
    local("readonly", 1, NO_KEY, LOADING_FAST, "connection"),
    local("readwrite", 1, NO_KEY, LOADING_FAST, "connection"),
    local("cluster", -2, NO_KEY, NONE, "cluster"),
    local("slowlog", -2, NO_KEY, NONE, "server"),
    local("latency", -2, NO_KEY, NONE, "server"),
    local("acl", -2, NO_KEY, NONE, "server"),
    local("debug", -2, NO_KEY, ADMIN, "server"),
    local("multi", 1, NO_KEY, MULTI, "transactions"),
    local("exec", 1, NO_KEY, EXEC, "transactions"),
    local("discard", 1, NO_KEY, MULTI, "transactions"),
    local("watch", -2, KEYS, MULTI, "transactions"),
    local("unwatch", 1, NO_KEY, MULTI, "transactions"),
    read("dbsize", 1, NO_KEY, READ_FAST, "server", introspect::dbsize),
    write("flushall", -1, NO_KEY, WRITE, "server", keyspace::flush),
    write("flushdb", -1, NO_KEY, WRITE, "server", keyspace::flush),
    read("memory", -2, SECOND, NONE, "server", introspect::memory),
    read("object", -2, SECOND, NONE, "generic", introspect::object),
    write("set", -3, KEY, WRITE_GROWS, "string", strings::set),
    read("get", 2, KEY, READ_FAST, "string", strings::get),
    write("getex", -2, KEY, WRITE_FAST, "string", strings::getex),
    write("getdel", 2, KEY, WRITE_FAST, "string", strings::getdel),
    write("getset", 3, KEY, WRITE_GROWS_FAST, "string", strings::getset),
    read("mget", -2, KEYS, READ_FAST, "string", strings::mget),
    write("mset", -3, PAIRS, WRITE_GROWS, "string", strings::mset),
    write("msetnx", -3, PAIRS, WRITE_GROWS, "string", strings::msetnx),
    write("setnx", 3, KEY, WRITE_GROWS_FAST, "string", strings::setnx),
    write("setex", 4, KEY, WRITE_GROWS, "string", strings::setex),
    write("psetex", 4, KEY, WRITE_GROWS, "string", strings::psetex),
    write("append", 3, KEY, WRITE_GROWS_FAST, "string", strings::append),
    read("strlen", 2, KEY, READ_FAST, "string", strings::strlen),
    read("getrange", 4, KEY, READ, "string", strings::getrange),
    read("substr", 4, KEY, READ, "string", strings::getrange),
    write("setrange", 4, KEY, WRITE_GROWS, "string", strings::setrange),
    write("incr", 2, KEY, WRITE_GROWS_FAST, "string", strings::incr),
    write("decr", 2, KEY, WRITE_GROWS_FAST, "string", strings::decr),
    write("incrby", 3, KEY, WRITE_GROWS_FAST, "string", strings::incrby),
    write("decrby", 3, KEY, WRITE_GROWS_FAST, "string", strings::decrby),
    write("incrbyfloat", 3, KEY, WRITE_GROWS_FAST, "string", strings::incrbyfloat),
    read("lcs", -3, TWO, READ, "string", lcs::lcs),
    write("del", -2, KEYS, WRITE, "generic", keyspace::del),
    write("unlink", -2, KEYS, WRITE_FAST, "generic", keyspace::del),
    read("exists", -2, KEYS, READ_FAST, "generic", keyspace::exists),
    write("expire", -3, KEY, WRITE_FAST, "generic", expiry::expire),
    write("pexpire", -3, KEY, WRITE_FAST, "generic", expiry::pexpire),
    write("expireat", -3, KEY, WRITE_FAST, "generic", expiry::expireat),
    write("pexpireat", -3, KEY, WRITE_FAST, "generic", expiry::pexpireat),
    read("expiretime", 2, KEY, READ_FAST, "generic", expiry::expiretime),
    read("pexpiretime", 2, KEY, READ_FAST, "generic", expiry::pexpiretime),
    write("persist", 2, KEY, WRITE_FAST, "generic", expiry::persist),
    read("ttl", 2, KEY, READ_FAST, "generic", expiry::ttl),
    read("pttl", 2, KEY, READ_FAST, "generic", expiry::pttl),
    read("type", 2, KEY, READ_FAST, "generic", keyspace::type_of),
    write("rename", 3, TWO, WRITE, "generic", keyspace::rename),
    write("renamenx", 3, TWO, WRITE_FAST, "generic", keyspace::renamenx),
    write("copy", -3, TWO, WRITE_GROWS, "generic", keyspace::copy),
    read("randomkey", 1, NO_KEY, READ, "generic", random::randomkey),
    read("keys", 2, NO_KEY, READ, "generic", scan::keys),
    cursor(read("scan", -2, NO_KEY, READ, "generic", scan::scan), 1),
    read("touch", -2, KEYS, READ_FAST, "generic", keyspace::exists),
    write("hset", -4, KEY, WRITE_GROWS_FAST, "hash", hashes::hset),
    write("hsetnx", 4, KEY, WRITE_GROWS_FAST, "hash", hashes::hsetnx),
    write("hmset", -4, KEY, WRITE_GROWS_FAST, "hash", hashes::hmset),
    write("hincrby", 4, KEY, WRITE_GROWS_FAST, "hash", hashes::hincrby),
    write("hincrbyfloat", 4, KEY, WRITE_GROWS_FAST, "hash", hashes::hincrbyfloat),
    read("hget", 3, KEY, READ_FAST, "hash", hashes::hget),
    read("hmget", -3, KEY, READ_FAST, "hash", hashes::hmget),
    write("hdel", -3, KEY, WRITE_FAST, "hash", hashes::hdel),
    read("hlen", 2, KEY, READ_FAST, "hash", hashes::hlen),
    read("hstrlen", 3, KEY, READ_FAST, "hash", hashes::hstrlen),
    read("hkeys", 2, KEY, READ, "hash", hashes::hkeys),
    read("hvals", 2, KEY, READ, "hash", hashes::hvals),
    read("hgetall", 2, KEY, READ, "hash", hashes::hgetall),
    read("hexists", 3, KEY, READ_FAST, "hash", hashes::hexists),
    read("hrandfield", -2, KEY, READ, "hash", random_members::hrandfield),
    cursor(read("hscan", -3, KEY, READ, "hash", scan::hscan), 2),
    read("krange", -3, NO_KEY, READ, "generic", ranges::krange),
    read("kcount", 3, NO_KEY, READ, "generic", ranges::kcount),
    write("cas", 4, KEY, WRITE_GROWS_FAST, "string", strings::cas),
    write("hexpire", -6, KEY, WRITE_GROWS_FAST, "hash", field_expiry::hexpire),
    write("hpexpire", -6, KEY, WRITE_GROWS_FAST, "hash", field_expiry::hpexpire),
    write("hexpireat", -6, KEY, WRITE_GROWS_FAST, "hash", field_expiry::hexpireat),
    write("hpexpireat", -6, KEY, WRITE_GROWS_FAST, "hash", field_expiry::hpexpireat),
    read("httl", -5, KEY, READ_FAST, "hash", field_expiry::httl),
    read("hpttl", -5, KEY, READ_FAST, "hash", field_expiry::hpttl),
    read("hexpiretime", -5, KEY, READ_FAST, "hash", field_expiry::hexpiretime),
    read("hpexpiretime", -5, KEY, READ_FAST, "hash", field_expiry::hpexpiretime),
    write("hpersist", -5, KEY, WRITE_FAST, "hash", field_expiry::hpersist),
    write("lpush", -3, KEY, WRITE_GROWS_FAST, "list", lists::lpush),
    write("rpush", -3, KEY, WRITE_GROWS_FAST, "list", lists::rpush),
    write("lpushx", -3, KEY, WRITE_GROWS_FAST, "list", lists::lpushx),
    write("rpushx", -3, KEY, WRITE_GROWS_FAST, "list", lists::rpushx),
    write("lpop", -2, KEY, WRITE_FAST, "list", lists::lpop),
    write("rpop", -2, KEY, WRITE_FAST, "list", lists::rpop),
    read("llen", 2, KEY, READ_FAST, "list", lists::llen),
    read("lrange", 4, KEY, READ, "list", lists::lrange),
    read("lindex", 3, KEY, READ, "list", lists::lindex),
    write("lset", 4, KEY, WRITE_GROWS, "list", lists::lset),
    write("lrem", 4, KEY, WRITE, "list", lists::lrem),
    write("ltrim", 4, KEY, WRITE, "list", lists::ltrim),
    write("linsert", 5, KEY, WRITE_GROWS, "list", lists::linsert),
    read("lpos", -3, KEY, READ, "list", lists::lpos),
    write("lmove", 5, TWO, WRITE_GROWS, "list", lists::lmove),
    write("rpoplpush", 3, TWO, WRITE_GROWS, "list", lists::rpoplpush),
    write("sadd", -3, KEY, WRITE_GROWS_FAST, "set", sets::sadd),
    write("srem", -3, KEY, WRITE_FAST, "set", sets::srem),
    read("smembers", 2, KEY, READ, "set", sets::smembers),
    read("sismember", 3, KEY, READ_FAST, "set", sets::sismember),
    read("smismember", -3, KEY, READ_FAST, "set", sets::smismember),
    read("scard", 2, KEY, READ_FAST, "set", sets::scard),
    write("spop", -2, KEY, WRITE_FAST, "set", sets::spop),
    read("srandmember", -2, KEY, READ, "set", random_members::srandmember),
    write("smove", 4, TWO, WRITE_FAST, "set", sets::smove),
    read("sinter", -2, KEYS, READ, "set", set_algebra::sinter),
    read("sintercard", -3, NO_KEY, READ_MOVABLE, "set", set_algebra::sintercard),
    read("sunion", -2, KEYS, READ, "set", set_algebra::sunion),
    read("sdiff", -2, KEYS, READ, "set", set_algebra::sdiff),
    write("sinterstore", -3, KEYS, WRITE_GROWS, "set", set_algebra::sinterstore),
    write("sunionstore", -3, KEYS, WRITE_GROWS, "set", set_algebra::sunionstore),
    write("sdiffstore", -3, KEYS, WRITE_GROWS, "set", set_algebra::sdiffstore),
    cursor(read("sscan", -3, KEY, READ, "set", scan::sscan), 2),
    write("zadd", -4, KEY, WRITE_GROWS_FAST, "sorted-set", zsets::zadd),
    write("zincrby", 4, KEY, WRITE_GROWS_FAST, "sorted-set", zsets::zincrby),
    write("zrem", -3, KEY, WRITE_FAST, "sorted-set", zsets::zrem),
    read("zscore", 3, KEY, READ_FAST, "sorted-set", zsets::zscore),
    read("zmscore", -3, KEY, READ_FAST, "sorted-set", zsets::zmscore),
    read("zcard", 2, KEY, READ_FAST, "sorted-set", zsets::zcard),
    read("zcount", 4, KEY, READ_FAST, "sorted-set", zset_ranges::zcount),
    read("zlexcount", 4, KEY, READ_FAST, "sorted-set", zset_ranges::zlexcount),
    read("zrank", 3, KEY, READ_FAST, "sorted-set", zsets::zrank),
    read("zrevrank", 3, KEY, READ_FAST, "sorted-set", zsets::zrevrank),
    read("zrange", -4, KEY, READ, "sorted-set", zset_ranges::zrange),
    read("zrevrange", -4, KEY, READ, "sorted-set", zset_ranges::zrevrange),
    read("zrangebyscore", -4, KEY, READ, "sorted-set", zset_ranges::zrangebyscore),
    read("zrevrangebyscore", -4, KEY, READ, "sorted-set", zset_ranges::zrevrangebyscore),
    read("zrangebylex", -4, KEY, READ, "sorted-set", zset_ranges::zrangebylex),
    read("zrevrangebylex", -4, KEY, READ, "sorted-set", zset_ranges::zrevrangebylex),
    write("zrangestore", -5, TWO, WRITE_GROWS, "sorted-set", zset_ranges::zrangestore),
    write("zremrangebyrank", 4, KEY, WRITE, "sorted-set", zset_ranges::zremrangebyrank),
    write("zremrangebyscore", 4, KEY, WRITE, "sorted-set", zset_ranges::zremrangebyscore),
    write("zremrangebylex", 4, KEY, WRITE, "sorted-set", zset_ranges::zremrangebylex),
    write("zpopmin", -2, KEY, WRITE_FAST, "sorted-set", zset_ranges::zpopmin),
    write("zpopmax", -2, KEY, WRITE_FAST, "sorted-set", zset_ranges::zpopmax),
    read("zrandmember", -2, KEY, READ, "sorted-set", random_members::zrandmember),
    cursor(read("zscan", -3, KEY, READ, "sorted-set", scan::zscan), 2),
    read("zunion", -3, NO_KEY, READ_MOVABLE, "sorted-set", zset_algebra::zunion),
    read("zinter", -3, NO_KEY, READ_MOVABLE, "sorted-set", zset_algebra::zinter),
    read("zdiff", -3, NO_KEY, READ_MOVABLE, "sorted-set", zset_algebra::zdiff),
    read("zintercard", -3, NO_KEY, READ_MOVABLE, "sorted-set", zset_algebra::zintercard),
    write("zunionstore", -4, KEY, WRITE_MOVABLE, "sorted-set", zset_algebra::zunionstore),
    write("zinterstore", -4, KEY, WRITE_MOVABLE, "sorted-set", zset_algebra::zinterstore),
    write("zdiffstore", -4, KEY, WRITE_MOVABLE, "sorted-set", zset_algebra::zdiffstore),
    write("setbit", 4, KEY, WRITE_GROWS, "bitmap", bits::setbit),
    read("getbit", 3, KEY, READ_FAST, "bitmap", bits::getbit),
    read("bitcount", -2, KEY, READ, "bitmap", bits::bitcount),
    read("bitpos", -3, KEY, READ, "bitmap", bits::bitpos),
    write("bitop", -4, FROM_SECOND, WRITE_GROWS, "bitmap", bits::bitop),
    read("dump", 2, KEY, READ, "generic", dump::dump),
    write("restore", -4, KEY, WRITE_GROWS, "generic", dump::restore),
    write("sort", -2, KEY, WRITE_MOVABLE, "generic", sort::sort_any),
    read("sort_ro", -2, KEY, READ_MOVABLE, "generic", sort::sort_ro),
    write("lmpop", -4, NO_KEY, WRITE_ONLY_MOVABLE, "list", lists::lmpop),
    write("zmpop", -4, NO_KEY, WRITE_ONLY_MOVABLE, "sorted-set", zset_ranges::zmpop),
]);

/// The arguments that are keys.
#[inline]
pub(crate) fn keys<'a>(spec: &Spec, args: &[&'a [u8]]) -> impl Iterator<Item = &'a [u8]> {
    let last = match usize::try_from(spec.last_key) {
        Ok(last) => last.min(args.len()),
        Err(_) => args.len(),
    };
    let first = usize::from(spec.first_key.unsigned_abs()).checked_sub(1);
    let range = first.and_then(|first| args.get(first..last)).unwrap_or_default();
    range.iter().copied().step_by(usize::from(spec.step.unsigned_abs()).max(1))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_name_is_found_in_any_case_and_no_other() {
        for spec in all() {
            assert_eq!(lookup(spec.name.as_bytes()).unwrap().id, spec.id);
            assert_eq!(lookup(spec.name.to_uppercase().as_bytes()).unwrap().id, spec.id);
            assert_eq!(super::spec(spec.id).unwrap().name, spec.name);
            assert_eq!(spec.grows, spec.has_flag("denyoom"), "{}", spec.name);
            assert!(lookup(format!("{}x", spec.name).as_bytes()).is_none_or(|s| s.id != spec.id));
        }
        for name in [&b""[..], b"nosuch", b"a-name-longer-than-any", b"get\0", b"\0get"] {
            assert!(lookup(name).is_none());
        }
    }

    #[test]
    fn arity_counts_the_name() {
        assert!(lookup(b"get").unwrap().accepts(2));
        assert!(!lookup(b"get").unwrap().accepts(3));
        assert!(lookup(b"DEL").unwrap().accepts(7));
        assert!(!lookup(b"DEL").unwrap().accepts(1));
    }
}
