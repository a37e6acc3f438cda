//! A closed loop over many clients on one thread, each with connections of its own: what benchmarks
//! drive a group with. In the steady state it allocates one buffer per request.

use std::time::{Duration, Instant};

use rustix::event::epoll::{self, CreateFlags, Event, EventData, EventFlags};
use smr::Viewstamp;
use smr::rng::Rng;

use crate::{Batch, Client, Error, Terms, search};

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
    /// From its submission to its answer.
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
pub fn run(
    clients: &mut [Client],
    load: &Load,
    mut each: impl FnMut(Sample),
    mut failed: impl FnMut(usize, Error),
) -> Result<Tally, Error> {
    let epoll = epoll::create(CreateFlags::CLOEXEC)?;
    for (index, client) in clients.iter_mut().enumerate() {
        let data = EventData::new_u64(index as u64);
        epoll::add(&epoll, &*client.session(), data, EventFlags::IN)?;
    }
    let mut source = Source::new(load);
    let start = Instant::now();
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
                        let (at, took) = (start.elapsed(), done.took);
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
            while open && client.session().outstanding() < load.outstanding {
                if let Err(error) = source.submit(client) {
                    failed(index, error);
                    open = false;
                }
            }
            client.session().send();
        }
        open = open && start.elapsed() < load.duration;
        search::wait(&epoll, LONGEST_SLEEP, &mut events)?;
        ready.extend(events.iter().map(|event| event.data.u64() as usize));
        if swept.elapsed() >= LONGEST_SLEEP {
            swept = Instant::now();
            ready.clear();
            ready.extend(0..clients.len());
        }
    }
    Ok(tally)
}

/// Makes the requests.
struct Source<'a> {
    load: &'a Load,
    rng: Rng,
    batch: Batch,
    key: Vec<u8>,
    value: Vec<u8>,
}

impl Source<'_> {
    fn new(load: &Load) -> Source<'_> {
        let value = (0..load.value_bytes).map(|index| b'a' + (index % 26) as u8).collect();
        let rng = Rng::new(load.seed);
        Source { load, rng, batch: Batch::new(), key: Vec::new(), value }
    }

    fn submit(&mut self, client: &mut Client) -> Result<(), Error> {
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
        client.submit_on(&self.batch, terms).map(|_| ())
    }
}
