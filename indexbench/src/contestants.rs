//! The maps that are compared, each behind the same few operations.

use std::{
    collections::BTreeMap,
    ops::Bound::{Included, Unbounded},
};

use masstree::{Guard, Masstree, pin};
use parking_lot::RwLock;

/// A map from byte strings to numbers.
pub trait Index: Sync {
    /// What one thread uses.
    type Session<'a>: Session
    where
        Self: 'a;

    /// An empty map.
    fn new() -> Self;

    /// What one thread uses for many operations in a row: a pin, where there is such a thing.
    fn session(&self) -> Self::Session<'_>;
}

/// One thread's access.
pub trait Session {
    /// Makes `value` the key's value.
    fn put(&self, key: &[u8], value: u64);
    /// The key's value.
    fn get(&self, key: &[u8]) -> Option<u64>;
    /// Visits up to `n` keys from `start` on and returns how many there were.
    fn scan(&self, start: &[u8], n: usize) -> usize;

    /// Whether the key was there. `None` where the map has no such operation.
    fn remove(&self, _key: &[u8]) -> Option<bool> {
        None
    }

    /// Visits up to `n` keys from `start` downwards. `None` as above.
    fn scan_reverse(&self, _start: &[u8], _n: usize) -> Option<usize> {
        None
    }

    /// Looks all keys up and returns how many there are. `None` as above.
    fn multi_get(&self, _keys: &[&[u8]]) -> Option<usize> {
        None
    }

    /// Called every few hundred operations.
    fn renew(&mut self) {}
}

/// The tree of this workspace, with values in the slots.
pub struct Ours(Masstree<u64>);

/// A pinned thread's access.
pub struct OursSession<'a>(&'a Masstree<u64>, Guard);

impl Index for Ours {
    type Session<'a> = OursSession<'a>;

    fn new() -> Self {
        Ours(Masstree::new())
    }

    fn session(&self) -> OursSession<'_> {
        OursSession(&self.0, pin())
    }
}

impl Session for OursSession<'_> {
    fn put(&self, key: &[u8], value: u64) {
        self.0.put(key, value, &self.1);
    }

    fn get(&self, key: &[u8]) -> Option<u64> {
        self.0.get(key, &self.1)
    }

    fn remove(&self, key: &[u8]) -> Option<bool> {
        Some(self.0.remove(key, &self.1).is_some())
    }

    fn scan(&self, start: &[u8], n: usize) -> usize {
        let mut seen = 0;
        self.0.scan(Included(start), &self.1, |key, value| {
            std::hint::black_box((key, value));
            seen += 1;
            seen < n
        });
        seen
    }

    fn scan_reverse(&self, start: &[u8], n: usize) -> Option<usize> {
        let mut seen = 0;
        self.0.scan_reverse(Included(start), &self.1, |key, value| {
            std::hint::black_box((key, value));
            seen += 1;
            seen < n
        });
        Some(seen)
    }

    fn multi_get(&self, keys: &[&[u8]]) -> Option<usize> {
        Some(self.0.multi_get(keys, &self.1).into_iter().flatten().count())
    }

    fn renew(&mut self) {
        self.1.repin();
    }
}

/// The standard library's map under one lock.
pub struct Locked(RwLock<BTreeMap<Box<[u8]>, u64>>);

impl Index for Locked {
    type Session<'a> = &'a Locked;

    fn new() -> Self {
        Locked(RwLock::new(BTreeMap::new()))
    }

    fn session(&self) -> &Locked {
        self
    }
}

impl Session for &Locked {
    fn put(&self, key: &[u8], value: u64) {
        let mut map = self.0.write();
        match map.get_mut(key) {
            Some(old) => *old = value,
            None => drop(map.insert(key.into(), value)),
        }
    }

    fn get(&self, key: &[u8]) -> Option<u64> {
        self.0.read().get(key).copied()
    }

    fn remove(&self, key: &[u8]) -> Option<bool> {
        Some(self.0.write().remove(key).is_some())
    }

    fn scan(&self, start: &[u8], n: usize) -> usize {
        let map = self.0.read();
        let range = map.range::<[u8], _>((Included(start), Unbounded));
        range.take(n).map(std::hint::black_box).count()
    }

