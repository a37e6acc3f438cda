//! Properties of random sequences of commands.

use proptest::prelude::*;
use resp::Protocol;
use smr::{ReadOutcome, StateMachine};

use super::items::memcached;
use super::{Bench, NOW, command, dump};
use crate::random::Draws;
use crate::store::{Space, Store, Undo, weight};
use crate::{Place, request, table};

/// Commands with holes: `K` a key, `F` a field, `V` a value, `N` a number, `T` a short time.
pub(super) const WRITES: &[&str] = &[
    "HPEXPIRE K T FIELDS 2 F F",
    "HPEXPIRE K T FIELDS 1 F",
    "HPEXPIRE K T GT FIELDS 2 F F",
    "HEXPIRE K 1 NX FIELDS 1 F",
    "HPEXPIREAT K 1700000000020 FIELDS 1 F",
    "HEXPIREAT K 1 FIELDS 1 F",
    "HPERSIST K FIELDS 1 F",
    "SET K V",
    "SET K V PX T",
    "SET K V KEEPTTL",
    "SET K V NX",
    "SET K V XX GET",
    "GETEX K PX T",
    "GETEX K PERSIST",
    "GETDEL K",
    "GETSET K V",
    "MSET K V K V K V",
    "MSETNX K V K V",
    "SETNX K V",
    "SETEX K 1 V",
    "PSETEX K T V",
    "APPEND K V",
    "SETRANGE K 3 V",
    "INCR K",
    "DECR K",
    "INCRBY K N",
    "DECRBY K N",
    "INCRBYFLOAT K N",
    "DEL K K",
    "UNLINK K",
    "EXPIRE K 1",
    "PEXPIRE K T",
    "EXPIRE K -1",
    "EXPIREAT K 1800000000",
    "PEXPIREAT K 1700000000020",
    "PERSIST K",
    "RENAME K K",
    "RENAMENX K K",
    "COPY K K",
    "COPY K K REPLACE",
    "HSET K F V F V",
    "HMSET K F V",
    "HSETNX K F V",
    "HINCRBY K F N",
    "HINCRBYFLOAT K F N",
    "HDEL K F",
    "HDEL K F F F F F F",
    "CAS K V V",
    "HSET K F V",
    "HSET K F V",
];

/// The same for lists, sets, sorted sets and bits. `S` is a score, `E` an end.
pub(super) const COLLECTION_WRITES: &[&str] = &[
    "RPUSH l1 V V V",
    "LPUSH l2 V V",
    "RPUSH K V V V V",
    "LPUSHX K V",
    "LPOP K",
    "RPOP K 2",
    "LSET K 1 V",
    "LREM K 1 V",
    "LREM K -2 V",
    "LREM l1 0 V",
    "LTRIM K 1 -2",
    "LINSERT l1 BEFORE V V",
    "LINSERT K AFTER V V",
    "LMOVE l1 l2 E E",
    "LMOVE K K E E",
    "RPOPLPUSH K K",
    "SADD s1 F F V",
    "SADD s2 V N",
    "SADD K F V",
    "SREM K F F",
    "SPOP s1",
    "SPOP K 2",
    "SMOVE s1 K F",
    "SINTERSTORE K s1 s2",
    "SUNIONSTORE K K s1",
    "SDIFFSTORE K s1 K",
    "ZADD z1 S F S V S N",
    "ZADD z2 GT CH S F S F",
    "ZADD K INCR S F",
    "ZINCRBY z1 S F",
    "ZREM K F V",
    "ZPOPMIN z1",
    "ZPOPMAX K 2",
    "ZMPOP 2 K z1 MAX COUNT 2",
    "LMPOP 2 K l1 E COUNT 2",
    "ZRANGESTORE K z1 0 1",
    "ZRANGESTORE z2 z1 -1 S BYSCORE REV",
    "ZREMRANGEBYRANK K 1 1",
    "ZREMRANGEBYSCORE z1 -inf S",
    "ZREMRANGEBYLEX z2 - [g",
    "ZUNIONSTORE K 2 z1 s1 WEIGHTS S S",
    "ZINTERSTORE z2 2 z1 K",
    "ZDIFFSTORE K 2 z1 z2",
    "SETBIT K 9 1",
    "BITOP XOR K K K",
    "SORT l1 ALPHA STORE K",
    "SORT K BY nosort GET # GET * STORE l2",
    "COPY l1 K REPLACE",
    "COPY s1 K REPLACE",
    "COPY z1 z2 REPLACE",
    "RENAME z1 K",
    "RENAME K l1",
    "PEXPIRE l1 T",
    "PEXPIRE s1 T",
    "PEXPIRE z1 T",
    "SET l2 V",
    "DEL K z2",
    // A dump of a set of one member.
    concat!(
        "RESTORE K T \"\\x05\\x01\\x00\\x00\\x00x\\xb1",
        "\\xba\\x45\\x69\\x84\\x33\\x4f\\x63\\x24\" REPLACE",
    ),
];

