//! The contract between a protocol and whatever runs it (the node or the simulator): inputs in, an
//! ordered list of outputs out. A protocol does no I/O and reads no clock.
//!
//! The common core is closed. What only one family of protocols needs (control of a sequencer's
//! session, one-sided verbs) is that protocol's own [`Protocol::Event`] and [`Protocol::Effect`].
//! Deliberately absent until a protocol needs it: execution on another thread (an `Executed`
//! input).

use alloc::sync::Arc;
use alloc::vec::Vec;
use bytes::Bytes;

use crate::ids::{
    ClientId, Durability, GroupId, Incarnation, Now, OpNumber, ReadNumber, ReplicaId,
    RequestNumber, StoreNumber, View, Viewstamp,
};
use crate::lineage::Lineage;
use crate::log::{Entry, Log};
use crate::request::{Refusal, Request};

/// Who a replica is. All of it is on disk before the replica speaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Identity {
    /// Its group.
    pub group: GroupId,
    /// Its place in the group.
    pub replica: ReplicaId,
    /// Which of its lives this is, from 1.
    pub incarnation: Incarnation,
}

/// How far a replica may believe its disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Trust {
    /// The group has just been created: an empty disk is the truth.
    New,
    /// Everything that was reported stored is there.
    Intact,
    /// Something that was reported stored may be missing (a new disk, a corrupt record): the
    /// replica must recover from the others before it votes or acknowledges.
    Lost,
}

/// What the disk held when the replica started.
#[derive(Clone, Debug)]
pub struct Recovered {
    /// How far to believe it.
    pub trust: Trust,
    /// The highest view that was stored.
    pub view: View,
    /// The entries above the checkpoint (or above nothing).
    pub log: Log,
    /// The checkpoint that the environment has loaded into the executor.
    pub checkpoint: Option<Viewstamp>,
}

/// An atomic, ordered change of the disk: after a crash all of it is there, or none.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoreBatch {
    /// Answered by `Stored` with this number or a higher one.
    pub number: StoreNumber,
    /// The log is replaced by an empty one on this base (after a state transfer).
    pub reset: Option<Viewstamp>,
    /// First drop all entries above this number,
    pub truncate: Option<OpNumber>,
    /// then append these,
    pub append: Vec<Arc<Entry>>,
    /// and adopt this view. Views only grow.
    pub view: Option<View>,
    /// Entries up to this number are not needed again: a checkpoint covers them. Space may be
    /// reclaimed at any time afterwards.
    pub trim: Option<OpNumber>,
}

/// What happens to a protocol.
#[derive(Debug)]
pub enum Input<M, E> {
    /// The first input: what the disk held.
    Start(Recovered),
    /// A message of another replica of the group.
    Message {
        /// Its sender.
        from: ReplicaId,
        /// The sender's life, from the frame.
        incarnation: Incarnation,
        /// What it says.
        message: M,
    },
    /// A client's request, admitted by the host. Only while [`Protocol::admission`] is open.
    /// [`Input::Propose`] follows within the same call, after other requests at hand.
    Request(Request),
    /// There are no more requests at hand: what came may share an entry.
    Propose,
    /// A read arrived. Only while [`Protocol::admission`] is open.
    Read(ReadNumber),
    /// A client waits until what was requested is durable.
    Flush,
    /// Every batch up to this one is on disk.
    Stored(StoreNumber),
    /// The checkpoint that was asked for, or a later one, is complete on disk.
    CheckpointWritten {
        /// Where it stands.
        position: Viewstamp,
        /// Its size, in bytes.
        bytes: u64,
    },
    /// A piece of the checkpoint on disk, as asked for by [`Output::ReadCheckpoint`]. `None` if
    /// there is no checkpoint, or the one asked for is gone.
    CheckpointChunk {
        /// For whom it was read.
        to: ReplicaId,
        /// The piece.
        chunk: Option<CheckpointChunk>,
    },
    /// The transferred checkpoint is on disk and in the executor; or it was damaged (`None`).
    StateInstalled(Option<Viewstamp>),
    /// The deadline has passed.
    Timeout,
    /// Something of the protocol's own family.
    Event(E),
}

/// A piece of a checkpoint file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CheckpointChunk {
    /// Which checkpoint.
    pub position: Viewstamp,
    /// Where in the file, in bytes.
    pub offset: u64,
    /// The file's length in bytes.
    pub total: u64,
    /// The bytes.
    pub bytes: Bytes,
}

/// To whom a message goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum To {
    /// One replica.
    One(ReplicaId),
    /// Every other replica of the group.
    Others,
}

