//! Nothing is lost: every byte that a tree allocates is freed again, values and nodes alike.
//!
//! One test in its own process, since it counts all of the process's memory.

use std::{
    alloc::{GlobalAlloc, Layout, System},
    sync::{
        Arc,
        atomic::{AtomicIsize, Ordering::Relaxed},
    },
    thread,
};

use masstree::{Masstree, live_nodes, pin};

struct Counting;

static LIVE_BYTES: AtomicIsize = AtomicIsize::new(0);
static LIVE_VALUES: AtomicIsize = AtomicIsize::new(0);

// SAFETY: hands everything on to the system's allocator, unchanged.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        LIVE_BYTES.fetch_add(layout.size() as isize, Relaxed);
        // SAFETY: the caller keeps the contract of `alloc`.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        LIVE_BYTES.fetch_sub(layout.size() as isize, Relaxed);
        // SAFETY: the caller keeps the contract of `dealloc`.
        unsafe { System.dealloc(block, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

struct Value;

impl Value {
    fn counted() -> Arc<Value> {
        LIVE_VALUES.fetch_add(1, Relaxed);
        Arc::new(Value)
    }
}

impl Drop for Value {
    fn drop(&mut self) {
        LIVE_VALUES.fetch_sub(1, Relaxed);
    }
}

type Tree = Masstree<Arc<Value>>;

/// Puts and removes keys in all their forms, from two threads that get in each other's way.
fn churn(tree: &Tree, round: u64) {
    thread::scope(|scope| {
        let threads = [0, 1].map(|thread| {
            scope.spawn(move || {
                for i in 0..30_000u64 {
                    let guard = pin();
                    let n = (i * 7919 + thread * 13 + round) % 3000;
                    let key = match n % 3 {
                        0 => n.to_be_bytes().to_vec(),
                        1 => {
                            format!("{}/{n}", "a long shared prefix".repeat(n as usize % 4)).into()
                        }
                        _ => vec![n as u8; n as usize % 50],
                    };
                    match i % 5 {
                        0 | 1 => drop(tree.put(&key, Value::counted(), &guard)),
                        2 => drop(tree.insert_if_absent(&key, Value::counted(), &guard)),
                        3 => {
                            let current = tree.get(&key, &guard);
                            let new = n.is_multiple_of(2).then(Value::counted);
                            drop(tree.compare_and_set(&key, &guard, current.as_ref(), new));
                        }
                        _ => drop(tree.remove(&key, &guard)),
                    }
                }
            })
        });
        // Joined one by one, since a scope's end does not wait for the collector's own clean-up
        // when a thread ends.
        threads.into_iter().for_each(|thread| thread.join().unwrap());
    });
}

/// Lets everything retired be freed: the collector needs some rounds of pinning for that.
fn settle() {
    for _ in 0..5000 {
        pin().flush();
    }
}

/// Replaces one value again and again, many times a pin: what waits to be freed stays bounded
/// while the changes go on.
fn busy_pins_are_kept_up_with() {
    let tree = Tree::new();
    for round in 0..300 {
        let guard = pin();
        for _ in 0..1000 {
            drop(tree.put(b"key", Value::counted(), &guard));
        }
        let waiting = LIVE_VALUES.load(Relaxed);
        assert!(waiting < 20_000, "{waiting} values wait after {round} rounds");
    }
    drop(tree);
    settle();
    assert_eq!(LIVE_VALUES.load(Relaxed), 0);
}

#[test]
fn everything_is_freed() {
    busy_pins_are_kept_up_with();
    let mut after_first_rounds = 0;
    for round in 0..12 {
        let mut tree = Tree::new();
        let empty = tree.check();
        churn(&tree, round);
        let full = tree.check();
        assert_eq!(full.keys, tree.len());
        assert!(full.borders > 50 && full.layers > 5, "{full:?}");
        settle();
        assert_eq!(LIVE_VALUES.load(Relaxed), full.keys as isize, "replaced values are dropped");

        if round % 2 == 0 {
            let mut keys = Vec::new();
            tree.scan(std::ops::Bound::Unbounded, &pin(), |key, _| {
                keys.push(key.to_vec());
                true
            });
            keys.into_iter().for_each(|key| drop(tree.remove(&key, &pin())));
            assert_eq!(tree.check().borders, empty.borders);
            settle();
            assert_eq!(LIVE_VALUES.load(Relaxed), 0, "removed values are dropped");
        }
        drop(tree);
        settle();
        assert_eq!(LIVE_VALUES.load(Relaxed), 0, "the tree drops its values");
        assert_eq!(live_nodes(), 0, "the tree gives its nodes back");
        // The collector itself keeps some memory, but no more after more rounds.
        if round == 3 {
            after_first_rounds = LIVE_BYTES.load(Relaxed);
        }
    }
    let growth = LIVE_BYTES.load(Relaxed) - after_first_rounds;
    assert!(growth < 4096, "{growth} bytes were lost in eight rounds");
}
