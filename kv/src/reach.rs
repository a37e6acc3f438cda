//! Which keys an item of a request may change or must see at once, before it runs.

use crate::items::Operation;
use crate::numbers::integer;
use crate::request::{Item, Reader};
use crate::shared::stripe_of;
use crate::table::{self, Place, Spec};

/// What an item locks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Locks {
    /// The stripes of its keys.
    Keys,
    Everything,
}

/// How an item is to be executed beside others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Reach {
    /// It may be tried as a read without locks.
    pub free: bool,
    /// It may be tried as a read under its locks.
    pub reads: bool,
    /// What it holds otherwise.
    pub locks: Locks,
}

impl Reach {
    const fn free(locks: Locks) -> Reach {
        Reach { free: true, reads: false, locks }
    }

    const fn write(locks: Locks) -> Reach {
        Reach { free: false, reads: false, locks }
    }

    const fn read(locks: Locks) -> Reach {
        Reach { free: false, reads: true, locks }
    }
}

/// Judges an item; the stripes of its keys go to `stripes`. `args` is memory to work with.
#[inline]
pub(crate) fn reach<'a>(
    item: &Item<'a>,
    args: &mut Vec<&'a [u8]>,
    stripes: &mut Vec<u16>,
) -> Reach {
    stripes.clear();
    match item {
        Item::Command { id, args: packed } => {
            args.clear();
            args.extend(*packed);
            // One that is not known has an error for an answer.
            table::spec(*id).map_or(Reach::free(Locks::Keys), |spec| command(spec, args, stripes))
        }
        Item::Transaction { watches, commands } => {
            stripes.extend(watches.map(|(key, _)| stripe_of(key)));
            transaction(commands, args, stripes)
        }
        Item::Versions(keys) => {
            stripes.extend(keys.map(stripe_of));
            Reach::free(Locks::Keys)
        }
        Item::Literal(_) => Reach::free(Locks::Keys),
        Item::Sweep => Reach::write(Locks::Everything),
        Item::Memcached(operation) => memcached(operation, stripes),
    }
}

/// All of a transaction's commands are one: none of them runs without locks.
fn transaction<'a>(commands: &'a [u8], args: &mut Vec<&'a [u8]>, stripes: &mut Vec<u16>) -> Reach {
    let mut all = Reach::read(Locks::Keys);
    let mut from = Reader::new(commands);
    while let Ok((_, item)) = from.item() {
        let Item::Command { id, args: packed } = item else { continue };
        let Some(spec) = table::spec(id) else { continue };
        args.clear();
        args.extend(packed);
        let reach = command(spec, args, stripes);
        all.reads &= reach.reads || reach.free;
        all.locks = all.locks.max(reach.locks);
    }
    all
}

fn memcached(operation: &Operation<'_>, stripes: &mut Vec<u16>) -> Reach {
    let (key, free) = match operation {
        Operation::Get { keys, touch } => {
            stripes.extend(keys.map(stripe_of));
            let free = touch.is_none();
            return Reach { free, ..Reach::write(Locks::Keys) };
        }
        Operation::Flush(_) => return Reach::write(Locks::Everything),
        Operation::Fetch(fetch) => (&fetch.key, fetch.touch.is_none()),
        Operation::Store(store) => (&store.key, false),
        Operation::Delete(delete) => (&delete.key, false),
        Operation::Arithmetic(arithmetic) => (&arithmetic.key, false),
    };
    stripes.push(stripe_of(key));
    Reach { free, ..Reach::write(Locks::Keys) }
}

#[inline]
fn command(spec: &Spec, args: &[&[u8]], stripes: &mut Vec<u16>) -> Reach {
    let before = stripes.len();
    let movable = spec.flags.last() == Some(&"movablekeys");
    stripes.extend(table::keys(spec, args).map(stripe_of));
    if movable && !counted_keys(spec, args, stripes) {
        return match spec.place {
            Place::Write => Reach::write(Locks::Everything),
            _ => Reach::read(Locks::Everything),
        };
    }
    match spec.place {
        Place::Local => Reach::free(Locks::Keys),
        Place::Write if spec.first_key == 0 && !movable => Reach::write(Locks::Everything),
        Place::Write => Reach::write(Locks::Keys),
        Place::Read if spec.first_key == 0 && !movable => Reach::free(Locks::Everything),
        Place::Read if stripes.len() == before + 1 && sees_one_value(spec) => {
            Reach::free(Locks::Keys)
        }
        Place::Read => Reach::read(Locks::Keys),
    }
}

