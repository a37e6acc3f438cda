//! What a node is told when it starts.

use std::path::{Path, PathBuf};
use std::time::Duration;

use mu::Timing;
use smr::{Durability, GroupId, OrderedBy, ReplicaId};

use crate::Error;
use crate::disk::Emulation;

/// How one replica is to be run.
#[derive(Clone, Debug)]
pub struct Options {
    /// Its data directory; made if it is not there, its parent must be.
    pub directory: PathBuf,
    /// Its place in the group.
    pub replica: ReplicaId,
    /// Where replicas reach each other, `host:port`, by replica id; the own one included, which is
    /// also listened on. 1 to [`smr::MAX_REPLICAS`].
    pub peers: Vec<String>,
    /// Where to listen for clients, `host:port`: entrance 0.
    pub clients: String,
    /// Where else to listen for clients, `host:port`: the entrances from 1 on, in this order. Which
    /// protocol is spoken where is the [`Face`](crate::Face)'s affair.
    pub side_entrances: Vec<String>,
    /// What to tell operators and the other replicas of where clients come in.
    pub advertise: String,
    /// What an acknowledgement means.
    pub durability: Durability,
    /// What to do with a directory that holds no replica.
    pub birth: Birth,
    /// How requests are ordered.
    pub order: Ordering,
    /// When a command is given up.
    pub patience: Duration,
    /// The most client connections.
    pub max_clients: usize,
    /// A connection whose unsent answers exceed this many bytes is closed. (At 1 MiB it is
    /// throttled: only one command with a huge answer gets beyond.)
    pub output_bytes: usize,
    /// How many batches of writes, and of reads, the gateway has under way; 1 to 32.
    pub window: usize,
    /// How long to look for work before sleeping, in microseconds, at least.
    pub spin: u64,
    /// The log's segments and how they are written.
    pub disk: ::io::Settings,
    /// A slower disk than there is. For measurements.
    pub emulation: Emulation,
}

/// How a group orders requests.
#[derive(Clone, Debug)]
pub enum Ordering {
    /// Viewstamped replication, by messages: replicas on any machines.
    Vsr {
        /// Its times.
        timing: vsr::Timing,
        /// Its limits.
        limits: vsr::Limits,
    },
    /// Mu, through the shared memory of one machine: protection against the end of a process, not
    /// of the machine.
    Mu(SharedMemory),
    /// NOPaxos, by messages that a sequencer has numbered: replicas on any machines.
    Nopaxos(Multicast),
}

impl Ordering {
    /// Which it is.
    pub fn by(&self) -> OrderedBy {
        match self {
            Ordering::Vsr { .. } => OrderedBy::Vsr,
            Ordering::Mu(_) => OrderedBy::Mu,
            Ordering::Nopaxos(_) => OrderedBy::Nopaxos,
        }
    }
}

impl Default for Ordering {
    fn default() -> Ordering {
        Ordering::Vsr { timing: vsr::Timing::default(), limits: vsr::Limits::default() }
    }
}

/// How replicas of one machine share memory.
#[derive(Clone, Debug)]
pub struct SharedMemory {
    /// Where they meet: the same directory for all replicas of the group and for no other group. It
    /// is made if it is missing; its path has at most 90 bytes.
    pub directory: PathBuf,
    /// The period of heartbeats, in microseconds, from 20. A replica whose process ends or is
    /// stopped is suspected after one or two; one that only stands still, after 14. A replica that
    /// the machine has no time for stands still, too: 14 periods must be longer than that.
    pub heartbeat: u64,
    /// Bytes of a slot, which has to hold the longest command, 1 KiB to 8 MiB. The log has 16 MiB
    /// or 32 slots, whatever is more, and each process holds it once per replica.
    pub slot_bytes: usize,
    /// The members that the group begins with; none: all replicas. The others follow, and count
    /// once they are added ([`crate::Order::Change`]).
    pub members: Vec<ReplicaId>,
}

/// Bytes that the slots of a log have together, unless they are very large or very small.
const LOG_BYTES: usize = 16 << 20;

impl SharedMemory {
    /// Shared memory with the defaults for all but what has none.
    pub fn new(directory: PathBuf) -> SharedMemory {
        SharedMemory { directory, heartbeat: 10_000, slot_bytes: 66 << 10, members: Vec::new() }
    }

    /// The same, for replicas whose data directories are side by side: they meet in `memory`, which
    /// is there, too.
    pub fn beside(data: &Path) -> SharedMemory {
        SharedMemory::new(data.with_file_name("memory"))
    }

