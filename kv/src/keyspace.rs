//! Commands on keys, whatever they hold.

use resp::{parse_i64, write};

use crate::call::{ReadCall, WriteCall};
use crate::error::{Error, Outcome};
use crate::store::{Space, field_key};
use crate::value::{Header, Kind, Value, entries_of, value};

const NO_SUCH_KEY: Error = Error::Text("ERR no such key");

/// `DEL key ...`, `UNLINK key ...`
pub(crate) fn del(call: &mut WriteCall<'_>, args: &[&[u8]]) -> Outcome {
    let mut removed = 0;
    for key in args {
        if call.live(key).is_some() {
            call.remove(key);
            removed += 1;
        }
    }
    write::integer(call.reply, removed);
    Ok(())
}

/// `EXISTS key ...`, `TOUCH key ...`
pub(crate) fn exists(call: &mut ReadCall<'_>, args: &[&[u8]]) -> Outcome {
    let found = args.iter().filter(|key| call.live(key).is_some()).count();
    write::integer(call.reply, found as i64);
    Ok(())
}

/// What TYPE calls a value.
pub(crate) fn type_name(value: &Value) -> &'static str {
    match value.header.header.kind() {
        Kind::Hash => "hash",
        Kind::List => "list",
        Kind::Set => "set",
        Kind::SortedSet => "zset",
        Kind::String | Kind::Item | Kind::Field | Kind::Mark => "string",
    }
}

/// `TYPE key`
pub(crate) fn type_of(call: &mut ReadCall<'_>, args: &[&[u8]]) -> Outcome {
    let name = call.live(args[0]).map_or("none", |value| type_name(&value));
    write::simple(call.reply, name);
    Ok(())
}

/// Moves a key with its time to live and, of a collection, its entries.
fn move_key(call: &mut WriteCall<'_>, from: &[u8], to: &[u8]) {
    let Some(moved) = call.store.replace_head(from, None, call.guard) else { return };
    let header = &moved.header.header;
    let header = Header::new(header.kind(), call.store.next_version(), header.expire_ms);
    call.store.replace(to, Some(value(header, &moved.slice)), call.guard);
}

/// `RENAME key newkey`
pub(crate) fn rename(call: &mut WriteCall<'_>, args: &[&[u8]]) -> Outcome {
    call.live(args[0]).ok_or(NO_SUCH_KEY)?;
    if args[0] != args[1] {
        move_key(call, args[0], args[1]);
    }
    write::ok(call.reply);
    Ok(())
}

/// `RENAMENX key newkey`
pub(crate) fn renamenx(call: &mut WriteCall<'_>, args: &[&[u8]]) -> Outcome {
    call.live(args[0]).ok_or(NO_SUCH_KEY)?;
    let absent = call.live(args[1]).is_none();
    if absent {
        move_key(call, args[0], args[1]);
    }
    write::integer(call.reply, i64::from(absent));
    Ok(())
}

/// `COPY source destination [DB 0] [REPLACE]`
pub(crate) fn copy(call: &mut WriteCall<'_>, args: &[&[u8]]) -> Outcome {
    let mut replace = false;
    let mut options = args[2..].iter();
    while let Some(option) = options.next() {
        if option.eq_ignore_ascii_case(b"REPLACE") {
            replace = true;
        } else if option.eq_ignore_ascii_case(b"DB")
            && let Some(database) = options.next()
        {
            let database = parse_i64(database).ok_or(Error::NotInteger)?;
            if i32::try_from(database).is_err() {
                return Err(Error::NotInteger);
            }
            if database != 0 {
                return Err(Error::Text("ERR DB index is out of range"));
            }
        } else {
            return Err(Error::Syntax);
        }
    }
    let (from, to) = (args[0], args[1]);
    if from == to {
        return Err(Error::Text("ERR source and destination objects are the same"));
    }
    let source = call.live(from);
    let target = call.live(to);
    let Some(source) = source.filter(|_| target.is_none() || replace) else {
        write::integer(call.reply, 0);
        return Ok(());
    };
    copy_value(call, &source, to);
    write::integer(call.reply, 1);
    Ok(())
}

fn copy_value(call: &mut WriteCall<'_>, source: &Value, to: &[u8]) {
    let header = &source.header.header;
    let header = Header::new(header.kind(), call.store.next_version(), header.expire_ms);
    let mut head = source.slice.to_vec();
    if let Some((ids, from, _)) = entries_of(source) {
        let id = call.store.next_ids(ids);
        for nth in 0..ids {
            copy_entries(call, from.saturating_add(nth), id + nth);
        }
        head[..8].copy_from_slice(&id.to_le_bytes());
    }
    call.store.replace(to, Some(value(header, &head)), call.guard);
}

fn copy_entries(call: &mut WriteCall<'_>, from: u64, to: u64) {
    let mut entries = Vec::new();
    call.store.scan_fields(from, b"", call.guard, |entry, value| {
        entries.push((entry.to_vec(), value.clone()));
        true
    });
    for (entry, shared) in entries {
        call.store.put(Space::Fields, &field_key(to, &entry), Some(shared), call.guard);
    }
}

/// `FLUSHALL [ASYNC|SYNC]`, `FLUSHDB [ASYNC|SYNC]`
pub(crate) fn flush(call: &mut WriteCall<'_>, args: &[&[u8]]) -> Outcome {
    match args {
        [] => {}
        [mode] if mode.eq_ignore_ascii_case(b"SYNC") || mode.eq_ignore_ascii_case(b"ASYNC") => {}
        _ => return Err(Error::Syntax),
    }
    call.store.flush();
    write::ok(call.reply);
    Ok(())
}
