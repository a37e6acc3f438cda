//! How a session behaves.

use std::time::Duration;

pub use smr::client::OnLoss;

/// What a request is to be given.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Terms {
    /// Answered only when no crash with disks intact can take the request back any more, whatever
    /// the group's durability. In `sync` that is always so; in `memory` it promises nothing.
    pub durable: bool,
    /// When to give up waiting; `None` waits for ever. See
    /// [`Error::TimedOut`](crate::Error::TimedOut).
    pub deadline: Option<Duration>,
}

impl Default for Terms {
    /// As durable as the group is, ten seconds.
    fn default() -> Terms {
        Terms { durable: false, deadline: Some(Duration::from_secs(10)) }
    }
}

/// How a session behaves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Options {
    /// What to do about acknowledged requests that a crash has taken back. Only groups in `lazy`
    /// can do that.
    pub on_loss: OnLoss,
    /// The terms of requests that name none of their own.
    pub terms: Terms,
    /// How long to look for a replica when connecting.
    pub connect: Duration,
    /// After this long without an answer a request is sent again, to another replica if need be.
    pub retry: Duration,
    /// How many requests may be unanswered, waiting for the window, or answered and not fetched.
    pub tickets: usize,
}

impl Default for Options {
    /// Replays what was lost; 5 s to connect, 100 ms to a retry, 65,536 tickets.
    fn default() -> Options {
        Options {
            on_loss: OnLoss::Replay,
            terms: Terms::default(),
            connect: Duration::from_secs(5),
            retry: Duration::from_millis(100),
            tickets: 1 << 16,
        }
    }
}
