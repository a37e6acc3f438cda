//! Random operations against `BTreeMap`, with keys chosen to collide in slices, layers and borders.

use std::{
    collections::BTreeMap,
    ops::{Bound, RangeBounds},
    sync::Arc,
};

use masstree::{Guard, Masstree, pin};
use proptest::{prelude::*, sample::Index};

#[derive(Clone, Debug)]
enum Op {
    Put(Vec<u8>, u64),
    Remove(Vec<u8>),
    RemoveNth(Index),
    Get(Vec<u8>),
    InsertIfAbsent(Vec<u8>, u64),
    CompareAndSet(Vec<u8>, bool, Option<u64>),
    Scan(Bound<Vec<u8>>, usize),
    ScanReverse(Bound<Vec<u8>>, usize),
    /// Removes everything from the first bound to the second.
    RemoveRange(Vec<u8>, Vec<u8>),
    /// Iterates over a range: each step says from which end.
    Range(Bound<Vec<u8>>, Bound<Vec<u8>>, Vec<bool>),
    MultiGet(Vec<Vec<u8>>),
    Update(Vec<u8>, Option<u64>),
}

/// Keys that share prefixes of whole slices, end in zeros, or differ in length only.
fn key() -> impl Strategy<Value = Vec<u8>> {
    let few = || prop::sample::select(vec![0u8, 1, b'a', 255]);
    prop_oneof![
        3 => prop::collection::vec(few(), 0..4),
        4 => prop::collection::vec(few(), 0..40),
        3 => (0usize..5, prop::collection::vec(few(), 0..10)).prop_map(|(slices, tail)| {
            let mut key = b"prefix:8".repeat(slices);
            key.extend(tail);
            key
        }),
        3 => (0usize..5, any::<u8>()).prop_map(|(slices, last)| {
            let mut key = vec![0; 8 * slices];
            key.push(last);
            key
        }),
        4 => any::<u16>().prop_map(|n| n.to_be_bytes().to_vec()),
        2 => (0usize..3, any::<u8>()).prop_map(|(slices, n)| {
            let mut key = b"prefix:8".repeat(slices);
            key.extend([0, 0, 0, 0, 0, 0, 0, n]);
            key
        }),
    ]
}

fn bound() -> impl Strategy<Value = Bound<Vec<u8>>> {
    prop_oneof![
        Just(Bound::Unbounded),
        key().prop_map(Bound::Included),
        key().prop_map(Bound::Excluded),
    ]
}

fn op() -> impl Strategy<Value = Op> {
    prop_oneof![
        10 => (key(), any::<u64>()).prop_map(|(k, v)| Op::Put(k, v)),
        3 => key().prop_map(Op::Remove),
        4 => any::<Index>().prop_map(Op::RemoveNth),
        3 => key().prop_map(Op::Get),
        2 => (key(), any::<u64>()).prop_map(|(k, v)| Op::InsertIfAbsent(k, v)),
        2 => (key(), any::<bool>(), any::<Option<u64>>())
            .prop_map(|(k, right, new)| Op::CompareAndSet(k, right, new)),
        1 => (bound(), 1usize..40).prop_map(|(b, n)| Op::Scan(b, n)),
        1 => (bound(), 1usize..40).prop_map(|(b, n)| Op::ScanReverse(b, n)),
        1 => (key(), key()).prop_map(|(a, b)| Op::RemoveRange(a, b)),
        1 => (bound(), bound(), prop::collection::vec(any::<bool>(), 0..60))
            .prop_map(|(a, b, steps)| Op::Range(a, b, steps)),
        1 => prop::collection::vec(key(), 0..40).prop_map(Op::MultiGet),
        2 => (key(), any::<Option<u64>>()).prop_map(|(k, new)| Op::Update(k, new)),
    ]
}

type Model = BTreeMap<Vec<u8>, u64>;
type Tree = Masstree<Arc<u64>>;

fn as_slice(bound: &Bound<Vec<u8>>) -> Bound<&[u8]> {
    bound.as_ref().map(Vec::as_slice)
}

fn scanned(
    tree: &Tree,
    start: Bound<&[u8]>,
    n: usize,
    reverse: bool,
    guard: &Guard,
) -> Vec<(Vec<u8>, u64)> {
    let mut seen = Vec::new();
    let visit = |key: &[u8], value: &Arc<u64>| {
        seen.push((key.to_vec(), **value));
        seen.len() < n
    };
    if reverse {
        tree.scan_reverse(start, guard, visit);
    } else {
        tree.scan(start, guard, visit);
    }
    seen
}

