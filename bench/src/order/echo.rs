//! The service of all measurements, which is the paper's: it answers a request with its own bytes.

use smr::{BadCheckpoint, Context, ReadOutcome, StateMachine};

#[derive(Debug, Default)]
pub(super) struct Echo;

impl StateMachine for Echo {
    type Undo = ();

    fn apply(&mut self, _: Context, request: &[u8], reply: &mut Vec<u8>) {
        reply.extend_from_slice(request);
    }

    fn undo(&mut self, (): ()) {}

    fn read(&self, _: u64, request: &[u8], reply: &mut Vec<u8>) -> ReadOutcome {
        reply.extend_from_slice(request);
        ReadOutcome::Done
    }

    fn checkpoint_begin(&mut self) {}

    fn checkpoint_next(&mut self, _: usize, _: &mut Vec<u8>) -> bool {
        true
    }

    fn checkpoint_abort(&mut self) {}

    fn restore_begin(&mut self) {}

    fn restore_chunk(&mut self, _: &[u8]) -> Result<(), BadCheckpoint> {
        Ok(())
    }
}
