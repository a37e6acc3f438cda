//! One replica: its state, and which sub-protocol handles which input.

use alloc::collections::VecDeque;
use alloc::vec::Vec;
use core::convert::Infallible;

use smr::contract::{Input, Output, Protocol, Recovered, Report, Role, To, Trust};
use smr::rng::Rng;
use smr::stores::Stores;
use smr::{
    Content, Durability, Incarnation, Log, Now, OpNumber, Outputs, Refusal, ReplicaId, Request,
    View, Viewstamp,
};

use crate::config::Config;
use crate::forgetful::Forgetful;
use crate::message::{Incarnations, Message};
use crate::recovery::Recovery;
use crate::resync::CatchUp;
use crate::storage::Change;
use crate::transfer::Transfer;
use crate::view_change::Election;

/// The replica's output list.
pub(crate) type Out = Outputs<Replica>;

/// A set of replicas by id.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct ReplicaSet(u16);

impl ReplicaSet {
    pub(crate) fn of(replica: ReplicaId) -> ReplicaSet {
        ReplicaSet(1 << replica.0)
    }

    pub(crate) fn has(self, replica: ReplicaId) -> bool {
        self.0 & (1 << replica.0) != 0
    }

    pub(crate) fn insert(&mut self, replica: ReplicaId) {
        self.0 |= 1 << replica.0;
    }

    pub(crate) fn remove(&mut self, replica: ReplicaId) {
        self.0 &= !(1 << replica.0);
    }

    pub(crate) fn len(self) -> usize {
        self.0.count_ones() as usize
    }
}

/// What this replica knows of another one. What it counted for the present view is forgotten when
/// the view changes or the other starts a new life.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Peer {
    /// The newest life known.
    pub(crate) incarnation: Incarnation,
    /// The last operation it acknowledged in this view.
    pub(crate) acknowledged: OpNumber,
    /// The last operation on its disk (diskOpMax), of this view.
    pub(crate) disk: Viewstamp,
    /// The newest read round it confirmed in this view.
    pub(crate) round: u64,
    /// When it last answered in this view, in [`Now::micros`].
    pub(crate) heard_at: u64,
}

/// A replica of a group that runs viewstamped replication.
#[derive(Debug)]
pub struct Replica {
    pub(crate) config: Config,
    pub(crate) me: ReplicaId,
    pub(crate) role: Role,
    /// v: the highest view seen. It only grows.
    pub(crate) view: View,
    pub(crate) view_changed_at: u64,
    pub(crate) log: Log,
    pub(crate) commit: OpNumber,
    /// What will never be rolled back: `commit`, or in `lazy` what `durable` covers.
    pub(crate) stable: OpNumber,
    /// dp.
    pub(crate) durable: Viewstamp,
    /// Bytes of the entries above `durable`.
    pub(crate) lag_bytes: usize,
    /// Every replica holds the log up to here, on disk unless in `memory` (dpMin).
    pub(crate) all_have: OpNumber,
    pub(crate) peers: Vec<Peer>,
    pub(crate) stores: Stores,
    /// Whether this replica leads `view`: from its election until it is deposed or gives up.
    pub(crate) leading: bool,
    /// The first operation of the view that it leads.
    pub(crate) view_start: OpNumber,
    pub(crate) pending: VecDeque<Request>,
    /// A client waits until what is pending or proposed is durable.
    pub(crate) flush_wanted: bool,
    pub(crate) reads: crate::reads::Reads,
    pub(crate) election: Election,
    pub(crate) catch_up: Option<CatchUp>,
    pub(crate) transfer: Option<Transfer>,
    pub(crate) recovery: Option<Recovery>,
    /// This replica restarted in `lazy` and may have forgotten what it acknowledged.
    pub(crate) forgetful: Option<Forgetful>,
    /// Acknowledged operations rolled back since the start.
    pub(crate) rolled_back: u64,
    /// Elections won since the start that may have cost acknowledged operations.
    pub(crate) risky_elections: u64,
    pub(crate) checkpoints: crate::checkpoint::Checkpoints,
    /// When a leader speaks next, in [`Now::micros`].
    pub(crate) heartbeat_at: u64,
    /// When a backup last heard its primary.
    pub(crate) primary_heard_at: u64,
    pub(crate) rng: Rng,
    pub(crate) dropped: u64,
}

