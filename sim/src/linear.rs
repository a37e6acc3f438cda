//! Linearizability of one key's history (Wing and Gong 1993, with Lowe's memory of visited
//! configurations). Deliberately ignorant of the log: it sees what the clients saw.
//!
//! An operation whose outcome is unknown may take effect at any time after its call, or never.

use std::collections::{HashMap, HashSet};

use crate::service::Action;

/// One operation on the key.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Call {
    /// When it was called.
    pub(crate) called: u64,
    /// When it returned; never, if its outcome is unknown.
    pub(crate) returned: Option<u64>,
    /// What it did.
    pub(crate) action: Action,
    /// The value that it found.
    pub(crate) found: Option<u64>,
}

/// What the search says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// There is an order that explains the history.
    Linearizable,
    /// There is none.
    Violation,
    /// The search was given up.
    Undecided,
}

const STEPS: usize = 50_000;

/// Answered operations that are still to be ordered and found a certain value.
#[derive(Clone, Copy, Default)]
struct Finders {
    /// Those that leave it there.
    stay: u32,
    /// Those that put another one in its place.
    move_on: u32,
}

struct Search<'a> {
    calls: &'a [Call],
    finders: HashMap<u64, Finders>,
    /// Whether unknown operations may build upon each other unobserved.
    chains: bool,
    done: Vec<u64>,
    visited: HashSet<(Vec<u64>, u64, bool)>,
    left: usize,
    steps: usize,
}

/// Whether a key's history, from value zero, is linearizable.
pub(crate) fn check(history: &[Call]) -> Verdict {
    let mut calls: Vec<Call> = history
        .iter()
        .copied()
        .filter(|call| call.returned.is_some() || !matches!(call.action, Action::Get))
        .collect();
    calls.sort_by_key(|call| call.called);
    let unknown = |call: &&Call| call.returned.is_none();
    let chains = calls.iter().filter(unknown).any(|call| !matches!(call.action, Action::Put(_)));
    let mut search = Search {
        finders: HashMap::new(),
        chains,
        done: vec![0; calls.len().div_ceil(64)],
        visited: HashSet::new(),
        left: calls.iter().filter(|call| call.returned.is_some()).count(),
        steps: STEPS,
        calls: &calls,
    };
    for call in &calls {
        search.count(call, true);
    }
    match search.run(0, 0, false) {
        _ if search.steps == 0 => Verdict::Undecided,
        true => Verdict::Linearizable,
        false => Verdict::Violation,
    }
}

