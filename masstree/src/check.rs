//! A complete check of a tree at rest, for tests and diagnosis.

use crate::{
    border::Border,
    bucket,
    field::{LinkOrValue, Ref},
    get::top_layer,
    guard::{Guard, pin},
    key::{LONG, Position},
    node::Node,
    slot::Slot,
    tree::{Masstree, layer_top},
};

/// How much there is of what in a tree.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Shape {
    /// Keys with a value.
    pub keys: usize,
    /// Layers; layer 0 is always there.
    pub layers: usize,
    /// Buckets: what layers are while they have two to four keys.
    pub buckets: usize,
    /// Border nodes.
    pub borders: usize,
    /// Interior nodes.
    pub interiors: usize,
}

impl<V: Slot> Masstree<V> {
    /// Checks every invariant of the structure and counts its parts.
    ///
    /// # Panics
    /// If an invariant does not hold.
    pub fn check(&mut self) -> Shape {
        let guard = pin();
        self.collapse_emptied(&guard);
        let mut shape = Shape::default();
        let mut entrances = vec![top_layer(self.root(), &guard)];
        while let Some(entrance) = entrances.pop() {
            let keys_or_layers = check_layer(entrance, &mut shape, &mut entrances, &guard);
            assert!(shape.layers == 1 || keys_or_layers > 0, "an empty layer was not collapsed");
        }
        assert_eq!(shape.keys, self.len());
        shape
    }
}

/// Checks one layer and adds those below it to `entrances`. Returns how many keys it has.
fn check_layer<'g>(
    entrance: Ref<'g, Node>,
    shape: &mut Shape,
    entrances: &mut Vec<Ref<'g, Node>>,
    guard: &'g Guard,
) -> usize {
    shape.layers += 1;
    let root = layer_top(entrance, guard);
    let borders = check_interiors(root, entrance, shape, guard);
    let mut keys = 0;
    for (i, border) in borders.iter().enumerate() {
        let before = i.checked_sub(1).map(|i| borders[i]);
        let after = borders.get(i + 1).copied();
        assert!(border.prev.load(guard) == before && border.next.load(guard) == after);
        assert_eq!(border.highkey.load(), after.map_or(u64::MAX, |after| after.lowkey));
        assert!(i == 0 || border.permutation().len() > 0, "an empty border is still there");
        keys += border.permutation().len();
        check_border(*border, after.is_none(), shape, entrances, guard);
    }
    keys
}

/// Checks the tree above a layer's borders and returns these from left to right.
fn check_interiors<'g>(
    root: Ref<'g, Node>,
    entrance: Ref<'g, Node>,
    shape: &mut Shape,
    guard: &'g Guard,
) -> Vec<Ref<'g, Border>> {
    let mut borders = Vec::new();
    let mut entrance_is_leftmost = false;
    // Nodes with the slice from which they lead on, and the one before which they end.
    let mut left = vec![(root, 0, None)];
    while let Some((node, low, high)) = left.pop() {
        let version = node.get().version.at_rest();
        assert!(!version.is_deleted());
        assert_eq!(version.is_root(), node == root);
        entrance_is_leftmost |= node == entrance && low == 0;
        if version.is_border() {
            shape.borders += 1;
            assert_eq!(node.border().lowkey, low, "a separator is not its border's lower end");
            borders.push(node.border());
            continue;
        }
        shape.interiors += 1;
        let interior = node.interior();
        let nkeys = interior.nkeys();
        for i in (0..=nkeys).rev() {
            let child = interior.child(i, guard).expect("a child is there");
            assert!(child.get().parent.load(guard) == Some(interior));
            let from = if i == 0 { low } else { interior.key(i - 1) };
            let to = if i == nkeys { high } else { Some(interior.key(i)) };
            assert!(to.is_none_or(|to| from < to), "separators ascend");
            left.push((child, from, to));
        }
    }
    assert!(entrance_is_leftmost, "a layer is entered off its leftmost path");
    borders
}

fn check_border<'g>(
    border: Ref<'g, Border>,
    rightmost: bool,
    shape: &mut Shape,
    entrances: &mut Vec<Ref<'g, Node>>,
    guard: &'g Guard,
) {
    let border = border.lock();
    let permutation = border.permutation();
    let mut last: Option<Position> = None;
    for index in 0..permutation.len() {
        let slot = permutation.slot(index);
        let entry = border.entry(slot, guard);
        assert!(last.is_none_or(|last| last < entry.at), "keys ascend");
        assert!(entry.at.class <= LONG);
        assert!(entry.at.slice >= border.lowkey);
        assert!(rightmost || entry.at.slice < border.highkey.load());
        last = Some(entry.at);
        match entry.target {
            LinkOrValue::Layer(entrance) => {
                assert_eq!(entry.at.class, LONG);
                entrances.push(entrance);
            }
            LinkOrValue::Bucket(bucket) => {
                assert_eq!(entry.at.class, LONG);
                let keys = bucket.keys();
                assert!((2..=bucket::MOST).contains(&keys.len()));
                assert!(!keys[0].0.is_empty() && keys.is_sorted_by(|a, b| a.0 < b.0));
                shape.buckets += 1;
                shape.keys += keys.len();
            }
            LinkOrValue::Value(_) => {
                assert_eq!(entry.suffix.as_bytes().is_empty(), entry.at.class < LONG);
                shape.keys += 1;
            }
        }
    }
}
