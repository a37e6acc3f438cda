//! What only this family of protocols has: ordered delivery, control of the receiver, and replies
//! of every replica. And the bytes that clients and replicas exchange.

use alloc::vec::Vec;
use bytes::Bytes;

use oum::{Delivery, Members, Session};
use smr::codec::{Malformed, Reader, Writer};
use smr::{Outcome, ReplicaId, Request, View};

use crate::lives::Lives;

/// What reaches a replica beside the messages of others.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// What the group's receiver delivers: a message's payload ([`Ordered`]), a drop notification,
    /// the end of a session.
    Delivery(Delivery),
    /// The controllers' word: there is this session, and these count in it. A host that has
    /// controllers does not hand on [`Delivery::Terminated`], which says that the same count.
    Session {
        /// The session.
        session: Session,
        /// Who counts.
        members: Members,
    },
    /// A request that is too long for a datagram, sent by its client before its digest is ordered.
    Body(Request),
}

/// What a replica wants beside the common outputs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Effect {
    /// Have the receiver deliver this session from this number on ([NOPaxos] figure 2).
    Listen {
        /// The session.
        session: Session,
        /// The number, from 1.
        sequence: u64,
    },
    /// Send a reply to the client that it names.
    Reply(Reply),
}

/// What is ordered of a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Content {
    /// The request.
    Whole(Request),
    /// Of a request that is too long for a datagram: all but its body, and the body's BLAKE3. A
    /// replica that has not got the body treats the message as dropped.
    Digest(Request, [u8; 32]),
}

/// The payload of an ordered message: a request, the time at its client, and what that has seen.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ordered {
    /// Milliseconds since 1970 at the client. A sequencer in a switch has no clock; the group's
    /// time is the highest that any executed request has brought.
    pub unix_ms: u64,
    /// The view whose log the client has seen ([Mao] 4.2.3); zero before it has seen any. Where
    /// acknowledged requests can be lost (durability `lazy`) the request is a NO-OP in any other
    /// view, and the client is told what the log has of its own.
    pub expected: View,
    /// The leader's reply waits until the durable point covers the request.
    pub durable: bool,
    /// What to execute.
    pub content: Content,
}

impl Ordered {
    /// The payload's bytes.
    pub fn encode(&self, out: &mut Vec<u8>) {
        let mut out = Writer::new(out);
        out.u64(self.unix_ms);
        out.u64(self.expected.0);
        out.u8(u8::from(self.durable));
        match &self.content {
            Content::Whole(request) => {
                out.u8(0);
                request.encode(&mut out);
            }
            Content::Digest(request, digest) => {
                out.u8(1);
                request.encode(&mut out);
                out.bytes(digest);
            }
        }
    }

    /// Reads a whole payload.
    ///
    /// # Errors
    /// If the bytes are none.
    pub fn decode(bytes: Bytes) -> Result<Ordered, Malformed> {
        let mut from = Reader::new(bytes);
        let (unix_ms, expected) = (from.u64()?, from.view()?);
        let durable = match from.u8()? {
            flag @ 0..=1 => flag == 1,
            _ => return Err(Malformed),
        };
        let kind = from.u8()?;
        let request = Request::decode(&mut from)?;
        let content = match kind {
            0 => Content::Whole(request),
            1 if request.body.is_empty() => {
                let digest = from.bytes()?[..].try_into().map_err(|_| Malformed)?;
                Content::Digest(request, digest)
            }
            _ => return Err(Malformed),
        };
        from.finish()?;
        Ok(Ordered { unix_ms, expected, durable, content })
    }
}

/// REPLY ([NOPaxos] 5.2.1), which every replica sends.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reply {
    /// Who says so.
    pub from: ReplicaId,
    /// Who counts in its view's session.
    pub members: Members,
    /// The lives that it knows, its own included.
    pub lives: Lives,
    /// View and slot; the result if `from` leads the view, nothing otherwise.
    pub reply: smr::Reply,
}

impl Reply {
    /// The most bytes that a reply takes beside what it carries.
    pub const OVERHEAD: usize = 2 + 4 + 8 * smr::MAX_REPLICAS as usize;

    /// Whether this is the reply of its view's leader, which carries the result.
    pub fn is_leaders(&self) -> bool {
        self.reply.view.primary() == self.from
    }

    /// Appends the reply.
    pub fn encode(&self, out: &mut Vec<u8>) {
        let mut writer = Writer::new(out);
        writer.u8(self.from.0);
        self.members.encode(&mut writer);
        self.lives.encode(&mut writer);
        self.reply.encode(out);
    }

    /// Reads a whole reply.
    ///
    /// # Errors
    /// If the bytes are none.
    pub fn decode(bytes: Bytes) -> Result<Reply, Malformed> {
        let mut from = Reader::new(bytes.clone());
        let (id, members) = (ReplicaId(from.u8()?), Members::decode(&mut from)?);
        let lives = Lives::decode(&mut from)?;
        let read = bytes.len() - from.remaining();
        let reply = smr::Reply::decode(bytes.slice(read..))?;
        if id.0 >= lives.replicas() || matches!(reply.outcome, Outcome::MustLog) {
            return Err(Malformed);
        }
        Ok(Reply { from: id, members, lives, reply })
    }
}
