//! The way to the border node that is responsible for a slice ([Mao] figures 3-6 and 3-7).
//!
//! Differs from the paper in one point: a border checks its own lower end too, and whoever meets a
//! deleted border goes on to its left neighbour, which took the range over, instead of back to
//! the root. A reader thus never waits for a remover to tidy the interior nodes up.

use crate::{
    border::Border,
    field::Ref,
    guard::Guard,
    hook::{self, Point},
    interior::Interior,
    key::{LONG, Position},
    node::{Locked, Node},
    version::{Version, relax},
};

/// The cache lines of a border.
pub(crate) const BORDER_LINES: usize = 6;
const INTERIOR_LINES: usize = 12;

/// The cache lines of a border that a lookup may need: the last is for long keys only.
pub(crate) fn border_lines(class: u8) -> usize {
    if class < LONG { BORDER_LINES - 1 } else { BORDER_LINES }
}

/// The layer was empty and has been taken out of the tree.
#[derive(Debug)]
pub(crate) struct LayerGone;

/// How much of a child of `interior` to fetch before a key of this class is looked for in it.
pub(crate) fn child_lines(interior: Ref<'_, Interior>, class: u8) -> usize {
    if interior.get().is_over_borders() { border_lines(class) } else { INTERIOR_LINES }
}

/// Climbs from an entrance of a layer to its root. An entrance is a node that was once the root;
/// splits put new roots above it. It is on the leftmost path, so it lives as long as its layer.
pub(crate) fn layer_root<'g>(
    entrance: Ref<'g, Node>,
    guard: &'g Guard,
) -> Result<(Ref<'g, Node>, Version), LayerGone> {
    let mut node = entrance;
    loop {
        let version = node.stable();
        if version.is_deleted() {
            return Err(LayerGone);
        }
        if version.is_root() {
            return Ok((node, version));
        }
        // The parent was stored before the root bit was cleared.
        node = node.parent.load(guard).expect("a node that is not a root has a parent").node();
    }
}

/// Goes down from a layer's entrance to a border at or near a position, validating hand over hand.
pub(crate) fn find_border<'g>(
    entrance: Ref<'g, Node>,
    at: Position,
    guard: &'g Guard,
) -> Result<(Ref<'g, Border>, Version), LayerGone> {
    let mut spins = 0;
    'retry: loop {
        let (mut node, mut version) = layer_root(entrance, guard)?;
        loop {
            if version.is_border() {
                return Ok((node.border(), version));
            }
            if version.is_deleted() {
                // Its remover is about to take it out of its parent.
                relax(&mut spins);
                continue 'retry;
            }
            // None only if the node is being filled: then it has changed.
            let child = node.interior().get().child_for(at.slice, guard);
            if let Some(child) = child {
                child.prefetch(child_lines(node.interior(), at.class));
                let child_version = child.stable();
                if !node.changed(version) {
                    (node, version) = (child, child_version);
                    continue;
                }
            }
            let now = node.stable();
            if now.split_since(version) {
                continue 'retry;
            }
            version = now;
        }
    }
}

/// Goes from a border to the one responsible for `slice`, as of the version that is returned with
/// it: a reader validates that version after it has read the node.
pub(crate) fn settle<'g>(
    mut border: Ref<'g, Border>,
    mut version: Version,
    slice: u64,
    guard: &'g Guard,
) -> Result<(Ref<'g, Border>, Version), LayerGone> {
    while let Some(neighbour) = toward(border, version, slice, guard)? {
        border = neighbour;
        version = border.stable();
    }
    Ok((border, version))
}

/// Locks the border responsible for a position.
pub(crate) fn lock_border<'g>(
    entrance: Ref<'g, Node>,
    at: Position,
    guard: &'g Guard,
) -> Result<Locked<'g, Border>, LayerGone> {
    let (mut border, _) = find_border(entrance, at, guard)?;
    hook::reach(Point::BeforeLock);
    loop {
        let locked = border.lock();
        match toward(border, locked.word().held_version(), at.slice, guard)? {
            Some(neighbour) => border = neighbour,
            None => return Ok(locked),
        }
    }
}

/// The neighbour in whose direction the border responsible for `slice` is, or none if this is it.
fn toward<'g>(
    border: Ref<'g, Border>,
    version: Version,
    slice: u64,
    guard: &'g Guard,
) -> Result<Option<Ref<'g, Border>>, LayerGone> {
    if version.is_deleted() || slice < border.lowkey {
        // Only the leftmost border has none to its left: it covers all low slices, and is deleted
        // last.
        return border.prev.load(guard).map(Some).ok_or(LayerGone);
    }
    Ok(border.get().next_if_beyond(slice, guard))
}
