//! The tree against the standard library's map.
#![no_main]

use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::Arc;

use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    let mut tree = masstree::Masstree::<Arc<usize>>::new();
    let numbers = masstree::Masstree::<u64>::new();
    let columns = masstree::Masstree::<masstree::Columns>::new();
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
            numbers.remove(key, &guard);
            columns.remove(key, &guard);
        } else {
            let before = tree.put(key, Arc::new(step), &guard).map(|value| *value);
            assert_eq!(before, model.insert(key.to_vec(), step));
            let seen = numbers.update(key, &guard, |_| Some(step as u64));
            assert_eq!(seen.map(|n| n as usize), before);
            let put = columns.put_columns(key, &[(step % 3, key)], &guard);
            assert_eq!(put.column(step % 3), key);
        }
        let found = tree.multi_get(&[key, &key[..key.len() / 2]], &guard);
        assert_eq!(found[0].as_deref(), model.get(key));
        assert_eq!(found[1].as_deref(), model.get(&key[..key.len() / 2]));
        if what % 7 == 0 {
            let after = tree.range::<[u8]>((Bound::Excluded(key), Bound::Unbounded), &guard).next();
            let wanted = model.range::<[u8], _>((Bound::Excluded(key), Bound::Unbounded)).next();
            assert_eq!(after.as_ref().map(|(k, v)| (k, &**v)), wanted);
        }
    }
    assert_eq!(columns.len(), model.len());
    let mut found = Vec::new();
    tree.scan(Bound::Unbounded, &guard, |key, value| {
        found.push((key.to_vec(), **value));
        true
    });
    assert!(found.iter().map(|(k, v)| (k, v)).eq(model.iter()));
    assert!(numbers.iter(&guard).rev().map(|(k, v)| (k, v as usize)).eq(model.into_iter().rev()));
    assert_eq!(tree.check().keys, columns.len());
});
