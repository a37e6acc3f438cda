//! Changes to a key's value: one walk for all of them ([Mao] 3.1.5 and 3.1.6).
//!
//! Every change locks the border responsible for the key and there decides once, knowing the
//! current value. It holds locks of one layer at a time.

use crate::{
    border::{Border, Entry, Search},
    collapse::collapse,
    field::{LinkOrValue, LinkOrValueCell, RawValue, Ref},
    find::{LayerGone, layer_root, lock_border},
    get::top_layer,
    guard::Guard,
    hook::{self, Point},
    key::{LONG, Position, suffix},
    layer::build_layers,
    node::{Locked, Node},
    remove::unlink_if_empty,
    split::split_insert,
};

/// What to do with a key.
pub(crate) enum Change {
    Keep,
    Set(RawValue),
    Remove,
}

/// Lets `decide` choose what happens to `key`, given its value. Returns that value; if it was
/// replaced or removed, it is no longer the tree's, and the caller has to retire it.
pub(crate) fn change(
    root: &LinkOrValueCell,
    key: &[u8],
    guard: &Guard,
    decide: impl FnOnce(Option<RawValue>) -> Change,
) -> Option<RawValue> {
    'restart: loop {
        let mut cell = root;
        let mut entrance = top_layer(root, guard);
        let mut rest = key;
        let mut depth = 0;
        loop {
            let Ok(border) = enter_and_lock(cell, entrance, rest, guard) else { continue 'restart };
            let at = Position::of(rest);
            let search = border.search(border.permutation(), at);
            if let Search::Found { slot, .. } = search
                && let Some(LinkOrValue::Layer(next)) = border.target(slot, guard)
            {
                cell = border.as_ref().get().target_cell(slot);
                entrance = next;
                rest = suffix(rest);
                depth += 1;
                continue;
            }
            let outcome = match search {
                Search::Found { index, slot } => {
                    change_found(border, index, slot, rest, guard, decide)
                }
                Search::Missing { index } => change_missing(border, index, rest, guard, decide),
            };
            if outcome.layer_looks_empty && depth > 0 {
                hook::reach(Point::BeforeCollapse);
                collapse(root, key, depth, guard);
            }
            return outcome.old;
        }
    }
}

struct Outcome {
    old: Option<RawValue>,
    layer_looks_empty: bool,
}

impl Outcome {
    fn simple(old: Option<RawValue>) -> Self {
        Outcome { old, layer_looks_empty: false }
    }
}

/// Locks the border for what is left of the key in the layer of `entrance`. Makes the cell that
/// the entrance came from lead to the layer's root again if splits have put a new one above it.
fn enter_and_lock<'g>(
    cell: &LinkOrValueCell,
    entrance: Ref<'g, Node>,
    rest: &[u8],
    guard: &'g Guard,
) -> Result<Locked<'g, Border>, LayerGone> {
    hook::reach(Point::LayerEntered);
    let (root, _) = layer_root(entrance, guard)?;
    if root != entrance {
        hook::reach(Point::NewRootFound);
        // The cell may be another key's by now. Then it no longer holds this entrance, whose
        // address cannot be taken anew while we are pinned.
        cell.replace_layer(entrance, root);
    }
    lock_border(root, Position::of(rest).slice, guard)
}

fn change_found<'g>(
    border: Locked<'g, Border>,
    index: usize,
    slot: usize,
    rest: &[u8],
    guard: &'g Guard,
    decide: impl FnOnce(Option<RawValue>) -> Change,
) -> Outcome {
    let Some(LinkOrValue::Value(old)) = border.target(slot, guard) else {
        unreachable!("a live slot is filled, and layers were entered before");
    };
    let conflict = rest.len() >= usize::from(LONG) && border.suffix(slot, guard) != suffix(rest);
    if conflict {
        // Another key has this slice: it moves to a new layer together with ours. One store shows
        // readers both.
        if let Change::Set(new) = decide(None) {
            let layer = build_layers((border.suffix(slot, guard), old), (suffix(rest), new), guard);
            border.target_cell(slot).store(LinkOrValue::Layer(layer));
        }
        return Outcome::simple(None);
    }
    match decide(Some(old)) {
        Change::Keep => Outcome::simple(Some(old)),
        Change::Set(new) => {
            // Readers see the old value or the new one: no mark needed ([Mao] 3.1.6, "Updates").
            border.target_cell(slot).store(LinkOrValue::Value(new));
            Outcome::simple(Some(old))
        }
        Change::Remove => {
            border.take(index);
            let layer_looks_empty = unlink_if_empty(border, guard);
            Outcome { old: Some(old), layer_looks_empty }
        }
    }
}

fn change_missing<'g>(
    border: Locked<'g, Border>,
    index: usize,
    rest: &[u8],
    guard: &'g Guard,
    decide: impl FnOnce(Option<RawValue>) -> Change,
) -> Outcome {
    if let Change::Set(new) = decide(None) {
        let entry =
            Entry { at: Position::of(rest), target: LinkOrValue::Value(new), suffix: suffix(rest) };
        if border.is_full() {
            split_insert(border, index, entry, guard);
        } else {
            border.insert(index, entry, guard);
        }
    }
    Outcome::simple(None)
}
