//! INFO and ROLE.

use std::fmt::Write;

use kv::Store;
use node::{Desk, Status};
use resp::{Command, Protocol, write};
use smr::{Durability, Role};

use super::local::lower;
use super::status::{Lag, ids};
use super::{REDIS_VERSION, Redis};

/// Host and port of an address.
fn split_address(address: &str) -> (&str, &str) {
    address.rsplit_once(':').unwrap_or((address, "0"))
}

/// Where the clients of the view's primary come in.
pub(super) fn primary_address(status: &Status) -> &str {
    let primary = status.report.view.primary();
    let peer = status.peers.iter().find(|peer| peer.replica == primary);
    peer.map_or(&status.clients[..], |peer| &peer.clients[..])
}

/// ROLE: the primary is a master, all others are its replicas.
pub(super) fn role(status: &Status, out: &mut Vec<u8>) {
    let report = &status.report;
    if report.role == Role::Primary {
        let connected: Vec<_> = status.peers.iter().filter(|peer| peer.connected).collect();
        write::array(out, 3);
        write::bulk(out, b"master");
        write::integer(out, report.commit.0 as i64);
        write::array(out, connected.len());
        for peer in connected {
            let (host, port) = split_address(&peer.clients);
            write::array(out, 3);
            write::bulk(out, host.as_bytes());
            write::bulk(out, port.as_bytes());
            write::bulk(out, report.commit.0.to_string().as_bytes());
        }
        return;
    }
    let (host, port) = split_address(primary_address(status));
    let state = if report.role == Role::Backup { "connected" } else { "connecting" };
    write::array(out, 5);
    write::bulk(out, b"slave");
    write::bulk(out, host.as_bytes());
    write::integer(out, port.parse().unwrap_or(0));
    write::bulk(out, state.as_bytes());
    write::integer(out, report.commit.0 as i64);
}

const SECTIONS: [&str; 8] =
    ["server", "clients", "memory", "persistence", "stats", "replication", "keyspace", "lockstep"];

impl Redis {
    pub(super) fn info(
        &self,
        command: &Command<'_>,
        desk: &Desk<'_, Store>,
        protocol: Protocol,
        out: &mut Vec<u8>,
    ) {
        let mut wanted: Vec<String> = (1..command.len()).map(|at| lower(command, at)).collect();
        let everything = |name: &String| matches!(&name[..], "all" | "default" | "everything");
        if wanted.is_empty() || wanted.iter().any(everything) {
            wanted = SECTIONS.map(str::to_owned).into();
        }
        let mut text = String::new();
        for section in SECTIONS {
            if wanted.iter().any(|name| name == section) {
                let title = section[..1].to_uppercase() + &section[1..];
                let _ = write!(text, "# {title}\r\n");
                self.section(section, desk, &mut text);
                text.push_str("\r\n");
            }
        }
        write::verbatim(out, protocol, *b"txt", text.trim_end_matches("\r\n\r\n").as_bytes());
    }

    fn section(&self, section: &str, desk: &Desk<'_, Store>, text: &mut String) {
        let status = desk.status();
        let stats = desk.service().stats();
        let mut line = |name: &str, value: &dyn std::fmt::Display| {
            let _ = write!(text, "{name}:{value}\r\n");
        };
        match section {
            "server" => {
                let up = desk.now().micros.saturating_sub(status.started_at) / 1_000_000;
                line("redis_version", &REDIS_VERSION);
                line("redis_mode", &"standalone");
                line("lockstep_version", &env!("CARGO_PKG_VERSION"));
                line("os", &std::env::consts::OS);
                line("arch_bits", &usize::BITS);
                line("process_id", &std::process::id());
                line("run_id", &self.run_id);
                line("tcp_port", &self.port);
                line("uptime_in_seconds", &up);
                line("uptime_in_days", &(up / 86_400));
            }
            "clients" => {
                line("connected_clients", &desk.connections());
                line("maxclients", &self.bounds.max_clients);
                line("blocked_clients", &0);
            }
            "memory" => {
                line("used_memory", &stats.bytes);
                line("used_memory_rss", &resident());
                line("maxmemory", &0);
                line("maxmemory_policy", &"noeviction");
            }
            "persistence" => {
                line(
                    "loading",
                    &u8::from(status.loading || status.report.role == Role::Recovering),
                );
                line("rdb_changes_since_last_save", &0);
                line("rdb_bgsave_in_progress", &0);
                let on_disk = status.report.durability != Durability::Memory;
                line("aof_enabled", &u8::from(on_disk));
                line("aof_rewrite_in_progress", &0);
            }
            "stats" => {
                let counters = desk.counters();
                line("total_connections_received", &counters.accepted);
                line("rejected_connections", &counters.rejected);
                line("total_commands_processed", &(counters.reads + counters.writes));
                line("expired_keys", &stats.expired);
                line("evicted_keys", &0);
            }
            "keyspace" if stats.keys == 0 => {}
            "keyspace" => {
                let expires = stats.expiring;
                line("db0", &format_args!("keys={},expires={expires},avg_ttl=0", stats.keys));
            }
            "replication" => replication(status, &mut line),
            _ => lockstep(desk, &mut line),
        }
    }
}

