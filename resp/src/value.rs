//! A reply as a value, for clients that look into it.

use crate::reply::{BadReply, Line, line};

/// Replies deeper than this are refused.
const MAX_DEPTH: usize = 64;

/// A reply.
#[derive(Clone, Debug, PartialEq)]
pub enum Value {
    /// A status such as `OK`.
    Simple(Vec<u8>),
    /// An error, with its code.
    Error(Vec<u8>),
    /// An integer.
    Integer(i64),
    /// A string.
    Bulk(Vec<u8>),
    /// Nothing.
    Null,
    /// An array.
    Array(Vec<Value>),
    /// A map, in the order in which it came.
    Map(Vec<(Value, Value)>),
    /// A set.
    Set(Vec<Value>),
    /// Something that answers no command.
    Push(Vec<Value>),
    /// A number with a fraction.
    Double(f64),
    /// True or false.
    Boolean(bool),
    /// A text and its format.
    Verbatim {
        /// Three letters.
        format: [u8; 3],
        /// The text.
        text: Vec<u8>,
    },
    /// An integer of any size, in decimal.
    BigNumber(Vec<u8>),
}

impl Value {
    /// Decodes the reply at the start of `bytes`, which must be there as a whole (see
    /// [`ReplyParser`](crate::ReplyParser)), and gives its length in bytes. Attributes are dropped.
    ///
    /// # Errors
    /// If the bytes are no reply, not all of one, or one nested more than 64 deep.
    pub fn parse(bytes: &[u8]) -> Result<(Value, usize), BadReply> {
        let mut rest = bytes;
        let value = parse(&mut rest, MAX_DEPTH)?;
        Ok((value, bytes.len() - rest.len()))
    }

    /// The bytes of a string or a status.
    pub fn as_bytes(&self) -> Option<&[u8]> {
        match self {
            Value::Simple(bytes) | Value::Bulk(bytes) | Value::Verbatim { text: bytes, .. } => {
                Some(bytes)
            }
            _ => None,
        }
    }
}

fn parse(rest: &mut &[u8], depth: usize) -> Result<Value, BadReply> {
    let depth = depth.checked_sub(1).ok_or(BadReply)?;
    loop {
        let end = rest.iter().position(|&byte| byte == b'\n').ok_or(BadReply)?;
        let text = rest[..end].strip_suffix(b"\r").ok_or(BadReply)?;
        *rest = &rest[end + 1..];
        return match line(text)? {
            Line::Null => Ok(Value::Null),
            Line::Scalar(kind, text) => scalar(kind, text),
            Line::Bulk(kind, length) => {
                let (bytes, after) = rest.split_at_checked(length).ok_or(BadReply)?;
                *rest = after.get(2..).ok_or(BadReply)?;
                bulk(kind, bytes)
            }
            Line::Aggregate(b'|', count) => {
                elements(rest, count, depth)?;
                continue;
            }
            Line::Aggregate(kind, count) => {
                let elements = elements(rest, count, depth)?;
                Ok(match kind {
                    b'%' => Value::Map(pairs(elements)),
                    b'~' => Value::Set(elements),
                    b'>' => Value::Push(elements),
                    _ => Value::Array(elements),
                })
            }
        };
    }
}

fn elements(rest: &mut &[u8], count: u64, depth: usize) -> Result<Vec<Value>, BadReply> {
    const SHORTEST: usize = 3;
    if count > (rest.len() / SHORTEST) as u64 {
        return Err(BadReply);
    }
    (0..count).map(|_| parse(rest, depth)).collect()
}

fn pairs(elements: Vec<Value>) -> Vec<(Value, Value)> {
    let mut elements = elements.into_iter();
    let mut pairs = Vec::with_capacity(elements.len() / 2);
    while let (Some(key), Some(value)) = (elements.next(), elements.next()) {
        pairs.push((key, value));
    }
    pairs
}

fn scalar(kind: u8, text: &[u8]) -> Result<Value, BadReply> {
    Ok(match kind {
        b'+' => Value::Simple(text.to_vec()),
        b'-' => Value::Error(text.to_vec()),
        b':' => Value::Integer(crate::parse_i64(text).ok_or(BadReply)?),
        b',' => {
            let text = std::str::from_utf8(text).map_err(|_| BadReply)?;
            Value::Double(text.parse().map_err(|_| BadReply)?)
        }
        b'#' => match text {
            b"t" => Value::Boolean(true),
            b"f" => Value::Boolean(false),
            _ => return Err(BadReply),
        },
        _ => Value::BigNumber(text.to_vec()),
    })
}

fn bulk(kind: u8, bytes: &[u8]) -> Result<Value, BadReply> {
    Ok(match kind {
        b'!' => Value::Error(bytes.to_vec()),
        b'=' => {
            let (format, text) = bytes.split_first_chunk::<3>().ok_or(BadReply)?;
            let text = text.strip_prefix(b":").ok_or(BadReply)?.to_vec();
            Value::Verbatim { format: *format, text }
        }
        _ => Value::Bulk(bytes.to_vec()),
    })
}
