//! Gathers the commands of all connections into batches, sends them through the client machine,
//! and takes the answers apart again.
//!
//! Invariants: a batch's routes are in the order of its items; a connection's reads are beside the
//! log only while none of its writes is unanswered, and its writes wait while such reads are. What
//! a crash of the group has taken back is told before anything else comes of what was under way.

#[cfg(test)]
mod counting;
#[cfg(test)]
mod tests;

use std::collections::VecDeque;

use bytes::Bytes;
use smr::client::{self, Answer, Loss};
use smr::{Durability, Now, OpNumber, Reply, RequestNumber, View, Viewstamp};

use crate::client::{Answers, Stall};
use crate::counted::Counters;
use crate::face::{Failure, Note};
use crate::held::{Held, MAX_BARRIERS};
use crate::machine::{Machine, Outgoing};

/// A batch is sent at once when it has this many bytes, or half of what a request may have.
const BATCH_BYTES: usize = 512 << 10;
/// A batch is sent at once when it has this many commands.
const BATCH_COMMANDS: usize = 16 << 10;
/// A batch is sent at once when its answer will have about this many bytes.
const ANSWER_BYTES: usize = 8 << 20;

/// Whether a command changes the state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Lane {
    Write,
    Read,
}

/// Where a command's answer goes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Route {
    pub place: u32,
    pub generation: u32,
    pub number: u64,
    pub note: Note,
    /// The lane that the connection counts it in.
    pub lane: Lane,
    /// It changes the state.
    pub writes: bool,
    /// Its answer waits until no crash with disks intact can take back what it tells of.
    pub durable: bool,
}

/// A batch that is being filled, or waits to be sent.
#[derive(Debug, Default)]
struct Batch {
    body: Vec<u8>,
    routes: Vec<Route>,
    /// Some of the answers wait until they are durable.
    durable: bool,
    /// About how many bytes its answer will have.
    expected: usize,
    /// The next command did not fit.
    closed: bool,
    /// When its first command came, in [`Now::micros`].
    since: u64,
}

impl Batch {
    /// What was expected of a batch that was sent says nothing about the empty one in its place.
    fn full(&self) -> bool {
        !self.routes.is_empty()
            && (self.closed
                || self.body.len() >= BATCH_BYTES
                || self.routes.len() >= BATCH_COMMANDS
                || self.expected >= ANSWER_BYTES)
    }
}

/// A batch that was sent.
#[derive(Debug)]
struct Flight {
    number: RequestNumber,
    routes: Vec<Route>,
    durable: bool,
    /// Kept for a read, in case it must be logged.
    body: Bytes,
    since: u64,
    answered: bool,
}

/// What became of a batch.
#[derive(Debug)]
pub(crate) enum End {
    /// Executed at this position.
    Answered(Viewstamp, Bytes),
    Failed(Failure),
    /// Executed at this position, and not durable in time.
    Late(Viewstamp),
    /// It only asked whether something is durable.
    Durable(bool),
}

/// Which routes of a batch are told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Whom {
    All,
    /// Those that do not wait for the disk.
    Hasty,
    /// Those that have waited.
    Patient,
}

impl Whom {
    #[inline]
    pub fn has(self, route: &Route) -> bool {
        match self {
            Whom::All => true,
            Whom::Hasty => !route.durable,
            Whom::Patient => route.durable,
        }
    }
}

/// A batch that has ended; its routes are to be told, and given back.
#[derive(Debug)]
pub(crate) struct Finished {
    pub routes: Vec<Route>,
    pub whom: Whom,
    pub end: End,
}

impl Finished {
    pub fn failed(routes: Vec<Route>, why: Failure) -> Finished {
        Finished { routes, whom: Whom::All, end: End::Failed(why) }
    }
}

/// A crash of the group has taken back acknowledged operations.
#[derive(Debug)]
pub(crate) struct Lost {
    /// All above this one.
    pub after: Viewstamp,
    /// Commands that were not executed and will not be.
    pub dropped: Vec<Route>,
    /// All other commands that are unanswered.
    pub rest: Vec<Route>,
}

/// What became of a command that did not fit into its batch.
enum Split {
    /// It is the first of the next one.
    Room,
    /// It has to wait.
    Full,
    /// It fits into no batch: its length in bytes.
    TooLong(usize),
}

