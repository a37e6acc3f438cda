//! Lists, sets and sorted sets: what the tables of replies do not show.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use proptest::prelude::*;
use resp::{Protocol, Value};
use smr::StateMachine;

use super::{Bench, NOW, dump, only};
use crate::random::Draws;
use crate::{lookup, request};

/// The reply to a command of any bytes.
fn run(bench: &mut Bench, argv: &[&[u8]]) -> Vec<u8> {
    let mut request = Vec::new();
    request::push_command(&mut request, Protocol::V2, lookup(argv[0]).unwrap(), argv);
    only(&bench.apply(&request).0)
}

fn bulk(reply: &[u8]) -> Vec<u8> {
    Value::parse(reply).unwrap().0.as_bytes().expect("a string").to_vec()
}

fn strings(reply: &[u8]) -> Vec<Vec<u8>> {
    let (Value::Array(values), _) = Value::parse(reply).unwrap() else { panic!("an array") };
    values.iter().map(|value| value.as_bytes().unwrap().to_vec()).collect()
}

/// One of each type, with all that a dump can hold.
fn filled() -> Bench {
    let mut bench = Bench::new();
    bench.run("SET string some-text");
    bench.run("HSET hash f v g \"\"");
    bench.run("HPEXPIRE hash 5000 FIELDS 1 f");
    bench.run("RPUSH list a \"\" b a");
    bench.run("LPUSH list z");
    bench.run("SADD set 1 2 x");
    bench.run("SADD ints 1 2");
    bench.run("ZADD zset 1 a -inf b 2.5 \"\" inf d");
    bench
}

const KEYS: &[(&str, &str)] = &[
    ("string", "GET"),
    ("hash", "HGETALL"),
    ("list", "LRANGE 0 -1"),
    ("set", "SMEMBERS"),
    ("ints", "SMEMBERS"),
    ("zset", "ZRANGE 0 -1 WITHSCORES"),
];

/// The whole of a key, by the command that shows it.
fn contents(bench: &mut Bench, key: &str, show: &str) -> Vec<Vec<u8>> {
    let (name, rest) = show.split_once(' ').unwrap_or((show, ""));
    let encoding = format!("OBJECT ENCODING {key}");
    [format!("{name} {key} {rest}"), format!("TYPE {key}"), encoding, format!("PTTL {key}")]
        .iter()
        .map(|line| bench.run(line))
        .collect()
}

#[test]
fn a_dump_restores_what_was_dumped() {
    let mut bench = filled();
    for (key, show) in KEYS {
        bench.run(&format!("PEXPIRE {key} 9000"));
        let dumped = bulk(&bench.run(&format!("DUMP {key}")));
        let before = contents(&mut bench, key, show);
        let reply = run(&mut bench, &[b"RESTORE", b"copy", b"9000", &dumped]);
        assert_eq!(reply, b"+OK\r\n");
        assert_eq!(contents(&mut bench, "copy", show), before);
        let reply = run(&mut bench, &[b"RESTORE", b"copy", b"0", &dumped]);
        assert_eq!(reply, b"-BUSYKEY Target key name already exists.\r\n");
        let time = (NOW + 9000).to_string();
        let replaced: &[&[u8]] =
            &[b"RESTORE", b"copy", time.as_bytes(), &dumped, b"REPLACE", b"ABSTTL"];
        assert_eq!(run(&mut bench, replaced), b"+OK\r\n");
        assert_eq!(contents(&mut bench, "copy", show), before);
        assert_eq!(bulk(&bench.run("DUMP copy")), dumped);
        let past: &[&[u8]] = &[b"RESTORE", b"copy", b"1", &dumped, b"REPLACE", b"ABSTTL"];
        assert_eq!(run(&mut bench, past), b"+OK\r\n");
        bench.expect("EXISTS copy", ":0");
    }
    let dumped = bulk(&bench.run("DUMP hash"));
    run(&mut bench, &[b"RESTORE", b"copy", b"0", &dumped]);
    bench.expect("HPTTL copy FIELDS 2 f g", "*2 :5000 :-1");
}

#[test]
fn a_damaged_dump_is_refused() {
    let mut bench = filled();
    let refused = b"-ERR DUMP payload version or checksum are wrong\r\n";
    for (key, _) in KEYS {
        let dumped = bulk(&bench.run(&format!("DUMP {key}")));
        for at in 0..dumped.len() {
            let mut damaged = dumped.clone();
            damaged[at] ^= 1;
            assert_eq!(run(&mut bench, &[b"RESTORE", b"copy", b"0", &damaged]), refused);
            assert_eq!(run(&mut bench, &[b"RESTORE", b"copy", b"0", &dumped[..at]]), refused);
        }
    }
    bench.expect("EXISTS copy", ":0");
}

