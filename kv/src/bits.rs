//! Bits of strings. The first bit is the highest of the first byte.

use resp::write;

use crate::call::{ReadCall, WriteCall};
use crate::error::{Error, Outcome};
use crate::numbers::integer;
use crate::strings::{bytes_of, expire_of};
use crate::value::text;

const BAD_OFFSET: Error = Error::Text("ERR bit offset is not an integer or out of range");

fn offset(limit: usize, text: &[u8]) -> Result<usize, Error> {
    let offset = integer(text).ok().and_then(|offset| usize::try_from(offset).ok());
    offset.filter(|offset| offset / 8 < limit).ok_or(BAD_OFFSET)
}

fn bit_of(bytes: &[u8], at: usize) -> bool {
    bytes.get(at / 8).is_some_and(|byte| byte >> (7 - at % 8) & 1 == 1)
}

/// `GETBIT key offset`
pub(crate) fn getbit(call: &mut ReadCall<'_>, args: &[&[u8]]) -> Outcome {
    let at = offset(call.store.limits.value_len, args[1])?;
    let value = call.string(args[0])?;
    write::integer(call.reply, i64::from(bit_of(bytes_of(&value), at)));
    Ok(())
}

/// `SETBIT key offset 0|1`
pub(crate) fn setbit(call: &mut WriteCall<'_>, args: &[&[u8]]) -> Outcome {
    let at = offset(call.store.limits.value_len, args[1])?;
    let bad = Error::Text("ERR bit is not an integer or out of range");
    let bit = integer(args[2]).ok().filter(|bit| (0..2).contains(bit)).ok_or(bad)?;
    let old = call.string(args[0])?;
    let bytes = bytes_of(&old);
    let mut new = Vec::with_capacity(bytes.len().max(at / 8 + 1));
    new.extend_from_slice(bytes);
    if new.len() <= at / 8 {
        new.resize(at / 8 + 1, 0);
    }
    let mask = 0x80 >> (at % 8);
    write::integer(call.reply, i64::from(new[at / 8] & mask != 0));
    if bit == 1 {
        new[at / 8] |= mask;
    } else {
        new[at / 8] &= !mask;
    }
    call.set_string(args[0], expire_of(&old), &new);
    Ok(())
}

/// A range of bits, the end not included.
struct Bits {
    start: usize,
    end: usize,
}

impl Bits {
    /// From a start, an end and a unit; counted from the string's end if negative.
    fn parse(args: &[&[u8]], length: usize, counts: bool) -> Result<Bits, Error> {
        let (start, end) = (integer(args[0]), args.get(1).map_or(Ok(-1), |end| integer(end)));
        // BITCOUNT looks at its arguments in another order, and at one more thing.
        if counts && start.clone()? < 0 && end.clone()? < 0 && start.clone()? > end.clone()? {
            return Ok(Bits { start: 0, end: 0 });
        }
        if counts {
            end.clone()?;
        }
        let start = start?;
        let unit = match args.get(2) {
            None => 8,
            Some(unit) if unit.eq_ignore_ascii_case(b"BYTE") => 8,
            Some(unit) if unit.eq_ignore_ascii_case(b"BIT") => 1,
            Some(_) => return Err(Error::Syntax),
        };
        let total = (length * 8 / unit) as i64;
        let end = end?;
        let from_start = |at: i64| if at < 0 { at.saturating_add(total).max(0) } else { at };
        let (start, end) = (from_start(start), from_start(end).min(total - 1));
        if start > end {
            return Ok(Bits { start: 0, end: 0 });
        }
        Ok(Bits { start: start as usize * unit, end: (end as usize + 1) * unit })
    }

    /// The first bit of this value.
    fn find(&self, bytes: &[u8], wanted: bool) -> Option<usize> {
        let skip = if wanted { 0 } else { 0xff };
        let mut at = self.start;
        while at < self.end {
            if at.is_multiple_of(8) && at + 8 <= self.end && bytes[at / 8] == skip {
                at += 8;
            } else if bit_of(bytes, at) == wanted {
                return Some(at);
            } else {
                at += 1;
            }
        }
        None
    }

