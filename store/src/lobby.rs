//! Clients that come while the store recovers. Redis's are told that it does, in the face, and get
//! what needs no data; what a face submits nevertheless waits to be executed. Their connections are
//! those of the query threads, which take over from here.

use std::sync::atomic::{AtomicBool, Ordering};

use kv::{Limits, Shared, Store};
use node::{Face, Front};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::Error;
use crate::query::{Inbox, obey};

/// Nothing sleeps longer than this.
const LONGEST_SLEEP: Timespec = Timespec { tv_sec: 0, tv_nsec: 50_000_000 };

/// Answers at `fronts` until it is `over`.
pub(crate) fn answer<F: Face<Service = Store>>(
    fronts: &mut [Front<F>],
    inboxes: &[Inbox],
    stop: &AtomicBool,
    over: &AtomicBool,
) -> Result<(), Error> {
    let os = |e| Error::os("wait for", "sockets", e);
    // What faces see of the data: nothing yet.
    let store = Shared::new(Limits::default(), 0).store();
    // Relaxed: the flag stands for itself.
    while !over.load(Ordering::Relaxed) {
        let mut doors: Vec<_> =
            fronts.iter().map(|front| PollFd::new(front, PollFlags::IN)).collect();
        match poll(&mut doors, Some(&LONGEST_SLEEP)) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(os(error.into())),
        }
        drop(doors);
        for (front, inbox) in fronts.iter_mut().zip(inboxes) {
            front.wait(0, &store).map_err(os)?;
            inbox.empty_into(front);
            front.flush().into_iter().for_each(|order| obey(order, inboxes, stop));
        }
    }
    Ok(())
}
