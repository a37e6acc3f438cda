//! A replica: its state ([NOPaxos] figure 6), and which sub-protocol an input concerns.
//!
//! Handlers note what has changed; `settle` then does everything that has become possible, in one
//! order, whichever input made it so. What promises something is therefore sent in one place, and
//! looks at the disk there.

use alloc::collections::{BTreeMap, BTreeSet};

use oum::{Delivery, Members};
use smr::contract::{InputOf, Output, Outputs, Recovered};
use smr::fetch::Fetch;
use smr::lineage::Lineage;
use smr::rng::Rng;
use smr::{
    ClientId, Durability, Incarnation, Input, Log, Now, OpNumber, Protocol, Refusal, ReplicaId,
    Report, RequestNumber, Role, To, Trust, View, Viewstamp,
};

use crate::ahead::Ahead;
use crate::bodies::Bodies;
use crate::bug::Bug;
use crate::config::Config;
use crate::event::{Effect, Event, Reply};
use crate::gap::Gaps;
use crate::held::Held;
use crate::lives::Lives;
use crate::message::{Body, Message};
use crate::recovery::Recovery;
use crate::roster::Roster;
use crate::storage::Stores;
use crate::sync::Sync;
use crate::timers::Timers;
use crate::transfer::Checkpoints;
use crate::view_change::Change;
use crate::view_id::{MAX_SESSION, ViewId};

/// The output list of a replica.
pub(crate) type Out = Outputs<Replica>;

/// What a replica is doing ([NOPaxos] figure 6).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Status {
    /// It takes part in its view.
    Normal,
    /// It has left its last view, and the next one has not started for it.
    ViewChange,
    /// It restarted and may have forgotten what it promised: it votes for nothing.
    Recovering,
}

/// What has happened since a replica started.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    /// NO-OPs that entered its log.
    pub no_ops: u64,
    /// Slots that were dropped on the way here.
    pub missing: u64,
    /// Of those, the ones whose request was found at another replica.
    pub found: u64,
    /// Views that it took part in.
    pub views: u64,
    /// Executed slots that were undone.
    pub rolled_back: u64,
    /// Messages of requests for which there was no room.
    pub overflow: u64,
    /// Messages that made no sense or came from a former life.
    pub nonsense: u64,
}

/// One replica's state machine.
#[derive(Debug)]
pub struct Replica {
    pub(crate) config: Config,
    pub(crate) me: ReplicaId,
    pub(crate) status: Status,
    pub(crate) view: ViewId,
    pub(crate) roster: Roster,
    pub(crate) lives: Lives,
    pub(crate) log: Log,
    pub(crate) lineage: Lineage,
    pub(crate) ahead: Ahead,
    /// The slot of the message with number `origin.1` of the view's session.
    pub(crate) origin: (OpNumber, u64),
    /// The next number whose slot is not accounted for.
    pub(crate) expected: u64,
    /// The number after the last one that was delivered, or announced as dropped: at or beyond
    /// `expected`, if there was no room.
    pub(crate) horizon: u64,
    /// What was delivered in status ViewChange: the next view may have room for it.
    pub(crate) held: Held,
    pub(crate) sync_point: OpNumber,
    pub(crate) durable_point: OpNumber,
    pub(crate) executed: OpNumber,
    /// Replies for slots up to here were sent, in this view.
    pub(crate) answered: OpNumber,
    pub(crate) last_no_op: OpNumber,
    /// Slots whose answers wait until the durable point covers them.
    pub(crate) raised: BTreeSet<OpNumber>,
    /// Clients whose last request expected another view: its number, and the view.
    pub(crate) strangers: BTreeMap<ClientId, (RequestNumber, View)>,
    pub(crate) bodies: Bodies,
    pub(crate) stores: Stores,
    pub(crate) gaps: Gaps,
    /// NO-OPs of the leader that it has not been told we have.
    pub(crate) gap_promises: BTreeSet<OpNumber>,
    pub(crate) sync: Sync,
    pub(crate) change: Change,
    pub(crate) recovery: Recovery,
    pub(crate) transfer: Option<Fetch>,
    pub(crate) checkpoints: Checkpoints,
    pub(crate) timers: Timers,
    pub(crate) rng: Rng,
    pub(crate) tally: Tally,
}

