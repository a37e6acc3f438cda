//! The faults of the simulated fabric happen, each where it is allowed, and a seed repeats them.

mod common;

use std::ops::Range;

use common::{BOARD, LOG, Rig, Simulated, place};
use fabric::sim::{Extent, Options, World};
use fabric::{Fabric, GrantNumber, Status, Verb, VerbId};
use smr::ReplicaId;

const ALL: &[Range<u32>] = std::slice::from_ref(&(0..600));
const P0: ReplicaId = ReplicaId(0);
const P1: ReplicaId = ReplicaId(1);

fn quick() -> Options {
    Options { delay: 10, spread: 0, acknowledge: 0, switch: 0, ..Options::default() }
}

/// How many of 300 seeds show something.
fn seeds(options: Options, shows: impl Fn(&mut Simulated) -> bool) -> usize {
    (0..300).filter(|&seed| shows(&mut Simulated::new(options, seed, None))).count()
}

fn granted(rig: &mut Simulated) -> GrantNumber {
    let rig: &mut dyn Rig = rig;
    rig.grant(0, LOG, 1, ALL).expect("granted")
}

/// Process 1 begins to write eight words.
fn begin(rig: &mut Simulated, under: GrantNumber) {
    let rig: &mut dyn Rig = rig;
    let words = [1, 2, 3, 4, 5, 6, 7, 8];
    rig.post(1, 1, Verb::Write { to: place(0, LOG, 0), under, words: &words });
}

fn load(rig: &mut Simulated) -> Vec<u64> {
    let rig: &mut dyn Rig = rig;
    rig.load(0, LOG, 0, 8)
}

fn status(rig: &mut Simulated) -> Option<Status> {
    let rig: &mut dyn Rig = rig;
    rig.poll(1).map(|(done, _)| done.status)
}

/// What has landed of the eight words: nothing, the first few, others, or all.
fn landed(words: &[u64]) -> &'static str {
    let count = words.iter().filter(|&&word| word != 0).count();
    match (count, words[..count].iter().all(|&word| word != 0)) {
        (0, _) => "nothing",
        (8, _) => "all",
        (_, true) => "first",
        (_, false) => "others",
    }
}

#[test]
fn who_sees_a_write_sees_all_that_came_before_and_nothing_of_later_ones() {
    let mut late = 0;
    for seed in 0..100 {
        let options = Options { hidden: 900_000, hidden_by: 20_000, ..Options::rough() };
        let mut world = World::new(common::geometry(), options, seed);
        for number in 1..=100 {
            // Four places in turn, so that what is hidden is overwritten.
            let to = place(0, BOARD, (number % 4) as u32);
            let verb = Verb::Write { to, under: GrantNumber(0), words: &[number] };
            world.port(P1).post(VerbId(number), verb);
        }
        while world.next_at().is_some() {
            world.step(u64::MAX);
            let mut words = [0; 4];
            world.port(P0).load(BOARD, 0, &mut words);
            let last = words.into_iter().max().expect("four");
            late += u64::from(last < 100);
            for (place, word) in (0..).zip(words) {
                let newest = (0..=last).rev().find(|number| number % 4 == place);
                assert_eq!(word, newest.unwrap_or(0), "seed {seed}: {words:?}");
            }
        }
    }
    assert!(late > 0);
}

#[test]
fn a_seed_repeats_itself() {
    let history = |seed| {
        let mut world = World::new(common::geometry(), Options::rough(), seed);
        let mut history = Vec::new();
        for id in 0..40 {
            let from = ReplicaId(id as u8 % 3);
            let to = place(id as u8 / 3 % 3, BOARD, 0);
            let verb = Verb::Write { to, under: GrantNumber(0), words: &[id; 16] };
            world.port(from).post(VerbId(id), verb);
            let noticed = world.step(id * 100);
            let mut words = [0; 16];
            world.port(P0).load(BOARD, 0, &mut words);
            history.push((world.now(), noticed, words));
        }
        history
    };
    assert_eq!(history(1), history(1));
    assert_ne!(history(1), history(2));
}

#[test]
fn writes_are_torn_in_every_way() {
    let torn = Options { tear: 1_000_000, tear_by: 1_000, ..quick() };
    for wanted in ["first", "others"] {
        let shows = |rig: &mut Simulated| {
            let number = granted(rig);
            begin(rig, number);
            let mut found = false;
            while rig.step() {
                found |= landed(&load(rig)) == wanted;
            }
            assert_eq!((landed(&load(rig)), status(rig)), ("all", Some(Status::Ok)));
            found
        };
        assert!(seeds(torn, shows) > 50, "{wanted}");
        assert_eq!(seeds(quick(), shows), 0, "{wanted}");
    }
}

