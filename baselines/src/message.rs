//! What replicas say to each other and to clients, and its bytes.

use alloc::sync::Arc;
use alloc::vec::Vec;
use bytes::Bytes;

use smr::codec::{Malformed, Reader, Writer};
use smr::{Content, Entry, OpNumber, Outcome, ReplicaId, View};

use crate::prefix::{Digest, Vote};

/// What is said between replicas.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Message {
    /// SYNC, from a view's leader, which also shows that it lives: how far its log is decided.
    /// Everybody answers how far its own goes.
    Sync {
        /// The view.
        view: View,
        /// The last operation that is decided, and the digest there.
        commit: (OpNumber, Digest),
        /// All replicas know that what is up to here is decided.
        known: OpNumber,
    },
    /// To the view's leader: this is where the sender's log stands.
    Accepted {
        /// The view.
        view: View,
        /// A place,
        op: OpNumber,
        /// and the digest there.
        digest: Digest,
        /// What the sender knows to be decided.
        commit: OpNumber,
    },
    /// From who is to lead a view: join it.
    ViewChangeReq {
        /// The view.
        view: View,
        /// What the sender knows to be decided, and the digest there.
        commit: (OpNumber, Digest),
    },
    /// A vote, for the leader of a view to come.
    ViewChange {
        /// The view.
        view: View,
        /// What the sender holds.
        vote: Vote,
    },
    /// From a view's leader: its log.
    StartView {
        /// The view.
        view: View,
        /// The view began with the log up to here.
        started: OpNumber,
        /// What is decided.
        commit: OpNumber,
        /// The log follows on this place,
        base: OpNumber,
        /// which has this digest.
        digest: Digest,
        /// The log.
        entries: Vec<Arc<Entry>>,
    },
    /// To a view's leader: the sender needs its log.
    AskView {
        /// From here on.
        commit: OpNumber,
    },
}

/// The least an operation takes.
const ENTRY_BYTES: usize = 57;

fn encode_place(place: &(OpNumber, Digest), out: &mut Writer<'_>) {
    out.u64(place.0.0);
    encode_digest(&place.1, out);
}

fn encode_digest(digest: &Digest, out: &mut Writer<'_>) {
    digest.iter().for_each(|&byte| out.u8(byte));
}

fn encode_entries(entries: &[Arc<Entry>], out: &mut Writer<'_>) {
    out.u32(entries.len() as u32);
    entries.iter().for_each(|entry| entry.encode(out));
}

fn decode_digest(from: &mut Reader) -> Result<Digest, Malformed> {
    let mut digest = Digest::default();
    for part in digest.chunks_exact_mut(8) {
        part.copy_from_slice(&from.u64()?.to_le_bytes());
    }
    Ok(digest)
}

fn decode_place(from: &mut Reader) -> Result<(OpNumber, Digest), Malformed> {
    Ok((from.op()?, decode_digest(from)?))
}

fn decode_entries(from: &mut Reader) -> Result<Vec<Arc<Entry>>, Malformed> {
    let entry = |from: &mut Reader| {
        let entry = Entry::decode(from)?;
        match &entry.content {
            Content::Batch { requests, .. } if requests.len() == 1 => Ok(Arc::new(entry)),
            _ => Err(Malformed),
        }
    };
    let entries: Vec<_> =
        (0..from.count(ENTRY_BYTES)?).map(|_| entry(from)).collect::<Result<_, _>>()?;
    let follows = |pair: &[Arc<Entry>]| pair[1].previous == pair[0].viewstamp;
    if entries.windows(2).all(follows) { Ok(entries) } else { Err(Malformed) }
}

impl Message {
    /// Appends the message.
    pub fn encode(&self, out: &mut Vec<u8>) {
        let out = &mut Writer::new(out);
        match self {
            Message::Sync { view, commit, known } => {
                out.u8(0);
                out.u64(view.0);
                encode_place(commit, out);
                out.u64(known.0);
            }
            Message::Accepted { view, op, digest, commit } => {
                out.u8(1);
                [view.0, op.0, commit.0].into_iter().for_each(|number| out.u64(number));
                encode_digest(digest, out);
            }
            Message::ViewChangeReq { view, commit } => {
                out.u8(2);
                out.u64(view.0);
                encode_place(commit, out);
            }
            Message::ViewChange { view, vote } => {
                out.u8(3);
                out.u64(view.0);
                out.u64(vote.last_normal.0);
                out.u64(vote.started.0);
                encode_entries(&vote.entries, out);
            }
            Message::StartView { view, started, commit, base, digest, entries } => {
                out.u8(4);
                [view.0, started.0, commit.0, base.0].into_iter().for_each(|n| out.u64(n));
                encode_digest(digest, out);
                encode_entries(entries, out);
            }
            Message::AskView { commit } => {
                out.u8(5);
                out.u64(commit.0);
            }
        }
    }

    /// Reads a whole message.
    ///
    /// # Errors
    /// If the bytes are none.
    pub fn decode(bytes: Bytes) -> Result<Message, Malformed> {
        let from = &mut Reader::new(bytes);
        let message = match from.u8()? {
            0 => {
                Message::Sync { view: from.view()?, commit: decode_place(from)?, known: from.op()? }
            }
            1 => {
                let (view, op, commit) = (from.view()?, from.op()?, from.op()?);
                Message::Accepted { view, op, digest: decode_digest(from)?, commit }
            }
            2 => Message::ViewChangeReq { view: from.view()?, commit: decode_place(from)? },
            3 => {
                let (view, last_normal, started) = (from.view()?, from.view()?, from.op()?);
                let vote = Vote { last_normal, started, entries: decode_entries(from)? };
                Message::ViewChange { view, vote }
            }
            4 => Message::StartView {
                view: from.view()?,
                started: from.op()?,
                commit: from.op()?,
                base: from.op()?,
                digest: decode_digest(from)?,
                entries: decode_entries(from)?,
            },
            5 => Message::AskView { commit: from.op()? },
            _ => return Err(Malformed),
        };
        if from.remaining() == 0 { Ok(message) } else { Err(Malformed) }
    }
}

/// What a replica answers to a client.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reply {
    /// Who says so.
    pub from: ReplicaId,
    /// Whether the request is decided. Otherwise the client decides, by counting replies.
    pub committed: bool,
    /// What stands for the log up to the request's place.
    pub digest: Digest,
    /// View, place and result.
    pub reply: smr::Reply,
}

impl Reply {
    /// Appends the reply.
    pub fn encode(&self, out: &mut Vec<u8>) {
        let mut writer = Writer::new(out);
        writer.u8(self.from.0);
        writer.u8(u8::from(self.committed));
        encode_digest(&self.digest, &mut writer);
        self.reply.encode(out);
    }

    /// Reads a whole reply.
    ///
    /// # Errors
    /// If the bytes are none.
    pub fn decode(bytes: Bytes) -> Result<Reply, Malformed> {
        let from = &mut Reader::new(bytes.clone());
        let (id, committed, digest) = (from.replica()?, from.u8()? == 1, decode_digest(from)?);
        let reply = smr::Reply::decode(bytes.slice(bytes.len() - from.remaining()..))?;
        if id.0 >= smr::MAX_REPLICAS || matches!(reply.outcome, Outcome::MustLog) {
            return Err(Malformed);
        }
        Ok(Reply { from: id, committed, digest, reply })
    }
}
