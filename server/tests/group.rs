//! Real replicas, real kills.

mod support;

use resp::Value;
use serde_json::json;
use support::{Client, Group, bulk, ok};

fn is_error(reply: &Value, code: &str) -> bool {
    matches!(reply, Value::Error(text) if text.starts_with(code.as_bytes()))
}

#[test]
fn every_replica_serves_reads_writes_and_ranges() {
    let group = Group::start(3, "memory", &[]);
    for id in 0..3 {
        let mut client = group.client(id);
        assert_eq!(client.call(&format!("SET key{id} value{id}")), ok());
    }
    for id in 0..3 {
        let mut client = group.client(id);
        for of in 0..3 {
            assert_eq!(client.call(&format!("GET key{of}")), bulk(&format!("value{of}")));
        }
        let Value::Array(found) = client.call("KRANGE key0 key2") else { panic!("no array") };
        assert!(found.contains(&bulk("key0")) && found.contains(&bulk("key1")), "{found:?}");
    }
}

#[test]
fn a_killed_primary_is_replaced_and_comes_back() {
    let mut group = Group::start(3, "sync", &[]);
    let mut acknowledged = 0;
    for _ in 0..3 {
        let primary = group.count_through_the_end_of_the_primary(&mut acknowledged);
        let commit = group.status((primary + 1) % 3, "commit_number");
        group.wait_for(primary, "commit_number", &commit);
        assert!(group.status(primary, "incarnation").as_u64() >= Some(2));
    }
}

#[test]
fn a_whole_group_that_was_killed_keeps_what_it_acknowledged() {
    let mut group = Group::start(3, "sync", &["--checkpoint-bytes", "200000"]);
    let mut client = group.client(0);
    let value = vec![b'v'; 1000];
    for number in 0..2000 {
        client.send(&[b"SET", format!("key{number}").as_bytes(), &value]);
    }
    for _ in 0..2000 {
        assert_eq!(client.receive().expect("a reply"), ok());
    }
    for id in 0..3 {
        group.kill(id);
    }
    for id in 0..3 {
        group.spawn(id, false);
    }
    group.wait_until_served(1);
    let mut client = group.client(1);
    assert_eq!(client.call("DBSIZE"), Value::Integer(2000));
    assert_eq!(client.call("GET key1999"), Value::Bulk(value));
    let end = std::time::Instant::now() + support::PATIENCE;
    while group.status(1, "checkpoint") == json!(0) {
        assert!(std::time::Instant::now() < end, "no checkpoint: {}", group.logs());
        client.call("SET more work");
    }
    for id in 0..3 {
        assert!(group.terminate(id), "{}", group.logs());
    }
}

#[test]
fn a_lost_disk_is_replaced_from_the_others() {
    let mut group = Group::start(3, "sync", &["--checkpoint-bytes", "100000"]);
    let mut client = group.client(0);
    for number in 0..1000 {
        assert_eq!(client.call(&format!("SET key{number} {number:0200}")), ok());
    }
    // The old disk has had several lives, and clients of its own.
    for _ in 0..2 {
        group.kill(2);
        group.spawn(2, false);
        group.wait_until_served(2);
    }
    for count in 1..=3 {
        assert_eq!(group.client(2).call("INCR n"), Value::Integer(count));
    }
    group.kill(2);
    std::fs::remove_dir_all(group.dir(2)).expect("removed");
    group.spawn(2, false);
    group.wait_until_served(2);
    // Requests of the new life are not taken for those of the old one.
    for count in 4..=6 {
        assert_eq!(group.client(2).call("INCR n"), Value::Integer(count));
    }
    group.wait_for(2, "keys", &json!(1001));
    // It counts for a quorum.
    group.kill(1);
    assert_eq!(group.client(2).call("GET key7"), bulk(&format!("{:0200}", 7)));
}

