//! Checkpoint files: damage is noticed wherever it is, and transfers arrive whole or not at all.

mod common;

use common::*;
use io::{Directory, Error, Finding};
use smr::{CheckpointChunk, Viewstamp};

const AT: Viewstamp = Viewstamp { view: smr::View(256), op: smr::OpNumber(7) };

fn file_of(scratch: &Scratch) -> std::path::PathBuf {
    scratch.path().join(format!("checkpoint-{:016x}-{:016x}", 256, 7))
}

fn pieces(directory: &Directory, length: usize) -> Vec<CheckpointChunk> {
    let mut pieces = Vec::new();
    let mut offset = 0;
    loop {
        let piece = directory.read_range(None, offset, length).expect("read").expect("there");
        offset += piece.bytes.len() as u64;
        let total = piece.total;
        pieces.push(piece);
        if offset == total {
            return pieces;
        }
    }
}

fn chunks(directory: &Directory) -> Vec<Vec<u8>> {
    let mut reader = directory.read_checkpoint().expect("opened").expect("there");
    assert_eq!(reader.position(), AT);
    std::iter::from_fn(|| reader.next_chunk().expect("sound")).collect()
}

#[test]
fn written_and_read() {
    let scratch = Scratch::new("checkpoint");
    create(scratch.path());
    let opened = open(scratch.path());
    assert!(opened.directory.read_checkpoint().expect("none").is_none());
    checkpoint(&opened.directory, vs(256, 3));
    drop(opened.directory.create_checkpoint(vs(256, 6)).expect("given up"));
    checkpoint(&opened.directory, AT);
    checkpoint(&opened.directory, vs(256, 5)); // overtaken
    assert_eq!(opened.directory.checkpoint(), Some(AT));
    assert_eq!(chunks(&opened.directory), checkpoint_chunks(AT));
    let left = std::fs::read_dir(scratch.path()).expect("listed").count();
    assert_eq!(left, 4, "lock, identity, log and one checkpoint");
    drop(opened);
    assert_eq!(chunks(&open(scratch.path()).directory), checkpoint_chunks(AT));
}

#[test]
fn a_flipped_bit_anywhere_is_noticed() {
    let scratch = Scratch::new("bitrot");
    create(scratch.path());
    checkpoint(&open(scratch.path()).directory, AT);
    let good = std::fs::read(file_of(&scratch)).expect("read");
    for at in 0..=good.len() {
        let mut bad = good.clone();
        match bad.get_mut(at) {
            Some(byte) => *byte ^= 1 << (at % 8),
            None => bad.push(0),
        }
        std::fs::write(file_of(&scratch), &bad).expect("written");
        let opened = open(scratch.path());
        assert_eq!(opened.recovered.checkpoint, None, "byte {at}");
        let found = |f: &Finding| matches!(f, Finding::DamagedCheckpoint { .. });
        assert!(opened.findings.iter().any(found), "byte {at}");
    }
    for cut in 0..good.len() {
        std::fs::write(file_of(&scratch), &good[..cut]).expect("written");
        assert_eq!(open(scratch.path()).recovered.checkpoint, None, "cut at {cut}");
    }
}

#[test]
fn a_transfer_arrives() {
    let (from, to) = (Scratch::new("from"), Scratch::new("to"));
    create(from.path());
    create(to.path());
    let (sender, receiver) = (open(from.path()), open(to.path()));
    assert!(sender.directory.read_range(None, 0, 9).expect("none").is_none());
    checkpoint(&sender.directory, AT);
    assert!(sender.directory.read_range(Some(vs(1, 1)), 0, 9).expect("other").is_none());
    let pieces = pieces(&sender.directory, 100);
    assert!(pieces.len() > 2);
    let save = |piece| receiver.directory.save_chunk(piece);
    assert!(matches!(save(&pieces[1]), Err(Error::OutOfOrder)), "not from the start");
    save(&pieces[0]).expect("saved");
    assert!(matches!(save(&pieces[2]), Err(Error::OutOfOrder)), "a piece is missing");
    pieces.iter().take(2).for_each(|piece| save(piece).expect("saved"));
    let early = receiver.directory.install_incoming(AT);
    assert!(matches!(early, Err(Error::OutOfOrder)), "{early:?}");
    pieces.iter().for_each(|piece| save(piece).expect("saved"));
    receiver.directory.install_incoming(AT).expect("installed");
    assert_eq!(chunks(&receiver.directory), checkpoint_chunks(AT));
    drop(receiver);
    assert_eq!(open(to.path()).recovered.checkpoint, Some(AT));
}

#[test]
fn a_damaged_transfer_changes_nothing() {
    let (from, to) = (Scratch::new("from"), Scratch::new("to"));
    create(from.path());
    create(to.path());
    let (sender, receiver) = (open(from.path()), open(to.path()));
    checkpoint(&sender.directory, AT);
    checkpoint(&receiver.directory, vs(256, 2));
    for piece in pieces(&sender.directory, 64) {
        let mut bytes = piece.bytes.to_vec();
        if piece.offset == 64 {
            bytes[3] ^= 4;
        }
        receiver
            .directory
            .save_chunk(&CheckpointChunk { bytes: bytes.into(), ..piece })
            .expect("saved");
    }
    let refused = receiver.directory.install_incoming(AT);
    assert!(matches!(refused, Err(Error::Damaged { .. })), "{refused:?}");
    assert_eq!(receiver.directory.checkpoint(), Some(vs(256, 2)));
    drop(receiver);
    let opened = open(to.path());
    assert_eq!(opened.recovered.checkpoint, Some(vs(256, 2)));
    assert!(!to.path().join("incoming").exists());
}
