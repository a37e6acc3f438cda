//! Threads that read, write and scan one tree at once, each checking all that it can know.

use std::{
    collections::HashMap,
    ops::Bound,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use masstree::{Masstree, pin};

/// A value says which key it belongs to, and never goes back.
struct Record {
    id: u64,
    version: u64,
}

type Tree = Masstree<Arc<Record>>;

/// How the keys of a run look: the same ids, spread over slices and layers in different ways.
#[derive(Clone, Copy)]
struct Keys {
    name: &'static str,
    key: fn(u64) -> Vec<u8>,
    /// Ids below this are in play. Few ids make nodes and layers come and go all the time.
    ids: u64,
}

const WRITERS: u64 = 3;

/// What an id is for.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Role {
    /// Always present.
    Permanent,
    /// Put and removed by one thread only, which knows what must be there.
    Owned(u64),
    /// Incremented, and sometimes removed, by everyone.
    Contended,
}

fn role(id: u64) -> Role {
    match id.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 59 {
        0 => Role::Contended,
        1 => Role::Permanent,
        n => Role::Owned(n % WRITERS),
    }
}

const KEYS: [Keys; 5] = [
    Keys { name: "one slice", key: |id| id.to_be_bytes().to_vec(), ids: 60_000 },
    Keys { name: "few", key: |id| vec![id as u8 / 4; id as usize % 30], ids: 256 },
    Keys {
        name: "layers that come and go",
        key: |id| {
            let mut key = b"a prefix".repeat(1 + id as usize % 3);
            key.extend((id / 3 % 40).to_be_bytes());
            key.extend(id.to_string().as_bytes());
            key
        },
        ids: 600,
    },
    Keys {
        name: "suffixes",
        key: |id| format!("{:04}/{}", id % 700, "x".repeat(id as usize / 700 * 5)).into_bytes(),
        ids: 7_000,
    },
    Keys {
        name: "all lengths of zeros",
        key: |id| {
            let mut key = vec![0; id as usize / 4 % 50];
            key.extend((id / 200 + 1).to_be_bytes().iter().skip_while(|b| **b == 0));
            key.push(id as u8 % 4);
            key
        },
        ids: 2_000,
    },
];

struct Run {
    tree: Tree,
    keys: Keys,
    ids: HashMap<Vec<u8>, u64>,
    permanent: Vec<Vec<u8>>,
    stop: AtomicBool,
    /// Increments that succeeded, less those that removals took away.
    increments: AtomicU64,
    /// The highest version ever put, per id: none seen may be higher.
    issued: Vec<AtomicU64>,
}

/// A small generator, so that a run needs no crate and each thread its own seed.
struct Random(u64);

impl Random {
    fn below(&mut self, n: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) % n
    }
}

impl Run {
    fn new(keys: Keys) -> Self {
        let ids: HashMap<_, _> = (0..keys.ids).map(|id| ((keys.key)(id), id)).collect();
        let mut permanent: Vec<_> = ids
            .iter()
            .filter(|(_, id)| role(**id) == Role::Permanent)
            .map(|(k, _)| k.clone())
            .collect();
        permanent.sort();
        assert!(permanent.len() > 3, "{}", keys.name);
        let run = Run {
            tree: Tree::new(),
            keys,
            ids,
            permanent,
            stop: AtomicBool::new(false),
            increments: AtomicU64::new(0),
            issued: (0..keys.ids).map(|_| AtomicU64::new(0)).collect(),
        };
        for key in &run.permanent {
            run.tree.put(key, run.record(run.ids[key], 0), &pin());
        }
        run
    }

    fn record(&self, id: u64, version: u64) -> Arc<Record> {
        self.issued[id as usize].fetch_max(version, Ordering::Relaxed);
        Arc::new(Record { id, version })
    }

    fn running(&self) -> bool {
        !self.stop.load(Ordering::Relaxed)
    }

