//! Commands that this process answers by itself.

use kv::{Spec, Store};
use node::{Change, ChangeError, Desk};
use resp::{Command, write};
use smr::ReplicaId;

use super::session::{Muted, State};
use super::{Redis, Taken, command, connection, info};

/// Redis's text for an unknown subcommand.
pub(super) fn unknown_subcommand(out: &mut Vec<u8>, name: &str, given: &[u8]) {
    let given = String::from_utf8_lossy(&given[..given.len().min(128)]).into_owned();
    let upper = name.to_uppercase();
    write::error(out, &format!("ERR unknown subcommand '{given}'. Try {upper} HELP."));
}

/// Redis's text for a wrong number of arguments of a subcommand.
pub(super) fn wrong_arity(out: &mut Vec<u8>, name: &str, sub: &str) {
    write::error(out, &format!("ERR wrong number of arguments for '{name}|{sub}' command"));
}

/// An argument in lower case.
pub(super) fn lower(command: &Command<'_>, index: usize) -> String {
    String::from_utf8_lossy(command.get(index).unwrap_or_default()).to_lowercase()
}

impl Redis {
    /// Commands that act on the connection as a whole, and all others.
    pub(super) fn local(
        &mut self,
        state: &mut State,
        spec: &'static Spec,
        command: &Command<'_>,
        desk: &mut Desk<'_, Store>,
    ) -> Taken {
        match spec.name {
            "multi" => self.multi(state, desk),
            "exec" => self.exec(state, desk),
            "discard" => self.discard(state, desk),
            "watch" => self.watch(state, command, desk),
            "unwatch" => self.unwatch(state, desk),
            "quit" => {
                state.answer(desk, write::ok);
                Taken::Last
            }
            "reset" if !state.watching.is_empty() => Taken::No,
            "waitaof" => self.waitaof(state, command, desk),
            "reset" => {
                state.reset();
                desk.set_durability(self.bounds.durability);
                self.clients().reset(state.id);
                state.answer(desk, |out| write::simple(out, "RESET"));
                Taken::Yes
            }
            "client" if lower(command, 1) == "reply" => self.client_reply(state, command, desk),
            _ => {
                let mut reply = Vec::new();
                self.run_local(state, spec, command, desk, &mut reply);
                state.answer(desk, |out| out.extend_from_slice(&reply));
                Taken::Yes
            }
        }
    }

    /// Runs a command that only has an answer, which is appended to `out`.
    pub(super) fn run_local(
        &mut self,
        state: &mut State,
        spec: &'static Spec,
        command: &Command<'_>,
        desk: &mut Desk<'_, Store>,
        out: &mut Vec<u8>,
    ) {
        match spec.name {
            "ping" => connection::ping(state, command, out),
            "echo" => write::bulk(out, command.get(1).unwrap_or_default()),
            "select" => connection::select(command, out),
            "auth" => connection::auth(command, out),
            "hello" => self.hello(state, command, desk, out),
            "client" => self.client(state, command, desk, out),
            "command" => command::command(state, command, out),
            "info" => self.info(command, desk, state.protocol, out),
            "config" => self.settings().config(state, command, out),
            "time" => time(desk, out),
            "role" => info::role(desk.status(), out),
            "wait" => wait(command, desk, out),
            "waitaof" => self.waitaof_now(command, desk, out),
            "readonly" | "readwrite" | "cluster" => {
                write::error(out, "ERR This instance has cluster support disabled");
            }
            "function" => function(command, out),
            "slowlog" => slowlog(command, out),
            "latency" => latency(state, command, out),
            "acl" => connection::acl(command, out),
            "debug" => debug(command, out),
            // In a transaction, where they have no meaning.
            "unwatch" => write::ok(out),
            name => write::error(out, &format!("ERR '{name}' cannot be used here")),
        }
    }