impl Replica {
    /// A replica that has not been started: the first input must be `Start`.
    ///
    /// # Panics
    /// If the configuration names a group that cannot be.
    pub fn new(config: Config) -> Replica {
        let me = config.identity.replica;
        assert!((1..=smr::MAX_REPLICAS).contains(&config.replicas), "1 to 9 replicas");
        assert!(me.0 < config.replicas, "the replica is one of its group");
        let mut peers = alloc::vec![Peer::default(); usize::from(config.replicas)];
        peers[me.index()].incarnation = config.identity.incarnation;
        Replica {
            config,
            me,
            role: Role::ViewChange,
            view: View::default(),
            view_changed_at: 0,
            log: Log::new(Viewstamp::default()),
            commit: OpNumber(0),
            stable: OpNumber(0),
            durable: Viewstamp::default(),
            lag_bytes: 0,
            all_have: OpNumber(0),
            peers,
            stores: Stores::default(),
            leading: false,
            view_start: OpNumber(0),
            pending: VecDeque::new(),
            flush_wanted: false,
            reads: crate::reads::Reads::default(),
            election: Election::default(),
            catch_up: None,
            transfer: None,
            recovery: None,
            forgetful: None,
            rolled_back: 0,
            risky_elections: 0,
            checkpoints: crate::checkpoint::Checkpoints::default(),
            heartbeat_at: 0,
            primary_heard_at: 0,
            rng: Rng::new(config.seed ^ (config.identity.incarnation.0 << 8) ^ u64::from(me.0)),
            dropped: 0,
        }
    }

    /// How many entries the log holds in memory.
    pub fn log_len(&self) -> usize {
        self.log.len()
    }

    /// f + 1 of 2f + 1.
    pub(crate) fn quorum(&self) -> usize {
        usize::from(self.config.replicas) / 2 + 1
    }

    /// Whether an acknowledgement waits for the disk.
    pub(crate) fn sync(&self) -> bool {
        self.config.durability == Durability::Sync
    }

    /// Whether what is acknowledged may have to be rolled back.
    pub(crate) fn lazy(&self) -> bool {
        self.config.durability == Durability::Lazy
    }

    /// Whether entries go to the disk at all.
    pub(crate) fn logs(&self) -> bool {
        self.config.durability != Durability::Memory
    }

    pub(crate) fn incarnations(&self) -> Incarnations {
        self.peers.iter().map(|peer| peer.incarnation).collect()
    }

    #[cfg(feature = "planted-bugs")]
    pub(crate) fn bug(&self, bug: crate::Bug) -> bool {
        self.config.bug == Some(bug)
    }

    /// The quorum-th largest of one value per replica.
    pub(crate) fn quorum_value<T: Ord + Copy>(&self, value: impl Fn(ReplicaId) -> T) -> T {
        let mut values = [value(self.me); smr::MAX_REPLICAS as usize];
        let values = &mut values[..usize::from(self.config.replicas)];
        for (id, slot) in (0..).zip(values.iter_mut()) {
            *slot = value(ReplicaId(id));
        }
        values.sort_unstable_by(|a, b| b.cmp(a));
        #[cfg(feature = "planted-bugs")]
        if self.bug(crate::Bug::CommitOnMinority) {
            return values[self.quorum().saturating_sub(2)];
        }
        values[self.quorum() - 1]
    }

