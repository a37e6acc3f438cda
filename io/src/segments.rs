//! The files of the log: numbered segments, and spares for the next ones: retired segments, or
//! files of zeros that are written ahead. Where no spare is ready, space is only allocated.
//!
//! Invariant: one spare is the reserve. Only a batch without entries (a trim, a truncation, a view)
//! may begin a segment in it, so that a full disk never keeps the group from freeing space.

use std::fs::File;
use std::io::Read;
use std::sync::atomic::AtomicBool;

use smr::GroupId;

use crate::Error;
use crate::filling::{self, Filling};
use crate::folder::{Folder, Syncing};
use crate::tail;

/// The folder of the log within the data directory.
pub(crate) const LOG: &str = "log";
/// The most spares that are kept, the reserve among them.
const SPARES: usize = 8;
const SPARE_NAMES: [&str; SPARES] =
    ["spare-1", "spare-2", "spare-3", "spare-4", "spare-5", "spare-6", "spare-7", "spare-8"];
/// So many spares are made; those above are retired segments.
const FILLED: usize = 2;
/// A spare whose zeros are being written.
const FILLING: &str = "filling";
/// Smaller segments are not worth a thread.
const FILL_FROM: u64 = 16 << 10;
/// A start that finds no spare begins with a segment of this part of the others' bytes, which is
/// full about when a spare is.
const FIRST_PART: u64 = 16;
/// Segments are multiples of this many bytes.
const BLOCK: u64 = tail::BLOCK as u64;

/// How the log is laid out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Settings {
    /// Bytes of a segment, at least 4096. A batch that needs more gets a longer one. Small in
    /// tests.
    pub segment_bytes: u64,
    /// [`Syncing::On`], except to plant a bug.
    pub syncing: Syncing,
}

impl Default for Settings {
    /// Segments of 64 MiB, synced.
    fn default() -> Settings {
        Settings { segment_bytes: 64 << 20, syncing: Syncing::On }
    }
}

/// The folder of segments.
#[derive(Debug)]
pub(crate) struct Segments {
    pub(crate) folder: Folder,
    group: GroupId,
    segment_bytes: u64,
    /// The names of the spares that exist; the first is the reserve.
    spares: Vec<&'static str>,
    filling: Option<Filling>,
}

impl Segments {
    pub(crate) fn open(root: &Folder, group: GroupId, settings: Settings) -> Result<Self, Error> {
        let folder = Folder::create(&root.path_of(LOG), settings.syncing)?;
        let segment_bytes = settings.segment_bytes.max(BLOCK).next_multiple_of(BLOCK);
        let mut segments =
            Segments { folder, group, segment_bytes, spares: Vec::new(), filling: None };
        for name in segments.folder.names()? {
            if name == FILLING {
                segments.folder.remove(FILLING)?;
                segments.folder.sync()?;
            }
            let Some(spare) = SPARE_NAMES.into_iter().find(|spare| *spare == name) else {
                continue;
            };
            if segments.length(spare)? == segment_bytes {
                segments.spares.push(spare);
            } else {
                segments.folder.remove(spare)?;
                segments.folder.sync()?;
            }
        }
        Ok(segments)
    }

    pub(crate) fn name(id: u64) -> String {
        format!("{id:010}.seg")
    }

    /// The segments' numbers, in order.
    pub(crate) fn ids(&self) -> Result<Vec<u64>, Error> {
        let names = self.folder.names()?;
        let id_of = |name: &String| {
            let id = name.strip_suffix(".seg")?.parse().ok()?;
            (Segments::name(id) == *name).then_some(id)
        };
        let mut ids: Vec<u64> = names.iter().filter_map(id_of).collect();
        ids.sort_unstable();
        Ok(ids)
    }

    /// What the checksums of a segment's records start from, so that the bytes that a recycled file
    /// held before are no records of it.
    pub(crate) fn seed(&self, id: u64) -> u32 {
        let group = crc32c::crc32c(&self.group.0.to_le_bytes());
        crc32c::crc32c_append(group, &id.to_le_bytes())
    }

    pub(crate) fn read(&self, id: u64) -> Result<Vec<u8>, Error> {
        let path = self.folder.path_of(&Segments::name(id));
        std::fs::read(&path).map_err(|e| Error::os("read", &path, e))
    }

    /// The first bytes of a segment, enough for its first record.
    pub(crate) fn read_start(&self, id: u64) -> Result<Vec<u8>, Error> {
        let path = self.folder.path_of(&Segments::name(id));
        let mut bytes = Vec::new();
        File::open(&path)
            .and_then(|file| file.take(BLOCK).read_to_end(&mut bytes))
            .map_err(|e| Error::os("read", &path, e))?;
        Ok(bytes)
    }

    fn length(&self, name: &str) -> Result<u64, Error> {
        let path = self.folder.path_of(name);
        Ok(std::fs::metadata(&path).map_err(|e| Error::os("stat", &path, e))?.len())
    }

