//! The log's thread: takes what the protocol wants stored, writes all of it, forces it to the disk
//! once, and reports. What comes meanwhile is the next such lot. A checkpoint never stands before
//! it: that has a thread of its own.

use std::collections::VecDeque;
use std::io;
use std::path::PathBuf;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use ::io::{Error, LogWriter};
use smr::{StoreBatch, StoreNumber};

use crate::poll::Waker;

/// The space on the disk is looked at this often.
const LOOK: Duration = Duration::from_millis(200);
/// About how many bytes are accepted from clients and not written yet, at most.
const UNDER_WAY: u64 = 16 << 20;
/// Without work for this long the log is proved whole.
const IDLE: Duration = Duration::from_millis(200);
/// How long to wait for space before the next attempt.
const FULL_PAUSE: Duration = Duration::from_millis(100);

/// Watches the space on the disk, so that commands that need more of it are refused while there is
/// still some for those that free it: the log is an order, and nothing passes an entry that does
/// not fit.
pub(crate) struct Space {
    directory: PathBuf,
    segment_bytes: u64,
    looked: Instant,
    /// Bytes written since then.
    written: u64,
}

impl Space {
    pub fn new(directory: PathBuf, segment_bytes: u64) -> Space {
        Space { directory, segment_bytes, looked: Instant::now() - LOOK, written: 0 }
    }

    fn is_due(&self) -> bool {
        self.written >= self.segment_bytes / 4 || self.looked.elapsed() >= LOOK
    }

    /// Says how much space there should be, if there is less: for the next checkpoint, which the
    /// log leaves free, for two more segments, and for what is under way.
    fn look(&mut self) -> Option<String> {
        self.looked = Instant::now();
        self.written = 0;
        let disk = rustix::fs::statvfs(&self.directory).ok()?;
        let free = disk.f_bavail * disk.f_frsize;
        let entries = std::fs::read_dir(&self.directory).ok()?.flatten();
        let checkpoints = entries.filter(|entry| {
            entry.file_name().to_str().is_some_and(|name| name.starts_with("checkpoint"))
        });
        let sizes = checkpoints.filter_map(|entry| Some(entry.metadata().ok()?.len()));
        let checkpoint = sizes.max().unwrap_or(0);
        let needed = checkpoint + checkpoint / 4 + 2 * self.segment_bytes + UNDER_WAY;
        (free < needed).then(|| {
            format!(
                "{free} bytes are free at {}, {needed} should be: commands that need space are \
                 refused",
                self.directory.display()
            )
        })
    }
}

/// A slower disk than there is, for measurements.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Emulation {
    /// Every forced write of the log takes this much longer.
    pub latency: Duration,
    /// Forced writes take until the end of this time,
    pub stall: Duration,
    /// which begins anew this often; never if it is zero.
    pub every: Duration,
}

impl Emulation {
    /// Sleeps as long as the emulated disk takes beyond the real one. `running` is how long the log
    /// has been open.
    fn delay(&self, running: Duration) {
        let mut pause = self.latency;
        if !self.every.is_zero() {
            let phase = running.as_nanos() % self.every.as_nanos();
            pause += self.stall.saturating_sub(Duration::from_nanos(phase as u64));
        }
        if !pause.is_zero() {
            std::thread::sleep(pause);
        }
    }
}

#[derive(Default)]
struct Shared {
    queue: VecDeque<StoreBatch>,
    /// The thread waits for a first batch.
    idle: bool,
    /// Somebody waits for what is queued.
    hurry: bool,
    closing: bool,
    stored: StoreNumber,
    /// What was stored. Its owner frees it: a processor that did so for another would fetch every
    /// entry's line from it, and have it fetched back.
    written: VecDeque<StoreBatch>,
    /// Nothing can be written.
    full: Option<String>,
    /// Something can be written yet, but not for long.
    low: Option<String>,
    failed: Option<Error>,
    batches: u64,
    syncs: u64,
}

/// How far the disk is.
#[derive(Debug)]
pub(crate) struct Progress {
    pub stored: StoreNumber,
    /// Why nothing more should be written at the moment, if so.
    pub full: Option<String>,
    pub batches: u64,
    pub syncs: u64,
}

/// The log's thread.
pub(crate) struct Disk {
    shared: Arc<(Mutex<Shared>, Condvar)>,
    paced: bool,
    thread: Option<JoinHandle<()>>,
}

impl Disk {
    /// Starts the thread. `space` is `None` for a log that does not grow. The disk is forced at
    /// most once in `pace`, unless somebody is in a hurry.
    pub fn start(
        log: LogWriter,
        space: Option<Space>,
        emulation: Emulation,
        pace: Duration,
        waker: Waker,
    ) -> io::Result<Disk> {
        let shared = Arc::new((Mutex::new(Shared::default()), Condvar::new()));
        let theirs = Arc::clone(&shared);
        let log = Slowed { log, emulation, opened: Instant::now() };
        let run = move || run(log, space, pace, &theirs, &waker);
        let thread = std::thread::Builder::new().name("log".to_owned()).spawn(run)?;
        Ok(Disk { shared, paced: !pace.is_zero(), thread: Some(thread) })
    }

    pub fn store(&self, batch: StoreBatch) {
        let mut state = lock(&self.shared.0);
        state.queue.push_back(batch);
        // A thread that gathers is woken by its clock.
        if state.idle || !self.paced {
            state.idle = false;
            drop(state);
            self.shared.1.notify_one();
        }
    }

