//! The same work on many things, by several threads.

use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::Error;

/// How many threads there are processors for.
pub(crate) fn processors() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

/// Does `work` on every task, by `threads` threads. The results are in the tasks' order; the first
/// error ends it.
pub(crate) fn each<'t, T: Sync, R: Send>(
    threads: usize,
    tasks: &'t [T],
    work: impl Fn(&'t T) -> Result<R, Error> + Sync,
) -> Result<Vec<R>, Error> {
    let next = AtomicUsize::new(0);
    let done = Mutex::new(Vec::new());
    std::thread::scope(|scope| {
        for _ in 0..threads.clamp(1, tasks.len().max(1)) {
            scope.spawn(|| {
                loop {
                    // Relaxed: every task is given out once, nothing more is meant.
                    let index = next.fetch_add(1, Ordering::Relaxed);
                    let Some(task) = tasks.get(index) else { return };
                    let result = work(task);
                    if result.is_err() {
                        next.store(tasks.len(), Ordering::Relaxed);
                    }
                    done.lock().expect("no work has panicked here").push((index, result));
                }
            });
        }
    });
    let mut done = done.into_inner().expect("no work has panicked here");
    done.sort_unstable_by_key(|&(index, _)| index);
    done.into_iter().map(|(_, result)| result).collect()
}