    /// Changes keys of its own, whose state it knows, and contended ones.
    fn write(&self, writer: u64) {
        let mine = |id: &u64| role(*id) == Role::Owned(writer);
        let ids: Vec<_> = self.ids.values().copied().filter(mine).collect();
        let shared: Vec<_> =
            self.ids.values().copied().filter(|id| role(*id) == Role::Contended).collect();
        let mut model: HashMap<u64, u64> = HashMap::new();
        let mut random = Random(0x1234_5678_9ABC_DEF1 ^ (writer << 32));
        let mut version = 0;
        let mut filling = true;
        while self.running() {
            // Waves, so that borders and layers become full as well as empty.
            if random.below(ids.len() as u64 * 2) == 0 {
                filling = !filling;
            }
            version += 1;
            let id = ids[random.below(ids.len() as u64) as usize];
            if random.below(10) < if filling { 7 } else { 2 } {
                self.put_owned(id, version, &mut model);
            } else {
                self.remove_owned(id, &mut model);
            }
            if random.below(4) == 0 {
                self.contend(shared[random.below(shared.len() as u64) as usize], &mut random);
            }
        }
        for id in ids {
            self.remove_owned(id, &mut model);
        }
    }

    fn put_owned(&self, id: u64, version: u64, model: &mut HashMap<u64, u64>) {
        let (guard, key) = (pin(), (self.keys.key)(id));
        let old = self.tree.put(&key, self.record(id, version), &guard);
        assert_eq!(old.map(|r| (r.id, r.version)), model.insert(id, version).map(|v| (id, v)));
        let now = self.tree.get_with(&key, &guard, |r| (r.id, r.version));
        assert_eq!(now, Some((id, version)), "a put is lost");
    }

    fn remove_owned(&self, id: u64, model: &mut HashMap<u64, u64>) {
        let (guard, key) = (pin(), (self.keys.key)(id));
        let found = self.tree.get_with(&key, &guard, |r| (r.id, r.version));
        assert_eq!(found, model.get(&id).map(|v| (id, *v)));
        let old = self.tree.remove(&key, &guard);
        assert_eq!(old.map(|r| (r.id, r.version)), model.remove(&id).map(|v| (id, v)));
        assert!(self.tree.get(&key, &guard).is_none(), "a removed key is back");
    }

    /// Increments a counter by compare-and-set, or takes its whole amount away by removing it.
    fn contend(&self, id: u64, random: &mut Random) {
        let (guard, key) = (pin(), (self.keys.key)(id));
        if random.below(8) == 0 {
            if let Some(old) = self.tree.remove(&key, &guard) {
                assert_eq!(old.id, id);
                self.increments.fetch_sub(old.version, Ordering::Relaxed);
            }
            return;
        }
        let mut current = self.tree.get(&key, &guard);
        loop {
            let version = current.as_ref().map_or(0, |r| r.version) + 1;
            let new = Some(self.record(id, version));
            match self.tree.compare_and_set(&key, &guard, current.as_ref(), new) {
                Ok(_) => break,
                Err(now) => current = now,
            }
        }
        self.increments.fetch_add(1, Ordering::Relaxed);
    }

    /// Looks keys up: permanent ones are there, others are plausible.
    fn read(&self) {
        let mut random = Random(42);
        while self.running() {
            let guard = pin();
            for _ in 0..64 {
                let id = random.below(self.keys.ids);
                let key = (self.keys.key)(id);
                // Ids of which several have the same key go by the one that the map kept.
                let id = self.ids[&key];
                match self.tree.get_with(&key, &guard, |r| (r.id, r.version)) {
                    Some((found, version)) => self.assert_plausible(id, found, version),
                    None => assert!(role(id) != Role::Permanent, "a permanent key is missing"),
                }
            }
            let keys: Vec<_> =
                (0..40).map(|_| (self.keys.key)(random.below(self.keys.ids))).collect();
            self.tree.multi_get_with(&keys, &guard, |i, value| {
                let id = self.ids[&keys[i]];
                match value {
                    Some(found) => self.assert_plausible(id, found.id, found.version),
                    None => assert!(role(id) != Role::Permanent, "a permanent key is missing"),
                }
            });
        }
    }

    fn assert_plausible(&self, id: u64, found: u64, version: u64) {
        assert_eq!(id, found, "a value under the wrong key");
        assert!(version <= self.issued[id as usize].load(Ordering::Relaxed), "a phantom");
    }

