//! `lockstep demo`: a group of real processes on this machine, watched: what dies is started again,
//! and what happens is told.
//!
//! Invariant: no replica outlives the demo, however the demo ends (the kernel sees to it).

use std::net::{TcpListener, UdpSocket};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, bail, ensure};
use serde_json::json;

use crate::cli::{Demo, Durability, Order};
use crate::link::Link;
use crate::supervise::{Group, Part};

/// How long the group may take until it serves.
const READY: Duration = Duration::from_secs(15);
const POLL: Duration = Duration::from_millis(10);
/// Peers' ports are this far above those for clients; so are, over UDP, those for ordered messages.
const PEER_PORTS: u16 = 100;
/// The sequencers' ports (UDP), from here above those for clients, and how many there are: one is
/// chosen, and the others wait for its end.
const SEQUENCER_PORTS: u16 = 110;
pub const SEQUENCERS: u8 = 2;
/// The controller's port for members (UDP), and the one for operators.
const CONTROLLER_PORT: u16 = 120;
const CONTROLLER_FACE: u16 = 130;

/// What a demo's directory remembers.
pub struct Plan {
    pub replicas: u8,
    pub durability: &'static str,
    pub order: Order,
    pub group: String,
    pub port: u16,
    pub memcached_port: Option<u16>,
    pub dir: PathBuf,
    /// The group has served: an empty directory is a lost disk from now on.
    pub created: bool,
}

impl Plan {
    pub fn resp(&self, id: u8) -> String {
        format!("127.0.0.1:{}", self.port + u16::from(id))
    }

    pub fn peer(&self, id: u8) -> String {
        format!("127.0.0.1:{}", self.port + PEER_PORTS + u16::from(id))
    }

    /// Where its memcached clients come in, if they do.
    pub fn memcached_port(&self, id: u8) -> Option<u16> {
        self.memcached_port.map(|port| port + u16::from(id))
    }

    fn memcached(&self, id: u8) -> Option<String> {
        self.memcached_port(id).map(|port| format!("127.0.0.1:{port}"))
    }

    fn at(&self, offset: u16) -> String {
        format!("127.0.0.1:{}", self.port + offset)
    }

    /// Where the sequencer with this id is.
    pub fn sequencer(&self, id: u8) -> String {
        self.at(SEQUENCER_PORTS + u16::from(id))
    }

    /// Where members reach the controller.
    pub fn controller(&self) -> String {
        self.at(CONTROLLER_PORT)
    }

    /// Where operators reach the controller.
    pub fn controller_face(&self) -> String {
        self.at(CONTROLLER_FACE)
    }

    /// Everything that is to run.
    pub fn parts(&self) -> Vec<Part> {
        let (sequencers, controller) = match self.order {
            Order::Nopaxos => (SEQUENCERS, Some(Part::Controller)),
            Order::Vsr | Order::Mu => (0, None),
        };
        let sequencers = (0..sequencers).map(Part::Sequencer).chain(controller);
        sequencers.chain((0..self.replicas).map(Part::Replica)).collect()
    }

    /// Writes `demo.json`.
    pub fn save(&self, pids: &[(Part, Option<u32>)]) -> Result<()> {
        let pid = |part| pids.iter().find(|(of, _)| *of == part).and_then(|(_, pid)| *pid);
        let members = (0..self.replicas).map(|id| {
            json!({
                "id": id,
                "pid": pid(Part::Replica(id)),
                "resp": self.resp(id),
                "memcached": self.memcached(id),
                "peer": self.peer(id),
                "dir": self.dir.join(id.to_string()),
            })
        });
        let sequencers = pids.iter().filter_map(|(part, pid)| match part {
            Part::Sequencer(id) => Some(json!({ "pid": pid, "address": self.sequencer(*id) })),
            Part::Replica(_) | Part::Controller => None,
        });
        let text = serde_json::to_string_pretty(&json!({
            "replicas": self.replicas,
            "durability": self.durability,
            "order": self.order.name(),
            "group": self.group,
            "port": self.port,
            "created": self.created,
            "demo_pid": std::process::id(),
            "members": members.collect::<Vec<_>>(),
            "sequencers": sequencers.collect::<Vec<_>>(),
            "controller": pid(Part::Controller),
        }))?;
        let (path, fresh) = (self.dir.join("demo.json"), self.dir.join("demo.json.new"));
        std::fs::write(&fresh, text + "\n")
            .and_then(|()| std::fs::rename(&fresh, &path))
            .with_context(|| format!("cannot write {}", path.display()))
    }
}