#[test]
fn memory_survives_f_crashes_and_says_so_when_more_have_crashed() {
    let mut group = Group::start(3, "memory", &[]);
    assert_eq!(group.client(0).call("SET key value"), ok());
    group.kill(0);
    group.spawn(0, false);
    group.wait_until_served(0);
    assert_eq!(group.client(0).call("GET key"), bulk("value"));
    let port = group.ports[0].to_string();
    let refused = support::run(&["bootstrap", "--accept-loss", "--port", &port]);
    assert!(!refused.status.success());
    assert!(String::from_utf8_lossy(&refused.stderr).contains("not lost"), "{refused:?}");
    for id in 0..3 {
        group.kill(id);
    }
    for id in 0..3 {
        group.spawn(id, false);
    }
    for id in 0..3 {
        group.wait_for(id, "role", &json!("state-lost"));
    }
    let reply = group.client(1).call("GET key");
    assert!(is_error(&reply, "STATELOST"), "{reply:?}");
    assert!(String::from_utf8_lossy(reply_text(&reply)).contains("bootstrap --accept-loss"));
    let done = support::run(&["bootstrap", "--accept-loss", "--port", &port]);
    assert!(done.status.success(), "{done:?}: {}", group.logs());
    let mut client = group.client(1);
    assert_eq!(client.call("GET key"), Value::Null);
    assert_eq!(client.call("SET key again"), ok());
    assert_eq!(group.client(2).call("GET key"), bulk("again"));
}

#[test]
fn a_new_group_that_only_some_were_told_of_takes_in_the_rest() {
    let mut group = Group::start(3, "memory", &[]);
    for id in 0..3 {
        group.kill(id);
    }
    for id in 0..3 {
        group.spawn(id, false);
    }
    for id in 0..3 {
        group.wait_for(id, "role", &json!("state-lost"));
    }
    assert_eq!(group.client(1).call("LOCKSTEP.STARTOVER abc"), ok());
    group.wait_for(1, "role", &json!("view-change"));
    let port = group.ports[0].to_string();
    let done = support::run(&["bootstrap", "--accept-loss", "--port", &port]);
    assert!(done.status.success(), "{done:?}: {}", group.logs());
    for id in 0..3 {
        group.wait_until_served(id);
        assert_eq!(group.status(id, "group"), json!("0000000000000abc"));
    }
}

#[test]
fn a_start_over_that_a_crash_has_interrupted_leaves_a_replica_that_recovers() {
    let mut group = Group::start(3, "sync", &[]);
    for gone in ["log", "all but the identity"] {
        assert_eq!(group.client(0).call("SET key value"), ok());
        group.kill(2);
        let dir = group.dir(2);
        std::fs::rename(dir.join("log"), dir.join("log.aside")).expect("renamed");
        if gone != "log" {
            std::fs::remove_dir_all(dir.join("log.aside")).expect("removed");
            std::fs::remove_file(dir.join("lock")).expect("removed");
        }
        group.spawn(2, false);
        group.wait_until_served(2);
        assert_eq!(group.client(2).call("GET key"), bulk("value"));
        let _ = std::fs::remove_dir_all(dir.join("log.aside"));
    }
}

fn reply_text(reply: &Value) -> &[u8] {
    match reply {
        Value::Error(text) => text,
        other => panic!("no error: {other:?}"),
    }
}

#[test]
fn a_group_of_one_serves_and_restarts() {
    let mut group = Group::start(1, "sync", &[]);
    let mut client = group.client(0);
    assert_eq!(client.call("SET key value"), ok());
    assert_eq!(client.call("GET key"), bulk("value"));
    group.kill(0);
    group.spawn(0, false);
    group.wait_until_served(0);
    let mut client = group.client(0);
    assert_eq!(client.call("GET key"), bulk("value"));
    assert!(group.terminate(0));
}

#[test]
fn without_a_quorum_commands_end_with_an_error() {
    let mut group = Group::start(3, "memory", &["--command-timeout-ms", "400"]);
    group.kill(1);
    group.kill(2);
    let mut client = group.client(0);
    let reply = client.call("SET key value");
    assert!(is_error(&reply, "TIMEOUT the outcome is unknown"), "{reply:?}");
    let reply = client.call("GET key");
    assert!(is_error(&reply, "UNAVAILABLE"), "{reply:?}");
    // What needs no group is answered.
    assert_eq!(client.call("PING"), Value::Simple(b"PONG".to_vec()));
}

