//! Known histories, planted lies, and the two algorithms against each other and against the
//! definition.

use std::time::{Duration, Instant};

use rand::rngs::SmallRng;
use rand::seq::SliceRandom;
use rand::{Rng, SeedableRng};

use super::*;
use crate::history::Value;

fn operation(action: Action, invoked: u64, completed: Option<u64>) -> Operation {
    Operation { client: 0, key: 0, action, invoked, completed }
}

fn set(value: i64, invoked: u64, completed: u64) -> Operation {
    operation(Action::Set(value), invoked, Some(completed))
}

fn get(found: Value, invoked: u64, completed: u64) -> Operation {
    operation(Action::Get(found), invoked, Some(completed))
}

fn increment(answer: i64, invoked: u64, completed: u64) -> Operation {
    operation(Action::Increment(Some(answer)), invoked, Some(completed))
}

fn lost_set(value: i64, invoked: u64) -> Operation {
    operation(Action::Set(value), invoked, None)
}

fn lost_increment(invoked: u64) -> Operation {
    operation(Action::Increment(None), invoked, None)
}

fn sorted(operations: &[Operation]) -> Vec<Operation> {
    let mut sorted = operations.to_vec();
    sorted.sort_by_key(|operation| operation.invoked);
    sorted
}

/// Both algorithms, where both apply.
fn linearizable(operations: &[Operation]) -> bool {
    let operations = sorted(operations);
    let searched = search::check(&operations) == Verdict::Linearizable;
    if let Some(verdict) = zones::check(&operations) {
        assert_eq!(verdict == Verdict::Linearizable, searched, "{operations:#?}");
    }
    assert_eq!(check_key(&operations) == Verdict::Linearizable, searched);
    searched
}

#[test]
fn sequences() {
    assert!(linearizable(&[]));
    assert!(linearizable(&[get(None, 1, 2), set(1, 3, 4), get(Some(1), 5, 6)]));
    assert!(linearizable(&[increment(1, 1, 2), increment(2, 3, 4), get(Some(2), 5, 6)]));
    assert!(linearizable(&[set(5, 1, 2), increment(6, 3, 4), get(Some(6), 5, 6)]));
}

#[test]
fn concurrent_operations_may_go_either_way() {
    assert!(linearizable(&[set(1, 1, 10), get(None, 2, 3), get(Some(1), 4, 5)]));
    assert!(linearizable(&[set(1, 1, 10), set(2, 1, 10), get(Some(1), 11, 12)]));
    assert!(linearizable(&[set(1, 1, 10), set(2, 1, 10), get(Some(2), 11, 12)]));
    assert!(linearizable(&[increment(2, 1, 10), increment(1, 1, 10)]));
    // Touching is concurrent.
    assert!(linearizable(&[set(1, 1, 5), get(None, 5, 6)]));
}

#[test]
fn a_lost_write() {
    assert!(!linearizable(&[set(1, 1, 2), get(None, 3, 4)]));
    assert!(!linearizable(&[set(1, 1, 2), set(2, 3, 4), get(Some(1), 5, 6)]));
    assert!(!linearizable(&[increment(1, 1, 2), increment(1, 3, 4)]));
    assert!(!linearizable(&[increment(1, 1, 2), get(None, 3, 4)]));
}

#[test]
fn a_stale_read() {
    let writes = [set(1, 1, 2), set(2, 3, 4)];
    assert!(linearizable(&[writes[0], writes[1], get(Some(1), 3, 6)]));
    assert!(!linearizable(&[writes[0], writes[1], get(Some(1), 5, 6)]));
    // New, then old, both within the write.
    assert!(!linearizable(&[set(1, 1, 10), get(Some(1), 2, 3), get(None, 4, 5)]));
    assert!(!linearizable(&[increment(1, 1, 2), increment(2, 3, 4), get(Some(1), 5, 6)]));
}

#[test]
fn an_increment_executed_twice() {
    assert!(!linearizable(&[increment(2, 1, 2)]));
    assert!(!linearizable(&[increment(1, 1, 2), get(Some(2), 3, 4)]));
    assert!(!linearizable(&[increment(1, 1, 2), lost_increment(3), get(Some(3), 4, 5)]));
}

