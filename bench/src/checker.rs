//! Is a history linearizable?
//!
//! Linearizability is local: each key is checked alone. Keys that are only set and read, with
//! every value written once, are decided by [`zones`] in the time of a sort; all others by
//! [`search`], which is Wing and Gong's, with the configurations kept as a set.

mod search;
mod zones;

use std::fmt;

use crate::history::{Action, History, Operation};

/// What the checker found about one key or a whole history.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// There is an order that explains everything.
    Linearizable,
    /// There is none.
    Violated(Violation),
    /// The search grew beyond its bound.
    Undecided {
        /// On which key.
        key: u32,
    },
}

impl Verdict {
    /// Whether the history is linearizable; nothing if that could not be decided.
    pub fn linearizable(&self) -> Option<bool> {
        match self {
            Verdict::Linearizable => Some(true),
            Verdict::Violated(_) => Some(false),
            Verdict::Undecided { .. } => None,
        }
    }

    /// Why it is not, or why that is not known.
    pub fn explanation(&self) -> Option<String> {
        match self {
            Verdict::Linearizable => None,
            Verdict::Violated(violation) => Some(violation.to_string()),
            Verdict::Undecided { key } => {
                Some(format!("key {key} has too many concurrent operations to decide"))
            }
        }
    }
}

/// Why a history is not linearizable.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Violation {
    /// On which key.
    pub key: u32,
    /// What is wrong, in words.
    pub reason: String,
    /// The operations that contradict each other, or those around the place.
    pub evidence: Vec<Operation>,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "key {}: {}", self.key, self.reason)?;
        for operation in &self.evidence {
            write!(f, "\n    {operation}")?;
        }
        Ok(())
    }
}

/// Checks every key; stops at the first violation.
pub fn check(history: &History) -> Verdict {
    let mut undecided = None;
    for key in history.by_key() {
        match check_key(&key) {
            Verdict::Linearizable => {}
            Verdict::Violated(violation) => return Verdict::Violated(violation),
            Verdict::Undecided { key } => undecided = Some(Verdict::Undecided { key }),
        }
    }
    undecided.unwrap_or(Verdict::Linearizable)
}

/// Checks the operations of one key, which are in the order of their invocation.
fn check_key(operations: &[Operation]) -> Verdict {
    if let Some(violation) = repeated_increment(operations) {
        return Verdict::Violated(violation);
    }
    let verdict = match zones::check(operations) {
        Some(verdict) => verdict,
        None => search::check(operations),
    };
    debug_assert!(operations.windows(2).all(|pair| pair[0].invoked <= pair[1].invoked));
    verdict
}

/// On a key that is never set, two increments never have the same answer. The search would find
/// it too; this says it more clearly.
fn repeated_increment(operations: &[Operation]) -> Option<Violation> {
    if operations.iter().any(|operation| matches!(operation.action, Action::Set(_))) {
        return None;
    }
    let mut answers: Vec<(i64, &Operation)> = operations
        .iter()
        .filter_map(|operation| match operation.action {
            Action::Increment(Some(answer)) => Some((answer, operation)),
            _ => None,
        })
        .collect();
    answers.sort_by_key(|&(answer, _)| answer);
    let pair = answers.windows(2).find(|pair| pair[0].0 == pair[1].0)?;
    Some(Violation {
        key: pair[0].1.key,
        reason: format!("two increments answered {}", pair[0].0),
        evidence: vec![*pair[0].1, *pair[1].1],
    })
}

#[cfg(test)]
mod tests;
