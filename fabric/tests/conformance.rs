//! What every back end does: one suite, run on each. RDMA cards are used if the environment names
//! them (`FABRIC_CARDS=rx1,rx2,rx3`), and then they alone: `cargo xtask verbs` does that.

mod common;

use common::{BOARD, Carded, LOG, OTHER, Rig, Shared, Simulated, geometry, place};
use fabric::sim::Options;
use fabric::verbs::{self, Revocation};
use fabric::{GrantNumber, Status, Verb, VerbId};
use smr::ReplicaId;

const ALL: std::ops::Range<u32> = 0..600;

/// Runs a test on shared memory and on many simulated fabrics, or on cards.
fn everywhere(test: fn(&mut dyn Rig)) {
    everywhere_without(None, test);
}

fn everywhere_without(process: Option<u8>, test: fn(&mut dyn Rig)) {
    everywhere_with(&[Revocation::Flags], process, test);
}

/// With more ways for a card to revoke than those that software devices do well.
fn everywhere_with(more: &[Revocation], process: Option<u8>, test: fn(&mut dyn Rig)) {
    if let Some(cards) = Carded::cards() {
        for &revocation in [Revocation::FlagsThenState, Revocation::State].iter().chain(more) {
            test(&mut Carded::new(cards.clone(), revocation, process));
        }
        return;
    }
    test(&mut Shared::new(process));
    let rough = Options::rough();
    let options = [Options::default(), rough, Options { by_processor: true, ..rough }];
    for seed in 0..300 {
        let options = options[seed as usize % options.len()];
        test(&mut Simulated::new(options, seed, process));
    }
}

#[test]
fn open_words_are_everybodys() {
    everywhere(|rig| {
        let none = GrantNumber(0);
        assert_eq!(rig.write(1, place(0, BOARD, 3), none, &[31, 32]), Status::Ok);
        assert_eq!(rig.write(2, place(0, BOARD, 5), none, &[53]), Status::Ok);
        assert_eq!(rig.store(0, BOARD, 6, &[66]), Status::Ok);
        assert_eq!(rig.load(0, BOARD, 2, 6), [0, 31, 32, 53, 66, 0]);
        assert_eq!(rig.read(1, place(0, BOARD, 5), 2), [53, 66]);
        assert_eq!(rig.load(1, BOARD, 0, 16), [0; 16], "another process's region is another");
        assert_eq!(rig.write(0, place(0, BOARD, 0), none, &[9]), Status::Ok);
        assert_eq!(rig.load(0, BOARD, 0, 1), [9], "one's own region is like any other");
    });
}

#[test]
fn the_owner_holds_an_exclusive_region_at_first() {
    everywhere(|rig| {
        assert_eq!(rig.store(0, LOG, 0, &[5, 6]), Status::Ok);
        assert_eq!(rig.write(0, place(0, LOG, 2), GrantNumber(1), &[7]), Status::Ok);
        for number in 0..3 {
            let written = rig.write(1, place(0, LOG, 1), GrantNumber(number), &[9]);
            assert_eq!(written, Status::Refused);
        }
        assert_eq!(rig.load(0, LOG, 0, 4), [5, 6, 7, 0]);
        assert_eq!(rig.read(2, place(0, LOG, 0), 4), [5, 6, 7, 0]);
        rig.revoke(0, LOG);
        assert_eq!(rig.store(0, LOG, 0, &[9]), Status::Refused, "not even its owner holds it");
        assert_eq!(rig.load(0, LOG, 0, 4), [5, 6, 7, 0]);
    });
}

