//! Empty layers leave the tree ([Mao] 3.1.6, last paragraph of "Removes").
//!
//! The remove that leaves a layer empty collapses it right after, in a second walk that locks from
//! the upper layer down: the border with the layer's slot, then the layer's only border and the
//! interiors above that, which by then have one child each. Differs from the paper, which leaves it
//! to a deferred task.
//!
//! An insert that races with this either comes first, and the layer is not empty, or finds the
//! layer's nodes deleted and starts over.

use crate::{
    border::{Border, Search},
    field::{Link, LinkOrValue, Ref},
    find::{find_border, lock_border, settle},
    get::top_layer,
    guard::Guard,
    key::{LONG, Position, SLICE},
    node::{Locked, Node},
    remove::unlink_if_empty,
};

/// Takes the layer at `depth` on the way of `key` out of the tree if it is empty, and then the
/// layers above it that this leaves empty.
pub(crate) fn collapse(root: &Link<Node>, key: &[u8], depth: usize, guard: &Guard) {
    let Some(path) = path_of(root, key, depth, guard) else { return };
    for (upper, layer) in path.into_iter().enumerate().rev() {
        let at = Position::of(&key[upper * SLICE..]);
        // Any failure means that another thread changed something on the way: it is not empty, or
        // whoever empties it collapses it.
        let Ok(border) = lock_border(layer, at.slice, guard) else { return };
        let Search::Found { index, slot } = border.search(border.permutation(), at) else { return };
        let LinkOrValue::Layer(entrance) = border.target(slot, guard) else { return };
        let Some(nodes) = lock_empty_layer(entrance, guard) else { return };
        for node in &nodes {
            node.word().mark_deleted();
        }
        border.take(index);
        let nodes: Vec<_> = nodes.into_iter().map(|node| node.as_ref()).collect();
        for node in nodes {
            node.retire(guard);
        }
        if !unlink_if_empty(border, guard) {
            return;
        }
    }
}

/// Entrances of the layers 0 to `depth - 1` that `key` passes through.
fn path_of<'g>(
    root: &Link<Node>,
    key: &[u8],
    depth: usize,
    guard: &'g Guard,
) -> Option<Vec<Ref<'g, Node>>> {
    let mut path = vec![top_layer(root, guard)];
    while path.len() < depth {
        let at = Position::of(&key[(path.len() - 1) * SLICE..]);
        let next = next_layer(*path.last()?, at, guard)?;
        path.push(next);
    }
    Some(path)
}

fn next_layer<'g>(layer: Ref<'g, Node>, at: Position, guard: &'g Guard) -> Option<Ref<'g, Node>> {
    debug_assert_eq!(at.class, LONG);
    let (mut border, mut version) = find_border(layer, at.slice, guard).ok()?;
    loop {
        (border, version) = settle(border, version, at.slice, guard).ok()?;
        let found = border.find(border.permutation(), at).map(|slot| border.raw(slot));
        if !border.changed(version) {
            // SAFETY: the version shows that what was read belongs together.
            let LinkOrValue::Layer(next) = (unsafe { found?.resolve(guard) }) else { return None };
            return Some(next);
        }
        version = border.stable();
    }
}

/// Locks all nodes of a layer that has no keys: the leftmost border and a chain of interiors up to
/// the root. `None` if there is more, or less, to the layer.
fn lock_empty_layer<'g>(
    entrance: Ref<'g, Node>,
    guard: &'g Guard,
) -> Option<Vec<Locked<'g, Node>>> {
    let mut node = entrance;
    while !node.get().version.is_border() {
        // Never changes on the leftmost path (interior.rs).
        node = node.interior().get().child(0, guard)?;
    }
    let border: Locked<'g, Border> = node.border().lock();
    if border.word().held_version().is_deleted()
        || border.permutation().len() > 0
        || !border.next.is_none()
    {
        return None;
    }
    let mut nodes = vec![border.into_node()];
    while let Some(top) = nodes.last()
        && !top.word().held_version().is_root()
    {
        let parent = top.lock_parent(guard)?;
        if parent.nkeys() > 0 {
            // A remove has taken a border out of the list and is on its way to take it out here.
            // It looks at the layer again after that.
            return None;
        }
        nodes.push(parent.into_node());
    }
    Some(nodes)
}
