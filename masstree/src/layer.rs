//! New layers ([Mao] 3.1.6, "New layers").
//!
//! A slot's layer pointer is an entrance: the node that was the layer's root when the pointer was
//! stored. Splits put new roots above it without touching the slot, which belongs to another
//! layer; later writers bring the pointer up to date. Invariant: entrances are on the leftmost path
//! of their layer, and nodes there are not deleted before the whole layer is (interior.rs), so an
//! entrance never dangles.

use crate::{
    border::{Border, Entry},
    field::{LinkOrValue, RawValue, Ref},
    guard::Guard,
    key::{LONG, Position, Suffix, suffix},
    node::{Locked, Node},
};

/// Builds the layers that hold two different keys whose `(rest, value)` are given: one for every
/// slice that both share and go beyond, and one that tells them apart. A loop, so that keys may
/// share any number of slices.
pub(crate) fn build_layers<'g>(
    old: (&[u8], RawValue),
    new: (&[u8], RawValue),
    guard: &Guard,
) -> Ref<'g, Node> {
    let (mut old_rest, mut new_rest) = (old.0, new.0);
    let mut shared = Vec::new();
    while Position::of(old_rest) == Position::of(new_rest) {
        shared.push(Position::of(new_rest));
        assert!(old_rest.len() >= usize::from(LONG), "equal keys never need a new layer");
        (old_rest, new_rest) = (suffix(old_rest), suffix(new_rest));
    }
    let mut last = [value_entry(old_rest, old.1), value_entry(new_rest, new.1)];
    last.sort_by_key(|entry| entry.at);
    let mut layer: Ref<'g, Node> = layer_of(&last, guard);
    for at in shared.into_iter().rev() {
        layer = layer_of(
            &[Entry { at, target: LinkOrValue::Layer(layer), suffix: Suffix::NONE }],
            guard,
        );
    }
    layer
}

fn value_entry(rest: &[u8], value: RawValue) -> Entry<'_> {
    let suffix = Suffix::Bytes(suffix(rest));
    Entry { at: Position::of(rest), target: LinkOrValue::Value(value), suffix }
}

/// A layer of one border with the given keys.
fn layer_of<'g>(entries: &[Entry<'_>], guard: &Guard) -> Ref<'g, Node> {
    let border: Locked<'g, Border> = Border::new_locked(0, true);
    border.reserve_suffixes(entries);
    for (index, entry) in entries.iter().enumerate() {
        border.insert(index, *entry, guard);
    }
    border.as_ref().node()
}