#[test]
fn reordered() {
    assert!(!linearizable(&[increment(2, 1, 2), increment(1, 3, 4)]));
    assert!(!linearizable(&[get(Some(1), 1, 2), set(1, 3, 4)]));
    // Two readers disagree about the order of two writes.
    assert!(!linearizable(&[
        set(1, 1, 20),
        set(2, 1, 20),
        get(Some(1), 2, 3),
        get(Some(2), 4, 5),
        get(Some(1), 6, 7),
    ]));
}

#[test]
fn a_value_from_nowhere() {
    assert!(!linearizable(&[set(1, 1, 2), get(Some(7), 3, 4)]));
}

#[test]
fn unknown_outcomes_take_effect_late_early_or_never() {
    assert!(linearizable(&[lost_set(1, 1), get(None, 5, 6)]));
    assert!(linearizable(&[lost_set(1, 1), get(Some(1), 5, 6)]));
    assert!(linearizable(&[lost_set(1, 1), get(None, 5, 6), get(Some(1), 7, 8)]));
    assert!(!linearizable(&[lost_set(1, 1), get(Some(1), 5, 6), get(None, 7, 8)]));
    assert!(!linearizable(&[get(Some(1), 1, 2), lost_set(1, 3)]));
    assert!(linearizable(&[lost_increment(1), increment(2, 5, 6), get(Some(2), 7, 8)]));
    assert!(linearizable(&[lost_increment(1), increment(1, 5, 6), get(Some(2), 7, 8)]));
    assert!(!linearizable(&[increment(2, 1, 2), lost_increment(5)]));
}

#[test]
fn a_violation_names_key_and_evidence() {
    let mut write = set(1, 1, 2);
    let mut read = get(None, 3, 4);
    (write.key, read.key) = (7, 7);
    let history = History { operations: vec![set(1, 1, 2), write, read] };
    let Verdict::Violated(violation) = check(&history) else { panic!("not noticed") };
    assert_eq!(violation.key, 7);
    assert_eq!(violation.evidence, [write, read]);
    assert!(violation.to_string().contains("GET found nothing"));
}

/// What a correct server would do: every operation takes effect at a moment between its
/// invocation and its completion.
fn correct_history(rng: &mut SmallRng, clients: u32, count: usize, style: Style) -> Vec<Operation> {
    let mut free_at = vec![0u64; clients as usize];
    let mut moments = Vec::new();
    for number in 0..count {
        let client = rng.random_range(0..clients);
        let invoked = free_at[client as usize] + rng.random_range(1..4);
        let effective = invoked + rng.random_range(0..8);
        let completed = effective + rng.random_range(0..8);
        free_at[client as usize] = completed;
        let unknown = rng.random_ratio(1, 12);
        moments.push((effective, number, client, invoked, (!unknown).then_some(completed)));
    }
    moments.sort_unstable();
    let mut state: Value = None;
    let mut operations = Vec::new();
    for (_, number, client, invoked, completed) in moments {
        // Some of the unknown never take effect.
        let skipped = completed.is_none() && rng.random();
        let action = match style.pick(rng) {
            Picked::Set => {
                let value = number as i64 * 1000;
                state = if skipped { state } else { Some(value) };
                Action::Set(value)
            }
            Picked::Get => Action::Get(state),
            Picked::Increment => {
                let next = state.unwrap_or(0) + 1;
                state = if skipped { state } else { Some(next) };
                Action::Increment(completed.map(|_| next))
            }
        };
        operations.push(Operation { client, key: 0, action, invoked, completed });
    }
    sorted(&operations)
}

#[derive(Clone, Copy)]
enum Style {
    Register,
    Counter,
    Both,
}

enum Picked {
    Set,
    Get,
    Increment,
}

impl Style {
    fn pick(self, rng: &mut SmallRng) -> Picked {
        match (self, rng.random_range(0..3)) {
            (_, 0) => Picked::Get,
            (Style::Register, _) | (Style::Both, 1) => Picked::Set,
            (Style::Counter, _) | (Style::Both, _) => Picked::Increment,
        }
    }
}

