//! Checkpoints, written by several threads while commands run ([Mao] 3.2).
//!
//! First every log begins another segment; then the trees are walked, each entry written as it is
//! when it is met. What changes meanwhile is in the new segments, so that recovery needs those and
//! the checkpoint. It counts, and the old segments go, once everything is on disk that had happened
//! when its last entry was written: so a cut-off is never before it.
//!
//! The walk is shared out as it goes: a thread that has nothing to do takes the upper half of what
//! another one has left, halved by the keys' numbers.

use std::sync::atomic::Ordering;
use std::sync::{Condvar, Mutex};
use std::time::{Duration, Instant};

use ::io::{Folder, JournalWriter};
use kv::redo::{Images, Tree};

use crate::log::Logs;
use crate::manifest::{Checkpoint, Manifest, part_name};
use crate::server::Event;
use crate::{Error, parallel};

/// Bytes of a part's records.
const RECORD: usize = 1 << 20;
/// A part is synced in steps of so many bytes, so that the logs' own syncs never wait long.
const SYNC_STEP: u64 = 8 << 20;
/// Space that a part takes at a time.
const STEP: u64 = 16 << 20;
/// How often it is looked whether a checkpoint is due.
const PAUSE: Duration = Duration::from_millis(50);

/// A range of a tree that is still to be written.
#[derive(Debug)]
struct Range {
    tree: Tree,
    from: Vec<u8>,
    to: Option<Vec<u8>>,
}

/// What is still to be written, by whom.
struct Queue {
    ranges: Vec<Range>,
    /// Threads that have none.
    idle: usize,
    failed: bool,
}

struct Walk<'a> {
    images: Images,
    queue: Mutex<Queue>,
    /// A range was put into the queue, or all is done.
    changed: Condvar,
    threads: usize,
    logs: &'a Logs,
}

impl Walk<'_> {
    /// The next range; `None` when there is nothing left anywhere.
    fn next(&self) -> Option<Range> {
        let mut queue = self.queue.lock().expect("nobody panics with it");
        queue.idle += 1;
        loop {
            if queue.failed {
                return None;
            }
            if let Some(range) = queue.ranges.pop() {
                queue.idle -= 1;
                return Some(range);
            }
            if queue.idle == self.threads {
                self.changed.notify_all();
                return None;
            }
            queue = self.changed.wait(queue).expect("nobody panics with it");
        }
    }

    /// Gives the upper half of a range away if somebody waits for it.
    fn offer(&self, range: &mut Range) {
        let wanted = {
            let queue = self.queue.lock().expect("nobody panics with it");
            queue.idle > queue.ranges.len()
        };
        if !wanted {
            return;
        }
        let middle = self.images.middle(range.tree, &range.from, range.to.as_deref());
        let Some(middle) = middle else { return };
        let to = range.to.replace(middle.clone());
        let mut queue = self.queue.lock().expect("nobody panics with it");
        queue.ranges.push(Range { tree: range.tree, from: middle, to });
        self.changed.notify_one();
    }

    /// Writes one part, out of whatever ranges come its way.
    fn write(&self, part: &mut JournalWriter) -> Result<(), Error> {
        let (mut out, mut synced) = (Vec::with_capacity(2 * RECORD), 0);
        while let Some(mut range) = self.next() {
            loop {
                self.offer(&mut range);
                let (from, to) = (&range.from[..], range.to.as_deref());
                let next = self.images.write(range.tree, from, to, RECORD, &mut out);
                if out.len() >= RECORD {
                    part.append(&out)?;
                    out.clear();
                }
                if part.bytes() >= synced + SYNC_STEP {
                    part.sync()?;
                    synced = part.bytes();
                }
                if self.logs.stopping() || self.logs.failed.load(Ordering::Acquire) {
                    return Err(stopped());
                }
                match next {
                    Some(next) => range.from = next,
                    None => break,
                }
            }
        }
        if !out.is_empty() {
            part.append(&out)?;
        }
        Ok(())
    }
}

/// The server ends before the checkpoint.
fn stopped() -> Error {
    let source = std::io::ErrorKind::Interrupted.into();
    Error::os("write", "a checkpoint while the server stops", source)
}

/// Makes checkpoints.
pub(crate) struct Checkpointer<'a> {
    pub logs: &'a Logs,
    pub folder: &'a Folder,
    pub manifest: Manifest,
    pub threads: usize,
    /// One is due when the logs have grown by so many bytes,
    pub bytes: u64,
    /// or after so long, if they have grown at all.
    pub every: Duration,
    pub events: &'a (dyn Fn(&Event) + Sync),
}

