//! What ends a store, each with what to do about it.

use std::fmt;
use std::path::PathBuf;

/// Why the store does not start, or ends.
#[derive(Debug)]
pub enum Error {
    /// The data directory, or a file of it.
    Disk(io::Error),
    /// The directory holds something, and no manifest.
    NoManifest(PathBuf),
    /// A file that the manifest names is not there.
    Missing(PathBuf),
    /// A file of the store makes no sense, though its checksums are right.
    Nonsense {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        what: &'static str,
    },
    /// A log ends before what is known to have been on disk.
    Short {
        /// The log's last file.
        path: PathBuf,
        /// The timestamp that it reaches.
        reaches: u64,
        /// The timestamp that it had reached on disk.
        durable: u64,
    },
    /// A socket, or a thread.
    Os {
        /// What was attempted, as a verb.
        action: &'static str,
        /// On what.
        what: String,
        /// The system's answer.
        source: std::io::Error,
    },
    /// A thread has panicked; its message was printed.
    Panicked,
}

impl Error {
    pub(crate) fn os(action: &'static str, what: &str, source: std::io::Error) -> Error {
        Error::Os { action, what: what.to_owned(), source }
    }
}

impl From<io::Error> for Error {
    fn from(error: io::Error) -> Error {
        Error::Disk(error)
    }
}

/// What to do about a store that is damaged.
const RESTORE: &str = "nothing was changed. The store does not guess what is missing: restore the \
                       directory from a copy, or start with an empty one";

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::Disk(io::Error::Damaged { path, offset, what }) => {
                write!(f, "{} is damaged at byte {offset}: {what}; {RESTORE}", path.display())
            }
            Error::Disk(io::Error::Locked(path)) => {
                write!(f, "{} is in use by another process: stop that one first", path.display())
            }
            Error::Disk(error) => error.fmt(f),
            Error::NoManifest(path) => write!(
                f,
                "{} holds no store, but is not empty: correct the path, or empty it",
                path.display()
            ),
            Error::Missing(path) => write!(f, "{} is missing; {RESTORE}", path.display()),
            Error::Nonsense { path, what } => {
                write!(f, "{} is damaged: {what}; {RESTORE}", path.display())
            }
            Error::Short { path, reaches, durable } => write!(
                f,
                "{} is cut off or damaged at its end: it reaches timestamp {reaches}, and was on \
                 disk up to {durable}; {RESTORE}",
                path.display()
            ),
            Error::Os { action, what, source } => write!(f, "cannot {action} {what}: {source}"),
            Error::Panicked => f.write_str("a thread has panicked: this is a defect"),
        }
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            // What it says itself is said already.
            Error::Disk(error) => std::error::Error::source(error),
            Error::Os { source, .. } => Some(source),
            _ => None,
        }
    }
}
