//! The Redis protocol as clients see it, over a group.

mod support;

use std::io::{Read, Write};

use resp::Value;
use support::{Client, Group, bulk, ok};

fn error(text: &str) -> Value {
    Value::Error(text.as_bytes().to_vec())
}

fn simple(text: &str) -> Value {
    Value::Simple(text.as_bytes().to_vec())
}

#[test]
fn answers_come_in_the_order_of_the_commands() {
    let group = Group::start(3, "memory", &[]);
    for id in 0..3 {
        let mut client = group.client(id);
        let mut expected = Vec::new();
        for number in 0..2000 {
            let text = number.to_string();
            client.send(&[b"SET", b"key", text.as_bytes()]);
            expected.push(ok());
            client.send(&[b"GET", b"key"]);
            expected.push(bulk(&text));
            if number % 3 == 0 {
                client.send(&[b"ECHO", text.as_bytes()]);
                expected.push(bulk(&text));
                client.send(&[b"GET", b"nothing"]);
                expected.push(Value::Null);
            }
        }
        for (index, reply) in expected.into_iter().enumerate() {
            assert_eq!(client.receive().expect("a reply"), reply, "{index}");
        }
    }
}

#[test]
fn reads_before_a_write_do_not_see_it() {
    let group = Group::start(3, "memory", &[]);
    let mut client = group.client(1);
    for number in 0..500 {
        let text = number.to_string();
        client.send(&[b"GET", b"key"]);
        client.send(&[b"SET", b"key", text.as_bytes()]);
    }
    for number in 0..500 {
        let before = if number == 0 { Value::Null } else { bulk(&(number - 1).to_string()) };
        assert_eq!(client.receive().expect("a reply"), before);
        assert_eq!(client.receive().expect("a reply"), ok());
    }
}

#[test]
fn big_values_pass_and_too_big_ones_are_refused() {
    let group = Group::start(3, "sync", &[]);
    let mut client = group.client(2);
    let value: Vec<u8> = (0..20 << 20).map(|index: u32| (index * 7 % 251) as u8).collect();
    assert_eq!(client.try_call(&[b"SET", b"big", &value]).expect("a reply"), ok());
    assert_eq!(group.client(0).call("GET big"), Value::Bulk(value));
    let mut client = group.client(0);
    client.stream.write_all(b"*3\r\n$3\r\nSET\r\n$1\r\nk\r\n$900000000\r\n").expect("sent");
    assert_eq!(
        client.receive().expect("a reply"),
        error("ERR Protocol error: invalid bulk length")
    );
    client.receive().expect_err("closed");
}

#[test]
fn nonsense_is_refused_and_harms_nobody_else() {
    let group = Group::start(1, "memory", &[]);
    let mut other = group.client(0);
    for nonsense in [
        &b"*3\r\n$3\r\nSET\r\n:1\r\n"[..],
        b"*-x\r\n",
        b"*1\r\n$-5\r\n",
        b"\"unbalanced\r\n",
        &[b'a'; 100_000],
    ] {
        let mut client = group.client(0);
        client.stream.write_all(nonsense).expect("sent");
        let reply = client.receive().expect("a reply");
        assert!(
            matches!(&reply, Value::Error(text) if text.starts_with(b"ERR Protocol error: ")),
            "{reply:?}"
        );
        assert_eq!(client.stream.read(&mut [0; 16]).unwrap_or(0), 0);
        assert_eq!(other.call("PING"), simple("PONG"));
    }
    let mut inline = group.client(0);
    inline.stream.write_all(b"\r\nSET key 'a b'\r\nGET key\r\n").expect("sent");
    assert_eq!(inline.receive().expect("a reply"), ok());
    assert_eq!(inline.receive().expect("a reply"), bulk("a b"));
}

#[test]
fn a_client_that_closes_its_sending_half_gets_its_answers() {
    let group = Group::start(3, "memory", &[]);
    let mut client = group.client(1);
    client.stream.write_all(b"GET a\r\nSET a 1\r\nGET a\r\n").expect("sent");
    client.stream.shutdown(std::net::Shutdown::Write).expect("shut");
    assert_eq!(client.receive().expect("a reply"), Value::Null);
    assert_eq!(client.receive().expect("a reply"), ok());
    assert_eq!(client.receive().expect("a reply"), bulk("1"));
    client.receive().expect_err("closed");
}

