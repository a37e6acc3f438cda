//! The gateway against replies made by hand.

use smr::client::Retry;
use smr::{ClientId, ClientMessage, Incarnation, Outcome};

use super::*;

const VIEW: View = View(256);
const NEXT: View = View(513);

/// A gateway of a group in durability `lazy`, with three connections.
struct Setting {
    gateway: Gateway,
    answers: [Answers; 3],
    now: Now,
    sent: Vec<ClientMessage>,
}

impl Setting {
    fn new() -> Setting {
        Setting::taking(1 << 20)
    }

    /// A group that takes so many bytes in a request.
    fn taking(longest_body: usize) -> Setting {
        let bounds = Bounds {
            depth: 8,
            flying_bytes: 1 << 20,
            longest_body,
            patience: 10_000_000,
            durability: Durability::Lazy,
        };
        let id = ClientId { gateway: 0, incarnation: Incarnation(1) };
        let gateway = Gateway::new(Machine::asking(id, 3, Retry::after(100_000)), bounds);
        let answers = [0, 1, 2].map(|place| Answers::new(place, 1));
        Setting { gateway, answers, now: Now::default(), sent: Vec::new() }
    }

    fn submit(&mut self, lane: Lane, connection: usize, text: &[u8]) -> bool {
        let push = |body: &mut Vec<u8>| body.extend_from_slice(text);
        let answers = &mut self.answers[connection];
        self.gateway.submit(lane, self.now, answers, Note(0), push)
    }

    /// Sends what waits; returns the new logged requests, each with whether it is flagged.
    fn send(&mut self) -> Vec<(RequestNumber, bool, Bytes)> {
        self.gateway.send(self.now);
        let mut outgoing = Outgoing::default();
        self.gateway.take_outgoing(&mut outgoing);
        let sends = outgoing.replicas;
        let requests = sends.iter().filter_map(|(_, message)| match message {
            ClientMessage::Request { durable, request, .. } => {
                Some((request.number, *durable, request.body.clone()))
            }
            ClientMessage::Read { .. } => None,
        });
        let requests = requests.collect();
        self.sent.extend(sends.into_iter().map(|(_, message)| message));
        requests
    }

    fn reply(&mut self, number: u64, read: bool, view: View, durable: u64, outcome: Outcome) {
        let reply = Reply {
            client: ClientId { gateway: 0, incarnation: Incarnation(1) },
            number: RequestNumber(number),
            read,
            view,
            durable: Viewstamp::new(view, OpNumber(durable)),
            outcome,
        };
        self.gateway.on_reply(self.now, reply);
    }

    fn done(&mut self, number: u64, read: bool, op: u64, durable: u64) {
        let position = Viewstamp::new(VIEW, OpNumber(op));
        let outcome = Outcome::Done { position, body: Bytes::from_static(b"answer") };
        self.reply(number, read, VIEW, durable, outcome);
    }

    fn wrong_view(&mut self, number: u64, kept: u64, last: u64) {
        let (kept, last) = (OpNumber(kept), RequestNumber(last));
        self.reply(number, false, NEXT, kept.0, Outcome::WrongView { expected: VIEW, kept, last });
    }

    /// The connections that are told of a finished batch, and whether it was answered.
    fn told(&mut self) -> Vec<(Vec<u32>, bool)> {
        let mut told = Vec::new();
        while let Some(news) = self.gateway.next_news() {
            let News::Finished(Finished { routes, whom, end }) = news else {
                panic!("a loss: {news:?}")
            };
            let answered = matches!(end, End::Answered(..) | End::Durable(true));
            let routes: Vec<Route> = routes.into_iter().filter(|r| whom.has(r)).collect();
            for route in &routes {
                let answers = &mut self.answers[route.place as usize];
                match route.lane {
                    Lane::Write => answers.unanswered_writes -= 1,
                    Lane::Read => answers.unanswered_reads -= 1,
                }
                if let End::Answered(position, _) = &end {
                    answers.seen = answers.seen.max(position.op);
                    answers.written = *position;
                }
            }
            told.push((routes.iter().map(|route| route.place).collect(), answered));
        }
        told
    }

