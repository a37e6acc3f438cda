//! Finding a client's commands in the bytes that it sent.
//!
//! The parser remembers where it stopped, so that a command that comes in many pieces costs no more
//! than one that comes whole. Arguments are places in the caller's buffer; only an inline command,
//! whose quotes may have to be undone, is copied.

use crate::number::parse_i64;
use crate::split::split_arguments;

/// The most arguments of a command.
pub const MAX_ARGUMENTS: usize = 1024 * 1024;

/// The longest inline command, and the longest line that announces a length, in bytes.
pub const MAX_INLINE: usize = 64 * 1024;

/// What a connection that has not authenticated may send at most.
const UNAUTHENTICATED_ARGUMENTS: i64 = 10;
const UNAUTHENTICATED_BULK: i64 = 16_384;

/// What a client may send.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// The longest argument, in bytes (Redis's `proto-max-bulk-len`).
    pub bulk_len: usize,
    /// Whether the client has authenticated, or need not: if not, its commands may have no more
    /// than 10 arguments of at most 16,384 bytes.
    pub authenticated: bool,
}

impl Default for Limits {
    /// Redis's defaults: 512 MiB, no authentication.
    fn default() -> Limits {
        Limits { bulk_len: 512 * 1024 * 1024, authenticated: true }
    }
}

/// What the client sent is not a command. The connection is answered with the text and closed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProtocolError {
    /// The number of arguments is no number, or too large.
    MultibulkLength,
    /// An argument's length is no number, negative, or above the limit.
    BulkLength,
    /// Something else stands where an argument's `$` should.
    ExpectedDollar(u8),
    /// An inline command with a quote that is not closed.
    UnbalancedQuotes,
    /// An inline command longer than [`MAX_INLINE`].
    InlineTooBig,
    /// The line with the number of arguments is longer than [`MAX_INLINE`].
    CountTooBig,
    /// The line with an argument's length is longer than [`MAX_INLINE`].
    BulkCountTooBig,
    /// Too many arguments for a client that has not authenticated.
    UnauthenticatedMultibulk,
    /// Too long an argument for a client that has not authenticated.
    UnauthenticatedBulk,
}

impl std::fmt::Display for ProtocolError {
    /// Redis's text; as a reply it has `ERR ` before it.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Protocol error: ")?;
        f.write_str(match self {
            ProtocolError::MultibulkLength => "invalid multibulk length",
            ProtocolError::BulkLength => "invalid bulk length",
            ProtocolError::ExpectedDollar(got) => {
                return write!(f, "expected '$', got '{}'", char::from(*got));
            }
            ProtocolError::UnbalancedQuotes => "unbalanced quotes in request",
            ProtocolError::InlineTooBig => "too big inline request",
            ProtocolError::CountTooBig => "too big mbulk count string",
            ProtocolError::BulkCountTooBig => "too big bulk count string",
            ProtocolError::UnauthenticatedMultibulk => "unauthenticated multibulk length",
            ProtocolError::UnauthenticatedBulk => "unauthenticated bulk length",
        })
    }
}

impl std::error::Error for ProtocolError {}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Start,
    Inline,
    Count,
    Length,
    Bulk(usize),
    Done { inline: bool },
}

/// Finds one command after the other.
#[derive(Debug)]
pub struct Parser {
    limits: Limits,
    phase: Phase,
    /// What is parsed of the command.
    at: usize,
    /// What was searched for the end of the line.
    searched: usize,
    /// The number of arguments to come.
    left: usize,
    /// Where the arguments are, in the buffer or, of an inline command, in `text`.
    spans: Vec<(usize, usize)>,
    text: Vec<u8>,
}

impl Default for Parser {
    fn default() -> Parser {
        Parser::new(Limits::default())
    }
}

impl Parser {
    /// A parser at the start of a command.
    pub fn new(limits: Limits) -> Parser {
        Parser {
            limits,
            phase: Phase::Start,
            at: 0,
            searched: 0,
            left: 0,
            spans: Vec::new(),
            text: Vec::new(),
        }
    }

    /// Changes the limits, from the next length read on.
    pub fn set_limits(&mut self, limits: Limits) {
        self.limits = limits;
    }

    /// Looks for a command at the start of `buffer`: its length in bytes if it is there as a whole
    /// ([`Parser::command`] then gives it), `None` if more bytes are needed. Until it is there,
    /// every call must be given the same bytes again, with or without more after them; after that,
    /// what follows the command.
    ///
    /// # Errors
    /// If the bytes are no command. The parser is of no more use then.
    #[inline]
    pub fn parse(&mut self, buffer: &[u8]) -> Result<Option<usize>, ProtocolError> {
        if let Phase::Start | Phase::Done { .. } = self.phase {
            let Some(&first) = buffer.first() else { return Ok(None) };
            self.spans.clear();
            (self.at, self.searched, self.left) = (0, 0, 0);
            self.phase = if first == b'*' { Phase::Count } else { Phase::Inline };
        }
        loop {
            let step = match self.phase {
                Phase::Length => self.length(buffer)?,
                Phase::Bulk(length) => self.bulk(buffer, length),
                Phase::Count => self.count(buffer)?,
                Phase::Inline => self.inline(buffer)?,
                Phase::Start | Phase::Done { .. } => return Ok(Some(self.at)),
            };
            if step.is_none() {
                return Ok(None);
            }
        }
    }

    /// The bytes beyond the end of the last buffer that are known to be needed: a hint for the size
    /// of the next read. 0 if unknown.
    pub fn needs(&self, buffer_len: usize) -> usize {
        match self.phase {
            Phase::Bulk(length) => (self.at + length + 2).saturating_sub(buffer_len),
            _ => 0,
        }
    }

