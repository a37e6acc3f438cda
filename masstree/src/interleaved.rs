//! Races, forced: one operation runs inside another, at a named place of it (hook.rs).

use std::{cell::Cell, collections::BTreeSet, ops::Bound, rc::Rc, sync::Arc, thread};

use crate::{
    Masstree,
    bucket::MOST,
    field::LinkOrValue,
    get::top_layer,
    guard::pin,
    hook::{Point, arm, assert_all_reached},
    permutation::WIDTH,
    tree::layer_top,
};

type Tree = Arc<Masstree<Arc<u64>>>;

fn tree_of<K: AsRef<[u8]>>(keys: impl IntoIterator<Item = K>) -> Tree {
    let tree = Tree::default();
    for key in keys {
        put(&tree, key.as_ref());
    }
    tree
}

/// A key's value follows from the key, so that a value under a wrong key is noticed.
fn value_of(key: &[u8]) -> u64 {
    key.iter().fold(17, |sum, byte| sum * 31 % 1_000_003 + u64::from(*byte))
}

fn put(tree: &Tree, key: &[u8]) {
    tree.put(key, Arc::new(value_of(key)), &pin());
}

fn remove(tree: &Tree, key: &[u8]) {
    assert_eq!(*tree.remove(key, &pin()).expect("the key is there"), value_of(key));
    // At once, to have it happen where the test wants it.
    tree.collapse_emptied(&pin());
}

fn get(tree: &Tree, key: &[u8]) -> Option<u64> {
    tree.get_with(key, &pin(), |value| **value)
}

fn assert_has(tree: &Tree, key: &[u8]) {
    assert_eq!(get(tree, key), Some(value_of(key)), "{}", key.escape_ascii());
}

/// Runs `action` with the tree at the `nth` passage of `point` by this thread.
fn at(point: Point, nth: usize, tree: &Tree, action: impl FnOnce(&Tree) + 'static) {
    let tree = tree.clone();
    arm(point, nth, move || action(&tree));
}

fn scan(tree: &Tree, reverse: bool) -> Vec<Vec<u8>> {
    let mut keys = Vec::new();
    let visit = |key: &[u8], value: &Arc<u64>| {
        assert_eq!(**value, value_of(key));
        keys.push(key.to_vec());
        // A scan that never ends fails rather than hangs.
        assert!(keys.len() < 100_000);
        true
    };
    if reverse {
        tree.scan_reverse(Bound::Unbounded, &pin(), visit);
        keys.reverse();
    } else {
        tree.scan(Bound::Unbounded, &pin(), visit);
    }
    assert!(keys.is_sorted_by(|a, b| a < b), "keys come once and in order");
    keys
}

/// Scans and asserts that the keys which were there all the time were seen.
fn assert_scan_sees<K: AsRef<[u8]>>(
    tree: &Tree,
    reverse: bool,
    keys: impl IntoIterator<Item = K>,
) -> Vec<Vec<u8>> {
    let seen = scan(tree, reverse);
    let set: BTreeSet<&[u8]> = seen.iter().map(Vec::as_slice).collect();
    for key in keys {
        assert!(set.contains(key.as_ref()), "missed {}", key.as_ref().escape_ascii());
    }
    seen
}

/// Ends a test: every armed place was passed, and the tree is sound.
fn finish(tree: Tree) -> crate::Shape {
    assert_all_reached();
    Arc::into_inner(tree).expect("no action is left").check()
}

fn n(i: u64) -> [u8; 8] {
    i.to_be_bytes()
}

/// [Mao] 3.1.6, "Removes": the get must not return the value of the key that took its slot.
#[test]
fn slot_reused_under_a_get() {
    for long in [false, true] {
        let key = move |i: u64| if long { [n(i), *b"a suffix"].concat() } else { n(i).to_vec() };
        let tree = tree_of((0..WIDTH as u64).map(key));
        at(Point::SlotRead, 0, &tree, move |tree| {
            remove(tree, &key(7));
            put(tree, &key(100));
        });
        assert_eq!(get(&tree, &key(7)), None);
        assert_has(&tree, &key(100));

        // The same, with the slot taken before its target is read.
        at(Point::TargetRead, 0, &tree, move |tree| {
            remove(tree, &key(8));
            put(tree, &key(101));
        });
        assert_eq!(get(&tree, &key(8)), None);
        assert_eq!(finish(tree).borders, 1);
    }
}

