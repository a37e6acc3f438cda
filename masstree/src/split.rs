//! Splits ([Mao] figure 3-5).

use crate::{
    border::{Border, Entry},
    guard::Guard,
    hook::{self, Point},
    interior::Interior,
    node::{Locked, Node},
    permutation::WIDTH,
};

/// Splits a full border and inserts `entry`, whose place among the old keys is `index`.
pub(crate) fn split_insert<'g>(
    left: Locked<'g, Border>,
    index: usize,
    entry: Entry<'_>,
    guard: &'g Guard,
) {
    left.expect_parent_insert(guard);
    let permutation = left.permutation();
    let slot = |i: usize| permutation.slot(if i < index { i } else { i - 1 });
    let all = |i: usize| if i == index { entry } else { left.entry(slot(i), guard) };
    let slice = |i: usize| if i == index { entry.at.slice } else { left.slice(slot(i)) };
    // Behind keys that are put in order there may be others, of another range.
    let last = index == WIDTH && left.next.is_none();
    let ascending = last || permutation.newest_end_at(index);
    let boundary = boundary(slice, index, ascending);
    left.word().mark_splitting();

    let right = Border::new_locked(slice(boundary), false);
    right.word().mark_splitting();
    right.reserve_suffixes((boundary..=WIDTH).map(all));
    for (i, moved) in (boundary..=WIDTH).map(all).enumerate() {
        right.insert(i, moved, guard);
    }
    if index < boundary {
        left.truncate(boundary - 1);
        left.insert(index, entry, guard);
    } else {
        left.truncate(boundary);
    }
    link_right_of(&left, &right, guard);
    hook::reach(Point::SplitLinked);
    let lowkey = right.lowkey;
    ascend(left.into_node(), lowkey, right.into_node(), ascending, guard);
}

/// How many of the entries stay left: about half, but keys with the same slice stay together. A
/// node that is filled in ascending order stays full ([Mao] 3.1.3, there for the last one); what
/// lies behind the new key leaves it first.
fn boundary(slice: impl Fn(usize) -> u64, index: usize, ascending: bool) -> usize {
    let divides = |i: usize| slice(i - 1) != slice(i);
    let full = WIDTH.min(index + 1);
    if ascending && divides(full) {
        return full;
    }
    let middle = WIDTH.div_ceil(2);
    (1..=WIDTH)
        .filter(|&i| divides(i))
        .min_by_key(|&i| i.abs_diff(middle))
        .expect("at most ten keys share a slice")
}

fn link_right_of(left: &Locked<'_, Border>, right: &Locked<'_, Border>, guard: &Guard) {
    let next = left.next.load(guard);
    right.highkey.store(left.highkey.load());
    right.next.store(next);
    right.prev.store(Some(left.as_ref()));
    if let Some(next) = next {
        // Protected by the lock of `left`, which is its left neighbour until here.
        next.prev.store(Some(right.as_ref()));
    }
    left.next.store(Some(right.as_ref()));
    left.highkey.store(right.lowkey);
}

/// Inserts `right`, which leads on from `slice`, into the parent of `left`, splitting upward as
/// needed. `ascending`: keys seem to be put in order.
fn ascend<'g>(
    mut left: Locked<'g, Node>,
    mut slice: u64,
    mut right: Locked<'g, Node>,
    ascending: bool,
    guard: &'g Guard,
) {
    loop {
        let Some(parent) = left.lock_parent(guard) else {
            // Whoever comes to `left` as the entrance of its layer finds the new root above it.
            drop(Interior::new_root(left.as_ref(), slice, right.as_ref()));
            left.word().clear_root();
            return;
        };
        let index = parent.index_of(left.as_ref(), guard);
        if !parent.is_full() {
            parent.word().mark_inserting();
            parent.insert(index, slice, right.as_ref(), guard);
            drop((left, right, parent));
            return;
        }
        parent.word().mark_splitting();
        drop(left);
        let (sibling, middle) = parent.split_insert(index, slice, right.as_ref(), ascending, guard);
        slice = middle;
        left = parent.into_node();
        right = sibling.into_node();
    }
}
