//! Several stores on the same trees: the same replies as from one store alone, atomic commands, and
//! records that rebuild the state.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use proptest::prelude::*;
use resp::{Protocol, Value};

use super::properties::{
    COLLECTION_READS, COLLECTION_WRITES, READS, WRITES, check_sizes, fill, request_of,
};
use super::{Bench, NOW, command, dump, only};
use crate::random::Draws;
use crate::redo::{Change, Images, Tree, changes};
use crate::shared::Shared;
use crate::store::{Limits, Store};
use crate::{reply, request};

type Records = Vec<(u64, Vec<u8>)>;

fn serve(store: &mut Store, unix_ms: u64, request: &[u8], records: &mut Records) -> Vec<u8> {
    let mut reply = Vec::new();
    store.serve(unix_ms, request, &mut reply, &mut |shared, record| {
        records.push((shared.tick(), record.to_vec()));
    });
    reply
}

/// The state that records make, in the order of their timestamps.
fn replayed(mut records: Records) -> (Arc<Shared>, Store) {
    records.sort_by_key(|(timestamp, _)| *timestamp);
    let mut shared = Shared::new(Limits::default(), 0);
    let mut store = shared.store();
    for (_, record) in &records {
        for change in changes(record) {
            match change.expect("a sound record") {
                Change::Entry(entry) => store.replay(&entry),
                Change::Flush => {
                    let flush_at = shared.flush_at();
                    shared = Shared::new(Limits::default(), 0);
                    shared.restore_flush_at(flush_at);
                    store = shared.store();
                }
                Change::FlushAt(time) => shared.restore_flush_at(time),
            }
        }
    }
    (shared, store)
}

fn check_replayed(shared: &Arc<Shared>, records: Records) {
    let live = shared.store();
    check_sizes(&live);
    let (again, store) = replayed(records);
    let (live, store) = (dump(&live), dump(&store));
    assert_eq!(live.entries, store.entries);
    assert_eq!(live.sizes, store.sizes);
    assert_eq!(shared.flush_at(), again.flush_at());
}

/// A request whose replies depend neither on versions nor on what is drawn at random.
fn plain_request(seed: u64) -> Vec<u8> {
    let mut draws = Draws::new(seed);
    let line = |draws: &mut Draws| loop {
        let lists = [READS, COLLECTION_READS, WRITES, COLLECTION_WRITES];
        let list = lists[draws.below(lists.len())];
        let template = list[draws.below(list.len())];
        if !template.starts_with("SPOP") {
            return command(Protocol::V3, &fill(template, draws));
        }
    };
    let mut request = Vec::new();
    match draws.below(20) {
        0 => request.extend(command(Protocol::V2, "FLUSHALL")),
        1..4 => {
            let commands: Vec<u8> = (0..3).flat_map(|_| line(&mut draws)).collect();
            request::push_transaction(&mut request, Protocol::V2, &[], &commands);
        }
        _ => (0..3).for_each(|_| request.extend(line(&mut draws))),
    }
    request
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(500))]

    #[test]
    fn replies_are_those_of_one_store(seeds in prop::collection::vec(any::<u64>(), 1..60)) {
        let mut bench = Bench::new();
        let shared = Shared::new(Limits::default(), 0);
        let mut stores = [shared.store(), shared.store(), shared.store()];
        let mut records = Records::new();
        for (turn, &seed) in seeds.iter().enumerate() {
            bench.unix_ms += [0, 0, 0, 1, 3, 700][Draws::new(!seed).below(6)];
            let store = &mut stores[turn % 3];
            store.serve_sweep(bench.unix_ms, 20, &mut |shared, record| {
                records.push((shared.tick(), record.to_vec()));
            });
            let request = plain_request(seed);
            let found = serve(store, bench.unix_ms, &request, &mut records);
            let expected = bench.apply(&request).0;
            let texts = |answer: &[u8]| -> Vec<String> {
                reply::items(answer).map(|item| String::from_utf8_lossy(item).into()).collect()
            };
            prop_assert_eq!(texts(&found), texts(&expected));
        }
        check_replayed(&shared, records);
    }

    #[test]
    fn records_rebuild_the_state(seeds in prop::collection::vec(any::<u64>(), 1..80)) {
        let shared = Shared::new(Limits::default(), 7);
        let mut store = shared.store();
        let (mut records, mut unix_ms) = (Records::new(), NOW);
        for &seed in &seeds {
            unix_ms += [0, 0, 1, 3, 700][Draws::new(!seed).below(5)];
            serve(&mut store, unix_ms, &request_of(seed), &mut records);
        }
        check_replayed(&shared, records);
    }

    #[test]
    fn images_of_ranges_are_the_state(
        seeds in prop::collection::vec(any::<u64>(), 1..60),
        budget in 1usize..300,
    ) {
        let shared = Shared::new(Limits::default(), 0);
        let mut store = shared.store();
        for &seed in &seeds {
            serve(&mut store, NOW, &request_of(seed), &mut Records::new());
        }
        let images = shared.images();
        let mut out = Vec::new();
        for tree in [Tree::Keys, Tree::Fields] {
            write_range(&images, tree, Vec::new(), None, budget, &mut out);
        }
        let (_, restored) = replayed(vec![(1, out)]);
        let (live, restored) = (dump(&store), dump(&restored));
        prop_assert_eq!(live.entries, restored.entries);
    }

    #[test]
    fn any_bytes_may_claim_to_be_a_record(bytes in prop::collection::vec(any::<u8>(), 0..100)) {
        let shared = Shared::new(Limits::default(), 0);
        let mut store = shared.store();
        for change in changes(&bytes).map_while(Result::ok) {
            if let Change::Entry(entry) = change {
                store.replay(&entry);
            }
        }
        check_sizes(&store);
    }
}

