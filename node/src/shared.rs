//! Mu over the shared memory of one machine: the fabric's endpoint on the loop's thread, the
//! processes that come and go, and how often memory is looked at.
//!
//! Nothing tells a process that others have written to its memory, so that it looks: in every turn,
//! at every heartbeat, and for a while more often, where something is known to come. Nobody spins
//! on memory: the other replicas may need the core.

use std::collections::VecDeque;
use std::num::NonZeroU64;

use bytes::Bytes;
use fabric::shm::{Acquaintance, Endpoint, Window};
use fabric::{Fabric, RegionId};
use mu::{Change, Event as Own, Memory, Replica};
use smr::{Now, OpNumber, OrderedBy, Protocol, ReplicaId, Reply, Role, View};

use crate::event::Event;
use crate::face::{self, MemoryStatus};
use crate::family::Family;
use crate::introduce::Introductions;
use crate::poll::{Interest, Poll, Token};

/// A process that waits for others' memory looks again after this many microseconds at first, then
/// after a quarter of the time that it has waited.
const SOON: u64 = 20;
/// After the end of a process there is an election: for this long, in microseconds, memory is
/// looked at often.
const ALERT: u64 = 20_000;
/// So often then, in microseconds.
const ALERT_PAUSE: u64 = 100;
/// A follower looks so often that its leader's slots fill its ring at most to this part.
const RING_PART: u64 = 8;
/// And so often that it finds about so many slots: with more it would hold its core for long, and
/// whoever wakes up meanwhile would share the other core with the leader for scheduler ticks.
const FEW: u64 = 4;
/// But for that not more often than this, in microseconds: to look costs a wake-up.
const FOLLOW: u64 = 1_000;
/// Words of lanes that are zeroed in an idle turn, for the grants to come.
const SWEEP: usize = 4 << 10;

/// A process's own regions, for the protocol to read.
pub(crate) struct OwnMemory(Window);

impl Memory for OwnMemory {
    #[inline]
    fn load(&self, region: RegionId, offset: u32, words: &mut [u64]) {
        self.0.read(region, offset, words);
    }
}

/// The fabric of one replica.
pub(crate) struct Shared {
    me: ReplicaId,
    endpoint: Endpoint,
    introductions: Introductions,
    /// By process: agreed to from here, not yet from there.
    agreed: Vec<Option<Acquaintance>>,
    events: VecDeque<Own>,
    words: Vec<u64>,
    reports: Vec<Event>,
    /// The period of the background plane, in microseconds: the longest pause.
    heartbeat: u64,
    slots: u64,
    /// Elections are to be expected until then, in [`Now::micros`].
    alert_until: u64,
    /// Since when nothing has come of waiting, in [`Now::micros`].
    waits_since: u64,
    /// The follower's pause between looks, in microseconds.
    pace: u64,
    /// What was executed when it was last looked at, and when that was.
    executed: (OpNumber, u64),
    /// Who leads, as far as this replica knows.
    leader: ReplicaId,
    /// Sockets have something to say.
    stirred: bool,
    /// The loop's thread is woken when it wants to be.
    punctual: bool,
    /// When it was last seen to whether the processes in doubt run, in [`Now::micros`].
    looked_after: u64,
}

impl Shared {
    pub fn new(endpoint: Endpoint, introductions: Introductions, config: &mu::Config) -> Shared {
        let heartbeat = config.timing.heartbeat;
        Shared {
            me: config.identity.replica,
            endpoint,
            introductions,
            agreed: (0..config.replicas).map(|_| None).collect(),
            events: VecDeque::new(),
            words: Vec::new(),
            reports: Vec::new(),
            heartbeat,
            slots: u64::from(config.limits.slots),
            alert_until: 0,
            waits_since: 0,
            pace: heartbeat,
            executed: (OpNumber(0), 0),
            leader: ReplicaId(0),
            stirred: true,
            punctual: false,
            looked_after: 0,
        }
    }

    pub fn memory(&self) -> OwnMemory {
        OwnMemory(self.endpoint.window(self.me).expect("its own"))
    }

    /// Agrees to those that were introduced.
    fn meet(&mut self, poll: &Poll) {
        while let Some((from, met)) = self.introductions.next() {
            let agreed = met.and_then(|acquaintance| {
                let process = acquaintance.process();
                if process != from {
                    return Err(format!("its memory is that of replica {}", process.0));
                }
                self.endpoint.agree(&acquaintance).map_err(|error| error.to_string())?;
                let (stream, token) = (acquaintance.stream(), Token::Memory(from.0.into()));
                let watched = poll.add(stream, token, Interest::READ);
                watched.map_err(|error| format!("its end cannot be watched: {error}"))?;
                Ok(acquaintance)
            });
            match agreed {
                Ok(acquaintance) => self.agreed[from.index()] = Some(acquaintance),
                Err(why) => self.introductions.refuse(from, why, &mut self.reports),
            }
        }
    }

