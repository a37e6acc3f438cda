//! List commands. A list's elements have consecutive indexes, so that each is found by its place;
//! whatever adds or removes one in the middle moves those of the shorter side.

use std::ops::Range;

use masstree::Guard;
use resp::write;

use crate::call::{ReadCall, WriteCall};
use crate::collection::{Open, PopArguments, entry_value, get_entry, pop_arguments, put_entry};
use crate::error::{Error, Outcome};
use crate::numbers::integer;
use crate::store::Store;
use crate::value::{Head, Kind, Value};

const NO_SUCH_KEY: Error = Error::Text("ERR no such key");
const NOT_POSITIVE: Error = Error::Text("ERR value is out of range, must be positive");

/// An end of a list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Side {
    Left,
    Right,
}

impl Side {
    fn parse(word: &[u8]) -> Result<Side, Error> {
        if word.eq_ignore_ascii_case(b"LEFT") {
            Ok(Side::Left)
        } else if word.eq_ignore_ascii_case(b"RIGHT") {
            Ok(Side::Right)
        } else {
            Err(Error::Syntax)
        }
    }
}

/// The key of the element at a place.
fn index(head: Head, place: u64) -> [u8; 8] {
    head.first.wrapping_add(place).to_be_bytes()
}

/// The element at a place.
fn element(store: &Store, guard: &Guard, head: Head, place: u64) -> Option<Value> {
    get_entry(store, guard, head.id, &index(head, place))
}

/// Visits the elements in a range of places until `visit` returns false.
pub(crate) fn each(
    store: &Store,
    guard: &Guard,
    head: Head,
    places: Range<u64>,
    mut visit: impl FnMut(u64, &Value) -> bool,
) {
    if places.is_empty() {
        return;
    }
    store.scan_fields(head.id, &index(head, places.start), guard, |key, value| {
        let place = place_of(head, key);
        places.contains(&place) && visit(place, value)
    });
}

/// The same from the range's end to its start.
fn each_reverse(
    store: &Store,
    guard: &Guard,
    head: Head,
    places: Range<u64>,
    mut visit: impl FnMut(u64, &Value) -> bool,
) {
    if places.is_empty() {
        return;
    }
    store.scan_fields_reverse(head.id, Some(&index(head, places.end - 1)), guard, |key, value| {
        let place = place_of(head, key);
        places.contains(&place) && visit(place, value)
    });
}

fn place_of(head: Head, key: &[u8]) -> u64 {
    let index = key.first_chunk::<8>().map_or(0, |index| u64::from_be_bytes(*index));
    index.wrapping_sub(head.first)
}

/// The places that a start and an end mean, which count from the list's end if negative.
pub(crate) fn range(count: u64, start: i64, end: i64) -> Range<u64> {
    let count = i64::try_from(count).unwrap_or(i64::MAX);
    let from_start = |place: i64| if place < 0 { place.saturating_add(count) } else { place };
    let (start, end) = (from_start(start).max(0), from_start(end).min(count - 1));
    if start > end { 0..0 } else { start.unsigned_abs()..end.unsigned_abs() + 1 }
}

/// A list that is being changed.
pub(crate) struct List(pub Open);

impl List {
    fn existing(call: &mut WriteCall<'_>, key: &[u8]) -> Result<Option<List>, Error> {
        Ok(Open::existing(call, key, Kind::List)?.map(List))
    }

    pub(crate) fn push(&mut self, call: &mut WriteCall<'_>, side: Side, bytes: &[u8]) {
        let new = entry_value(call.store, bytes);
        self.push_value(call, side, new);
    }

    fn push_value(&mut self, call: &mut WriteCall<'_>, side: Side, new: Value) {
        let head = &mut self.0.head;
        let place = match side {
            Side::Left => {
                head.first = head.first.wrapping_sub(1);
                0
            }
            Side::Right => head.count,
        };
        head.count = head.count.saturating_add(1);
        put_entry(call, head.id, &index(*head, place), Some(new));
    }