pub(super) const READS: &[&str] = &[
    "HTTL K FIELDS 2 F F",
    "HPEXPIRETIME K FIELDS 1 F",
    "GET K",
    "MGET K K",
    "STRLEN K",
    "GETRANGE K 0 2",
    "LCS K K IDX",
    "EXISTS K K",
    "TOUCH K",
    "TTL K",
    "PTTL K",
    "EXPIRETIME K",
    "PEXPIRETIME K",
    "TYPE K",
    "KEYS k*",
    "SCAN \"\"",
    "DBSIZE",
    "HGET K F",
    "HMGET K F F",
    "HLEN K",
    "HSTRLEN K F",
    "HKEYS K",
    "HVALS K",
    "HGETALL K",
    "HEXISTS K F",
    "HSCAN K \"\"",
    "KRANGE - +",
    "KCOUNT - +",
    "OBJECT ENCODING K",
    "MEMORY USAGE K",
];

pub(super) const COLLECTION_READS: &[&str] = &[
    "LLEN K",
    "LRANGE l1 0 -1",
    "LINDEX K -1",
    "LPOS l1 V COUNT 2",
    "SMEMBERS s1",
    "SISMEMBER K F",
    "SMISMEMBER s1 F V",
    "SCARD K",
    "SINTER s1 s2",
    "SUNION s1 K",
    "SDIFF s1 s2",
    "SINTERCARD 2 s1 K",
    "SSCAN s1 \"\"",
    "ZSCORE z1 F",
    "ZMSCORE z1 F V",
    "ZCARD K",
    "ZCOUNT z1 (0 S",
    "ZLEXCOUNT z2 [f +",
    "ZRANK z1 F",
    "ZREVRANK K F",
    "ZRANGE z1 0 -1 WITHSCORES",
    "ZRANGE K -2 -1 REV",
    "ZREVRANGEBYSCORE z1 S -inf LIMIT 1 2",
    "ZRANGEBYLEX z1 (f +",
    "ZUNION 2 z1 s1 WITHSCORES",
    "ZINTER 2 z1 K",
    "ZDIFF 2 z1 z2",
    "ZINTERCARD 2 z1 z2",
    "ZSCAN z1 \"\"",
    "GETBIT K 9",
    "BITCOUNT K 0 -1",
    "BITPOS K 1",
    "SORT_RO l1 ALPHA GET K",
    "DUMP K",
    "DUMP l1",
    "DUMP z1",
    "TYPE s1",
    "OBJECT ENCODING z1",
    "MEMORY USAGE z1",
];

/// Memcached's commands, with the data block behind a bar.
const MEMCACHED: &[&str] = &[
    "set K 0 0 1|v",
    "set K 7 0 2|10",
    "set K 7 -1 2|10",
    "add K 1 1 1|v",
    "replace K 1 0 1|w",
    "append K 0 0 1|1",
    "prepend K 0 0 1|1",
    "incr K 5",
    "decr K 3",
    "touch K 1",
    "touch K -1",
    "gat 1 K K K",
    "delete K",
    "mg K v N1 R1",
    "mg K v",
    "get K K K",
    "ms K 2 F3 C2 I|ab",
    "ms K 2 F3 T1 E9 MA N1|ab",
    "md K I T1",
    "md K x",
    "ma K N0 J3 D2 T1",
    "flush_all 1700000001",
];

