//! Commands with the replies that Redis gave to them: `commands.txt`.

use resp::Protocol;

use super::{Bench, command, only};
use crate::table::{self, Place};

fn unescape(text: &str) -> Vec<u8> {
    let quoted = format!("\"{}\"", text.replace('"', "\\\""));
    super::words(&quoted).remove(0)
}

#[test]
fn replies_are_those_of_redis() {
    let text = include_str!("commands.txt");
    for protocol in [Protocol::V2, Protocol::V3] {
        let mut bench = Bench { protocol, ..Bench::new() };
        let mut lines = text.lines().peekable();
        let mut cases = 0;
        while let Some(line) = lines.next() {
            let Some(case) = line.strip_prefix("> ") else { continue };
            let second = lines.next().and_then(|line| line.strip_prefix("2 ")).expect("a reply");
            let third =
                lines.next_if(|line| line.starts_with("3 ")).map_or(second, |line| &line[2..]);
            let expected = unescape(if protocol == Protocol::V2 { second } else { third });
            check(&mut bench, case, &expected);
            cases += 1;
        }
        assert!(cases > 300);
    }
}

fn check(bench: &mut Bench, case: &str, expected: &[u8]) {
    let name = &super::words(case)[0];
    let show = |bytes: &[u8]| bytes.escape_ascii().to_string();
    if table::lookup(name).unwrap().place == Place::Read {
        let reply = bench.read(case).expect("nothing expires here");
        assert_eq!(show(&reply), show(expected), "read: {case}");
    }
    let (answer, _) = bench.apply(&command(bench.protocol, case));
    assert_eq!(show(&only(&answer)), show(expected), "{case}");
}

#[test]
fn lengths_have_limits() {
    let mut bench = Bench::new();
    let long = "k".repeat(crate::MAX_KEY_LEN);
    bench.expect(&format!("SET {long} v"), "+OK");
    bench.expect(&format!("GET {long}"), "$1 v");
    bench.expect(&format!("PEXPIRE {long} 100000"), ":1");
    bench.expect(&format!("HSET h {long} v"), ":1");
    bench.expect(&format!("HGET h {long}"), "$1 v");
    for line in [
        format!("SET {long}x v"),
        format!("GET {long}x"),
        format!("MSET a b {long}x v"),
        format!("RENAME a {long}x"),
        format!("OBJECT ENCODING {long}x"),
        format!("HSET h {long}x v"),
        format!("HSETNX h {long}x v"),
        format!("HINCRBY h {long}x 1"),
    ] {
        let reply = bench.run(&line);
        assert!(reply.starts_with(b"-ERR keys and fields are limited to"), "{}", &line[..20]);
    }
    bench.expect(&format!("HGET h {long}x"), "$-1");
    bench.expect(&format!("HDEL h {long}x"), ":0");
    bench.expect(&format!("KEYS {long}xx*"), "*0");
    bench.expect(&format!("KCOUNT {long}x +"), ":0");
    bench.expect(&format!("KCOUNT - {long}x"), ":2");
    bench.expect(&format!("SCAN >{long}xx"), "*2 $0  *0");
    bench.expect(&format!("HSCAN h >{long}xx"), "*2 $0  *0");
}

#[test]
fn what_is_not_executed_here_says_so() {
    let mut bench = Bench::new();
    assert_eq!(bench.run("PING"), b"-ERR the command cannot be executed here\r\n");
    assert_eq!(bench.read("SET a b"), None);
}

#[test]
fn hash_encodings_change_once() {
    let mut bench = Bench::new();
    for field in 0..128 {
        bench.run(&format!("HSET h {field} v"));
    }
    bench.expect("OBJECT ENCODING h", "$8 listpack");
    bench.run("HSET h 128 v");
    bench.expect("OBJECT ENCODING h", "$9 hashtable");
    bench.run("HDEL h 128");
    bench.expect("OBJECT ENCODING h", "$9 hashtable");
    bench.run(&format!("HSET i f {}", "v".repeat(64)));
    bench.expect("OBJECT ENCODING i", "$8 listpack");
    bench.run(&format!("HSET i f {}", "v".repeat(65)));
    bench.expect("OBJECT ENCODING i", "$9 hashtable");
    bench.run("COPY i j");
    bench.expect("OBJECT ENCODING j", "$9 hashtable");
}
