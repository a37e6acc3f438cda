//! One thread of a load: many nonblocking connections over epoll.
//!
//! Written to cost little beside the server: requests are encoded into one buffer per connection
//! and written at once, the clock is read once per batch, and nothing is allocated per operation
//! in the steady state.

use std::collections::VecDeque;
use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::num::NonZeroU64;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use hdrhistogram::Histogram;
use rustix::buffer::spare_capacity;
use rustix::event::{Timespec, epoll};
use rustix::fd::OwnedFd;

use crate::keys::Form;
use crate::speech::{self, Answer, Answers, Protocol};
use crate::workload::{Kind, Workload};

/// How long a connection may take to be made.
const CONNECT_PATIENCE: Duration = Duration::from_secs(5);

/// How long to wait, after the last request, for replies.
const DRAIN_PATIENCE: Duration = Duration::from_secs(10);

/// Input buffers start with this size and double when a reply needs it.
const INPUT_SIZE: usize = 64 << 10;

/// In an open loop, a connection with this many bytes unsent gets no further requests until it
/// drains; they stay due, and their latency counts from when they were.
const MOST_UNSENT: usize = 4 << 20;

/// The longest latency that is told apart from longer ones.
const LONGEST: u64 = 100_000_000_000;

/// What a driver is to do.
pub(crate) struct Plan {
    /// Requests on their way per connection, in a closed loop.
    pub pipeline: usize,
    /// Requests per second, in an open loop.
    pub rate: Option<f64>,
    /// Stop after as many.
    pub count: Option<u64>,
    /// Stop after so long.
    pub time: Option<Duration>,
    /// Keys per range.
    pub range_length: u32,
    /// What keys look like.
    pub form: Form,
    /// What is spoken.
    pub protocol: Protocol,
}

/// What was seen of one kind of operation, or of several drivers.
pub(crate) struct Tally {
    pub latencies: [Histogram<u64>; Kind::ALL.len()],
    pub errors: u64,
    pub first_error: Option<String>,
    pub misses: u64,
    pub unanswered: u64,
    pub ended: Option<Instant>,
}

impl Tally {
    pub(crate) fn new() -> Self {
        let histogram = |_| Histogram::new_with_bounds(1, LONGEST, 3).expect("valid bounds");
        Self {
            latencies: std::array::from_fn(histogram),
            errors: 0,
            first_error: None,
            misses: 0,
            unanswered: 0,
            ended: None,
        }
    }

    pub(crate) fn add(&mut self, other: &Tally) {
        for (mine, theirs) in self.latencies.iter_mut().zip(&other.latencies) {
            mine.add(theirs).expect("the bounds are the same");
        }
        self.errors += other.errors;
        self.first_error = self.first_error.take().or_else(|| other.first_error.clone());
        self.misses += other.misses;
        self.unanswered += other.unanswered;
        self.ended = self.ended.max(other.ended);
    }

    pub(crate) fn all(&self) -> Histogram<u64> {
        let mut all = self.latencies[0].clone();
        for histogram in &self.latencies[1..] {
            all.add(histogram).expect("the bounds are the same");
        }
        all
    }

    fn record(&mut self, kind: Kind, answer: Answer<'_>, latency: Duration) {
        self.latencies[kind as usize].saturating_record(latency.as_nanos() as u64);
        match answer {
            Answer::Error(text) => {
                self.errors += 1;
                let message = || String::from_utf8_lossy(text).trim_end().to_string();
                self.first_error.get_or_insert_with(message);
            }
            Answer::Miss => self.misses += 1,
            Answer::Done => {}
        }
    }
}

struct Connection {
    socket: TcpStream,
    output: Vec<u8>,
    sent: usize,
    input: Vec<u8>,
    start: usize,
    end: usize,
    answers: Answers,
    /// What was asked and is not answered yet, with the time from which latency counts.
    pending: VecDeque<(Kind, Instant)>,
    waits_to_write: bool,
}

impl Connection {
    fn new(address: SocketAddr, protocol: Protocol) -> Result<Self> {
        let socket = TcpStream::connect_timeout(&address, CONNECT_PATIENCE)
            .with_context(|| format!("cannot connect to {address}"))?;
        socket.set_nodelay(true)?;
        socket.set_nonblocking(true)?;
        Ok(Self {
            socket,
            output: Vec::new(),
            sent: 0,
            input: vec![0; INPUT_SIZE],
            start: 0,
            end: 0,
            answers: Answers::new(protocol),
            pending: VecDeque::new(),
            waits_to_write: false,
        })
    }

