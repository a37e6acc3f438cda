//! The atomics of the tree: the standard ones, or loom's when its model checker runs.

#[cfg(loom)]
pub(crate) use loom::{
    sync::atomic::{AtomicPtr, AtomicU8, AtomicU32, AtomicU64, Ordering},
    thread::yield_now,
};
#[cfg(not(loom))]
pub(crate) use std::{
    sync::atomic::{AtomicPtr, AtomicU8, AtomicU32, AtomicU64, Ordering},
    thread::yield_now,
};
