//! The loop of one replica. A turn: wait; take what has arrived; let the protocol and the gateway
//! act on it until nothing follows; send everything at once. Batches form by themselves: what
//! arrives during a turn is one batch of the next.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use smr::{
    ClientMessage, Effect, GroupId, Host, Input, Now, OpNumber, Protocol, Report, Role,
    StateMachine, StoreNumber, To, View,
};
use wire::{Condition, Kind};

use crate::attached::Application;
use crate::clock;
use crate::disk::Disk;
use crate::event::Event;
use crate::face::{Face, Failure, Order, Status};
use crate::family::{EffectOf, Family, MessageOf};
use crate::gateway::{End, Finished, Gateway, News};
use crate::inbound::Arrived;
use crate::machine::Outgoing;
use crate::peers::Peers;
use crate::poll::{Poll, Ready, Token};
use crate::sessions::{Around, Sessions};
use crate::snapshots::Snapshots;
use crate::{Error, Options};

/// What the protocol and the service want done.
pub(crate) type Effects<P> = Vec<Effect<MessageOf<P>, EffectOf<P>>>;

/// The loop sleeps no longer than this, in microseconds, so that it notices a signal that came
/// while it was about to sleep.
const LONGEST_SLEEP: u64 = 50_000;
/// How long a stopping replica waits for what is under way, in microseconds.
const STOP_PATIENCE: u64 = 2_000_000;
/// While the loop spins it looks so often for what applications hand over before it looks at the
/// sockets: for about as long.
const LOOKS: u32 = 16;
/// How often clients speak is measured over at least this time, in microseconds.
const PULSE: u64 = 1_000;
/// The status that faces see is at most this old, in microseconds.
const STATUS_AGE: u64 = 10_000;

/// Why a replica has stopped without an error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Exit {
    /// It was asked to.
    Stopped,
    /// An operator accepted the loss of the state: start over, empty, in this group.
    StartOver(GroupId),
}

/// How often clients have taken turns.
pub(crate) struct Pulse {
    /// Who spoke last.
    pub last: Token,
    pub events: u64,
    /// Counted since then, in [`Now::micros`].
    pub since: u64,
}

/// One replica with its network, disk and clock.
pub(crate) struct Core<F: Face, P: Family> {
    pub(crate) options: Options,
    pub(crate) poll: Poll,
    pub(crate) family: P,
    pub(crate) host: Host<P::Replica, F::Service>,
    pub(crate) gateway: Gateway,
    pub(crate) peers: Peers,
    pub(crate) sessions: Sessions<F>,
    pub(crate) disk: Disk,
    pub(crate) snapshots: Snapshots,
    pub(crate) status: Status,
    pub(crate) now: Now,
    pub(crate) effects: Effects<P>,
    pub(crate) outgoing: Outgoing,
    pub(crate) arrived: Arrived,
    pub(crate) issued: StoreNumber,
    pub(crate) stored: StoreNumber,
    /// The disk is marked as having lost something.
    pub(crate) lost: bool,
    /// What must be stored before the mark may go.
    pub(crate) recovered_at: Option<StoreNumber>,
    /// The last view of which the gateway was told.
    pub(crate) followed: View,
    /// A checkpoint is being made.
    pub(crate) snapshotting: bool,
    /// The executor's state is being replaced: what it holds meanwhile is no state.
    pub(crate) installing: bool,
    /// The checkpoint that the protocol asked for found no space: when to try again, in
    /// [`Now::micros`].
    pub(crate) snapshot_retry: Option<u64>,
    /// When a checkpoint may be made to free space, in [`Now::micros`].
    pub(crate) relief_at: u64,
    /// The last operation in the last such checkpoint.
    pub(crate) relieved: OpNumber,
    pub(crate) status_at: u64,
    pub(crate) pulse: Pulse,
    /// A client is likely to speak within so many microseconds, so that looking beats sleeping.
    pub(crate) eager: u64,
    pub(crate) exit: Option<Exit>,
    pub(crate) failure: Option<Error>,
    pub(crate) events: Box<dyn FnMut(&Event)>,
}

