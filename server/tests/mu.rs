//! Real replicas that order by mu, over the shared memory of this machine: kills, pauses, and what
//! does not fit.

mod support;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use resp::Value;
use rustix::process::{Signal, kill_process};
use serde_json::json;
use support::{Client, Group, bulk, error_of, ok};

fn group(replicas: usize, flags: &[&str]) -> Group {
    let flags: Vec<&str> = ["--order", "mu"].iter().chain(flags).copied().collect();
    Group::start(replicas, "memory", &flags)
}

/// Waits until a field of the replica's `memory` has this value.
fn wait_for_memory(group: &Group, id: usize, field: &str, value: &serde_json::Value) {
    let end = Instant::now() + support::PATIENCE;
    loop {
        let memory = group.status(id, "memory");
        if memory[field] == *value {
            return;
        }
        assert!(Instant::now() < end, "replica {id}: {memory}: {}", group.logs());
        std::thread::sleep(Duration::from_millis(10));
    }
}

#[test]
fn every_replica_serves_and_says_who_may_write_its_log() {
    let group = group(3, &[]);
    for id in 0..3 {
        let mut client = group.client(id);
        assert_eq!(client.call(&format!("SET key{id} value{id}")), ok());
        for of in 0..=id {
            assert_eq!(client.call(&format!("GET key{of}")), bulk(&format!("value{of}")));
        }
    }
    group.wait_for(0, "role", &json!("primary"));
    wait_for_memory(&group, 0, "confirmed", &json!([0, 1, 2]));
    for id in 0..3 {
        wait_for_memory(&group, id, "log_holder", &json!(0));
        wait_for_memory(&group, id, "leader", &json!(0));
        wait_for_memory(&group, id, "attached", &json!([0, 1, 2]));
        assert_eq!(group.status(id, "order"), json!("mu"));
        assert_eq!(group.status(id, "memory")["scores"].as_array().map(Vec::len), Some(3));
    }
    let port = group.ports[1].to_string();
    let table = support::run(&["status", "--port", &port]);
    let text = String::from_utf8_lossy(&table.stdout);
    assert!(text.contains("scores") && text.contains("log held by"), "{text}");
    let Value::Bulk(info) = group.client(2).call("INFO lockstep") else { panic!("no text") };
    let info = String::from_utf8_lossy(&info);
    assert!(info.contains("order:mu") && info.contains("log_holder:0"), "{info}");
}

#[test]
fn a_killed_leader_is_replaced_and_rejoins() {
    let mut group = group(3, &[]);
    let mut acknowledged = 0;
    for _ in 0..5 {
        let killed = group.count_through_the_end_of_the_primary(&mut acknowledged);
        group.wait_until_it_votes(killed);
    }
}

#[test]
fn a_leader_that_was_stopped_wakes_and_does_no_harm() {
    let group = group(3, &[]);
    for round in 0..5 {
        let primary = group.primary();
        let mut own = group.client(primary);
        let mut other = group.client((primary + 1) % 3);
        assert_eq!(own.call(&format!("SET key {round}")), ok());
        let pid = group.pid(primary);
        kill_process(pid, Signal::STOP).expect("stopped");
        // What the stopped leader finds when it wakes: it may not be executed twice, or too late.
        own.send(&[b"APPEND", b"key", b"own"]);
        own.send(&[b"GET", b"key"]);
        for letter in ["a", "b"] {
            let reply = other.call(&format!("APPEND key {letter}"));
            assert!(matches!(reply, Value::Integer(_)), "{reply:?}");
        }
        kill_process(pid, Signal::CONT).expect("goes on");
        assert_eq!(own.receive().expect("a reply"), Value::Integer(6));
        assert_eq!(own.receive().expect("a reply"), bulk(&format!("{round}abown")));
        assert_eq!(other.call("GET key"), bulk(&format!("{round}abown")));
    }
}

#[test]
fn a_replica_that_lacks_more_than_the_leader_keeps_fetches_the_state() {
    let mut group = group(3, &[]);
    group.kill(2);
    let mut client = group.client(0);
    let value = vec![b'v'; 60_000];
    for number in 0..2_000 {
        client.send(&[b"SET", format!("key{}", number % 50).as_bytes(), &value]);
    }
    for _ in 0..2_000 {
        assert_eq!(client.receive().expect("a reply"), ok());
    }
    assert_eq!(client.call("SET key value"), ok());
    group.spawn(2, false);
    group.wait_until_served(2);
    group.wait_for(2, "keys", &json!(51));
    assert!(group.logs().contains("fetched the state"), "{}", group.logs());
    // It counts for a majority, as the leader even.
    group.wait_for(2, "role", &json!("backup"));
    group.kill(0);
    assert_eq!(group.client(2).call("GET key"), bulk("value"));
    assert_eq!(group.client(2).call("GET key7"), Value::Bulk(value));
}

