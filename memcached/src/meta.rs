//! The meta commands: two letters, a key, and flags of one letter that may carry a token.

use std::borrow::Cow;

use base64::Engine;
use base64::engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig};

use crate::command::{Arithmetic, Command, Delete, Fetch, Key, Mode, Reply, Store};
use crate::line::{Tokens, data_length, signed, unsigned};
use crate::parser::{BAD_FORMAT, ERROR, Meaning, Refusal, TOO_LARGE};
use crate::{MAX_KEY_LEN, MAX_OPAQUE};

const BAD_TOKEN: &str = "CLIENT_ERROR bad token in command line format";
const BAD_KEY: &str = "CLIENT_ERROR error decoding key";
const BAD_FLAG: &str = "CLIENT_ERROR invalid flag";
const DUPLICATE_FLAG: &str = "CLIENT_ERROR duplicate flag";
const LONG_OPAQUE: &str = "CLIENT_ERROR opaque token too long";
const BAD_SET_MODE: &str = "CLIENT_ERROR invalid mode for ms M token";
const BAD_ARITHMETIC_MODE: &str = "CLIENT_ERROR invalid mode for ma M token";
const MODE_LENGTH: &str = "CLIENT_ERROR incorrect length for M token";
const NO_ACCESSES: &str = "CLIENT_ERROR invalid flag: h and l are not supported, because reads \
                           leave no trace in the replicated state";

/// Binary keys: lenient, as memcached's own decoder, about bits that do not count.
pub(crate) const BASE64: GeneralPurpose = GeneralPurpose::new(
    &base64::alphabet::STANDARD,
    GeneralPurposeConfig::new()
        .with_decode_allow_trailing_bits(true)
        .with_decode_padding_mode(DecodePaddingMode::RequireCanonical),
);

/// Which meta command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MetaCode {
    /// `mg`
    Get,
    /// `ms`
    Set,
    /// `md`
    Delete,
    /// `ma`
    Arithmetic,
    /// `me`
    Debug,
}

/// What a meta command's answer repeats: the key and the flags of its line. Bytes of the line, so
/// that they can be kept until the answer is there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Echo<'a> {
    /// The command.
    pub code: MetaCode,
    /// No answer is wanted if it is the ordinary one (flag q).
    pub quiet: bool,
    /// The key and the flags, without a data length.
    line: Parts<'a>,
}

/// A key, and the line from the flags on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Parts<'a> {
    key: &'a [u8],
    flags: Tokens<'a>,
}

impl<'a> Echo<'a> {
    /// Bytes from which [`Echo::unpack`] makes the same again.
    pub fn pack(&self) -> Vec<u8> {
        [&[self.code as u8, u8::from(self.quiet)], self.line.key, b" ", self.line.flags.rest()]
            .concat()
    }

    /// What was packed; `None` if that was something else.
    pub fn unpack(packed: &'a [u8]) -> Option<Echo<'a>> {
        let (&[code, quiet], line) = packed.split_first_chunk::<2>()?;
        let codes =
            [MetaCode::Get, MetaCode::Set, MetaCode::Delete, MetaCode::Arithmetic, MetaCode::Debug];
        let mut flags = Tokens::new(line);
        let key = flags.next()?;
        let code = *codes.get(usize::from(code))?;
        Some(Echo { code, quiet: quiet != 0, line: Parts { key, flags } })
    }

    /// The key as it stood on the line.
    pub(crate) fn key(&self) -> &'a [u8] {
        self.line.key
    }

    /// The flags with their tokens, in their order.
    pub(crate) fn flags(&self) -> impl Iterator<Item = (u8, &'a [u8])> + use<'a> {
        self.line
            .flags
            .filter_map(|flag| flag.split_first().map(|(&letter, token)| (letter, token)))
    }

    /// Whether this flag is there.
    pub(crate) fn has(&self, letter: u8) -> bool {
        self.flags().any(|(given, _)| given == letter)
    }
}

/// The flags of a command, read.
#[derive(Default)]
struct Flags<'a> {
    /// The letters, by their ASCII codes.
    seen: u128,
    compare: Option<u64>,
    new_cas: Option<u64>,
    client: u32,
    exptime: Option<i64>,
    vivify: Option<i64>,
    recache: Option<i64>,
    delta: Option<u64>,
    initial: Option<u64>,
    mode: Option<&'a [u8]>,
}