impl<F: Face, P: Family> Core<F, P> {
    /// Runs the replica until `stop` is set or a face orders its end.
    pub fn run(mut self, stop: &Arc<AtomicBool>) -> Result<Exit, Error> {
        let mut ready = Vec::new();
        // Relaxed: the flag stands for itself.
        while !stop.load(Ordering::Relaxed) && self.exit.is_none() {
            self.turn(&mut ready)?;
        }
        let exit = self.exit.unwrap_or(Exit::Stopped);
        if exit == Exit::Stopped {
            self.finish(&mut ready)?;
        }
        let Core { disk, .. } = self;
        disk.close()?;
        Ok(exit)
    }

    /// Finishes what was submitted, within bounds.
    fn finish(&mut self, ready: &mut Vec<Ready>) -> Result<(), Error> {
        let commit = self.host.protocol().report().commit;
        (self.events)(&Event::Stopping { commit });
        self.sessions.stop_accepting();
        let end = self.now.micros + STOP_PATIENCE;
        while self.now.micros < end && (!self.gateway.idle() || self.sessions.owes()) {
            self.turn(ready)?;
        }
        Ok(())
    }

    fn turn(&mut self, ready: &mut Vec<Ready>) -> Result<(), Error> {
        ready.clear();
        self.wait(ready)?;
        self.now = clock::now();
        self.gateway.counters.turns += 1;
        self.feel_pulse(ready);
        self.refresh_status();
        self.mark_recovered();
        for &ready in ready.iter() {
            self.on_ready(ready)?;
        }
        let mut around = Around {
            gateway: &mut self.gateway,
            status: &self.status,
            service: self.host.executor().machine(),
            now: self.now,
        };
        self.sessions.take_attached(&mut around);
        let now = self.now;
        let early = self.family.begin_turn(&self.poll, self.host.protocol(), now);
        self.on_time(early);
        self.settle();
        self.follow_view();
        let mut around = Around {
            gateway: &mut self.gateway,
            status: &self.status,
            service: self.host.executor().machine(),
            now: self.now,
        };
        self.sessions.resume(&mut around);
        self.gateway.send(self.now);
        self.tell();
        self.settle();
        self.pump_snapshot();
        self.settle();
        self.obey();
        self.peers.flush(&self.poll, self.now.micros);
        self.sessions.flush(&self.poll, self.now);
        self.sessions.forget_closed(&mut self.gateway);
        self.report();
        self.failure.take().map_or(Ok(()), Err)
    }

    /// Sleeps until something is ready or due.
    fn wait(&mut self, ready: &mut Vec<Ready>) -> Result<(), Error> {
        let os = |error| Error::Os("wait for sockets", error);
        let spin = self.options.spin.max(self.eager);
        let end = self.now.micros + spin.min(self.sleep());
        while self.now.micros < end {
            // An application's memory costs no system call.
            if (0..LOOKS).any(|_| self.sessions.is_called()) {
                return Ok(());
            }
            self.poll.wait(Some(0), ready).map_err(os)?;
            if !ready.is_empty() {
                return Ok(());
            }
            self.now = clock::now();
        }
        let sleep = self.sessions.sleep().min(self.sleep());
        let waited = self.poll.wait(Some(sleep), ready);
        self.sessions.rise();
        waited.map_err(os)
    }

    /// Counts how often another client speaks than the one before. Where the next is likely within
    /// [`Family::EAGER`], the loop looks for it that long. (One alone may need this core to speak.)
    fn feel_pulse(&mut self, ready: &[Ready]) {
        let Pulse { last, events, since } = &mut self.pulse;
        let clients = ready.iter().filter(|ready| matches!(ready.token, Token::Client(_)));
        *events += clients
            .filter(|ready| std::mem::replace(last, ready.token) != ready.token)
            .count() as u64;
        let passed = self.now.micros - *since;
        if passed >= PULSE {
            let busy = *events * P::EAGER > passed && self.status.report.role == Role::Primary;
            self.eager = if busy { P::EAGER } else { 0 };
            (*events, *since) = (0, self.now.micros);
        }
    }

    /// Connects a thread of this process.
    pub fn attach(&mut self) -> Application {
        self.sessions.attach(self.poll.waker(), self.now)
    }

