//! Gathers the commands of all connections into batches, sends them through the client machine,
//! and takes the answers apart again.
//!
//! Invariants: a batch's routes are in the order of its items; a connection's reads are beside the
//! log only while none of its writes is unanswered, and its writes wait while such reads are.

use std::collections::VecDeque;

use bytes::Bytes;
use smr::{ClientId, Now, ReplicaId, Reply, RequestNumber, View};

use crate::client::{Answers, Stall};
use crate::face::{Counters, Failure, Note};

/// A batch is sent at once when it has this many bytes.
const BATCH_BYTES: usize = 512 << 10;
/// What travels must fit into a frame, with an entry's own bytes.
const LONGEST_BODY: usize = wire::MAX_PAYLOAD - (64 << 10);
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
}

/// A batch that is being filled, or waits to be sent.
#[derive(Debug, Default)]
struct Batch {
    body: Vec<u8>,
    routes: Vec<Route>,
    /// About how many bytes its answer will have.
    expected: usize,
    /// When its first command came, in [`Now::micros`].
    since: u64,
}

impl Batch {
    fn full(&self) -> bool {
        self.body.len() >= BATCH_BYTES
            || self.routes.len() >= BATCH_COMMANDS
            || self.expected >= ANSWER_BYTES
    }
}

/// A batch that was sent.
#[derive(Debug)]
struct Flight {
    number: RequestNumber,
    routes: Vec<Route>,
    /// Kept for a read, in case it must be logged.
    body: Bytes,
    since: u64,
    answered: bool,
}

/// What became of a batch.
#[derive(Debug)]
pub(crate) enum End {
    Answered(Bytes),
    Failed(Failure),
}

/// A batch that has ended; its routes are to be told, and given back.
#[derive(Debug)]
pub(crate) struct Finished {
    pub routes: Vec<Route>,
    pub end: End,
}

/// Bounds of a gateway.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Bounds {
    /// How many batches of writes may be under way, and of reads.
    pub depth: usize,
    /// How many bytes they may have together.
    pub flying_bytes: usize,
    /// When a command is given up, in microseconds after it came.
    pub patience: u64,
}

/// The gateway.
pub(crate) struct Gateway {
    client: vsr::Client,
    bounds: Bounds,
    writes: Batch,
    reads: Batch,
    /// Reads that must be logged and wait for the window.
    relogged: VecDeque<Flight>,
    flying_writes: VecDeque<Flight>,
    flying_reads: VecDeque<Flight>,
    flying_bytes: usize,
    sends: vsr::Sends,
    spare: Vec<Vec<Route>>,
    /// A request of the service's own is under way.
    errand: Option<RequestNumber>,
    pub counters: Counters,
}