impl<'a> Flags<'a> {
    fn read(flags: Tokens<'a>, known: &[u8]) -> Result<Flags<'a>, &'static str> {
        let mut read = Flags::default();
        for flag in flags {
            let (&letter, token) = flag.split_first().ok_or(BAD_FLAG)?;
            if !letter.is_ascii() {
                return Err(BAD_FLAG);
            }
            if read.has(letter) {
                return Err(DUPLICATE_FLAG);
            }
            read.seen |= 1 << letter;
            match letter {
                b'h' | b'l' if known.contains(&b'u') => return Err(NO_ACCESSES),
                // Hints for proxies.
                b'P' | b'L' => {}
                _ if !known.contains(&letter) => return Err(BAD_FLAG),
                _ => read.take(letter, token)?,
            }
        }
        Ok(read)
    }

    fn take(&mut self, letter: u8, token: &'a [u8]) -> Result<(), &'static str> {
        let number = || unsigned(token).ok_or(BAD_TOKEN);
        let time = || signed(token).ok_or(BAD_TOKEN);
        match letter {
            b'C' => self.compare = Some(number()?),
            b'E' => self.new_cas = Some(number()?),
            b'F' => self.client = u32::try_from(number()?).map_err(|_| BAD_TOKEN)?,
            b'T' => self.exptime = Some(time()?),
            b'N' => self.vivify = Some(time()?),
            b'R' => self.recache = Some(time()?),
            b'D' => self.delta = Some(number()?),
            b'J' => self.initial = Some(number()?),
            b'M' => self.mode = Some(token),
            b'O' if token.len() > MAX_OPAQUE => return Err(LONG_OPAQUE),
            _ => {}
        }
        Ok(())
    }

    fn has(&self, letter: u8) -> bool {
        self.seen >> letter & 1 != 0
    }

    /// The one letter of the mode.
    fn mode(&self, default: u8) -> Result<u8, &'static str> {
        match self.mode {
            None => Ok(default),
            Some(&[mode]) => Ok(mode),
            Some(_) => Err(MODE_LENGTH),
        }
    }
}

/// What the line of the command `m` and this letter means.
pub(crate) fn parse<'a>(code: u8, tokens: Tokens<'a>, value_len: usize) -> Meaning<'a> {
    let parsed = match code {
        b'g' => get(tokens),
        b's' => return set(tokens, value_len),
        b'd' => delete(tokens),
        b'a' => arithmetic(tokens),
        b'e' => debug(tokens),
        b'n' => Ok(Command::NoOp),
        _ => Err(ERROR),
    };
    match parsed {
        Ok(command) => Meaning::Whole(command),
        Err(text) => Meaning::Refused(Refusal::new(text)),
    }
}

/// The next token, a key: as it stands there, of a sound length.
fn next_key<'a>(tokens: &mut Tokens<'a>) -> Result<&'a [u8], &'static str> {
    let key = tokens.next().ok_or(ERROR)?;
    if key.len() > MAX_KEY_LEN { Err(BAD_FORMAT) } else { Ok(key) }
}

/// The key in the store of a key on the line.
fn decode<'a>(key: &'a [u8], flags: &Flags<'_>) -> Result<Key<'a>, &'static str> {
    if !flags.has(b'b') {
        return Ok(Cow::Borrowed(key));
    }
    let decoded = BASE64.decode(key).map_err(|_| BAD_KEY)?;
    if decoded.is_empty() { Err(BAD_KEY) } else { Ok(Cow::Owned(decoded)) }
}

/// What a command of the line without data has in common: key, flags, and what to echo.
struct Head<'a> {
    key: Key<'a>,
    flags: Flags<'a>,
    echo: Echo<'a>,
}

impl<'a> Head<'a> {
    fn parse(
        code: MetaCode,
        mut tokens: Tokens<'a>,
        known: &[u8],
    ) -> Result<Head<'a>, &'static str> {
        let key = next_key(&mut tokens)?;
        Head::of(code, key, tokens, known)
    }

    fn of(
        code: MetaCode,
        key: &'a [u8],
        tokens: Tokens<'a>,
        known: &[u8],
    ) -> Result<Head<'a>, &'static str> {
        let flags = Flags::read(tokens, known)?;
        let line = Parts { key, flags: tokens };
        let echo = Echo { code, quiet: flags.has(b'q'), line };
        Ok(Head { key: decode(key, &flags)?, flags, echo })
    }
}

