//! DUMP and RESTORE.
//!
//! A dump, all numbers little-endian: the kind, one byte; of a string its bytes; of a collection,
//! for each entry in order: length u32, bytes, and of a hash's field time u64, length u32, value,
//! of a sorted set's member the score as f64. Behind that a version, one byte, and the CRC-64 of
//! all before it. Redis's own dumps are refused: they have another version.

use resp::write;

use crate::call::{ReadCall, WriteCall};
use crate::collection::Open;
use crate::error::{Error, Outcome};
use crate::hashes;
use crate::lists::{self, List, Side};
use crate::numbers::integer;
use crate::sets::Set;
use crate::value::{HashHead, Head, Kind, text};
use crate::zset_ranges::walk;
use crate::zsets::SortedSet;

/// Far from the versions that Redis gives its format.
const VERSION: u8 = 0xb1;
const FOOTER: usize = 9;
const BAD_FOOTER: Error = Error::Text("ERR DUMP payload version or checksum are wrong");
const BAD_FORMAT: Error = Error::Text("ERR Bad data format");

/// The CRC-64 of ECMA-182, lowest bit first.
const CRC: [u64; 256] = {
    let mut table = [0; 256];
    let mut byte = 0;
    while byte < 256 {
        let (mut crc, mut bit) = (byte as u64, 0);
        while bit < 8 {
            crc = if crc & 1 == 1 { crc >> 1 ^ 0xc96c_5795_d787_0f42 } else { crc >> 1 };
            bit += 1;
        }
        table[byte] = crc;
        byte += 1;
    }
    table
};

fn checksum(bytes: &[u8]) -> u64 {
    !bytes.iter().fold(!0, |crc, byte| crc >> 8 ^ CRC[(crc as u8 ^ byte) as usize])
}

fn push_string(out: &mut Vec<u8>, bytes: &[u8]) {
    out.extend_from_slice(&(bytes.len() as u32).to_le_bytes());
    out.extend_from_slice(bytes);
}

/// `DUMP key`
pub(crate) fn dump(call: &mut ReadCall<'_>, args: &[&[u8]]) -> Outcome {
    let Some(value) = call.live(args[0]) else {
        write::null(call.reply, call.protocol);
        return Ok(());
    };
    let kind = value.header.header.kind();
    let (store, guard) = (call.store, call.guard);
    let mut out = vec![if kind == Kind::Item { Kind::String } else { kind } as u8];
    let head = Head::from_bytes(&value.slice).unwrap_or(Head::new(0));
    match kind {
        Kind::Hash => {
            let id = HashHead::of(&value).map_or(0, |head| head.id);
            store.scan_fields(id, b"", guard, |field, value| {
                push_string(&mut out, field);
                out.extend_from_slice(&value.header.header.expire_ms.to_le_bytes());
                push_string(&mut out, &value.slice);
                true
            });
        }
        Kind::List => lists::each(store, guard, head, 0..head.count, |_, value| {
            push_string(&mut out, &value.slice);
            true
        }),
        Kind::Set => store.scan_fields(head.id, b"", guard, |member, _| {
            push_string(&mut out, member);
            true
        }),
        Kind::SortedSet => walk(store, guard, head, None, false, |member, score| {
            push_string(&mut out, member);
            out.extend_from_slice(&score.to_le_bytes());
            true
        }),
        Kind::String | Kind::Item | Kind::Field | Kind::Mark => {
            out.extend_from_slice(text(&value));
        }
    }
    out.push(VERSION);
    let checksum = checksum(&out);
    out.extend_from_slice(&checksum.to_le_bytes());
    write::bulk(call.reply, &out);
    Ok(())
}

/// The entries of a dump.
struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    fn array<const N: usize>(&mut self) -> Result<[u8; N], Error> {
        let (bytes, rest) = self.0.split_first_chunk::<N>().ok_or(BAD_FORMAT)?;
        self.0 = rest;
        Ok(*bytes)
    }

    fn string(&mut self) -> Result<&'a [u8], Error> {
        let length = u32::from_le_bytes(self.array()?) as usize;
        let (bytes, rest) = self.0.split_at_checked(length).ok_or(BAD_FORMAT)?;
        self.0 = rest;
        Ok(bytes)
    }

    /// A field or member.
    fn member(&mut self) -> Result<&'a [u8], Error> {
        self.string().and_then(|member| {
            if member.len() > crate::MAX_KEY_LEN { Err(BAD_FORMAT) } else { Ok(member) }
        })
    }

    /// All that is left, each read by `read`, of which there is at least one.
    fn all<T>(&mut self, read: impl Fn(&mut Self) -> Result<T, Error>) -> Result<Vec<T>, Error> {
        let mut items = Vec::new();
        while !self.0.is_empty() {
            items.push(read(self)?);
        }
        if items.is_empty() { Err(BAD_FORMAT) } else { Ok(items) }
    }
}

