//! `lockstep member`: adding, removing and replacing members of a group, one change at a time,
//! while it serves. In a group that orders by mu ([Mu] 5.4) the leader is asked, whoever that is;
//! in one that orders by nopaxos ([NOPaxos] 5.2.5) a controller. Either is asked until the members
//! are what was wanted: a change that is interrupted by a fail-over may come to nothing.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use resp::Value;

use crate::cli::{Member as Flags, MemberChange};
use crate::controller;
use crate::group::{self, Member};
use crate::link::Link;

const PATIENCE: Duration = Duration::from_millis(1000);
const PAUSE: Duration = Duration::from_millis(50);

pub fn change(flags: &Flags) -> Result<()> {
    if let MemberChange::Replace { old, new } = flags.change {
        ensure!(old != new, "replica {old} cannot take its own place");
    }
    let replicas = group::ask(&flags.host, flags.port)?;
    if replicas.iter().any(|replica| replica.text("order") == "nopaxos") {
        return until(flags, |replicas, leader| count(flags, replicas, leader));
    }
    match flags.change {
        MemberChange::Add { id } => make(flags, "ADD", id),
        MemberChange::Remove { id } => make(flags, "REMOVE", id),
        MemberChange::Replace { old, new } => {
            make(flags, "ADD", new)?;
            make(flags, "REMOVE", old)
        }
    }
}

/// What has become of a change.
enum Step {
    Done(Vec<u64>),
    /// Why it is not done yet.
    Wait(String),
}

/// Takes steps until it is so.
fn until(flags: &Flags, step: impl Fn(&[Member], &Member) -> Result<Step>) -> Result<()> {
    let end = Instant::now() + Duration::from_secs(flags.patience);
    let mut last = "no replica leads".to_owned();
    loop {
        let replicas = group::ask(&flags.host, flags.port)?;
        let leader = replicas.iter().find(|replica| replica.text("role") == "primary");
        if let Some(leader) = leader {
            match step(&replicas, leader)? {
                Step::Done(members) => {
                    println!("members are {members:?}, replica {} leads", leader.id);
                    return Ok(());
                }
                Step::Wait(why) => last = why,
            }
        }
        ensure!(Instant::now() < end, "the members have not changed: {last}");
        std::thread::sleep(PAUSE);
    }
}

/// Asks the leader of a group that orders by mu until it is so.
fn make(flags: &Flags, verb: &str, id: u8) -> Result<()> {
    until(flags, |_, leader| {
        let members = members(leader, "memory")?;
        if members.contains(&u64::from(id)) == (verb == "ADD") {
            return Ok(Step::Done(members));
        }
        Ok(Step::Wait(ask(leader, verb, id)?))
    })
}

/// Who counts, as the leader says.
fn members(leader: &Member, part: &str) -> Result<Vec<u64>> {
    let members = leader.status.as_ref().and_then(|status| status[part]["members"].as_array());
    let members =
        members.context("members can only be changed where the group orders by mu or nopaxos")?;
    Ok(members.iter().filter_map(serde_json::Value::as_u64).collect())
}

/// Why it cannot be done yet, or that it has begun.
fn ask(leader: &Member, verb: &str, id: u8) -> Result<String> {
    let reply = Link::connect(&leader.resp, PATIENCE)
        .and_then(|mut link| link.call(&["LOCKSTEP.MEMBER", verb, &id.to_string()]));
    match reply {
        Ok(Value::Error(text)) => {
            let text = String::from_utf8_lossy(&text).into_owned();
            if text.starts_with("ERR") {
                bail!("replica {}: {text}", leader.id);
            }
            Ok(text)
        }
        Ok(_) => Ok("it has begun".to_owned()),
        // It may have ended: whoever leads then is asked.
        Err(error) => Ok(error.to_string()),
    }
}

/// Asks the controller of a group that orders by nopaxos, if it is time.
fn count(flags: &Flags, replicas: &[Member], leader: &Member) -> Result<Step> {
    let at = flags.controller.as_deref().context(
        "the group orders by nopaxos: give --controller, the address in a controller's --listen",
    )?;
    let present: BTreeSet<u64> = members(leader, "multicast")?.into_iter().collect();
    let mut wanted = present.clone();
    let (old, new) = match flags.change {
        MemberChange::Add { id } => (None, Some(id)),
        MemberChange::Remove { id } => (Some(id), None),
        MemberChange::Replace { old, new } => (Some(old), Some(new)),
    };
    wanted.retain(|id| old.is_none_or(|old| *id != u64::from(old)));
    wanted.extend(new.map(u64::from));
    let changing = leader.status.as_ref().is_some_and(|all| all["multicast"]["changing"] == true);
    if changing {
        return Ok(Step::Wait("a change of members has not come to its end".to_owned()));
    }
    if wanted == present {
        return Ok(Step::Done(present.into_iter().collect()));
    }
    ensure!(!wanted.is_empty(), "nobody would be left");
    for id in wanted.difference(&present) {
        let comes = replicas.iter().find(|replica| replica.id == *id);
        let comes = comes.with_context(|| format!("--peers has no place for replica {id}"))?;
        if comes.text("role") != "backup" {
            return Ok(Step::Wait(format!("replica {id} does not follow yet: start it")));
        }
    }
    let ids: Vec<String> = wanted.iter().map(u64::to_string).collect();
    let line = format!("count {} {}", leader.text("group"), ids.join(","));
    Ok(Step::Wait(controller::ask(at, &line)?))
}
