//! Lookups ([Mao] figure 3-7). They write no shared memory.

use crate::{
    border::{Border, Raw},
    field::{Link, LinkOrValue, RawValue, Ref},
    find::{BORDER_LINES, find_border, settle},
    guard::Guard,
    hook::{self, Point},
    key::{LAYER, LONG, Position, suffix},
    node::{Node, prefetch},
};

/// What of a bucket is fetched before it is looked at: all, if its suffixes are short.
const BUCKET_LINES: usize = 1;

/// The value of `key`. The tree owned it at some moment of the call, so it is not dropped while
/// the guard lives.
pub(crate) fn get(root: &Link<Node>, key: &[u8], guard: &Guard) -> Option<RawValue> {
    'restart: loop {
        let mut layer = top_layer(root, guard);
        let mut rest = key;
        loop {
            let at = Position::of(rest);
            let Ok((mut border, mut version)) = find_border(layer, at, guard) else {
                continue 'restart;
            };
            let found = loop {
                let Ok(settled) = settle(border, version, at.slice, guard) else {
                    continue 'restart;
                };
                (border, version) = settled;
                hook::reach(Point::BorderFound);
                let found = read(border, at, suffix(rest), guard);
                hook::reach(Point::SlotRead);
                if !border.changed(version) {
                    break found;
                }
                version = border.stable();
            };
            // SAFETY: the version shows that what was read belongs together.
            match unsafe { found?.resolve(guard) } {
                LinkOrValue::Value(raw) => return Some(raw),
                LinkOrValue::Bucket(bucket) => return bucket.find(suffix(rest)),
                LinkOrValue::Layer(next) => {
                    layer = next;
                    rest = suffix(rest);
                    hook::reach(Point::LayerEntered);
                }
            }
        }
    }
}

/// The entrance of layer 0.
pub(crate) fn top_layer<'g>(root: &Link<Node>, guard: &'g Guard) -> Ref<'g, Node> {
    root.load(guard).expect("a tree has a layer 0")
}

/// What a border knows about a key, to be validated.
#[inline(always)]
pub(crate) fn read<'g>(
    border: Ref<'g, Border>,
    at: Position,
    suffix: &[u8],
    guard: &'g Guard,
) -> Option<Raw> {
    let border = border.get();
    let slot = border.find(border.permutation(), at)?;
    let raw = border.raw(slot);
    hook::reach(Point::TargetRead);
    if raw.kind >= LAYER {
        prefetch_link(raw);
    } else if at.class == LONG && !border.has_suffix(raw.kind, slot, suffix, guard) {
        return None;
    }
    Some(raw)
}

/// Fetches what a slot leads to: a bucket, or a node that is often not the layer's root any more,
/// but then a step away from it.
#[inline(always)]
pub(crate) fn prefetch_link(raw: Raw) {
    let lines = if raw.kind == LAYER { BORDER_LINES } else { BUCKET_LINES };
    for line in 0..lines {
        prefetch(raw.word.cast::<u8>().wrapping_add(64 * line));
    }
}
