//! What Fast Paxos and Speculative Paxos share: a log that each replica fills as requests arrive,
//! the leader's SYNC, which finds out how far logs are equal, and the view change that makes one of
//! several logs (reconciliation, if the leader is the same).
//!
//! A place is decided when a superquorum has it behind the same log, or, of the log that a view
//! began with, f + 1 do. Within a view a log only grows; what differs from the leader's log before
//! something decided may be replaced, since no superquorum can have had it.
//!
//! Invariants: what is decided is never undone; a client's request is in a log at most once.

use alloc::collections::BTreeMap;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::marker::PhantomData;

use smr::contract::{Output, Report, Role};
use smr::rng::Rng;
use smr::{
    ClientId, Entry, Input, InputOf, MAX_REPLICAS, Now, OpNumber, Outputs, Protocol, Refusal,
    ReplicaId, Request, RequestNumber, To, View, Viewstamp,
};

use crate::config::{Bug, Config};
use crate::message::{Message, Reply};
use crate::prefix::{Digest, Prefix, Vote, merge, request};
use crate::unreplicated::report;
use crate::{Again, Baseline};

/// Outputs of a replica.
pub type Out = Vec<Output<Message, Again>>;

/// Places further ahead of a leader's log than this are not remembered.
const EARLY: u64 = 4096;

/// Where the two protocols differ: who counts, and when requests are executed.
pub trait Scheme: Sized {
    /// A request was put at the log's end.
    fn appended(replica: &mut Replica<Self>, out: &mut Out);
    /// The log above `keep` is another one.
    fn replaced(replica: &mut Replica<Self>, keep: OpNumber, out: &mut Out);
    /// What is above `before` and up to the commit point was decided.
    fn committed(replica: &mut Replica<Self>, before: OpNumber, out: &mut Out);
}

/// What a replica is doing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Status {
    /// It takes part in its view.
    Normal,
    /// It has voted for its view, which has not started.
    ViewChange,
}

/// What has happened since a replica started.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    /// Views that it took part in.
    pub views: u64,
    /// Operations that it executed and undid.
    pub rolled_back: u64,
    /// Times that it took the leader's log within a view.
    pub adopted: u64,
    /// Operations that were decided by f + 1, since a view began with them.
    pub slow: u64,
}

/// What a leader knows of another replica.
#[derive(Clone, Copy, Debug, Default)]
struct Peer {
    /// Its log is the leader's up to here.
    matched: OpNumber,
    /// Its log has turned out to be another one.
    differs: bool,
    commit: OpNumber,
}

/// One replica.
#[derive(Debug)]
pub struct Replica<S> {
    pub(crate) config: Config,
    status: Status,
    view: View,
    last_normal: View,
    /// The view began with the log up to here.
    pub(crate) started: OpNumber,
    pub(crate) log: Prefix,
    pub(crate) executed: OpNumber,
    pub(crate) commit: OpNumber,
    /// Each client's last request in the log or before it, and its place.
    placed: BTreeMap<ClientId, (RequestNumber, OpNumber)>,
    /// What came while no view had started: of each client the last.
    pending: BTreeMap<ClientId, Request>,
    peers: [Peer; MAX_REPLICAS as usize],
    /// Places of others that this leader has not reached.
    early: BTreeMap<(OpNumber, ReplicaId), Digest>,
    votes: BTreeMap<ReplicaId, Vote>,
    /// The last place of the leader's last SYNC.
    synchronised: OpNumber,
    /// A leader speaks at this time,
    speak_at: u64,
    /// and has decided something last at this time, or had nothing to decide.
    progress_at: u64,
    /// The view is given up at this time.
    suspect_at: u64,
    rng: Rng,
    pub(crate) tally: Tally,
    scheme: PhantomData<S>,
}

impl<S: Scheme> Replica<S> {
    /// Its status.
    pub fn status(&self) -> Status {
        self.status
    }

    /// Its log above what all replicas know to be decided.
    pub fn log(&self) -> &Prefix {
        &self.log
    }

    /// The last operation that it knows to be decided.
    pub fn commit(&self) -> OpNumber {
        self.commit
    }

    /// What has happened since it started.
    pub fn tally(&self) -> Tally {
        self.tally
    }

    pub(crate) fn leads(&self) -> bool {
        self.status == Status::Normal && self.view.primary() == self.config.me
    }

