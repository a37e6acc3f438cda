//! The log buffers of the query threads, and how far the logs are on disk.
//!
//! A log's journal holds chunks: mark u64, durable u64, then items: timestamp u64, length u32, a
//! record (`kv::redo`). The mark, 0 for none, is a timestamp: all items of this log up to it are in
//! this chunk or before it. The other number is how far all logs were known to be on disk when the
//! chunk was written: a log that does not reach it has lost its end.
//!
//! Invariant: an item gets its timestamp and its place in the buffer under the buffer's lock, and
//! a mark is taken under it, too; so no item that is not yet in the buffer has a lower timestamp.

use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::time::Duration;

use kv::Shared;
use node::Waker;

use crate::Error;

/// Bytes before a chunk's items.
pub(crate) const HEADER: usize = 16;
/// A chunk is full from this many bytes on.
const CHUNK: usize = 1 << 20;
/// A log that has so many bytes to write does not wait for its time.
const EARLY: usize = 4 << 20;
/// So many written chunks are kept to be filled again, unless one is longer than this: memory from
/// the system costs a page fault for every 4 KiB, and a chunk that grows is copied.
const SPARE: usize = 8;
const LONGEST_SPARE: usize = 4 << 20;
/// A query thread waits while its log has so many bytes to write.
const FULL: usize = 64 << 20;

/// Items that are not written yet.
#[derive(Debug, Default)]
pub(crate) struct Buffer {
    chunks: Vec<Vec<u8>>,
    bytes: usize,
    /// Empty ones.
    spare: Vec<Vec<u8>>,
    /// The timestamp up to which somebody waits for the disk.
    wanted: u64,
    /// Another segment is to be begun.
    rotate: bool,
    stop: bool,
}

impl Buffer {
    /// Adds a record, and gives it its timestamp.
    #[inline]
    pub fn push(&mut self, shared: &Shared, record: &[u8]) {
        let full = self.chunks.last().is_none_or(|chunk| chunk.len() >= CHUNK);
        if full {
            let mut chunk = self.spare.pop().unwrap_or_default();
            chunk.resize(HEADER, 0);
            self.chunks.push(chunk);
        }
        let chunk = self.chunks.last_mut().expect("just made");
        chunk.extend_from_slice(&shared.tick().to_le_bytes());
        let length = u32::try_from(record.len()).expect("a record is below 4 GiB");
        chunk.extend_from_slice(&length.to_le_bytes());
        chunk.extend_from_slice(record);
        self.bytes += 12 + record.len();
    }
}

/// What a writer has to do.
#[derive(Debug)]
pub(crate) struct Work {
    /// To be written, the last one with the mark.
    pub chunks: Vec<Vec<u8>>,
    pub mark: u64,
    /// How far the last chunk says that all logs are on disk.
    pub durable: u64,
    pub rotate: bool,
    pub stop: bool,
}

/// One log.
#[derive(Debug, Default)]
pub(crate) struct Log {
    buffer: Mutex<Buffer>,
    /// There is something to do for the writer.
    wake: Condvar,
    /// The writer has taken the buffer's bytes.
    drained: Condvar,
    /// Everything of this log up to here is on disk. Released by the writer after the sync,
    /// acquired by whoever tells of it.
    durable: AtomicU64,
    /// The segment that is written. Released by the writer when all before is on disk.
    segment: AtomicU64,
    /// Chunks written, and forced writes. Figures: relaxed.
    chunks: AtomicU64,
    syncs: AtomicU64,
}

/// A query thread that may wait for the disk.
#[derive(Debug)]
pub(crate) struct Sleeper {
    pub waker: Waker,
    pub waits: Arc<AtomicBool>,
}

/// All logs.
#[derive(Debug)]
pub(crate) struct Logs {
    pub shared: Arc<Shared>,
    pub logs: Vec<Log>,
    pub sleepers: Mutex<Vec<Sleeper>>,
    /// Bytes that were written since the last checkpoint began.
    pub written: AtomicU64,
    /// How many logs find the disk full. A figure: relaxed.
    pub full: AtomicUsize,
    /// Something has failed for good. Released with `failure`, acquired by the threads.
    pub failed: AtomicBool,
    failure: Mutex<Option<Error>>,
}

impl Logs {
    /// Logs of which everything up to `durable` is on disk.
    pub fn new(shared: Arc<Shared>, count: usize, durable: u64) -> Logs {
        let log = || Log {
            durable: AtomicU64::new(durable),
            segment: AtomicU64::new(1),
            ..Log::default()
        };
        Logs {
            shared,
            logs: (0..count).map(|_| log()).collect(),
            sleepers: Mutex::default(),
            written: AtomicU64::new(0),
            full: AtomicUsize::new(0),
            failed: AtomicBool::new(false),
            failure: Mutex::new(None),
        }
    }

