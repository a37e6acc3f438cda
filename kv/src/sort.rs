//! SORT and SORT_RO.

use std::cmp::Ordering;

use masstree::Guard;
use resp::write;

use crate::call::{ReadCall, WriteCall};
use crate::collection::{Open, get_entry};
use crate::error::{Error, Outcome};
use crate::lists::{self, List, Side};
use crate::numbers::integer;
use crate::store::Store;
use crate::value::{HashHead, Head, Kind, Value, text};
use crate::zset_ranges::walk;
use crate::zsets::parse_score;

/// What both a reading and a writing command can look up.
trait Keys {
    fn live(&mut self, key: &[u8]) -> Option<Value>;
    fn trees(&self) -> (&Store, &Guard);
}

impl Keys for ReadCall<'_> {
    fn live(&mut self, key: &[u8]) -> Option<Value> {
        ReadCall::live(self, key)
    }

    fn trees(&self) -> (&Store, &Guard) {
        (self.store, self.guard)
    }
}

impl Keys for WriteCall<'_> {
    fn live(&mut self, key: &[u8]) -> Option<Value> {
        WriteCall::live(self, key)
    }

    fn trees(&self) -> (&Store, &Guard) {
        (self.store, self.guard)
    }
}

/// The options of SORT.
#[derive(Default)]
struct Options<'a> {
    descending: bool,
    alphabetic: bool,
    limit: Option<(i64, i64)>,
    by: Option<&'a [u8]>,
    get: Vec<&'a [u8]>,
    store: Option<&'a [u8]>,
}