/// A key that goes to a bucket or a layer, from its slot or from a bucket, keeps its value visible,
/// even when its old suffix goes away. So does one that comes back to the slot.
#[test]
fn buckets_and_layers_made_under_a_get() {
    let long = |last: u8| [&b"one slice + "[..], &[last]].concat();
    for point in [Point::TargetRead, Point::SlotRead] {
        for before in 1..MOST as u8 + 1 {
            for after in 1..MOST as u8 + 2 {
                let tree = tree_of((1..=before).map(long));
                at(point, 0, &tree, move |tree| {
                    (before + 1..=after).for_each(|i| put(tree, &long(i)));
                    (after + 1..=before).for_each(|i| remove(tree, &long(i)));
                    // Makes the suffix block outgrow its size: the old suffix is not copied.
                    put(tree, &[&b"another "[..], &[b'x'; 400]].concat());
                });
                (1..=after).for_each(|i| assert_has(&tree, &long(i)));
                let shape = finish(tree);
                let is_layer = usize::from(after) > MOST;
                assert_eq!(shape.layers, 1 + usize::from(is_layer));
                assert_eq!(shape.buckets, usize::from(after > 1 && !is_layer));
            }
        }
    }
}

/// A get, or a scan, holds a bucket that is replaced.
#[test]
fn bucket_replaced_under_its_readers() {
    let long = |last: u8| [&b"one slice + "[..], &[last]].concat();
    type Action = fn(&Tree, [Vec<u8>; 2]);
    let actions: [Action; 3] = [
        |tree, [own, other]| {
            remove(tree, &other);
            put(tree, &own);
        },
        |tree, [own, other]| {
            remove(tree, &other);
            remove(tree, &own);
            put(tree, &own);
        },
        |tree, _| (10..14).for_each(|i| put(tree, &[&b"one slice + "[..], &[i]].concat())),
    ];
    for action in actions {
        for point in [Point::TargetRead, Point::SlotRead] {
            let tree = tree_of((1..4).map(long));
            at(point, 0, &tree, move |tree| action(tree, [long(2), long(3)]));
            assert_has(&tree, &long(2));
            finish(tree);
        }
        for reverse in [false, true] {
            let tree = tree_of((1..4).map(long));
            at(Point::BatchRead, 0, &tree, move |tree| action(tree, [long(2), long(3)]));
            assert_scan_sees(&tree, reverse, [long(1)]);
            assert_has(&tree, &long(2));
            finish(tree);
        }
    }
}

#[test]
fn border_split_under_a_get() {
    for wanted in 0..WIDTH as u64 {
        let tree = tree_of((0..WIDTH as u64).map(|i| n(i * 10)));
        let point = if wanted % 2 == 0 { Point::BorderFound } else { Point::SlotRead };
        at(point, 0, &tree, |tree| put(tree, &n(71)));
        assert_has(&tree, &n(wanted * 10));
        assert_eq!(finish(tree).borders, 2);
    }
}

/// The range of a removed border goes to its left neighbour, though the interiors still lead to the
/// right one: what is inserted meanwhile must be where later operations look.
#[test]
fn insert_meets_a_stale_separator() {
    let mut met = 0;
    // Around the first key below the second interior of the second level.
    for start in (30_000..33_000).step_by(75) {
        let tree = tree_of((0..40_000).map(|i| n(i * 10)));
        let removed = Rc::new(Cell::new(0));
        let inserted = Rc::new(Cell::new(Vec::new()));
        let (last, keys) = (removed.clone(), inserted.clone());
        at(Point::SeparatorStale, 0, &tree, move |tree| {
            // In the range of the border that was emptied last. Few, since a lock is held.
            keys.set((last.get() - 3..=last.get()).map(|i| n(i * 10 + 1)).collect());
            let new = keys.take();
            new.iter().for_each(|key| put(tree, key));
            keys.set(new);
        });
        for i in start..start + 200 {
            removed.set(i);
            remove(&tree, &n(i * 10));
        }
        for key in inserted.take() {
            met += 1;
            assert_has(&tree, &key);
        }
        crate::hook::disarm();
        finish(tree);
    }
    assert!(met > 0);
}

