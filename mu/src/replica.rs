//! One replica: its state, and which sub-protocol handles which input.

use alloc::sync::Arc;
use alloc::vec::Vec;

use fabric::{Completion, GrantNumber, Place, Status as Ended};
use smr::contract::{Input, Output, Protocol, Report, Role, To};
use smr::{
    Content, Entry, Incarnation, Log, Now, OpNumber, Outputs, Refusal, ReplicaId, View, Viewstamp,
};

use crate::attempt::{Follower, Lead, LeadState, Stage};
use crate::config::{Config, Limits};
use crate::disk::Disk;
use crate::event::{Effect, Event, Memory, Operation, Purpose, Ticket};
use crate::join::Recovery;
use crate::layout::{self, BOARD, EXECUTED, HEAD, Head, LOG, Slot};
use crate::loss::Forgetful;
use crate::message::Message;
use crate::permission::Permissions;
use crate::recent::Recent;
use crate::replay::Replay;
use crate::rounds::Rounds;
use crate::space::Space;
use crate::transfer::{Checkpoints, Transfer};

/// The replica's output list.
pub(crate) type Out = Vec<Output<Message, Effect>>;

/// What the background plane knows of a replica.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Peer {
    /// The newest life known, from messages or from anybody's board.
    pub(crate) life: Incarnation,
    /// [Mu] 5.1.
    pub(crate) score: u8,
    pub(crate) alive: bool,
    pub(crate) heartbeat: u64,
    /// Its heartbeat was the same when it was read last.
    pub(crate) stands: bool,
    /// A read of its heartbeat is under way.
    pub(crate) reading: bool,
    /// Its log head, as read last.
    pub(crate) head: Head,
}

impl Peer {
    fn is_doubted(&self) -> bool {
        self.alive && self.stands
    }
}

/// A replica of a group that runs Mu.
#[derive(Debug)]
pub struct Replica<M> {
    pub(crate) config: Config,
    pub(crate) me: ReplicaId,
    pub(crate) memory: M,
    /// The highest number seen: as leader the own one.
    pub(crate) view: View,
    /// The number of the leader that this replica follows, or followed last.
    pub(crate) followed: View,
    pub(crate) view_changed_at: u64,
    /// The highest view in which anybody has executed anything, as far as boards said: it names the
    /// members.
    pub(crate) newest: View,
    /// The last operation executed; all that was executed is decided.
    pub(crate) executed: Viewstamp,
    /// The last operation that is never undone: in `lazy` the durable point, as far as it is known
    /// and executed here, otherwise the last one executed.
    pub(crate) stable: Viewstamp,
    /// How far the log is known to be durable, executed here or not.
    pub(crate) durable_known: OpNumber,
    /// What this replica's board says of its log.
    pub(crate) published: Head,
    /// The log above the stable point as it was handed to the disk; empty in `memory`.
    pub(crate) log: Log,
    pub(crate) disk: Disk,
    pub(crate) forgetful: Option<Forgetful>,
    /// The group has lost a log that this replica had executed: none that ends below this view is
    /// executed, but what a leader of this view or a later one calls decided under a later grant.
    pub(crate) lost: (View, GrantNumber),
    pub(crate) rolled_back: u64,
    pub(crate) risky_elections: u64,
    pub(crate) recent: Recent,
    pub(crate) peers: Vec<Peer>,
    pub(crate) followers: Vec<Follower>,
    pub(crate) lead: Lead,
    pub(crate) permissions: Permissions,
    pub(crate) replay: Replay,
    pub(crate) rounds: Rounds,
    pub(crate) recovery: Option<Recovery>,
    pub(crate) transfer: Option<Transfer>,
    pub(crate) checkpoints: Checkpoints,
    /// This replica's heartbeat.
    pub(crate) heartbeat: u64,
    /// When the background plane acts next, in [`Now::micros`].
    pub(crate) tick_at: u64,
    pub(crate) dropped: u64,
    pub(crate) space: Space,
}

/// The background plane's state, for operators and checkers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Status {
    /// By replica: the pull-score ([Mu] 5.1), 0 to 15; the own one is 15.
    pub scores: Vec<u8>,
    /// The replica that this one takes for the leader.
    pub leader: ReplicaId,
    /// By replica: it is a confirmed follower of this leader.
    pub confirmed: Vec<bool>,
    /// The oldest operation that this replica can bring others up to date from.
    pub tail: OpNumber,
    /// Whether it lost its memory and does not vote yet.
    pub recovering: bool,
    /// The members of the group as of what it has executed, a bit each.
    pub members: u16,
}

