//! What the loop does for one protocol and not for another: their messages' codecs, their own
//! effects and events, and when there is something to look at.

use std::convert::Infallible;

use bytes::Bytes;
use smr::{Now, OrderedBy, Protocol, View};

use crate::event::Event;
use crate::face::MemoryStatus;
use crate::poll::Poll;

/// What a replica of a family says to others.
pub(crate) type MessageOf<P> = <<P as Family>::Replica as Protocol>::Message;
/// The family's own inputs.
pub(crate) type EventOf<P> = <<P as Family>::Replica as Protocol>::Event;
/// The family's own outputs.
pub(crate) type EffectOf<P> = <<P as Family>::Replica as Protocol>::Effect;

/// A protocol with all that carries its own effects and events.
pub(crate) trait Family {
    type Replica: Protocol;

    const ORDERED_BY: OrderedBy;

    fn encode(message: &MessageOf<Self>, out: &mut Vec<u8>);

    fn decode(payload: Bytes) -> Option<MessageOf<Self>>;

    /// A view as operators count them.
    fn view_number(view: View) -> u64;

    /// Does what is the protocol's own; what comes of it are events.
    fn perform(&mut self, effect: EffectOf<Self>);

    /// What has happened, until there is nothing more.
    fn next_event(&mut self) -> Option<EventOf<Self>>;

    /// Another thread or one of the family's own sockets has something.
    fn stir(&mut self);

    /// A turn of the loop has begun. Returns whether the protocol's timeout is to come now,
    /// whatever its deadline.
    fn begin_turn(&mut self, poll: &Poll, replica: &Self::Replica, now: Now) -> bool;

    /// When the next turn has to begin, in [`Now::micros`], beside the protocol's deadline.
    fn next_turn(&self, replica: &Self::Replica, now: Now) -> Option<u64>;

    /// Takes what operators should know.
    fn take_reports(&mut self, into: &mut Vec<Event>);

    /// For operators.
    fn memory_status(&self, replica: &Self::Replica) -> Option<MemoryStatus>;
}

/// Viewstamped replication: messages alone.
pub(crate) struct Vsr;

impl Family for Vsr {
    type Replica = vsr::Replica;

    const ORDERED_BY: OrderedBy = OrderedBy::Vsr;

    fn encode(message: &vsr::Message, out: &mut Vec<u8>) {
        message.encode(out);
    }

    fn decode(payload: Bytes) -> Option<vsr::Message> {
        vsr::Message::decode(payload).ok()
    }

    fn view_number(view: View) -> u64 {
        view.0 >> 8
    }

    fn perform(&mut self, never: Infallible) {
        match never {}
    }

    fn next_event(&mut self) -> Option<Infallible> {
        None
    }

    fn stir(&mut self) {}

    fn begin_turn(&mut self, _: &Poll, _: &vsr::Replica, _: Now) -> bool {
        false
    }

    fn next_turn(&self, _: &vsr::Replica, _: Now) -> Option<u64> {
        None
    }

    fn take_reports(&mut self, _: &mut Vec<Event>) {}

    fn memory_status(&self, _: &vsr::Replica) -> Option<MemoryStatus> {
        None
    }
}