    /// Takes up those that have agreed, and notices those that have ended. Returns whether any has.
    fn attend(&mut self) -> bool {
        let mut ended = false;
        for index in 0..self.agreed.len() {
            let id = ReplicaId(index as u8);
            if id != self.me && self.endpoint.window(id).is_some() && self.endpoint.has_ended(id) {
                self.endpoint.forget(id);
                self.reports.push(Event::MemoryGone(id));
                self.introductions.succeed(id);
                ended = true;
            }
            if self.agreed[index].as_ref().is_some_and(Acquaintance::has_answered) {
                let acquaintance = self.agreed[index].take().expect("just seen");
                match self.endpoint.adopt(acquaintance) {
                    Ok(_) => {
                        self.introductions.welcome(id);
                        self.reports.push(Event::MemoryShared(id));
                    }
                    // It says why, if it still is there.
                    Err(_) => self.introductions.again(id),
                }
            }
        }
        ended
    }
}

impl Family for Shared {
    type Replica = Replica<OwnMemory>;
    type Reply = Reply;

    const ORDERED_BY: OrderedBy = OrderedBy::Mu;
    /// What a turn waits for is there at its end: only clients can delay the next one.
    const EAGER: u64 = 25;

    fn encode(message: &mu::Message, out: &mut Vec<u8>) {
        message.encode(out);
    }

    fn decode(payload: Bytes) -> Option<mu::Message> {
        mu::Message::decode(payload).ok()
    }

    fn sign(_: &Replica<OwnMemory>, reply: Reply) -> Reply {
        reply
    }

    fn view_number(view: View) -> u64 {
        mu::round(view)
    }

    #[inline]
    fn perform(&mut self, effect: mu::Effect) -> Option<Reply> {
        effect.perform(&mut self.endpoint);
        None
    }

    fn cast(&mut self, _: &Bytes, _: Now) {
        unreachable!("its gateway asks single replicas");
    }

    #[inline]
    fn next_event(&mut self) -> Option<Own> {
        if let Some(completion) = self.endpoint.poll(&mut self.words) {
            let words = std::mem::take(&mut self.words);
            return Some(Own::Completed { completion, words });
        }
        self.events.pop_front()
    }

    fn stir(&mut self) {
        self.stirred = true;
    }

    fn change(&mut self, change: Change) {
        self.events.push_back(Own::Change(change));
    }

    fn begin_turn(&mut self, poll: &Poll, replica: &Replica<OwnMemory>, now: Now) -> bool {
        if !std::mem::replace(&mut self.punctual, true) {
            // Where the system refuses, this thread sleeps 50 microseconds longer than it wants to.
            let _ = rustix::thread::set_current_timer_slack(NonZeroU64::new(1));
        }
        self.events.push_back(Own::Look);
        let executed = replica.report().commit;
        let (before, since) = std::mem::replace(&mut self.executed, (executed, now.micros));
        let count = executed.0.saturating_sub(before.0);
        let passed = now.micros - since;
        // Nothing was executed, or so long until a part of the ring is.
        if let Some(due) = (passed * self.slots / RING_PART).checked_div(count) {
            self.waits_since = now.micros;
            let few = (passed * FEW / count).max(FOLLOW);
            self.pace = due.max(SOON).min(few).min(self.heartbeat);
        } else {
            self.pace = (self.pace * 2).clamp(SOON, self.heartbeat);
            self.endpoint.sweep(SWEEP);
        }
        if !replica.waits() {
            self.waits_since = now.micros;
        }
        let mut ended = false;
        if std::mem::take(&mut self.stirred) {
            self.meet(poll);
            ended = self.attend();
        }
        if now.micros >= self.looked_after + self.heartbeat {
            self.looked_after = now.micros;
            let halted = replica.doubted().filter(|&id| self.endpoint.is_halted(id));
            self.events.extend(halted.map(Own::Halted));
        }
        let leader = replica.leader();
        if ended || std::mem::replace(&mut self.leader, leader) != leader {
            self.alert_until = now.micros + ALERT;
        }
        ended
    }

    fn next_turn(&self, replica: &Replica<OwnMemory>, now: Now) -> Option<u64> {
        let mut pause = self.heartbeat;
        if matches!(replica.report().role, Role::Backup | Role::Recovering) {
            pause = pause.min(self.pace);
        }
        if replica.waits() {
            let waited = now.micros.saturating_sub(self.waits_since);
            pause = pause.min((waited / 4).max(SOON));
        }
        if now.micros < self.alert_until {
            pause = pause.min(ALERT_PAUSE);
        }
        Some(now.micros + pause)
    }

    fn take_reports(&mut self, into: &mut Vec<Event>) {
        into.append(&mut self.reports);
    }

    fn describe(&self, replica: &Replica<OwnMemory>, status: &mut face::Status) {
        let mu::Status { scores, leader, confirmed, tail, members, .. } = replica.status();
        let all = || (0..self.agreed.len() as u8).map(ReplicaId);
        let members: Vec<bool> = all().map(|id| members & 1 << id.0 != 0).collect();
        let change = |id: ReplicaId| match members[id.index()] {
            true => Change::Remove(id),
            false => Change::Add(id),
        };
        status.memory = Some(MemoryStatus {
            scores,
            leader,
            confirmed,
            attached: all().map(|id| self.endpoint.window(id).is_some()).collect(),
            holder: self.endpoint.holder(mu::LOG),
            tail,
            changes: all().map(|id| replica.may_change(change(id))).collect(),
            members,
        });
    }
}
