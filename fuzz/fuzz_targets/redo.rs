//! Any bytes as a record of the single-node store's log, or a piece of its checkpoint: an error or
//! a state that can be walked and removed, never a panic.
#![no_main]

use kv::redo::{self, Change, Tree};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    let shared = kv::Shared::new(kv::Limits::default(), 0);
    let mut store = shared.store();
    for change in redo::changes(data) {
        match change {
            Ok(Change::Entry(entry)) => store.replay(&entry),
            Ok(Change::Flush) => {}
            Ok(Change::FlushAt(time)) => shared.restore_flush_at(time),
            Err(_) => return,
        }
    }
    // What was read is written again, and reads as the same.
    let (mut written, images) = (Vec::new(), shared.images());
    for tree in [Tree::Keys, Tree::Fields] {
        images.write(tree, b"", None, 1 << 30, &mut written);
    }
    let copy = kv::Shared::new(kv::Limits::default(), 0);
    let mut other = copy.store();
    for change in redo::changes(&written) {
        let Ok(Change::Entry(entry)) = change else { panic!("{change:?}") };
        other.replay(&entry);
    }
    assert_eq!(store.stats(), other.stats());
});