const DRAWN: &[&str] = &[
    "RANDOMKEY",
    "HRANDFIELD K",
    "HRANDFIELD K -3 WITHVALUES",
    "HRANDFIELD K 2",
    "SRANDMEMBER s1",
    "SRANDMEMBER K -3",
    "ZRANDMEMBER z1 -3 WITHSCORES",
    "ZRANDMEMBER K 2",
];

pub(super) fn fill(template: &str, draws: &mut Draws) -> String {
    let mut pick = |words: &[&str]| words[draws.below(words.len())].to_owned();
    let word = |word| match word {
        "K" => pick(&["k1", "k2", "k3", "k4", "k5", "\"\"", "l1", "s1", "z1"]),
        "F" => pick(&["f", "g", "h", "\"\""]),
        "V" => pick(&["v", "w", "10", "9223372036854775807", "\"\"", "a-longer-value"]),
        "N" => pick(&["1", "-7", "2.5", "9223372036854775807"]),
        "T" => pick(&["1", "2", "5", "20", "1000"]),
        "S" => pick(&["0", "1", "-1", "2.5", "inf", "-inf"]),
        "E" => pick(&["LEFT", "RIGHT"]),
        word => word.to_owned(),
    };
    template.split(' ').map(word).collect::<Vec<_>>().join(" ")
}

/// A request, from a number: mostly one command, sometimes more, a transaction, a flush, a sweep.
pub(super) fn request_of(seed: u64) -> Vec<u8> {
    let mut draws = Draws::new(seed);
    let line = |draws: &mut Draws| {
        let templates = match draws.below(8) {
            0 => READS,
            1 => COLLECTION_READS,
            2..5 => WRITES,
            _ => COLLECTION_WRITES,
        };
        let templates = if draws.below(20) == 0 { DRAWN } else { templates };
        if draws.below(5) == 0 {
            return memcached_of(MEMCACHED[draws.below(MEMCACHED.len())], draws);
        }
        let template = templates[draws.below(templates.len())];
        let protocol = if draws.below(2) == 0 { Protocol::V2 } else { Protocol::V3 };
        command(protocol, &fill(template, draws))
    };
    let mut request = Vec::new();
    match draws.below(30) {
        0 => request.extend(command(Protocol::V2, "FLUSHALL")),
        1 => request::push_sweep(&mut request),
        2 => request::push_versions(&mut request, &[b"k1", b"k2"]),
        3..6 => {
            let commands: Vec<u8> = (0..3).flat_map(|_| line(&mut draws)).collect();
            let watches: &[(&[u8], u64)] = if draws.below(2) == 0 { &[(b"k1", 0)] } else { &[] };
            request::push_transaction(&mut request, Protocol::V2, watches, &commands);
        }
        6..12 => (0..4).for_each(|_| request.extend(line(&mut draws))),
        _ => request.extend(line(&mut draws)),
    }
    request
}

/// A request of a memcached command.
fn memcached_of(template: &str, draws: &mut Draws) -> Vec<u8> {
    memcached(&(fill(template, draws).replace('|', "\r\n") + "\r\n"))
}

/// Lets time pass now and then.
fn pass_time(bench: &mut Bench, seed: u64) {
    bench.unix_ms += [0, 0, 0, 1, 3, 0, 0, 1, 3, 700][Draws::new(!seed).below(10)];
}

