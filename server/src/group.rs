//! A group as an operator sees it: what every replica says about itself.

use std::time::Duration;

use anyhow::{Result, bail};
use serde_json::{Value as Json, json};

use crate::link::ask_status;

const PATIENCE: Duration = Duration::from_millis(1000);

/// One replica.
pub struct Member {
    pub id: u64,
    /// Where its clients come in, if that is known.
    pub resp: String,
    /// Its status; `None` if it does not answer.
    pub status: Option<Json>,
}

impl Member {
    /// A text of its status, empty if there is none.
    pub fn text(&self, field: &str) -> &str {
        self.status.as_ref().and_then(|status| status[field].as_str()).unwrap_or_default()
    }

    /// A number of its status.
    pub fn number(&self, field: &str) -> Option<u64> {
        self.status.as_ref()?[field].as_u64()
    }
}

/// Asks all replicas of the group that the one at `host:port` belongs to. If that one does not
/// answer, those on the next ports are tried, as a demo has them.
pub fn ask(host: &str, port: u16) -> Result<Vec<Member>> {
    let ports = port..=port.saturating_add(u16::from(smr::MAX_REPLICAS) - 1);
    let mut answers = ports.map(|port| format!("{host}:{port}"));
    let found = answers.find_map(|address| Some((ask_status(&address, PATIENCE).ok()?, address)));
    let Some((first, address)) = found else {
        bail!(
            "no replica answers on {host}:{port} or the ports after it: give the Redis port of a \
             replica with --port"
        );
    };
    let own = first["id"].as_u64().unwrap_or(0);
    let mut members = vec![Member { id: own, resp: address, status: Some(first.clone()) }];
    for peer in first["peers"].as_array().into_iter().flatten() {
        let id = peer["id"].as_u64().unwrap_or(0);
        let mut resp = reachable(peer["resp"].as_str().unwrap_or_default(), host);
        if resp.is_empty() {
            // It has not said where: in a demo the ports follow the ids.
            let port = u64::from(port_of(&members[0].resp)) + id;
            resp = format!("{host}:{}", port.saturating_sub(own));
        }
        let status = ask_status(&resp, PATIENCE).ok();
        let status = status.filter(|status| status["id"].as_u64() == Some(id));
        members.push(Member { id, resp, status });
    }
    members.sort_by_key(|member| member.id);
    Ok(members)
}

/// An address that a replica gives for itself may be one to listen on, which names no machine.
fn reachable(address: &str, host: &str) -> String {
    match address.strip_prefix("0.0.0.0:").or(address.strip_prefix("[::]:")) {
        Some(port) => format!("{host}:{port}"),
        None => address.to_owned(),
    }
}

fn port_of(address: &str) -> u16 {
    address.rsplit_once(':').and_then(|(_, port)| port.parse().ok()).unwrap_or(0)
}

/// The group for programs.
pub fn to_json(members: &[Member]) -> Json {
    let primary = commit_of_primary(members);
    let replicas = members.iter().map(|member| match &member.status {
        Some(status) => {
            let mut row = status.clone();
            row["resp"] = json!(member.resp);
            let commit = status["commit_number"].as_u64().unwrap_or(0);
            row["lag"] = json!(primary.map(|primary| primary.saturating_sub(commit)));
            row
        }
        None => json!({
            "id": member.id,
            "resp": member.resp,
            "pid": null,
            "role": null,
            "status": "unreachable",
            "view": null,
            "op_number": null,
            "commit_number": null,
            "durable": null,
            "checkpoint": null,
        }),
    });
    json!({ "replicas": replicas.collect::<Vec<_>>() })
}

fn commit_of_primary(members: &[Member]) -> Option<u64> {
    let primaries = members.iter().filter(|member| member.text("role") == "primary");
    let newest = primaries.max_by_key(|member| member.number("view"))?;
    newest.number("commit_number")
}

/// The group for people.
pub fn to_table(members: &[Member]) -> String {
    let mut rows = vec![
        [
            "id",
            "pid",
            "role",
            "status",
            "view",
            "commit",
            "lag",
            "disk",
            "undurable",
            "checkpoint",
            "since",
            "resp",
        ]
        .map(str::to_owned),
    ];
    let primary = commit_of_primary(members);
    for member in members {
        let Some(commit) = member.number("commit_number") else {
            let mut row: [String; 12] = Default::default();
            row.fill("-".to_owned());
            row[0] = member.id.to_string();
            row[3] = "unreachable".to_owned();
            row[11].clone_from(&member.resp);
            rows.push(row);
            continue;
        };
        let number = |field| {
            member.number(field).map_or_else(|| "-".to_owned(), |number| number.to_string())
        };
        let lag = primary.map(|primary| primary.saturating_sub(commit).to_string());
        rows.push([
            member.id.to_string(),
            number("pid"),
            member.text("role").to_owned(),
            member.text("status").to_owned(),
            number("view_number"),
            commit.to_string(),
            lag.unwrap_or_else(|| "-".to_owned()),
            number("disk"),
            undurable(member),
            number("checkpoint"),
            age(member.number("view_age_ms").unwrap_or(0)),
            member.resp.clone(),
        ]);
    }
    let mut text = align(&rows);
    let rows = memory_rows(members);
    if rows.len() > 1 {
        text.push('\n');
        text += &align(&rows);
    }
    let rows = multicast_rows(members);
    if rows.len() > 1 {
        text.push('\n');
        text += &align(&rows);
    }
    text
}

