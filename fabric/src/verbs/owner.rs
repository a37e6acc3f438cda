//! What a process lets its peers do to its regions: the book of each exclusive region, and the
//! queue pairs that let peers' requests in.
//!
//! Invariant: of an exclusive region's queue pairs, at most that of the writer lets writes in.
//! Invariant: a revocation is acknowledged when the card has said that the writer's queue pair lets
//! no write in: by its flags, read back, or by its state.

use smr::ReplicaId;

use super::card::{Address, Completions, Domain};
use super::channel::fresh_sequence;
use super::error::Error;
use super::frame::{End, Message};
use super::link::Link;
use super::memory::Own;
use super::options::Revocation;
use super::peer::Peer;
use super::queue::{Allowed, Queue};
use crate::contract::{GrantNumber, RegionId};
use crate::holder::Holder;
use std::sync::Arc;

/// The end of a peer's channel.
#[derive(Default)]
pub(crate) struct Target {
    queue: Option<Queue>,
    generation: u32,
}

impl Target {
    /// Makes the peer's next connection; what was on the former one can't arrive any more.
    pub(crate) fn connect(
        &mut self,
        domain: &Arc<Domain>,
        completions: &Arc<Completions>,
        address: &Address,
        peer: (u32, End),
        allowed: Allowed,
    ) -> Result<End, Error> {
        self.queue = None;
        self.generation = peer.0;
        let queue = Queue::new(domain, completions, 1)?;
        let end = End { number: queue.number(), sequence: fresh_sequence() };
        queue.connect(address, peer.1, end.sequence, allowed)?;
        self.queue = Some(queue);
        Ok(end)
    }

    /// Lets the peer read and write from now on.
    fn admit(&mut self, revocation: Revocation, channel: u8, link: &mut Link) {
        // Without a queue pair: the next connection will allow it.
        let Some(queue) = &self.queue else { return };
        let by_flags = revocation != Revocation::State;
        if !by_flags || queue.allow(Allowed::ReadsAndWrites).is_err() {
            self.end(channel, link);
        }
    }

    /// Lets no more writes in.
    fn shut(&mut self, revocation: Revocation, channel: u8, link: &mut Link) {
        let Some(queue) = &self.queue else { return };
        let by_flags = revocation != Revocation::State && queue.allow(Allowed::Reads).is_ok();
        if !by_flags || revocation == Revocation::FlagsThenState {
            self.end(channel, link);
        }
    }

    /// Ends the connection; the peer will make another.
    fn end(&mut self, channel: u8, link: &mut Link) {
        if let Some(queue) = self.queue.take() {
            // If the card refuses, dropping the queue pair ends it as surely.
            queue.reset().ok();
            drop(queue);
            link.send(&Message::Broken { channel, generation: self.generation });
        }
    }
}

/// The owner's book of an exclusive region.
pub(crate) struct Book {
    region: RegionId,
    channel: u8,
    me: ReplicaId,
    holder: Holder,
    /// The peer whose queue pair may let writes in.
    writer: Option<ReplicaId>,
    /// By process: the last grant to a process that has not ended since; 0 for none.
    granted: Vec<GrantNumber>,
    /// By process: no write under a grant up to this one is to come.
    renounced: Vec<GrantNumber>,
}

impl Book {
    /// A fresh region: its owner holds it.
    pub(crate) fn new(own: &Own, region: RegionId, me: ReplicaId) -> Book {
        let none = vec![GrantNumber(0); usize::from(own.geometry.processes)];
        let holder = Holder::new(GrantNumber(1), me.0);
        own.set_holder(region, holder);
        let channel = own.geometry.channel(region);
        Book { region, channel, me, holder, writer: None, granted: none.clone(), renounced: none }
    }

    pub(crate) fn holder(&self) -> Holder {
        self.holder
    }

    /// What a connection of this peer's channel may do now.
    pub(crate) fn allowed(&self, peer: ReplicaId) -> Allowed {
        if self.writer == Some(peer) { Allowed::ReadsAndWrites } else { Allowed::Reads }
    }

    /// Whether the owner may store under this grant.
    pub(crate) fn may_write(&self, under: GrantNumber) -> bool {
        self.holder == Holder::new(under, self.me.0) && self.renounced[self.me.index()] < under
    }

    /// Whether the owner holds the grant.
    pub(crate) fn is_own(&self) -> bool {
        self.holder.in_force() && self.holder.lane() == self.me.0
    }

    /// Takes the grant from its holder.
    pub(crate) fn revoke(&mut self, own: &Own, revocation: Revocation, peers: &mut [Option<Peer>]) {
        self.holder = self.holder.revoked();
        own.set_holder(self.region, self.holder);
        if let Some(writer) = self.writer.take()
            && let Some(Peer { targets, link, .. }) = &mut peers[writer.index()]
        {
            targets[usize::from(self.channel)].shut(revocation, self.channel, link);
        }
    }

    /// Hands the region over, unless `to` has not renounced its last grant.
    pub(crate) fn grant(
        &mut self,
        own: &Own,
        revocation: Revocation,
        to: ReplicaId,
        peers: &mut [Option<Peer>],
    ) -> Option<GrantNumber> {
        if to != self.me && self.renounced[to.index()] < self.granted[to.index()] {
            return None;
        }
        self.revoke(own, revocation, peers);
        let number = GrantNumber(self.holder.number().0 + 1);
        self.granted[to.index()] = number;
        if to != self.me {
            self.writer = Some(to);
            if let Some(Peer { targets, link, .. }) = &mut peers[to.index()] {
                targets[usize::from(self.channel)].admit(revocation, self.channel, link);
            }
        }
        // Last: who sees it finds the queue pair ready, or will make a new one that is.
        self.holder = Holder::new(number, to.0);
        own.set_holder(self.region, self.holder);
        Some(number)
    }

    /// A process promises to write no more. True if it held the grant: it is to be revoked.
    pub(crate) fn renounce(&mut self, process: ReplicaId) -> (GrantNumber, bool) {
        let number = self.holder.number();
        self.renounced[process.index()] = number;
        (number, self.writer == Some(process))
    }

    /// The process has ended: its successor holds nothing. True if it held the grant: it is to be
    /// revoked.
    pub(crate) fn process_ended(&mut self, process: ReplicaId) -> bool {
        self.granted[process.index()] = GrantNumber(0);
        self.writer == Some(process)
    }
}
