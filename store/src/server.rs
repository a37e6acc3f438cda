//! The store as a server: recovery, then its threads until it is stopped.

use std::fmt;
use std::fs::File;
use std::io::ErrorKind;
use std::net::TcpListener;
use std::os::fd::AsFd;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use ::io::{Folder, JournalWriter, Syncing};
use kv::Store;
use node::{Face, Front, FrontOptions, Tally};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use smr::Durability;

use crate::checkpoint::Checkpointer;
use crate::log::Logs;
use crate::manifest::{Generation, Manifest};
use crate::query::{Common, Inbox, Query};
use crate::recovery::{Recovered, recover};
use crate::shift::{self, Shifts};
use crate::writer::{Setting, Writer, begin};
use crate::{Error, Report, lobby, parallel};

/// How a store is to be run.
#[derive(Clone, Debug)]
pub struct Options {
    /// The data directory; made if missing. Durability `memory` has none.
    pub directory: PathBuf,
    /// Where clients come in, `host:port`: the entrances of the face, from 0 on.
    pub entrances: Vec<String>,
    /// Query threads, at least 1.
    pub threads: usize,
    /// What an answer means: executed (`memory`: never on disk; `lazy`: on disk a moment later), or
    /// on disk (`sync`).
    pub durability: Durability,
    /// The most client connections.
    pub max_clients: usize,
    /// A connection whose unsent answers exceed this many bytes is closed.
    pub output_bytes: usize,
    /// The longest command, in bytes.
    pub longest_command: usize,
    /// When a command is given up that waits for the disk.
    pub patience: Duration,
    /// How long a change waits at most before it is written.
    pub force_every: Duration,
    /// A checkpoint is made when the logs have grown by so many bytes,
    pub checkpoint_bytes: u64,
    /// or after so long.
    pub checkpoint_every: Duration,
    /// Bytes of disk space that a log takes at a time.
    pub log_step: u64,
    /// [`Syncing::On`], except to plant a bug.
    pub syncing: Syncing,
}

impl Options {
    /// A store in `directory` with clients at `clients`, as many query threads as processors,
    /// forced every 100 ms: what a change waits for and what its write takes is to stay below the
    /// 200 ms of [Mao] 3.2.
    pub fn new(directory: PathBuf, clients: String, durability: Durability) -> Options {
        Options {
            directory,
            entrances: vec![clients],
            threads: parallel::processors(),
            durability,
            max_clients: 10_000,
            output_bytes: 64 << 20,
            longest_command: 32 << 20,
            patience: Duration::from_secs(10),
            force_every: Duration::from_millis(100),
            checkpoint_bytes: 512 << 20,
            checkpoint_every: Duration::from_secs(300),
            log_step: 16 << 20,
            syncing: Syncing::On,
        }
    }
}

/// What a store tells its operator.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// What it has found at its start.
    Recovered(Report),
    /// A checkpoint is on disk.
    Checkpoint {
        /// Its number, from 1.
        number: u64,
        /// Its size.
        bytes: u64,
        /// How long it took.
        took: Duration,
    },
    /// There was no space for one. It is tried again.
    CheckpointFailed(String),
    /// The logs cannot grow: commands that need space are refused.
    DiskFull(String),
    /// There is space again.
    DiskFree,
    /// It stops in good order.
    Stopping,
}

impl fmt::Display for Event {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Event::Recovered(report) => {
                let Report { entries, loading, changes, dropped, replaying, torn } = report;
                let (loading, replaying) = (loading.as_millis(), replaying.as_millis());
                write!(
                    f,
                    "recovered {entries} entries from the checkpoint in {loading} ms and {changes} \
                     changes from the logs in {replaying} ms; {dropped} records above the cut-off \
                     were dropped"
                )?;
                let mut torn = torn.iter();
                torn.try_for_each(|path| {
                    write!(f, "; {} ends in a write that was not completed", path.display())
                })
            }
            Event::Checkpoint { number, bytes, took } => {
                write!(f, "checkpoint {number}: {bytes} bytes in {} ms", took.as_millis())
            }
            Event::CheckpointFailed(why) => write!(f, "no checkpoint: {why}"),
            Event::DiskFull(what) => write!(f, "disk full: {what}"),
            Event::DiskFree => f.write_str("the disk has space again"),
            Event::Stopping => f.write_str("stops"),
        }
    }
}