    fn lost(&mut self) -> (OpNumber, Vec<u32>, Vec<u32>) {
        let Some(News::Lost(lost)) = self.gateway.next_news() else { panic!("no loss") };
        let places = |routes: &[Route]| routes.iter().map(|route| route.place).collect();
        assert_eq!(lost.after.view, VIEW);
        (lost.after.op, places(&lost.dropped), places(&lost.rest))
    }
}

#[test]
fn a_patient_write_waits_for_the_disk_and_nobody_else_does() {
    let mut setting = Setting::new();
    setting.answers[1].durable = true;
    for connection in 0..3 {
        assert!(setting.submit(Lane::Write, connection, b"w"));
    }
    let sent = setting.send();
    let flags: Vec<(bool, usize)> =
        sent.iter().map(|(_, flag, body)| (*flag, body.len())).collect();
    assert_eq!(flags, [(false, 3), (true, 0)], "one batch for all, and a barrier behind it");
    setting.done(1, false, 5, 4);
    assert_eq!(setting.told(), [(vec![0, 2], true)]);
    assert!(!setting.gateway.idle());
    setting.done(2, false, 6, 6);
    assert_eq!(setting.told(), [(vec![1], true)]);
    assert!(setting.gateway.idle());
    assert_eq!(setting.send(), [], "nobody waits any more");
}

#[test]
fn a_durable_point_of_another_view_covers_nothing() {
    let mut setting = Setting::new();
    setting.answers[0].durable = true;
    assert!(setting.submit(Lane::Write, 0, b"w"));
    setting.send();
    setting.done(1, false, 5, 4);
    setting.gateway.on_durable(NEXT, Viewstamp::new(NEXT, OpNumber(9)));
    assert_eq!(setting.told(), []);
    assert!(!setting.gateway.is_durable(OpNumber(5)));
    setting.gateway.on_durable(VIEW, Viewstamp::new(VIEW, OpNumber(5)));
    assert_eq!(setting.told(), [(vec![0], true)]);
    assert!(setting.gateway.is_durable(OpNumber(5)));
}

#[test]
fn a_patient_read_waits_for_what_it_saw_alone() {
    let mut setting = Setting::new();
    setting.answers[0].durable = true;
    assert!(setting.submit(Lane::Read, 0, b"r"));
    assert_eq!(setting.send(), []);
    setting.done(1, true, 5, 5);
    assert_eq!(setting.told(), [(vec![0], true)], "all of it was durable");
    assert!(setting.submit(Lane::Read, 0, b"r"));
    setting.send();
    setting.done(2, true, 7, 6);
    assert_eq!(setting.told(), []);
    assert_eq!(setting.send().len(), 1, "a barrier");
    setting.done(1, false, 8, 8);
    assert_eq!(setting.told(), [(vec![0], true)]);
}

#[test]
fn the_question_for_durability_ends_with_the_durable_point_or_in_time() {
    let mut setting = Setting::new();
    assert!(setting.submit(Lane::Write, 0, b"w"));
    setting.send();
    let now = setting.now;
    let ask = |setting: &mut Setting| {
        setting.gateway.ask_durable(now, &mut setting.answers[0], Note(4), Some(1000))
    };
    assert_eq!(ask(&mut setting), None, "the write is unanswered");
    setting.done(1, false, 5, 4);
    assert_eq!(setting.told(), [(vec![0], true)]);
    assert_eq!(ask(&mut setting), Some(false));
    assert_eq!(setting.gateway.deadline(), Some(1000));
    let late = Now { micros: 1000, unix_ms: 1 };
    let expired = setting.gateway.expire(late).expect("it is late");
    assert!(matches!(expired.end, End::Durable(false)));
    setting.answers[0].unanswered_reads = 0;
    assert_eq!(ask(&mut setting), Some(false));
    setting.gateway.forget(0, 1);
    assert!(setting.gateway.idle(), "who has asked is gone");
    setting.answers[0].unanswered_reads = 0;
    assert_eq!(ask(&mut setting), Some(false));
    assert!(setting.send().iter().all(|(_, flagged, body)| *flagged && body.is_empty()));
    setting.done(2, false, 6, 6);
    assert_eq!(setting.told(), [(vec![0], true)]);
    assert_eq!(ask(&mut setting), Some(true));
}

