//! A disk for tests that can lose power: a FUSE file system in memory that keeps two images, what
//! was written and what was synced.
//!
//! fsync and fdatasync of a file (and writes to one opened with `O_SYNC` or `O_DSYNC`) bring its
//! bytes and length over; fsync of a directory brings over its creations, renames and removals. A
//! test then drops the rest, as a power cut would, or tears it, or makes syncs fail, stall, or run
//! out of space. POSIX is taken at its word: a file whose directory was not synced is gone.
//!
//! Nothing is cached by the kernel (all files are `FOPEN_DIRECT_IO`), so what a test reads after a
//! fault is what the disk would hold. Shared writable `mmap` does not work on such files.
//! Deliberately absent: links, permissions, times, extended attributes.
#![forbid(unsafe_code)]

mod command;
mod disk;
mod file;
mod folder;
mod fs;
mod mount;

pub use command::{CONTROL_FILE, Command, UnknownCommand};
pub use mount::{FaultDisk, Unavailable};
