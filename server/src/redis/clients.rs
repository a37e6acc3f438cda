//! The connections as CLIENT shows them.

use std::collections::BTreeMap;
use std::fmt::Write;

use kv::Store;
use node::{ConnectionId, Desk, Order};
use resp::{Command, Protocol, write};
use smr::Now;

use super::Redis;
use super::local::{lower, unknown_subcommand, wrong_arity};
use super::session::State;

pub(super) const BAD_NAME: &str =
    "ERR Client names cannot contain spaces, newlines or special characters.";

struct Info {
    address: String,
    since: u64,
    name: String,
    library: String,
    library_version: String,
    protocol: Protocol,
}

/// All connections.
#[derive(Default)]
pub(super) struct Clients {
    known: BTreeMap<ConnectionId, Info>,
}

impl Clients {
    pub fn open(&mut self, id: ConnectionId, from: &str, now: Now) {
        let info = Info {
            address: from.to_owned(),
            since: now.micros,
            name: String::new(),
            library: String::new(),
            library_version: String::new(),
            protocol: Protocol::V2,
        };
        self.known.insert(id, info);
    }

    pub fn close(&mut self, id: ConnectionId) {
        self.known.remove(&id);
    }

    pub fn reset(&mut self, id: ConnectionId) {
        if let Some(info) = self.known.get_mut(&id) {
            info.name.clear();
            info.protocol = Protocol::V2;
        }
    }

    pub fn set_protocol(&mut self, id: ConnectionId, protocol: Protocol) {
        if let Some(info) = self.known.get_mut(&id) {
            info.protocol = protocol;
        }
    }

    /// `false` for a name that would break the list.
    pub fn set_name(&mut self, id: ConnectionId, name: &[u8]) -> bool {
        if !printable(name) {
            return false;
        }
        if let Some(info) = self.known.get_mut(&id) {
            info.name = String::from_utf8_lossy(name).into_owned();
        }
        true
    }

    fn line(&self, id: ConnectionId, now: Now) -> String {
        let Some(info) = self.known.get(&id) else { return String::new() };
        let age = now.micros.saturating_sub(info.since) / 1_000_000;
        let resp = if info.protocol == Protocol::V3 { 3 } else { 2 };
        format!(
            "id={} addr={} laddr=:0 fd=0 name={} age={age} idle=0 flags=N db=0 sub=0 psub=0 \
             ssub=0 multi=-1 qbuf=0 qbuf-free=0 argv-mem=0 multi-mem=0 rbs=0 rbp=0 obl=0 oll=0 \
             omem=0 tot-mem=0 events=r cmd=client|list user=default redir=-1 resp={resp} \
             lib-name={} lib-ver={}\n",
            id.0, info.address, info.name, info.library, info.library_version,
        )
    }

    fn find(&self, address: &[u8]) -> Option<ConnectionId> {
        let mut known = self.known.iter();
        known.find(|(_, info)| info.address.as_bytes() == address).map(|(&id, _)| id)
    }
}

fn printable(text: &[u8]) -> bool {
    text.iter().all(|byte| (b'!'..=b'~').contains(byte))
}

impl Redis {
    pub(super) fn client(
        &mut self,
        state: &mut State,
        command: &Command<'_>,
        desk: &mut Desk<'_, Store>,
        out: &mut Vec<u8>,
    ) {
        let sub = lower(command, 1);
        match (&sub[..], command.len()) {
            ("id", 2) => write::integer(out, state.id.0 as i64),
            ("info", 2) => {
                write::bulk(out, self.clients().line(state.id, desk.now()).as_bytes());
            }
            ("list", _) => self.client_list(command, desk.now(), out),
            ("kill", 3..) => self.client_kill(state, command, desk, out),
            ("setname", 3) => {
                let name = command.get(2).unwrap_or_default();
                match self.clients().set_name(state.id, name) {
                    true => write::ok(out),
                    false => write::error(out, BAD_NAME),
                }
            }
            ("getname", 2) => {
                let clients = self.clients();
                let name = clients.known.get(&state.id).map_or("", |info| &info.name);
                match name {
                    "" => write::null(out, state.protocol),
                    name => write::bulk(out, name.as_bytes()),
                }
            }
            ("setinfo", 4) => self.client_setinfo(state, command, out),
            ("no-evict" | "no-touch", 3) => match &lower(command, 2)[..] {
                "on" | "off" => write::ok(out),
                _ => write::error(out, "ERR syntax error"),
            },
            // Nobody blocks, nobody is paused, nothing is tracked.
            ("unblock", 3 | 4) => write::integer(out, 0),
            ("unpause", 2) => write::ok(out),
            ("tracking", 3) if lower(command, 2) == "off" => write::ok(out),
            ("getredir", 2) => write::integer(out, -1),
            (
                "id" | "info" | "kill" | "setname" | "getname" | "setinfo" | "no-evict"
                | "no-touch" | "unblock" | "unpause" | "getredir",
                _,
            ) => wrong_arity(out, "client", &sub),
            _ => unknown_subcommand(out, "client", command.get(1).unwrap_or_default()),
        }
    }

