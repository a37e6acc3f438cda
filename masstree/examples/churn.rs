//! Two threads put and remove keys in a moving window; memory must not grow.
//!
//! `cargo run --release -p masstree --example churn [seconds]`

use std::{
    sync::Arc,
    thread,
    time::{Duration, Instant},
};

use masstree::{Masstree, live_nodes, pin, waiting};

const WINDOW: u64 = 100_000;

/// Keys in all their forms: short ones, suffixes, a few layers of many keys; buckets of two keys
/// and layers of eight that come and go.
fn key(i: u64) -> String {
    let scatter = |n: u64| n.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 40;
    let n = scatter(i);
    match i % 5 {
        0 => n.to_string(),
        1 => format!("{n:08}/{}", i % 10),
        2 => format!("user/{}/of/many/{n}", i % 7),
        3 => format!("pair {:012}/{}", scatter(i / 10), i % 10),
        _ => format!("group {:018}/{}", scatter(i / 40), i % 40),
    }
}

fn resident() -> String {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap_or("?").trim().to_string()
}

fn main() {
    let seconds = std::env::args().nth(1).and_then(|n| n.parse().ok()).unwrap_or(60);
    let mut tree = Masstree::<Arc<u64>>::new();
    let end = Instant::now() + Duration::from_secs(seconds);
    let mut round = 0;
    while Instant::now() < end {
        thread::scope(|scope| {
            let tree = &tree;
            let threads = [0, 1].map(|thread| {
                scope.spawn(move || {
                    let start = (2 * round + thread) * WINDOW;
                    for i in start..start + WINDOW {
                        let guard = pin();
                        tree.put(key(i).as_bytes(), Arc::new(i), &guard);
                        if let Some(old) = i.checked_sub(2 * WINDOW) {
                            tree.remove(key(old).as_bytes(), &guard);
                        }
                    }
                })
            });
            threads.into_iter().for_each(|thread| thread.join().expect("no panic"));
        });
        round += 1;
        if round % 20 == 0 {
            let (keys, nodes) = (tree.len(), live_nodes());
            println!(
                "round {round}: {keys} keys, {nodes} nodes, {} waiting, {}",
                waiting(),
                resident()
            );
        }
    }
    println!("{:?}, resident {}", tree.check(), resident());
}
