//! The unsafe code of shared memory but for long copies (`crate::words`): a sealed memfd, mapped as
//! atomic words, and a hint to the processor about them.
//!
//! Proof: the pointer is that of a shared mapping of `len` words that lives until `drop`, and the
//! slices that are lent out live no longer than `self`. The seals forbid that anybody ever shrinks
//! the file, so that every page stays backed. Whoever else changes the words, also in other
//! processes, does so by atomic instructions (`words` is the only way in), any bits are a valid
//! word, and a fresh page is zero.

use std::ffi::c_void;
use std::os::fd::{AsFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::atomic::AtomicU64;

use rustix::fs::{MemfdFlags, SealFlags};
use rustix::mm::{Advice, MapFlags, ProtFlags};

use super::error::Error;

const WORD: usize = size_of::<AtomicU64>();
/// Words of a cache line.
const LINE: usize = 8;

pub(crate) struct Mapping {
    start: NonNull<AtomicU64>,
    len: usize,
}

// SAFETY: the mapping belongs to no thread, and shared access to it is to atomics.
unsafe impl Send for Mapping {}
// SAFETY: as above.
unsafe impl Sync for Mapping {}

impl Mapping {
    const SEALS: SealFlags = SealFlags::SHRINK.union(SealFlags::GROW).union(SealFlags::SEAL);

    /// Makes a file of `len` zero words that will never change its size.
    pub(crate) fn create(len: usize) -> Result<OwnedFd, Error> {
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        let file = rustix::fs::memfd_create("lockstep-fabric", flags)
            .map_err(|e| Error::os("create a memfd", e))?;
        rustix::fs::ftruncate(&file, (len * WORD) as u64)
            .map_err(|e| Error::os("size the memfd", e))?;
        rustix::fs::fcntl_add_seals(&file, Self::SEALS)
            .map_err(|e| Error::os("seal the memfd", e))?;
        Ok(file)
    }

    /// Maps a file that has `len` words and is sealed. All pages are there afterwards.
    pub(crate) fn new(file: impl AsFd, len: usize) -> Result<Mapping, Error> {
        let seals = rustix::fs::fcntl_get_seals(&file);
        if !seals.is_ok_and(|seals| seals.contains(Self::SEALS)) {
            return Err(Error::NotAPeer { what: "its memory is not sealed" });
        }
        let stat = rustix::fs::fstat(&file).map_err(|e| Error::os("inspect the memory", e))?;
        if u64::try_from(stat.st_size).ok() != Some((len * WORD) as u64) {
            return Err(Error::NotAPeer { what: "its memory has another size" });
        }
        let (access, flags) =
            (ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED | MapFlags::POPULATE);
        // SAFETY: the kernel chooses the address, so no memory in use is affected.
        let start =
            unsafe { rustix::mm::mmap(std::ptr::null_mut(), len * WORD, access, flags, file, 0) }
                .map_err(|e| Error::os("map the memory", e))?;
        let start = NonNull::new(start.cast()).expect("a mapping is never at zero");
        let mapping = Mapping { start, len };
        // A child that did not exec could store long after its parent's socket was closed.
        // SAFETY: the range is that of the mapping, and the advice changes nothing in this process.
        unsafe { rustix::mm::madvise(mapping.address(), len * WORD, Advice::LinuxDontFork) }
            .map_err(|e| Error::os("keep the memory from children", e))?;
        Ok(mapping)
    }

    pub(crate) fn words(&self) -> &[AtomicU64] {
        // SAFETY: see the module's proof.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.len) }
    }

    fn address(&self) -> *mut c_void {
        self.start.as_ptr().cast()
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: the range is that of the mapping, and nobody borrows it any more.
        let unmapped = unsafe { rustix::mm::munmap(self.address(), self.len * WORD) };
        assert!(unmapped.is_ok(), "a mapping can be unmapped");
    }
}

/// Has the processor fetch the lines of these words, to be stored to.
#[inline]
pub(crate) fn fetch(words: &[AtomicU64]) {
    for line in words.chunks(LINE) {
        #[cfg(target_arch = "x86_64")]
        // SAFETY: a hint, which changes neither memory nor registers nor flags, and never faults;
        // processors of this kind that have no such hint do nothing.
        unsafe {
            let line = line.as_ptr();
            std::arch::asm!(
                "prefetchw [{}]",
                in(reg) line,
                options(nostack, preserves_flags, readonly)
            );
        }
        #[cfg(not(target_arch = "x86_64"))]
        let _ = line;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_that_could_shrink_is_not_mapped() {
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        let file = rustix::fs::memfd_create("test", flags).expect("a memfd");
        rustix::fs::ftruncate(&file, 4096).expect("sized");
        assert!(matches!(Mapping::new(&file, 512), Err(Error::NotAPeer { .. })));
        let sealed = Mapping::create(512).expect("a memfd");
        rustix::fs::ftruncate(&sealed, 8).expect_err("the size is sealed");
        assert!(matches!(Mapping::new(&sealed, 513), Err(Error::NotAPeer { .. })));
        assert_eq!(Mapping::new(&sealed, 512).expect("mapped").words().len(), 512);
    }
}
