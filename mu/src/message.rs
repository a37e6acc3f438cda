//! What replicas say to each other beside what they write: rejoining and state transfer.

use alloc::vec::Vec;
use bytes::Bytes;

use smr::codec::{Malformed, Reader, Writer};
use smr::{CheckpointChunk, OpNumber, ReplicaId, View, Viewstamp};

/// A message. Its frame carries the sender's incarnation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Message {
    /// The sender has lost its memory: take note of its new life.
    Join,
    /// Noted.
    JoinOk {
        /// Whether the sender of this has lost its own memory, too.
        recovering: bool,
        /// The view of the last operation that it has executed: it names the members.
        view: View,
    },
    /// A majority has noted the sender's new life: how far must it go to hold what its former lives
    /// helped to decide?
    Ask,
    /// The answer of a leader that has confirmed its lead since.
    Welcome {
        /// Its number.
        view: View,
        /// That far.
        through: OpNumber,
        /// The leader can bring up to date who has this.
        above: OpNumber,
        /// Whom to ask for a checkpoint.
        source: ReplicaId,
    },
    /// The leader cannot bring the receiver up to date: it must fetch a checkpoint.
    NeedState {
        /// Of this operation or a later one.
        above: OpNumber,
        /// From whom.
        source: ReplicaId,
    },
    /// Send a piece of a checkpoint.
    FetchState {
        /// Which one, once one was chosen.
        position: Option<Viewstamp>,
        /// From which byte.
        offset: u64,
        /// Of this operation or a later one.
        above: OpNumber,
    },
    /// The piece.
    StateChunk(CheckpointChunk),
    /// That checkpoint is gone: start over.
    StateGone,
    /// Somebody waits until what this leader has proposed is durable.
    Flush,
    /// The sender may have forgotten what it acknowledged (durability `lazy`): what must it hold?
    Recall,
    /// The answer of a leader, which counts no former life of the asker any more.
    Recalled {
        /// The leader's number,
        view: View,
        /// and the last operation of its log.
        through: OpNumber,
    },
}

impl Message {
    /// Appends the message.
    pub fn encode(&self, out: &mut Vec<u8>) {
        let mut out = Writer::new(out);
        match self {
            Message::Join => out.u8(0),
            Message::JoinOk { recovering, view } => {
                out.u8(1);
                out.u8(u8::from(*recovering));
                out.u64(view.0);
            }
            Message::Ask => out.u8(2),
            Message::Welcome { view, through, above, source } => {
                out.u8(3);
                out.u64(view.0);
                out.u64(through.0);
                out.u64(above.0);
                out.u8(source.0);
            }
            Message::NeedState { above, source } => {
                out.u8(4);
                out.u64(above.0);
                out.u8(source.0);
            }
            Message::FetchState { position, offset, above } => {
                out.u8(5);
                out.u8(u8::from(position.is_some()));
                out.viewstamp(position.unwrap_or_default());
                out.u64(*offset);
                out.u64(above.0);
            }
            Message::StateChunk(chunk) => {
                out.u8(6);
                out.viewstamp(chunk.position);
                out.u64(chunk.offset);
                out.u64(chunk.total);
                out.bytes(&chunk.bytes);
            }
            Message::StateGone => out.u8(7),
            Message::Flush => out.u8(8),
            Message::Recall => out.u8(9),
            Message::Recalled { view, through } => {
                out.u8(10);
                out.u64(view.0);
                out.u64(through.0);
            }
        }
    }

    /// Reads a whole message.
    ///
    /// # Errors
    /// If the bytes are none.
    pub fn decode(bytes: Bytes) -> Result<Message, Malformed> {
        let mut from = Reader::new(bytes);
        let message = match from.u8()? {
            0 => Message::Join,
            1 => Message::JoinOk { recovering: from.u8()? == 1, view: from.view()? },
            2 => Message::Ask,
            3 => Message::Welcome {
                view: from.view()?,
                through: from.op()?,
                above: from.op()?,
                source: from.replica()?,
            },
            4 => Message::NeedState { above: from.op()?, source: from.replica()? },
            5 => {
                let is_chosen = from.u8()? == 1;
                let position = from.viewstamp()?;
                let position = is_chosen.then_some(position);
                Message::FetchState { position, offset: from.u64()?, above: from.op()? }
            }
            6 => Message::StateChunk(CheckpointChunk {
                position: from.viewstamp()?,
                offset: from.u64()?,
                total: from.u64()?,
                bytes: from.bytes()?,
            }),
            7 => Message::StateGone,
            8 => Message::Flush,
            9 => Message::Recall,
            10 => Message::Recalled { view: from.view()?, through: from.op()? },
            _ => return Err(Malformed),
        };
        from.finish()?;
        Ok(message)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_survive_their_bytes() {
        let at = Viewstamp::new(View(7), OpNumber(9));
        let chunk =
            CheckpointChunk { position: at, offset: 3, total: 9, bytes: Bytes::from_static(b"ab") };
        let (through, above, source) = (OpNumber(5), OpNumber(4), ReplicaId(2));
        for message in [
            Message::Join,
            Message::JoinOk { recovering: true, view: View(3) },
            Message::Ask,
            Message::Welcome { view: View(1), through, above, source },
            Message::NeedState { above, source },
            Message::FetchState { position: Some(at), offset: 1, above },
            Message::FetchState { position: None, offset: 0, above },
            Message::StateChunk(chunk),
            Message::StateGone,
            Message::Flush,
            Message::Recall,
            Message::Recalled { view: View(5), through },
        ] {
            let mut bytes = Vec::new();
            message.encode(&mut bytes);
            assert_eq!(Message::decode(Bytes::from(bytes)), Ok(message));
        }
    }
}