impl Checkpointer<'_> {
    /// Makes checkpoints until the server ends.
    pub fn run(mut self) {
        // Behind the queries: a nicer thread than they are. That it cannot be is no error.
        let _ = rustix::process::setpriority_process(None, 10);
        let mut last = Instant::now();
        loop {
            std::thread::sleep(PAUSE);
            if self.logs.stopping() || self.logs.failed.load(Ordering::Acquire) {
                return;
            }
            let written = self.logs.written.load(Ordering::Relaxed);
            let due = written >= self.bytes || written > 0 && last.elapsed() >= self.every;
            // A first write or two is a mark or two.
            if !due || written < 1 << 16 {
                continue;
            }
            last = Instant::now();
            self.logs.written.store(0, Ordering::Relaxed);
            match self.checkpoint() {
                Ok(()) => {}
                Err(_) if self.logs.stopping() => return,
                Err(Error::Disk(error @ ::io::Error::Full { .. })) => {
                    (self.events)(&Event::CheckpointFailed(error.to_string()));
                }
                Err(error) => return self.logs.fail(error),
            }
        }
    }

    /// Makes one.
    pub fn checkpoint(&mut self) -> Result<(), Error> {
        let started = Instant::now();
        let number = self.manifest.checkpoint.as_ref().map_or(0, |last| last.number) + 1;
        let Some(first) = self.rotate() else { return Err(stopped()) };
        let begin = self.logs.shared.clock();
        let flush_at = self.logs.shared.flush_at();
        let parts = self.write(number);
        let parts = match parts {
            Ok(parts) => parts,
            Err(error) => {
                // What was written is not named by the manifest.
                self.manifest.sweep(self.folder)?;
                return Err(error);
            }
        };
        let end = self.logs.shared.clock();
        if !self.wait_for_disk(end) {
            return Err(stopped());
        }
        let bytes = parts.iter().map(|&(_, bytes)| bytes).sum();
        let checkpoint = Checkpoint {
            number,
            begin,
            end,
            flush_at,
            parts: parts.iter().map(|&(records, _)| records).collect(),
        };
        let own = self.manifest.generations.last_mut().expect("the present one");
        own.first = first;
        let own = own.clone();
        self.manifest.generations = vec![own];
        self.manifest.checkpoint = Some(checkpoint);
        self.manifest.store(self.folder)?;
        self.manifest.sweep(self.folder)?;
        (self.events)(&Event::Checkpoint { number, bytes, took: started.elapsed() });
        Ok(())
    }

    /// Has every log begin another segment. Returns which, or nothing if the server ends.
    fn rotate(&self) -> Option<Vec<u64>> {
        let count = self.logs.logs.len();
        let before: Vec<u64> = (0..count).map(|log| self.logs.segment(log)).collect();
        self.logs.rotate();
        loop {
            let now: Vec<u64> = (0..count).map(|log| self.logs.segment(log)).collect();
            if now.iter().zip(&before).all(|(now, before)| now > before) {
                return Some(now);
            }
            if self.logs.stopping() || self.logs.failed.load(Ordering::Acquire) {
                return None;
            }
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// Writes the parts; returns of each how many records and bytes it has.
    fn write(&self, number: u64) -> Result<Vec<(u64, u64)>, Error> {
        let whole = |tree| Range { tree, from: Vec::new(), to: None };
        let ranges = vec![whole(Tree::Fields), whole(Tree::Keys)];
        let walk = Walk {
            images: self.logs.shared.images(),
            queue: Mutex::new(Queue { ranges, idle: 0, failed: false }),
            changed: Condvar::new(),
            threads: self.threads,
            logs: self.logs,
        };
        let parts: Vec<usize> = (0..self.threads).collect();
        parallel::each(self.threads, &parts, |&part| {
            let _ = rustix::process::setpriority_process(None, 10);
            let name = part_name(number, part);
            let written =
                JournalWriter::create(self.folder, &name, self.manifest.seed(&name), STEP)
                    .map_err(Error::from)
                    .and_then(|mut part| {
                        walk.write(&mut part)?;
                        Ok((part.records(), part.finish()?))
                    });
            if written.is_err() {
                walk.queue.lock().expect("nobody panics with it").failed = true;
                walk.changed.notify_all();
            }
            written
        })
    }

    /// Returns whether everything up to a timestamp is on disk; not if the server ends.
    fn wait_for_disk(&self, through: u64) -> bool {
        self.logs.force(through);
        while self.logs.durable() < through {
            if self.logs.stopping() || self.logs.failed.load(Ordering::Acquire) {
                return false;
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        true
    }
}