    fn place(&self, op: OpNumber) -> (OpNumber, Digest) {
        (op, self.log.digest_at(op).expect("it is in the log"))
    }

    fn send(&self, to: ReplicaId, message: Message, out: &mut Out) {
        if to != self.config.me {
            out.push(Output::Send(To::One(to), message));
        }
    }

    fn later(&mut self, now: Now) -> u64 {
        let timing = self.config.timing;
        now.micros + timing.election + self.rng.below(timing.jitter + 1)
    }

    fn on_request(&mut self, now: Now, request: Request, out: &mut Out) {
        let client = request.client;
        match self.placed.get(&client) {
            Some(&(number, op)) if request.number <= number => {
                if request.number == number {
                    self.again(now, client, number, op, out);
                }
            }
            _ if self.status == Status::Normal => {
                self.append(now, request, out);
                self.decide(now, out);
            }
            _ => {
                self.pending.insert(client, request);
            }
        }
    }

    /// A client has not heard of its request.
    fn again(
        &mut self,
        now: Now,
        client: ClientId,
        number: RequestNumber,
        op: OpNumber,
        out: &mut Out,
    ) {
        if self.leads() && op <= self.commit {
            out.push(Output::Effect(Again { client, number }));
        } else if self.status == Status::Normal && self.executed >= op && op > self.commit {
            out.push(Output::Answer(op));
        }
        self.speak_at = self.speak_at.min(now.micros);
    }

    fn append(&mut self, now: Now, request: Request, out: &mut Out) {
        if !self.waits() {
            self.progress_at = now.micros;
        }
        let (client, number) = (request.client, request.number);
        self.log.push(self.view, request);
        self.placed.insert(client, (number, self.log.last().op));
        S::appended(self, out);
        let sync_at = OpNumber(self.synchronised.0 + self.config.sync_every);
        if self.leads() && self.log.last().op >= sync_at {
            self.speak_at = now.micros;
        }
    }

    /// Tells the leader of a place in the own log.
    pub(crate) fn accept(&self, op: OpNumber, out: &mut Out) {
        let Some(digest) = self.log.digest_at(op) else { return };
        let (view, commit) = (self.view, self.commit);
        self.send(view.primary(), Message::Accepted { view, op, digest, commit }, out);
    }

    fn on_accepted(
        &mut self,
        now: Now,
        from: ReplicaId,
        (op, digest): (OpNumber, Digest),
        commit: OpNumber,
        out: &mut Out,
    ) {
        self.peers[from.index()].commit = commit.max(self.peers[from.index()].commit);
        if op > self.log.last().op {
            if !self.waits() {
                self.progress_at = now.micros;
            }
            if op.0 - self.log.last().op.0 <= EARLY {
                self.early.insert((op, from), digest);
            }
        } else {
            self.compare(from, op, digest);
        }
        self.decide(now, out);
    }

    fn compare(&mut self, from: ReplicaId, op: OpNumber, digest: Digest) {
        let Some(own) = self.log.digest_at(op) else { return };
        let peer = &mut self.peers[from.index()];
        if own == digest {
            peer.differs &= op < peer.matched;
            peer.matched = peer.matched.max(op);
        } else if op > peer.matched {
            peer.differs = true;
        }
    }

    /// The leader counts who has what it has.
    fn decide(&mut self, now: Now, out: &mut Out) {
        if !self.leads() {
            return;
        }
        let last = self.log.last().op;
        while let Some((&(op, from), &digest)) = self.early.first_key_value()
            && op <= last
        {
            self.early.pop_first();
            self.compare(from, op, digest);
        }
        let Config { me, replicas, .. } = self.config;
        let mut matched = self.peers.map(|peer| peer.matched);
        matched[me.index()] = last;
        let matched = &mut matched[..usize::from(replicas)];
        matched.sort_unstable_by(|a, b| b.cmp(a));
        let majority = matched[crate::f(replicas)];
        let fast = match self.config.bug(Bug::DecideOnMajority) {
            true => majority,
            false => matched[crate::superquorum(replicas) - 1],
        };
        let slow = majority.min(self.started);
        let decided = fast.max(slow);
        if decided > self.commit {
            self.tally.slow += slow.0.saturating_sub(fast.max(self.commit).0);
            self.progress_at = now.micros;
            self.advance(decided, out);
        }
        // Nothing that follows can be decided in this view.
        let differ = self.peers.iter().filter(|peer| peer.differs).count();
        if differ > usize::from(replicas) - crate::superquorum(replicas) {
            self.call(now, out);
        }
    }