impl<'a> Options<'a> {
    fn parse(args: &[&'a [u8]], may_store: bool) -> Result<Options<'a>, Error> {
        let mut options = Options::default();
        let mut args = args.iter();
        while let Some(option) = args.next() {
            let is = |name: &str| option.eq_ignore_ascii_case(name.as_bytes());
            let mut next = || args.next().copied().ok_or(Error::Syntax);
            if is("ASC") {
                options.descending = false;
            } else if is("DESC") {
                options.descending = true;
            } else if is("ALPHA") {
                options.alphabetic = true;
            } else if is("LIMIT") {
                let (start, count) = (next()?, next()?);
                options.limit = Some((integer(start)?, integer(count)?));
            } else if may_store && is("STORE") {
                options.store = Some(next()?);
            } else if is("BY") {
                options.by = Some(next()?);
            } else if is("GET") {
                options.get.push(next()?);
            } else {
                return Err(Error::Syntax);
            }
        }
        if options.store.is_some_and(|key| key.len() > crate::MAX_KEY_LEN) {
            return Err(Error::KeyTooLong);
        }
        Ok(options)
    }

    /// What part of that many elements is wanted.
    fn range(&self, count: usize) -> std::ops::Range<usize> {
        let Some((start, wanted)) = self.limit else { return 0..count };
        let start = usize::try_from(start.max(0)).unwrap_or(usize::MAX).min(count);
        let wanted = usize::try_from(wanted).unwrap_or(count);
        start..start.saturating_add(wanted).min(count)
    }
}

/// The elements in the collection's own order, or, of sets, in that of their bytes.
fn elements(keys: &mut impl Keys, key: &[u8]) -> Result<(Kind, Vec<Vec<u8>>), Error> {
    let mut found = Vec::new();
    let Some(value) = keys.live(key) else { return Ok((Kind::List, found)) };
    let kind = value.header.header.kind();
    let head = Head::of(&value, kind).ok_or(Error::WrongType)?;
    let (store, guard) = keys.trees();
    match kind {
        Kind::List => lists::each(store, guard, head, 0..head.count, |_, value| {
            found.push(value.slice.to_vec());
            true
        }),
        Kind::Set => store.scan_fields(head.id, b"", guard, |member, _| {
            found.push(member.to_vec());
            true
        }),
        Kind::SortedSet => walk(store, guard, head, None, false, |member, _| {
            found.push(member.to_vec());
            true
        }),
        _ => return Err(Error::WrongType),
    }
    Ok((kind, found))
}

/// What the key, or the field of a hash, has whose name is the pattern with the element in place of
/// its first star. `#` is the element itself.
fn look_up(keys: &mut impl Keys, pattern: &[u8], element: &[u8]) -> Option<Vec<u8>> {
    if pattern == b"#" {
        return Some(element.to_vec());
    }
    let star = pattern.iter().position(|&byte| byte == b'*')?;
    let (before, after) = (&pattern[..star], &pattern[star + 1..]);
    // An arrow that nothing follows is part of the name.
    let arrow = after.windows(2).position(|pair| pair == b"->");
    let arrow = arrow.filter(|&at| at + 2 < after.len());
    let (after, field) = match arrow {
        Some(at) => (&after[..at], Some(&after[at + 2..])),
        None => (after, None),
    };
    let key = [before, element, after].concat();
    if key.len() > crate::MAX_KEY_LEN {
        return None;
    }
    let value = keys.live(&key)?;
    match (field, value.header.header.kind()) {
        (None, Kind::String | Kind::Item) => Some(text(&value).to_vec()),
        (Some(field), Kind::Hash) => {
            let head = HashHead::of(&value)?;
            let (store, guard) = keys.trees();
            get_entry(store, guard, head.id, field).map(|value| value.slice.to_vec())
        }
        _ => None,
    }
}

/// Sorts elements by themselves, or by what the pattern says.
fn sort(
    keys: &mut impl Keys,
    options: &Options<'_>,
    by: Option<&[u8]>,
    alphabetic: bool,
    elements: Vec<Vec<u8>>,
) -> Result<Vec<Vec<u8>>, Error> {
    let not_numbers = Error::Text("ERR One or more scores can't be converted into double");
    let direct = |order: Ordering| if options.descending { order.reverse() } else { order };
    let weight = |keys: &mut _, element: &[u8]| match by {
        Some(pattern) => look_up(keys, pattern, element),
        None => Some(element.to_vec()),
    };
    let mut weighted = Vec::with_capacity(elements.len());
    for element in elements {
        let weight = weight(keys, &element);
        let score = match &weight {
            Some(text) if !alphabetic && !text.is_empty() => {
                parse_score(text).ok_or(not_numbers.clone())?
            }
            _ => 0.0,
        };
        weighted.push((score, weight.filter(|_| alphabetic), element));
    }
    weighted.sort_by(|(x, a, one), (y, b, other)| {
        let by_score = x.partial_cmp(y).unwrap_or(Ordering::Equal);
        let order = if alphabetic { a.cmp(b) } else { by_score.then_with(|| one.cmp(other)) };
        direct(order)
    });
    Ok(weighted.into_iter().map(|(_, _, element)| element).collect())
}

/// What SORT finds: elements, or what its patterns make of each.
fn results(
    keys: &mut impl Keys,
    key: &[u8],
    options: &Options<'_>,
) -> Result<Vec<Option<Vec<u8>>>, Error> {
    let (kind, mut found) = elements(keys, key)?;
    let unsorted = options.by.is_some_and(|pattern| !pattern.contains(&b'*'));
    if unsorted && kind == Kind::Set && options.store.is_some() {
        found = sort(keys, options, None, true, found)?;
    } else if !unsorted {
        found = sort(keys, options, options.by, options.alphabetic, found)?;
    } else if options.descending && kind != Kind::Set {
        found.reverse();
    }
    let range = options.range(found.len());
    let mut results = Vec::new();
    for element in found.drain(range) {
        if options.get.is_empty() {
            results.push(Some(element));
        } else {
            for pattern in &options.get {
                results.push(look_up(keys, pattern, &element));
            }
        }
    }
    Ok(results)
}

fn write_results(reply: &mut Vec<u8>, protocol: resp::Protocol, results: &[Option<Vec<u8>>]) {
    write::array(reply, results.len());
    for result in results {
        match result {
            Some(bytes) => write::bulk(reply, bytes),
            None => write::null(reply, protocol),
        }
    }
}

/// `SORT key [BY pattern] [LIMIT offset count] [GET pattern ...] [ASC|DESC] [ALPHA]
/// [STORE destination]`
pub(crate) fn sort_any(call: &mut WriteCall<'_>, args: &[&[u8]]) -> Outcome {
    let options = Options::parse(&args[1..], true)?;
    let results = results(call, args[0], &options)?;
    let Some(target) = options.store else {
        write_results(call.reply, call.protocol, &results);
        return Ok(());
    };
    if !results.is_empty() {
        let mut list = List(Open::new(call, Kind::List));
        for result in &results {
            list.push(call, Side::Right, result.as_deref().unwrap_or_default());
        }
        list.0.close(call, target);
    } else if call.live(target).is_some() {
        call.remove(target);
    }
    write::integer(call.reply, results.len() as i64);
    Ok(())
}

/// `SORT_RO key [BY pattern] [LIMIT offset count] [GET pattern ...] [ASC|DESC] [ALPHA]`
pub(crate) fn sort_ro(call: &mut ReadCall<'_>, args: &[&[u8]]) -> Outcome {
    let options = Options::parse(&args[1..], false)?;
    let results = results(call, args[0], &options)?;
    write_results(call.reply, call.protocol, &results);
    Ok(())
}