    fn pop(&mut self, call: &mut WriteCall<'_>, side: Side) -> Option<Value> {
        let head = &mut self.0.head;
        let place = match side {
            Side::Left => 0,
            Side::Right => head.count.checked_sub(1)?,
        };
        let popped = put_entry(call, head.id, &index(*head, place), None);
        head.count = head.count.saturating_sub(1);
        if side == Side::Left {
            head.first = head.first.wrapping_add(1);
        }
        popped
    }

    /// Removes the elements in a range of places at one end, without closing the gap.
    fn remove(&self, call: &mut WriteCall<'_>, places: Range<u64>) {
        let head = self.0.head;
        let mut found = Vec::new();
        each(call.store, call.guard, head, places, |place, _| {
            found.push(place);
            true
        });
        for place in found {
            put_entry(call, head.id, &index(head, place), None);
        }
    }

    /// Keeps only the elements in a range of places.
    fn trim(&mut self, call: &mut WriteCall<'_>, kept: Range<u64>) {
        self.remove(call, 0..kept.start);
        self.remove(call, kept.end..self.0.head.count);
        self.0.head.first = self.0.head.first.wrapping_add(kept.start);
        self.0.head.count = kept.end.saturating_sub(kept.start);
    }

    /// Inserts an element so that it gets this place.
    fn insert(&mut self, call: &mut WriteCall<'_>, place: u64, bytes: &[u8]) {
        let old = self.0.head;
        let left = place < old.count / 2;
        let moving = if left { 0..place } else { place..old.count };
        let mut moved = Vec::new();
        each(call.store, call.guard, old, moving, |place, value| {
            moved.push((place, value.clone()));
            true
        });
        let head = &mut self.0.head;
        head.count = head.count.saturating_add(1);
        if left {
            head.first = head.first.wrapping_sub(1);
        }
        let head = *head;
        for (place, value) in moved {
            let place = if left { place } else { place.saturating_add(1) };
            put_entry(call, head.id, &index(head, place), Some(value));
        }
        let new = entry_value(call.store, bytes);
        put_entry(call, head.id, &index(head, place), Some(new));
    }

    /// Removes the elements at these places, which are in order.
    fn remove_places(&mut self, call: &mut WriteCall<'_>, places: &[u64]) {
        let (Some(&low), Some(&high)) = (places.first(), places.last()) else { return };
        let head = self.0.head;
        let left = high < head.count.saturating_sub(low);
        let span = if left { 0..high.saturating_add(1) } else { low..head.count };
        let mut kept = Vec::new();
        each(call.store, call.guard, head, span.clone(), |place, value| {
            if places.binary_search(&place).is_err() {
                kept.push(value.clone());
            }
            true
        });
        let gone = places.len() as u64;
        let (vacated, filled) = if left {
            (span.start..gone, gone)
        } else {
            (span.end.saturating_sub(gone)..span.end, low)
        };
        self.remove(call, vacated);
        for (nth, value) in kept.into_iter().enumerate() {
            let place = filled.wrapping_add(nth as u64);
            put_entry(call, head.id, &index(head, place), Some(value));
        }
        let head = &mut self.0.head;
        head.count = head.count.saturating_sub(gone);
        if left {
            head.first = head.first.wrapping_add(gone);
        }
    }

    fn close(self, call: &mut WriteCall<'_>, key: &[u8]) {
        self.0.close(call, key);
    }
}

fn push(call: &mut WriteCall<'_>, args: &[&[u8]], side: Side, only_existing: bool) -> Outcome {
    let list = if only_existing {
        List::existing(call, args[0])?
    } else {
        Some(List(Open::of(call, args[0], Kind::List)?))
    };
    let Some(mut list) = list else {
        write::integer(call.reply, 0);
        return Ok(());
    };
    for bytes in &args[1..] {
        list.push(call, side, bytes);
    }
    write::integer(call.reply, list.0.head.count as i64);
    list.close(call, args[0]);
    Ok(())
}

/// `LPUSH key element ...`
pub(crate) fn lpush(call: &mut WriteCall<'_>, args: &[&[u8]]) -> Outcome {
    push(call, args, Side::Left, false)
}

/// `RPUSH key element ...`
pub(crate) fn rpush(call: &mut WriteCall<'_>, args: &[&[u8]]) -> Outcome {
    push(call, args, Side::Right, false)
}

