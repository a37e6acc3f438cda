//! The classic commands.

use crate::MAX_KEY_LEN;
use crate::command::{Arithmetic, Command, Delete, Fetch, Keys, Mode, Reply, Store};
use crate::line::{Tokens, data_length, signed, unsigned};
use crate::parser::{BAD_FORMAT, ERROR, Meaning, Refusal, TOO_LARGE};

const BAD_EXPTIME: &str = "CLIENT_ERROR invalid exptime argument";
const BAD_DELTA: &str = "CLIENT_ERROR invalid numeric delta argument";
const BAD_DELETE: &str = "CLIENT_ERROR bad command line format.  Usage: delete <key> [noreply]";
const NO_SHUTDOWN: &str = "ERROR: shutdown not enabled";
const UNSUPPORTED: &str = "CLIENT_ERROR this command is not supported";

type Parsed<'a> = Result<Command<'a>, &'static str>;

/// What the line of a command that is called `name` means.
pub(crate) fn parse<'a>(name: &[u8], tokens: Tokens<'a>, value_len: usize) -> Meaning<'a> {
    let parsed = match name {
        b"get" => get(tokens, false),
        b"gets" => get(tokens, true),
        b"gat" => gat(tokens, false),
        b"gats" => gat(tokens, true),
        b"set" => return store(Mode::Set, false, tokens, value_len),
        b"add" => return store(Mode::Add, false, tokens, value_len),
        b"replace" => return store(Mode::Replace, false, tokens, value_len),
        b"append" => return store(Mode::Append, false, tokens, value_len),
        b"prepend" => return store(Mode::Prepend, false, tokens, value_len),
        b"cas" => return store(Mode::Set, true, tokens, value_len),
        b"incr" => arithmetic(tokens, false),
        b"decr" => arithmetic(tokens, true),
        b"touch" => touch(tokens),
        b"delete" => delete(tokens),
        b"flush_all" => flush_all(tokens),
        b"version" => Ok(Command::Version),
        b"verbosity" => verbosity(tokens),
        b"stats" => Ok(Command::Stats(tokens.rest())),
        b"quit" => Ok(Command::Quit),
        b"shutdown" => Err(NO_SHUTDOWN),
        b"slabs" | b"lru" | b"lru_crawler" | b"cache_memlimit" | b"watch" | b"extstore"
        | b"misbehave" | b"refresh_certs" => Err(UNSUPPORTED),
        _ if tokens.last().is_some_and(|last| last.starts_with(b"HTTP/")) => return Meaning::Http,
        _ => Err(ERROR),
    };
    match parsed {
        Ok(command) => Meaning::Whole(command),
        Err(text) => Meaning::Refused(refusal(text, tokens)),
    }
}

/// Commands that may be silent are so also where their arguments are wrong.
fn refusal(text: &'static str, tokens: Tokens<'_>) -> Refusal<'static> {
    let silent = text != ERROR && reply(tokens) == Reply::Silent;
    Refusal { silent, ..Refusal::new(text) }
}

/// The next token, a key.
fn key<'a>(tokens: &mut Tokens<'a>) -> Result<&'a [u8], &'static str> {
    let key = tokens.next().ok_or(ERROR)?;
    if key.len() > MAX_KEY_LEN { Err(BAD_FORMAT) } else { Ok(key) }
}

/// `noreply`, if that is the last token.
fn reply<'a>(tokens: Tokens<'a>) -> Reply<'a> {
    match tokens.last() {
        Some(b"noreply") => Reply::Silent,
        _ => Reply::Classic,
    }
}

