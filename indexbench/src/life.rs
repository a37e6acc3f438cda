//! A map's life: it is filled, then put through its workloads, and its memory is told.

use std::{
    sync::Barrier,
    thread,
    time::{Duration, Instant},
};

use clap::ValueEnum;
use rustix::thread::CpuSet;
use serde::{Deserialize, Serialize};

use crate::{
    contestants::{Index, Session},
    keys::{Form, Key},
    workload::{KeyDistribution, Kind, Mix, Shape, ValueSize, Workload},
};

/// Operations between two renewals of a thread's session.
const PER_SESSION: u64 = 256;

/// Keys per batched lookup.
const BATCH: usize = 16;

/// Which time counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Clock {
    /// The wall clock.
    Wall,
    /// The processor time of the thread that took most of it: for machines that others use too.
    Cpu,
}

/// What is done to a map, in this order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Work {
    /// Every key is put once, into a map that is empty at first.
    Put,
    /// Lookups of keys that are there: in order where keys are sequential, else at random.
    Get,
    /// Puts to keys that are there.
    Update,
    /// Nine gets to a put, at random keys.
    Mixed90,
    /// As many gets as puts, at random keys.
    Mixed50,
    /// Nine gets to a put, at keys of a zipfian distribution with exponent 0.99.
    Zipfian90,
    /// Ten keys in order, from a random one on.
    Scan10,
    /// A hundred.
    Scan100,
    /// Ten keys in descending order.
    ReverseScan10,
    /// A hundred.
    ReverseScan100,
    /// Lookups of 16 random keys at once; each counts.
    MultiGet16,
    /// A remove of an old key and a put of a new one, which together count as one.
    Churn,
}

/// How a life is lived.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Life {
    /// What the keys look like.
    pub form: Form,
    /// How many there are.
    pub keys: u64,
    /// How many threads work at once; each has an equal share.
    pub threads: u64,
    /// Which time counts.
    pub clock: Clock,
    /// Whether each thread keeps to a core of its own.
    pub pin: bool,
    /// What is measured. The map is filled in any case.
    pub works: Vec<Work>,
}

/// What was measured, in million operations per second.
pub type Rates = Vec<(Work, f64)>;

/// Lets threads of a run start together, and times each.
pub(crate) struct Timer {
    clock: Clock,
    /// Where threads are kept, one after the other; empty if they go where they are put.
    cores: Vec<usize>,
    start: Barrier,
}

impl Timer {
    /// For a thread that is not kept to a core itself: its cores are those that are shared out.
    pub(crate) fn new(life: &Life) -> Self {
        let start = Barrier::new(life.threads as usize);
        Timer { clock: life.clock, cores: if life.pin { cores() } else { vec![] }, start }
    }

    /// Runs `work` as thread number `thread` once all are there, and says how long it took.
    pub(crate) fn time(&self, thread: u64, work: impl FnOnce()) -> Duration {
        if !self.cores.is_empty() {
            keep_to(self.cores[thread as usize % self.cores.len()]);
        }
        self.start.wait();
        let (wall, cpu) = (Instant::now(), cpu_time());
        work();
        match self.clock {
            Clock::Wall => wall.elapsed(),
            Clock::Cpu => cpu_time() - cpu,
        }
    }
}

fn cpu_time() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

/// The cores that this thread may run on. The system may refuse to tell: then none.
fn cores() -> Vec<usize> {
    let allowed = rustix::thread::sched_getaffinity(None).unwrap_or_default();
    (0..CpuSet::MAX_CPU).filter(|&core| allowed.is_set(core)).collect()
}

/// Keeps this thread to one core. The system may refuse: then it stays where it is put.
fn keep_to(core: usize) {
    let mut set = CpuSet::new();
    set.set(core);
    let _ = rustix::thread::sched_setaffinity(None, &set);
}