impl Replica {
    /// A replica that has not started. The first input must be [`Input::Start`].
    ///
    /// # Panics
    /// If the configuration makes no sense.
    pub fn new(config: Config) -> Replica {
        config.check();
        let me = config.identity.replica;
        let mut lives = Lives::new(config.replicas);
        lives.learn(me, config.identity.incarnation);
        Replica {
            me,
            status: Status::Recovering,
            view: ViewId::default(),
            roster: Roster::default(),
            lives,
            log: Log::new(Viewstamp::default()),
            lineage: Lineage::default(),
            ahead: Ahead::default(),
            origin: (OpNumber(1), 1),
            expected: 1,
            horizon: 1,
            held: Held::default(),
            sync_point: OpNumber(0),
            durable_point: OpNumber(0),
            executed: OpNumber(0),
            answered: OpNumber(0),
            last_no_op: OpNumber(0),
            raised: BTreeSet::new(),
            strangers: BTreeMap::new(),
            bodies: Bodies::default(),
            stores: Stores::default(),
            gaps: Gaps::default(),
            gap_promises: BTreeSet::new(),
            sync: Sync::default(),
            change: Change::default(),
            recovery: Recovery::default(),
            transfer: None,
            checkpoints: Checkpoints::default(),
            timers: Timers::default(),
            rng: Rng::new(config.seed),
            tally: Tally::default(),
            config,
        }
    }

    /// Its status.
    pub fn status(&self) -> Status {
        self.status
    }

    /// Its view-id.
    pub fn view_id(&self) -> ViewId {
        self.view
    }

    /// Its sync-point: what it holds up to here never changes.
    pub fn sync_point(&self) -> OpNumber {
        self.sync_point
    }

    /// What it holds up to here will never change: the sync-point; in durability `lazy` the durable
    /// point.
    pub fn stable_point(&self) -> OpNumber {
        self.floor()
    }

    /// Its log above what checkpoints stand for.
    pub fn log(&self) -> &Log {
        &self.log
    }

    /// The next number that it expects of the sequencer, how many slots beyond its log are known,
    /// and how many gaps are open.
    pub fn waiting(&self) -> (u64, usize, usize) {
        (self.expected, self.ahead.len(), self.gaps.len())
    }

    /// What has happened since it started.
    pub fn tally(&self) -> Tally {
        self.tally
    }

    /// Makes this replica's reply of what its host says to a client.
    pub fn sign(&self, reply: smr::Reply) -> Reply {
        Reply { from: self.me, members: self.members(), lives: self.lives, reply }
    }

    #[cfg(feature = "planted-bugs")]
    pub(crate) fn bug(&self, bug: Bug) -> bool {
        self.config.bug == Some(bug)
    }

    #[cfg(not(feature = "planted-bugs"))]
    pub(crate) fn bug(&self, _: Bug) -> bool {
        false
    }

    pub(crate) fn ids(&self) -> impl Iterator<Item = ReplicaId> + use<> {
        (0..self.config.replicas).map(ReplicaId)
    }

    pub(crate) fn leader(&self) -> ReplicaId {
        self.view.leader(self.config.replicas)
    }

    pub(crate) fn leads(&self) -> bool {
        self.status == Status::Normal && self.leader() == self.me
    }

    pub(crate) fn send(&self, to: ReplicaId, body: Body, out: &mut Out) {
        out.push(Output::Send(To::One(to), self.message(body)));
    }

    pub(crate) fn broadcast(&self, body: Body, out: &mut Out) {
        out.push(Output::Send(To::Others, self.message(body)));
    }

    fn message(&self, body: Body) -> Message {
        Message { view: self.view, members: self.members(), lives: self.lives, body }
    }

    /// Whether what a replica said in this life still counts: no later one of it is known.
    pub(crate) fn counts(&self, id: ReplicaId, life: Incarnation) -> bool {
        life >= self.lives.of(id) || self.bug(Bug::CountsTheDead)
    }