    /// Everything up to here is on disk: the least of the logs' marks.
    pub fn durable(&self) -> u64 {
        let marks = self.logs.iter().map(|log| log.durable.load(Ordering::SeqCst));
        marks.min().unwrap_or(0)
    }

    pub fn segment(&self, log: usize) -> u64 {
        self.logs[log].segment.load(Ordering::Acquire)
    }

    fn buffer(&self, log: usize) -> MutexGuard<'_, Buffer> {
        self.logs[log].buffer.lock().expect("nobody panics with a buffer")
    }

    /// The buffer of a query thread.
    #[inline]
    pub fn open(&self, log: usize) -> MutexGuard<'_, Buffer> {
        self.buffer(log)
    }

    /// Waits until the log can take more. With a full disk that may be long: the face refuses what
    /// grows, and the rest comes to a halt here before memory does.
    pub fn wait_for_room(&self, log: usize) {
        let mut buffer = self.buffer(log);
        while buffer.bytes > FULL && !self.failed.load(Ordering::Acquire) && !buffer.stop {
            self.logs[log].wake.notify_all();
            let waited = self.logs[log].drained.wait_timeout(buffer, Duration::from_millis(50));
            buffer = waited.expect("nobody panics with a buffer").0;
        }
    }

    /// Asks for everything up to a timestamp to be on disk soon.
    pub fn force(&self, through: u64) {
        for index in 0..self.logs.len() {
            let mut buffer = self.buffer(index);
            if buffer.wanted < through {
                buffer.wanted = through;
                self.logs[index].wake.notify_all();
            }
        }
    }

    /// Has every log begin another segment. It has when [`Logs::segment`] has changed.
    pub fn rotate(&self) {
        for index in 0..self.logs.len() {
            self.buffer(index).rotate = true;
            self.logs[index].wake.notify_all();
        }
    }

    /// Has the writers store what there is, and end.
    pub fn stop(&self) {
        for index in 0..self.logs.len() {
            self.buffer(index).stop = true;
            self.logs[index].wake.notify_all();
        }
    }

    pub fn stopping(&self) -> bool {
        self.buffer(0).stop
    }

    /// Waits for work. `interval` after the last time at the latest what there is gets written, if
    /// anything has happened, in whatever thread; or if all logs are on disk further than this one
    /// says, which is `told`.
    pub fn next_work(&self, index: usize, interval: Duration, told: u64) -> Work {
        let log = &self.logs[index];
        let marked = log.durable.load(Ordering::Relaxed); // the writer's own
        let start = std::time::Instant::now();
        let mut buffer = self.buffer(index);
        loop {
            let news = self.shared.clock() > marked || self.durable() > told;
            let due = start.elapsed() >= interval && news;
            let asked = buffer.wanted > marked || buffer.bytes > EARLY;
            if due || asked || buffer.rotate || buffer.stop {
                break;
            }
            let left = interval.saturating_sub(start.elapsed()).max(Duration::from_millis(1));
            // With nothing to do it looks as often as it would write.
            let left = if start.elapsed() >= interval { interval } else { left };
            buffer = log.wake.wait_timeout(buffer, left).expect("nobody panics with a buffer").0;
        }
        // Under the lock: see the invariant above.
        let mark = self.shared.clock();
        let mut chunks = std::mem::take(&mut buffer.chunks);
        buffer.bytes = 0;
        let (rotate, stop) = (std::mem::take(&mut buffer.rotate), buffer.stop);
        drop(buffer);
        log.drained.notify_all();
        if chunks.is_empty() {
            chunks.push(vec![0; HEADER]);
        }
        let durable = self.durable();
        let last = chunks.last_mut().expect("just made");
        last[..8].copy_from_slice(&mark.to_le_bytes());
        last[8..HEADER].copy_from_slice(&durable.to_le_bytes());
        Work { chunks, mark, durable, rotate, stop }
    }

    /// Takes chunks back that the writer has done with.
    pub fn reuse(&self, index: usize, mut chunks: Vec<Vec<u8>>) {
        chunks.retain(|chunk| (CHUNK..=LONGEST_SPARE).contains(&chunk.capacity()));
        chunks.iter_mut().for_each(Vec::clear);
        let spare = &mut self.buffer(index).spare;
        let room = SPARE - spare.len();
        spare.extend(chunks.into_iter().take(room));
    }

    /// How many chunks of a log were written, with how many forced writes.
    pub fn forced(&self, log: usize) -> (u64, u64) {
        let Log { chunks, syncs, .. } = &self.logs[log];
        (chunks.load(Ordering::Relaxed), syncs.load(Ordering::Relaxed))
    }

    /// Everything of a log up to `mark` is on disk, in so many chunks and bytes.
    pub fn stored(&self, index: usize, mark: u64, (chunks, bytes): (usize, u64)) {
        self.written.fetch_add(bytes, Ordering::Relaxed);
        self.logs[index].chunks.fetch_add(chunks as u64, Ordering::Relaxed);
        self.logs[index].syncs.fetch_add(1, Ordering::Relaxed);
        // SeqCst with `waits`: a thread that says that it waits and then looks at the marks, and
        // this one, cannot both miss each other.
        self.logs[index].durable.store(mark, Ordering::SeqCst);
        for sleeper in self.sleepers.lock().expect("nobody panics with it").iter() {
            if sleeper.waits.load(Ordering::SeqCst) {
                sleeper.waker.wake();
            }
        }
    }

    pub fn rotated(&self, index: usize, segment: u64) {
        self.logs[index].segment.store(segment, Ordering::Release);
    }

    /// Ends everything: nothing is acknowledged from here on.
    pub fn fail(&self, error: Error) {
        self.failure.lock().expect("nobody panics with it").get_or_insert(error);
        self.failed.store(true, Ordering::Release);
        for sleeper in self.sleepers.lock().expect("nobody panics with it").iter() {
            sleeper.waker.wake();
        }
    }

    /// Why it has ended, if it has.
    pub fn take_failure(&self) -> Option<Error> {
        self.failure.lock().expect("nobody panics with it").take()
    }
}

