//! One measurement: a group in its places, its clients, and what they did.

use std::collections::BTreeMap;
use std::fmt;
use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4};
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Barrier};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, ensure};
use baselines::{Baseline, fast_paxos, speculative_paxos, unreplicated};
use nix::sys::socket::SockaddrIn;
use oum::Session;
use sequencer::{Batches, EndHost};
use serde::Serialize;
use smr::{Durability, Identity, Incarnation, ReplicaId};

use super::load::{Load, Routes};
use super::member::{self, GROUP, Loss, Member, Report, Seat};
use super::stamp::{Relay, Stamper, start_sequencer};
use super::turns::{End, Outcome, Phase, Stage, Turn, Turns, take_turns};
use super::wire::Socket;
use super::{Order, OrderOptions};
use crate::cores::pin;

/// Followers execute what is synchronised: in pieces so small that nobody waits for one.
const SYNC_EVERY: u64 = 512;
/// A log that stays in the processor's caches; checkpoints of a service without a state cost
/// nothing.
const LOG_BYTES: usize = 1 << 20;

/// What is measured.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub(super) struct Setting {
    pub(super) order: Order,
    pub(super) replicas: u8,
    pub(super) clients: usize,
    /// In a million.
    pub(super) loss: Loss,
    /// There is a relay before the replicas, which lets so many of a thousand be overtaken.
    pub(super) late: Option<u64>,
}

impl fmt::Display for Setting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}, {} replicas, {} clients", self.order.name(), self.replicas, self.clients)?;
        if self.loss.requests > 0 {
            write!(f, ", loss {} %", self.loss.requests as f64 / 1e4)?;
        }
        self.late.map_or(Ok(()), |late| write!(f, ", relay, {} % late", late as f64 / 10.0))
    }
}

/// A distribution, in microseconds.
#[derive(Clone, Copy, Debug, Serialize)]
pub(super) struct Spread {
    pub(super) p50: f64,
    pub(super) p99: f64,
    pub(super) p999: f64,
    pub(super) max: f64,
}

/// What was seen.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Measured {
    pub(super) per_second: f64,
    pub(super) requests: u64,
    pub(super) latency_us: Spread,
    pub(super) clients_loop: Outcome,
    pub(super) sequencer: Option<Outcome>,
    /// The leader first.
    pub(super) members: Vec<Outcome>,
}

impl Measured {
    /// Messages that a replica has received and sent for a request.
    pub(super) fn messages(&self, member: usize) -> f64 {
        let counts = self.members[member].counts;
        (counts.received + counts.sent) as f64 / self.requests.max(1) as f64
    }
}

/// Sequencers, first the one that clients begin with.
pub(super) struct Sequencers {
    pub(super) addresses: Vec<SockaddrIn>,
    pub(super) killed: Vec<Arc<AtomicBool>>,
}

/// Measures a setting.
pub(super) fn measure(options: &OrderOptions, setting: Setting, end: Instant) -> Result<Measured> {
    let measured = Duration::from_secs_f64(options.seconds);
    let (measured, _) = with_group(options, setting, 1, |load, _| {
        load.run(measured / 4, measured, end, |_, _, _| {})
    })?;
    Ok(measured)
}

/// Starts a group, has `work` run its clients, ends it, and looks whether what clients were told is
/// there.
pub(super) fn with_group(
    options: &OrderOptions,
    setting: Setting,
    sequencers: usize,
    work: impl FnOnce(&mut Load, &Sequencers) -> Result<(Outcome, Duration)>,
) -> Result<(Measured, Load)> {
    let wait = options.wait;
    let turns = Turns { stage: Stage::default(), wait, origin: Instant::now() };
    let Arranged { clients, routes, sequencers, mut places } =
        arrange(options, setting, sequencers, &turns)?;
    pin(options.core(0));
    let Setting { order, clients: count, .. } = setting;
    let mut load = Load::new(order, clients, routes, count, options.bytes, turns.clone());
    let here = places.remove(&options.core(0)).unwrap_or_default();
    load.here = here.into_iter().map(|place| place.take(setting, &turns)).collect();
    let (worked, ends) = on_cores(places, setting, &turns, || work(&mut load, &sequencers));
    let here = std::mem::take(&mut load.here).into_iter().map(|one| one.end());
    let (mut reports, mut stamped) = (Vec::new(), None);
    for end in here.chain(ends.context("a replica failed")?) {
        match end {
            End::Replica(report) => reports.push(report),
            End::Sequencer(outcome) => stamped = stamped.or(Some(outcome)),
            End::Relay => {}
        }
    }
    let (clients_loop, took) = worked?;
    check(&load.answered(), &reports)?;
    let measured = summarise(&load, took, clients_loop, stamped, &reports)?;
    Ok((measured, load))
}

