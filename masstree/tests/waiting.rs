//! A guard that stays is reported by the number of things that wait for it. One test in its own
//! process, since the number is the process's.

use std::{
    sync::{Arc, Barrier},
    thread,
    time::{Duration, Instant},
};

use masstree::{Masstree, pin, waiting};

const PUTS: usize = 10_000;

#[test]
fn what_waits_for_a_stalled_reader_is_counted() {
    let tree = Masstree::<Arc<usize>>::new();
    let (stalled, go_on) = (Barrier::new(2), Barrier::new(2));
    thread::scope(|scope| {
        scope.spawn(|| {
            let _guard = pin();
            stalled.wait();
            go_on.wait();
        });
        stalled.wait();
        for i in 0..=PUTS {
            tree.put(b"key", Arc::new(i), &pin());
        }
        assert_eq!(waiting(), PUTS);
        go_on.wait();
    });
    let end = Instant::now() + Duration::from_secs(60);
    while waiting() > 0 {
        assert!(Instant::now() < end, "{} things still wait for nobody", waiting());
        pin().flush();
    }
}