/// Whether a read of one key looks at nothing but the key's value.
#[inline]
fn sees_one_value(spec: &Spec) -> bool {
    match spec.group {
        "string" | "bitmap" => true,
        "generic" => matches!(
            spec.name,
            "exists" | "touch" | "ttl" | "pttl" | "expiretime" | "pexpiretime" | "type"
        ),
        _ => false,
    }
}

/// Adds the keys that follow their number. Returns whether the command's keys are known so.
fn counted_keys(spec: &Spec, args: &[&[u8]], stripes: &mut Vec<u16>) -> bool {
    let place = match spec.name {
        "sintercard" | "zunion" | "zinter" | "zdiff" | "zintercard" | "lmpop" | "zmpop" => 0,
        "zunionstore" | "zinterstore" | "zdiffstore" => 1,
        // SORT finds keys by patterns.
        _ => return false,
    };
    // Without a number the command is refused.
    let count = args.get(place).and_then(|count| integer(count).ok()).unwrap_or(0);
    let keys = args.iter().skip(place + 1).take(usize::try_from(count).unwrap_or(0));
    stripes.extend(keys.map(|key| stripe_of(key)));
    true
}

#[cfg(test)]
mod tests {
    use super::*;

    fn judged(name: &str, args: &[&str]) -> (Reach, Vec<u16>) {
        let spec = table::lookup(name.as_bytes()).expect("a command");
        let args: Vec<&[u8]> = args.iter().map(|arg| arg.as_bytes()).collect();
        let mut stripes = Vec::new();
        (command(spec, &args, &mut stripes), stripes)
    }

    fn of(keys: &[&str]) -> Vec<u16> {
        keys.iter().map(|key| stripe_of(key.as_bytes())).collect()
    }

    #[test]
    fn commands_reach_their_keys() {
        let (write, read) = (Reach::write(Locks::Keys), Reach::read(Locks::Keys));
        assert_eq!(judged("set", &["a", "1"]), (write, of(&["a"])));
        assert_eq!(judged("mset", &["a", "1", "b", "2"]), (write, of(&["a", "b"])));
        assert_eq!(judged("rename", &["a", "b"]), (write, of(&["a", "b"])));
        assert_eq!(judged("bitop", &["and", "a", "b"]), (write, of(&["a", "b"])));
        assert_eq!(judged("get", &["a"]), (Reach::free(Locks::Keys), of(&["a"])));
        assert_eq!(judged("mget", &["a", "b"]), (read, of(&["a", "b"])));
        assert_eq!(judged("hget", &["a", "f"]), (read, of(&["a"])));
        assert_eq!(judged("zdiff", &["2", "a", "b"]), (read, of(&["a", "b"])));
        assert_eq!(judged("zmpop", &["1", "a", "min"]), (write, of(&["a"])));
        let stored = judged("zunionstore", &["d", "2", "a", "b", "weights", "1", "2"]);
        assert_eq!(stored, (write, of(&["d", "a", "b"])));
    }

    #[test]
    fn what_names_no_keys_reaches_everything() {
        for spec in table::all().iter().filter(|spec| spec.place == Place::Write) {
            let reach = judged(spec.name, &[]).0;
            let movable = spec.has_flag("movablekeys") && !spec.name.starts_with("sort");
            let everything = spec.first_key == 0 && !movable || spec.name == "sort";
            assert_eq!(reach.locks == Locks::Everything, everything, "{}", spec.name);
            assert!(!reach.free && !reach.reads, "{}", spec.name);
        }
        assert_eq!(judged("sort_ro", &["a", "by", "w_*"]).0, Reach::read(Locks::Everything));
        assert_eq!(judged("krange", &["-", "+"]).0, Reach::free(Locks::Everything));
    }
}
