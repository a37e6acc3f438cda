//! The configuration: every command, undo against a copy, checkpoints against what they were made
//! of.

#![allow(missing_docs)]

use controller::{Config, MAX_SEQUENCERS};
use proptest::prelude::*;
use smr::{Context, OpNumber, ReadOutcome, StateMachine};

const CONTEXT: Context = Context { position: OpNumber(1), index: 0, unix_ms: 0 };

fn apply(config: &mut Config, line: &str) -> String {
    let mut reply = Vec::new();
    config.apply(CONTEXT, format!("{line}\n").as_bytes(), &mut reply);
    String::from_utf8(reply).unwrap().trim_end().to_owned()
}

fn show(config: &Config) -> String {
    let mut reply = Vec::new();
    assert_eq!(config.read(0, b"show\n", &mut reply), ReadOutcome::Done);
    String::from_utf8(reply).unwrap()
}

#[test]
fn a_session_is_given_to_one_who_knows_the_present_one() {
    let mut config = Config::default();
    let (a, b) = ("10.0.1.0:7", "10.0.1.1:7");
    assert_eq!(
        apply(&mut config, "group a1 10.0.2.0:1,10.0.2.1:1"),
        "group a1 0 - 0 10.0.2.0:1,10.0.2.1:1"
    );
    let first = apply(&mut config, &format!("next a1 0 {a} 5"));
    assert_eq!(first, format!("group a1 1 {a} 5 10.0.2.0:1,10.0.2.1:1"));
    // Another leader has not seen that.
    assert_eq!(apply(&mut config, &format!("next a1 0 {b} 6")), first);
    // Nor may the same one have it twice.
    assert_eq!(apply(&mut config, &format!("next a1 0 {a} 5")), first);
    assert_eq!(apply(&mut config, &format!("next a1 2 {a} 5")), first);
    let second = apply(&mut config, &format!("next a1 1 {b} 6"));
    assert_eq!(second, format!("group a1 2 {b} 6 10.0.2.0:1,10.0.2.1:1"));
    assert!(apply(&mut config, &format!("next a2 0 {a} 5")).starts_with("error there is no group"));
}

#[test]
fn other_addresses_mean_another_session() {
    let mut config = Config::default();
    apply(&mut config, "group 1 10.0.2.0:1");
    assert_eq!(apply(&mut config, "alter 1 10.0.2.9:1"), "group 1 0 - 0 10.0.2.9:1");
    apply(&mut config, "next 1 0 10.0.1.0:7 5");
    // It exists: it stays as it is.
    assert_eq!(apply(&mut config, "group 1 10.0.2.0:1"), "group 1 1 10.0.1.0:7 5 10.0.2.9:1");
    assert_eq!(apply(&mut config, "alter 1 10.0.2.9:1"), "group 1 1 10.0.1.0:7 5 10.0.2.9:1");
    let altered = "group 1 2 10.0.1.0:7 5 10.0.2.8:1";
    assert_eq!(apply(&mut config, "alter 1 10.0.2.8:1"), altered);
    let joined = "group 1 3 10.0.1.0:7 5 10.0.2.8:1@239.0.0.1:2";
    for _ in 0..2 {
        assert_eq!(apply(&mut config, "alter 1 10.0.2.8:1@239.0.0.1:2"), joined);
    }
    let alone = "group 1 4 10.0.1.0:7 5 10.0.2.8:1";
    assert_eq!(apply(&mut config, "alter 1 10.0.2.8:1"), alone);
    let more = apply(&mut config, "alter 1 10.0.2.8:1,10.0.2.9:1");
    assert!(more.starts_with("error its replicas are 1"), "{more}");
    assert!(apply(&mut config, "alter 2 10.0.2.9:1").starts_with("error"));
}

#[test]
fn members_change_in_two_sessions_and_one_change_at_a_time() {
    let mut config = Config::default();
    let (all, at) = ("10.0.2.0:1,10.0.2.1:1,10.0.2.2:1", "10.0.1.0:7 5");
    apply(&mut config, &format!("group 1 {all}"));
    let joint = format!("group 1 0 - 0 {all} 0,1,2>0,1");
    assert_eq!(apply(&mut config, "count 1 0,1"), joint, "a view may have started already");
    assert_eq!(apply(&mut config, "settle 1 0"), joint, "no session has begun");
    apply(&mut config, "next 1 0 10.0.1.0:7 5");
    apply(&mut config, "settle 1 1");
    let changing = format!("group 1 3 {at} {all} 0,1>0,2");
    assert_eq!(apply(&mut config, "count 1 0,2"), changing);
    assert_eq!(apply(&mut config, "count 1 0,2"), changing, "it is under way");
    assert!(apply(&mut config, "count 1 0").starts_with("error another change"));
    // A session that fails meanwhile changes nothing of it.
    let next = apply(&mut config, "next 1 3 10.0.1.1:7 6");
    assert_eq!(next, format!("group 1 4 10.0.1.1:7 6 {all} 0,1>0,2"));
    assert_eq!(apply(&mut config, "settle 1 3"), next, "of a session that is over");
    let settled = format!("group 1 5 10.0.1.1:7 6 {all} 0,2");
    assert_eq!(apply(&mut config, "settle 1 4"), settled);
    assert_eq!(apply(&mut config, "settle 1 5"), settled, "nothing changes");
    assert_eq!(apply(&mut config, "count 1 2,0"), settled, "it is so already");
    assert!(apply(&mut config, "count 1 0,3").starts_with("error there is no replica 3"));
    // Checkpoints hold it.
    let mut bytes = Vec::new();
    apply(&mut config, "count 1 0,1,2");
    config.checkpoint_begin();
    while !config.checkpoint_next(10, &mut bytes) {}
    let mut other = Config::default();
    other.restore_begin();
    other.restore_chunk(&bytes).expect("a checkpoint");
    assert_eq!(show(&other), show(&config));
}

