//! A receiver under reordering, duplication, loss, damage and changes of session.

use bytes::Bytes;
use oum::{Delivery, HEADER_BYTES, Header, Receiver, Refused, Sender, Sequencer, Session};
use proptest::prelude::*;
use smr::GroupId;

const GROUP: GroupId = GroupId(7);
const PATIENCE: u64 = 100;

fn body(session: u32, sequence: u64) -> Bytes {
    Bytes::from(format!("{session}/{sequence}"))
}

/// The stamped messages of a session, as they leave the sequencer.
fn session(session: u32, count: u64) -> Vec<Bytes> {
    let mut sequencer = Sequencer::default();
    assert!(sequencer.begin(GROUP, Session(session)));
    let stamped = |sequence| {
        let mut message = Vec::new();
        Sender::new(GROUP).message(&body(session, sequence), &mut message);
        sequencer.stamp(&mut message).expect("a sender's message");
        Bytes::from(message)
    };
    (1..=count).map(stamped).collect()
}

fn receive(receiver: &mut Receiver, now: u64, message: &Bytes) {
    let (header, payload) = Header::decode(message).expect("undamaged");
    receiver.receive(now, &header, payload);
}

fn listening(window: usize) -> Receiver {
    let mut receiver = Receiver::new(GROUP, PATIENCE, window);
    receiver.listen(Session(1), 1);
    receiver
}

fn drain(receiver: &mut Receiver, now: u64) -> Vec<Delivery> {
    std::iter::from_fn(|| receiver.poll(now)).collect()
}

fn message(session: u32, sequence: u64) -> Delivery {
    Delivery::Message { session: Session(session), sequence, payload: body(session, sequence) }
}

#[test]
fn the_first_message_of_a_session_is_no_gap() {
    let mut receiver = listening(8);
    receive(&mut receiver, 0, &session(1, 1)[0]);
    assert_eq!(drain(&mut receiver, 0), [message(1, 1)]);
    assert_eq!(receiver.deadline(), None);
}

#[test]
fn who_is_overtaken_is_waited_for_and_who_is_lost_is_declared() {
    let messages = session(1, 6);
    let mut receiver = listening(8);
    receive(&mut receiver, 0, &messages[1]);
    assert_eq!(drain(&mut receiver, PATIENCE - 1), []);
    assert_eq!(receiver.deadline(), Some(PATIENCE));
    receive(&mut receiver, PATIENCE - 1, &messages[0]);
    assert_eq!(drain(&mut receiver, PATIENCE - 1), [message(1, 1), message(1, 2)]);
    // 3 and 5 are lost: both are declared `PATIENCE` after what followed them.
    receive(&mut receiver, 200, &messages[3]);
    receive(&mut receiver, 210, &messages[5]);
    let drop = |first, last| Delivery::Drop { session: Session(1), first, last };
    assert_eq!(drain(&mut receiver, 300), [drop(3, 3), message(1, 4)]);
    assert_eq!(drain(&mut receiver, 310), [drop(5, 5), message(1, 6)]);
    receive(&mut receiver, 311, &messages[4]);
    assert_eq!(drain(&mut receiver, 400), []);
    assert_eq!((receiver.counts().stale, receiver.counts().dropped), (1, 2));
}

#[test]
fn a_full_window_waits_no_longer() {
    let messages = session(1, 10);
    let mut receiver = listening(3);
    for late in &messages[1..5] {
        receive(&mut receiver, 0, late);
    }
    let first = receiver.poll(0);
    assert_eq!(first, Some(Delivery::Drop { session: Session(1), first: 1, last: 1 }));
    assert_eq!(drain(&mut receiver, 0).len(), 4);
}

#[test]
fn a_later_session_ends_the_present_one_and_is_kept() {
    let (first, second) = (session(1, 3), session(2, 3));
    let mut receiver = listening(8);
    receive(&mut receiver, 0, &first[0]);
    receive(&mut receiver, 0, &second[1]);
    receive(&mut receiver, 0, &second[0]);
    let ended = Delivery::Terminated { session: Session(2) };
    assert_eq!(drain(&mut receiver, 0), std::slice::from_ref(&ended));
    receive(&mut receiver, 0, &first[1]);
    assert_eq!(drain(&mut receiver, 1_000), [], "nothing of the old session comes after its end");
    receiver.listen(Session(1), 1);
    assert_eq!(drain(&mut receiver, 0), [ended], "whoever listens to an ended session is told");
    receiver.listen(Session(2), 1);
    receive(&mut receiver, 0, &first[2]);
    assert_eq!(drain(&mut receiver, 0), [message(2, 1), message(2, 2)]);
    assert_eq!(receiver.counts().foreign, 1);
}

