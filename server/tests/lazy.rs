//! Durability `lazy` as clients and operators see it, over real replicas.

mod support;

use std::time::{Duration, Instant};

use faultfs::FaultDisk;
use resp::Value;
use rustix::process::{Signal, kill_process};
use serde_json::json;
use support::{Client, Group, bulk, ok};

/// So slow a disk that what is acknowledged is seen before it is durable.
const SLOW: &[&str] = &["--emulate-disk-latency", "40000"];
/// As long as a forced write takes on it, at least.
const WRITE: Duration = Duration::from_millis(40);

fn error_text(reply: &Value) -> String {
    match reply {
        Value::Error(text) => String::from_utf8_lossy(text).into_owned(),
        other => panic!("no error: {other:?}"),
    }
}

fn pair(first: i64, second: i64) -> Value {
    Value::Array(vec![Value::Integer(first), Value::Integer(second)])
}

/// View, operation and whether it is durable.
fn viewstamp(client: &mut Client) -> (i64, i64, bool) {
    let reply = client.call("LOCKSTEP.VIEWSTAMP");
    read_viewstamp(&reply)
}

fn read_viewstamp(reply: &Value) -> (i64, i64, bool) {
    let Value::Array(fields) = reply else { panic!("{reply:?}") };
    let number = |index: usize| match &fields[index] {
        Value::Integer(number) => *number,
        other => panic!("{other:?}"),
    };
    assert_eq!(
        (&fields[0], &fields[2], &fields[4]),
        (&bulk("view"), &bulk("op"), &bulk("durable"))
    );
    (number(1), number(3), number(5) == 1)
}

/// As [`viewstamp`], of a write that was sent just now and is unanswered.
fn viewstamp_behind(client: &mut Client) -> (i64, i64, bool) {
    client.send(&[b"LOCKSTEP.VIEWSTAMP"]);
    assert!(!matches!(client.receive().expect("a reply"), Value::Error(_)));
    read_viewstamp(&client.receive().expect("a reply"))
}

fn durabilities(client: &mut Client) -> (Value, Value) {
    let Value::Array(fields) = client.call("LOCKSTEP.DURABILITY") else { panic!("no array") };
    assert_eq!((&fields[0], &fields[2]), (&bulk("connection"), &bulk("group")));
    (fields[1].clone(), fields[3].clone())
}

#[test]
fn a_connection_gets_the_durability_that_it_asks_for_or_an_error() {
    for (group_has, accepted) in
        [("memory", &["memory"][..]), ("lazy", &["lazy", "sync"]), ("sync", &["sync"])]
    {
        let group = Group::start(1, group_has, &[]);
        let mut client = group.client(0);
        assert_eq!(durabilities(&mut client), (bulk(group_has), bulk(group_has)));
        for asked in ["memory", "lazy", "sync"] {
            let before = durabilities(&mut client);
            let reply = client.call(&format!("LOCKSTEP.DURABILITY {asked}"));
            if accepted.contains(&asked) {
                assert_eq!(reply, ok());
                assert_eq!(durabilities(&mut client), (bulk(asked), bulk(group_has)));
            } else {
                let text = error_text(&reply);
                assert!(text.contains(&format!("group is {group_has}")), "{text}");
                assert!(text.contains(&format!("cannot have {asked}")), "{text}");
                assert_eq!(durabilities(&mut client), before, "nothing has changed");
            }
        }
        assert!(error_text(&client.call("LOCKSTEP.DURABILITY often")).contains("takes"));
        assert_eq!(client.call("MULTI"), ok());
        client.call("LOCKSTEP.DURABILITY sync");
        assert!(error_text(&client.call("EXEC")).starts_with("EXECABORT"));
        assert_eq!(client.call("RESET"), Value::Simple(b"RESET".to_vec()));
        assert_eq!(durabilities(&mut client), (bulk(group_has), bulk(group_has)));
        assert_eq!(group.status(0, "durability"), json!(group_has));
    }
}

