//! `lockstep serve`: one replica, from flags and a file.

use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result, bail, ensure};
use node::{Birth, Emulation, Event, Exit, Multicast, Node, Options, Ordering, SharedMemory};
use rustix::process::Signal;
use serde::Deserialize;
use smr::{GroupId, ReplicaId};

use crate::cli::{Durability, Order, Serve};
use crate::faces::Faces;
use crate::memcached::Memcached;
use crate::redis::{Bounds, Redis};
use crate::standalone;

/// The longest command that still fits into a frame with all that goes around it.
const MAX_COMMAND_BYTES: usize = 60 << 20;
/// File descriptors that clients leave to files, peers and native clients: without one for the next
/// segment of the log the replica could not go on.
const RESERVED_FILES: u64 = 64 + node::MAX_NATIVE_CLIENTS as u64;

/// The file's settings. Flags go before them.
#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct File {
    standalone: Option<bool>,
    pub threads: Option<usize>,
    pub checkpoint_log_bytes: Option<u64>,
    pub id: Option<u8>,
    #[serde(default)]
    pub peers: Vec<String>,
    pub resp: Option<String>,
    pub memcached_port: Option<u16>,
    pub advertise: Option<String>,
    pub dir: Option<PathBuf>,
    pub durability: Option<Durability>,
    pub order: Option<Order>,
    pub memory: Option<PathBuf>,
    pub heartbeat_us: Option<u64>,
    pub slot_bytes: Option<usize>,
    pub multicast: Option<String>,
    #[serde(default)]
    pub controllers: Vec<String>,
    pub datagram_bytes: Option<usize>,
    #[serde(default)]
    pub members: Vec<u8>,
    pub bootstrap: Option<bool>,
    pub group: Option<String>,
    max_clients: Option<usize>,
    pub command_timeout_ms: Option<u64>,
    max_command_bytes: Option<usize>,
    pub window: Option<usize>,
    pub spin_us: Option<u64>,
}

/// Runs a replica until it is told to stop.
pub fn serve(flags: Serve) -> Result<()> {
    if let Some(parent) = flags.die_with_parent {
        die_with(parent)?;
    }
    let file = match &flags.config {
        Some(path) => read_file(path)?,
        None => File::default(),
    };
    let max_clients = flags.max_clients.or(file.max_clients).unwrap_or(10_000);
    let max_clients = fit_clients(max_clients, raise_file_limit());
    let command_bytes = flags.max_command_bytes.or(file.max_command_bytes).unwrap_or(32 << 20);
    ensure!(
        (1024..=MAX_COMMAND_BYTES).contains(&command_bytes),
        "max_command_bytes must be between 1024 and {MAX_COMMAND_BYTES}"
    );
    let stop = Arc::new(AtomicBool::new(false));
    for signal in [signal_hook::consts::SIGTERM, signal_hook::consts::SIGINT] {
        signal_hook::flag::register(signal, Arc::clone(&stop)).context("cannot take signals")?;
    }
    if flags.standalone || file.standalone == Some(true) {
        let durability = smr::Durability::Lazy;
        let bounds = Bounds { command_bytes, max_clients, durability, replicas: 1 };
        return standalone::serve(flags, file, bounds, &stop);
    }
    let given = flags.threads.or(file.threads).is_some()
        || flags.checkpoint_log_bytes.or(file.checkpoint_log_bytes).is_some();
    ensure!(!given, "--threads and --checkpoint-log-bytes are for --standalone alone");
    let mut options = options(flags, file)?;
    let (durability, replicas) = (options.durability, options.peers.len());
    let bounds = Bounds { command_bytes, max_clients, durability, replicas };
    options.max_clients = max_clients;
    loop {
        match run(&options, bounds, &stop)? {
            Exit::Stopped => return Ok(()),
            Exit::StartOver(group) => {
                eprintln!("starting over, empty, as group {:016x}", group.0);
                empty(&options.directory)?;
                options.birth = Birth::Bootstrap(group);
            }
        }
    }
}