#[test]
fn hostile_arguments_cost_little() {
    let group = Group::start(1, "memory", &[]);
    let mut client = group.client(0);
    // Patterns that a naive matcher would try for years.
    let stars = format!("CONFIG GET {}!", "*".repeat(40));
    assert_eq!(client.call(&stars), Value::Array(vec![]));
    // Watched keys are bounded like a command: a transaction carries them.
    let watch = format!("WATCH {}", "x".repeat(20 << 20));
    assert_eq!(client.call(&watch), ok());
    let other = format!("WATCH {}", "y".repeat(20 << 20));
    assert_eq!(client.call(&other), error("ERR too many keys are watched"));
    assert_eq!(client.call("UNWATCH"), ok());
    assert_eq!(client.call(&other), ok());
}

#[test]
fn transactions_are_whole_and_watches_hold() {
    let group = Group::start(3, "memory", &[]);
    let (mut a, mut b) = (group.client(0), group.client(1));
    assert_eq!(a.call("EXEC"), error("ERR EXEC without MULTI"));
    assert_eq!(a.call("DISCARD"), error("ERR DISCARD without MULTI"));
    assert_eq!(a.call("MULTI"), ok());
    assert_eq!(a.call("MULTI"), error("ERR MULTI calls can not be nested"));
    assert_eq!(a.call("WATCH x"), error("ERR WATCH inside MULTI is not allowed"));
    assert_eq!(a.call("SET x 1"), simple("QUEUED"));
    assert_eq!(a.call("PING"), simple("QUEUED"));
    assert_eq!(a.call("INCR x"), simple("QUEUED"));
    let expected = Value::Array(vec![ok(), simple("PONG"), Value::Integer(2)]);
    assert_eq!(a.call("EXEC"), expected);
    assert_eq!(a.call("MULTI"), ok());
    assert_eq!(a.call("EXEC"), Value::Array(vec![]));
    assert_eq!(a.call("MULTI"), ok());
    assert_eq!(
        a.call("NOSUCH x"),
        error("ERR unknown command 'NOSUCH', with args beginning with: 'x' ")
    );
    assert_eq!(
        a.call("EXEC"),
        error("EXECABORT Transaction discarded because of previous errors.")
    );
    for (other, changed) in [("SET x 5", true), ("SET y 5", false)] {
        assert_eq!(a.call("WATCH x"), ok());
        assert_eq!(b.call(other), ok());
        assert_eq!(a.call("MULTI"), ok());
        assert_eq!(a.call("GET x"), simple("QUEUED"));
        let reply = a.call("EXEC");
        let expected = if changed { Value::Null } else { Value::Array(vec![bulk("5")]) };
        assert_eq!(reply, expected, "{other}");
    }
    // All at once, in one piece.
    a.stream.write_all(b"WATCH x\r\nMULTI\r\nGET x\r\nSET x 6\r\nEXEC\r\nGET x\r\n").expect("sent");
    for expected in [ok(), ok(), simple("QUEUED"), simple("QUEUED")] {
        assert_eq!(a.receive().expect("a reply"), expected);
    }
    assert_eq!(a.receive().expect("a reply"), Value::Array(vec![bulk("5"), ok()]));
    assert_eq!(a.receive().expect("a reply"), bulk("6"));
}

#[test]
fn scans_go_on_where_they_stopped() {
    let group = Group::start(1, "memory", &[]);
    let mut client = group.client(0);
    for number in 0..1000 {
        client.send(&[b"SET", format!("key{number}").as_bytes(), b"v"]);
    }
    for _ in 0..1000 {
        client.receive().expect("a reply");
    }
    let mut found = std::collections::BTreeSet::new();
    let mut cursor = "0".to_owned();
    let mut calls = 0;
    loop {
        let Value::Array(parts) = client.call(&format!("SCAN {cursor} COUNT 100")) else {
            panic!("no array")
        };
        let [Value::Bulk(next), Value::Array(keys)] = &parts[..] else { panic!("{parts:?}") };
        found.extend(keys.iter().map(|key| key.as_bytes().expect("a key").to_vec()));
        cursor = String::from_utf8(next.clone()).expect("a number");
        calls += 1;
        if cursor == "0" {
            break;
        }
        cursor.parse::<u64>().expect("a number");
    }
    assert_eq!(found.len(), 1000);
    assert!(calls > 5, "{calls}");
    assert_eq!(client.call("SCAN x"), error("ERR invalid cursor"));
}