/// What has to be told.
#[derive(Debug)]
pub(crate) enum News {
    Finished(Finished),
    Lost(Lost),
}

/// Bounds of a gateway.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Bounds {
    /// How many batches of writes may be under way, and of reads.
    pub depth: usize,
    /// How many bytes they may have together.
    pub flying_bytes: usize,
    /// The longest body of a request, in bytes.
    pub longest_body: usize,
    /// When a command is given up, in microseconds after it came.
    pub patience: u64,
    /// What an acknowledgement of the group means.
    pub durability: Durability,
}

/// The gateway.
pub(crate) struct Gateway {
    machine: Machine,
    bounds: Bounds,
    /// Reads are requests like all others.
    logs_reads: bool,
    writes: Batch,
    reads: Batch,
    /// Reads that must be logged and wait for the window.
    relogged: VecDeque<Flight>,
    flying_writes: VecDeque<Flight>,
    flying_reads: VecDeque<Flight>,
    flying_bytes: usize,
    outgoing: Outgoing,
    spare: Vec<Vec<Route>>,
    /// A request of the service's own is under way.
    errand: Option<RequestNumber>,
    held: Held,
    news: VecDeque<News>,
    pub counters: Counters,
}

impl Gateway {
    pub fn new(machine: Machine, bounds: Bounds) -> Gateway {
        Gateway {
            logs_reads: machine.logs_reads(),
            machine,
            bounds,
            writes: Batch::default(),
            reads: Batch::default(),
            relogged: VecDeque::new(),
            flying_writes: VecDeque::new(),
            flying_reads: VecDeque::new(),
            flying_bytes: 0,
            outgoing: Outgoing::default(),
            spare: Vec::new(),
            errand: None,
            held: Held::default(),
            news: VecDeque::new(),
            counters: Counters::default(),
        }
    }

    /// What an acknowledgement of the group means.
    pub fn durability(&self) -> Durability {
        self.bounds.durability
    }

    /// Whether no crash with disks intact can take back this operation, which the client machine
    /// has seen.
    pub fn is_durable(&self, op: OpNumber) -> bool {
        match self.bounds.durability {
            Durability::Memory => op == OpNumber(0),
            Durability::Sync => true,
            Durability::Lazy => op <= self.held.durable(),
        }
    }

    /// Adds a command to a batch, or says that it must wait.
    #[inline]
    pub fn submit(
        &mut self,
        lane: Lane,
        now: Now,
        answers: &mut Answers,
        note: Note,
        push: impl FnOnce(&mut Vec<u8>),
    ) -> bool {
        let logged = lane == Lane::Write || answers.unanswered_writes > 0 || self.logs_reads;
        if logged && answers.unanswered_reads > 0 {
            answers.stall = Some(Stall::Reads);
            return false;
        }
        if self.batch(logged).full() {
            self.send(now);
            if self.batch(logged).full() {
                answers.stall = Some(Stall::Full);
                return false;
            }
        }
        let batch = self.batch(logged);
        if batch.routes.is_empty() {
            batch.since = now.micros;
            batch.expected = 0;
        }
        let before = batch.body.len();
        push(&mut batch.body);
        if batch.body.len() > self.bounds.longest_body {
            match self.split(logged, before, now) {
                Split::Room => {}
                Split::Full => {
                    answers.stall = Some(Stall::Full);
                    return false;
                }
                Split::TooLong(bytes) => {
                    self.refuse(lane, logged, answers, note, bytes);
                    return true;
                }
            }
        }
        let batch = self.batch(logged);
        batch.expected += answers.estimate();
        // A read in the log is a write to those behind it.
        let counted = if logged { Lane::Write } else { Lane::Read };
        let (place, generation) = (answers.place, answers.generation);
        let number = answers.take();
        let (writes, durable) = (lane == Lane::Write, answers.durable);
        batch.durable |= durable;
        batch.routes.push(Route {
            place,
            generation,
            number,
            note,
            lane: counted,
            writes,
            durable,
        });
        match counted {
            Lane::Write => answers.unanswered_writes += 1,
            Lane::Read => answers.unanswered_reads += 1,
        }
        match lane {
            Lane::Write => self.counters.writes += 1,
            Lane::Read => self.counters.reads += 1,
        }
        true
    }