impl<M: Memory> Replica<M> {
    /// A replica that has not been started: the first input must be `Start`.
    ///
    /// # Panics
    /// If the configuration has a number out of its range.
    pub fn new(config: Config, memory: M) -> Replica<M> {
        config.check();
        let me = config.identity.replica;
        let replicas = usize::from(config.replicas);
        let peer = Peer {
            life: Incarnation(0),
            score: crate::detector::MOST,
            alive: true,
            heartbeat: 0,
            stands: false,
            reading: false,
            head: Head::default(),
        };
        let mut peers = alloc::vec![peer; replicas];
        peers[me.index()].life = config.identity.incarnation;
        Replica {
            me,
            memory,
            view: View::default(),
            followed: View::default(),
            view_changed_at: 0,
            newest: View::default(),
            executed: Viewstamp::default(),
            stable: Viewstamp::default(),
            durable_known: OpNumber(0),
            log: Log::new(Viewstamp::default()),
            disk: Disk::default(),
            forgetful: None,
            lost: (View::default(), GrantNumber(0)),
            rolled_back: 0,
            risky_elections: 0,
            published: Head::default(),
            recent: Recent::new(Viewstamp::default(), &config.limits),
            peers,
            followers: alloc::vec![Follower::default(); replicas],
            lead: Lead::default(),
            permissions: Permissions::default(),
            replay: Replay::default(),
            rounds: Rounds::default(),
            recovery: None,
            transfer: None,
            checkpoints: Checkpoints::default(),
            heartbeat: 0,
            tick_at: 0,
            dropped: 0,
            space: Space::default(),
            config,
        }
    }

    /// The background plane's state.
    pub fn status(&self) -> Status {
        Status {
            scores: self.peers.iter().map(|peer| peer.score).collect(),
            leader: self.leader(),
            confirmed: self.followers.iter().map(Follower::is_confirmed).collect(),
            tail: self.recent.base(),
            recovering: self.recovery.is_some(),
            members: self.members(),
        }
    }

    /// Whether what others do in memory is waited for, so that it should be looked at soon: grants,
    /// or the log heads of followers that hold this leader up.
    pub fn waits(&self) -> bool {
        match self.lead.state {
            LeadState::Following => false,
            LeadState::Gathering | LeadState::Preparing => true,
            LeadState::Leading => {
                self.lead.blocked_at.is_some()
                    || self
                        .followers
                        .iter()
                        .any(|follower| matches!(follower.stage, Stage::Asking | Stage::Feeding))
            }
        }
    }

    /// Replicas that seem to live and whose heartbeat stood still when it was read last. An
    /// environment that can tell whether their processes run (and not: whether it can reach them)
    /// looks after each timeout, and says so with [`Event::Halted`]. Then the score, which takes 14
    /// periods, need only find those that run and get nowhere.
    pub fn doubted(&self) -> impl Iterator<Item = ReplicaId> {
        let doubted = |id: &ReplicaId| *id != self.me && self.peers[id.index()].is_doubted();
        self.replicas().filter(doubted)
    }

    pub(crate) fn limits(&self) -> &Limits {
        &self.config.limits
    }

    pub(crate) fn replicas(&self) -> impl Iterator<Item = ReplicaId> + use<M> {
        (0..self.config.replicas).map(ReplicaId)
    }

    #[cfg(feature = "planted-bugs")]
    pub(crate) fn bug(&self, bug: crate::Bug) -> bool {
        self.config.bug == Some(bug)
    }

    /// The slot in these words, if it is whole and this operation's.
    pub(crate) fn parse(&self, op: OpNumber, words: &[u64]) -> Option<Slot> {
        #[cfg(feature = "planted-bugs")]
        return Slot::parse_with(self.config.bug, self.limits(), op, words);
        #[cfg(not(feature = "planted-bugs"))]
        Slot::parse(self.limits(), op, words)
    }

    /// As [`Replica::parse`], of words that are the slot's alone.
    pub(crate) fn whole(&self, op: OpNumber, words: Arc<[u64]>) -> Option<Slot> {
        #[cfg(feature = "planted-bugs")]
        return self.parse(op, &words);
        #[cfg(not(feature = "planted-bugs"))]
        Slot::whole(self.limits(), op, words)
    }

    /// The executor holds the state at `position`, and the log nothing of it.
    pub(crate) fn set_state(&mut self, position: Viewstamp) {
        self.executed = position;
        self.followed = self.followed.max(position.view);
        self.recent = Recent::new(position, self.limits());
        self.stable = position;
        self.durable_known = self.durable_known.max(position.op);
        self.published = Head { head: position.op, base: position.op };
        self.replay.forget(position.op);
    }

