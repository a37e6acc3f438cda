//! What a node is told when it starts.

use std::path::PathBuf;
use std::time::Duration;

use smr::{Durability, GroupId, ReplicaId};

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
    /// Where to listen for clients, `host:port`.
    pub clients: String,
    /// What to tell operators and the other replicas of where clients come in.
    pub advertise: String,
    /// What an acknowledgement means.
    pub durability: Durability,
    /// What to do with a directory that holds no replica.
    pub birth: Birth,
    /// The protocol's times.
    pub timing: vsr::Timing,
    /// The protocol's limits.
    pub limits: vsr::Limits,
    /// When a command is given up.
    pub patience: Duration,
    /// The most client connections.
    pub max_clients: usize,
    /// A connection whose unsent answers exceed this many bytes is closed. (At 1 MiB it is
    /// throttled: only one command with a huge answer gets beyond.)
    pub output_bytes: usize,
    /// How many batches of writes, and of reads, the gateway has under way; 1 to 32.
    pub window: usize,
    /// How long to look for work before sleeping, in microseconds.
    pub spin: u64,
    /// The log's segments and how they are written.
    pub disk: ::io::Settings,
    /// A slower disk than there is. For measurements.
    pub emulation: Emulation,
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
            durability,
            birth,
            timing: vsr::Timing::default(),
            limits: vsr::Limits::default(),
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
