//! Range scans in both directions ([Mao] 3.1.1 and 3.1.3).
//!
//! A scan is a position that only moves one way. It copies the border responsible for the position,
//! validates the copy, delivers what is beyond the position, moves the position along, and looks
//! for the next border by the end of the range that the copy covered, so that splits and removes in
//! between cannot hide or repeat a key. A layer is scanned at its place in the order of the layer
//! above. If it was collapsed meanwhile, then it was empty at some moment of the scan: no key that
//! is there all the time can be in it.

use std::ops::Bound;

use crate::{
    border::{Border, Entry},
    field::{LinkOrValue, LinkOrValueCell, RawValue, Ref},
    find::{LayerGone, find_border, settle},
    get::top_layer,
    guard::Guard,
    hook::{self, Point},
    key::{LONG, PAST, Position, SLICE, suffix},
    node::Node,
    permutation::WIDTH,
};

/// Which way a scan goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Direction {
    Ascending,
    Descending,
}

/// Visits keys from `start` on until `visit` returns false or none are left.
pub(crate) fn scan(
    root: &LinkOrValueCell,
    start: Bound<&[u8]>,
    direction: Direction,
    guard: &Guard,
    mut visit: impl FnMut(&[u8], RawValue) -> bool,
) {
    let limit = match start {
        Bound::Unbounded => None,
        Bound::Included(key) => Some(Limit { rest: key, inclusive: true }),
        Bound::Excluded(key) => Some(Limit { rest: key, inclusive: false }),
    };
    let mut cursor = Cursor {
        direction,
        guard,
        key: Vec::new(),
        above: Vec::new(),
        near: Near::Entrance(top_layer(root, guard)),
        at: Position::FIRST,
        limit: None,
    };
    cursor.start_layer(limit);
    loop {
        let more = match cursor.read_batch() {
            Ok(batch) => {
                hook::reach(Point::BatchRead);
                match cursor.deliver(&batch, &mut visit) {
                    Delivered::Stopped => return,
                    Delivered::EnteredLayer => true,
                    Delivered::All => cursor.next_border(&batch) || cursor.leave_layer(),
                }
            }
            Err(LayerGone) => {
                assert!(!cursor.above.is_empty(), "layer 0 is never collapsed");
                cursor.leave_layer()
            }
        };
        if !more {
            return;
        }
    }
}

/// The end of the range at which a scan starts, or what of it lies below a layer.
#[derive(Clone, Copy)]
struct Limit<'k> {
    rest: &'k [u8],
    inclusive: bool,
}

