//! Commands that tell about keys rather than what is in them.

use resp::write;

use crate::call::ReadCall;
use crate::error::{Error, Outcome};
use crate::numbers::integer;
use crate::store::{Space, weight};
use crate::strings;
use crate::value::{Head, Kind, Value, entries_of, text};

/// `DBSIZE`
pub(crate) fn dbsize(call: &mut ReadCall<'_>, _args: &[&[u8]]) -> Outcome {
    write::integer(call.reply, call.store.sizes().keys as i64);
    Ok(())
}

/// Subcommands, and how many arguments each has.
type Subcommands = &'static [(&'static str, std::ops::RangeInclusive<usize>)];

const NO_FREQUENCY: &str = "ERR An LFU maxmemory policy is not selected, access frequency not \
    tracked. Please note that when switching between policies at runtime LRU and LFU data will \
    take some time to adjust.";

/// Finds the subcommand that the first argument names.
fn subcommand(command: &str, known: Subcommands, args: &[&[u8]]) -> Result<&'static str, Error> {
    let (name, counts) = known
        .iter()
        .find(|(name, _)| args[0].eq_ignore_ascii_case(name.as_bytes()))
        .ok_or(Error::Subcommand)?;
    if !counts.contains(&(args.len() - 1)) {
        return Err(Error::Owned(format!(
            "ERR wrong number of arguments for '{command}|{name}' command"
        )));
    }
    Ok(name)
}

fn write_help(reply: &mut Vec<u8>, command: &str, lines: &[&str]) {
    write::array(reply, lines.len() + 3);
    write::simple(
        reply,
        &format!("{command} <subcommand> [<arg> [value] [opt] ...]. Subcommands are:"),
    );
    for line in lines.iter().chain(&["HELP", "    Print this help."]) {
        write::simple(reply, line);
    }
}

/// `OBJECT ENCODING|FREQ|IDLETIME|REFCOUNT key`. Accesses are not tracked: nothing is ever idle.
pub(crate) fn object(call: &mut ReadCall<'_>, args: &[&[u8]]) -> Outcome {
    const SUBCOMMANDS: Subcommands = &[
        ("encoding", 1..=1),
        ("freq", 1..=1),
        ("idletime", 1..=1),
        ("refcount", 1..=1),
        ("help", 0..=0),
    ];
    let name = subcommand("object", SUBCOMMANDS, args)?;
    if name == "help" {
        write_help(call.reply, "OBJECT", OBJECT_HELP);
        return Ok(());
    }
    let Some(value) = call.live(args[1]) else {
        write::null(call.reply, call.protocol);
        return Ok(());
    };
    match name {
        "encoding" => write::bulk(call.reply, encoding(&value).as_bytes()),
        "refcount" => write::integer(call.reply, 1),
        "idletime" => write::integer(call.reply, 0),
        _ => return Err(Error::Text(NO_FREQUENCY)),
    }
    Ok(())
}

const OBJECT_HELP: &[&str] = &[
    "ENCODING <key>",
    "    Return the kind of internal representation used in order to store the value",
    "    associated with a <key>.",
    "FREQ <key>",
    "    Always refused: access frequency is not tracked.",
    "IDLETIME <key>",
    "    Return 0: idle time is not tracked.",
    "REFCOUNT <key>",
    "    Return 1.",
];

fn encoding(value: &Value) -> &'static str {
    let kind = value.header.header.kind();
    let large = Head::from_bytes(&value.slice).is_some_and(|head| head.large);
    match (kind, large) {
        (Kind::List, _) => "quicklist",
        (Kind::Set, false) => "intset",
        (Kind::Hash | Kind::Set, true) => "hashtable",
        (Kind::Hash | Kind::SortedSet, false) => "listpack",
        (Kind::SortedSet, true) => "skiplist",
        (Kind::String | Kind::Item | Kind::Field | Kind::Mark, _) => strings::encoding(text(value)),
    }
}

/// `MEMORY USAGE key [SAMPLES n]`; the other subcommands only answer.
pub(crate) fn memory(call: &mut ReadCall<'_>, args: &[&[u8]]) -> Outcome {
    const SUBCOMMANDS: Subcommands = &[
        ("usage", 1..=usize::MAX),
        ("doctor", 0..=0),
        ("malloc-stats", 0..=0),
        ("purge", 0..=0),
        ("help", 0..=0),
    ];
    match subcommand("memory", SUBCOMMANDS, args)? {
        "usage" => return memory_usage(call, &args[1..]),
        "purge" => write::ok(call.reply),
        "help" => write_help(call.reply, "MEMORY", MEMORY_HELP),
        _ => write::bulk(call.reply, b"Nothing to report: see INFO memory."),
    }
    Ok(())
}

const MEMORY_HELP: &[&str] = &[
    "DOCTOR",
    "    Return memory problems reports.",
    "PURGE",
    "    Does nothing.",
    "USAGE <key> [SAMPLES <count>]",
    "    Return memory in bytes used by <key> and its value.",
];

fn memory_usage(call: &mut ReadCall<'_>, args: &[&[u8]]) -> Outcome {
    let (options, rest) = args[1..].as_chunks::<2>();
    for [name, count] in options {
        if !name.eq_ignore_ascii_case(b"SAMPLES") || integer(count)? < 0 {
            return Err(Error::Syntax);
        }
    }
    if !rest.is_empty() {
        return Err(Error::Syntax);
    }
    let Some(value) = call.live(args[0]) else {
        write::null(call.reply, call.protocol);
        return Ok(());
    };
    let mut usage = weight(Space::Keys, args[0], &value);
    let (ids, first, count) = entries_of(&value).unwrap_or((0, 0, 0));
    for id in first..first.saturating_add(ids) {
        // The first entries stand for all.
        const SAMPLES: u64 = 1000;
        let (mut looked, mut bytes) = (0, 0);
        call.store.scan_fields(id, b"", call.guard, |field, value| {
            looked += 1;
            bytes += weight(Space::Fields, field, value) + 8; // and the id before each
            looked < SAMPLES
        });
        usage = usage.saturating_add(bytes.saturating_mul(count) / looked.max(1));
    }
    write::integer(call.reply, usage as i64);
    Ok(())
}
