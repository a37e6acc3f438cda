//! `lockstep-xdp OBJECT ADDRESS INTERFACE...`: the XDP sequencer, until it is told to stop.

use std::net::SocketAddrV4;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use sequencer::xdp::{Stamping, Xdp};
use signal_hook::consts::{SIGINT, SIGTERM};

const USAGE: &str = "\
Usage: lockstep-xdp OBJECT ADDRESS INTERFACE...

Numbers the requests of groups that order by the network where packets come in, for a controller
(`lockstep controller`) that names ADDRESS among its sequencers.

OBJECT is sequencer/xdp/sequencer.bpf.c, compiled with
  clang -O2 -g -target bpf -mcpu=v3 -I/usr/include/x86_64-linux-gnu -c sequencer.bpf.c
ADDRESS, IPv4:PORT, belongs to this machine; senders send there, through one of the INTERFACEs.
Each member of a group is behind an interface of its own.";

fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("lockstep-xdp: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run() -> Result<(), Box<dyn std::error::Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [object, listen, interfaces @ ..] = &arguments[..] else { return Err(USAGE.into()) };
    let listen: SocketAddrV4 =
        listen.parse().map_err(|_| format!("{listen}: not IPv4:PORT\n\n{USAGE}"))?;
    if interfaces.is_empty() {
        return Err(USAGE.into());
    }
    let stop = Arc::new(AtomicBool::new(false));
    for signal in [SIGTERM, SIGINT] {
        signal_hook::flag::register(signal, Arc::clone(&stop))?;
    }
    let interfaces: Vec<&str> = interfaces.iter().map(String::as_str).collect();
    let events = Box::new(|event: &_| eprintln!("sequencer: {event}"));
    let xdp = Xdp::open(&PathBuf::from(object), listen, &interfaces, Stamping::On, events)
        .map_err(|error| format!("cannot sequence on {listen}: {error}"))?;
    eprintln!("sequencer: stamping messages on {listen} in XDP");
    let counts = xdp.run(&stop)?;
    eprintln!("sequencer: stops; {counts}");
    Ok(())
}