#[test]
fn commands_of_the_connection() {
    let group = Group::start(3, "sync", &[]);
    let mut client = group.client(group.primary());
    assert_eq!(client.call("SELECT 0"), ok());
    assert_eq!(client.call("SELECT 1"), error("ERR DB index is out of range"));
    assert_eq!(client.call("ECHO hi"), bulk("hi"));
    assert_eq!(client.call("ECHO"), error("ERR wrong number of arguments for 'echo' command"));
    assert_eq!(client.call("CLIENT SETNAME me"), ok());
    assert_eq!(client.call("CLIENT GETNAME"), bulk("me"));
    assert_eq!(client.call("WAIT 1 100"), Value::Integer(1));
    assert_eq!(
        client.call("WAITAOF 1 1 0"),
        Value::Array(vec![Value::Integer(1), Value::Integer(1)])
    );
    assert_eq!(
        client.call("CLUSTER SLOTS"),
        error("ERR This instance has cluster support disabled")
    );
    assert_eq!(client.call("CONFIG SET maxmemory 10"), ok());
    assert_eq!(
        client.call("CONFIG GET maxmemory"),
        Value::Array(vec![bulk("maxmemory"), bulk("10")])
    );
    assert_eq!(
        client.call("CONFIG SET nosuch 1"),
        error("ERR Unknown option or number of arguments for CONFIG SET - 'nosuch'")
    );
    client.send(&[b"CLIENT", b"REPLY", b"SKIP"]);
    client.send(&[b"SET", b"a", b"1"]);
    client.send(&[b"CLIENT", b"REPLY", b"OFF"]);
    client.send(&[b"SET", b"a", b"2"]);
    client.send(&[b"PING"]);
    client.send(&[b"CLIENT", b"REPLY", b"ON"]);
    assert_eq!(client.receive().expect("a reply"), ok());
    assert_eq!(client.call("GET a"), bulk("2"));
    let Value::Map(hello) = client.call("HELLO 3") else { panic!("no map") };
    assert!(hello.contains(&(bulk("role"), bulk("master"))), "{hello:?}");
    assert_eq!(client.call("GET nothing"), Value::Null);
    let mut info = || match client.call("INFO") {
        Value::Verbatim { text, .. } => String::from_utf8(text).expect("text"),
        other => panic!("no text: {other:?}"),
    };
    // One of two backups is enough to answer all of the above.
    group.wait_until("all are connected", || info().contains("connected_slaves:2"));
    let text = info();
    for line in ["redis_version:7.0.15", "role:master", "connected_slaves:2", "loading:0", "db0:"] {
        assert!(text.contains(line), "{line}: {text}");
    }
    assert_eq!(client.call("RESET"), simple("RESET"));
    assert_eq!(client.call("QUIT"), ok());
    client.receive().expect_err("closed");
}

#[test]
fn too_many_clients_are_told() {
    let group = Group::start(1, "memory", &["--max-clients", "3"]);
    let served = |client: &mut Client| {
        client.try_call(&[b"PING"]).is_ok_and(|reply| reply == simple("PONG"))
    };
    // Until the connections that asked whether it serves have gone.
    let mut clients = Vec::new();
    group.wait_until("three are served", || {
        clients.clear();
        clients.extend((0..3).map(|_| group.client(0)));
        clients.iter_mut().all(served)
    });
    let mut fourth = group.client(0);
    assert_eq!(fourth.receive().expect("a reply"), error("ERR max number of clients reached"));
    drop(clients);
    group.wait_until("there is room again", || served(&mut group.client(0)));
}