    fn advance(&mut self, through: OpNumber, out: &mut Out) {
        let before = core::mem::replace(&mut self.commit, through);
        S::committed(self, before, out);
    }

    pub(crate) fn execute(&mut self, through: OpNumber, out: &mut Out) {
        while self.executed < through {
            self.executed = self.executed.next();
            let entry = self.log.get(self.executed).expect("what is not executed is here");
            out.push(Output::Execute(entry.clone()));
        }
    }

    fn speak(&mut self, now: Now, out: &mut Out) {
        self.speak_at = now.micros + self.config.timing.heartbeat;
        self.synchronised = self.log.last().op;
        let others = (0..self.config.replicas).filter(|&id| id != self.config.me.0);
        let known = others.map(|id| self.peers[usize::from(id)].commit).min();
        let known = known.unwrap_or(self.commit).min(self.commit);
        let (view, commit) = (self.view, self.place(self.commit));
        self.log.trim(known);
        out.push(Output::Send(To::Others, Message::Sync { view, commit, known }));
    }

    fn on_sync(
        &mut self,
        now: Now,
        from: ReplicaId,
        commit: (OpNumber, Digest),
        known: OpNumber,
        out: &mut Out,
    ) {
        self.suspect_at = self.later(now);
        let own = match self.config.bug(Bug::CommitByNumber) {
            true if commit.0 <= self.log.last().op => Some(commit.1),
            _ => self.log.digest_at(commit.0),
        };
        if own == Some(commit.1) && commit.0 > self.commit {
            self.advance(commit.0, out);
        } else if own != Some(commit.1) && commit.0 > self.commit {
            // It has missed a request, or put it elsewhere.
            return self.send(from, Message::AskView { commit: self.commit }, out);
        }
        self.log.trim(known.min(self.commit));
        self.accept(self.log.last().op, out);
    }

    /// Calls for a new view, led by this replica.
    fn call(&mut self, now: Now, out: &mut Out) {
        self.join(now, self.view.next_for(self.config.me));
        self.votes.insert(self.config.me, self.vote(self.place(self.commit)));
        self.call_again(now, out);
        self.start(now, out);
    }

    fn call_again(&mut self, now: Now, out: &mut Out) {
        self.speak_at = now.micros + self.config.timing.heartbeat;
        let (view, commit) = (self.view, self.place(self.commit));
        out.push(Output::Send(To::Others, Message::ViewChangeReq { view, commit }));
    }

    fn join(&mut self, now: Now, view: View) {
        self.view = view;
        self.status = Status::ViewChange;
        self.suspect_at = self.later(now);
        self.votes.clear();
        self.early.clear();
    }

    fn vote(&self, (commit, digest): (OpNumber, Digest)) -> Vote {
        let (last_normal, started) = (self.last_normal, self.started);
        let agrees = self.log.digest_at(commit) == Some(digest);
        let entries = if agrees { self.log.above(commit).cloned().collect() } else { Vec::new() };
        Vote { last_normal, started, entries }
    }

    fn on_request_for_view(
        &mut self,
        now: Now,
        view: View,
        commit: (OpNumber, Digest),
        out: &mut Out,
    ) {
        if view > self.view {
            self.join(now, view);
        }
        if view == self.view && self.status == Status::ViewChange {
            let vote = self.vote(commit);
            self.send(view.primary(), Message::ViewChange { view, vote }, out);
        }
    }

    /// The new leader has f + 1 votes: the view starts.
    fn start(&mut self, now: Now, out: &mut Out) {
        let needed = crate::f(self.config.replicas) + 1;
        if self.status != Status::ViewChange || self.votes.len() < needed {
            return;
        }
        let own = self.config.me;
        let base = self.commit;
        let votes: Vec<Vote> = core::mem::take(&mut self.votes)
            .into_iter()
            .filter(|&(id, _)| id == own || !self.config.bug(Bug::MergeOwnLog))
            .map(|(_, vote)| match self.config.bug(Bug::MergeForgetsStart) {
                true => Vote { started: OpNumber(0), ..vote },
                false => vote,
            })
            .collect();
        let absent = usize::from(self.config.replicas) - crate::superquorum(self.config.replicas);
        let threshold = votes.len() - absent.min(votes.len() - 1);
        let base_stamp = self.log.viewstamp_at(base).expect("it is decided");
        let entries = merge(&votes, threshold, base_stamp, self.view);
        self.peers = Default::default();
        self.enter(now, base, &entries, None, out);
        self.started = self.log.last().op;
        self.tally.views += 1;
        self.progress_at = now.micros;
        let message = self.start_view(base);
        out.push(Output::Send(To::Others, message));
        self.take_pending(now, out);
        self.decide(now, out);
    }

