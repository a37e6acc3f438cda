//! New layers ([Mao] 3.1.6, "New layers").
//!
//! A slot's layer pointer is an entrance: the node that was the layer's root when the pointer was
//! stored. Splits put new roots above it without touching the slot, which belongs to another
//! layer; later writers bring the pointer up to date. Invariant: entrances are on the leftmost path
//! of their layer, and nodes there are not deleted before the whole layer is (interior.rs), so an
//! entrance never dangles.

use crate::{
    border::{Border, Entry},
    bucket::{Bucket, Key},
    field::{LinkOrValue, Ref},
    guard::Guard,
    key::{LONG, Position, Suffix, suffix},
    node::{Locked, Node},
};

/// Builds the layers that hold different keys, ascending, whose suffixes and values are given: one
/// for every slice that all share and go beyond, and one that tells some of them apart. A loop, so
/// that keys may share any number of slices.
pub(crate) fn build_layers<'g>(keys: &mut [Key<'_>], guard: &Guard) -> Ref<'g, Node> {
    let mut shared = Vec::new();
    loop {
        let at = Position::of(keys[0].0);
        if keys.iter().any(|(rest, _)| Position::of(rest) != at) {
            break;
        }
        assert!(at.class == LONG, "equal keys never need a new layer");
        shared.push(at);
        keys.iter_mut().for_each(|(rest, _)| *rest = suffix(rest));
    }
    let groups = keys.chunk_by_mut(|a, b| Position::of(a.0) == Position::of(b.0));
    let last: Vec<_> = groups.map(entry_of).collect();
    let mut layer: Ref<'g, Node> = layer_of(&last, guard);
    for at in shared.into_iter().rev() {
        layer = layer_of(
            &[Entry { at, target: LinkOrValue::Layer(layer), suffix: Suffix::NONE }],
            guard,
        );
    }
    layer
}

/// The entry for keys that share a slice; fewer than would burst a bucket.
fn entry_of<'k>(keys: &mut [Key<'k>]) -> Entry<'k> {
    let at = Position::of(keys[0].0);
    keys.iter_mut().for_each(|(rest, _)| *rest = suffix(rest));
    match keys {
        [(suffix, value)] => {
            Entry { at, target: LinkOrValue::Value(*value), suffix: Suffix::Bytes(suffix) }
        }
        _ => Entry { at, target: LinkOrValue::Bucket(Bucket::of(keys)), suffix: Suffix::NONE },
    }
}

/// A layer of one border with the given keys.
fn layer_of<'g>(entries: &[Entry<'_>], guard: &Guard) -> Ref<'g, Node> {
    let border: Locked<'g, Border> = Border::new_locked(0, true);
    border.reserve_suffixes(entries.iter().copied());
    for (index, entry) in entries.iter().enumerate() {
        border.insert(index, *entry, guard);
    }
    border.as_ref().node()
}
