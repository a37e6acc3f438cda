//! A first look at speed: random 8-byte keys, puts and then gets, by one and by two threads.
//!
//! `cargo run --release -p masstree --example throughput [millions of keys]`

use std::{sync::Arc, thread, time::Instant};

use masstree::{Masstree, pin};

/// A bijection that scatters consecutive numbers, so that all keys are different.
fn scatter(i: u64) -> [u8; 8] {
    let i = (i ^ (i >> 31)).wrapping_mul(0x7FB5_D329_728E_A185);
    (i ^ (i >> 27)).wrapping_mul(0x81DA_DEF4_BC2D_D44D).to_be_bytes()
}

fn main() {
    let millions = std::env::args().nth(1).and_then(|n| n.parse().ok()).unwrap_or(10);
    let keys: u64 = millions * 1_000_000;
    for threads in [1, 2] {
        let tree = Masstree::<Arc<u64>>::new();
        let value = Arc::new(0);
        let share = keys / threads;
        let measure = |what: &str, operation: &(dyn Fn(&[u8]) + Sync)| {
            let start = Instant::now();
            thread::scope(|scope| {
                for t in 0..threads {
                    scope.spawn(move || {
                        for i in 0..share {
                            operation(&scatter(t * share + i));
                        }
                    });
                }
            });
            let rate = keys as f64 / start.elapsed().as_secs_f64() / 1e6;
            println!("{threads} threads: {rate:.2} million {what}/s");
        };
        measure("puts", &|key| drop(tree.put(key, value.clone(), &pin())));
        assert_eq!(tree.len() as u64, keys);
        measure("gets", &|key| assert!(tree.get_with(key, &pin(), |_| ()).is_some()));
        measure("overwrites", &|key| drop(tree.put(key, value.clone(), &pin())));
    }
}
