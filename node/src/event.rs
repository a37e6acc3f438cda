//! What a node tells its operator, at most a few lines an hour in good times.

use std::fmt;
use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4};

use smr::{OpNumber, ReplicaId, Role, View, Viewstamp};

/// Something that an operator may want to know.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// The replica has another role, or follows another view.
    Role {
        /// What it does now.
        role: Role,
        /// In which view.
        view: View,
        /// The view's number, as operators count them.
        number: u64,
    },
    /// The replica has restarted and may have forgotten what it acknowledged from memory
    /// (durability `lazy`): until it has caught up, elections do not rest on it.
    Forgetful,
    /// It holds again what it may have forgotten; its log ends here.
    Remembers(Viewstamp),
    /// It has won an election in which more than f replicas were forgetful or did not answer:
    /// acknowledged operations may be lost.
    RiskyElection(View),
    /// It has rolled back operations that it knew to be acknowledged: a crash of the group has
    /// taken them.
    RolledBack {
        /// How many.
        operations: u64,
        /// Everything up to here is kept.
        durable: Viewstamp,
    },
    /// What is sent to this peer has nowhere to go.
    PeerLost(ReplicaId),
    /// The memory of this replica is shared from now on.
    MemoryShared(ReplicaId),
    /// The process of this replica has ended, and its memory is let go of.
    MemoryGone(ReplicaId),
    /// Requests are numbered by this sequencer from now on.
    Session {
        /// In this session.
        session: u32,
        /// Where requests are sent.
        sequencer: SocketAddr,
    },
    /// The group's messages are heard at this multicast address, too.
    Joined(SocketAddrV4),
    /// The group's multicast address cannot be heard.
    NotJoined {
        /// The address.
        multicast: SocketAddrV4,
        /// The address of the interface.
        interface: Ipv4Addr,
        /// What the system says.
        why: String,
    },
    /// A connection to or from a peer was refused, and why.
    PeerRefused(String),
    /// A checkpoint is on disk.
    Checkpoint(Viewstamp),
    /// The state was fetched from a peer.
    Installed(Viewstamp),
    /// What had to be known about the disk at the start.
    Disk(String),
    /// The log cannot grow: commands that need space are refused.
    DiskFull(String),
    /// There is space again.
    DiskFree,
    /// The replica stops in good order.
    Stopping {
        /// The last operation that it knows to be committed.
        commit: OpNumber,
    },
}

impl fmt::Display for Event {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Event::Role { role: Role::StateLost, .. } => f.write_str(
                "the group's state is lost: run `lockstep bootstrap --accept-loss` to start over, \
                 empty",
            ),
            Event::Role { role, view, number } => {
                write!(f, "{} in view {number} of replica {}", role.name(), view.primary().0)
            }
            Event::Forgetful => f.write_str(
                "restarted without what it had only in memory: elections do not rest on this \
                 replica until it has caught up",
            ),
            Event::Remembers(last) => write!(f, "caught up to operation {}", last.op.0),
            Event::RiskyElection(view) => write!(
                f,
                "LOSS POSSIBLE: elected in view {} while more than f replicas had forgotten what \
                 they held in memory, or did not answer; acknowledged operations above the last \
                 durable one may be lost",
                view.0 >> 8
            ),
            Event::RolledBack { operations, durable } => write!(
                f,
                "LOST: rolled back {operations} acknowledged operations that a crash of the group \
                 has taken; everything up to operation {} is kept; clients that have seen them are \
                 told (WRONGVIEW)",
                durable.op.0
            ),
            Event::PeerLost(replica) => write!(f, "replica {} is not reached", replica.0),
            Event::MemoryShared(replica) => write!(f, "shares memory with replica {}", replica.0),
            Event::MemoryGone(replica) => {
                write!(f, "the process of replica {} has ended", replica.0)
            }
            Event::Session { session, sequencer } => {
                write!(f, "session {session} of the sequencer at {sequencer}")
            }
            Event::Joined(multicast) => write!(f, "hears the group at {multicast}"),
            Event::NotJoined { multicast, interface, why } => write!(
                f,
                "DEAF: cannot hear the group at {multicast} through the interface of {interface}: \
                 {why}; it goes on trying. The interface is that of --multicast; without \
                 @{multicast} in `alter` at a controller every replica gets a copy of its own"
            ),
            Event::PeerRefused(why) => write!(f, "refused a peer: {why}"),
            Event::Checkpoint(position) => write!(f, "checkpoint at {}", position.op.0),
            Event::Installed(position) => {
                write!(f, "fetched the state at {} from a peer", position.op.0)
            }
            Event::Disk(what) => write!(f, "disk: {what}"),
            Event::DiskFull(what) => write!(f, "disk full: {what}"),
            Event::DiskFree => f.write_str("the disk has space again"),
            Event::Stopping { commit } => write!(f, "stops at operation {}", commit.0),
        }
    }
}
