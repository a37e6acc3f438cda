//! Appends batches to the log. Batches are buffered until [`LogWriter::sync`], which brings all of
//! them to the disk with one write and one fdatasync (group commit).
//!
//! Invariant: a segment is synced before the next one is begun, so a record in a later segment
//! proves that all earlier segments were on disk.

use std::collections::VecDeque;
use std::fs::File;
use std::path::PathBuf;

use smr::{Log, OpNumber, StoreBatch, StoreNumber, View};

use crate::directory::Directory;
use crate::record::{self, Kind, Place, SegmentStart, Stamp};
use crate::replay::Replayed;
use crate::segments::Segments;
use crate::tail::Tail;
use crate::{Error, Syncing};

/// What is buffered beyond this many bytes is handed to the operating system before the sync.
const BUFFER: usize = 8 << 20;
/// Entries of a salvaged log go into records of about this many bytes.
const SALVAGE_RECORD: usize = 1 << 20;

/// The segment that is written.
#[derive(Debug)]
struct Current {
    place: Place,
    file: File,
    path: PathBuf,
    /// Bytes of the file.
    length: u64,
    /// Where in it the tail begins.
    offset: u64,
    /// The highest operation that its batches mention.
    highest: OpNumber,
    /// The sequence of its first record.
    first: u64,
}

/// The writer of the log. There is one for each open directory.
#[derive(Debug)]
pub struct LogWriter {
    directory: Directory,
    segments: Segments,
    syncing: Syncing,
    /// Finished segments, oldest first, each with the highest operation that it mentions.
    finished: VecDeque<(u64, OpNumber)>,
    current: Current,
    /// The records from `current.offset` on.
    tail: Tail,
    /// The sequence of the last record.
    sequence: u64,
    /// The highest sequence on disk.
    synced: u64,
    /// The sequence of the last mark.
    marked: u64,
    view: View,
    last_op: OpNumber,
    trim: OpNumber,
    appended: StoreNumber,
    /// Whether finished segments may have become unnecessary.
    reclaim: bool,
    poisoned: bool,
}

impl LogWriter {
    /// Continues the log that was replayed. `log` is what the protocol starts from; `superseded`
    /// says that it is not what was replayed.
    pub(crate) fn resume(
        directory: Directory,
        mut segments: Segments,
        replayed: &Replayed,
        log: &Log,
        superseded: bool,
    ) -> Result<LogWriter, Error> {
        // The newest first, so that a crash leaves no hole.
        for &id in replayed.dropped.iter().rev() {
            segments.remove(id)?;
        }
        let last = replayed.segments.last().map_or(0, |&(id, _)| id);
        if last > 0 {
            // What a process wrote before it was killed may be in the page cache only; from here
            // on it counts as stored.
            segments.cut(last, replayed.end as u64)?;
        }
        let finished = replayed.segments.iter().copied().collect();
        let mut writer = LogWriter::begin(directory, segments, last + 1, finished, replayed, log)?;
        if superseded {
            writer.append(&StoreBatch { reset: Some(log.base()), ..empty_batch() })?;
        }
        writer.reclaim = true;
        writer.sync()?;
        Ok(writer)
    }

    /// Writes `log` anew and drops the files of a damaged one, up to the segment `newest`.
    pub(crate) fn salvage(
        directory: Directory,
        mut segments: Segments,
        newest: u64,
        replayed: &Replayed,
        log: &Log,
    ) -> Result<LogWriter, Error> {
        // Where segments are missing, spares may hold records of numbers that are used again.
        segments.drop_spares()?;
        let damaged = segments.ids()?;
        let newest = damaged.last().map_or(newest, |&id| newest.max(id));
        let finished = VecDeque::new();
        let mut writer =
            LogWriter::begin(directory, segments, newest + 1, finished, replayed, log)?;
        writer.append(&StoreBatch { reset: Some(log.base()), ..empty_batch() })?;
        let (mut batch, mut bytes) = (empty_batch(), 0);
        for entry in log.above(log.base().op) {
            bytes += entry.size();
            batch.append.push(entry.clone());
            if bytes >= SALVAGE_RECORD {
                writer.append(&batch)?;
                batch.append.clear();
                bytes = 0;
            }
        }
        writer.append(&batch)?;
        writer.sync()?;
        for id in damaged {
            writer.segments.remove(id)?;
        }
        Ok(writer)
    }

