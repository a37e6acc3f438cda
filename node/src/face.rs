//! The protocol that a node speaks to its clients. A face cuts a connection's bytes into commands,
//! says of each whether it changes the state, reads it or needs neither, and writes the answers.
//! The node does the rest: batches, the order of answers on a connection, deadlines, back-pressure.
//!
//! Invariants: a connection's answers leave in the order of its commands; a command sees the
//! effects of all commands before it on its connection.

use std::net::{SocketAddr, SocketAddrV4};

use mu::{Change, ChangeError};
use smr::{
    Durability, GroupId, Identity, Now, OpNumber, OrderedBy, ReplicaId, Report, StateMachine,
    Viewstamp,
};

use crate::client::Answers;
use crate::counted::{Counters, Share, Tally};
use crate::gateway::{Gateway, Lane};

/// A connection, for as long as the process lives: never used again for another one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ConnectionId(pub u64);

/// What a face wants to remember about a command until its answer comes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Note(pub u32);

/// What [`Face::take`] did with the front of a connection's input.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// A command of this many bytes was taken (which may be none of the face's commands, such as an
    /// empty line). It is called again if there is more.
    Taken(usize),
    /// No whole command is there. `usize` more bytes are known to be missing (at least 1): a hint
    /// for the size of the buffer.
    More(usize),
    /// The command cannot be taken yet, because [`Desk::write`] or [`Desk::read`] said so, or
    /// because the session waits for an answer. Called again with the same bytes, or more of them.
    Wait,
    /// The connection is to be closed once what is answered has been sent.
    Close,
}

/// Why a command got no answer from the service.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Failure {
    /// It was never sent to the group, which had no quorum: not executed.
    Unavailable,
    /// It was sent and not answered in time: it may have been executed, or may yet be.
    Unknown,
    /// The group's state is gone (durability `memory`): not executed.
    StateLost,
    /// A newer life of this replica is known to the group: this process must stop.
    Retired,
    /// The answer made no sense: the command was executed, what it returned is not known.
    Garbled,
    /// A crash of the group has interrupted it: not executed.
    Interrupted,
    /// It is longer than what the group takes: not executed.
    TooLong {
        /// What it takes in a request, in bytes.
        bytes: usize,
        /// The longest that a replica takes, in bytes.
        most: usize,
    },
    /// A crash of the group has taken back acknowledged operations that the connection has seen
    /// (durability `lazy`). The connection is closed behind this.
    Lost {
        /// All above this one.
        after: Viewstamp,
        /// Whether the command itself may have been executed.
        executed: bool,
    },
}

/// What a face may ask of the node beside its service.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    /// Close this connection, without sending what it has not been sent.
    Kill(ConnectionId),
    /// Stop the replica in good order.
    Shutdown,
    /// Accept that the state is gone: start over, empty, in this new group. Ignored unless the
    /// state is lost or the replica waits for a group that is no more.
    StartOver(GroupId),
    /// Make a replica a member, or let it be none ([Mu] 5.4). Ignored unless
    /// [`MemoryStatus::changes`] allows it. It is done once [`MemoryStatus::members`] says so, and
    /// may come to nothing if the lead is lost meanwhile.
    Change(Change),
}

/// Another replica as this one sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PeerStatus {
    /// Which one.
    pub replica: ReplicaId,
    /// Where replicas reach it.
    pub address: String,
    /// Where its clients reach it, if it has said so.
    pub clients: String,
    /// Whether what is sent to it has somewhere to go.
    pub connected: bool,
    /// Bytes that wait to be sent to it.
    pub queued: usize,
}

/// What a replica that shares memory with others knows of them. Lists are by replica id.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MemoryStatus {
    /// The pull-scores ([Mu] 5.1), 0 to 15: below 2 a replica has failed, above 6 it is back.
    pub scores: Vec<u8>,
    /// Whose memory is mapped here.
    pub attached: Vec<bool>,
    /// The replica that is taken for the leader.
    pub leader: ReplicaId,
    /// Who may write this replica's log.
    pub holder: Option<ReplicaId>,
    /// Whose logs this leader writes.
    pub confirmed: Vec<bool>,
    /// The replica holds its log above this operation.
    pub tail: OpNumber,
    /// Who counts for a majority, as of what this replica has executed.
    pub members: Vec<bool>,
    /// Whether this replica can now remove the member, or add who is none.
    pub changes: Vec<Result<(), ChangeError>>,
}