/// Everybody's sockets, and who is on which core.
struct Arranged {
    clients: Socket,
    routes: Routes,
    sequencers: Sequencers,
    places: Places,
}

type Places = BTreeMap<usize, Vec<Place>>;

fn arrange(
    options: &OrderOptions,
    setting: Setting,
    sequencers: usize,
    turns: &Turns,
) -> Result<Arranged> {
    let shares = !options.one_by_one;
    let bind = |count: usize| (0..count).map(|_| Socket::bind(shares)).collect::<Result<Vec<_>>>();
    let addresses = |sockets: &[Socket]| sockets.iter().map(Socket::address).collect::<Vec<_>>();
    let clients = Socket::bind(shares)?;
    let sockets = bind(usize::from(setting.replicas))?;
    let peers = addresses(&sockets);
    let legs = bind(if setting.late.is_some() { sockets.len() } else { 0 })?;
    // Where requests go so that they reach the replicas.
    let doors = if setting.late.is_some() { addresses(&legs) } else { peers.clone() };
    // Who hears the sequencer at one address, where that is asked for and nobody is in between.
    let heard = options.multicast && setting.order == Order::Nopaxos && legs.is_empty();
    let joined = if heard { join(sockets.len(), shares)? } else { Vec::new() };
    let heard_at = joined.first().map(Socket::address);
    let stampers = if setting.order == Order::Nopaxos { sequencers } else { 0 };
    let stampers =
        (1..=stampers as u32).map(|session| start_sequencer(Session(session), &doors, heard_at));
    let stampers = stampers.collect::<Result<Vec<_>>>().context("cannot start a sequencer")?;
    let addresses = stampers.iter().map(address_of).collect::<Result<_>>()?;
    let killed = stampers.iter().map(|_| Arc::default()).collect();
    let sequencers = Sequencers { addresses, killed };
    let mut places = Places::new();
    for (end_host, killed) in stampers.into_iter().zip(sequencers.killed.iter().cloned()) {
        let copies = if heard { 1 } else { doors.len() as u64 };
        let end_host = Box::new(end_host);
        let place = Place::Sequencer { end_host, copies, shares, killed };
        places.entry(options.core(1)).or_default().push(place);
    }
    if let Some(late) = setting.late {
        let legs = legs.into_iter().zip(peers.clone()).collect();
        places.entry(options.core(1)).or_default().push(Place::Relay { legs, late });
    }
    let mut joined = joined.into_iter();
    for (id, socket) in sockets.into_iter().enumerate() {
        let multicast = joined.next();
        let me = ReplicaId(id as u8);
        let (peers, turns, loss) = (peers.clone(), turns.clone(), setting.loss);
        let (patience, clients) = (options.patience_us, clients.address());
        let seat = Seat { me, socket, multicast, peers, clients, loss, patience, turns };
        places.entry(options.core(2 + id)).or_default().push(Place::Replica(Box::new(seat)));
    }
    let routes = Routes { replicas: doors, sequencer: sequencers.addresses.first().copied() };
    Ok(Arranged { clients, routes, sequencers, places })
}

/// Sockets that all hear one multicast address.
fn join(count: usize, shares: bool) -> Result<Vec<Socket>> {
    let any = SocketAddrV4::new(Ipv4Addr::new(239, 77, 0, 1), 0);
    let first = Socket::join(shares, any.into())?;
    let address = first.address();
    let others = (1..count).map(|_| Socket::join(shares, address));
    [Ok(first)].into_iter().chain(others).collect()
}

fn address_of(sequencer: &EndHost) -> Result<SockaddrIn> {
    match sequencer.address()? {
        SocketAddr::V4(address) => Ok(address.into()),
        SocketAddr::V6(address) => Err(anyhow!("{address} is not on IPv4")),
    }
}