/// A store that listens.
pub struct Server {
    options: Options,
    listeners: Vec<TcpListener>,
    /// None of durability `memory`.
    folder: Option<(Folder, File)>,
}

impl fmt::Debug for Server {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Server").field("options", &self.options).finish_non_exhaustive()
    }
}

/// The data directory of this life.
struct Disk {
    folder: Folder,
    manifest: Manifest,
    journals: Vec<JournalWriter>,
    _lock: File,
}

impl Server {
    /// Listens, and takes the directory.
    ///
    /// # Errors
    /// What is wrong with the directory or an address, and what to do about it.
    pub fn open(options: Options) -> Result<Server, Error> {
        let listen = |address: &String| {
            let listener = TcpListener::bind(address);
            let ready = listener.and_then(|l| l.set_nonblocking(true).map(|()| l));
            ready.map_err(|e| Error::os("listen on", address, e))
        };
        let listeners = options.entrances.iter().map(listen).collect::<Result<Vec<_>, _>>()?;
        let mut folder = None;
        if options.durability != Durability::Memory {
            let opened = Folder::create(&options.directory, options.syncing)?;
            let lock = opened.lock()?;
            folder = Some((opened, lock));
        }
        Ok(Server { options, listeners, folder })
    }

    /// Where clients come in, with the ports that were chosen for port 0.
    pub fn addresses(&self) -> Vec<std::net::SocketAddr> {
        self.listeners.iter().filter_map(|listener| listener.local_addr().ok()).collect()
    }

    /// Recovers what the directory holds, and serves until `stop` is set; then everything is on
    /// disk. `face` makes the face of each query thread; `events` is told what an operator should
    /// know. A face that is asked meanwhile sees [`node::Status::loading`].
    ///
    /// # Errors
    /// What is wrong with the directory, or has ended it before.
    pub fn run<F>(
        self,
        stop: &AtomicBool,
        face: impl Fn(usize) -> F,
        events: impl Fn(&Event) + Sync,
    ) -> Result<(), Error>
    where
        F: Face<Service = Store, Session: Send> + Send,
    {
        let Server { options, listeners, folder } = self;
        let inboxes: Vec<Inbox> = (0..options.threads).map(|_| Inbox::default()).collect();
        let fronts = open_fronts(&options, &inboxes, face)?;
        let (options, inboxes, events) = (&options, &inboxes[..], &events);
        std::thread::scope(|scope| {
            let _bell = Bell(stop);
            let accepting = scope.spawn(|| {
                let _bell = Bell(stop);
                accept(&listeners, inboxes, stop)
            });
            let Some((folder, lock)) = folder else {
                let shared = kv::Shared::new(kv::Limits::default(), 0);
                let logs = Logs::new(shared, options.threads, 0);
                let durability = options.durability;
                serve(&Common { logs: &logs, inboxes, durability, stop }, fronts)?;
                return accepting.join().unwrap_or(Err(Error::Panicked));
            };
            let (recovered, fronts) =
                meanwhile(fronts, inboxes, stop, || recover_in(folder, lock, options))?;
            let (logs, disk, report) = recovered;
            events(&Event::Recovered(report));
            let durability = options.durability;
            let common = Common { logs: &logs, inboxes, durability, stop };
            let served = serve_logged(options, &common, disk, events, fronts);
            served.and(accepting.join().unwrap_or(Err(Error::Panicked)))
        })?;
        events(&Event::Stopping);
        Ok(())
    }
}

