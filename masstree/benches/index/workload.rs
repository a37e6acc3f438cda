//! What is done to a map, and how fast it was.

use std::{
    thread,
    time::{Duration, UNIX_EPOCH},
};

use crate::{
    contestants::{Index, Session},
    keys::{Key, Kind, Zipf, key, scatter, shuffled},
};

/// Operations between two renewals of a thread's session.
const PER_SESSION: u64 = 256;

/// What comes first, whatever is asked for.
const FILL: &str = "put";

/// Keys per batched lookup.
const BATCH: usize = 16;

/// One map's life: how many keys of which kind, by how many threads.
#[derive(Clone)]
pub struct Run {
    pub kind: Kind,
    pub keys: u64,
    pub threads: u64,
    pub clock: Clock,
    /// The names of what is measured; empty for everything. A map is always filled.
    pub work: Vec<String>,
}

/// Which time counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Clock {
    Wall,
    /// The processor time of the thread that took most of it: for machines that others use too.
    Cpu,
}

impl Clock {
    fn now(self) -> Duration {
        match self {
            Clock::Wall => UNIX_EPOCH.elapsed().expect("the clock is set"),
            Clock::Cpu => {
                let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
                Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
            }
        }
    }
}

/// The rates of a run, in million operations per second, by name.
pub type Rates = Vec<(&'static str, f64)>;

impl Run {
    /// Does `operations` of them, each given its number, on all threads, unless nobody asked.
    fn measure<I: Index>(
        &self,
        rates: &mut Rates,
        name: &'static str,
        index: &I,
        operations: u64,
        operation: impl Fn(&I::Session<'_>, u64) + Sync,
    ) {
        if name != FILL && !self.work.is_empty() && !self.work.iter().any(|work| work == name) {
            return;
        }
        let share = operations / self.threads;
        let one_thread = &|t: u64| {
            let start = self.clock.now();
            let mut session = index.session();
            for i in t * share..(t + 1) * share {
                operation(&session, i);
                if i % PER_SESSION == 0 {
                    session.renew();
                }
            }
            self.clock.now() - start
        };
        let times: Vec<Duration> = thread::scope(|scope| {
            let threads: Vec<_> =
                (0..self.threads).map(|t| scope.spawn(move || one_thread(t))).collect();
            threads.into_iter().map(|thread| thread.join().expect("no operation panics")).collect()
        });
        let longest = times.into_iter().max().expect("there is a thread");
        rates.push((name, (share * self.threads) as f64 / longest.as_secs_f64() / 1e6));
    }

    fn key(&self, i: u64) -> Key {
        key(self.kind, i)
    }

    /// The order of lookups: that of the keys where these are consecutive, else none.
    fn pick(&self, j: u64) -> u64 {
        if self.kind == Kind::Sequential { j } else { shuffled(j, self.keys) }
    }

    /// Fills a map and puts it through everything. `resident` is asked once it is full.
    pub fn all<I: Index>(&self, resident: impl FnOnce() -> u64) -> (Rates, u64) {
        let index = &I::new();
        let n = self.keys;
        let rates = &mut Rates::new();
        self.measure(rates, FILL, index, n, |session, i| session.put(self.key(i).as_ref(), i));
        let resident = resident();
        self.measure(rates, "get", index, n, |session, i| {
            let found = session.get(self.key(self.pick(i)).as_ref());
            assert!(found.is_some(), "a key was lost");
        });
        self.reads_and_writes(rates, index);
        self.scans(rates, index);
        self.batches(rates, index);
        self.measure(rates, "churn", index, n / 2, |session, i| {
            assert!(session.remove(self.key(i).as_ref()) || self.kind == Kind::Decimal);
            session.put(self.key(2 * n + i).as_ref(), i);
        });
        (std::mem::take(rates), resident)
    }

    fn reads_and_writes<I: Index>(&self, rates: &mut Rates, index: &I) {
        let n = self.keys;
        self.measure(rates, "update", index, n, |session, i| {
            session.put(self.key(self.pick(i)).as_ref(), i + 1);
        });
        for (name, writes_of_ten) in [("mixed 90/10", 1), ("mixed 50/50", 5)] {
            self.measure(rates, name, index, n, |session, i| {
                let random = scatter(i ^ n);
                let key = self.key(random % n);
                if (random >> 40) % 10 < writes_of_ten {
                    session.put(key.as_ref(), i);
                } else {
                    std::hint::black_box(session.get(key.as_ref()));
                }
            });
        }
        let zipf = Zipf::new(n);
        self.measure(rates, "zipfian 90/10", index, n, |session, i| {
            let random = scatter(i ^ n);
            let key = self.key(scatter(zipf.draw(random)) % n);
            if random.is_multiple_of(10) {
                session.put(key.as_ref(), i);
            } else {
                std::hint::black_box(session.get(key.as_ref()));
            }
        });
    }

    fn scans<I: Index>(&self, rates: &mut Rates, index: &I) {
        for (name, length, share) in [("scan 10", 10, 4), ("scan 100", 100, 20)] {
            self.measure(rates, name, index, self.keys / share, |session, i| {
                session.scan(self.key(scatter(i) % self.keys).as_ref(), length);
            });
        }
        if index.session().scan_reverse(self.key(0).as_ref(), 1).is_none() {
            return;
        }
        for (name, length, share) in [("reverse scan 10", 10, 4), ("reverse scan 100", 100, 20)] {
            self.measure(rates, name, index, self.keys / share, |session, i| {
                session.scan_reverse(self.key(scatter(i) % self.keys).as_ref(), length);
            });
        }
    }

    fn batches<I: Index>(&self, rates: &mut Rates, index: &I) {
        if index.session().multi_get(&[b""]).is_none() {
            return;
        }
        let batches = self.keys / BATCH as u64;
        let before = rates.len();
        self.measure(rates, "multi_get of 16", index, batches, |session, i| {
            let keys: [Key; BATCH] =
                std::array::from_fn(|j| self.key(self.pick(i * BATCH as u64 + j as u64)));
            let keys: [&[u8]; BATCH] = std::array::from_fn(|j| keys[j].as_ref());
            assert_eq!(session.multi_get(&keys), Some(BATCH), "a key was lost");
        });
        for (_, rate) in &mut rates[before..] {
            *rate *= BATCH as f64;
        }
    }
}