#[test]
fn listening_again_moves_within_a_session() {
    let messages = session(1, 9);
    let mut receiver = listening(8);
    messages[..2].iter().for_each(|message| receive(&mut receiver, 0, message));
    messages[4..6].iter().for_each(|message| receive(&mut receiver, 0, message));
    assert_eq!(drain(&mut receiver, 0).len(), 2);
    // Ahead: what lies between was learned in another way.
    receiver.listen(Session(1), 5);
    assert_eq!(drain(&mut receiver, 0), [message(1, 5), message(1, 6)]);
    // Back: what was delivered before is dropped now.
    receiver.listen(Session(1), 4);
    receive(&mut receiver, 0, &messages[6]);
    let gap = Delivery::Drop { session: Session(1), first: 4, last: 6 };
    assert_eq!(drain(&mut receiver, PATIENCE), [gap, message(1, 7)]);
}

#[test]
fn a_sequencer_stamps_once_and_its_session_only_grows() {
    let mut sequencer = Sequencer::default();
    let mut bytes = Vec::new();
    Sender::new(GROUP).message(b"x", &mut bytes);
    assert_eq!(sequencer.stamp(&mut bytes.clone()), Err(Refused::UnknownGroup(GROUP)));
    assert!(sequencer.begin(GROUP, Session(2)));
    assert!(!sequencer.begin(GROUP, Session(2)) && !sequencer.begin(GROUP, Session(1)));
    let header = sequencer.stamp(&mut bytes).expect("a session");
    assert_eq!((header.session, header.sequence), (Session(2), 1));
    assert_eq!(sequencer.stamp(&mut bytes), Err(Refused::Stamped));
    assert_eq!(Header::decode(&Bytes::from(bytes)).map(|(header, _)| header), Ok(header));
}

#[test]
fn no_sequence_number_is_too_high() {
    let header = |sequence| Header {
        group: GROUP,
        session: Session(u32::MAX),
        sequence,
        payload_crc: 0,
        length: 0,
    };
    let mut receiver = Receiver::new(GROUP, PATIENCE, 8);
    receiver.listen(Session(u32::MAX), u64::MAX - 3);
    receiver.receive(u64::MAX - 1, &header(u64::MAX - 1), Bytes::new());
    receiver.receive(u64::MAX - 1, &header(u64::MAX - 3), Bytes::new());
    let delivered = drain(&mut receiver, u64::MAX);
    assert_eq!(delivered.len(), 3, "a message, a drop, a message: {delivered:?}");
    assert_eq!(receiver.position(), (Session(u32::MAX), u64::MAX));
}

proptest! {
    /// Whatever the network does, numbers come in order, each once, as the message or as dropped,
    /// and nothing that arrived in time is dropped.
    #[test]
    fn every_number_is_delivered_once_and_in_order(
        arrivals in prop::collection::vec((1u64..40, 0u64..60), 1..120),
        window in 1usize..12,
        start in 1u64..10,
    ) {
        let messages = session(1, 40);
        let mut receiver = Receiver::new(GROUP, PATIENCE, window);
        receiver.listen(Session(1), start);
        let (mut now, mut next, mut arrived) = (0, start, std::collections::BTreeSet::new());
        let mut check = |delivered: Vec<Delivery>, arrived: &std::collections::BTreeSet<u64>| {
            for delivery in delivered {
                match delivery {
                    Delivery::Message { sequence, payload, .. } => {
                        prop_assert_eq!(sequence, next);
                        prop_assert_eq!(payload, body(1, sequence));
                        next += 1;
                    }
                    Delivery::Drop { first, last, .. } => {
                        prop_assert_eq!(first, next);
                        prop_assert!((first..=last).all(|sequence| !arrived.contains(&sequence)));
                        next = last + 1;
                    }
                    Delivery::Terminated { .. } => prop_assert!(false, "one session only"),
                }
            }
            Ok(())
        };
        for (sequence, pause) in arrivals {
            now += pause;
            receive(&mut receiver, now, &messages[sequence as usize - 1]);
            arrived.insert(sequence);
            check(drain(&mut receiver, now), &arrived)?;
        }
        check(drain(&mut receiver, now + PATIENCE), &arrived)?;
        prop_assert_eq!(receiver.deadline(), None, "everything that came was delivered");
    }

    /// No damaged byte passes, and nothing makes the reader panic.
    #[test]
    fn damage_is_noticed(at in 0usize..40, flip in 1u8..=255, cut in 0usize..40) {
        let mut bytes = session(3, 1)[0].to_vec();
        bytes.resize(HEADER_BYTES + body(3, 1).len(), 0);
        let at = at % bytes.len();
        let _ = Header::decode(&Bytes::copy_from_slice(&bytes[..cut.min(bytes.len())]));
        bytes[at] ^= flip;
        prop_assert!(Header::decode(&Bytes::from(bytes)).is_err());
    }
}
