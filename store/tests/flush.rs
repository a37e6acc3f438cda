//! What a flush has removed stays removed, whatever the logs and the checkpoint say of it.

mod common;

use std::time::{Duration, Instant};

use common::*;
use resp::Value;

fn check(name: &str, checkpointed: bool) {
    let path = directory(name);
    let mut first = options(&path, 2);
    first.checkpoint_bytes = if checkpointed { 1 << 16 } else { u64::MAX };
    let running = Running::start(first).expect("it starts");
    // One on each thread.
    let mut clients = [running.client(), running.client()];
    let (start, mut round) = (Instant::now(), 0);
    while round < 3 || (checkpointed && running.checkpoints() == 0) {
        assert!(start.elapsed() < Duration::from_secs(60), "no checkpoint");
        for key in 0..200 {
            clients[(key + round) % 2].call(&format!("SET key{key} {round}")).expect("an answer");
        }
        clients[round % 2].call(&format!("HSET hash f{round} v")).expect("an answer");
        round += 1;
    }
    clients[1].call("FLUSHALL").expect("an answer");
    for key in 100..103 {
        clients[key % 2].call(&format!("SET key{key} after")).expect("an answer");
    }
    clients[0].call("HSET hash g w").expect("an answer");
    drop(clients);
    running.end().expect("stops");

    let running = Running::start(options(&path, 2)).expect("it starts again");
    // Three keys, the hash and its field; another checkpoint may have come behind the flush.
    let applied = (running.report.changes, running.report.entries);
    assert!(applied == (5, 0) || checkpointed, "{applied:?}");
    let mut client = running.client();
    assert_eq!(client.call("DBSIZE"), Some(Value::Integer(4)));
    for key in 100..103 {
        assert_eq!(client.call(&format!("GET key{key}")), Some(Value::Bulk(b"after".to_vec())));
    }
    assert_eq!(client.call("HLEN hash"), Some(Value::Integer(1)));
    drop(client);
    running.end().expect("stops");
    std::fs::remove_dir_all(path).expect("removed");
}

#[test]
fn a_flush_takes_what_the_logs_have_before_it() {
    check("flush-log", false);
}

#[test]
fn a_flush_takes_what_the_checkpoint_has() {
    check("flush-checkpoint", true);
}
