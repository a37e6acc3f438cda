//! What the simulator must know of a protocol beside the contract: how to make one, its messages'
//! bytes, and which messages are promises. And the tap that shows what a protocol had executed.

use std::cell::RefCell;
use std::convert::Infallible;
use std::rc::Rc;
use std::sync::Arc;

use bytes::Bytes;
use smr::codec::Malformed;
use smr::{
    Durability, Entry, Identity, Incarnation, InputOf, Now, OpNumber, Output, Outputs, Protocol,
    Refusal, Report, View, Viewstamp,
};

use crate::bug::Bug;
use crate::options::Times;

/// What a subject is told when it starts.
#[derive(Clone, Copy, Debug)]
pub struct Setup {
    /// Who it is.
    pub identity: Identity,
    /// How many replicas there are.
    pub replicas: u8,
    /// What an acknowledgement means.
    pub durability: Durability,
    /// Its times.
    pub times: Times,
    /// Bytes that may be tentative before nothing more is proposed.
    pub lag: usize,
    /// Its own randomness.
    pub seed: u64,
    /// A planted defect, which it shows if it is one of its own.
    pub bug: Option<Bug>,
}

/// What a message commits its sender to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Promise {
    /// Nothing.
    Nothing,
    /// The sender takes part in this view: the view is on its disk.
    View(View),
    /// The sender holds this operation of this view and all before it, as the durability demands.
    Holds(View, OpNumber),
    /// The sender leads this view, which began with or has reached this operation.
    Leads(View, Viewstamp),
}

/// A protocol that the simulator can run.
pub trait Subject: Protocol<Event = Infallible, Effect = Infallible> + Sized {
    /// A replica.
    fn create(setup: Setup) -> Self;
    /// Appends a message's bytes.
    fn encode(message: &Self::Message, out: &mut Vec<u8>);
    /// Takes a message from its bytes.
    ///
    /// # Errors
    /// If they are none.
    fn decode(bytes: Bytes) -> Result<Self::Message, Malformed>;
    /// The message's name.
    fn name(message: &Self::Message) -> &'static str;
    /// What it commits its sender to.
    fn promise(message: &Self::Message) -> Promise;
    /// The lives that its sender knows, if it says.
    fn incarnations(message: &Self::Message) -> &[Incarnation];
    /// Something rare about the message that the long run must have seen.
    fn mark(message: &Self::Message) -> Option<&'static str>;
}

/// One output that the host interprets by itself.
#[derive(Debug)]
pub(crate) enum Seen {
    Execute(Arc<Entry>),
    Commit(OpNumber),
    Stable(OpNumber),
    Rollback(OpNumber),
    Deposed,
    ReadReady,
}

/// Where a tap puts what it sees.
pub(crate) type Sight = Rc<RefCell<Vec<Seen>>>;

/// A protocol whose outputs are noted before the host takes them.
pub(crate) struct Tap<P> {
    protocol: P,
    sight: Sight,
}

impl<P> Tap<P> {
    pub(crate) fn new(protocol: P, sight: Sight) -> Tap<P> {
        Tap { protocol, sight }
    }
}

impl<P: Protocol> Protocol for Tap<P> {
    type Message = P::Message;
    type Event = P::Event;
    type Effect = P::Effect;

    fn step(&mut self, now: Now, input: InputOf<Self>, out: &mut Outputs<Self>) {
        let before = out.len();
        self.protocol.step(now, input, out);
        let mut sight = self.sight.borrow_mut();
        for output in &out[before..] {
            match output {
                Output::Execute(entry) => sight.push(Seen::Execute(entry.clone())),
                Output::Commit { through, .. } => sight.push(Seen::Commit(*through)),
                Output::Stable(through) => sight.push(Seen::Stable(*through)),
                Output::Rollback(keep) => sight.push(Seen::Rollback(*keep)),
                Output::Deposed => sight.push(Seen::Deposed),
                Output::ReadReady(_) => sight.push(Seen::ReadReady),
                _ => {}
            }
        }
    }

    fn deadline(&self) -> Option<u64> {
        self.protocol.deadline()
    }

    fn admission(&self) -> Result<(), Refusal> {
        self.protocol.admission()
    }