/// The clients' side of every query thread. Connections wait in the inboxes.
fn open_fronts<F: Face<Service = Store>>(
    options: &Options,
    inboxes: &[Inbox],
    face: impl Fn(usize) -> F,
) -> Result<Vec<Front<F>>, Error> {
    let tally = Tally::new(options.threads);
    let open = |(thread, inbox): (usize, &Inbox)| {
        let bounds = FrontOptions {
            thread,
            durability: options.durability,
            max_clients: options.max_clients.div_ceil(options.threads),
            output_bytes: options.output_bytes,
            longest_body: options.longest_command + (1 << 20),
            patience: options.patience.as_micros() as u64,
        };
        let clients = options.entrances[0].clone();
        let mut status = node::alone(options.durability, smr::Incarnation(1), clients);
        status.loading = true;
        let front = Front::open(face(thread), status, tally.clone(), bounds);
        let front = front.map_err(|e| Error::os("set up", "an event loop", e))?;
        *inbox.waker.lock().expect("nobody panics with it") = Some(front.waker());
        Ok(front)
    };
    inboxes.iter().enumerate().map(open).collect()
}

/// Does `work` while clients are answered that it is going on.
fn meanwhile<F, T>(
    mut fronts: Vec<Front<F>>,
    inboxes: &[Inbox],
    stop: &AtomicBool,
    work: impl FnOnce() -> Result<T, Error>,
) -> Result<(T, Vec<Front<F>>), Error>
where
    F: Face<Service = Store, Session: Send> + Send,
{
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let answering = scope.spawn(|| {
            let answered = lobby::answer(&mut fronts, inboxes, stop, &over);
            answered.map(|()| fronts)
        });
        let done = {
            let _bell = Bell(&over);
            work()
        };
        inboxes.iter().for_each(Inbox::ring);
        let fronts = answering.join().unwrap_or(Err(Error::Panicked));
        Ok((done?, fronts?))
    })
}

/// Recovers the store, and begins this life's logs.
fn recover_in(
    folder: Folder,
    lock: File,
    options: &Options,
) -> Result<(Logs, Disk, Report), Error> {
    let seed = node::clock::now().unix_ms << 20 | u64::from(std::process::id()) & 0xf_ffff;
    let Recovered { shared, manifest, report } = recover(&folder, parallel::processors(), seed)?;
    let (manifest, journals) = begin_generation(&folder, manifest, &shared, options)?;
    let logs = Logs::new(shared.clone(), options.threads, shared.clock());
    Ok((logs, Disk { folder, manifest, journals, _lock: lock }, report))
}

/// Serves with logs and checkpoints.
fn serve_logged<F>(
    options: &Options,
    common: &Common<'_>,
    disk: Disk,
    events: &(dyn Fn(&Event) + Sync),
    fronts: Vec<Front<F>>,
) -> Result<(), Error>
where
    F: Face<Service = Store, Session: Send> + Send,
{
    let Disk { folder, manifest, journals, _lock } = disk;
    let (logs, stop) = (common.logs, common.stop);
    let (folder, manifest, step) = (&folder, &manifest, options.log_step);
    let setting = Setting { logs, folder, manifest, step, events };
    let generation = manifest.generations.last().expect("the present one").number;
    let checkpointer = Checkpointer {
        logs,
        folder,
        manifest: manifest.clone(),
        threads: parallel::processors(),
        bytes: options.checkpoint_bytes,
        every: options.checkpoint_every,
        events,
    };
    let served = std::thread::scope(|scope| {
        for (index, journal) in journals.into_iter().enumerate() {
            let writer = Writer::new(setting, generation, index, journal);
            let every = options.force_every;
            scope.spawn(move || {
                let _bell = Bell(stop);
                writer.run(every);
            });
        }
        scope.spawn(|| {
            let _bell = Bell(stop);
            checkpointer.run();
        });
        let served = serve(common, fronts);
        logs.stop();
        served
    });
    logs.take_failure().map_or(served, Err)
}

