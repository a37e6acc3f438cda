//! What the simulator itself knows of durability `lazy`: who has forgotten what it acknowledged,
//! who can reach whom, and so which elections may cost acknowledged operations (contracts:
//! forgetful votes). None of it comes from the protocol's own marks.
//!
//! A replica that restarted is forgetful until it takes part in a view and its log holds again
//! all that its former lives acknowledged. A replica is unreachable for a candidate unless within
//! the candidate's patience there was a time without a break, long enough for a candidacy, in
//! which both were up and answered and no message between them was lost or late.

use std::collections::BTreeMap;

use smr::{Role, View, Viewstamp};

use crate::options::Options;
use crate::subject::Subject;
use crate::world::World;

/// The time between two looks at who reaches whom.
const LOOK: u64 = 500;

/// Two replicas.
#[derive(Clone, Debug, Default)]
struct Pair {
    /// Since when they have reached each other, if they do.
    since: Option<u64>,
    /// Long enough times in which they did.
    past: Vec<(u64, u64)>,
}

pub(crate) struct Truth {
    replicas: usize,
    pairs: Vec<Pair>,
    /// How long a candidate waits at least, by the world's clock.
    patience: u64,
    /// How long two replicas must reach each other to count.
    contact: u64,
    next_look: u64,
    /// Elections, and whether they may cost acknowledged operations.
    elections: BTreeMap<View, bool>,
}

impl Truth {
    pub(crate) fn new(options: &Options) -> Truth {
        let replicas = usize::from(options.replicas);
        let times = options.times;
        let fastest = 1_000 + options.drift;
        let slowest = 1_000 - options.drift;
        // Two candidacies: the first may meet another one's.
        let (network, disk) = (options.network, options.disk);
        let steps = 4 * (network.delay + network.spread) + 4 * (disk.latency + disk.spread);
        let candidacies = 2 * (times.election + times.jitter) * 1_000 / slowest;
        Truth {
            replicas,
            pairs: vec![Pair::default(); replicas * replicas],
            patience: times.patience * 1_000 / fastest,
            contact: candidacies + steps,
            next_look: 0,
            elections: BTreeMap::new(),
        }
    }

    fn pair(&mut self, a: usize, b: usize) -> &mut Pair {
        &mut self.pairs[a.min(b) * self.replicas + a.max(b)]
    }

    /// The two reached each other until now.
    pub(crate) fn broken(&mut self, now: u64, a: usize, b: usize) {
        let contact = self.contact;
        let pair = self.pair(a, b);
        if let Some(since) = pair.since.take()
            && now >= since + contact
        {
            pair.past.push((since, now));
        }
        pair.since = Some(now);
    }

    fn reached(&self, now: u64, a: usize, b: usize) -> bool {
        let pair = &self.pairs[a.min(b) * self.replicas + a.max(b)];
        let from = now.saturating_sub(self.patience);
        let long = |since: u64, until: u64| until >= since.max(from) + self.contact;
        pair.since.is_some_and(|since| long(since, now))
            || pair.past.iter().rev().any(|&(since, until)| long(since, until))
    }

    /// Whether an election of a view above `lost` and not above `newest` may have cost something.
    pub(crate) fn may_lose(&self, lost: View, newest: View) -> bool {
        if newest <= lost {
            return false;
        }
        self.elections.range(lost.next_for(smr::ReplicaId(0)).min(newest)..=newest).any(|(_, &r)| r)
    }
}

impl<P: Subject> World<P> {
    /// Looks at who reaches whom, now and then.
    pub(crate) fn look(&mut self) {
        let now = self.queue.now();
        if !self.lazy() || now < self.truth.next_look {
            return;
        }
        self.truth.next_look = now + LOOK;
        for a in 0..self.nodes.len() {
            for b in a + 1..self.nodes.len() {
                let well = self.answers(a) && self.answers(b);
                let cut = self.network.is_cut(a, b) || self.network.is_cut(b, a);
                let filtered = self.filters.iter().any(|filter| {
                    let on = |from, to| {
                        filter.from.is_none_or(|f| f == from) && filter.to.is_none_or(|t| t == to)
                    };
                    on(a, b) || on(b, a)
                });
                if well && !cut && !filtered {
                    self.truth.pair(a, b).since.get_or_insert(now);
                } else {
                    self.truth.broken(now, a, b);
                    self.truth.pair(a, b).since = None;
                }
            }
        }
    }

    /// Whether a replica is up and its disk, too.
    fn answers(&self, id: usize) -> bool {
        let node = &self.nodes[id];
        node.is_up() && !node.paused && self.queue.now() >= node.disk.stalled_until
    }

    pub(crate) fn lazy(&self) -> bool {
        self.options.durability == smr::Durability::Lazy
    }

    /// A replica has acknowledged everything up to here.
    pub(crate) fn owes(&mut self, id: usize, at: Viewstamp) {
        let owed = &mut self.nodes[id].owed;
        *owed = at.max(*owed);
    }

    /// After a step: whether a restarted replica has its memory back.
    pub(crate) fn remember(&mut self, id: usize) {
        let node = &mut self.nodes[id];
        let Some(report) = node.witness.report else { return };
        let follows = matches!(report.role, Role::Primary | Role::Backup);
        if follows && report.op >= node.owed && !node.disk.lost {
            node.remembers = true;
        }
    }

    /// A replica begins to lead a view.
    pub(crate) fn elected(&mut self, id: usize, view: View) {
        if !self.lazy() || self.truth.elections.contains_key(&view) {
            return;
        }
        let now = self.queue.now();
        let forgetful = self.nodes.iter().filter(|node| node.forgets()).count();
        // Who remembers counts if its vote could be had, or it could have been elected itself.
        let remembers = |a: usize| !self.nodes[a].forgets();
        let reached = |a: usize, b: usize| a != b && self.truth.reached(now, a, b);
        let heard = |a: usize| {
            let all = 0..self.nodes.len();
            let others = all.filter(|&b| remembers(b) && reached(a, b)).count();
            reached(id, a) && others >= self.options.f()
        };
        let silent =
            self.nodes.iter().filter(|node| node.id != id && !node.forgets() && !heard(node.id));
        let silent = silent.count();
        let risky = forgetful + silent > self.options.f();
        self.truth.elections.insert(view, risky);
        if forgetful > 0 {
            self.marks.hit("elected-among-forgetful");
        }
        self.note(|| format!("r{id} is elected: {forgetful} forgetful, {silent} unreachable"));
    }
}