/// One life of the replica.
fn run(options: &Options, bounds: Bounds, stop: &Arc<AtomicBool>) -> Result<Exit> {
    let fresh = !node::holds_replica(&options.directory);
    let id = options.replica.0;
    if fresh && options.birth == Birth::Join {
        eprintln!(
            "replica {id}: {} is empty: joining as a replacement, to recover from the others (a \
             new group needs --bootstrap)",
            options.directory.display()
        );
    }
    let port = port_of(&options.clients)?;
    let memcached_port = options.side_entrances.first().map_or(Ok(0), |at| port_of(at))?;
    let face = Faces {
        redis: Redis::new(bounds, port, nonce(id)),
        memcached: Memcached::new(bounds, memcached_port, port, 1),
    };
    let service = kv::Store::default();
    let events = Box::new(move |event: &Event| eprintln!("replica {id}: {event}"));
    let node = Node::open(options.clone(), face, service, events)?;
    eprintln!("replica {id}: serving Redis clients on {}", options.clients);
    for address in &options.side_entrances {
        eprintln!("replica {id}: serving memcached clients on {address}");
    }
    Ok(node.run(stop)?)
}

/// Where memcached clients come in: at the same address, on another port.
pub fn side_entrances(clients: &str, memcached_port: Option<u16>) -> Vec<String> {
    let (host, _) = clients.rsplit_once(':').unwrap_or((clients, ""));
    memcached_port.map(|port| format!("{host}:{port}")).into_iter().collect()
}

pub fn port_of(address: &str) -> Result<u16> {
    let port = address.rsplit_once(':').and_then(|(_, port)| port.parse().ok());
    port.with_context(|| format!("{address}: not address:port"))
}

/// Differs from process to process.
pub fn nonce(id: u8) -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let seed = since.as_nanos() as u64 ^ (u64::from(std::process::id()) << 32) ^ u64::from(id);
    smr::rng::Rng::new(seed).next_u64()
}

fn read_file(path: &Path) -> Result<File> {
    let text =
        std::fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))?;
    toml::from_str(&text).with_context(|| format!("{} is not as it should be", path.display()))
}

fn options(mut flags: Serve, mut file: File) -> Result<Options> {
    let of_mu = OfMu::take(&mut flags, &mut file);
    let of_nopaxos = OfNopaxos::take(&mut flags, &mut file);
    let missing = |what: &str| format!("--{what} (or `{what}` in the file) is needed");
    let id = flags.id.or(file.id).with_context(|| missing("id"))?;
    let peers = if flags.peers.is_empty() { file.peers } else { flags.peers };
    ensure!(!peers.is_empty(), missing("peers"));
    ensure!(peers.len() <= usize::from(smr::MAX_REPLICAS), "a group has at most 9 replicas");
    ensure!(
        usize::from(id) < peers.len(),
        "--id {id} has no place among the {} addresses in --peers",
        peers.len()
    );
    let dir = flags.dir.or(file.dir).with_context(|| missing("dir"))?;
    let resp = flags.resp.or(file.resp).unwrap_or_else(|| "127.0.0.1:6379".to_owned());
    let order = flags.order.or(file.order).unwrap_or_default();
    let durability = flags.durability.or(file.durability);
    let durability = durability.unwrap_or(Durability::by_default(order)).into();
    let group = match flags.group.or(file.group) {
        Some(text) => parse_group(&text)?,
        None => group_of(&peers),
    };
    let birth = match flags.bootstrap || file.bootstrap == Some(true) {
        true => Birth::Bootstrap(group),
        false => Birth::Join,
    };
    let mut options = Options::new(dir, ReplicaId(id), peers, resp, durability, birth);
    set_order(&mut options, order, of_mu, of_nopaxos)?;
    let memcached_port = flags.memcached_port.or(file.memcached_port);
    options.side_entrances = side_entrances(&options.clients, memcached_port);
    if let Some(advertise) = flags.advertise.or(file.advertise) {
        options.advertise = advertise;
    }
    if let Some(patience) = flags.command_timeout_ms.or(file.command_timeout_ms) {
        options.patience = Duration::from_millis(patience.max(1));
    }
    if let Some(window) = flags.window.or(file.window) {
        ensure!((1..=32).contains(&window), "--window must be between 1 and 32");
        options.window = window;
    }
    if let Some(spin) = flags.spin_us.or(file.spin_us) {
        options.spin = spin;
    }
    if let Some(bytes) = flags.segment_bytes {
        options.disk.segment_bytes = bytes;
    }
    if let Ordering::Vsr { limits, .. } = &mut options.order {
        limits.checkpoint_bytes = flags.checkpoint_bytes.unwrap_or(limits.checkpoint_bytes);
        limits.lag_bytes = flags.lag_bytes.unwrap_or(limits.lag_bytes);
    }
    options.emulation = emulation(flags.emulate_disk_latency, flags.emulate_disk_stall);
    if options.emulation != Emulation::default() {
        eprintln!("replica {id}: the disk is EMULATED: {:?}", options.emulation);
    }
    if flags.unsafe_no_fsync {
        options.disk.syncing = ::io::Syncing::UnsafeOff;
    }
    Ok(options)
}

