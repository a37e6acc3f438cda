//! Requests of bytes to a service of any kind, many at a time, over a connection to each replica.
//!
//! Nothing happens but inside the calls: there is no thread. What is submitted leaves with the next
//! [`Session::poll`], [`Session::wait`] or [`Session::send`]; answers come in during the first two.
//!
//! Invariants: every ticket is answered once, at the latest at its deadline (and again, marked, if
//! its effect was lost and it was executed anew). Memory is bounded by [`Options::tickets`], the
//! client machine's windows and, for what may have to be replayed, 16 MiB of requests.

use std::collections::VecDeque;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use bytes::Bytes;
use rustix::event::epoll::{self, CreateFlags, Event, EventFlags};
use smr::client::{self, Client, Retry, Sends};
use smr::{
    ClientMessage, Durability, GroupId, Now, OpNumber, OrderedBy, Outcome, Refusal, ReplicaId,
    Reply, View, Viewstamp,
};
use wire::{Condition, Frame, Hello, Kind};

use crate::flights::{Flight, Flights};
use crate::link::{Link, Own};
use crate::machine::{Counting, Machine};
use crate::options::{OnLoss, Options, Terms};
use crate::{Error, clock, identity, search};

/// Second answers that nobody fetches are dropped beyond this many, the oldest first.
const MAX_AGAIN: usize = 1 << 16;
/// A session whose next request is refused as out of order for so long is forgotten, in
/// microseconds.
const FORGOTTEN: u64 = 1_000_000;
/// Losses that nobody fetches are joined beyond this many.
const MAX_LOSSES: usize = 64;

/// Stands for a request of one session; never used again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Ticket(pub(crate) u64);

/// The answer of a request that was executed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answer {
    /// The operation that executed it; of a read, the last one that it saw.
    pub position: Viewstamp,
    /// The durable point that the primary knew: no crash with disks intact takes back what it
    /// covers.
    pub durable: Viewstamp,
    /// What the service answers.
    pub body: Bytes,
}

/// A request that has ended.
#[derive(Debug)]
pub struct Done {
    /// Which.
    pub ticket: Ticket,
    /// It was answered before, a crash took its effect back, and it has been executed anew: this is
    /// the answer that counts ([`OnLoss::Replay`]).
    pub again: bool,
    /// How long it took since it was submitted, to the microsecond.
    pub took: Duration,
    /// Its answer, or why there is none.
    pub result: Result<Answer, Error>,
}

/// A crash of the group took back acknowledged operations (durability `lazy`).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Loss {
    /// Of what this client has seen, everything above this operation was lost.
    pub kept: OpNumber,
    /// Requests that were under way and end with [`Error::Dropped`] ([`OnLoss::Report`]).
    pub dropped: Vec<Ticket>,
    /// How many acknowledged requests are executed anew, in order ([`OnLoss::Replay`]).
    pub replayed: usize,
}

/// A request that waits for the window.
struct Waiting {
    flight: Flight,
    body: Bytes,
    durable: bool,
}

/// Why nothing goes on.
#[derive(Clone, Copy)]
enum Over {
    Retired,
    Forgotten,
    StateLost,
}

/// A client of one group.
pub struct Session {
    own: Own,
    durability: Durability,
    /// Of a request's body, in bytes.
    longest_body: usize,
    options: Options,
    machine: Machine,
    links: Vec<Link>,
    /// Which link leads to a replica.
    routes: Vec<Option<usize>>,
    epoll: OwnedFd,
    events: Vec<Event>,
    frames: Vec<Frame>,
    sends: Sends,
    flights: Flights,
    writes: VecDeque<Waiting>,
    reads: VecDeque<Waiting>,
    /// No deadline is before this time, in [`Now::micros`].
    expiry: u64,
    done: VecDeque<Done>,
    again: VecDeque<Done>,
    losses: VecDeque<Loss>,
    last_ticket: u64,
    /// Tickets that are neither answered nor given up.
    unanswered: usize,
    written: Viewstamp,
    durable: Viewstamp,
    /// Since when the primary does not know the request before the oldest, in [`Now::micros`].
    strange: Option<u64>,
    over: Option<Over>,
}

