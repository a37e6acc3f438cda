//! Any bytes as a checkpoint's chunks: an error or a state, never a panic.
#![no_main]

use libfuzzer_sys::fuzz_target;
use smr::StateMachine;

fuzz_target!(|data: &[u8]| {
    let mut store = kv::Store::default();
    store.restore_begin();
    for chunk in data.chunks(97) {
        if store.restore_chunk(chunk).is_err() {
            return;
        }
    }
});
