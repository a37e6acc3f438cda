//! What can go wrong before the memory is shared. Afterwards nothing can.

use std::fmt;

use smr::ReplicaId;

/// Why memory could not be made or shared.
#[derive(Debug)]
pub enum Error {
    /// The operating system refused.
    Os {
        /// What was attempted, as a verb.
        action: &'static str,
        /// Its answer.
        source: std::io::Error,
    },
    /// What is at the other end of the socket is no process of this fabric.
    NotAPeer {
        /// What is wrong with it.
        what: &'static str,
    },
    /// A process of this id is attached and has not ended.
    StillAttached(ReplicaId),
}

impl Error {
    pub(crate) fn os(action: &'static str, source: impl Into<std::io::Error>) -> Error {
        Error::Os { action, source: source.into() }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::Os { action, source } => write!(f, "cannot {action}: {source}"),
            Error::NotAPeer { what } => write!(
                f,
                "the other process is no peer: {what}. Start all replicas of a group from one \
                 version with the same settings"
            ),
            Error::StillAttached(id) => write!(
                f,
                "the former process of replica {} still runs (or is stopped): end it, then start \
                 the replica again",
                id.0
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
