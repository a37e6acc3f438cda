//! Which threads run the queries ([Mao] 3.2 has a thread for each).
//!
//! As long as one thread can do the work of all, the first one does and the others sleep: it takes
//! what has come in for all of them in one turn and sleeps less often, and who sends it something
//! need not wake it. Where sleeps would be short it waits awake. When it is busy all the time, or
//! has been at one command for long, every thread runs its own query; unless that turns out to be
//! no help.
//!
//! Invariant: a query is run by whoever holds its lock, for one turn. Once the first thread has
//! ended, so does everybody who runs nothing.

use std::ops::Range;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard};
use std::time::Duration;

use kv::Store;
use node::Face;
use node::clock;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::time::{ClockId, clock_gettime};

use crate::query::{Common, LONGEST_SLEEP, Query};
use crate::{Error, parallel};

/// A wait that is likely to be no longer than this, in microseconds, is passed awake: to wake a
/// thread takes who has sent something some microseconds, which it would rather send in.
const SPIN: u64 = 50;
/// How often a thread looks how busy it is, in microseconds.
const WINDOW: u64 = 20_000;
/// A thread that waits for less than so many thousandths of [`FEWEST`] windows in a row may need
/// help.
const CROWDED: u64 = 50;
const FEWEST: u32 = 10;
/// Several threads that use no more than so many thousandths of one processor together do about
/// what one does: beside `redis-benchmark -P 16` on two processors two that used 1170 to 1210 did
/// 0.97 to 1.13 times the SETs of one, with 1.1 to 1.4 times its p99, since they wait for a
/// processor.
const NO_HELP: u64 = 1250;
/// Help that was no more than that in so many windows in a row was none. It is tried again after
/// twice as many crowded windows, up to [`MOST`], unless it was some for at least [`LASTING`] or
/// the first thread has waited for more than so many thousandths of a window since: what comes
/// after a lull may be another load.
const TRIAL: u32 = 3;
const LASTING: u32 = 50;
const MOST: u32 = 160;
const LULL: u64 = 500;
/// The others take over when the first has not ended a round for so long, in microseconds.
const STUCK: u64 = 10_000;
/// How long a thread that stops waits for what is under way, in microseconds.
const STOP_PATIENCE: u64 = 2_000_000;

/// Who runs what.
pub(crate) struct Shifts {
    /// The first thread runs all queries.
    together: AtomicBool,
    /// The first thread has ended.
    ended: AtomicBool,
    /// Held by whoever changes one of them or waits for a change.
    change: Mutex<()>,
    changed: Condvar,
    threads: Vec<Report>,
}

/// What a thread tells the others, in a cache line of its own. Figures: relaxed.
#[derive(Default)]
#[repr(align(64))]
struct Report {
    /// When the round began that it is in, in microseconds; 0 while it waits.
    since: AtomicU64,
    /// Thousandths of a processor that it uses.
    used: AtomicU64,
}

impl Report {
    fn is_stuck(&self, now: u64) -> bool {
        let since = self.since.load(Ordering::Relaxed);
        since > 0 && now > since + STUCK
    }
}

impl Shifts {
    pub fn new(threads: usize) -> Shifts {
        Shifts {
            together: AtomicBool::new(true),
            ended: AtomicBool::new(false),
            change: Mutex::default(),
            changed: Condvar::new(),
            threads: (0..threads).map(|_| Report::default()).collect(),
        }
    }

    // Relaxed, here and below: the flags stand for themselves, what they are about has locks.
    fn together(&self) -> bool {
        self.together.load(Ordering::Relaxed)
    }

    fn set(&self, flag: &AtomicBool, value: bool) {
        let _held = self.change.lock().expect("nobody panics with it");
        flag.store(value, Ordering::Relaxed);
        self.changed.notify_all();
    }

