//! A loop over many clients on one thread, each with connections of its own: what benchmarks drive
//! a group with. It is closed (an answer makes room for the next request), or requests fall due at
//! a rate; then they count as late from that moment on, whether they could be sent or not. In the
//! steady state it allocates one buffer per request.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use rustix::event::epoll::{self, CreateFlags, Event, EventData, EventFlags};
use smr::Viewstamp;
use smr::rng::Rng;

use crate::{Batch, Client, Error, Terms, Ticket, search};

/// What to do. Values are set under keys `load:N` of a fixed length.
#[derive(Clone, Debug)]
pub struct Load {
    /// Requests under way per client. More than 32 wait in the client.
    pub outstanding: usize,
    /// Commands per request.
    pub batch: usize,
    /// Bytes of a value.
    pub value_bytes: usize,
    /// How many keys there are.
    pub keys: u64,
    /// Which share of the requests must be durable before it is answered, 0 to 1.
    pub durable: f64,
    /// How many requests fall due in a second, of all clients together, more than none; without it
    /// each follows an answer.
    pub rate: Option<f64>,
    /// Requests are submitted for so long; those under way are still answered.
    pub duration: Duration,
    /// Where the random choices start.
    pub seed: u64,
}

impl Default for Load {
    /// 20 sets of 1,024 bytes under way, over 100,000 keys, for 5 s.
    fn default() -> Load {
        Load {
            outstanding: 20,
            batch: 1,
            value_bytes: 1024,
            keys: 100_000,
            durable: 0.0,
            rate: None,
            duration: Duration::from_secs(5),
            seed: 1,
        }
    }
}

/// A request that was answered.
#[derive(Clone, Copy, Debug)]
pub struct Sample {
    /// Whose, by its place among the clients.
    pub client: usize,
    /// Since the loop began.
    pub at: Duration,
    /// From its submission, or from when it was due, to its answer.
    pub took: Duration,
    /// The operation that executed it.
    pub position: Viewstamp,
    /// The durable point that came with the answer.
    pub durable: Viewstamp,
}

/// What came of a load.
#[derive(Clone, Copy, Debug, Default)]
pub struct Tally {
    /// Requests that were answered.
    pub answered: u64,
    /// Requests that failed.
    pub failed: u64,
    /// Losses that the clients were told of.
    pub losses: u64,
    /// From the first submission to the last answer.
    pub elapsed: Duration,
}

/// How long the loop sleeps at most: what falls due in a client is noticed by then.
const LONGEST_SLEEP: Duration = Duration::from_millis(5);

/// Drives all `clients` until the time is over and everything is answered; `each` is told of every
/// answer, `failed` of every failure.
///
/// # Errors
/// [`Error::Os`] if the operating system refuses to wait; requests that fail are counted.
///
/// # Panics
/// If the rate is not above zero.
pub fn run(
    clients: &mut [Client],
    load: &Load,
    mut each: impl FnMut(Sample),
    mut failed: impl FnMut(usize, Error),
) -> Result<Tally, Error> {
    assert!(load.rate.is_none_or(|rate| rate > 0.0), "some requests fall due");
    let epoll = epoll::create(CreateFlags::CLOEXEC)?;
    for (index, client) in clients.iter_mut().enumerate() {
        let data = EventData::new_u64(index as u64);
        epoll::add(&epoll, &*client.session(), data, EventFlags::IN)?;
    }
    let has_room = |client: &mut Client| client.session().outstanding() < load.outstanding;
    let start = Instant::now();
    let mut source = Source::new(load, clients.len(), start);
    let mut tally = Tally::default();
    let mut ready: Vec<usize> = (0..clients.len()).collect();
    let mut events: Vec<Event> = Vec::with_capacity(256);
    let (mut swept, mut open) = (start, true);
    while open || clients.iter_mut().any(|client| client.session().outstanding() > 0) {
        for index in ready.drain(..) {
            let client = &mut clients[index];
            client.session().poll(Duration::ZERO)?;
            let before = tally.answered;
            while let Some(done) = client.session().next_done() {
                match done.result {
                    Ok(answer) => {
                        tally.answered += 1;
                        let (position, durable) = (answer.position, answer.durable);
                        let took = done.took + source.lateness(index, done.ticket);
                        let at = start.elapsed();
                        each(Sample { client: index, at, took, position, durable });
                    }
                    Err(error) => {
                        tally.failed += 1;
                        failed(index, error);
                    }
                }
            }
            while client.session().take_loss().is_some() {
                tally.losses += 1;
            }
            if tally.answered > before {
                tally.elapsed = start.elapsed();
            }
            open = open && start.elapsed() < load.duration;
            while open && has_room(client) && source.is_due() {
                if let Err(error) = source.submit(index, client) {
                    failed(index, error);
                    open = false;
                }
            }
            client.session().send();
        }
        open = open && start.elapsed() < load.duration;
        // What is due while nobody has room waits for an answer: looking for one without a pause
        // would take a processor from who makes it.
        let may_submit = open && load.rate.is_some() && clients.iter_mut().any(has_room);
        let pause = if may_submit { source.pause() } else { LONGEST_SLEEP };
        search::wait(&epoll, pause, &mut events)?;
        ready.extend(events.iter().map(|event| event.data.u64() as usize));
        if swept.elapsed() >= LONGEST_SLEEP || (may_submit && source.is_due()) {
            swept = Instant::now();
            ready.clear();
            ready.extend(0..clients.len());
        }
    }
    Ok(tally)
}