pub fn demo(flags: &Demo) -> Result<()> {
    let stop = Arc::new(AtomicBool::new(false));
    for signal in [signal_hook::consts::SIGTERM, signal_hook::consts::SIGINT] {
        signal_hook::flag::register(signal, Arc::clone(&stop)).context("cannot take signals")?;
    }
    let temporary = flags.dir.is_none();
    let mut plan = plan(flags)?;
    let done = check_ports(&plan).and_then(|()| run(&mut plan, &stop));
    if temporary {
        let _ = std::fs::remove_dir_all(&plan.dir);
    }
    done
}

fn run(plan: &mut Plan, stop: &AtomicBool) -> Result<()> {
    let started = Instant::now();
    let mut group = Group::start(plan)?;
    while !group.serves() {
        if stop.load(Relaxed) {
            return group.stop();
        }
        let dead = group.dead();
        if !dead.is_empty() || started.elapsed() > READY {
            let what = match dead.first() {
                Some(part) => format!("{part} has ended"),
                None => "the group does not serve".to_owned(),
            };
            let log = group.log_tail(dead.first().copied().unwrap_or(Part::Replica(0)));
            group.stop()?;
            bail!("{what}; its last words:\n{log}");
        }
        std::thread::sleep(POLL);
    }
    plan.created = true;
    plan.save(&group.pids())?;
    greet(plan, started.elapsed());
    while !stop.load(Relaxed) {
        group.watch(plan)?;
        std::thread::sleep(POLL);
    }
    println!("stopping");
    group.stop()
}

fn greet(plan: &Plan, took: Duration) {
    let port = plan.port;
    let ports: Vec<String> = (0..plan.replicas).map(|id| plan.resp(id)).collect();
    println!(
        "ready: {} replicas, order {}, durability {}, after {} ms; data in {}",
        plan.replicas,
        plan.order.name(),
        plan.durability,
        took.as_millis(),
        plan.dir.display()
    );
    println!("  Redis clients connect to any of {}", ports.join(" "));
    let memcached: Vec<String> = (0..plan.replicas).filter_map(|id| plan.memcached(id)).collect();
    if !memcached.is_empty() {
        println!("  memcached clients connect to any of {}", memcached.join(" "));
    }
    if plan.order == Order::Nopaxos {
        let sequencers: Vec<String> = (0..SEQUENCERS).map(|id| plan.sequencer(id)).collect();
        let (sequencers, controller) = (sequencers.join(" "), plan.controller_face());
        println!(
            "  sequencers at {sequencers} (UDP); the controller for operators at {controller}"
        );
    }
    println!("  redis-cli -p {port} set greeting hello");
    println!("  redis-cli -p {} get greeting", port + u16::from(plan.replicas.min(2)) - 1);
    println!("  redis-cli -p {port} krange a z");
    let program = std::env::args().next().unwrap_or_else(|| "lockstep".to_owned());
    println!("  {program} status --port {port}");
    let fault = if plan.order == Order::Nopaxos { "kill-sequencer" } else { "kill-random" };
    println!("  {program} chaos {fault} --port {port}");
    println!("  Ctrl-C stops the group");
}

/// What is to be run: from the flags, or from the directory.
fn plan(flags: &Demo) -> Result<Plan> {
    let last = u32::from(flags.port) + u32::from(CONTROLLER_FACE);
    ensure!(flags.port > 0 && last < 65_536, "--port {}: too high", flags.port);
    if let Some(port) = flags.memcached_port {
        let last = u32::from(port) + u32::from(flags.replicas);
        ensure!(port > 0 && last <= 65_536, "--memcached-port {port}: too high, or zero");
    }
    let dir = match &flags.dir {
        Some(dir) => dir.clone(),
        None => std::env::temp_dir().join(format!("lockstep-demo-{}", std::process::id())),
    };
    std::fs::create_dir_all(&dir).with_context(|| format!("cannot make {}", dir.display()))?;
    let dir = dir.canonicalize()?;
    let durability = flags.durability.unwrap_or(Durability::by_default(flags.order));
    let mut plan = Plan {
        replicas: flags.replicas,
        durability: smr::Durability::from(durability).name(),
        order: flags.order,
        group: format!("{:016x}", crate::serve::nonce(0).max(1)),
        port: flags.port,
        memcached_port: flags.memcached_port,
        dir,
        created: false,
    };
    let path = plan.dir.join("demo.json");
    if path.exists() {
        resume(&mut plan, &path)?;
    }
    Ok(plan)
}

