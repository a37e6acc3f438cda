//! Any history of sets, reads and increments, by search.
//!
//! Wing and Gong's search in the form that Lowe calls just-in-time: walk through invocations and
//! completions in the order of time, keeping every configuration (the state, and which open
//! operations have taken effect) that explains what was seen so far. An operation takes effect
//! no earlier than somebody's completion needs it.
//!
//! Four reductions keep the set small, none of which changes the verdict:
//! - an open read that matches the state takes effect at once: it changes nothing;
//! - increments with unknown outcomes are interchangeable, so they are counted, not told apart;
//! - reads with unknown outcomes are left out;
//! - on a key that is never set the state only grows: a configuration that has passed by what an
//!   open operation needs is dropped.

use std::collections::HashSet;

use super::{Verdict, Violation};
use crate::history::{Action, Operation, Value};

/// Above this many configurations the search gives up.
const MOST_CONFIGURATIONS: usize = 1 << 18;

/// As many operations may be open at once.
const SLOTS: usize = u128::BITS as usize;

/// How many completed operations an explanation shows.
const SHOWN: usize = 6;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Configuration {
    state: Value,
    /// Bit `i`: the operation in slot `i` has taken effect.
    effective: u128,
    /// Increments with unknown outcome that have taken effect.
    spent: u32,
}

struct Search<'a> {
    slots: Vec<Option<&'a Operation>>,
    /// Invoked increments whose outcome is not known.
    nameless: u32,
    /// Whether the key is never set.
    growing: bool,
    configurations: HashSet<Configuration>,
}

#[derive(Clone, Copy)]
enum Event {
    Invoked,
    Completed,
}

/// Decides, unless the search outgrows its bounds.
pub(super) fn check(operations: &[Operation]) -> Verdict {
    let mut events = Vec::with_capacity(operations.len() * 2);
    for (index, operation) in operations.iter().enumerate() {
        let unknown = operation.completed.is_none();
        if unknown && matches!(operation.action, Action::Get(_)) {
            continue;
        }
        events.push((operation.invoked, Event::Invoked, index));
        if !unknown {
            events.push((operation.end(), Event::Completed, index));
        }
    }
    // Operations that touch at one instant count as concurrent: invocations first.
    events.sort_by_key(|&(time, event, index)| (time, event as u8, index));
    let start = Configuration { state: None, effective: 0, spent: 0 };
    let mut search = Search {
        slots: vec![None; SLOTS],
        nameless: 0,
        growing: !operations.iter().any(|operation| matches!(operation.action, Action::Set(_))),
        configurations: HashSet::from([start]),
    };
    let mut completed = Vec::new();
    for (_, event, index) in events {
        let operation = &operations[index];
        let going = match event {
            Event::Invoked => search.invoke(operation),
            Event::Completed => search.complete(operation),
        };
        if !going {
            return Verdict::Undecided { key: operation.key };
        }
        if search.configurations.is_empty() {
            return Verdict::Violated(search.violation(operation, &completed));
        }
        if matches!(event, Event::Completed) {
            completed.push(*operation);
        }
    }
    Verdict::Linearizable
}

impl<'a> Search<'a> {
    /// Returns false if there are too many open operations.
    fn invoke(&mut self, operation: &'a Operation) -> bool {
        if operation.completed.is_none() && matches!(operation.action, Action::Increment(_)) {
            self.nameless += 1;
            return true;
        }
        let Some(slot) = self.slots.iter().position(Option::is_none) else { return false };
        self.slots[slot] = Some(operation);
        if let Action::Get(found) = operation.action {
            let matching = |mut configuration: Configuration| {
                if configuration.state == found {
                    configuration.effective |= 1 << slot;
                }
                configuration
            };
            self.configurations = self.configurations.iter().copied().map(matching).collect();
        }
        true
    }

    /// Keeps only configurations in which the operation has taken effect. Returns false if there
    /// are too many.
    fn complete(&mut self, operation: &'a Operation) -> bool {
        let slot = self
            .slots
            .iter()
            .position(|open| open.is_some_and(|open| std::ptr::eq(open, operation)))
            .expect("what completes was invoked");
        let bit = 1u128 << slot;
        let mut done = HashSet::new();
        let mut seen = HashSet::new();
        let mut stack: Vec<Configuration> = self.configurations.drain().collect();
        while let Some(configuration) = stack.pop() {
            if configuration.effective & bit != 0 {
                let effective = configuration.effective & !bit;
                done.insert(Configuration { effective, ..configuration });
                continue;
            }
            if !seen.insert(configuration) {
                continue;
            }
            if seen.len() + done.len() > MOST_CONFIGURATIONS {
                return false;
            }
            self.successors(configuration, &mut stack);
        }
        self.slots[slot] = None;
        self.configurations = done;
        true
    }

    /// Every configuration that is one write further.
    fn successors(&self, configuration: Configuration, into: &mut Vec<Configuration>) {
        let next = configuration.state.unwrap_or(0).checked_add(1);
        for (slot, open) in self.slots.iter().enumerate() {
            let Some(open) = open else { continue };
            let bit = 1u128 << slot;
            if configuration.effective & bit != 0 {
                continue;
            }
            let state = match open.action {
                Action::Set(value) => Some(value),
                Action::Increment(answer) if answer == next => next,
                _ => continue,
            };
            let effective = configuration.effective | bit;
            into.extend(self.settle(Configuration { state, effective, ..configuration }));
        }
        if configuration.spent < self.nameless && next.is_some() {
            let spent = configuration.spent + 1;
            into.extend(self.settle(Configuration { state: next, spent, ..configuration }));
        }
    }

    /// Lets every open read that matches the state take effect. Returns nothing if the
    /// configuration leads nowhere.
    fn settle(&self, mut configuration: Configuration) -> Option<Configuration> {
        let state = configuration.state.unwrap_or(0);
        for (slot, open) in self.slots.iter().enumerate() {
            let Some(open) = open else { continue };
            let bit = 1u128 << slot;
            let needed = match open.action {
                Action::Get(found) if found == configuration.state => {
                    configuration.effective |= bit;
                    continue;
                }
                Action::Get(found) => found.unwrap_or(0),
                Action::Increment(Some(answer)) => answer.saturating_sub(1),
                Action::Increment(None) | Action::Set(_) => continue,
            };
            if self.growing && configuration.effective & bit == 0 && needed < state {
                return None;
            }
        }
        Some(configuration)
    }

    fn violation(&self, operation: &Operation, completed: &[Operation]) -> Violation {
        let mut evidence: Vec<Operation> = completed.iter().rev().take(SHOWN).copied().collect();
        evidence.reverse();
        evidence.push(*operation);
        evidence.extend(self.slots.iter().flatten().map(|open| **open));
        let reason = "the last completed of these cannot have had this outcome".to_string();
        Violation { key: operation.key, reason, evidence }
    }
}
