//! What a seed decides before anything happens: sizes, times, which faults occur and how hard. Each
//! fault class is on or off per seed, so that rare combinations get runs of their own.

use smr::Durability;
use smr::rng::Rng;

use crate::bug::Bug;

/// What the caller fixes; the seed decides the rest.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Overrides {
    /// What an acknowledgement means.
    pub durability: Option<Durability>,
    /// How many replicas the group has.
    pub replicas: Option<u8>,
    /// A planted defect.
    pub bug: Option<Bug>,
}

/// Times of a protocol, in microseconds. A subject turns them into its own.
#[derive(Clone, Copy, Debug)]
pub struct Times {
    /// How often a leader speaks.
    pub heartbeat: u64,
    /// Silence after which it is suspected.
    pub election: u64,
    /// The random part of that.
    pub jitter: u64,
    /// Silence of its own disk after which a leader resigns.
    pub stall: u64,
    /// How long a candidate looks for votes that remember everything.
    pub patience: u64,
    /// When to ask again.
    pub retry: u64,
}

/// How messages travel. Chances are in a million.
#[derive(Clone, Copy, Debug, Default)]
pub struct NetworkOptions {
    /// Messages that vanish.
    pub loss: u64,
    /// Messages that arrive twice.
    pub duplication: u64,
    /// The least delay.
    pub delay: u64,
    /// The random part of the delay.
    pub spread: u64,
    /// Messages that are late by up to `late_by` more.
    pub late: u64,
    /// See `late`.
    pub late_by: u64,
    /// Whether messages between two processes keep their order.
    pub in_order: bool,
}

/// How a disk behaves. Chances are in a million.
#[derive(Clone, Copy, Debug, Default)]
pub struct DiskOptions {
    /// The least time of a sync.
    pub latency: u64,
    /// The random part of it.
    pub spread: u64,
    /// Syncs that take up to `slow_by` more.
    pub slow: u64,
    /// See `slow`.
    pub slow_by: u64,
    /// Transferred checkpoints that arrive damaged.
    pub damage: u64,
    /// Bytes of a checkpoint file that are read or written at a time.
    pub piece: usize,
}

/// How a key is chosen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Keys {
    /// All alike.
    Uniform,
    /// Nine in ten go to one key.
    Hot,
    /// The n-th key is n times rarer than the first.
    Zipf,
}

/// What the clients do.
#[derive(Clone, Copy, Debug)]
pub struct Workload {
    /// Gateways that live beside a replica and die with it.
    pub beside: u8,
    /// Gateways of their own.
    pub apart: u8,
    /// Operations of each gateway.
    pub operations: u32,
    /// How many of a gateway's operations are under way at a time.
    pub window: usize,
    /// The mean time between two operations of a gateway.
    pub think: u64,
    /// How many keys there are.
    pub keys: u16,
    /// Which of them are asked for.
    pub choice: Keys,
    /// How many operations in a hundred are reads.
    pub reads: u64,
    /// How many in a hundred mark a key so that reading it needs the log.
    pub flags: u64,
    /// The most bytes that a command is padded with.
    pub padding: u16,
    /// How many gateways in a hundred send what a crash has taken back again.
    pub replaying: u64,
    /// How many requests in a hundred are answered when they are durable.
    pub durable: u64,
}

/// The classes of faults, each with a weight in the choice of the next fault.
pub(crate) const FAULT_CLASSES: usize = 25;
/// From here on they take more than a minority.
const DISASTERS: usize = 19;

/// Which faults happen, and when.
#[derive(Clone, Copy, Debug)]
pub struct FaultOptions {
    /// The mean time between two faults.
    pub interval: u64,
    /// How long faults last, in the mean.
    pub duration: u64,
    /// The chance of each class, relative to the others.
    pub weights: [u64; FAULT_CLASSES],
    /// Whether more replicas than the durability allows may lose their state.
    pub wipe: bool,
}

/// All of it.
#[derive(Clone, Debug)]
pub struct Options {
    /// Where it comes from.
    pub seed: u64,
    /// How many replicas the group has.
    pub replicas: u8,
    /// What an acknowledgement means.
    pub durability: Durability,
    /// The protocol's times.
    pub times: Times,
    /// Bytes that may be tentative before nothing more is proposed.
    pub lag: usize,
    /// How messages travel.
    pub network: NetworkOptions,
    /// How disks behave.
    pub disk: DiskOptions,
    /// What the clients do.
    pub workload: Workload,
    /// What goes wrong.
    pub faults: FaultOptions,
    /// How fast or slow clocks run, in thousandths either way.
    pub drift: u64,
    /// How long a process may gather what clients say before it takes it, in microseconds.
    pub gather: u64,
    /// How long things go wrong, in microseconds.
    pub chaos: u64,
    /// A planted defect.
    pub bug: Option<Bug>,
}

fn pick(rng: &mut Rng, from: &[u64]) -> u64 {
    from[rng.below(from.len() as u64) as usize]
}

/// A third of the seeds have none of it, the others one of the given amounts.
fn maybe(rng: &mut Rng, from: &[u64]) -> u64 {
    if rng.chance(1, 3) { 0 } else { pick(rng, from) }
}

