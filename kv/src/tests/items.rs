//! Memcached's commands on the store: what they answer, beside the log and in it, and what they
//! leave for Redis's.

use memcached::{Command, Front, Parser};
use smr::{ReadOutcome, StateMachine};

use super::{Bench, NOW, dump, only};
use crate::items::{Answer, Outcome};
use crate::{request, store::Store};

/// A request of one command, given as its bytes.
pub(crate) fn memcached(text: &str) -> Vec<u8> {
    let Front::Command(command, _) = Parser::new(usize::MAX >> 1).parse(text.as_bytes()) else {
        panic!("{text:?} is no command")
    };
    let mut request = Vec::new();
    request::push_memcached(&mut request, &command);
    request
}

/// A line, with a data block if there is a second word.
fn bytes(line: &str) -> String {
    match line.split_once('|') {
        Some((line, block)) => format!("{line}\r\n{block}\r\n"),
        None => format!("{line}\r\n"),
    }
}

/// What an answer says: the outcome, and of each item what is not as of a plain string.
fn show(body: &[u8]) -> String {
    let answer = Answer::parse(body).expect("an answer");
    let mut text = format!("{:?}", answer.outcome);
    for found in answer {
        let item = found.item;
        text += &format!(" {}", String::from_utf8_lossy(item.value));
        let mut tell = |letter: &str, value: u64| {
            if value != 0 {
                text.push_str(&format!(",{letter}{value}"));
            }
        };
        tell("f", u64::from(item.flags));
        tell("t", item.ttl.unwrap_or(0));
        tell("W", u64::from(item.won));
        tell("X", u64::from(item.stale));
        tell("Z", u64::from(item.sent));
    }
    text
}

impl Bench {
    fn memcached(&mut self, line: &str) -> Vec<u8> {
        only(&self.apply(&memcached(&bytes(line))).0)
    }

    #[track_caller]
    fn answers(&mut self, line: &str, expected: &str) {
        assert_eq!(show(&self.memcached(line)), expected, "{line}");
    }

    /// The same beside the log; `None` if it must be logged.
    fn look(&self, line: &str) -> Option<String> {
        let mut answer = Vec::new();
        match self.store.read(self.unix_ms, &memcached(&bytes(line)), &mut answer) {
            ReadOutcome::Done => Some(show(&only(&answer))),
            ReadOutcome::MustLog => None,
        }
    }

    fn cas(&self, key: &str) -> u64 {
        let mut answer = Vec::new();
        let outcome =
            self.store.read(self.unix_ms, &memcached(&format!("mg {key}\r\n")), &mut answer);
        assert_eq!(outcome, ReadOutcome::Done);
        let body = only(&answer);
        Answer::parse(&body).and_then(|mut answer| answer.next()).expect("an item").item.cas
    }
}

#[test]
fn items_and_strings_are_the_same() {
    let mut bench = Bench::new();
    bench.answers("set a 7 0 3|abc", "Done ,f7");
    bench.expect("GET a", "$3 abc");
    bench.expect("STRLEN a", ":3");
    bench.expect("TYPE a", "+string");
    bench.expect("MGET a b", "*2 $3 abc $-1");
    bench.expect("KRANGE a b WITHVALUES", "*2 $1 a $3 abc");
    bench.expect("GETRANGE a 1 -1", "$2 bc");
    bench.expect("RENAME a b", "+OK");
    bench.expect("EXPIRE b 100", ":1");
    bench.answers("get a b", "Done abc,f7,t100");
    bench.expect("GETEX b PERSIST", "$3 abc");
    bench.answers("get b", "Done abc,f7");
    bench.expect("COPY b c", ":1");
    bench.answers("append c 9 9 1|d", "Done ,f7");
    bench.answers("get c", "Done abcd,f7");
    bench.expect("APPEND c e", ":5");
    bench.answers("get c", "Done abcde");
    bench.expect("SET d 41", "+OK");
    bench.answers("incr d 1", "Done 42");
    bench.expect("INCR d", ":43");
    bench.expect("DEL a b c d", ":3");
    assert_eq!(dump(&bench.store).entries, []);
}

#[test]
fn a_plain_string_costs_what_it_did() {
    let mut bench = Bench::new();
    bench.answers("set a 0 0 3|abc", "Done ");
    let mut other = Bench::new();
    other.run("SET a abc");
    assert_eq!(dump(&bench.store), dump(&other.store));
    bench.answers("set a 1 0 3|abc", "Done ,f1");
    assert_eq!(bench.store.stats().bytes, other.store.stats().bytes + 5);
}

