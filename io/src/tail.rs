//! The end of a file that is being written: whole blocks, aligned in memory as well, so that they
//! go past the page cache (`O_DIRECT`). The last block is written again with what follows in it;
//! what it held before stays as it was, so a torn write takes nothing that was synced.
//!
//! Past the cache, since the log is not read before the next start: with three replicas of 1 KiB
//! puts on one disk the cache took a third of the time that the log's threads had, and the
//! processor's own caches from everything else.

use std::fs::File;
use std::os::unix::fs::FileExt;

/// Bytes of a block: a multiple of every disk's own.
pub(crate) const BLOCK: usize = 4096;

/// Bytes at the end of a file, the first of them at the beginning of a block.
#[derive(Debug)]
pub(crate) struct Tail {
    /// `skew` bytes of no meaning, then the tail.
    bytes: Vec<u8>,
    skew: usize,
    /// How much of the tail was written before.
    written: usize,
    capacity: usize,
}

impl Tail {
    /// An empty one that holds `capacity` bytes without being moved.
    pub(crate) fn new(capacity: usize) -> Tail {
        let mut bytes: Vec<u8> = Vec::with_capacity(capacity + 2 * BLOCK);
        let skew = bytes.as_ptr().align_offset(BLOCK);
        // Records are aligned to 8 bytes from the buffer's beginning.
        assert!(skew.is_multiple_of(8), "an allocator aligns that well");
        bytes.resize(skew, 0);
        Tail { bytes, skew, written: 0, capacity }
    }

    /// Where records are appended, and sealed.
    pub(crate) fn buffer(&mut self) -> &mut Vec<u8> {
        &mut self.bytes
    }

    /// How many bytes the tail has.
    pub(crate) fn len(&self) -> usize {
        self.bytes.len() - self.skew
    }

    /// How many of them were not written before.
    pub(crate) fn unwritten(&self) -> usize {
        self.len() - self.written
    }

    /// Forgets everything: another segment begins.
    pub(crate) fn clear(&mut self) {
        self.bytes.truncate(self.skew);
        self.written = 0;
    }

    /// Writes the tail at `offset` of the file, filled up with zeros to whole blocks. Returns where
    /// the tail begins from now on: the last block, if it is not full.
    pub(crate) fn write(&mut self, file: &File, offset: u64) -> std::io::Result<u64> {
        let length = self.len();
        self.bytes.resize(self.skew + length.next_multiple_of(BLOCK), 0);
        self.realign();
        file.write_all_at(&self.bytes[self.skew..], offset)?;
        let whole = length / BLOCK * BLOCK;
        self.bytes.copy_within(self.skew + whole..self.skew + length, self.skew);
        self.bytes.truncate(self.skew + length - whole);
        self.written = length - whole;
        if self.bytes.capacity() > self.capacity + 2 * BLOCK {
            let rest = std::mem::replace(self, Tail::new(self.capacity));
            self.bytes.extend_from_slice(&rest.bytes[rest.skew..]);
            self.written = rest.written;
        }
        Ok(offset + whole as u64)
    }

    /// A buffer that had to grow was moved: its blocks may not be aligned any more.
    fn realign(&mut self) {
        let skew = self.bytes.as_ptr().align_offset(BLOCK);
        if skew == self.skew {
            return;
        }
        let mut aligned = Tail::new(self.len());
        aligned.bytes.extend_from_slice(&self.bytes[self.skew..]);
        (self.bytes, self.skew) = (aligned.bytes, aligned.skew);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Writes pieces of these lengths one after the other, as a log does; the file must hold them.
    fn write_all(lengths: &[usize]) {
        let path = std::env::temp_dir().join(format!("io-tail-{}", std::process::id()));
        let file = File::options().read(true).write(true).create(true).truncate(true).open(&path);
        let file = file.expect("a writable directory");
        std::fs::remove_file(&path).expect("it is there");
        let (mut tail, mut offset, mut expected) = (Tail::new(BLOCK), 0, Vec::new());
        for (index, &length) in lengths.iter().enumerate() {
            let piece = vec![index as u8 + 1; length];
            tail.buffer().extend_from_slice(&piece);
            expected.extend_from_slice(&piece);
            assert_eq!(tail.unwritten(), length);
            offset = tail.write(&file, offset).expect("written");
            assert_eq!(offset as usize + tail.len(), expected.len());
            assert!(offset.is_multiple_of(BLOCK as u64) && tail.len() < BLOCK);
            assert_eq!(tail.bytes.as_ptr().align_offset(BLOCK), tail.skew);
        }
        let mut held = vec![0; expected.len().next_multiple_of(BLOCK)];
        file.read_exact_at(&mut held, 0).expect("whole blocks");
        expected.resize(held.len(), 0);
        assert!(held == expected, "{lengths:?}");
    }

    #[test]
    fn pieces_of_all_lengths_arrive() {
        write_all(&[8, 8, BLOCK - 16, 8, BLOCK, 2 * BLOCK + 8, 16]);
        // Beyond the capacity: the buffer moves while it is filled, and shrinks again.
        write_all(&[100 * BLOCK + 8, 8, 1000 * BLOCK, 24]);
    }
}