/// What a dump holds.
enum Contents<'a> {
    String(&'a [u8]),
    Hash(Vec<(&'a [u8], u64, &'a [u8])>),
    List(Vec<&'a [u8]>),
    Set(Vec<&'a [u8]>),
    SortedSet(Vec<(&'a [u8], f64)>),
}

impl<'a> Contents<'a> {
    fn parse(dump: &'a [u8]) -> Result<Contents<'a>, Error> {
        let body = dump.len().checked_sub(FOOTER).ok_or(BAD_FOOTER)?;
        let (body, footer) = dump.split_at(body);
        let sum = u64::from_le_bytes(*footer.last_chunk().ok_or(BAD_FOOTER)?);
        if footer[0] != VERSION || checksum(&dump[..body.len() + 1]) != sum {
            return Err(BAD_FOOTER);
        }
        let (&kind, body) = body.split_first().ok_or(BAD_FORMAT)?;
        let mut from = Reader(body);
        let is = |other: Kind| kind == other as u8;
        if is(Kind::String) {
            Ok(Contents::String(body))
        } else if is(Kind::Hash) {
            let field = |from: &mut Reader<'a>| {
                Ok((from.member()?, u64::from_le_bytes(from.array()?), from.string()?))
            };
            from.all(field).map(Contents::Hash)
        } else if is(Kind::List) {
            from.all(Reader::string).map(Contents::List)
        } else if is(Kind::Set) {
            from.all(Reader::member).map(Contents::Set)
        } else if is(Kind::SortedSet) {
            let scored = |from: &mut Reader<'a>| {
                let (member, score) = (from.member()?, f64::from_le_bytes(from.array()?));
                if score.is_nan() { Err(BAD_FORMAT) } else { Ok((member, score)) }
            };
            from.all(scored).map(Contents::SortedSet)
        } else {
            Err(BAD_FORMAT)
        }
    }

    /// Makes a key hold this.
    fn store(self, call: &mut WriteCall<'_>, key: &[u8], expire_ms: u64) {
        match self {
            Contents::String(bytes) => {
                call.set_string(key, expire_ms, bytes);
                return;
            }
            Contents::Hash(fields) => {
                call.remove(key);
                if let Ok(mut hash) = hashes::open(call, key) {
                    for (field, expire_ms, bytes) in fields {
                        hash.set(call, field, expire_ms, bytes);
                    }
                    hash.expire_ms = expire_ms;
                    hash.close(call, key);
                }
                return;
            }
            Contents::List(elements) => {
                let mut list = List(Open::new(call, Kind::List));
                for bytes in elements {
                    list.push(call, Side::Right, bytes);
                }
                list.0
            }
            Contents::Set(members) => {
                let mut set = Set::new(call);
                for member in members {
                    set.add(call, member);
                }
                set.0
            }
            Contents::SortedSet(members) => {
                let mut set = SortedSet::new(call);
                for (member, score) in members {
                    set.set(call, member, score);
                }
                set.0
            }
        }
        .close_until(call, key, expire_ms);
    }
}

/// The options of RESTORE.
#[derive(Default)]
struct Options {
    replace: bool,
    absolute: bool,
}

impl Options {
    fn parse(args: &[&[u8]]) -> Result<Options, Error> {
        let mut options = Options::default();
        let mut args = args.iter();
        while let Some(option) = args.next() {
            let is = |name: &str| option.eq_ignore_ascii_case(name.as_bytes());
            if is("REPLACE") {
                options.replace = true;
            } else if is("ABSTTL") {
                options.absolute = true;
            } else if is("IDLETIME") && args.len() >= 1 {
                // Accesses are not tracked, so that the number only has to make sense.
                if args.next().map_or(Err(Error::Syntax), |text| integer(text))? < 0 {
                    return Err(Error::Text("ERR Invalid IDLETIME value, must be >= 0"));
                }
            } else if is("FREQ") && args.len() >= 1 {
                let number = args.next().map_or(Err(Error::Syntax), |text| integer(text))?;
                if !(0..=255).contains(&number) {
                    return Err(Error::Text("ERR Invalid FREQ value, must be >= 0 and <= 255"));
                }
            } else {
                return Err(Error::Syntax);
            }
        }
        Ok(options)
    }
}

/// `RESTORE key ttl dump [REPLACE] [ABSTTL] [IDLETIME seconds] [FREQ frequency]`
pub(crate) fn restore(call: &mut WriteCall<'_>, args: &[&[u8]]) -> Outcome {
    let options = Options::parse(&args[3..])?;
    let exists = call.live(args[0]).is_some();
    if exists && !options.replace {
        return Err(Error::Text("BUSYKEY Target key name already exists."));
    }
    let ttl = integer(args[1])?;
    let invalid = Error::Text("ERR Invalid TTL value, must be >= 0");
    let ttl = u64::try_from(ttl).map_err(|_| invalid)?;
    let contents = Contents::parse(args[2])?;
    let expire_ms = match (ttl, options.absolute) {
        (0, _) => 0,
        (ttl, true) => ttl,
        (ttl, false) => ttl.saturating_add(call.unix_ms),
    };
    if expire_ms != 0 && expire_ms <= call.unix_ms {
        if exists {
            call.remove(args[0]);
        }
    } else {
        contents.store(call, args[0], expire_ms);
    }
    write::ok(call.reply);
    Ok(())
}