fn apply(op: Op, tree: &Tree, model: &mut Model) {
    let guard = &pin();
    match op {
        Op::Put(key, value) => {
            let old = tree.put(&key, Arc::new(value), guard);
            assert_eq!(old.as_deref().copied(), model.insert(key, value));
        }
        Op::Remove(key) => {
            assert_eq!(tree.remove(&key, guard).as_deref().copied(), model.remove(&key));
        }
        Op::RemoveNth(index) => {
            if !model.is_empty() {
                let key = model.keys().nth(index.index(model.len())).unwrap().clone();
                assert_eq!(tree.remove(&key, guard).as_deref().copied(), model.remove(&key));
            }
        }
        Op::Get(key) => assert_eq!(tree.get(&key, guard).as_deref(), model.get(&key)),
        Op::InsertIfAbsent(key, value) => {
            let result = tree.insert_if_absent(&key, Arc::new(value), guard);
            assert_eq!(result.err().as_deref(), model.get(&key));
            model.entry(key).or_insert(value);
        }
        Op::CompareAndSet(key, right, new) => compare_and_set(key, right, new, tree, model, guard),
        Op::Scan(start, n) => {
            let expected: Vec<_> = model
                .range::<[u8], _>((as_slice(&start), Bound::Unbounded))
                .take(n)
                .map(|(k, v)| (k.clone(), *v))
                .collect();
            assert_eq!(scanned(tree, as_slice(&start), n, false, guard), expected);
        }
        Op::ScanReverse(start, n) => {
            let expected: Vec<_> = model
                .range::<[u8], _>((Bound::Unbounded, as_slice(&start)))
                .rev()
                .take(n)
                .map(|(k, v)| (k.clone(), *v))
                .collect();
            assert_eq!(scanned(tree, as_slice(&start), n, true, guard), expected);
        }
        Op::Range(low, high, steps) => iterate((low, high), &steps, tree, model, guard),
        Op::MultiGet(keys) => {
            let expected: Vec<_> = keys.iter().map(|key| model.get(key).copied()).collect();
            let found = tree.multi_get(&keys, guard);
            assert_eq!(found.iter().map(|v| v.as_deref().copied()).collect::<Vec<_>>(), expected);
        }
        Op::Update(key, new) => {
            let seen = tree.get_ref(&key, guard).map(|value| **value);
            assert_eq!(seen, model.get(&key).copied());
            let old = tree.update(&key, guard, |current| {
                assert_eq!(current.map(|value| **value), seen);
                new.map(Arc::new)
            });
            assert_eq!(old.as_deref().copied(), seen);
            match new {
                Some(new) => model.insert(key, new),
                None => model.remove(&key),
            };
        }
        Op::RemoveRange(a, b) => {
            let (from, to) = if a <= b { (a, b) } else { (b, a) };
            let doomed: Vec<_> = model.range(from..=to).map(|(k, _)| k.clone()).collect();
            for key in doomed {
                assert_eq!(tree.remove(&key, guard).as_deref().copied(), model.remove(&key));
            }
        }
    }
}

/// A range is consumed from both ends, until they meet.
fn iterate(
    range: (Bound<Vec<u8>>, Bound<Vec<u8>>),
    steps: &[bool],
    tree: &Tree,
    model: &Model,
    guard: &Guard,
) {
    let mut expected: std::collections::VecDeque<_> = model
        .iter()
        .filter(|(key, _)| range.contains(*key))
        .map(|(key, value)| (key.clone(), *value))
        .collect();
    let mut found = tree.range::<Vec<u8>>(range, guard);
    let plain = |(key, value): (Vec<u8>, Arc<u64>)| (key, *value);
    for from_back in steps {
        let (next, wanted) = if *from_back {
            (found.next_back().map(plain), expected.pop_back())
        } else {
            (found.next().map(plain), expected.pop_front())
        };
        assert_eq!(next, wanted);
    }
    assert_eq!(found.map(plain).collect::<Vec<_>>(), Vec::from(expected));
}

fn compare_and_set(
    key: Vec<u8>,
    right: bool,
    new: Option<u64>,
    tree: &Tree,
    model: &mut Model,
    guard: &Guard,
) {
    let current = tree.get(&key, guard);
    // An equal value elsewhere is not the expected one: identity counts.
    let expected = if right { current.clone() } else { Some(Arc::new(current.map_or(0, |v| *v))) };
    let result = tree.compare_and_set(&key, guard, expected.as_ref(), new.map(Arc::new));
    if right {
        assert_eq!(result.unwrap().as_deref(), model.get(&key));
        match new {
            Some(new) => model.insert(key, new),
            None => model.remove(&key),
        };
    } else {
        assert_eq!(result.unwrap_err().as_deref(), model.get(&key));
    }
}

