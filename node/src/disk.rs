//! The log's thread: takes what the protocol wants stored, writes all of it, forces it to the disk
//! once, and reports. A checkpoint never stands before it: that has a thread of its own.

use std::collections::VecDeque;
use std::io;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use ::io::{Error, LogWriter};
use smr::{StoreBatch, StoreNumber};

use crate::poll::Waker;

/// Without work for this long the log is proved whole.
const IDLE: Duration = Duration::from_millis(200);
/// How long to wait for space before the next attempt.
const FULL_PAUSE: Duration = Duration::from_millis(100);

#[derive(Default)]
struct Shared {
    queue: VecDeque<StoreBatch>,
    closing: bool,
    stored: StoreNumber,
    full: Option<String>,
    failed: Option<Error>,
    /// Nothing has come for a while.
    idle: bool,
    batches: u64,
    syncs: u64,
}

/// How far the disk is.
#[derive(Debug)]
pub(crate) struct Progress {
    pub stored: StoreNumber,
    /// Why nothing can be written at the moment, if so.
    pub full: Option<String>,
    pub batches: u64,
    pub syncs: u64,
}

/// The log's thread.
pub(crate) struct Disk {
    shared: Arc<(Mutex<Shared>, Condvar)>,
    thread: Option<JoinHandle<()>>,
}

impl Disk {
    pub fn start(log: LogWriter, waker: Waker) -> io::Result<Disk> {
        let shared = Arc::new((Mutex::new(Shared::default()), Condvar::new()));
        let theirs = Arc::clone(&shared);
        let run = move || run(log, &theirs, &waker);
        let thread = std::thread::Builder::new().name("log".to_owned()).spawn(run)?;
        Ok(Disk { shared, thread: Some(thread) })
    }

    pub fn store(&self, batch: StoreBatch) {
        lock(&self.shared.0).queue.push_back(batch);
        self.shared.1.notify_one();
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
        Ok(Progress { stored, full: shared.full.clone(), batches, syncs })
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

fn run(mut log: LogWriter, shared: &(Mutex<Shared>, Condvar), waker: &Waker) {
    let mut batches = VecDeque::new();
    loop {
        let done = match next(&mut log, &mut batches, shared) {
            Ok(true) => write(&mut log, &mut batches, shared, waker),
            Ok(false) => return,
            Err(error) => Err(error),
        };
        if let Err(error) = done {
            lock(&shared.0).failed = Some(error);
            return waker.wake();
        }
    }
}

/// Waits for batches, and proves the log whole when there are none for a while. `false` at the end.
fn next(
    log: &mut LogWriter,
    batches: &mut VecDeque<StoreBatch>,
    shared: &(Mutex<Shared>, Condvar),
) -> Result<bool, Error> {
    let mut state = lock(&shared.0);
    let mut settled = false;
    while state.queue.is_empty() {
        if state.closing || !settled && state.idle {
            let closing = state.closing;
            drop(state);
            log.settle()?;
            if closing {
                return Ok(false);
            }
            settled = true;
            state = lock(&shared.0);
            continue;
        }
        let waited = shared.1.wait_timeout(state, IDLE).unwrap_or_else(PoisonError::into_inner);
        state = waited.0;
        state.idle = waited.1.timed_out();
    }
    state.idle = false;
    std::mem::swap(batches, &mut state.queue);
    Ok(true)
}

/// Writes all batches; while the disk is full, waits and says so.
fn write(
    log: &mut LogWriter,
    batches: &mut VecDeque<StoreBatch>,
    shared: &(Mutex<Shared>, Condvar),
    waker: &Waker,
) -> Result<(), Error> {
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
            let stored = log.sync()?;
            batches.drain(..written);
            let mut state = lock(&shared.0);
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