/// Runs `work` while everybody on the other cores takes turns; then they end.
fn on_cores<T>(
    places: Places,
    setting: Setting,
    turns: &Turns,
    work: impl FnOnce() -> T,
) -> (T, Result<Vec<End>>) {
    // Nobody spins before everybody is on its core.
    let begin = Barrier::new(1 + places.len());
    thread::scope(|scope| {
        let begin = &begin;
        let start = |(core, places): (usize, Vec<Place>)| {
            scope.spawn(move || {
                pin(core);
                begin.wait();
                let here = places.into_iter().map(|place| place.take(setting, turns));
                take_turns(here.collect(), turns)
            })
        };
        let threads: Vec<_> = places.into_iter().map(start).collect();
        begin.wait();
        let done = work();
        turns.stage.set(Phase::Over);
        let mut ends = Vec::new();
        for thread in threads {
            match thread.join().map_err(|_| anyhow!("its thread panicked")).flatten() {
                Ok(more) => ends.extend(more),
                Err(error) => return (done, Err(error)),
            }
        }
        (done, Ok(ends))
    })
}

/// Somebody whose thread has not begun.
enum Place {
    Replica(Box<Seat>),
    Sequencer { end_host: Box<EndHost>, copies: u64, shares: bool, killed: Arc<AtomicBool> },
    Relay { legs: Vec<(Socket, SockaddrIn)>, late: u64 },
}

impl Place {
    /// On its thread.
    fn take(self, setting: Setting, turns: &Turns) -> Box<dyn Turn> {
        match self {
            Place::Replica(seat) => replica(*seat, setting),
            Place::Sequencer { end_host, copies, shares, killed } => {
                let batches = if shares { Batches::default() } else { Batches::of(1) };
                Box::new(Stamper::new(*end_host, batches, copies, turns.clone(), killed))
            }
            Place::Relay { legs, late } => Box::new(Relay::new(legs, late, turns.clone())),
        }
    }
}

/// A replica of the setting's protocol.
fn replica(seat: Seat, setting: Setting) -> Box<dyn Turn> {
    let (me, replicas, clients) = (seat.me, setting.replicas, setting.clients);
    let seed = u64::from(me.0) + 1;
    let identity = Identity { group: GROUP, replica: me, incarnation: Incarnation(1) };
    let config = baselines::Config::new(me, replicas, seed);
    match setting.order {
        Order::Unreplicated => {
            let replica = unreplicated::Replica::create(config);
            Box::new(Member::start(seat, replica, member::baseline(), clients))
        }
        Order::FastPaxos => {
            let replica = fast_paxos::Replica::create(config);
            Box::new(Member::start(seat, replica, member::baseline(), clients))
        }
        Order::SpeculativePaxos => {
            let replica = speculative_paxos::Replica::create(config);
            Box::new(Member::start(seat, replica, member::baseline(), clients))
        }
        Order::Vr | Order::VrBatched => {
            let mut config = vsr::Config::new(identity, replicas, Durability::Memory, seed);
            if setting.order == Order::Vr {
                // One request an entry, and each entry at once.
                config.limits.batch_bytes = 1;
                config.limits.pipeline = u64::MAX;
            }
            Box::new(Member::start(seat, vsr::Replica::new(config), member::vr(), clients))
        }
        Order::Nopaxos => {
            let mut config = nopaxos::Config::new(identity, replicas, Durability::Memory, seed);
            config.limits.sync_every = SYNC_EVERY;
            config.limits.log_bytes = LOG_BYTES;
            Box::new(Member::start(seat, nopaxos::Replica::new(config), member::nopaxos(), clients))
        }
    }
}

/// What was acknowledged has been executed.
fn check(answered: &[u64], reports: &[Report]) -> Result<()> {
    for (client, &answered) in answered.iter().enumerate() {
        let executed = reports.iter().map(|report| report.executed[client]).max().unwrap_or(0);
        ensure!(
            answered <= executed,
            "client {client} was told of {answered} requests, and {executed} were executed"
        );
    }
    Ok(())
}

fn summarise(
    load: &Load,
    took: Duration,
    clients_loop: Outcome,
    sequencer: Option<Outcome>,
    reports: &[Report],
) -> Result<Measured> {
    let requests = load.latencies.len();
    ensure!(requests > 0, "no request was answered: is the machine too busy?");
    let at = |quantile| load.latencies.value_at_quantile(quantile) as f64 / 1e3;
    let max = load.latencies.max() as f64 / 1e3;
    let latency_us = Spread { p50: at(0.5), p99: at(0.99), p999: at(0.999), max };
    // The leader in the end, which is the one of the beginning where nothing went wrong.
    let leads = |report: &&Report| report.report.role == smr::Role::Primary;
    let (first, rest): (Vec<&Report>, Vec<&Report>) = reports.iter().partition(leads);
    let members = first.iter().chain(&rest).map(|report| report.measured).collect();
    let per_second = requests as f64 / took.as_secs_f64();
    Ok(Measured { per_second, requests, latency_us, clients_loop, sequencer, members })
}