/// Makes the requests, when they are due.
struct Source<'a> {
    load: &'a Load,
    start: Instant,
    submitted: u64,
    /// By client: what is under way, and how late it was submitted.
    late: Vec<VecDeque<(Ticket, Duration)>>,
    rng: Rng,
    batch: Batch,
    key: Vec<u8>,
    value: Vec<u8>,
}

impl Source<'_> {
    fn new(load: &Load, clients: usize, start: Instant) -> Source<'_> {
        let value = (0..load.value_bytes).map(|index| b'a' + (index % 26) as u8).collect();
        let (rng, late) = (Rng::new(load.seed), vec![VecDeque::new(); clients]);
        let (batch, key) = (Batch::new(), Vec::new());
        Source { load, start, submitted: 0, late, rng, batch, key, value }
    }

    /// When the next request is due, since the start.
    fn due(&self) -> Duration {
        let interval = self.load.rate.map_or(0.0, |rate| 1.0 / rate);
        Duration::from_secs_f64(self.submitted as f64 * interval)
    }

    fn is_due(&self) -> bool {
        self.load.rate.is_none() || self.due() <= self.start.elapsed()
    }

    /// How long nothing is due.
    fn pause(&self) -> Duration {
        self.due().saturating_sub(self.start.elapsed()).min(LONGEST_SLEEP)
    }

    /// How late a client's request was submitted that has now been answered.
    fn lateness(&mut self, client: usize, ticket: Ticket) -> Duration {
        let late = &mut self.late[client];
        let at = late.iter().position(|(other, _)| *other == ticket);
        at.and_then(|at| late.remove(at)).map_or(Duration::ZERO, |(_, lateness)| lateness)
    }

    fn submit(&mut self, index: usize, client: &mut Client) -> Result<(), Error> {
        self.batch.clear();
        for _ in 0..self.load.batch.max(1) {
            let mut number = self.rng.next_u64() % self.load.keys.max(1);
            self.key.clear();
            self.key.extend_from_slice(b"load:0000000000000000");
            for digit in self.key[5..].iter_mut().rev() {
                *digit += (number % 10) as u8;
                number /= 10;
            }
            self.batch.set(&self.key, &self.value);
        }
        let chance = (self.rng.next_u64() >> 11) as f64 / (1_u64 << 53) as f64;
        let terms = client.session().terms();
        let terms = Terms { durable: terms.durable || chance < self.load.durable, ..terms };
        let lateness = self.start.elapsed().saturating_sub(self.due());
        let ticket = client.submit_on(&self.batch, terms)?;
        if self.load.rate.is_some() {
            self.late[index].push_back((ticket, lateness));
        }
        self.submitted += 1;
        Ok(())
    }
}
