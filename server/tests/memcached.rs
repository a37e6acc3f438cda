//! The memcached protocol as clients see it, over a group.

mod support;

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use support::{Group, bulk, ok};

/// A client that shows every byte.
struct Cache(BufReader<TcpStream>);

impl Cache {
    fn connect(group: &Group, id: usize) -> Cache {
        let stream = TcpStream::connect(("127.0.0.1", group.memcached[id])).expect("it accepts");
        stream.set_nodelay(true).expect("set");
        stream.set_read_timeout(Some(support::PATIENCE)).expect("set");
        Cache(BufReader::new(stream))
    }

    fn send(&mut self, text: &str) {
        let bytes = text.replace('|', "\r\n") + "\r\n";
        self.0.get_mut().write_all(bytes.as_bytes()).expect("sent");
    }

    fn line(&mut self) -> String {
        let mut line = String::new();
        self.0.read_line(&mut line).expect("a line");
        line.strip_suffix("\r\n").unwrap_or(&line).to_owned()
    }

    /// Sends commands and expects exactly these lines, both with bars for line ends.
    #[track_caller]
    fn expect(&mut self, text: &str, lines: &str) {
        self.send(text);
        // What comes after the last line would be taken for this.
        self.send("mn");
        for line in lines.split('|').filter(|line| !line.is_empty()).chain(["MN"]) {
            assert_eq!(self.line(), line, "{text}");
        }
    }
}

#[test]
fn items_are_the_strings_of_redis_at_every_replica() {
    let group = Group::start(3, "memory", &[]);
    for id in 0..3 {
        let mut cache = Cache::connect(&group, id);
        let mut redis = group.client((id + 1) % 3);
        cache.expect("set a 7 0 3|abc", "STORED");
        assert_eq!(redis.call("GET a"), bulk("abc"));
        assert_eq!(redis.call("SET b xyz"), ok());
        cache.expect("get a b", "VALUE a 7 3|abc|VALUE b 0 3|xyz|END");
        assert_eq!(redis.call("RPUSH l x"), resp::Value::Integer(1));
        cache.expect("get l", "END");
        cache.expect("incr l 1", "CLIENT_ERROR the key holds a Redis collection, not a string");
        cache.expect("flush_all", "OK");
        assert_eq!(redis.call("DBSIZE"), resp::Value::Integer(0));
    }
}

#[test]
fn answers_come_in_the_order_of_the_commands() {
    let group = Group::start(3, "memory", &[]);
    let mut cache = Cache::connect(&group, 1);
    let mut text = String::new();
    for number in 0..1000 {
        text += &format!("set n 0 0 4 noreply|{number:04}|mg n v q|get no|mg no v q|version|");
        text += &format!("ms m 1 q O{number}|x|ma c N0 J{number} v k O{number}|delete c|");
    }
    cache.send(text.trim_end_matches('|'));
    for number in 0..1000 {
        assert_eq!(cache.line(), "VA 4");
        assert_eq!(cache.line(), format!("{number:04}"));
        assert_eq!(cache.line(), "END");
        assert!(cache.line().starts_with("VERSION "));
        let digits = number.to_string();
        assert_eq!(cache.line(), format!("VA {} kc O{number}", digits.len()));
        assert_eq!(cache.line(), digits);
        assert_eq!(cache.line(), "DELETED");
    }
    cache.expect("mn", "MN");
}

#[test]
fn cas_numbers_and_what_was_stored_survive_a_fail_over_and_a_restart() {
    let mut group = Group::start(3, "sync", &["--checkpoint-bytes", "100000"]);
    let primary = group.primary();
    let survivor = (primary + 1) % 3;
    let mut cache = Cache::connect(&group, survivor);
    let filler = "x".repeat(500);
    for number in 0..500 {
        cache.expect(&format!("set key{number} {number} 0 500|{filler}"), "STORED");
    }
    cache.expect("set count 5 0 1|0|md key1 I", "STORED|HD");
    cache.send("gets key499");
    let head = cache.line();
    let cas = head.rsplit(' ').next().expect("a cas number").to_owned();
    assert_eq!((cache.line(), cache.line()), (filler.clone(), "END".to_owned()));
    group.kill(primary);
    // The gateway finds the new primary by itself.
    for count in 1..=200 {
        cache.expect("incr count 1", &count.to_string());
    }
    cache.expect("mg key499 c f", &format!("HD c{cas} f499"));
    cache.expect("mg key1 f", "HD f1 X W");
    group.spawn(primary, false);
    group.wait_until_served(primary);
    let mut again = Cache::connect(&group, primary);
    again.expect("mg key1 f", "HD f1 Z X");
    again.expect(&format!("cas key499 9 0 3 {cas}|new"), "STORED");
    for id in 0..3 {
        group.kill(id);
    }
    for id in 0..3 {
        group.spawn(id, false);
    }
    group.wait_until_served(survivor);
    let mut cache = Cache::connect(&group, survivor);
    cache.expect("get key499 count", "VALUE key499 9 3|new|VALUE count 5 3|200|END");
    cache.expect(&format!("cas key499 9 0 3 {cas}|old"), "EXISTS");
}

