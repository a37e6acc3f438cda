//! Registers whose values are unique, decided exactly in the time of a sort: Gibbons and Korach,
//! "Testing shared memories" (1997), the case of a known reads-from mapping.
//!
//! A value's write and reads are a cluster, and stand side by side in every explanation. Let
//! `finish` be the earliest completion in a cluster and `start` its latest invocation. Cluster A
//! has an operation that precedes one of B if A.finish < B.start; a history is linearizable if
//! and only if no two clusters precede each other and no read precedes its own write.
//!
//! A write with unknown outcome that nobody read is left out: where an explanation has it, it may
//! be removed. One that was read ends, at the latest, with its first read.

use std::collections::HashMap;

use super::{Verdict, Violation};
use crate::history::{Action, Operation, Value};

struct Cluster<'a> {
    /// The operation that wrote the value; none for the missing value.
    write: Option<&'a Operation>,
    finish: u64,
    finisher: Option<&'a Operation>,
    start: u64,
    starter: Option<&'a Operation>,
    read: bool,
}

impl<'a> Cluster<'a> {
    /// The cluster of the value that was there before everything.
    fn missing() -> Self {
        Self { write: None, finish: 0, finisher: None, start: 0, starter: None, read: false }
    }

    fn new(write: &'a Operation) -> Self {
        Self {
            write: Some(write),
            finish: write.end(),
            finisher: Some(write),
            start: write.invoked,
            starter: Some(write),
            read: false,
        }
    }

    fn add_read(&mut self, read: &'a Operation) {
        self.read = true;
        if read.end() < self.finish {
            (self.finish, self.finisher) = (read.end(), Some(read));
        }
        if read.invoked > self.start {
            (self.start, self.starter) = (read.invoked, Some(read));
        }
    }

    fn is_forward(&self) -> bool {
        self.finish < self.start
    }

    /// Whether each has an operation that precedes one of the other.
    fn conflicts(&self, other: &Cluster<'_>) -> bool {
        self.finish < other.start && other.finish < self.start
    }
}

/// Decides, or returns nothing where the history is of another kind.
pub(super) fn check(operations: &[Operation]) -> Option<Verdict> {
    let mut clusters: HashMap<Value, Cluster<'_>> = HashMap::new();
    clusters.insert(None, Cluster::missing());
    for operation in operations {
        match operation.action {
            Action::Set(value) => {
                if clusters.insert(Some(value), Cluster::new(operation)).is_some() {
                    return None;
                }
            }
            Action::Get(_) => {}
            Action::Increment(_) => return None,
        }
    }
    for read in operations {
        let Action::Get(found) = read.action else { continue };
        // A read without an answer says nothing.
        if read.completed.is_none() {
            continue;
        }
        let Some(cluster) = clusters.get_mut(&found) else {
            return violated("a value was read that nobody wrote", vec![*read]);
        };
        if cluster.write.is_some_and(|write| read.end() < write.invoked) {
            let evidence = vec![*read, *cluster.write.expect("checked above")];
            return violated("a value was read before it was written", evidence);
        }
        cluster.add_read(read);
    }
    let matters = |cluster: &Cluster<'_>| {
        cluster.read || cluster.write.is_some_and(|write| write.completed.is_some())
    };
    let clusters = clusters.into_values().filter(matters).collect();
    Some(match conflict(clusters) {
        None => Verdict::Linearizable,
        Some(evidence) => {
            return violated("these values cannot have followed each other", evidence);
        }
    })
}

/// Finds two clusters that precede each other.
fn conflict(clusters: Vec<Cluster<'_>>) -> Option<Vec<Operation>> {
    let (mut forward, backward): (Vec<_>, Vec<_>) =
        clusters.into_iter().partition(Cluster::is_forward);
    forward.sort_by_key(|cluster| cluster.finish);
    for pair in forward.windows(2) {
        if pair[0].conflicts(&pair[1]) {
            return Some(evidence(&pair[0], &pair[1]));
        }
    }
    // The forward ones are now known to be disjoint: only the last one that opens before a
    // backward one can contain it.
    for cluster in &backward {
        let after = forward.partition_point(|other| other.finish < cluster.start);
        let Some(other) = after.checked_sub(1).map(|index| &forward[index]) else { continue };
        if other.conflicts(cluster) {
            return Some(evidence(other, cluster));
        }
    }
    None
}

fn evidence(a: &Cluster<'_>, b: &Cluster<'_>) -> Vec<Operation> {
    let mut operations: Vec<Operation> =
        [a.write, a.finisher, a.starter, b.write, b.finisher, b.starter]
            .into_iter()
            .flatten()
            .copied()
            .collect();
    operations.sort_by_key(|operation| (operation.invoked, operation.client));
    operations.dedup();
    operations
}

fn violated(reason: &str, evidence: Vec<Operation>) -> Option<Verdict> {
    let key = evidence[0].key;
    Some(Verdict::Violated(Violation { key, reason: reason.to_string(), evidence }))
}