    /// Waits until a thread has queries to run: returns which, `None` once there is nothing more.
    fn next(&self, thread: usize) -> Option<Range<usize>> {
        if thread == 0 {
            return Some(0..if self.together() { self.threads.len() } else { 1 });
        }
        let mut held = self.change.lock().expect("nobody panics with it");
        while self.together() {
            if self.ended.load(Ordering::Relaxed) {
                return None;
            }
            if thread > 1 {
                held = self.changed.wait(held).expect("nobody panics with it");
                continue;
            }
            // Of those that sleep one keeps watch.
            let waited = self.changed.wait_timeout(held, Duration::from_micros(STUCK));
            held = waited.expect("nobody panics with it").0;
            if self.threads[0].is_stuck(clock::now().micros) {
                self.together.store(false, Ordering::Relaxed);
                self.changed.notify_all();
            }
        }
        Some(thread..thread + 1)
    }
}

/// Lets the others end when the first thread does, by a panic, too.
struct Ending<'a>(&'a Shifts);

impl Drop for Ending<'_> {
    fn drop(&mut self) {
        self.0.set(&self.0.ended, true);
    }
}

fn lock<T>(query: &Mutex<T>) -> Result<MutexGuard<'_, T>, Error> {
    query.lock().map_err(|_| Error::Panicked)
}