    fn client_reply(
        &mut self,
        state: &mut State,
        command: &Command<'_>,
        desk: &mut Desk<'_, Store>,
    ) -> Taken {
        if command.len() != 3 {
            state.answer(desk, |out| wrong_arity(out, "client", "reply"));
            return Taken::Yes;
        }
        match &lower(command, 2)[..] {
            "on" => {
                state.muted = Muted::No;
                state.answer(desk, write::ok);
            }
            "off" => {
                state.muted = Muted::Off;
                state.answer(desk, |_| {});
            }
            "skip" => {
                if state.muted != Muted::Off {
                    // Not answered itself, and neither is the next command.
                    state.muted = Muted::Off;
                    state.answer(desk, |_| {});
                    state.muted = Muted::Next;
                } else {
                    state.answer(desk, |_| {});
                }
            }
            _ => state.answer(desk, |out| write::error(out, "ERR syntax error")),
        }
        Taken::Yes
    }

    /// Commands of this program's own, and those that nobody knows.
    pub(super) fn extension(
        &mut self,
        state: &mut State,
        command: &Command<'_>,
        desk: &mut Desk<'_, Store>,
    ) -> Taken {
        match &lower(command, 0)[..] {
            "lockstep.status" if state.multi.is_none() => {
                let text = self.status_json(desk);
                state.answer(desk, |out| write::bulk(out, text.as_bytes()));
            }
            "lockstep.durability" => self.durability(state, command, desk),
            "lockstep.viewstamp" => return self.viewstamp(state, desk),
            "lockstep.startover" if state.multi.is_none() => {
                let mut reply = Vec::new();
                start_over(command, desk, &mut reply);
                state.answer(desk, |out| out.extend_from_slice(&reply));
            }
            "lockstep.member" if state.multi.is_none() => {
                let mut reply = Vec::new();
                change_members(command, desk, &mut reply);
                state.answer(desk, |out| out.extend_from_slice(&reply));
            }
            // Not here, but Redis refuses them in a transaction whatever their arguments.
            "save" | "bgsave" | "shutdown" | "sync" | "psync" | "replicaof"
                if state.multi.is_some() =>
            {
                state.spoil();
                let text = "ERR Command not allowed inside a transaction";
                state.answer(desk, |out| write::error(out, text));
            }
            _ => {
                state.spoil();
                let text = unknown_command(command);
                state.answer(desk, |out| write::error(out, &text));
            }
        }
        Taken::Yes
    }
}

/// Redis's text, which shows at most 128 bytes of the name and of the arguments.
fn unknown_command(command: &Command<'_>) -> String {
    let shown = |bytes: &[u8], most: usize| {
        String::from_utf8_lossy(&bytes[..bytes.len().min(most)]).replace(['\r', '\n'], " ")
    };
    let name = shown(command.get(0).unwrap_or_default(), 128);
    let mut arguments = String::new();
    for argument in command.iter().skip(1) {
        if arguments.len() >= 128 {
            break;
        }
        let room = 128 - arguments.len();
        arguments.push_str(&format!("'{}' ", shown(argument, room)));
    }
    format!("ERR unknown command '{name}', with args beginning with: {arguments}")
}

/// Accepts the loss of the state: a new, empty group.
fn start_over(command: &Command<'_>, desk: &mut Desk<'_, Store>, out: &mut Vec<u8>) {
    let group = command.get(1).and_then(|text| std::str::from_utf8(text).ok());
    let group = group.and_then(|text| u64::from_str_radix(text, 16).ok()).filter(|&id| id != 0);
    let (Some(group), 2) = (group, command.len()) else {
        return write::error(
            out,
            "ERR LOCKSTEP.STARTOVER takes the new group's id, in hexadecimal",
        );
    };
    let status = desk.status();
    if status.identity.group.0 == group {
        return write::ok(out);
    }
    if !matches!(status.report.role, smr::Role::StateLost | smr::Role::Recovering) {
        let text = "ERR the state is not lost: there is nothing to accept";
        return write::error(out, text);
    }
    desk.order(node::Order::StartOver(smr::GroupId(group)));
    write::ok(out);
}