    fn view(&self) -> View {
        self.protocol.view()
    }

    fn durable(&self) -> Viewstamp {
        self.protocol.durable()
    }

    fn report(&self) -> Report {
        self.protocol.report()
    }
}

impl Subject for vsr::Replica {
    fn create(setup: Setup) -> vsr::Replica {
        let times = setup.times;
        let timing = vsr::Timing {
            heartbeat: times.heartbeat,
            election: times.election,
            election_jitter: times.jitter,
            stall: times.stall,
            patience: times.patience,
            retry: times.retry,
        };
        let limits = vsr::Limits { lag_bytes: setup.lag, ..vsr::Limits::tiny() };
        let Setup { identity, replicas, durability, seed, .. } = setup;
        vsr::Replica::new(vsr::Config {
            timing,
            limits,
            #[cfg(feature = "planted-bugs")]
            bug: setup.bug.and_then(Bug::of_vsr),
            ..vsr::Config::new(identity, replicas, durability, seed)
        })
    }

    fn encode(message: &vsr::Message, out: &mut Vec<u8>) {
        message.encode(out);
    }

    fn decode(bytes: Bytes) -> Result<vsr::Message, Malformed> {
        vsr::Message::decode(bytes)
    }

    fn name(message: &vsr::Message) -> &'static str {
        use vsr::Message as M;
        match message {
            M::Prepare { .. } => "Prepare",
            M::PrepareOk { .. } => "PrepareOk",
            M::Commit { .. } => "Commit",
            M::PreVote { .. } => "PreVote",
            M::PreVoteOk { .. } => "PreVoteOk",
            M::ElectPrepare { .. } => "ElectPrepare",
            M::ElectPrepareOk { .. } => "ElectPrepareOk",
            M::ElectRefuse { .. } => "ElectRefuse",
            M::Flush { .. } => "Flush",
            M::ElectAccept { .. } => "ElectAccept",
            M::StaleView { .. } => "StaleView",
            M::CatchUp { .. } => "CatchUp",
            M::CatchUpOk { .. } => "CatchUpOk",
            M::NeedState { .. } => "NeedState",
            M::FetchState { .. } => "FetchState",
            M::StateChunk(_) => "StateChunk",
            M::StateGone => "StateGone",
            M::Recovery { .. } => "Recovery",
            M::RecoveryOk { .. } => "RecoveryOk",
        }
    }

    fn promise(message: &vsr::Message) -> Promise {
        use vsr::Message as M;
        match message {
            M::PrepareOk { view, op, .. } => Promise::Holds(*view, *op),
            M::ElectPrepare { view, .. } | M::ElectPrepareOk { view, .. } => Promise::View(*view),
            M::Prepare { entry, .. } | M::ElectAccept { entry } => {
                Promise::Leads(entry.viewstamp.view, entry.viewstamp)
            }
            M::Commit { view, last, .. } => Promise::Leads(*view, *last),
            _ => Promise::Nothing,
        }
    }

    fn incarnations(message: &vsr::Message) -> &[Incarnation] {
        use vsr::Message as M;
        match message {
            M::PrepareOk { incarnations, .. }
            | M::ElectPrepareOk { incarnations, .. }
            | M::RecoveryOk { incarnations, .. } => incarnations,
            _ => &[],
        }
    }

    fn mark(message: &vsr::Message) -> Option<&'static str> {
        use vsr::Message as M;
        Some(match message {
            M::StaleView { .. } => "stale-view",
            M::NeedState { .. } => "need-state",
            M::StateGone => "state-gone",
            M::CatchUpOk { entries, last, .. } => {
                let through = entries.last().map(|entry| entry.viewstamp);
                if through.is_some_and(|through| through != *last) {
                    "catch-up-in-pieces"
                } else {
                    "catch-up"
                }
            }
            M::StateChunk(chunk) if chunk.offset > 0 => "state-in-pieces",
            M::Recovery { .. } => "recovery",
            M::ElectAccept { .. } => "elect-accept",
            M::ElectPrepareOk { forgetful: true, .. } => "forgetful-vote",
            _ => return None,
        })
    }
}