#[test]
fn a_lazy_answer_does_not_wait_for_the_disk_and_a_durable_one_does() {
    let group = Group::start(3, "lazy", SLOW);
    for id in 0..3 {
        let (mut lazy, mut sync) = (group.client(id), group.client(id));
        assert_eq!(sync.call("LOCKSTEP.DURABILITY sync"), ok());
        assert!((0..20).any(|_| {
            lazy.send(&[b"SET", b"key", b"lazy"]);
            !viewstamp_behind(&mut lazy).2
        }));
        let start = Instant::now();
        assert_eq!(sync.call("SET other sync"), ok());
        assert!(start.elapsed() >= WRITE, "{:?}", start.elapsed());
        assert!(viewstamp(&mut sync).2 && viewstamp(&mut lazy).2);
        // A transaction, and a read that sees what is not durable yet.
        assert_eq!(lazy.call("SET key again"), ok());
        let op = viewstamp(&mut lazy).1;
        assert_eq!(sync.call("GET key"), bulk("again"));
        assert!(viewstamp(&mut lazy).2);
        assert_eq!(sync.call("MULTI"), ok());
        sync.call("INCR n");
        sync.call("EXEC");
        let (_, later, durable) = viewstamp(&mut sync);
        assert!(durable && later > op);
    }
}

#[test]
fn waitaof_waits_for_what_the_connection_wrote() {
    let group = Group::start(3, "lazy", SLOW);
    let (mut client, mut other) = (group.client(1), group.client(1));
    assert_eq!(client.call("WAITAOF 1 1 0"), pair(1, 1), "nothing was written");
    let start = Instant::now();
    client.send(&[b"SET", b"key", b"value"]);
    client.send(&[b"WAITAOF", b"1", b"1", b"0"]);
    client.send(&[b"PING"]);
    assert_eq!(client.receive().expect("a reply"), ok());
    assert_eq!(other.call("WAITAOF 1 1 0"), pair(1, 1), "the other has written nothing");
    assert_eq!(client.receive().expect("a reply"), pair(1, 1));
    assert!(start.elapsed() >= WRITE, "{:?}", start.elapsed());
    assert_eq!(client.receive().expect("a reply"), Value::Simple(b"PONG".to_vec()));
    assert!(viewstamp(&mut client).2);
    assert_eq!(client.call("MULTI"), ok());
    client.call("WAITAOF 1 1 0");
    assert_eq!(client.call("EXEC"), Value::Array(vec![pair(1, 1)]));
    assert_eq!(client.call("WAIT 1 0"), Value::Integer(1));
    for (command, text) in [
        ("WAITAOF 2 0 0", "ERR value is out of range, value must between 0 and 1"),
        ("WAITAOF x 0 0", "ERR value is not an integer or out of range"),
        ("WAITAOF 1 -1 0", "ERR value is out of range, must be positive"),
        ("WAITAOF 1 1 x", "ERR timeout is not an integer or out of range"),
        ("WAITAOF 1 1 -1", "ERR timeout is negative"),
    ] {
        assert_eq!(error_text(&client.call(command)), text);
    }
}

#[test]
fn waitaof_ends_in_time() {
    let group = Group::start(1, "lazy", &["--emulate-disk-latency", "1000000"]);
    let mut client = group.client(0);
    assert_eq!(client.call("SET key value"), ok());
    // The next write waits until the one that is under way has ended.
    assert_eq!(client.call("SET key again"), ok());
    let start = Instant::now();
    assert_eq!(client.call("WAITAOF 1 0 1"), pair(0, 0));
    assert!(start.elapsed() < Duration::from_millis(500), "{:?}", start.elapsed());
    assert_eq!(client.call("WAITAOF 1 0 0"), pair(1, 0));
}

#[test]
fn waitaof_in_a_transaction_of_a_sync_group_needs_no_waiting() {
    let group = Group::start(1, "sync", &[]);
    let mut client = group.client(0);
    // The write is unanswered when the question is queued.
    client.send(&[b"SET", b"key", b"value"]);
    client.send(&[b"MULTI"]);
    client.send(&[b"WAITAOF", b"1", b"0", b"0"]);
    client.send(&[b"EXEC"]);
    for _ in 0..3 {
        client.receive().expect("a reply");
    }
    assert_eq!(client.receive().expect("a reply"), Value::Array(vec![pair(1, 0)]));
}

