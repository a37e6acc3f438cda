//! The service of the tests: a register that remembers how it came to its value.

use std::collections::BTreeSet;

use smr::{BadCheckpoint, Context, ReadOutcome, StateMachine};

/// A register of 64 bits. A write is the value and padding; a read is empty.
#[derive(Debug, Default)]
pub struct Register {
    pub value: u64,
    /// Over everything that was executed, in order.
    pub digest: u64,
    /// Every value that was written: each must be written once.
    pub written: BTreeSet<u64>,
    image: Vec<u8>,
}

fn chain(digest: u64, position: u64, value: u64) -> u64 {
    let mixed = (digest ^ value).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(31);
    (mixed ^ position).wrapping_mul(0xbf58_476d_1ce4_e5b9)
}

impl StateMachine for Register {
    type Undo = (u64, u64, u64);

    fn apply(&mut self, context: Context, request: &[u8], reply: &mut Vec<u8>) -> (u64, u64, u64) {
        let value = u64::from_le_bytes(request[..8].try_into().expect("a value"));
        assert!(request[8..].iter().all(|&byte| byte == value as u8), "bytes of another request");
        assert!(self.written.insert(value), "{value} was executed twice");
        reply.extend_from_slice(&self.value.to_le_bytes());
        let undo = (value, self.value, self.digest);
        self.value = value;
        self.digest = chain(self.digest, context.position.0, value);
        undo
    }

    fn undo(&mut self, (written, value, digest): (u64, u64, u64)) {
        assert!(self.written.remove(&written), "it was executed");
        self.value = value;
        self.digest = digest;
    }

    fn read(&self, _unix_ms: u64, _request: &[u8], reply: &mut Vec<u8>) -> ReadOutcome {
        reply.extend_from_slice(&self.value.to_le_bytes());
        ReadOutcome::Done
    }

    fn checkpoint_begin(&mut self) {
        self.image.clear();
        let words = [self.value, self.digest].into_iter().chain(self.written.iter().copied());
        words.for_each(|word| self.image.extend_from_slice(&word.to_le_bytes()));
    }

    fn checkpoint_next(&mut self, _budget: usize, out: &mut Vec<u8>) -> bool {
        out.append(&mut self.image);
        true
    }

    fn checkpoint_abort(&mut self) {
        self.image.clear();
    }

    fn restore_begin(&mut self) {
        *self = Register::default();
    }

    fn restore_chunk(&mut self, chunk: &[u8]) -> Result<(), BadCheckpoint> {
        let mut words = chunk
            .chunks_exact(8)
            .map(|word| u64::from_le_bytes(word.try_into().expect("eight bytes")));
        self.value = words.next().ok_or(BadCheckpoint)?;
        self.digest = words.next().ok_or(BadCheckpoint)?;
        self.written = words.collect();
        Ok(())
    }
}