#[test]
fn a_revocation_leaves_any_subset() {
    let torn = Options { tear: 1_000_000, tear_by: 1_000, ..quick() };
    for wanted in ["nothing", "first", "others"] {
        let shows = |rig: &mut Simulated| {
            let number = granted(rig);
            begin(rig, number);
            let until = rig.0.now() + 400;
            while rig.0.step(until).is_some() {}
            let rig: &mut Simulated = rig;
            (rig as &mut dyn Rig).revoke(0, LOG);
            let refused = status(rig) == Some(Status::Refused);
            refused && landed(&load(rig)) == wanted
        };
        assert!(seeds(torn, shows) > 5, "{wanted}");
    }
}

#[test]
fn a_write_completes_before_it_is_seen() {
    let hidden = Options { hidden: 500_000, hidden_by: 1_000, ..quick() };
    let shows = |rig: &mut Simulated| {
        let number = granted(rig);
        begin(rig, number);
        let done = loop {
            if let Some(status) = status(rig) {
                break status;
            }
            rig.step();
        };
        assert_eq!(done, Status::Ok);
        let unseen = landed(&load(rig)) == "nothing";
        // Not for other verbs, nor for the owner once the card has confirmed a revocation.
        let rig: &mut dyn Rig = rig;
        rig.post(0, 0, Verb::Revoke { region: LOG });
        while rig.poll(0).is_none() {
            rig.step();
        }
        assert_eq!(landed(&rig.load(0, LOG, 0, 8)), "all");
        unseen
    };
    assert!(seeds(hidden, shows) > 50);
    assert_eq!(seeds(quick(), shows), 0);
    let read = |rig: &mut Simulated| {
        let number = granted(rig);
        begin(rig, number);
        while status(rig).is_none() {
            rig.step();
        }
        let rig: &mut dyn Rig = rig;
        let from = place(0, LOG, 0);
        rig.post(2, 0, Verb::Read { from, words: 8 });
        loop {
            if let Some((_, words)) = rig.poll(2) {
                return landed(&words) != "all";
            }
            rig.step();
        }
    };
    assert_eq!(seeds(hidden, read), 0, "a read comes after what completed");
}

#[test]
fn late_writes_come_only_when_asked_for() {
    let late = Options { late_after_revoke: 500_000, late_after_revoke_by: 50_000, ..quick() };
    let shows = |rig: &mut Simulated| {
        let number = granted(rig);
        (rig as &mut dyn Rig).post(0, 0, Verb::Revoke { region: LOG });
        begin(rig, number);
        while rig.0.step(rig.0.now() + 15).is_some() {}
        let next = (rig as &mut dyn Rig).poll(0);
        assert!(next.is_some_and(|(done, _)| done.status == Status::Ok), "the card says so");
        assert_eq!(landed(&load(rig)), "nothing");
        (rig as &mut dyn Rig).settle();
        assert_eq!(status(rig), Some(Status::Refused));
        landed(&load(rig)) != "nothing"
    };
    assert!(seeds(late, shows) > 50);
    assert_eq!(seeds(quick(), shows), 0);
}

#[test]
fn late_writes_do_not_reach_the_next_process() {
    let late = Options { late_after_revoke: 1_000_000, late_after_revoke_by: 50_000, ..quick() };
    let shows = |rig: &mut Simulated| {
        let number = granted(rig);
        (rig as &mut dyn Rig).post(0, 0, Verb::Revoke { region: LOG });
        begin(rig, number);
        while rig.0.step(rig.0.now() + 15).is_some() {}
        rig.kill(0);
        rig.restart(0);
        (rig as &mut dyn Rig).settle();
        assert_eq!(status(rig), Some(Status::Refused));
        landed(&load(rig)) == "nothing"
    };
    assert_eq!(seeds(late, shows), 300);
}

#[test]
fn what_was_meant_for_a_process_does_not_reach_the_next() {
    let shows = |rig: &mut Simulated| {
        let verb = Verb::Write { to: place(0, BOARD, 0), under: GrantNumber(0), words: &[1] };
        (rig as &mut dyn Rig).post(1, 0, verb);
        rig.kill(0);
        rig.restart(0);
        (rig as &mut dyn Rig).settle();
        assert_eq!(status(rig), Some(Status::Gone));
        (rig as &mut dyn Rig).load(0, BOARD, 0, 1) == [0]
    };
    assert_eq!(seeds(quick(), shows), 300);
}