    fn scan_reverse(&self, start: &[u8], n: usize) -> Option<usize> {
        let map = self.0.read();
        let range = map.range::<[u8], _>((Unbounded, Included(start)));
        Some(range.rev().take(n).map(std::hint::black_box).count())
    }
}

/// crossbeam-skiplist.
pub struct Skiplist(crossbeam_skiplist::SkipMap<Box<[u8]>, u64>);

impl Index for Skiplist {
    type Session<'a> = &'a Skiplist;

    fn new() -> Self {
        Skiplist(crossbeam_skiplist::SkipMap::new())
    }

    fn session(&self) -> &Skiplist {
        self
    }
}

impl Session for &Skiplist {
    fn put(&self, key: &[u8], value: u64) {
        self.0.insert(key.into(), value);
    }

    fn get(&self, key: &[u8]) -> Option<u64> {
        self.0.get(key).map(|entry| *entry.value())
    }

    fn remove(&self, key: &[u8]) -> Option<bool> {
        Some(self.0.remove(key).is_some())
    }

    fn scan(&self, start: &[u8], n: usize) -> usize {
        let range = self.0.range::<[u8], _>((Included(start), Unbounded));
        range.take(n).map(|entry| *entry.value()).map(std::hint::black_box).count()
    }

    fn scan_reverse(&self, start: &[u8], n: usize) -> Option<usize> {
        let range = self.0.range::<[u8], _>((Unbounded, Included(start)));
        Some(range.rev().take(n).map(|entry| *entry.value()).map(std::hint::black_box).count())
    }
}

/// scc's TreeIndex.
pub struct Scc(scc::TreeIndex<Box<[u8]>, u64>);

/// A guarded thread's access.
pub struct SccSession<'a>(&'a Scc, scc::Guard);

impl Index for Scc {
    type Session<'a> = SccSession<'a>;

    fn new() -> Self {
        Scc(scc::TreeIndex::new())
    }

    fn session(&self) -> SccSession<'_> {
        SccSession(self, scc::Guard::new())
    }
}

impl Session for SccSession<'_> {
    fn put(&self, key: &[u8], value: u64) {
        self.0.0.upsert_sync(key.into(), value);
    }

    fn get(&self, key: &[u8]) -> Option<u64> {
        self.0.0.peek(key, &self.1).copied()
    }

    fn remove(&self, key: &[u8]) -> Option<bool> {
        Some(self.0.0.remove_sync(key))
    }

    fn scan(&self, start: &[u8], n: usize) -> usize {
        let start: Box<[u8]> = start.into();
        self.0.0.range(start.., &self.1).take(n).map(std::hint::black_box).count()
    }

    fn scan_reverse(&self, start: &[u8], n: usize) -> Option<usize> {
        let start: Box<[u8]> = start.into();
        Some(self.0.0.range(..=start, &self.1).rev().take(n).map(std::hint::black_box).count())
    }

    fn renew(&mut self) {
        self.1 = scc::Guard::new();
    }
}

/// congee, for keys of eight bytes.
pub struct Congee(congee::U64Congee<usize>);

/// A pinned thread's access.
pub struct CongeeSession<'a>(&'a Congee, crossbeam_epoch::Guard);

fn number(key: &[u8]) -> u64 {
    u64::from_be_bytes(key.try_into().expect("congee's keys have eight bytes"))
}

impl Index for Congee {
    type Session<'a> = CongeeSession<'a>;

    fn new() -> Self {
        Congee(congee::U64Congee::new())
    }

    fn session(&self) -> CongeeSession<'_> {
        CongeeSession(self, crossbeam_epoch::pin())
    }
}

impl Session for CongeeSession<'_> {
    fn put(&self, key: &[u8], value: u64) {
        self.0.0.insert(number(key), value as usize, &self.1).expect("there is memory");
    }

    fn get(&self, key: &[u8]) -> Option<u64> {
        self.0.0.get(number(key), &self.1).map(|value| value as u64)
    }

    fn remove(&self, key: &[u8]) -> Option<bool> {
        Some(self.0.0.remove(number(key), &self.1).is_some())
    }

    fn scan(&self, start: &[u8], n: usize) -> usize {
        let mut found = [([0; 8], 0); 100];
        self.0.0.range(number(start), u64::MAX, &mut found[..n], &self.1)
    }

    fn renew(&mut self) {
        self.1.repin();
    }
}
