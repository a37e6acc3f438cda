//! LOCKSTEP.STATUS: this replica's state, for `lockstep status` and other operators' tools.

use kv::Store;
use node::{Counters, Desk, MemoryStatus, MulticastStatus};
use serde_json::{Value, json};
use smr::{Durability, Now, Report, Role};

use super::Redis;
use super::info::{primary_address, resident};

/// How far the disks of a quorum are behind what is acknowledged.
pub(super) struct Lag {
    pub ops: u64,
    pub bytes: usize,
    /// Since the oldest operation that is not durable was proposed, by the primary's clock: at a
    /// backup it is wrong by as much as the two clocks differ.
    pub ms: u64,
}

impl Lag {
    /// `None` where nothing ever becomes durable.
    pub fn of(report: &Report, now: Now) -> Option<Lag> {
        match report.durability {
            Durability::Memory => None,
            Durability::Sync => Some(Lag { ops: 0, bytes: 0, ms: 0 }),
            Durability::Lazy => Some(Lag {
                ops: report.commit.0.saturating_sub(report.durable.op.0),
                bytes: report.lag_bytes,
                ms: match report.lag_since {
                    0 => 0,
                    since => now.unix_ms.saturating_sub(since),
                },
            }),
        }
    }
}

impl Redis {
    pub(super) fn status_json(&self, desk: &Desk<'_, Store>) -> String {
        let status = desk.status();
        let (identity, report) = (&status.identity, &status.report);
        let stats = desk.service().stats();
        let lag = Lag::of(report, desk.now());
        let lag = lag.map(|lag| json!({ "ops": lag.ops, "bytes": lag.bytes, "ms": lag.ms }));
        let known = matches!(report.role, Role::Primary | Role::Backup);
        let primary = known.then(|| report.view.primary().0);
        let peers = status.peers.iter().map(|peer| {
            json!({
                "id": peer.replica.0,
                "address": peer.address,
                "resp": peer.clients,
                "connected": peer.connected,
                "queued_bytes": peer.queued,
            })
        });
        json!({
            "id": identity.replica.0,
            "pid": std::process::id(),
            "group": format!("{:016x}", identity.group.0),
            "incarnation": identity.incarnation.0,
            "replicas": status.replicas,
            "role": report.role.name(),
            "status": health(report.role),
            "durability": report.durability.name(),
            "order": status.ordered_by.name(),
            "memory": status.memory.as_ref().map(|memory| shared(memory, report)),
            "multicast": status.multicast.as_ref().map(ordered),
            "view": report.view.0,
            "view_number": status.view_number,
            "primary": primary,
            "primary_resp": primary.map(|_| primary_address(status)),
            "op_number": report.op.op.0,
            "commit_number": report.commit.0,
            "disk": report.disk.op.0,
            "durable": report.durable.op.0,
            "durable_lag": lag,
            "forgetful": report.forgetful,
            "rolled_back": report.rolled_back,
            "risky_elections": report.risky_elections,
            "checkpoint": report.checkpoint.op.0,
            "view_age_ms": desk.now().micros.saturating_sub(report.view_changed_at) / 1000,
            "uptime_ms": desk.now().micros.saturating_sub(status.started_at) / 1000,
            "disk_full": status.disk_full,
            "dropped_messages": report.dropped,
            "resp": status.clients,
            "connections": desk.connections(),
            "keys": stats.keys,
            "used_memory": stats.bytes,
            "resident": resident(),
            "counters": counted(&desk.counters()),
            "peers": peers.collect::<Vec<_>>(),
        })
        .to_string()
    }
}

/// What a replica that shares memory knows of the others.
fn shared(memory: &MemoryStatus, report: &Report) -> Value {
    json!({
        "scores": memory.scores,
        "attached": ids(&memory.attached).collect::<Vec<_>>(),
        "leader": memory.leader.0,
        "log_holder": memory.holder.map(|holder| holder.0),
        "confirmed": ids(&memory.confirmed).collect::<Vec<_>>(),
        "members": ids(&memory.members).collect::<Vec<_>>(),
        "log_head": report.op.op.0,
        "log_tail": memory.tail.0,
    })
}

/// What a replica that takes ordered messages knows of them.
fn ordered(multicast: &MulticastStatus) -> Value {
    json!({
        "address": multicast.address.map(|at| at.to_string()),
        "joined": multicast.joined.map(|at| at.to_string()),
        "session": multicast.session,
        "members": multicast.members.iter().map(|id| id.0).collect::<Vec<_>>(),
        "changing": multicast.changing,
        "sequencer": multicast.sequencer.map(|at| at.to_string()),
        "next": multicast.next,
        "open_gaps": multicast.open_gaps,
        "missing": multicast.missing,
        "found": multicast.found,
        "no_ops": multicast.no_ops,
        "views": multicast.views,
        "ignored": multicast.ignored,
        "unsent": multicast.unsent,
    })
}

/// The replicas for which something is so.
pub(super) fn ids(flags: &[bool]) -> impl Iterator<Item = usize> {
    (0..flags.len()).filter(|&id| flags[id])
}

fn counted(counters: &Counters) -> Value {
    json!({
        "writes": counters.writes,
        "reads": counters.reads,
        "batches": counters.batches,
        "failures": counters.failures,
        "accepted": counters.accepted,
        "rejected": counters.rejected,
        "turns": counters.turns,
        "refused_peers": counters.refused_peers,
        "dropped_frames": counters.dropped_frames,
        "nonsense": counters.nonsense,
        "log_batches": counters.stored,
        "log_syncs": counters.syncs,
    })
}

/// Whether the replica does its part, in a word.
fn health(role: Role) -> &'static str {
    match role {
        Role::Primary | Role::Backup => "normal",
        Role::ViewChange => "electing",
        Role::Recovering => "recovering",
        Role::StateLost => "lost",
    }
}