    fn on_start(&mut self, now: Now, recovered: Recovered, out: &mut Out) {
        let Recovered { trust, view, log, checkpoint } = recovered;
        self.view = ViewId::from_view(view);
        if trust == Trust::New {
            self.roster.learn(self.view.session, Members::all(self.config.replicas));
        }
        self.timers.start(now, &self.config);
        self.status = match trust {
            Trust::New => Status::Normal,
            // What it promised was on disk before.
            Trust::Intact if self.config.durability == Durability::Sync => Status::ViewChange,
            Trust::Intact | Trust::Lost => Status::Recovering,
        };
        let keeps = trust == Trust::Intact && self.logs();
        let mut stable = OpNumber(0);
        if keeps {
            for entry in log.above(log.base().op) {
                self.lineage.extend(entry.viewstamp);
                stable = stable.max(entry.commit);
            }
            self.log = log;
            let position = checkpoint.unwrap_or_default();
            self.executed = position.op;
            self.sync_point = position.op;
            self.checkpoints.written = position;
            self.durable_point = position.op;
            self.change.muted = Some(self.view);
            // A checkpoint that was installed may be on disk before the view that it is of.
            self.view = self.joined_with_log();
        }
        self.stores.start(view, self.log.last());
        if stable > self.sync_point && !self.bug(Bug::ForgetsTheStable) {
            self.advance_sync(stable, out);
            self.advance_durable(stable, out);
        }
        self.recovery.begin(now, &self.config, keeps);
        self.suspect_later(now);
    }

    fn on_message(
        &mut self,
        now: Now,
        from: ReplicaId,
        incarnation: Incarnation,
        message: Message,
        out: &mut Out,
    ) {
        let own = self.lives.of(self.me);
        if from.0 >= self.config.replicas
            || from == self.me
            || message.lives.replicas() != self.config.replicas
            || message.lives.of(self.me) > own
            || !self.counts(from, incarnation)
        {
            self.tally.nonsense += 1;
            return;
        }
        self.roster.learn(message.view.session, message.members);
        self.lives.merge(&message.lives);
        self.lives.learn(from, incarnation);
        if !self.counts(from, incarnation) {
            return;
        }
        match &message.body {
            Body::Recover => self.on_recover(from, out),
            Body::Fetch { after, position, offset } => {
                self.on_fetch(now, from, *after, *position, *offset, out);
            }
            Body::RecoverReply { .. } => self.on_recover_reply(from, &message),
            Body::Stable(_) | Body::StateChunk(_) | Body::StateGone => {
                self.on_transfer(now, from, message, out);
            }
            Body::StartView(_) => self.on_start_view(now, from, message, out),
            // A recovering replica votes for nothing, and leads nowhere.
            _ if self.status == Status::Recovering => {}
            Body::AskView => self.on_ask_view(from, out),
            Body::ViewChangeReq | Body::ViewChange(_) => {
                self.on_view_change(now, from, message, out);
            }
            Body::Suspect => self.on_suspect(now, from, message.view, out),
            _ if message.view == self.view && self.status == Status::Normal => {
                self.on_normal(now, from, message, out);
            }
            _ => self.on_other_view(from, message.view, out),
        }
    }

    /// Only within a view do replicas talk of its slots ([NOPaxos] 5.2).
    fn on_normal(&mut self, now: Now, from: ReplicaId, message: Message, out: &mut Out) {
        let (of_leader, life) = (from == self.leader(), message.lives.of(from));
        match message.body {
            Body::SyncPrepare { base, through, no_ops, sync_point, durable } if of_leader => {
                self.on_sync_commit(sync_point, durable);
                self.on_sync_prepare(now, base, through, &no_ops, out);
            }
            Body::SyncCommit { sync_point, durable } if of_leader => {
                self.on_sync_commit(sync_point, durable);
            }
            Body::GapCommit { slots } if of_leader => self.on_gap_commit(&slots, out),
            Body::SyncAsk { from: base } if self.leads() => self.on_sync_ask(from, base, out),
            Body::SyncReply { through, disk } if self.leads() => {
                self.on_sync_reply(from, life, through, disk);
            }
            Body::GapCommitRep { slots } if self.leads() => {
                self.on_gap_commit_rep(from, life, &slots);
            }
            Body::GapRequest { slots } => self.on_gap_request(from, &slots, out),
            Body::GapReply { base, entries, missing } => {
                self.on_gap_reply(now, from, base, entries, &missing, out);
            }
            _ => self.tally.nonsense += 1,
        }
    }