/// What a replica that takes ordered multicast messages knows of them. Counts are since its start.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MulticastStatus {
    /// Where sequencers and controllers reach this replica over UDP.
    pub address: Option<SocketAddr>,
    /// The multicast address that it hears, too, if there is one that it could join.
    pub joined: Option<SocketAddrV4>,
    /// The session that it listens to; 0 before the first.
    pub session: u32,
    /// Who counts in it, or will; empty before that is known.
    pub members: Vec<ReplicaId>,
    /// Whether the members are about to change.
    pub changing: bool,
    /// Where requests go to be numbered, if it is known.
    pub sequencer: Option<SocketAddr>,
    /// The number of the message that it waits for.
    pub next: u64,
    /// Dropped messages of which it is not known yet what becomes.
    pub open_gaps: usize,
    /// Messages that were dropped on the way here.
    pub missing: u64,
    /// Of those, the ones that another replica had.
    pub found: u64,
    /// Places in the log where nothing is executed, since nobody had the message.
    pub no_ops: u64,
    /// Views that it took part in.
    pub views: u64,
    /// Datagrams that came twice or late, of others, damaged, or for which there was no room.
    pub ignored: u64,
    /// Requests of its own clients that could not be sent to the sequencer.
    pub unsent: u64,
}

/// The replica's state as it was at the start of the turn.
#[derive(Clone, Debug)]
pub struct Status {
    /// Who it is.
    pub identity: Identity,
    /// The size of the group.
    pub replicas: u8,
    /// How the group orders requests.
    pub ordered_by: OrderedBy,
    /// The protocol's own report.
    pub report: Report,
    /// Its view, as operators count them.
    pub view_number: u64,
    /// Of a replica that shares memory with the others.
    pub memory: Option<MemoryStatus>,
    /// Of a replica that takes ordered multicast messages.
    pub multicast: Option<MulticastStatus>,
    /// When the process started, in [`Now::micros`].
    pub started_at: u64,
    /// The log cannot grow because the disk is full.
    pub disk_full: bool,
    /// A server without a group reads what it has stored: nothing is executed before it has.
    pub loading: bool,
    /// Where its own clients reach it.
    pub clients: String,
    /// The other replicas.
    pub peers: Vec<PeerStatus>,
}

/// Where a face brings the commands of one connection.
pub struct Desk<'a, S> {
    pub(crate) gateway: &'a mut Gateway,
    pub(crate) answers: &'a mut Answers,
    pub(crate) orders: &'a mut Vec<Order>,
    pub(crate) status: &'a Status,
    pub(crate) service: &'a S,
    pub(crate) now: Now,
    /// What all threads have counted, and which one this is.
    pub(crate) tally: (&'a Tally, usize),
    /// This thread's.
    pub(crate) connections: usize,
}

