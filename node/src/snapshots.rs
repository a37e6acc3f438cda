//! The checkpoints' thread: writes the one that is being made, reads pieces for replicas that fetch
//! it, keeps the pieces that are fetched, and reads the fetched one back for the executor.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, Sender, SyncSender, channel, sync_channel};
use std::thread::JoinHandle;

use ::io::{CheckpointWriter, Directory, Error};
use smr::{CheckpointChunk, ReplicaId, Viewstamp};

use crate::poll::Waker;

/// Chunks that wait to be written, in bytes, beyond which no more are made.
const AHEAD_BYTES: usize = 4 << 20;
/// Bytes of a piece that is read for a peer.
const PIECE_BYTES: usize = 256 << 10;
/// Results that wait for the loop; the thread waits when there are more.
const RESULTS: usize = 64;

enum Job {
    Begin(Viewstamp),
    Chunk(Vec<u8>),
    Finish,
    Read { to: ReplicaId, position: Option<Viewstamp>, offset: u64 },
    Save(CheckpointChunk),
    Install(Viewstamp),
    MarkRecovered,
}

/// What the thread has done.
pub(crate) enum Done {
    /// The checkpoint is on disk, in so many bytes.
    Written { position: Viewstamp, bytes: u64 },
    /// A piece was read, or could not be.
    Piece { to: ReplicaId, chunk: Option<CheckpointChunk> },
    /// The next chunk of the checkpoint that is being installed, from zero.
    Restore { number: u64, chunk: Vec<u8> },
    /// The fetched checkpoint is in place, and all its chunks were handed over; or it was damaged.
    Installed(Option<Viewstamp>),
    /// There is no space for a checkpoint; it is given up.
    Full(String),
    /// There is no space for the checkpoint that is being fetched; installing it will fail.
    NoRoomToSave(String),
    /// The disk failed.
    Failed(Error),
}

/// The checkpoints' thread.
pub(crate) struct Snapshots {
    jobs: Option<Sender<Job>>,
    results: Option<Receiver<Done>>,
    ahead: Arc<AtomicUsize>,
    thread: Option<JoinHandle<()>>,
}

impl Snapshots {
    pub fn start(directory: Directory, waker: Waker) -> io::Result<Snapshots> {
        let (jobs, todo) = channel();
        let (done, results) = sync_channel(RESULTS);
        let ahead = Arc::new(AtomicUsize::new(0));
        let worker = Worker { directory, done, waker, ahead: Arc::clone(&ahead), writing: None };
        let run = move || worker.run(&todo);
        let thread = std::thread::Builder::new().name("checkpoint".to_owned()).spawn(run)?;
        Ok(Snapshots { jobs: Some(jobs), results: Some(results), ahead, thread: Some(thread) })
    }

    fn push(&self, job: Job) {
        if let Some(jobs) = &self.jobs {
            // The thread ends early only after it has reported a failure.
            let _ = jobs.send(job);
        }
    }

    pub fn begin(&self, position: Viewstamp) {
        self.push(Job::Begin(position));
    }

    pub fn chunk(&self, chunk: Vec<u8>) {
        // Relaxed: a count for throttling only.
        self.ahead.fetch_add(chunk.len(), Ordering::Relaxed);
        self.push(Job::Chunk(chunk));
    }

    pub fn finish(&self) {
        self.push(Job::Finish);
    }

    pub fn read(&self, to: ReplicaId, position: Option<Viewstamp>, offset: u64) {
        self.push(Job::Read { to, position, offset });
    }

    pub fn save(&self, chunk: CheckpointChunk) {
        self.push(Job::Save(chunk));
    }

    pub fn install(&self, position: Viewstamp) {
        self.push(Job::Install(position));
    }

    /// What the disk had lost is there again, and stored.
    pub fn mark_recovered(&self) {
        self.push(Job::MarkRecovered);
    }

    /// Whether more chunks may be made now. If not, the loop is woken when they may.
    pub fn has_room(&self) -> bool {
        self.ahead.load(Ordering::Relaxed) < AHEAD_BYTES
    }

    pub fn next(&self) -> Option<Done> {
        self.results.as_ref()?.try_recv().ok()
    }
}

impl Drop for Snapshots {
    fn drop(&mut self) {
        self.jobs = None;
        // A thread that waits for room among the results goes on, and ends.
        self.results = None;
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

struct Worker {
    directory: Directory,
    done: SyncSender<Done>,
    waker: Waker,
    ahead: Arc<AtomicUsize>,
    writing: Option<(Viewstamp, CheckpointWriter)>,
}

impl Worker {
    fn run(mut self, todo: &Receiver<Job>) {
        while let Ok(job) = todo.recv() {
            let over = match self.perform(job) {
                Ok(()) => false,
                Err(Error::Full { path, needed }) => {
                    self.writing = None;
                    let text = Error::Full { path, needed }.to_string();
                    self.report(Done::Full(text)).is_err()
                }
                Err(error) => {
                    let _ = self.report(Done::Failed(error));
                    true
                }
            };
            if over {
                return;
            }
        }
    }

    fn report(&self, done: Done) -> Result<(), Error> {
        // If nobody listens, the node is stopping: the queue of jobs ends next.
        if self.done.send(done).is_ok() {
            self.waker.wake();
        }
        Ok(())
    }

    fn perform(&mut self, job: Job) -> Result<(), Error> {
        match job {
            Job::Begin(position) => {
                self.writing = None;
                self.writing = Some((position, self.directory.create_checkpoint(position)?));
            }
            Job::Chunk(chunk) => {
                let before = self.ahead.fetch_sub(chunk.len(), Ordering::Relaxed);
                if before >= AHEAD_BYTES {
                    self.waker.wake();
                }
                if let Some((_, writing)) = &mut self.writing {
                    writing.chunk(&chunk)?;
                }
            }
            Job::Finish => {
                if let Some((position, writing)) = self.writing.take() {
                    let bytes = writing.finish()?;
                    self.report(Done::Written { position, bytes })?;
                }
            }
            Job::Read { to, position, offset } => {
                let chunk = self.directory.read_range(position, offset, PIECE_BYTES)?;
                self.report(Done::Piece { to, chunk })?;
            }
            // What is missing shows when the whole is to be installed.
            Job::Save(chunk) => match self.directory.save_chunk(&chunk) {
                Err(Error::OutOfOrder) => {}
                Err(error @ Error::Full { .. }) => {
                    self.report(Done::NoRoomToSave(error.to_string()))?;
                }
                saved => saved?,
            },
            Job::Install(position) => {
                self.writing = None;
                self.install(position)?;
            }
            // Without space the next start recovers again, which is safe.
            Job::MarkRecovered => match self.directory.mark_recovered() {
                Err(Error::Full { .. }) => {}
                marked => marked?,
            },
        }
        Ok(())
    }

    fn install(&self, position: Viewstamp) -> Result<(), Error> {
        match self.directory.install_incoming(position) {
            Ok(()) => {}
            Err(Error::Damaged { .. } | Error::Version { .. } | Error::OutOfOrder) => {
                return self.report(Done::Installed(None));
            }
            Err(error) => return Err(error),
        }
        if let Some(mut reader) = self.directory.read_checkpoint()? {
            let mut number = 0;
            while let Some(chunk) = reader.next_chunk()? {
                self.report(Done::Restore { number, chunk })?;
                number += 1;
            }
        }
        self.report(Done::Installed(Some(position)))
    }
}