impl Session {
    /// Connects to the replicas at `addresses`, `host:port` each, as in the replicas' `--peers`, in
    /// any order; those of one group. It is enough that one of them answers, and wise to name all.
    ///
    /// # Errors
    /// [`Error::Unreachable`] after [`Options::connect`], or [`Error::Os`].
    pub fn connect<A: AsRef<str>>(addresses: &[A], options: Options) -> Result<Session, Error> {
        let epoll = epoll::create(CreateFlags::CLOEXEC)?;
        let own = Own { client: identity::fresh()?, group: GroupId(0) };
        let (links, hello) = search::first(addresses, own, options.connect, &epoll)?;
        let own = Own { group: hello.identity.group, ..own };
        Ok(Session::new(own, &hello, links, epoll, options))
    }

    fn new(own: Own, hello: &Hello, links: Vec<Link>, epoll: OwnedFd, options: Options) -> Session {
        // Nothing acknowledged is lost in other durabilities, and in `memory` nothing is durable.
        let on_loss = match hello.durability {
            Durability::Lazy => options.on_loss,
            Durability::Memory | Durability::Sync => OnLoss::Report,
        };
        let retry = Retry::after(options.retry.as_micros().max(1) as u64);
        let first = hello.identity.replica;
        let options = Options { on_loss, ..options };
        let machine = match hello.order {
            OrderedBy::Vsr | OrderedBy::Mu => {
                Machine::Asking(Client::new(own.client, hello.replicas, first, retry, on_loss))
            }
            OrderedBy::Nopaxos => {
                Machine::Counting(Counting::new(own, hello.replicas, retry.silence, on_loss))
            }
        };
        let mut session = Session {
            own,
            durability: hello.durability,
            longest_body: hello.longest_body as usize,
            options,
            machine,
            links,
            routes: vec![None; usize::from(hello.replicas)],
            epoll,
            events: Vec::with_capacity(16),
            frames: Vec::new(),
            sends: Vec::new(),
            flights: Flights::default(),
            writes: VecDeque::new(),
            reads: VecDeque::new(),
            expiry: u64::MAX,
            done: VecDeque::new(),
            again: VecDeque::new(),
            losses: VecDeque::new(),
            last_ticket: 0,
            unanswered: 0,
            written: Viewstamp::default(),
            durable: Viewstamp::default(),
            strange: None,
            over: None,
        };
        session.route();
        session
    }

    /// What the group's acknowledgements mean.
    pub fn durability(&self) -> Durability {
        self.durability
    }

    /// Its group.
    pub fn group(&self) -> GroupId {
        self.own.group
    }

    /// The terms of requests that name none of their own.
    pub fn terms(&self) -> Terms {
        self.options.terms
    }

    /// Changes them, for requests to come.
    pub fn set_terms(&mut self, terms: Terms) {
        self.options.terms = terms;
    }

    /// The operation of the last answered request that was logged; it is tentative until the
    /// durable point covers it.
    pub fn viewstamp(&self) -> Viewstamp {
        self.written
    }

    /// The highest durable point that an answer has told of. It moves with answers alone: see
    /// [`Session::flush`].
    pub fn durable_point(&self) -> Viewstamp {
        self.durable
    }

    /// How many requests are neither answered nor given up.
    pub fn outstanding(&self) -> usize {
        self.unanswered
    }

    /// How many acknowledged requests are kept in case that a crash takes them back.
    pub fn tentative(&self) -> usize {
        self.machine.tentative()
    }

    /// Submits a request to be ordered, logged and executed once. Requests are executed in the
    /// order in which they are submitted, up to 32 of them under way; more wait here.
    ///
    /// # Errors
    /// [`Error::Full`], [`Error::TooLong`], or the session's end. It was not submitted then.
    pub fn submit(&mut self, body: Bytes, terms: Terms) -> Result<Ticket, Error> {
        let flight = self.open(&body, terms)?;
        // Elsewhere an answer promises already all that there is to promise.
        let durable = terms.durable && self.durability == Durability::Lazy;
        self.writes.push_back(Waiting { flight, body, durable });
        Ok(flight.ticket)
    }

