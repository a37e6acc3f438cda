//! The version word: a node's lock, state and change counters in 64 bits ([Mao] 3.1.4, figures
//! 3-3 and 3-4).
//!
//! A writer holds `locked`; before it creates a state that a reader must not act on it also sets
//! `inserting` or `splitting`, and unlocking turns that mark into one step of a counter. A reader
//! takes a stable word, reads the node, and accepts what it read only if the word is unchanged.
//!
//! Invariant: only the holder of the lock stores to the word, so its updates are plain stores.
//! Invariant: a node's fields are read by acquire loads and written by release stores (field.rs).
//! A reader that saw anything written after a mark therefore sees the mark when it validates.

use crate::sync::{AtomicU64, Ordering, yield_now};

const LOCKED: u64 = 1;
const INSERTING: u64 = 1 << 1;
const SPLITTING: u64 = 1 << 2;
const DELETED: u64 = 1 << 3;
const ROOT: u64 = 1 << 4;
const BORDER: u64 = 1 << 5;
const VINSERT_ONE: u64 = 1 << 6;
const VINSERT_MASK: u64 = ((1 << 30) - 1) << 6;
const VSPLIT_ONE: u64 = 1 << 36;
const VSPLIT_MASK: u64 = !0 << 36;
const DIRTY: u64 = INSERTING | SPLITTING;

/// A snapshot of a version word.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Version(u64);

impl Version {
    /// The node left the tree; whoever meets it looks elsewhere.
    pub(crate) fn is_deleted(self) -> bool {
        self.0 & DELETED != 0
    }

    /// The node is the root of its layer.
    pub(crate) fn is_root(self) -> bool {
        self.0 & ROOT != 0
    }

    /// The node is a border node. Never changes during a node's life.
    pub(crate) fn is_border(self) -> bool {
        self.0 & BORDER != 0
    }

    /// Whether a split finished between the two snapshots.
    pub(crate) fn split_since(self, earlier: Version) -> bool {
        (self.0 ^ earlier.0) & VSPLIT_MASK != 0
    }
}

/// The word itself.
#[derive(Debug)]
pub(crate) struct VersionWord(AtomicU64);

impl VersionWord {
    /// The word of a node under construction: locked, so that it can be filled like any other.
    pub(crate) fn new_locked(border: bool, root: bool) -> Self {
        let kind = if border { BORDER } else { 0 } | if root { ROOT } else { 0 };
        VersionWord(AtomicU64::new(LOCKED | kind))
    }

    /// Waits until no writer has marked the node and returns the word (`stableversion`).
    pub(crate) fn stable(&self) -> Version {
        let mut spins = 0;
        loop {
            // Acquire: pairs with the release store in `unlock`, so that the node's fields are at
            // least as new as this version.
            let word = self.0.load(Ordering::Acquire);
            if word & DIRTY == 0 {
                return Version(word);
            }
            relax(&mut spins);
        }
    }

    /// The word of a node that nobody is using.
    pub(crate) fn at_rest(&self) -> Version {
        // Relaxed: exclusive access was obtained in some way that synchronizes.
        let word = self.0.load(Ordering::Relaxed);
        assert!(word & (LOCKED | DIRTY) == 0, "a node was left locked or marked");
        Version(word)
    }

    /// Whether anything but the lock bit moved since `seen`: what was read is then not to be used.
    pub(crate) fn changed(&self, seen: Version) -> bool {
        // Relaxed: the field loads before this one are acquire loads, so this load cannot be
        // satisfied before them, and if one of them saw a store made under a mark, then the mark's
        // own store happens before this load and coherence makes it visible here.
        self.0.load(Ordering::Relaxed) ^ seen.0 > LOCKED
    }

    /// Spins until the lock is ours.
    pub(crate) fn lock(&self) {
        let mut waits = 0;
        // Relaxed: a guess for the compare-exchange, which is what decides. Under loom a bad guess
        // instead of a load, for the reason given in `held`.
        let mut word = if cfg!(loom) { 0 } else { self.0.load(Ordering::Relaxed) };
        loop {
            // Acquire: pairs with the release store in `unlock` of the previous holder.
            // Relaxed on failure: only the next guess is read.
            let (success, failure) = (Ordering::Acquire, Ordering::Relaxed);
            match self.0.compare_exchange_weak(word & !LOCKED, word | LOCKED, success, failure) {
                Ok(_) => return,
                Err(now) => word = now,
            }
            while word & LOCKED != 0 {
                back_off(&mut waits);
                // Relaxed: as above.
                word = self.0.load(Ordering::Relaxed);
            }
        }
    }