    /// Makes a segment with space for `bytes`; for none, at a start, a short one will do. `reserve`
    /// allows the last spare to be used. Of the
    /// disk's space `keep_free` bytes and another segment's are left, for checkpoints and small
    /// files. The segment's name is durable.
    ///
    /// # Errors
    /// [`Error::Full`]: there is no space, and nothing was changed.
    pub(crate) fn create(
        &mut self,
        id: u64,
        bytes: u64,
        reserve: bool,
        keep_free: u64,
    ) -> Result<(File, u64), Error> {
        let name = Segments::name(id);
        self.adopt_filled()?;
        if bytes == 0 && self.spares.len() < 2 {
            let length = (self.segment_bytes / FIRST_PART).next_multiple_of(BLOCK);
            if self.folder.free()? >= length {
                self.allocate(&name, length)?;
                let file = self.folder.open_past_cache(&name)?;
                // At once, while nobody is served yet: a few milliseconds.
                let (path, stop) = (self.folder.path_of(&name), AtomicBool::new(false));
                filling::fill(&file, &path, length, self.folder.syncing(), &stop)?;
                return Ok((file, length));
            }
        }
        if bytes <= self.segment_bytes && self.spares.len() > usize::from(!reserve) {
            let spare = self.spares.pop().expect("there is one");
            self.folder.rename(spare, &name)?;
            return Ok((self.folder.open_past_cache(&name)?, self.segment_bytes));
        }
        let length = bytes.next_multiple_of(BLOCK).max(self.segment_bytes);
        let needed = if reserve { length } else { length + self.segment_bytes + keep_free };
        if self.folder.free()? < needed {
            return Err(Error::Full { path: self.folder.path().to_owned(), needed });
        }
        self.allocate(&name, length)?;
        Ok((self.folder.open_past_cache(&name)?, length))
    }

    /// A file of this many bytes of allocated space, so that an fdatasync need not store its length
    /// as well. `O_DSYNC` gained nothing beyond the noise (examples/fsync.rs).
    fn allocate(&self, name: &str, length: u64) -> Result<(), Error> {
        let file = self.folder.create_file(name)?;
        let path = self.folder.path_of(name);
        let allocated =
            rustix::fs::fallocate(&file, rustix::fs::FallocateFlags::empty(), 0, length);
        if let Err(error) = allocated {
            self.folder.remove(name)?;
            let error = Error::os("allocate", &path, error.into());
            if error.is_no_space() {
                return Err(Error::Full { path, needed: length });
            }
            return Err(error);
        }
        self.folder.syncing().data(&file, &path)?;
        self.folder.sync()
    }

    /// Takes a segment out of the log: it becomes a spare, or goes if there are enough or space is
    /// short.
    pub(crate) fn retire(&mut self, id: u64, keep_free: u64) -> Result<(), Error> {
        let name = Segments::name(id);
        if !self.spares.is_empty() && !self.has_plenty(keep_free)? {
            return self.remove(id);
        }
        let free = SPARE_NAMES.into_iter().find(|spare| !self.spares.contains(spare));
        match free {
            Some(spare) if self.length(&name)? == self.segment_bytes => {
                self.folder.rename(&name, spare)?;
                self.spares.push(spare);
                Ok(())
            }
            _ => self.remove(id),
        }
    }

    /// Removes a segment, durably: one at a time, so that a crash leaves no hole among them.
    pub(crate) fn remove(&mut self, id: u64) -> Result<(), Error> {
        self.folder.remove(&Segments::name(id))?;
        self.folder.sync()
    }

    /// Cuts a segment off behind its last record, and makes sure of what it holds.
    pub(crate) fn cut(&mut self, id: u64, length: u64) -> Result<(), Error> {
        let name = Segments::name(id);
        let path = self.folder.path_of(&name);
        let file = self.folder.open_file(&name)?;
        file.set_len(length).map_err(|e| Error::os("truncate", &path, e))?;
        self.folder.syncing().data(&file, &path)
    }

    pub(crate) fn drop_spares(&mut self) -> Result<(), Error> {
        for spare in std::mem::take(&mut self.spares) {
            self.folder.remove(spare)?;
        }
        self.folder.sync()
    }

    /// Makes the reserve where it is missing and there is space, and begins to make the next spare.
    pub(crate) fn refill(&mut self, keep_free: u64) -> Result<(), Error> {
        self.adopt_filled()?;
        if self.spares.is_empty() && self.folder.free()? >= 2 * self.segment_bytes + keep_free {
            self.make_reserve()?;
        }
        if !self.spares.is_empty() && self.has_plenty(keep_free)? {
            self.begin_filling()?;
        }
        Ok(())
    }

    /// Whether there is so much space that more spares take it from nobody.
    fn has_plenty(&self, keep_free: u64) -> Result<bool, Error> {
        Ok(self.folder.free()? >= 4 * self.segment_bytes + keep_free)
    }

    fn make_reserve(&mut self) -> Result<(), Error> {
        match self.allocate(SPARE_NAMES[0], self.segment_bytes) {
            Ok(()) => self.spares.push(SPARE_NAMES[0]),
            Err(Error::Full { .. }) => {}
            Err(error) => return Err(error),
        }
        Ok(())
    }

    fn begin_filling(&mut self) -> Result<(), Error> {
        let enough = self.spares.len() >= FILLED || self.segment_bytes < FILL_FROM;
        if enough || self.filling.is_some() {
            return Ok(());
        }
        self.folder.create_file(FILLING)?;
        let file = self.folder.open_past_cache(FILLING)?;
        let (path, syncing) = (self.folder.path_of(FILLING), self.folder.syncing());
        self.filling = Some(Filling::start(file, path, self.segment_bytes, syncing)?);
        Ok(())
    }

    /// The file that was filled becomes a spare, or goes if there are enough or no more space.
    fn adopt_filled(&mut self) -> Result<(), Error> {
        let Some(filling) = self.filling.take_if(|filling| filling.is_over()) else {
            return Ok(());
        };
        let filled = match filling.end() {
            Err(Error::Full { .. }) => false,
            ended => ended.map(|()| true)?,
        };
        let free = SPARE_NAMES.into_iter().find(|spare| !self.spares.contains(spare));
        match free.filter(|_| filled) {
            Some(spare) => {
                self.folder.rename(FILLING, spare)?;
                self.spares.push(spare);
                Ok(())
            }
            None => {
                self.folder.remove(FILLING)?;
                self.folder.sync()
            }
        }
    }
}
