//! Connections of real sockets, a face of lines, and replies made by hand: what each connection is
//! told of a crash of the group.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpStream};

use bytes::Bytes;
use smr::client::Retry;
use smr::{
    BadCheckpoint, ClientId, ClientMessage, Context, Durability, GroupId, Identity, Incarnation,
    OpNumber, Outcome, ReadOutcome, ReplicaId, Reply, RequestNumber, View,
};

use super::*;
use crate::gateway::Bounds;
use crate::machine::{Machine, Outgoing};

/// A service that is never asked.
struct Nothing;

impl StateMachine for Nothing {
    type Undo = ();

    fn apply(&mut self, _: Context, _: &[u8], _: &mut Vec<u8>) {}
    fn undo(&mut self, (): ()) {}
    fn read(&self, _: u64, _: &[u8], _: &mut Vec<u8>) -> ReadOutcome {
        ReadOutcome::Done
    }
    fn checkpoint_begin(&mut self) {}
    fn checkpoint_next(&mut self, _: usize, _: &mut Vec<u8>) -> bool {
        true
    }
    fn checkpoint_abort(&mut self) {}
    fn restore_begin(&mut self) {}
    fn restore_chunk(&mut self, _: &[u8]) -> Result<(), BadCheckpoint> {
        Ok(())
    }
}

/// Commands are single letters: `w` writes, `r` reads, `s` asks for durable answers.
struct Letters;

impl Face for Letters {
    type Service = Nothing;
    type Session = ();

    fn open(&mut self, _: ConnectionId, _: usize, _: &str, _: Now) {}

    fn take(&mut self, (): &mut (), input: &[u8], desk: &mut Desk<'_, Nothing>) -> Step {
        let taken = match input[0] {
            b'w' => desk.write(Note(0), |body| body.push(b'w')),
            b'r' => desk.read(Note(0), |body| body.push(b'r')),
            _ => {
                assert!(desk.set_durability(Durability::Sync));
                desk.answer(|out| out.push(b's'));
                true
            }
        };
        if taken { Step::Taken(1) } else { Step::Wait }
    }

    fn items(answer: &[u8]) -> impl Iterator<Item = &[u8]> {
        answer.chunks(1)
    }

    fn answer(&mut self, (): &mut (), _: Note, item: &[u8], out: &mut Vec<u8>) {
        out.extend_from_slice(item);
    }

    fn fail(&mut self, (): &mut (), _: Note, why: Failure, out: &mut Vec<u8>) {
        out.push(match why {
            Failure::Lost { executed: true, .. } => b'?',
            Failure::Lost { executed: false, .. } => b'!',
            Failure::Interrupted => b'i',
            Failure::Unknown => b'u',
            _ => panic!("{why:?}"),
        });
    }

    fn reject(&mut self, _: usize, _: &mut Vec<u8>) {}
    fn close(&mut self, _: ConnectionId, (): ()) {}
}

const ID: ClientId = ClientId { gateway: 0, incarnation: Incarnation(1) };
const VIEW: View = View(256);

struct Setting {
    poll: Poll,
    sessions: Sessions<Letters>,
    gateway: Gateway,
    status: Status,
    clients: Vec<TcpStream>,
    now: Now,
}

impl Setting {
    fn new(connections: usize) -> Setting {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        listener.set_nonblocking(true).expect("set");
        let address = listener.local_addr().expect("bound");
        let bounds = Bounds {
            depth: 8,
            flying_bytes: 1 << 20,
            longest_body: 1 << 20,
            patience: 10_000_000,
            durability: Durability::Lazy,
        };
        let identity =
            Identity { group: GroupId(1), replica: ReplicaId(0), incarnation: Incarnation(1) };
        let config = vsr::Config::new(identity, 3, Durability::Lazy, 1);
        let report = smr::Protocol::report(&vsr::Replica::new(config));
        let mut setting = Setting {
            poll: Poll::new().expect("a poll"),
            sessions: Sessions::new(Letters, vec![listener], 10, 1 << 20),
            gateway: Gateway::new(Machine::asking(ID, 3, Retry::after(100_000)), bounds),
            status: Status {
                identity,
                replicas: 3,
                ordered_by: smr::OrderedBy::Vsr,
                view_number: 0,
                memory: None,
                multicast: None,
                report,
                started_at: 0,
                disk_full: false,
                loading: false,
                clients: String::new(),
                peers: Vec::new(),
            },
            clients: Vec::new(),
            now: Now::default(),
        };
        for count in 1..=connections {
            setting.clients.push(TcpStream::connect(address).expect("connected"));
            while setting.sessions.connections() < count {
                setting.sessions.accept(0, &setting.poll, &mut setting.gateway, setting.now);
            }
        }
        setting
    }