    /// Has what is queued written without delay. What is being written already needs no hurry, and
    /// what comes later has not asked for it.
    pub fn hurry(&self) {
        let mut state = lock(&self.shared.0);
        if self.paced && !state.hurry && !state.queue.is_empty() {
            state.hurry = true;
            drop(state);
            self.shared.1.notify_one();
        }
    }

    /// How far the thread has come.
    ///
    /// # Errors
    /// What ended it.
    pub fn progress(&self) -> Result<Progress, Error> {
        let mut shared = lock(&self.shared.0);
        if let Some(error) = shared.failed.take() {
            return Err(error);
        }
        let Shared { stored, batches, syncs, .. } = *shared;
        let full = shared.full.clone().or_else(|| shared.low.clone());
        let written = std::mem::take(&mut shared.written);
        drop(shared);
        drop(written);
        Ok(Progress { stored, full, batches, syncs })
    }

    /// Lets the thread finish what is queued, and ends it.
    ///
    /// # Errors
    /// If not all of it could be written.
    pub fn close(mut self) -> Result<(), Error> {
        self.end();
        lock(&self.shared.0).failed.take().map_or(Ok(()), Err)
    }

    fn end(&mut self) {
        lock(&self.shared.0).closing = true;
        self.shared.1.notify_one();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        self.end();
    }
}

/// A panic of the other side leaves nothing half done: every change is one assignment or push.
fn lock(shared: &Mutex<Shared>) -> MutexGuard<'_, Shared> {
    shared.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The log on the disk that is emulated.
struct Slowed {
    log: LogWriter,
    emulation: Emulation,
    opened: Instant,
}

fn run(
    mut log: Slowed,
    mut space: Option<Space>,
    pace: Duration,
    shared: &(Mutex<Shared>, Condvar),
    waker: &Waker,
) {
    let mut batches = VecDeque::new();
    let mut next_at = Instant::now();
    loop {
        if let Some(space) = &mut space
            && space.is_due()
        {
            let low = space.look();
            let mut state = lock(&shared.0);
            let changed = low.is_some() != state.low.is_some();
            state.low = low;
            drop(state);
            if changed {
                waker.wake();
            }
        }
        let done = match next(&mut log.log, &mut batches, next_at, shared) {
            Ok(true) => {
                next_at = Instant::now() + pace;
                if let Some(space) = &mut space {
                    let entries = batches.iter().flat_map(|batch| &batch.append);
                    space.written += entries.map(|entry| entry.size() as u64).sum::<u64>();
                }
                write(&mut log, &mut batches, shared, waker)
            }
            Ok(false) => return,
            Err(error) => Err(error),
        };
        if let Err(error) = done {
            lock(&shared.0).failed = Some(error);
            return waker.wake();
        }
    }
}

/// Waits a while for batches, and proves the log whole when there are none; gathers more of them
/// until `due`. `false` at the end.
fn next(
    log: &mut LogWriter,
    batches: &mut VecDeque<StoreBatch>,
    due: Instant,
    shared: &(Mutex<Shared>, Condvar),
) -> Result<bool, Error> {
    let wait =
        |state, time| shared.1.wait_timeout(state, time).unwrap_or_else(PoisonError::into_inner).0;
    let mut state = lock(&shared.0);
    if state.queue.is_empty() && !state.closing {
        state.idle = true;
        state = wait(state, IDLE);
        state.idle = false;
    }
    if state.queue.is_empty() {
        let closing = state.closing;
        drop(state);
        // Without anything new it does nothing.
        log.settle()?;
        return Ok(!closing);
    }
    while !state.hurry && !state.closing {
        let left = due.saturating_duration_since(Instant::now());
        if left.is_zero() {
            break;
        }
        state = wait(state, left);
    }
    state.hurry = false;
    std::mem::swap(batches, &mut state.queue);
    Ok(true)
}

/// Writes all batches; while the disk is full, waits and says so.
fn write(
    slowed: &mut Slowed,
    batches: &mut VecDeque<StoreBatch>,
    shared: &(Mutex<Shared>, Condvar),
    waker: &Waker,
) -> Result<(), Error> {
    let Slowed { log, emulation, opened } = slowed;
    while !batches.is_empty() {
        let mut written = 0;
        let mut full = None;
        for batch in &*batches {
            match log.append(batch) {
                Ok(()) => written += 1,
                Err(error @ Error::Full { .. }) => {
                    full = Some(error);
                    break;
                }
                Err(error) => return Err(error),
            }
        }
        if written > 0 {
            emulation.delay(opened.elapsed());
            let stored = log.sync()?;
            let mut state = lock(&shared.0);
            // The loop waits for the lock: nothing is moved under it if that can be helped.
            if state.written.is_empty() && written == batches.len() {
                std::mem::swap(&mut state.written, batches);
            } else {
                state.written.extend(batches.drain(..written));
            }
            state.stored = stored;
            state.batches += written as u64;
            state.syncs += 1;
        }
        let mut state = lock(&shared.0);
        state.full = full.as_ref().map(ToString::to_string);
        let closing = state.closing;
        drop(state);
        waker.wake();
        if let Some(error) = full {
            if closing {
                return Err(error);
            }
            std::thread::sleep(FULL_PAUSE);
        }
    }
    Ok(())
}