    /// The last command in a batch, from `at`, does not fit: sends the others and begins a batch
    /// with it, if that can be.
    #[cold]
    fn split(&mut self, logged: bool, at: usize, now: Now) -> Split {
        let longest = self.bounds.longest_body;
        let batch = self.batch(logged);
        let last = batch.body.split_off(at);
        if last.len() > longest {
            return Split::TooLong(last.len());
        }
        batch.closed = true;
        self.send(now);
        let batch = self.batch(logged);
        if !batch.routes.is_empty() {
            return Split::Full;
        }
        batch.body.extend_from_slice(&last);
        batch.since = now.micros;
        batch.expected = 0;
        Split::Room
    }

    /// Takes a command that the group cannot take, and has it answered.
    fn refuse(
        &mut self,
        lane: Lane,
        logged: bool,
        answers: &mut Answers,
        note: Note,
        bytes: usize,
    ) {
        let counted = if logged { Lane::Write } else { Lane::Read };
        match counted {
            Lane::Write => answers.unanswered_writes += 1,
            Lane::Read => answers.unanswered_reads += 1,
        }
        let (place, generation) = (answers.place, answers.generation);
        let (number, writes) = (answers.take(), lane == Lane::Write);
        let durable = answers.durable;
        let route = Route { place, generation, number, note, lane: counted, writes, durable };
        let why = Failure::TooLong { bytes, most: self.bounds.longest_body };
        self.finish(Finished::failed(vec![route], why));
    }

    /// Asks whether everything that the connection has written is durable, for up to `patience`
    /// microseconds; for ever if there is none. `None` if earlier commands must be answered first,
    /// `Some(true)` if it is known already.
    pub fn ask_durable(
        &mut self,
        now: Now,
        answers: &mut Answers,
        note: Note,
        patience: Option<u64>,
    ) -> Option<bool> {
        if answers.unanswered_reads + answers.unanswered_writes > 0 {
            answers.stall = Some(Stall::Face);
            return None;
        }
        let op = answers.written.op;
        if self.is_durable(op) {
            return Some(true);
        }
        let (place, generation) = (answers.place, answers.generation);
        let (number, lane) = (answers.take(), Lane::Read);
        // Counted as a read: the connection's next write waits for it.
        answers.unanswered_reads += 1;
        let (writes, durable) = (false, true);
        let route = Route { place, generation, number, note, lane, writes, durable };
        let due = patience.map(|patience| now.micros.saturating_add(patience));
        self.held.wait(route, op, due);
        Some(false)
    }

    fn batch(&mut self, logged: bool) -> &mut Batch {
        if logged { &mut self.writes } else { &mut self.reads }
    }

    /// Whether a connection that was told to wait would be told so again.
    pub fn full(&self) -> bool {
        self.writes.full() || self.reads.full()
    }

    /// Whether nothing is owed to anybody.
    pub fn idle(&self) -> bool {
        self.flying_writes.is_empty()
            && self.flying_reads.is_empty()
            && self.relogged.is_empty()
            && self.writes.routes.is_empty()
            && self.reads.routes.is_empty()
            && self.held.is_empty()
    }

    /// Sends what the window takes.
    pub fn send(&mut self, now: Now) {
        while let Some(flight) = self.relogged.pop_front() {
            if !self.has_room(self.flying_writes.len()) {
                self.relogged.push_front(flight);
                break;
            }
            let body = flight.body.clone();
            let Some(number) = self.machine.submit(now, body, false, &mut self.outgoing) else {
                self.relogged.push_front(flight);
                break;
            };
            self.flying_bytes += flight.body.len();
            self.held.wanted |= flight.durable;
            self.flying_writes.push_back(Flight { number, ..flight });
        }
        self.send_barrier(now);
        if !self.writes.routes.is_empty() && self.has_room(self.flying_writes.len()) {
            self.send_writes(now);
            self.send_barrier(now);
        }
        if !self.reads.routes.is_empty() && self.has_room(self.flying_reads.len()) {
            self.send_reads(now);
        }
    }