#[test]
fn what_does_not_fit_a_slot_is_refused_with_advice() {
    let group = group(3, &[]);
    for id in 0..2 {
        let mut client = group.client(id);
        let fits = vec![b'x'; 64 << 10];
        assert_eq!(client.try_call(&[b"SET", b"fits", &fits]).expect("a reply"), ok());
        assert_eq!(client.call("GET fits"), Value::Bulk(fits.clone()));
        let long = vec![b'x'; 70 << 10];
        // Before, in the middle of, and behind what fits.
        for value in [&long[..], b"1", &fits[..], &long[..], &fits[..], b"2"] {
            client.send(&[b"SET", b"key", value]);
        }
        for fails in [true, false, false, true, false, false] {
            let reply = client.receive().expect("a reply");
            if fails {
                let text = error_of(&reply);
                assert!(text.contains("--slot-bytes") && text.contains("not executed"), "{text}");
            } else {
                assert_eq!(reply, ok());
            }
        }
        assert_eq!(client.call("GET key"), bulk("2"));
        let long_read = client.try_call(&[b"MGET", &long, b"key"]).expect("a reply");
        assert!(error_of(&long_read).contains("--slot-bytes"));
        assert_eq!(client.call("GET key"), bulk("2"));
    }
}

#[test]
fn larger_slots_take_larger_values() {
    let group = group(3, &["--slot-bytes", "1050000"]);
    let mut client = group.client(1);
    let value = vec![b'x'; 1 << 20];
    for _ in 0..50 {
        client.send(&[b"SET", b"key", &value]);
    }
    for _ in 0..50 {
        assert_eq!(client.receive().expect("a reply"), ok());
    }
    assert_eq!(group.client(2).call("STRLEN key"), Value::Integer(1 << 20));
}

#[test]
fn memory_survives_f_ends_and_says_so_when_more_have_ended() {
    let mut group = group(3, &[]);
    assert_eq!(group.client(0).call("SET key value"), ok());
    group.kill(0);
    group.spawn(0, false);
    group.wait_until_served(0);
    assert_eq!(group.client(0).call("GET key"), bulk("value"));
    for id in 0..3 {
        group.kill(id);
    }
    for id in 0..3 {
        group.spawn(id, false);
    }
    for id in 0..3 {
        group.wait_for(id, "role", &json!("state-lost"));
    }
    let text = error_of(&group.client(1).call("GET key"));
    assert!(text.starts_with("STATELOST") && text.contains("bootstrap --accept-loss"), "{text}");
    let port = group.ports[0].to_string();
    let done = support::run(&["bootstrap", "--accept-loss", "--port", &port]);
    assert!(done.status.success(), "{done:?}: {}", group.logs());
    assert_eq!(group.client(1).call("GET key"), Value::Null);
    assert_eq!(group.client(1).call("SET key again"), ok());
    assert_eq!(group.client(2).call("GET key"), bulk("again"));
}

#[test]
fn without_a_majority_commands_end_with_an_error() {
    let mut group = group(3, &["--command-timeout-ms", "400"]);
    group.kill(1);
    group.kill(2);
    let mut client = group.client(0);
    let text = error_of(&client.call("SET key value"));
    assert!(text.starts_with("TIMEOUT") || text.starts_with("UNAVAILABLE"), "{text}");
    assert!(error_of(&client.call("GET key")).starts_with("UNAVAILABLE"));
    assert_eq!(client.call("PING"), Value::Simple(b"PONG".to_vec()));
}

#[test]
fn a_group_of_one_serves_and_forgets() {
    let mut group = group(1, &[]);
    let mut client = group.client(0);
    assert_eq!(client.call("SET key value"), ok());
    assert_eq!(client.call("GET key"), bulk("value"));
    assert!(group.terminate(0));
    group.spawn(0, false);
    group.wait_for(0, "role", &json!("state-lost"));
}

#[test]
fn a_whole_group_that_was_killed_has_what_its_disks_have() {
    for durability in ["sync", "lazy"] {
        Group::start(3, durability, &["--order", "mu"]).keep_through_the_end_of_all(100);
    }
}

/// Counts up through a replica, until it is told to stop: each command is answered, once.
fn counting(mut client: Client, stop: &Arc<AtomicBool>) -> JoinHandle<i64> {
    let stop = Arc::clone(stop);
    std::thread::spawn(move || {
        let mut count = 0;
        while !stop.load(Ordering::Relaxed) {
            assert_eq!(client.call("INCR count"), Value::Integer(count + 1));
            count += 1;
        }
        count
    })
}

