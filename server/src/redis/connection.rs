//! PING, HELLO, AUTH, SELECT and ACL.

use kv::Store;
use node::Desk;
use resp::{Command, Protocol, write};

use super::local::{lower, unknown_subcommand};
use super::session::State;
use super::{REDIS_VERSION, Redis};

pub(super) fn ping(_: &State, command: &Command<'_>, out: &mut Vec<u8>) {
    match command.len() {
        1 => write::simple(out, "PONG"),
        2 => write::bulk(out, command.get(1).unwrap_or_default()),
        _ => write::error(out, "ERR wrong number of arguments for 'ping' command"),
    }
}

/// There is one database.
pub(super) fn select(command: &Command<'_>, out: &mut Vec<u8>) {
    match resp::parse_i64(command.get(1).unwrap_or_default()) {
        Some(0) => write::ok(out),
        Some(_) => write::error(out, "ERR DB index is out of range"),
        None => write::error(out, "ERR value is not an integer or out of range"),
    }
}

const NO_PASSWORD: &str = "ERR AUTH <password> called without any password configured for the \
                           default user. Are you sure your configuration is correct?";
const WRONG_PASSWORD: &str = "WRONGPASS invalid username-password pair or user is disabled.";

/// The default user has no password, as in Redis without configuration.
pub(super) fn auth(command: &Command<'_>, out: &mut Vec<u8>) {
    match (command.len(), command.get(1)) {
        (2, _) => write::error(out, NO_PASSWORD),
        (3, Some(b"default")) => write::ok(out),
        (3, _) => write::error(out, WRONG_PASSWORD),
        _ => write::error(out, "ERR syntax error"),
    }
}

pub(super) fn acl(command: &Command<'_>, out: &mut Vec<u8>) {
    match &lower(command, 1)[..] {
        "whoami" => write::bulk(out, b"default"),
        "list" => {
            write::array(out, 1);
            write::bulk(out, b"user default on nopass sanitize-payload ~* &* +@all");
        }
        "users" => {
            write::array(out, 1);
            write::bulk(out, b"default");
        }
        "cat" => {
            let categories = categories();
            write::array(out, categories.len());
            for category in categories {
                write::bulk(out, category.as_bytes());
            }
        }
        _ => unknown_subcommand(out, "acl", command.get(1).unwrap_or_default()),
    }
}

/// The families of commands.
fn categories() -> Vec<&'static str> {
    let mut groups: Vec<&str> = kv::all().iter().map(|spec| spec.group).collect();
    groups.extend(["read", "write", "fast", "slow", "admin"]);
    groups.sort_unstable();
    groups.dedup();
    groups
}

impl Redis {
    pub(super) fn hello(
        &mut self,
        state: &mut State,
        command: &Command<'_>,
        desk: &Desk<'_, Store>,
        out: &mut Vec<u8>,
    ) {
        let mut protocol = state.protocol;
        if let Some(version) = command.get(1) {
            protocol = match resp::parse_i64(version) {
                Some(2) => Protocol::V2,
                Some(3) => Protocol::V3,
                Some(_) => return write::error(out, "NOPROTO unsupported protocol version"),
                None => {
                    let text = "ERR Protocol version is not an integer or out of range";
                    return write::error(out, text);
                }
            };
        }
        let mut name = None;
        let mut at = 2;
        while at < command.len() {
            match (&lower(command, at)[..], command.len() - at) {
                ("auth", 3..) => {
                    if command.get(at + 1) != Some(b"default") {
                        return write::error(out, WRONG_PASSWORD);
                    }
                    at += 3;
                }
                ("setname", 2..) => {
                    name = command.get(at + 1);
                    at += 2;
                }
                _ => {
                    let option = String::from_utf8_lossy(command.get(at).unwrap_or_default());
                    let text = format!("ERR Syntax error in HELLO option '{option}'");
                    return write::error(out, &text);
                }
            }
        }
        if let Some(name) = name
            && !self.clients().set_name(state.id, name)
        {
            return write::error(out, super::clients::BAD_NAME);
        }
        state.protocol = protocol;
        self.clients().set_protocol(state.id, protocol);
        write_hello(state, desk, out);
    }
}

fn write_hello(state: &State, desk: &Desk<'_, Store>, out: &mut Vec<u8>) {
    let primary = desk.status().report.role == smr::Role::Primary;
    write::map(out, state.protocol, 7);
    write::bulk(out, b"server");
    write::bulk(out, b"redis");
    write::bulk(out, b"version");
    write::bulk(out, REDIS_VERSION.as_bytes());
    write::bulk(out, b"proto");
    write::integer(out, if state.protocol == Protocol::V3 { 3 } else { 2 });
    write::bulk(out, b"id");
    write::integer(out, state.id.0 as i64);
    write::bulk(out, b"mode");
    write::bulk(out, b"standalone");
    write::bulk(out, b"role");
    write::bulk(out, if primary { b"master" } else { b"replica" });
    write::bulk(out, b"modules");
    write::array(out, 0);
}
