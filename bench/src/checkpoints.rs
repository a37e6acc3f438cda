//! Checkpoints of replicas that keep them in memory, since they have no disk.

use bytes::Bytes;
use smr::contract::{CheckpointChunk, Protocol};
use smr::executor::CheckpointStep;
use smr::{BadCheckpoint, Host, StateMachine, Viewstamp};

/// Bytes of a checkpoint in one message.
pub(crate) const PIECE: usize = 32 << 10;

/// A replica's checkpoint, and what has come of another's.
#[derive(Default)]
pub(crate) struct Checkpoints {
    /// The newest checkpoint: its chunks, each behind its length.
    checkpoint: (Viewstamp, Vec<u8>),
    saved: Vec<u8>,
}

impl Checkpoints {
    /// Takes the checkpoint that was begun; returns its length.
    pub(crate) fn write<P: Protocol, S: StateMachine>(&mut self, host: &mut Host<P, S>) -> u64 {
        let mut bytes = Vec::new();
        loop {
            match host.checkpoint_next(1 << 20) {
                CheckpointStep::Chunk(chunk) => {
                    bytes.extend_from_slice(&(chunk.len() as u64).to_le_bytes());
                    bytes.extend_from_slice(&chunk);
                }
                CheckpointStep::Done(position) => {
                    self.checkpoint = (position, bytes);
                    return self.checkpoint.1.len() as u64;
                }
            }
        }
    }

    /// A piece of the checkpoint at `position`, or of any.
    pub(crate) fn read(&self, position: Option<Viewstamp>, offset: u64) -> Option<CheckpointChunk> {
        let (held, bytes) = &self.checkpoint;
        let rest = bytes.get(usize::try_from(offset).ok()?..)?;
        (position.is_none_or(|asked| asked == *held) && !bytes.is_empty()).then(|| {
            CheckpointChunk {
                position: *held,
                offset,
                total: bytes.len() as u64,
                bytes: Bytes::copy_from_slice(&rest[..rest.len().min(PIECE)]),
            }
        })
    }

    pub(crate) fn save(&mut self, chunk: &CheckpointChunk) {
        if chunk.offset == 0 {
            self.saved.clear();
        }
        self.saved.extend_from_slice(&chunk.bytes);
    }

    /// Puts what was saved in the place of the state.
    pub(crate) fn install<P: Protocol, S: StateMachine>(
        &mut self,
        position: Viewstamp,
        host: &mut Host<P, S>,
    ) -> Result<(), BadCheckpoint> {
        let executor = host.restore();
        executor.restore_begin();
        let mut rest = &self.saved[..];
        for number in 0.. {
            let Some((length, behind)) = rest.split_first_chunk() else { break };
            let length = usize::try_from(u64::from_le_bytes(*length)).map_err(|_| BadCheckpoint)?;
            let (chunk, behind) = behind.split_at_checked(length).ok_or(BadCheckpoint)?;
            executor.restore_chunk(number, chunk)?;
            rest = behind;
        }
        self.checkpoint = (position, std::mem::take(&mut self.saved));
        Ok(())
    }
}
