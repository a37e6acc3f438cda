//! Finding a first replica.

use std::net::{SocketAddr, ToSocketAddrs};
use std::os::fd::OwnedFd;
use std::time::Duration;

use rustix::event::Timespec;
use rustix::event::epoll::{self, Event, EventFlags};
use wire::Hello;

use crate::link::{Link, Own};
use crate::{Error, clock};

/// Links to all addresses, and the hello of the first replica that answers within `patience`.
///
/// # Errors
/// [`Error::Unreachable`] if none does.
pub(crate) fn first<A: AsRef<str>>(
    addresses: &[A],
    own: Own,
    patience: Duration,
    epoll: &OwnedFd,
) -> Result<(Vec<Link>, Hello), Error> {
    let mut last = "there is no address".to_owned();
    let mut links = Vec::new();
    for address in addresses {
        match resolve(address.as_ref()) {
            Ok(found) => links.push(Link::new(found)),
            Err(why) => last = why,
        }
    }
    let end = clock::now().micros.saturating_add(patience.as_micros() as u64);
    let mut events = Vec::with_capacity(16);
    while !links.is_empty() && clock::now().micros < end {
        if let Some(hello) = step(&mut links, own, end, epoll, &mut events)? {
            return Ok((links, hello));
        }
    }
    let trouble = links.into_iter().map(|link| link.trouble).find(|trouble| !trouble.is_empty());
    let addresses = addresses.iter().map(|address| address.as_ref().to_owned()).collect();
    Err(Error::Unreachable { addresses, last: trouble.unwrap_or(last) })
}

/// Waits for something, not beyond `end`; a replica's hello once there is one.
fn step(
    links: &mut [Link],
    own: Own,
    end: u64,
    epoll: &OwnedFd,
    events: &mut Vec<Event>,
) -> Result<Option<Hello>, Error> {
    let now = clock::now().micros;
    for (index, link) in links.iter_mut().enumerate() {
        link.on_time(now, own, index, epoll);
    }
    let due = links.iter().map(Link::due).min().unwrap_or(end).min(end);
    wait(epoll, Duration::from_micros(due.saturating_sub(now)), events)?;
    let now = clock::now().micros;
    for event in events.drain(..) {
        let (index, flags) = (event.data.u64() as usize, event.flags);
        let link = &mut links[index];
        let mut outcome = Ok(());
        if flags.contains(EventFlags::OUT) {
            outcome = link.flush(index, epoll).map_err(|error| error.to_string());
        }
        if flags.intersects(EventFlags::IN | EventFlags::ERR | EventFlags::HUP) {
            outcome = outcome.and_then(|()| link.read(own, now, &mut Vec::new()));
        }
        if let Err(why) = outcome {
            link.lose(now, &why);
        } else if let Some(hello) = &link.hello {
            return Ok(Some(hello.clone()));
        }
    }
    Ok(None)
}

/// Fills `events`, which has room, with what is ready within `timeout`.
pub(crate) fn wait(
    epoll: &OwnedFd,
    timeout: Duration,
    events: &mut Vec<Event>,
) -> Result<(), Error> {
    let timeout =
        Timespec { tv_sec: timeout.as_secs() as i64, tv_nsec: i64::from(timeout.subsec_nanos()) };
    events.clear();
    match epoll::wait(epoll, rustix::buffer::spare_capacity(events), Some(&timeout)) {
        Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

/// All addresses of a name.
fn resolve(name: &str) -> Result<Vec<SocketAddr>, String> {
    let found = name.to_socket_addrs().map_err(|error| format!("{name}: {error}"))?;
    let found: Vec<SocketAddr> = found.collect();
    if found.is_empty() { Err(format!("{name} has no address")) } else { Ok(found) }
}
