//! Frames survive any cut of the stream, and no damage passes.

use proptest::prelude::*;
use smr::{GroupId, Incarnation, ReplicaId};
use wire::{Error, Frame, FrameReader, HEADER_BYTES, Header, Kind, MAX_PAYLOAD, encode_frame};

const KINDS: [Kind; 4] = [Kind::Hello, Kind::Replica, Kind::Client, Kind::Reply];

fn header(kind: Kind) -> Header {
    Header { kind, group: GroupId(7), from: ReplicaId(2), incarnation: Incarnation(9) }
}

fn encoded(frames: &[(usize, Vec<u8>)]) -> Vec<u8> {
    let mut out = Vec::new();
    for (kind, payload) in frames {
        encode_frame(&mut out, &header(KINDS[*kind]), |out| out.extend_from_slice(payload))
            .expect("below the limit");
    }
    out
}

/// Feeds `bytes` in pieces of the given lengths, over and over.
fn feed(bytes: &[u8], cuts: &[usize], limit: usize) -> Result<Vec<Frame>, Error> {
    let (mut reader, mut frames, mut rest) = (FrameReader::new(limit), Vec::new(), bytes);
    let mut cuts = cuts.iter().cycle();
    while !rest.is_empty() {
        let space = reader.space();
        let count = (*cuts.next().expect("cycled")).min(rest.len()).min(space.len()).max(1);
        space[..count].copy_from_slice(&rest[..count]);
        reader.received(count);
        rest = &rest[count..];
        while let Some(frame) = reader.next_frame()? {
            frames.push(frame);
        }
    }
    Ok(frames)
}

fn frames() -> impl Strategy<Value = Vec<(usize, Vec<u8>)>> {
    let length = prop_oneof![4 => 0..200usize, 1 => 0..100_000usize];
    let payload = length.prop_map(|length| (0..length).map(|i| i as u8).collect());
    prop::collection::vec((0..KINDS.len(), payload), 1..12)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(128))]

    #[test]
    fn any_cut_gives_the_same_frames(
        frames in frames(),
        cuts in prop::collection::vec(1..70_000usize, 1..6),
    ) {
        let got = feed(&encoded(&frames), &cuts, MAX_PAYLOAD).expect("sound");
        prop_assert_eq!(got.len(), frames.len());
        for (got, (kind, payload)) in got.iter().zip(&frames) {
            prop_assert_eq!(got.header, header(KINDS[*kind]));
            prop_assert_eq!(&got.payload[..], &payload[..]);
        }
    }

    #[test]
    fn arbitrary_bytes_never_panic(
        bytes in prop::collection::vec(any::<u8>(), 0..4096),
        good_start in any::<bool>(),
    ) {
        let mut stream = if good_start { encoded(&[(1, vec![1, 2, 3])]) } else { Vec::new() };
        stream.extend_from_slice(&bytes);
        let _ = feed(&stream, &[1, 7, 4096], 1 << 20);
    }
}

#[test]
fn every_flipped_bit_is_noticed() {
    let stream = encoded(&[(1, (0..50).collect()), (2, vec![])]);
    for bit in 0..stream.len() * 8 {
        let mut damaged = stream.clone();
        damaged[bit / 8] ^= 1 << (bit % 8);
        feed(&damaged, &[usize::MAX], MAX_PAYLOAD).expect_err("a flipped bit must not pass");
    }
}

#[test]
fn every_single_byte_cut() {
    let stream = encoded(&[(1, (0..50).collect()), (2, vec![]), (3, vec![1])]);
    assert_eq!(feed(&stream, &[1], MAX_PAYLOAD).expect("sound").len(), 3);
}

#[test]
fn errors_name_the_trouble_and_stay() {
    let mut reader = FrameReader::new(64);
    let mut http: &[u8] = b"GET / HTTP/1.1\r\nHost: localhost\r\nAccept: */*\r\n\r\n";
    while reader.fill(&mut http).expect("memory") > 0 {}
    assert_eq!(reader.next_frame(), Err(Error::BadMagic(*b"GET ")));
    assert_eq!(reader.next_frame(), Err(Error::BadMagic(*b"GET ")));

    let mut other = encoded(&[(0, vec![])]);
    other[4] = 9;
    assert_eq!(feed(&other, &[36], 64), Err(Error::Version(9)));

    let long = encoded(&[(0, vec![0; 65])]);
    assert_eq!(feed(&long, &[36], 64), Err(Error::TooLong { length: 65, limit: 64 }));
}

#[test]
fn a_payload_over_the_limit_is_not_sent() {
    let mut out = vec![1, 2, 3];
    let result = encode_frame(&mut out, &header(Kind::Client), |out| {
        out.resize(3 + HEADER_BYTES + MAX_PAYLOAD + 1, 0);
    });
    assert!(matches!(result, Err(Error::TooLong { .. })));
    assert_eq!(out, [1, 2, 3]);
}

/// A header that announces the limit makes the reader allocate that, and no more.
#[test]
fn the_buffer_is_bounded() {
    let limit = 1 << 20;
    let stream = encoded(&[(1, vec![5; limit])]);
    let mut reader = FrameReader::new(limit);
    let mut rest = &stream[..];
    while !rest.is_empty() {
        let space = reader.space();
        assert!(!space.is_empty() && space.len() <= limit + HEADER_BYTES + (64 << 10));
        let count = space.len().min(rest.len());
        space[..count].copy_from_slice(&rest[..count]);
        reader.received(count);
        rest = &rest[count..];
        if !rest.is_empty() {
            assert_eq!(reader.next_frame(), Ok(None));
        }
    }
    assert_eq!(reader.next_frame().expect("sound").expect("whole").payload.len(), limit);
}