impl<S: StateMachine> Desk<'_, S> {
    /// Submits a command that changes the state: `push` appends it to a batch. Returns `false`,
    /// without calling `push`, if it must wait: the face then answers [`Step::Wait`].
    pub fn write(&mut self, note: Note, push: impl FnOnce(&mut Vec<u8>)) -> bool {
        self.gateway.submit(Lane::Write, self.now, self.answers, note, push)
    }

    /// Submits a command that only reads, like [`Desk::write`]. It is linearizable; if writes of
    /// the connection are unanswered it goes through the log behind them.
    pub fn read(&mut self, note: Note, push: impl FnOnce(&mut Vec<u8>)) -> bool {
        self.gateway.submit(Lane::Read, self.now, self.answers, note, push)
    }

    /// Answers a command here and now: `write` appends the answer, which leaves after those of the
    /// commands before it.
    pub fn answer(&mut self, write: impl FnOnce(&mut Vec<u8>)) {
        self.answers.answer_now(write);
    }

    /// What the answers to the connection's commands promise: the group's durability, or `sync`.
    pub fn durability(&self) -> Durability {
        match self.answers.durable {
            true => Durability::Sync,
            false => self.gateway.durability(),
        }
    }

    /// Asks for another durability from the next command on. Returns whether the group can give it:
    /// its own, or `sync` if that is `lazy`. With `sync` a read waits, too, until what it has seen
    /// is durable.
    pub fn set_durability(&mut self, wanted: Durability) -> bool {
        let group = self.gateway.durability();
        let raised = (group, wanted) == (Durability::Lazy, Durability::Sync);
        if wanted == group || raised {
            self.answers.durable = raised;
        }
        wanted == group || raised
    }

    /// The connection's last write and whether no crash with disks intact can take it back. The
    /// viewstamp is zero before the first one. `None` if earlier commands are unanswered: the face
    /// then answers [`Step::Wait`].
    pub fn last_write(&mut self) -> Option<(Viewstamp, bool)> {
        let answers = &mut *self.answers;
        if answers.unanswered_reads + answers.unanswered_writes > 0 {
            return None;
        }
        Some((answers.written, self.gateway.is_durable(answers.written.op)))
    }

    /// Waits until all that the connection has written is durable, for up to `patience`
    /// microseconds: [`Face::durable`] answers, and the connection's next write waits for that.
    /// `Some(true)` if it is so already, and `None` if earlier commands must be answered first: the
    /// face answers [`Step::Wait`].
    pub fn ask_durable(&mut self, note: Note, patience: Option<u64>) -> Option<bool> {
        self.gateway.ask_durable(self.now, self.answers, note, patience)
    }

    /// How many commands of this connection have not been answered.
    pub fn unanswered(&self) -> u64 {
        self.answers.unanswered()
    }

    /// Asks something of the node, to be done at the end of the turn.
    pub fn order(&mut self, order: Order) {
        self.orders.push(order);
    }

    /// The replica's state.
    pub fn status(&self) -> &Status {
        self.status
    }

    /// The service as this replica holds it: neither the newest state nor committed. For figures
    /// only.
    pub fn service(&self) -> &S {
        self.service
    }

    fn counted(&self) -> Share {
        let (tally, thread) = self.tally;
        let (connections, counters) = (self.connections, self.gateway.counters);
        tally.sum(thread, Share { connections, counters })
    }

    /// What the process has counted. What other threads have counted since their last turns is
    /// missing: nothing that they have answered.
    pub fn counters(&self) -> Counters {
        self.counted().counters
    }

    /// Client connections of the process.
    pub fn connections(&self) -> usize {
        self.counted().connections
    }

    /// The time.
    pub fn now(&self) -> Now {
        self.now
    }
}

/// A protocol between clients and a service.
pub trait Face {
    /// The service whose requests it makes.
    type Service: StateMachine;
    /// What it keeps for each connection.
    type Session;

    /// A connection was accepted from the address `from` at an entrance: 0 is
    /// [`Options::clients`](crate::Options::clients), from 1 on they are
    /// [`Options::side_entrances`](crate::Options::side_entrances).
    fn open(&mut self, id: ConnectionId, entrance: usize, from: &str, now: Now) -> Self::Session;

    /// Takes the command at the front of `input`, whose bytes stay the same from call to call until
    /// they are taken. Everything taken is answered exactly once: through [`Desk::answer`], or
    /// through [`Face::answer`] or [`Face::fail`] later.
    fn take(
        &mut self,
        session: &mut Self::Session,
        input: &[u8],
        desk: &mut Desk<'_, Self::Service>,
    ) -> Step;

    /// The answers to the single commands in the answer to a batch, in their order.
    fn items(answer: &[u8]) -> impl Iterator<Item = &[u8]>;

    /// Appends the answer to a command that was submitted with `note`. It is the connection's turn.
    fn answer(&mut self, session: &mut Self::Session, note: Note, item: &[u8], out: &mut Vec<u8>);

    /// Appends the answer to [`Desk::ask_durable`]: whether what was written is durable.
    fn durable(
        &mut self,
        session: &mut Self::Session,
        note: Note,
        reached: bool,
        out: &mut Vec<u8>,
    ) {
        let _ = (session, note, reached, out);
        unreachable!("the face has not asked");
    }

    /// Appends what a client is told whose command came to nothing.
    fn fail(&mut self, session: &mut Self::Session, note: Note, why: Failure, out: &mut Vec<u8>);

    /// Appends what a client is told that is turned away at an entrance because there are too many.
    fn reject(&mut self, entrance: usize, out: &mut Vec<u8>);

    /// The connection is gone.
    fn close(&mut self, id: ConnectionId, session: Self::Session);
}