    /// The longest body of a request, in bytes.
    pub fn longest_body(&self) -> usize {
        self.limits().body_bytes()
    }

    pub(crate) fn check(&self, replicas: usize) -> Result<(), Error> {
        if self.members.iter().any(|member| member.index() >= replicas) {
            return Err(Error::Combination("each member must be one of the replicas"));
        }
        if !(1 << 10..=8 << 20).contains(&self.slot_bytes) {
            return Err(Error::Combination("a slot must have between 1 KiB and 8 MiB"));
        }
        if !(20..=1_000_000).contains(&self.heartbeat) {
            let text = "the heartbeat's period must be between 20 microseconds and a second";
            return Err(Error::Combination(text));
        }
        Ok(())
    }

    pub(crate) fn limits(&self) -> mu::Limits {
        mu::Limits {
            slots: (LOG_BYTES / self.slot_bytes).clamp(32, 2048) as u32,
            slot_words: (self.slot_bytes / 8) as u32,
            // A would-be leader reads whole slots, and mostly finds one or none.
            read_slots: 2,
            ..mu::Limits::default()
        }
    }

    pub(crate) fn timing(&self) -> mu::Timing {
        let Timing { retry, stall, .. } = Timing::default();
        mu::Timing {
            heartbeat: self.heartbeat,
            retry: retry.max(self.heartbeat),
            stall: stall.max(20 * self.heartbeat),
            ..Timing::default()
        }
    }
}

/// How a replica takes the messages that a sequencer has numbered.
#[derive(Clone, Debug)]
pub struct Multicast {
    /// Where sequencers and controllers reach this replica over UDP, `host:port`. The group's
    /// multicast address, if the controllers name one, is heard through the same interface.
    pub address: String,
    /// The controllers, `host:port`, at least one: they say who the sequencer is.
    pub controllers: Vec<String>,
    /// Longer requests go to the replicas directly and only their digests are numbered; in bytes,
    /// 64 to 60,000. On the way to the sequencer and from it they take up to 128 bytes more.
    pub datagram_bytes: usize,
}

impl Multicast {
    /// The longest body of a request, in bytes. What a new leader tells of has to fit into a frame.
    pub(crate) const LONGEST_BODY: usize = 4 << 20;
    /// What a gateway has under way at most beside one such body, in bytes.
    pub(crate) const FLYING_BYTES: usize = 4 << 20;

    /// Messages with the defaults for all but what has none: with the headers of IPv6 and UDP they
    /// fit into a frame of Ethernet.
    pub fn new(address: String, controllers: Vec<String>) -> Multicast {
        Multicast { address, controllers, datagram_bytes: 1_300 }
    }

    pub(crate) fn check(&self) -> Result<(), Error> {
        if self.controllers.is_empty() {
            return Err(Error::Combination("ordering by nopaxos needs at least one controller"));
        }
        if !(64..=60_000).contains(&self.datagram_bytes) {
            return Err(Error::Combination("a datagram must have between 64 and 60000 bytes"));
        }
        Ok(())
    }

    pub(crate) fn limits(replicas: u8) -> nopaxos::Limits {
        let body_bytes = usize::from(replicas) * (Self::LONGEST_BODY + Self::FLYING_BYTES);
        nopaxos::Limits { body_bytes, ..nopaxos::Limits::default() }
    }
}

/// What an empty data directory means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Birth {
    /// The group is being created, with this id.
    Bootstrap(GroupId),
    /// The disk takes the place of one in a group that exists, whose id the others know.
    Join,
}

impl Options {
    /// Options with the defaults for all but what has none.
    pub fn new(
        directory: PathBuf,
        replica: ReplicaId,
        peers: Vec<String>,
        clients: String,
        durability: Durability,
        birth: Birth,
    ) -> Options {
        Options {
            directory,
            replica,
            peers,
            advertise: clients.clone(),
            clients,
            side_entrances: Vec::new(),
            durability,
            birth,
            order: Ordering::default(),
            patience: Duration::from_secs(10),
            max_clients: 10_000,
            output_bytes: 512 << 20,
            window: 8,
            spin: 0,
            disk: ::io::Settings::default(),
            emulation: Emulation::default(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_new_leader_tells_fits_into_a_frame() {
        let limits = Multicast::limits(smr::MAX_REPLICAS);
        let requests = 2 * (limits.unstable_bytes + Multicast::LONGEST_BODY);
        let entries = 2 * limits.unstable as usize * 80;
        assert!(requests + entries < wire::MAX_PAYLOAD);
    }
}
