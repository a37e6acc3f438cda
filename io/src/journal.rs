//! A journal: one file of records, for who keeps several of them side by side. What a record means
//! is its writer's affair; it is on disk as a whole or not at all.
//!
//! The records are those of the replica's log, numbered from 1, under a seed of the journal's own.
//! So the same holds here: a bad record that a later one knows to have been on disk was damaged
//! there, any other bad one is a torn write and was never synced.

use std::fs::File;
use std::ops::Range;
use std::path::{Path, PathBuf};

use crate::folder::{Folder, Syncing};
use crate::record::{self, HEADER, Kind, Place, Stamp};
use crate::tail::{BLOCK, Tail};
use crate::{Error, checkpoint};

/// What is buffered beyond this many bytes is handed to the operating system before the sync.
const BUFFER: usize = 1 << 20;

fn place(seed: u64) -> Place {
    Place { segment: seed, seed: crc32c::crc32c(&seed.to_le_bytes()) }
}

/// Writes a journal.
#[derive(Debug)]
pub struct JournalWriter {
    file: File,
    path: PathBuf,
    folder: PathBuf,
    syncing: Syncing,
    place: Place,
    /// What follows `offset` bytes of the file.
    tail: Tail,
    offset: u64,
    /// Bytes of the file that are allocated, and how many more are at a time.
    length: u64,
    step: u64,
    sequence: u64,
    synced: u64,
    poisoned: bool,
}

impl JournalWriter {
    /// Makes an empty journal, whose name is durable. `seed` must differ from those of all journals
    /// that the disk has held. Space is allocated `step` bytes at a time.
    ///
    /// # Errors
    /// [`Error::Full`], or the operating system's.
    pub fn create(
        folder: &Folder,
        name: &str,
        seed: u64,
        step: u64,
    ) -> Result<JournalWriter, Error> {
        checkpoint::full(folder, folder.create_file(name))?;
        let file = folder.open_past_cache(name)?;
        checkpoint::full(folder, folder.sync())?;
        Ok(JournalWriter {
            file,
            path: folder.path_of(name),
            folder: folder.path().to_owned(),
            syncing: folder.syncing(),
            place: place(seed),
            tail: Tail::new(2 * BUFFER),
            offset: 0,
            length: 0,
            step: step.next_multiple_of(BLOCK as u64),
            sequence: 0,
            synced: 0,
            poisoned: false,
        })
    }

    /// Adds a record to those that the next [`JournalWriter::sync`] stores.
    ///
    /// # Errors
    /// [`Error::Full`]: nothing was added, and the same call may be made again. [`Error::Os`] and
    /// [`Error::Poisoned`] are final.
    ///
    /// # Panics
    /// If the record has 4 GiB or more.
    pub fn append(&mut self, payload: &[u8]) -> Result<(), Error> {
        self.check()?;
        self.make_room(HEADER + payload.len())?;
        let start = record::begin(self.tail.buffer());
        self.tail.buffer().extend_from_slice(payload);
        self.sequence += 1;
        let stamp = Stamp { kind: Kind::Batch, sequence: self.sequence, synced: self.synced };
        record::seal(self.tail.buffer(), start, self.place, stamp);
        if self.tail.len() > BUFFER {
            self.write_out()?;
        }
        Ok(())
    }

    /// Stores everything that was appended.
    ///
    /// # Errors
    /// [`Error::Os`] or [`Error::Poisoned`], both final: what the disk holds is unknown.
    pub fn sync(&mut self) -> Result<(), Error> {
        self.check()?;
        if self.synced < self.sequence {
            self.write_out()?;
            let synced = self.syncing.data(&self.file, &self.path);
            self.guard(synced)?;
            self.synced = self.sequence;
        }
        Ok(())
    }

    /// Stores everything, gives back what is allocated beyond it, and returns the file's length in
    /// bytes.
    ///
    /// # Errors
    /// As [`JournalWriter::sync`].
    pub fn finish(mut self) -> Result<u64, Error> {
        self.sync()?;
        let length = self.bytes();
        self.file.set_len(length).map_err(|e| Error::os("truncate", &self.path, e))?;
        self.syncing.data(&self.file, &self.path)?;
        Ok(length)
    }

    /// How many records there are.
    pub fn records(&self) -> u64 {
        self.sequence
    }

    /// How many bytes they have.
    pub fn bytes(&self) -> u64 {
        self.offset + self.tail.len() as u64
    }

    fn check(&self) -> Result<(), Error> {
        if self.poisoned { Err(Error::Poisoned(self.folder.clone())) } else { Ok(()) }
    }

