//! Empty layers leave the tree, later ([Mao] 3.1.6, last paragraph of "Removes").
//!
//! A layer that a remove left empty is noted, and collapsed once so many others have been emptied
//! after it, unless it has keys again: a layer that is filled and emptied in turn stays. There is
//! no thread for it; the remove that notes one layer collapses another.
//!
//! To collapse a layer is a walk of its own, which locks from the upper layer down: the border with
//! the layer's slot, then the layer's only border and the interiors above that, which by then have
//! one child each. An insert that races with this either comes first, and the layer is not empty,
//! or finds the layer's nodes deleted and starts over.

use std::{
    collections::VecDeque,
    sync::{Mutex, MutexGuard, PoisonError},
};

use crate::{
    border::{Border, Search},
    field::{Link, LinkOrValue, Ref},
    find::{find_border, lock_border, settle},
    get::top_layer,
    guard::Guard,
    key::{LONG, Position, SLICE, slice},
    node::{Locked, Node},
    remove::unlink_if_empty,
};

/// Empty layers that may stay in a tree.
const DELAY: usize = 64;

/// Layers that removes left empty, by the slices that lead there, the earliest first.
#[derive(Default)]
pub(crate) struct Emptied(Mutex<VecDeque<Box<[u8]>>>);

impl Emptied {
    /// Notes an empty layer, and collapses the one that has waited longest if that makes too many.
    #[cold]
    pub(crate) fn add(&self, root: &Link<Node>, path: &[u8], guard: &Guard) {
        let mut waiting = self.lock();
        if waiting.iter().any(|other| **other == *path) {
            return;
        }
        waiting.push_back(path.into());
        let due = if waiting.len() > DELAY { waiting.pop_front() } else { None };
        drop(waiting);
        if let Some(path) = due {
            collapse(root, &path, guard);
        }
    }

    /// Collapses all that are still empty.
    pub(crate) fn collapse_all(&self, root: &Link<Node>, guard: &Guard) {
        let all = std::mem::take(&mut *self.lock());
        all.iter().for_each(|path| collapse(root, path, guard));
    }

    fn lock(&self) -> MutexGuard<'_, VecDeque<Box<[u8]>>> {
        // The queue is whole at every moment at which a panic is possible.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Takes the layer to which `path` leads out of the tree if it is empty, and then the layers above
/// it that this leaves empty.
fn collapse(root: &Link<Node>, path: &[u8], guard: &Guard) {
    let Some(layers) = layers_above(root, path, guard) else { return };
    for (upper, layer) in layers.into_iter().enumerate().rev() {
        let at = place(path, upper);
        // Any failure means that something on the way has changed: it is not empty, or whoever
        // empties it notes it again.
        let Ok(border) = lock_border(layer, at, guard) else { return };
        let Search::Found { slot } = border.search(border.permutation(), at) else { return };
        let LinkOrValue::Layer(entrance) = border.target(slot, guard) else { return };
        let Some(nodes) = lock_empty_layer(entrance, guard) else { return };
        for node in &nodes {
            node.word().mark_deleted();
        }
        border.take(slot);
        let nodes: Vec<_> = nodes.into_iter().map(|node| node.as_ref()).collect();
        for node in nodes {
            node.retire(guard);
        }
        if !unlink_if_empty(border, guard) {
            return;
        }
    }
}

/// Where in layer `upper` the path goes on.
fn place(path: &[u8], upper: usize) -> Position {
    Position { slice: slice(&path[upper * SLICE..]), class: LONG }
}

/// Entrances of the layers that the path passes through before its last.
fn layers_above<'g>(
    root: &Link<Node>,
    path: &[u8],
    guard: &'g Guard,
) -> Option<Vec<Ref<'g, Node>>> {
    let mut layers = vec![top_layer(root, guard)];
    while layers.len() < path.len() / SLICE {
        let next = next_layer(*layers.last()?, place(path, layers.len() - 1), guard)?;
        layers.push(next);
    }
    Some(layers)
}

fn next_layer<'g>(layer: Ref<'g, Node>, at: Position, guard: &'g Guard) -> Option<Ref<'g, Node>> {
    let (mut border, mut version) = find_border(layer, at, guard).ok()?;
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

#[cfg(all(test, not(loom)))]
mod tests {
    use crate::{
        Masstree,
        field::{LinkOrValue, Ref},
        find::lock_border,
        get::top_layer,
        guard::{Guard, pin},
        key::{LONG, Position},
        node::Node,
    };

    use super::DELAY;

    /// Five keys of each group are a layer.
    fn key(group: u64, i: u64) -> Vec<u8> {
        [group.to_be_bytes(), i.to_be_bytes()].concat()
    }

    fn fill(tree: &Masstree<u64>, group: u64) {
        (0..5).for_each(|i| assert!(tree.put(&key(group, i), i, &pin()).is_none()));
    }

    fn empty(tree: &Masstree<u64>, group: u64) {
        (0..5).for_each(|i| assert_eq!(tree.remove(&key(group, i), &pin()), Some(i)));
    }

    /// The layer of the tree's first slot.
    fn first_layer<'g>(tree: &Masstree<u64>, guard: &'g Guard) -> Option<Ref<'g, Node>> {
        let at = Position { slice: 0, class: LONG };
        let border = lock_border(top_layer(tree.root(), guard), at, guard).expect("layer 0");
        match border.target(border.permutation().slot(0), guard) {
            LinkOrValue::Layer(layer) => Some(layer),
            _ => None,
        }
    }

    fn waiting(tree: &Masstree<u64>) -> usize {
        tree.emptied().lock().len()
    }

    #[test]
    fn so_many_empty_layers_wait() {
        let mut tree = Masstree::new();
        (0..200).for_each(|group| fill(&tree, group));
        assert_eq!(tree.check().layers, 1 + 200);
        (0..200).for_each(|group| empty(&tree, group));
        assert_eq!(waiting(&tree), DELAY);
        let guard = pin();
        assert!(tree.is_empty() && tree.iter(&guard).next().is_none());
        assert!(tree.iter(&guard).next_back().is_none());
        assert_eq!(tree.check().layers, 1);
        assert_eq!(waiting(&tree), 0);
    }

    #[test]
    fn a_layer_that_is_filled_again_stays() {
        let tree = Masstree::new();
        let guard = pin();
        fill(&tree, 0);
        let layer = first_layer(&tree, &guard);
        assert!(layer.is_some());
        for _ in 0..3 * DELAY {
            empty(&tree, 0);
            fill(&tree, 0);
        }
        assert!(first_layer(&tree, &guard) == layer);
        // Its turn comes when it has keys, and then again when it has none.
        for round in [1, 1000] {
            for group in round..round + 2 * DELAY as u64 {
                fill(&tree, group);
                empty(&tree, group);
            }
            assert_eq!(waiting(&tree), DELAY);
            assert_eq!(first_layer(&tree, &guard) == layer, round == 1);
            if round == 1 {
                (0..5).for_each(|i| assert_eq!(tree.get(&key(0, i), &guard), Some(i)));
                empty(&tree, 0);
            }
        }
    }
}
