//! Lookups of many keys at once, whose waits for memory overlap ([Mao] 3.1.8 names this as what a
//! single lookup cannot do).
//!
//! Up to `LANES` lookups take turns. Each turn goes one node down and asks for the node below,
//! which arrives while the others have theirs. A lane that meets a change falls back on a plain
//! lookup.

use std::array;

use crate::{
    bucket::Bucket,
    field::{Link, LinkOrValue, RawValue, Ref},
    find::child_lines,
    get::{get, read, top_layer},
    guard::Guard,
    key::{Position, suffix},
    node::Node,
    version::Version,
};

/// Lookups in flight. A core has at least so many outstanding misses, at some lines per node.
const LANES: usize = 16;

/// One lookup on its way.
#[derive(Clone, Copy)]
struct Lane<'g, 'k> {
    rest: &'k [u8],
    node: Ref<'g, Node>,
    /// The node above in the layer, to be validated once this one's version is known; none at a
    /// layer's entrance.
    above: Option<(Ref<'g, Node>, Version)>,
    /// The bucket that the way has led to.
    bucket: Option<Ref<'g, Bucket>>,
}

enum Step {
    Moved,
    Found(Option<RawValue>),
    /// A change was met.
    Lost,
}

impl<'g> Lane<'g, '_> {
    fn step(&mut self, guard: &'g Guard) -> Step {
        if let Some(bucket) = self.bucket {
            return Step::Found(bucket.find(self.rest));
        }
        let node = self.node;
        let version = node.stable();
        let valid = match self.above {
            Some((above, seen)) => !above.changed(seen),
            None => version.is_root(),
        };
        if !valid || version.is_deleted() {
            return Step::Lost;
        }
        let at = Position::of(self.rest);
        if !version.is_border() {
            let interior = node.interior();
            let Some(child) = interior.get().child_for(at.slice, guard) else { return Step::Lost };
            child.prefetch(child_lines(interior, at.class));
            *self = Lane { node: child, above: Some((node, version)), ..*self };
            return Step::Moved;
        }
        let border = node.border();
        if slice_is_elsewhere(border, at.slice, guard) {
            return Step::Lost;
        }
        let found = read(border, at, suffix(self.rest), guard);
        if border.changed(version) {
            return Step::Lost;
        }
        // SAFETY: the version shows that what was read belongs together.
        match found.map(|raw| unsafe { raw.resolve(guard) }) {
            None => Step::Found(None),
            Some(LinkOrValue::Value(raw)) => Step::Found(Some(raw)),
            Some(LinkOrValue::Layer(next)) => {
                *self = Lane { rest: suffix(self.rest), node: next, above: None, ..*self };
                Step::Moved
            }
            Some(LinkOrValue::Bucket(bucket)) => {
                *self = Lane { rest: suffix(self.rest), bucket: Some(bucket), ..*self };
                Step::Moved
            }
        }
    }
}

fn slice_is_elsewhere<'g>(
    border: Ref<'g, crate::border::Border>,
    slice: u64,
    guard: &'g Guard,
) -> bool {
    slice < border.lowkey || border.next_if_beyond(slice, guard).is_some()
}

/// Looks up all keys and hands each one's number and value to `each`, in no particular order.
pub(crate) fn multi_get<K: AsRef<[u8]>>(
    root: &Link<Node>,
    keys: &[K],
    guard: &Guard,
    mut each: impl FnMut(usize, Option<RawValue>),
) {
    for (chunk, keys) in keys.chunks(LANES).enumerate() {
        let first = chunk * LANES;
        let top = top_layer(root, guard);
        let mut lanes: [Lane<'_, '_>; LANES] = array::from_fn(|i| Lane {
            rest: keys.get(i).map_or(&[], AsRef::as_ref),
            node: top,
            above: None,
            bucket: None,
        });
        let mut active = (1u32 << keys.len()) - 1;
        while active != 0 {
            let mut turn = active;
            while turn != 0 {
                let i = turn.trailing_zeros() as usize;
                turn &= turn - 1;
                let found = match lanes[i].step(guard) {
                    Step::Moved => continue,
                    Step::Found(found) => found,
                    Step::Lost => get(root, keys[i].as_ref(), guard),
                };
                active &= !(1 << i);
                each(first + i, found);
            }
        }
    }
}
