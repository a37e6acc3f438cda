//! Answers that wait for the disk: of connections that ask for more than the group's durability,
//! and to the question whether all that was written is durable (durability `lazy`).
//!
//! The commands themselves travel with everybody's, so that nobody else waits. An empty request
//! that is flagged durable follows them, a barrier: its answer, like any other, brings the durable
//! point.

use std::collections::VecDeque;

use bytes::Bytes;
use smr::{OpNumber, RequestNumber, Viewstamp};

use crate::gateway::{End, Finished, Route, Whom};

/// So many barriers may be under way: with more of them answers wait less for the next one.
pub(crate) const MAX_BARRIERS: usize = 4;

/// The answer to a batch, of which the patient routes have not been told.
#[derive(Debug)]
struct Answer {
    routes: Vec<Route>,
    position: Viewstamp,
    body: Bytes,
    since: u64,
}

/// Somebody who asks whether everything up to an operation is durable.
#[derive(Debug)]
struct Wait {
    route: Route,
    op: OpNumber,
    /// When it is told that it is not, in [`smr::Now::micros`].
    due: Option<u64>,
}

/// What waits for the disk.
#[derive(Debug, Default)]
pub(crate) struct Held {
    /// Of the log that the client machine has seen, everything up to here is durable.
    durable: OpNumber,
    answers: VecDeque<Answer>,
    waits: Vec<Wait>,
    pub barriers: Vec<RequestNumber>,
    /// Another barrier is needed.
    pub wanted: bool,
}

impl Held {
    pub fn durable(&self) -> OpNumber {
        self.durable
    }

    pub fn is_empty(&self) -> bool {
        self.answers.is_empty() && self.waits.is_empty()
    }

    pub fn hold(&mut self, routes: Vec<Route>, position: Viewstamp, body: Bytes, since: u64) {
        self.answers.push_back(Answer { routes, position, body, since });
    }

    pub fn wait(&mut self, route: Route, op: OpNumber, due: Option<u64>) {
        self.waits.push(Wait { route, op, due });
        self.wanted = true;
    }

    /// Whether the request that has ended was a barrier.
    pub fn on_barrier(&mut self, number: RequestNumber) -> bool {
        let found = self.barriers.iter().position(|&barrier| barrier == number);
        if let Some(index) = found {
            self.barriers.swap_remove(index);
            self.wanted |= !self.is_empty() && self.barriers.is_empty();
        }
        found.is_some()
    }

    /// The durable point has moved to `through`: hands out what has waited for it.
    pub fn learn(&mut self, through: OpNumber, mut out: impl FnMut(Finished)) {
        self.durable = through;
        while self.answers.front().is_some_and(|answer| answer.position.op <= through) {
            let Answer { routes, position, body, .. } =
                self.answers.pop_front().expect("just seen");
            let end = End::Answered(position, body);
            out(Finished { routes, whom: Whom::Patient, end });
        }
        self.waits.retain(|wait| {
            let reached = wait.op <= through;
            if reached {
                out(told(wait.route, true));
            }
            !reached
        });
    }

    /// What has waited too long, if anything has.
    pub fn expire(&mut self, now: u64, patience: u64) -> Option<Finished> {
        let due = |wait: &Wait| wait.due.is_some_and(|due| due <= now);
        if let Some(index) = self.waits.iter().position(due) {
            return Some(told(self.waits.swap_remove(index).route, false));
        }
        if self.answers.front().is_some_and(|answer| answer.since + patience <= now) {
            let Answer { routes, position, .. } = self.answers.pop_front().expect("just seen");
            let end = End::Late(position);
            return Some(Finished { routes, whom: Whom::Patient, end });
        }
        None
    }

    /// A connection that has asked is gone.
    pub fn forget(&mut self, place: u32, generation: u32) {
        self.waits.retain(|wait| (wait.route.place, wait.route.generation) != (place, generation));
    }

    /// When [`Held::expire`] has something to do.
    pub fn deadline(&self, patience: u64) -> Option<u64> {
        let answers = self.answers.front().map(|answer| answer.since + patience);
        self.waits.iter().filter_map(|wait| wait.due).chain(answers).min()
    }

    /// Everything above `kept` was taken back. The routes of those who wait for it go to `dropped`.
    pub fn lose(&mut self, kept: OpNumber, dropped: &mut Vec<Route>) {
        self.answers.retain(|answer| {
            let lost = answer.position.op > kept;
            if lost {
                dropped.extend(answer.routes.iter().filter(|route| Whom::Patient.has(route)));
            }
            !lost
        });
        self.waits.retain(|wait| {
            dropped.extend((wait.op > kept).then_some(wait.route));
            wait.op <= kept
        });
        self.wanted = !self.is_empty();
    }

    /// Those who wait.
    pub fn routes(&self) -> impl Iterator<Item = &Route> {
        let answers = self.answers.iter().flat_map(|answer| &answer.routes);
        let waits = self.waits.iter().map(|wait| &wait.route);
        answers.filter(|route| Whom::Patient.has(route)).chain(waits)
    }
}

fn told(route: Route, reached: bool) -> Finished {
    Finished { routes: vec![route], whom: Whom::All, end: End::Durable(reached) }
}