    fn start_view(&self, base: OpNumber) -> Message {
        Message::StartView {
            view: self.view,
            started: self.started,
            commit: self.commit,
            base,
            digest: self.place(base).1,
            entries: self.log.above(base).cloned().collect(),
        }
    }

    /// Makes the log above `base` the one of the view's leader. With `commit` this replica takes
    /// part in the view already: only a difference up to there is mended.
    fn enter(
        &mut self,
        now: Now,
        base: OpNumber,
        entries: &[Arc<Entry>],
        commit: Option<OpNumber>,
        out: &mut Out,
    ) {
        let same = |entry: &&Arc<Entry>| self.log.get(entry.viewstamp.op) == Some(*entry);
        let kept = entries.iter().take_while(same).count();
        let keep = OpNumber(base.0 + kept as u64);
        let differs = kept < entries.len() && self.log.last().op > keep;
        if differs && commit.is_some_and(|commit| keep >= commit) {
            return; // somebody may have counted it
        }
        if differs || commit.is_none() {
            assert!(keep >= self.commit, "what is decided stands");
            let dropped = self.log.truncate(keep);
            self.put_away(dropped);
        }
        for entry in &entries[kept..] {
            self.log.append(entry.clone());
            let (client, number) = (request(entry).client, request(entry).number);
            self.placed.insert(client, (number, entry.viewstamp.op));
        }
        if commit.is_none() || kept < entries.len() {
            S::replaced(self, keep, out);
        }
        self.status = Status::Normal;
        self.last_normal = self.view;
        self.synchronised = self.log.last().op;
        self.suspect_at = self.later(now);
        self.speak_at = now.micros + self.config.timing.heartbeat;
    }

    /// Requests that have lost their places wait for other ones.
    fn put_away(&mut self, dropped: Vec<Arc<Entry>>) {
        for entry in dropped {
            let request = request(&entry).clone();
            let before = RequestNumber(request.number.0 - 1);
            self.placed.insert(request.client, (before, OpNumber(0)));
            self.pending.insert(request.client, request);
        }
    }

    fn take_pending(&mut self, now: Now, out: &mut Out) {
        for (client, request) in core::mem::take(&mut self.pending) {
            let is_placed =
                self.placed.get(&client).is_some_and(|&(number, _)| number >= request.number);
            if !is_placed {
                self.append(now, request, out);
            }
        }
    }

    fn on_start_view(&mut self, now: Now, from: ReplicaId, message: Message, out: &mut Out) {
        let Message::StartView { view, started, commit, base, digest, entries } = message else {
            unreachable!("it is one")
        };
        let follows = entries.first().is_none_or(|first| first.viewstamp.op == base.next());
        if from != view.primary() || view < self.view || !follows {
            return;
        }
        if self.log.digest_at(base) != Some(digest) {
            return self.send(from, Message::AskView { commit: self.commit }, out);
        }
        let is_in = view == self.view && self.status == Status::Normal;
        if is_in {
            self.tally.adopted += 1;
        } else {
            self.view = view;
            self.votes.clear();
            self.started = started;
            self.tally.views += 1;
        }
        self.enter(now, base, &entries, is_in.then_some(commit), out);
        self.take_pending(now, out);
        self.accept(self.log.last().op, out);
    }
}

