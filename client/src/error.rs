//! Why a request came to nothing, and whether it may have been executed.

use std::fmt;
use std::io;
use std::time::Duration;

/// Why there is no answer, or not the one that was asked for.
#[derive(Debug)]
pub enum Error {
    /// No replica answered in time, or none of the addresses exists: nothing was sent.
    Unreachable {
        /// What was tried.
        addresses: Vec<String>,
        /// What the last try ended with.
        last: String,
    },
    /// The request's deadline is over. See [`Error::outcome`].
    TimedOut {
        /// After so long.
        after: Duration,
        /// It never left this process, because the window was full: it was not executed. Otherwise
        /// it may have been executed, or may yet be.
        unsent: bool,
    },
    /// A crash took back operations that this client had seen; this request was under way, was not
    /// executed and will not be ([`OnLoss::Report`](crate::OnLoss::Report)).
    Dropped,
    /// A client with the same id started later: this session is over. Connect again.
    Retired,
    /// The group has forgotten this session, which was unused while thousands of others were
    /// opened: it is over. Connect again.
    Forgotten,
    /// The group's state is gone (durability `memory` after a crash of its majority): this session
    /// is over. An operator has to start the group over.
    StateLost,
    /// Too many requests are neither answered nor fetched: call
    /// [`Session::poll`](crate::Session::poll) and fetch answers.
    Full,
    /// The request is longer than what travels in one message.
    TooLong {
        /// Its bytes.
        length: usize,
        /// The most bytes.
        limit: usize,
    },
    /// It was executed, and its answer is longer than what travels in one message. Ask for less.
    AnswerTooLong,
    /// The ticket is of another session, or its answer was fetched before.
    UnknownTicket,
    /// No such command, or one that only a RESP server answers, or a wrong number of arguments.
    NoCommand(String),
    /// The service refused the command, with this text, such as `WRONGTYPE ...`.
    Service(String),
    /// The service's answer is of another kind than the command's, or makes no sense.
    Garbled,
    /// The operating system refused something.
    Os(io::Error),
}

/// Whether a request that failed was executed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// It was not and will not be.
    NotExecuted,
    /// It was.
    Executed,
    /// Nobody knows: perhaps it was, perhaps it will be, never twice.
    Unknown,
}

impl Error {
    /// What is known about the request that this error answers. Of requests that were under way
    /// when the session ended nothing is known.
    pub fn outcome(&self) -> Outcome {
        match self {
            Error::TimedOut { unsent: false, .. }
            | Error::Retired
            | Error::Forgotten
            | Error::StateLost
            | Error::UnknownTicket
            | Error::Os(_) => Outcome::Unknown,
            Error::AnswerTooLong | Error::Service(_) | Error::Garbled => Outcome::Executed,
            Error::TimedOut { unsent: true, .. }
            | Error::Unreachable { .. }
            | Error::Dropped
            | Error::Full
            | Error::TooLong { .. }
            | Error::NoCommand(_) => Outcome::NotExecuted,
        }
    }
}

impl From<io::Error> for Error {
    fn from(error: io::Error) -> Error {
        Error::Os(error)
    }
}

impl From<rustix::io::Errno> for Error {
    fn from(error: rustix::io::Errno) -> Error {
        Error::Os(error.into())
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::Unreachable { addresses, last } => write!(
                f,
                "no replica answers at {} ({last}): give the addresses of the replicas' --peers",
                addresses.join(", ")
            ),
            Error::TimedOut { after, unsent: true } => {
                write!(f, "not sent within {after:?}, since earlier requests are unanswered")
            }
            Error::TimedOut { after, unsent: false } => {
                write!(f, "not answered within {after:?}: whether it was executed is unknown")
            }
            Error::Dropped => f.write_str(
                "a crash of the group took back acknowledged operations; this request was not \
                 executed",
            ),
            Error::Retired => f.write_str("a client with the same id started later: connect again"),
            Error::Forgotten => f.write_str(
                "the group has forgotten this session, which was long unused: connect again",
            ),
            Error::StateLost => f.write_str(
                "the group's state is lost: an operator has to run `lockstep bootstrap \
                 --accept-loss`",
            ),
            Error::Full => f.write_str("too many answers are outstanding: fetch some"),
            Error::TooLong { length, limit } => {
                write!(f, "a request of {length} bytes is over the limit of {limit}: send less")
            }
            Error::AnswerTooLong => {
                f.write_str("executed, but the answer is too long to be sent: ask for less")
            }
            Error::UnknownTicket => {
                f.write_str("the ticket is another session's, or its answer was fetched before")
            }
            Error::NoCommand(name) => write!(
                f,
                "{name:?} is no command with so many arguments, or none that the replicas answer"
            ),
            Error::Service(text) => f.write_str(text),
            Error::Garbled => f.write_str("executed, but the answer makes no sense"),
            Error::Os(error) => write!(f, "the operating system refuses: {error}"),
        }
    }
}

// The texts hold those of their causes, so that there is no `source`.
impl std::error::Error for Error {}