    fn on_event(&mut self, now: Now, event: Event, out: &mut Out) {
        let delivery = match event {
            Event::Delivery(delivery) => delivery,
            Event::Session { session, members } => {
                return self.on_session(now, session, members, out);
            }
            Event::Body(request) => return self.on_body(request),
        };
        let (Delivery::Message { session, .. }
        | Delivery::Drop { session, .. }
        | Delivery::Terminated { session }) = delivery;
        if session.0 > MAX_SESSION {
            self.tally.nonsense += 1;
            return;
        }
        match delivery {
            Delivery::Message { session, sequence, payload } => {
                self.on_ordered(session, sequence, payload);
            }
            Delivery::Drop { session, first, last } => self.on_dropped(session, first, last),
            // Where nobody names its members they are those of the session before.
            Delivery::Terminated { session } => {
                self.on_session(now, session, self.latest_members(), out);
            }
        }
    }

    /// Does everything that has become possible.
    fn settle(&mut self, now: Now, out: &mut Out) {
        if self.status == Status::Normal {
            self.expect(self.horizon);
            self.settle_gaps(now, out);
            self.advance();
        }
        self.settle_change(now, out);
        self.store(now, out);
        if self.status == Status::Normal && self.view_is_stored() && !self.installing() {
            self.execute_and_answer(out);
            self.settle_sync(out);
            self.tell_strangers(out);
        }
    }
}

impl Protocol for Replica {
    type Message = Message;
    type Event = Event;
    type Effect = Effect;

    fn step(&mut self, now: Now, input: InputOf<Replica>, out: &mut Out) {
        match input {
            Input::Start(recovered) => self.on_start(now, recovered, out),
            Input::Message { from, incarnation, message } => {
                self.on_message(now, from, incarnation, message, out);
            }
            Input::Event(event) => self.on_event(now, event, out),
            Input::Stored(number) => self.on_stored(now, number),
            Input::CheckpointWritten { position, bytes } => {
                self.on_checkpoint_written(position, bytes);
            }
            Input::CheckpointChunk { to, chunk } => self.on_checkpoint_chunk(to, chunk, out),
            Input::StateInstalled(position) => self.on_state_installed(now, position, out),
            Input::Timeout => {}
            // Requests, reads included, come through the sequencer alone; every reply of a view
            // that has started waits for what its durability demands.
            Input::Request(_) | Input::Propose | Input::Read(_) | Input::Flush => {
                self.tally.nonsense += 1;
            }
        }
        self.tick(now, out);
        self.settle(now, out);
    }

    fn loaded(&mut self, lineage: &Lineage) {
        self.lineage = lineage.clone();
    }

    fn deadline(&self) -> Option<u64> {
        Some(self.next_tick())
    }

    fn admission(&self) -> Result<(), Refusal> {
        Err(Refusal::NotPrimary)
    }

    fn view(&self) -> View {
        self.view.to_view(self.config.replicas)
    }

    fn durable(&self) -> Viewstamp {
        self.log.viewstamp_at(self.durable_point).unwrap_or(self.log.base())
    }

    fn report(&self) -> Report {
        let at = |op: OpNumber| self.log.viewstamp_at(op).unwrap_or_default();
        let role = match self.status {
            Status::Normal if self.leader() == self.me => Role::Primary,
            Status::Normal => Role::Backup,
            Status::ViewChange => Role::ViewChange,
            Status::Recovering if self.state_is_lost() => Role::StateLost,
            Status::Recovering => Role::Recovering,
        };
        Report {
            role,
            durability: self.config.durability,
            view: self.view.to_view(self.config.replicas),
            op: self.log.last(),
            commit: self.sync_point,
            disk: at(self.stores.disk()),
            durable: self.durable(),
            checkpoint: self.checkpoints.written,
            lag_bytes: 0,
            lag_since: 0,
            forgetful: self.status == Status::Recovering,
            rolled_back: self.tally.rolled_back,
            risky_elections: 0,
            view_changed_at: self.change.changed_at,
            dropped: self.tally.nonsense,
        }
    }
}
