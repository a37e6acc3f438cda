//! Any bytes from a peer: frames or an error, never a panic, never memory beyond the limit.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    let mut reader = wire::FrameReader::new(1 << 16);
    let mut rest = data;
    while !rest.is_empty() {
        let space = reader.space();
        let taken = space.len().min(rest.len());
        space[..taken].copy_from_slice(&rest[..taken]);
        reader.received(taken);
        rest = &rest[taken..];
        loop {
            match reader.next_frame() {
                Ok(Some(frame)) => {
                    assert!(frame.payload.len() <= 1 << 16);
                    let _ = wire::Greeting::decode(&frame);
                }
                Ok(None) => break,
                Err(_) => return,
            }
        }
    }
});
