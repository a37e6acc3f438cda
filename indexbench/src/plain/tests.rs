//! The plain tree against the standard library's map, and under concurrent writers.

use std::{
    collections::BTreeMap,
    sync::atomic::{AtomicBool, Ordering},
    thread,
};

use super::*;
use crate::keys::{Form, scatter};

/// Keys of all lengths, many with a prefix in common.
fn key(number: u64) -> Vec<u8> {
    let random = scatter(number % 3000);
    let mut key = b"a prefix that is long".repeat(2);
    key.truncate((random % 41) as usize);
    key.extend(&random.to_be_bytes()[..(random >> 20) as usize % 9]);
    key
}

fn agrees_with_the_standard_map<D: Design>(key: impl Fn(u64) -> Vec<u8>) {
    let tree = Plain::<D>::new();
    let mut model = BTreeMap::new();
    for number in 0..8000 {
        let key = key(number);
        assert_eq!(tree.get(&key), model.get(&key).copied());
        tree.put(&key, number);
        model.insert(key.clone(), number);
        assert_eq!(tree.get(&key), Some(number));
    }
    for number in (0..3000).step_by(100) {
        let (start, mut seen) = (key(number), Vec::new());
        let count = tree.scan(&start, 100, |key, value| seen.push((key.to_vec(), value)));
        let wanted: Vec<_> = model.range(start..).take(100).map(|(k, v)| (k.clone(), *v)).collect();
        assert_eq!((count, seen), (wanted.len(), wanted));
    }
}

#[test]
fn all_designs_agree_with_the_standard_map() {
    agrees_with_the_standard_map::<Bytes>(key);
    agrees_with_the_standard_map::<Integers>(key);
    agrees_with_the_standard_map::<Prefetched>(key);
    agrees_with_the_standard_map::<Permuted>(key);
    agrees_with_the_standard_map::<Fixed>(|number| scatter(number % 3000).to_be_bytes().to_vec());
    let ascending = |number: u64| Form::Sequential.key(number).as_ref().to_vec();
    agrees_with_the_standard_map::<Permuted>(ascending);
    agrees_with_the_standard_map::<Bytes>(ascending);
}

const WRITERS: u64 = 3;
const KEYS: u64 = 30_000;

/// Each writer puts its own keys; what it has put stays, for it and for everybody else.
fn keeps_every_key<D: Design>(form: Form) {
    let tree = Plain::<D>::new();
    for number in (0..KEYS).step_by(5) {
        tree.put(form.key(number).as_ref(), number);
    }
    let writing = AtomicBool::new(true);
    let key = |number| form.key(number);
    thread::scope(|scope| {
        let (tree, writing) = (&tree, &writing);
        let reader = scope.spawn(move || {
            let mut rounds = 0;
            while writing.load(Ordering::Relaxed) || rounds == 0 {
                for number in (0..KEYS).step_by(35) {
                    assert_eq!(tree.get(key(number).as_ref()), Some(number));
                }
                let (mut last, mut permanent) = (Vec::new(), 0);
                tree.scan(b"", usize::MAX, |key, number| {
                    assert!(last.is_empty() || &last[..] < key, "keys ascend");
                    last = key.to_vec();
                    permanent += u64::from(number % 5 == 0);
                });
                assert_eq!(permanent, KEYS / 5);
                rounds += 1;
            }
        });
        let writers = [0, 1, 2].map(|writer| {
            scope.spawn(move || {
                for number in (0..KEYS).filter(|n| n % 5 != 0 && n % WRITERS == writer) {
                    tree.put(key(number).as_ref(), number);
                    assert_eq!(tree.get(key(number).as_ref()), Some(number));
                }
            })
        });
        for writer in writers {
            writer.join().expect("no writer panics");
        }
        writing.store(false, Ordering::Relaxed);
        reader.join().expect("the reader does not panic");
    });
    for number in 0..KEYS {
        assert_eq!(tree.get(key(number).as_ref()), Some(number));
    }
}

#[test]
fn concurrent_writers_lose_nothing() {
    for form in [Form::Binary, Form::Sequential, Form::Prefixed(40)] {
        keeps_every_key::<Bytes>(form);
        keeps_every_key::<Permuted>(form);
    }
    keeps_every_key::<Prefetched>(Form::Prefixed(24));
    keeps_every_key::<Fixed>(Form::Binary);
}
