//! `orderbook serve`: one replica of the exchange. The other half of the glue; see `face.rs`.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use anyhow::{Context, Result, ensure};
use clap::{Args, ValueEnum};
use node::{Birth, Event, Node, Options, Ordering, SharedMemory};
use orderbook::Engine;
use orderbook::face::Exchange;
use smr::{GroupId, ReplicaId};

/// What an acknowledgement means.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Durability {
    /// In memory at a quorum; a crash of the whole group loses the state, and the group says so
    Memory,
    /// On disk at a quorum
    Sync,
}

/// How requests are ordered.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Order {
    /// By messages: replicas on any machines
    Vsr,
    /// Through shared memory; the replicas meet in `memory` beside their data: all on one machine,
    /// against the end of processes, with durability memory
    Mu,
}

#[derive(Args)]
pub struct Serve {
    /// This replica's place in the group, from 0
    #[arg(long)]
    id: u8,
    /// Where the replicas reach each other, by id, this one included: host:port,host:port,...
    #[arg(long, value_delimiter = ',', required = true)]
    peers: Vec<String>,
    /// Where to listen for clients: address:port
    #[arg(long, default_value = "127.0.0.1:7600")]
    listen: String,
    /// The data directory; made if missing
    #[arg(long)]
    dir: PathBuf,
    /// What an acknowledgement means
    #[arg(long, value_enum, default_value = "sync")]
    durability: Durability,
    /// How requests are ordered
    #[arg(long, value_enum, default_value = "vsr")]
    order: Order,
    /// Create the group; only for the first start of all its replicas
    #[arg(long)]
    bootstrap: bool,
    /// How long to look for work before sleeping, in microseconds
    #[arg(long, default_value_t = 0)]
    spin_us: u64,
    /// Trade so many commands from a thread of this process, through memory, and print the latency
    #[arg(long)]
    trade: Option<usize>,
    /// Bytes of log between checkpoints. For tests
    #[arg(long, hide = true)]
    checkpoint_bytes: Option<usize>,
    /// Bytes of a log segment. For tests
    #[arg(long, hide = true)]
    segment_bytes: Option<u64>,
}

/// The group that this program creates. Groups whose addresses may mix need ids of their own.
const GROUP: GroupId = GroupId(0x6f72_6465_7262_6f6f);

/// Runs a replica until it is told to stop.
pub fn serve(flags: Serve) -> Result<()> {
    let (id, size) = (flags.id, flags.peers.len());
    ensure!(size <= usize::from(smr::MAX_REPLICAS), "a group has at most 9 replicas");
    ensure!(usize::from(id) < size, "--id {id} has no place among {size} --peers");
    let durability = match flags.durability {
        Durability::Memory => smr::Durability::Memory,
        Durability::Sync => smr::Durability::Sync,
    };
    let birth = if flags.bootstrap { Birth::Bootstrap(GROUP) } else { Birth::Join };
    let listen = flags.listen;
    let replica = ReplicaId(id);
    let mut options =
        Options::new(flags.dir, replica, flags.peers, listen.clone(), durability, birth);
    options.spin = flags.spin_us;
    if flags.order == Order::Mu {
        options.order = Ordering::Mu(SharedMemory::beside(&options.directory));
    }
    if let (Ordering::Vsr { limits, .. }, Some(bytes)) =
        (&mut options.order, flags.checkpoint_bytes)
    {
        limits.checkpoint_bytes = bytes;
    }
    if let Some(bytes) = flags.segment_bytes {
        options.disk.segment_bytes = bytes;
    }
    let stop = Arc::new(AtomicBool::new(false));
    for signal in [signal_hook::consts::SIGTERM, signal_hook::consts::SIGINT] {
        signal_hook::flag::register(signal, Arc::clone(&stop)).context("cannot take signals")?;
    }
    let events = Box::new(move |event: &Event| eprintln!("replica {id}: {event}"));
    let mut node = Node::open(options, Exchange, Engine::default(), events)?;
    if let Some(count) = flags.trade {
        crate::client::trade(count, node.attach());
    }
    eprintln!("replica {id}: the exchange is open on {listen}");
    // The one exit beside being stopped follows from an order that this face never gives.
    node.run(&stop)?;
    Ok(())
}