    fn unsent(&self) -> usize {
        self.output.len() - self.sent
    }

    /// Writes what can be written. Returns whether everything was.
    fn flush(&mut self) -> Result<bool> {
        while self.sent < self.output.len() {
            match self.socket.write(&self.output[self.sent..]) {
                Ok(count) => self.sent += count,
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(false),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(error).context("the connection broke"),
            }
        }
        self.output.clear();
        self.sent = 0;
        Ok(true)
    }

    /// Reads once. Returns whether there was anything.
    fn fill(&mut self) -> Result<bool> {
        if self.start == self.end {
            (self.start, self.end) = (0, 0);
        } else if self.end == self.input.len() {
            self.input.copy_within(self.start..self.end, 0);
            (self.start, self.end) = (0, self.end - self.start);
            if self.end > self.input.len() / 2 {
                self.input.resize(self.input.len() * 2, 0);
            }
        }
        match self.socket.read(&mut self.input[self.end..]) {
            Ok(0) => bail!("the server closed the connection"),
            Ok(count) => {
                self.end += count;
                Ok(true)
            }
            Err(error) if error.kind() == ErrorKind::WouldBlock => Ok(false),
            Err(error) if error.kind() == ErrorKind::Interrupted => Ok(false),
            Err(error) => Err(error).context("the connection broke"),
        }
    }
}

/// One thread's connections and what it sends over them.
pub(crate) struct Driver {
    epoll: OwnedFd,
    connections: Vec<Connection>,
    workload: Workload,
    plan: Plan,
    /// Keys per range, as text.
    range_length: String,
    tally: Tally,
    /// Requests encoded so far, and replies received.
    requests: u64,
    replies: u64,
    /// Whose turn it is in an open loop.
    turn: usize,
}