/// Writes a range in halves.
fn write_range(
    images: &Images,
    tree: Tree,
    from: Vec<u8>,
    to: Option<Vec<u8>>,
    budget: usize,
    out: &mut Vec<u8>,
) {
    let next = images.write(tree, &from, to.as_deref(), budget, out);
    let Some(next) = next else { return };
    match images.middle(tree, &next, to.as_deref()) {
        Some(middle) => {
            write_range(images, tree, next, Some(middle.clone()), budget, out);
            write_range(images, tree, middle, to, budget, out);
        }
        None => write_range(images, tree, next, to, budget, out),
    }
}

#[test]
fn threads_at_once_leave_records_that_rebuild_the_state() {
    for round in 0..20 {
        let shared = Shared::new(Limits::default(), 0);
        let records = Mutex::new(Records::new());
        std::thread::scope(|scope| {
            for thread in 0..4u64 {
                let (shared, records) = (&shared, &records);
                scope.spawn(move || {
                    let mut store = shared.store();
                    let mut own = Records::new();
                    let mut draws = Draws::new(round << 8 | thread);
                    for turn in 0..400 {
                        let request = request_of(draws.below(1 << 40) as u64);
                        serve(&mut store, NOW + turn / 20, &request, &mut own);
                    }
                    records.lock().unwrap().extend(own);
                });
            }
        });
        check_replayed(&shared, records.into_inner().unwrap());
    }
}

/// Runs `write` over and over on two threads while `read` looks, on two others.
fn under_load(
    write: impl Fn(&mut Store, u64) + Sync,
    read: impl Fn(&mut Store) + Sync,
    shared: &Arc<Shared>,
) {
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let writers = [0, 1].map(|writer| {
            let (write, shared) = (&write, &shared);
            scope.spawn(move || {
                let mut store = shared.store();
                (0..3000).for_each(|turn| write(&mut store, turn * 2 + writer));
            })
        });
        for _ in 0..2 {
            scope.spawn(|| {
                let mut store = shared.store();
                while !done.load(Ordering::Relaxed) {
                    read(&mut store);
                }
            });
        }
        writers.into_iter().for_each(|writer| writer.join().unwrap());
        done.store(true, Ordering::Relaxed);
    });
}

fn run(store: &mut Store, line: &str) -> Value {
    let reply = only(&serve(store, NOW, &command(Protocol::V2, line), &mut Records::new()));
    Value::parse(&reply).expect("a reply").0
}

fn run_all(store: &mut Store, lines: &[&str]) -> Value {
    let commands: Vec<u8> = lines.iter().flat_map(|line| command(Protocol::V2, line)).collect();
    let mut request = Vec::new();
    request::push_transaction(&mut request, Protocol::V2, &[], &commands);
    let reply = only(&serve(store, NOW, &request, &mut Records::new()));
    Value::parse(&reply).expect("a reply").0
}

fn numbers(value: &Value) -> Vec<i64> {
    let Value::Array(items) = value else { panic!("{value:?}") };
    let text = |item: &Value| std::str::from_utf8(item.as_bytes().unwrap()).unwrap().parse();
    items.iter().map(|item| text(item).unwrap()).collect()
}

#[test]
fn commands_on_several_keys_are_atomic() {
    let shared = Shared::new(Limits::default(), 0);
    let mut store = shared.store();
    run(&mut store, "MSET a 1000 b 1000 x 0 y 0 name1 v");
    run(&mut store, "HSET h f 0 g 0");
    let write = |store: &mut Store, turn: u64| {
        let keys = if turn.is_multiple_of(3) { ["a", "b"] } else { ["b", "a"] };
        run_all(store, &[&format!("DECR {}", keys[0]), &format!("INCR {}", keys[1])]);
        run(store, &format!("MSET x {turn} y {turn}"));
        run(store, &format!("HSET h f {turn} g {turn}"));
        run(store, "RENAMENX name1 name2");
        run(store, "RENAMENX name2 name1");
    };
    let read = |store: &mut Store| {
        assert_eq!(numbers(&run(store, "MGET a b")).iter().sum::<i64>(), 2000);
        let pair = numbers(&run(store, "MGET x y"));
        assert_eq!(pair[0], pair[1]);
        let pair = numbers(&run_all(store, &["GET x", "GET y"]));
        assert_eq!(pair[0], pair[1]);
        let pair = numbers(&run(store, "HMGET h f g"));
        assert_eq!(pair[0], pair[1]);
        assert_eq!(run(store, "EXISTS name1 name2"), Value::Integer(1));
    };
    under_load(write, read, &shared);
}

#[test]
fn a_flush_is_seen_by_all_stores_and_leaves_nothing() {
    let shared = Shared::new(Limits::default(), 0);
    let (mut one, mut other) = (shared.store(), shared.store());
    run(&mut one, "SET k v");
    run(&mut other, "FLUSHALL");
    assert_eq!(run(&mut one, "EXISTS k"), Value::Integer(0));
    run(&mut one, "SET l v");
    assert_eq!(run(&mut other, "DBSIZE"), Value::Integer(1));
}
