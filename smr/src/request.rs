//! What clients and replicas say to each other, the same for every protocol that answers through
//! one replica. The unit is a gateway's batch of commands; its bytes mean something to the service
//! alone.

use alloc::vec::Vec;
use bytes::Bytes;

use crate::codec::{Malformed, Reader, Writer};
use crate::ids::{ClientId, OpNumber, RequestNumber, View};

/// The most logged requests a client may have outstanding; replies are kept for as many.
pub const MAX_OUTSTANDING: u64 = 64;

/// A batch of commands to be ordered, logged and executed once.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Request {
    /// Who asks.
    pub client: ClientId,
    /// Its number, one above the client's previous request.
    pub number: RequestNumber,
    /// The client has the replies to all requests below this one; they need not be kept.
    pub oldest_unanswered: RequestNumber,
    /// The commands.
    pub body: Bytes,
}

impl Request {
    /// Bytes that a request takes beside its body.
    pub const OVERHEAD: usize = 12 + 8 + 8 + 4;

    /// Appends the request.
    pub fn encode(&self, out: &mut Writer<'_>) {
        out.client(self.client);
        out.u64(self.number.0);
        out.u64(self.oldest_unanswered.0);
        out.bytes(&self.body);
    }

    /// Takes a request from the front.
    pub fn decode(from: &mut Reader) -> Result<Request, Malformed> {
        Ok(Request {
            client: from.client()?,
            number: from.request_number()?,
            oldest_unanswered: from.request_number()?,
            body: from.bytes()?,
        })
    }
}

/// A batch of read-only commands: linearizable, and never logged (contracts: "Reads").
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReadRequest {
    /// Who asks.
    pub client: ClientId,
    /// The client's number for this read, counted apart from its logged requests.
    pub number: RequestNumber,
    /// The commands.
    pub body: Bytes,
}

/// What a client sends to a replica.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ClientMessage {
    /// Order, log and execute this.
    Request(Request),
    /// Execute this read where it is linearizable.
    Read(ReadRequest),
}

impl ClientMessage {
    /// Appends the message.
    pub fn encode(&self, out: &mut Vec<u8>) {
        let mut out = Writer::new(out);
        match self {
            ClientMessage::Request(request) => {
                out.u8(0);
                request.encode(&mut out);
            }
            ClientMessage::Read(read) => {
                out.u8(1);
                out.client(read.client);
                out.u64(read.number.0);
                out.bytes(&read.body);
            }
        }
    }

    /// Reads a whole message.
    pub fn decode(bytes: Bytes) -> Result<ClientMessage, Malformed> {
        let mut from = Reader::new(bytes);
        let message = match from.u8()? {
            0 => ClientMessage::Request(Request::decode(&mut from)?),
            1 => ClientMessage::Read(ReadRequest {
                client: from.client()?,
                number: from.request_number()?,
                body: from.bytes()?,
            }),
            _ => return Err(Malformed),
        };
        from.finish()?;
        Ok(message)
    }
}

/// Why a replica does not take a request. The client may try again; nothing was executed by this
/// refusal, though an earlier sending of the same request may have been.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// Another replica leads, or an election is running.
    NotPrimary,
    /// The replica is catching up after a restart.
    Recovering,
    /// The group's state is gone (durability `memory` after a crash of more than f replicas).
    StateLost,
    /// The request is not the client's next one; an earlier one has not arrived here.
    OutOfOrder,
    /// A newer life of the same gateway is known: this client must stop.
    Retired,
}

/// How a request ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// Executed. `position` is the operation that did it, or for a read the last one it saw.
    Done {
        /// Where in the log.
        position: OpNumber,
        /// The service's answer.
        body: Bytes,
    },
    /// The read must go through the log (it met something, such as an expired key, whose change
    /// must be ordered): send it as a request.
    MustLog,
    /// Not taken.
    Refused(Refusal),
}

/// A replica's answer to a client.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reply {
    /// To whom.
    pub client: ClientId,
    /// To which of its requests.
    pub number: RequestNumber,
    /// Whether that was a read.
    pub read: bool,
    /// The replica's view, which names the primary it knows.
    pub view: View,
    /// What became of it.
    pub outcome: Outcome,
}

impl Reply {
    /// Appends the reply.
    pub fn encode(&self, out: &mut Vec<u8>) {
        let mut out = Writer::new(out);
        out.client(self.client);
        out.u64(self.number.0);
        out.u8(u8::from(self.read));
        out.u64(self.view.0);
        match &self.outcome {
            Outcome::Done { position, body } => {
                out.u8(0);
                out.u64(position.0);
                out.bytes(body);
            }
            Outcome::MustLog => out.u8(1),
            Outcome::Refused(refusal) => {
                out.u8(2);
                out.u8(*refusal as u8);
            }
        }
    }

    /// Reads a whole reply.
    pub fn decode(bytes: Bytes) -> Result<Reply, Malformed> {
        let mut from = Reader::new(bytes);
        let client = from.client()?;
        let number = from.request_number()?;
        let read = from.u8()? == 1;
        let view = from.view()?;
        let outcome = match from.u8()? {
            0 => Outcome::Done { position: from.op()?, body: from.bytes()? },
            1 => Outcome::MustLog,
            2 => Outcome::Refused(match from.u8()? {
                0 => Refusal::NotPrimary,
                1 => Refusal::Recovering,
                2 => Refusal::StateLost,
                3 => Refusal::OutOfOrder,
                4 => Refusal::Retired,
                _ => return Err(Malformed),
            }),
            _ => return Err(Malformed),
        };
        from.finish()?;
        Ok(Reply { client, number, read, view, outcome })
    }
}
