//! What replicas have beside shared memory: messages between them, and their checkpoints, which
//! are in memory here. Only who has fallen behind needs them.

use std::io::ErrorKind;
use std::os::unix::net::UnixDatagram;
use std::path::PathBuf;

use anyhow::{Context as _, Result};
use bytes::Bytes;
use mu::Message;
use smr::contract::{CheckpointChunk, Protocol, To};
use smr::executor::CheckpointStep;
use smr::{BadCheckpoint, Host, ReplicaId, StateMachine, Viewstamp};

use super::job::Seat;
use super::process::REPLICAS;

/// Bytes of a checkpoint in one message.
const PIECE: usize = 32 << 10;

pub(super) struct Mail {
    me: ReplicaId,
    socket: UnixDatagram,
    folder: PathBuf,
    buffer: Vec<u8>,
    /// The newest checkpoint: its chunks, each behind its length.
    checkpoint: (Viewstamp, Vec<u8>),
    /// What has come of another replica's.
    saved: Vec<u8>,
}

impl Mail {
    pub(super) fn open(seat: &Seat) -> Result<Mail> {
        let socket = UnixDatagram::bind(seat.folder.join(format!("{}.mail", seat.id)))
            .context("cannot make a socket")?;
        socket.set_nonblocking(true)?;
        Ok(Mail {
            me: ReplicaId(seat.id),
            socket,
            folder: seat.folder.clone(),
            buffer: vec![0; 2 * PIECE],
            checkpoint: Default::default(),
            saved: Vec::new(),
        })
    }

    /// Sends a message; one that nobody takes is lost, as in a network.
    pub(super) fn send(&self, to: To, message: &Message) {
        let mut bytes = vec![self.me.0];
        message.encode(&mut bytes);
        for id in (0..REPLICAS).map(ReplicaId).filter(|&id| id != self.me) {
            if to == To::Others || to == To::One(id) {
                let _ = self.socket.send_to(&bytes, self.folder.join(format!("{}.mail", id.0)));
            }
        }
    }

    /// The next message and who sent it.
    pub(super) fn next(&mut self) -> Option<(ReplicaId, Message)> {
        let length = match self.socket.recv(&mut self.buffer) {
            Ok(length) => length,
            Err(error) if error.kind() == ErrorKind::WouldBlock => return None,
            Err(error) => panic!("cannot read messages: {error}"),
        };
        let (from, message) = self.buffer[..length].split_first()?;
        let message = Message::decode(Bytes::copy_from_slice(message));
        Some((ReplicaId(*from), message.expect("replicas speak one language")))
    }

    /// Takes the checkpoint that was begun; returns its length.
    pub(super) fn write<P: Protocol, S: StateMachine>(&mut self, host: &mut Host<P, S>) -> u64 {
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
    pub(super) fn read(&self, position: Option<Viewstamp>, offset: u64) -> Option<CheckpointChunk> {
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

    pub(super) fn save(&mut self, chunk: &CheckpointChunk) {
        if chunk.offset == 0 {
            self.saved.clear();
        }
        self.saved.extend_from_slice(&chunk.bytes);
    }

    /// Puts what was saved in the place of the state.
    pub(super) fn install<P: Protocol, S: StateMachine>(
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