#[test]
fn members_come_and_go_under_load() {
    for durability in ["memory", "sync"] {
        let flags = ["--order", "mu", "--members", "0,1,2"];
        let mut group = Group::start(4, durability, &flags);
        let stop = Arc::new(AtomicBool::new(false));
        let load = counting(group.client(3), &stop);
        let port = group.ports[1].to_string();
        let change = |group: &Group, words: &[&str], members: &[u8]| {
            let words: Vec<&str> =
                ["member", "--port", &port].iter().chain(words).copied().collect();
            let done = support::run(&words);
            assert!(done.status.success(), "{words:?}: {done:?}: {}", group.logs());
            for id in 0..4 {
                wait_for_memory(group, id, "members", &json!(members));
            }
        };
        wait_for_memory(&group, 0, "members", &json!([0, 1, 2]));
        change(&group, &["add", "3"], &[0, 1, 2, 3]);
        change(&group, &["remove", "2"], &[0, 1, 3]);
        // Who was removed counts no more: without it two of three are enough, and needed.
        group.kill(2);
        change_of_leader(&mut group);
        group.spawn(2, false);
        group.wait_until_served(2);
        change(&group, &["replace", "0", "2"], &[1, 2, 3]);
        assert_ne!(group.primary(), 0, "who is no member does not lead");
        group.kill(0);
        stop.store(true, Ordering::Relaxed);
        let count = load.join().expect("each command was answered");
        assert!(count > 0);
        for id in 1..4 {
            assert_eq!(group.client(id).call("GET count"), bulk(&count.to_string()));
        }
        let again = support::run(&["member", "--port", &port, "--patience", "1", "add", "0"]);
        let text = String::from_utf8_lossy(&again.stderr);
        assert!(!again.status.success() && text.contains("NOTFOLLOWING"), "it is gone: {text}");
        let none = support::run(&["member", "--port", &port, "add", "4"]);
        let text = String::from_utf8_lossy(&none.stderr);
        assert!(!none.status.success() && text.contains("replicas are 0 to 3"), "{text}");
    }
}

/// Kills the leader, and brings it back once another leads.
fn change_of_leader(group: &mut Group) {
    let primary = group.primary();
    group.kill(primary);
    assert_ne!(group.primary(), primary);
    group.spawn(primary, false);
    group.wait_until_served(primary);
}

#[test]
fn replicas_of_two_orders_do_not_meet() {
    let mut group = group(3, &[]);
    group.kill(2);
    let dir = group.dir(2);
    let dir = dir.to_str().expect("text").to_owned();
    let peers = (0..3).map(|id| group.peer_address(id).to_owned()).collect::<Vec<_>>().join(",");
    let resp = format!("127.0.0.1:{}", group.ports[2]);
    let start = |flags: &[&str]| {
        let all = ["serve", "--id", "2", "--peers", &peers, "--resp", &resp, "--dir", &dir];
        let all: Vec<&str> = all.iter().chain(flags).copied().collect();
        support::run(&all)
    };
    let synced = start(&["--order", "mu", "--durability", "sync"]);
    let text = String::from_utf8_lossy(&synced.stderr);
    assert!(!synced.status.success() && text.contains("for durability memory"), "{text}");
    let reordered = start(&["--durability", "memory"]);
    let text = String::from_utf8_lossy(&reordered.stderr);
    assert!(!reordered.status.success() && text.contains("ordered by mu, not vsr"), "{text}");
    let idle = start(&["--durability", "memory", "--slot-bytes", "100000"]);
    let text = String::from_utf8_lossy(&idle.stderr);
    assert!(!idle.status.success() && text.contains("--order mu"), "{text}");
    // In another's place, and not by mu: the others refuse it, and go on.
    let dir = format!("{dir}-new");
    let mut other = std::process::Command::new(support::PROGRAM)
        .args(["serve", "--id", "2", "--peers", &peers, "--resp", &resp, "--dir", &dir])
        .args(["--durability", "memory"])
        .stderr(std::process::Stdio::null())
        .spawn()
        .expect("it starts");
    let end = Instant::now() + support::PATIENCE;
    while !group.logs().contains("it orders by vsr, this replica by mu") {
        assert!(Instant::now() < end, "{}", group.logs());
        std::thread::sleep(Duration::from_millis(20));
    }
    other.kill().expect("killed");
    other.wait().expect("waited");
    assert_eq!(group.client(0).call("SET key value"), ok());
}

/// The time a process has computed, in seconds.
fn computed(pid: rustix::process::Pid) -> f64 {
    let path = format!("/proc/{}/stat", pid.as_raw_pid());
    let text = std::fs::read_to_string(path).expect("it runs");
    let (_, rest) = text.rsplit_once(')').expect("a name");
    let ticks = rest.split(' ').skip(12).take(2);
    ticks.map(|ticks| ticks.parse::<f64>().expect("a number")).sum::<f64>() / 100.0
}

#[test]
fn replicas_without_work_and_without_a_majority_hardly_compute() {
    let mut group = group(3, &[]);
    let rest = |group: &Group, ids: &[usize]| {
        std::thread::sleep(Duration::from_millis(200));
        let before: f64 = ids.iter().map(|&id| computed(group.pid(id))).sum();
        std::thread::sleep(Duration::from_secs(2));
        (ids.iter().map(|&id| computed(group.pid(id))).sum::<f64>() - before) / 2.0
    };
    let idle = rest(&group, &[0, 1, 2]);
    assert!(idle < 0.3, "three idle replicas take {idle} of a core");
    group.kill(1);
    group.kill(2);
    let mut client: Client = group.client(0);
    client.send(&[b"SET", b"key", b"value"]);
    let alone = rest(&group, &[0]);
    assert!(alone < 0.3, "a replica without a majority takes {alone} of a core");
}
