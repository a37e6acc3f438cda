//! The log across restarts: orderly ones, torn tails, damage.

mod common;

use common::*;
use io::{Directory, Error, Finding};
use proptest::prelude::*;
use smr::{Durability, OpNumber, StoreBatch, Trust, View, Viewstamp};

/// A directory whose log holds operations 1 to `count` in view 256, each batch synced.
fn filled(name: &str, count: u64) -> Scratch {
    let scratch = Scratch::new(name);
    create(scratch.path());
    let mut opened = open(scratch.path());
    opened.log.append(&StoreBatch { view: Some(View(256)), ..batch(1) }).expect("view");
    let mut last = Viewstamp::default();
    for op in 1..=count {
        let next = entry(last, 256, 20);
        last = next.viewstamp;
        opened.log.append(&append(op + 1, vec![next])).expect("appended");
        assert_eq!(opened.log.sync().expect("synced").0, op + 1);
    }
    scratch
}

fn last_op(scratch: &Scratch) -> u64 {
    open(scratch.path()).recovered.log.last().op.0
}

#[test]
fn a_life_after_another() {
    let scratch = Scratch::new("lives");
    create(scratch.path());
    let first = open(scratch.path());
    assert_eq!(first.recovered.trust, Trust::New);
    assert_eq!(first.identity.incarnation.0, 1);
    drop(first);
    let mut second = open(scratch.path());
    assert_eq!(second.recovered.trust, Trust::Intact);
    assert_eq!((second.identity.incarnation.0, second.findings.len()), (2, 0));
    let next = entry(Viewstamp::default(), 256, 5000);
    second.log.append(&append(1, vec![next.clone()])).expect("longer than a segment");
    second.log.sync().expect("synced");
    drop(second);
    let third = open(scratch.path());
    assert_eq!(third.recovered.log.get(OpNumber(1)), Some(&next));
    assert_eq!(third.recovered.trust, Trust::Intact);
}

#[test]
fn one_process_at_a_time() {
    let scratch = Scratch::new("lock");
    create(scratch.path());
    let opened = open(scratch.path());
    let refused = Directory::open(scratch.path(), SMALL);
    assert!(matches!(refused, Err(Error::Locked(_))), "{refused:?}");
    drop(opened);
    open(scratch.path());
    let again = Directory::create(scratch.path(), &format(Durability::Sync, Trust::New));
    assert!(matches!(again, Err(Error::AlreadyFormatted(_))));
    let nothing = Directory::open(&scratch.path().join("log"), SMALL);
    assert!(matches!(nothing, Err(Error::NotFormatted(_))));
}

#[test]
fn a_replacement_is_lost_until_it_has_recovered() {
    let scratch = Scratch::new("replacement");
    Directory::create(scratch.path(), &format(Durability::Sync, Trust::Lost)).expect("formatted");
    assert_eq!(open(scratch.path()).recovered.trust, Trust::Lost);
    let opened = open(scratch.path());
    assert_eq!(opened.recovered.trust, Trust::Lost);
    opened.directory.mark_recovered().expect("recorded");
    drop(opened);
    assert_eq!(open(scratch.path()).recovered.trust, Trust::Intact);
}

#[test]
fn what_was_not_synced_may_go_at_any_byte() {
    let scratch = filled("torn", 3);
    let path = scratch.segment(1);
    let whole = std::fs::read(&path).expect("read");
    // The last record: a header of 32 bytes and the entry.
    let end = whole.iter().rposition(|&byte| byte != 0).expect("records") + 1;
    let start = end - 140;
    for cut in start..end {
        let fresh = filled("torn", 3);
        let mut torn = whole.clone();
        torn[cut..].fill(0);
        std::fs::write(fresh.segment(1), &torn).expect("written");
        let opened = open(fresh.path());
        assert_eq!(opened.recovered.trust, Trust::Intact, "cut at {cut}");
        assert!(opened.recovered.log.last().op.0 >= 2, "cut at {cut}");
        assert_eq!(opened.recovered.view, View(256));
        drop(opened);
        // And once more: the tail is gone for good.
        let opened = open(fresh.path());
        assert_eq!((opened.recovered.trust, opened.findings.len()), (Trust::Intact, 0));
    }
}