/// `LPUSHX key element ...`
pub(crate) fn lpushx(call: &mut WriteCall<'_>, args: &[&[u8]]) -> Outcome {
    push(call, args, Side::Left, true)
}

/// `RPUSHX key element ...`
pub(crate) fn rpushx(call: &mut WriteCall<'_>, args: &[&[u8]]) -> Outcome {
    push(call, args, Side::Right, true)
}

fn pop(call: &mut WriteCall<'_>, args: &[&[u8]], side: Side) -> Outcome {
    let count = match &args[1..] {
        [] => None,
        [count] => {
            let count = integer(count).map_err(|_| NOT_POSITIVE)?;
            Some(usize::try_from(count).map_err(|_| NOT_POSITIVE)?)
        }
        _ => return Err(Error::Arity),
    };
    let list = List::existing(call, args[0])?;
    let Some(mut list) = list else {
        match count {
            Some(_) => write::null_array(call.reply, call.protocol),
            None => write::null(call.reply, call.protocol),
        }
        return Ok(());
    };
    let Some(count) = count else {
        match list.pop(call, side) {
            Some(value) => write::bulk(call.reply, &value.slice),
            None => write::null(call.reply, call.protocol),
        }
        list.close(call, args[0]);
        return Ok(());
    };
    if count == 0 {
        write::array(call.reply, 0);
        return Ok(());
    }
    pop_several(call, list, args[0], side, count);
    Ok(())
}

/// Pops elements and replies with them.
fn pop_several(call: &mut WriteCall<'_>, mut list: List, key: &[u8], side: Side, count: usize) {
    let mut popped = Vec::new();
    while popped.len() < count && list.0.head.count > 0 {
        // Where a damaged checkpoint left a gap, the rest is not worth looking for.
        let Some(value) = list.pop(call, side) else { break };
        popped.push(value);
    }
    write::array(call.reply, popped.len());
    for value in popped {
        write::bulk(call.reply, &value.slice);
    }
    list.close(call, key);
}

/// `LMPOP numkeys key ... LEFT|RIGHT [COUNT n]`
pub(crate) fn lmpop(call: &mut WriteCall<'_>, args: &[&[u8]]) -> Outcome {
    let PopArguments { keys, end, count } = pop_arguments(args)?;
    let side = Side::parse(end)?;
    for key in keys {
        if let Some(list) = List::existing(call, key)? {
            write::array(call.reply, 2);
            write::bulk(call.reply, key);
            pop_several(call, list, key, side, count);
            return Ok(());
        }
    }
    write::null_array(call.reply, call.protocol);
    Ok(())
}

/// `LPOP key [count]`
pub(crate) fn lpop(call: &mut WriteCall<'_>, args: &[&[u8]]) -> Outcome {
    pop(call, args, Side::Left)
}

/// `RPOP key [count]`
pub(crate) fn rpop(call: &mut WriteCall<'_>, args: &[&[u8]]) -> Outcome {
    pop(call, args, Side::Right)
}

/// `LLEN key`
pub(crate) fn llen(call: &mut ReadCall<'_>, args: &[&[u8]]) -> Outcome {
    let count = call.head(args[0], Kind::List)?.map_or(0, |head| head.count);
    write::integer(call.reply, count as i64);
    Ok(())
}

/// `LRANGE key start stop`
pub(crate) fn lrange(call: &mut ReadCall<'_>, args: &[&[u8]]) -> Outcome {
    let (start, end) = (integer(args[1])?, integer(args[2])?);
    let Some(head) = call.head(args[0], Kind::List)? else {
        write::array(call.reply, 0);
        return Ok(());
    };
    let places = range(head.count, start, end);
    write::array(call.reply, (places.end - places.start) as usize);
    let reply = &mut *call.reply;
    each(call.store, call.guard, head, places, |_, value| {
        write::bulk(reply, &value.slice);
        true
    });
    Ok(())
}

/// The place that a number means, if the list has it.
fn place(count: u64, number: i64) -> Option<u64> {
    let place = if number < 0 { number.checked_add_unsigned(count)? } else { number };
    u64::try_from(place).ok().filter(|&place| place < count)
}