fn compare_all(tree: &mut Tree, model: &Model) {
    let guard = pin();
    let expected: Vec<_> = model.iter().map(|(k, v)| (k.clone(), *v)).collect();
    assert_eq!(scanned(tree, Bound::Unbounded, usize::MAX, false, &guard), expected);
    let mut reversed = scanned(tree, Bound::Unbounded, usize::MAX, true, &guard);
    reversed.reverse();
    assert_eq!(reversed, expected);
    for (key, value) in model {
        assert_eq!(tree.get_with(key, &guard, |v| **v), Some(*value));
    }
    assert_eq!(tree.len(), model.len());
    assert_eq!(tree.check().keys, model.len());
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(192))]
    #[test]
    fn behaves_like_a_sorted_map(ops in prop::collection::vec(op(), 0..600)) {
        let (mut tree, mut model) = (Tree::new(), Model::new());
        for (i, op) in ops.into_iter().enumerate() {
            apply(op, &tree, &mut model);
            if i % 64 == 0 {
                tree.check();
            }
        }
        compare_all(&mut tree, &model);
        let guard = pin();
        for key in model.keys() {
            prop_assert!(tree.remove(key, &guard).is_some());
        }
        let shape = tree.check();
        prop_assert_eq!((shape.keys, shape.layers, shape.borders), (0, 1, 1));
    }

    #[test]
    fn long_keys(
        tails in prop::collection::vec(
            (0usize..3, prop::collection::vec(any::<u8>(), 0..12)),
            1..30,
        )
    ) {
        let lengths = [0, 4096, 65_536 - 12];
        let (mut tree, mut model) = (Tree::new(), Model::new());
        let guard = pin();
        for (i, (length, tail)) in tails.iter().enumerate() {
            let mut key = vec![b'x'; lengths[*length]];
            key.extend(tail);
            tree.put(&key, Arc::new(i as u64), &guard);
            model.insert(key, i as u64);
        }
        compare_all(&mut tree, &model);
        for key in model.keys() {
            prop_assert!(tree.remove(key, &guard).is_some());
        }
        prop_assert_eq!(tree.check().layers, 1);
    }
}

/// Numbers in the slots use all of their bits, so nothing in them may tell values from layers.
#[test]
fn numbers_may_be_anything() {
    let mut tree = Masstree::<u64>::new();
    let guard = pin();
    let value = |i: u64| [0, u64::MAX, 1, i << 48 | 1, i][i as usize % 5];
    for i in 0..20_000u64 {
        assert_eq!(tree.put(format!("a prefix {i}").as_bytes(), value(i), &guard), None);
    }
    for i in 0..20_000u64 {
        let key = format!("a prefix {i}");
        assert_eq!(tree.get(key.as_bytes(), &guard), Some(value(i)));
        let new = Some(i ^ u64::MAX);
        assert!(tree.compare_and_set(key.as_bytes(), &guard, Some(&value(i)), new).is_ok());
    }
    assert_eq!(tree.check().keys, 20_000);
    assert!(tree.iter(&guard).all(|(_, value)| value > u64::MAX - 20_000));
}

/// A whole life of a big tree: several levels of interiors appear, and are emptied in an order that
/// removes first children, last children and whole subtrees.
#[test]
fn grows_and_shrinks() {
    const N: u64 = 60_000;
    let orders: [fn(u64) -> u64; 4] = [
        |i| i,
        |i| N - 1 - i,
        |i| i * 7919 % N,
        |i| if i < N / 2 { i * 2 } else { (i - N / 2) * 2 + 1 },
    ];
    for (insert, remove) in [(0, 0), (0, 1), (1, 0), (2, 2), (2, 3), (0, 3), (3, 2)] {
        let mut tree = Tree::new();
        let guard = pin();
        for i in 0..N {
            tree.put(&orders[insert](i).to_be_bytes(), Arc::new(i), &guard);
        }
        let full = tree.check();
        assert_eq!(full.keys as u64, N);
        assert!(full.interiors > 85, "three levels: {full:?}");
        if insert == 0 {
            assert!(full.borders as u64 <= N / 15 + 1, "ascending inserts fill nodes: {full:?}");
        }
        for i in 0..N {
            assert!(tree.remove(&orders[remove](i).to_be_bytes(), &guard).is_some());
            if i % 9_000 == 0 {
                tree.check();
            }
        }
        let empty = tree.check();
        assert_eq!((empty.keys, empty.borders), (0, 1));
        assert!(empty.interiors <= 8, "{empty:?}");
    }
}