/// An insert lost when it meets a split whose left half is emptied: the writer has chosen a border
/// that is then split, emptied and removed. It must find the border that took over.
#[test]
fn insert_meets_a_split_whose_left_half_is_emptied() {
    // Ascending inserts: borders [0, 150), [150, 300)...; the second one is the target.
    for wanted in [151, 201, 219, 225, 289] {
        for also_rest in [false, true] {
            let tree = tree_of((0..45).map(|i| n(i * 10)));
            at(Point::BeforeLock, 0, &tree, move |tree| {
                put(tree, &n(222));
                let emptied = if also_rest { 15..30 } else { 15..22 };
                emptied.for_each(|i| remove(tree, &n(i * 10)));
            });
            put(&tree, &n(wanted));
            assert_has(&tree, &n(wanted));
            let seen = scan(&tree, false);
            assert!(seen.contains(&n(wanted).to_vec()));
            assert_eq!(seen, scan(&tree, true));
            assert_eq!(finish(tree).keys, 45 + 2 - if also_rest { 15 } else { 7 });
        }
    }
}

/// The same with threads: while a split holds its locks, others insert into both halves and empty
/// the left one.
#[test]
fn others_wait_for_a_split() {
    let tree = tree_of((0..45).map(|i| n(i * 10)));
    let (sender, threads) = std::sync::mpsc::channel();
    at(Point::SplitLinked, 0, &tree, move |tree| {
        for wanted in [151, 289] {
            let tree = tree.clone();
            sender.send(thread::spawn(move || put(&tree, &n(wanted)))).unwrap();
        }
        let remover = tree.clone();
        let empty = move || (15..22).for_each(|i| remove(&remover, &n(i * 10)));
        sender.send(thread::spawn(empty)).unwrap();
        let reader = tree.clone();
        sender
            .send(thread::spawn(move || (22..45).for_each(|i| assert_has(&reader, &n(i * 10)))))
            .unwrap();
        // Time for them to run into the locks. They may also come later: both are right.
        thread::sleep(std::time::Duration::from_millis(20));
    });
    put(&tree, &n(222));
    for thread in threads {
        thread.join().unwrap();
    }
    for wanted in [151, 222, 289] {
        assert_has(&tree, &n(wanted));
    }
    assert_eq!(finish(tree).keys, 45 + 3 - 7);
}

/// The left neighbour of an empty border splits, or leaves itself, before it is locked.
#[test]
fn left_neighbour_changes_under_an_unlink() {
    let actions: [fn(&Tree); 2] =
        [|tree| put(tree, &n(14 * 10 + 1)), |tree| (15..30).for_each(|i| remove(tree, &n(i * 10)))];
    for (action, first) in actions.into_iter().zip([15, 30]) {
        let tree = tree_of((0..60).map(|i| n(i * 10)));
        at(Point::LeftNeighbourSeen, 0, &tree, action);
        (first..first + 15).for_each(|i| remove(&tree, &n(i * 10)));
        assert_eq!(scan(&tree, false), scan(&tree, true));
        (0..100).for_each(|i| put(&tree, &n(i * 5)));
        finish(tree);
    }
}

/// A border is out of the list, but its parent still leads to it: readers and writers of its range
/// go to the left neighbour, and a removal of all the rest leaves the tidying to the first.
#[test]
fn operations_meet_an_unlinked_border() {
    for in_layer in [false, true] {
        let key = move |i: u64| {
            if in_layer { [*b"a prefix", n(i)].concat() } else { n(i).to_vec() }
        };
        for remove_rest in [false, true] {
            let tree = tree_of((0..1000).map(|i| key(i * 10)));
            at(Point::BorderUnlinked, 0, &tree, move |tree| {
                for i in 300..315 {
                    assert_eq!(get(tree, &key(i * 10)), None);
                    put(tree, &key(i * 10 + 1));
                    assert_has(tree, &key(i * 10 + 1));
                }
                assert_eq!(scan(tree, false), scan(tree, true));
                (300..315).for_each(|i| remove(tree, &key(i * 10 + 1)));
                if remove_rest {
                    (0..300).chain(315..1000).for_each(|i| remove(tree, &key(i * 10)));
                }
            });
            (300..315).for_each(|i| remove(&tree, &key(i * 10)));
            let shape = finish(tree);
            let (keys, layers) = if remove_rest { (0, 1) } else { (985, 1 + in_layer as usize) };
            assert_eq!((shape.keys, shape.layers), (keys, layers));
        }
    }
}

