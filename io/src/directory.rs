//! A replica's data directory: formatting it, and opening it with all that it takes to trust it.

use std::fs::File;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use smr::{
    CheckpointChunk, Durability, GroupId, Incarnation, OrderedBy, Recovered, ReplicaId, Trust,
    Viewstamp,
};

use crate::checkpoint::{self, CheckpointFile, CheckpointReader, CheckpointWriter};
use crate::folder::Folder;
use crate::identity::{self, DiskIdentity};
use crate::incoming::{self, Incoming};
use crate::log_writer::LogWriter;
use crate::replay;
use crate::segments::{LOG, Segments, Settings};
use crate::{Error, Finding, Syncing};

/// What a new data directory is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Format {
    /// The group.
    pub group: GroupId,
    /// The replica's place in it, below `replicas`.
    pub replica: ReplicaId,
    /// The size of the group, 1 to [`smr::MAX_REPLICAS`].
    pub replicas: u8,
    /// What its acknowledgements mean.
    pub durability: Durability,
    /// How it orders requests.
    pub ordered_by: OrderedBy,
    /// [`Trust::New`] for a group that is being created, [`Trust::Lost`] for a disk that takes the
    /// place of one in a group that exists.
    pub trust: Trust,
    /// The last life that is taken: 0 in a new group. Who takes the place of a lost disk must begin
    /// above every life of that disk, or its votes and requests are taken for the old ones.
    pub incarnation: Incarnation,
}

/// What [`Directory::open`] found.
#[derive(Debug)]
pub struct Opened {
    /// The directory, for checkpoints.
    pub directory: Directory,
    /// Who the replica is. The incarnation is this start's, and is on disk.
    pub identity: DiskIdentity,
    /// For the protocol. Where `checkpoint` is set, load it from [`Directory::read_checkpoint`];
    /// its every byte has been verified.
    pub recovered: Recovered,
    /// The log, for the thread that writes it.
    pub log: LogWriter,
    /// What the operator should know. Empty after an orderly stop.
    pub findings: Vec<Finding>,
}

/// An open data directory. Clones share it; the lock is held until the last of them, and the
/// [`LogWriter`], are dropped.
#[derive(Clone, Debug)]
pub struct Directory {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    folder: Folder,
    identity: Mutex<DiskIdentity>,
    checkpoint: Mutex<Option<CheckpointFile>>,
    incoming: Mutex<Option<Incoming>>,
    /// Dropped last: unlocks.
    _lock: File,
}

impl Directory {
    /// Makes a data directory. The directory may exist, if there is no replica in it; its parent
    /// must.
    ///
    /// # Errors
    /// [`Error::AlreadyFormatted`], [`Error::Locked`], or the operating system's.
    ///
    /// # Panics
    /// If `format` names a replica outside its group, or [`Trust::Intact`].
    pub fn create(path: &Path, format: &Format) -> Result<(), Error> {
        assert!(format.replica.0 < format.replicas, "the replica is one of the group");
        assert!(format.replicas <= smr::MAX_REPLICAS, "a group has at most 9 replicas");
        assert!(format.trust != Trust::Intact, "a directory without content is not intact");
        let folder = Folder::create(path, Syncing::On)?;
        let _lock = folder.lock()?;
        // A log without an identity is somebody's data as well.
        if folder.names()?.iter().any(|name| name == identity::FILE || name == LOG) {
            return Err(Error::AlreadyFormatted(path.to_owned()));
        }
        let identity = DiskIdentity {
            group: format.group,
            replica: format.replica,
            replicas: format.replicas,
            durability: format.durability,
            ordered_by: format.ordered_by,
            incarnation: format.incarnation,
            lost: format.trust == Trust::Lost,
            first_segment: 0,
        };
        // The identity makes it a data directory, and comes first; opening makes the rest.
        identity.store(&folder)
    }

