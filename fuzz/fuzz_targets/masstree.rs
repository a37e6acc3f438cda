//! The tree against the standard library's map.
#![no_main]

use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::Arc;

use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    let tree = masstree::Masstree::<Arc<usize>>::new();
    let mut model = BTreeMap::new();
    let guard = masstree::pin();
    let mut rest = data;
    let mut step = 0;
    while let [what, len, tail @ ..] = rest {
        let (key, tail) = tail.split_at(tail.len().min(*len as usize % 40));
        rest = tail;
        step += 1;
        if what % 3 == 0 {
            let gone = tree.remove(key, &guard).map(|value| *value);
            assert_eq!(gone, model.remove(key));
        } else {
            let before = tree.put(key, Arc::new(step), &guard).map(|value| *value);
            assert_eq!(before, model.insert(key.to_vec(), step));
        }
    }
    let mut found = Vec::new();
    tree.scan(Bound::Unbounded, &guard, |key, value| {
        found.push((key.to_vec(), **value));
        true
    });
    assert!(found.iter().map(|(k, v)| (k, v)).eq(model.iter()));
});
