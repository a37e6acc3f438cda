//! The kernel of the lanes: one holder word, and the order of the steps around it. `docs/fabric.md`
//! has the argument in words, `modelled.rs` tries it under loom.
//!
//! Invariant: only the region's owner stores to the holder word.
//! Invariant: a lane is stored to by its process, under a grant that it has not renounced, or by
//! the owner, after the process has renounced every grant that it had and before the next; the
//! words `renounced` and `holder` order the two.
//! Invariant: before the owner changes a lane that was the image, the holder word names another.

use crate::contract::GrantNumber;
use crate::sync::{AtomicU64, Ordering, fence};
use crate::words;

/// What a holder word says: bit 0, whether the grant is in force; bits 1 to 8, the lane that is the
/// region's image; from bit 9, the number of the grant that opened it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Holder(u64);

/// Words of a cache line.
const LINE: usize = 8;

impl Holder {
    const LANE_BITS: u32 = 8;

    /// A grant in force.
    pub(crate) fn new(number: GrantNumber, lane: u8) -> Holder {
        assert!(number.is_possible(), "grant numbers stay below 2^48");
        Holder((number.0 << Self::LANE_BITS | u64::from(lane)) << 1 | 1)
    }

    /// What a word that was read says.
    pub(crate) fn parse(word: u64) -> Holder {
        Holder(word)
    }

    pub(crate) fn bits(self) -> u64 {
        self.0
    }

    /// The same grant, not in force any more.
    pub(crate) fn revoked(self) -> Holder {
        Holder(self.0 & !1)
    }

    pub(crate) fn number(self) -> GrantNumber {
        GrantNumber(self.0 >> (Self::LANE_BITS + 1))
    }

    pub(crate) fn lane(self) -> u8 {
        (self.0 >> 1) as u8
    }

    pub(crate) fn in_force(self) -> bool {
        self.0 & 1 == 1
    }

    /// Without whether it is in force: two equal values have the same image.
    fn image(self) -> u64 {
        self.0 >> 1
    }

    /// What the word says now.
    pub(crate) fn load(word: &AtomicU64) -> Holder {
        // Acquire: pairs with the release in `grant`.
        Holder(word.load(Ordering::Acquire))
    }
}

/// Writes words into the writer's own lane. True if they are in the region for good: whoever
/// revokes the grant later finds them.
#[inline]
pub(crate) fn write(word: &AtomicU64, under: Holder, lane: &[AtomicU64], words: &[u64]) -> bool {
    if !store(word, under, lane, words) {
        return false;
    }
    settle();
    stands(word, under)
}

/// The first half of [`write`]: false if the grant is not in force. After [`settle`], [`stands`]
/// says whether the words are there for good.
#[inline]
pub(crate) fn store(word: &AtomicU64, under: Holder, lane: &[AtomicU64], words: &[u64]) -> bool {
    if !is_held(word, under) {
        return false;
    }
    let first = words.len().min(LINE);
    words::store(&lane[first..], &words[first..]);
    store_first(lane, &words[..first]);
    true
}

/// As [`store`], with words that come one at a time.
#[inline]
pub(crate) fn store_each(
    word: &AtomicU64,
    under: Holder,
    lane: &[AtomicU64],
    mut words: impl ExactSizeIterator<Item = u64>,
) -> bool {
    if !is_held(word, under) {
        return false;
    }
    let mut first = [0; LINE];
    let count = words.len().min(LINE);
    for (place, word) in first[..count].iter_mut().zip(&mut words) {
        *place = word;
    }
    // Releases: a reader that sees a word sees all that were written before it.
    for (word, cell) in words.zip(&lane[count..]) {
        cell.store(word, Ordering::Release);
    }
    store_first(lane, &first[..count]);
    true
}

#[inline]
fn is_held(word: &AtomicU64, under: Holder) -> bool {
    // Acquire: pairs with the release in `grant`, so that what the owner put into the lane before
    // comes before the stores that follow.
    word.load(Ordering::Acquire) == under.0
}

/// The first line comes last, its first word at the end: who waits for that finds the rest there,
/// and does not take away the lines that are being written. The others go upwards: downwards takes
/// three times as long.
#[inline]
fn store_first(lane: &[AtomicU64], words: &[u64]) {
    for (&word, cell) in words.iter().zip(lane).rev() {
        // Release: as the words behind it.
        cell.store(word, Ordering::Release);
    }
}

/// Between the stores of any number of writes and the second look at their holder words.
#[inline]
pub(crate) fn settle() {
    // SeqCst: pairs with the fence in `revoke`. If that one comes first, the loads in `stands` see
    // the revocation; else the loads behind it see the stores before this.
    fence(Ordering::SeqCst);
}

/// Whether the grant has been in force until now, so that what was stored before [`settle`] counts.
#[inline]
pub(crate) fn stands(word: &AtomicU64, under: Holder) -> bool {
    word.load(Ordering::Relaxed) == under.0
}

/// Ends the grant. The owner's loads after this see every write that was or will be told `true`.
pub(crate) fn revoke(word: &AtomicU64) -> Holder {
    // Relaxed: only this process stores to the word.
    let revoked = Holder(word.load(Ordering::Relaxed)).revoked();
    word.store(revoked.0, Ordering::Relaxed);
    // SeqCst: pairs with the fence in `settle`.
    fence(Ordering::SeqCst);
    revoked
}

/// Copies words from the image into a lane that is not the image.
pub(crate) fn adopt(from: &[AtomicU64], to: &[AtomicU64]) {
    for (from, to) in from.iter().zip(to) {
        // Release: pairs with the acquire in `read`: who sees this store sees that the lane is not
        // the image.
        to.store(from.load(Ordering::Acquire), Ordering::Release);
    }
}

/// Zeroes words of a lane that is not the image.
pub(crate) fn clear(lane: &[AtomicU64]) {
    for cell in lane {
        // Release: as in `adopt`.
        cell.store(0, Ordering::Release);
    }
}

/// Makes a lane the image and its process the holder.
pub(crate) fn grant(word: &AtomicU64, next: Holder) {
    // Release: pairs with the acquires in `store` and `read`: the lane's words come first.
    word.store(next.0, Ordering::Release);
}

/// Says that this process's stores under every grant up to `number` are made.
pub(crate) fn renounce(word: &AtomicU64, number: GrantNumber) {
    // Release: pairs with the acquire in `has_renounced`: the stores come before what the owner
    // then does to the lane.
    word.store(number.0, Ordering::Release);
}

/// Whether the process has renounced the grant.
pub(crate) fn has_renounced(word: &AtomicU64, number: GrantNumber) -> bool {
    // Acquire: pairs with the release in `renounce`.
    word.load(Ordering::Acquire) >= number.0
}

/// Reads words of the image; `lane` gives them for a lane's number. Waits for nobody: it begins
/// again only when the owner has made another lane the image meanwhile.
#[inline]
pub(crate) fn read<'a>(
    word: &AtomicU64,
    lane: impl Fn(u8) -> &'a [AtomicU64],
    words: &mut [u64],
) -> Holder {
    loop {
        let before = Holder::load(word);
        // Acquires: they pair with the releases in `store`, `adopt` and `clear`.
        words::load(lane(before.lane()), words);
        // Relaxed: the acquire loads above stay before it, and if one of them saw a word of
        // `adopt` or `clear`, the change of the holder word happens before this load.
        let after = Holder(word.load(Ordering::Relaxed));
        if before.image() == after.image() {
            return after;
        }
    }
}
