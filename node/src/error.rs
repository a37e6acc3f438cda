//! What ends a node or keeps it from starting, each with what to do about it.

use std::fmt;
use std::path::PathBuf;

use smr::{Durability, ReplicaId};

/// Why a node does not run, or has stopped.
#[derive(Debug)]
pub enum Error {
    /// The data directory.
    Disk(::io::Error),
    /// An address cannot be listened on.
    Listen {
        /// The address.
        address: String,
        /// What it is for.
        purpose: &'static str,
        /// The operating system's answer.
        source: std::io::Error,
    },
    /// A controller's address is not known.
    Controller {
        /// The address.
        name: String,
        /// The operating system's answer.
        source: std::io::Error,
    },
    /// The directory through which the replicas of a machine share memory cannot be used.
    Memory {
        /// The directory.
        directory: PathBuf,
        /// The operating system's answer.
        source: std::io::Error,
    },
    /// Memory cannot be shared.
    Fabric(fabric::shm::Error),
    /// What is asked for cannot be had together.
    Combination(&'static str),
    /// The operating system refused something else.
    Os(&'static str, std::io::Error),
    /// The directory holds another replica, or one of a group of another shape.
    Mismatch {
        /// What differs.
        what: &'static str,
        /// In the directory.
        found: String,
        /// In the options.
        asked: String,
    },
    /// A checkpoint that the disk vouches for is not one of this service.
    BadCheckpoint,
    /// No peer says which group this replica is to join.
    NoGroup,
    /// The group knows a newer life of this replica: the directory was copied, or another process
    /// runs as this replica.
    Retired,
}

impl Error {
    pub(crate) fn replica(found: ReplicaId, asked: ReplicaId) -> Error {
        Error::Mismatch {
            what: "replica id",
            found: found.0.to_string(),
            asked: asked.0.to_string(),
        }
    }

    pub(crate) fn durability(found: Durability, asked: Durability) -> Error {
        let text = |durability| format!("{durability:?}").to_lowercase();
        Error::Mismatch { what: "durability", found: text(found), asked: text(asked) }
    }
}

impl From<::io::Error> for Error {
    fn from(error: ::io::Error) -> Error {
        Error::Disk(error)
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::Disk(error) => error.fmt(f),
            Error::Listen { address, purpose, source } => write!(
                f,
                "cannot listen on {address} for {purpose}: {source}; stop what uses the port, or \
                 choose another"
            ),
            Error::Controller { name, source } => {
                write!(f, "controller {name}: {source}; give its address as host:port")
            }
            Error::Memory { directory, source } => write!(
                f,
                "cannot meet the other replicas in {}: {source}; choose another directory, with a \
                 path of at most 90 bytes and the same for all replicas",
                directory.display()
            ),
            Error::Fabric(error) => error.fmt(f),
            Error::Combination(what) => f.write_str(what),
            Error::Os(what, source) => write!(f, "cannot {what}: {source}"),
            Error::Mismatch { what, found, asked } => write!(
                f,
                "the data directory is for {what} {found}, not {asked}: correct the command, or \
                 choose another directory"
            ),
            Error::BadCheckpoint => f.write_str(
                "the checkpoint was written by another service or release: run the release that \
                 wrote it",
            ),
            Error::NoGroup => f.write_str(
                "the data directory is empty and no peer answers, so there is no group to join: \
                 start the others, or create the group with --bootstrap",
            ),
            Error::Retired => f.write_str(
                "the group knows a newer life of this replica: another process runs as this \
                 replica, or its data directory is an old copy",
            ),
        }
    }
}

// The texts hold those of their causes, so that there is no `source`.
impl std::error::Error for Error {}