#[test]
fn a_file_cut_short_is_a_torn_tail() {
    let scratch = filled("short", 3);
    let path = scratch.segment(1);
    let whole = std::fs::read(&path).expect("read");
    let end = whole.iter().rposition(|&byte| byte != 0).expect("records");
    let file = std::fs::OpenOptions::new().write(true).open(&path).expect("opened");
    file.set_len(end as u64).expect("cut");
    let opened = open(scratch.path());
    assert_eq!(opened.recovered.trust, Trust::Intact);
    assert_eq!(opened.recovered.log.last(), vs(256, 2));
    assert!(matches!(opened.findings[..], [Finding::TornTail { .. }]), "{:?}", opened.findings);
}

#[test]
fn a_flipped_bit_below_the_tail_is_a_loss() {
    let length = {
        let scratch = filled("flip", 3);
        let whole = std::fs::read(scratch.segment(1)).expect("read");
        whole.iter().rposition(|&byte| byte != 0).expect("records") + 1
    };
    // Everything below the last record's group is proved to be on disk by the last record.
    for at in (0..length - 160).step_by(3) {
        let scratch = filled("flip", 3);
        let path = scratch.segment(1);
        let mut bytes = std::fs::read(&path).expect("read");
        bytes[at] ^= 1 << (at % 8);
        std::fs::write(&path, &bytes).expect("written");
        let opened = open(scratch.path());
        // Padding between records is not covered; a flip there is harmless.
        if opened.recovered.log.last() == vs(256, 3) {
            assert_eq!(opened.recovered.trust, Trust::Intact);
            continue;
        }
        assert_eq!(opened.recovered.trust, Trust::Lost, "flip at {at}");
        let found = |finding: &Finding| {
            matches!(finding, Finding::CorruptLog { path: named, offset }
                if *named == path && *offset <= at as u64)
        };
        assert!(opened.findings.iter().any(found), "flip at {at}: {:?}", opened.findings);
        assert_eq!(opened.recovered.view.0 % 256, 0);
        let kept = opened.recovered.log.last();
        drop(opened);
        // It stays lost, without the damage being found again, until it is recorded as recovered.
        let opened = open(scratch.path());
        assert_eq!(opened.recovered.trust, Trust::Lost);
        assert_eq!(opened.recovered.log.last(), kept);
        assert!(opened.findings.is_empty(), "{:?}", opened.findings);
    }
}

#[test]
fn a_settled_log_proves_its_tail() {
    let scratch = filled("settled", 1);
    let mut opened = open(scratch.path());
    let next = entry(vs(256, 1), 256, 20);
    opened.log.append(&append(1, vec![next])).expect("appended");
    opened.log.settle().expect("settled");
    opened.log.settle().expect("nothing to do");
    drop(opened);
    let path = scratch.segment(2);
    let mut bytes = std::fs::read(&path).expect("read");
    bytes[100] ^= 1; // in the last batch
    std::fs::write(&path, &bytes).expect("written");
    assert_eq!(open(scratch.path()).recovered.trust, Trust::Lost);
}

#[test]
fn a_missing_segment_is_a_loss() {
    for missing in 1..=4 {
        let scratch = filled("missing", 90);
        let ids = (1..).take_while(|&id| scratch.segment(id).exists()).count() as u64;
        assert!(ids >= 4, "{ids} segments");
        drop(open(scratch.path())); // the next life begins the last segment
        let missing = if missing == 4 { ids + 1 } else { missing };
        std::fs::remove_file(scratch.segment(missing)).expect("removed");
        let opened = open(scratch.path());
        assert_eq!(opened.recovered.trust, Trust::Lost, "segment {missing}");
        assert!(!opened.findings.is_empty());
    }
}

#[test]
fn trimmed_segments_go_once_a_checkpoint_covers_them() {
    let scratch = filled("trim", 90);
    let mut opened = open(scratch.path());
    let trim = |log: &mut io::LogWriter, op: u64| {
        log.append(&StoreBatch { trim: Some(OpNumber(op)), ..batch(op) }).expect("appended");
        log.sync().expect("synced");
    };
    trim(&mut opened.log, 80);
    assert!(scratch.segment(1).exists(), "no checkpoint covers it");
    checkpoint(&opened.directory, vs(256, 85));
    trim(&mut opened.log, 85);
    assert!(!scratch.segment(1).exists() && !scratch.segment(2).exists());
    drop(opened);
    let opened = open(scratch.path());
    assert_eq!((opened.recovered.trust, opened.findings.len()), (Trust::Intact, 0));
    assert_eq!(opened.recovered.checkpoint, Some(vs(256, 85)));
    assert_eq!(opened.recovered.log.base(), vs(256, 85));
    assert_eq!(opened.recovered.log.last(), vs(256, 90));
    drop(opened);
    // Without the checkpoint there is a gap, and no start over it.
    let name = format!("checkpoint-{:016x}-{:016x}", 256, 85);
    std::fs::remove_file(scratch.path().join(name)).expect("removed");
    let opened = open(scratch.path());
    assert_eq!(opened.recovered.trust, Trust::Lost);
    assert!(matches!(opened.findings[..], [Finding::Gap { .. }]), "{:?}", opened.findings);
    assert_eq!(opened.recovered.log.last(), Viewstamp::default());
}

