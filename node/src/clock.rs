//! The only place that reads a clock.

use rustix::time::{ClockId, clock_gettime};
use smr::Now;

/// The time now.
pub fn now() -> Now {
    let steady = clock_gettime(ClockId::Monotonic);
    let wall = clock_gettime(ClockId::Realtime);
    Now {
        micros: steady.tv_sec as u64 * 1_000_000 + steady.tv_nsec as u64 / 1000,
        unix_ms: wall.tv_sec.max(0) as u64 * 1000 + wall.tv_nsec as u64 / 1_000_000,
    }
}
