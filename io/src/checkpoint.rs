//! Checkpoint files. All numbers are little-endian.
//!
//! | part | bytes |
//! |---|---|
//! | header | magic `LSCP`, version 4, group 8, view 8, operation 8, crc32c of these 4 |
//! | each chunk | length 4, crc32c of the length and the bytes 4, the bytes |
//! | footer | `ff ff ff ff`, chunks 8, file length 8, crc32c of the chunks' 4, of these 4 |
//!
//! A checkpoint has its final name only when it is complete and on disk, so a damaged one is a
//! damaged disk. Peers fetch the file as it is.

use std::fs::File;
use std::io::{BufReader, Read};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use bytes::Bytes;
use smr::{CheckpointChunk, Durability, GroupId, OpNumber, View, Viewstamp};

use crate::directory::Directory;
use crate::folder::Folder;
use crate::identity::DiskIdentity;
use crate::tail::Tail;
use crate::{Error, Finding};

const MAGIC: [u8; 4] = *b"LSCP";
const VERSION: u32 = 1;
const HEADER: usize = 36;
const FOOTER: usize = 28;
const FOOTER_MARK: u32 = u32::MAX;
const PREFIX: &str = "checkpoint-";
const BUFFER: usize = 1 << 20;
/// Written bytes are brought to the disk in steps of this many, so that the log's own syncs never
/// wait behind a whole checkpoint.
const SYNC_STEP: usize = 8 << 20;

/// A complete checkpoint on disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct CheckpointFile {
    pub(crate) position: Viewstamp,
    /// In bytes.
    pub(crate) length: u64,
}

pub(crate) fn name_of(position: Viewstamp) -> String {
    format!("{PREFIX}{:016x}-{:016x}", position.view.0, position.op.0)
}

fn position_of(name: &str) -> Option<Viewstamp> {
    let (view, op) = name.strip_prefix(PREFIX)?.split_once('-')?;
    let number = |text| u64::from_str_radix(text, 16).ok();
    let position = Viewstamp::new(View(number(view)?), OpNumber(number(op)?));
    (name_of(position) == name).then_some(position)
}

/// The positions of the checkpoint files, newest first.
fn positions(folder: &Folder) -> Result<Vec<Viewstamp>, Error> {
    let mut all: Vec<_> = folder.names()?.iter().filter_map(|name| position_of(name)).collect();
    all.sort_unstable_by_key(|position| std::cmp::Reverse((position.op, position.view)));
    Ok(all)
}

/// The newest checkpoint that is sound, for a replica that starts; what is unfinished is removed.
pub(crate) fn recover(
    folder: &Folder,
    identity: &DiskIdentity,
    findings: &mut Vec<Finding>,
) -> Result<Option<CheckpointFile>, Error> {
    for name in folder.names()? {
        let is_unfinished = name.ends_with(".tmp") || name == crate::incoming::FILE;
        // In `memory` the state of a former life is gone with the rest of the group's.
        let is_stale = identity.durability == Durability::Memory && position_of(&name).is_some();
        if is_unfinished || is_stale {
            folder.remove(&name)?;
        }
    }
    folder.sync()?;
    for position in positions(folder)? {
        let path = folder.path_of(&name_of(position));
        match verify(&path, identity.group, position) {
            Ok(length) => return Ok(Some(CheckpointFile { position, length })),
            Err(error @ (Error::Damaged { .. } | Error::Version { .. })) => {
                findings.push(Finding::DamagedCheckpoint { path, what: error.to_string() });
            }
            Err(error) => return Err(error),
        }
    }
    Ok(None)
}

/// Reads a whole file; returns its length in bytes.
pub(crate) fn verify(path: &Path, group: GroupId, position: Viewstamp) -> Result<u64, Error> {
    let mut reader = CheckpointReader::open(path, group)?;
    if reader.position() != position {
        return Err(Error::damaged(path, 16, "it is at another position than its name says"));
    }
    while reader.next_chunk()?.is_some() {}
    Ok(reader.length)
}

/// Gives a complete, synced file its final name and removes the older ones.
pub(crate) fn install(folder: &Folder, from: &str, position: Viewstamp) -> Result<(), Error> {
    let name = name_of(position);
    folder.rename(from, &name)?;
    for other in positions(folder)?.into_iter().filter(|other| *other != position) {
        folder.remove(&name_of(other))?;
    }
    folder.sync()
}

/// A piece of a checkpoint file, `None` where there is no such file any more.
pub(crate) fn read_range(
    folder: &Folder,
    file: CheckpointFile,
    offset: u64,
    length: usize,
) -> Result<Option<CheckpointChunk>, Error> {
    let path = folder.path_of(&name_of(file.position));
    let handle = match File::open(&path) {
        Ok(handle) => handle,
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        Err(e) => return Err(Error::os("open", &path, e)),
    };
    let rest = file.length.saturating_sub(offset);
    let mut bytes = vec![0; length.min(usize::try_from(rest).unwrap_or(usize::MAX))];
    handle.read_exact_at(&mut bytes, offset).map_err(|e| Error::os("read", &path, e))?;
    let (position, total) = (file.position, file.length);
    Ok(Some(CheckpointChunk { position, offset, total, bytes: Bytes::from(bytes) }))
}