/// `LINDEX key index`
pub(crate) fn lindex(call: &mut ReadCall<'_>, args: &[&[u8]]) -> Outcome {
    let head = call.head(args[0], Kind::List)?;
    let Some(head) = head else {
        write::null(call.reply, call.protocol);
        return Ok(());
    };
    let place = place(head.count, integer(args[1])?);
    match place.and_then(|place| element(call.store, call.guard, head, place)) {
        Some(value) => write::bulk(call.reply, &value.slice),
        None => write::null(call.reply, call.protocol),
    }
    Ok(())
}

/// `LSET key index element`
pub(crate) fn lset(call: &mut WriteCall<'_>, args: &[&[u8]]) -> Outcome {
    let list = List::existing(call, args[0])?.ok_or(NO_SUCH_KEY)?;
    let head = list.0.head;
    let place = place(head.count, integer(args[1])?);
    let place = place.ok_or(Error::Text("ERR index out of range"))?;
    let new = entry_value(call.store, args[2]);
    put_entry(call, head.id, &index(head, place), Some(new));
    list.close(call, args[0]);
    write::ok(call.reply);
    Ok(())
}

/// `LREM key count element`
pub(crate) fn lrem(call: &mut WriteCall<'_>, args: &[&[u8]]) -> Outcome {
    let count = integer(args[1])?;
    let Some(mut list) = List::existing(call, args[0])? else {
        write::integer(call.reply, 0);
        return Ok(());
    };
    let most = if count == 0 { u64::MAX } else { count.unsigned_abs() };
    let (head, mut places) = (list.0.head, Vec::new());
    let look = |place: u64, value: &Value| {
        if value.slice == *args[2] {
            places.push(place);
        }
        (places.len() as u64) < most
    };
    if count < 0 {
        each_reverse(call.store, call.guard, head, 0..head.count, look);
        places.reverse();
    } else {
        each(call.store, call.guard, head, 0..head.count, look);
    }
    if !places.is_empty() {
        list.remove_places(call, &places);
        list.close(call, args[0]);
    }
    write::integer(call.reply, places.len() as i64);
    Ok(())
}

/// `LTRIM key start stop`
pub(crate) fn ltrim(call: &mut WriteCall<'_>, args: &[&[u8]]) -> Outcome {
    let (start, end) = (integer(args[1])?, integer(args[2])?);
    if let Some(mut list) = List::existing(call, args[0])? {
        let kept = range(list.0.head.count, start, end);
        list.trim(call, kept);
        list.close(call, args[0]);
    }
    write::ok(call.reply);
    Ok(())
}

/// `LINSERT key BEFORE|AFTER pivot element`
pub(crate) fn linsert(call: &mut WriteCall<'_>, args: &[&[u8]]) -> Outcome {
    let after = if args[1].eq_ignore_ascii_case(b"AFTER") {
        true
    } else if args[1].eq_ignore_ascii_case(b"BEFORE") {
        false
    } else {
        return Err(Error::Syntax);
    };
    let Some(mut list) = List::existing(call, args[0])? else {
        write::integer(call.reply, 0);
        return Ok(());
    };
    let (head, mut pivot) = (list.0.head, None);
    each(call.store, call.guard, head, 0..head.count, |place, value| {
        if value.slice == *args[2] {
            pivot = Some(place);
        }
        pivot.is_none()
    });
    let Some(pivot) = pivot else {
        write::integer(call.reply, -1);
        return Ok(());
    };
    list.insert(call, pivot + u64::from(after), args[3]);
    write::integer(call.reply, list.0.head.count as i64);
    list.close(call, args[0]);
    Ok(())
}

fn move_element(
    call: &mut WriteCall<'_>,
    [from, to]: [&[u8]; 2],
    [out_of, into]: [Side; 2],
) -> Outcome {
    let Some(mut source) = List::existing(call, from)? else {
        write::null(call.reply, call.protocol);
        return Ok(());
    };
    if from == to {
        if let Some(value) = source.pop(call, out_of) {
            write::bulk(call.reply, &value.slice);
            source.push_value(call, into, value);
        } else {
            write::null(call.reply, call.protocol);
        }
        source.close(call, from);
        return Ok(());
    }
    let mut target = List(Open::of(call, to, Kind::List)?);
    match source.pop(call, out_of) {
        Some(value) => {
            write::bulk(call.reply, &value.slice);
            target.push_value(call, into, value);
            target.close(call, to);
        }
        None => write::null(call.reply, call.protocol),
    }
    source.close(call, from);
    Ok(())
}