/// Goes on with what the directory holds.
fn resume(plan: &mut Plan, path: &Path) -> Result<()> {
    let text = std::fs::read_to_string(path);
    let text = text.with_context(|| format!("cannot read {}", path.display()))?;
    let held: serde_json::Value =
        serde_json::from_str(&text).with_context(|| format!("{} is damaged", path.display()))?;
    let dir = plan.dir.display();
    if held["replicas"] != plan.replicas {
        bail!(
            "{dir} holds a group of {} replicas, not {}: give --replicas {0}, or another --dir",
            held["replicas"],
            plan.replicas
        );
    }
    let durability = held["durability"].as_str().unwrap_or_default();
    if durability != plan.durability {
        bail!(
            "{dir} holds a group of durability {durability}, not {}: give --durability \
             {durability}, or another --dir",
            plan.durability
        );
    }
    // Directories of former releases do not say.
    let order = held["order"].as_str().unwrap_or("vsr");
    if order != plan.order.name() {
        bail!(
            "{dir} holds a group that orders by {order}, not {}: give --order {order}, or another \
             --dir",
            plan.order.name()
        );
    }
    // The controller knows where its members are.
    if plan.order == Order::Nopaxos && held["port"] != plan.port {
        bail!("{dir} holds a group on port {0}: give --port {0}, or another --dir", held["port"]);
    }
    plan.group = held["group"].as_str().unwrap_or_default().to_owned();
    plan.created = held["created"].as_bool().unwrap_or(false);
    crate::serve::parse_group(&plan.group)
        .with_context(|| format!("{} is damaged", path.display()))?;
    Ok(())
}

fn check_ports(plan: &Plan) -> Result<()> {
    let ids = || 0..plan.replicas;
    let taken = |address: &str, error: std::io::Error| {
        let last = u16::from(plan.replicas) - 1;
        let end = match plan.order {
            Order::Nopaxos => CONTROLLER_FACE,
            Order::Vsr | Order::Mu => PEER_PORTS + last,
        };
        anyhow!(
            "{address}: {error}; the demo needs ports {} to {} and {} to {}{}: stop what uses them \
             (another demo?), or choose others with --port and --memcached-port",
            plan.port,
            plan.port + last,
            plan.port + PEER_PORTS,
            plan.port + end,
            plan.memcached_port
                .map_or(String::new(), |port| format!(" and {port} to {}", port + last)),
        )
    };
    let mut streams: Vec<String> = ids().map(|id| plan.resp(id)).collect();
    streams.extend(ids().map(|id| plan.peer(id)));
    streams.extend(ids().filter_map(|id| plan.memcached(id)));
    let mut datagrams = Vec::new();
    if plan.order == Order::Nopaxos {
        streams.extend([plan.controller(), plan.controller_face()]);
        datagrams.extend(ids().map(|id| plan.peer(id)));
        datagrams.extend((0..SEQUENCERS).map(|id| plan.sequencer(id)));
        datagrams.push(plan.controller());
    }
    // Held until all are there, so that no two purposes can have the same one.
    let mut held = Vec::new();
    for address in streams {
        held.push(TcpListener::bind(&address).map_err(|error| taken(&address, error))?);
    }
    let mut held = Vec::new();
    for address in datagrams {
        held.push(UdpSocket::bind(&address).map_err(|error| taken(&address, error))?);
    }
    Ok(())
}

/// A command through a replica that must pass the group: proof that it serves.
pub fn proves_service(address: &str) -> bool {
    let read = Link::connect(address, Duration::from_millis(500))
        .and_then(|mut link| link.call(&["GET", "lockstep:ready"]));
    read.is_ok_and(|reply| !matches!(reply, resp::Value::Error(_)))
}
