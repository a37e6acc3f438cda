//! `stats`. What is counted is counted by this process, for the clients that it serves; what the
//! state holds is the group's.

use std::ops::AddAssign;

use kv::Store;
use kv::items::Outcome;
use memcached::write::{self, Item, end, stat};
use memcached::{Command, MAX_VALUE_LEN, MetaCode, Reply};
use node::Desk;

use super::{Memcached, Style, VERSION, reply_of};

/// Commands and what became of them, since the start or `stats reset`.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Counters {
    /// Keys asked for.
    gets: u64,
    sets: u64,
    flushes: u64,
    touches: u64,
    metas: u64,
    pub get_hits: u64,
    touch_hits: u64,
    touch_misses: u64,
    delete_hits: u64,
    delete_misses: u64,
    increment_hits: u64,
    increment_misses: u64,
    decrement_hits: u64,
    decrement_misses: u64,
    cas_hits: u64,
    cas_misses: u64,
    cas_mismatches: u64,
    stored: u64,
    pub too_large: u64,
}

impl AddAssign for Counters {
    fn add_assign(&mut self, other: Counters) {
        self.gets += other.gets;
        self.sets += other.sets;
        self.flushes += other.flushes;
        self.touches += other.touches;
        self.metas += other.metas;
        self.get_hits += other.get_hits;
        self.touch_hits += other.touch_hits;
        self.touch_misses += other.touch_misses;
        self.delete_hits += other.delete_hits;
        self.delete_misses += other.delete_misses;
        self.increment_hits += other.increment_hits;
        self.increment_misses += other.increment_misses;
        self.decrement_hits += other.decrement_hits;
        self.decrement_misses += other.decrement_misses;
        self.cas_hits += other.cas_hits;
        self.cas_misses += other.cas_misses;
        self.cas_mismatches += other.cas_mismatches;
        self.stored += other.stored;
        self.too_large += other.too_large;
    }
}

impl Counters {
    /// A command was taken.
    pub fn took(&mut self, command: &Command<'_>) {
        match command {
            Command::Get { keys, .. } => self.gets += keys.count() as u64,
            Command::Store(..) => self.sets += 1,
            Command::FlushAll(..) => self.flushes += 1,
            Command::Fetch(_, Reply::Classic | Reply::Silent) => self.touches += 1,
            _ => {}
        }
        self.metas += u64::from(matches!(reply_of(command), Reply::Meta(_)));
    }

    /// A classic command was answered.
    pub fn became(&mut self, style: Style, outcome: Outcome) {
        let hit = outcome == Outcome::Done;
        let (hits, misses) = match style {
            Style::Store => (&mut self.stored, &mut 0),
            Style::Cas if outcome == Outcome::Exists => (&mut 0, &mut self.cas_mismatches),
            Style::Cas => {
                self.stored += u64::from(hit);
                (&mut self.cas_hits, &mut self.cas_misses)
            }
            Style::Delete => (&mut self.delete_hits, &mut self.delete_misses),
            Style::Increment => (&mut self.increment_hits, &mut self.increment_misses),
            Style::Decrement => (&mut self.decrement_hits, &mut self.decrement_misses),
            Style::Touch => (&mut self.touch_hits, &mut self.touch_misses),
            _ => return,
        };
        *(if hit { hits } else { misses }) += 1;
    }

    /// A meta command was answered.
    pub fn meta(&mut self, code: MetaCode, outcome: Outcome, item: Option<&Item<'_>>) {
        match code {
            MetaCode::Get => {
                self.gets += 1;
                self.get_hits += u64::from(item.is_some_and(|item| !item.won || item.size > 0));
            }
            MetaCode::Set => self.became(Style::Store, outcome),
            MetaCode::Delete => self.became(Style::Delete, outcome),
            MetaCode::Arithmetic => self.became(Style::Increment, outcome),
            MetaCode::Debug => {}
        }
    }
}

const UNSUPPORTED: &str = "CLIENT_ERROR these statistics are not kept";

impl Memcached {
    /// Appends the answer to `stats` with these arguments.
    pub(super) fn stats(&mut self, which: &[u8], desk: &Desk<'_, Store>, out: &mut Vec<u8>) {
        match which.trim_ascii() {
            b"" => self.general(desk, out),
            b"settings" => self.settings(out),
            b"items" => items(desk, out),
            b"slabs" => slabs(desk, out),
            b"sizes" => stat(out, "sizes_status", "disabled"),
            b"reset" => {
                for counters in &self.counters[..] {
                    *counters.lock().expect("nobody panics with it") = Counters::default();
                }
                return write::line(out, "RESET");
            }
            other => {
                let known = [&b"conns"[..], b"detail", b"cachedump", b"extstore", b"proxy"];
                let known = known.iter().any(|name| other.starts_with(name));
                return write::line(out, if known { UNSUPPORTED } else { "ERROR" });
            }
        }
        end(out);
    }