#[test]
fn operators_see_how_far_the_disks_are_behind() {
    let group = Group::start(3, "lazy", SLOW);
    let primary = group.primary();
    let mut client = group.client(primary);
    let mut most = (0, 0, 0);
    for _ in 0..200 {
        assert_eq!(client.call("SET key value"), ok());
        let lag = group.status(primary, "durable_lag");
        let number = |field: &str| lag[field].as_u64().expect("a number");
        most = (most.0.max(number("ops")), most.1.max(number("bytes")), most.2.max(number("ms")));
        if most.0 > 1 && most.2 > 5 {
            break;
        }
    }
    assert!(most.0 > 1 && most.1 > 0 && most.2 > 5, "{most:?}");
    let Value::Bulk(info) = client.call("INFO lockstep") else { panic!("no text") };
    let info = String::from_utf8(info).expect("text");
    assert!(info.contains("durability:lazy") && info.contains("durable_lag_ms:"), "{info}");
    assert_eq!(client.call("WAITAOF 1 1 0"), pair(1, 1));
    let port = group.ports[0].to_string();
    let table = support::run(&["status", "--port", &port]);
    assert!(String::from_utf8_lossy(&table.stdout).contains("undurable"), "{table:?}");
}

#[test]
fn a_whole_group_that_was_killed_comes_back_by_itself() {
    let mut group = Group::start(3, "lazy", &["--checkpoint-bytes", "200000"]);
    for round in 0..3 {
        let mut client = group.client(round);
        for number in 0..500 {
            assert_eq!(client.call(&format!("SET key{round}:{number} {number:0200}")), ok());
        }
        assert_eq!(client.call("WAITAOF 1 1 0"), pair(1, 1));
        client.call("SET late perhaps");
        for id in 0..3 {
            group.kill(id);
        }
        for id in 0..3 {
            group.spawn(id, false);
        }
        group.wait_until_served(round);
        let mut client = group.client(round);
        for number in 0..500 {
            let key = format!("GET key{round}:{number}");
            assert_eq!(client.call(&key), bulk(&format!("{number:0200}")));
        }
    }
    for id in 0..3 {
        group.wait_for(id, "forgetful", &json!(false));
    }
    assert!(group.logs().contains("restarted without what it had only in memory"));
}

#[test]
fn a_client_that_saw_what_a_crash_took_is_told_and_nobody_else() {
    let mut group = Group::start(3, "lazy", SLOW);
    let primary = group.primary();
    let survivor = (primary + 1) % 3;
    let mut unaware = group.client(survivor);
    assert_eq!(unaware.call("SET safe value"), ok());
    assert_eq!(unaware.call("WAITAOF 1 1 0"), pair(1, 1));
    let mut idle = group.client(survivor);
    let mut saw = group.client(survivor);
    let mut patient = group.client(survivor);
    assert_eq!(patient.call("LOCKSTEP.DURABILITY sync"), ok());
    assert_eq!(saw.call("INCR lost"), Value::Integer(1));
    assert_eq!(idle.call("GET lost"), bulk("1"));
    patient.send(&[b"SET", b"lost", b"9"]);
    let pid = group.pid(survivor);
    kill_process(pid, Signal::STOP).expect("stopped");
    for id in (0..3).filter(|&id| id != survivor) {
        group.kill(id);
    }
    for id in (0..3).filter(|&id| id != survivor) {
        group.spawn(id, false);
    }
    for id in (0..3).filter(|&id| id != survivor) {
        group.wait_until_served(id);
    }
    assert_eq!(group.client(primary).call("GET lost"), Value::Null, "{}", group.logs());
    kill_process(pid, Signal::CONT).expect("woken");
    let text = error_text(&saw.call("INCR lost"));
    assert!(text.starts_with("WRONGVIEW acknowledged operations after <"), "{text}");
    saw.receive().expect_err("closed");
    assert!(error_text(&idle.call("PING")).starts_with("WRONGVIEW"));
    idle.receive().expect_err("closed");
    let reply = patient.receive().expect("a reply");
    assert!(error_text(&reply).starts_with("UNAVAILABLE"), "{reply:?}");
    assert_eq!(patient.call("GET lost"), Value::Null, "it goes on, and so does the other");
    assert_eq!(unaware.call("GET safe"), bulk("value"));
    assert_eq!(group.client(survivor).call("INCR lost"), Value::Integer(1));
    assert!(group.logs().contains("LOSS POSSIBLE"), "{}", group.logs());
}

