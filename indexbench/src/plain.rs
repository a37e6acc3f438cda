//! A plain concurrent B+tree, to compare Masstree with: the "B-tree" of [Mao] 3.3.2 and its steps
//! "+IntCmp", "+Prefetch" and "+Permuter", each a [`Design`].
//!
//! Nodes hold the first 16 bytes of each key and a pointer to the rest. Readers take no lock and
//! validate a version; writers lock single nodes. Where the paper's tree validates hand over hand,
//! this one follows links to the right on every level (Lehman and Yao, 1981).
//!
//! Invariant: a node is responsible for the keys from its lower end, which never changes, up to
//! `high`. Splits move keys to the right only, so a search that comes to a node that once was the
//! right one finds its way by links.
//! Invariant: nothing that a node ever led to is freed before the tree is.
//! Deliberately absent: removal, and with it reclamation; merging.

mod arena;
mod node;
mod search;
#[cfg(test)]
mod tests;

use std::{marker::PhantomData, ptr::NonNull, sync::atomic::Ordering};

use crate::contestants::{Index, Session};
use arena::Arena;
pub use node::{Eight, Sixteen};
use node::{Keys, Link, Node, WIDTH, relax};
use search::{Probe, Stored};

/// What distinguishes one variant of the tree from another.
pub trait Design: Send + Sync + 'static {
    /// How keys lie in a node.
    type Keys: Keys;
    /// Keys are compared as integers rather than as bytes.
    const INTEGERS: bool;
    /// All cache lines of a node are fetched before it is used.
    const PREFETCH: bool;
    /// Inserts into leaves move no keys, they change a permutation.
    const PERMUTED: bool;
}

/// The paper's "B-tree".
pub struct Bytes;

impl Design for Bytes {
    type Keys = Sixteen;
    const INTEGERS: bool = false;
    const PREFETCH: bool = false;
    const PERMUTED: bool = false;
}

/// "+IntCmp", which the paper adds to a binary tree.
pub struct Integers;

impl Design for Integers {
    type Keys = Sixteen;
    const INTEGERS: bool = true;
    const PREFETCH: bool = false;
    const PERMUTED: bool = false;
}

/// "+Prefetch".
pub struct Prefetched;

impl Design for Prefetched {
    type Keys = Sixteen;
    const INTEGERS: bool = true;
    const PREFETCH: bool = true;
    const PERMUTED: bool = false;
}

/// "+Permuter".
pub struct Permuted;

impl Design for Permuted {
    type Keys = Sixteen;
    const INTEGERS: bool = true;
    const PREFETCH: bool = true;
    const PERMUTED: bool = true;
}

/// "+Permuter" for keys of eight bytes only ([Mao] 3.3.4).
pub struct Fixed;

impl Design for Fixed {
    type Keys = Eight;
    const INTEGERS: bool = true;
    const PREFETCH: bool = true;
    const PERMUTED: bool = true;
}

/// More levels than a tree can have: of 14 children per node at least half are there.
const MOST_LEVELS: usize = 24;

/// The tree.
pub struct Plain<D: Design> {
    root: Link<D::Keys>,
    arena: Arena,
    design: PhantomData<D>,
}

type Place<K> = NonNull<Node<K>>;

impl<D: Design> Plain<D> {
    fn node(&self, place: Place<D::Keys>) -> &Node<D::Keys> {
        // SAFETY: places come from `alloc` and are used while the tree, and with it the arena,
        // is borrowed; nodes are never borrowed mutably.
        unsafe { place.as_ref() }
    }

    fn alloc(&self, node: Node<D::Keys>) -> Place<D::Keys> {
        let place = self.arena.take(size_of::<Node<D::Keys>>()).cast();
        // SAFETY: the memory is new, of this size, and aligned to a cache line as nodes are.
        unsafe { place.write(node) };
        place
    }

    /// The root, which some thread may be about to put another one above.
    fn top(&self) -> Place<D::Keys> {
        NonNull::new(self.root.load(Ordering::Acquire)).expect("a tree has a root")
    }

    fn fetch(&self, place: Place<D::Keys>) {
        if D::PREFETCH {
            node::prefetch(place);
        }
    }

    /// The node at `level` that is, or recently was, responsible for the key.
    fn descend(&self, level: u8, probe: &Probe<'_>) -> Place<D::Keys> {
        let mut place = self.top();
        loop {
            let node = self.node(place);
            if node.level == level {
                return place;
            }
            assert!(node.level > level, "the root is above the level that is looked for");
            let version = node.stable();
            let next = match node.beyond::<D>(probe) {
                Some(right) => Some(right),
                None => node.child_for::<D>(probe),
            };
            if !node.changed(version) {
                place = next.expect("a node at rest has its children");
                self.fetch(place);
            }
        }
    }

    /// The node at `level` that is responsible for the key, locked.
    fn lock(&self, level: u8, probe: &Probe<'_>) -> Place<D::Keys> {
        let mut place = self.descend(level, probe);
        loop {
            let node = self.node(place);
            node.lock();
            let Some(right) = node.beyond::<D>(probe) else { return place };
            node.unlock();
            place = right;
        }
    }

    fn get(&self, key: &[u8]) -> Option<u64> {
        let probe = Probe::new::<D>(key);
        let mut place = self.descend(0, &probe);
        loop {
            let node = self.node(place);
            let version = node.stable();
            if let Some(right) = node.beyond::<D>(&probe) {
                if !node.changed(version) {
                    place = right;
                    self.fetch(place);
                }
                continue;
            }
            let found = node.find::<D>(&probe).map(|slot| node.value(slot));
            if !node.changed(version) {
                return found;
            }
        }
    }

