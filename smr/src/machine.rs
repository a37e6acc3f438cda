//! What a service must be to be replicated: deterministic, undoable, able to write itself out while
//! it goes on.

use alloc::vec::Vec;

use crate::ids::OpNumber;

/// What a request's execution may depend on beside the state and the request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Context {
    /// The operation being executed. Several requests may share it.
    pub position: OpNumber,
    /// The request's place in its operation.
    pub index: u32,
    /// The group's time in milliseconds since 1970: the primary's wall clock, never going back.
    pub unix_ms: u64,
}

/// What became of a read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReadOutcome {
    /// The answer is complete.
    Done,
    /// The read found something whose change must be ordered first (an expired key): it must be
    /// sent through the log. What was appended to the reply is dropped.
    MustLog,
}

/// The bytes are not a checkpoint of this service.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BadCheckpoint;

/// A deterministic service. Replicas that apply the same requests in the same contexts give the
/// same replies and hold the same state, on every machine.
pub trait StateMachine {
    /// What it takes to undo one request: pre-images, not an inverse command.
    type Undo;

    /// Executes a request and appends its answer to `reply`. Any bytes are a valid request: what
    /// makes no sense gets an error as its answer.
    fn apply(&mut self, context: Context, request: &[u8], reply: &mut Vec<u8>) -> Self::Undo;

    /// Takes back the most recent request that has not been taken back.
    fn undo(&mut self, undo: Self::Undo);

    /// Answers a read-only request at time `unix_ms`, which is not below the time of the last
    /// request applied.
    fn read(&self, unix_ms: u64, request: &[u8], reply: &mut Vec<u8>) -> ReadOutcome;

    /// A request that the primary should submit on its own account once the time (milliseconds
    /// since 1970) has come, such as the removal of expired keys.
    fn wakeup(&self) -> Option<u64> {
        None
    }

    /// The body of the request that [`StateMachine::wakeup`] asks for.
    fn wakeup_request(&self) -> Vec<u8> {
        Vec::new()
    }

    /// Starts a checkpoint of the state as it is now. Later requests must not show in it.
    fn checkpoint_begin(&mut self);

    /// Appends about `budget` bytes of the checkpoint to `out` as one self-contained chunk; returns
    /// whether it was the last. Requests, undos and reads may come between calls.
    fn checkpoint_next(&mut self, budget: usize, out: &mut Vec<u8>) -> bool;

    /// Gives the checkpoint up.
    fn checkpoint_abort(&mut self);

    /// Drops all state and expects chunks.
    fn restore_begin(&mut self);

    /// Takes the next chunk, just as [`StateMachine::checkpoint_next`] made it.
    ///
    /// # Errors
    /// If the chunk makes no sense; the state is then undefined until the next `restore_begin`.
    fn restore_chunk(&mut self, chunk: &[u8]) -> Result<(), BadCheckpoint>;
}
