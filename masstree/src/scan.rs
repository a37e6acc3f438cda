//! Range scans in both directions ([Mao] 3.1.1 and 3.1.3).
//!
//! A scan is a position that only moves one way. It copies the border responsible for the position,
//! validates the copy, delivers what is beyond the position, moves the position along, and looks
//! for the next border by the end of the range that the copy covered, so that splits and removes in
//! between cannot hide or repeat a key. A layer is scanned at its place in the order of the layer
//! above. If it was collapsed meanwhile, then it was empty at some moment of the scan: no key that
//! is there all the time can be in it.

use std::{borrow::Cow, ops::Bound};

use crate::{
    batch::Batch,
    border::Border,
    bucket::Bucket,
    field::{Link, LinkOrValue, RawValue, Ref},
    find::{LayerGone, find_border, settle},
    get::top_layer,
    guard::Guard,
    hook::{self, Point},
    key::{LONG, PAST, Position, SLICE, class_of},
    node::Node,
};

/// Which way a scan goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Direction {
    Ascending,
    Descending,
}

/// Visits keys from `start` on until `visit` returns false or none are left.
pub(crate) fn scan(
    root: &Link<Node>,
    start: Bound<&[u8]>,
    direction: Direction,
    guard: &Guard,
    visit: impl FnMut(&[u8], RawValue) -> bool,
) {
    Cursor::new(root, start.map(Cow::Borrowed), direction, guard).run(visit);
}

/// The end of the range at which a scan starts, or what of it lies below a layer.
#[derive(Clone, Copy)]
struct Limit {
    /// Where in the key `start` this layer begins.
    from: usize,
    inclusive: bool,
}