#[test]
fn ranges_that_are_put_in_order_side_by_side_fill_nodes() {
    const N: u64 = 20_000;
    let mut tree = Tree::new();
    let guard = pin();
    for i in 0..N {
        for range in 0..4 {
            tree.put(&(range * N + i).to_be_bytes(), Arc::new(i), &guard);
        }
    }
    drop(guard);
    let shape = tree.check();
    assert_eq!(shape.keys as u64, 4 * N);
    assert!(shape.borders as u64 <= 4 * N / 15 + 20, "{shape:?}");
}

#[test]
fn longest_keys_share_all_but_the_last_byte() {
    let mut tree = Tree::new();
    let guard = pin();
    let mut key = vec![7; masstree::MAX_KEY_LEN];
    for last in 0..40 {
        *key.last_mut().unwrap() = last;
        assert!(tree.put(&key, Arc::new(u64::from(last)), &guard).is_none());
    }
    assert_eq!(tree.check().layers, masstree::MAX_KEY_LEN / 8);
    let seen = scanned(&tree, Bound::Unbounded, usize::MAX, true, &guard);
    assert_eq!(seen.iter().map(|(_, v)| *v).collect::<Vec<_>>(), (0..40).rev().collect::<Vec<_>>());
    for last in 0..40 {
        *key.last_mut().unwrap() = last;
        assert_eq!(*tree.remove(&key, &guard).unwrap(), u64::from(last));
    }
    assert_eq!(tree.check().layers, 1);
}

#[test]
#[should_panic(expected = "at most 65536 bytes")]
fn longer_keys_are_refused() {
    Tree::new().put(&vec![0; masstree::MAX_KEY_LEN + 1], Arc::new(0), &pin());
}

#[test]
fn longer_keys_are_merely_absent() {
    let tree = Tree::new();
    let guard = pin();
    tree.put(&vec![0; masstree::MAX_KEY_LEN], Arc::new(0), &guard);
    let longer = vec![0; masstree::MAX_KEY_LEN + 1];
    assert!(tree.get(&longer, &guard).is_none());
    assert!(tree.remove(&longer, &guard).is_none());
    assert!(scanned(&tree, Bound::Included(&longer), 9, false, &guard).is_empty());
    assert_eq!(scanned(&tree, Bound::Included(&longer), 9, true, &guard).len(), 1);
}

/// A visitor may change the tree that it is visiting.
#[test]
fn scans_allow_changes_by_their_visitor() {
    let mut tree = Tree::new();
    let guard = pin();
    for i in 0..1000u64 {
        tree.put(format!("some shared prefix {i:05}").as_bytes(), Arc::new(i), &guard);
    }
    let mut seen = 0;
    tree.scan(Bound::Unbounded, &guard, |key, value| {
        assert_eq!(**value, seen);
        seen += 1;
        tree.remove(key, &guard).is_some()
    });
    assert_eq!(seen, 1000);
    assert_eq!(tree.check().layers, 1);
}

#[test]
fn prefixes_are_ranges() {
    const BYTES: [u8; 3] = [0, 0xFE, 0xFF];
    let mut keys = vec![Vec::new()];
    for len in 0..3 {
        let longer: Vec<_> =
            keys.iter().filter(|key: &&Vec<u8>| key.len() == len).cloned().collect();
        keys.extend(longer.iter().flat_map(|key| BYTES.map(|byte| [&key[..], &[byte]].concat())));
    }
    keys.sort();
    assert_eq!(keys.len(), 1 + 3 + 9 + 27);
    let tree = Masstree::<u64>::new();
    let guard = pin();
    for (i, key) in keys.iter().enumerate().filter(|(i, _)| i % 3 > 0) {
        assert!(!tree.contains_key(key, &guard));
        tree.put(key, i as u64, &guard);
        assert!(tree.contains_key(key, &guard));
    }
    for prefix in &keys {
        let numbers =
            keys.iter().enumerate().filter(|(i, key)| i % 3 > 0 && key.starts_with(prefix));
        let wanted: Vec<u64> = numbers.map(|(i, _)| i as u64).collect();
        let seen: Vec<u64> = tree.prefix(prefix, &guard).map(|(_, n)| n).collect();
        assert_eq!(seen, wanted);
        let mut seen: Vec<u64> = tree.prefix(prefix, &guard).rev().map(|(_, n)| n).collect();
        seen.reverse();
        assert_eq!(seen, wanted);
    }
}
