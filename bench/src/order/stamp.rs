//! The end-host sequencer ([NOPaxos] 4.2.3), which is that of the program `lockstep sequencer`, and
//! the relay that lets datagrams overtake each other.

use std::collections::VecDeque;
use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4, UdpSocket};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use anyhow::{Context, Result, ensure};
use bytes::Bytes;
use nix::sys::socket::SockaddrIn;
use oum::{Control, Session};
use sequencer::{Batches, EndHost};
use smr::rng::Rng;

use super::member::GROUP;
use super::turns::{End, Meter, Phase, Turn, Turns};
use super::wire::{Counts, Socket, Wire};

/// Stamps, and sends on to all replicas, until it is killed.
pub(super) struct Stamper {
    end_host: EndHost,
    batches: Batches,
    /// Of each message.
    copies: u64,
    turns: Turns,
    killed: Arc<AtomicBool>,
    meter: Meter,
}

/// A sequencer that has a session with these members, which hear `multicast`, too, if it is given.
pub(super) fn start_sequencer(
    session: Session,
    members: &[SockaddrIn],
    multicast: Option<SockaddrIn>,
) -> Result<EndHost> {
    let listen = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
    let mut end_host = EndHost::open(listen, Box::new(|_| ()))?;
    let address = end_host.address()?;
    let controller = UdpSocket::bind(listen)?;
    let mut ask = |control: Control| -> Result<Control> {
        let mut datagram = Vec::new();
        control.encode(&mut datagram);
        controller.send_to(&datagram, address)?;
        end_host.turn(&mut Batches::of(1), true)?;
        let mut answer = [0; 256];
        controller.set_nonblocking(true)?;
        let length = controller.recv(&mut answer).context("the sequencer does not answer")?;
        Ok(Control::decode(&Bytes::copy_from_slice(&answer[..length]))?)
    };
    let Control::Opened { life, .. } = ask(Control::Probe { group: GROUP })? else {
        anyhow::bail!("the sequencer has no life")
    };
    let members = members.iter().map(|to| SocketAddr::from((to.ip(), to.port()))).collect();
    let multicast = multicast.map(|to| SocketAddrV4::new(to.ip(), to.port()));
    let opened = ask(Control::Open { group: GROUP, session, life, members, multicast })?;
    ensure!(
        opened == Control::Opened { group: GROUP, session, life, stamped: 0 },
        "the sequencer has not begun the session"
    );
    Ok(end_host)
}

impl Stamper {
    pub(super) fn new(
        end_host: EndHost,
        batches: Batches,
        copies: u64,
        turns: Turns,
        killed: Arc<AtomicBool>,
    ) -> Stamper {
        Stamper { end_host, batches, copies, turns, killed, meter: Meter::default() }
    }

    fn counts(&self) -> Counts {
        let sequencer::Counts { stamped, unsent, calls, .. } = self.end_host.counts();
        Counts { received: stamped, sent: self.copies * stamped - unsent, calls, unsent }
    }
}

impl Turn for Stamper {
    fn turn(&mut self) -> Result<bool> {
        // Relaxed: the flag stands for itself.
        if self.killed.load(Ordering::Relaxed) {
            return Ok(false);
        }
        self.meter.observe(self.turns.phase(), self.counts());
        let start = Instant::now();
        let came = self.end_host.turn(&mut self.batches, false)?;
        if came {
            self.meter.busy(start);
        }
        Ok(came)
    }

    fn due(&self) -> Option<u64> {
        None
    }

    fn fds(&self) -> Vec<BorrowedFd<'_>> {
        vec![self.end_host.as_fd()]
    }

    fn end(mut self: Box<Self>) -> End {
        self.meter.observe(Phase::Over, self.counts());
        End::Sequencer(self.meter.outcome())
    }
}

/// The most datagrams that overtake one.
const OVERTAKING: u64 = 3;
/// One that nothing overtakes goes on after so many microseconds.
const LATEST: u64 = 100;

struct Held {
    bytes: Bytes,
    /// So many others go first.
    others: u64,
    since: u64,
}

/// Sends what comes to each of its sockets on to a replica, some later than one to three that came
/// after them.
pub(super) struct Relay {
    legs: Vec<(Wire, SockaddrIn, VecDeque<Held>)>,
    /// Of a thousand.
    late: u64,
    turns: Turns,
    rng: Rng,
    datagrams: Vec<Bytes>,
}

impl Relay {
    pub(super) fn new(legs: Vec<(Socket, SockaddrIn)>, late: u64, turns: Turns) -> Relay {
        let leg = |(socket, to)| (Wire::new(socket), to, VecDeque::new());
        let legs = legs.into_iter().map(leg).collect();
        Relay { legs, late, turns, rng: Rng::new(7), datagrams: Vec::new() }
    }
}

impl Turn for Relay {
    fn turn(&mut self) -> Result<bool> {
        let now = self.turns.now(Instant::now()).micros;
        let mut idle = true;
        for (wire, to, held) in &mut self.legs {
            wire.receive(&mut self.datagrams)?;
            idle &= self.datagrams.is_empty();
            for bytes in self.datagrams.drain(..) {
                if self.rng.chance(self.late, 1_000) {
                    let others = 1 + self.rng.below(OVERTAKING);
                    held.push_back(Held { bytes, others, since: now });
                    continue;
                }
                wire.queue(*to, |out| out.extend_from_slice(&bytes));
                held.iter_mut().for_each(|one| one.others -= 1);
                release(wire, *to, held, |one| one.others == 0);
            }
            release(wire, *to, held, |one| now >= one.since + LATEST);
            wire.flush();
        }
        Ok(!idle)
    }

    fn due(&self) -> Option<u64> {
        let held = self.legs.iter().flat_map(|(_, _, held)| held);
        held.map(|one| one.since + LATEST).min()
    }

    fn fds(&self) -> Vec<BorrowedFd<'_>> {
        self.legs.iter().map(|(wire, _, _)| wire.as_fd()).collect()
    }

    fn end(self: Box<Self>) -> End {
        End::Relay
    }
}

fn release(
    wire: &mut Wire,
    to: SockaddrIn,
    held: &mut VecDeque<Held>,
    goes: impl Fn(&Held) -> bool,
) {
    held.retain(|one| {
        let stays = !goes(one);
        if !stays {
            wire.queue(to, |out| out.extend_from_slice(&one.bytes));
        }
        stays
    });
}