#[test]
fn the_holder_alone_writes() {
    everywhere(|rig| {
        rig.store(0, LOG, 0, &[5, 6]);
        let number = rig.grant(0, LOG, 1, &[ALL]).expect("granted");
        assert!(number > GrantNumber(1));
        assert_eq!(rig.write(1, place(0, LOG, 1), number, &[8, 9]), Status::Ok);
        assert_eq!(rig.write(2, place(0, LOG, 1), number, &[1]), Status::Refused);
        assert_eq!(rig.write(0, place(0, LOG, 1), number, &[1]), Status::Refused);
        assert_eq!(rig.store(0, LOG, 1, &[1]), Status::Refused);
        assert_eq!(rig.load(0, LOG, 0, 4), [5, 8, 9, 0]);
        assert_eq!(rig.read(2, place(0, LOG, 0), 4), [5, 8, 9, 0]);
        let other = rig.write(1, place(0, OTHER, 0), number, &[1]);
        assert_eq!(other, Status::Refused, "each region has its own grant");
        let theirs = rig.write(1, place(2, LOG, 0), number, &[1]);
        assert_eq!(theirs, Status::Refused, "each owner grants its own");
    });
}

#[test]
fn a_revoked_writer_changes_nothing_more() {
    everywhere(|rig| {
        let number = rig.grant(0, LOG, 1, &[ALL]).expect("granted");
        assert_eq!(rig.write(1, place(0, LOG, 0), number, &[1, 2, 3]), Status::Ok);
        rig.revoke(0, LOG);
        assert_eq!(rig.write(1, place(0, LOG, 1), number, &[9]), Status::Refused);
        assert_eq!(rig.store(0, LOG, 1, &[9]), Status::Refused, "nobody holds it");
        assert_eq!(rig.load(0, LOG, 0, 4), [1, 2, 3, 0], "what was written stays");
        rig.revoke(0, LOG);
        let next = rig.grant(0, LOG, 0, &[ALL]).expect("granted");
        assert!(next > number);
        assert_eq!(rig.store(0, LOG, 1, &[7]), Status::Ok);
        for stale in [number, next] {
            assert_eq!(rig.write(1, place(0, LOG, 1), stale, &[9]), Status::Refused);
        }
        assert_eq!(rig.read(2, place(0, LOG, 0), 4), [1, 7, 3, 0]);
    });
}

#[test]
fn a_grant_keeps_what_it_is_told_to() {
    everywhere(|rig| {
        let number = rig.grant(0, LOG, 1, &[ALL]).expect("granted");
        let words: Vec<u64> = (1..=600).collect();
        assert_eq!(rig.write(1, place(0, LOG, 0), number, &words), Status::Ok);
        // Without a revocation before: a grant is one.
        let next = rig.grant(0, LOG, 2, &[0..2, 510..515, 599..600]).expect("granted");
        assert_eq!(rig.write(1, place(0, LOG, 0), number, &[9]), Status::Refused);
        let found = rig.load(0, LOG, 0, 600);
        for (index, &word) in found.iter().enumerate() {
            let kept = index < 2 || (510..515).contains(&index) || index == 599;
            assert!(word == words[index] || !kept && word == 0, "word {index} is {word}");
        }
        assert_eq!(rig.read(1, place(0, LOG, 0), 600), found);
        assert_eq!(rig.write(2, place(0, LOG, 1), next, &[20]), Status::Ok);
        assert_eq!(rig.load(0, LOG, 0, 2), [1, 20]);
    });
}

#[test]
fn who_was_granted_before_renounces_first() {
    everywhere(|rig| {
        let first = rig.grant(0, LOG, 1, &[ALL]).expect("granted");
        assert_eq!(rig.write(1, place(0, LOG, 0), first, &[1]), Status::Ok);
        assert_eq!(rig.grant(0, LOG, 1, &[ALL]), None);
        assert_eq!(rig.write(1, place(0, LOG, 1), first, &[2]), Status::Ok, "nothing has changed");
        let second = rig.grant(0, LOG, 2, &[ALL]).expect("granted");
        assert_eq!(rig.grant(0, LOG, 1, &[ALL]), None);
        assert_eq!(rig.write(2, place(0, LOG, 2), second, &[3]), Status::Ok, "nothing has changed");
        rig.renounce(1, 0, LOG);
        let third = rig.grant(0, LOG, 1, &[ALL]).expect("granted");
        assert_eq!(rig.write(1, place(0, LOG, 3), third, &[4]), Status::Ok);
        assert_eq!(rig.read(2, place(0, LOG, 0), 5), [1, 2, 3, 4, 0]);
        // Who renounces while it holds gives up what it holds.
        rig.renounce(1, 0, LOG);
        assert_eq!(rig.write(1, place(0, LOG, 0), third, &[9]), Status::Refused);
        let fourth = rig.grant(0, LOG, 1, &[ALL]).expect("granted");
        assert_eq!(rig.write(1, place(0, LOG, 4), fourth, &[5]), Status::Ok);
        assert_eq!(rig.read(2, place(0, LOG, 0), 5), [1, 2, 3, 4, 5]);
    });
}

