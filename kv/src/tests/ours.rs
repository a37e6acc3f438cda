//! What Redis does not have, or leaves to chance: ranges, CAS, scans, draws, transactions.

use std::collections::{BTreeMap, BTreeSet};

use resp::{Protocol, Value};
use smr::{ReadOutcome, StateMachine};

use super::{Bench, NOW, command, only};
use crate::{reply, request};

fn strings(reply: &[u8]) -> Vec<String> {
    let (Value::Array(values), _) = Value::parse(reply).unwrap() else { panic!("an array") };
    values
        .iter()
        .map(|value| String::from_utf8(value.as_bytes().unwrap().to_vec()).unwrap())
        .collect()
}

#[test]
fn ranges() {
    let mut bench = Bench::new();
    bench.run("MSET a 1 b 2 c 3 d 4 [x 5 (y 6");
    bench.run("HSET h f v");
    for (line, expected) in [
        ("KRANGE - +", "(y [x a b c d h"),
        ("KRANGE a c", "a b c"),
        ("KRANGE [a (c", "a b"),
        ("KRANGE (a [c", "b c"),
        ("KRANGE (a (b", ""),
        ("KRANGE c a", ""),
        ("KRANGE + -", ""),
        ("KRANGE - -", ""),
        ("KRANGE + +", ""),
        ("KRANGE bb +", "c d h"),
        ("KRANGE - b", "(y [x a b"),
        ("KRANGE [[x [[x", "[x"),
        ("KRANGE [(y [(y", "(y"),
        ("KRANGE a d LIMIT 2", "a b"),
        ("KRANGE a d LIMIT 0", ""),
        ("KRANGE a d LIMIT -1", "a b c d"),
        ("KRANGE a d REV", "d c b a"),
        ("KRANGE a (d REV LIMIT 2", "c b"),
        ("KRANGE (a b rev", "b"),
        ("KRANGE a b WITHVALUES", "a 1 b 2"),
        ("KRANGE \"\" (a", "(y [x"),
    ] {
        let reply = bench.read(line).unwrap();
        assert_eq!(strings(&reply).join(" "), expected, "{line}");
        assert_eq!(bench.run(line), reply);
        if !line.contains("LIMIT") && !line.contains("WITH") {
            let count = bench
                .run(&line.replace("KRANGE", "KCOUNT").replace(" REV", "").replace(" rev", ""));
            assert_eq!(count, format!(":{}\r\n", strings(&reply).len()).as_bytes(), "{line}");
        }
    }
    bench.expect("KRANGE d h WITHVALUES", "*4 $1 d $1 4 $1 h $-1");
    assert_eq!(bench.run("KRANGE a b LIMIT"), b"-ERR syntax error\r\n");
    bench.protocol = Protocol::V3;
    bench.expect("KRANGE d h WITHVALUES", "*2 *2 $1 d $1 4 *2 $1 h _");
}

#[test]
fn compare_and_set() {
    let mut bench = Bench::new();
    bench.expect("CAS k a b", "$-1");
    bench.run("SET k a PX 1000");
    bench.expect("CAS k x b", ":0");
    bench.expect("CAS k a b", ":1");
    bench.expect("GET k", "$1 b");
    bench.expect("PTTL k", ":1000");
    bench.run("HSET h f v");
    assert!(bench.run("CAS h a b").starts_with(b"-WRONGTYPE"));
}

/// Scans to the end, and checks that each call looks at `count` at most.
fn scan_all(bench: &mut Bench, before: &str, after: &str) -> Vec<String> {
    let mut token = Vec::new();
    let mut all = Vec::new();
    loop {
        let mut words = super::words(before);
        words.push(token);
        words.extend(super::words(after));
        let argv: Vec<&[u8]> = words.iter().map(|word| &word[..]).collect();
        let mut request = Vec::new();
        let spec = crate::lookup(argv[0]).unwrap();
        request::push_command(&mut request, Protocol::V2, spec, &argv);
        let reply = only(&bench.apply(&request).0);
        let (Value::Array(values), _) = Value::parse(&reply).unwrap() else { panic!("an array") };
        let Value::Array(found) = &values[1] else { panic!("an array") };
        let text = |value: &Value| String::from_utf8(value.as_bytes().unwrap().to_vec()).unwrap();
        all.extend(found.iter().map(text));
        token = values[0].as_bytes().unwrap().to_vec();
        if token.is_empty() {
            return all;
        }
    }
}

#[test]
fn scans_return_everything_once() {
    let mut bench = Bench::new();
    let mut names = BTreeSet::new();
    for number in 0..300 {
        bench.run(&format!("SET user:{number} v"));
        bench.run(&format!("HSET big f{number} {number}"));
        names.insert(format!("user:{number}"));
    }
    bench.run("SET \"\" empty");
    let users: Vec<String> = names.iter().cloned().collect();
    assert_eq!(scan_all(&mut bench, "SCAN", "MATCH user:* COUNT 7"), users);
    assert_eq!(scan_all(&mut bench, "SCAN", "COUNT 1 TYPE hash"), ["big"]);
    assert_eq!(scan_all(&mut bench, "SCAN", "COUNT 1").len(), 302);
    assert_eq!(scan_all(&mut bench, "SCAN", "MATCH user:7 COUNT 1"), ["user:7"]);
    assert_eq!(scan_all(&mut bench, "SCAN", "MATCH *9 COUNT 13").len(), 30);
    assert_eq!(scan_all(&mut bench, "HSCAN big", "COUNT 7").len(), 600);
    assert_eq!(scan_all(&mut bench, "HSCAN big", "MATCH f29? COUNT 3").len(), 20);
    assert_eq!(strings(&bench.run("KEYS user:29?")).len(), 10);
    assert_eq!(strings(&bench.run("KEYS *")).len(), 302);
}