fn deep(i: u64) -> Vec<u8> {
    [&b"one slicetwo more"[..], &n(i)].concat()
}

/// So many that they have layers to themselves.
fn crowd() -> impl Iterator<Item = Vec<u8>> {
    (1..=5).map(deep)
}

fn around() -> [Vec<u8>; 4] {
    [b"a".to_vec(), b"one".to_vec(), b"one slice".to_vec(), b"z after the layers".to_vec()]
}

/// A reverse scan that never ends over an empty layer.
#[test]
fn scans_meet_an_empty_layer() {
    let tree = tree_of(around().into_iter().chain(crowd()));
    (1..5).for_each(|i| remove(&tree, &deep(i)));
    at(Point::BeforeCollapse, 0, &tree, |tree| {
        assert_eq!(get(tree, &deep(5)), None);
        assert_eq!(scan(tree, true), around());
        assert_eq!(scan(tree, false), around());
    });
    remove(&tree, &deep(5));
    assert_eq!(scan(&tree, true), around());
    // "one slice" stays in the layer that it was put into.
    assert_eq!(finish(tree).layers, 2);
}

/// A scan is in a layer that is emptied, collapsed, and perhaps made anew.
#[test]
fn layer_collapses_under_a_scan() {
    for reverse in [false, true] {
        for point in [Point::LayerEntered, Point::BatchRead, Point::BetweenBorders] {
            for nth in 0..5 {
                for again in [false, true] {
                    let tree = tree_of(around().into_iter().chain((0..40).map(deep)));
                    at(point, nth, &tree, move |tree| {
                        (0..40).for_each(|i| remove(tree, &deep(i)));
                        if again {
                            (10..50).for_each(|i| put(tree, &deep(i)));
                        }
                    });
                    // Layers are entered twice only, so a later passage is that of a lookup.
                    assert_scan_sees(&tree, reverse, around());
                    (0..5).for_each(|_| drop(scan(&tree, reverse)));
                    assert_eq!(finish(tree).keys, 4 + if again { 40 } else { 0 });
                }
            }
        }
    }
}

/// The last key of a layer is removed while another is on its way in: neither is lost.
#[test]
fn insert_races_with_the_removal_of_a_layers_last_key() {
    // The insert comes after the layer was emptied and before it is collapsed.
    let tree = tree_of(crowd());
    (1..5).for_each(|i| remove(&tree, &deep(i)));
    at(Point::BeforeCollapse, 0, &tree, |tree| put(tree, &deep(3)));
    remove(&tree, &deep(5));
    assert_has(&tree, &deep(3));
    assert_eq!((get(&tree, &deep(5)), scan(&tree, true)), (None, vec![deep(3)]));
    assert_eq!(finish(tree).layers, 4);

    // The insert has entered, or even chosen its border, when the layer is emptied and collapsed.
    for point in [Point::LayerEntered, Point::BeforeLock] {
        for nth in 0..4 {
            for refill in [false, true] {
                let tree = tree_of(crowd());
                at(point, nth, &tree, move |tree| {
                    crowd().for_each(|key| remove(tree, &key));
                    if refill {
                        (10..15).for_each(|i| put(tree, &deep(i)));
                    }
                });
                put(&tree, &deep(7));
                assert_has(&tree, &deep(7));
                assert_eq!(get(&tree, &deep(1)), None);
                assert_eq!(scan(&tree, false).len(), if refill { 6 } else { 1 });
                assert_eq!(finish(tree).layers, if refill { 4 } else { 1 });
            }
        }
    }
}