    fn begin(
        directory: Directory,
        mut segments: Segments,
        id: u64,
        finished: VecDeque<(u64, OpNumber)>,
        replayed: &Replayed,
        log: &Log,
    ) -> Result<LogWriter, Error> {
        let syncing = segments.folder.syncing();
        let (file, length) = segments.create(id, 0, true, 0)?;
        let current = Current::new(&segments, id, file, length, replayed.sequence + 1);
        let mut writer = LogWriter {
            directory,
            segments,
            syncing,
            finished,
            current,
            tail: Tail::new(2 * BUFFER),
            sequence: replayed.sequence,
            synced: replayed.sequence,
            marked: 0,
            view: replayed.view,
            last_op: log.last().op,
            trim: log.base().op,
            appended: StoreNumber(0),
            reclaim: false,
            poisoned: false,
        };
        writer.push_segment_start();
        Ok(writer)
    }

    /// Adds a batch to those that the next [`LogWriter::sync`] stores.
    ///
    /// # Errors
    /// [`Error::Full`] if the batch has entries, needs a new segment and the disk has no space for
    /// one beside that for the next checkpoint: the batch was not added, those before it are on
    /// disk, and the same call may be made again. A checkpoint frees space even before its trim
    /// arrives. A batch without entries fails so only when the space set aside for such batches is
    /// used up too. [`Error::Os`] and [`Error::Poisoned`] are final.
    ///
    /// # Panics
    /// If the batch's entries do not follow the log's last one, or its view is lower.
    pub fn append(&mut self, batch: &StoreBatch) -> Result<(), Error> {
        self.check()?;
        let last_op = self.validate(batch);
        let start = record::begin(self.tail.buffer());
        record::encode_batch(self.tail.buffer(), batch);
        let start = self.make_room(start, batch.append.is_empty())?;
        self.seal(start, Kind::Batch);
        self.last_op = last_op;
        self.view = batch.view.unwrap_or(self.view);
        self.appended = batch.number;
        let mentioned = batch.append.last().map(|entry| entry.viewstamp.op);
        let mentioned = mentioned.max(batch.reset.map(|base| base.op)).unwrap_or_default();
        self.current.highest = self.current.highest.max(mentioned);
        let trim = batch.trim.max(batch.reset.map(|base| base.op)).unwrap_or_default();
        if trim > self.trim {
            self.trim = trim;
            self.reclaim = true;
        }
        if self.tail.len() > BUFFER {
            self.write_out()?;
        }
        Ok(())
    }

    /// Stores everything that was appended. Returns the number of the last appended batch: it and
    /// all before it are on disk. Space that a trim has freed is reclaimed.
    ///
    /// # Errors
    /// [`Error::Os`] or [`Error::Poisoned`], both final: what the disk holds is unknown.
    pub fn sync(&mut self) -> Result<StoreNumber, Error> {
        self.check()?;
        if self.synced < self.sequence {
            self.write_out()?;
            let synced = self.syncing.data(&self.current.file, &self.current.path);
            self.guard(synced)?;
            self.synced = self.sequence;
        }
        if std::mem::take(&mut self.reclaim) {
            let reclaimed = self.reclaim();
            self.guard(reclaimed)?;
        }
        Ok(self.appended)
    }

    /// Stores everything and then the proof that it was stored, with which damage to the log's last
    /// records is told from a torn write. For an orderly stop, and for when there is time; without
    /// anything new it does nothing.
    ///
    /// # Errors
    /// As [`LogWriter::sync`].
    pub fn settle(&mut self) -> Result<StoreNumber, Error> {
        let appended = self.sync()?;
        let room = self.current.length - self.current.offset - self.tail.len() as u64;
        // In a segment that is full to the brim, the next segment's first record will do.
        if self.marked < self.sequence && room >= record::HEADER as u64 {
            let start = record::begin(self.tail.buffer());
            self.seal(start, Kind::Mark);
            self.marked = self.sequence;
            self.sync()?;
        }
        Ok(appended)
    }

    /// How many bytes were appended and not synced yet.
    pub fn unsynced_bytes(&self) -> usize {
        self.tail.unwritten()
    }

    pub(crate) fn current_segment(&self) -> u64 {
        self.current.place.segment
    }

    fn check(&self) -> Result<(), Error> {
        if self.poisoned {
            return Err(Error::Poisoned(self.segments.folder.path().to_owned()));
        }
        Ok(())
    }