    /// Submits a request that only reads; it is not logged. It sees everything that was answered to
    /// anybody before, but not for certain what this session has under way. [`Terms::durable`] does
    /// not concern it.
    ///
    /// # Errors
    /// As for [`Session::submit`].
    pub fn read(&mut self, body: Bytes, terms: Terms) -> Result<Ticket, Error> {
        let flight = self.open(&body, terms)?;
        let logged = self.machine.logs_reads();
        let queue = if logged { &mut self.writes } else { &mut self.reads };
        queue.push_back(Waiting { flight, body, durable: false });
        Ok(flight.ticket)
    }

    fn open(&mut self, body: &Bytes, terms: Terms) -> Result<Flight, Error> {
        if let Some(over) = self.over {
            return Err(over.into());
        }
        if self.unanswered + self.done.len() >= self.options.tickets {
            return Err(Error::Full);
        }
        let (length, limit) = (body.len(), self.longest_body);
        if length > limit {
            return Err(Error::TooLong { length, limit });
        }
        self.last_ticket += 1;
        self.unanswered += 1;
        let since = clock::now().micros;
        let patience = terms.deadline.map(|deadline| deadline.as_micros() as u64);
        let deadline = patience.map_or(u64::MAX, |patience| since.saturating_add(patience));
        self.expiry = self.expiry.min(deadline);
        Ok(Flight { ticket: Ticket(self.last_ticket), since, deadline })
    }

    /// Sends what was submitted, as far as window and sockets take it, without waiting.
    pub fn send(&mut self) {
        self.fill(clock::now());
        self.transmit();
    }

    /// Sends, waits until something arrives or falls due, at most for `timeout`, and takes it.
    /// Returns at once while answers are there to be fetched.
    ///
    /// # Errors
    /// [`Error::Os`] if the operating system refuses to wait.
    pub fn poll(&mut self, timeout: Duration) -> Result<(), Error> {
        let now = clock::now();
        self.on_time(now);
        self.fill(now);
        self.transmit();
        let due = Duration::from_micros(self.due().saturating_sub(now.micros));
        let ready = !self.done.is_empty() || !self.again.is_empty();
        let wait = if ready { Duration::ZERO } else { timeout.min(due) };
        let mut events = std::mem::take(&mut self.events);
        search::wait(&self.epoll, wait, &mut events)?;
        let now = clock::now();
        for event in events.drain(..) {
            self.on_ready(event.data.u64() as usize, event.flags, now);
        }
        self.events = events;
        self.on_time(now);
        self.fill(now);
        self.transmit();
        Ok(())
    }

    /// When [`Session::poll`] has something to do though nothing arrives, in microseconds of the
    /// monotonic clock.
    fn due(&self) -> u64 {
        let links = self.links.iter().map(Link::due).min().unwrap_or(u64::MAX);
        self.machine.deadline().unwrap_or(u64::MAX).min(self.expiry).min(links)
    }

    fn on_time(&mut self, now: Now) {
        for (index, link) in self.links.iter_mut().enumerate() {
            link.on_time(now.micros, self.own, index, &self.epoll);
        }
        if let Machine::Counting(counting) = &mut self.machine {
            // What one that is gone has said of itself holds no longer.
            let gone = self.links.iter().filter(|link| !link.stands());
            for hello in gone.filter_map(|link| link.hello.as_ref()) {
                counting.on_full(now, hello.identity.replica, false);
            }
        }
        if self.machine.deadline().is_some_and(|due| due <= now.micros) {
            self.machine.timeout(now, &mut self.sends);
        }
        if self.expiry <= now.micros {
            self.expire(now);
        }
    }

    fn expire(&mut self, now: Now) {
        let mut late = Vec::new();
        let mut next = self.flights.expire(now.micros, |flight| late.push((flight, false)));
        for queue in [&mut self.writes, &mut self.reads] {
            queue.retain(|waiting| {
                let flight = waiting.flight;
                if flight.deadline <= now.micros {
                    late.push((flight, true));
                    return false;
                }
                next = next.min(flight.deadline);
                true
            });
        }
        self.expiry = next;
        late.sort_by_key(|(flight, _)| flight.ticket);
        for (flight, unsent) in late {
            let after = Duration::from_micros(flight.deadline.saturating_sub(flight.since));
            self.finish(flight, now, Err(Error::TimedOut { after, unsent }));
        }
    }

