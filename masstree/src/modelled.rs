//! The version word's protocol under loom, which tries every interleaving and every value that the
//! memory model lets a load return. Run with
//! `RUSTFLAGS="--cfg loom" cargo test -p masstree --release --lib loom_`.
//!
//! Each test is a kernel of one of the tree's protocols on the real `VersionWord` and fields. The
//! ones that must panic leave one step out, and show that the model would notice. Writers here
//! store without loading first, for the reason given in `VersionWord::held`.

use loom::{sync::Arc, thread};

use crate::{field::Word, version::VersionWord};

/// Tries all executions with up to three preemptions, which suffices for the planted mistakes.
fn model(test: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(3);
    builder.max_branches = 10_000;
    builder.check(test);
}

fn unlocked(border: bool, root: bool) -> VersionWord {
    let version = VersionWord::new_locked(border, root);
    version.unlock();
    version
}

struct Pair {
    version: VersionWord,
    fields: [Word; 2],
}

impl Pair {
    fn shared() -> Arc<Pair> {
        Arc::new(Pair { version: unlocked(true, true), fields: [Word::new(0), Word::new(0)] })
    }

    /// Sets both fields.
    fn change(&self, value: u64, mark: bool) {
        self.version.lock();
        if mark {
            self.version.mark_inserting();
        }
        for field in &self.fields {
            field.store(value);
        }
        self.version.unlock();
    }

    /// Reads both fields, if they can be told to belong together.
    fn read(&self) -> Option<[u64; 2]> {
        let seen = self.version.stable();
        let pair = [self.fields[0].load(), self.fields[1].load()];
        (!self.version.changed(seen)).then_some(pair)
    }
}

#[test]
fn loom_writers_exclude_each_other() {
    model(|| {
        let pair = Pair::shared();
        let other = pair.clone();
        let thread = thread::spawn(move || other.change(1, false));
        pair.change(2, false);
        thread.join().unwrap();
        assert!(matches!(pair.read(), Some([1, 1] | [2, 2])));
    });
}

fn torn_read(mark: bool) {
    model(move || {
        let pair = Pair::shared();
        let other = pair.clone();
        let thread = thread::spawn(move || {
            other.change(1, mark);
            other.change(2, mark);
        });
        if let Some([a, b]) = pair.read() {
            assert_eq!(a, b, "a torn read");
        }
        thread.join().unwrap();
    });
}

#[test]
fn loom_validated_reads_are_not_torn() {
    torn_read(true);
}

#[test]
#[should_panic(expected = "a torn read")]
fn loom_unmarked_changes_tear_reads() {
    torn_read(false);
}

/// A border of one slot: the permutation is 1 while the slot is live.
struct OneSlot {
    version: VersionWord,
    permutation: Word,
    key: Word,
    value: Word,
}

impl OneSlot {
    fn with_key_1() -> Arc<OneSlot> {
        Arc::new(OneSlot {
            version: unlocked(true, true),
            permutation: Word::new(1),
            key: Word::new(1),
            value: Word::new(10),
        })
    }

    fn remove(&self) {
        self.version.lock();
        self.permutation.store(0);
        self.version.unlock();
    }

    /// Puts key 2 with value 20 into the slot.
    fn reuse(&self, mark: bool) {
        self.version.lock();
        if mark {
            self.version.mark_inserting();
        }
        self.key.store(2);
        self.value.store(20);
        self.permutation.store(1);
        self.version.unlock();
    }

    fn get(&self, key: u64) -> Option<u64> {
        loop {
            let seen = self.version.stable();
            let found =
                (self.permutation.load() == 1 && self.key.load() == key).then(|| self.value.load());
            if !self.version.changed(seen) {
                return found;
            }
            thread::yield_now();
        }
    }
}

fn slot_reuse(mark: bool) {
    model(move || {
        let slot = OneSlot::with_key_1();
        let other = slot.clone();
        let thread = thread::spawn(move || {
            other.remove();
            other.reuse(mark);
        });
        let found = slot.get(1);
        assert!(found.is_none() || found == Some(10), "another key's value");
        let found = slot.get(2);
        assert!(found.is_none() || found == Some(20), "another key's value");
        thread.join().unwrap();
        assert_eq!(slot.get(2), Some(20));
    });
}

/// [Mao] 3.1.6, "Removes".
#[test]
fn loom_reused_slots_are_noticed() {
    slot_reuse(true);
}

#[test]
#[should_panic(expected = "another key's value")]
fn loom_unmarked_reuse_returns_another_keys_value() {
    slot_reuse(false);
}

/// A fresh slot is published by the permutation alone.
#[test]
fn loom_permutation_publishes_a_fresh_slot() {
    model(|| {
        let slot = OneSlot::with_key_1();
        slot.permutation.store(0);
        let other = slot.clone();
        let thread = thread::spawn(move || other.reuse(false));
        let found = slot.get(2);
        assert!(found.is_none() || found == Some(20));
        thread.join().unwrap();
    });
}

/// A parent, a child, and the child's sibling that a split makes. Key X moves to the sibling.
struct Split {
    parent: VersionWord,
    /// 1 if the parent leads to the sibling.
    leads_right: Word,
    version: [VersionWord; 2],
    has_x: [Word; 2],
}