    fn put(&self, key: &[u8], value: u64) {
        let probe = Probe::new::<D>(key);
        let place = self.lock(0, &probe);
        let leaf = self.node(place);
        match leaf.search::<D>(&probe) {
            Ok((_, slot)) => leaf.set_value(slot, value),
            Err(index) => {
                let stored = self.store(&probe);
                if leaf.len() < WIDTH {
                    leaf.insert_value::<D>(index, stored, value);
                } else {
                    return self.split(place, index, stored, node::number(value));
                }
            }
        }
        leaf.unlock();
    }

    /// A key as nodes hold it.
    fn store(&self, probe: &Probe<'_>) -> Stored {
        Stored { words: probe.words, rest: search::long(probe, |bytes| self.arena.take(bytes)) }
    }

    /// Splits a full locked node, of which it becomes the left half, and inserts a key with what it
    /// leads to, whose place is `index`. Unlocks the node.
    fn split(&self, place: Place<D::Keys>, index: usize, key: Stored, target: *mut ()) {
        let left = self.node(place);
        let mut all = left.entries::<D>();
        all.insert(index, (key, target));
        // A node that is filled in ascending order stays full ([Mao] 3.1.3).
        let ascending = index == WIDTH && left.next().is_none();
        let boundary = if ascending { WIDTH } else { WIDTH / 2 };
        let separator = all[boundary].0;
        let right = Node::new(left.level);
        if left.level == 0 {
            right.fill::<D>(&all[boundary..]);
        } else {
            // The key in the middle goes up, its child is the first of the right half.
            right.set_first(all[boundary].1);
            right.fill::<D>(&all[boundary + 1..]);
        }
        right.set_end(left.high(), left.next());
        let right = self.alloc(right);
        left.mark();
        left.fill::<D>(&all[..boundary]);
        left.set_end(separator, Some(right));
        if self.root.load(Ordering::Acquire) == place.as_ptr() {
            let top = Node::new(left.level + 1);
            top.set_first(place.as_ptr().cast());
            top.fill::<D>(&[(separator, right.as_ptr().cast())]);
            // Only the holder of the root's lock stores here. Release: the new root's contents
            // (partner: the load in `top`).
            self.root.store(self.alloc(top).as_ptr(), Ordering::Release);
            left.unlock();
            return;
        }
        left.unlock();
        self.ascend(left.level + 1, separator, right);
    }

    /// Tells the level above of a new node, which begins at `separator`.
    fn ascend(&self, level: u8, separator: Stored, right: Place<D::Keys>) {
        assert!(usize::from(level) < MOST_LEVELS);
        let mut spins = 0;
        while self.node(self.top()).level < level {
            // Whoever has split the root is about to put a new one above it.
            relax(&mut spins);
        }
        let bytes = separator.bytes::<D>();
        let probe = Probe::new::<D>(&bytes);
        let place = self.lock(level, &probe);
        let parent = self.node(place);
        let index = parent.search::<D>(&probe).expect_err("a separator is new to its parent");
        if parent.len() == WIDTH {
            return self.split(place, index, separator, right.as_ptr().cast());
        }
        parent.insert_child(index, separator, right.as_ptr().cast());
        parent.unlock();
    }

    fn scan(&self, start: &[u8], n: usize, mut visit: impl FnMut(&[u8], u64)) -> usize {
        let mut from = start.to_vec();
        let mut place = self.descend(0, &Probe::new::<D>(start));
        let mut seen = 0;
        loop {
            let node = self.node(place);
            let probe = Probe::new::<D>(&from);
            let version = node.stable();
            let first = node.search::<D>(&probe).map_or_else(|index| index, |(index, _)| index);
            let copy = node.entries::<D>();
            let (high, next) = (node.high(), node.next());
            if node.changed(version) {
                continue;
            }
            if let Some(next) = next {
                self.fetch(next);
            }
            for (key, value) in copy.iter().skip(first) {
                key.write_bytes::<D>(&mut from);
                visit(&from, value.addr() as u64);
                seen += 1;
                if seen == n {
                    return seen;
                }
            }
            let Some(next) = next else { return seen };
            high.write_bytes::<D>(&mut from);
            // The node's range may have ended before the key that the scan starts at.
            if &from[..] < start {
                from = start.to_vec();
            }
            place = next;
        }
    }
}

impl<D: Design> Index for Plain<D> {
    type Session<'a> = &'a Plain<D>;

    fn new() -> Self {
        let arena = Arena::default();
        let plain = Plain { root: Link::default(), arena, design: PhantomData };
        let root = plain.alloc(Node::new(0));
        // Release: nobody else has the tree yet.
        plain.root.store(root.as_ptr(), Ordering::Release);
        plain
    }

    fn session(&self) -> &Plain<D> {
        self
    }
}

impl<D: Design> Session for &Plain<D> {
    fn put(&self, key: &[u8], value: u64) {
        Plain::put(self, key, value);
    }

    fn get(&self, key: &[u8]) -> Option<u64> {
        Plain::get(self, key)
    }

    fn scan(&self, start: &[u8], n: usize) -> usize {
        Plain::scan(self, start, n, |key, value| {
            std::hint::black_box((key, value));
        })
    }
}
