//! `lockstep controller`: one controller, until it is told to stop.

use std::io::{BufRead, BufReader, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use controller::{Addresses, Options, Timing, group_id};
use node::Birth;
use smr::{Durability, GroupId, MAX_REPLICAS, ReplicaId};

use crate::cli::Controller;
use crate::sequencer::resolve;
use crate::serve::{die_with, group_of};

/// How long an operator's command may take.
const PATIENCE: Duration = Duration::from_secs(10);

pub fn controller(flags: Controller) -> Result<()> {
    if let Some(parent) = flags.die_with_parent {
        die_with(parent)?;
    }
    let id = flags.id;
    let options = options(flags)?;
    let stop = Arc::new(AtomicBool::new(false));
    for signal in [signal_hook::consts::SIGTERM, signal_hook::consts::SIGINT] {
        signal_hook::flag::register(signal, Arc::clone(&stop)).context("cannot take signals")?;
    }
    controller::run(options, &stop, move |text| eprintln!("controller {id}: {text}"))?;
    Ok(())
}

fn options(flags: Controller) -> Result<Options> {
    let (id, count) = (usize::from(flags.id), flags.peers.len());
    ensure!(count <= usize::from(MAX_REPLICAS), "there are at most 9 controllers");
    ensure!(id < count, "--id {id} has no place among the {count} addresses in --peers");
    ensure!(
        flags.suspect_ms > flags.probe_ms,
        "--suspect-ms {} must be longer than --probe-ms {}",
        flags.suspect_ms,
        flags.probe_ms
    );
    let controllers = all(&flags.peers).context("--peers")?;
    let sequencers = all(&flags.sequencers).context("--sequencers")?;
    let groups = flags.groups.iter().map(|text| group(text));
    let groups = groups.collect::<Result<Vec<_>>>().context("--group")?;
    let birth = match flags.bootstrap {
        true => Birth::Bootstrap(group_of(&flags.peers)),
        false => Birth::Join,
    };
    let face = resolve(&flags.listen).context("--listen")?;
    let replica = ReplicaId(flags.id);
    // A session that was given must never be given again.
    let durability = Durability::Sync;
    let node = node::Options::new(flags.dir, replica, flags.peers, flags.listen, durability, birth);
    let timing = Timing { probe: flags.probe_ms * 1000, suspect: flags.suspect_ms * 1000 };
    Ok(Options { node, face, controllers, timing, sequencers, groups })
}

/// Gives a command to the controller at `at`; returns its answer.
pub fn ask(at: &str, line: &str) -> Result<String> {
    let told = || -> std::io::Result<String> {
        let mut stream = TcpStream::connect(at)?;
        stream.set_read_timeout(Some(PATIENCE))?;
        writeln!(stream, "{line}")?;
        let mut answer = String::new();
        BufReader::new(stream).read_line(&mut answer)?;
        Ok(answer.trim_end().to_owned())
    };
    told().with_context(|| format!("cannot tell the controller at {at}"))
}

fn all(list: &[String]) -> Result<Vec<SocketAddr>> {
    list.iter().map(|text| resolve(text)).collect()
}

fn group(text: &str) -> Result<(GroupId, Addresses)> {
    let parts = text.split_once('=');
    let not = || format!("{text}: not ID=MEMBER,MEMBER,... or ID=MEMBER,MEMBER,...@MULTICAST");
    let (id, rest) = parts.with_context(not)?;
    let id = group_id(id).with_context(|| text.to_owned())?;
    let (list, multicast) = match rest.split_once('@') {
        Some((list, multicast)) => (list, Some(resolve(multicast)?)),
        None => (rest, None),
    };
    let list: Vec<String> = list.split(',').map(str::to_owned).collect();
    Ok((id, Addresses::new(all(&list)?, multicast).with_context(|| text.to_owned())?))
}