    /// A client sends commands, and the replica takes them. The batch is left unsent.
    fn say(&mut self, client: usize, commands: &[u8]) {
        self.clients[client].write_all(commands).expect("sent");
        let place = client as u32;
        let before = self.input_of(place);
        while self.input_of(place) == before {
            self.turn();
        }
    }

    /// Takes what is ready.
    fn turn(&mut self) -> usize {
        let mut ready = Vec::new();
        self.poll.wait(Some(100_000), &mut ready).expect("polled");
        for ready in &ready {
            let Token::Client(place) = ready.token else { continue };
            let mut around = Around {
                gateway: &mut self.gateway,
                status: &self.status,
                service: &Nothing,
                now: self.now,
            };
            self.sessions.on_ready(*ready, place, &mut around);
        }
        ready.len()
    }

    fn input_of(&self, place: u32) -> Option<(usize, u64, bool)> {
        let client = self.sessions.clients.get(place)?;
        Some((client.input.len(), client.answers.taken(), client.closing))
    }

    /// Sends what waits.
    fn send(&mut self) -> Vec<ClientMessage> {
        self.gateway.send(self.now);
        let mut outgoing = Outgoing::default();
        self.gateway.take_outgoing(&mut outgoing);
        outgoing.replicas.into_iter().map(|(_, message)| message).collect()
    }

    fn reply(&mut self, number: u64, view: View, outcome: Outcome) {
        let (number, read) = (RequestNumber(number), false);
        let durable = Viewstamp::new(VIEW, OpNumber(1));
        let reply = Reply { client: ID, number, read, view, durable, outcome };
        self.gateway.on_reply(self.now, reply);
        while let Some(news) = self.gateway.next_news() {
            self.sessions.hear(news, &mut self.gateway);
        }
        self.sessions.flush(&self.poll, self.now);
    }

    fn done(&mut self, number: u64, op: u64, body: &'static [u8]) {
        let position = Viewstamp::new(VIEW, OpNumber(op));
        self.reply(number, VIEW, Outcome::Done { position, body: Bytes::from_static(body) });
    }

    /// All requests above `last` are lost, and all operations above `kept`.
    fn crash(&mut self, number: u64, kept: u64, last: u64) {
        let (kept, last) = (OpNumber(kept), RequestNumber(last));
        self.reply(number, View(513), Outcome::WrongView { expected: VIEW, kept, last });
    }

    fn heard(&mut self, client: usize, count: usize) -> String {
        let mut answers = vec![0; count];
        self.clients[client].read_exact(&mut answers).expect("answered");
        String::from_utf8(answers).expect("letters")
    }

    /// The first of so many clients has written at operation 5, and has its answer.
    fn after_a_write(clients: usize) -> Setting {
        let mut setting = Setting::new(clients);
        setting.say(0, b"w");
        setting.send();
        setting.done(1, 5, b"a");
        assert_eq!(setting.heard(0, 1), "a");
        setting
    }

    /// What the client hears until the replica closes its half.
    fn heard_last(&mut self, client: usize) -> String {
        let mut answers = String::new();
        self.clients[client].read_to_string(&mut answers).expect("answered");
        answers
    }
}

#[test]
fn who_saw_what_is_lost_is_told_for_every_command_and_goes() {
    let mut setting = Setting::after_a_write(3);
    setting.say(1, b"w");
    setting.send();
    // Of one who has seen it: one sent, one in the batch that is being filled with somebody else's.
    setting.say(0, b"w");
    setting.send();
    setting.say(0, b"w");
    setting.say(2, b"w");
    setting.crash(2, 4, 0);
    assert_eq!(setting.heard_last(0), "!!");
    assert_eq!(setting.heard(1, 1), "i", "not executed, and nothing was seen");
    assert_eq!(setting.heard(2, 1), "i");
    assert!(setting.gateway.idle() && setting.send().is_empty());
    // What the lost one still sends is not taken; the others go on.
    setting.clients[0].write_all(b"ww").expect("sent");
    setting.say(1, b"w");
    let sent = setting.send();
    assert_eq!(sent.len(), 1);
    assert!(matches!(&sent[0], ClientMessage::Request { request, .. } if *request.body == *b"w"));
    setting.done_in(View(513), 1, 5, b"b");
    assert_eq!(setting.heard(1, 1), "b");
}