/// Where to look for the border at the position.
#[derive(Clone, Copy)]
enum Near<'g> {
    Entrance(Ref<'g, Node>),
    Border(Ref<'g, Border>),
}

struct Cursor<'g, 'k> {
    direction: Direction,
    guard: &'g Guard,
    /// The slices that lead to the current layer, then the rest of the last key delivered.
    key: Vec<u8>,
    /// The layers above: a border to look near, and the slice under which the next layer is.
    above: Vec<(Ref<'g, Border>, u64)>,
    near: Near<'g>,
    /// Ascending: keys from here on are still to come. Descending: keys before this.
    at: Position,
    /// What the long key, or layer, at this slice is limited by.
    limit: Option<(u64, Limit<'k>)>,
}

/// A validated copy of a border.
struct Batch<'g> {
    border: Ref<'g, Border>,
    next: Option<Ref<'g, Border>>,
    highkey: u64,
    entries: [Option<Entry<'g>>; WIDTH],
}

enum Delivered {
    Stopped,
    EnteredLayer,
    All,
}

impl<'g, 'k> Cursor<'g, 'k> {
    /// Takes the position at the beginning of a layer, which the limit may cut.
    fn start_layer(&mut self, limit: Option<Limit<'k>>) {
        self.limit = None;
        let Some(limit) = limit else {
            self.at = match self.direction {
                Direction::Ascending => Position::FIRST,
                Direction::Descending => Position::LAST,
            };
            return;
        };
        let at = Position::of(limit.rest);
        let after = Position { slice: at.slice, class: at.class + 1 };
        if at.class == LONG {
            self.limit =
                Some((at.slice, Limit { rest: suffix(limit.rest), inclusive: limit.inclusive }));
            self.at = match self.direction {
                Direction::Ascending => at,
                Direction::Descending => after,
            };
        } else {
            let before = limit.inclusive == (self.direction == Direction::Ascending);
            self.at = if before { at } else { after };
        }
    }

    /// Copies the border at the position.
    fn read_batch(&self) -> Result<Batch<'g>, LayerGone> {
        // Descending from (s, class 0) or above: keys before it may have the slice s - 1 and be in
        // the border to the left; `next_border` comes with class PAST and a limit with class 1 or
        // more, so that only class 0 of the very first slice is left, which has none before it.
        let slice = self.at.slice;
        let (mut border, mut version) = match self.near {
            Near::Entrance(node) => find_border(node, slice, self.guard)?,
            Near::Border(border) => (border, border.stable()),
        };
        loop {
            (border, version) = settle(border, version, slice, self.guard)?;
            hook::reach(Point::BorderFound);
            let permutation = border.permutation();
            let mut entries = [None; WIDTH];
            for (index, entry) in entries.iter_mut().enumerate().take(permutation.len()) {
                *entry = border.get().entry(permutation.slot(index), self.guard);
            }
            let next = border.next.load(self.guard);
            let highkey = border.highkey.load();
            if !border.changed(version) {
                return Ok(Batch { border, next, highkey, entries });
            }
            version = border.stable();
        }
    }

    fn deliver(
        &mut self,
        batch: &Batch<'g>,
        visit: &mut impl FnMut(&[u8], RawValue) -> bool,
    ) -> Delivered {
        for index in 0..WIDTH {
            let entry = match self.direction {
                Direction::Ascending => batch.entries[index],
                Direction::Descending => batch.entries[WIDTH - 1 - index],
            };
            let Some(entry) = entry.filter(|entry| self.is_ahead(entry.at)) else { continue };
            let limit = match self.limit {
                Some((slice, limit)) if entry.at == (Position { slice, class: LONG }) => {
                    Some(limit)
                }
                _ => None,
            };
            let raw = match entry.target {
                LinkOrValue::Layer(next) => {
                    self.enter_layer(batch.border, entry.at.slice, next, limit);
                    return Delivered::EnteredLayer;
                }
                LinkOrValue::Value(raw) => raw,
            };
            self.at = match self.direction {
                Direction::Ascending => {
                    Position { slice: entry.at.slice, class: entry.at.class + 1 }
                }
                Direction::Descending => entry.at,
            };
            if limit.is_some_and(|limit| self.excludes(limit, entry.suffix)) {
                continue;
            }
            self.key.truncate(self.above.len() * SLICE);
            let bytes = entry.at.slice.to_be_bytes();
            self.key.extend_from_slice(&bytes[..usize::from(entry.at.class).min(SLICE)]);
            self.key.extend_from_slice(entry.suffix);
            if !visit(&self.key, raw) {
                return Delivered::Stopped;
            }
        }
        Delivered::All
    }

    fn is_ahead(&self, at: Position) -> bool {
        match self.direction {
            Direction::Ascending => at >= self.at,
            Direction::Descending => at < self.at,
        }
    }

    fn excludes(&self, limit: Limit<'_>, suffix: &[u8]) -> bool {
        if suffix == limit.rest {
            return !limit.inclusive;
        }
        (suffix < limit.rest) == (self.direction == Direction::Ascending)
    }

    fn enter_layer(
        &mut self,
        border: Ref<'g, Border>,
        slice: u64,
        entrance: Ref<'g, Node>,
        limit: Option<Limit<'k>>,
    ) {
        self.key.truncate(self.above.len() * SLICE);
        self.key.extend_from_slice(&slice.to_be_bytes());
        self.above.push((border, slice));
        self.near = Near::Entrance(entrance);
        self.start_layer(limit);
        hook::reach(Point::LayerEntered);
    }

    /// Goes back to the layer above, past the place of this one. False if there is none.
    fn leave_layer(&mut self) -> bool {
        let Some((border, slice)) = self.above.pop() else { return false };
        self.near = Near::Border(border);
        self.limit = None;
        self.at = match self.direction {
            Direction::Ascending => Position { slice, class: PAST },
            Direction::Descending => Position { slice, class: LONG },
        };
        true
    }

    /// Moves on to what the batch's range did not cover. False at the end of the layer.
    fn next_border(&mut self, batch: &Batch<'g>) -> bool {
        hook::reach(Point::BetweenBorders);
        match self.direction {
            Direction::Ascending => {
                let Some(next) = batch.next else { return false };
                self.near = Near::Border(next);
                self.at = Position { slice: batch.highkey, class: 0 };
            }
            Direction::Descending => {
                // Only the leftmost border starts at 0.
                let Some(slice) = batch.border.lowkey.checked_sub(1) else { return false };
                let left = batch.border.prev.load(self.guard);
                self.near = Near::Border(left.unwrap_or(batch.border));
                self.at = Position { slice, class: PAST };
            }
        }
        true
    }
}