    /// Hands what waits to the client machine, as far as its windows take it.
    fn fill(&mut self, now: Now) {
        while let Some(waiting) = self.writes.pop_front() {
            let Waiting { flight, body, durable } = waiting;
            match self.machine.submit(now, body.clone(), durable, &mut self.sends) {
                Some(number) => self.flights.write(number, flight),
                None => {
                    self.writes.push_front(Waiting { flight, body, durable });
                    break;
                }
            }
        }
        while let Some(waiting) = self.reads.pop_front() {
            match self.machine.read(now, waiting.body.clone(), &mut self.sends) {
                Some(number) => self.flights.read(number, waiting.flight, waiting.body),
                None => {
                    self.reads.push_front(waiting);
                    break;
                }
            }
        }
    }

    /// Sends what the client machine wants sent.
    fn transmit(&mut self) {
        for (to, message) in self.sends.drain(..) {
            // A replica that is not connected is as good as one that does not answer.
            if let Some(Some(index)) = self.routes.get(to.index()) {
                self.links[*index].send(self.own, &message);
            }
        }
        if let Machine::Counting(counting) = &mut self.machine {
            counting.transmit(|request| {
                let (expected, durable) = (View::default(), false);
                let message = ClientMessage::Request { expected, durable, request };
                self.links.iter_mut().for_each(|link| link.send(self.own, &message));
            });
        }
        for index in 0..self.links.len() {
            if self.links[index].has_output() {
                self.flush_link(index);
            }
        }
    }

    fn flush_link(&mut self, index: usize) {
        let link = &mut self.links[index];
        if let Err(error) = link.flush(index, &self.epoll) {
            link.lose(clock::now().micros, &error.to_string());
        }
    }

    fn on_ready(&mut self, index: usize, flags: EventFlags, now: Now) {
        if flags.contains(EventFlags::OUT) {
            self.flush_link(index);
        }
        if !flags.intersects(EventFlags::IN | EventFlags::ERR | EventFlags::HUP) {
            return;
        }
        let mut frames = std::mem::take(&mut self.frames);
        let link = &mut self.links[index];
        let replica = |link: &Link| link.hello.as_ref().map(|hello| hello.identity.replica);
        let before = replica(link);
        if let Err(why) = link.read(self.own, now.micros, &mut frames) {
            link.lose(now.micros, &why);
        }
        if replica(&self.links[index]) != before {
            self.route();
        }
        for frame in frames.drain(..) {
            if !self.on_frame(frame, now) {
                self.links[index].lose(now.micros, "what it says makes no sense");
            }
        }
        self.frames = frames;
    }

    /// A replica has said something. Returns whether it makes sense.
    fn on_frame(&mut self, frame: Frame, now: Now) -> bool {
        let Frame { header, payload } = frame;
        match (header.kind, &mut self.machine) {
            (Kind::Reply, Machine::Asking(_)) => Reply::decode(payload).is_ok_and(|reply| {
                self.on_reply(reply, now);
                true
            }),
            (Kind::Reply, Machine::Counting(_)) => {
                nopaxos::Reply::decode(payload).is_ok_and(|vote| {
                    self.on_vote(vote, now);
                    true
                })
            }
            (Kind::Sequencer, Machine::Counting(counting)) => wire::sequencer(&payload)
                .is_some_and(|(session, at)| {
                    counting.on_sequencer(now, session, at);
                    true
                }),
            (Kind::Condition, Machine::Counting(counting)) => {
                let Some(condition) = Condition::decode(&payload) else { return false };
                counting.on_full(now, header.from, condition.is_full);
                if condition.is_lost && self.over.is_none() {
                    self.end(Over::StateLost, now);
                }
                true
            }
            _ => false,
        }
    }