pub(super) fn check_sizes(store: &Store) {
    let guard = masstree::pin();
    let (mut counts, mut bytes) = ([0; 3], 0);
    for space in [Space::Keys, Space::Fields, Space::Expiry] {
        store.trees.of(space).scan(std::ops::Bound::Unbounded, &guard, |key, value| {
            counts[space as usize] += 1;
            bytes += weight(space, key, value);
            true
        });
    }
    let stats = store.stats();
    assert_eq!((counts[0], counts[2], bytes), (stats.keys, stats.expiring, stats.bytes));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1000))]

    #[test]
    fn undo_restores_the_state(seeds in prop::collection::vec(any::<u64>(), 1..60)) {
        let mut bench = Bench::new();
        let mut done = Vec::new();
        for &seed in &seeds {
            pass_time(&mut bench, seed);
            let before = dump(&bench.store);
            let (answer, undo) = bench.apply(&request_of(seed));
            check_sizes(&bench.store);
            done.push((seed, bench.unix_ms, before, answer, undo));
        }
        let last = dump(&bench.store);
        let mut again = Vec::new();
        for (seed, unix_ms, before, answer, undo) in done.into_iter().rev() {
            bench.store.undo(undo);
            prop_assert_eq!(dump(&bench.store), before);
            again.push((seed, unix_ms, answer));
        }
        bench.position = 0;
        for (seed, unix_ms, answer) in again.into_iter().rev() {
            bench.unix_ms = unix_ms;
            prop_assert_eq!(bench.apply(&request_of(seed)).0, answer);
        }
        prop_assert_eq!(dump(&bench.store), last);
    }

    #[test]
    fn the_same_log_gives_the_same_state(seeds in prop::collection::vec(any::<u64>(), 1..80)) {
        let (mut one, mut other) = (Bench::new(), Bench::new());
        for &seed in &seeds {
            pass_time(&mut one, seed);
            pass_time(&mut other, seed);
            // Reads beside the log leave no trace.
            let _ = other.read("RANDOMKEY");
            let _ = other.read("HRANDFIELD k1");
            let _ = other.read("SRANDMEMBER s1");
            prop_assert_eq!(one.apply(&request_of(seed)).0, other.apply(&request_of(seed)).0);
        }
        prop_assert_eq!(dump(&one.store), dump(&other.store));
    }

    #[test]
    fn reads_reply_alike_in_the_log_and_beside_it(
        seeds in prop::collection::vec(any::<u64>(), 1..60),
    ) {
        let mut bench = Bench::new();
        for &seed in &seeds {
            pass_time(&mut bench, seed);
            bench.apply(&request_of(seed));
            let mut draws = Draws::new(seed);
            let reads = if draws.below(2) == 0 { READS } else { COLLECTION_READS };
            let line = fill(reads[draws.below(reads.len())], &mut draws);
            if let Some(reply) = bench.read(&line) {
                prop_assert_eq!(bench.run(&line), reply, "{}", line);
            }
            let request = memcached_of(["get K K K", "mg K v R1"][draws.below(2)], &mut draws);
            let mut answer = Vec::new();
            if bench.store.read(bench.unix_ms, &request, &mut answer) == ReadOutcome::Done {
                prop_assert_eq!(bench.apply(&request).0, answer);
            }
        }
    }

    #[test]
    fn a_checkpoint_is_the_state_at_its_beginning(
        before in prop::collection::vec(any::<u64>(), 0..60),
        after in prop::collection::vec((any::<u64>(), 1usize..200), 0..60),
    ) {
        let mut bench = Bench::new();
        for &seed in &before {
            pass_time(&mut bench, seed);
            bench.apply(&request_of(seed));
        }
        let expected = dump(&bench.store);
        bench.store.checkpoint_begin();
        let mut chunks = Vec::new();
        let mut undos: Vec<Undo> = Vec::new();
        let mut last = false;
        for &(seed, budget) in &after {
            let mut draws = Draws::new(seed);
            if draws.below(3) == 0 {
                undos.drain(..).rev().for_each(|undo| bench.store.undo(undo));
            } else if draws.below(3) == 0 && let Some(undo) = undos.pop() {
                bench.store.undo(undo);
            } else {
                pass_time(&mut bench, seed);
                undos.push(bench.apply(&request_of(seed)).1);
            }
            if !last && draws.below(2) == 0 {
                chunks.push(Vec::new());
                last = bench.store.checkpoint_next(budget, chunks.last_mut().unwrap());
            }
        }
        while !last {
            chunks.push(Vec::new());
            last = bench.store.checkpoint_next(100, chunks.last_mut().unwrap());
        }
        let mut restored = Store::default();
        restored.restore_begin();
        for chunk in &chunks {
            prop_assert!(restored.restore_chunk(chunk).is_ok());
        }
        prop_assert_eq!(dump(&restored), expected);
    }

    #[test]
    fn any_bytes_are_a_request(bytes in prop::collection::vec(any::<u8>(), 0..200), seed: u64) {
        let mut bench = Bench::new();
        bench.apply(&request_of(seed));
        for request in [bytes.clone(), spoiled(request_of(seed), &bytes)] {
            let before = dump(&bench.store);
            let _ = bench.store.read(NOW, &request, &mut Vec::new());
            prop_assert_eq!(&dump(&bench.store), &before);
            let (_, undo) = bench.apply(&request);
            bench.store.undo(undo);
            prop_assert_eq!(dump(&bench.store), before);
        }
    }

    #[test]
    fn any_arguments_get_a_reply(
        id in 0..table::all().len() as u16,
        args in prop::collection::vec(argument(), 0..7),
    ) {
        let mut bench = Bench::new();
        bench.run("MSET k1 v k2 10 k3 2.5");
        bench.run("HSET k4 f v g 10 h 2.5");
        bench.run("RPUSH l1 v 10 f");
        bench.run("SADD s1 f g 10");
        bench.run("ZADD z1 1 f 2.5 g -1 10");
        let spec = table::spec(id).unwrap();
        let mut argv = vec![spec.name.as_bytes()];
        argv.extend(args.iter().map(|arg| &arg[..]));
        let mut request = Vec::new();
        request::push_command(&mut request, Protocol::V3, spec, &argv);
        let before = dump(&bench.store);
        let (answer, undo) = bench.apply(&request);
        let reply = super::only(&answer);
        let parsed = resp::Value::parse(&reply);
        prop_assert!(parsed.is_ok_and(|(_, length)| length == reply.len()), "{:?}", reply);
        if spec.place != Place::Write {
            prop_assert_eq!(&dump(&bench.store), &before);
        }
        check_sizes(&bench.store);
        bench.store.undo(undo);
        prop_assert_eq!(dump(&bench.store), before);
    }

    #[test]
    fn any_bytes_may_claim_to_be_a_checkpoint(
        seeds in prop::collection::vec(any::<u64>(), 1..20),
        bytes in prop::collection::vec(any::<u8>(), 0..100),
    ) {
        let mut bench = Bench::new();
        for &seed in &seeds {
            bench.apply(&request_of(seed));
        }
        let mut chunk = Vec::new();
        bench.store.checkpoint_begin();
        bench.store.checkpoint_next(usize::MAX, &mut chunk);
        for chunk in [bytes.clone(), spoiled(chunk, &bytes)] {
            bench.store.restore_begin();
            if bench.store.restore_chunk(&chunk).is_err() {
                bench.store.restore_begin();
            }
            for &seed in &seeds {
                bench.apply(&request_of(seed));
            }
        }
    }
}

