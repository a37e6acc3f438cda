//! What a seed decides before anything happens.

use nopaxos::{Config, Limits, Timing};
use smr::rng::Rng;
use smr::{Durability, Identity};

/// Sizes, times and chances of one run. Chances are in a thousand.
#[derive(Clone, Copy, Debug)]
pub struct Plan {
    pub replicas: u8,
    pub durability: Durability,
    pub timing: Timing,
    pub limits: Limits,
    /// How long a receiver waits for what was overtaken, and how much it keeps.
    pub patience: u64,
    pub window: usize,
    pub clients: usize,
    pub client_window: usize,
    pub client_retry: u64,
    pub think: u64,
    /// Requests with longer bodies are ordered by their digests.
    pub datagram: usize,
    /// Loss and duplication of every message, and its delays.
    pub loss: u64,
    pub duplication: u64,
    pub delay: u64,
    pub spread: u64,
    /// Messages that arrive long after they were sent.
    pub stray: u64,
    /// Loss and lateness on the legs from a sequencer to the replicas.
    pub leg_loss: u64,
    pub late: u64,
    pub disk: u64,
    /// Whether more than f replicas crash at a time, where disks remember.
    pub disasters: bool,
    /// Of a thousand requests so many are done when they are durable.
    pub durable: u64,
    /// Whether the members change.
    pub changes: bool,
    /// Whether clients send again what such a crash has taken.
    pub replay: bool,
    /// Microseconds with faults, and between two of them in the mean.
    pub storm: u64,
    pub fault_every: u64,
    #[cfg(feature = "planted-bugs")]
    pub bug: Option<nopaxos::Bug>,
}

fn pick(rng: &mut Rng, from: &[u64]) -> u64 {
    from[rng.below(from.len() as u64) as usize]
}

impl Plan {
    /// A group in which nothing goes wrong, in durability `memory`.
    pub fn calm(replicas: u8) -> Plan {
        Plan {
            replicas,
            durability: Durability::Memory,
            timing: Timing {
                heartbeat: 500,
                election: 2_500,
                jitter: 1_000,
                stall: 6_000,
                gap: 100,
                retry: 300,
                patience: 8_000,
            },
            limits: Limits::default(),
            patience: 30,
            window: 64,
            clients: 2,
            client_window: 1,
            client_retry: 2_000,
            think: 200,
            datagram: 30,
            loss: 0,
            duplication: 0,
            delay: 10,
            spread: 0,
            stray: 0,
            leg_loss: 0,
            late: 0,
            disk: 20,
            disasters: false,
            durable: 0,
            changes: false,
            replay: false,
            storm: 0,
            fault_every: 1_000,
            #[cfg(feature = "planted-bugs")]
            bug: None,
        }
    }

    /// A plan drawn from a seed.
    pub fn draw(seed: u64) -> Plan {
        let mut rng = Rng::new(seed ^ 0x0a11_5eed);
        let calm = Plan::calm(pick(&mut rng, &[1, 3, 3, 3, 3, 3, 3, 5, 5, 5]) as u8);
        let mut timing = calm.timing;
        timing.gap = pick(&mut rng, &[0, 60, 300]);
        timing.jitter = pick(&mut rng, &[200, 1_000, 3_000]);
        let mut limits = Limits::tiny();
        if rng.chance(1, 3) {
            let log_bytes = pick(&mut rng, &[2_000, 20_000]) as usize;
            limits = Limits { ahead: 60, unstable: 400, sync_every: 30, log_bytes, ..limits };
        }
        limits.unstable_bytes = pick(&mut rng, &[4_000, 8_000, 100_000]) as usize;
        let durabilities = [Durability::Memory, Durability::Sync, Durability::Lazy];
        let mut plan = Plan {
            durability: durabilities[rng.below(3) as usize],
            timing,
            limits,
            patience: pick(&mut rng, &[0, 20, 80]),
            window: pick(&mut rng, &[2, 8, 64]) as usize,
            clients: 1 + rng.below(4) as usize,
            client_window: pick(&mut rng, &[1, 1, 3, 8]) as usize,
            client_retry: pick(&mut rng, &[800, 2_000]),
            think: pick(&mut rng, &[30, 100, 400]),
            loss: pick(&mut rng, &[0, 5, 30, 100]),
            duplication: pick(&mut rng, &[0, 10, 60]),
            spread: pick(&mut rng, &[0, 20, 200]),
            stray: pick(&mut rng, &[0, 0, 10, 50]),
            leg_loss: pick(&mut rng, &[0, 10, 50, 200]),
            late: pick(&mut rng, &[0, 10, 200]),
            disk: pick(&mut rng, &[5, 60, 400, 1_500]),
            disasters: rng.chance(1, 2),
            changes: rng.chance(1, 3),
            replay: rng.chance(1, 2),
            storm: pick(&mut rng, &[10_000, 20_000, 40_000]),
            fault_every: pick(&mut rng, &[300, 1_000, 3_000]),
            durable: pick(&mut rng, &[0, 0, 200, 1_000]),
            ..calm
        };
        if rng.chance(1, 8) {
            // Slower than elections. Then it takes room to pass what was dropped for want of it
            // before clients send as much again, and as slow is not stalled.
            plan.disk = 2 * plan.timing.election;
            plan.timing.stall = 5 * plan.disk;
            plan.limits = Limits { ahead: 60, unstable: 400, unstable_bytes: 100_000, ..limits };
        }
        plan
    }

    pub fn config(&self, identity: Identity, seed: u64) -> Config {
        let mut config = Config::new(identity, self.replicas, self.durability, seed);
        config.timing = self.timing;
        config.limits = self.limits;
        #[cfg(feature = "planted-bugs")]
        {
            config.bug = self.bug;
        }
        config
    }

    /// When copies of a message arrive, after how long.
    pub fn transit(&self, rng: &mut Rng) -> Vec<u64> {
        if rng.chance(self.loss, 1_000) {
            return Vec::new();
        }
        let copies = 1 + usize::from(rng.chance(self.duplication, 1_000));
        let mut delay = || {
            let stray = if rng.chance(self.stray, 1_000) { rng.below(8_000) } else { 0 };
            self.delay + rng.below(self.spread + 1) + stray
        };
        (0..copies).map(|_| delay()).collect()
    }

    /// The same from a sequencer to a replica: some are late.
    pub fn leg(&self, rng: &mut Rng) -> Vec<u64> {
        if rng.chance(self.leg_loss, 1_000) {
            return Vec::new();
        }
        let late = if rng.chance(self.late, 1_000) { 1 + rng.below(400) } else { 0 };
        self.transit(rng).into_iter().map(|delay| delay + late).collect()
    }

    pub fn disk_delay(&self, rng: &mut Rng) -> u64 {
        1 + rng.below(2 * self.disk)
    }
}
