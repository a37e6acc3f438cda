//! `lockstep-p4 THRIFT_PORT ADDRESS HOST...`: the control plane of the sequencer in a P4 switch,
//! until it is told to stop.

use std::net::{SocketAddrV4, UdpSocket};
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use sequencer::p4::{self, Host};
use signal_hook::consts::{SIGINT, SIGTERM};

const USAGE: &str = "\
Usage: lockstep-p4 THRIFT_PORT ADDRESS HOST...

Has a switch that runs sequencer/p4/sequencer.p4 number the requests of groups that order by the
network, for a controller (`lockstep controller`) that names ADDRESS among its sequencers. The
switch's tables are emptied first. For bmv2:
  p4c-bm2-ss --p4v 16 -o sequencer.json sequencer.p4
  simple_switch -i 1@PORT1 -i 2@PORT2 --thrift-port 9090 sequencer.json

THRIFT_PORT is the switch's on this machine; simple_switch_CLI is used to speak to it.
ADDRESS, IPv4:PORT, belongs to this machine; senders and the controller send there, through the
switch.
HOST, IPv4=PORT,HARDWARE, is this machine and each member of a group: where in the switch, and its
hardware address: 10.0.0.3=2,02:00:00:00:00:03.";

fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("lockstep-p4: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run() -> Result<(), Box<dyn std::error::Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [thrift, listen, hosts @ ..] = &arguments[..] else { return Err(USAGE.into()) };
    let thrift: u16 = thrift.parse().map_err(|_| format!("{thrift}: not a port\n\n{USAGE}"))?;
    let listen: SocketAddrV4 =
        listen.parse().map_err(|_| format!("{listen}: not IPv4:PORT\n\n{USAGE}"))?;
    let hosts = hosts.iter().map(|host| host.parse()).collect::<Result<Vec<Host>, _>>()?;
    let stop = Arc::new(AtomicBool::new(false));
    for signal in [SIGTERM, SIGINT] {
        signal_hook::flag::register(signal, Arc::clone(&stop))?;
    }
    let ask = p4::command_line(thrift)
        .map_err(|error| format!("no switch at port {thrift} (simple_switch_CLI): {error}"))?;
    let socket = UdpSocket::bind(listen)
        .map_err(|error| format!("cannot listen on {listen} over UDP: {error}"))?;
    let events = Box::new(|event: &_| eprintln!("sequencer: {event}"));
    let switch = p4::Switch::open(ask, listen, hosts, socket, events)?;
    eprintln!("sequencer: stamping messages to {listen} in the switch");
    let counts = switch.run(&stop)?;
    eprintln!("sequencer: stops; {counts}");
    Ok(())
}
