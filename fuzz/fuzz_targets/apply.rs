//! Any bytes are a request: the service answers, and undo restores what was.
#![no_main]

use libfuzzer_sys::fuzz_target;
use smr::{Context, OpNumber, StateMachine};

fuzz_target!(|data: &[u8]| {
    let mut store = kv::Store::default();
    let (mut reply, mut undone) = (Vec::new(), Vec::new());
    for (index, request) in data.chunks(64).enumerate() {
        let context = Context { position: OpNumber(1), index: index as u32, unix_ms: 1_000 };
        undone.push(store.apply(context, request, &mut reply));
        store.read(1_000, request, &mut reply);
    }
    while let Some(undo) = undone.pop() {
        store.undo(undo);
    }
    assert_eq!(store.stats().keys, 0);
});
