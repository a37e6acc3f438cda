//! Nodes of the plain tree.
//!
//! Fields that readers race on are loaded with acquire and stored with release. A writer marks the
//! node before it stores anything that readers must not act on, and a reader that saw such a store
//! sees the mark, or the count that follows it, when it looks at the version again: the argument is
//! that of Masstree's version word.

use std::{
    ops::{Deref, DerefMut},
    ptr::{self, NonNull},
    sync::atomic::{AtomicPtr, AtomicU64, Ordering},
};

use super::{
    Design,
    search::{Probe, Stored},
};

/// Keys per node: as many as fit eight cache lines.
pub const WIDTH: usize = 14;

const LOCKED: u64 = 1;
const MARKED: u64 = 2;
const ONE: u64 = 4;

/// A leaf's order: the low four bits count its keys, four bits for each slot in key order follow.
const NO_KEYS: u64 = 0xEDCB_A987_6543_2100;

pub type Link<K> = AtomicPtr<Node<K>>;

/// Keys in a node, by slot.
pub trait Keys: Default + Send + Sync {
    /// The first eight bytes.
    fn first_word(&self, slot: usize) -> u64;
    fn load(&self, slot: usize) -> Stored;
    fn store(&self, slot: usize, key: Stored);
}

/// Keys of any length.
#[derive(Default)]
pub struct Sixteen {
    words: [[AtomicU64; WIDTH]; 2],
    rest: [AtomicPtr<u8>; WIDTH],
}

impl Keys for Sixteen {
    #[inline(always)]
    fn first_word(&self, slot: usize) -> u64 {
        self.words[0][slot].load(Ordering::Acquire)
    }

    #[inline(always)]
    fn load(&self, slot: usize) -> Stored {
        let words = [self.first_word(slot), self.words[1][slot].load(Ordering::Acquire)];
        Stored { words, rest: self.rest[slot].load(Ordering::Acquire) }
    }

    fn store(&self, slot: usize, key: Stored) {
        self.words[0][slot].store(key.words[0], Ordering::Release);
        self.words[1][slot].store(key.words[1], Ordering::Release);
        self.rest[slot].store(key.rest, Ordering::Release);
    }
}

/// Keys of eight bytes.
#[derive(Default)]
pub struct Eight([AtomicU64; WIDTH]);

impl Keys for Eight {
    #[inline(always)]
    fn first_word(&self, slot: usize) -> u64 {
        self.0[slot].load(Ordering::Acquire)
    }

    #[inline(always)]
    fn load(&self, slot: usize) -> Stored {
        Stored { words: [self.first_word(slot), 0], rest: ptr::without_provenance_mut(8) }
    }

    fn store(&self, slot: usize, key: Stored) {
        assert!(key.rest.addr() == 8, "this tree's keys have eight bytes");
        self.0[slot].store(key.words[0], Ordering::Release);
    }
}

/// A leaf at level 0, or an interior node above. A cache line for the head; then the keys; then
/// what they lead to.
#[repr(C, align(64))]
pub struct Node<K> {
    version: AtomicU64,
    /// The number of keys; of permuted leaves see `NO_KEYS`.
    order: AtomicU64,
    next: Link<K>,
    /// The key from which on the next node is responsible, if there is one.
    high: [AtomicU64; 2],
    high_rest: AtomicPtr<u8>,
    /// An interior node's child before the first key.
    first: AtomicPtr<()>,
    pub level: u8,
    keys: K,
    /// Values, or children after the key.
    targets: [AtomicPtr<()>; WIDTH],
}

const _: () = {
    assert!(size_of::<Node<Sixteen>>() == 8 * 64);
    assert!(size_of::<Node<Eight>>() == 5 * 64);
};

/// The keys of a node in order, and one more, with what they lead to.
pub struct Entries {
    all: [(Stored, *mut ()); WIDTH + 1],
    len: usize,
}

impl Entries {
    pub fn insert(&mut self, index: usize, entry: (Stored, *mut ())) {
        self.len += 1;
        self[index..].rotate_right(1);
        self[index] = entry;
    }
}

impl Deref for Entries {
    type Target = [(Stored, *mut ())];

    fn deref(&self) -> &Self::Target {
        &self.all[..self.len]
    }
}

impl DerefMut for Entries {
    fn deref_mut(&mut self) -> &mut Self::Target {
        &mut self.all[..self.len]
    }
}

/// A value as a node holds it.
pub fn number(value: u64) -> *mut () {
    ptr::without_provenance_mut(value as usize)
}

/// Waits a little, and longer when that was not enough.
pub fn relax(spins: &mut u32) {
    *spins += 1;
    if *spins < 64 { std::hint::spin_loop() } else { std::thread::yield_now() }
}