/// Damages one answer, if there is one.
fn lie(rng: &mut SmallRng, operations: &mut [Operation]) {
    let values: Vec<i64> = operations
        .iter()
        .filter_map(|operation| match operation.action {
            Action::Set(value) | Action::Get(Some(value)) => Some(value),
            Action::Increment(answer) => answer,
            Action::Get(None) => None,
        })
        .collect();
    let mut indices: Vec<usize> = (0..operations.len()).collect();
    indices.shuffle(rng);
    let Some(&other) = values.get(rng.random_range(0..values.len().max(1))) else { return };
    for index in indices {
        let operation = &mut operations[index];
        match &mut operation.action {
            Action::Get(found) if operation.completed.is_some() => {
                *found = if rng.random_ratio(1, 5) { None } else { Some(other) };
                return;
            }
            Action::Increment(Some(answer)) => {
                *answer += if rng.random() { 1 } else { -1 };
                return;
            }
            _ => {}
        }
    }
}

/// The definition itself: some order, of all that completed and some of the rest, in which
/// nothing precedes what it followed in time and every answer is right.
fn by_definition(operations: &[Operation], state: Value, taken: u32) -> bool {
    let is_open = |index: usize| taken & (1 << index) == 0;
    let open: Vec<usize> = (0..operations.len()).filter(|&index| is_open(index)).collect();
    if open.iter().all(|&index| operations[index].completed.is_none()) {
        return true;
    }
    let earliest_end = open.iter().map(|&index| operations[index].end()).min().unwrap_or(u64::MAX);
    open.iter().any(|&index| {
        let operation = &operations[index];
        if operation.invoked > earliest_end {
            return false;
        }
        let next = match operation.action {
            Action::Set(value) => Some(value),
            Action::Get(found) if operation.completed.is_none() || found == state => state,
            Action::Get(_) => return false,
            Action::Increment(answer) => {
                let next = state.unwrap_or(0) + 1;
                if operation.completed.is_some() && answer != Some(next) {
                    return false;
                }
                Some(next)
            }
        };
        by_definition(operations, next, taken | (1 << index))
    })
}

#[test]
fn correct_servers_are_never_blamed() {
    let mut rng = SmallRng::seed_from_u64(1);
    for round in 0..600 {
        let style = [Style::Register, Style::Counter, Style::Both][round % 3];
        let operations = correct_history(&mut rng, 4, 60, style);
        assert!(linearizable(&operations), "round {round}: {operations:#?}");
    }
}

#[test]
fn damaged_histories_are_judged_by_the_definition() {
    let mut rng = SmallRng::seed_from_u64(2);
    let mut violations = 0;
    for round in 0..6000 {
        let style = [Style::Register, Style::Counter, Style::Both][round % 3];
        let mut operations = correct_history(&mut rng, 3, 9, style);
        lie(&mut rng, &mut operations);
        let expected = by_definition(&operations, None, 0);
        assert_eq!(linearizable(&operations), expected, "round {round}: {operations:#?}");
        violations += u32::from(!expected);
    }
    assert!(violations > 2000, "{violations}: the lies are too small");
}

#[test]
fn long_histories_take_seconds_at_most() {
    let mut rng = SmallRng::seed_from_u64(3);
    for style in [Style::Register, Style::Counter] {
        let mut operations = correct_history(&mut rng, 16, 100_000, style);
        let started = Instant::now();
        assert_eq!(check_key(&operations), Verdict::Linearizable);
        // A read of what was overwritten long ago.
        let middle = operations.len() / 2;
        let earlier = operations[..middle / 2]
            .iter()
            .find_map(|operation| match operation.action {
                Action::Get(Some(value)) if operation.completed.is_some() => Some(value),
                _ => None,
            })
            .unwrap();
        let read = operations[middle..]
            .iter_mut()
            .find(|operation| {
                matches!(operation.action, Action::Get(_)) && operation.completed.is_some()
            })
            .unwrap();
        read.action = Action::Get(Some(earlier));
        assert!(matches!(check_key(&operations), Verdict::Violated(_)));
        assert!(started.elapsed() < Duration::from_secs(10), "{:?}", started.elapsed());
    }
}
