//! Threads on cores.

use rustix::thread::{CpuSet, sched_setaffinity};

/// Keeps this thread on a core. Where that is not allowed the figures say more of the scheduler.
pub(crate) fn pin(core: usize) {
    let mut set = CpuSet::new();
    set.set(core);
    if let Err(error) = sched_setaffinity(None, &set) {
        eprintln!("not pinned to core {core}: {error}");
    }
}

/// How often this thread was made to give up its core.
pub(crate) fn preempted() -> u64 {
    let status = std::fs::read_to_string("/proc/thread-self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("nonvoluntary_ctxt_switches:"));
    line.and_then(|count| count.trim().parse().ok()).unwrap_or(0)
}

/// Processes of the machine that want a core, in the mean of a minute.
pub(crate) fn load() -> f64 {
    let text = std::fs::read_to_string("/proc/loadavg").unwrap_or_default();
    text.split(' ').next().and_then(|number| number.parse().ok()).unwrap_or(0.0)
}
