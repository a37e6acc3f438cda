//! `lockstep sequencer`: an end-host sequencer, until it is told to stop.

use std::net::{SocketAddr, ToSocketAddrs};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use anyhow::{Context, Result};
use sequencer::{EndHost, Event};

use crate::cli::Sequencer;
use crate::serve::die_with;

pub fn sequencer(flags: &Sequencer) -> Result<()> {
    if let Some(parent) = flags.die_with_parent {
        die_with(parent)?;
    }
    let stop = Arc::new(AtomicBool::new(false));
    for signal in [signal_hook::consts::SIGTERM, signal_hook::consts::SIGINT] {
        signal_hook::flag::register(signal, Arc::clone(&stop)).context("cannot take signals")?;
    }
    let listen = resolve(&flags.listen).context("--listen")?;
    let events = Box::new(|event: &Event| eprintln!("sequencer: {event}"));
    let end_host = EndHost::open(listen, events)
        .with_context(|| format!("cannot listen on {listen} over UDP (another sequencer?)"))?;
    eprintln!("sequencer: stamping messages on {}", end_host.address()?);
    let counts = end_host.run(Duration::from_micros(flags.spin_us), &stop)?;
    eprintln!("sequencer: stops; {counts}");
    Ok(())
}

/// The address that a `host:port` stands for.
pub fn resolve(text: &str) -> Result<SocketAddr> {
    let found = text.to_socket_addrs();
    let mut found = found.with_context(|| format!("{text}: not address:port, or not known"))?;
    found.next().with_context(|| format!("{text}: no address is known for it"))
}