#[test]
fn collections_are_misses_and_are_not_damaged() {
    let mut bench = Bench::new();
    bench.run("RPUSH l a b");
    bench.answers("get l", "Done");
    bench.answers("touch l 10", "NotFound");
    bench.answers("mg l v N10", "WrongType");
    bench.answers("add l 0 0 1|x", "NotStored");
    bench.answers("append l 0 0 1|x", "WrongType");
    bench.answers("incr l 1", "WrongType");
    bench.answers("md l I", "WrongType");
    bench.answers("gat 10 l", "Done");
    bench.expect("LRANGE l 0 -1", "*2 $1 a $1 b");
    bench.answers("set l 0 0 1|x", "Done ");
    bench.expect("GET l", "$1 x");
    bench.run("RPUSH m a b");
    bench.answers("delete m", "Done");
    assert_eq!(dump(&bench.store).entries.len(), 1);
}

#[test]
fn cas_numbers_are_versions() {
    let mut bench = Bench::new();
    bench.run("SET a x");
    let first = bench.cas("a");
    bench.answers("set b 0 0 1|x", "Done ");
    assert!(bench.cas("b") > first);
    bench.answers(&format!("cas a 3 0 1 {}|y", first + 1), "Exists");
    bench.answers("cas c 0 0 1 1|y", "NotFound");
    bench.answers(&format!("cas a 3 0 1 {first}|y"), "Done ,f3");
    assert!(bench.cas("a") > first);
    let second = bench.cas("a");
    // A new time to live does not show in it, and does to WATCH.
    bench.answers("touch a 100", "Done ,f3,t100");
    assert_eq!(bench.cas("a"), second);
    let versions = dump(&bench.store).entries.iter().map(|entry| entry.2 >> 8).max();
    assert!(versions > Some(second));
    bench.answers("gat 200 a", "Done y,f3,t200");
    assert_eq!(bench.cas("a"), second);
    bench.answers("ms a 1 E500|z", "Done ");
    assert_eq!(bench.cas("a"), 500);
    bench.answers("ma n N0 J5 E600", "Done 5");
    assert_eq!(bench.cas("n"), 600);
}

#[test]
fn modes_store_when_they_should() {
    let mut bench = Bench::new();
    bench.answers("replace a 0 0 1|x", "NotStored");
    bench.answers("append a 0 0 1|x", "NotStored");
    bench.answers("add a 5 0 1|x", "Done ,f5");
    bench.answers("add a 0 0 1|y", "NotStored");
    bench.answers("prepend a 0 0 1|y", "Done ,f5");
    bench.answers("replace a 6 100 1|z", "Done ,f6,t100");
    bench.answers("append a 0 0 1|y", "Done ,f6,t100");
    bench.answers("get a", "Done zy,f6,t100");
    bench.answers("ms new 2 MA N30|hi", "Done ,t30");
    let large = "x".repeat(memcached::MAX_VALUE_LEN);
    bench.answers(&format!("set large 0 0 {}|{large}", large.len()), "Done ");
    bench.answers("append large 0 0 1|x", "TooLarge");
}

#[test]
fn numbers_wrap_upwards_and_stop_at_zero() {
    let mut bench = Bench::new();
    bench.answers("incr n 1", "NotFound");
    bench.answers("set n 4 100 20|18446744073709551615", "Done ,f4,t100");
    bench.answers("incr n 2", "Done 1,f4,t100");
    bench.answers("decr n 5", "Done 0,f4,t100");
    bench.answers("ma n D10 T50", "Done 10,f4,t50");
    bench.answers("decr n 1", "Done 9,f4,t50");
    bench.expect("GET n", "$1 9");
    for text in ["|", "|abc", "|-5", "|1 2", "|18446744073709551616"] {
        bench.memcached(&format!("set n 0 0 {}{text}", text.len() - 1));
        bench.answers("incr n 1", "NotNumeric");
    }
}

#[test]
fn items_expire_as_memcached_has_it() {
    let mut bench = Bench::new();
    bench.answers("set a 0 -1 1|x", "Done ");
    assert_eq!(bench.look("get a").as_deref(), Some("Done"));
    bench.answers("set a 0 2592000 1|x", "Done ,t2592000");
    bench.answers("set a 0 2592001 1|x", "Done ");
    assert_eq!(bench.look("get a").as_deref(), Some("Done"));
    bench.answers(&format!("set a 0 {} 1|x", NOW / 1000 + 60), "Done ,t60");
    bench.unix_ms += 59_999;
    assert_eq!(bench.look("get a").as_deref(), Some("Done x,t1"));
    bench.unix_ms += 1;
    assert_eq!(bench.look("get a"), None);
    bench.answers("get a", "Done");
    assert_eq!(bench.store.stats().expired, 1);
    bench.answers("set a 0 10 1|x", "Done ,t10");
    bench.answers("touch a -1", "Done ");
    assert_eq!(dump(&bench.store).entries, []);
}

