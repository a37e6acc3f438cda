//! The numbers that identify groups, replicas, clients and positions. Each is a newtype, so that
//! one cannot be passed for another.

/// A replica group. A group that lost its state and was bootstrapped anew has a new id, so that
/// messages and disks of the old one cannot be mistaken for its own.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct GroupId(pub u64);

/// A replica's place in its group, 0 to [`MAX_REPLICAS`] - 1.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ReplicaId(pub u8);

impl ReplicaId {
    /// The id as an index into per-replica arrays.
    pub fn index(self) -> usize {
        usize::from(self.0)
    }
}

/// The most replicas a group can have.
pub const MAX_REPLICAS: u8 = 9;

/// Counts the starts of a replica. It is on disk before the replica speaks, in every durability, so
/// that votes of a former life can be told from those of the present one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Incarnation(pub u64);

/// A view number with its primary's id in the low eight bits ([Mao] 4.2.2). Views only grow and
/// need not be consecutive.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct View(pub u64);

impl View {
    const PRIMARY_BITS: u32 = 8;

    /// The replica that leads this view.
    pub fn primary(self) -> ReplicaId {
        ReplicaId((self.0 & ((1 << Self::PRIMARY_BITS) - 1)) as u8)
    }

    /// The lowest view above this one that `primary` leads ([Mao] 4.2.5, step 1).
    pub fn next_for(self, primary: ReplicaId) -> View {
        View((((self.0 >> Self::PRIMARY_BITS) + 1) << Self::PRIMARY_BITS) | u64::from(primary.0))
    }
}

/// The number of an operation: its place in the group's log, from 1. Zero is before the first.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct OpNumber(pub u64);

impl OpNumber {
    /// The number after this one.
    pub fn next(self) -> OpNumber {
        OpNumber(self.0 + 1)
    }
}

/// Identifies one operation for ever: the view it was proposed in and its number. Ordered by view,
/// then by number ([Mao] 4.2.2).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Viewstamp {
    /// The view in which the operation was proposed.
    pub view: View,
    /// Its place in the log.
    pub op: OpNumber,
}

impl Viewstamp {
    /// A viewstamp from its two parts.
    pub fn new(view: View, op: OpNumber) -> Viewstamp {
        Viewstamp { view, op }
    }
}

/// A client of the group: one life of one gateway. The gateway numbers its requests from 1 without
/// gaps; a newer incarnation retires the older one's session.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ClientId {
    /// The gateway: a replica's own id for the gateway in its process, higher for others.
    pub gateway: u32,
    /// The gateway's life.
    pub incarnation: Incarnation,
}

/// The number of a client's request, from 1. Logged requests and reads are counted apart.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RequestNumber(pub u64);

impl RequestNumber {
    /// The number after this one.
    pub fn next(self) -> RequestNumber {
        RequestNumber(self.0 + 1)
    }
}

/// Numbers the reads that a host hands to its protocol, from 1, in order of arrival.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ReadNumber(pub u64);

/// Numbers the batches that a protocol hands to its disk, from 1. `Stored(n)` answers all up to n.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct StoreNumber(pub u64);

/// The time as the environment sees it when it calls a protocol.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Now {
    /// A clock that never goes back, in microseconds since an arbitrary start.
    pub micros: u64,
    /// The wall clock, in milliseconds since 1970. It may jump.
    pub unix_ms: u64,
}

/// How a group orders requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OrderedBy {
    /// Viewstamped replication: messages over TCP.
    Vsr = 0,
    /// Mu: one-sided writes into shared memory.
    Mu = 1,
    /// NOPaxos: messages that a sequencer has numbered.
    Nopaxos = 2,
}

impl OrderedBy {
    /// The order with this number, as `as u8` gives it.
    pub fn from_u8(number: u8) -> Option<OrderedBy> {
        [OrderedBy::Vsr, OrderedBy::Mu, OrderedBy::Nopaxos]
            .into_iter()
            .find(|order| *order as u8 == number)
    }

    /// The word that operators use.
    pub fn name(self) -> &'static str {
        match self {
            OrderedBy::Vsr => "vsr",
            OrderedBy::Mu => "mu",
            OrderedBy::Nopaxos => "nopaxos",
        }
    }
}

/// What an acknowledgement means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Durability {
    /// In memory at a quorum. A crash of the whole group loses the state, and the group says so.
    Memory = 0,
    /// On disk at a quorum.
    Sync = 1,
    /// In memory at a quorum; the disks follow. After a crash of the whole group only a suffix of
    /// what was acknowledged may be missing, all of it above the last reported durable point.
    Lazy = 2,
}

impl Durability {
    /// The durability with this number, as `as u8` gives it.
    pub fn from_u8(number: u8) -> Option<Durability> {
        [Durability::Memory, Durability::Sync, Durability::Lazy]
            .into_iter()
            .find(|durability| *durability as u8 == number)
    }

    /// The word that operators use.
    pub fn name(self) -> &'static str {
        match self {
            Durability::Memory => "memory",
            Durability::Sync => "sync",
            Durability::Lazy => "lazy",
        }
    }
}