    /// How long there is nothing to do, in microseconds.
    fn sleep(&self) -> u64 {
        let pumping = self.snapshotting && self.snapshots.has_room();
        if pumping || self.sessions.resumable(&self.gateway) {
            return 0;
        }
        let due = [
            self.host.deadline(),
            self.gateway.deadline(),
            self.errand_at(),
            self.snapshot_retry,
            self.family.next_turn(self.host.protocol(), self.now),
        ];
        let due = due.into_iter().flatten().min().unwrap_or(u64::MAX);
        due.saturating_sub(self.now.micros).min(LONGEST_SLEEP)
    }

    /// When the service wants a request of its own, in [`Now::micros`].
    fn errand_at(&self) -> Option<u64> {
        if self.gateway.on_errand() || self.status.report.role != Role::Primary {
            return None;
        }
        let wakeup = self.host.executor().machine().wakeup()?;
        let ahead = wakeup.saturating_sub(self.now.unix_ms).saturating_mul(1000);
        Some(self.now.micros.saturating_add(ahead))
    }

    fn on_ready(&mut self, ready: Ready) -> Result<(), Error> {
        match ready.token {
            Token::Memory(_) | Token::Multicast => self.family.stir(),
            Token::Wake => {
                self.family.stir();
                self.peers.adopt(&self.poll);
                self.peers.resume(&mut self.arrived, &mut self.gateway.counters);
                self.take_arrived();
                self.on_disk()?;
                self.on_snapshots()?;
            }
            Token::Peers => self.peers.accept(&self.poll),
            Token::Clients(entrance) => {
                let entrance = entrance as usize;
                self.sessions.accept(entrance, &self.poll, &mut self.gateway, self.now);
            }
            Token::Outbound(place) => self.peers.on_outbound(place, ready.read),
            Token::Inbound(place) => {
                let counters = &mut self.gateway.counters;
                self.peers.on_inbound(place, &mut self.arrived, counters);
                self.take_arrived();
            }
            Token::Client(place) => {
                let mut around = Around {
                    gateway: &mut self.gateway,
                    status: &self.status,
                    service: self.host.executor().machine(),
                    now: self.now,
                };
                self.sessions.on_ready(ready, place, &mut around);
            }
        }
        Ok(())
    }

    /// Does what is due. With `early` the protocol's timeout comes now.
    fn on_time(&mut self, early: bool) {
        if early || self.host.deadline().is_some_and(|due| due <= self.now.micros) {
            self.host.step(self.now, Input::Timeout, &mut self.effects);
        }
        if self.gateway.deadline().is_some_and(|due| due <= self.now.micros) {
            self.gateway.timeout(self.now);
            while let Some(late) = self.gateway.expire(self.now) {
                self.sessions.finish(late, &mut self.gateway);
            }
        }
        if self.snapshot_retry.is_some_and(|due| due <= self.now.micros) {
            self.snapshot_again();
        }
        self.relieve();
        if self.errand_at().is_some_and(|due| due <= self.now.micros) {
            let body = self.host.executor().machine().wakeup_request();
            self.gateway.send_errand(self.now, body);
        }
    }

    /// Does what protocol and gateway want, until nothing more follows.
    fn settle(&mut self) {
        loop {
            self.perform_all();
            // An event may follow from what the one before it has had done.
            while let Some(event) = self.family.next_event() {
                self.host.step(self.now, Input::Event(event), &mut self.effects);
                self.perform_all();
            }
            self.send_requests();
            if self.effects.is_empty() {
                return;
            }
        }
    }

    fn perform_all(&mut self) {
        let mut effects = std::mem::take(&mut self.effects);
        for effect in effects.drain(..) {
            self.perform(effect);
        }
        if self.effects.is_empty() {
            self.effects = effects;
        }
    }

