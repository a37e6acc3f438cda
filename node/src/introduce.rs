//! Introductions between processes that share memory, over Unix sockets in a directory that all
//! replicas of the group know. Who has the higher id dials; both say who they are as on the
//! replicas' port, then they exchange their memory. All of that may block and has threads of its
//! own.

use std::fs::DirBuilder;
use std::io::{self, Read, Write};
use std::os::unix::fs::DirBuilderExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;
use std::time::Duration;

use fabric::shm::{Acquaintance, Introduction};
use smr::ReplicaId;
use wire::{Greeting, Hello};

use crate::Error;
use crate::dial::Dialer;
use crate::event::Event;
use crate::hello::read_hello;
use crate::inbound::check;
use crate::poll::Waker;

/// How long the other side may take for its part.
const PATIENCE: Duration = Duration::from_secs(1);
/// Pauses before a process is dialed again: when it has ended, and when we did not come together.
const AFTER_END: Duration = Duration::from_millis(1);
const AFTER_REFUSAL: Duration = Duration::from_millis(500);

/// A process that was introduced, or why it was not.
type Met = Result<Acquaintance, String>;

/// Meets the other processes.
pub(crate) struct Introductions {
    dialers: Vec<Option<Dialer>>,
    met: Receiver<(ReplicaId, Met)>,
    /// The last refusals that were reported, so that each is reported once.
    refusals: Vec<Option<String>>,
    socket: PathBuf,
    listener: Arc<UnixListener>,
    thread: Option<JoinHandle<()>>,
}

/// Where a replica waits for those of higher ids.
fn socket(directory: &Path, id: ReplicaId) -> PathBuf {
    directory.join(format!("{}.socket", id.0))
}

/// Takes this replica's place in the directory, which is made if it is missing.
///
/// # Errors
/// If it cannot be used.
pub(crate) fn bind(directory: &Path, me: ReplicaId) -> Result<UnixListener, Error> {
    let failed = |source| Error::Memory { directory: directory.to_owned(), source };
    DirBuilder::new().recursive(true).mode(0o700).create(directory).map_err(failed)?;
    let path = socket(directory, me);
    // One that a former process has left behind: only one of an id runs, by its data's lock.
    match std::fs::remove_file(&path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(failed(error)),
        _ => {}
    }
    UnixListener::bind(&path).map_err(failed)
}

impl Introductions {
    /// Starts to meet the others.
    pub fn start(
        hello: Hello,
        directory: &Path,
        listener: UnixListener,
        introduction: Introduction,
        waker: Waker,
    ) -> io::Result<Introductions> {
        let (me, replicas) = (hello.identity.replica, hello.replicas);
        let (sender, met) = channel();
        let listener = Arc::new(listener);
        let mut dialers = Vec::new();
        for id in (0..me.0).map(ReplicaId) {
            let (hello, introduction) = (hello.clone(), introduction.clone());
            let path = socket(directory, id);
            let connect = move || dial(&path, id, &hello, &introduction);
            let dialer = Dialer::start(id, connect, sender.clone(), waker.clone())?;
            dialer.dial(Duration::ZERO);
            dialers.push(Some(dialer));
        }
        dialers.resize_with(usize::from(replicas), || None);
        let theirs = Arc::clone(&listener);
        let run = move || accept(&theirs, &hello, &introduction, &sender, &waker);
        let thread = std::thread::Builder::new().name("introduce".to_owned()).spawn(run)?;
        let refusals = vec![None; usize::from(replicas)];
        let (socket, thread) = (socket(directory, me), Some(thread));
        Ok(Introductions { dialers, met, refusals, socket, listener, thread })
    }

    pub fn next(&mut self) -> Option<(ReplicaId, Met)> {
        self.met.try_recv().ok()
    }

    /// A process has ended: meets the next one of its id.
    pub fn succeed(&self, id: ReplicaId) {
        self.dial(id, AFTER_END);
    }

    /// An introduction came to nothing in the end: the other side does not agree, or has gone.
    pub fn again(&self, id: ReplicaId) {
        self.dial(id, AFTER_REFUSAL);
    }

    fn dial(&self, id: ReplicaId, pause: Duration) {
        if let Some(dialer) = &self.dialers[id.index()] {
            dialer.dial(pause);
        }
    }

    /// An introduction came to nothing.
    pub fn refuse(&mut self, id: ReplicaId, why: String, reports: &mut Vec<Event>) {
        if self.refusals[id.index()].as_ref() != Some(&why) {
            let text = format!("replica {} does not share memory: {why}", id.0);
            reports.push(Event::PeerRefused(text));
            self.refusals[id.index()] = Some(why);
        }
        self.again(id);
    }

    pub fn welcome(&mut self, id: ReplicaId) {
        self.refusals[id.index()] = None;
    }
}

impl Drop for Introductions {
    fn drop(&mut self) {
        self.dialers.clear();
        // Whoever waits for a connection is told that none comes.
        let _ = rustix::net::shutdown(&*self.listener, rustix::net::Shutdown::Both);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
        let _ = std::fs::remove_file(&self.socket);
    }
}

/// Connects to a process of a lower id. Nobody there is no refusal.
fn dial(path: &Path, id: ReplicaId, own: &Hello, introduction: &Introduction) -> io::Result<Met> {
    let mut stream = UnixStream::connect(path)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    let mut greeting = Vec::new();
    Greeting::Replica(own.clone()).encode(&mut greeting);
    stream.write_all(&greeting)?;
    let other = read_hello(&mut stream)?;
    if other.identity.replica != id {
        return Ok(Err(format!("replica {} is in its place", other.identity.replica.0)));
    }
    if let Err(why) = check(own, &other) {
        return Ok(Err(why));
    }
    // Its memory follows only now, so that it is not taken for a part of its hello.
    stream.write_all(&[1])?;
    Ok(introduction.exchange(stream).map_err(|error| error.to_string()))
}

/// Meets those of higher ids, until the listener is shut down.
fn accept(
    listener: &UnixListener,
    own: &Hello,
    introduction: &Introduction,
    met: &Sender<(ReplicaId, Met)>,
    waker: &Waker,
) {
    loop {
        let stream = match listener.accept() {
            Ok((stream, _)) => stream,
            Err(error) if error.kind() == io::ErrorKind::InvalidInput => return,
            // Without file descriptors, for one.
            Err(_) => {
                std::thread::sleep(AFTER_REFUSAL);
                continue;
            }
        };
        // One that does not say who it is, is nobody.
        let Ok(Some(introduced)) = receive(stream, own, introduction) else { continue };
        if met.send(introduced).is_err() {
            return;
        }
        waker.wake();
    }
}

fn receive(
    mut stream: UnixStream,
    own: &Hello,
    introduction: &Introduction,
) -> io::Result<Option<(ReplicaId, Met)>> {
    stream.set_read_timeout(Some(PATIENCE))?;
    let other = read_hello(&mut stream)?;
    let id = other.identity.replica;
    let mut greeting = Vec::new();
    Greeting::Replica(own.clone()).encode(&mut greeting);
    stream.write_all(&greeting)?;
    if id.0 <= own.identity.replica.0 || id.0 >= own.replicas {
        return Ok(None);
    }
    if let Err(why) = check(own, &other) {
        return Ok(Some((id, Err(why))));
    }
    stream.read_exact(&mut [0])?;
    let met = introduction.exchange(stream).map_err(|error| error.to_string());
    Ok(Some((id, met)))
}