    /// Executes the next decided operation.
    pub(crate) fn execute(&mut self, entry: Arc<Entry>, out: &mut Out) {
        assert_eq!(entry.previous, self.executed, "decided values follow each other");
        self.executed = entry.viewstamp;
        self.lead.short = None; // somebody leads, or did
        if self.is_durable() {
            assert!(self.log.contains(entry.viewstamp), "what is executed was handed to the disk");
            self.durable_known = self.durable_known.max(entry.durable.op);
        }
        out.push(Output::Execute(entry));
    }

    /// What was executed is decided: it is acknowledged, and stable as far as the durability says.
    pub(crate) fn decide(&mut self, reply: bool, out: &mut Out) {
        out.push(Output::Commit { through: self.executed.op, reply });
        self.settle(out);
    }

    /// The stable point may have moved.
    pub(crate) fn settle(&mut self, out: &mut Out) {
        if !self.is_lazy() {
            self.stable = self.executed;
        } else {
            let stable = self.durable_known.min(self.executed.op);
            if stable <= self.stable.op {
                return;
            }
            self.stable = self.log.viewstamp_at(stable).expect("above what was stable");
        }
        self.log.trim(self.stable.op);
        out.push(Output::Stable(self.stable.op));
        self.checkpoint_if_due(out);
    }

    /// Says how far this replica has executed ([Mu] 5.3). What a leader's own log does not hold yet
    /// it does not claim.
    pub(crate) fn publish(&mut self, out: &mut Out) {
        let mut head = self.executed.op;
        if self.lead.state == LeadState::Leading {
            head = head.min(self.followers[self.me.index()].acked);
        }
        self.published.head = self.published.head.max(head);
        let (word, view) = (self.published.pack(), self.view_at(self.published.head));
        self.store(HEAD, word, out);
        self.store(EXECUTED, view.0, out);
        self.store(EXECUTED + 1, Self::head_seal(view, word), out);
    }

    /// The view of the operation that the log head names.
    fn view_at(&self, op: OpNumber) -> View {
        if op == self.executed.op {
            return self.executed.view;
        }
        self.recent.viewstamp_at(op).expect("a ring is kept, at least").view
    }

    /// Takes note of a replica's life. True if it is the newest known.
    pub(crate) fn meet(
        &mut self,
        now: Now,
        replica: ReplicaId,
        life: Incarnation,
        out: &mut Out,
    ) -> bool {
        if replica == self.me {
            return life <= self.config.identity.incarnation;
        }
        let known = &mut self.peers[replica.index()].life;
        if life > *known {
            let former = core::mem::replace(known, life);
            self.store(layout::known_of(replica), life.0, out);
            if former != Incarnation(0) {
                self.forget_life(now, replica, out);
            }
            return true;
        }
        life == *known
    }

    fn on_completed(&mut self, now: Now, completion: Completion, words: &[u64], out: &mut Out) {
        let ticket = Ticket::unpack(completion.id);
        let ok = completion.status == Ended::Ok;
        match ticket.purpose {
            Purpose::Pulse => self.on_pulse(now, ticket.peer, ok, words, out),
            Purpose::Grant => self.on_granted(ticket.peer, completion.grant, out),
            Purpose::Revoke => self.on_revoked(now, ticket.peer, out),
            Purpose::Ack => {}
            Purpose::Durable if !ok => self.untold(),
            Purpose::Durable => {}
            _ if self.followers[ticket.peer.index()].lease != ticket.lease => {}
            _ => self.on_step(now, ticket, completion.status, words, out),
        }
    }

    fn look(&mut self, now: Now, out: &mut Out) {
        self.serve_requests(out);
        self.note_promise(now, out);
        if self.lead.state == LeadState::Following {
            self.replay(now, out);
        } else {
            self.collect_durable(now, out);
            self.collect_grants(out);
            self.watch_heads(out);
        }
        self.check_recovered(now);
    }

    pub(crate) fn store(&self, offset: u32, value: u64, out: &mut Out) {
        out.push(Output::Effect(Effect::Store { offset, value }));
    }

    pub(crate) fn post(
        &self,
        purpose: Purpose,
        peer: ReplicaId,
        argument: u64,
        operation: Operation,
        out: &mut Out,
    ) {
        let lease = self.followers[peer.index()].lease;
        let id = Ticket { purpose, peer, lease, argument }.pack();
        out.push(Output::Effect(Effect::Post(id, operation)));
    }

    /// Writes a word of a follower's log under its grant.
    pub(crate) fn write_log(
        &self,
        purpose: Purpose,
        to: ReplicaId,
        offset: u32,
        value: u64,
        out: &mut Out,
    ) {
        let under = self.followers[to.index()].grant;
        let to_place = Place { process: to, region: LOG, offset };
        let operation = Operation::Write { to: to_place, under, words: [value, 0], count: 1 };
        self.post(purpose, to, value & ((1 << 40) - 1), operation, out);
    }