    /// Releases the lock in one store, counting what was marked. A split outranks an insert: its
    /// counter sends readers back to the root, which is right for both.
    pub(crate) fn unlock(&self) {
        let word = self.held();
        let counted = if word & SPLITTING != 0 {
            word.wrapping_add(VSPLIT_ONE)
        } else if word & INSERTING != 0 {
            (word & !VINSERT_MASK) | (word.wrapping_add(VINSERT_ONE) & VINSERT_MASK)
        } else {
            word
        };
        // Release: pairs with `stable` and `lock`.
        self.0.store(counted & !(LOCKED | DIRTY), Ordering::Release);
    }

    /// Whether the node is a border node, at any time.
    pub(crate) fn is_border(&self) -> bool {
        // Relaxed: the bit is set at construction and never changes.
        Version(self.0.load(Ordering::Relaxed)).is_border()
    }

    /// The word as its lock's holder sees it.
    pub(crate) fn held_version(&self) -> Version {
        Version(self.held())
    }

    /// Announces that readers must not trust what they see until unlock (counts in `vinsert`).
    pub(crate) fn mark_inserting(&self) {
        self.set_held(self.held() | INSERTING);
    }

    /// Announces that keys leave the node's responsibility or come into it (counts in `vsplit`).
    pub(crate) fn mark_splitting(&self) {
        self.set_held(self.held() | SPLITTING);
    }

    /// Marks the node as gone for good.
    pub(crate) fn mark_deleted(&self) {
        self.set_held(self.held() | DELETED);
    }

    /// The node has a parent from now on.
    pub(crate) fn clear_root(&self) {
        self.set_held(self.held() & !ROOT);
    }

    fn held(&self) -> u64 {
        // Relaxed: only the holder stores to the word, and that is the caller.
        #[cfg(not(loom))]
        let word = self.0.load(Ordering::Relaxed);
        // Loom compares an access with the last one only, so that a load of ours before our store
        // would hide from it that the store races with another thread's load.
        #[cfg(loom)]
        let word = self.0.fetch_or(0, Ordering::Relaxed);
        assert!(word & LOCKED != 0, "a version word is changed only under its lock");
        word
    }

    fn set_held(&self, word: u64) {
        // Relaxed: the stores to fields that follow are release stores and carry this one along
        // (partner: the acquire loads before `changed`).
        self.0.store(word, Ordering::Relaxed);
    }
}

/// Waits for a lock, for twice as long each time. Two threads that put the same keys in order would
/// meet in every border otherwise: who has waited is some borders behind, and catches up later. 20
/// million keys each, medians of three lives in turn: 17.3 million puts a second, 14.0 with a first
/// wait of a quarter, 11.4 of a 64th, 8.9 with waits of one length.
fn back_off(waits: &mut u32) {
    if *waits < 4 && !cfg!(loom) {
        (0..64 << *waits).for_each(|_| std::hint::spin_loop());
        *waits += 1;
    } else {
        yield_now();
    }
}

/// Waits a little, and lets another thread run when the wait is long: its lock holder may have
/// been descheduled.
pub(crate) fn relax(spins: &mut u32) {
    if *spins < 64 && !cfg!(loom) {
        *spins += 1;
        std::hint::spin_loop();
    } else {
        yield_now();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counters_are_apart() {
        let word = VersionWord::new_locked(true, true);
        word.unlock();
        let fresh = word.stable();
        assert!(fresh.is_border() && fresh.is_root() && !fresh.is_deleted());

        word.lock();
        assert!(!word.changed(fresh), "the lock alone is no change");
        word.unlock();
        assert!(!word.changed(fresh), "locking and unlocking alone is no change");

        word.lock();
        word.mark_inserting();
        assert!(word.changed(fresh));
        word.unlock();
        let inserted = word.stable();
        assert!(word.changed(fresh) && !inserted.split_since(fresh));

        word.lock();
        word.mark_splitting();
        word.mark_inserting();
        word.clear_root();
        word.unlock();
        let split = word.stable();
        assert!(split.split_since(inserted) && !split.is_root());

        word.lock();
        word.mark_deleted();
        word.unlock();
        assert!(word.stable().is_deleted() && word.changed(split));
    }

    #[test]
    fn insert_counter_wraps_without_touching_the_split_counter() {
        let word = VersionWord(AtomicU64::new(VINSERT_MASK | VSPLIT_ONE | LOCKED));
        word.mark_inserting();
        word.unlock();
        assert_eq!(word.stable(), Version(VSPLIT_ONE));
    }
}