impl Driver {
    pub(crate) fn connect(
        addresses: &[SocketAddr],
        workload: Workload,
        plan: Plan,
    ) -> Result<Self> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        let mut connections = Vec::new();
        for (index, &address) in addresses.iter().enumerate() {
            let connection = Connection::new(address, plan.protocol)?;
            let data = epoll::EventData::new_u64(index as u64);
            epoll::add(&epoll, &connection.socket, data, epoll::EventFlags::IN)?;
            connections.push(connection);
        }
        Ok(Self {
            epoll,
            connections,
            workload,
            range_length: plan.range_length.to_string(),
            plan,
            tally: Tally::new(),
            requests: 0,
            replies: 0,
            turn: 0,
        })
    }

    /// Sends and receives until the plan is fulfilled.
    pub(crate) fn run(mut self, started: Instant, done: &AtomicU64) -> Result<Tally> {
        // Timers of ordinary threads may be 50 us late, which an open loop would measure.
        let _ = rustix::thread::set_current_timer_slack(NonZeroU64::new(1));
        if self.plan.rate.is_none() {
            for index in 0..self.connections.len() {
                self.send(index, self.plan.pipeline, Instant::now())?;
            }
        }
        let mut events = Vec::with_capacity(self.connections.len().min(1024));
        let mut stopped_at = None;
        loop {
            let now = Instant::now();
            if self.plan.rate.is_some() && stopped_at.is_none() {
                self.send_due(started, now)?;
            }
            if stopped_at.is_none() && self.is_over(started, now) {
                stopped_at = Some(now);
            }
            if let Some(stopped_at) = stopped_at
                && (self.replies == self.requests
                    || now.duration_since(stopped_at) > DRAIN_PATIENCE)
            {
                break;
            }
            let timeout = self.timeout(started, now, stopped_at.is_some());
            events.clear();
            match epoll::wait(&self.epoll, spare_capacity(&mut events), Some(&timeout)) {
                Ok(_) | Err(rustix::io::Errno::INTR) => {}
                Err(error) => return Err(error).context("epoll failed"),
            }
            let before = self.replies;
            for &event in &events {
                let refill = self.plan.rate.is_none() && stopped_at.is_none();
                self.on_event(event, started, refill)?;
            }
            done.fetch_add(self.replies - before, Ordering::Relaxed);
        }
        self.tally.unanswered = self.requests - self.replies;
        self.tally.ended = Some(Instant::now());
        Ok(self.tally)
    }

    fn on_event(&mut self, event: epoll::Event, started: Instant, refill: bool) -> Result<()> {
        let (index, flags) = (event.data.u64() as usize, event.flags);
        if flags.contains(epoll::EventFlags::OUT) {
            self.flush(index)?;
        }
        if !self.connections[index].fill()? {
            return Ok(());
        }
        let now = Instant::now();
        let answered = self.receive(index, now)?;
        if refill && !self.is_over(started, now) {
            self.send(index, answered, now)?;
        }
        Ok(())
    }

    fn is_over(&self, started: Instant, now: Instant) -> bool {
        self.plan.count.is_some_and(|count| self.requests >= count)
            || self.plan.time.is_some_and(|time| now.duration_since(started) >= time)
    }

    /// How long nothing needs to be done, unless something arrives.
    fn timeout(&self, started: Instant, now: Instant, stopped: bool) -> Timespec {
        let longest = Duration::from_millis(100);
        let wait = match self.plan.rate {
            Some(rate) if !stopped => {
                self.due_at(started, rate).saturating_duration_since(now).min(longest)
            }
            _ => longest,
        };
        Timespec { tv_sec: wait.as_secs() as i64, tv_nsec: i64::from(wait.subsec_nanos()) }
    }

    fn due_at(&self, started: Instant, rate: f64) -> Instant {
        started + Duration::from_secs_f64(self.requests as f64 / rate)
    }

    /// Sends everything whose time has come, connections in turn.
    fn send_due(&mut self, started: Instant, now: Instant) -> Result<()> {
        let rate = self.plan.rate.expect("only called in an open loop");
        let mut full = 0;
        let mut dirty = 0;
        let first = self.turn;
        while full < self.connections.len() {
            let due = self.due_at(started, rate);
            if due > now || self.is_over(started, due) {
                break;
            }
            let index = self.turn;
            self.turn = (self.turn + 1) % self.connections.len();
            if self.connections[index].unsent() > MOST_UNSENT {
                full += 1;
                continue;
            }
            full = 0;
            dirty += 1;
            self.encode(index, due);
        }
        for offset in 0..self.connections.len().min(dirty) {
            self.flush((first + offset) % self.connections.len())?;
        }
        Ok(())
    }

    fn send(&mut self, index: usize, count: usize, now: Instant) -> Result<()> {
        for _ in 0..count {
            if self.plan.count.is_some_and(|count| self.requests >= count) {
                break;
            }
            self.encode(index, now);
        }
        self.flush(index)
    }

    fn encode(&mut self, index: usize, from: Instant) {
        let kind = self.workload.next_kind();
        let number = self.workload.next_key();
        let connection = &mut self.connections[index];
        let key = self.plan.form.key(number);
        let key = (number, key.as_ref());
        let value = if kind == Kind::Set { self.workload.next_value() } else { &[] };
        let rest = (value, &self.range_length[..]);
        speech::ask(self.plan.protocol, kind, key, rest, &mut connection.output);
        connection.pending.push_back((kind, from));
        self.requests += 1;
    }

    /// Writes, and arranges to be told when the rest can be written.
    fn flush(&mut self, index: usize) -> Result<()> {
        let connection = &mut self.connections[index];
        let waits = !connection.flush()?;
        if waits != connection.waits_to_write {
            connection.waits_to_write = waits;
            let mut flags = epoll::EventFlags::IN;
            flags.set(epoll::EventFlags::OUT, waits);
            let data = epoll::EventData::new_u64(index as u64);
            epoll::modify(&self.epoll, &connection.socket, data, flags)?;
        }
        Ok(())
    }

    /// Takes the replies that have arrived in full. Returns how many.
    fn receive(&mut self, index: usize, now: Instant) -> Result<usize> {
        let connection = &mut self.connections[index];
        let mut answered = 0;
        loop {
            let bytes = &connection.input[connection.start..connection.end];
            let Some((answer, length)) = connection.answers.next(bytes)? else { break };
            let Some((kind, from)) = connection.pending.pop_front() else {
                bail!("the server sent a reply that nobody asked for");
            };
            self.tally.record(kind, answer, now.duration_since(from));
            connection.start += length;
            answered += 1;
        }
        self.replies += answered as u64;
        Ok(answered)
    }
}