#[test]
fn processes_overtake_each_other() {
    let shows = |rig: &mut Simulated| {
        let rig: &mut dyn Rig = rig;
        let under = GrantNumber(0);
        rig.post(1, 0, Verb::Write { to: place(0, BOARD, 0), under, words: &[1] });
        rig.post(2, 0, Verb::Write { to: place(0, BOARD, 0), under, words: &[2] });
        rig.settle();
        rig.load(0, BOARD, 0, 1) == [1]
    };
    let overtaken = seeds(Options::rough(), shows);
    assert!((50..250).contains(&overtaken));
}

#[test]
fn a_paused_process_has_live_memory() {
    let shows = |rig: &mut Simulated| {
        let number = granted(rig);
        begin(rig, number);
        rig.0.pause(P0, Extent::Process);
        rig.0.pause(P1, Extent::Process);
        (rig as &mut dyn Rig).settle();
        let landed_meanwhile = {
            let words = (rig as &mut dyn Rig).read(2, place(0, LOG, 0), 8);
            landed(&words) == "all"
        };
        rig.0.resume(P0);
        rig.0.resume(P1);
        (rig as &mut dyn Rig).settle();
        assert_eq!((landed(&load(rig)), status(rig)), ("all", Some(Status::Ok)));
        landed_meanwhile
    };
    assert_eq!(seeds(quick(), shows), 300, "the card goes on");
    assert_eq!(seeds(Options { by_processor: true, ..quick() }, shows), 0, "the stores stop");
}

#[test]
#[should_panic(expected = "can do nothing")]
fn a_paused_process_can_do_nothing() {
    let mut rig = Simulated::new(quick(), 0, None);
    rig.0.pause(P1, Extent::Process);
    (&mut rig as &mut dyn Rig).poll(1);
}

#[test]
fn a_switch_waits_for_its_paused_owner() {
    let shows = |rig: &mut Simulated| {
        let number = granted(rig);
        (rig as &mut dyn Rig).post(0, 0, Verb::Revoke { region: LOG });
        rig.0.pause(P0, Extent::Process);
        let written = (rig as &mut dyn Rig).write(1, place(0, LOG, 0), number, &[1]);
        rig.0.resume(P0);
        (rig as &mut dyn Rig).settle();
        let late = (rig as &mut dyn Rig).write(1, place(0, LOG, 0), number, &[1]);
        assert_eq!(late, Status::Refused);
        written == Status::Ok
    };
    assert_eq!(seeds(quick(), shows), 300);
}

#[test]
fn a_machine_that_stands_still_answers_nothing() {
    for timeout in [1_000, 1_000_000] {
        let shows = |rig: &mut Simulated| {
            let number = granted(rig);
            rig.0.pause(P0, Extent::Machine);
            begin(rig, number);
            let start = rig.0.now();
            while rig.0.step(start + 10_000).is_some() {}
            let early = status(rig);
            rig.0.resume(P0);
            (rig as &mut dyn Rig).settle();
            let late = status(rig);
            match (early, late) {
                (Some(Status::Gone), None) => assert_eq!(landed(&load(rig)), "nothing"),
                (None, Some(Status::Ok)) => assert_eq!(landed(&load(rig)), "all"),
                other => panic!("{other:?}"),
            }
            early.is_some()
        };
        let given_up = seeds(Options { timeout, ..quick() }, shows);
        assert_eq!(given_up, if timeout == 1_000 { 300 } else { 0 });
    }
}

#[test]
fn a_cut_leaves_the_outcome_open() {
    let options = Options { acknowledge: 100, ..quick() };
    for wanted in ["nothing", "all"] {
        let shows = |rig: &mut Simulated| {
            let number = granted(rig);
            begin(rig, number);
            let until = rig.0.now() + if wanted == "all" { 10 } else { 0 };
            while rig.0.step(until).is_some() {}
            rig.0.cut(P1, P0);
            let posted = rig.0.now();
            (rig as &mut dyn Rig).settle();
            let gone = status(rig) == Some(Status::Gone);
            assert!(!gone || rig.0.now() >= posted + options.timeout, "not before the timeout");
            rig.0.mend(P0, P1);
            if gone {
                let next = (rig as &mut dyn Rig).write(1, place(0, LOG, 8), number, &[9]);
                assert_eq!(next, Status::Refused, "a log has no holes");
            }
            gone && landed(&load(rig)) == wanted
        };
        assert!(seeds(options, shows) > 200, "{wanted}");
    }
}

