//! HRANDFIELD.

use resp::{Protocol, write};

use crate::call::ReadCall;
use crate::error::{Error, Outcome};
use crate::numbers::integer;
use crate::random::{Draws, sample};
use crate::store::Space;
use crate::value::{HashHead, Value};

/// Of hashes up to this many fields all are looked at, so that each is equally likely.
const FEW: u64 = 1024;

/// The most fields that a negative count may ask for.
const MOST: usize = 1 << 24;

type Field = (Vec<u8>, Value);

/// `HRANDFIELD key [count [WITHVALUES]]`
pub(crate) fn hrandfield(call: &mut ReadCall<'_>, args: &[&[u8]]) -> Outcome {
    let Some((count, with_values)) = parse(&args[1..])? else {
        let head = call.hash(args[0])?;
        let field = head.and_then(|head| repeated(call, head, 1).pop());
        match field {
            Some((field, _)) => write::bulk(call.reply, &field),
            None => write::null(call.reply, call.protocol),
        }
        return Ok(());
    };
    let Some(head) = call.hash(args[0])? else {
        write::array(call.reply, 0);
        return Ok(());
    };
    let wanted = usize::try_from(count.unsigned_abs()).unwrap_or(usize::MAX);
    let fields = if count >= 0 {
        distinct(call, head, wanted)
    } else if wanted <= MOST {
        repeated(call, head, wanted)
    } else {
        return Err(Error::Text("ERR value is out of range"));
    };
    reply(call, &fields, with_values);
    Ok(())
}

fn parse(args: &[&[u8]]) -> Result<Option<(i64, bool)>, Error> {
    let Some((count, rest)) = args.split_first() else { return Ok(None) };
    let count = integer(count)?;
    if count == i64::MIN {
        return Err(Error::Owned(format!(
            "ERR value is out of range, value must between {} and {}",
            -i64::MAX,
            i64::MAX
        )));
    }
    match rest {
        [] => Ok(Some((count, false))),
        [option] if option.eq_ignore_ascii_case(b"WITHVALUES") => {
            if count.abs() > i64::MAX / 2 {
                return Err(Error::Text("ERR value is out of range"));
            }
            Ok(Some((count, true)))
        }
        _ => Err(Error::Syntax),
    }
}

fn all_fields(call: &ReadCall<'_>, head: HashHead) -> Vec<Field> {
    let mut fields = Vec::new();
    call.store.scan_fields(head.id, b"", call.guard, |field, value| {
        fields.push((field.to_vec(), value.clone()));
        true
    });
    fields
}

/// That many fields, or all, each at most once.
fn distinct(call: &ReadCall<'_>, head: HashHead, wanted: usize) -> Vec<Field> {
    if wanted == 0 {
        return Vec::new();
    }
    let mut draws = Draws::new(call.seed);
    let mut fields = all_fields(call, head);
    if wanted < fields.len() {
        for at in 0..wanted {
            let other = at + draws.below(fields.len() - at);
            fields.swap(at, other);
        }
        fields.truncate(wanted);
    }
    fields
}

/// That many fields, drawn each time from all.
fn repeated(call: &ReadCall<'_>, head: HashHead, wanted: usize) -> Vec<Field> {
    let mut draws = Draws::new(call.seed);
    if head.count <= FEW {
        let fields = all_fields(call, head);
        if fields.is_empty() {
            return fields;
        }
        return (0..wanted).map(|_| fields[draws.below(fields.len())].clone()).collect();
    }
    let tree = call.store.trees.of(Space::Fields);
    let prefix = head.id.to_be_bytes();
    let draw = || sample(tree, &prefix, &mut draws, call.guard);
    let strip = |(key, value): Field| (key[prefix.len()..].to_vec(), value);
    std::iter::repeat_with(draw).take(wanted).flatten().map(strip).collect()
}

fn reply(call: &mut ReadCall<'_>, fields: &[Field], with_values: bool) {
    let flat = with_values && call.protocol == Protocol::V2;
    write::array(call.reply, if flat { fields.len() * 2 } else { fields.len() });
    for (field, value) in fields {
        if with_values && !flat {
            write::array(call.reply, 2);
        }
        write::bulk(call.reply, field);
        if with_values {
            write::bulk(call.reply, &value.slice);
        }
    }
}
