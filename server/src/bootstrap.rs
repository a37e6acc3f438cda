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
/// What to do when some have started over and others not.
const AGAIN: &str = "once every replica answers in `lockstep status`, run this again: the rest \
                     joins the group of those that have started over";

pub fn bootstrap(flags: &Bootstrap) -> Result<()> {
    ensure!(flags.accept_loss, "--accept-loss must be given: what the group held is lost");
    let members = group::ask(&flags.host, flags.port)?;
    let waits = |member: &&Member| matches!(member.text("role"), "state-lost" | "recovering");
    let lost: Vec<&Member> = members.iter().filter(waits).collect();
    let group = choose_group(&members, &lost)?;
    if members.iter().any(|member| member.text("order") == "nopaxos") {
        introduce(flags.controller.as_deref(), &group, &members)?;
    }
    for member in &lost {
        let reply = Link::connect(&member.resp, PATIENCE)
            .and_then(|mut link| link.call(&["LOCKSTEP.STARTOVER", &group]))
            .with_context(|| format!("replica {} at {}: {AGAIN}", member.id, member.resp))?;
        if let resp::Value::Error(text) = reply {
            bail!("replica {}: {}; {AGAIN}", member.id, String::from_utf8_lossy(&text));
        }
        println!("replica {} starts over, empty, in group {group}", member.id);
    }
    for member in members.iter().filter(|member| member.status.is_none()) {
        println!(
            "replica {} does not answer: run this again when it is back, so that it joins",
            member.id
        );
    }
    let astray = members
        .iter()
        .filter(|member| member.text("role") == "view-change" && member.text("group") != group);
    for member in astray {
        println!(
            "replica {} waits in another group, {}: stop it, remove its data directory and start \
             it again without --bootstrap",
            member.id,
            member.text("group")
        );
    }
    wait_until_served(&lost)
}

/// Tells the controllers of the new group: without them no request of it is numbered.
fn introduce(controller: Option<&str>, group: &str, members: &[Member]) -> Result<()> {
    let controller = controller.context(
        "the group orders by nopaxos: give --controller, the address in a controller's --listen, \
         which has to know the new group",
    )?;
    let address = |member: &Member| {
        let at = member.status.as_ref().and_then(|status| status["multicast"]["address"].as_str());
        let at = at.with_context(|| {
            format!("replica {} does not say where it takes messages: {AGAIN}", member.id)
        })?;
        Ok(at.to_owned())
    };
    let mut addresses = members.iter().map(address).collect::<Result<Vec<String>>>()?.join(",");
    let joined = |member: &Member| {
        member.status.as_ref()?["multicast"]["joined"].as_str().map(str::to_owned)
    };
    if let Some(multicast) = members.iter().find_map(joined) {
        addresses += &format!("@{multicast}");
    }
    let answer = crate::controller::ask(controller, &format!("group {group} {addresses}"))?;
    ensure!(answer.starts_with("group "), "the controller at {controller} says: {answer}");
    Ok(())
}

/// The group in which those that wait start over.
fn choose_group(members: &[Member], lost: &[&Member]) -> Result<String> {
    let serving = members.iter().find(|member| matches!(member.text("role"), "primary" | "backup"));
    if let Some(serving) = serving {
        // The others have started over already: what waits joins them.
        let group = serving.text("group");
        let elsewhere = lost.iter().any(|member| member.text("group") != group);
        ensure!(
            elsewhere,
            "the state is not lost: replica {} is {}; nothing was done",
            serving.id,
            serving.text("role")
        );
        return Ok(group.to_owned());
    }
    // Some have started over already and are too few to serve: they would wait for ever in their
    // group if the rest made another one.
    let started = members.iter().find(|member| {
        let group = member.text("group");
        member.text("role") == "view-change"
            && !lost.is_empty()
            && lost.iter().all(|member| member.text("group") != group)
    });
    if let Some(started) = started {
        return Ok(started.text("group").to_owned());
    }
    let sure = lost.iter().any(|member| member.text("role") == "state-lost");
    ensure!(
        sure,
        "no replica says that the state is lost: start the missing replicas first; nothing was \
         done"
    );
    let answering = members.iter().filter(|member| member.status.is_some()).count();
    ensure!(
        answering > members.len() / 2,
        "only {answering} of {} replicas answer: start the others first; nothing was done",
        members.len()
    );
    Ok(new_group())
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