    /// The sums over all threads.
    fn counted(&self) -> Counters {
        let mut sum = Counters::default();
        for counters in &self.counters[..] {
            sum += *counters.lock().expect("nobody panics with it");
        }
        sum
    }

    fn general(&self, desk: &Desk<'_, Store>, out: &mut Vec<u8>) {
        let (status, state, counters) = (desk.status(), desk.service().stats(), self.counted());
        let node = desk.counters();
        let up = desk.now().micros.saturating_sub(status.started_at) / 1_000_000;
        stat(out, "pid", std::process::id());
        stat(out, "uptime", up);
        stat(out, "time", desk.now().unix_ms / 1000);
        stat(out, "version", VERSION);
        stat(out, "lockstep_version", env!("CARGO_PKG_VERSION"));
        stat(out, "lockstep_role", status.report.role.name());
        stat(out, "lockstep_durability", status.report.durability.name());
        stat(out, "pointer_size", usize::BITS);
        let numbers = [
            ("max_connections", self.bounds.max_clients as u64),
            ("curr_connections", desk.connections() as u64),
            ("total_connections", node.accepted),
            ("rejected_connections", node.rejected),
            ("cmd_get", counters.gets),
            ("cmd_set", counters.sets),
            ("cmd_flush", counters.flushes),
            ("cmd_touch", counters.touches),
            ("cmd_meta", counters.metas),
            ("get_hits", counters.get_hits),
            ("get_misses", counters.gets.saturating_sub(counters.get_hits)),
            ("delete_misses", counters.delete_misses),
            ("delete_hits", counters.delete_hits),
            ("incr_misses", counters.increment_misses),
            ("incr_hits", counters.increment_hits),
            ("decr_misses", counters.decrement_misses),
            ("decr_hits", counters.decrement_hits),
            ("cas_misses", counters.cas_misses),
            ("cas_hits", counters.cas_hits),
            ("cas_badval", counters.cas_mismatches),
            ("touch_hits", counters.touch_hits),
            ("touch_misses", counters.touch_misses),
            ("store_too_large", counters.too_large),
            ("limit_maxbytes", 0),
            ("accepting_conns", 1),
            ("threads", self.counters.len() as u64),
            ("bytes", state.bytes),
            ("curr_items", state.keys),
            ("total_items", counters.stored),
            ("evictions", 0),
            ("reclaimed", state.expired),
        ];
        for (name, number) in numbers {
            stat(out, name, number);
        }
    }

    fn settings(&self, out: &mut Vec<u8>) {
        stat(out, "maxbytes", 0);
        stat(out, "maxconns", self.bounds.max_clients);
        stat(out, "tcpport", self.port);
        stat(out, "udpport", 0);
        stat(out, "verbosity", 0);
        stat(out, "evictions", "off");
        stat(out, "domain_socket", "NULL");
        stat(out, "num_threads", self.counters.len());
        stat(out, "detail_enabled", "no");
        stat(out, "cas_enabled", "yes");
        stat(out, "auth_enabled_sasl", "no");
        stat(out, "auth_enabled_ascii", "no");
        stat(out, "item_size_max", MAX_VALUE_LEN);
        stat(out, "flush_enabled", "yes");
        stat(out, "dump_enabled", "no");
        stat(out, "shutdown_command", "no");
        stat(out, "binding_protocol", "ascii");
    }
}

/// There are no slabs: all items are in one class.
fn items(desk: &Desk<'_, Store>, out: &mut Vec<u8>) {
    let state = desk.service().stats();
    if state.keys > 0 {
        stat(out, "items:1:number", state.keys);
        stat(out, "items:1:mem_requested", state.bytes);
        stat(out, "items:1:evicted", 0);
        stat(out, "items:1:outofmemory", 0);
        stat(out, "items:1:reclaimed", state.expired);
    }
}

fn slabs(desk: &Desk<'_, Store>, out: &mut Vec<u8>) {
    let state = desk.service().stats();
    if state.keys > 0 {
        stat(out, "1:chunk_size", MAX_VALUE_LEN);
        stat(out, "1:used_chunks", state.keys);
        stat(out, "1:mem_requested", state.bytes);
    }
    stat(out, "active_slabs", u8::from(state.keys > 0));
    stat(out, "total_malloced", state.bytes);
}