#[test]
fn the_last_session_is_the_last() {
    let mut config = Config::default();
    config.restore_begin();
    config.restore_chunk(b"group 1 16777214 10.0.1.0:7 5 10.0.2.0:1\n").unwrap();
    let last = apply(&mut config, "next 1 16777214 10.0.1.0:7 5");
    assert_eq!(last, "group 1 16777215 10.0.1.0:7 5 10.0.2.0:1");
    let error = apply(&mut config, "next 1 16777215 10.0.1.0:7 5");
    assert_eq!(error, "error group 1 has had its last session");
    assert_eq!(apply(&mut config, "alter 1 10.0.2.1:1"), error);
}

#[test]
fn sequencers_are_known_once_and_bounded() {
    let mut config = Config::default();
    for index in 0..MAX_SEQUENCERS {
        for _ in 0..2 {
            assert_eq!(apply(&mut config, &format!("sequencer 10.0.1.{index}:7")), "ok");
        }
    }
    assert!(apply(&mut config, "sequencer 10.0.9.0:7").starts_with("error there are 64"));
    assert_eq!(apply(&mut config, "forget 10.0.1.3:7"), "ok");
    assert_eq!(apply(&mut config, "sequencer 10.0.9.0:7"), "ok");
    assert!(!show(&config).contains("10.0.1.3:7"));
}

#[test]
fn what_changes_something_is_no_read() {
    let config = Config::default();
    let mut reply = Vec::new();
    config.read(0, b"sequencer 10.0.1.0:7\n", &mut reply);
    assert!(reply.starts_with(b"error "));
}

#[test]
fn no_other_bytes_are_a_checkpoint() {
    for chunk in [&b"\xff"[..], b"group 1 1\n", b"member 1\n", b"sequencer x\n"] {
        let mut config = Config::default();
        config.restore_begin();
        assert!(config.restore_chunk(chunk).is_err());
    }
}

fn line() -> impl Strategy<Value = String> {
    let at = |kind: u8| (0..3_u8).prop_map(move |n| format!("10.0.{kind}.{n}:7"));
    prop_oneof![
        at(1).prop_map(|at| format!("sequencer {at}")),
        at(1).prop_map(|at| format!("forget {at}")),
        (1..4_u8, at(2)).prop_map(|(id, at)| format!("group {id} {at}")),
        (1..4_u8, at(2)).prop_map(|(id, at)| format!("group {id} {at}@239.0.0.1:7")),
        (1..4_u8, at(2)).prop_map(|(id, at)| format!("alter {id} {at}")),
        (1..4_u8, at(2)).prop_map(|(id, at)| format!("alter {id} {at}@239.0.0.2:7")),
        (1..4_u8, 0..4_u8, at(1)).prop_map(|(id, n, at)| format!("next {id} {n} {at} 5")),
        "[a-z0-9 .:]{0,12}",
    ]
}

proptest! {
    #[test]
    fn undo_and_checkpoints_give_the_state_back(
        before in prop::collection::vec(line(), 0..20),
        after in prop::collection::vec(line(), 1..20),
        budget in 1..200_usize,
    ) {
        let mut config = Config::default();
        config.apply(CONTEXT, before.join("\n").as_bytes(), &mut Vec::new());
        let state = show(&config);
        // A checkpoint shows nothing of what comes while it is made.
        config.checkpoint_begin();
        let mut undos = Vec::new();
        let mut chunks = Vec::new();
        for line in &after {
            undos.push(config.apply(CONTEXT, line.as_bytes(), &mut Vec::new()));
        }
        loop {
            let mut chunk = Vec::new();
            let done = config.checkpoint_next(budget, &mut chunk);
            chunks.push(chunk);
            if done {
                break;
            }
        }
        let mut other = Config::default();
        apply(&mut other, "group 9 10.0.2.0:1");
        other.restore_begin();
        for chunk in &chunks {
            prop_assert_eq!(other.restore_chunk(chunk), Ok(()));
        }
        prop_assert_eq!(show(&other), state.clone());
        for undo in undos.into_iter().rev() {
            config.undo(undo);
        }
        prop_assert_eq!(show(&config), state);
    }

    #[test]
    fn any_bytes_are_a_request(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        let mut config = Config::default();
        let state = show(&config);
        let undo = config.apply(CONTEXT, &bytes, &mut Vec::new());
        config.undo(undo);
        prop_assert_eq!(show(&config), state);
    }
}