    fn count(&self, bytes: &[u8]) -> i64 {
        if self.start >= self.end {
            return 0;
        }
        let (first, last) = (self.start / 8, (self.end - 1) / 8);
        let whole: i64 = bytes[first..=last].iter().map(|byte| i64::from(byte.count_ones())).sum();
        let before = (first * 8..self.start).filter(|&at| bit_of(bytes, at)).count();
        let behind = (self.end..last * 8 + 8).filter(|&at| bit_of(bytes, at)).count();
        whole - (before + behind) as i64
    }
}

/// `BITCOUNT key [start end [BYTE|BIT]]`
pub(crate) fn bitcount(call: &mut ReadCall<'_>, args: &[&[u8]]) -> Outcome {
    let value = call.string(args[0])?;
    if value.is_none() {
        write::integer(call.reply, 0);
        return Ok(());
    }
    let bytes = bytes_of(&value);
    let bits = match args.len() {
        1 => Bits { start: 0, end: bytes.len() * 8 },
        3 | 4 => Bits::parse(&args[1..], bytes.len(), true)?,
        _ => return Err(Error::Syntax),
    };
    write::integer(call.reply, bits.count(bytes));
    Ok(())
}

/// `BITPOS key bit [start [end [BYTE|BIT]]]`
pub(crate) fn bitpos(call: &mut ReadCall<'_>, args: &[&[u8]]) -> Outcome {
    let wanted = match integer(args[1])? {
        0 => false,
        1 => true,
        _ => return Err(Error::Text("ERR The bit argument must be 1 or 0.")),
    };
    let value = call.string(args[0])?;
    let Some(value) = value else {
        write::integer(call.reply, if wanted { -1 } else { 0 });
        return Ok(());
    };
    let bytes = text(&value);
    let bits = match args.len() {
        2 => Bits { start: 0, end: bytes.len() * 8 },
        3..=5 => Bits::parse(&args[2..], bytes.len(), false)?,
        _ => return Err(Error::Syntax),
    };
    let found = match bits.find(bytes, wanted) {
        Some(at) => at as i64,
        // A string without an end of the range is taken to go on with zeros.
        None if !wanted && args.len() < 4 && bits.start < bits.end => bytes.len() as i64 * 8,
        None => -1,
    };
    write::integer(call.reply, found);
    Ok(())
}

/// `BITOP AND|OR|XOR|NOT destination key ...`
pub(crate) fn bitop(call: &mut WriteCall<'_>, args: &[&[u8]]) -> Outcome {
    let name = args[0].to_ascii_uppercase();
    let combine: fn(u8, u8) -> u8 = match &name[..] {
        b"AND" => |a, b| a & b,
        b"OR" => |a, b| a | b,
        b"XOR" => |a, b| a ^ b,
        b"NOT" => |a, _| !a,
        _ => return Err(Error::Syntax),
    };
    if name == b"NOT" && args.len() != 3 {
        return Err(Error::Text("ERR BITOP NOT must be called with a single source key."));
    }
    let values: Result<Vec<_>, _> = args[2..].iter().map(|key| call.string(key)).collect();
    let values = values?;
    let length = values.iter().map(|value| bytes_of(value).len()).max().unwrap_or(0);
    let byte = |value, at: usize| bytes_of(value).get(at).copied().unwrap_or(0);
    let mut new: Vec<u8> = (0..length).map(|at| byte(&values[0], at)).collect();
    let others = if name == b"NOT" { &values[..1] } else { &values[1..] };
    for value in others {
        for (at, place) in new.iter_mut().enumerate() {
            *place = combine(*place, byte(value, at));
        }
    }
    if new.is_empty() {
        if call.live(args[1]).is_some() {
            call.remove(args[1]);
        }
    } else {
        call.set_string(args[1], 0, &new);
    }
    write::integer(call.reply, new.len() as i64);
    Ok(())
}