impl Life {
    /// Does `operations` of them on all threads, and returns the rate.
    fn measure<I: Index>(
        &self,
        index: &I,
        operations: u64,
        (distribution, mix): (KeyDistribution, Mix),
        operation: impl Fn(&I::Session<'_>, &mut Workload, u64) + Sync,
    ) -> f64 {
        let value_size = ValueSize(8..=8);
        let shape = &Shape { keys: self.keys, distribution, value_size, mix };
        let share = operations / self.threads;
        let timer = &Timer::new(self);
        let one_thread = &|t: u64| {
            let mut workload = Workload::new(shape, 1, t, self.threads);
            timer.time(t, || {
                let mut session = index.session();
                for i in t * share..(t + 1) * share {
                    operation(&session, &mut workload, i);
                    if i % PER_SESSION == 0 {
                        session.renew();
                    }
                }
            })
        };
        let longest = thread::scope(|scope| {
            let threads: Vec<_> =
                (0..self.threads).map(|t| scope.spawn(move || one_thread(t))).collect();
            let times = threads.into_iter().map(|t| t.join().expect("no operation panics"));
            times.max().expect("there is a thread")
        });
        (share * self.threads) as f64 / longest.as_secs_f64() / 1e6
    }

    /// The order of lookups: that of the keys where these are consecutive, else none.
    fn picking(&self) -> KeyDistribution {
        match self.form {
            Form::Sequential => KeyDistribution::Sequential,
            _ => KeyDistribution::Uniform,
        }
    }

    /// Fills a map and puts it through the works that it is able to do. `filled` is called between.
    pub fn live<I: Index>(&self, index: &I, filled: impl FnOnce()) -> Rates {
        let mut rates = Rates::new();
        let in_order = (KeyDistribution::Sequential, Mix::only(Kind::Set));
        let rate = self.measure(index, self.keys, in_order, |session, _, i| {
            session.put(self.form.key(i).as_ref(), i);
        });
        if self.works.contains(&Work::Put) {
            rates.push((Work::Put, rate));
        }
        filled();
        for &work in self.works.iter().filter(|&&work| work != Work::Put) {
            if let Some(rate) = self.do_one(index, work) {
                rates.push((work, rate));
            }
        }
        rates
    }

    /// The rate of one kind of work, if the map can do it.
    fn do_one<I: Index>(&self, index: &I, work: Work) -> Option<f64> {
        let (all, picking) = (self.keys, self.picking());
        let uniform = KeyDistribution::Uniform;
        let zipfian = KeyDistribution::Zipfian(0.99);
        let able = |able: bool| able.then_some(());
        let first = self.form.key(0);
        match work {
            Work::Put => return None,
            Work::ReverseScan10 | Work::ReverseScan100 => {
                able(index.session().scan_reverse(first.as_ref(), 1).is_some())?;
            }
            Work::MultiGet16 => able(index.session().multi_get(&[b""]).is_some())?,
            // Of a key that is never there.
            Work::Churn => able(index.session().remove(&[0xFF; 8]).is_some())?,
            _ => {}
        }
        Some(match work {
            Work::Put | Work::Get => self.gets_and_puts(index, all, picking, (1, 0)),
            Work::Update => self.gets_and_puts(index, all, picking, (0, 1)),
            Work::Mixed90 => self.gets_and_puts(index, all, uniform, (9, 1)),
            Work::Mixed50 => self.gets_and_puts(index, all, uniform, (1, 1)),
            Work::Zipfian90 => self.gets_and_puts(index, all, zipfian, (9, 1)),
            Work::Scan10 => self.scans(index, all / 4, 10, false),
            Work::Scan100 => self.scans(index, all / 20, 100, false),
            Work::ReverseScan10 => self.scans(index, all / 4, 10, true),
            Work::ReverseScan100 => self.scans(index, all / 20, 100, true),
            Work::MultiGet16 => self.batches(index),
            Work::Churn => self.churn(index),
        })
    }

    fn gets_and_puts<I: Index>(
        &self,
        index: &I,
        operations: u64,
        distribution: KeyDistribution,
        (gets, puts): (u32, u32),
    ) -> f64 {
        let mix = format!("get={gets},set={puts}").parse().expect("a mix");
        self.measure(index, operations, (distribution, mix), |session, workload, i| {
            let is_put = match (gets, puts) {
                (0, _) => true,
                (_, 0) => false,
                _ => workload.next_kind() == Kind::Set,
            };
            let key = self.form.key(workload.next_key());
            if is_put {
                session.put(key.as_ref(), i);
            } else {
                // Of the maps only crossbeam's skip list lets a key that is being put again be
                // missed meanwhile.
                let found = session.get(key.as_ref()).is_some();
                assert!(found || puts > 0, "a key was lost");
            }
        })
    }

    fn scans<I: Index>(&self, index: &I, scans: u64, length: usize, reverse: bool) -> f64 {
        let how = (KeyDistribution::Uniform, Mix::only(Kind::Range));
        self.measure(index, scans, how, |session, workload, _| {
            let key = self.form.key(workload.next_key());
            if reverse {
                session.scan_reverse(key.as_ref(), length);
            } else {
                session.scan(key.as_ref(), length);
            }
        })
    }

    fn batches<I: Index>(&self, index: &I) -> f64 {
        let how = (self.picking(), Mix::only(Kind::Get));
        let batches = self.keys / BATCH as u64;
        let rate = self.measure(index, batches, how, |session, workload, _| {
            let keys: [Key; BATCH] = std::array::from_fn(|_| self.form.key(workload.next_key()));
            let keys: [&[u8]; BATCH] = std::array::from_fn(|j| keys[j].as_ref());
            assert_eq!(session.multi_get(&keys), Some(BATCH), "a key was lost");
        });
        rate * BATCH as f64
    }

    fn churn<I: Index>(&self, index: &I) -> f64 {
        let how = (KeyDistribution::Sequential, Mix::only(Kind::Set));
        self.measure(index, self.keys / 2, how, |session, _, i| {
            let was_there = session.remove(self.form.key(i).as_ref());
            assert!(was_there == Some(true) || self.form.has_duplicates(), "a key was lost");
            session.put(self.form.key(self.keys + i).as_ref(), i);
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::contestants::{Congee, Locked, Ours, Scc, Skiplist};
    use crate::plain::{Fixed, Permuted, Plain};

    fn life(form: Form) -> Life {
        let works = Work::value_variants().to_vec();
        Life { form, keys: 3000, threads: 2, clock: Clock::Wall, pin: false, works }
    }

    /// What an index did not do is missing from its rates.
    fn missing<I: Index>(form: Form) -> Vec<Work> {
        let rates = life(form).live(&I::new(), || {});
        assert!(rates.iter().all(|(_, rate)| *rate > 0.0));
        let done = |work: &Work| rates.iter().any(|(done, _)| done == work);
        Work::value_variants().iter().copied().filter(|work| !done(work)).collect()
    }

    #[test]
    fn every_contestant_lives_through_all_that_it_can() {
        for form in Form::USUAL {
            assert_eq!(missing::<Ours>(form), []);
            assert_eq!(missing::<Locked>(form), [Work::MultiGet16]);
            assert_eq!(missing::<Skiplist>(form), [Work::MultiGet16]);
            assert_eq!(missing::<Scc>(form), [Work::MultiGet16]);
            let [a, b, c, d] =
                [Work::ReverseScan10, Work::ReverseScan100, Work::MultiGet16, Work::Churn];
            assert_eq!(missing::<Plain<Permuted>>(form), [a, b, c, d]);
            if form.is_eight_bytes() {
                assert_eq!(missing::<Congee>(form), [a, b, c]);
                assert_eq!(missing::<Plain<Fixed>>(form), [a, b, c, d]);
            }
        }
    }

    #[test]
    fn processor_time_counts_work_and_not_waiting() {
        let life = Life { threads: 1, clock: Clock::Cpu, ..life(Form::Binary) };
        let slept = Timer::new(&life).time(0, || thread::sleep(Duration::from_millis(50)));
        assert!(slept < Duration::from_millis(40), "{slept:?}");
    }

    #[test]
    fn threads_keep_cores_of_their_own_from_one_phase_to_the_next() {
        let life = Life { threads: 2, pin: true, ..life(Form::Binary) };
        let phases = &[Timer::new(&life), Timer::new(&life)];
        let at = |t: u64| {
            let mut at = vec![];
            for timer in phases {
                timer.time(t, || at.push(cores()));
            }
            at
        };
        let seen: Vec<_> = thread::scope(|scope| {
            let threads: Vec<_> = (0..2).map(|t| scope.spawn(move || at(t))).collect();
            threads.into_iter().map(|t| t.join().expect("no panic")).collect()
        });
        assert!(seen.iter().all(|at| at[0].len() == 1 && at[0] == at[1]), "{seen:?}");
        assert!(cores().len() < 2 || seen[0] != seen[1], "{seen:?}");
    }
}
