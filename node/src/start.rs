//! Starting a node: the data directory, the state on it, the addresses.

use std::net::TcpListener;
use std::path::Path;
use std::time::Duration;

use ::io::{Directory, Format, LogWriter, Opened};
use smr::client::Retry;
use smr::executor::Executor;
use smr::{
    ClientId, Durability, GroupId, Host, Identity, Incarnation, Input, Now, OpNumber, OrderedBy,
    Protocol, StateMachine, StoreNumber, Trust, View,
};
use wire::Hello;

use crate::clock;
use crate::disk::{Disk, Space};
use crate::event::Event;
use crate::face::{Face, Status};
use crate::family::Family;
use crate::gateway::{Bounds, Gateway};
use crate::hello::ask_group;
use crate::inbound::Arrived;
use crate::machine::{Machine, Outgoing};
use crate::options::{Birth, Multicast, Ordering};
use crate::peers::Peers;
use crate::poll::{Interest, Poll, Token};
use crate::replica::{Core, Pulse};
use crate::sessions::Sessions;
use crate::snapshots::Snapshots;
use crate::{Error, Options};

/// Batches under way have at most this many bytes together, or one command's.
const FLYING_BYTES: usize = 64 << 20;
/// How long a replica that is to join waits for a peer that says which group it is.
const JOIN_PATIENCE: Duration = Duration::from_secs(20);
const JOIN_PAUSE: Duration = Duration::from_millis(100);
/// In durability `lazy` a disk is forced this often, unless somebody waits for it: a longer pause
/// saves processor time, and makes the tail longer that a crash of all may take.
const LAZY_PACE: Duration = Duration::from_millis(3);
/// When a gateway asks again where a fail-over takes milliseconds.
const MU_RETRY: Retry = Retry { silence: 40_000, refusal: 500 };
/// When a gateway first sends a request again that may have been dropped on the way to the
/// sequencer, in microseconds.
const NOPAXOS_RETRY: u64 = 20_000;

/// What a protocol is set up with.
pub(crate) struct Setting<'a> {
    pub options: &'a Options,
    /// Who this replica is, as it says to others.
    pub hello: &'a Hello,
    pub poll: &'a Poll,
    pub now: Now,
}