/// A reader holds a layer that is collapsed, while its key becomes a plain value above.
#[test]
fn layer_collapses_under_a_get() {
    for nth in 0..2 {
        let tree = tree_of(crowd());
        at(Point::LayerEntered, nth, &tree, |tree| {
            crowd().for_each(|key| remove(tree, &key));
            put(tree, &deep(2));
        });
        assert_has(&tree, &deep(2));
        assert_eq!(finish(tree).layers, 1);
    }
}

/// A writer holds a layer whose slot is then given to another key's layer: it must neither enter
/// that one nor change its slot.
#[test]
fn slot_of_a_layer_is_reused_for_another() {
    let other = |i: u64| [&b"two slicetwo more"[..], &n(i)].concat();
    for nth in 1..4 {
        // Fifteen keys, so that the only free slot is the layer's old one.
        let fill = (0..WIDTH as u64 - 1).map(|i| n(i).to_vec());
        let tree = tree_of(fill.chain(crowd()));
        at(Point::LayerEntered, nth, &tree, move |tree| {
            crowd().for_each(|key| remove(tree, &key));
            (0..40).for_each(|i| put(tree, &other(i)));
        });
        put(&tree, &deep(7));
        assert_has(&tree, &deep(7));
        (0..40).for_each(|i| assert_has(&tree, &other(i)));
        assert_eq!(finish(tree).keys, WIDTH - 1 + 41);
    }
}

/// A writer brings a layer's slot up to date that is given to another key meanwhile.
#[test]
fn slot_of_a_layer_is_reused_before_its_refresh() {
    let fill = (0..WIDTH as u64 - 1).map(|i| n(i).to_vec());
    let tree = tree_of(fill.chain([b"one slice".to_vec(), b"one slice and more".to_vec()]));
    let key = |i: u64| [*b"one slic", n(i)].concat();
    let other = |i: u64| [&b"two sliceyyy"[..], &n(i)].concat();
    // The put whose split makes the new root, and then the one that would refresh the slot.
    at(Point::NewRootFound, 0, &tree, move |tree| {
        let mut doomed = Vec::new();
        tree.scan(Bound::Included(b"one slic"), &pin(), |key, _| {
            doomed.push(key.to_vec());
            true
        });
        doomed.iter().for_each(|key| remove(tree, key));
        (0..5).for_each(|i| put(tree, &other(i)));
    });
    let mut i = 0;
    while get(&tree, &other(1)).is_none() {
        put(&tree, &key(i));
        i += 1;
    }
    assert_has(&tree, &key(i - 1));
    (0..5).for_each(|i| assert_has(&tree, &other(i)));
    assert_eq!(finish(tree).keys, WIDTH - 1 + 6);
}

/// The slots of layers whose roots have split lead to the new roots after one more put.
#[test]
fn entrances_are_brought_up_to_date() {
    let guard = pin();
    let tree = tree_of((0..1000).map(n));
    put(&tree, &n(1000));
    let root = top_layer(tree.root(), &guard);
    assert!(layer_top(root, &guard) == root && !root.get().version.is_border());

    let tree = tree_of((0..1000).map(|i| [*b"a prefix", n(i)].concat()));
    put(&tree, b"a prefix, once more");
    let upper = top_layer(tree.root(), &guard).border().lock();
    let slot = upper.permutation().slot(0);
    let LinkOrValue::Layer(root) = upper.target(slot, &guard) else { panic!("no layer") };
    assert!(layer_top(root, &guard) == root && !root.get().version.is_border());
}

/// A layer's root splits, twice, while an operation holds the old root.
#[test]
fn stale_layer_root() {
    for nth in 0..2 {
        let grow = |tree: &Tree| (100..1000).for_each(|i| put(tree, &deep(i)));
        let tree = tree_of(crowd().chain([deep(900_000)]));
        at(Point::LayerEntered, nth, &tree, grow);
        assert_has(&tree, &deep(900_000));
        at(Point::LayerEntered, nth + 1, &tree, |tree| {
            (1000..4000).for_each(|i| put(tree, &deep(i)));
        });
        put(&tree, &deep(5000));
        let all = (1..6).chain(100..4000).chain([5000, 900_000]);
        all.clone().for_each(|i| assert_has(&tree, &deep(i)));
        for reverse in [false, true] {
            assert_scan_sees(&tree, reverse, all.clone().map(deep));
        }
        // The old root is an entrance as long as it lives, so it may not leave the tree alone.
        all.for_each(|i| remove(&tree, &deep(i)));
        assert_eq!(finish(tree).layers, 1);
    }
}

