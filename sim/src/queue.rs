//! The virtual clock and what is due: one thread, ordered by time and then by order of scheduling,
//! so that a seed replays exactly.

use std::cmp::Ordering;
use std::collections::BinaryHeap;

struct Scheduled<E> {
    at: u64,
    sequence: u64,
    event: E,
}

impl<E> PartialEq for Scheduled<E> {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl<E> Eq for Scheduled<E> {}

impl<E> PartialOrd for Scheduled<E> {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl<E> Ord for Scheduled<E> {
    /// Reversed: the standard heap gives its largest item first.
    fn cmp(&self, other: &Self) -> Ordering {
        (other.at, other.sequence).cmp(&(self.at, self.sequence))
    }
}

/// Events in the order in which they happen.
pub(crate) struct Queue<E> {
    heap: BinaryHeap<Scheduled<E>>,
    now: u64,
    sequence: u64,
}

impl<E> Queue<E> {
    pub(crate) fn new() -> Queue<E> {
        Queue { heap: BinaryHeap::new(), now: 0, sequence: 0 }
    }

    /// Microseconds since the world began.
    pub(crate) fn now(&self) -> u64 {
        self.now
    }

    /// Schedules an event; what is late happens now.
    pub(crate) fn at(&mut self, at: u64, event: E) {
        self.sequence += 1;
        self.heap.push(Scheduled { at: at.max(self.now), sequence: self.sequence, event });
    }

    /// Schedules an event after a delay.
    pub(crate) fn after(&mut self, delay: u64, event: E) {
        self.at(self.now + delay, event);
    }

    /// Takes the next event that is due by `until` and moves the clock to it; else moves the clock
    /// to `until`.
    pub(crate) fn pop(&mut self, until: u64) -> Option<E> {
        if self.heap.peek().is_none_or(|next| next.at > until) {
            self.now = self.now.max(until);
            return None;
        }
        let next = self.heap.pop().expect("just seen");
        self.now = next.at;
        Some(next.event)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_come_by_time_and_then_in_order() {
        let mut queue = Queue::new();
        queue.at(5, 'c');
        queue.at(1, 'a');
        queue.at(1, 'b');
        assert_eq!(queue.pop(4), Some('a'));
        assert_eq!(queue.pop(4), Some('b'));
        assert_eq!(queue.pop(4), None);
        assert_eq!(queue.now(), 4);
        queue.after(0, 'x');
        assert_eq!(queue.pop(9), Some('x'));
        assert_eq!(queue.pop(9), Some('c'));
        assert_eq!(queue.now(), 5);
    }
}