/// Writes a checkpoint. Dropped without [`CheckpointWriter::finish`] it leaves nothing behind.
#[derive(Debug)]
pub struct CheckpointWriter {
    directory: Directory,
    position: Viewstamp,
    name: String,
    path: PathBuf,
    file: File,
    /// What follows `written` bytes of the file.
    tail: Tail,
    written: u64,
    chunks: u64,
    length: u64,
    unsynced: usize,
    checksums: u32,
    is_finished: bool,
}

impl CheckpointWriter {
    pub(crate) fn create(
        directory: Directory,
        group: GroupId,
        position: Viewstamp,
    ) -> Result<CheckpointWriter, Error> {
        let name = format!("{}.tmp", name_of(position));
        let folder = directory.folder();
        full(folder, folder.create_file(&name))?;
        // Past the page cache: what the kernel writes back in a burst the log's syncs wait behind.
        let file = folder.open_past_cache(&name)?;
        let mut writer = CheckpointWriter {
            path: directory.folder().path_of(&name),
            directory,
            position,
            name,
            file,
            tail: Tail::new(2 * BUFFER),
            written: 0,
            chunks: 0,
            length: 0,
            unsynced: 0,
            checksums: 0,
            is_finished: false,
        };
        let mut header = Vec::with_capacity(HEADER);
        header.extend_from_slice(&MAGIC);
        header.extend_from_slice(&VERSION.to_le_bytes());
        header.extend_from_slice(&group.0.to_le_bytes());
        header.extend_from_slice(&position.view.0.to_le_bytes());
        header.extend_from_slice(&position.op.0.to_le_bytes());
        header.extend_from_slice(&crc32c::crc32c(&header).to_le_bytes());
        writer.write(&header)?;
        Ok(writer)
    }

    /// Appends a chunk, which may be empty.
    ///
    /// # Errors
    /// [`Error::Full`], or the operating system's. Drop the writer in either case; after
    /// [`Error::Full`] a checkpoint may be tried again later.
    ///
    /// # Panics
    /// If the chunk has 4 GiB or more.
    pub fn chunk(&mut self, bytes: &[u8]) -> Result<(), Error> {
        let length = u32::try_from(bytes.len()).ok().filter(|&length| length != FOOTER_MARK);
        let length = length.expect("a chunk is below 4 GiB").to_le_bytes();
        let checksum = crc32c::crc32c_append(crc32c::crc32c(&length), bytes).to_le_bytes();
        self.checksums = crc32c::crc32c_append(self.checksums, &checksum);
        self.chunks += 1;
        self.write(&length)?;
        self.write(&checksum)?;
        self.write(bytes)
    }

    /// Completes the checkpoint, and returns its size in bytes. From here on it is the one that a
    /// restart uses, and older ones are removed.
    ///
    /// # Errors
    /// As [`CheckpointWriter::chunk`].
    pub fn finish(mut self) -> Result<u64, Error> {
        let mut footer = Vec::with_capacity(FOOTER);
        footer.extend_from_slice(&FOOTER_MARK.to_le_bytes());
        footer.extend_from_slice(&self.chunks.to_le_bytes());
        footer.extend_from_slice(&(self.length + FOOTER as u64).to_le_bytes());
        footer.extend_from_slice(&self.checksums.to_le_bytes());
        footer.extend_from_slice(&crc32c::crc32c(&footer).to_le_bytes());
        self.write(&footer)?;
        self.write_out()?;
        let cut = self.file.set_len(self.length);
        full(self.directory.folder(), cut.map_err(|e| Error::os("truncate", &self.path, e)))?;
        self.sync()?;
        let file = CheckpointFile { position: self.position, length: self.length };
        self.directory.install(&self.name, file)?;
        self.is_finished = true;
        Ok(self.length)
    }

    fn write(&mut self, bytes: &[u8]) -> Result<(), Error> {
        self.tail.buffer().extend_from_slice(bytes);
        self.length += bytes.len() as u64;
        self.unsynced += bytes.len();
        if self.tail.len() >= BUFFER {
            self.write_out()?;
        }
        if self.unsynced >= SYNC_STEP {
            self.sync()?;
        }
        Ok(())
    }

    fn write_out(&mut self) -> Result<(), Error> {
        let written = self.tail.write(&self.file, self.written);
        let written = written.map_err(|e| Error::os("write", &self.path, e));
        self.written = full(self.directory.folder(), written)?;
        Ok(())
    }

    /// Brings what was written out to the disk.
    fn sync(&mut self) -> Result<(), Error> {
        self.unsynced = 0;
        let result = self.directory.folder().syncing().data(&self.file, &self.path);
        full(self.directory.folder(), result)
    }
}

