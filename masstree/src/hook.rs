//! Named places where a test can interleave another operation. Nothing outside tests.

/// A place at which another thread's step changes what happens next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Point {
    /// A reader has found its border, and not yet read it.
    BorderFound,
    /// A reader has read what a slot leads to, and not yet its suffix.
    TargetRead,
    /// A reader has read a slot, and not yet validated.
    SlotRead,
    /// An operation holds the pointer to a layer, and has not yet looked at the layer.
    LayerEntered,
    /// A writer has found a layer's new root, and not yet brought the layer's slot up to date.
    NewRootFound,
    /// A writer has found its border, and not yet locked it.
    BeforeLock,
    /// A split has linked the new border to its neighbours, but not to its parent. Locks are held.
    SplitLinked,
    /// A remove knows the left neighbour of its empty border, and has not yet locked it. The empty
    /// border is locked.
    LeftNeighbourSeen,
    /// A remove has taken an empty border out of the list, but not out of its parent. No
    /// lock is held.
    BorderUnlinked,
    /// A remove has taken a first child out, and not yet raised the separator two or more levels
    /// up. An unmarked interior is locked.
    SeparatorStale,
    /// A remove has left a layer that looks empty. No lock is held.
    BeforeCollapse,
    /// A scan has validated its copy of a border.
    BatchRead,
    /// A scan is about to look for its next border.
    BetweenBorders,
}

/// Marks a place.
#[cfg(not(test))]
#[inline(always)]
pub(crate) fn reach(_: Point) {}

#[cfg(test)]
pub(crate) use armed::{arm, assert_all_reached, disarm, reach};

#[cfg(test)]
mod armed {
    use std::cell::RefCell;

    use super::Point;

    type Action = (Point, usize, Box<dyn FnOnce()>);

    thread_local! {
        static ACTIONS: RefCell<Vec<Action>> = const { RefCell::new(Vec::new()) };
    }

    /// Runs `action` when this thread reaches `point` for the `nth` time from now, counting from 0.
    /// The action may use the tree itself: the point's other hooks then count on.
    pub(crate) fn arm(point: Point, nth: usize, action: impl FnOnce() + 'static) {
        ACTIONS.with_borrow_mut(|actions| actions.push((point, nth, Box::new(action))));
    }

    /// A test whose interleaving did not happen shows nothing.
    pub(crate) fn assert_all_reached() {
        ACTIONS.with_borrow(|actions| {
            let left: Vec<_> = actions.iter().map(|action| action.0).collect();
            assert!(left.is_empty(), "never reached: {left:?}");
        });
    }

    /// Forgets what was armed and not reached.
    pub(crate) fn disarm() {
        ACTIONS.with_borrow_mut(Vec::clear);
    }

    pub(crate) fn reach(point: Point) {
        let due = ACTIONS.with_borrow_mut(|actions| {
            let mut due = Vec::new();
            let mut i = 0;
            while i < actions.len() {
                if actions[i].0 != point {
                    i += 1;
                } else if actions[i].1 == 0 {
                    due.push(actions.remove(i).2);
                } else {
                    actions[i].1 -= 1;
                    i += 1;
                }
            }
            due
        });
        for action in due {
            action();
        }
    }
}