#[test]
fn a_checkpoint_overtakes_the_log() {
    let scratch = filled("overtaken", 5);
    let opened = open(scratch.path());
    checkpoint(&opened.directory, vs(512, 4)); // another history won
    drop(opened);
    let mut opened = open(scratch.path());
    assert_eq!(opened.recovered.trust, Trust::Intact);
    assert_eq!(opened.recovered.log.last(), vs(512, 4));
    assert_eq!(opened.recovered.view, View(512));
    assert!(matches!(opened.findings[..], [Finding::Superseded { .. }]));
    opened.log.append(&append(1, vec![entry(vs(512, 4), 512, 9)])).expect("appended");
    opened.log.sync().expect("synced");
    drop(opened);
    let opened = open(scratch.path());
    assert_eq!(opened.recovered.log.last(), vs(512, 5));
    assert!(opened.findings.is_empty(), "{:?}", opened.findings);
}

#[test]
fn memory_keeps_views_only() {
    let scratch = Scratch::new("memory");
    Directory::create(scratch.path(), &format(Durability::Memory, Trust::New)).expect("formatted");
    let mut opened = open(scratch.path());
    for view in 1..300 {
        let view = Some(View(view << 8));
        opened.log.append(&StoreBatch { view, ..batch(1) }).expect("appended");
        opened.log.sync().expect("synced");
    }
    checkpoint(&opened.directory, vs(256, 10));
    assert!(!scratch.segment(1).exists(), "old views are not needed");
    drop(opened);
    let opened = open(scratch.path());
    assert_eq!((opened.recovered.trust, opened.recovered.checkpoint), (Trust::Intact, None));
    assert_eq!(opened.recovered.view, View(299 << 8));
    assert!(opened.directory.read_checkpoint().expect("none").is_none());
}

#[test]
fn entries_without_a_sync_are_not_promised_but_ordered() {
    let scratch = filled("unsynced", 2);
    let mut opened = open(scratch.path());
    opened.log.append(&append(9, vec![entry(vs(256, 2), 256, 1)])).expect("appended");
    assert!(opened.log.unsynced_bytes() > 0);
    drop(opened);
    assert_eq!(last_op(&scratch), 2);
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 200, max_shrink_iters: 200, failure_persistence: None, ..Default::default()
    })]

    /// Whatever happens to the bytes, what is read back is a prefix of what was written.
    #[test]
    fn nothing_is_invented(
        changes in prop::collection::vec((1..5u64, 0..4096usize, 0..600usize, any::<u8>()), 1..4),
    ) {
        let scratch = filled("garbled", 90);
        // Whatever lies behind the last record is its normal end: files are used again. So a last
        // record (of 160 bytes) whose header is gone leaves no trace.
        let mut end_is_hit = false;
        for (id, at, length, byte) in changes {
            let path = scratch.segment(id);
            let mut bytes = std::fs::read(&path).expect("read");
            let end = (at + length).min(bytes.len());
            let used = bytes.iter().rposition(|&byte| byte != 0).map_or(0, |last| last + 1);
            end_is_hit |= !scratch.segment(id + 1).exists() && end + 160 >= used;
            bytes[at..end.max(at)].fill(byte);
            std::fs::write(&path, bytes).expect("written");
        }
        for _ in 0..2 {
            let opened = open(scratch.path());
            let mut last = Viewstamp::default();
            for found in opened.recovered.log.above(OpNumber(0)) {
                let written = entry(last, 256, 20);
                last = written.viewstamp;
                prop_assert_eq!(found, &written);
            }
            prop_assert!(last.op.0 == 90 || end_is_hit || !opened.findings.is_empty()
                || opened.recovered.trust == Trust::Lost || opened.identity.incarnation.0 > 2);
        }
    }
}
