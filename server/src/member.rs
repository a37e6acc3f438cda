//! `lockstep member`: adding, removing and replacing members of a group that orders by mu ([Mu]
//! 5.4), one at a time, while it serves. The leader is asked, whoever that is, until the members
//! are what was wanted: a change that is interrupted by a fail-over may come to nothing.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use resp::Value;

use crate::cli::{Member as Flags, MemberChange};
use crate::group::{self, Member};
use crate::link::Link;

const PATIENCE: Duration = Duration::from_millis(1000);
const PAUSE: Duration = Duration::from_millis(50);

pub fn change(flags: &Flags) -> Result<()> {
    match flags.change {
        MemberChange::Add { id } => make(flags, "ADD", id),
        MemberChange::Remove { id } => make(flags, "REMOVE", id),
        MemberChange::Replace { old, new } => {
            ensure!(old != new, "replica {old} cannot take its own place");
            make(flags, "ADD", new)?;
            make(flags, "REMOVE", old)
        }
    }
}

/// Asks until it is so.
fn make(flags: &Flags, verb: &str, id: u8) -> Result<()> {
    let end = Instant::now() + Duration::from_secs(flags.patience);
    let mut last = "no replica leads".to_owned();
    loop {
        let replicas = group::ask(&flags.host, flags.port)?;
        let leader = replicas.iter().find(|replica| replica.text("role") == "primary");
        if let Some(leader) = leader {
            let members = members(leader)?;
            if members.contains(&u64::from(id)) == (verb == "ADD") {
                println!("members are {members:?}, replica {} leads", leader.id);
                return Ok(());
            }
            if let Some(why) = ask(leader, verb, id)? {
                last = why;
            }
        }
        ensure!(Instant::now() < end, "the members have not changed: {last}");
        std::thread::sleep(PAUSE);
    }
}

/// Who counts, as the leader says.
fn members(leader: &Member) -> Result<Vec<u64>> {
    let memory = leader.status.as_ref().map(|status| &status["memory"]);
    let members = memory.and_then(|memory| memory["members"].as_array());
    let members = members.context("members can only be changed where the group orders by mu")?;
    Ok(members.iter().filter_map(serde_json::Value::as_u64).collect())
}

/// Why it cannot be done yet; none if it has begun.
fn ask(leader: &Member, verb: &str, id: u8) -> Result<Option<String>> {
    let reply = Link::connect(&leader.resp, PATIENCE)
        .and_then(|mut link| link.call(&["LOCKSTEP.MEMBER", verb, &id.to_string()]));
    match reply {
        Ok(Value::Error(text)) => {
            let text = String::from_utf8_lossy(&text).into_owned();
            if text.starts_with("ERR") {
                bail!("replica {}: {text}", leader.id);
            }
            Ok(Some(text))
        }
        Ok(_) => Ok(None),
        // It may have ended: whoever leads then is asked.
        Err(error) => Ok(Some(error.to_string())),
    }
}
