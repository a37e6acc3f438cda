//! The service of the tests: a register that says what was in it before, and remembers everything.

use std::collections::BTreeMap;

use smr::{BadCheckpoint, Context, ReadOutcome, StateMachine};

/// A register of 64 bits; a request is its next value.
#[derive(Debug, Default)]
pub struct Register {
    pub value: u64,
    /// Over everything that was executed, in order.
    pub digest: u64,
    /// Every value that was written: where, and what it found. Each must be written once.
    pub written: BTreeMap<u64, (u64, u64)>,
    image: Vec<u8>,
}

fn chain(digest: u64, position: u64, value: u64) -> u64 {
    let mixed = (digest ^ value).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(31);
    (mixed ^ position).wrapping_mul(0xbf58_476d_1ce4_e5b9)
}

impl StateMachine for Register {
    type Undo = (u64, u64, u64);

    fn apply(&mut self, context: Context, request: &[u8], reply: &mut Vec<u8>) -> Self::Undo {
        let value = u64::from_le_bytes(request[..8].try_into().expect("a value"));
        let position = context.position.0;
        let twice = self.written.insert(value, (position, self.value));
        assert!(twice.is_none(), "{value} was executed twice");
        reply.extend_from_slice(&self.value.to_le_bytes());
        let undo = (value, self.value, self.digest);
        self.value = value;
        self.digest = chain(self.digest, position, value);
        undo
    }

    fn undo(&mut self, (written, value, digest): Self::Undo) {
        assert_eq!(self.value, written, "undone in another order");
        self.written.remove(&written);
        (self.value, self.digest) = (value, digest);
    }

    fn read(&self, _unix_ms: u64, _request: &[u8], _reply: &mut Vec<u8>) -> ReadOutcome {
        panic!("reads are requests here");
    }

    fn checkpoint_begin(&mut self) {
        self.image.clear();
        let written = self.written.iter().flat_map(|(&value, &(at, found))| [value, at, found]);
        let words = [self.value, self.digest].into_iter().chain(written);
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
        let words: Vec<_> = chunk
            .chunks_exact(8)
            .map(|word| u64::from_le_bytes(word.try_into().expect("eight bytes")))
            .collect();
        let [value, digest, written @ ..] = &words[..] else { return Err(BadCheckpoint) };
        (self.value, self.digest) = (*value, *digest);
        self.written = written.chunks_exact(3).map(|w| (w[0], (w[1], w[2]))).collect();
        Ok(())
    }
}