    /// One replica's reply, of those that are counted.
    fn on_vote(&mut self, vote: nopaxos::Reply, now: Now) {
        if vote.reply.client != self.own.client || self.over.is_some() {
            return;
        }
        if vote.is_leaders() && self.is_forgotten(&vote.reply, now) {
            return self.end(Over::Forgotten, now);
        }
        let Machine::Counting(counting) = &mut self.machine else { return };
        let done = counting.on_vote(now, vote);
        if counting.is_retired() {
            return self.end(Over::Retired, now);
        }
        if let Some(loss) = self.machine.take_loss() {
            self.on_loss(loss, now);
        }
        let Some(nopaxos::Finished { number, position, durable, body, again, .. }) = done else {
            return;
        };
        let durable = if self.durability == Durability::Sync { position } else { durable };
        let done = client::Answer::Done { position, durable, body };
        self.on_finished(client::Finished { number, read: false, again, answer: done }, now);
    }

    /// Notes which replicas answer where.
    fn route(&mut self) {
        self.routes.fill(None);
        for (index, link) in self.links.iter().enumerate() {
            let replica = link.hello.as_ref().map(|hello| hello.identity.replica);
            if let Some(route) = replica.and_then(|r: ReplicaId| self.routes.get_mut(r.index())) {
                *route = Some(index);
            }
        }
    }

    fn on_reply(&mut self, reply: Reply, now: Now) {
        if reply.client != self.own.client || self.over.is_some() {
            return;
        }
        if !reply.read && self.is_forgotten(&reply, now) {
            return self.end(Over::Forgotten, now);
        }
        let finished = self.machine.on_reply(now, reply, &mut self.sends);
        if let Some(loss) = self.machine.take_loss() {
            self.on_loss(loss, now);
        }
        if let Some(finished) = finished {
            self.on_finished(finished, now);
        }
    }

    fn on_finished(&mut self, finished: client::Finished, now: Now) {
        let client::Finished { number, read, again, answer } = finished;
        match answer {
            client::Answer::Done { position, durable, body } => {
                self.durable = self.durable.max(durable);
                let answer = Answer { position, durable, body };
                if read {
                    if let Some((Some(flight), _)) = self.flights.end_read(number) {
                        self.finish(flight, now, Ok(answer));
                    }
                    return;
                }
                self.written = position;
                match self.flights.executed(number, position.op) {
                    Some((flight, true)) => self.finish(flight, now, Ok(answer)),
                    Some((flight, false)) if again => self.repeat(flight, now, answer),
                    _ => {}
                }
                let keep = match self.options.on_loss {
                    OnLoss::Replay => durable.op,
                    OnLoss::Report => OpNumber(u64::MAX),
                };
                self.flights.trim(keep);
            }
            client::Answer::MustLog => {
                if let Some((Some(flight), body)) = self.flights.end_read(number) {
                    self.writes.push_front(Waiting { flight, body, durable: false });
                }
            }
            client::Answer::Retired => self.end(Over::Retired, now),
            client::Answer::StateLost => self.end(Over::StateLost, now),
        }
    }

    /// Whether the primary goes on not to know the request before the oldest unanswered one.
    fn is_forgotten(&mut self, reply: &Reply, now: Now) -> bool {
        match reply.outcome {
            Outcome::Done { .. } => self.strange = None,
            Outcome::Refused(Refusal::OutOfOrder)
                if self.flights.oldest() == Some(reply.number) =>
            {
                return *self.strange.get_or_insert(now.micros) + FORGOTTEN <= now.micros;
            }
            _ => {}
        }
        false
    }

    fn on_loss(&mut self, loss: client::Loss, now: Now) {
        let mut dropped = Vec::new();
        for number in loss.dropped {
            if let Some(flight) = self.flights.dropped(number) {
                dropped.push(flight.ticket);
                self.finish(flight, now, Err(Error::Dropped));
            }
        }
        if self.options.on_loss == OnLoss::Replay {
            self.flights.reopen(loss.kept);
        }
        let loss = Loss { kept: loss.kept, dropped, replayed: loss.replayed };
        let full = self.losses.len() >= MAX_LOSSES;
        match self.losses.back_mut() {
            Some(last) if full => {
                last.kept = last.kept.min(loss.kept);
                last.dropped.extend(loss.dropped);
                last.replayed += loss.replayed;
            }
            _ => self.losses.push_back(loss),
        }
    }

