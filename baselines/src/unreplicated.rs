//! No replication: a request is executed and answered as it comes ([NOPaxos] 6). The measure for
//! what order and replication cost. It survives nothing.
//!
//! A request that comes again takes another place in the order, where the client table has its
//! answer.

use alloc::sync::Arc;
use alloc::vec;

use smr::contract::{Output, Report, Role};
use smr::{
    Content, Durability, Entry, Input, InputOf, Now, OpNumber, Outputs, Protocol, Refusal, Request,
    View, Viewstamp,
};

use crate::config::{Bug, Config};
use crate::message::{Message, Reply};
use crate::{Again, Baseline};

/// The only replica.
#[derive(Debug)]
pub struct Replica {
    config: Config,
    last: Viewstamp,
}

impl Replica {
    fn on_request(&mut self, request: Request, out: &mut Outputs<Replica>) {
        let (before, op) = (self.last, self.last.op.next());
        self.last = Viewstamp::new(View(0), op);
        let content = Content::Batch { unix_ms: 0, requests: vec![request] };
        let (commit, durable) = (OpNumber(0), Viewstamp::default());
        let entry = Entry { viewstamp: self.last, previous: before, commit, durable, content };
        out.push(Output::Execute(Arc::new(entry)));
        out.push(Output::Answer(op));
        if self.config.bug(Bug::UndoAnswered) && op.0 % 7 == 0 {
            self.last = before;
            return out.push(Output::Rollback(before.op));
        }
        out.push(Output::Commit { through: op, reply: false });
        out.push(Output::Stable(op));
    }
}

impl Baseline for Replica {
    fn create(config: Config) -> Replica {
        assert_eq!(config.replicas, 1, "there is one");
        Replica { config, last: Viewstamp::default() }
    }

    fn sign(&self, reply: smr::Reply) -> Reply {
        Reply { from: self.config.me, committed: true, digest: Default::default(), reply }
    }
}

impl Protocol for Replica {
    type Message = Message;
    type Event = Request;
    type Effect = Again;

    fn step(&mut self, _: Now, input: InputOf<Replica>, out: &mut Outputs<Replica>) {
        if let Input::Event(request) = input {
            self.on_request(request, out);
        }
    }

    fn deadline(&self) -> Option<u64> {
        None
    }

    fn admission(&self) -> Result<(), Refusal> {
        Err(Refusal::NotPrimary) // requests are events
    }

    fn view(&self) -> View {
        View(0)
    }

    fn durable(&self) -> Viewstamp {
        Viewstamp::default()
    }

    fn report(&self) -> Report {
        report(Role::Primary, View(0), self.last, self.last.op)
    }
}

/// A report of who stores nothing.
pub(crate) fn report(role: Role, view: View, op: Viewstamp, commit: OpNumber) -> Report {
    let none = Viewstamp::default();
    Report {
        role,
        durability: Durability::Memory,
        view,
        op,
        commit,
        disk: none,
        durable: none,
        checkpoint: none,
        lag_bytes: 0,
        lag_since: 0,
        forgetful: false,
        rolled_back: 0,
        risky_elections: 0,
        view_changed_at: 0,
        dropped: 0,
    }
}