    fn start(&mut self, now: Now, recovered: Recovered, out: &mut Out) {
        let base = recovered.checkpoint.unwrap_or_default();
        // A transferred checkpoint may have reached the disk without the view that came with it.
        self.view = recovered.view.max(base.view);
        self.view_changed_at = now.micros;
        self.checkpoints.written = base;
        self.commit = base.op;
        self.stable = base.op;
        self.durable = if self.logs() { base } else { Viewstamp::default() };
        let forgetful = recovered.trust == Trust::Lost
            || (self.config.durability == Durability::Memory && recovered.trust != Trust::New);
        if forgetful {
            self.log = Log::new(base);
            let disk = if self.logs() { base } else { Viewstamp::default() };
            self.stores.start(recovered.view, disk);
            self.start_recovery(now, out);
            return;
        }
        assert_eq!(recovered.log.base(), base, "the log begins where the checkpoint ends");
        self.log = recovered.log;
        #[cfg(feature = "planted-bugs")]
        self.drop_tentative();
        self.stores.start(recovered.view, self.log.last());
        #[cfg(feature = "planted-bugs")]
        if self.lazy() && self.bug(crate::Bug::TentativeDroppedOnRestart) {
            let truncate = Some(self.log.last().op);
            self.store(now, Change { truncate, ..Change::default() }, out);
        }
        self.store(now, Change::default(), out);
        let entries: Vec<_> = self.log.above(base.op).cloned().collect();
        if self.lazy() {
            self.lag_bytes = entries.iter().map(|entry| entry.size()).sum();
        }
        for entry in entries {
            let (commit, durable) = (entry.commit, entry.durable);
            out.push(Output::Execute(entry));
            // In step with the execution, so that not all of it has to be undoable at once.
            self.learn_commit(commit, out);
            self.learn_durable(durable, out);
        }
        if self.lazy() && recovered.trust != Trust::New {
            self.forget(now);
        }
        // A new group's first replica has nobody to wait for.
        let first = recovered.trust == Trust::New && self.me == ReplicaId(0);
        self.election.due_at = if first || self.config.replicas == 1 {
            now.micros
        } else {
            now.micros + self.config.timing.election / 2 + self.jitter()
        };
    }

    #[cfg(feature = "planted-bugs")]
    fn drop_tentative(&mut self) {
        if self.lazy() && self.bug(crate::Bug::TentativeDroppedOnRestart) {
            let base = self.log.base();
            let known = self.log.above(base.op).map(|entry| entry.durable).max();
            self.log.truncate(known.unwrap_or(base).max(base).op);
        }
    }

    fn on_message(
        &mut self,
        now: Now,
        from: ReplicaId,
        incarnation: Incarnation,
        message: Message,
        out: &mut Out,
    ) {
        if from == self.me || from.0 >= self.config.replicas || !self.meet(from, incarnation) {
            self.dropped += 1;
            return;
        }
        if self.recovery.is_some() && !self.allowed_while_recovering(&message) {
            return;
        }
        match message {
            Message::Prepare { entry, all_have, round } => {
                self.on_prepare(now, from, entry, all_have, round, out);
            }
            Message::PrepareOk { view, op, disk, round, incarnations } => {
                if self.merge(from, incarnation, &incarnations) {
                    self.on_prepare_ok(now, from, view, op, disk, round, out);
                }
            }
            Message::Commit { view, last, commit, durable, all_have, round } => {
                self.all_have = if view == self.view { all_have } else { self.all_have };
                self.on_commit(now, from, view, last, commit, durable, round, out);
            }
            Message::Flush { view } if view == self.view && from == view.primary() => {
                out.push(Output::Flush);
            }
            Message::Flush { .. } => {}
            Message::PreVote { attempt, last } => self.on_pre_vote(now, from, attempt, last, out),
            Message::PreVoteOk { attempt, view } => {
                self.on_pre_vote_ok(now, from, attempt, view, out);
            }
            Message::ElectPrepare { view, last } => {
                self.on_elect_prepare(now, from, view, last, out);
            }
            Message::ElectPrepareOk { view, forgetful, incarnations } => {
                if self.merge(from, incarnation, &incarnations) {
                    self.on_elect_prepare_ok(now, from, view, forgetful, out);
                }
            }
            Message::ElectRefuse { view } => self.on_elect_refuse(view),
            Message::ElectAccept { entry } => self.on_elect_accept(now, from, entry, out),
            Message::StaleView { view } => self.on_stale_view(now, view, out),
            other => self.on_resync_message(now, from, incarnation, other, out),
        }
    }