/// Where to look for the border at the position.
#[derive(Clone, Copy)]
enum Near<'g> {
    Entrance(Ref<'g, Node>),
    Border(Ref<'g, Border>),
}

/// A scan on its way.
pub(crate) struct Cursor<'g, 'k> {
    direction: Direction,
    guard: &'g Guard,
    /// The slices that lead to the current layer, then the rest of the last key delivered.
    key: Vec<u8>,
    /// The layers above: a border to look near, and the slice under which the next layer is.
    above: Vec<(Ref<'g, Border>, u64)>,
    near: Near<'g>,
    /// Ascending: keys from here on are still to come. Descending: keys before this.
    at: Position,
    /// The key from which, or below which, the scan starts; empty if there is none.
    start: Cow<'k, [u8]>,
    /// What the long key, or layer, at this slice is limited by.
    limit: Option<(u64, Limit)>,
    batch: Batch<'g>,
    /// How far the batch is delivered: so many of its keys, from the end where the scan began.
    delivered: usize,
    /// How much is delivered of the bucket that comes next in the batch.
    of_bucket: usize,
}

enum Delivered {
    Stopped,
    EnteredLayer,
    All,
}

impl<'g, 'k> Cursor<'g, 'k> {
    pub(crate) fn new(
        root: &Link<Node>,
        start: Bound<Cow<'k, [u8]>>,
        direction: Direction,
        guard: &'g Guard,
    ) -> Self {
        let (start, limit) = match start {
            Bound::Unbounded => (Cow::default(), None),
            Bound::Included(key) => (key, Some(Limit { from: 0, inclusive: true })),
            Bound::Excluded(key) => (key, Some(Limit { from: 0, inclusive: false })),
        };
        let mut cursor = Cursor {
            direction,
            guard,
            key: Vec::new(),
            above: Vec::new(),
            near: Near::Entrance(top_layer(root, guard)),
            at: Position::FIRST,
            start,
            limit: None,
            batch: Batch::default(),
            delivered: 0,
            of_bucket: 0,
        };
        cursor.start_layer(limit);
        cursor
    }

    /// Visits keys until `visit` returns false or none are left. Goes on there when called again.
    /// Returns whether it was `visit` that ended it.
    pub(crate) fn run(&mut self, mut visit: impl FnMut(&[u8], RawValue) -> bool) -> bool {
        if self.batch.border.is_some() {
            // Called again.
            match self.deliver(&mut visit) {
                Delivered::Stopped => return true,
                Delivered::EnteredLayer => {}
                Delivered::All => {
                    if !(self.next_border() || self.leave_layer()) {
                        return false;
                    }
                }
            }
        }
        loop {
            let more = match self.read_batch() {
                Ok(()) => {
                    hook::reach(Point::BatchRead);
                    match self.deliver(&mut visit) {
                        Delivered::Stopped => return true,
                        Delivered::EnteredLayer => true,
                        Delivered::All => self.next_border() || self.leave_layer(),
                    }
                }
                Err(LayerGone) => {
                    assert!(!self.above.is_empty(), "layer 0 is never collapsed");
                    self.leave_layer()
                }
            };
            if !more {
                self.batch.border = None;
                return false;
            }
        }
    }

    /// The key that was visited last.
    pub(crate) fn key(&self) -> &[u8] {
        &self.key
    }

    /// Takes the position at the beginning of a layer, which the limit may cut.
    fn start_layer(&mut self, limit: Option<Limit>) {
        self.limit = None;
        let Some(limit) = limit else {
            self.at = match self.direction {
                Direction::Ascending => Position::FIRST,
                Direction::Descending => Position::LAST,
            };
            return;
        };
        let at = Position::of(&self.start[limit.from..]);
        let after = Position { slice: at.slice, class: at.class + 1 };
        if at.class == LONG {
            self.limit = Some((at.slice, Limit { from: limit.from + SLICE, ..limit }));
            self.at = match self.direction {
                Direction::Ascending => at,
                Direction::Descending => after,
            };
        } else {
            let before = limit.inclusive == (self.direction == Direction::Ascending);
            self.at = if before { at } else { after };
        }
    }

    /// Copies the border at the position, and has fetched what comes after it.
    fn read_batch(&mut self) -> Result<(), LayerGone> {
        // Descending from (s, class 0) or above: keys before it may have the slice s - 1 and be in
        // the border to the left; `next_border` comes with class PAST and a limit with class 1 or
        // more, so that only class 0 of the very first slice is left, which has none before it.
        let slice = self.at.slice;
        let (mut border, mut version) = match self.near {
            Near::Entrance(node) => find_border(node, self.at, self.guard)?,
            Near::Border(border) => (border, border.stable()),
        };
        loop {
            (border, version) = settle(border, version, slice, self.guard)?;
            hook::reach(Point::BorderFound);
            self.batch.copy(border, self.guard);
            if !border.changed(version) {
                break;
            }
            version = border.stable();
        }
        self.delivered = 0;
        let beyond = match self.direction {
            Direction::Ascending => self.batch.next,
            Direction::Descending => border.prev.load(self.guard),
        };
        if let Some(beyond) = beyond {
            beyond.node().prefetch(self.batch.lines());
        }
        self.batch.prefetch_links();
        Ok(())
    }

    fn deliver(&mut self, visit: &mut impl FnMut(&[u8], RawValue) -> bool) -> Delivered {
        let permutation = self.batch.permutation;
        while self.delivered < permutation.len() {
            let index = match self.direction {
                Direction::Ascending => self.delivered,
                Direction::Descending => permutation.len() - 1 - self.delivered,
            };
            self.delivered += 1;
            let slot = permutation.slot(index);
            let kind = self.batch.raws[slot].kind;
            let at = Position { slice: self.batch.slices[slot], class: class_of(kind) };
            if !self.is_ahead(at) {
                continue;
            }
            let limit = match self.limit {
                Some((slice, limit)) if at == (Position { slice, class: LONG }) => Some(limit),
                _ => None,
            };
            // SAFETY: the copy was validated when it was made.
            let raw = match unsafe { self.batch.raws[slot].resolve(self.guard) } {
                LinkOrValue::Layer(next) => {
                    self.enter_layer(at.slice, next, limit);
                    return Delivered::EnteredLayer;
                }
                LinkOrValue::Bucket(bucket) => {
                    if !self.deliver_bucket(at, bucket, limit, visit) {
                        // Goes on with the rest of the bucket.
                        self.delivered -= 1;
                        return Delivered::Stopped;
                    }
                    self.move_past(at);
                    continue;
                }
                LinkOrValue::Value(raw) => raw,
            };
            self.move_past(at);
            let suffix = self.batch.suffix(slot);
            if !self.deliver_key(at, suffix.as_bytes(), limit, raw, visit) {
                return Delivered::Stopped;
            }
        }
        Delivered::All
    }

    fn move_past(&mut self, at: Position) {
        self.at = match self.direction {
            Direction::Ascending => Position { slice: at.slice, class: at.class + 1 },
            Direction::Descending => at,
        };
    }

    /// Visits a key unless the limit excludes it. False if `visit` wants no more.
    #[inline(always)]
    fn deliver_key(
        &mut self,
        at: Position,
        suffix: &[u8],
        limit: Option<Limit>,
        raw: RawValue,
        visit: &mut impl FnMut(&[u8], RawValue) -> bool,
    ) -> bool {
        if limit.is_some_and(|limit| self.excludes(limit, suffix)) {
            return true;
        }
        let start = self.above.len() * SLICE;
        self.key.truncate(start);
        // All of it first: copying an unknown number of bytes would be a call.
        self.key.extend_from_slice(&at.slice.to_be_bytes());
        if at.class == LONG {
            self.key.extend_from_slice(suffix);
        } else {
            self.key.truncate(start + usize::from(at.class));
        }
        visit(&self.key, raw)
    }

    /// Visits what is left of a bucket. False if `visit` wants no more.
    #[inline(never)]
    fn deliver_bucket(
        &mut self,
        at: Position,
        bucket: Ref<'g, Bucket>,
        limit: Option<Limit>,
        visit: &mut impl FnMut(&[u8], RawValue) -> bool,
    ) -> bool {
        let len = bucket.get().len();
        while self.of_bucket < len {
            let index = match self.direction {
                Direction::Ascending => self.of_bucket,
                Direction::Descending => len - 1 - self.of_bucket,
            };
            self.of_bucket += 1;
            let (suffix, raw) = (bucket.suffix(index), bucket.value(index));
            if !self.deliver_key(at, suffix, limit, raw, visit) {
                return false;
            }
        }
        self.of_bucket = 0;
        true
    }

    fn is_ahead(&self, at: Position) -> bool {
        match self.direction {
            Direction::Ascending => at >= self.at,
            Direction::Descending => at < self.at,
        }
    }

    fn excludes(&self, limit: Limit, suffix: &[u8]) -> bool {
        let rest = &self.start[limit.from..];
        if suffix == rest {
            return !limit.inclusive;
        }
        (suffix < rest) == (self.direction == Direction::Ascending)
    }

    fn enter_layer(&mut self, slice: u64, entrance: Ref<'g, Node>, limit: Option<Limit>) {
        let border = self.batch.border.expect("a batch was read");
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
    fn next_border(&mut self) -> bool {
        hook::reach(Point::BetweenBorders);
        let border = self.batch.border.expect("a batch was read");
        match self.direction {
            Direction::Ascending => {
                let Some(next) = self.batch.next else { return false };
                self.near = Near::Border(next);
                self.at = Position { slice: self.batch.highkey, class: 0 };
            }
            Direction::Descending => {
                // Only the leftmost border starts at 0.
                let Some(slice) = border.lowkey.checked_sub(1) else { return false };
                let left = border.prev.load(self.guard);
                self.near = Near::Border(left.unwrap_or(border));
                self.at = Position { slice, class: PAST };
            }
        }
        true
    }
}
