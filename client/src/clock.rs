//! The only place that reads a clock.

use rustix::time::{ClockId, clock_gettime};
use smr::{Incarnation, Now};

/// The time now. The client machine does not look at the wall clock, which stays at zero.
pub(crate) fn now() -> Now {
    let steady = clock_gettime(ClockId::Monotonic);
    let micros = steady.tv_sec as u64 * 1_000_000 + steady.tv_nsec as u64 / 1000;
    Now { micros, unix_ms: 0 }
}

/// The life of a client that starts now: microseconds since 1970.
pub(crate) fn incarnation() -> Incarnation {
    let wall = clock_gettime(ClockId::Realtime);
    Incarnation(wall.tv_sec.max(0) as u64 * 1_000_000 + wall.tv_nsec as u64 / 1000)
}