    fn on_resync_message(
        &mut self,
        now: Now,
        from: ReplicaId,
        incarnation: Incarnation,
        message: Message,
        out: &mut Out,
    ) {
        match message {
            Message::CatchUp { view, tails } => self.on_catch_up(now, from, view, &tails, out),
            Message::CatchUpOk { view, last, commit, entries } => {
                self.on_catch_up_ok(now, from, view, last, commit, entries, out);
            }
            Message::NeedState { view } => self.on_need_state(now, from, view, out),
            Message::FetchState { position, offset } => {
                self.on_fetch_state(now, from, position, offset, out);
            }
            Message::StateChunk(chunk) => self.on_state_chunk(now, from, chunk, out),
            Message::StateGone => self.on_state_gone(from),
            Message::Recovery { attempt } => self.on_recovery(from, attempt, out),
            Message::RecoveryOk { attempt, view, last, standing, incarnations } => {
                if !self.merge(from, incarnation, &incarnations) {
                    return;
                }
                if self.recovery.is_some() {
                    self.on_recovery_ok(now, from, attempt, view, last, standing, out);
                } else {
                    self.on_reminder(attempt, view, last, standing);
                }
            }
            _ => unreachable!("on_message handles the rest"),
        }
    }

    /// Notes the sender's life. False for a message of a former one.
    fn meet(&mut self, from: ReplicaId, incarnation: Incarnation) -> bool {
        #[cfg(feature = "planted-bugs")]
        if self.bug(crate::Bug::IncarnationIgnored) {
            return true;
        }
        let known = &mut self.peers[from.index()];
        if incarnation > known.incarnation {
            *known = Peer { incarnation, heard_at: known.heard_at, ..Peer::default() };
            self.election.forget(from);
        }
        incarnation == known.incarnation
    }

    /// Takes over what the sender of a quorum message knows of everybody's lives, dropping what was
    /// counted for former ones (diskless recovery). False if the message itself is of one.
    fn merge(&mut self, from: ReplicaId, incarnation: Incarnation, theirs: &Incarnations) -> bool {
        for (id, &life) in theirs.iter().enumerate().take(self.peers.len()) {
            if id != self.me.index() && life > self.peers[id].incarnation {
                self.meet(ReplicaId(id as u8), life);
            }
        }
        #[cfg(feature = "planted-bugs")]
        if self.bug(crate::Bug::IncarnationIgnored) {
            return true;
        }
        self.peers[from.index()].incarnation == incarnation
    }

    fn on_timeout(&mut self, now: Now, out: &mut Out) {
        if self.recovery.is_some() {
            self.recovery_timeout(now, out);
        } else if self.leading {
            self.leader_timeout(now, out);
        } else if now.micros >= self.election.due_at {
            self.election_timeout(now, out);
        }
        self.resync_timeout(now, out);
        self.transfer_timeout(now, out);
        self.forgetful_timeout(now, out);
    }

    /// Enters a higher view: what was counted for the old one is void.
    pub(crate) fn set_view(&mut self, now: Now, view: View, out: &mut Out) {
        assert!(view > self.view, "views only grow");
        self.give_up_lead(out);
        self.view = view;
        self.view_changed_at = now.micros;
        if self.recovery.is_none() {
            self.role = Role::ViewChange;
        }
        for peer in &mut self.peers {
            *peer = Peer { incarnation: peer.incarnation, ..Peer::default() };
        }
        self.election.leave();
        self.reads = crate::reads::Reads::default(); // rounds are counted per view
        self.catch_up = None;
    }

