//! Copies between private words and shared ones. A long copy moves two words at a time.
//!
//! Proof of the assembly: each block does what the loop beside it does, release stores or acquire
//! loads of the same words in the same order, and nothing else. On x86 every store is a release and
//! every load an acquire, and a processor with AVX makes an aligned move of 16 bytes at once (Intel
//! SDM 3A 9.1.1; AMD APM 2 7.3.2): two neighbouring steps of the loop, nothing between them. The
//! shared side is aligned (checked), the private side is any slice. A plain copy, or a vector
//! intrinsic, would be a data race in Rust's model; atomics of the language are not combined.

use crate::sync::{AtomicU64, Ordering};

/// Stores words upwards, each as a release: a reader that sees one sees all that were stored
/// before.
///
/// # Panics
/// If there are not as many cells.
#[inline]
pub(crate) fn store(cells: &[AtomicU64], words: &[u64]) {
    assert_eq!(cells.len(), words.len(), "a cell for each word");
    #[cfg(all(target_arch = "x86_64", not(loom)))]
    if pairs::serve(cells.len()) {
        return pairs::store(cells, words);
    }
    store_each(cells, words);
}

/// Loads words upwards, each as an acquire: what was stored before one that it finds, it finds
/// afterwards.
///
/// # Panics
/// If there are not as many cells.
#[inline]
pub(crate) fn load(cells: &[AtomicU64], words: &mut [u64]) {
    assert_eq!(cells.len(), words.len(), "a cell for each word");
    #[cfg(all(target_arch = "x86_64", not(loom)))]
    if pairs::serve(cells.len()) {
        return pairs::load(cells, words);
    }
    load_each(cells, words);
}

#[inline]
fn store_each(cells: &[AtomicU64], words: &[u64]) {
    for (cell, &word) in cells.iter().zip(words) {
        cell.store(word, Ordering::Release);
    }
}

#[inline]
fn load_each(cells: &[AtomicU64], words: &mut [u64]) {
    for (cell, word) in cells.iter().zip(words) {
        *word = cell.load(Ordering::Acquire);
    }
}

#[cfg(all(target_arch = "x86_64", not(loom)))]
mod pairs {
    use std::arch::{asm, is_x86_feature_detected};

    use super::{AtomicU64, load_each, store_each};

    /// Words that one round of a block moves: a cache line.
    const ROUND: usize = 8;
    /// Fewer words than this are moved one by one.
    const LONG: usize = 16;

    /// Whether so many words are moved in pairs.
    #[inline]
    pub(super) fn serve(words: usize) -> bool {
        words >= LONG && is_x86_feature_detected!("avx")
    }

    /// How many words come before the first aligned pair, and how many rounds there are from there.
    #[inline]
    fn rounds(cells: &[AtomicU64]) -> (usize, usize) {
        let before = usize::from(!cells.as_ptr().addr().is_multiple_of(16));
        (before, (cells.len() - before) / ROUND)
    }

    pub(super) fn store(cells: &[AtomicU64], words: &[u64]) {
        let (before, rounds) = rounds(cells);
        let after = before + rounds * ROUND;
        assert!(rounds > 0, "the block moves at least one round");
        store_each(&cells[..before], &words[..before]);
        // SAFETY: both ranges have `rounds` times 64 bytes and live until the block ends, `to` is
        // aligned; for the rest see the module's proof.
        unsafe {
            asm!(
                "2:",
                "movups {a}, [{from}]",
                "movups {b}, [{from} + 16]",
                "movups {c}, [{from} + 32]",
                "movups {d}, [{from} + 48]",
                "movaps [{to}], {a}",
                "movaps [{to} + 16], {b}",
                "movaps [{to} + 32], {c}",
                "movaps [{to} + 48], {d}",
                "add {from}, 64",
                "add {to}, 64",
                "dec {rounds}",
                "jnz 2b",
                from = inout(reg) words[before..after].as_ptr() => _,
                to = inout(reg) cells[before..after].as_ptr() => _,
                rounds = inout(reg) rounds => _,
                a = out(xmm_reg) _,
                b = out(xmm_reg) _,
                c = out(xmm_reg) _,
                d = out(xmm_reg) _,
                options(nostack)
            );
        }
        store_each(&cells[after..], &words[after..]);
    }

    pub(super) fn load(cells: &[AtomicU64], words: &mut [u64]) {
        let (before, rounds) = rounds(cells);
        let after = before + rounds * ROUND;
        assert!(rounds > 0, "the block moves at least one round");
        load_each(&cells[..before], &mut words[..before]);
        // SAFETY: both ranges have `rounds` times 64 bytes and live until the block ends, `from` is
        // aligned; for the rest see the module's proof.
        unsafe {
            asm!(
                "2:",
                "movaps {a}, [{from}]",
                "movaps {b}, [{from} + 16]",
                "movaps {c}, [{from} + 32]",
                "movaps {d}, [{from} + 48]",
                "movups [{to}], {a}",
                "movups [{to} + 16], {b}",
                "movups [{to} + 32], {c}",
                "movups [{to} + 48], {d}",
                "add {from}, 64",
                "add {to}, 64",
                "dec {rounds}",
                "jnz 2b",
                from = inout(reg) cells[before..after].as_ptr() => _,
                to = inout(reg) words[before..after].as_mut_ptr() => _,
                rounds = inout(reg) rounds => _,
                a = out(xmm_reg) _,
                b = out(xmm_reg) _,
                c = out(xmm_reg) _,
                d = out(xmm_reg) _,
                options(nostack)
            );
        }
        load_each(&cells[after..], &mut words[after..]);
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::sync::atomic::AtomicBool;

    use super::*;

    #[test]
    fn every_word_comes_over_and_no_other_is_touched() {
        for (start, count) in (0..4).flat_map(|start| (0..70).map(move |count| (start, count))) {
            let cells: Vec<_> = (0..80).map(|_| AtomicU64::new(7)).collect();
            let words: Vec<u64> = (0..80).map(|word| word << 32 | 1).collect();
            // The private side has any alignment, too.
            store(&cells[start..start + count], &words[1..1 + count]);
            let mut found = vec![9; 80];
            load(&cells, &mut found);
            let expected = |index: usize| match index.checked_sub(start) {
                Some(at) if at < count => words[1 + at],
                _ => 7,
            };
            assert!((0..80).all(|index| found[index] == expected(index)), "{start}, {count}");
            let mut part = vec![9; 82];
            load(&cells[start..start + count], &mut part[1..1 + count]);
            assert_eq!(part[1..1 + count], found[start..start + count]);
            assert!(part[0] == 9 && part[1 + count..].iter().all(|&word| word == 9));
        }
    }

    /// Words are whole, and who sees one sees all that were stored before it: a word that is loaded
    /// later is of the same time, a later one, or the one before.
    #[test]
    fn another_thread_sees_whole_words_in_order() {
        const COUNT: usize = 131;
        const TIMES: u64 = 200_000;
        let cells: Vec<_> = (0..COUNT).map(|_| AtomicU64::new(0)).collect();
        let done = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                for time in 1..=TIMES {
                    store(&cells, &[time << 32 | time; COUNT]);
                }
                done.store(true, Ordering::Release);
            });
            let mut words = [0; COUNT];
            while !done.load(Ordering::Acquire) {
                load(&cells, &mut words);
                assert!(words.iter().all(|word| word >> 32 == word & 0xffff_ffff), "a torn word");
                let mut latest = 0;
                for time in words.iter().map(|word| word >> 32) {
                    assert!(time + 1 >= latest, "a store that came before is not seen");
                    latest = latest.max(time);
                }
            }
        });
    }
}