#[test]
fn a_loss_drops_what_was_not_executed_and_what_shares_a_batch_with_it() {
    let mut setting = Setting::new();
    setting.answers[2].durable = true;
    assert!(setting.submit(Lane::Write, 0, b"a"));
    setting.send();
    setting.done(1, false, 5, 4);
    assert_eq!(setting.told(), [(vec![0], true)]);
    // Executed but not answered, then a batch whose patient answer waits, one that is lost on its
    // way, one that is not sent, and a read.
    assert!(setting.submit(Lane::Write, 2, b"b"));
    setting.send();
    setting.done(2, false, 6, 4);
    assert!(setting.submit(Lane::Write, 1, b"c"));
    setting.send();
    assert!(setting.submit(Lane::Read, 0, b"r"));
    setting.send();
    assert!(setting.submit(Lane::Write, 1, b"d"));
    setting.wrong_view(4, 4, 0);
    assert_eq!(setting.lost(), (OpNumber(4), vec![1, 1, 2], vec![0]));
    assert_eq!(setting.told(), []);
    // The barrier, too, is gone, and what comes next has the next number of the log's.
    assert_eq!(setting.send(), []);
    assert!(setting.submit(Lane::Write, 1, b"e"));
    let sent = setting.send();
    assert_eq!(sent, [(RequestNumber(1), false, Bytes::from_static(b"e"))]);
    let reread = setting.sent.iter().filter(
        |message| matches!(message, ClientMessage::Read { expected, .. } if *expected == NEXT),
    );
    assert_eq!(reread.count(), 1, "reads are sent again");
}

#[test]
fn what_is_kept_is_answered_after_a_loss() {
    let mut setting = Setting::new();
    assert!(setting.submit(Lane::Write, 0, b"a"));
    setting.send();
    assert!(setting.submit(Lane::Write, 1, b"b"));
    setting.send();
    setting.done(2, false, 6, 3);
    assert_eq!(setting.told(), [(vec![1], true)]);
    setting.wrong_view(1, 5, 1);
    assert_eq!(setting.lost(), (OpNumber(5), vec![], vec![0]));
    let position = Viewstamp::new(VIEW, OpNumber(5));
    let outcome = Outcome::Done { position, body: Bytes::new() };
    setting.reply(1, false, NEXT, 5, outcome);
    assert_eq!(setting.told(), [(vec![0], true)]);
}

#[test]
fn a_number_that_is_used_again_after_a_loss_finds_its_own_batch() {
    let mut setting = Setting::new();
    for (connection, text) in [(0, b"a"), (1, b"b")] {
        assert!(setting.submit(Lane::Write, connection, text));
        setting.send();
    }
    setting.done(2, false, 6, 3);
    assert_eq!(setting.told(), [(vec![1], true)]);
    setting.wrong_view(1, 5, 1);
    assert_eq!(setting.lost(), (OpNumber(5), vec![], vec![0]));
    assert!(setting.submit(Lane::Write, 2, b"c"));
    let sent = setting.send();
    assert_eq!(sent.last(), Some(&(RequestNumber(2), false, Bytes::from_static(b"c"))));
    for (number, connection) in [(1, 0), (2, 2)] {
        let position = Viewstamp::new(NEXT, OpNumber(number + 5));
        let outcome = Outcome::Done { position, body: Bytes::new() };
        setting.reply(number, false, NEXT, 5, outcome);
        assert_eq!(setting.told(), [(vec![connection], true)]);
    }
    assert!(setting.gateway.idle());
}