    fn has_room(&self, under_way: usize) -> bool {
        under_way < self.bounds.depth && self.flying_bytes < self.bounds.flying_bytes
    }

    fn send_writes(&mut self, now: Now) {
        let body = Bytes::from(std::mem::take(&mut self.writes.body));
        let Some(number) = self.machine.submit(now, body.clone(), false, &mut self.outgoing) else {
            self.writes.body = Vec::from(body);
            return;
        };
        let routes =
            std::mem::replace(&mut self.writes.routes, self.spare.pop().unwrap_or_default());
        self.flying_bytes += body.len();
        self.writes.body.reserve(body.len().min(BATCH_BYTES));
        self.counters.batches += 1;
        self.writes.closed = false;
        let (since, durable) = (self.writes.since, std::mem::take(&mut self.writes.durable));
        self.held.wanted |= durable;
        let flight = Flight { number, routes, durable, body, since, answered: false };
        self.flying_writes.push_back(flight);
    }

    /// Sends an empty request whose answer waits until all before it is durable, if anybody waits
    /// for that and none of those under way will tell.
    fn send_barrier(&mut self, now: Now) {
        if self.held.wanted && self.held.barriers.len() < MAX_BARRIERS {
            let sent = self.machine.submit(now, Bytes::new(), true, &mut self.outgoing);
            self.held.wanted = sent.is_none();
            self.held.barriers.extend(sent);
        }
    }

    fn send_reads(&mut self, now: Now) {
        let body = Bytes::from(std::mem::take(&mut self.reads.body));
        let Some(number) = self.machine.read(now, body.clone(), &mut self.outgoing) else {
            self.reads.body = Vec::from(body);
            return;
        };
        let routes =
            std::mem::replace(&mut self.reads.routes, self.spare.pop().unwrap_or_default());
        self.flying_bytes += body.len();
        self.reads.body.reserve(body.len().min(BATCH_BYTES));
        self.counters.batches += 1;
        self.reads.closed = false;
        let (since, durable) = (self.reads.since, std::mem::take(&mut self.reads.durable));
        let flight = Flight { number, routes, durable, body, since, answered: false };
        self.flying_reads.push_back(flight);
    }

    /// Sends a request on the service's own account, one at a time.
    pub fn send_errand(&mut self, now: Now, body: Vec<u8>) {
        if self.errand.is_none() {
            self.errand = self.machine.submit(now, Bytes::from(body), false, &mut self.outgoing);
        }
    }

    pub fn on_errand(&self) -> bool {
        self.errand.is_some()
    }

    /// What is to be sent.
    pub fn take_outgoing(&mut self, into: &mut Outgoing) {
        into.replicas.append(&mut self.outgoing.replicas);
        into.group.append(&mut self.outgoing.group);
    }

    /// What has to be told, in order.
    pub fn next_news(&mut self) -> Option<News> {
        self.news.pop_front()
    }

    /// A replica has answered for its group.
    pub fn on_reply(&mut self, now: Now, reply: Reply) {
        let seen = self.machine.expected();
        let finished = self.machine.on_reply(now, reply, &mut self.outgoing);
        self.on_told(seen, finished);
    }

    /// A replica has given its own reply, of those that are counted.
    pub fn on_vote(&mut self, now: Now, reply: nopaxos::Reply) {
        let seen = self.machine.expected();
        let finished = self.machine.on_vote(now, reply);
        self.on_told(seen, finished);
    }

    /// What a reply has brought: the end of a request, or that what was seen of a log is lost.
    fn on_told(&mut self, seen: View, finished: Option<client::Finished>) {
        if let Some(Loss { kept, dropped, .. }) = self.machine.take_loss() {
            self.lose(Viewstamp::new(seen, kept), &dropped);
        }
        if let Some(client::Finished { number, read, answer, .. }) = finished {
            self.on_answer(number, read, answer);
        }
    }

    /// The group's state is gone. No replica says so to a client that counts.
    pub fn on_state_lost(&mut self) {
        if !self.logs_reads {
            return;
        }
        for batch in [&mut self.writes, &mut self.reads] {
            batch.body.clear();
            (batch.durable, batch.closed) = (false, false);
        }
        let flights = self.flying_writes.iter_mut().map(|flight| &mut flight.routes);
        let batches = [&mut self.writes.routes, &mut self.reads.routes];
        for routes in flights.chain(batches).filter(|routes| !routes.is_empty()) {
            let finished = Finished::failed(std::mem::take(routes), Failure::StateLost);
            self.news.push_back(News::Finished(finished));
        }
    }

