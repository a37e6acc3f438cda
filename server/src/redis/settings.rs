//! CONFIG: what clients and test suites ask for. Only what is true is fixed; the rest is accepted,
//! remembered for this process and without effect.

use std::collections::BTreeMap;

use resp::{Command, write};
use smr::Durability;

use super::Bounds;
use super::local::{lower, unknown_subcommand, wrong_arity};
use super::session::State;

/// Accepted and remembered.
#[rustfmt::skip]
const FREE: &[(&str, &str)] = &[
    ("hash-max-ziplist-entries", "128"), ("hash-max-ziplist-value", "64"),
    ("hash-max-listpack-entries", "128"), ("hash-max-listpack-value", "64"),
    ("set-max-intset-entries", "512"), ("set-max-listpack-entries", "128"),
    ("set-max-listpack-value", "64"), ("zset-max-ziplist-entries", "128"),
    ("zset-max-ziplist-value", "64"), ("zset-max-listpack-entries", "128"),
    ("zset-max-listpack-value", "64"), ("list-max-ziplist-size", "-2"),
    ("list-max-listpack-size", "-2"), ("list-compress-depth", "0"),
    ("sanitize-dump-payload", "no"), ("proto-max-bulk-len", "536870912"),
    ("client-query-buffer-limit", "1073741824"), ("save", ""), ("lua-time-limit", "5000"),
    ("busy-reply-threshold", "5000"), ("maxmemory", "0"), ("maxmemory-policy", "noeviction"),
    ("maxmemory-samples", "5"), ("maxmemory-clients", "0"), ("notify-keyspace-events", ""),
    ("tracking-table-max-keys", "1000000"), ("timeout", "0"), ("slowlog-log-slower-than", "10000"),
    ("slowlog-max-len", "128"), ("latency-monitor-threshold", "0"), ("hz", "10"),
    ("dynamic-hz", "yes"), ("activedefrag", "no"), ("lazyfree-lazy-user-del", "no"),
    ("lazyfree-lazy-user-flush", "no"), ("stream-node-max-bytes", "4096"),
    ("stream-node-max-entries", "100"), ("key-load-delay", "0"), ("loglevel", "notice"),
    ("close-on-oom", "yes"), ("rdb-key-save-delay", "0"), ("repl-timeout", "60"),
    ("min-replicas-to-write", "0"), ("lfu-decay-time", "1"),
    ("lfu-log-factor", "10"), ("client-output-buffer-limit",
     "normal 0 0 0 slave 268435456 67108864 60 pubsub 33554432 8388608 60"),
];

/// The parameters.
pub(super) struct Settings {
    free: BTreeMap<&'static str, String>,
    fixed: BTreeMap<&'static str, String>,
}

impl Settings {
    pub fn new(bounds: &Bounds, port: u16) -> Settings {
        let (appendonly, appendfsync) = match bounds.durability {
            Durability::Memory => ("no", "no"),
            // The nearest word: the disk follows, here with a pause of a millisecond at most.
            Durability::Lazy => ("yes", "everysec"),
            Durability::Sync => ("yes", "always"),
        };
        let fixed = [
            ("port", port.to_string()),
            ("databases", "1".to_owned()),
            ("maxclients", bounds.max_clients.to_string()),
            ("appendonly", appendonly.to_owned()),
            ("appendfsync", appendfsync.to_owned()),
            ("requirepass", String::new()),
            ("cluster-enabled", "no".to_owned()),
            ("io-threads", "1".to_owned()),
            ("daemonize", "no".to_owned()),
        ];
        let free = FREE.iter().map(|&(name, value)| (name, value.to_owned())).collect();
        Settings { free, fixed: fixed.into_iter().collect() }
    }

    pub fn config(&mut self, state: &State, command: &Command<'_>, out: &mut Vec<u8>) {
        match (&lower(command, 1)[..], command.len()) {
            ("get", 3..) => self.get(state, command, out),
            ("set", 4..) if command.len().is_multiple_of(2) => self.set(command, out),
            ("resetstat", 2) => write::ok(out),
            (sub @ ("get" | "set" | "resetstat"), _) => wrong_arity(out, "config", sub),
            ("rewrite", 2) => {
                write::error(out, "ERR The server is running without a config file");
            }
            _ => unknown_subcommand(out, "config", command.get(1).unwrap_or_default()),
        }
    }

    fn get(&self, state: &State, command: &Command<'_>, out: &mut Vec<u8>) {
        let patterns: Vec<String> = (2..command.len()).map(|at| lower(command, at)).collect();
        let all = self.free.iter().chain(&self.fixed);
        let found: Vec<_> = all
            .filter(|(name, _)| {
                patterns.iter().any(|p| kv::glob_matches(p.as_bytes(), name.as_bytes()))
            })
            .collect();
        write::map(out, state.protocol, found.len());
        for (name, value) in found {
            write::bulk(out, name.as_bytes());
            write::bulk(out, value.as_bytes());
        }
    }

    fn set(&mut self, command: &Command<'_>, out: &mut Vec<u8>) {
        // All or nothing, as in Redis.
        for at in (2..command.len()).step_by(2) {
            let name = lower(command, at);
            if self.fixed.contains_key(&name[..]) {
                let text = format!(
                    "ERR CONFIG SET failed (possibly related to argument '{name}') - can't set \
                     immutable config"
                );
                return write::error(out, &text);
            }
            let value = command.get(at + 1).unwrap_or_default();
            if name == "maxmemory" && !is_memory_value(value) {
                let text = "ERR CONFIG SET failed (possibly related to argument 'maxmemory') - \
                            argument must be a memory value";
                return write::error(out, text);
            }
            if !self.free.contains_key(&name[..]) {
                let given = String::from_utf8_lossy(command.get(at).unwrap_or_default());
                let text =
                    format!("ERR Unknown option or number of arguments for CONFIG SET - '{given}'");
                return write::error(out, &text);
            }
        }
        for at in (2..command.len()).step_by(2) {
            let value = String::from_utf8_lossy(command.get(at + 1).unwrap_or_default());
            if let Some(known) = self.free.get_mut(&lower(command, at)[..]) {
                *known = value.into_owned();
            }
        }
        write::ok(out);
    }
}

/// A number with one of Redis's units, or none.
fn is_memory_value(text: &[u8]) -> bool {
    let digits = text.iter().take_while(|byte| byte.is_ascii_digit()).count();
    let unit = text[digits..].to_ascii_lowercase();
    digits > 0 && matches!(&unit[..], b"" | b"b" | b"k" | b"kb" | b"m" | b"mb" | b"g" | b"gb")
}