/// Changes a few bytes, or cuts some off.
fn spoiled(mut bytes: Vec<u8>, with: &[u8]) -> Vec<u8> {
    let length = bytes.len();
    for pair in with.chunks_exact(2).take(3) {
        bytes[usize::from(pair[0]) * length / 256] = pair[1];
    }
    if with.len() % 4 == 1 {
        bytes.truncate(length / 2);
    }
    bytes
}

fn argument() -> impl Strategy<Value = Vec<u8>> {
    const WORDS: &str = "\
        k1 k2 k3 k4 l1 s1 z1 f g [f (1 0 2 1 -1 3 9223372036854775807 -9223372036854775808 NX \
        XX GET EX PX PXAT KEEPTTL PERSIST GT MATCH COUNT TYPE * - + LIMIT WITHVALUES REV IDX \
        LEN ENCODING USAGE HELP FIELDS REPLACE DB LEFT RIGHT BEFORE RANK MAXLEN BYSCORE BYLEX \
        WITHSCORES WEIGHTS AGGREGATE MAX INCR CH XOR BIT BY STORE ALPHA 2.5 inf 1e300 \
        1e9999999";
    let word = prop::sample::select(WORDS.split(' ').collect::<Vec<_>>())
        .prop_map(|word| word.as_bytes().to_vec());
    prop_oneof![6 => word, 1 => prop::collection::vec(any::<u8>(), 0..20)]
}