    /// Opens a data directory for one life of its replica: replays the log onto the checkpoint,
    /// judges how far the disk can be trusted, and persists the next incarnation.
    ///
    /// In durability `memory` checkpoints of former lives are removed; the log holds views only.
    ///
    /// # Errors
    /// [`Error::NotFormatted`], [`Error::Locked`], [`Error::Damaged`] or [`Error::Version`] of the
    /// identity, [`Error::Full`] if there is no space for the first segment, or the operating
    /// system's. A damaged log or checkpoint is no error but a finding.
    pub fn open(path: &Path, settings: Settings) -> Result<Opened, Error> {
        if !path.is_dir() {
            return Err(Error::NotFormatted(path.to_owned()));
        }
        let folder = Folder::open(path, settings.syncing)?;
        DiskIdentity::load(&folder)?; // no lock file where there is no replica
        let lock = folder.lock()?;
        let mut identity = DiskIdentity::load(&folder)?;
        let mut findings = Vec::new();
        let checkpoint = checkpoint::recover(&folder, &identity, &mut findings)?;
        let position = checkpoint.as_ref().map(|file| file.position);
        let segments = Segments::open(&folder, identity.group, settings)?;
        let mut replayed = replay::replay(&segments, identity.first_segment, position)?;
        findings.extend(replayed.finding.clone());
        if identity.durability == Durability::Memory {
            replayed.forget_entries();
        }
        let (log, finding) = replayed.join(position);
        let superseded = matches!(finding, Some(Finding::Superseded { .. }));
        findings.extend(finding);
        let is_loss = findings.iter().any(Finding::is_loss);
        if is_loss && !identity.lost {
            // Before the evidence goes: a crash from here on must not forget the loss.
            identity.lost = true;
            identity.store(&folder)?;
        }
        let trust = match (identity.lost, identity.incarnation) {
            (true, _) => Trust::Lost,
            (false, Incarnation(0)) => Trust::New,
            (false, _) => Trust::Intact,
        };
        let inner = Inner {
            folder,
            identity: Mutex::new(identity),
            checkpoint: Mutex::new(checkpoint),
            incoming: Mutex::new(None),
            _lock: lock,
        };
        let directory = Directory { inner: Arc::new(inner) };
        let newest = identity.first_segment;
        let writer = if is_loss {
            LogWriter::salvage(directory.clone(), segments, newest, &replayed, &log)?
        } else {
            LogWriter::resume(directory.clone(), segments, &replayed, &log, superseded)?
        };
        let identity = directory.change_identity(|identity| {
            identity.incarnation.0 += 1;
            identity.first_segment = writer.current_segment();
        })?;
        // A checkpoint of a view stands for that view, even if a crash kept it out of the log.
        let view = replayed.view.max(log.last().view);
        let recovered = Recovered { trust, view, log, checkpoint: position };
        Ok(Opened { directory, identity, recovered, log: writer, findings })
    }

    /// Who the replica is.
    pub fn identity(&self) -> DiskIdentity {
        *locked(&self.inner.identity)
    }

    /// Records that the replica has recovered what its disk had lost. Call it when the protocol has
    /// left recovery and everything that it then handed to the disk is stored. Without it the
    /// replica starts with [`Trust::Lost`] again.
    ///
    /// # Errors
    /// [`Error::Full`] (try again later), or the operating system's.
    pub fn mark_recovered(&self) -> Result<(), Error> {
        if self.identity().lost {
            self.change_identity(|identity| identity.lost = false)?;
        }
        Ok(())
    }

    /// The position of the newest checkpoint on disk.
    pub fn checkpoint(&self) -> Option<Viewstamp> {
        locked(&self.inner.checkpoint).map(|file| file.position)
    }

    /// Begins a checkpoint of the state at `position`.
    ///
    /// # Errors
    /// [`Error::Full`], or the operating system's.
    pub fn create_checkpoint(&self, position: Viewstamp) -> Result<CheckpointWriter, Error> {
        CheckpointWriter::create(self.clone(), self.identity().group, position)
    }