/// Begins a change of the members, or says why not.
fn change_members(command: &Command<'_>, desk: &mut Desk<'_, Store>, out: &mut Vec<u8>) {
    let id = command.get(2).and_then(|text| std::str::from_utf8(text).ok()?.parse().ok());
    let change: Option<fn(ReplicaId) -> Change> = match &lower(command, 1)[..] {
        "add" => Some(Change::Add),
        "remove" => Some(Change::Remove),
        _ => None,
    };
    let (Some(id), Some(change), 3) = (id.map(ReplicaId), change, command.len()) else {
        return write::error(out, "ERR LOCKSTEP.MEMBER takes ADD or REMOVE and a replica's id");
    };
    let Some(memory) = &desk.status().memory else {
        let text = match desk.status().multicast {
            Some(_) => "ERR the controllers name the members: `lockstep member --controller`",
            None => "ERR members can only be changed where the group orders by mu or nopaxos",
        };
        return write::error(out, text);
    };
    let (Some(&is_member), change) = (memory.members.get(id.index()), change(id)) else {
        let most = memory.members.len() - 1;
        return write::error(out, &format!("ERR the group's replicas are 0 to {most}"));
    };
    if is_member == matches!(change, Change::Add(_)) {
        return write::ok(out); // it is so already
    }
    match memory.changes[id.index()] {
        Ok(()) => {
            desk.order(node::Order::Change(change));
            write::ok(out);
        }
        Err(ChangeError::NotLeading) => {
            write::error(out, "NOTLEADING ask the replica that leads: see `lockstep status`");
        }
        Err(ChangeError::NotCaughtUp) => {
            let text = "NOTFOLLOWING the replica does not follow yet: start it, and wait until it \
                        is among the confirmed in `lockstep status`";
            write::error(out, text);
        }
        Err(ChangeError::Pointless) => write::error(out, "ERR nobody would be left"),
    }
}

fn time(desk: &Desk<'_, Store>, out: &mut Vec<u8>) {
    let now = desk.now();
    write::array(out, 2);
    write::bulk(out, (now.unix_ms / 1000).to_string().as_bytes());
    // The part below a millisecond only has to differ from call to call.
    let micros = now.unix_ms % 1000 * 1000 + now.micros % 1000;
    write::bulk(out, micros.to_string().as_bytes());
}

fn number(command: &Command<'_>, index: usize) -> Option<i64> {
    resp::parse_i64(command.get(index).unwrap_or_default())
}

/// An acknowledged write is at a quorum: at f replicas beside the primary. Answers come in order,
/// so the connection's writes are acknowledged when this answer leaves: there is no need to wait.
fn wait(command: &Command<'_>, desk: &Desk<'_, Store>, out: &mut Vec<u8>) {
    match (number(command, 1), number(command, 2)) {
        (Some(_), Some(timeout)) if timeout < 0 => write::error(out, "ERR timeout is negative"),
        (Some(_), Some(_)) => write::integer(out, i64::from(desk.status().replicas / 2)),
        (Some(_), None) => {
            write::error(out, "ERR timeout is not an integer or out of range");
        }
        (None, _) => write::error(out, "ERR value is not an integer or out of range"),
    }
}

/// There are no functions, so that they can all be removed.
fn function(command: &Command<'_>, out: &mut Vec<u8>) {
    match &lower(command, 1)[..] {
        "flush" => write::ok(out),
        "list" => write::array(out, 0),
        _ => unknown_subcommand(out, "function", command.get(1).unwrap_or_default()),
    }
}

fn slowlog(command: &Command<'_>, out: &mut Vec<u8>) {
    match &lower(command, 1)[..] {
        "get" => write::array(out, 0),
        "len" => write::integer(out, 0),
        "reset" => write::ok(out),
        _ => unknown_subcommand(out, "slowlog", command.get(1).unwrap_or_default()),
    }
}

fn latency(state: &State, command: &Command<'_>, out: &mut Vec<u8>) {
    match &lower(command, 1)[..] {
        "latest" | "history" => write::array(out, 0),
        "histogram" => write::map(out, state.protocol, 0),
        "reset" => write::integer(out, 0),
        "doctor" => write::bulk(out, b"Latency monitoring is not kept; see LOCKSTEP.STATUS."),
        _ => unknown_subcommand(out, "latency", command.get(1).unwrap_or_default()),
    }
}

/// Only what test suites need before they start.
fn debug(command: &Command<'_>, out: &mut Vec<u8>) {
    match &lower(command, 1)[..] {
        "jmap" | "set-disable-deny-scripts" => write::ok(out),
        _ => write::error(
            out,
            "ERR DEBUG command not allowed. It would act on one replica of a replicated group.",
        ),
    }
}
