//! What opening a data directory found that an operator should know.

use std::fmt;
use std::path::PathBuf;

use smr::{OpNumber, Viewstamp};

/// Something about the disk that the operator should be told at the start.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Finding {
    /// The last writes before a crash were not complete. None of them had been acknowledged; they
    /// were dropped.
    TornTail {
        /// The segment.
        path: PathBuf,
        /// Where the first dropped record began, in bytes.
        offset: u64,
    },
    /// A record that had been on disk is damaged: it and all later ones were dropped.
    CorruptLog {
        /// The segment.
        path: PathBuf,
        /// Where the damage begins, in bytes.
        offset: u64,
    },
    /// A segment that should be there is not.
    MissingSegment(PathBuf),
    /// The log begins above the checkpoint, or above nothing where there is no checkpoint.
    Gap {
        /// The last operation before the log.
        log_base: OpNumber,
        /// The position of the checkpoint; zero for none.
        checkpoint: OpNumber,
    },
    /// A checkpoint is damaged and was not used.
    DamagedCheckpoint {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        what: String,
    },
    /// The log ended below the checkpoint, or had been overtaken by it: a state transfer was
    /// interrupted after its checkpoint was in place. Nothing acknowledged is missing.
    Superseded {
        /// The checkpoint.
        checkpoint: Viewstamp,
    },
}

impl Finding {
    /// Whether something that was reported stored may be missing because of this.
    pub(crate) fn is_loss(&self) -> bool {
        matches!(
            self,
            Finding::CorruptLog { .. } | Finding::MissingSegment(_) | Finding::Gap { .. }
        )
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Finding::TornTail { path, offset } => write!(
                f,
                "the last write before the crash was incomplete and was dropped ({} at byte \
                 {offset}); it had not been acknowledged",
                path.display()
            ),
            Finding::CorruptLog { path, offset } => write!(
                f,
                "the log is corrupt at byte {offset} of {}: what follows was dropped, and the \
                 replica recovers from the others; check the disk",
                path.display()
            ),
            Finding::MissingSegment(path) => write!(
                f,
                "the log segment {} is missing: the replica recovers from the others",
                path.display()
            ),
            Finding::Gap { log_base, checkpoint } => write!(
                f,
                "the log begins after operation {} but the checkpoint is at {}: the replica \
                 recovers from the others",
                log_base.0, checkpoint.0
            ),
            Finding::DamagedCheckpoint { path, what } => {
                write!(f, "the checkpoint {} is not used: {what}", path.display())
            }
            Finding::Superseded { checkpoint } => write!(
                f,
                "the log was overtaken by the checkpoint at operation {} and starts from there",
                checkpoint.op.0
            ),
        }
    }
}