impl Options {
    /// What a seed stands for.
    pub fn new(seed: u64, overrides: Overrides) -> Options {
        let mut rng = Rng::new(seed ^ 0x6f70_7469_6f6e_7300);
        let replicas = pick(&mut rng, &[1, 3, 3, 3, 3, 3, 3, 5, 5, 5]) as u8;
        let durabilities = [Durability::Memory, Durability::Sync, Durability::Lazy];
        let durability = durabilities[rng.below(3) as usize];
        let times = times(&mut rng);
        let mut options = Options {
            seed,
            replicas: overrides.replicas.unwrap_or(replicas),
            durability: overrides.durability.unwrap_or(durability),
            times,
            network: network(&mut rng),
            disk: disk(&mut rng),
            workload: workload(&mut rng),
            faults: faults(&mut rng, times.election),
            drift: pick(&mut rng, &[0, 1, 20, 100, 300, 300]),
            chaos: times.election * pick(&mut rng, &[10, 20, 40]),
            lag: pick(&mut rng, &[600, 1_500, 1_500, 6_000]) as usize,
            gather: pick(&mut rng, &[0, 0, 50, 200]),
            bug: overrides.bug,
        };
        if options.durability == Durability::Lazy {
            // What it must come back from is rare enough.
            let disasters = &mut options.faults.weights[DISASTERS..];
            for _ in 0..2 {
                disasters[rng.below((FAULT_CLASSES - DISASTERS) as u64) as usize] = 16;
            }
            // Disasters cost nothing while nobody asks for anything.
            options.workload.operations *= 3;
            if rng.chance(1, 2) {
                // Slow disks leave long tails in memory alone.
                let disk = &mut options.disk;
                disk.latency = (disk.latency * 10).min(times.election / 3);
            }
        }
        options
    }

    /// A world in which nothing goes wrong and everything takes the same time: for scenarios.
    pub fn calm(replicas: u8, durability: Durability) -> Options {
        let times = Times {
            heartbeat: 5_000,
            election: 30_000,
            jitter: 15_000,
            stall: 50_000,
            patience: 200_000,
            retry: 20_000,
        };
        let network = NetworkOptions { delay: 500, in_order: true, ..NetworkOptions::default() };
        let disk = DiskOptions { latency: 200, piece: 200, ..DiskOptions::default() };
        let workload = Workload {
            beside: 0,
            apart: 0,
            operations: 0,
            window: 1,
            think: 1_000,
            keys: 4,
            choice: Keys::Uniform,
            reads: 0,
            flags: 0,
            padding: 0,
            replaying: 0,
            durable: 0,
        };
        let faults =
            FaultOptions { interval: 0, duration: 0, weights: [0; FAULT_CLASSES], wipe: true };
        Options {
            seed: 1,
            replicas,
            durability,
            times,
            network,
            disk,
            workload,
            faults,
            lag: 1_500,
            drift: 0,
            chaos: 0,
            gather: 0,
            bug: None,
        }
    }

    /// How many replicas may fail.
    pub fn f(&self) -> usize {
        (usize::from(self.replicas) - 1) / 2
    }
}

fn times(rng: &mut Rng) -> Times {
    let election = pick(rng, &[15_000, 30_000, 60_000]);
    Times {
        heartbeat: election / pick(rng, &[3, 5, 8]),
        election,
        jitter: election / pick(rng, &[1, 2, 4]),
        stall: election * pick(rng, &[1, 2, 4]),
        patience: election * pick(rng, &[2, 8, 12]),
        retry: election / pick(rng, &[1, 2, 3]),
    }
}

fn network(rng: &mut Rng) -> NetworkOptions {
    NetworkOptions {
        loss: maybe(rng, &[1_000, 10_000, 50_000, 150_000]),
        duplication: maybe(rng, &[1_000, 20_000, 100_000]),
        delay: pick(rng, &[50, 200, 800]),
        spread: pick(rng, &[0, 100, 1_000, 4_000]),
        late: maybe(rng, &[1_000, 10_000, 50_000]),
        late_by: pick(rng, &[10_000, 50_000, 300_000]),
        in_order: rng.chance(1, 3),
    }
}

fn disk(rng: &mut Rng) -> DiskOptions {
    DiskOptions {
        latency: pick(rng, &[20, 100, 500, 2_000]),
        spread: pick(rng, &[0, 100, 3_000]),
        slow: maybe(rng, &[1_000, 20_000]),
        slow_by: pick(rng, &[5_000, 40_000]),
        damage: maybe(rng, &[100_000, 300_000]),
        piece: pick(rng, &[64, 150, 700]) as usize,
    }
}

fn workload(rng: &mut Rng) -> Workload {
    Workload {
        beside: rng.below(4) as u8,
        apart: 1 + rng.below(2) as u8,
        operations: pick(rng, &[15, 30, 60]) as u32,
        window: pick(rng, &[1, 2, 6, 20]) as usize,
        think: pick(rng, &[500, 3_000, 15_000]),
        keys: pick(rng, &[1, 3, 10, 40]) as u16,
        choice: [Keys::Uniform, Keys::Hot, Keys::Zipf][rng.below(3) as usize],
        reads: pick(rng, &[0, 20, 50, 80]),
        flags: maybe(rng, &[3, 10]),
        padding: pick(rng, &[0, 20, 200]) as u16,
        replaying: pick(rng, &[0, 50, 50, 100]),
        durable: maybe(rng, &[5, 30]),
    }
}

fn faults(rng: &mut Rng, election: u64) -> FaultOptions {
    let mut weights = [0; FAULT_CLASSES];
    for weight in &mut weights {
        *weight = if rng.chance(1, 2) { pick(rng, &[1, 2, 8]) } else { 0 };
    }
    FaultOptions {
        interval: election * pick(rng, &[1, 2, 4, 12]) / 2,
        duration: election * pick(rng, &[1, 4, 12]) / 4,
        weights,
        wipe: rng.chance(1, 12),
    }
}