impl Drop for CheckpointWriter {
    fn drop(&mut self) {
        if !self.is_finished {
            // What stays is removed at the next start.
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

/// Tells a full disk from other errors.
pub(crate) fn full<T>(folder: &Folder, result: Result<T, Error>) -> Result<T, Error> {
    result.map_err(|error| {
        if error.is_no_space() {
            return Error::Full { path: folder.path().to_owned(), needed: BUFFER as u64 };
        }
        error
    })
}

/// Reads a checkpoint and verifies it on the way.
#[derive(Debug)]
pub struct CheckpointReader {
    source: BufReader<File>,
    path: PathBuf,
    position: Viewstamp,
    length: u64,
    at: u64,
    chunks: u64,
    checksums: u32,
    is_finished: bool,
}

impl CheckpointReader {
    pub(crate) fn open(path: &Path, group: GroupId) -> Result<CheckpointReader, Error> {
        let file = File::open(path).map_err(|e| Error::os("open", path, e))?;
        let length = file.metadata().map_err(|e| Error::os("stat", path, e))?.len();
        let mut reader = CheckpointReader {
            source: BufReader::with_capacity(BUFFER, file),
            path: path.to_owned(),
            position: Viewstamp::default(),
            length,
            at: 0,
            chunks: 0,
            checksums: 0,
            is_finished: false,
        };
        let header = reader.take::<HEADER>()?;
        let u64_at = |at: usize| u64::from_le_bytes(header[at..at + 8].try_into().expect("8"));
        let u32_at = |at: usize| u32::from_le_bytes(header[at..at + 4].try_into().expect("4"));
        if header[0..4] != MAGIC {
            return Err(Error::damaged(path, 0, "it does not begin as a checkpoint"));
        }
        if u32_at(4) != VERSION {
            return Err(Error::Version { path: path.to_owned(), found: u32_at(4) });
        }
        if crc32c::crc32c(&header[..32]) != u32_at(32) {
            return Err(Error::damaged(path, 32, "the checksum of its header is wrong"));
        }
        if u64_at(8) != group.0 {
            return Err(Error::damaged(path, 8, "it belongs to another group"));
        }
        reader.position = Viewstamp::new(View(u64_at(16)), OpNumber(u64_at(24)));
        Ok(reader)
    }

    /// The state that the checkpoint holds.
    pub fn position(&self) -> Viewstamp {
        self.position
    }

    /// The next chunk as it was written, or `None` after the last one, when the whole file has been
    /// verified.
    ///
    /// # Errors
    /// [`Error::Damaged`], [`Error::Version`], or the operating system's.
    pub fn next_chunk(&mut self) -> Result<Option<Vec<u8>>, Error> {
        if self.is_finished {
            return Ok(None);
        }
        let at = self.at;
        let start = self.take::<4>()?;
        let length = u32::from_le_bytes(start);
        if length == FOOTER_MARK {
            self.footer(at, start)?;
            self.is_finished = true;
            return Ok(None);
        }
        let expected = self.take::<4>()?;
        // Bounded by the file, so that a damaged length allocates no more than the file is long.
        if u64::from(length) > self.length - self.at {
            return Err(Error::damaged(&self.path, at, "a chunk is longer than the file"));
        }
        let mut bytes = vec![0; length as usize];
        self.source.read_exact(&mut bytes).map_err(|e| Error::os("read", &self.path, e))?;
        self.at += u64::from(length);
        let found = crc32c::crc32c_append(crc32c::crc32c(&start), &bytes).to_le_bytes();
        if found != expected {
            return Err(Error::damaged(&self.path, at, "the checksum of a chunk is wrong"));
        }
        self.chunks += 1;
        self.checksums = crc32c::crc32c_append(self.checksums, &found);
        Ok(Some(bytes))
    }

    fn footer(&mut self, at: u64, start: [u8; 4]) -> Result<(), Error> {
        let mut footer = start.to_vec();
        footer.extend_from_slice(&self.take::<{ FOOTER - 4 }>()?);
        let u64_at = |at: usize| u64::from_le_bytes(footer[at..at + 8].try_into().expect("8"));
        let u32_at = |at: usize| u32::from_le_bytes(footer[at..at + 4].try_into().expect("4"));
        let wrong = |what| Err(Error::damaged(&self.path, at, what));
        if crc32c::crc32c(&footer[..24]) != u32_at(24) {
            return wrong("the checksum of its footer is wrong");
        }
        if u64_at(4) != self.chunks || u32_at(20) != self.checksums {
            return wrong("chunks are missing or in the wrong order");
        }
        if u64_at(12) != self.at || self.at != self.length {
            return wrong("the file is longer or shorter than it was");
        }
        Ok(())
    }

    fn take<const N: usize>(&mut self) -> Result<[u8; N], Error> {
        if self.length - self.at < N as u64 {
            return Err(Error::damaged(&self.path, self.at, "the file ends too early"));
        }
        let mut bytes = [0; N];
        self.source.read_exact(&mut bytes).map_err(|e| Error::os("read", &self.path, e))?;
        self.at += N as u64;
        Ok(bytes)
    }
}