/// `mg <key> <flags>*`
fn get(tokens: Tokens<'_>) -> Result<Command<'_>, &'static str> {
    let Head { key, flags, echo } = Head::parse(MetaCode::Get, tokens, b"bcfkOqstuvENRT")?;
    let fetch = Fetch {
        key,
        value: flags.has(b'v'),
        touch: flags.exptime,
        vivify: flags.vivify,
        new_cas: flags.new_cas,
        recache: flags.recache,
    };
    Ok(Command::Fetch(fetch, Reply::Meta(echo)))
}

/// `me <key> [b]`
fn debug(tokens: Tokens<'_>) -> Result<Command<'_>, &'static str> {
    let Head { key, echo, .. } = Head::parse(MetaCode::Debug, tokens, b"b")?;
    let (touch, vivify, new_cas, recache) = (None, None, None, None);
    Ok(Command::Debug(Fetch { key, value: false, touch, vivify, new_cas, recache }, echo))
}

/// `ms <key> <datalen> <flags>*`
fn set(mut tokens: Tokens<'_>, value_len: usize) -> Meaning<'_> {
    let Some(key) = tokens.next() else { return Meaning::Refused(Refusal::new(ERROR)) };
    let Some(length) = tokens.next().and_then(data_length) else {
        return Meaning::Refused(Refusal::new(BAD_FORMAT));
    };
    match set_line(key, tokens) {
        Err(text) => Meaning::RefusedBlock(Refusal::new(text), length),
        Ok((store, _)) if length > value_len => {
            let plain = store.mode == Mode::Set && store.compare.is_none();
            let remove = plain.then_some(store.key);
            Meaning::RefusedBlock(Refusal { remove, ..Refusal::new(TOO_LARGE) }, length)
        }
        Ok((store, echo)) => Meaning::Block(Command::Store(store, Reply::Meta(echo)), length),
    }
}

fn set_line<'a>(key: &'a [u8], tokens: Tokens<'a>) -> Result<(Store<'a>, Echo<'a>), &'static str> {
    if key.len() > MAX_KEY_LEN {
        return Err(BAD_FORMAT);
    }
    let Head { key, flags, echo } = Head::of(MetaCode::Set, key, tokens, b"bcCEFIkOqsTMN")?;
    let mode = match flags.mode(b'S')?.to_ascii_uppercase() {
        b'S' => Mode::Set,
        b'E' => Mode::Add,
        b'R' => Mode::Replace,
        b'A' => Mode::Append,
        b'P' => Mode::Prepend,
        _ => return Err(BAD_SET_MODE),
    };
    let store = Store {
        key,
        mode,
        flags: flags.client,
        exptime: flags.exptime.unwrap_or(0),
        compare: flags.compare,
        invalidate: flags.has(b'I'),
        new_cas: flags.new_cas,
        vivify: flags.vivify,
        value: b"",
    };
    Ok((store, echo))
}

/// `md <key> <flags>*`
fn delete(tokens: Tokens<'_>) -> Result<Command<'_>, &'static str> {
    let Head { key, flags, echo } = Head::parse(MetaCode::Delete, tokens, b"bCEIkOqTx")?;
    let delete = Delete {
        key,
        compare: flags.compare,
        invalidate: flags.has(b'I'),
        empty: flags.has(b'x'),
        exptime: flags.exptime,
        new_cas: flags.new_cas,
    };
    Ok(Command::Delete(delete, Reply::Meta(echo)))
}

/// `ma <key> <flags>*`
fn arithmetic(tokens: Tokens<'_>) -> Result<Command<'_>, &'static str> {
    let Head { key, flags, echo } = Head::parse(MetaCode::Arithmetic, tokens, b"bcCDEJkMNOqtTv")?;
    let decrement = match flags.mode(b'I')?.to_ascii_uppercase() {
        b'I' | b'+' => false,
        b'D' | b'-' => true,
        _ => return Err(BAD_ARITHMETIC_MODE),
    };
    let arithmetic = Arithmetic {
        key,
        delta: flags.delta.unwrap_or(1),
        decrement,
        compare: flags.compare,
        exptime: flags.exptime,
        create: flags.vivify.map(|exptime| (exptime, flags.initial.unwrap_or(0))),
        new_cas: flags.new_cas,
    };
    Ok(Command::Arithmetic(arithmetic, Reply::Meta(echo)))
}
