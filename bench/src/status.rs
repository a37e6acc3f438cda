//! What the replicas of a group say about themselves: `LOCKSTEP.STATUS`.

use std::net::{Ipv4Addr, SocketAddr};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use serde::Deserialize;

use crate::client::Client;

/// How long a replica may take to answer.
const PATIENCE: Duration = Duration::from_millis(1000);

/// A replica is caught up when it is at most this many operations behind. Under load the others
/// go on while it is asked.
const CLOSE: u64 = 2000;

/// The part of a replica's status that is looked at here.
#[derive(Clone, Debug, Deserialize, PartialEq, Eq)]
pub struct Status {
    /// Its number in the group.
    pub id: u64,
    /// The process that runs it.
    pub pid: i32,
    /// `primary`, `backup`, `view-change`, `recovering` or `state-lost`.
    pub role: String,
    /// Its view.
    pub view: u64,
    /// The last operation that it has accepted.
    #[serde(default)]
    pub op_number: u64,
    /// The last operation that it knows to be committed.
    pub commit_number: u64,
    /// What an acknowledgement means.
    #[serde(default)]
    pub durability: String,
    /// Whether it restarted and may have forgotten what it acknowledged (durability `lazy`).
    #[serde(default)]
    pub forgetful: bool,
    /// Of a replica whose messages a sequencer numbers.
    #[serde(default)]
    pub multicast: Option<Multicast>,
}

/// What a replica knows of its sequencer.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq)]
pub struct Multicast {
    /// Its session.
    pub session: u32,
    /// Where it is, if the replica knows.
    pub sequencer: Option<SocketAddr>,
}

impl Status {
    /// Asks the replica that serves there.
    pub fn of(address: SocketAddr) -> Result<Self> {
        let mut client = Client::connect(address, PATIENCE)
            .with_context(|| format!("no replica listens on {address}"))?;
        let reply = client.request(&[b"LOCKSTEP.STATUS"]).context("no status")?;
        let Some(text) = reply.as_bytes() else {
            bail!("{address} is no Lockstep replica: it answers LOCKSTEP.STATUS with {reply:?}");
        };
        let text = String::from_utf8_lossy(text);
        serde_json::from_str(&text).with_context(|| format!("cannot understand the status {text}"))
    }

    /// Whether it takes its part in the group.
    pub fn is_serving(&self) -> bool {
        matches!(self.role.as_str(), "primary" | "backup")
    }
}

/// The replicas of a group on this machine.
#[derive(Clone, Debug)]
pub struct Group {
    /// Where each replica serves, in the order of their ports.
    pub addresses: Vec<SocketAddr>,
}

impl Group {
    /// Replicas on consecutive ports of this machine.
    pub fn local(port: u16, replicas: u16) -> Self {
        let address = |offset| SocketAddr::from((Ipv4Addr::LOCALHOST, port + offset));
        Self { addresses: (0..replicas).map(address).collect() }
    }

    /// What each says, or why it says nothing.
    pub fn statuses(&self) -> Vec<Result<Status>> {
        self.addresses.iter().map(|&address| Status::of(address)).collect()
    }

    /// Waits until every replica takes part and is caught up; returns them all.
    pub fn wait_until_whole(&self, patience: Duration) -> Result<Vec<Status>> {
        let deadline = Instant::now() + patience;
        loop {
            let statuses = self.statuses();
            if let Some(whole) = whole(&statuses) {
                return Ok(whole);
            }
            if Instant::now() > deadline {
                bail!("the group is not whole after {patience:?}:{}", describe(&statuses));
            }
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    /// The position of the primary among these.
    pub fn primary(statuses: &[Status]) -> Option<usize> {
        let primaries = statuses.iter().enumerate().filter(|(_, status)| status.role == "primary");
        primaries.max_by_key(|(_, status)| status.view).map(|(index, _)| index)
    }
}

/// The statuses, if all are there, serve, agree on the view, have a primary and are caught up.
fn whole(statuses: &[Result<Status>]) -> Option<Vec<Status>> {
    let statuses: Option<Vec<Status>> =
        statuses.iter().map(|status| status.as_ref().ok().cloned()).collect();
    let statuses = statuses?;
    let furthest = statuses.iter().map(|status| status.commit_number).max()?;
    let view = statuses.first()?.view;
    let fits = |status: &Status| {
        let close = status.commit_number + CLOSE >= furthest;
        status.is_serving() && status.view == view && close && !status.forgetful
    };
    (statuses.iter().all(fits) && Group::primary(&statuses).is_some()).then_some(statuses)
}

fn describe(statuses: &[Result<Status>]) -> String {
    let mut text = String::new();
    for (index, status) in statuses.iter().enumerate() {
        let line = match status {
            Ok(status) => format!(
                "{}, view {}, commit_number {}",
                status.role, status.view, status.commit_number
            ),
            Err(error) => format!("{error:#}"),
        };
        text += &format!("\n    replica {index}: {line}");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fake::{Fake, Lie};

    fn status(role: &str, view: u64, commit_number: u64) -> Status {
        let durability = "memory".to_string();
        let role = role.to_string();
        let (op_number, forgetful) = (commit_number, false);
        Status {
            id: 0,
            pid: 1,
            role,
            view,
            op_number,
            commit_number,
            durability,
            forgetful,
            multicast: None,
        }
    }

    #[test]
    fn a_group_is_whole_when_all_take_part() {
        let check = |statuses: [Status; 3]| whole(&statuses.map(Ok)).is_some();
        let backup = || status("backup", 3, 10_000);
        assert!(check([status("primary", 3, 10_500), backup(), backup()]));
        assert!(!check([backup(), backup(), backup()]));
        assert!(!check([status("primary", 3, 10_500), backup(), status("recovering", 3, 10_000)]));
        assert!(!check([status("primary", 4, 10_500), backup(), status("backup", 4, 10_000)]));
        assert!(!check([status("primary", 3, 10_500), backup(), status("backup", 3, 100)]));
        let missing = [Ok(status("primary", 3, 1)), Err(anyhow::anyhow!("gone"))];
        assert!(whole(&missing).is_none());
        assert!(describe(&missing).contains("replica 1: gone"));
    }

    #[test]
    fn the_primary_is_that_of_the_highest_view() {
        let old = status("primary", 3, 1);
        let new = status("primary", 4, 1);
        assert_eq!(Group::primary(&[old, status("backup", 4, 1), new]), Some(2));
        assert_eq!(Group::primary(&[status("backup", 4, 1)]), None);
    }

    #[test]
    fn unknown_fields_are_ignored() {
        let text = r#"{"id":1,"pid":7,"role":"backup","view":2,"commit_number":9,"peers":[1]}"#;
        let status: Status = serde_json::from_str(text).unwrap();
        assert_eq!((status.pid, status.op_number), (7, 0));
    }

    #[test]
    fn other_servers_are_refused() {
        let fake = Fake::start(1, Lie::None);
        let error = Status::of(fake.addresses[0]).unwrap_err().to_string();
        assert!(error.contains("no Lockstep replica"), "{error}");
    }
}
