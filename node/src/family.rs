//! What the loop does for one protocol and not for another: their messages' codecs, their own
//! effects and events, and when there is something to look at.

use std::convert::Infallible;

use bytes::Bytes;
use mu::Change;
use smr::{ClientMessage, Host, Now, OrderedBy, Protocol, Reply, StateMachine, View};

use crate::event::Event;
use crate::face::Status;
use crate::gateway::Gateway;
use crate::poll::Poll;
use crate::replica::Effects;

/// What a replica of a family says to others.
pub(crate) type MessageOf<P> = <<P as Family>::Replica as Protocol>::Message;
/// The family's own inputs.
pub(crate) type EventOf<P> = <<P as Family>::Replica as Protocol>::Event;
/// The family's own outputs.
pub(crate) type EffectOf<P> = <<P as Family>::Replica as Protocol>::Effect;

/// What a client is told.
pub(crate) trait Told: Sized {
    /// What it says, and to whom.
    fn reply(&self) -> &Reply;

    fn encode(&self, out: &mut Vec<u8>);

    fn decode(payload: Bytes) -> Option<Self>;

    /// It has come to the gateway that asked.
    fn reach(self, gateway: &mut Gateway, now: Now);
}

/// The answer of a replica that answers for its group.
impl Told for Reply {
    fn reply(&self) -> &Reply {
        self
    }

    fn encode(&self, out: &mut Vec<u8>) {
        Reply::encode(self, out);
    }

    fn decode(payload: Bytes) -> Option<Reply> {
        Reply::decode(payload).ok()
    }

    fn reach(self, gateway: &mut Gateway, now: Now) {
        gateway.on_reply(now, self);
    }
}

/// One replica's own reply, of those that clients count.
impl Told for nopaxos::Reply {
    fn reply(&self) -> &Reply {
        &self.reply
    }

    fn encode(&self, out: &mut Vec<u8>) {
        nopaxos::Reply::encode(self, out);
    }

    fn decode(payload: Bytes) -> Option<nopaxos::Reply> {
        nopaxos::Reply::decode(payload).ok()
    }

    fn reach(self, gateway: &mut Gateway, now: Now) {
        gateway.on_vote(now, self);
    }
}

/// A protocol with all that carries its own effects and events.
pub(crate) trait Family: Sized {
    type Replica: Protocol;
    type Reply: Told;

    const ORDERED_BY: OrderedBy;
    /// Whether native clients ask replicas, and hear of troubles in the answers.
    const IS_ASKED: bool = true;
    /// A primary whose clients take turns more often than once in so many microseconds looks for
    /// that long before it sleeps.
    const EAGER: u64 = 0;

    fn encode(message: &MessageOf<Self>, out: &mut Vec<u8>);

    fn decode(payload: Bytes) -> Option<MessageOf<Self>>;

    /// Makes what a client is told of what the host answers.
    fn sign(replica: &Self::Replica, reply: Reply) -> Self::Reply;

    /// Clients have said this to this replica.
    fn ask<S: StateMachine>(
        host: &mut Host<Self::Replica, S>,
        now: Now,
        messages: impl Iterator<Item = ClientMessage>,
        effects: &mut Effects<Self>,
    ) {
        host.clients(now, messages, effects);
    }

    /// A view as operators count them.
    fn view_number(view: View) -> u64;

    /// Does what is the protocol's own; what comes of it are events. Returns what a client is to be
    /// told, if it is that.
    fn perform(&mut self, effect: EffectOf<Self>) -> Option<Self::Reply>;

    /// A client's message has come to this replica.
    fn note_asked(&mut self, _message: &ClientMessage, _now: Now) {}

    /// Sends a request of this replica's gateway to all.
    fn cast(&mut self, payload: &Bytes, now: Now);

    /// What has happened, until there is nothing more.
    fn next_event(&mut self) -> Option<EventOf<Self>>;

    /// Another thread or one of the family's own sockets has something.
    fn stir(&mut self);

    /// An operator wants another membership. Where it cannot be changed nothing happens.
    fn change(&mut self, change: Change);

    /// A turn of the loop has begun. Returns whether the protocol's timeout is to come now,
    /// whatever its deadline.
    fn begin_turn(&mut self, poll: &Poll, replica: &Self::Replica, now: Now) -> bool;

    /// When the next turn has to begin, in [`Now::micros`], beside the protocol's deadline.
    fn next_turn(&self, replica: &Self::Replica, now: Now) -> Option<u64>;

    /// Takes what operators should know.
    fn take_reports(&mut self, into: &mut Vec<Event>);

    /// Completes what operators see.
    fn describe(&self, replica: &Self::Replica, status: &mut Status);
}

/// Viewstamped replication: messages alone.
pub(crate) struct Vsr;

impl Family for Vsr {
    type Replica = vsr::Replica;
    type Reply = Reply;

    const ORDERED_BY: OrderedBy = OrderedBy::Vsr;

    fn encode(message: &vsr::Message, out: &mut Vec<u8>) {
        message.encode(out);
    }

    fn decode(payload: Bytes) -> Option<vsr::Message> {
        vsr::Message::decode(payload).ok()
    }

    fn sign(_: &vsr::Replica, reply: Reply) -> Reply {
        reply
    }

    fn view_number(view: View) -> u64 {
        view.0 >> 8
    }

    fn perform(&mut self, never: Infallible) -> Option<Reply> {
        match never {}
    }

    fn cast(&mut self, _: &Bytes, _: Now) {
        unreachable!("its gateway asks single replicas");
    }

    fn next_event(&mut self) -> Option<Infallible> {
        None
    }

    fn stir(&mut self) {}

    fn change(&mut self, _: Change) {}

    fn begin_turn(&mut self, _: &Poll, _: &vsr::Replica, _: Now) -> bool {
        false
    }

    fn next_turn(&self, _: &vsr::Replica, _: Now) -> Option<u64> {
        None
    }

    fn take_reports(&mut self, _: &mut Vec<Event>) {}

    fn describe(&self, _: &vsr::Replica, _: &mut Status) {}
}