    /// The command that [`Parser::parse`] found at the start of `buffer`. It may have no arguments
    /// at all (an empty line), and is ignored then.
    pub fn command<'a>(&'a self, buffer: &'a [u8]) -> Command<'a> {
        match self.phase {
            Phase::Done { inline: true } => Command { bytes: &self.text, spans: &self.spans },
            Phase::Done { inline: false } => Command { bytes: buffer, spans: &self.spans },
            _ => Command { bytes: buffer, spans: &[] },
        }
    }

    /// The line from `at` without its `\r\n`, once all of it is there.
    #[inline]
    fn line<'a>(
        &mut self,
        buffer: &'a [u8],
        too_long: ProtocolError,
    ) -> Result<Option<&'a [u8]>, ProtocolError> {
        let from = self.searched.max(self.at);
        match buffer[from..].iter().position(|&byte| byte == b'\r') {
            Some(offset) if from + offset + 1 < buffer.len() => {
                let line = &buffer[self.at..from + offset];
                self.at = from + offset + 2;
                Ok(Some(line))
            }
            Some(offset) => {
                self.searched = from + offset;
                Ok(None)
            }
            None if buffer.len() - self.at > MAX_INLINE => Err(too_long),
            None => {
                self.searched = buffer.len();
                Ok(None)
            }
        }
    }

    fn count(&mut self, buffer: &[u8]) -> Result<Option<()>, ProtocolError> {
        let Some(line) = self.line(buffer, ProtocolError::CountTooBig)? else { return Ok(None) };
        let count = parse_i64(&line[1..]).ok_or(ProtocolError::MultibulkLength)?;
        if count > MAX_ARGUMENTS as i64 {
            return Err(ProtocolError::MultibulkLength);
        }
        if count > UNAUTHENTICATED_ARGUMENTS && !self.limits.authenticated {
            return Err(ProtocolError::UnauthenticatedMultibulk);
        }
        self.left = usize::try_from(count).unwrap_or(0);
        self.next_argument();
        Ok(Some(()))
    }

    #[inline]
    fn next_argument(&mut self) {
        self.phase = if self.left == 0 { Phase::Done { inline: false } } else { Phase::Length };
    }

    #[inline]
    fn length(&mut self, buffer: &[u8]) -> Result<Option<()>, ProtocolError> {
        let line = self.line(buffer, ProtocolError::BulkCountTooBig)?;
        let Some(line) = line else { return Ok(None) };
        match line {
            [b'$', digits @ ..] => {
                let length = parse_i64(digits).ok_or(ProtocolError::BulkLength)?;
                let length = usize::try_from(length).map_err(|_| ProtocolError::BulkLength)?;
                if length > self.limits.bulk_len {
                    return Err(ProtocolError::BulkLength);
                }
                if length as i64 > UNAUTHENTICATED_BULK && !self.limits.authenticated {
                    return Err(ProtocolError::UnauthenticatedBulk);
                }
                self.phase = Phase::Bulk(length);
                Ok(Some(()))
            }
            [other, ..] => Err(ProtocolError::ExpectedDollar(*other)),
            [] => Err(ProtocolError::ExpectedDollar(b'\r')),
        }
    }

    #[inline]
    fn bulk(&mut self, buffer: &[u8], length: usize) -> Option<()> {
        let end = self.at + length;
        if buffer.len() < end + 2 {
            return None;
        }
        self.spans.push((self.at, end));
        self.at = end + 2; // like Redis, without a look at what the two bytes are
        self.left -= 1;
        self.next_argument();
        Some(())
    }

    fn inline(&mut self, buffer: &[u8]) -> Result<Option<()>, ProtocolError> {
        let Some(offset) = buffer[self.searched..].iter().position(|&byte| byte == b'\n') else {
            self.searched = buffer.len();
            let too_big = buffer.len() > MAX_INLINE;
            return if too_big { Err(ProtocolError::InlineTooBig) } else { Ok(None) };
        };
        let end = self.searched + offset;
        let line = &buffer[..end];
        self.text.clear();
        split_arguments(line, &mut self.text, &mut self.spans)
            .map_err(|_| ProtocolError::UnbalancedQuotes)?;
        self.at = end + 1;
        self.phase = Phase::Done { inline: true };
        Ok(Some(()))
    }
}

/// A command: its name and arguments, in the buffer that it was found in.
#[derive(Clone, Copy, Debug)]
pub struct Command<'a> {
    bytes: &'a [u8],
    spans: &'a [(usize, usize)],
}

impl<'a> Command<'a> {
    /// The number of arguments, the name included.
    pub fn len(&self) -> usize {
        self.spans.len()
    }

    /// Whether there is not even a name.
    pub fn is_empty(&self) -> bool {
        self.spans.is_empty()
    }

    /// The argument at `index`; the name is at 0.
    #[inline]
    pub fn get(&self, index: usize) -> Option<&'a [u8]> {
        self.spans.get(index).map(|&(start, end)| &self.bytes[start..end])
    }

    /// The name and the arguments.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = &'a [u8]> + use<'a> {
        let bytes = self.bytes;
        self.spans.iter().map(move |&(start, end)| &bytes[start..end])
    }

    /// Calls `with` with the name and the arguments as one slice. Allocates only for more than 16.
    #[inline]
    pub fn with_slices<R>(&self, with: impl FnOnce(&[&'a [u8]]) -> R) -> R {
        const FEW: usize = 16;
        if self.len() > FEW {
            return with(&self.iter().collect::<Vec<_>>());
        }
        let mut slices: [&[u8]; FEW] = [&[]; FEW];
        for (slice, arg) in slices.iter_mut().zip(self.iter()) {
            *slice = arg;
        }
        with(&slices[..self.len()])
    }
}