#[test]
fn draws_reach_everything() {
    let mut bench = Bench::new();
    for number in 0..2000 {
        bench.run(&format!("HSET big f{number} v"));
    }
    for name in ["a", "ab", "abc", "b", ""] {
        bench.run(&format!("SET \"{name}\" v"));
    }
    let mut seen = BTreeMap::new();
    for _ in 0..1000 {
        *seen.entry(bench.read("RANDOMKEY").unwrap()).or_insert(0) += 1;
        *seen.entry(bench.run("RANDOMKEY")).or_insert(0) += 1;
    }
    assert_eq!(seen.len(), 6, "{seen:?}");
    let fields: BTreeSet<String> =
        strings(&bench.run("HRANDFIELD big -20000")).into_iter().collect();
    assert!(fields.len() > 1500, "{}", fields.len());
    let fields: BTreeSet<String> = strings(&bench.run("HRANDFIELD big 1999")).into_iter().collect();
    assert_eq!(fields.len(), 1999);
    let field = bench.read("HRANDFIELD big").unwrap();
    assert!(field.windows(1).any(|byte| byte == b"f"));
    assert!(bench.run("HRANDFIELD big -99999999999").starts_with(b"-ERR value is out of range"));
}

fn versions(bench: &Bench, keys: &[&[u8]]) -> Vec<u64> {
    let (mut request, mut answer) = (Vec::new(), Vec::new());
    request::push_versions(&mut request, keys);
    assert_eq!(bench.store.read(bench.unix_ms, &request, &mut answer), ReadOutcome::Done);
    reply::versions(&only(&answer)).collect()
}

fn transaction(bench: &mut Bench, watches: &[(&[u8], u64)], lines: &[&str]) -> Vec<u8> {
    let commands: Vec<u8> = lines.iter().flat_map(|line| command(bench.protocol, line)).collect();
    let mut request = Vec::new();
    request::push_transaction(&mut request, bench.protocol, watches, &commands);
    only(&bench.apply(&request).0)
}

#[test]
fn transactions_run_whole_or_not_at_all() {
    let mut bench = Bench::new();
    bench.run("SET a 1");
    let seen = versions(&bench, &[b"a", b"nosuch"]);
    assert_eq!(seen[1], 0);
    let watches = [(&b"a"[..], seen[0]), (b"nosuch", 0)];
    let reply = transaction(&mut bench, &watches, &["INCR a", "HSET a f v", "GET a"]);
    let wrong = "-WRONGTYPE Operation against a key holding the wrong kind of value\r\n";
    assert_eq!(String::from_utf8(reply).unwrap(), format!("*3\r\n:2\r\n{wrong}$1\r\n2\r\n"));
    let reply = transaction(&mut bench, &watches, &["SET a 9"]);
    assert_eq!(reply, b"*-1\r\n");
    bench.expect("GET a", "$1 2");
    bench.protocol = Protocol::V3;
    assert_eq!(transaction(&mut bench, &watches, &["SET a 9"]), b"_\r\n");
    assert_eq!(transaction(&mut bench, &[], &[]), b"*0\r\n");
}

#[test]
fn every_change_of_a_key_changes_its_version() {
    let mut bench = Bench::new();
    bench.run("SET s 1");
    bench.run("HSET h f 1");
    for line in [
        "SET s 1",
        "INCR s",
        "APPEND s 1",
        "PEXPIRE s 10000",
        "PERSIST s",
        "HSET h f 1",
        "HINCRBY h f 0",
        "HSET h g 1",
        "HDEL h g",
        "RENAME s t",
        "SET s 1",
        "DEL s",
        "SET s 1",
        "FLUSHALL",
    ] {
        let before = versions(&bench, &[b"s", b"h"]);
        bench.run(line);
        assert_ne!(versions(&bench, &[b"s", b"h"]), before, "{line}");
    }
}

#[test]
fn a_transaction_of_reads_needs_no_log() {
    let mut bench = Bench::new();
    bench.run("SET a 1");
    let mut commands = command(Protocol::V2, "GET a");
    request::push_literal(&mut commands, b"+PONG\r\n");
    commands.extend(command(Protocol::V2, "STRLEN a"));
    let mut request = Vec::new();
    request::push_transaction(&mut request, Protocol::V2, &[], &commands);
    let mut answer = Vec::new();
    assert_eq!(bench.store.read(NOW, &request, &mut answer), ReadOutcome::Done);
    assert_eq!(only(&answer), b"*3\r\n$1\r\n1\r\n+PONG\r\n:1\r\n");
    assert_eq!(bench.apply(&request).0, answer);
    request.clear();
    commands.extend(command(Protocol::V2, "INCR a"));
    request::push_transaction(&mut request, Protocol::V2, &[], &commands);
    assert_eq!(bench.store.read(NOW, &request, &mut Vec::new()), ReadOutcome::MustLog);
}

#[test]
fn a_batch_is_answered_item_by_item() {
    let mut bench = Bench::new();
    let mut request = command(Protocol::V2, "SET a 1");
    request.extend(command(Protocol::V3, "GET nosuch"));
    request.extend(command(Protocol::V2, "GET a"));
    request.push(0x0e);
    request.extend(command(Protocol::V2, "GET a"));
    let (answer, _) = bench.apply(&request);
    let bodies: Vec<&[u8]> = reply::items(&answer).collect();
    let malformed = &b"-ERR malformed request\r\n"[..];
    assert_eq!(bodies, [&b"+OK\r\n"[..], b"_\r\n", b"$1\r\n1\r\n", malformed]);
}