impl Split {
    fn new() -> Arc<Split> {
        Arc::new(Split {
            parent: unlocked(false, true),
            leads_right: Word::new(0),
            version: [unlocked(true, false), VersionWord::new_locked(true, false)],
            has_x: [Word::new(1), Word::new(0)],
        })
    }

    /// [Mao] figure 3-5.
    fn split(&self, mark: bool) {
        self.version[0].lock();
        if mark {
            self.version[0].mark_splitting();
            self.version[1].mark_splitting();
        }
        self.has_x[1].store(1);
        self.has_x[0].store(0);
        self.parent.lock();
        self.parent.mark_inserting();
        self.leads_right.store(1);
        self.version[0].unlock();
        self.version[1].unlock();
        self.parent.unlock();
    }

    /// [Mao] figure 3-6, then a validated read of the border, without its links.
    fn finds_x(&self) -> bool {
        loop {
            let parent_seen = self.parent.stable();
            let child = self.leads_right.load() as usize;
            let seen = self.version[child].stable();
            if !self.parent.changed(parent_seen) {
                let found = self.has_x[child].load() == 1;
                if !self.version[child].changed(seen) {
                    return found;
                }
            }
            thread::yield_now();
        }
    }
}

fn split(mark: bool) {
    model(move || {
        let tree = Split::new();
        let other = tree.clone();
        let thread = thread::spawn(move || other.split(mark));
        assert!(tree.finds_x(), "a key was lost");
        thread.join().unwrap();
        assert!(tree.finds_x());
    });
}

#[test]
fn loom_no_key_is_lost_in_a_split() {
    split(true);
}

#[test]
#[should_panic(expected = "a key was lost")]
fn loom_unmarked_split_loses_a_key() {
    split(false);
}

/// A remover deletes an empty border whose range goes to the left neighbour, where the key that a
/// second writer inserts must be found.
#[test]
fn loom_deleted_border_hands_its_range_over() {
    model(|| {
        let tree = Arc::new(Split {
            parent: unlocked(false, true),
            leads_right: Word::new(1),
            version: [unlocked(true, false), unlocked(true, false)],
            // Here: whether the left border covers X's range, in the first field, and has X.
            has_x: [Word::new(0), Word::new(0)],
        });
        let [covers, has] = [0, 1];
        let remover = tree.clone();
        let removing = thread::spawn(move || {
            let [left, right] = &remover.version;
            right.lock();
            left.lock();
            left.mark_splitting();
            right.mark_deleted();
            remover.has_x[covers].store(1);
            left.unlock();
            right.unlock();
        });
        let writer = tree.clone();
        let writing = thread::spawn(move || {
            let left = &writer.version[0];
            left.lock();
            let inserted = writer.has_x[covers].load() == 1;
            if inserted {
                writer.has_x[has].store(1);
            }
            left.unlock();
            inserted
        });
        let inserted = writing.join().unwrap();
        // What an operation that begins after the insert does: the parent still leads right.
        let right = tree.version[1].stable();
        if right.is_deleted() {
            let seen = tree.version[0].stable();
            let found = tree.has_x[has].load() == 1;
            assert!(tree.version[0].changed(seen) || found == inserted);
        } else {
            assert!(!inserted, "a border that lost its range is not deleted yet");
        }
        removing.join().unwrap();
    });
}

/// A border's slot whose bucket is replaced by a copy with one key more. Key X is in both.
struct Buckets {
    version: VersionWord,
    /// Which bucket the slot leads to.
    link: Word,
    value_of_x: [Word; 2],
}

impl Buckets {
    fn copy(&self, under_the_lock: bool) {
        let early = (!under_the_lock).then(|| self.value_of_x[0].load());
        self.version.lock();
        self.value_of_x[1].store(early.unwrap_or_else(|| self.value_of_x[0].load()));
        self.link.store(1);
        self.version.unlock();
    }

    fn update(&self) {
        self.version.lock();
        self.value_of_x[self.link.load() as usize].store(20);
        self.version.unlock();
    }

    /// A reader validates the link, and then reads what never changes but for its values.
    fn read(&self) -> u64 {
        loop {
            let seen = self.version.stable();
            let bucket = self.link.load() as usize;
            if !self.version.changed(seen) {
                return self.value_of_x[bucket].load();
            }
            thread::yield_now();
        }
    }
}

fn bucket_copy(under_the_lock: bool) {
    model(move || {
        let buckets = Arc::new(Buckets {
            version: unlocked(true, true),
            link: Word::new(0),
            value_of_x: [Word::new(10), Word::new(0)],
        });
        let (copier, updater) = (buckets.clone(), buckets.clone());
        let copying = thread::spawn(move || copier.copy(under_the_lock));
        let updating = thread::spawn(move || updater.update());
        let seen = [buckets.read(), buckets.read()];
        assert!(matches!(seen, [10, 10 | 20] | [20, 20]), "a value went back");
        copying.join().unwrap();
        updating.join().unwrap();
        assert_eq!(buckets.read(), 20, "an update was lost");
    });
}

/// The copy stores no mark: readers of either bucket see the key with a value of their time.
#[test]
fn loom_buckets_are_replaced_without_a_mark() {
    bucket_copy(true);
}

#[test]
#[should_panic(expected = "an update was lost")]
fn loom_bucket_copied_before_the_lock_loses_an_update() {
    bucket_copy(false);
}