/// What replicas that take ordered messages know of them.
fn multicast_rows(members: &[Member]) -> Vec<[String; 10]> {
    let titles = [
        "id",
        "session",
        "members",
        "next message",
        "open gaps",
        "missing",
        "found",
        "no-ops",
        "views",
        "sequencer",
    ];
    let mut rows = vec![titles.map(str::to_owned)];
    for member in members {
        let multicast = member.status.as_ref().map(|status| &status["multicast"]);
        let Some(multicast) = multicast.filter(|multicast| !multicast.is_null()) else { continue };
        let number =
            |field: &str| multicast[field].as_u64().map_or("-".to_owned(), |n| n.to_string());
        rows.push([
            member.id.to_string(),
            number("session"),
            counting(multicast),
            number("next"),
            number("open_gaps"),
            number("missing"),
            number("found"),
            number("no_ops"),
            number("views"),
            multicast["sequencer"].as_str().unwrap_or("-").to_owned(),
        ]);
    }
    rows
}

/// Who counts, or will when the change that is under way has come to its end.
fn counting(multicast: &Json) -> String {
    let ids = multicast["members"].as_array().map_or(&[][..], Vec::as_slice);
    let ids: Vec<String> = ids.iter().map(ToString::to_string).collect();
    let changing = if multicast["changing"] == true { "..." } else { "" };
    format!("{}{changing}", ids.join(","))
}

/// What replicas that share memory know of each other.
fn memory_rows(members: &[Member]) -> Vec<[String; 8]> {
    let titles =
        ["id", "scores", "leader", "members", "log held by", "confirmed", "log tail", "log head"];
    let mut rows = vec![titles.map(str::to_owned)];
    for member in members {
        let Some(memory) = member.status.as_ref().map(|status| &status["memory"]) else { continue };
        if memory.is_null() {
            continue;
        }
        let list = |field: &str| {
            let all = memory[field].as_array().into_iter().flatten();
            let text: Vec<String> = all.map(Json::to_string).collect();
            if text.is_empty() { "-".to_owned() } else { text.join(",") }
        };
        let number = |field: &str| memory[field].as_u64().map_or("-".to_owned(), |n| n.to_string());
        rows.push([
            member.id.to_string(),
            list("scores"),
            number("leader"),
            list("members"),
            number("log_holder"),
            list("confirmed"),
            number("log_tail"),
            number("log_head"),
        ]);
    }
    rows
}

fn align<const COLUMNS: usize>(rows: &[[String; COLUMNS]]) -> String {
    let width = |column: usize| rows.iter().map(|row| row[column].len()).max().unwrap_or(0);
    let widths: Vec<usize> = (0..COLUMNS).map(width).collect();
    let mut text = String::new();
    for row in rows {
        let cells = row.iter().zip(&widths).map(|(cell, &width)| format!("{cell:width$}"));
        text.push_str(cells.collect::<Vec<_>>().join("  ").trim_end());
        text.push('\n');
    }
    text
}

/// What is acknowledged and not on the disks of a quorum: operations, bytes, milliseconds.
fn undurable(member: &Member) -> String {
    let lag = member.status.as_ref().map(|status| &status["durable_lag"]);
    let lag = |field| lag.and_then(|lag| lag[field].as_u64());
    match (lag("ops"), lag("bytes"), lag("ms")) {
        (Some(0), ..) => "0".to_owned(),
        (Some(ops), Some(bytes), Some(ms)) => format!("{ops}/{bytes}B/{ms}ms"),
        _ => "-".to_owned(),
    }
}

/// The time since a replica's view last changed.
fn age(ms: u64) -> String {
    match ms {
        0..10_000 => format!("{}.{}s", ms / 1000, ms % 1000 / 100),
        10_000..600_000 => format!("{}s", ms / 1000),
        600_000..36_000_000 => format!("{}min", ms / 60_000),
        _ => format!("{}h", ms / 3_600_000),
    }
}