    /// Stops everything after an error, except a full disk.
    fn guard<T>(&mut self, result: Result<T, Error>) -> Result<T, Error> {
        self.poisoned |= matches!(&result, Err(error) if !matches!(error, Error::Full { .. }));
        result
    }

    /// The log's last operation after this batch.
    fn validate(&self, batch: &StoreBatch) -> OpNumber {
        let mut last = batch.reset.map_or(self.last_op, |base| base.op);
        last = last.min(batch.truncate.unwrap_or(last));
        for entry in &batch.append {
            assert_eq!(entry.viewstamp.op, last.next(), "an entry must follow the last one");
            last = entry.viewstamp.op;
        }
        assert!(batch.view.is_none_or(|view| view >= self.view), "views only grow");
        last
    }

    fn seal(&mut self, start: usize, kind: Kind) {
        self.sequence += 1;
        let stamp = Stamp { kind, sequence: self.sequence, synced: self.synced };
        record::seal(self.tail.buffer(), start, self.current.place, stamp);
    }

    /// Begins a new segment if the record at `start` does not fit into this one. Returns where in
    /// the buffer the record begins then.
    fn make_room(&mut self, start: usize, reserve: bool) -> Result<usize, Error> {
        let end = self.tail.len().next_multiple_of(8) as u64;
        if self.current.offset + end <= self.current.length {
            return Ok(start);
        }
        let record = self.tail.buffer().split_off(start);
        self.sync()?;
        let first = record::HEADER + record::SEGMENT_START;
        let bytes = (record.len() + first).next_multiple_of(8) + 8;
        let id = self.current.place.segment + 1;
        let created = self.create_segment(id, bytes as u64, reserve);
        let (file, length) = self.guard(created)?;
        let next = Current::new(&self.segments, id, file, length, self.sequence + 1);
        let previous = std::mem::replace(&mut self.current, next);
        self.finished.push_back((previous.place.segment, previous.highest));
        self.reclaim = true;
        self.tail.clear();
        self.push_segment_start();
        let start = self.tail.buffer().len();
        self.tail.buffer().extend_from_slice(&record);
        Ok(start)
    }

    fn create_segment(&mut self, id: u64, bytes: u64, reserve: bool) -> Result<(File, u64), Error> {
        let keep_free = self.directory.checkpoint_space();
        match self.segments.create(id, bytes, reserve, keep_free) {
            Err(Error::Full { .. }) => {}
            created => return created,
        }
        // The trim that would free space may stand behind the batch that needs it. A restart reads
        // nothing that the checkpoint covers, trimmed or not.
        self.trim = self.trim.max(self.directory.checkpoint().unwrap_or_default().op);
        self.reclaim()?;
        self.segments.create(id, bytes, reserve, keep_free)
    }

    fn push_segment_start(&mut self) {
        let start = record::begin(self.tail.buffer());
        let state = SegmentStart { view: self.view, last_op: self.last_op };
        record::encode_segment(self.tail.buffer(), state);
        self.seal(start, Kind::Segment);
    }

    fn write_out(&mut self) -> Result<(), Error> {
        let Current { file, path, offset, .. } = &self.current;
        let written = self.tail.write(file, *offset).map_err(|e| Error::os("write", path, e));
        self.current.offset = self.guard(written)?;
        Ok(())
    }

    /// Retires the segments, oldest first, that hold nothing above the checkpoint on disk.
    fn reclaim(&mut self) -> Result<(), Error> {
        // The view must be in the current segment, on disk, before others that say it go.
        assert!(self.current.first <= self.synced, "called after a sync");
        let covered = self.trim.min(self.directory.checkpoint().unwrap_or_default().op);
        while self.finished.front().is_some_and(|&(_, highest)| highest <= covered) {
            let (id, _) = self.finished.pop_front().expect("just seen");
            self.segments.retire(id, self.directory.checkpoint_space())?;
        }
        self.segments.refill(self.directory.checkpoint_space())
    }
}

impl Current {
    fn new(segments: &Segments, id: u64, file: File, length: u64, first: u64) -> Current {
        Current {
            place: Place { segment: id, seed: segments.seed(id) },
            file,
            path: segments.folder.path_of(&Segments::name(id)),
            length,
            offset: 0,
            highest: OpNumber(0),
            first,
        }
    }
}

fn empty_batch() -> StoreBatch {
    StoreBatch {
        number: StoreNumber(0),
        reset: None,
        truncate: None,
        append: Vec::new(),
        view: None,
        trim: None,
    }
}
