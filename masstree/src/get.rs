//! Lookups ([Mao] figure 3-7). They write no shared memory.

use crate::{
    border::{Border, Search},
    field::{LinkOrValue, LinkOrValueCell, RawValue, Ref},
    find::{find_border, settle},
    guard::Guard,
    hook::{self, Point},
    key::{LONG, Position, suffix},
    node::Node,
};

/// What a border knows about a key.
enum Found<'g> {
    Missing,
    Value(RawValue),
    Layer(Ref<'g, Node>),
}

/// The value of `key`. The tree owned it at some moment of the call, so it is not dropped while
/// the guard lives.
pub(crate) fn get(root: &LinkOrValueCell, key: &[u8], guard: &Guard) -> Option<RawValue> {
    'restart: loop {
        let mut layer = top_layer(root, guard);
        let mut rest = key;
        loop {
            let at = Position::of(rest);
            let Ok((mut border, mut version)) = find_border(layer, at.slice, guard) else {
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
            match found {
                Found::Missing => return None,
                Found::Value(raw) => return Some(raw),
                Found::Layer(next) => {
                    layer = next;
                    rest = suffix(rest);
                    hook::reach(Point::LayerEntered);
                }
            }
        }
    }
}

/// The entrance of layer 0.
pub(crate) fn top_layer<'g>(root: &LinkOrValueCell, guard: &'g Guard) -> Ref<'g, Node> {
    match root.load(guard) {
        Some(LinkOrValue::Layer(node)) => node,
        _ => unreachable!("the root cell always leads to layer 0"),
    }
}

fn read<'g>(border: Ref<'g, Border>, at: Position, suffix: &[u8], guard: &'g Guard) -> Found<'g> {
    let border = border.get();
    let Search::Found { slot, .. } = border.search(border.permutation(), at) else {
        return Found::Missing;
    };
    let target = border.target(slot, guard);
    hook::reach(Point::TargetRead);
    match target {
        None => Found::Missing,
        Some(LinkOrValue::Layer(next)) => {
            // A slot that is being refilled may pair a short class with an old layer.
            if at.class == LONG { Found::Layer(next) } else { Found::Missing }
        }
        Some(LinkOrValue::Value(raw)) => {
            if at.class == LONG && border.suffix(slot, guard) != suffix {
                Found::Missing
            } else {
                Found::Value(raw)
            }
        }
    }
}