    fn guard<T>(&mut self, result: Result<T, Error>) -> Result<T, Error> {
        self.poisoned |= result.is_err();
        result
    }

    /// Allocates what another record needs, so that a full disk is met here and not in a write.
    fn make_room(&mut self, bytes: usize) -> Result<(), Error> {
        let end = self.bytes() + (bytes + 2 * BLOCK) as u64;
        if end <= self.length {
            return Ok(());
        }
        let length = end.next_multiple_of(self.step);
        let flags = rustix::fs::FallocateFlags::empty();
        match rustix::fs::fallocate(&self.file, flags, self.length, length - self.length) {
            Ok(()) => {
                self.length = length;
                Ok(())
            }
            Err(e) => {
                let error = Error::os("allocate", &self.path, e.into());
                if error.is_no_space() {
                    let needed = length - self.length;
                    return Err(Error::Full { path: self.folder.clone(), needed });
                }
                self.guard(Err(error))
            }
        }
    }

    fn write_out(&mut self) -> Result<(), Error> {
        let written = self.tail.write(&self.file, self.offset);
        let written = written.map_err(|e| Error::os("write", &self.path, e));
        self.offset = self.guard(written)?;
        Ok(())
    }
}

/// What a journal holds.
#[derive(Debug)]
pub struct Journal {
    bytes: Vec<u8>,
    records: Vec<Range<usize>>,
    torn: Option<u64>,
}

impl Journal {
    /// Reads a journal that was made with this seed, up to a torn write at its end.
    ///
    /// # Errors
    /// [`Error::Damaged`] where something is not as it was when it was synced, or the operating
    /// system's.
    pub fn read(path: &Path, seed: u64) -> Result<Journal, Error> {
        let bytes = std::fs::read(path).map_err(|e| Error::os("read", path, e))?;
        let place = place(seed);
        let (mut records, mut at) = (Vec::new(), 0);
        while let Some(found) = record::read(&bytes, at, place) {
            if found.stamp.sequence != records.len() as u64 + 1 {
                break;
            }
            records.push(found.payload);
            at = found.end;
        }
        let expected = records.len() as u64 + 1;
        let mut torn = record::seems_to_begin(&bytes, at, place);
        for found in record::scan(&bytes, at, place) {
            torn = true;
            if found.stamp.synced >= expected || found.stamp.sequence <= expected {
                let what = "a record is not as it was when it was stored";
                return Err(Error::damaged(path, at as u64, what));
            }
        }
        Ok(Journal { bytes, records, torn: torn.then_some(at as u64) })
    }

    /// The records, in order.
    pub fn records(&self) -> impl ExactSizeIterator<Item = &[u8]> {
        self.records.iter().map(|record| &self.bytes[record.clone()])
    }

    /// Where a write that was not completed begins, in bytes.
    pub fn torn(&self) -> Option<u64> {
        self.torn
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_synced_is_read_back_and_damage_is_told_from_torn_writes() {
        let path = std::env::temp_dir().join(format!("io-journal-{}", std::process::id()));
        let folder = Folder::create(&path, Syncing::On).expect("a folder");
        let mut journal = JournalWriter::create(&folder, "j", 7, 1 << 16).expect("made");
        let records: Vec<Vec<u8>> =
            (0..40usize).map(|i| vec![i as u8 + 1; i * 331 % 9000]).collect();
        for record in &records {
            journal.append(record).expect("appended");
            journal.sync().expect("synced");
        }
        let file = folder.path_of("j");
        let held = |path: &Path| -> Result<Vec<Vec<u8>>, Error> {
            Ok(Journal::read(path, 7)?.records().map(<[u8]>::to_vec).collect())
        };
        assert_eq!(held(&file).expect("sound"), records);
        assert!(Journal::read(&file, 8).expect("another's").records().len() == 0);
        let length = journal.finish().expect("finished") as usize;
        let good = std::fs::read(&file).expect("read");
        assert_eq!(good.len(), length);
        for at in (0..length).step_by(997) {
            let mut bad = good.clone();
            bad[at] ^= 0x10;
            std::fs::write(&file, &bad).expect("written");
            match held(&file) {
                // Of the last two records nothing later says that they were stored.
                Ok(found) => assert!(found.len() >= 38 && records.starts_with(&found), "{at}"),
                Err(Error::Damaged { .. }) => {}
                Err(other) => panic!("{at}: {other}"),
            }
            std::fs::write(&file, &good[..at]).expect("written");
            let found = held(&file).expect("a short file is a torn one");
            assert!(records.starts_with(&found));
        }
        std::fs::remove_dir_all(&path).expect("removed");
    }
}