/// A slower disk than there is, by microseconds and by milliseconds out of so many.
fn emulation(latency: Option<u64>, stall: Option<(u64, u64)>) -> Emulation {
    let (stall, every) = stall.unwrap_or_default();
    Emulation {
        latency: Duration::from_micros(latency.unwrap_or_default()),
        stall: Duration::from_millis(stall),
        every: Duration::from_millis(every),
    }
}

/// Settings of `--order mu`.
#[derive(PartialEq, Eq)]
struct OfMu {
    memory: Option<PathBuf>,
    heartbeat_us: Option<u64>,
    slot_bytes: Option<usize>,
    members: Vec<u8>,
}

/// Settings of `--order nopaxos`.
#[derive(PartialEq, Eq)]
struct OfNopaxos {
    multicast: Option<String>,
    controllers: Vec<String>,
    datagram_bytes: Option<usize>,
}

impl OfMu {
    const NONE: OfMu =
        OfMu { memory: None, heartbeat_us: None, slot_bytes: None, members: Vec::new() };

    fn take(flags: &mut Serve, file: &mut File) -> OfMu {
        let named = if flags.members.is_empty() { &mut file.members } else { &mut flags.members };
        OfMu {
            members: std::mem::take(named),
            memory: flags.memory.take().or(file.memory.take()),
            heartbeat_us: flags.heartbeat_us.or(file.heartbeat_us),
            slot_bytes: flags.slot_bytes.or(file.slot_bytes),
        }
    }
}

impl OfNopaxos {
    const NONE: OfNopaxos =
        OfNopaxos { multicast: None, controllers: Vec::new(), datagram_bytes: None };

    fn take(flags: &mut Serve, file: &mut File) -> OfNopaxos {
        let named = if flags.controllers.is_empty() {
            &mut file.controllers
        } else {
            &mut flags.controllers
        };
        OfNopaxos {
            multicast: flags.multicast.take().or(file.multicast.take()),
            controllers: std::mem::take(named),
            datagram_bytes: flags.datagram_bytes.or(file.datagram_bytes),
        }
    }
}

fn set_order(options: &mut Options, order: Order, of_mu: OfMu, of: OfNopaxos) -> Result<()> {
    ensure!(
        order == Order::Mu || of_mu == OfMu::NONE,
        "--memory, --heartbeat-us, --slot-bytes and --members are for --order mu alone"
    );
    ensure!(
        order == Order::Nopaxos || of == OfNopaxos::NONE,
        "--multicast, --controllers and --datagram-bytes are for --order nopaxos alone"
    );
    match order {
        Order::Vsr => {}
        Order::Mu => {
            let beside = || SharedMemory::beside(&options.directory);
            let mut shared = of_mu.memory.map_or_else(beside, SharedMemory::new);
            shared.heartbeat = of_mu.heartbeat_us.unwrap_or(shared.heartbeat);
            shared.slot_bytes = of_mu.slot_bytes.unwrap_or(shared.slot_bytes);
            shared.members = of_mu.members.into_iter().map(ReplicaId).collect();
            options.order = Ordering::Mu(shared);
        }
        Order::Nopaxos => {
            let needed = "--order nopaxos needs --multicast (this replica's UDP address) and \
                          --controllers";
            ensure!(!of.controllers.is_empty(), needed);
            let address = of.multicast.context(needed)?;
            let mut multicast = Multicast::new(address, of.controllers);
            multicast.datagram_bytes = of.datagram_bytes.unwrap_or(multicast.datagram_bytes);
            options.order = Ordering::Nopaxos(multicast);
        }
    }
    Ok(())
}