#[test]
fn a_slow_reader_is_throttled_and_not_lost() {
    let group = Group::start(1, "memory", &[]);
    let mut client = group.client(0);
    let value = vec![b'x'; 100_000];
    assert_eq!(client.try_call(&[b"SET", b"big", &value]).expect("a reply"), ok());
    const COUNT: usize = 3000; // 300 MB of answers
    let mut slow = group.client(0);
    let mut sender = Client::over(slow.stream.try_clone().expect("a clone"));
    let writing = std::thread::spawn(move || {
        for _ in 0..COUNT {
            sender.send(&[b"GET", b"big"]);
        }
    });
    std::thread::sleep(std::time::Duration::from_millis(500));
    // Others are served meanwhile, and memory is bounded.
    assert_eq!(client.call("SET other value"), ok());
    let resident = group.status(0, "resident").as_u64().expect("a number");
    assert!(resident < 100 << 20, "{resident} bytes");
    for _ in 0..COUNT {
        match slow.receive().expect("a reply") {
            Value::Bulk(bytes) => assert_eq!(bytes.len(), value.len()),
            other => panic!("{other:?}"),
        }
    }
    writing.join().expect("written");
}

#[test]
fn one_replica_cannot_be_taken_for_another() {
    let mut group = Group::start(3, "sync", &[]);
    group.kill(1);
    std::fs::remove_dir_all(group.dir(1)).expect("removed");
    let copied = std::process::Command::new("cp")
        .arg("-r")
        .args([group.dir(2), group.dir(1)])
        .status()
        .expect("cp runs");
    assert!(copied.success());
    group.spawn(1, false);
    group.wait_until("it refuses", || group.logs().contains("is for replica id 2, not 1"));
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
fn without_file_descriptors_clients_wait_and_the_replica_does_not_spin() {
    use rustix::process::{Resource, Rlimit, getrlimit, prlimit};
    let group = Group::start(1, "sync", &[]);
    let mut client = group.client(0);
    assert_eq!(client.call("SET key value"), ok());
    let few = Rlimit { current: Some(30), ..getrlimit(Resource::Nofile) };
    let pid = group.pid(0);
    prlimit(Some(pid), Resource::Nofile, few).expect("limited");
    let mut waiting: Vec<Client> = (0..60).map(|_| group.client(0)).collect();
    std::thread::sleep(std::time::Duration::from_millis(300));
    let before = computed(pid);
    std::thread::sleep(std::time::Duration::from_millis(1000));
    let spent = computed(pid) - before;
    assert!(spent < 0.5, "{spent} s");
    assert_eq!(client.call("GET key"), bulk("value"));
    waiting.drain(..59);
    assert_eq!(waiting[0].call("GET key"), bulk("value"));
}

#[test]
fn strangers_at_the_door_of_the_replicas_are_few_and_do_not_stay() {
    use std::io::Read;
    let mut group = Group::start(3, "memory", &[]);
    let strangers: Vec<std::net::TcpStream> = (0..40)
        .map(|_| std::net::TcpStream::connect(group.peer_address(0)).expect("accepted"))
        .collect();
    // A peer comes through.
    group.kill(1);
    group.spawn(1, false);
    group.wait_until_served(1);
    assert_eq!(group.client(0).call("SET key value"), ok());
    for mut stranger in strangers {
        stranger.set_read_timeout(Some(std::time::Duration::from_secs(10))).expect("set");
        assert_eq!(stranger.read(&mut [0]).expect("the end"), 0);
    }
}

#[test]
fn a_transaction_behind_its_watch_waits_for_no_timer() {
    let group = Group::start(1, "memory", &[]);
    let mut client = group.client(0);
    let mut times: Vec<std::time::Duration> = (0..60)
        .map(|_| {
            let start = std::time::Instant::now();
            for command in [&[&b"WATCH"[..], b"key"][..], &[b"MULTI"], &[b"INCR", b"n"], &[b"EXEC"]]
            {
                client.send(command);
            }
            for _ in 0..4 {
                client.receive().expect("a reply");
            }
            start.elapsed()
        })
        .collect();
    times.sort();
    assert!(times[30] < std::time::Duration::from_millis(10), "{:?}", times[30]);
}
