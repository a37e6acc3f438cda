//! The disk of one replica: its identity, its log, its checkpoints; and journals, for a store that
//! keeps several logs.
//!
//! ```text
//! DATA/lock                      held while a process uses the directory
//! DATA/identity                  who the replica is, replaced atomically
//! DATA/log/0000000001.seg ...    the journal of `smr::StoreBatch`es
//! DATA/log/spare-1 ...           files for the next segments: retired ones, or zeros
//! DATA/log/filling               the next spare, while its zeros are being written
//! DATA/checkpoint-VIEW-OP        the newest checkpoint
//! DATA/incoming                  a checkpoint that is being fetched from a peer
//! ```
//!
//! A batch is on disk whole or not at all; what `LogWriter::sync` covered is there at the next
//! start, or that reports `Trust::Lost`; after a failed write nothing more is written.
#![forbid(unsafe_code)]

mod checkpoint;
mod directory;
mod error;
mod filling;
mod finding;
mod folder;
mod identity;
mod incoming;
mod journal;
mod log_writer;
mod record;
mod replay;
mod segments;
mod tail;

pub use checkpoint::{CheckpointReader, CheckpointWriter};
pub use directory::{Directory, Format, Opened};
pub use error::Error;
pub use finding::Finding;
pub use folder::{Folder, Syncing};
pub use identity::DiskIdentity;
pub use journal::{Journal, JournalWriter};
pub use log_writer::LogWriter;
pub use segments::Settings;