impl<S: Scheme> Replica<S> {
    fn on_message(&mut self, now: Now, from: ReplicaId, message: Message, out: &mut Out) {
        if from.0 >= self.config.replicas || from == self.config.me {
            return;
        }
        let is_normal = self.status == Status::Normal;
        match message {
            Message::Sync { view, commit, known } if from == view.primary() => {
                if view == self.view && is_normal {
                    self.on_sync(now, from, commit, known, out);
                } else if view >= self.view {
                    self.send(from, Message::AskView { commit: self.commit }, out);
                }
            }
            Message::Accepted { view, op, digest, commit } if view == self.view && self.leads() => {
                self.on_accepted(now, from, (op, digest), commit, out);
            }
            Message::ViewChangeReq { view, commit } if from == view.primary() => {
                self.on_request_for_view(now, view, commit, out);
            }
            Message::ViewChange { view, vote }
                if view == self.view && view.primary() == self.config.me && !is_normal =>
            {
                self.votes.insert(from, vote);
                self.start(now, out);
            }
            Message::StartView { .. } => self.on_start_view(now, from, message, out),
            Message::AskView { commit } if self.leads() && self.log.digest_at(commit).is_some() => {
                self.send(from, self.start_view(commit), out);
            }
            _ => {} // of a view that is over, or of one that has not come
        }
    }

    /// Whether something is not decided, or others have what this replica has not.
    fn waits(&self) -> bool {
        self.log.last().op > self.commit || !self.early.is_empty()
    }

    fn patience_ends(&self) -> Option<u64> {
        let waits = self.leads() && self.waits();
        waits.then(|| self.progress_at + self.config.timing.patience)
    }

    fn tick(&mut self, now: Now, out: &mut Out) {
        let is_primary = self.view.primary() == self.config.me;
        if self.patience_ends().is_some_and(|at| now.micros >= at) {
            return self.call(now, out);
        }
        if self.leads() {
            if now.micros >= self.speak_at {
                self.speak(now, out);
            }
        } else if now.micros >= self.suspect_at {
            self.call(now, out);
        } else if is_primary && now.micros >= self.speak_at {
            self.call_again(now, out);
        }
    }
}

impl<S: Scheme> Baseline for Replica<S> {
    fn create(config: Config) -> Replica<S> {
        config.check();
        Replica {
            status: Status::Normal,
            view: View(0),
            last_normal: View(0),
            started: OpNumber(0),
            log: Prefix::default(),
            executed: OpNumber(0),
            commit: OpNumber(0),
            placed: BTreeMap::new(),
            pending: BTreeMap::new(),
            peers: Default::default(),
            early: BTreeMap::new(),
            votes: BTreeMap::new(),
            synchronised: OpNumber(0),
            speak_at: 0,
            progress_at: 0,
            suspect_at: 0,
            rng: Rng::new(config.seed),
            tally: Tally::default(),
            scheme: PhantomData,
            config,
        }
    }

    fn sign(&self, reply: smr::Reply) -> Reply {
        let op = match &reply.outcome {
            smr::Outcome::Done { position, .. } => position.op,
            _ => OpNumber(u64::MAX),
        };
        // What all replicas know to be decided has no digest any more.
        let digest = self.log.digest_at(op).unwrap_or_default();
        Reply { from: self.config.me, committed: op <= self.commit, digest, reply }
    }
}

impl<S: Scheme> Protocol for Replica<S> {
    type Message = Message;
    type Event = Request;
    type Effect = Again;

    fn step(&mut self, now: Now, input: InputOf<Self>, out: &mut Outputs<Self>) {
        match input {
            Input::Start(_) => self.suspect_at = self.later(now),
            Input::Event(request) => self.on_request(now, request, out),
            Input::Message { from, message, .. } => self.on_message(now, from, message, out),
            _ => {}
        }
        self.tick(now, out);
    }

    fn deadline(&self) -> Option<u64> {
        let is_primary = self.view.primary() == self.config.me;
        let speak_at = is_primary.then_some(self.speak_at);
        let suspect_at = (!self.leads()).then_some(self.suspect_at);
        [speak_at, suspect_at, self.patience_ends()].into_iter().flatten().min()
    }

    fn admission(&self) -> Result<(), Refusal> {
        Err(Refusal::NotPrimary) // requests are events
    }

    fn view(&self) -> View {
        self.view
    }

    fn durable(&self) -> Viewstamp {
        Viewstamp::default()
    }

    fn report(&self) -> Report {
        let role = match self.status {
            Status::Normal if self.leads() => Role::Primary,
            Status::Normal => Role::Backup,
            Status::ViewChange => Role::ViewChange,
        };
        let rolled_back = self.tally.rolled_back;
        Report { rolled_back, ..report(role, self.view, self.log.last(), self.commit) }
    }
}