    fn finish(&mut self, flight: Flight, now: Now, result: Result<Answer, Error>) {
        self.unanswered -= 1;
        let took = Duration::from_micros(now.micros.saturating_sub(flight.since));
        self.done.push_back(Done { ticket: flight.ticket, again: false, took, result });
    }

    fn repeat(&mut self, flight: Flight, now: Now, answer: Answer) {
        if self.again.len() >= MAX_AGAIN {
            self.again.pop_front();
        }
        let took = Duration::from_micros(now.micros.saturating_sub(flight.since));
        self.again.push_back(Done { ticket: flight.ticket, again: true, took, result: Ok(answer) });
    }

    /// Nothing more will be answered.
    fn end(&mut self, over: Over, now: Now) {
        self.over = Some(over);
        let mut open = Vec::new();
        self.flights.abandon(|flight| open.push(flight));
        for queue in [&mut self.writes, &mut self.reads] {
            open.extend(queue.drain(..).map(|waiting| waiting.flight));
        }
        open.sort_by_key(|flight| flight.ticket);
        for flight in open {
            self.finish(flight, now, Err(over.into()));
        }
    }

    /// The next request that has ended and was not fetched, in the order in which they ended;
    /// second answers first.
    pub fn next_done(&mut self) -> Option<Done> {
        self.again.pop_front().or_else(|| self.done.pop_front())
    }

    /// The next second answer, for those who fetch the first ones with [`Session::wait`].
    pub fn next_again(&mut self) -> Option<Done> {
        self.again.pop_front()
    }

    /// Waits until this request has ended, and fetches it.
    ///
    /// # Errors
    /// Its own; [`Error::UnknownTicket`] for one that was fetched before or is not of this session.
    pub fn wait(&mut self, ticket: Ticket) -> Result<Answer, Error> {
        let mut open = None;
        loop {
            if let Some(index) = self.done.iter().position(|done| done.ticket == ticket) {
                return self.done.remove(index).expect("just found").result;
            }
            // One that is open ends in `done`.
            if !*open.get_or_insert_with(|| self.is_open(ticket)) {
                return Err(Error::UnknownTicket);
            }
            // Answers to others do not keep it from waiting.
            let (done, again) = (std::mem::take(&mut self.done), std::mem::take(&mut self.again));
            let polled = self.poll(Duration::from_secs(1));
            for (place, before) in [(&mut self.done, done), (&mut self.again, again)] {
                let new = std::mem::replace(place, before);
                place.extend(new);
            }
            polled?;
        }
    }

    fn is_open(&self, ticket: Ticket) -> bool {
        let waiting = self.writes.iter().chain(&self.reads).map(|waiting| &waiting.flight);
        self.flights.open().chain(waiting).any(|flight| flight.ticket == ticket)
    }

    /// Waits until everything that was answered so far is durable: no crash with disks intact takes
    /// it back, whatever the group's durability (but `memory`, where it promises nothing).
    ///
    /// # Errors
    /// As for any request; then nothing is known.
    pub fn flush(&mut self) -> Result<Viewstamp, Error> {
        let terms = Terms { durable: true, ..self.options.terms };
        let ticket = self.submit(Bytes::new(), terms)?;
        Ok(self.wait(ticket)?.durable)
    }

    /// What was lost, one loss at a time, the oldest first. It is told as soon as it is known,
    /// before anything else of this session is executed.
    pub fn take_loss(&mut self) -> Option<Loss> {
        self.losses.pop_front()
    }
}

/// Readable when [`Session::poll`] has something to take, so that a loop of one's own can wait for
/// many sessions; it must call it every few milliseconds nevertheless, for what falls due.
impl AsFd for Session {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.epoll.as_fd()
    }
}

impl From<Over> for Error {
    fn from(over: Over) -> Error {
        match over {
            Over::Retired => Error::Retired,
            Over::Forgotten => Error::Forgotten,
            Over::StateLost => Error::StateLost,
        }
    }
}