#[test]
fn what_is_outstanding_at_a_cut_fails_from_one_verb_on() {
    let options = Options { spread: 100, acknowledge: 200, timeout: 1_000, ..quick() };
    let mut uncertain = 0;
    for seed in 0..1_000 {
        let mut rig = Simulated::new(options, seed, None);
        let under = granted(&mut rig);
        for slot in 0..8 {
            let words = [u64::from(slot) + 1];
            let to = place(0, LOG, slot);
            let rig: &mut dyn Rig = &mut rig;
            rig.post(1, u64::from(slot), Verb::Write { to, under, words: &words });
        }
        let start = rig.0.now() + 50 + seed % 100;
        while rig.0.step(start).is_some() {}
        rig.0.cut(P0, P1);
        while rig.0.step(start + seed % 70).is_some() {}
        rig.0.mend(P0, P1);
        (&mut rig as &mut dyn Rig).settle();
        assert_eq!(rig.0.next_at(), None);
        assert!(rig.0.now() <= start + 1_200, "nothing is left to wait for");
        let polled = std::iter::from_fn(|| (&mut rig as &mut dyn Rig).poll(1));
        let mut done: Vec<_> = polled.map(|(done, _)| (done.id, done.status)).collect();
        done.sort_by_key(|&(id, _)| id);
        assert_eq!(done.len(), 8);
        assert!(done.is_sorted_by_key(|&(_, status)| status != Status::Ok), "{done:?}");
        let words = load(&mut rig);
        assert_ne!(landed(&words), "others");
        let landed = words.iter().filter(|&&word| word != 0).count();
        let completed = done.iter().filter(|(_, status)| *status == Status::Ok).count();
        assert!(landed >= completed);
        uncertain += usize::from(landed > completed);
    }
    assert!(uncertain > 50);
}

#[test]
fn a_finished_verb_leaves_nothing_behind() {
    let mut rig = Simulated::new(quick(), 0, None);
    let number = granted(&mut rig);
    begin(&mut rig, number);
    (&mut rig as &mut dyn Rig).settle();
    assert_eq!(status(&mut rig), Some(Status::Ok));
    assert!(rig.0.now() < 100, "no timeout is waited for");
}

#[test]
fn a_killed_process_leaves_the_outcome_open_and_no_holes() {
    for by_processor in [false, true] {
        let options = Options { by_processor, ..quick() };
        for wanted in ["nothing", "first", "all"] {
            let shows = |rig: &mut Simulated| {
                let under = granted(rig);
                for slot in 0..8 {
                    let words = [u64::from(slot) + 1];
                    let verb = Verb::Write { to: place(0, LOG, slot), under, words: &words };
                    (rig as &mut dyn Rig).post(1, 0, verb);
                }
                rig.kill(1);
                (rig as &mut dyn Rig).settle();
                let landed = landed(&load(rig));
                assert_ne!(landed, "others");
                landed == wanted
            };
            let shown = seeds(options, shows);
            match (by_processor, wanted) {
                (true, "nothing") => assert_eq!(shown, 300),
                (true, _) => assert_eq!(shown, 0),
                (false, "all") => assert!(shown < 20),
                (false, _) => assert!(shown > 50),
            }
        }
    }
}

#[test]
fn a_new_process_hears_nothing_of_its_former_ones_verbs() {
    let shows = |rig: &mut Simulated| {
        let number = granted(rig);
        begin(rig, number);
        rig.kill(1);
        (rig as &mut dyn Rig).settle();
        rig.restart(1);
        status(rig).is_none()
    };
    assert_eq!(seeds(quick(), shows), 300);
}

#[test]
fn a_wrecked_machine_is_gone_until_a_new_one_comes() {
    let shows = |rig: &mut Simulated| {
        let number = granted(rig);
        begin(rig, number);
        rig.0.wreck(P0);
        (rig as &mut dyn Rig).settle();
        assert_eq!(status(rig), Some(Status::Gone));
        let written = (rig as &mut dyn Rig).write(1, place(0, BOARD, 0), GrantNumber(0), &[1]);
        assert_eq!(written, Status::Gone);
        rig.0.restart(P0);
        assert_eq!(landed(&load(rig)), "nothing");
        let next = (rig as &mut dyn Rig).grant(0, LOG, 1, ALL).expect("granted");
        let written = (rig as &mut dyn Rig).write(1, place(0, LOG, 0), next, &[1]);
        written == Status::Ok
    };
    assert_eq!(seeds(quick(), shows), 300);
}