/// What a protocol wants done. The order of the list matters.
#[derive(Debug)]
pub enum Output<M, F> {
    /// Send a message. It may be lost, delayed, duplicated and overtaken.
    Send(To, M),
    /// Change the disk. Where nobody waits for that (durability `lazy`), a moment later will do.
    Store(StoreBatch),
    /// Somebody waits for what was to be stored so far.
    Flush,
    /// Execute the next entry, so that it can be undone.
    Execute(Arc<Entry>),
    /// Answer the requests of this executed operation before it is committed: the client counts
    /// who has it, and decides ([NOPaxos] 5.2.1).
    Answer(OpNumber),
    /// Tell a client that its request was not executed since it expected another view's log, and
    /// what of that is in this one ([`crate::Outcome::WrongView`]).
    WrongView {
        /// Whose request.
        client: ClientId,
        /// Which of them.
        number: RequestNumber,
        /// The view whose log the client has seen.
        expected: View,
    },
    /// Everything executed up to this number is acknowledged. The replies go to the clients if
    /// `reply`.
    Commit {
        /// The last committed operation.
        through: OpNumber,
        /// Whether this replica answers the clients.
        reply: bool,
    },
    /// Everything committed up to this number will never be rolled back: forget how to undo it, and
    /// answer those who waited for that.
    Stable(OpNumber),
    /// Undo every executed entry above this number, none of which is stable.
    Rollback(OpNumber),
    /// All reads up to this number may be executed now: leadership was confirmed after they came.
    ReadReady(ReadNumber),
    /// Leadership is gone: what is unanswered must be asked elsewhere.
    Deposed,
    /// Write a checkpoint of the stable state, which is at this position.
    WriteCheckpoint(Viewstamp),
    /// Read a piece of the checkpoint on disk for a replica that fetches it.
    ReadCheckpoint {
        /// For whom.
        to: ReplicaId,
        /// Which checkpoint, or the newest.
        position: Option<Viewstamp>,
        /// From which byte.
        offset: u64,
    },
    /// Keep a piece of another replica's checkpoint. Pieces come in order from offset zero.
    SaveChunk(CheckpointChunk),
    /// Put the saved checkpoint in the place of the state and of the checkpoint on disk.
    InstallState(Viewstamp),
    /// Something of the protocol's own family.
    Effect(F),
}

/// A protocol's output list.
pub type Outputs<P> = Vec<Output<<P as Protocol>::Message, <P as Protocol>::Effect>>;
/// A protocol's input.
pub type InputOf<P> = Input<<P as Protocol>::Message, <P as Protocol>::Event>;

/// A replication protocol: a deterministic state machine.
pub trait Protocol {
    /// What its replicas say to each other.
    type Message: Clone + core::fmt::Debug;
    /// Inputs of its family alone; `core::convert::Infallible` for none.
    type Event;
    /// Outputs of its family alone; `core::convert::Infallible` for none.
    type Effect;

    /// Takes one input and appends what follows from it to `out`.
    fn step(&mut self, now: Now, input: InputOf<Self>, out: &mut Outputs<Self>);

    /// Which operations the executor holds, told before [`Input::Start`] and
    /// [`Input::StateInstalled`]: a checkpoint says no more than its position otherwise.
    fn loaded(&mut self, _lineage: &Lineage) {}

    /// When `Timeout` is due, in [`Now::micros`].
    fn deadline(&self) -> Option<u64>;

    /// Whether requests and reads are taken here and now.
    ///
    /// # Errors
    /// Why they are not.
    fn admission(&self) -> Result<(), Refusal>;

    /// The view that replies carry.
    fn view(&self) -> View;

    /// The durable point that replies carry (dp, [Mao] 4.2.2).
    fn durable(&self) -> Viewstamp;

    /// For operators.
    fn report(&self) -> Report;
}

/// What a replica is doing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// Leads its view.
    Primary,
    /// Follows its view's primary.
    Backup,
    /// Takes part in an election, or waits for one.
    ViewChange,
    /// Restarted without its state; fetches it from the others and votes for nothing.
    Recovering,
    /// More than f replicas have lost their state: an operator must accept the loss.
    StateLost,
}

impl Role {
    /// The word that operators see.
    pub fn name(self) -> &'static str {
        match self {
            Role::Primary => "primary",
            Role::Backup => "backup",
            Role::ViewChange => "view-change",
            Role::Recovering => "recovering",
            Role::StateLost => "state-lost",
        }
    }
}

/// A replica's state for operators and checkers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Report {
    /// What it is doing.
    pub role: Role,
    /// What its acknowledgements mean.
    pub durability: Durability,
    /// The highest view it has seen.
    pub view: View,
    /// The last operation in its log (opMax).
    pub op: Viewstamp,
    /// The last operation it knows to be committed.
    pub commit: OpNumber,
    /// The last operation on its own disk (diskOpMax).
    pub disk: Viewstamp,
    /// The durable point it knows (dp).
    pub durable: Viewstamp,
    /// The position of its newest checkpoint.
    pub checkpoint: Viewstamp,
    /// Bytes of the log's entries above the durable point (durability `lazy`).
    pub lag_bytes: usize,
    /// The primary's wall clock when it proposed the oldest of them, in milliseconds since 1970; 0
    /// if there is none, or it is a view's first.
    pub lag_since: u64,
    /// Whether it restarted and may have forgotten what it acknowledged (durability `lazy`).
    pub forgetful: bool,
    /// Acknowledged operations that it has rolled back since it started.
    pub rolled_back: u64,
    /// Elections that it won since it started and that may have cost acknowledged operations: more
    /// than f replicas were forgetful or did not answer.
    pub risky_elections: u64,
    /// When its view last changed, in [`Now::micros`].
    pub view_changed_at: u64,
    /// Messages dropped because they made no sense or came from a former life.
    pub dropped: u64,
}
