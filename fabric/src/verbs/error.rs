//! What can go wrong before peers share memory through cards, and what to do about it. Afterwards
//! everything is a verb's status.

use std::fmt;
use std::io;

/// Why a card could not be used, or a peer not be attached.
#[derive(Debug)]
pub enum Error {
    /// The user-space library is not installed.
    NoLibrary {
        /// What the loader says.
        reason: String,
    },
    /// There is no card, or none of the name.
    NoCard {
        /// What was looked for and what is there.
        what: String,
    },
    /// The card or the operating system refused.
    Os {
        /// What was attempted, as a verb.
        action: &'static str,
        /// Its answer.
        source: io::Error,
    },
    /// What is at the other end of the connection is no process of this fabric.
    NotAPeer {
        /// What is wrong with it.
        what: &'static str,
    },
}

impl Error {
    pub(crate) fn os(action: &'static str, source: impl Into<io::Error>) -> Error {
        Error::Os { action, source: source.into() }
    }

    /// Of a function that sets `errno`.
    pub(crate) fn last(action: &'static str) -> Error {
        Error::os(action, io::Error::last_os_error())
    }

    /// Of a function that returns an error number, or -1.
    pub(crate) fn check(result: i32, action: &'static str) -> Result<(), Error> {
        match result {
            0 => Ok(()),
            -1 => Err(Error::last(action)),
            number => Err(Error::os(action, io::Error::from_raw_os_error(number.abs()))),
        }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::NoLibrary { reason } => write!(
                f,
                "libibverbs cannot be loaded ({reason}): install it (Debian: libibverbs1 and \
                 ibverbs-providers), or use shared memory"
            ),
            Error::NoCard { what } => write!(
                f,
                "{what}: load the card's driver, or add a software device (rdma link add NAME type \
                 rxe netdev INTERFACE)"
            ),
            Error::Os { action: action @ "register memory", source } => write!(
                f,
                "cannot {action}: {source}. Registered memory stays in RAM: allow the process to \
                 lock as much (ulimit -l unlimited)"
            ),
            Error::Os { action, source } => write!(f, "cannot {action}: {source}"),
            Error::NotAPeer { what } => write!(
                f,
                "the other process is no peer: {what}. Start all replicas of a group from one \
                 version with the same settings"
            ),
        }
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Error::Os { source, .. } => Some(source),
            _ => None,
        }
    }
}
