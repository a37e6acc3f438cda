//! What replicas have beside shared memory: messages between them, and their checkpoints. Only who
//! has fallen behind needs them.

use std::io::ErrorKind;
use std::os::unix::net::UnixDatagram;
use std::path::PathBuf;

use anyhow::{Context as _, Result};
use bytes::Bytes;
use mu::Message;
use smr::ReplicaId;
use smr::contract::To;

use super::job::Seat;
use super::process::REPLICAS;
use crate::checkpoints::{Checkpoints, PIECE};

pub(super) struct Mail {
    me: ReplicaId,
    socket: UnixDatagram,
    folder: PathBuf,
    buffer: Vec<u8>,
    pub(super) checkpoints: Checkpoints,
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
            checkpoints: Checkpoints::default(),
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
}