#[test]
fn every_type_is_copied_renamed_removed_and_expired_whole() {
    let mut bench = Bench::new();
    let empty = dump(&bench.store);
    bench = filled();
    for (key, show) in KEYS {
        let before = contents(&mut bench, key, show);
        bench.expect(&format!("COPY {key} copy"), ":1");
        bench.expect(&format!("RENAME copy {key}2"), "+OK");
        assert_eq!(contents(&mut bench, &format!("{key}2"), show), before);
        bench.expect(&format!("DEL {key}"), ":1");
        assert_eq!(contents(&mut bench, &format!("{key}2"), show), before);
        bench.expect(&format!("PEXPIRE {key}2 10000"), ":1");
    }
    bench.unix_ms += 10_000;
    let mut request = Vec::new();
    request::push_sweep(&mut request);
    bench.apply(&request);
    assert!(dump(&bench.store).entries.is_empty());
    assert_eq!(dump(&bench.store).sizes, empty.sizes);
}

#[test]
fn a_set_replaces_any_type_whole() {
    let mut bench = filled();
    for (key, _) in KEYS {
        bench.run(&format!("SET {key} v"));
    }
    assert_eq!(dump(&bench.store).entries.len(), KEYS.len());
}

#[test]
fn encodings_change_once() {
    let mut bench = Bench::new();
    let mut numbers: Vec<String> = (0..512).map(|number| number.to_string()).collect();
    bench.run(&format!("SADD s {}", numbers.join(" ")));
    bench.expect("OBJECT ENCODING s", "$6 intset");
    bench.run("SADD s 512");
    bench.expect("OBJECT ENCODING s", "$9 hashtable");
    bench.run("SREM s 512");
    bench.expect("OBJECT ENCODING s", "$9 hashtable");
    numbers.truncate(128);
    let pairs: Vec<String> = numbers.iter().map(|number| format!("{number} {number}")).collect();
    bench.run(&format!("ZADD z {}", pairs.join(" ")));
    bench.expect("OBJECT ENCODING z", "$8 listpack");
    bench.run("ZADD z 1 more");
    bench.expect("OBJECT ENCODING z", "$8 skiplist");
    bench.run(&format!("ZADD y 1 {}", "m".repeat(65)));
    bench.expect("OBJECT ENCODING y", "$8 skiplist");
    bench.run("COPY s t");
    bench.expect("OBJECT ENCODING t", "$9 hashtable");
}

#[test]
fn long_members_are_refused_and_never_found() {
    let mut bench = filled();
    let longest = "m".repeat(crate::MAX_KEY_LEN);
    bench.expect(&format!("SADD set {longest}"), ":1");
    bench.expect(&format!("ZADD zset 1 {longest}"), ":1");
    bench.expect(&format!("ZINCRBY zset -3 {longest}"), "$2 -2");
    bench.expect(&format!("ZRANK zset {longest}"), ":1");
    let before = dump(&bench.store);
    for line in [
        format!("SADD set {longest}x"),
        format!("ZADD zset 1 {longest}x"),
        format!("ZINCRBY zset 1 {longest}x"),
        format!("ZUNIONSTORE d 1 {longest}x"),
        format!("SORT list STORE {longest}x"),
    ] {
        let reply = bench.run(&line);
        assert!(reply.starts_with(b"-ERR keys and fields are limited to"), "{}", &line[..20]);
    }
    bench.expect(&format!("SISMEMBER set {longest}x"), ":0");
    bench.expect(&format!("SREM set {longest}x"), ":0");
    bench.expect(&format!("ZSCORE zset {longest}x"), "$-1");
    bench.expect(&format!("ZREM zset {longest}x"), ":0");
    bench.expect(&format!("SMOVE set ints {longest}x"), ":0");
    bench.run("ZADD lex 0 a");
    bench.expect(&format!("ZRANGEBYLEX lex [{longest}x +"), "*0");
    bench.expect(&format!("ZREVRANGEBYLEX lex [{longest}x -"), "*1 $1 a");
    bench.run("DEL lex");
    assert_eq!(dump(&bench.store).entries, before.entries);
}

#[test]
fn pops_and_draws_reach_every_member() {
    let mut bench = Bench::new();
    let names: Vec<String> = (0..2000).map(|number| format!("m{number}")).collect();
    bench.run(&format!("SADD big {}", names.join(" ")));
    let pairs: Vec<String> = names.iter().map(|name| format!("1 {name}")).collect();
    bench.run(&format!("ZADD zbig {}", pairs.join(" ")));
    for line in ["SRANDMEMBER big -20000", "ZRANDMEMBER zbig -20000"] {
        let seen: BTreeSet<Vec<u8>> = strings(&bench.run(line)).into_iter().collect();
        assert!(seen.len() > 1500, "{}", seen.len());
    }
    assert_eq!(strings(&bench.run("SRANDMEMBER big 1999")).len(), 1999);
    let mut popped: BTreeSet<Vec<u8>> = BTreeSet::new();
    while popped.len() < 500 {
        assert!(popped.insert(bulk(&bench.run("SPOP big"))));
    }
    popped.extend(strings(&bench.run("SPOP big 1499")));
    bench.expect("SCARD big", ":1");
    popped.extend(strings(&bench.run("SPOP big 10")));
    assert_eq!(popped.len(), names.len());
    bench.expect("EXISTS big", ":0");
}