/// An item of a chunk.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Item<'a> {
    pub timestamp: u64,
    pub record: &'a [u8],
}

/// A chunk's mark and durable point; `None` if it is too short for them.
pub(crate) fn header(chunk: &[u8]) -> Option<(u64, u64)> {
    let (mark, rest) = chunk.split_first_chunk::<8>()?;
    let durable = rest.first_chunk::<8>()?;
    Some((u64::from_le_bytes(*mark), u64::from_le_bytes(*durable)))
}

/// A chunk's items. It ends with `Err` at the first that makes no sense.
pub(crate) fn items(chunk: &[u8]) -> impl Iterator<Item = Result<Item<'_>, ()>> {
    let mut rest = chunk.get(HEADER..).unwrap_or_default();
    std::iter::from_fn(move || {
        if rest.is_empty() {
            return None;
        }
        let item = take_item(&mut rest);
        if item.is_none() {
            rest = &[];
        }
        Some(item.ok_or(()))
    })
}

fn take_item<'a>(rest: &mut &'a [u8]) -> Option<Item<'a>> {
    let (timestamp, after) = rest.split_first_chunk::<8>()?;
    let (length, after) = after.split_first_chunk::<4>()?;
    let (record, after) = after.split_at_checked(u32::from_le_bytes(*length) as usize)?;
    *rest = after;
    Some(Item { timestamp: u64::from_le_bytes(*timestamp), record })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mark_covers_what_was_pushed_and_an_idle_log_makes_marks() {
        let shared = Shared::new(kv::Limits::default(), 10);
        let logs = Logs::new(shared.clone(), 2, 10);
        logs.open(0).push(&shared, b"one");
        logs.open(0).push(&shared, b"two");
        for log in 0..2 {
            let work = logs.next_work(log, Duration::ZERO, 10);
            assert_eq!((work.chunks.len(), work.mark), (1, 12), "log {log}");
            assert_eq!(header(&work.chunks[0]), Some((12, 10)));
            let found: Vec<_> = items(&work.chunks[0]).map(|item| item.unwrap()).collect();
            let found: Vec<_> = found.iter().map(|item| (item.timestamp, item.record)).collect();
            let expected: &[(u64, &[u8])] = &[(11, b"one"), (12, b"two")];
            assert_eq!(found, expected[..if log == 0 { 2 } else { 0 }]);
            assert_eq!(logs.durable(), 10, "not before all of them have");
            logs.stored(log, work.mark, (1, 0));
        }
        assert_eq!(logs.durable(), 12);
        assert!(items(&[0; HEADER + 11]).next().unwrap().is_err());
    }

    #[test]
    fn a_chunk_that_is_filled_again_holds_nothing_of_before() {
        let shared = Shared::new(kv::Limits::default(), 0);
        let logs = Logs::new(shared.clone(), 1, 0);
        logs.open(0).push(&shared, &vec![7; CHUNK]);
        let work = logs.next_work(0, Duration::ZERO, 0);
        let capacity = work.chunks[0].capacity();
        logs.stored(0, work.mark, (1, 0));
        logs.reuse(0, work.chunks);
        logs.open(0).push(&shared, b"new");
        let work = logs.next_work(0, Duration::ZERO, 0);
        assert_eq!(work.chunks[0].capacity(), capacity, "the same one");
        assert_eq!(header(&work.chunks[0]), Some((2, 1)));
        let found: Vec<_> = items(&work.chunks[0]).map(|item| item.unwrap()).collect();
        assert_eq!(found.len(), 1);
        assert_eq!((found[0].timestamp, found[0].record), (2, &b"new"[..]));
    }
}