impl Search<'_> {
    fn is_done(&self, index: usize) -> bool {
        self.done[index / 64] & (1 << (index % 64)) != 0
    }

    fn flip(&mut self, index: usize) {
        self.done[index / 64] ^= 1 << (index % 64);
    }

    fn count(&mut self, call: &Call, up: bool) {
        let Some(found) = call.found else { return };
        let finders = self.finders.entry(found).or_default();
        let stays = call.action.after(found) == found;
        let counter = if stays { &mut finders.stay } else { &mut finders.move_on };
        *counter = if up { *counter + 1 } else { *counter - 1 };
    }

    fn found_later(&self, value: u64) -> Finders {
        self.finders.get(&value).copied().unwrap_or_default()
    }

    /// Tries to order what is not done yet, from a state; `first` is below all that is not done.
    fn run(&mut self, mut first: usize, state: u64, after_unknown: bool) -> bool {
        if self.left == 0 {
            return true;
        }
        if self.steps == 0 || !self.visited.insert((self.done.clone(), state, after_unknown)) {
            return false;
        }
        self.steps -= 1;
        while self.is_done(first) {
            first += 1;
        }
        // Whoever was called after another returned cannot come before it.
        let mut latest = u64::MAX;
        let mut candidates = Vec::new();
        for index in first..self.calls.len() {
            let call = self.calls[index];
            if call.called > latest {
                break;
            }
            if self.is_done(index) {
                continue;
            }
            latest = latest.min(call.returned.unwrap_or(u64::MAX));
            candidates.push(index);
        }
        candidates.into_iter().any(|index| {
            self.may_be_next(index, state, after_unknown) && self.go(first, index, state)
        })
    }

    /// Whether an operation fits a state. Values are unique and so never come back: a state is only
    /// left when nobody else is still to find it, and by what was answered if there is such a one.
    fn may_be_next(&self, index: usize, state: u64, after_unknown: bool) -> bool {
        let call = self.calls[index];
        let here = self.found_later(state);
        let after = call.action.after(state);
        match call.found {
            Some(found) => {
                found == state && (after == state || (here.stay == 0 && here.move_on == 1))
            }
            None => {
                let there = self.found_later(after);
                let seen = there.stay + there.move_on > 0;
                let overwrites = matches!(call.action, Action::Put(_));
                // To overwrite what nobody saw is the same as not to have written it.
                here.stay + here.move_on == 0
                    && after != state
                    && (seen || self.chains)
                    && !(overwrites && after_unknown)
            }
        }
    }

    fn go(&mut self, first: usize, index: usize, state: u64) -> bool {
        let call = self.calls[index];
        let answered = call.returned.is_some();
        self.flip(index);
        self.count(&call, false);
        self.left -= usize::from(answered);
        let found = self.run(first, call.action.after(state), !answered);
        if !found {
            self.left += usize::from(answered);
            self.count(&call, true);
            self.flip(index);
        }
        found
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn call(called: u64, returned: u64, action: Action, found: u64) -> Call {
        Call { called, returned: Some(returned), action, found: Some(found) }
    }

    fn unknown(called: u64, action: Action) -> Call {
        Call { called, returned: None, action, found: None }
    }

    #[test]
    fn a_sequence_is_linearizable() {
        let history = [
            call(0, 1, Action::Put(5), 0),
            call(2, 3, Action::Get, 5),
            call(4, 5, Action::Swap { expected: 5, new: 6 }, 5),
            call(6, 7, Action::Get, 6),
        ];
        assert_eq!(check(&history), Verdict::Linearizable);
    }

    #[test]
    fn a_stale_read_is_not() {
        let history = [
            call(0, 1, Action::Put(5), 0),
            call(2, 3, Action::Put(6), 5),
            call(4, 5, Action::Get, 5),
        ];
        assert_eq!(check(&history), Verdict::Violation);
    }

    #[test]
    fn concurrent_operations_take_either_order() {
        let history = [
            call(0, 9, Action::Put(5), 6),
            call(0, 9, Action::Put(6), 0),
            call(10, 11, Action::Get, 5),
        ];
        assert_eq!(check(&history), Verdict::Linearizable);
        let both = [call(0, 9, Action::Put(5), 0), call(0, 9, Action::Put(6), 0)];
        assert_eq!(check(&both), Verdict::Violation);
    }

    #[test]
    fn the_unknown_may_happen_late_or_never_but_once() {
        let mut history = vec![
            unknown(0, Action::Put(5)),
            call(1, 2, Action::Put(6), 0),
            call(3, 4, Action::Get, 5),
        ];
        assert_eq!(check(&history), Verdict::Linearizable);
        history.push(call(5, 6, Action::Put(7), 5));
        history.push(call(7, 8, Action::Get, 5));
        assert_eq!(check(&history), Verdict::Violation);
        assert_eq!(check(&[unknown(0, Action::Put(5))]), Verdict::Linearizable);
    }

    #[test]
    fn a_lost_append_shows() {
        let once = Action::Append(7).after(0);
        let history = [call(0, 1, Action::Append(7), 0), unknown(0, Action::Append(8)), {
            call(2, 3, Action::Get, Action::Append(8).after(once))
        }];
        assert_eq!(check(&history), Verdict::Linearizable);
        let twice = Action::Append(7).after(once);
        let history = [call(0, 1, Action::Append(7), 0), call(2, 3, Action::Get, twice)];
        assert_eq!(check(&history), Verdict::Violation);
    }
}
