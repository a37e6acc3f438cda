//! What clients and replicas say to each other, the same for every protocol that answers through
//! one replica. The unit is a gateway's batch of commands; its bytes mean something to the service
//! alone.

use alloc::vec::Vec;
use bytes::Bytes;

use crate::codec::{Malformed, Reader, Writer};
use crate::ids::{ClientId, OpNumber, RequestNumber, View, Viewstamp};

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

/// What a client sends to a replica. `expected` is the view whose log the client has seen (ev,
/// [Mao] 4.2.3): a primary of another view refuses with [`Outcome::WrongView`], so that nothing is
/// executed for a client that does not know what a crash has taken from it. View 0 expects nothing
/// (refused in durability `lazy`: the answer names the view to expect).
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ClientMessage {
    /// Order, log and execute this.
    Request {
        /// ev.
        expected: View,
        /// Whether the reply must wait until the durable point covers the request.
        durable: bool,
        /// What to execute.
        request: Request,
    },
    /// Execute this read where it is linearizable.
    Read {
        /// ev.
        expected: View,
        /// What to execute.
        request: ReadRequest,
    },
}

impl ClientMessage {
    /// Appends the message.
    pub fn encode(&self, out: &mut Vec<u8>) {
        let mut out = Writer::new(out);
        match self {
            ClientMessage::Request { expected, durable, request } => {
                out.u8(0);
                out.u64(expected.0);
                out.u8(u8::from(*durable));
                request.encode(&mut out);
            }
            ClientMessage::Read { expected, request } => {
                out.u8(1);
                out.u64(expected.0);
                out.client(request.client);
                out.u64(request.number.0);
                out.bytes(&request.body);
            }
        }
    }

    /// Reads a whole message.
    pub fn decode(bytes: Bytes) -> Result<ClientMessage, Malformed> {
        let mut from = Reader::new(bytes);
        let message = match from.u8()? {
            0 => ClientMessage::Request {
                expected: from.view()?,
                durable: from.u8()? == 1,
                request: Request::decode(&mut from)?,
            },
            1 => {
                let expected = from.view()?;
                let (client, number) = (from.client()?, from.request_number()?);
                let body = from.bytes()?;
                ClientMessage::Read { expected, request: ReadRequest { client, number, body } }
            }
            _ => return Err(Malformed),
        };
        from.finish()?;
        Ok(message)
    }

    /// Who asks.
    pub fn client(&self) -> ClientId {
        match self {
            ClientMessage::Request { request, .. } => request.client,
            ClientMessage::Read { request, .. } => request.client,
        }
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
        position: Viewstamp,
        /// The service's answer.
        body: Bytes,
    },
    /// Not executed: the primary's view is not the one that the client expects ([Mao] 4.2.3, step
    /// 1). [`Reply::view`] is the one to expect now.
    WrongView {
        /// The view that the request expected.
        expected: View,
        /// The last operation of the expected view in the primary's log: what the client has seen
        /// above it is lost. Zero if nothing of that view is known.
        kept: OpNumber,
        /// The client's last request that is in the primary's log.
        last: RequestNumber,
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
    /// The durable point that the replica knows (dp): everything that it covers survives any crash
    /// with disks intact.
    pub durable: Viewstamp,
    /// What became of it.
    pub outcome: Outcome,
}

impl Reply {
    /// Bytes that an executed request's reply takes beside the service's answer.
    pub const OVERHEAD: usize = 12 + 8 + 1 + 8 + 16 + 1 + 16 + 4;

    /// Appends the reply.
    pub fn encode(&self, out: &mut Vec<u8>) {
        let mut out = Writer::new(out);
        out.client(self.client);
        out.u64(self.number.0);
        out.u8(u8::from(self.read));
        out.u64(self.view.0);
        out.viewstamp(self.durable);
        match &self.outcome {
            Outcome::Done { position, body } => {
                out.u8(0);
                out.viewstamp(*position);
                out.bytes(body);
            }
            Outcome::WrongView { expected, kept, last } => {
                out.u8(3);
                out.u64(expected.0);
                out.u64(kept.0);
                out.u64(last.0);
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
        let (view, durable) = (from.view()?, from.viewstamp()?);
        let outcome = match from.u8()? {
            0 => Outcome::Done { position: from.viewstamp()?, body: from.bytes()? },
            1 => Outcome::MustLog,
            2 => Outcome::Refused(match from.u8()? {
                0 => Refusal::NotPrimary,
                1 => Refusal::Recovering,
                2 => Refusal::StateLost,
                3 => Refusal::OutOfOrder,
                4 => Refusal::Retired,
                _ => return Err(Malformed),
            }),
            3 => Outcome::WrongView {
                expected: from.view()?,
                kept: from.op()?,
                last: from.request_number()?,
            },
            _ => return Err(Malformed),
        };
        from.finish()?;
        Ok(Reply { client, number, read, view, durable, outcome })
    }
}