#[test]
fn who_saw_it_and_is_silent_is_told_at_the_next_command() {
    let mut setting = Setting::new(2);
    setting.say(0, b"w");
    setting.send();
    setting.done(1, 5, b"a");
    setting.say(1, b"w");
    setting.send();
    setting.crash(2, 4, 0);
    assert_eq!(setting.heard(1, 1), "i");
    assert_eq!(setting.heard(0, 1), "a");
    setting.say(0, b"ww");
    setting.sessions.flush(&setting.poll, setting.now);
    assert_eq!(setting.heard_last(0), "!");
    assert!(setting.send().is_empty());
}

#[test]
fn what_waited_for_the_disk_was_not_seen() {
    let mut setting = Setting::new(2);
    setting.say(0, b"sw");
    setting.say(1, b"w");
    setting.send();
    setting.done(1, 5, b"ab");
    assert_eq!(setting.heard(1, 1), "b");
    setting.crash(2, 4, 0);
    assert_eq!(setting.heard(0, 2), "si");
    setting.say(0, b"w");
    assert_eq!(setting.send().len(), 2, "it goes on: a write and its barrier");
}

#[test]
fn an_executed_command_is_told_apart_from_one_that_was_not() {
    let mut setting = Setting::new(2);
    setting.say(1, b"w");
    setting.send();
    setting.say(0, b"w");
    setting.send();
    setting.done(2, 6, b"a");
    assert_eq!(setting.heard(0, 1), "a");
    setting.say(0, b"w");
    setting.send();
    setting.crash(3, 5, 1);
    assert_eq!(setting.heard_last(0), "!");
    setting.done_in(View(513), 1, 5, b"b");
    assert_eq!(setting.heard(1, 1), "b", "it is in the log, and its connection saw nothing lost");
}

impl Setting {
    fn done_in(&mut self, view: View, number: u64, op: u64, body: &'static [u8]) {
        let position = Viewstamp::new(VIEW, OpNumber(op));
        self.reply(number, view, Outcome::Done { position, body: Bytes::from_static(body) });
    }
}

#[test]
fn an_answer_that_waits_behind_another_is_taken_back_with_it() {
    let mut setting = Setting::after_a_write(1);
    // A later command that was answered first.
    setting.say(0, b"ww");
    setting.send();
    let client = setting.sessions.clients.get_mut(0).expect("there");
    let behind = client.answers.taken();
    client.answers.answer_now(|out| out.push(b'l'));
    assert_eq!(client.answers.taken(), behind + 1);
    setting.crash(2, 4, 0);
    assert_eq!(setting.heard_last(0), "!!?");
    setting.clients[0].shutdown(Shutdown::Both).expect("shut");
}

#[test]
fn who_was_told_and_goes_on_is_not_listened_to_and_not_for_long() {
    let mut setting = Setting::after_a_write(2);
    setting.say(1, b"w");
    setting.send();
    // The write waits for the read, and is left over.
    setting.say(0, b"rw");
    setting.send();
    assert_eq!(setting.input_of(0).expect("there").0, 1);
    setting.crash(2, 4, 0);
    assert_eq!(setting.heard_last(0), "?");
    for _ in 0..3 {
        setting.clients[0].write_all(b"www").expect("sent");
        while setting.turn() == 0 {}
        assert_eq!(setting.input_of(0).expect("it drains").0, 0);
    }
    setting.now.micros += DRAINING;
    setting.sessions.flush(&setting.poll, setting.now);
    assert_eq!(setting.sessions.connections(), 1, "it has had its time");
}

#[test]
fn a_write_that_was_not_durable_in_time_is_waited_for_by_the_next_question() {
    let mut setting = Setting::new(1);
    setting.say(0, b"sw");
    setting.send();
    setting.done(1, 5, b"a");
    setting.now.micros += 10_000_000;
    let late = setting.gateway.expire(setting.now).expect("it is late");
    setting.sessions.finish(late, &mut setting.gateway);
    setting.sessions.flush(&setting.poll, setting.now);
    assert_eq!(setting.heard(0, 2), "su");
    let answers = &setting.sessions.clients.get(0).expect("there").answers;
    assert_eq!((answers.written.op, answers.seen), (OpNumber(5), OpNumber(0)));
}
