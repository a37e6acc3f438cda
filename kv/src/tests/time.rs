//! What happens when a key's time comes.

use smr::StateMachine;

use super::{Bench, NOW, only};
use crate::request;

#[test]
fn expired_keys_are_not_seen() {
    let mut bench = Bench::new();
    bench.run("SET k v PX 1500");
    bench.expect("TTL k", ":2");
    bench.expect("PTTL k", ":1500");
    bench.unix_ms = NOW + 1499;
    bench.expect("GET k", "$1 v");
    assert_eq!(bench.read("PTTL k").unwrap(), b":1\r\n");
    bench.unix_ms = NOW + 1500;
    let before = bench.store.stats();
    assert_eq!((before.keys, before.expiring, before.expired), (1, 1, 0));
    for line in ["GET k", "EXISTS k", "KEYS *", "SCAN \"\"", "RANDOMKEY", "TTL k", "KCOUNT - +"] {
        assert_eq!(bench.read(line), None, "{line}");
    }
    bench.expect("GET k", "$-1");
    let after = bench.store.stats();
    assert_eq!((after.keys, after.expiring, after.expired), (0, 0, 1));
    assert_eq!(bench.read("GET k").unwrap(), b"$-1\r\n");
}

#[test]
fn more_expire_at_once_than_a_request_removes() {
    let mut bench = Bench::new();
    for number in 0..2500 {
        bench.run(&format!("SET k{number} v PX 10"));
    }
    bench.run("SET z v");
    bench.unix_ms = NOW + 10;
    assert_eq!(bench.store.wakeup(), Some(NOW + 10));
    bench.expect("STRLEN nosuch", ":0");
    assert_eq!(bench.store.stats().keys, 2501 - 20);
    bench.expect("SET k2499 w NX", "+OK");
    bench.expect("DEL k2498", ":0");
    bench.expect("EXISTS k1000 k1001 k2499 z", ":2");
    let sweep = bench.store.wakeup_request();
    while bench.store.wakeup().is_some() {
        assert_eq!(only(&bench.apply(&sweep).0), b"+OK\r\n");
    }
    assert_eq!(bench.store.stats().keys, 2);
    assert_eq!(bench.store.stats().expired, 2500);
    assert_eq!(bench.store.stats().expiring, 0);
}

#[test]
fn a_key_has_one_time() {
    let mut bench = Bench::new();
    bench.run("SET k v PX 10");
    bench.run("PEXPIRE k 20");
    bench.run("RENAME k l");
    bench.run("SET k w PX 30");
    bench.run("COPY l m");
    bench.run("SET l v");
    assert_eq!(bench.store.stats().expiring, 2);
    bench.unix_ms = NOW + 20;
    bench.expect("MGET k l m", "*3 $1 w $1 v $-1");
    bench.unix_ms = NOW + 30;
    bench.expect("MGET k l m", "*3 $-1 $1 v $-1");
    assert_eq!(bench.store.wakeup(), None);
}

#[test]
fn an_expired_hash_loses_its_fields() {
    let mut bench = Bench::new();
    bench.run("HSET h a 1 b 2");
    bench.run("PEXPIRE h 10");
    bench.run("HSET h c 3");
    bench.expect("PTTL h", ":10");
    bench.unix_ms = NOW + 10;
    bench.expect("HGETALL h", "*0");
    assert_eq!(bench.store.stats().bytes, 0);
    bench.expect("HSET h a 1", ":1");
    bench.expect("HGETALL h", "*2 $1 a $1 1");
}

#[test]
fn watching_an_expired_key_is_watching_none() {
    let mut bench = Bench::new();
    bench.run("SET k v PX 10");
    bench.unix_ms = NOW + 10;
    let mut request = Vec::new();
    request::push_versions(&mut request, &[b"k"]);
    let outcome = bench.store.read(bench.unix_ms, &request, &mut Vec::new());
    assert_eq!(outcome, smr::ReadOutcome::MustLog);
    assert_eq!(only(&bench.apply(&request).0), 0u64.to_le_bytes());
}

#[test]
fn fields_expire_one_by_one() {
    let mut bench = Bench::new();
    bench.run("HSET h a 1 b 2 c 3");
    bench.expect("HPEXPIRE h 10 FIELDS 2 a nosuch", "*2 :1 :-2");
    bench.expect("HPEXPIRE h 20 FIELDS 1 b", "*1 :1");
    bench.expect("HPTTL h FIELDS 3 a c nosuch", "*3 :10 :-1 :-2");
    bench.expect("HTTL h FIELDS 1 a", "*1 :1");
    assert_eq!(bench.store.wakeup(), Some(NOW + 10));
    bench.run("HINCRBY h b 5");
    bench.expect("HPTTL h FIELDS 1 b", "*1 :20");
    bench.unix_ms = NOW + 10;
    for line in ["HGET h a", "HLEN h", "HGETALL h", "HGET h c", "EXISTS h", "KEYS *"] {
        assert_eq!(bench.read(line), None, "{line}");
    }
    bench.expect("HLEN h", ":2");
    bench.expect("HMGET h a b", "*2 $-1 $1 7");
    assert_eq!(bench.store.wakeup(), Some(NOW + 20));
    bench.expect("HPERSIST h FIELDS 3 a b c", "*3 :-2 :1 :-1");
    bench.expect("HPEXPIRE h 5 XX FIELDS 1 b", "*1 :0");
    bench.expect("HPEXPIRE h 5 NX FIELDS 1 b", "*1 :1");
    bench.expect("HPEXPIRE h 4 GT FIELDS 1 b", "*1 :0");
    bench.expect("HPEXPIRE h 0 FIELDS 1 c", "*1 :2");
    bench.expect("COPY h i", ":1");
    bench.expect("RENAME h j", "+OK");
    assert_eq!(bench.store.wakeup(), Some(NOW + 15));
    bench.unix_ms = NOW + 15;
    assert_eq!(bench.read("GET j"), None);
    assert_eq!(bench.read("KCOUNT - +"), None);
    bench.expect("GET j", "$-1");
    bench.expect("HSET i x 1", ":1");
    bench.expect("HKEYS i", "*1 $1 x");
    bench.expect("HPTTL nosuch FIELDS 1 a", "*1 :-2");
    assert_eq!(bench.store.wakeup(), None);
}

#[test]
fn setting_a_field_makes_it_stay() {
    let mut bench = Bench::new();
    bench.run("HSET h a 1");
    bench.run("HPEXPIRE h 10 FIELDS 1 a");
    bench.run("HSET h a 2");
    bench.unix_ms = NOW + 10;
    bench.expect("HGET h a", "$1 2");
    for (line, error) in [
        ("HPEXPIRE h 10 FIELD 1 a", "Unsupported option FIELD"),
        ("HPEXPIRE h 10 NX FIELD 1 a", "Mandatory argument FIELDS is missing"),
        ("HPEXPIRE h -1 FIELDS 1 a", "invalid expire time"),
        ("HPEXPIRE h 9223372036854775807 FIELDS 1 a", "invalid expire time in 'hpexpire'"),
        ("HPEXPIRE h 10 FIELDS 0 a", "Parameter `numFields` should be greater"),
        ("HPEXPIRE h 10 FIELDS 2 a", "The `numfields` parameter must match"),
        ("HTTL h FIELDS 1 a b", "The `numfields` parameter must match"),
    ] {
        let reply = String::from_utf8(bench.run(line)).unwrap();
        assert!(reply.starts_with(&format!("-ERR {error}")), "{line}: {reply}");
    }
}