#[test]
fn only_the_grants_own_number_counts() {
    everywhere(|rig| {
        rig.grant(0, LOG, 0, &[ALL]).expect("granted");
        let number = rig.grant(0, LOG, 1, &[ALL]).expect("granted");
        assert_eq!(rig.write(1, place(0, LOG, 0), number, &[1]), Status::Ok);
        // Numbers that no owner gives must not be taken for one that differs in high bits.
        let others = [0, number.0 - 1, number.0 + 1, number.0 + (1 << 55), u64::MAX];
        for other in others.map(GrantNumber) {
            let written = rig.write(1, place(0, LOG, 0), other, &[9]);
            assert_eq!(written, Status::Refused, "under {other:?}");
        }
        assert_eq!(rig.load(0, LOG, 0, 1), [1]);
    });
}

#[test]
fn a_region_is_handed_around_for_ever() {
    everywhere(|rig| {
        rig.store(0, LOG, 0, &[100, 0]);
        let mut expected = vec![0; 600];
        expected[0] = 100;
        for round in 1..20_u64 {
            let to = (round * 7 % 5 % 3) as u8;
            if to != 0 {
                rig.renounce(to, 0, LOG);
            }
            let keep = 0..round as u32 + 1;
            let keep = std::slice::from_ref(&keep);
            let number = rig.grant(0, LOG, to, keep).expect("granted");
            assert_eq!(rig.write(to, place(0, LOG, round as u32), number, &[round]), Status::Ok);
            // Beyond what is kept next time: nobody may see it after that.
            assert_eq!(rig.write(to, place(0, LOG, 300), number, &[round]), Status::Ok);
            expected[round as usize] = round;
            let found = rig.read(1, place(0, LOG, 0), 300);
            assert_eq!(found, expected[..300]);
            let stray = rig.load(0, LOG, 300, 1)[0];
            assert_eq!(stray, round);
        }
    });
}

#[test]
fn writes_take_effect_in_order() {
    everywhere(|rig| {
        let number = rig.grant(0, LOG, 1, &[ALL]).expect("granted");
        for slot in 0..20_u32 {
            let words = [u64::from(slot) + 1; 3];
            let to = place(0, LOG, 3 * slot);
            rig.post(1, u64::from(slot), Verb::Write { to, under: number, words: &words });
            rig.post(2, u64::from(slot), Verb::Read { from: place(0, LOG, 0), words: 60 });
        }
        loop {
            // From the last to the first, since words may arrive meanwhile.
            let slots = (0..20).rev().map(|slot| rig.load(0, LOG, 3 * slot, 3));
            let slots: Vec<_> = slots.collect();
            in_order(&slots.into_iter().rev().flatten().collect::<Vec<_>>());
            if !rig.step() {
                break;
            }
        }
        let ids: Vec<_> = std::iter::from_fn(|| rig.poll(1)).map(|(done, _)| done).collect();
        assert!(ids.iter().all(|done| done.status == Status::Ok));
        let mut ids: Vec<_> = ids.iter().map(|done| done.id).collect();
        ids.sort_unstable();
        assert!(ids.into_iter().eq((0..20).map(VerbId)), "each completes once");
        assert_eq!(rig.load(0, LOG, 57, 3), [20; 3]);
        assert_eq!(std::iter::from_fn(|| rig.poll(2)).count(), 20);
    });
}