    /// Writes words of a replica's board.
    pub(crate) fn write_board(
        &self,
        purpose: Purpose,
        to: ReplicaId,
        offset: u32,
        words: &[u64],
        out: &mut Out,
    ) {
        let mut both = [0; 2];
        both[..words.len()].copy_from_slice(words);
        let to_place = Place { process: to, region: BOARD, offset };
        let (under, count) = (GrantNumber(0), words.len() as u8);
        let operation = Operation::Write { to: to_place, under, words: both, count };
        self.post(purpose, to, 0, operation, out);
    }

    pub(crate) fn send(&self, to: ReplicaId, message: Message, out: &mut Out) {
        out.push(Output::Send(To::One(to), message));
    }
}

impl<M: Memory> Protocol for Replica<M> {
    type Message = Message;
    type Event = Event;
    type Effect = Effect;

    fn step(&mut self, now: Now, input: Input<Message, Event>, out: &mut Outputs<Self>) {
        match input {
            Input::Start(recovered) => self.start(now, recovered, out),
            Input::Message { from, incarnation, message } => {
                self.on_message(now, from, incarnation, message, out);
            }
            Input::Request(request) => self.on_request(request),
            Input::Propose => self.propose(now, out),
            Input::Read(read) => self.on_read(now, read, out),
            Input::Flush => self.hurry(out),
            Input::Stored(number) => self.on_stored(now, number, out),
            Input::CheckpointWritten { position, .. } => self.on_checkpoint_written(position),
            Input::CheckpointChunk { to, chunk } => self.on_checkpoint_chunk(to, chunk, out),
            Input::StateInstalled(position) => self.on_state_installed(now, position, out),
            Input::Timeout => self.tick(now, out),
            Input::Event(Event::Look) => self.look(now, out),
            Input::Event(Event::Halted(replica)) => self.on_halted(now, replica, out),
            Input::Event(Event::Change(change)) => self.on_change(now, change, out),
            Input::Event(Event::Completed { completion, words }) => {
                self.on_completed(now, completion, &words, out);
            }
        }
        assert!(self.executed.op <= self.recent.last().op, "what was executed is known");
        assert!(self.stable.op <= self.executed.op, "only what was executed is stable");
    }

    fn deadline(&self) -> Option<u64> {
        Some(self.tick_at)
    }

    fn admission(&self) -> Result<(), Refusal> {
        if self.is_open() {
            return Ok(());
        }
        match self.role() {
            Role::StateLost => Err(Refusal::StateLost),
            Role::Recovering => Err(Refusal::Recovering),
            _ => Err(Refusal::NotPrimary),
        }
    }

    /// A number that this replica has picked and did not lead under is nobody's view.
    fn view(&self) -> View {
        match self.lead.state {
            LeadState::Following => self.followed,
            _ => self.view,
        }
    }

    fn durable(&self) -> Viewstamp {
        if self.is_durable() { self.stable } else { Viewstamp::default() }
    }

    fn report(&self) -> Report {
        let lazy = self.is_lazy();
        let oldest = self.log.get(self.stable.op.next()).filter(|_| lazy);
        let lag_since = oldest.map_or(0, |entry| match &entry.content {
            Content::Batch { unix_ms, .. } => *unix_ms,
            Content::ViewStart => 0,
        });
        Report {
            role: self.role(),
            durability: self.config.durability,
            view: self.view(),
            op: self.recent.last(),
            commit: self.executed.op,
            disk: self.disk.stores.disk(),
            durable: self.durable(),
            checkpoint: self.checkpoints.written,
            lag_bytes: if lazy { self.log.bytes() } else { 0 },
            lag_since,
            forgetful: self.forgetful.is_some(),
            rolled_back: self.rolled_back,
            risky_elections: self.risky_elections,
            view_changed_at: self.view_changed_at,
            dropped: self.dropped,
        }
    }
}

impl<M: Memory> Replica<M> {
    /// Whether requests are taken: this replica leads, and its first entry is decided.
    pub(crate) fn is_open(&self) -> bool {
        self.lead.state == LeadState::Leading && self.executed.op >= self.lead.start
    }

    fn role(&self) -> Role {
        match &self.recovery {
            Some(recovery) if recovery.is_hopeless() => Role::StateLost,
            Some(_) => Role::Recovering,
            None if self.is_open() => Role::Primary,
            None if self.lead.state == LeadState::Following => Role::Backup,
            None => Role::ViewChange,
        }
    }
}