    /// Opens the newest checkpoint, `None` if there is none.
    ///
    /// # Errors
    /// [`Error::Damaged`], [`Error::Version`], or the operating system's.
    pub fn read_checkpoint(&self) -> Result<Option<CheckpointReader>, Error> {
        let Some(position) = self.checkpoint() else {
            return Ok(None);
        };
        let path = self.inner.folder.path_of(&checkpoint::name_of(position));
        CheckpointReader::open(&path, self.identity().group).map(Some)
    }

    /// A piece of the checkpoint file at `position`, or of the newest, for a peer: at most `length`
    /// bytes from byte `offset`. `None` if there is no checkpoint, or the one asked for is gone.
    /// The piece is empty at the file's end.
    ///
    /// # Errors
    /// The operating system's.
    pub fn read_range(
        &self,
        position: Option<Viewstamp>,
        offset: u64,
        length: usize,
    ) -> Result<Option<CheckpointChunk>, Error> {
        let newest = *locked(&self.inner.checkpoint);
        let file = newest.filter(|file| position.is_none_or(|asked| asked == file.position));
        match file {
            Some(file) => checkpoint::read_range(&self.inner.folder, file, offset, length),
            None => Ok(None),
        }
    }

    /// Keeps a piece of a peer's checkpoint. A piece at offset zero begins anew.
    ///
    /// # Errors
    /// [`Error::OutOfOrder`] if the piece does not follow the one before; [`Error::Full`]; or the
    /// operating system's. After any of them the fetch must begin anew.
    pub fn save_chunk(&self, chunk: &CheckpointChunk) -> Result<(), Error> {
        let mut incoming = locked(&self.inner.incoming);
        let folder = &self.inner.folder;
        let mut pieces = match incoming.take() {
            _ if chunk.offset == 0 => Incoming::begin(folder, chunk)?,
            Some(pieces) => pieces,
            None => return Err(Error::OutOfOrder),
        };
        pieces.save(folder, chunk)?;
        *incoming = Some(pieces);
        Ok(())
    }

    /// Verifies the checkpoint that [`Directory::save_chunk`] has kept and puts it in the place of
    /// the one on disk. It can then be read with [`Directory::read_checkpoint`].
    ///
    /// # Errors
    /// [`Error::Damaged`] or [`Error::Version`] if it is not a sound checkpoint of this group at
    /// `position`, [`Error::OutOfOrder`] if pieces are missing: nothing has changed, fetch it anew.
    /// Or the operating system's.
    pub fn install_incoming(&self, position: Viewstamp) -> Result<(), Error> {
        let folder = &self.inner.folder;
        let pieces = locked(&self.inner.incoming).take().ok_or(Error::OutOfOrder)?;
        let length = pieces.complete(folder, position)?;
        checkpoint::verify(&folder.path_of(incoming::FILE), self.identity().group, position)?;
        self.install(incoming::FILE, CheckpointFile { position, length })
    }

    pub(crate) fn folder(&self) -> &Folder {
        &self.inner.folder
    }

    /// Makes a complete file the newest checkpoint.
    pub(crate) fn install(&self, from: &str, file: CheckpointFile) -> Result<(), Error> {
        let mut newest = locked(&self.inner.checkpoint);
        if newest.is_some_and(|newest| newest.position.op > file.position.op) {
            return self.inner.folder.remove(from); // overtaken while it was written
        }
        checkpoint::install(&self.inner.folder, from, file.position)?;
        *newest = Some(file);
        Ok(())
    }

    /// Bytes to leave to the next checkpoint: a quarter more than the last one took. The log may
    /// not use them up, since a checkpoint is what frees space.
    pub(crate) fn checkpoint_space(&self) -> u64 {
        locked(&self.inner.checkpoint).map_or(0, |file| file.length + file.length / 4)
    }

    fn change_identity(
        &self,
        change: impl FnOnce(&mut DiskIdentity),
    ) -> Result<DiskIdentity, Error> {
        let mut identity = locked(&self.inner.identity);
        let mut changed = *identity;
        change(&mut changed);
        changed.store(&self.inner.folder)?;
        *identity = changed;
        Ok(changed)
    }
}

/// A panic elsewhere leaves these values whole: each is replaced in one step.
fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