/// A slot that has begun to arrive follows one that has arrived.
fn in_order(words: &[u64]) {
    let slots: Vec<&[u64]> = words.chunks(3).collect();
    for (index, pair) in slots.windows(2).enumerate() {
        let begun = pair[1].iter().any(|&word| word != 0);
        assert!(!begun || *pair[0] == [index as u64 + 1; 3], "{pair:?}");
    }
}

#[test]
fn a_revocation_cuts_and_what_completed_is_there() {
    // On rxe a packet now and then passes a change of flags.
    everywhere_with(&[], None, |rig| {
        let number = rig.grant(0, LOG, 1, &[ALL]).expect("granted");
        for slot in 0..20_u32 {
            let words = [u64::from(slot) + 1; 3];
            let to = place(0, LOG, 3 * slot);
            rig.post(1, u64::from(slot), Verb::Write { to, under: number, words: &words });
            rig.step();
        }
        rig.post(0, 0, Verb::Revoke { region: LOG });
        let revoked = loop {
            if let Some(done) = rig.poll(0) {
                break done.0;
            }
            assert!(rig.step(), "the revocation completes");
        };
        assert_eq!(revoked.status, Status::Ok);
        let seen = rig.load(0, LOG, 0, 600);
        let to = ReplicaId(2);
        rig.post(0, 1, Verb::Grant { region: LOG, to, keep: &[ALL] });
        rig.settle();
        let mut done: Vec<_> = std::iter::from_fn(|| rig.poll(1)).map(|(done, _)| done).collect();
        done.sort_by_key(|done| done.id);
        assert_eq!(done.len(), 20);
        assert!(done.is_sorted_by_key(|done| done.status != Status::Ok), "no holes: {done:?}");
        in_order(&seen[..60]);
        for (slot, done) in done.iter().enumerate() {
            let whole = seen[3 * slot..][..3] == [slot as u64 + 1; 3];
            assert!(whole || done.status == Status::Refused, "what completed is there");
        }
        assert_eq!(rig.load(0, LOG, 0, 600), seen, "nothing arrives after a revocation");
        assert_eq!(rig.read(2, place(0, LOG, 0), 600), seen);
    });
}

#[test]
fn memory_outlives_its_process_or_is_gone() {
    everywhere(|rig| {
        let number = rig.grant(0, LOG, 1, &[ALL]).expect("granted");
        rig.store(0, BOARD, 0, &[4]);
        rig.kill(0);
        if !rig.memory_stays() {
            assert_eq!(rig.write(1, place(0, LOG, 0), number, &[1, 2]), Status::Gone);
            assert_eq!(rig.write(2, place(0, BOARD, 1), GrantNumber(0), &[5]), Status::Gone);
            let (done, words) = rig.run(2, Verb::Read { from: place(0, LOG, 0), words: 2 });
            assert_eq!((done.status, words), (Status::Gone, vec![]));
            return;
        }
        assert_eq!(rig.write(1, place(0, LOG, 0), number, &[1, 2]), Status::Ok);
        assert_eq!(rig.write(2, place(0, LOG, 0), number, &[9]), Status::Refused);
        assert_eq!(rig.write(2, place(0, BOARD, 1), GrantNumber(0), &[5]), Status::Ok);
        assert_eq!(rig.read(2, place(0, LOG, 0), 2), [1, 2]);
        assert_eq!(rig.read(1, place(0, BOARD, 0), 2), [4, 5]);
    });
}

#[test]
fn a_new_process_begins_anew() {
    everywhere(|rig| {
        let number = rig.grant(0, LOG, 1, &[ALL]).expect("granted");
        assert_eq!(rig.write(1, place(0, LOG, 0), number, &[1, 2]), Status::Ok);
        rig.store(1, LOG, 0, &[5]);
        rig.kill(1);
        rig.restart(1);
        assert_eq!(rig.write(1, place(0, LOG, 0), number, &[9]), Status::Refused);
        assert_eq!(rig.read(2, place(0, LOG, 0), 2), [1, 2], "what the former one wrote stays");
        assert_eq!(rig.read(0, place(1, LOG, 0), 1), [0], "its own memory is new");
        let next = rig.grant(0, LOG, 1, &[ALL]).expect("it need not renounce what it never had");
        assert_eq!(rig.write(1, place(0, LOG, 1), next, &[3]), Status::Ok);
        assert_eq!(rig.load(0, LOG, 0, 2), [1, 3]);
        let theirs = rig.grant(1, LOG, 0, &[ALL]).expect("granted");
        assert_eq!(rig.write(0, place(1, LOG, 0), theirs, &[6]), Status::Ok);
        assert_eq!(rig.read(2, place(1, LOG, 0), 1), [6]);
    });
}