/// Borders split, vanish and are refilled between and during the steps of a scan.
#[test]
fn borders_change_under_a_scan() {
    let actions: [fn(&Tree); 4] = [
        |tree| (0..450).for_each(|i| put(tree, &n(i * 2 + 1))),
        |tree| (0..450).filter(|i| i % 30 != 0).for_each(|i| remove(tree, &n(i * 2))),
        |tree| (0..450).filter(|i| i / 15 % 3 != 0).for_each(|i| remove(tree, &n(i * 2))),
        |tree| {
            (0..450).filter(|i| i / 15 % 3 != 0).for_each(|i| remove(tree, &n(i * 2)));
            (0..450).for_each(|i| put(tree, &n(i * 2 + 1)));
        },
    ];
    let stays: [fn(&u64) -> bool; 4] =
        [|_| true, |i| i % 30 == 0, |i| i / 15 % 3 == 0, |i| i / 15 % 3 == 0];
    for (action, stays) in actions.into_iter().zip(stays) {
        for reverse in [false, true] {
            for point in [Point::BorderFound, Point::BatchRead, Point::BetweenBorders] {
                for nth in 0..9 {
                    let tree = tree_of((0..450).map(|i| n(i * 2)));
                    at(point, nth, &tree, action);
                    assert_scan_sees(&tree, reverse, (0..450).filter(stays).map(|i| n(i * 2)));
                    finish(tree);
                }
            }
        }
    }
}

/// A key that the scan has copied becomes a bucket or a layer, before or after it is delivered.
#[test]
fn layer_made_under_a_scan() {
    let key = |i: u64, last: u8| [n(i), *b"two more", [last; 8]].concat();
    for (reverse, others) in
        [(false, &[4, 6][..]), (true, &[4, 6]), (false, &[3, 4, 6, 7]), (true, &[3, 4, 6, 7])]
    {
        for point in [Point::BatchRead, Point::BetweenBorders] {
            for nth in 0..3 {
                let tree = tree_of((0..60).map(|i| key(i, 5)));
                at(point, nth, &tree, move |tree| {
                    others.iter().for_each(|last| (0..60).for_each(|i| put(tree, &key(i, *last))));
                });
                let seen = assert_scan_sees(&tree, reverse, (0..60).map(|i| key(i, 5)));
                assert!(seen.len() < 60 * (1 + others.len()), "the scan began before the others");
                let shape = finish(tree);
                let wanted = if others.len() < MOST { (1, 60) } else { (1 + 2 * 60, 0) };
                assert_eq!((shape.layers, shape.buckets), wanted);
            }
        }
    }
}

/// A scan that starts inside a key's suffix, where a layer appears before it looks.
#[test]
fn layer_made_at_the_start_of_a_scan() {
    let key = |last: u8| [&b"one slicetwo more"[..], &[last]].concat();
    for (reverse, before) in [(false, 4..5), (true, 4..5), (false, 1..5), (true, 1..5)] {
        let tree = tree_of([b"a".to_vec(), key(5), b"z".to_vec()]);
        at(Point::BatchRead, 0, &tree, move |tree| before.for_each(|i| put(tree, &key(i))));
        let mut seen = Vec::new();
        let visit = |found: &[u8], _: &Arc<u64>| {
            seen.push(found.to_vec());
            true
        };
        if reverse {
            tree.scan_reverse(Bound::Included(&key(5)), &pin(), visit);
            assert!(seen.contains(&key(5)) && seen.contains(&b"a".to_vec()));
        } else {
            tree.scan(Bound::Included(&key(5)), &pin(), visit);
            assert_eq!(seen, [key(5), b"z".to_vec()]);
        }
        finish(tree);
    }
}