#[test]
fn a_barrier_that_was_lost_is_sent_again_for_the_write_that_was_kept() {
    let mut setting = Setting::new();
    assert!(setting.submit(Lane::Write, 1, b"a"));
    setting.send();
    setting.done(1, false, 5, 3);
    assert_eq!(setting.told(), [(vec![1], true)]);
    setting.answers[0].durable = true;
    assert!(setting.submit(Lane::Write, 0, b"b"));
    assert!(setting.submit(Lane::Write, 1, b"c"));
    assert_eq!(setting.send().len(), 2, "a batch and its barrier");
    setting.wrong_view(2, 4, 2);
    assert_eq!(setting.lost(), (OpNumber(4), vec![], vec![0, 1]));
    let sent = setting.send();
    assert_eq!(sent.last(), Some(&(RequestNumber(3), true, Bytes::new())), "{sent:?}");
}

#[test]
fn a_change_of_view_that_loses_nothing_is_not_noticed() {
    let mut setting = Setting::new();
    for (number, text) in [(1, b"a"), (2, b"b")] {
        assert!(setting.submit(Lane::Write, 0, text));
        assert_eq!(setting.send().len(), 1);
        if number == 1 {
            setting.done(1, false, 5, 4);
            assert_eq!(setting.told(), [(vec![0], true)]);
        }
    }
    setting.wrong_view(2, 5, 1);
    assert!(setting.gateway.next_news().is_none());
    assert_eq!(setting.send().len(), 1, "sent again as it was");
}

#[test]
fn what_new_connections_are_expected_to_get_does_not_outlive_their_batch() {
    let mut setting = Setting::new();
    for _ in 0..2 {
        for lane in [Lane::Read, Lane::Write] {
            let mut taken = 0;
            let fresh = (0..2000).take_while(|_| {
                setting.answers[0] = Answers::new(0, 1);
                setting.submit(lane, 0, b"x")
            });
            taken += fresh.count();
            assert!(taken >= 1000, "{taken} were taken");
            setting.send();
            assert!(!setting.gateway.full(), "an empty batch is not full");
        }
    }
}

#[test]
fn a_command_that_does_not_fit_begins_the_next_batch() {
    let mut setting = Setting::taking(100);
    let text = [b'x'; 60];
    for connection in 0..3 {
        assert!(setting.submit(Lane::Write, connection, &text));
    }
    let sent = setting.send();
    assert_eq!(sent.len(), 3, "each in a request of its own");
    assert!(sent.iter().all(|(_, _, body)| body[..] == text));
}

#[test]
fn a_command_that_does_not_fit_waits_for_the_window() {
    let mut setting = Setting::taking(100);
    let text = [b'x'; 60];
    let taken = (0..20).take_while(|_| setting.submit(Lane::Write, 0, &text)).count();
    assert_eq!(taken, 9, "eight under way and one that waits");
    assert!(setting.gateway.full() && setting.answers[0].stall == Some(Stall::Full));
    assert_eq!(setting.send().len(), 8);
}

#[test]
fn a_command_that_fits_no_request_is_refused_in_its_place() {
    let mut setting = Setting::taking(100);
    assert!(setting.submit(Lane::Write, 0, b"before"));
    assert!(setting.submit(Lane::Write, 0, &[b'x'; 101]));
    assert!(setting.submit(Lane::Write, 0, b"behind"));
    let sent = setting.send();
    assert_eq!(sent.len(), 1);
    assert_eq!(sent[0].2[..], b"beforebehind"[..]);
    let Some(News::Finished(Finished { routes, end, .. })) = setting.gateway.next_news() else {
        panic!("nothing is told")
    };
    assert_eq!((routes.len(), routes[0].number), (1, 1));
    let why = Failure::TooLong { bytes: 101, most: 100 };
    assert!(matches!(end, End::Failed(found) if found == why));
}
