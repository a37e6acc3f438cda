//! The end-host sequencer ([NOPaxos] 4.2.3) on the transport of the bench, and the relay that lets
//! datagrams overtake each other.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use anyhow::Result;
use bytes::Bytes;
use nix::sys::socket::SockaddrIn;
use oum::{Sequencer, Session};
use smr::rng::Rng;

use super::member::GROUP;
use super::turns::{End, Meter, Phase, Turn, Turns};
use super::wire::{Socket, Wire};

/// Stamps, and sends on to all replicas, until it is killed.
pub(super) struct Stamper {
    wire: Wire,
    replicas: Vec<SockaddrIn>,
    sequencer: Sequencer,
    turns: Turns,
    killed: Arc<AtomicBool>,
    meter: Meter,
    datagrams: Vec<Bytes>,
}

impl Stamper {
    pub(super) fn new(
        socket: Socket,
        replicas: Vec<SockaddrIn>,
        session: Session,
        turns: Turns,
        killed: Arc<AtomicBool>,
    ) -> Stamper {
        let mut sequencer = Sequencer::default();
        assert!(sequencer.begin(GROUP, session), "its first session");
        let (wire, meter) = (Wire::new(socket), Meter::default());
        Stamper { wire, replicas, sequencer, turns, killed, meter, datagrams: Vec::new() }
    }
}

impl Turn for Stamper {
    fn turn(&mut self) -> Result<bool> {
        // Relaxed: the flag stands for itself.
        if self.killed.load(Ordering::Relaxed) {
            return Ok(false);
        }
        self.meter.observe(self.turns.phase(), &self.wire);
        let start = Instant::now();
        self.wire.receive(&mut self.datagrams)?;
        let idle = self.datagrams.is_empty();
        let mut message = Vec::new();
        for datagram in self.datagrams.drain(..) {
            message.clear();
            message.extend_from_slice(&datagram);
            if self.sequencer.stamp(&mut message).is_ok() {
                for &to in &self.replicas {
                    self.wire.queue(to, |out| out.extend_from_slice(&message));
                }
            }
        }
        self.wire.flush();
        if !idle {
            self.meter.busy(start);
        }
        Ok(!idle)
    }

    fn due(&self) -> Option<u64> {
        None
    }

    fn wires(&self) -> Vec<&Wire> {
        vec![&self.wire]
    }

    fn end(mut self: Box<Self>) -> End {
        self.meter.observe(Phase::Over, &self.wire);
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

    fn wires(&self) -> Vec<&Wire> {
        self.legs.iter().map(|(wire, _, _)| wire).collect()
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
