//! Appending replies to a buffer. What RESP2 lacks becomes what Redis sends in its place.

use crate::Protocol;
use crate::number::{push_i64, push_u64};

#[inline]
fn header(out: &mut Vec<u8>, kind: u8, count: usize) {
    out.push(kind);
    push_u64(out, count as u64);
    out.extend_from_slice(b"\r\n");
}

/// A text without line ends.
#[inline]
fn line(out: &mut Vec<u8>, kind: u8, text: &str) {
    out.push(kind);
    let ends = [b'\r', b'\n'];
    if text.bytes().any(|byte| ends.contains(&byte)) {
        out.extend(text.bytes().map(|byte| if ends.contains(&byte) { b' ' } else { byte }));
    } else {
        out.extend_from_slice(text.as_bytes());
    }
    out.extend_from_slice(b"\r\n");
}

/// A status such as `OK`. Line ends become spaces.
#[inline]
pub fn simple(out: &mut Vec<u8>, text: &str) {
    line(out, b'+', text);
}

/// `OK`.
#[inline]
pub fn ok(out: &mut Vec<u8>) {
    out.extend_from_slice(b"+OK\r\n");
}

/// An error; the text starts with its code (`ERR ...`). Line ends become spaces.
pub fn error(out: &mut Vec<u8>, text: &str) {
    line(out, b'-', text);
}

/// An integer.
#[inline]
pub fn integer(out: &mut Vec<u8>, number: i64) {
    out.push(b':');
    push_i64(out, number);
    out.extend_from_slice(b"\r\n");
}

/// A string of any bytes.
#[inline]
pub fn bulk(out: &mut Vec<u8>, bytes: &[u8]) {
    header(out, b'$', bytes.len());
    out.extend_from_slice(bytes);
    out.extend_from_slice(b"\r\n");
}

/// Nothing, where a string is expected.
#[inline]
pub fn null(out: &mut Vec<u8>, protocol: Protocol) {
    match protocol {
        Protocol::V2 => out.extend_from_slice(b"$-1\r\n"),
        Protocol::V3 => out.extend_from_slice(b"_\r\n"),
    }
}

/// Nothing, where an array is expected.
pub fn null_array(out: &mut Vec<u8>, protocol: Protocol) {
    match protocol {
        Protocol::V2 => out.extend_from_slice(b"*-1\r\n"),
        Protocol::V3 => out.extend_from_slice(b"_\r\n"),
    }
}

/// The start of an array; that many replies follow.
#[inline]
pub fn array(out: &mut Vec<u8>, count: usize) {
    header(out, b'*', count);
}

/// The start of a map; that many pairs of replies follow.
pub fn map(out: &mut Vec<u8>, protocol: Protocol, pairs: usize) {
    match protocol {
        Protocol::V2 => header(out, b'*', pairs * 2),
        Protocol::V3 => header(out, b'%', pairs),
    }
}

/// The start of a set; that many replies follow.
pub fn set(out: &mut Vec<u8>, protocol: Protocol, count: usize) {
    match protocol {
        Protocol::V2 => header(out, b'*', count),
        Protocol::V3 => header(out, b'~', count),
    }
}

/// The start of something that answers no command; that many replies follow.
pub fn push(out: &mut Vec<u8>, protocol: Protocol, count: usize) {
    match protocol {
        Protocol::V2 => header(out, b'*', count),
        Protocol::V3 => header(out, b'>', count),
    }
}

/// A number with a fraction, in the fewest digits that give it back.
pub fn double(out: &mut Vec<u8>, protocol: Protocol, number: f64) {
    let size = number.abs();
    let text = if number.is_nan() {
        "nan".to_owned()
    } else if number.is_infinite() {
        if number > 0.0 { "inf".to_owned() } else { "-inf".to_owned() }
    } else if size != 0.0 && !(1e-5..1e17).contains(&size) {
        format!("{number:e}")
    } else {
        format!("{number}")
    };
    match protocol {
        Protocol::V2 => bulk(out, text.as_bytes()),
        Protocol::V3 => line(out, b',', &text),
    }
}

/// True or false.
pub fn boolean(out: &mut Vec<u8>, protocol: Protocol, truth: bool) {
    match (protocol, truth) {
        (Protocol::V2, _) => integer(out, i64::from(truth)),
        (Protocol::V3, true) => out.extend_from_slice(b"#t\r\n"),
        (Protocol::V3, false) => out.extend_from_slice(b"#f\r\n"),
    }
}

/// A text to be shown as it is; `format` has three letters, such as `txt`.
pub fn verbatim(out: &mut Vec<u8>, protocol: Protocol, format: [u8; 3], text: &[u8]) {
    match protocol {
        Protocol::V2 => bulk(out, text),
        Protocol::V3 => {
            header(out, b'=', text.len() + 4);
            out.extend_from_slice(&format);
            out.push(b':');
            out.extend_from_slice(text);
            out.extend_from_slice(b"\r\n");
        }
    }
}

/// An integer of any size, in decimal.
pub fn big_number(out: &mut Vec<u8>, protocol: Protocol, decimal: &str) {
    match protocol {
        Protocol::V2 => bulk(out, decimal.as_bytes()),
        Protocol::V3 => line(out, b'(', decimal),
    }
}

/// A command as clients send it: an array of strings.
pub fn command(out: &mut Vec<u8>, argv: &[&[u8]]) {
    array(out, argv.len());
    for arg in argv {
        bulk(out, arg);
    }
}
