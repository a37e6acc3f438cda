//! Rare branches, counted: a long run that never reaches one of them proves nothing about it.

use std::collections::BTreeMap;

/// What a long run must have reached.
pub const EXPECTED: [&str; 51] = [
    "acknowledged-lost",
    "back-pressure",
    "catch-up",
    "catch-up-in-pieces",
    "checkpoint-below-tentative",
    "checkpoint-written",
    "commit-several",
    "crash-of-all",
    "crash-tears-batches",
    "crash-while-forgetful",
    "damaged-checkpoint",
    "damaged-disk-gone",
    "damaged-record",
    "deposed",
    "disk-reset",
    "disk-trim",
    "disk-truncate",
    "duplicate-answered",
    "durable-reply-held",
    "elect-accept",
    "elected",
    "elected-among-forgetful",
    "elected-with-marks",
    "flushed",
    "forgetful-reminded",
    "forgetful-vote",
    "gateway-restarted",
    "group-commit",
    "must-log",
    "need-state",
    "out-of-order",
    "patience-used",
    "recovered-from-lost-disk",
    "recovered-in-memory",
    "recovery",
    "replayed",
    "resigned-behind-its-disk",
    "resigned-for-slow-disk",
    "resigned-with-stalled-disk",
    "restarted-from-checkpoint",
    "rolled-back-acknowledged",
    "rolled-back-long-tail",
    "said-together",
    "stale-view",
    "state-damaged",
    "state-in-pieces",
    "state-installed",
    "state-lost",
    "undone",
    "wrong-view",
    "wrong-view-with-loss",
];

/// How often each branch was reached.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Marks {
    counts: BTreeMap<&'static str, u64>,
}

impl Marks {
    /// One more.
    pub(crate) fn hit(&mut self, mark: &'static str) {
        *self.counts.entry(mark).or_default() += 1;
    }

    /// Adds another run's.
    pub fn add(&mut self, other: &Marks) {
        for (mark, count) in &other.counts {
            *self.counts.entry(mark).or_default() += count;
        }
    }

    /// All that was counted, by name.
    pub fn counts(&self) -> impl Iterator<Item = (&'static str, u64)> {
        self.counts.iter().map(|(&mark, &count)| (mark, count))
    }

    /// What should have been reached and was not.
    pub fn missing(&self) -> Vec<&'static str> {
        EXPECTED.into_iter().filter(|mark| !self.counts.contains_key(mark)).collect()
    }
}
