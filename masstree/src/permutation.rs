//! The permutation of a border node: which slots hold keys, in which order, in one word
//! ([Mao] 3.1.6, "Border inserts").
//!
//! The low four bits count the keys. Fifteen four-bit fields follow: first the slots of the live
//! keys in key order, then the free slots. One store publishes a new key and its place.

/// Keys per node.
pub(crate) const WIDTH: usize = 15;

/// A snapshot of the word.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Permutation(u64);

impl Permutation {
    /// No keys; slots are taken in the order 0, 1, 2...
    pub(crate) const EMPTY: Permutation = Permutation(0xEDCB_A987_6543_2100);

    pub(crate) fn from_word(word: u64) -> Self {
        Permutation(word)
    }

    pub(crate) fn to_word(self) -> u64 {
        self.0
    }

    /// How many keys there are.
    pub(crate) fn len(self) -> usize {
        (self.0 & 0xF) as usize
    }

    /// The slot of the key at `index` in key order; for an index of `len()` or more, a free slot.
    pub(crate) fn slot(self, index: usize) -> usize {
        debug_assert!(index < WIDTH);
        ((self.0 >> (4 * index + 4)) & 0xF) as usize
    }

    /// Whether, of a full node from which none was removed since it was made, the two newest keys
    /// are the ones before `index`, in order: a new node takes its slots one after the other.
    pub(crate) fn newest_end_at(self, index: usize) -> bool {
        index >= 2 && self.slot(index - 1) == WIDTH - 1 && self.slot(index - 2) == WIDTH - 2
    }

    /// Whether a slot holds a key.
    pub(crate) fn has(self, slot: usize) -> bool {
        const ONES: u64 = 0x0111_1111_1111_1111;
        // The field that equals `slot` becomes zero; of the fields found to be zero by borrowing
        // the lowest is one.
        let differences = (self.0 >> 4) ^ (slot as u64 * ONES);
        let zeros = differences.wrapping_sub(ONES) & !differences & (ONES << 3);
        (zeros.trailing_zeros() / 4) < self.len() as u32
    }

    /// Takes the next free slot and places it at `index`.
    pub(crate) fn insert(&mut self, index: usize) -> usize {
        let len = self.len();
        assert!(index <= len && len < WIDTH);
        let slot = self.slot(len);
        // The fields from `index` to below `len` move up by one.
        let (from, to) = (4 * index + 4, 4 * len + 4);
        let moving = (self.0 & ((1 << to) - 1)) >> from << from;
        let above = self.0 >> to >> 4 << 4 << to;
        let below = self.0 & ((1 << from) - 1);
        self.0 = (below | ((slot as u64) << from) | moving << 4 | above) + 1;
        slot
    }

    /// Frees the slot at `index`; it becomes the last in line for reuse.
    pub(crate) fn remove(&mut self, index: usize) -> usize {
        assert!(index < self.len());
        let slot = self.slot(index);
        self.0 -= 1;
        // Everything above `index` moves down one field and the slot goes to the top.
        let shift = 4 * index + 4;
        let below = self.0 & ((1 << shift) - 1);
        let above = (self.0 >> shift >> 4) << shift;
        self.0 = below | above | ((slot as u64) << (4 * WIDTH));
        slot
    }

    /// Keeps only the first `len` keys.
    pub(crate) fn truncate(&mut self, len: usize) {
        assert!(len <= self.len());
        self.0 = (self.0 & !0xF) | len as u64;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn slots(permutation: Permutation) -> Vec<usize> {
        (0..WIDTH).map(|i| permutation.slot(i)).collect()
    }

    #[test]
    fn removed_slots_are_reused_last() {
        let mut permutation = Permutation::EMPTY;
        assert_eq!(permutation.insert(0), 0);
        assert_eq!(permutation.insert(0), 1);
        assert_eq!(permutation.remove(0), 1);
        assert_eq!(permutation.insert(1), 2);
        assert_eq!(&slots(permutation)[..2], &[0, 2]);
        assert_eq!(permutation.slot(WIDTH - 1), 1);
    }

    proptest! {
        #[test]
        fn behaves_like_a_list(
            steps in prop::collection::vec((any::<bool>(), any::<prop::sample::Index>()), 0..200)
        ) {
            let mut permutation = Permutation::EMPTY;
            let mut list: Vec<usize> = Vec::new();
            for (insert, index) in steps {
                if insert && list.len() < WIDTH {
                    let at = index.index(list.len() + 1);
                    let slot = permutation.insert(at);
                    prop_assert!(!list.contains(&slot));
                    list.insert(at, slot);
                } else if !list.is_empty() {
                    let at = index.index(list.len());
                    prop_assert_eq!(permutation.remove(at), list.remove(at));
                }
                prop_assert_eq!(permutation.len(), list.len());
                for slot in 0..WIDTH {
                    prop_assert_eq!(permutation.has(slot), list.contains(&slot));
                }
                prop_assert_eq!(&slots(permutation)[..list.len()], &list[..]);
                let mut all = slots(permutation);
                all.sort_unstable();
                prop_assert_eq!(all, (0..WIDTH).collect::<Vec<_>>());
            }
            let keep = list.len() / 2;
            permutation.truncate(keep);
            prop_assert_eq!(permutation.len(), keep);
            prop_assert_eq!(&slots(permutation)[..keep], &list[..keep]);
        }
    }
}
