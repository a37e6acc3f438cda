//! Connects to a peer, again and again, on a thread of its own: looking up a name, connecting and
//! being introduced may block.

use std::io;
use std::net::{TcpStream, ToSocketAddrs};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::Duration;

use rustix::io::Result as OsResult;
use rustix::net::sockopt;
use smr::ReplicaId;

use crate::poll::Waker;

/// A connection whose other end is silent for about this long is given up, be it that what was sent
/// is not acknowledged or that nothing is sent and probes are not answered.
const SILENCE: Duration = Duration::from_secs(2);
const PROBE_AFTER: Duration = Duration::from_secs(1);
const CONNECT: Duration = Duration::from_millis(500);
const SHORTEST_PAUSE: Duration = Duration::from_millis(1);
const LONGEST_PAUSE: Duration = Duration::from_millis(50);

/// A thread that makes connections to one peer when it is asked to.
pub(crate) struct Dialer {
    /// Each is a wish for a connection, after this pause. Dropped to end the thread.
    wishes: Option<Sender<Duration>>,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Dialer {
    /// `connect` is tried until it succeeds; what it gives goes to `dialed`.
    pub fn start<T: Send + 'static>(
        replica: ReplicaId,
        connect: impl Fn() -> io::Result<T> + Send + 'static,
        dialed: Sender<(ReplicaId, T)>,
        waker: Waker,
    ) -> io::Result<Dialer> {
        let (wishes, wished) = channel();
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = Arc::clone(&stop);
        let run = move || run(replica, connect, &wished, &stopped, &dialed, &waker);
        let thread = std::thread::Builder::new().name(format!("dial-{}", replica.0)).spawn(run)?;
        Ok(Dialer { wishes: Some(wishes), stop, thread: Some(thread) })
    }

    /// Asks for a connection after `pause`.
    pub fn dial(&self, pause: Duration) {
        if let Some(wishes) = &self.wishes {
            // The thread only ends after this dialer.
            let _ = wishes.send(pause);
        }
    }
}

impl Drop for Dialer {
    fn drop(&mut self) {
        // Relaxed: the flag stands for itself.
        self.stop.store(true, Ordering::Relaxed);
        self.wishes = None;
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn run<T>(
    replica: ReplicaId,
    connect: impl Fn() -> io::Result<T>,
    wished: &Receiver<Duration>,
    stop: &AtomicBool,
    dialed: &Sender<(ReplicaId, T)>,
    waker: &Waker,
) {
    while let Ok(first_pause) = wished.recv() {
        let mut pause = first_pause;
        loop {
            // A pause that ends when the dialer goes; further wishes are the same wish.
            match wished.recv_timeout(pause) {
                Err(RecvTimeoutError::Disconnected) => return,
                Ok(_) | Err(RecvTimeoutError::Timeout) => {}
            }
            if stop.load(Ordering::Relaxed) {
                return;
            }
            if let Ok(connection) = connect() {
                if dialed.send((replica, connection)).is_err() {
                    return;
                }
                waker.wake();
                break;
            }
            pause = (pause * 2).clamp(SHORTEST_PAUSE, LONGEST_PAUSE);
        }
    }
}

/// Connects to the first of the name's addresses that answers.
pub(crate) fn connect(address: &str) -> io::Result<TcpStream> {
    let mut last = io::Error::new(io::ErrorKind::NotFound, "the name has no address");
    for target in address.to_socket_addrs()? {
        match TcpStream::connect_timeout(&target, CONNECT) {
            Ok(stream) => {
                stream.set_nodelay(true)?;
                notice_death(&stream)?;
                return Ok(stream);
            }
            Err(error) => last = error,
        }
    }
    Err(last)
}

/// Makes the kernel end a connection whose other end has gone without a word, as when a machine
/// loses its power: the retries of TCP alone would keep it for a quarter of an hour.
pub(crate) fn notice_death(stream: &TcpStream) -> io::Result<()> {
    let set = || -> OsResult<()> {
        sockopt::set_tcp_user_timeout(stream, SILENCE.as_millis() as u32)?;
        sockopt::set_tcp_keepidle(stream, PROBE_AFTER)?;
        sockopt::set_tcp_keepintvl(stream, PROBE_AFTER)?;
        sockopt::set_socket_keepalive(stream, true)
    };
    Ok(set()?)
}