/// `get <key>*`, `gets <key>*`
fn get(tokens: Tokens<'_>, cas: bool) -> Parsed<'_> {
    keys(tokens).map(|keys| Command::Get { keys, cas, touch: None })
}

/// `gat <exptime> <key>*`, `gats <exptime> <key>*`
fn gat(mut tokens: Tokens<'_>, cas: bool) -> Parsed<'_> {
    let exptime = tokens.next().ok_or(ERROR)?;
    let keys = keys(tokens)?;
    let touch = Some(signed(exptime).ok_or(BAD_EXPTIME)?);
    Ok(Command::Get { keys, cas, touch })
}

fn keys(tokens: Tokens<'_>) -> Result<Keys<'_>, &'static str> {
    let (mut count, mut longest) = (0, 0);
    for key in tokens {
        count += 1;
        longest = longest.max(key.len());
    }
    match (count, longest) {
        (0, _) => Err(ERROR),
        (_, ..=MAX_KEY_LEN) => Ok(Keys(tokens)),
        _ => Err(BAD_FORMAT),
    }
}

/// `<name> <key> <flags> <exptime> <bytes> [<cas unique>] [noreply]`
fn store(mode: Mode, cas: bool, tokens: Tokens<'_>, value_len: usize) -> Meaning<'_> {
    let (store, reply, length) = match store_line(mode, cas, tokens) {
        Ok(parsed) => parsed,
        Err(text) => return Meaning::Refused(refusal(text, tokens)),
    };
    if length > value_len {
        let remove = (mode == Mode::Set && !cas).then_some(store.key);
        let refusal = Refusal { text: TOO_LARGE, silent: reply == Reply::Silent, remove };
        return Meaning::RefusedBlock(refusal, length);
    }
    Meaning::Block(Command::Store(store, reply), length)
}

fn store_line(
    mode: Mode,
    cas: bool,
    mut tokens: Tokens<'_>,
) -> Result<(Store<'_>, Reply<'_>, usize), &'static str> {
    let words = tokens;
    if words.count() < if cas { 5 } else { 4 } {
        return Err(ERROR);
    }
    let key = key(&mut tokens)?;
    let mut number = || tokens.next().unwrap_or_default();
    let flags = unsigned(number()).and_then(|flags| u32::try_from(flags).ok());
    let exptime = signed(number());
    let length = data_length(number());
    let compare = if cas { Some(unsigned(number()).ok_or(BAD_FORMAT)?) } else { None };
    let store = Store {
        key: key.into(),
        mode,
        flags: flags.ok_or(BAD_FORMAT)?,
        exptime: exptime.ok_or(BAD_FORMAT)?,
        compare,
        invalidate: false,
        new_cas: None,
        vivify: None,
        value: b"",
    };
    Ok((store, reply(tokens), length.ok_or(BAD_FORMAT)?))
}

/// `incr <key> <value> [noreply]`, `decr <key> <value> [noreply]`
fn arithmetic(mut tokens: Tokens<'_>, decrement: bool) -> Parsed<'_> {
    let key = key(&mut tokens)?;
    let delta = unsigned(tokens.next().ok_or(ERROR)?).ok_or(BAD_DELTA)?;
    let arithmetic = Arithmetic {
        key: key.into(),
        delta,
        decrement,
        compare: None,
        exptime: None,
        create: None,
        new_cas: None,
    };
    Ok(Command::Arithmetic(arithmetic, reply(tokens)))
}

/// `touch <key> <exptime> [noreply]`
fn touch(mut tokens: Tokens<'_>) -> Parsed<'_> {
    let key = key(&mut tokens)?;
    let exptime = signed(tokens.next().ok_or(ERROR)?).ok_or(BAD_EXPTIME)?;
    let fetch = Fetch {
        key: key.into(),
        value: false,
        touch: Some(exptime),
        vivify: None,
        new_cas: None,
        recache: None,
    };
    Ok(Command::Fetch(fetch, reply(tokens)))
}

/// `delete <key> [0] [noreply]`: once there was a time, of which zero is still taken.
fn delete(mut tokens: Tokens<'_>) -> Parsed<'_> {
    let key = key(&mut tokens)?;
    let zero = tokens;
    if tokens.next() != Some(b"0") {
        tokens = zero;
    }
    let reply = reply(tokens);
    if tokens.count() != usize::from(reply == Reply::Silent) {
        return Err(BAD_DELETE);
    }
    let delete = Delete {
        key: key.into(),
        compare: None,
        invalidate: false,
        empty: false,
        exptime: None,
        new_cas: None,
    };
    Ok(Command::Delete(delete, reply))
}

/// `flush_all [delay] [noreply]`
fn flush_all(mut tokens: Tokens<'_>) -> Parsed<'_> {
    let reply = reply(tokens);
    let delay = match tokens.next() {
        None | Some(b"noreply") => 0,
        Some(delay) => signed(delay).ok_or(BAD_EXPTIME)?,
    };
    Ok(Command::FlushAll(delay, reply))
}

/// `verbosity <level> [noreply]`
fn verbosity(tokens: Tokens<'_>) -> Parsed<'_> {
    match tokens.count() {
        1 | 2 => Ok(Command::Verbosity(reply(tokens))),
        _ => Err(ERROR),
    }
}
