//! `lockstep serve --standalone`: the single-node store, with the faces of a replica.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use store::{Event, Options, Server};

use crate::cli::{Durability, Serve};
use crate::faces::Faces;
use crate::memcached::Memcached;
use crate::redis::{Bounds, Redis};
use crate::serve::{File, nonce, port_of, side_entrances};

/// The most query threads.
const MAX_THREADS: usize = 256;

/// What only replicas have is not taken in silence.
fn refuse_replicas_flags(flags: &Serve, file: &File) -> Result<()> {
    let foreign = [
        ("id", flags.id.is_some() || file.id.is_some()),
        ("peers", !flags.peers.is_empty() || !file.peers.is_empty()),
        ("bootstrap", flags.bootstrap || file.bootstrap.is_some()),
        ("order", flags.order.is_some() || file.order.is_some()),
        ("group", flags.group.is_some() || file.group.is_some()),
        ("advertise", flags.advertise.is_some() || file.advertise.is_some()),
        ("window", flags.window.is_some() || file.window.is_some()),
        ("memory", flags.memory.is_some() || file.memory.is_some()),
        ("heartbeat-us", flags.heartbeat_us.is_some() || file.heartbeat_us.is_some()),
        ("slot-bytes", flags.slot_bytes.is_some() || file.slot_bytes.is_some()),
        ("multicast", flags.multicast.is_some() || file.multicast.is_some()),
        ("controllers", !flags.controllers.is_empty() || !file.controllers.is_empty()),
        ("datagram-bytes", flags.datagram_bytes.is_some() || file.datagram_bytes.is_some()),
        ("members", !flags.members.is_empty() || !file.members.is_empty()),
        ("spin-us", flags.spin_us.is_some() || file.spin_us.is_some()),
    ];
    for (name, given) in foreign {
        ensure!(!given, "--{name} is for replicas: a --standalone server has none");
    }
    Ok(())
}

/// Runs the store until it is told to stop.
pub fn serve(flags: Serve, file: File, bounds: Bounds, stop: &Arc<AtomicBool>) -> Result<()> {
    refuse_replicas_flags(&flags, &file)?;
    let options = options(flags, file, bounds)?;
    let bounds = Bounds { durability: options.durability, ..bounds };
    let port = port_of(&options.entrances[0])?;
    let memcached_port = options.entrances.get(1).map_or(Ok(0), |at| port_of(at))?;
    let (entrances, threads) = (options.entrances.clone(), options.threads);
    let server = Server::open(options)?;
    let redis = Redis::new(bounds, port, nonce(0));
    let memcached = Memcached::new(bounds, memcached_port, port, threads);
    let face = |thread| Faces { redis: redis.clone(), memcached: memcached.on_thread(thread) };
    eprintln!("standalone: Redis clients come in on {}", entrances[0]);
    for address in &entrances[1..] {
        eprintln!("standalone: memcached clients come in on {address}");
    }
    server.run(stop, face, |event: &Event| eprintln!("standalone: {event}"))?;
    Ok(())
}

fn options(flags: Serve, file: File, bounds: Bounds) -> Result<Options> {
    let durability = flags.durability.or(file.durability).unwrap_or(Durability::Lazy);
    let directory = match (flags.dir.or(file.dir), durability) {
        (Some(directory), _) => directory,
        (None, Durability::Memory) => PathBuf::new(),
        (None, _) => {
            let needed = "--dir (or `dir` in the file) is needed, or --durability memory";
            return None.context(needed);
        }
    };
    let resp = flags.resp.or(file.resp).unwrap_or_else(|| "127.0.0.1:6379".to_owned());
    let side = side_entrances(&resp, flags.memcached_port.or(file.memcached_port));
    let mut options = Options::new(directory, resp, durability.into());
    options.entrances.extend(side);
    options.max_clients = bounds.max_clients;
    options.longest_command = bounds.command_bytes;
    if let Some(threads) = flags.threads.or(file.threads) {
        let allowed = 1..=MAX_THREADS;
        ensure!(allowed.contains(&threads), "--threads must be between 1 and {MAX_THREADS}");
        options.threads = threads;
    }
    if let Some(patience) = flags.command_timeout_ms.or(file.command_timeout_ms) {
        options.patience = Duration::from_millis(patience.max(1));
    }
    if let Some(bytes) = flags.checkpoint_log_bytes.or(file.checkpoint_log_bytes) {
        options.checkpoint_bytes = bytes.max(1 << 16);
    }
    if let Some(bytes) = flags.segment_bytes {
        options.log_step = bytes;
    }
    if flags.unsafe_no_fsync {
        options.syncing = ::io::Syncing::UnsafeOff;
    }
    Ok(options)
}
