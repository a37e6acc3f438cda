//! How fast frames are made and cut apart, in memory:
//! `cargo run --release -p wire --example frames`.

use std::time::Instant;

use smr::{GroupId, Incarnation, ReplicaId};
use wire::{FrameReader, Header, Kind, MAX_PAYLOAD, encode_frame};

fn main() {
    for (payload, count) in [(100, 2_000_000), (1_000, 1_000_000), (1 << 20, 2_000)] {
        measure(payload, count);
    }
}

fn measure(payload: usize, count: usize) {
    let header = Header {
        kind: Kind::Replica,
        group: GroupId(1),
        from: ReplicaId(0),
        incarnation: Incarnation(1),
    };
    let bytes = vec![7; payload];
    let per_buffer = (256 << 10) / payload + 1;
    let (mut out, mut reader) = (Vec::new(), FrameReader::new(MAX_PAYLOAD));
    let (mut sent, mut got) = (0, 0);
    let start = Instant::now();
    while sent < count {
        out.clear();
        for _ in 0..per_buffer {
            encode_frame(&mut out, &header, |out| out.extend_from_slice(&bytes)).expect("short");
        }
        sent += per_buffer;
        let mut source = &out[..];
        while reader.fill(&mut source).expect("memory") > 0 {
            while let Some(frame) = reader.next_frame().expect("sound") {
                got += usize::from(frame.payload.len() == payload);
            }
        }
    }
    let seconds = start.elapsed().as_secs_f64();
    assert_eq!(sent, got);
    let (rate, volume) = (got as f64 / seconds, (got * payload) as f64 / seconds / 1e6);
    println!("{payload:>8} bytes: {rate:>10.0} frames/s, {volume:>7.0} MB/s, both ways");
}