#[test]
fn one_client_wins_what_is_missing_stale_or_about_to_expire() {
    let mut bench = Bench::new();
    assert_eq!(bench.look("mg a v N30"), None);
    bench.answers("mg a v N30", "Done ,t30,W1");
    assert_eq!(bench.look("mg a v N30").as_deref(), Some("Done ,t30,Z1"));
    let cas = bench.cas("a");
    bench.answers("ms a 1 C999|x", "Exists");
    bench.answers(&format!("ms a 2 C{cas} T120|mu"), "Done ,t120");
    assert_eq!(bench.look("mg a v N30 R100").as_deref(), Some("Done mu,t120"));
    assert_eq!(bench.look("mg a v N30 R130"), None);
    let cas = bench.cas("a");
    bench.answers("mg a v N30 R130", "Done mu,t120,W1");
    assert_eq!(bench.cas("a"), cas);
    assert_eq!(bench.look("mg a v N30 R130").as_deref(), Some("Done mu,t120,Z1"));
    bench.answers("set a 0 0 3|moo", "Done ");
    bench.answers("md a I T30", "Done ,t30,X1");
    assert_eq!(bench.look("mg a v"), None);
    bench.answers("mg a v", "Done moo,t30,W1,X1");
    assert_eq!(bench.look("mg a v").as_deref(), Some("Done moo,t30,X1,Z1"));
    bench.answers("ms a 1 T90 C0|f", "Exists");
    bench.answers("ms a 1 T90 I C1|f", "Done ,t30,X1,Z1");
    let cas = bench.cas("a");
    bench.answers(&format!("ms a 1 T90 C{cas}|g"), "Done ,t90");
    bench.answers("ms a 1 F3|g", "Done ,f3");
    bench.answers("md a x", "Done ");
    bench.answers("get a", "Done ");
    bench.answers("md a C1", "Exists");
    bench.answers("md a q", "Done");
    bench.answers("md a q", "NotFound");
}

#[test]
fn a_delayed_flush_comes_at_its_time() {
    let mut bench = Bench::new();
    bench.answers("set a 0 0 1|x", "Done ");
    bench.answers("flush_all 10", "Done");
    assert_eq!(bench.store.wakeup(), Some(NOW + 10_000));
    bench.unix_ms += 9_999;
    bench.answers("set b 0 0 1|x", "Done ");
    assert_eq!(bench.look("get a b").as_deref(), Some("Done x x"));
    // It is in checkpoints.
    let mut copy = Store::default();
    let mut chunk = Vec::new();
    bench.store.checkpoint_begin();
    assert!(bench.store.checkpoint_next(1 << 20, &mut chunk));
    copy.restore_begin();
    copy.restore_chunk(&chunk).expect("a checkpoint");
    assert_eq!(dump(&copy), dump(&bench.store));
    bench.unix_ms += 1;
    assert_eq!(bench.look("get a b"), None);
    let before = dump(&bench.store);
    let (_, undo) = bench.apply(&bench.store.wakeup_request());
    assert_eq!(bench.look("get a b").as_deref(), Some("Done"));
    bench.store.undo(undo);
    assert_eq!(dump(&bench.store), before);
    bench.answers("flush_all", "Done");
    assert_eq!(bench.store.wakeup(), None);
    assert_eq!(dump(&bench.store).entries, []);
}

#[test]
fn what_is_no_operation_is_refused() {
    let whole = memcached("ms key 5 T30 F1 C9 I\r\nvalue\r\n");
    let mut bench = Bench::new();
    for length in 1..whole.len() {
        let answer = only(&bench.apply(&whole[..length]).0);
        assert!(answer.starts_with(b"-ERR"), "{length}");
    }
    assert_eq!(Answer::parse(b"\xff").map(|answer| answer.outcome), None);
    assert_eq!(Answer::parse(&[3]).map(|answer| answer.outcome), Some(Outcome::NotStored));
    assert_eq!(crate::items::is_write(&Command::Version), None);
}