#[test]
fn memory_that_is_not_there_is_gone() {
    everywhere_without(Some(2), |rig| {
        let write = rig.write(1, place(2, BOARD, 0), GrantNumber(0), &[1]);
        assert_eq!(write, Status::Gone);
        let verbs = [
            Verb::Read { from: place(2, LOG, 0), words: 2 },
            Verb::Renounce { owner: ReplicaId(2), region: LOG },
        ];
        for verb in verbs {
            let (done, words) = rig.run(0, verb);
            assert_eq!((done.status, words), (Status::Gone, vec![]));
        }
        let written = rig.write(1, place(0, BOARD, 0), GrantNumber(0), &[1]);
        assert_eq!(written, Status::Ok, "the others are there");
    });
}

fn all_without(process: Option<u8>) -> Vec<Box<dyn Rig>> {
    if let Some(cards) = Carded::cards() {
        return vec![Box::new(Carded::new(cards, Revocation::Flags, process))];
    }
    let simulated = Simulated::new(Options::default(), 0, process);
    vec![Box::new(Shared::new(process)), Box::new(simulated)]
}

#[test]
fn nonsense_of_ones_own_is_a_bug() {
    let keep = std::slice::from_ref(&(0..601));
    let to = place(0, LOG, 599);
    let nonsense = [
        Verb::Write { to, under: GrantNumber(1), words: &[1, 2] },
        Verb::Write { to: place(0, BOARD, u32::MAX), under: GrantNumber(0), words: &[1] },
        Verb::Read { from: place(1, BOARD, 16), words: 1 },
        Verb::Read { from: place(1, fabric::RegionId(3), 0), words: 0 },
        Verb::Read { from: place(3, BOARD, 0), words: 1 },
        Verb::Grant { region: LOG, to: ReplicaId(1), keep },
        Verb::Grant { region: BOARD, to: ReplicaId(1), keep: &[] },
        Verb::Grant { region: LOG, to: ReplicaId(3), keep: &[] },
        Verb::Revoke { region: BOARD },
        Verb::Renounce { owner: ReplicaId(1), region: BOARD },
    ];
    for verb in nonsense {
        // Also if the memory that it names is not there.
        for mut rig in [None, Some(1)].into_iter().flat_map(all_without) {
            let attempt = std::panic::AssertUnwindSafe(|| rig.post(0, 0, verb));
            assert!(std::panic::catch_unwind(attempt).is_err(), "{verb:?}");
        }
    }
}

#[test]
fn without_a_card_it_says_what_is_missing() {
    let options = verbs::Options { card: Some("none0".into()), ..verbs::Options::default() };
    let error = verbs::Endpoint::new(geometry(), ReplicaId(0), options).err().expect("no card");
    let text = error.to_string();
    let says = match error {
        // The library is not installed.
        verbs::Error::NoLibrary { .. } => text.contains("install it"),
        // The kernel knows no cards (ENOSYS), or none of this name.
        verbs::Error::NoCard { .. } => text.contains("rdma link add"),
        _ => false,
    };
    assert!(says, "{text}");
    if Carded::cards().is_none() {
        // Past the harness, which would keep it to itself.
        use std::io::Write;
        let notice = "left out: verbs, since FABRIC_CARDS names no cards (see cargo xtask verbs)";
        let notice = format!("{notice}; here: {text}\n");
        std::io::stderr().write_all(notice.as_bytes()).expect("told");
    }
}