    fn client_setinfo(&mut self, state: &State, command: &Command<'_>, out: &mut Vec<u8>) {
        let value = command.get(3).unwrap_or_default();
        let attribute = lower(command, 2);
        let mut clients = self.clients();
        let Some(info) = clients.known.get_mut(&state.id) else { return write::ok(out) };
        let place = match &attribute[..] {
            "lib-name" => &mut info.library,
            "lib-ver" => &mut info.library_version,
            _ => {
                let given = String::from_utf8_lossy(command.get(2).unwrap_or_default());
                return write::error(out, &format!("ERR Unrecognized option '{given}'"));
            }
        };
        if !printable(value) {
            let text =
                format!("ERR {attribute} cannot contain spaces, newlines or special characters.");
            return write::error(out, &text);
        }
        *place = String::from_utf8_lossy(value).into_owned();
        write::ok(out);
    }

    fn client_list(&self, command: &Command<'_>, now: Now, out: &mut Vec<u8>) {
        let mut lines = String::new();
        let clients = self.clients();
        let all = || clients.known.keys().copied();
        match (command.len(), &lower(command, 2)[..]) {
            (2, _) => all().for_each(|id| lines.push_str(&clients.line(id, now))),
            (4, "type") => match &lower(command, 3)[..] {
                "normal" => all().for_each(|id| lines.push_str(&clients.line(id, now))),
                "master" | "replica" | "slave" | "pubsub" => {}
                other => {
                    return write::error(out, &format!("ERR Unknown client type '{other}'"));
                }
            },
            (4.., "id") => {
                for id in command.iter().skip(3) {
                    let Some(id) = resp::parse_i64(id) else {
                        return write::error(out, "ERR Invalid client ID");
                    };
                    let _ = write!(lines, "{}", clients.line(ConnectionId(id as u64), now));
                }
            }
            _ => return write::error(out, "ERR syntax error"),
        }
        write::bulk(out, lines.as_bytes());
    }

    fn client_kill(
        &self,
        state: &State,
        command: &Command<'_>,
        desk: &mut Desk<'_, Store>,
        out: &mut Vec<u8>,
    ) {
        if command.len() == 3 {
            return match self.clients().find(command.get(2).unwrap_or_default()) {
                Some(id) => {
                    desk.order(Order::Kill(id));
                    write::ok(out);
                }
                None => write::error(out, "ERR No such client"),
            };
        }
        let mut chosen: Vec<ConnectionId> = self.clients().known.keys().copied().collect();
        let mut skip_me = true;
        let mut at = 2;
        while at < command.len() {
            let Some(value) = command.get(at + 1) else {
                return write::error(out, "ERR syntax error");
            };
            match &lower(command, at)[..] {
                "id" => match resp::parse_i64(value) {
                    Some(id) if id > 0 => chosen.retain(|known| known.0 == id as u64),
                    _ => return write::error(out, "ERR client-id should be greater than 0"),
                },
                "addr" => {
                    let found = self.clients().find(value);
                    chosen.retain(|&known| Some(known) == found);
                }
                "skipme" => match &lower(command, at + 1)[..] {
                    "yes" => skip_me = true,
                    "no" => skip_me = false,
                    _ => return write::error(out, "ERR syntax error"),
                },
                "user" if value == b"default" => {}
                "user" => {
                    let user = String::from_utf8_lossy(value);
                    return write::error(out, &format!("ERR No such user '{user}'"));
                }
                "type" if lower(command, at + 1) == "normal" => {}
                "type" | "laddr" => chosen.clear(),
                _ => return write::error(out, "ERR syntax error"),
            }
            at += 2;
        }
        chosen.retain(|&id| !(skip_me && id == state.id));
        for &id in &chosen {
            desk.order(Order::Kill(id));
        }
        write::integer(out, chosen.len() as i64);
    }
}