/// Makes the logs of this life and has the manifest name them: from here on the cut-offs of former
/// lives are on disk.
fn begin_generation(
    folder: &Folder,
    mut manifest: Manifest,
    shared: &Arc<kv::Shared>,
    options: &Options,
) -> Result<(Manifest, Vec<JournalWriter>), Error> {
    let number = manifest.generations.last().map_or(0, |last| last.number) + 1;
    let start = shared.clock();
    // Logs of a life that ended before the manifest named them.
    manifest.sweep(folder)?;
    let journals = (0..options.threads)
        .map(|thread| begin(folder, &manifest, (number, thread, 1), start, options.log_step))
        .collect::<Result<Vec<_>, _>>()?;
    manifest.generations.push(Generation {
        number,
        start,
        cut: 0,
        first: vec![1; options.threads],
    });
    manifest.store(folder)?;
    Ok((manifest, journals))
}

/// Ends the server when its thread ends, by a panic, too: without one of them it is not whole.
struct Bell<'a>(&'a AtomicBool);

impl Drop for Bell<'_> {
    fn drop(&mut self) {
        // Relaxed: the flag stands for itself.
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Runs the query threads.
fn serve<F>(common: &Common<'_>, fronts: Vec<Front<F>>) -> Result<(), Error>
where
    F: Face<Service = Store, Session: Send> + Send,
{
    let doors = fronts.iter().map(|front| front.as_fd().try_clone_to_owned());
    let doors = doors.collect::<Result<Vec<_>, _>>();
    let doors = doors.map_err(|e| Error::os("set up", "an event loop", e))?;
    let queries = fronts.into_iter().enumerate();
    let queries = queries.map(|(thread, front)| Mutex::new(Query::open(common, thread, front)));
    let queries: Vec<_> = queries.collect();
    let shifts = Shifts::new(queries.len());
    std::thread::scope(|scope| {
        let (queries, shifts) = ((&queries[..], &doors[..]), &shifts);
        let run = |thread| {
            scope.spawn(move || {
                let _bell = Bell(common.stop);
                shift::run(thread, queries, shifts, common)
            })
        };
        let threads: Vec<_> = (0..queries.0.len()).map(run).collect();
        threads.into_iter().try_for_each(|thread| thread.join().unwrap_or(Err(Error::Panicked)))
    })
}

/// Gives every connection to the thread that has the fewest, until the server ends.
fn accept(listeners: &[TcpListener], inboxes: &[Inbox], stop: &AtomicBool) -> Result<(), Error> {
    let os = |e| Error::os("wait for", "connections", e);
    let pause = Timespec { tv_sec: 0, tv_nsec: 50_000_000 };
    let mut rest: Option<Instant> = None;
    while !stop.load(Ordering::Relaxed) {
        let mut ready: Vec<_> =
            listeners.iter().map(|listener| PollFd::new(listener, PollFlags::IN)).collect();
        match poll(&mut ready, Some(&pause)) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(os(error.into())),
        }
        for (entrance, listener) in listeners.iter().enumerate() {
            match listener.accept() {
                Ok((stream, from)) => {
                    let count = |inbox: &&Inbox| inbox.connections.load(Ordering::Relaxed);
                    let inbox = inboxes.iter().min_by_key(count).expect("a thread");
                    let mut streams = inbox.streams.lock().expect("nobody panics with it");
                    streams.push((stream, from, entrance));
                    inbox.connections.fetch_add(1, Ordering::Relaxed);
                    drop(streams);
                    inbox.ring();
                }
                Err(error) => match error.kind() {
                    ErrorKind::WouldBlock
                    | ErrorKind::Interrupted
                    | ErrorKind::ConnectionAborted => {}
                    // Without a file descriptor for it a connection stays where it is, and the
                    // listener ready: it is left alone for a while.
                    _ => rest = Some(Instant::now()),
                },
            }
        }
        if rest.take().is_some() {
            std::thread::sleep(Duration::from_millis(100));
        }
    }
    Ok(())
}