fn replication(status: &Status, line: &mut dyn FnMut(&str, &dyn std::fmt::Display)) {
    let report = &status.report;
    let connected = status.peers.iter().filter(|peer| peer.connected);
    if report.role == Role::Primary {
        line("role", &"master");
        line("connected_slaves", &connected.clone().count());
        for (index, peer) in connected.enumerate() {
            let (host, port) = split_address(&peer.clients);
            let offset = report.commit.0;
            let value = format_args!("ip={host},port={port},state=online,offset={offset},lag=0")
                .to_string();
            line(&format!("slave{index}"), &value);
        }
    } else {
        let (host, port) = split_address(primary_address(status));
        let up = report.role == Role::Backup;
        line("role", &"slave");
        line("master_host", &host);
        line("master_port", &port);
        line("master_link_status", &if up { "up" } else { "down" });
        line("master_sync_in_progress", &u8::from(report.role == Role::Recovering));
        line("slave_read_only", &0);
        line("connected_slaves", &0);
    }
    line("master_replid", &format_args!("{:040x}", status.identity.group.0));
    line("master_repl_offset", &report.commit.0);
}

fn lockstep(desk: &Desk<'_, Store>, line: &mut dyn FnMut(&str, &dyn std::fmt::Display)) {
    let (status, counters) = (desk.status(), desk.counters());
    let report = &status.report;
    line("replica", &status.identity.replica.0);
    line("group", &format_args!("{:016x}", status.identity.group.0));
    line("incarnation", &status.identity.incarnation.0);
    line("replicas", &status.replicas);
    line("lockstep_role", &report.role.name());
    line("durability", &report.durability.name());
    line("order", &status.ordered_by.name());
    line("view", &report.view.0);
    line("view_number", &status.view_number);
    if let Some(memory) = &status.memory {
        let list = |flags| ids(flags).map(|id| id.to_string()).collect::<Vec<_>>().join(",");
        let scores: Vec<String> = memory.scores.iter().map(u8::to_string).collect();
        line("scores", &scores.join(","));
        line("attached", &list(&memory.attached));
        let holder = memory.holder.map_or_else(String::new, |holder| holder.0.to_string());
        line("log_holder", &holder);
        line("confirmed", &list(&memory.confirmed));
        line("members", &list(&memory.members));
        line("log_tail", &memory.tail.0);
    }
    if let Some(multicast) = &status.multicast {
        line("session", &multicast.session);
        let sequencer = multicast.sequencer.map_or_else(String::new, |at| at.to_string());
        line("sequencer", &sequencer);
        line("next_message", &multicast.next);
        line("open_gaps", &multicast.open_gaps);
        line("missing_messages", &multicast.missing);
        line("found_messages", &multicast.found);
        line("no_ops", &multicast.no_ops);
    }
    line("op_number", &report.op.op.0);
    line("commit_number", &report.commit.0);
    line("disk", &report.disk.op.0);
    line("durable", &report.durable.op.0);
    if let Some(lag) = Lag::of(report, desk.now()) {
        line("durable_lag_ops", &lag.ops);
        line("durable_lag_bytes", &lag.bytes);
        line("durable_lag_ms", &lag.ms);
    }
    line("forgetful", &u8::from(report.forgetful));
    line("rolled_back_operations", &report.rolled_back);
    line("risky_elections", &report.risky_elections);
    line("checkpoint", &report.checkpoint.op.0);
    line("disk_full", &u8::from(status.disk_full));
    line("batches", &counters.batches);
    line("log_batches", &counters.stored);
    line("log_syncs", &counters.syncs);
}

/// Bytes of memory that the process has, as the operating system counts.
pub(super) fn resident() -> u64 {
    let pages = std::fs::read_to_string("/proc/self/statm").ok();
    let pages = pages.and_then(|text| text.split(' ').nth(1)?.parse::<u64>().ok());
    pages.unwrap_or(0) * 4096
}
