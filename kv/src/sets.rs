//! Set commands on single sets. A set's members are entries without a value.

use masstree::Guard;
use resp::{parse_i64, write};

use crate::call::{ReadCall, WriteCall};
use crate::collection::{Open, check_members, get_entry, pop_count, put_entry};
use crate::error::{Error, Outcome};
use crate::random::Pool;
use crate::store::Store;
use crate::value::{Head, Kind};

/// A set that is being changed.
pub(crate) struct Set(pub Open);

impl Set {
    pub(crate) fn existing(call: &mut WriteCall<'_>, key: &[u8]) -> Result<Option<Set>, Error> {
        Ok(Open::existing(call, key, Kind::Set)?.map(Set))
    }

    pub(crate) fn new(call: &mut WriteCall<'_>) -> Set {
        Set(Open::new(call, Kind::Set))
    }

    /// Adds a member; returns whether it is new.
    pub(crate) fn add(&mut self, call: &mut WriteCall<'_>, member: &[u8]) -> bool {
        let nothing = Some(call.store.nothing.clone());
        let head = &mut self.0.head;
        if put_entry(call, head.id, member, nothing).is_some() {
            return false;
        }
        head.count = head.count.saturating_add(1);
        head.large |=
            head.count > call.store.limits.set_intset_entries || parse_i64(member).is_none();
        true
    }

    /// Removes a member; returns whether it was there.
    pub(crate) fn remove(&mut self, call: &mut WriteCall<'_>, member: &[u8]) -> bool {
        if !contains(call.store, call.guard, self.0.head, member) {
            return false;
        }
        put_entry(call, self.0.head.id, member, None);
        self.0.head.count = self.0.head.count.saturating_sub(1);
        true
    }

    pub(crate) fn close(self, call: &mut WriteCall<'_>, key: &[u8]) {
        self.0.close(call, key);
    }
}

/// Whether a set has a member.
pub(crate) fn contains(store: &Store, guard: &Guard, head: Head, member: &[u8]) -> bool {
    get_entry(store, guard, head.id, member).is_some()
}

/// `SADD key member ...`
pub(crate) fn sadd(call: &mut WriteCall<'_>, args: &[&[u8]]) -> Outcome {
    check_members(&args[1..])?;
    let mut set = Set(Open::of(call, args[0], Kind::Set)?);
    let mut added = 0;
    for member in &args[1..] {
        added += i64::from(set.add(call, member));
    }
    if added > 0 {
        set.close(call, args[0]);
    }
    write::integer(call.reply, added);
    Ok(())
}

/// `SREM key member ...`
pub(crate) fn srem(call: &mut WriteCall<'_>, args: &[&[u8]]) -> Outcome {
    let mut removed = 0;
    if let Some(mut set) = Set::existing(call, args[0])? {
        for member in &args[1..] {
            removed += i64::from(set.remove(call, member));
        }
        if removed > 0 {
            set.close(call, args[0]);
        }
    }
    write::integer(call.reply, removed);
    Ok(())
}

/// `SMOVE source destination member`
pub(crate) fn smove(call: &mut WriteCall<'_>, args: &[&[u8]]) -> Outcome {
    let (from, to, member) = (args[0], args[1], args[2]);
    let Some(mut source) = Set::existing(call, from)? else {
        write::integer(call.reply, 0);
        return Ok(());
    };
    call.head(to, Kind::Set)?;
    let moved = if from == to {
        contains(call.store, call.guard, source.0.head, member)
    } else {
        source.remove(call, member)
    };
    if moved && from != to {
        source.close(call, from);
        let mut target = Set(Open::of(call, to, Kind::Set)?);
        if target.add(call, member) {
            target.close(call, to);
        }
    }
    write::integer(call.reply, i64::from(moved));
    Ok(())
}

/// `SPOP key [count]`
pub(crate) fn spop(call: &mut WriteCall<'_>, args: &[&[u8]]) -> Outcome {
    let count = pop_count(&args[1..])?;
    let Some(mut set) = Set::existing(call, args[0])? else {
        match count {
            Some(_) => write::set(call.reply, call.protocol, 0),
            None => write::null(call.reply, call.protocol),
        }
        return Ok(());
    };
    let Head { id, count: members, .. } = set.0.head;
    let pool = Pool { store: call.store, guard: call.guard, seed: call.seed, id, count: members };
    let drawn = match count {
        Some(count) => pool.distinct(count),
        None => pool.repeated(1),
    };
    match (count, drawn.first()) {
        (Some(_), _) => write::set(call.reply, call.protocol, drawn.len()),
        (None, None) => write::null(call.reply, call.protocol),
        (None, Some(_)) => {}
    }
    for (member, _) in &drawn {
        write::bulk(call.reply, member);
        set.remove(call, member);
    }
    if !drawn.is_empty() {
        set.close(call, args[0]);
    }
    Ok(())
}

/// `SCARD key`
pub(crate) fn scard(call: &mut ReadCall<'_>, args: &[&[u8]]) -> Outcome {
    let count = call.head(args[0], Kind::Set)?.map_or(0, |head| head.count);
    write::integer(call.reply, count as i64);
    Ok(())
}

/// `SISMEMBER key member`
pub(crate) fn sismember(call: &mut ReadCall<'_>, args: &[&[u8]]) -> Outcome {
    let head = call.head(args[0], Kind::Set)?;
    let found = head.is_some_and(|head| contains(call.store, call.guard, head, args[1]));
    write::integer(call.reply, i64::from(found));
    Ok(())
}

/// `SMISMEMBER key member ...`
pub(crate) fn smismember(call: &mut ReadCall<'_>, args: &[&[u8]]) -> Outcome {
    let head = call.head(args[0], Kind::Set)?;
    write::array(call.reply, args.len() - 1);
    for member in &args[1..] {
        let found = head.is_some_and(|head| contains(call.store, call.guard, head, member));
        write::integer(call.reply, i64::from(found));
    }
    Ok(())
}

/// `SMEMBERS key`
pub(crate) fn smembers(call: &mut ReadCall<'_>, args: &[&[u8]]) -> Outcome {
    let head = call.head(args[0], Kind::Set)?;
    write::set(call.reply, call.protocol, head.map_or(0, |head| head.count as usize));
    if let Some(head) = head {
        let reply = &mut *call.reply;
        call.store.scan_fields(head.id, b"", call.guard, |member, _| {
            write::bulk(reply, member);
            true
        });
    }
    Ok(())
}
