//! Appends answers to a byte vector.

use std::io::Write as _;

use base64::Engine;

use crate::meta::{BASE64, Echo, MetaCode};

/// What an answer can tell of an item.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Item<'a> {
    /// The client's own flags.
    pub flags: u32,
    /// The cas number.
    pub cas: u64,
    /// Seconds until it expires; `None` for never.
    pub ttl: Option<u64>,
    /// The length of the value, in bytes.
    pub size: usize,
    /// The value; empty if it was not asked for.
    pub value: &'a [u8],
    /// The client is to renew it (flag W).
    pub won: bool,
    /// It is marked stale (flag X).
    pub stale: bool,
    /// Another client is to renew it (flag Z).
    pub sent: bool,
}

/// What became of a meta command that changes something, or of an `mg` that found nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Status {
    /// Done: `HD`.
    Done,
    /// No such item: `NF`, or `EN` for `mg` and `me`.
    NotFound,
    /// Another cas number: `EX`.
    Exists,
    /// The mode's condition was not met: `NS`.
    NotStored,
}

/// A line.
pub fn line(out: &mut Vec<u8>, text: &str) {
    out.extend_from_slice(text.as_bytes());
    out.extend_from_slice(b"\r\n");
}

/// A decimal number.
#[inline]
pub fn number(out: &mut Vec<u8>, number: u64) {
    let mut digits = [0; 20];
    let (mut at, mut rest) = (digits.len(), number);
    loop {
        at -= 1;
        digits[at] = b'0' + (rest % 10) as u8;
        rest /= 10;
        if rest == 0 {
            break;
        }
    }
    out.extend_from_slice(&digits[at..]);
}

/// An item in the answer to `get` and its kind: `VALUE <key> <flags> <bytes> [<cas>]` and the data
/// block. [`end`] comes behind the last one.
#[inline]
pub fn value(out: &mut Vec<u8>, key: &[u8], item: &Item<'_>, with_cas: bool) {
    out.reserve(key.len() + item.value.len() + 64);
    out.extend_from_slice(b"VALUE ");
    out.extend_from_slice(key);
    out.push(b' ');
    number(out, u64::from(item.flags));
    out.push(b' ');
    number(out, item.value.len() as u64);
    if with_cas {
        out.push(b' ');
        number(out, item.cas);
    }
    out.extend_from_slice(b"\r\n");
    out.extend_from_slice(item.value);
    out.extend_from_slice(b"\r\n");
}

/// The end of the answer to `get` and its kind.
#[inline]
pub fn end(out: &mut Vec<u8>) {
    out.extend_from_slice(b"END\r\n");
}

/// One statistic. [`end`] comes behind the last one.
pub fn stat(out: &mut Vec<u8>, name: &str, value: impl std::fmt::Display) {
    let _ = write!(out, "STAT {name} {value}\r\n");
}

/// The key as the client wrote it.
fn push_key(out: &mut Vec<u8>, echo: &Echo<'_>) {
    // Decoded and encoded again, as memcached does it: the answer has the canonical form.
    match echo.has(b'b').then(|| BASE64.decode(echo.key())) {
        Some(Ok(key)) => out.extend_from_slice(BASE64.encode(key).as_bytes()),
        _ => out.extend_from_slice(echo.key()),
    }
}

/// Appends what the command's flags ask for, in their order. Without an item, only what the command
/// itself says.
fn push_flags(out: &mut Vec<u8>, echo: &Echo<'_>, item: Option<&Item<'_>>, done: bool) {
    let get = echo.code == MetaCode::Get;
    for (letter, token) in echo.flags() {
        let before = out.len();
        out.extend_from_slice(&[b' ', letter]);
        match (letter, item) {
            (b'O', _) => out.extend_from_slice(token),
            (b'k', _) => push_key(out, echo),
            (b'b', _) => {}
            (b'c', Some(item)) => number(out, item.cas),
            // Set's answer has one always, zero if nothing was stored.
            (b'c', None) if echo.code == MetaCode::Set && !done => out.push(b'0'),
            (b'f', Some(item)) => number(out, u64::from(item.flags)),
            (b's', Some(item)) => number(out, item.size as u64),
            (b't', Some(item)) => match item.ttl {
                Some(seconds) => number(out, seconds),
                None => out.extend_from_slice(b"-1"),
            },
            _ => out.truncate(before),
        }
    }
    if let Some(item) = item.filter(|_| get) {
        let marks = [(item.sent, b" Z"), (item.stale, b" X"), (item.won, b" W")];
        for (_, mark) in marks.iter().filter(|(set, _)| *set) {
            out.extend_from_slice(*mark);
        }
    }
}

/// Whether a quiet command's answer is left out.
fn hushed(echo: &Echo<'_>, status: Status) -> bool {
    echo.quiet
        && match echo.code {
            MetaCode::Get => status == Status::NotFound,
            MetaCode::Set | MetaCode::Delete | MetaCode::Arithmetic => status == Status::Done,
            MetaCode::Debug => false,
        }
}

/// The answer to a meta command. `item` is what it has found or made, if that is known.
pub fn meta(out: &mut Vec<u8>, echo: &Echo<'_>, status: Status, item: Option<&Item<'_>>) {
    if hushed(echo, status) {
        return;
    }
    let block = item.filter(|_| status == Status::Done && echo.has(b'v'));
    match (status, block) {
        (_, Some(item)) => {
            out.extend_from_slice(b"VA ");
            number(out, item.value.len() as u64);
        }
        (Status::Done, None) => out.extend_from_slice(b"HD"),
        (Status::NotFound, None) if echo.code == MetaCode::Get => out.extend_from_slice(b"EN"),
        (Status::NotFound, None) => out.extend_from_slice(b"NF"),
        (Status::Exists, None) => out.extend_from_slice(b"EX"),
        (Status::NotStored, None) => out.extend_from_slice(b"NS"),
    }
    push_flags(out, echo, item, status == Status::Done);
    out.extend_from_slice(b"\r\n");
    if let Some(item) = block {
        out.extend_from_slice(item.value);
        out.extend_from_slice(b"\r\n");
    }
}

/// The answer to `me`.
pub fn debug(out: &mut Vec<u8>, echo: &Echo<'_>, item: Option<&Item<'_>>) {
    let Some(item) = item else { return out.extend_from_slice(b"EN\r\n") };
    out.extend_from_slice(b"ME ");
    push_key(out, echo);
    let exp = item.ttl.map_or("-1".to_owned(), |seconds| seconds.to_string());
    let (cas, size) = (item.cas, item.size);
    let _ = write!(out, " exp={exp} cas={cas} cls=1 size={size}\r\n");
}