/// Parses a group's id.
pub fn parse_group(text: &str) -> Result<GroupId> {
    match u64::from_str_radix(text, 16) {
        Ok(id) if id != 0 => Ok(GroupId(id)),
        _ => bail!("{text}: a group's id is 1 to 16 hexadecimal digits, and not zero"),
    }
}

/// The id of the group that is created without one: from its addresses, so that all its replicas
/// find the same and others do not (FNV-1a).
pub fn group_of(peers: &[String]) -> GroupId {
    let bytes = peers.iter().flat_map(|peer| peer.bytes().chain([b',']));
    let hash = bytes.fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    });
    GroupId(hash.max(1))
}

/// Removes what a data directory holds. Wherever a crash interrupts it, the directory can be
/// started from: the log goes at once and the identity last, and an identity without a log is a
/// replica that has lost its disk and recovers.
fn empty(directory: &Path) -> Result<()> {
    const ASIDE: &str = "log.aside";
    let aside = directory.join(ASIDE);
    remove(&aside)?;
    let log = directory.join("log");
    if log.exists() {
        std::fs::rename(&log, &aside)
            .with_context(|| format!("cannot rename {}", log.display()))?;
    }
    sync(directory)?;
    let entries = std::fs::read_dir(directory);
    for entry in entries.with_context(|| format!("cannot read {}", directory.display()))? {
        let entry = entry?;
        if entry.file_name() != "identity" {
            remove(&entry.path())?;
        }
    }
    sync(directory)?;
    remove(&directory.join("identity"))?;
    sync(directory)
}

/// Removes a file or a directory, if it is there.
fn remove(path: &Path) -> Result<()> {
    let removed = match path.is_dir() {
        true => std::fs::remove_dir_all(path),
        false => std::fs::remove_file(path),
    };
    match removed {
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
        removed => removed.with_context(|| format!("cannot remove {}", path.display())),
    }
}

/// Makes what happened to a directory's names survive a loss of power.
fn sync(directory: &Path) -> Result<()> {
    std::fs::File::open(directory)
        .and_then(|opened| opened.sync_all())
        .with_context(|| format!("cannot sync {}", directory.display()))
}

/// Makes the kernel end this process when its parent ends.
pub fn die_with(parent: i32) -> Result<()> {
    rustix::process::set_parent_process_death_signal(Some(Signal::KILL))
        .context("cannot follow the parent")?;
    // It may have ended before that took effect.
    let now = rustix::process::getppid();
    ensure!(now.is_some_and(|pid| pid.as_raw_pid() == parent), "the parent has ended");
    Ok(())
}

/// Connections need file descriptors: takes as many as the system allows. Returns how many.
fn raise_file_limit() -> u64 {
    use rustix::process::{Resource, getrlimit, setrlimit};
    let mut limit = getrlimit(Resource::Nofile);
    limit.current = limit.maximum;
    // Fewer only mean fewer clients.
    let _ = setrlimit(Resource::Nofile, limit);
    getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX)
}

/// How many of `wanted` clients there are file descriptors for, of which the process has `files`.
fn fit_clients(wanted: usize, files: u64) -> usize {
    let room = usize::try_from(files.saturating_sub(RESERVED_FILES)).unwrap_or(usize::MAX).max(1);
    if wanted > room {
        eprintln!(
            "the system allows {files} open files: at most {room} clients are taken, not {wanted} \
             (raise the hard limit, as with ulimit -Hn)"
        );
    }
    wanted.min(room)
}