#[test]
fn items_expire_and_a_flush_may_come_later() {
    let group = Group::start(3, "memory", &[]);
    let mut cache = Cache::connect(&group, 2);
    cache.expect("set short 0 1 1|x|set gone 0 -1 1|x|set long 0 100 1|x", "STORED|STORED|STORED");
    cache.expect("get gone|mg long t", "END|HD t100");
    let pause = Duration::from_millis(50);
    let end = std::time::Instant::now() + support::PATIENCE;
    let left = |group: &Group| group.client(0).call("DBSIZE");
    while left(&group) != resp::Value::Integer(1) {
        assert!(std::time::Instant::now() < end, "it does not expire");
        std::thread::sleep(pause);
    }
    cache.expect(
        "get short long|flush_all 1|get long",
        "VALUE long 0 1|x|END|OK|VALUE long 0 1|x|END",
    );
    while left(&group) != resp::Value::Integer(0) {
        assert!(std::time::Instant::now() < end, "it is not flushed");
        std::thread::sleep(pause);
    }
}

#[test]
fn nonsense_is_refused_and_harms_nobody_else() {
    let group = Group::start(1, "memory", &[]);
    let mut other = Cache::connect(&group, 0);
    other.expect("set big 0 0 3|old", "STORED");
    for (nonsense, last) in [
        ("a".repeat(5000), "CLIENT_ERROR line too long"),
        ("\u{80}".to_owned(), ""),
        ("GET / HTTP/1.1".to_owned(), ""),
        ("quit".to_owned(), ""),
    ] {
        let mut cache = Cache::connect(&group, 0);
        match nonsense.as_str() {
            "\u{80}" => cache.0.get_mut().write_all(&[0x80, 0, 0, 0]).expect("sent"),
            text => cache.send(text),
        }
        let mut rest = String::new();
        // The rest of what was sent may be answered by a reset.
        let _ = cache.0.read_to_string(&mut rest);
        assert!(rest.starts_with(last), "{nonsense}: {rest}");
    }
    let large = "x".repeat((1 << 20) + 1);
    let text = "SERVER_ERROR object too large for cache";
    other.expect(&format!("set big 0 0 {}|{large}|get big", large.len()), &format!("{text}|END"));
    other.expect("set a 0 0 1|xyz", "CLIENT_ERROR bad data chunk|ERROR");
    let most = "x".repeat(1 << 20);
    other.expect(
        &format!("set big 0 0 {}|{most}|append big 0 0 1|x", most.len()),
        &format!("STORED|{text}"),
    );
}

#[test]
fn without_a_quorum_clients_are_told() {
    let mut group = Group::start(3, "memory", &["--command-timeout-ms", "300"]);
    let mut cache = Cache::connect(&group, 0);
    cache.expect("set a 0 0 1|x", "STORED");
    group.kill(1);
    group.kill(2);
    cache.send("set a 0 0 1|y");
    let line = cache.line();
    assert!(line.starts_with("SERVER_ERROR TIMEOUT") || line.starts_with("SERVER_ERROR UNAVAIL"));
    cache.send("mg a v q");
    assert!(cache.line().starts_with("SERVER_ERROR "));
}

#[test]
fn tools_find_their_statistics() {
    let group = Group::start(1, "memory", &[]);
    let mut cache = Cache::connect(&group, 0);
    cache.expect("set a 0 0 1|x|get a b", "STORED|VALUE a 0 1|x|END");
    for (command, wanted) in [
        ("stats", "STAT get_misses 1"),
        ("stats", "STAT curr_items 1"),
        ("stats items", "STAT items:1:number 1"),
        ("stats slabs", "STAT active_slabs 1"),
        ("stats settings", "STAT item_size_max 1048576"),
        ("stats sizes", "STAT sizes_status disabled"),
    ] {
        cache.send(command);
        let lines: Vec<String> =
            std::iter::from_fn(|| Some(cache.line())).take_while(|line| line != "END").collect();
        assert!(lines.iter().any(|line| line == wanted), "{command}: {lines:?}");
    }
    cache.expect("stats reset|verbosity 1|version", "RESET|OK|VERSION 1.6.18");
    cache.expect("stats cachedump 1 1", "CLIENT_ERROR these statistics are not kept");
}
