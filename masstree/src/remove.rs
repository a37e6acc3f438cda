//! Empty borders and their empty ancestors leave the tree ([Mao] 3.1.6, "Removes").
//!
//! A border that became empty locks its left neighbour, which takes its range over; then it is
//! taken out of its parent, and so are ancestors that this leaves without children. Where the
//! first child of an interior goes, the separator above is raised, so that what led to the removed
//! child leads to the left neighbour.
//!
//! Deliberately absent: merging of nodes that are merely small.

use crate::{
    border::Border,
    field::Ref,
    guard::Guard,
    hook::{self, Point},
    interior::Interior,
    node::{Locked, Node, lock_parent},
};

/// Takes a border that has no keys any more out of its layer, unless it is the leftmost. Returns
/// whether the layer now looks empty: it then is to be collapsed.
pub(crate) fn unlink_if_empty<'g>(border: Locked<'g, Border>, guard: &'g Guard) -> bool {
    if border.permutation().len() > 0 {
        return false;
    }
    let Some(left) = lock_left_neighbour(&border, guard) else {
        return border.next.is_none();
    };
    left.word().mark_splitting();
    border.word().mark_deleted();
    let next = border.next.load(guard);
    if let Some(next) = next {
        // Protected by the lock of `border`, which is its left neighbour until here.
        next.prev.store(Some(left.as_ref()));
    }
    left.next.store(next);
    left.highkey.store(border.highkey.load());
    let neighbour = left.as_ref();
    drop(left);
    let removed = border.as_ref().node();
    drop(border);
    hook::reach(Point::BorderUnlinked);
    detach(removed, guard);
    looks_empty(neighbour, guard)
}

/// Whether the layer seems to have no keys, judged from a border that was left of one just removed.
///
/// Unlocked reads suffice: `collapse` decides under locks. And no empty layer is overlooked. A
/// remover that is turned away there met a border or an interior that another remover had yet to
/// lock; that one looks later, and sees what was done under the earlier lock.
fn looks_empty(border: Ref<'_, Border>, guard: &Guard) -> bool {
    let mut border = border;
    while border.stable().is_deleted() {
        let Some(left) = border.prev.load(guard) else { return false };
        border = left;
    }
    border.prev.is_none() && border.next.is_none() && border.permutation().len() == 0
}

/// The left neighbour, locked, or none for the leftmost border. The field `prev` changes only
/// under the lock of the neighbour it names, hence the second look.
fn lock_left_neighbour<'g>(
    border: &Locked<'g, Border>,
    guard: &'g Guard,
) -> Option<Locked<'g, Border>> {
    loop {
        let left = border.prev.load(guard)?;
        hook::reach(Point::LeftNeighbourSeen);
        let locked = left.lock();
        if border.prev.load(guard) == Some(left) {
            return Some(locked);
        }
    }
}

/// Takes a deleted node out of its parent, deleting ancestors that become empty, and retires all
/// of them. Not for the leftmost path, whose nodes stay.
fn detach<'g>(removed: Ref<'g, Node>, guard: &'g Guard) {
    let mut unlinked = vec![removed];
    let mut child = removed;
    loop {
        let parent = lock_parent(child, guard).expect("only the leftmost path leads to the root");
        if parent.nkeys() == 0 {
            assert!(parent.child(0, guard).is_some_and(|only| only == child));
            parent.word().mark_deleted();
            child = parent.as_ref().node();
            unlinked.push(child);
            continue;
        }
        let index = parent.index_of(child, guard);
        parent.word().mark_inserting();
        if let Some(lower_end) = parent.remove(index, guard) {
            raise_separator(parent, lower_end, guard);
        }
        break;
    }
    // Only now is the last link to them gone.
    for node in unlinked {
        node.retire(guard);
    }
}

/// The first child of `node` now leads on from `lower_end` only: says so where the path to `node`
/// branches off. Locks go up hand over hand, so that of two such changes the later and greater
/// one arrives later.
fn raise_separator<'g>(node: Locked<'g, Interior>, lower_end: u64, guard: &'g Guard) {
    let mut node = node;
    loop {
        let parent = node.lock_parent(guard).expect("only the leftmost path leads to the root");
        let index = parent.index_of(node.as_ref().node(), guard);
        if index > 0 {
            parent.word().mark_inserting();
            parent.set_lower_end(index, lower_end);
            return;
        }
        node = parent;
        hook::reach(Point::SeparatorStale);
    }
}