/// Runs queries on this thread until the server is to end.
pub(crate) fn run<F: Face<Service = Store>>(
    thread: usize,
    (queries, doors): (&[Mutex<Query<'_, F>>], &[OwnedFd]),
    shifts: &Shifts,
    common: &Common<'_>,
) -> Result<(), Error> {
    let _ending = (thread == 0).then(|| Ending(shifts));
    let mut gauge = Gauge::new();
    while let Some(mine) = shifts.next(thread) {
        let together = mine.len() == queries.len();
        gauge.begin();
        let shift = Shift {
            thread,
            shifts,
            common,
            // A thread without work holds no trees back.
            store: common.logs.shared.store(),
            queries: &queries[mine.clone()],
            doors: &doors[mine],
            together,
            gauge: &mut gauge,
            spin: if together && parallel::processors() > 1 { SPIN } else { 0 },
            hasty: false,
            pause: 0,
        };
        if shift.work()? {
            break;
        }
    }
    Ok(())
}

/// How busy a thread is.
struct Gauge {
    since: u64,
    used: u64,
    /// Microseconds that it has waited, and of those the ones awake.
    waited: u64,
    awake: u64,
    /// How many windows in a row the mode seemed wrong, and how many it has lasted.
    doubts: u32,
    windows: u32,
    /// How many crowded windows it takes to try whether others help.
    patience: u32,
    /// They are there because of that.
    trial: bool,
}

impl Gauge {
    fn new() -> Gauge {
        let (since, used, patience) = (clock::now().micros, used(), FEWEST);
        let trial = false;
        Gauge { since, used, waited: 0, awake: 0, doubts: 0, windows: 0, patience, trial }
    }

    /// A mode begins.
    fn begin(&mut self) {
        *self = Gauge { patience: self.patience, trial: self.trial, ..Gauge::new() };
    }

    /// Once in a while: the thousandths of a processor that it has used and of the time that it has
    /// waited.
    fn read(&mut self, now: u64) -> Option<(u64, u64)> {
        let window = now.saturating_sub(self.since);
        if window < WINDOW {
            return None;
        }
        let total = used();
        let busy = (total - self.used).saturating_sub(self.awake) * 1000 / window;
        let waited = self.waited * 1000 / window;
        (self.since, self.used, self.waited, self.awake) = (now, total, 0, 0);
        Some((busy, waited))
    }
}

/// Microseconds of processor time that this thread has used.
fn used() -> u64 {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    time.tv_sec as u64 * 1_000_000 + time.tv_nsec as u64 / 1000
}

/// What one thread runs until the mode changes.
struct Shift<'a, 'q, F: Face<Service = Store>> {
    thread: usize,
    shifts: &'a Shifts,
    common: &'a Common<'a>,
    store: Store,
    queries: &'a [Mutex<Query<'q, F>>],
    /// Readable while somebody waits to be served by one of them.
    doors: &'a [OwnedFd],
    /// They are all there are.
    together: bool,
    gauge: &'a mut Gauge,
    /// For how long it may wait awake, in microseconds.
    spin: u64,
    /// The last wait was short.
    hasty: bool,
    /// For how long, after the last round, nothing is due.
    pause: u64,
}

impl<F: Face<Service = Store>> Shift<'_, '_, F> {
    /// Returns whether the server has ended; otherwise the mode has changed.
    fn work(mut self) -> Result<bool, Error> {
        let mut end = None;
        loop {
            let now = self.turn()?;
            if self.common.logs.failed.load(Ordering::Acquire) {
                return Ok(true); // the writer says why
            }
            if self.common.stop.load(Ordering::Relaxed) {
                let end = *end.get_or_insert(now + STOP_PATIENCE);
                if now >= end || self.is_idle()? {
                    return Ok(true);
                }
            } else if let Some((used, waited)) = self.gauge.read(now) {
                self.shifts.threads[self.thread].used.store(used, Ordering::Relaxed);
                if self.thread == 0 {
                    self.judge(now, waited);
                }
            }
            if self.shifts.together() != self.together {
                return Ok(false);
            }
        }
    }

    fn is_idle(&self) -> Result<bool, Error> {
        let mut idle = true;
        for query in self.queries {
            idle &= lock(query)?.is_idle();
        }
        Ok(idle)
    }

    /// The first thread changes the mode if it has been wrong for a while.
    fn judge(&mut self, now: u64, waited: u64) {
        let (gauge, threads) = (&mut *self.gauge, &self.shifts.threads);
        let (wrong, most) = if self.together {
            (waited < CROWDED && threads.len() > 1, gauge.patience)
        } else {
            let all: u64 = threads.iter().map(|thread| thread.used.load(Ordering::Relaxed)).sum();
            // Not while the first would have to wait for another's command.
            let stuck = threads.iter().any(|thread| thread.is_stuck(now));
            (all <= NO_HELP && !stuck, if gauge.trial { TRIAL } else { FEWEST })
        };
        gauge.windows += 1;
        if self.together && waited > LULL {
            gauge.patience = FEWEST;
        }
        gauge.doubts = if wrong { gauge.doubts + 1 } else { 0 };
        if gauge.doubts < most {
            return;
        }
        if gauge.trial {
            let failed = gauge.windows < LASTING;
            gauge.patience = if failed { MOST.min(gauge.patience * 2) } else { FEWEST };
        }
        gauge.trial = self.together;
        self.shifts.set(&self.shifts.together, !self.together);
        self.common.inboxes.iter().skip(1).for_each(|inbox| inbox.ring());
    }

    /// Waits until there is something to do, and does it. Returns the time.
    fn turn(&mut self) -> Result<u64, Error> {
        let begun = clock::now().micros;
        if self.hasty {
            let (mut now, mut came) = (begun, self.round(begun, false)?);
            while !came && now < begun + self.spin {
                now = clock::now().micros;
                came = self.round(now, false)?;
            }
            self.gauge.waited += now - begun;
            self.gauge.awake += now - begun;
            if came {
                return Ok(now);
            }
        }
        let asleep = clock::now().micros;
        let timely = self.sleep()?;
        let now = clock::now().micros;
        self.gauge.waited += now - asleep;
        self.hasty = now < begun + SPIN;
        self.round(now, !timely)?;
        Ok(now)
    }

    /// A turn of every query that has something to do; of all of them if `due`. Returns whether any
    /// had.
    fn round(&mut self, now: u64, due: bool) -> Result<bool, Error> {
        let since = &self.shifts.threads[self.thread].since;
        since.store(now, Ordering::Relaxed);
        self.pause = LONGEST_SLEEP;
        let mut came = false;
        for query in self.queries {
            let mut query = lock(query)?;
            came |= query.turn(&mut self.store, due)?;
            self.pause = self.pause.min(query.pause());
        }
        since.store(0, Ordering::Relaxed);
        Ok(came)
    }

    /// Sleeps until there is something to do; returns whether there is, for all that is known.
    fn sleep(&self) -> Result<bool, Error> {
        let pause = Timespec { tv_sec: 0, tv_nsec: self.pause as i64 * 1000 };
        let doors = self.doors.iter().map(|door| PollFd::new(door, PollFlags::IN));
        let mut doors: Vec<_> = doors.collect();
        match poll(&mut doors, Some(&pause)) {
            Ok(ready) => Ok(ready > 0),
            Err(rustix::io::Errno::INTR) => Ok(false),
            Err(error) => Err(Error::os("wait for", "sockets", error.into())),
        }
    }
}
