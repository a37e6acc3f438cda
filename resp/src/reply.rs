//! Finding the replies of a server in the bytes that it sent, without building anything.

use crate::number::parse_i64;

/// The bytes are not a reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BadReply;

impl std::fmt::Display for BadReply {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("the server sent something that is not RESP")
    }
}

impl std::error::Error for BadReply {}

/// A reply that is there as a whole.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape {
    /// Its length in bytes.
    pub len: usize,
    /// Its first byte, which says what it is: `+` status, `-` error, `:` integer, `$` string, `*`
    /// array, and so on. Of a reply with attributes, that of the attributes: `|`.
    pub kind: u8,
}

/// Finds one reply after the other.
#[derive(Debug, Default)]
pub struct ReplyParser {
    /// What is parsed of the reply.
    at: usize,
    /// What was searched for the end of the line.
    searched: usize,
    /// Replies to come before this one is whole; 0 at its start.
    left: u64,
}

/// What one line of a reply says.
pub(crate) enum Line<'a> {
    /// All of a simple reply.
    Scalar(u8, &'a [u8]),
    /// That a string of this length follows.
    Bulk(u8, usize),
    /// That this many replies follow.
    Aggregate(u8, u64),
    /// Nothing.
    Null,
}

/// Takes a line, without its end, apart.
pub(crate) fn line(line: &[u8]) -> Result<Line<'_>, BadReply> {
    let (&kind, text) = line.split_first().ok_or(BadReply)?;
    Ok(match kind {
        b'+' | b'-' | b':' | b',' | b'#' | b'(' => Line::Scalar(kind, text),
        b'_' => Line::Null,
        b'$' | b'*' if text == b"-1" => Line::Null,
        b'$' | b'=' | b'!' => {
            let length = parse_i64(text).ok_or(BadReply)?;
            // Nothing longer fits into memory; lengths can be added up without overflow.
            if !(0..1 << 40).contains(&length) {
                return Err(BadReply);
            }
            Line::Bulk(kind, length as usize)
        }
        b'*' | b'~' | b'>' | b'%' | b'|' => {
            let count = parse_i64(text).ok_or(BadReply)?;
            if !(0..1 << 40).contains(&count) {
                return Err(BadReply);
            }
            let each = if matches!(kind, b'%' | b'|') { 2 } else { 1 };
            Line::Aggregate(kind, count as u64 * each)
        }
        _ => return Err(BadReply),
    })
}

impl ReplyParser {
    /// A parser at the start of a reply.
    pub fn new() -> ReplyParser {
        ReplyParser::default()
    }

    /// Looks for a reply at the start of `buffer`; `None` if more bytes are needed. Until it is
    /// there, every call must be given the same bytes again, with or without more after them; after
    /// that, what follows the reply.
    ///
    /// # Errors
    /// If the bytes are no reply. The parser is of no more use then.
    pub fn parse(&mut self, buffer: &[u8]) -> Result<Option<Shape>, BadReply> {
        let Some(&kind) = buffer.first() else { return Ok(None) };
        if self.left == 0 {
            self.left = 1;
        }
        while self.left > 0 {
            let from = self.searched.max(self.at).min(buffer.len());
            let Some(offset) = buffer[from..].iter().position(|&byte| byte == b'\n') else {
                self.searched = buffer.len();
                return Ok(None);
            };
            let end = from + offset;
            let text = buffer.get(self.at..end).ok_or(BadReply)?;
            let text = text.strip_suffix(b"\r").ok_or(BadReply)?;
            let mut next = end + 1;
            let mut left = self.left - 1;
            match line(text)? {
                Line::Scalar(..) | Line::Null => {}
                Line::Bulk(_, length) => next += length + 2,
                Line::Aggregate(kind, count) => {
                    // Attributes stand before the reply that they belong to.
                    let more = count + u64::from(kind == b'|');
                    left = left.checked_add(more).ok_or(BadReply)?;
                }
            }
            if buffer.len() < next {
                self.searched = end;
                return Ok(None);
            }
            (self.at, self.left) = (next, left);
        }
        let len = self.at;
        *self = ReplyParser::default();
        Ok(Some(Shape { len, kind }))
    }
}