    /// Sends what the gateway asks.
    fn send_requests(&mut self) {
        let mut outgoing = std::mem::take(&mut self.outgoing);
        self.gateway.take_outgoing(&mut outgoing);
        for (to, message) in outgoing.replicas.drain(..) {
            if to == self.options.replica {
                self.on_client_message(message);
            } else {
                self.send(To::One(to), Kind::Client, |out| message.encode(out));
            }
        }
        for send in outgoing.group.drain(..) {
            match send {
                nopaxos::Send::Sequencer(payload) => self.family.cast(&payload, self.now),
                nopaxos::Send::Replicas(request) => {
                    let (expected, durable) = (View::default(), false);
                    let message = ClientMessage::Request { expected, durable, request };
                    self.send(To::Others, Kind::Client, |out| message.encode(out));
                    // It should be there before its digest is.
                    self.peers.flush(&self.poll, self.now.micros);
                    self.family.note_asked(&message, self.now);
                    self.on_client_message(message);
                }
            }
        }
        self.outgoing = outgoing;
    }

    pub(crate) fn on_client_message(&mut self, message: ClientMessage) {
        let message = std::iter::once(message);
        P::ask(&mut self.host, self.now, message, &mut self.effects);
    }

    /// Does what faces have ordered.
    fn obey(&mut self) {
        for order in std::mem::take(&mut self.sessions.orders) {
            match order {
                Order::Kill(id) => {
                    self.sessions.kill(id);
                }
                Order::Shutdown => self.exit = Some(Exit::Stopped),
                Order::Change(change) => {
                    self.family.change(change);
                    self.settle();
                }
                Order::StartOver(group) => {
                    // A replica that recovers holds nothing that the group could miss.
                    let role = self.status.report.role;
                    if matches!(role, Role::StateLost | Role::Recovering) {
                        self.exit = Some(Exit::StartOver(group));
                    }
                }
            }
        }
    }

    /// Tells the connections what the gateway has learnt.
    pub(crate) fn tell(&mut self) {
        while let Some(news) = self.gateway.next_news() {
            if let News::Finished(Finished { end: End::Failed(Failure::Retired), .. }) = news {
                self.failure = Some(Error::Retired);
            }
            self.sessions.hear(news, &mut self.gateway);
        }
    }

    /// Tells the gateway of a view that has a primary, and of the durable point.
    fn follow_view(&mut self) {
        let report = self.host.protocol().report();
        self.gateway.on_durable(report.view, report.durable);
        self.tell();
        if matches!(report.role, Role::Primary | Role::Backup) && report.view > self.followed {
            self.followed = report.view;
            self.gateway.on_view(self.now, report.view);
        }
        if report.role == Role::StateLost {
            self.gateway.on_state_lost();
        }
        if !P::IS_ASKED {
            let is_full = self.status.disk_full && report.role == Role::Primary;
            self.peers.fare(Condition { is_full, is_lost: report.role == Role::StateLost });
        }
    }

    fn refresh_status(&mut self) {
        let report = self.host.protocol().report();
        for event in changes(&self.status.report, &report, P::view_number) {
            (self.events)(&event);
        }
        self.status.report = report;
        self.status.view_number = P::view_number(report.view);
        if self.now.micros < self.status_at + STATUS_AGE {
            return;
        }
        self.status_at = self.now.micros;
        self.peers.status(&mut self.status.peers);
        self.family.describe(self.host.protocol(), &mut self.status);
    }

    fn report(&mut self) {
        self.family.take_reports(&mut self.peers.events);
        for event in std::mem::take(&mut self.peers.events) {
            (self.events)(&event);
            if let Event::Session { session, sequencer } = event {
                self.peers.announce(session, sequencer);
            }
        }
    }
}

/// What an operator should know of the change from one report to the next.
fn changes(before: &Report, now: &Report, number: fn(View) -> u64) -> impl Iterator<Item = Event> {
    let moved = (now.role, now.view) != (before.role, before.view);
    let lost = now.rolled_back.saturating_sub(before.rolled_back);
    let risky = now.risky_elections > before.risky_elections;
    [
        (now.forgetful && !before.forgetful).then_some(Event::Forgetful),
        moved.then_some(Event::Role { role: now.role, view: now.view, number: number(now.view) }),
        risky.then_some(Event::RiskyElection(now.view)),
        (lost > 0).then_some(Event::RolledBack { operations: lost, durable: now.durable }),
        (before.forgetful && !now.forgetful).then_some(Event::Remembers(now.op)),
    ]
    .into_iter()
    .flatten()
}
