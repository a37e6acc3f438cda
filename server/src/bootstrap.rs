//! `lockstep bootstrap --accept-loss`: a group of durability `memory` of which more than f replicas
//! crashed has lost its state, and says so until an operator accepts it. Accepting means a new
//! group with the same replicas: messages and disks of the old one are not taken for its own.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};

use crate::cli::Bootstrap;
use crate::group::{self, Member};
use crate::link::Link;

const PATIENCE: Duration = Duration::from_millis(1000);
const READY: Duration = Duration::from_secs(10);

pub fn bootstrap(flags: &Bootstrap) -> Result<()> {
    ensure!(flags.accept_loss, "--accept-loss must be given: what the group held is lost");
    let members = group::ask(&flags.host, flags.port)?;
    let waits = |member: &&Member| matches!(member.text("role"), "state-lost" | "recovering");
    let lost: Vec<&Member> = members.iter().filter(waits).collect();
    let serving = members.iter().find(|member| matches!(member.text("role"), "primary" | "backup"));
    let group = match serving {
        // The others have started over already: what waits joins them.
        Some(serving) => {
            let group = serving.text("group");
            let elsewhere = lost.iter().any(|member| member.text("group") != group);
            ensure!(
                elsewhere,
                "the state is not lost: replica {} is {}; nothing was done",
                serving.id,
                serving.text("role")
            );
            group.to_owned()
        }
        None => {
            let sure = lost.iter().any(|member| member.text("role") == "state-lost");
            ensure!(
                sure,
                "no replica says that the state is lost: start the missing replicas first; \
                 nothing was done"
            );
            let answering = members.iter().filter(|member| member.status.is_some()).count();
            ensure!(
                answering > members.len() / 2,
                "only {answering} of {} replicas answer: start the others first; nothing was done",
                members.len()
            );
            new_group()
        }
    };
    for member in &lost {
        let reply = Link::connect(&member.resp, PATIENCE)
            .and_then(|mut link| link.call(&["LOCKSTEP.STARTOVER", &group]))
            .with_context(|| format!("replica {} at {}", member.id, member.resp))?;
        if let resp::Value::Error(text) = reply {
            bail!("replica {}: {}", member.id, String::from_utf8_lossy(&text));
        }
        println!("replica {} starts over, empty, in group {group}", member.id);
    }
    for member in members.iter().filter(|member| member.status.is_none()) {
        println!(
            "replica {} does not answer: run this again when it is back, so that it joins",
            member.id
        );
    }
    wait_until_served(&lost)
}

/// A read through every replica.
fn wait_until_served(members: &[&Member]) -> Result<()> {
    let end = Instant::now() + READY;
    for member in members {
        loop {
            let served = Link::connect(&member.resp, PATIENCE)
                .and_then(|mut link| link.call(&["GET", "lockstep:bootstrap"]));
            if served.is_ok_and(|reply| !matches!(reply, resp::Value::Error(_))) {
                break;
            }
            ensure!(
                Instant::now() < end,
                "replica {} does not serve yet: see `lockstep status`",
                member.id
            );
            std::thread::sleep(Duration::from_millis(20));
        }
    }
    println!("the group serves again");
    Ok(())
}

/// An id that no group had before.
fn new_group() -> String {
    format!("{:016x}", crate::serve::nonce(0).max(1))
}
