//! What can go wrong with a data directory, each with what to do about it.

use std::fmt;
use std::path::{Path, PathBuf};

/// Why the disk did not do what was asked. All but [`Error::Full`], [`Error::Damaged`] (of a
/// checkpoint) and [`Error::OutOfOrder`] must stop the replica.
#[derive(Debug)]
pub enum Error {
    /// The operating system refused.
    Os {
        /// What was attempted, as a verb.
        action: &'static str,
        /// On which file or directory.
        path: PathBuf,
        /// Its answer.
        source: std::io::Error,
    },
    /// Another process uses the directory.
    Locked(PathBuf),
    /// The directory is not a data directory.
    NotFormatted(PathBuf),
    /// The directory is a data directory already.
    AlreadyFormatted(PathBuf),
    /// A file is not what was written.
    Damaged {
        /// The file.
        path: PathBuf,
        /// Where, in bytes from its start.
        offset: u64,
        /// What is wrong.
        what: &'static str,
    },
    /// The file was written by another version of the program.
    Version {
        /// The file.
        path: PathBuf,
        /// Its version.
        found: u32,
    },
    /// There is no space. Nothing was lost, and the same call may be made again later.
    Full {
        /// The directory.
        path: PathBuf,
        /// How many bytes must be free.
        needed: u64,
    },
    /// An earlier write or fsync failed. What the disk holds is unknown until it is read again, so
    /// nothing more is written.
    Poisoned(PathBuf),
    /// A piece of a fetched checkpoint does not follow the one before it.
    OutOfOrder,
}

impl Error {
    pub(crate) fn os(action: &'static str, path: &Path, source: std::io::Error) -> Error {
        Error::Os { action, path: path.to_owned(), source }
    }

    pub(crate) fn damaged(path: &Path, offset: u64, what: &'static str) -> Error {
        Error::Damaged { path: path.to_owned(), offset, what }
    }

    /// Whether the operating system had no space for the bytes.
    pub(crate) fn is_no_space(&self) -> bool {
        matches!(self, Error::Os { source, .. } if matches!(
            source.kind(),
            std::io::ErrorKind::StorageFull | std::io::ErrorKind::QuotaExceeded
        ))
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::Os { action, path, source } => {
                write!(f, "cannot {action} {}: {source}", path.display())
            }
            Error::Locked(path) => write!(
                f,
                "{} is in use by another process: stop that replica first",
                path.display()
            ),
            Error::NotFormatted(path) => write!(
                f,
                "{} holds no replica: format it first, or correct the path",
                path.display()
            ),
            Error::AlreadyFormatted(path) => write!(
                f,
                "{} already holds a replica's data: choose an empty directory, or remove it if \
                 that data is not wanted",
                path.display()
            ),
            Error::Damaged { path, offset, what } => write!(
                f,
                "{} is damaged at byte {offset}: {what}. If the disk is failing, replace it and \
                 format a new directory as a replacement; the group restores it",
                path.display()
            ),
            Error::Version { path, found } => write!(
                f,
                "{} has format version {found}, which this program does not read: run the release \
                 that wrote it",
                path.display()
            ),
            Error::Full { path, needed } => write!(
                f,
                "no space on the disk of {}: free at least {needed} bytes; writes resume by \
                 themselves",
                path.display()
            ),
            Error::Poisoned(path) => write!(
                f,
                "an earlier write to {} failed, so nothing more is written: check the disk and \
                 restart the replica",
                path.display()
            ),
            Error::OutOfOrder => f.write_str(
                "a piece of a fetched checkpoint does not follow the one before it: fetch it from \
                 the start",
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
