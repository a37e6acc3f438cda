//! KEYS, SCAN, HSCAN, SSCAN and ZSCAN.
//!
//! A scan goes through the keys in order. Its token is `>` and the last key that was looked at, so
//! that a key that is there from the first call to the last is returned exactly once, whatever
//! happens to others. A pattern that starts with literal bytes confines the scan to keys that do.

use std::ops::Bound;

use resp::write;

use crate::call::ReadCall;
use crate::error::{Error, Outcome};
use crate::glob;
use crate::keyspace::type_name;
use crate::numbers::integer;
use crate::store::Space;
use crate::value::{Kind, Value};
use crate::zsets::{print_score, score_of};

const TOKEN: u8 = b'>';

/// `KEYS pattern`
pub(crate) fn keys(call: &mut ReadCall<'_>, args: &[&[u8]]) -> Outcome {
    let pattern = args[0];
    let prefix = glob::literal_prefix(pattern);
    let everything = pattern == b"*";
    let mut found = Found::default();
    let (store, guard) = (call.store, call.guard);
    store.trees.of(Space::Keys).scan(Bound::Included(clip(prefix)), guard, |key, value| {
        if !key.starts_with(prefix) {
            return false;
        }
        if (everything || glob::matches(pattern, key)) && call.is_live(key, value) {
            found.push(key);
        }
        !call.is_void()
    });
    found.write(call.reply);
    Ok(())
}

/// What was found: finished replies, and how many.
#[derive(Default)]
struct Found {
    count: usize,
    replies: Vec<u8>,
}

impl Found {
    fn push(&mut self, bytes: &[u8]) {
        self.count += 1;
        write::bulk(&mut self.replies, bytes);
    }

    fn write(&self, reply: &mut Vec<u8>) {
        write::array(reply, self.count);
        reply.extend_from_slice(&self.replies);
    }
}

/// No key is longer, so that nothing between this and the whole is a key.
fn clip(bytes: &[u8]) -> &[u8] {
    &bytes[..bytes.len().min(crate::MAX_KEY_LEN)]
}

struct Options<'a> {
    count: usize,
    pattern: Option<&'a [u8]>,
    kind: Option<&'a [u8]>,
}

impl<'a> Options<'a> {
    fn parse(args: &[&'a [u8]], with_type: bool) -> Result<Options<'a>, Error> {
        let mut options = Options { count: 10, pattern: None, kind: None };
        let (pairs, rest) = args.as_chunks::<2>();
        for [name, argument] in pairs {
            if name.eq_ignore_ascii_case(b"COUNT") {
                options.count = match integer(argument)? {
                    count @ 1.. => usize::try_from(count).unwrap_or(usize::MAX),
                    _ => return Err(Error::Syntax),
                };
            } else if name.eq_ignore_ascii_case(b"MATCH") {
                options.pattern = Some(argument);
            } else if name.eq_ignore_ascii_case(b"TYPE") && with_type {
                options.kind = Some(argument);
            } else {
                return Err(Error::Syntax);
            }
        }
        if rest.is_empty() { Ok(options) } else { Err(Error::Syntax) }
    }

    fn prefix(&self) -> &'a [u8] {
        self.pattern.map_or(&[], glob::literal_prefix)
    }

    fn matches(&self, key: &[u8]) -> bool {
        self.pattern.is_none_or(|pattern| glob::matches(pattern, key))
    }
}

/// Where a scan with this token goes on.
fn start<'a>(token: &'a [u8], prefix: &'a [u8]) -> Bound<&'a [u8]> {
    match token {
        [_, last @ ..] if last >= prefix => Bound::Excluded(clip(last)),
        _ => Bound::Included(clip(prefix)),
    }
}

/// Appends the reply of a scan that looked at `last` last, or came to the end.
fn write_page(reply: &mut Vec<u8>, last: Option<Vec<u8>>, found: &Found) {
    write::array(reply, 2);
    match last {
        Some(last) => write::bulk(reply, &[&[TOKEN], &last[..]].concat()),
        None => write::bulk(reply, b""),
    }
    found.write(reply);
}

/// `SCAN token [MATCH pattern] [COUNT n] [TYPE name]`
pub(crate) fn scan(call: &mut ReadCall<'_>, args: &[&[u8]]) -> Outcome {
    let options = Options::parse(&args[1..], true)?;
    let prefix = options.prefix();
    let (mut found, mut looked, mut last) = (Found::default(), 0, None);
    let (store, guard) = (call.store, call.guard);
    store.trees.of(Space::Keys).scan(start(args[0], prefix), guard, |key, value| {
        if !key.starts_with(prefix) {
            return false;
        }
        let wanted =
            options.kind.is_none_or(|kind| kind.eq_ignore_ascii_case(type_name(value).as_bytes()));
        if wanted && options.matches(key) && call.is_live(key, value) {
            found.push(key);
        }
        looked += 1;
        if looked == options.count {
            last = Some(key.to_vec());
        }
        last.is_none() && !call.is_void()
    });
    write_page(call.reply, last, &found);
    Ok(())
}

/// Scans the entries of a collection; `push` adds one. What Redis would keep in an intset or a
/// listpack comes as a whole, as it does there.
fn scan_entries(
    call: &mut ReadCall<'_>,
    args: &[&[u8]],
    head: Option<(u64, bool)>,
    push: impl Fn(&mut Found, &[u8], &Value),
) -> Outcome {
    let options = Options::parse(&args[2..], false)?;
    let Some((id, large)) = head else {
        write_page(call.reply, None, &Found::default());
        return Ok(());
    };
    let count = if large { options.count } else { usize::MAX };
    let prefix = options.prefix();
    let (from, skipped) = match start(args[1], prefix) {
        Bound::Excluded(last) => (last, Some(last)),
        Bound::Included(from) => (from, None),
        Bound::Unbounded => (&[][..], None),
    };
    let (mut found, mut looked, mut last) = (Found::default(), 0, None);
    call.store.scan_fields(id, from, call.guard, |entry, value| {
        if skipped == Some(entry) {
            return true;
        }
        if !entry.starts_with(prefix) {
            return false;
        }
        if options.matches(entry) {
            push(&mut found, entry, value);
        }
        looked += 1;
        if looked == count {
            last = Some(entry.to_vec());
        }
        last.is_none()
    });
    write_page(call.reply, last, &found);
    Ok(())
}

/// `HSCAN key token [MATCH pattern] [COUNT n]`
pub(crate) fn hscan(call: &mut ReadCall<'_>, args: &[&[u8]]) -> Outcome {
    let head = call.hash(args[0])?.map(|head| (head.id, head.large));
    scan_entries(call, args, head, |found, field, value| {
        found.push(field);
        found.push(&value.slice);
    })
}

/// `SSCAN key token [MATCH pattern] [COUNT n]`
pub(crate) fn sscan(call: &mut ReadCall<'_>, args: &[&[u8]]) -> Outcome {
    let head = call.head(args[0], Kind::Set)?.map(|head| (head.id, head.large));
    scan_entries(call, args, head, |found, member, _| found.push(member))
}

/// `ZSCAN key token [MATCH pattern] [COUNT n]`
pub(crate) fn zscan(call: &mut ReadCall<'_>, args: &[&[u8]]) -> Outcome {
    let head = call.head(args[0], Kind::SortedSet)?.map(|head| (head.id, head.large));
    scan_entries(call, args, head, |found, member, value| {
        found.push(member);
        found.push(print_score(score_of(value)).as_bytes());
    })
}