    fn on_answer(&mut self, number: RequestNumber, read: bool, answer: Answer) {
        if let Answer::Done { durable, .. } = &answer {
            self.learn(durable.op);
        }
        let errand = !read && self.errand == Some(number);
        if errand {
            self.errand = None;
        }
        if errand || (!read && self.held.on_barrier(number)) {
            // Its own replica tells a machine that counts of the durable point.
            self.held.wanted &= !self.logs_reads;
            if matches!(answer, Answer::Retired) {
                self.finish(Finished::failed(Vec::new(), Failure::Retired));
            }
            return;
        }
        let flights = if read { &mut self.flying_reads } else { &mut self.flying_writes };
        let Some(index) = flights.iter().position(|flight| flight.number == number) else { return };
        let flight = flights[index].take();
        while flights.front().is_some_and(|flight| flight.answered) {
            flights.pop_front();
        }
        self.flying_bytes -= flight.body.len();
        match answer {
            Answer::Done { position, body, .. } => {
                self.answered(flight, read, position, body);
            }
            Answer::MustLog => {
                if !flight.routes.is_empty() {
                    self.relogged.push_back(Flight { answered: false, ..flight });
                }
            }
            Answer::Retired => {
                self.finish(Finished::failed(flight.routes, Failure::Retired));
            }
            Answer::StateLost => {
                self.finish(Finished::failed(flight.routes, Failure::StateLost));
            }
        }
    }

    fn finish(&mut self, finished: Finished) {
        self.news.push_back(News::Finished(finished));
    }

    /// A batch was executed: those of its connections that wait for the disk are told later.
    fn answered(&mut self, flight: Flight, read: bool, position: Viewstamp, body: Bytes) {
        let Flight { routes, durable, since, .. } = flight;
        if durable && !self.is_durable(position.op) {
            let hasty = routes.iter().filter(|route| !route.durable).count();
            let shared = (hasty > 0).then(|| routes.clone());
            self.held.hold(routes, position, body.clone(), since);
            // A barrier follows a write at once, but a read may have seen what came later.
            self.held.wanted |= read;
            let Some(shared) = shared else { return };
            return self.finish(Finished {
                routes: shared,
                whom: Whom::Hasty,
                end: End::Answered(position, body),
            });
        }
        self.finish(Finished { routes, whom: Whom::All, end: End::Answered(position, body) });
    }

    /// Everything up to `through` in the log that the client machine has seen is durable.
    fn learn(&mut self, through: OpNumber) {
        if through > self.held.durable() {
            let news = &mut self.news;
            self.held.learn(through, |finished| news.push_back(News::Finished(finished)));
        }
    }

    /// This replica knows of a durable point. It tells something of what the client machine has
    /// seen only if both are in the same view ([Mao] 4.3: coverage, not the order of numbers).
    pub fn on_durable(&mut self, view: View, durable: Viewstamp) {
        if view == self.machine.expected() {
            self.learn(durable.op);
        }
    }

    /// Everything above `after` that was seen is lost, and of what was under way `dropped` is not
    /// executed. Batches are shared by those who have seen what is lost and others, so that what is
    /// not sent goes too.
    fn lose(&mut self, after: Viewstamp, dropped: &[RequestNumber]) {
        let mut gone = Vec::new();
        // Their numbers are used again.
        self.flying_writes.retain(|flight| !flight.answered);
        for &number in dropped {
            self.errand = self.errand.filter(|&errand| errand != number);
            self.held.on_barrier(number);
            let flights = &mut self.flying_writes;
            if let Some(index) = flights.iter().position(|flight| flight.number == number) {
                let mut flight = flights.remove(index).expect("just seen");
                self.flying_bytes -= flight.body.len();
                gone.append(&mut flight.routes);
            }
        }
        self.writes.body.clear();
        (self.writes.durable, self.writes.closed) = (false, false);
        gone.append(&mut self.writes.routes);
        self.held.lose(after.op, &mut gone);
        // The barriers behind them may be gone.
        self.held.wanted |= self.flying_writes.iter().any(|flight| flight.durable);
        let flights = [&self.flying_writes, &self.flying_reads, &self.relogged];
        let flights = flights.into_iter().flatten().flat_map(|flight| &flight.routes);
        let rest = flights.chain(&self.reads.routes).chain(self.held.routes());
        let rest = rest.copied().collect();
        self.news.push_back(News::Lost(Lost { after, dropped: gone, rest }));
    }

