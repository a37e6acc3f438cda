//! What a load says to a server and what it makes of the answers: RESP, or memcached's text
//! protocol, of which it knows `set` and `get`.

use anyhow::{Context, Result, bail, ensure};
use clap::ValueEnum;
use resp::{ReplyParser, write};
use serde::Serialize;

use crate::keys::Form;
use crate::workload::{self, Kind, Mix};

/// The protocol of a server.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Protocol {
    /// Redis's
    #[default]
    Resp,
    /// memcached's text protocol, for set and get
    Memcached,
}

impl Protocol {
    pub(crate) fn check(self, mix: Mix, form: Form) -> Result<()> {
        if self == Protocol::Memcached {
            let others = [Kind::Increment, Kind::Range];
            ensure!(
                others.iter().all(|&kind| mix.weight(kind) == 0),
                "--protocol memcached: --mix may have set and get"
            );
            ensure!(form != Form::Binary, "--protocol memcached: keys are text, not binary8");
        }
        Ok(())
    }
}

/// Takes the answers of one connection apart.
pub(crate) enum Answers {
    Resp(ReplyParser),
    Memcached,
}

/// What an answer says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Answer<'a> {
    Done,
    /// There is nothing.
    Miss,
    Error(&'a [u8]),
}

impl Answers {
    pub(crate) fn new(protocol: Protocol) -> Answers {
        match protocol {
            Protocol::Resp => Answers::Resp(ReplyParser::new()),
            Protocol::Memcached => Answers::Memcached,
        }
    }

    /// The first answer in these bytes and its length, if it is whole.
    pub(crate) fn next<'a>(&mut self, bytes: &'a [u8]) -> Result<Option<(Answer<'a>, usize)>> {
        let length = match self {
            Answers::Resp(parser) => parser.parse(bytes)?.map(|shape| shape.len),
            Answers::Memcached => memcached_length(bytes)?,
        };
        let judge = match self {
            Answers::Resp(_) => judge_resp,
            Answers::Memcached => judge_memcached,
        };
        Ok(length.map(|length| (judge(&bytes[..length]), length)))
    }
}

fn judge_resp(reply: &[u8]) -> Answer<'_> {
    match reply {
        [b'-' | b'!', text @ ..] => Answer::Error(text),
        [b'$' | b'*', b'-', ..] | [b'_', ..] => Answer::Miss,
        _ => Answer::Done,
    }
}

fn judge_memcached(reply: &[u8]) -> Answer<'_> {
    match reply {
        b"STORED\r\n" => Answer::Done,
        b"END\r\n" => Answer::Miss,
        _ if reply.starts_with(b"VALUE ") => Answer::Done,
        _ => Answer::Error(reply),
    }
}

/// The length of the answer to a `set`, or to a `get` of one key.
fn memcached_length(bytes: &[u8]) -> Result<Option<usize>> {
    let Some(end) = bytes.windows(2).position(|pair| pair == b"\r\n") else { return Ok(None) };
    let line = end + 2;
    if !bytes.starts_with(b"VALUE ") {
        return Ok(Some(line));
    }
    let length = bytes[..end].split(|&byte| byte == b' ').nth(3);
    let length = length.and_then(|text| std::str::from_utf8(text).ok()?.parse::<usize>().ok());
    let length = length.context("a VALUE without a length")?;
    let whole = line + length + b"\r\nEND\r\n".len();
    if bytes.len() < whole {
        return Ok(None);
    }
    if !bytes[..whole].ends_with(b"\r\nEND\r\n") {
        bail!("a VALUE of another length than it says");
    }
    Ok(Some(whole))
}

/// Appends a request.
pub(crate) fn ask(
    protocol: Protocol,
    kind: Kind,
    (number, key): (u64, &[u8]),
    (value, range_length): (&[u8], &str),
    out: &mut Vec<u8>,
) {
    match (protocol, kind) {
        (Protocol::Resp, Kind::Set) => write::command(out, &[b"SET", key, value]),
        (Protocol::Resp, Kind::Get) => write::command(out, &[b"GET", key]),
        (_, Kind::Increment) => write::command(out, &[b"INCR", &workload::counter_bytes(number)]),
        (_, Kind::Range) => {
            write::command(out, &[b"KRANGE", key, b"+", b"LIMIT", range_length.as_bytes()]);
        }
        (Protocol::Memcached, Kind::Set) => {
            let length = value.len().to_string();
            for part in [b"set ", key, b" 0 0 ", length.as_bytes(), b"\r\n", value, b"\r\n"] {
                out.extend_from_slice(part);
            }
        }
        (Protocol::Memcached, Kind::Get) => {
            [b"get ", key, b"\r\n"].iter().for_each(|part| out.extend_from_slice(part));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memcached_answers_are_taken_one_by_one() {
        let bytes = b"STORED\r\nEND\r\nVALUE k 0 4\r\na\r\nb\r\nEND\r\nSERVER_ERROR out\r\nSTO";
        let mut answers = Answers::new(Protocol::Memcached);
        let (mut rest, mut seen) = (&bytes[..], Vec::new());
        while let Some((answer, length)) = answers.next(rest).expect("it makes sense") {
            seen.push(answer);
            rest = &rest[length..];
        }
        let error = Answer::Error(b"SERVER_ERROR out\r\n");
        assert_eq!(seen, [Answer::Done, Answer::Miss, Answer::Done, error]);
        assert_eq!(rest, b"STO");
        assert!(answers.next(b"VALUE k 0 1\r\nab\r\nEND\r\n").is_err(), "the length is wrong");
    }
}
