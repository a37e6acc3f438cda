//! Changes to a key's value: one walk for all of them ([Mao] 3.1.5 and 3.1.6).
//!
//! Every change locks the border responsible for the key and there decides once, knowing the
//! current value. It holds locks of one layer at a time.

use crate::{
    border::{Border, Entry, Search},
    bucket::{Bucket, Keys, MOST},
    collapse::Emptied,
    field::{Link, LinkOrValue, RawValue, Ref},
    find::{BORDER_LINES, LayerGone, layer_root, lock_border},
    get::top_layer,
    guard::Guard,
    hook::{self, Point},
    key::{LONG, Position, SLICE, Suffix, suffix},
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
    (root, emptied): (&Link<Node>, &Emptied),
    key: &[u8],
    guard: &Guard,
    decide: impl FnOnce(Option<RawValue>) -> Change,
) -> Option<RawValue> {
    'restart: loop {
        let mut above = Above::Tree(root);
        let mut entrance = top_layer(root, guard);
        let mut rest = key;
        let mut depth = 0;
        loop {
            let Ok(border) = enter_and_lock(above, entrance, rest, guard) else {
                continue 'restart;
            };
            let at = Position::of(rest);
            let search = border.search(border.permutation(), at);
            let outcome = match search {
                Search::Found { slot } => match border.target(slot, guard) {
                    LinkOrValue::Layer(next) => {
                        above = Above::Slot(border.as_ref(), slot);
                        entrance = next;
                        next.prefetch(BORDER_LINES);
                        rest = suffix(rest);
                        depth += 1;
                        continue;
                    }
                    LinkOrValue::Bucket(bucket) => Outcome::simple(change_bucket(
                        border,
                        slot,
                        bucket,
                        suffix(rest),
                        guard,
                        decide,
                    )),
                    LinkOrValue::Value(old) => change_found(border, slot, old, rest, guard, decide),
                },
                Search::Missing { index } => change_missing(border, index, rest, guard, decide),
            };
            if outcome.layer_looks_empty && depth > 0 {
                hook::reach(Point::BeforeCollapse);
                emptied.add(root, &key[..depth * SLICE], guard);
            }
            return outcome.old;
        }
    }
}

/// Where the pointer to a layer was found.
#[derive(Clone, Copy)]
enum Above<'g> {
    Tree(&'g Link<Node>),
    Slot(Ref<'g, Border>, usize),
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

/// Locks the border for what is left of the key in the layer of `entrance`. Makes the place that
/// the entrance came from lead to the layer's root again if splits have put a new one above it.
fn enter_and_lock<'g>(
    above: Above<'g>,
    entrance: Ref<'g, Node>,
    rest: &[u8],
    guard: &'g Guard,
) -> Result<Locked<'g, Border>, LayerGone> {
    hook::reach(Point::LayerEntered);
    let (root, _) = layer_root(entrance, guard)?;
    if root != entrance {
        hook::reach(Point::NewRootFound);
        // The slot may be another key's by now, or have moved to another border. Then a later
        // writer brings it up to date.
        match above {
            Above::Tree(link) => link.replace(entrance, root),
            Above::Slot(border, slot) => border.lock().replace_layer(slot, entrance, root),
        }
    }
    lock_border(root, Position::of(rest), guard)
}

fn change_found<'g>(
    border: Locked<'g, Border>,
    slot: usize,
    old: RawValue,
    rest: &[u8],
    guard: &'g Guard,
    decide: impl FnOnce(Option<RawValue>) -> Change,
) -> Outcome {
    let is_long = rest.len() >= usize::from(LONG);
    if is_long && !border.key_has_suffix(slot, suffix(rest), guard) {
        // Another key has this slice: it moves to a bucket together with ours.
        if let Change::Set(new) = decide(None) {
            let other = border.entry(slot, guard).suffix;
            let keys = Keys::pair((other.as_bytes(), old), (suffix(rest), new));
            border.set_link(slot, LinkOrValue::Bucket(Bucket::of(&keys)));
        }
        return Outcome::simple(None);
    }
    match decide(Some(old)) {
        Change::Keep => Outcome::simple(Some(old)),
        Change::Set(new) => {
            border.set_value(slot, new);
            Outcome::simple(Some(old))
        }
        Change::Remove => {
            border.take(slot);
            let layer_looks_empty = unlink_if_empty(border, guard);
            Outcome { old: Some(old), layer_looks_empty }
        }
    }
}

/// Changes a key that shares its slice with those of a bucket. Apart, as `find` is.
#[inline(never)]
fn change_bucket<'g>(
    border: Locked<'g, Border>,
    slot: usize,
    bucket: Ref<'g, Bucket>,
    suffix: &[u8],
    guard: &'g Guard,
    decide: impl FnOnce(Option<RawValue>) -> Change,
) -> Option<RawValue> {
    let mut keys = bucket.keys();
    let place = bucket.search(suffix);
    let old = place.ok().map(|index| bucket.value(index));
    match (place, decide(old)) {
        (Ok(index), Change::Set(new)) => {
            bucket.set_value(index, new);
            return old;
        }
        (Ok(index), Change::Remove) => {
            keys.remove(index);
            match *keys {
                [single] => border.set_single(slot, single, guard),
                _ => border.replace_bucket(slot, Bucket::of(&keys)),
            }
        }
        (Err(index), Change::Set(new)) => {
            keys.insert(index, (suffix, new));
            if keys.len() <= MOST {
                border.replace_bucket(slot, Bucket::of(&keys));
            } else {
                let layer = build_layers(&mut keys, guard);
                border.set_link(slot, LinkOrValue::Layer(layer));
            }
        }
        (_, Change::Keep | Change::Remove) => return old,
    }
    bucket.retire(guard);
    old
}

fn change_missing<'g>(
    border: Locked<'g, Border>,
    index: usize,
    rest: &[u8],
    guard: &'g Guard,
    decide: impl FnOnce(Option<RawValue>) -> Change,
) -> Outcome {
    if let Change::Set(new) = decide(None) {
        let suffix = Suffix::Bytes(suffix(rest));
        let entry = Entry { at: Position::of(rest), target: LinkOrValue::Value(new), suffix };
        if border.is_full() {
            split_insert(border, index, entry, guard);
        } else {
            border.insert(index, entry, guard);
        }
    }
    Outcome::simple(None)
}