/// A disk that obeys, if there can be one.
fn fault_disk(name: &str) -> Option<FaultDisk> {
    let path = std::env::temp_dir().join(format!("lockstep-lazy-{name}-{}", std::process::id()));
    FaultDisk::mount(&path).inspect_err(|reason| eprintln!("SKIPPED {name}: {reason}")).ok()
}

#[test]
fn a_full_disk_refuses_what_grows_and_takes_what_frees() {
    let Some(disk) = fault_disk("full") else { return };
    let mut group = Group::on(disk.path(), "lazy");
    let primary = group.primary();
    let mut client = group.client(primary);
    assert_eq!(client.call("MSET gone 1 stays 2"), ok());
    disk.full(0);
    group.wait_for(primary, "disk_full", &json!(true));
    assert!(error_text(&client.call("SET more 3")).starts_with("DISKFULL"));
    assert_eq!(client.call("DEL gone"), Value::Integer(1));
    assert_eq!(client.call("GET stays"), bulk("2"));
    disk.ok();
    group.wait_for(primary, "disk_full", &json!(false));
    assert_eq!(client.call("SET more 3"), ok());
    assert_eq!(client.call("WAITAOF 1 1 0"), pair(1, 1));
    (0..3).for_each(|id| group.kill(id));
    disk.drop_unsynced();
    (0..3).for_each(|id| group.spawn(id, false));
    group.wait_until_served(primary);
    let found = group.client(primary).call("MGET gone stays more");
    assert_eq!(found, Value::Array(vec![Value::Null, bulk("2"), bulk("3")]), "{}", group.logs());
    drop((group, disk));
}

/// Nobody waits for the disk in `lazy`; the replica whose sync failed must stop nevertheless.
#[test]
fn a_failed_sync_ends_its_replica_alone() {
    let Some(disk) = fault_disk("failed") else { return };
    let mut group = Group::on(disk.path(), "lazy");
    disk.fail_fsync(20);
    let mut ended = Vec::new();
    for number in 0.. {
        // Whoever is left takes it, perhaps after an election.
        let client = (0..3).filter(|id| !ended.contains(id)).find_map(|id| {
            let mut client = support::Client::try_connect(group.ports[id])?;
            client.try_call(&[b"SET", b"last", number.to_string().as_bytes()]).ok()
        });
        assert_eq!(client, Some(ok()), "{}", group.logs());
        for (id, well) in group.ended() {
            assert!(!well, "it says so");
            ended.push(id);
        }
        if number > 20_000 || !ended.is_empty() && number > 500 {
            break;
        }
    }
    assert_eq!(ended.len(), 1, "of one disk one sync failed: {}", group.logs());
    let (left, again) = ((ended[0] + 1) % 3, ended[0]);
    let mut client = group.client(left);
    assert_eq!(client.call("SET last served"), ok());
    assert_eq!(client.call("WAITAOF 1 1 0"), pair(1, 1), "two disks are a quorum");
    group.spawn(again, false);
    group.wait_until_served(again);
    assert_eq!(group.client(again).call("GET last"), bulk("served"));
    drop((group, disk));
}

#[test]
fn a_directory_of_another_durability_is_refused() {
    let mut group = Group::start(1, "sync", &[]);
    assert!(group.terminate(0));
    let dir = group.dir(0);
    let refused = support::run(&[
        "serve",
        "--id",
        "0",
        "--peers",
        group.peer_address(0),
        "--resp",
        &format!("127.0.0.1:{}", group.ports[0]),
        "--durability",
        "lazy",
        "--dir",
        dir.to_str().expect("text"),
    ]);
    let text = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(!refused.status.success() && text.contains("for durability sync, not lazy"), "{text}");
}