    /// Stops leading, if this replica does.
    pub(crate) fn give_up_lead(&mut self, out: &mut Out) {
        if self.leading {
            self.leading = false;
            self.role = Role::ViewChange;
            self.pending.clear();
            self.flush_wanted = false;
            self.reads.clear();
            out.push(Output::Deposed);
        }
    }

    pub(crate) fn jitter(&mut self) -> u64 {
        self.rng.below(self.config.timing.election_jitter.max(1))
    }

    pub(crate) fn send(&self, to: ReplicaId, message: Message, out: &mut Out) {
        out.push(Output::Send(To::One(to), message));
    }

    pub(crate) fn broadcast(&self, message: Message, out: &mut Out) {
        if self.config.replicas > 1 {
            out.push(Output::Send(To::Others, message));
        }
    }
}

impl Protocol for Replica {
    type Message = Message;
    type Event = Infallible;
    type Effect = Infallible;

    fn step(&mut self, now: Now, input: Input<Message, Infallible>, out: &mut Out) {
        match input {
            Input::Start(recovered) => self.start(now, recovered, out),
            Input::Message { from, incarnation, message } => {
                self.on_message(now, from, incarnation, message, out);
            }
            Input::Request(request) => self.on_request(request),
            Input::Propose => self.propose(now, out),
            Input::Read(read) => self.on_read(read, out),
            Input::Flush => {
                self.flush_wanted = true;
                self.flush(out);
            }
            Input::Stored(number) => self.on_stored(now, number, out),
            Input::CheckpointWritten { position, bytes } => {
                self.on_checkpoint_written(position, bytes);
            }
            Input::CheckpointChunk { to, chunk } => self.on_checkpoint_chunk(to, chunk, out),
            Input::StateInstalled(position) => self.on_state_installed(now, position, out),
            Input::Timeout => self.on_timeout(now, out),
            Input::Event(never) => match never {},
        }
        assert!(self.log.last().view <= self.view, "entries are of views that were entered");
        assert!(self.commit <= self.log.last().op, "what is committed is in the log");
        assert!(self.stable <= self.commit, "what is stable is committed");
    }

    fn deadline(&self) -> Option<u64> {
        let duty = match &self.recovery {
            Some(recovery) => recovery.retry_at,
            None if self.leading => self.heartbeat_at,
            None => self.election.due_at,
        };
        let catch_up = self.catch_up.as_ref().map(|catch_up| catch_up.retry_at);
        let transfer = self.transfer.as_ref().and_then(|transfer| transfer.fetch.deadline());
        let forgetful = self.forgetful.as_ref().map(|forgetful| forgetful.retry_at);
        [Some(duty), catch_up, transfer, forgetful].into_iter().flatten().min()
    }

    fn admission(&self) -> Result<(), Refusal> {
        match self.role {
            Role::Primary => Ok(()),
            Role::Recovering => Err(Refusal::Recovering),
            Role::StateLost => Err(Refusal::StateLost),
            Role::Backup | Role::ViewChange => Err(Refusal::NotPrimary),
        }
    }

    fn view(&self) -> View {
        self.view
    }

    fn durable(&self) -> Viewstamp {
        self.durable
    }

    fn report(&self) -> Report {
        let tentative = self.log.get(self.durable.op.next()).filter(|_| self.logs());
        let since = tentative.map_or(0, |entry| match entry.content {
            Content::Batch { unix_ms, .. } => unix_ms,
            Content::ViewStart => 0,
        });
        Report {
            role: self.role,
            durability: self.config.durability,
            view: self.view,
            op: self.log.last(),
            commit: self.commit,
            disk: self.stores.disk(),
            durable: self.durable,
            checkpoint: self.checkpoints.written,
            lag_bytes: self.lag_bytes,
            lag_since: since,
            forgetful: self.forgetful.is_some(),
            rolled_back: self.rolled_back,
            risky_elections: self.risky_elections,
            view_changed_at: self.view_changed_at,
            dropped: self.dropped,
        }
    }
}
