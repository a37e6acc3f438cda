//! The gateway of a group whose clients count replies, against replies made by hand.

use nopaxos::{Content, Lives, Ordered, Send, ViewId};
use oum::{Members, Session};
use smr::{ClientId, Incarnation, Outcome, ReplicaId, Request};

use super::*;

const ID: ClientId = ClientId { gateway: 0, incarnation: Incarnation(1) };

struct Setting {
    gateway: Gateway,
    answers: Answers,
    now: Now,
}

fn view(session: u32) -> View {
    ViewId { leader_number: 0, session: Session(session) }.to_view(3)
}

impl Setting {
    fn new(durability: Durability) -> Setting {
        let bounds = Bounds {
            depth: 8,
            flying_bytes: 1 << 20,
            longest_body: 1 << 20,
            patience: 10_000_000,
            durability,
        };
        let gateway = Gateway::new(Machine::counting(ID, 3, 20_000, 10), bounds);
        Setting { gateway, answers: Answers::new(0, 1), now: Now::default() }
    }

    fn submit(&mut self, lane: Lane, text: &[u8]) {
        let push = |body: &mut Vec<u8>| body.extend_from_slice(text);
        assert!(self.gateway.submit(lane, self.now, &mut self.answers, Note(0), push));
    }

    fn sent(&mut self) -> Vec<Send> {
        self.gateway.send(self.now);
        let mut outgoing = Outgoing::default();
        self.gateway.take_outgoing(&mut outgoing);
        assert_eq!(outgoing.replicas, [], "no single replica is asked");
        outgoing.group
    }

    fn requests(&mut self) -> Vec<(u64, Bytes)> {
        let sent = self.sent().into_iter().map(|send| match send {
            Send::Sequencer(payload) => Ordered::decode(payload).expect("ordered").content,
            Send::Replicas(request) => panic!("a long one: {request:?}"),
        });
        let requests = sent.map(|content| match content {
            Content::Whole(Request { number, body, .. }) => (number.0, body),
            Content::Digest(..) => panic!("a long one"),
        });
        requests.collect()
    }

    fn vote(&mut self, from: u8, number: u64, outcome: Outcome) {
        let (number, read, view, durable) =
            (RequestNumber(number), false, view(1), Viewstamp::default());
        let reply = Reply { client: ID, number, read, view, durable, outcome };
        let (from, members, lives) = (ReplicaId(from), Members::all(3), Lives::new(3));
        let vote = nopaxos::Reply { from, members, lives, reply };
        self.gateway.on_vote(self.now, vote);
    }

    fn done(&mut self, from: u8, number: u64, op: u64) {
        let position = Viewstamp::new(view(1), OpNumber(op));
        let body = if from == 0 { Bytes::from_static(b"answer") } else { Bytes::new() };
        self.vote(from, number, Outcome::Done { position, body });
    }

    /// How many routes each finished batch has, and its end.
    fn told(&mut self) -> Vec<(usize, End)> {
        let mut told = Vec::new();
        while let Some(news) = self.gateway.next_news() {
            let News::Finished(Finished { routes, whom, end }) = news else { panic!("{news:?}") };
            told.push((routes.iter().filter(|route| whom.has(route)).count(), end));
        }
        told
    }
}

#[test]
fn reads_and_writes_are_one_request_that_a_majority_with_the_leader_answers() {
    let mut setting = Setting::new(Durability::Memory);
    setting.submit(Lane::Write, b"w");
    setting.submit(Lane::Read, b"r");
    assert_eq!(setting.requests(), [(1, Bytes::from_static(b"wr"))]);
    setting.done(1, 1, 5);
    setting.done(2, 1, 5);
    assert!(setting.told().is_empty(), "the leader has not answered");
    setting.done(0, 1, 5);
    let told = setting.told();
    let [(2, End::Answered(position, body))] = &told[..] else { panic!("{told:?}") };
    assert_eq!((position.op, &body[..]), (OpNumber(5), &b"answer"[..]));
    assert!(setting.gateway.idle());
}

#[test]
fn a_long_request_goes_to_the_replicas_and_its_digest_to_the_sequencer() {
    let mut setting = Setting::new(Durability::Memory);
    setting.submit(Lane::Write, b"more than ten");
    let sent = setting.sent();
    let [Send::Replicas(request), Send::Sequencer(payload)] = &sent[..] else { panic!("{sent:?}") };
    assert_eq!(request.body, &b"more than ten"[..]);
    assert!(matches!(
        Ordered::decode(payload.clone()).expect("ordered").content,
        Content::Digest(..)
    ));
}

#[test]
fn in_a_new_view_everything_is_asked_again_at_once() {
    let mut setting = Setting::new(Durability::Memory);
    for text in [b"a", b"b"] {
        setting.submit(Lane::Write, text);
        assert_eq!(setting.requests().len(), 1);
    }
    setting.now.micros = 5_000;
    setting.gateway.on_view(setting.now, view(2));
    let again = [(1, Bytes::from_static(b"a")), (2, Bytes::from_static(b"b"))];
    assert_eq!(setting.requests(), again);
    setting.gateway.on_view(setting.now, view(2));
    assert_eq!(setting.requests(), []);
    assert_eq!(setting.gateway.deadline(), Some(25_000));
}

#[test]
fn a_lost_state_and_a_newer_life_end_what_is_under_way() {
    let mut setting = Setting::new(Durability::Memory);
    setting.submit(Lane::Write, b"a");
    setting.requests();
    setting.submit(Lane::Write, b"b");
    setting.gateway.on_state_lost();
    let told = setting.told();
    assert!(
        matches!(told[..], [(1, End::Failed(Failure::StateLost)), (1, End::Failed(_))]),
        "{told:?}"
    );
    let mut setting = Setting::new(Durability::Memory);
    setting.submit(Lane::Write, b"a");
    setting.requests();
    setting.vote(0, 1, Outcome::Refused(smr::Refusal::Retired));
    let told = setting.told();
    assert!(matches!(told[..], [(1, End::Failed(Failure::Retired))]), "{told:?}");
}

#[test]
fn a_patient_answer_waits_for_the_durable_point_of_its_own_replica() {
    let mut setting = Setting::new(Durability::Lazy);
    setting.answers.durable = true;
    setting.submit(Lane::Write, b"w");
    let sent = setting.requests();
    assert_eq!(sent, [(1, Bytes::from_static(b"w")), (2, Bytes::new())], "a barrier behind it");
    for from in [0, 1] {
        setting.done(from, 1, 5);
        setting.done(from, 2, 6);
    }
    assert!(setting.told().is_empty());
    assert_eq!(setting.requests(), [], "one barrier is enough");
    setting.gateway.on_durable(view(2), Viewstamp::new(view(2), OpNumber(9)));
    assert!(setting.told().is_empty(), "of that log nothing has been seen");
    setting.gateway.on_durable(view(1), Viewstamp::new(view(1), OpNumber(5)));
    assert!(matches!(setting.told()[..], [(1, End::Answered(..))]));
}