    /// Scans everything, or from a random key on, and compares with the permanent keys.
    fn scan(&self, reverse: bool) {
        let mut random = Random(7 + u64::from(reverse));
        let mut whole = true;
        while self.running() {
            let from = (self.keys.key)(random.below(self.keys.ids));
            let (start, all) = if whole {
                (Bound::Unbounded, (Bound::Unbounded, Bound::Unbounded))
            } else if reverse {
                (Bound::Excluded(&from[..]), (Bound::Unbounded, Bound::Excluded(&from)))
            } else {
                (Bound::Included(&from[..]), (Bound::Included(&from), Bound::Unbounded))
            };
            whole = !whole;
            let in_range = |key: &Vec<u8>| std::ops::RangeBounds::contains(&all, &key);
            let mut expected: Vec<&[u8]> =
                self.permanent.iter().filter(|key| in_range(key)).map(Vec::as_slice).collect();
            if reverse {
                expected.reverse();
            }
            self.scan_once(start, reverse, &expected);
        }
    }

    fn scan_once(&self, start: Bound<&[u8]>, reverse: bool, expected: &[&[u8]]) {
        let mut last: Option<Vec<u8>> = None;
        let mut left = expected.iter();
        let visit = |key: &[u8], record: &Arc<Record>| {
            if let Some(last) = &last {
                assert!(if reverse { key < last } else { key > last }, "out of order or twice");
            }
            let id = *self.ids.get(key).expect("a key that nobody put");
            self.assert_plausible(id, record.id, record.version);
            if role(id) == Role::Permanent {
                assert_eq!(left.next().copied(), Some(key), "a permanent key was passed over");
            }
            last = Some(key.to_vec());
            true
        };
        let guard = pin();
        if reverse {
            self.tree.scan_reverse(start, &guard, visit);
        } else {
            self.tree.scan(start, &guard, visit);
        }
        assert_eq!(left.next(), None, "a permanent key was missed at the end");
    }
}

fn stress(keys: Keys, time: Duration) {
    let run = Run::new(keys);
    let start = Instant::now();
    thread::scope(|scope| {
        for writer in 0..WRITERS {
            let run = &run;
            scope.spawn(move || run.write(writer));
        }
        scope.spawn(|| run.read());
        let scanners = [false, true].map(|reverse| {
            let run = &run;
            scope.spawn(move || run.scan(reverse))
        });
        while start.elapsed() < time && scanners.iter().all(|s| !s.is_finished()) {
            thread::sleep(Duration::from_millis(10));
        }
        run.stop.store(true, Ordering::Relaxed);
    });
    let mut run = run;
    let guard = pin();
    let sum: u64 = run
        .ids
        .values()
        .filter(|id| role(**id) == Role::Contended)
        .filter_map(|id| run.tree.remove(&(keys.key)(*id), &guard).map(|r| r.version))
        .sum();
    assert_eq!(sum, run.increments.into_inner(), "{}: increments were lost", keys.name);
    assert_eq!(run.tree.check().keys, run.permanent.len());
    for key in &run.permanent {
        assert!(run.tree.remove(key, &guard).is_some());
    }
    let shape = run.tree.check();
    assert_eq!((shape.keys, shape.layers, shape.borders), (0, 1, 1));
}

/// How long each run takes. `MASSTREE_STRESS_SECONDS` makes it longer.
fn time() -> Duration {
    let seconds = std::env::var("MASSTREE_STRESS_SECONDS").ok().and_then(|s| s.parse().ok());
    Duration::from_secs_f64(seconds.unwrap_or(2.5))
}

#[test]
fn readers_writers_and_scanners() {
    for keys in KEYS {
        stress(keys, time());
    }
}

/// All threads insert the same keys: exactly one wins each, and nobody's key is lost.
#[test]
fn insert_if_absent_has_one_winner() {
    let keys: Vec<_> = (0..4000u64)
        .map(|i| [&b"shared prefix"[..], &(i * 7 % 4000).to_be_bytes()].concat())
        .collect();
    for _ in 0..10 {
        let mut tree = Tree::new();
        let wins = AtomicU64::new(0);
        thread::scope(|scope| {
            for t in 0..4 {
                let (tree, keys, wins) = (&tree, &keys, &wins);
                scope.spawn(move || {
                    for key in keys {
                        let guard = pin();
                        match tree.insert_if_absent(
                            key,
                            Arc::new(Record { id: t, version: 0 }),
                            &guard,
                        ) {
                            Ok(()) => drop(wins.fetch_add(1, Ordering::Relaxed)),
                            Err(there) => assert!(there.id < 4),
                        }
                        assert!(tree.get(key, &guard).is_some());
                    }
                });
            }
        });
        assert_eq!(wins.into_inner(), keys.len() as u64);
        assert_eq!(tree.check().keys, keys.len());
    }
}