/// Fetches all cache lines of a node together.
#[inline(always)]
pub fn prefetch<K>(place: NonNull<Node<K>>) {
    #[cfg(target_arch = "x86_64")]
    for line in 0..size_of::<Node<K>>() / 64 {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        let address = place.as_ptr().cast::<i8>().wrapping_add(64 * line);
        // SAFETY: a prefetch has no effect on memory, whatever the address.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(address) };
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = place;
}

impl<K: Keys> Node<K> {
    /// An unlocked node without keys.
    pub fn new(level: u8) -> Self {
        Node {
            version: AtomicU64::new(0),
            order: AtomicU64::new(0),
            next: AtomicPtr::default(),
            high: Default::default(),
            high_rest: AtomicPtr::default(),
            first: AtomicPtr::default(),
            level,
            keys: K::default(),
            targets: Default::default(),
        }
    }

    /// The version, once no writer has marked the node.
    #[inline(always)]
    pub fn stable(&self) -> u64 {
        let mut spins = 0;
        loop {
            // Acquire: pairs with the store in `unlock`.
            let version = self.version.load(Ordering::Acquire);
            if version & MARKED == 0 {
                return version;
            }
            relax(&mut spins);
        }
    }

    /// Whether what was read since `seen` is not to be used.
    #[inline(always)]
    pub fn changed(&self, seen: u64) -> bool {
        // Relaxed: the loads before it acquire, so that it is not satisfied before them.
        (self.version.load(Ordering::Relaxed) ^ seen) & !LOCKED != 0
    }

    pub fn lock(&self) {
        let mut spins = 0;
        loop {
            // Relaxed: a guess, which the exchange decides on.
            let version = self.version.load(Ordering::Relaxed) & !LOCKED;
            // Acquire: pairs with the store in `unlock`. Relaxed on failure: not used.
            let (success, failure) = (Ordering::Acquire, Ordering::Relaxed);
            let locked = version | LOCKED;
            if self.version.compare_exchange_weak(version, locked, success, failure).is_ok() {
                return;
            }
            relax(&mut spins);
        }
    }

    /// Releases the lock, counting a change if the node was marked.
    pub fn unlock(&self) {
        // Relaxed: only the holder of the lock stores to the version.
        let version = self.version.load(Ordering::Relaxed);
        assert!(version & LOCKED != 0);
        let counted = if version & MARKED != 0 { version.wrapping_add(ONE) } else { version };
        // Release: pairs with the loads in `stable` and `lock`.
        self.version.store(counted & !(LOCKED | MARKED), Ordering::Release);
    }

    /// Says that readers must not trust what they see until unlock.
    pub fn mark(&self) {
        // Relaxed: as in `unlock`; the stores to fields that follow carry the mark along.
        self.version.store(self.version.load(Ordering::Relaxed) | MARKED, Ordering::Relaxed);
    }

    fn is_permuted<D: Design>(&self) -> bool {
        D::PERMUTED && self.level == 0
    }

    pub fn len(&self) -> usize {
        ((self.order.load(Ordering::Acquire) & 0xF) as usize).min(WIDTH)
    }

    fn slot<D: Design>(&self, order: u64, index: usize) -> usize {
        if self.is_permuted::<D>() { ((order >> (4 * index + 4)) & 0xF) as usize } else { index }
    }

    #[inline(always)]
    pub fn beyond<D: Design>(&self, probe: &Probe<'_>) -> Option<NonNull<Self>> {
        let next = self.next()?;
        self.high().compare::<D>(probe).is_le().then_some(next)
    }

    pub fn next(&self) -> Option<NonNull<Self>> {
        NonNull::new(self.next.load(Ordering::Acquire))
    }

    pub fn high(&self) -> Stored {
        let words = [&self.high[0], &self.high[1]].map(|word| word.load(Ordering::Acquire));
        Stored { words, rest: self.high_rest.load(Ordering::Acquire) }
    }

    /// Says where the node's range ends, and what comes there. The node is marked, or new.
    pub fn set_end(&self, high: Stored, next: Option<NonNull<Self>>) {
        self.high[0].store(high.words[0], Ordering::Release);
        self.high[1].store(high.words[1], Ordering::Release);
        self.high_rest.store(high.rest, Ordering::Release);
        self.next.store(next.map_or(ptr::null_mut(), NonNull::as_ptr), Ordering::Release);
    }

    /// The slot of a leaf's key. Compares all first words without a branch, as Masstree does, and
    /// searches only where that leaves a choice.
    #[inline(always)]
    pub fn find<D: Design>(&self, probe: &Probe<'_>) -> Option<usize> {
        if D::INTEGERS {
            let mut equal = 0u32;
            for slot in 0..WIDTH {
                equal |= u32::from(self.keys.first_word(slot) == probe.words[0]) << slot;
            }
            if equal == 0 {
                return None;
            }
            let slot = equal.trailing_zeros() as usize;
            let is_only = equal & (equal - 1) == 0;
            if is_only && self.holds::<D>(slot) {
                return self.keys.load(slot).compare::<D>(probe).is_eq().then_some(slot);
            }
        }
        self.search::<D>(probe).ok().map(|(_, slot)| slot)
    }

    /// Whether a slot holds a key.
    fn holds<D: Design>(&self, slot: usize) -> bool {
        const ONES: u64 = 0x0111_1111_1111_1111;
        let order = self.order.load(Ordering::Acquire);
        let len = (order & 0xF) as usize;
        if !self.is_permuted::<D>() {
            return slot < len;
        }
        // The field that equals `slot` becomes zero, and borrowing finds the lowest such.
        let differences = (order >> 4) ^ (slot as u64 * ONES);
        let zeros = differences.wrapping_sub(ONES) & !differences & (ONES << 3);
        (zeros.trailing_zeros() / 4) < len as u32
    }

    /// The index and slot of a key, or the index at which it would be.
    #[inline(always)]
    pub fn search<D: Design>(&self, probe: &Probe<'_>) -> Result<(usize, usize), usize> {
        let order = self.order.load(Ordering::Acquire);
        let len = ((order & 0xF) as usize).min(WIDTH);
        let (mut low, mut high) = (0, len);
        if D::INTEGERS {
            // First words tell most keys apart, and the search for them is best linear.
            let word = |index| self.keys.first_word(self.slot::<D>(order, index));
            while low < len && word(low) < probe.words[0] {
                low += 1;
            }
            high = low;
            while high < len && word(high) == probe.words[0] {
                high += 1;
            }
        }
        while low < high {
            let middle = (low + high) / 2;
            let slot = self.slot::<D>(order, middle);
            match self.keys.load(slot).compare::<D>(probe) {
                std::cmp::Ordering::Less => low = middle + 1,
                std::cmp::Ordering::Equal => return Ok((middle, slot)),
                std::cmp::Ordering::Greater => high = middle,
            }
        }
        Err(low)
    }

    /// The child that leads to a key; none only if the node is changing.
    #[inline(always)]
    pub fn child_for<D: Design>(&self, probe: &Probe<'_>) -> Option<NonNull<Self>> {
        let index = self.search::<D>(probe).map_or_else(|index| index, |(index, _)| index + 1);
        let child = match index.checked_sub(1) {
            Some(before) => &self.targets[before],
            None => &self.first,
        };
        NonNull::new(child.load(Ordering::Acquire).cast())
    }

    pub fn value(&self, slot: usize) -> u64 {
        self.targets[slot].load(Ordering::Acquire).addr() as u64
    }

    pub fn set_value(&self, slot: usize, value: u64) {
        self.targets[slot].store(number(value), Ordering::Release);
    }

    pub fn set_first(&self, child: *mut ()) {
        self.first.store(child, Ordering::Release);
    }

    fn set(&self, slot: usize, key: Stored, target: *mut ()) {
        self.keys.store(slot, key);
        self.targets[slot].store(target, Ordering::Release);
    }

    /// Inserts a key into a leaf that is locked and not full.
    pub fn insert_value<D: Design>(&self, index: usize, key: Stored, value: u64) {
        if !D::PERMUTED {
            return self.insert_child(index, key, number(value));
        }
        let order = match self.order.load(Ordering::Acquire) {
            0 => NO_KEYS,
            order => order,
        };
        let len = (order & 0xF) as usize;
        let slot = (order >> (4 * len + 4)) & 0xF;
        self.set(slot as usize, key, number(value));
        let (from, to) = (4 * index + 4, 4 * len + 4);
        let below = order & ((1 << from) - 1);
        let moving = (order & ((1 << to) - 1)) >> from << from;
        let above = order >> (to + 4) << (to + 4);
        // Last: this store makes the key visible. No key moved, so readers need not be warned.
        let order = (below | slot << from | moving << 4 | above) + 1;
        self.order.store(order, Ordering::Release);
    }

    /// Inserts a key where keys lie in order. The node is locked and not full.
    pub fn insert_child(&self, index: usize, key: Stored, target: *mut ()) {
        self.mark();
        let len = self.len();
        for i in (index..len).rev() {
            self.set(i + 1, self.keys.load(i), self.targets[i].load(Ordering::Acquire));
        }
        self.set(index, key, target);
        self.order.store(len as u64 + 1, Ordering::Release);
    }

    /// The keys and what they lead to, to be validated.
    pub fn entries<D: Design>(&self) -> Entries {
        let order = self.order.load(Ordering::Acquire);
        let len = ((order & 0xF) as usize).min(WIDTH);
        let none = Stored { words: [0; 2], rest: ptr::null_mut() };
        let mut entries = Entries { all: [(none, ptr::null_mut()); WIDTH + 1], len };
        for index in 0..len {
            let slot = self.slot::<D>(order, index);
            entries[index] = (self.keys.load(slot), self.targets[slot].load(Ordering::Acquire));
        }
        entries
    }

    /// Makes these the node's only keys. It is marked, or new.
    pub fn fill<D: Design>(&self, entries: &[(Stored, *mut ())]) {
        for (slot, (key, target)) in entries.iter().enumerate() {
            self.set(slot, *key, *target);
        }
        let base = if self.is_permuted::<D>() { NO_KEYS } else { 0 };
        self.order.store(base + entries.len() as u64, Ordering::Release);
    }
}