/// `LMOVE source destination LEFT|RIGHT LEFT|RIGHT`
pub(crate) fn lmove(call: &mut WriteCall<'_>, args: &[&[u8]]) -> Outcome {
    let sides = [Side::parse(args[2])?, Side::parse(args[3])?];
    move_element(call, [args[0], args[1]], sides)
}

/// `RPOPLPUSH source destination`
pub(crate) fn rpoplpush(call: &mut WriteCall<'_>, args: &[&[u8]]) -> Outcome {
    move_element(call, [args[0], args[1]], [Side::Right, Side::Left])
}

/// The options of LPOS.
struct Search {
    /// From 0.
    skip: u64,
    reverse: bool,
    count: Option<u64>,
    most_looked: u64,
}

impl Search {
    fn parse(args: &[&[u8]]) -> Result<Search, Error> {
        let mut search = Search { skip: 0, reverse: false, count: None, most_looked: u64::MAX };
        let (pairs, rest) = args.as_chunks::<2>();
        let or_all = |number: u64| if number == 0 { u64::MAX } else { number };
        for [name, number] in pairs {
            if name.eq_ignore_ascii_case(b"RANK") {
                let rank = integer(number)?;
                if rank == 0 {
                    return Err(Error::Text(ZERO_RANK));
                }
                if rank == i64::MIN {
                    return Err(Error::Text(LEAST_RANK));
                }
                search.reverse = rank < 0;
                search.skip = rank.unsigned_abs() - 1;
            } else if name.eq_ignore_ascii_case(b"COUNT") {
                let refused = Error::Text("ERR COUNT can't be negative");
                let count = integer(number).map_err(|_| refused.clone())?;
                search.count = Some(or_all(u64::try_from(count).map_err(|_| refused)?));
            } else if name.eq_ignore_ascii_case(b"MAXLEN") {
                let refused = Error::Text("ERR MAXLEN can't be negative");
                let most = integer(number).map_err(|_| refused.clone())?;
                search.most_looked = or_all(u64::try_from(most).map_err(|_| refused)?);
            } else {
                return Err(Error::Syntax);
            }
        }
        if rest.is_empty() { Ok(search) } else { Err(Error::Syntax) }
    }
}

const ZERO_RANK: &str = "ERR RANK can't be zero: use 1 to start from the first match, 2 from the \
    second ... or use negative to start from the end of the list";
const LEAST_RANK: &str = "ERR value is out of range, value must between -9223372036854775807 and \
    9223372036854775807";

/// `LPOS key element [RANK n] [COUNT n] [MAXLEN n]`
pub(crate) fn lpos(call: &mut ReadCall<'_>, args: &[&[u8]]) -> Outcome {
    let search = Search::parse(&args[2..])?;
    let head = call.head(args[0], Kind::List)?;
    let mut found = Vec::new();
    if let Some(head) = head {
        let wanted = search.count.unwrap_or(1);
        let (mut matches, mut looked) = (0, 0);
        let look = |place: u64, value: &Value| {
            if value.slice == *args[1] {
                matches += 1;
                if matches > search.skip {
                    found.push(place);
                }
            }
            looked += 1;
            looked < search.most_looked && (found.len() as u64) < wanted
        };
        if search.reverse {
            each_reverse(call.store, call.guard, head, 0..head.count, look);
        } else {
            each(call.store, call.guard, head, 0..head.count, look);
        }
    }
    match (search.count, found.first()) {
        (Some(_), _) => {
            write::array(call.reply, found.len());
            for place in found {
                write::integer(call.reply, place as i64);
            }
        }
        (None, Some(&place)) => write::integer(call.reply, place as i64),
        (None, None) => write::null(call.reply, call.protocol),
    }
    Ok(())
}
