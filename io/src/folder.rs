//! One directory: every change of its entries is followed by an fsync of the directory, so that it
//! holds after a power cut.

use std::fs::{File, OpenOptions, TryLockError};
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use crate::Error;

/// Held while a process uses the directory.
const LOCK: &str = "lock";

/// Whether fsync is called.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Syncing {
    /// Always.
    #[default]
    On,
    /// Never: acknowledged writes are lost by a power cut. A planted bug for tests, which must be
    /// caught; the flag for it is `--unsafe-no-fsync`.
    UnsafeOff,
}

impl Syncing {
    /// Brings a file's bytes, and what is needed to read them back, to the disk.
    pub(crate) fn data(self, file: &File, path: &Path) -> Result<(), Error> {
        match self {
            Syncing::On => file.sync_data().map_err(|e| Error::os("fdatasync", path, e)),
            Syncing::UnsafeOff => Ok(()),
        }
    }
}

/// An open directory.
#[derive(Debug)]
pub struct Folder {
    path: PathBuf,
    handle: File,
    syncing: Syncing,
}

impl Folder {
    /// Opens a directory.
    ///
    /// # Errors
    /// The operating system's, as everywhere here.
    pub fn open(path: &Path, syncing: Syncing) -> Result<Folder, Error> {
        let handle = File::open(path).map_err(|e| Error::os("open", path, e))?;
        Ok(Folder { path: path.to_owned(), handle, syncing })
    }

    /// Opens the directory, which is made first where it is missing; its parent must exist.
    pub fn create(path: &Path, syncing: Syncing) -> Result<Folder, Error> {
        match std::fs::create_dir(path) {
            Ok(()) => {
                let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty());
                Folder::open(parent.unwrap_or(Path::new(".")), syncing)?.sync()?;
            }
            Err(e) if e.kind() == std::io::ErrorKind::AlreadyExists => {}
            Err(e) => return Err(Error::os("create", path, e)),
        }
        Folder::open(path, syncing)
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.path
    }

    pub(crate) fn syncing(&self) -> Syncing {
        self.syncing
    }

    /// Where a file of it is.
    pub fn path_of(&self, name: &str) -> PathBuf {
        self.path.join(name)
    }

    /// Makes creations, renames and removals hold.
    pub fn sync(&self) -> Result<(), Error> {
        match self.syncing {
            Syncing::On => self.handle.sync_all().map_err(|e| Error::os("fsync", &self.path, e)),
            Syncing::UnsafeOff => Ok(()),
        }
    }

    /// Makes sure of what a file holds: a process that was killed may have left it to the page
    /// cache.
    ///
    /// # Errors
    /// The operating system's.
    pub fn sync_file(&self, name: &str) -> Result<(), Error> {
        self.syncing.data(&self.open_file(name)?, &self.path_of(name))
    }

    /// Bytes that may still be allocated.
    pub(crate) fn free(&self) -> Result<u64, Error> {
        let stat = rustix::fs::fstatvfs(&self.handle)
            .map_err(|e| Error::os("statvfs", &self.path, e.into()))?;
        Ok(stat.f_bavail.saturating_mul(stat.f_frsize))
    }

    /// The names that are valid UTF-8, in no order.
    pub fn names(&self) -> Result<Vec<String>, Error> {
        let list = |e| Error::os("list", &self.path, e);
        let mut names = Vec::new();
        for entry in std::fs::read_dir(&self.path).map_err(list)? {
            names.extend(entry.map_err(list)?.file_name().into_string());
        }
        Ok(names)
    }

    /// Opens a file for reading and writing, emptied or made first. The directory is not synced.
    pub(crate) fn create_file(&self, name: &str) -> Result<File, Error> {
        let path = self.path_of(name);
        OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(true)
            .open(&path)
            .map_err(|e| Error::os("create", &path, e))
    }

    pub(crate) fn open_file(&self, name: &str) -> Result<File, Error> {
        let path = self.path_of(name);
        OpenOptions::new()
            .read(true)
            .write(true)
            .open(&path)
            .map_err(|e| Error::os("open", &path, e))
    }

    /// Opens a file whose blocks go past the page cache (`O_DIRECT`), where the file system can.
    pub(crate) fn open_past_cache(&self, name: &str) -> Result<File, Error> {
        let flags = rustix::fs::OFlags::DIRECT.bits() as i32;
        let path = self.path_of(name);
        match OpenOptions::new().read(true).write(true).custom_flags(flags).open(&path) {
            // Some cannot: tmpfs before Linux 6.6, for one.
            Err(e) if e.kind() == std::io::ErrorKind::InvalidInput => self.open_file(name),
            opened => opened.map_err(|e| Error::os("open", &path, e)),
        }
    }

    /// Renames over whatever has the new name, durably.
    pub(crate) fn rename(&self, from: &str, to: &str) -> Result<(), Error> {
        let path = self.path_of(from);
        std::fs::rename(&path, self.path_of(to)).map_err(|e| Error::os("rename", &path, e))?;
        self.sync()
    }

    /// Removes a file. The directory is not synced.
    pub fn remove(&self, name: &str) -> Result<(), Error> {
        let path = self.path_of(name);
        std::fs::remove_file(&path).map_err(|e| Error::os("remove", &path, e))
    }

    /// Keeps other processes out while the file lives that is returned.
    ///
    /// # Errors
    /// [`Error::Locked`] if one is at work.
    pub fn lock(&self) -> Result<File, Error> {
        let file = self.create_file(LOCK)?;
        match file.try_lock() {
            Ok(()) => Ok(file),
            Err(TryLockError::WouldBlock) => Err(Error::Locked(self.path.clone())),
            Err(TryLockError::Error(e)) => Err(Error::os("lock", &self.path_of(LOCK), e)),
        }
    }

    /// Puts `bytes` in the place of the file's content: after a crash it holds the old or the new.
    pub fn replace(&self, name: &str, bytes: &[u8]) -> Result<(), Error> {
        let temporary = format!("{name}.tmp");
        let path = self.path_of(&temporary);
        let mut file = self.create_file(&temporary)?;
        file.write_all(bytes).map_err(|e| Error::os("write", &path, e))?;
        self.syncing.data(&file, &path)?;
        self.rename(&temporary, name)
    }
}
