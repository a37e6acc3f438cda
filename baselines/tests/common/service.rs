//! The service of the tests: a register that says what was in it before, and remembers everything.

use std::collections::BTreeSet;

use smr::{BadCheckpoint, Context, ReadOutcome, StateMachine};

/// A register of 64 bits; a request is its next value, and no value comes twice.
#[derive(Debug, Default)]
pub struct Register {
    pub value: u64,
    /// Place, value, and the value before, of everything executed.
    pub history: Vec<(u64, u64, u64)>,
    values: BTreeSet<u64>,
}

impl StateMachine for Register {
    type Undo = ();

    fn apply(&mut self, context: Context, request: &[u8], reply: &mut Vec<u8>) {
        let value = u64::from_le_bytes(request.try_into().expect("a value"));
        assert!(self.values.insert(value), "{value} was executed twice");
        self.history.push((context.position.0, value, self.value));
        reply.extend_from_slice(&self.value.to_le_bytes());
        self.value = value;
    }

    fn undo(&mut self, (): ()) {
        let (_, value, before) = self.history.pop().expect("it was executed");
        self.values.remove(&value);
        self.value = before;
    }

    fn read(&self, _: u64, _: &[u8], _: &mut Vec<u8>) -> ReadOutcome {
        panic!("reads are requests here");
    }

    fn checkpoint_begin(&mut self) {}

    fn checkpoint_next(&mut self, _: usize, _: &mut Vec<u8>) -> bool {
        panic!("there are no checkpoints");
    }

    fn checkpoint_abort(&mut self) {}

    fn restore_begin(&mut self) {}

    fn restore_chunk(&mut self, _: &[u8]) -> Result<(), BadCheckpoint> {
        Err(BadCheckpoint)
    }
}