impl<F: Face, P: Family> Core<F, P> {
    /// Opens the data directory (or makes it, as [`Options::birth`] says), loads its state into
    /// `service` and listens. `events` is told what an operator should know. `order` sets up the
    /// protocol.
    pub fn open(
        options: Options,
        face: F,
        service: F::Service,
        mut events: Box<dyn FnMut(&Event)>,
        order: impl FnOnce(&Setting<'_>) -> Result<(P, P::Replica), Error>,
    ) -> Result<Core<F, P>, Error> {
        // The addresses first: a start that fails must not use up a life.
        let own = &options.peers[options.replica.index()];
        let peers_listener = listen(own, "replicas")?;
        let entrances = [&options.clients].into_iter().chain(&options.side_entrances);
        let clients_listeners =
            entrances.map(|address| listen(address, "clients")).collect::<Result<Vec<_>, _>>()?;
        format_if_new(&options)?;
        let opened = Directory::open(&options.directory, options.disk)?;
        check(&options, &opened)?;
        for finding in &opened.findings {
            events(&Event::Disk(finding.to_string()));
        }
        let Opened { directory, identity: on_disk, recovered, log, .. } = opened;
        let mut executor = Executor::new(service);
        if recovered.checkpoint.is_some() {
            load(&directory, &mut executor)?;
        }
        let parts = Parts { directory, log, executor, lost: on_disk.lost };
        let listeners = (peers_listener, clients_listeners);
        let mut node =
            Core::assemble(options, on_disk.identity(), face, parts, listeners, events, order)?;
        node.host.step(node.now, Input::Start(recovered), &mut node.effects);
        Ok(node)
    }

    /// Puts the node together around what was on disk.
    fn assemble(
        options: Options,
        identity: Identity,
        face: F,
        parts: Parts<F::Service>,
        (peers_listener, clients_listeners): (TcpListener, Vec<TcpListener>),
        events: Box<dyn FnMut(&Event)>,
        order: impl FnOnce(&Setting<'_>) -> Result<(P, P::Replica), Error>,
    ) -> Result<Core<F, P>, Error> {
        let os = |error| Error::Os("set up the event loop", error);
        let poll = Poll::new().map_err(os)?;
        watch_entrances(&poll, &clients_listeners).map_err(os)?;
        let (replicas, now) = (options.peers.len() as u8, clock::now());
        let hello = hello(&options, identity, P::ORDERED_BY);
        let (family, replica) =
            order(&Setting { options: &options, hello: &hello, poll: &poll, now })?;
        let host = Host::new(replica, parts.executor);
        let report = host.protocol().report();
        let mut status = Status {
            identity,
            replicas,
            ordered_by: P::ORDERED_BY,
            view_number: P::view_number(report.view),
            memory: None,
            multicast: None,
            report,
            started_at: now.micros,
            disk_full: false,
            loading: false,
            clients: options.advertise.clone(),
            peers: Vec::new(),
        };
        family.describe(host.protocol(), &mut status);
        let (max_clients, output_bytes) = (options.max_clients, options.output_bytes);
        Ok(Core {
            gateway: gateway(&options, identity),
            peers: Peers::start(hello, peers_listener, &options.peers, &poll).map_err(os)?,
            sessions: Sessions::new(face, clients_listeners, max_clients, output_bytes),
            disk: disk(&options, parts.log, &poll).map_err(os)?,
            snapshots: Snapshots::start(parts.directory, poll.waker()).map_err(os)?,
            status,
            options,
            poll,
            family,
            host,
            now,
            effects: Vec::new(),
            outgoing: Outgoing::default(),
            arrived: Arrived::default(),
            issued: StoreNumber(0),
            stored: StoreNumber(0),
            lost: parts.lost,
            recovered_at: None,
            followed: View::default(),
            snapshotting: false,
            installing: false,
            snapshot_retry: None,
            relief_at: 0,
            relieved: OpNumber(0),
            status_at: 0,
            pulse: Pulse { last: Token::Wake, events: 0, since: 0 },
            eager: 0,
            exit: None,
            failure: None,
            events,
        })
    }
}

/// What the data directory gave.
struct Parts<S: StateMachine> {
    directory: Directory,
    log: LogWriter,
    executor: Executor<S>,
    /// The disk is marked as having lost something.
    lost: bool,
}

/// What the replica says to others of itself.
fn hello(options: &Options, identity: Identity, order: OrderedBy) -> Hello {
    Hello {
        identity,
        replicas: options.peers.len() as u8,
        durability: options.durability,
        order,
        longest_body: longest_body(options) as u32,
        clients: options.advertise.clone(),
    }
}

fn disk(options: &Options, log: LogWriter, poll: &Poll) -> std::io::Result<Disk> {
    let space = (options.durability != Durability::Memory)
        .then(|| Space::new(options.directory.clone(), options.disk.segment_bytes));
    let lazy = options.durability == Durability::Lazy;
    let pace = if lazy { LAZY_PACE } else { Duration::ZERO };
    Disk::start(log, space, options.emulation, pace, poll.waker())
}

/// The longest body of a request, in bytes.
fn longest_body(options: &Options) -> usize {
    match &options.order {
        Ordering::Vsr { .. } => wire::LONGEST_BODY,
        Ordering::Mu(shared) => shared.longest_body(),
        Ordering::Nopaxos(_) => Multicast::LONGEST_BODY,
    }
}

fn machine(options: &Options, client: ClientId) -> Machine {
    let replicas = options.peers.len() as u8;
    match &options.order {
        Ordering::Vsr { timing, .. } => {
            Machine::asking(client, replicas, Retry::after(timing.retry))
        }
        Ordering::Mu(_) => Machine::asking(client, replicas, MU_RETRY),
        Ordering::Nopaxos(multicast) => {
            Machine::counting(client, replicas, NOPAXOS_RETRY, multicast.datagram_bytes)
        }
    }
}

fn flying_bytes(options: &Options) -> usize {
    match &options.order {
        Ordering::Vsr { .. } | Ordering::Mu(_) => FLYING_BYTES,
        Ordering::Nopaxos(_) => Multicast::FLYING_BYTES,
    }
}

fn gateway(options: &Options, identity: Identity) -> Gateway {
    let Identity { replica, incarnation, .. } = identity;
    let client = ClientId { gateway: u32::from(replica.0), incarnation };
    let bounds = Bounds {
        depth: options.window,
        flying_bytes: flying_bytes(options),
        longest_body: longest_body(options),
        patience: options.patience.as_micros() as u64,
        durability: options.durability,
    };
    Gateway::new(machine(options, client), bounds)
}

fn watch_entrances(poll: &Poll, listeners: &[TcpListener]) -> std::io::Result<()> {
    for (listener, entrance) in listeners.iter().zip(0..) {
        listener.set_nonblocking(true)?;
        poll.add(listener, Token::Clients(entrance), Interest::READ)?;
    }
    Ok(())
}

fn listen(address: &str, purpose: &'static str) -> Result<TcpListener, Error> {
    TcpListener::bind(address).map_err(|source| Error::Listen {
        address: address.to_owned(),
        purpose,
        source,
    })
}

/// Makes the data directory if there is none.
fn format_if_new(options: &Options) -> Result<(), Error> {
    if holds_replica(&options.directory) {
        return Ok(());
    }
    // The lives of the disk whose place this one takes were counted by ones, from zero or from an
    // earlier replacement's time: the present time in seconds is above them all.
    let (group, trust, lives) = match options.birth {
        Birth::Bootstrap(group) => (group, Trust::New, 0),
        Birth::Join => (find_group(options)?, Trust::Lost, clock::now().unix_ms / 1000),
    };
    let format = Format {
        group,
        replica: options.replica,
        replicas: options.peers.len() as u8,
        durability: options.durability,
        ordered_by: options.order.by(),
        trust,
        incarnation: Incarnation(lives),
    };
    Ok(Directory::create(&options.directory, &format)?)
}

/// Whether there is a replica's data in the directory.
pub fn holds_replica(directory: &Path) -> bool {
    directory.join("identity").exists() || directory.join("log").exists()
}

/// Asks the peers which group they are, for a while: they may be starting, too.
fn find_group(options: &Options) -> Result<GroupId, Error> {
    let end = std::time::Instant::now() + JOIN_PATIENCE;
    loop {
        let others = options.peers.iter().enumerate();
        for (_, address) in others.filter(|&(index, _)| index != options.replica.index()) {
            if let Ok(hello) = ask_group(address) {
                return Ok(hello.identity.group);
            }
        }
        if std::time::Instant::now() >= end {
            return Err(Error::NoGroup);
        }
        std::thread::sleep(JOIN_PAUSE);
    }
}

/// Whether the directory is the one that the options mean.
fn check(options: &Options, opened: &Opened) -> Result<(), Error> {
    let found = &opened.identity;
    if found.replica != options.replica {
        return Err(Error::replica(found.replica, options.replica));
    }
    if usize::from(found.replicas) != options.peers.len() {
        return Err(Error::Mismatch {
            what: "a group of size",
            found: found.replicas.to_string(),
            asked: options.peers.len().to_string(),
        });
    }
    let (order, asked) = (found.ordered_by, options.order.by());
    if order != asked {
        let (found, asked) = (order.name().to_owned(), asked.name().to_owned());
        return Err(Error::Mismatch { what: "a group ordered by", found, asked });
    }
    if found.durability != options.durability {
        return Err(Error::durability(found.durability, options.durability));
    }
    Ok(())
}

/// Loads the checkpoint on disk, which the directory has verified.
fn load<S: StateMachine>(directory: &Directory, executor: &mut Executor<S>) -> Result<(), Error> {
    let Some(mut reader) = directory.read_checkpoint()? else { return Ok(()) };
    executor.restore_begin();
    let mut number = 0;
    while let Some(chunk) = reader.next_chunk()? {
        executor.restore_chunk(number, &chunk).map_err(|_| Error::BadCheckpoint)?;
        number += 1;
    }
    Ok(())
}