impl Gateway {
    pub fn new(id: ClientId, replicas: u8, timing: vsr::Timing, bounds: Bounds) -> Gateway {
        let first = ReplicaId(id.gateway as u8);
        Gateway {
            client: vsr::Client::new(id, replicas, first, timing, vsr::OnLoss::Report),
            bounds,
            writes: Batch::default(),
            reads: Batch::default(),
            relogged: VecDeque::new(),
            flying_writes: VecDeque::new(),
            flying_reads: VecDeque::new(),
            flying_bytes: 0,
            sends: Vec::new(),
            spare: Vec::new(),
            errand: None,
            counters: Counters::default(),
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
        let logged = lane == Lane::Write || answers.unanswered_writes > 0;
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
        batch.expected += answers.estimate();
        push(&mut batch.body);
        assert!(batch.body.len() <= LONGEST_BODY, "the face bounds its commands");
        // A read in the log is a write to those behind it.
        let counted = if logged { Lane::Write } else { Lane::Read };
        let (place, generation) = (answers.place, answers.generation);
        let number = answers.take();
        batch.routes.push(Route { place, generation, number, note, lane: counted });
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
    }

    /// Sends what the window takes.
    pub fn send(&mut self, now: Now) {
        while let Some(flight) = self.relogged.pop_front() {
            if !self.has_room(self.flying_writes.len()) {
                self.relogged.push_front(flight);
                break;
            }
            let body = flight.body.clone();
            let Some(number) = self.client.submit(now, body, false, &mut self.sends) else {
                self.relogged.push_front(flight);
                break;
            };
            self.flying_bytes += flight.body.len();
            self.flying_writes.push_back(Flight { number, ..flight });
        }
        if !self.writes.routes.is_empty() && self.has_room(self.flying_writes.len()) {
            self.send_writes(now);
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
        let Some(number) = self.client.submit(now, body.clone(), false, &mut self.sends) else {
            self.writes.body = Vec::from(body);
            return;
        };
        let routes =
            std::mem::replace(&mut self.writes.routes, self.spare.pop().unwrap_or_default());
        self.flying_bytes += body.len();
        self.writes.body.reserve(body.len().min(BATCH_BYTES));
        self.counters.batches += 1;
        let since = self.writes.since;
        self.flying_writes.push_back(Flight { number, routes, body, since, answered: false });
    }

    fn send_reads(&mut self, now: Now) {
        let body = Bytes::from(std::mem::take(&mut self.reads.body));
        let Some(number) = self.client.read(now, body.clone(), &mut self.sends) else {
            self.reads.body = Vec::from(body);
            return;
        };
        let routes =
            std::mem::replace(&mut self.reads.routes, self.spare.pop().unwrap_or_default());
        self.flying_bytes += body.len();
        self.reads.body.reserve(body.len().min(BATCH_BYTES));
        self.counters.batches += 1;
        let since = self.reads.since;
        self.flying_reads.push_back(Flight { number, routes, body, since, answered: false });
    }

    /// Sends a request on the service's own account, one at a time.
    pub fn send_errand(&mut self, now: Now, body: Vec<u8>) {
        if self.errand.is_none() {
            self.errand = self.client.submit(now, Bytes::from(body), false, &mut self.sends);
        }
    }

    pub fn on_errand(&self) -> bool {
        self.errand.is_some()
    }

    /// What is to be sent.
    pub fn take_sends(&mut self, into: &mut vsr::Sends) {
        into.append(&mut self.sends);
    }

    /// A replica has answered.
    pub fn on_reply(&mut self, now: Now, reply: Reply) -> Option<Finished> {
        let vsr::Finished { number, read, answer, .. } =
            self.client.on_reply(now, reply, &mut self.sends)?;
        if !read && self.errand == Some(number) {
            self.errand = None;
            let retired = matches!(answer, vsr::Answer::Retired);
            let end = End::Failed(Failure::Retired);
            return retired.then(|| Finished { routes: Vec::new(), end });
        }
        let flights = if read { &mut self.flying_reads } else { &mut self.flying_writes };
        let index = flights.iter().position(|flight| flight.number == number)?;
        let flight = flights[index].take();
        while flights.front().is_some_and(|flight| flight.answered) {
            flights.pop_front();
        }
        self.flying_bytes -= flight.body.len();
        let end = match answer {
            vsr::Answer::Done { body, .. } => End::Answered(body),
            vsr::Answer::MustLog => {
                if !flight.routes.is_empty() {
                    self.relogged.push_back(Flight { answered: false, ..flight });
                }
                return None;
            }
            vsr::Answer::Retired => End::Failed(Failure::Retired),
            vsr::Answer::StateLost => End::Failed(Failure::StateLost),
        };
        Some(Finished { routes: flight.routes, end })
    }

    /// This replica has entered a view: what is unanswered goes to its primary at once.
    pub fn on_view(&mut self, now: Now, view: View) {
        self.client.on_view(now, view, &mut self.sends);
    }

    /// The client machine's timer.
    pub fn timeout(&mut self, now: Now) {
        self.client.timeout(now, &mut self.sends);
    }

    /// Gives up a batch that has waited too long, if there is one. What was sent stays with the
    /// client machine; its answer will find nobody.
    pub fn expire(&mut self, now: Now) -> Option<Finished> {
        let patience = self.bounds.patience;
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
                return Some(Finished { routes, end: End::Failed(why) });
            }
        }
        if self.relogged.front().is_some_and(|flight| late(flight.since)) {
            let routes = self.relogged.pop_front().expect("just seen").routes;
            return Some(Finished { routes, end: End::Failed(Failure::Unavailable) });
        }
        for batch in [&mut self.writes, &mut self.reads] {
            if !batch.routes.is_empty() && late(batch.since) {
                batch.body.clear();
                let routes = std::mem::take(&mut batch.routes);
                return Some(Finished { routes, end: End::Failed(Failure::Unavailable) });
            }
        }
        None
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
        expiry.into_iter().chain(self.client.deadline()).min()
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
        Flight { number: self.number, routes, body, since: self.since, answered: true }
    }
}
