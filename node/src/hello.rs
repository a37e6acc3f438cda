//! What two processes say first on a connection, so that replicas of different groups, sizes or
//! durabilities are never mixed up.
//!
//! A hello's payload: replicas u8, durability u8 (0 memory, 1 sync, 2 lazy), then the address for clients.
//! An empty payload comes from somebody who is no replica and only asks which group this is.

use std::io::{self, Read, Write};
use std::time::Duration;

use smr::{Durability, GroupId, Identity, Incarnation};
use wire::{Frame, FrameReader, Header, Kind, NO_REPLICA, encode_frame};

use crate::dial::connect;

/// The longest hello, in bytes.
pub(crate) const LIMIT: usize = 1024;
const PATIENCE: Duration = Duration::from_millis(1000);

/// Who a replica says it is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Hello {
    pub identity: Identity,
    pub replicas: u8,
    pub durability: Durability,
    pub clients: String,
}

impl Hello {
    pub fn encode(&self, out: &mut Vec<u8>) {
        let Identity { group, replica, incarnation } = self.identity;
        let header = Header { kind: Kind::Hello, group, from: replica, incarnation };
        let payload = |out: &mut Vec<u8>| {
            out.push(self.replicas);
            out.push(self.durability as u8);
            out.extend_from_slice(&self.clients.as_bytes()[..self.clients.len().min(LIMIT / 2)]);
        };
        encode_frame(out, &header, payload).expect("a hello is short");
    }

    /// `None` for bytes that are no replica's hello.
    pub fn decode(frame: &Frame) -> Option<Hello> {
        let Header { kind, group, from, incarnation } = frame.header;
        let [replicas, durability, clients @ ..] = &frame.payload[..] else {
            return None;
        };
        if kind != Kind::Hello || from == NO_REPLICA {
            return None;
        }
        Some(Hello {
            identity: Identity { group, replica: from, incarnation },
            replicas: *replicas,
            durability: Durability::from_u8(*durability)?,
            clients: String::from_utf8_lossy(clients).into_owned(),
        })
    }
}

/// Asks the replica at `address` which group it belongs to.
pub(crate) fn ask_group(address: &str) -> io::Result<Hello> {
    let mut stream = connect(address)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    let header = Header {
        kind: Kind::Hello,
        group: GroupId(0),
        from: NO_REPLICA,
        incarnation: Incarnation(0),
    };
    let mut question = Vec::new();
    encode_frame(&mut question, &header, |_| {}).expect("it is empty");
    stream.write_all(&question)?;
    read_hello(&mut stream)
}

fn read_hello(stream: &mut impl Read) -> io::Result<Hello> {
    let mut reader = FrameReader::new(LIMIT);
    loop {
        if let Some(frame) = reader.next_frame().map_err(io::Error::other)? {
            return Hello::decode(&frame).ok_or_else(|| io::Error::other("no hello"));
        }
        if reader.fill(stream)? == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use smr::ReplicaId;

    #[test]
    fn a_hello_survives_its_bytes() {
        let identity =
            Identity { group: GroupId(7), replica: ReplicaId(2), incarnation: Incarnation(3) };
        let clients = "127.0.0.1:7402".to_owned();
        let hello = Hello { identity, replicas: 3, durability: Durability::Sync, clients };
        let mut bytes = Vec::new();
        hello.encode(&mut bytes);
        assert_eq!(read_hello(&mut &bytes[..]).expect("it is whole"), hello);
    }
}