    /// This replica has entered a view: what is unanswered goes to its primary at once.
    pub fn on_view(&mut self, now: Now, view: View) {
        self.machine.on_view(now, view, &mut self.outgoing);
        // What is durable is told of the view in which something was seen.
        self.held.wanted |= self.logs_reads && !self.held.is_empty();
    }

    /// The client machine's timer.
    pub fn timeout(&mut self, now: Now) {
        self.machine.timeout(now, &mut self.outgoing);
    }

    /// Gives up a batch that has waited too long, if there is one. What was sent stays with the
    /// client machine; its answer will find nobody.
    pub fn expire(&mut self, now: Now) -> Option<Finished> {
        let patience = self.bounds.patience;
        if let Some(finished) = self.held.expire(now.micros, patience) {
            return Some(finished);
        }
        let late = |since: u64| now.micros >= since + patience;
        // Whatever becomes of a read, it has changed nothing.
        let under_way = [
            (&mut self.flying_writes, Failure::Unknown),
            (&mut self.flying_reads, Failure::Unavailable),
        ];
        for (flights, why) in under_way {
            // Flights were sent in the order of their age, but for those that were logged again.
            let expired = flights.iter_mut().find(|f| !f.routes.is_empty() && late(f.since));
            if let Some(flight) = expired {
                let routes = std::mem::take(&mut flight.routes);
                return Some(Finished::failed(routes, why));
            }
        }
        if self.relogged.front().is_some_and(|flight| late(flight.since)) {
            let routes = self.relogged.pop_front().expect("just seen").routes;
            return Some(Finished::failed(routes, Failure::Unavailable));
        }
        for batch in [&mut self.writes, &mut self.reads] {
            if !batch.routes.is_empty() && late(batch.since) {
                batch.body.clear();
                (batch.durable, batch.closed) = (false, false);
                let routes = std::mem::take(&mut batch.routes);
                return Some(Finished::failed(routes, Failure::Unavailable));
            }
        }
        None
    }

    /// A connection is closed: what it has asked about the disk, perhaps for ever, needs no answer.
    pub fn forget(&mut self, place: u32, generation: u32) {
        self.held.forget(place, generation);
    }

    /// When [`Gateway::timeout`] or [`Gateway::expire`] has something to do, in [`Now::micros`].
    pub fn deadline(&self) -> Option<u64> {
        let owed = |flight: &&Flight| !flight.routes.is_empty();
        let sent = [&self.flying_writes, &self.flying_reads, &self.relogged]
            .into_iter()
            .filter_map(|flights| flights.iter().find(owed).map(|flight| flight.since));
        let waiting = [&self.writes, &self.reads]
            .into_iter()
            .filter_map(|batch| (!batch.routes.is_empty()).then_some(batch.since));
        let oldest = sent.chain(waiting).min();
        let expiry = oldest.map(|since| since + self.bounds.patience);
        let held = self.held.deadline(self.bounds.patience);
        expiry.into_iter().chain(self.machine.deadline()).chain(held).min()
    }

    /// Takes back the list of a batch's routes, so that its memory is used again.
    pub fn recycle(&mut self, mut routes: Vec<Route>) {
        if self.spare.len() < 64 && routes.capacity() > 0 {
            routes.clear();
            self.spare.push(routes);
        }
    }
}

impl Flight {
    /// Takes what the flight was about and leaves a marker in its place.
    fn take(&mut self) -> Flight {
        self.answered = true;
        let (routes, body) = (std::mem::take(&mut self.routes), std::mem::take(&mut self.body));
        let (number, durable, since) = (self.number, self.durable, self.since);
        Flight { number, routes, durable, body, since, answered: true }
    }
}