#[test]
fn scans_of_members_return_everything_once() {
    let mut bench = Bench::new();
    for number in 0..300 {
        bench.run(&format!("SADD s m{number}"));
        bench.run(&format!("ZADD z {number} m{number}"));
    }
    for (name, each) in [("SSCAN s", 1), ("ZSCAN z", 2)] {
        let (mut token, mut found) = (Vec::new(), Vec::new());
        loop {
            let mut argv = super::words(name);
            argv.extend([token, b"COUNT".to_vec(), b"7".to_vec()]);
            let argv: Vec<&[u8]> = argv.iter().map(|word| &word[..]).collect();
            let reply = run(&mut bench, &argv);
            let (Value::Array(values), _) = Value::parse(&reply).unwrap() else { panic!() };
            let Value::Array(page) = &values[1] else { panic!("an array") };
            assert!(page.len() <= 7 * each);
            found.extend(page.iter().map(|value| value.as_bytes().unwrap().to_vec()));
            token = values[0].as_bytes().unwrap().to_vec();
            if token.is_empty() {
                break;
            }
        }
        assert_eq!(found.len(), 300 * each);
    }
}

/// The command on a list, and what it does to the model.
fn change_list(model: &mut VecDeque<String>, draws: &mut Draws) -> String {
    let value = ["a", "b", "c"][draws.below(3)].to_owned();
    let place = draws.below(model.len() + 2);
    match draws.below(8) {
        0..3 => {
            model.push_back(value.clone());
            format!("RPUSH k {value}")
        }
        3 => {
            model.push_front(value.clone());
            format!("LPUSH k {value}")
        }
        4 => {
            if let Some(at) = model.iter().position(|other| *other == value) {
                model.insert(at, "new".to_owned());
            }
            format!("LINSERT k BEFORE {value} new")
        }
        5 => {
            let mut left = 2;
            model.retain(|other| {
                let removed = *other == value && left > 0;
                left -= i32::from(removed);
                !removed
            });
            format!("LREM k 2 {value}")
        }
        6 => {
            let _ = model.pop_front();
            "LPOP k".to_owned()
        }
        _ => {
            model.truncate(place);
            // A list of none is trimmed by a range of none.
            if place == 0 { "LTRIM k 1 0".to_owned() } else { format!("LTRIM k 0 {}", place - 1) }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn a_list_is_a_sequence(seeds in prop::collection::vec(any::<u64>(), 1..120)) {
        let (mut bench, mut model) = (Bench::new(), VecDeque::new());
        for seed in seeds {
            let line = change_list(&mut model, &mut Draws::new(seed));
            bench.run(&line);
            let list = strings(&bench.run("LRANGE k 0 -1"));
            prop_assert!(list.iter().map(Vec::as_slice).eq(model.iter().map(String::as_bytes)));
            // The entries are the elements, and nothing else is left behind.
            let entries = dump(&bench.store).entries.len();
            prop_assert_eq!(entries, model.len() + usize::from(!model.is_empty()));
        }
    }

    #[test]
    fn a_sorted_set_is_a_map_in_the_order_of_scores(
        changes in prop::collection::vec((0u8..12, -4i32..5, any::<bool>()), 1..100),
    ) {
        let (mut bench, mut model) = (Bench::new(), BTreeMap::new());
        for (member, score, removed) in changes {
            let member = format!("m{member}");
            if removed {
                model.remove(&member);
                bench.run(&format!("ZREM k {member}"));
            } else {
                model.insert(member.clone(), score);
                bench.run(&format!("ZADD k {score} {member}"));
            }
            let mut sorted: Vec<(i32, &String)> = model.iter().map(|(m, s)| (*s, m)).collect();
            sorted.sort();
            let all = strings(&bench.run("ZRANGE k 0 -1"));
            let expected = sorted.iter().map(|(_, member)| member.as_bytes());
            prop_assert!(all.iter().map(Vec::as_slice).eq(expected));
            let entries = dump(&bench.store).entries.len();
            prop_assert_eq!(entries, 2 * model.len() + usize::from(!model.is_empty()));
        }
    }

    #[test]
    fn undo_takes_back_what_was_drawn(seed in any::<u64>(), count in 1usize..40) {
        let mut bench = Bench::new();
        for member in 0..count {
            bench.run(&format!("SADD s m{member}"));
        }
        bench.position = seed >> 1;
        let before = dump(&bench.store);
        let (first, undo) = bench.apply(&super::command(Protocol::V2, "SPOP s 3"));
        bench.store.undo(undo);
        prop_assert_eq!(dump(&bench.store), before);
        bench.position -= 1;
        let (second, _) = bench.apply(&super::command(Protocol::V2, "SPOP s 3"));
        prop_assert_eq!(first, second);
    }
}
