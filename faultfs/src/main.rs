//! A FUSE file system for tests that drops unsynced bytes when told to.

fn main() {}
