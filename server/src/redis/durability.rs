//! What a client can ask about its writes and the disk: LOCKSTEP.DURABILITY, LOCKSTEP.VIEWSTAMP and
//! WAITAOF. Nothing is ever promised that the group does not keep.

use kv::Store;
use node::Desk;
use resp::{Command, Protocol, write};
use smr::{Durability, Viewstamp};

use super::local::lower;
use super::session::{Muted, State};
use super::{Redis, SILENT, Taken, WAITAOF};

const WORDS: &str = "ERR LOCKSTEP.DURABILITY takes nothing, or one of memory, lazy and sync";
const TRANSACTION: &str = "ERR this command cannot be used inside a transaction";

/// What a client is told that has seen what a crash of the group has taken back.
pub(super) fn lost(after: Viewstamp, executed: bool) -> String {
    let (view, op) = (after.view.0, after.op.0);
    let this = match executed {
        true => "this command may have been executed, too",
        false => "this command was not executed",
    };
    format!(
        "WRONGVIEW acknowledged operations after <{view},{op}> were lost in a crash of the group, \
         and this connection has seen some of them; {this}; connect again, read what you rely on \
         and write again what is missing"
    )
}

/// Why the connection cannot have this durability, and what to do.
fn refusal(group: Durability, wanted: Durability) -> String {
    let (group_name, wanted_name) = (group.name(), wanted.name());
    let why = match (group, wanted) {
        (Durability::Memory, _) => {
            "its replicas write nothing to disk; start a group with --durability lazy or sync"
        }
        (Durability::Sync, _) => {
            "every answer waits for the disk, so that nothing less can be had; start a group with \
             --durability lazy for connections that choose"
        }
        (Durability::Lazy, _) => {
            "its replicas do write to disk, so that nothing less can be had; choose lazy or sync"
        }
    };
    format!(
        "ERR the durability of this group is {group_name} and a connection cannot have \
         {wanted_name}: {why}"
    )
}

impl Redis {
    /// LOCKSTEP.DURABILITY [memory|lazy|sync].
    pub(super) fn durability(
        &mut self,
        state: &mut State,
        command: &Command<'_>,
        desk: &mut Desk<'_, Store>,
    ) {
        if refuse_in_transaction(state, desk) {
            return;
        }
        let group = self.bounds.durability;
        let own = desk.durability();
        let wanted = match (command.len(), &lower(command, 1)[..]) {
            (1, _) => {
                let protocol = state.protocol;
                return state.answer(desk, |out| {
                    write::map(out, protocol, 2);
                    for (name, durability) in [("connection", own), ("group", group)] {
                        write::bulk(out, name.as_bytes());
                        write::bulk(out, durability.name().as_bytes());
                    }
                });
            }
            (2, "memory") => Durability::Memory,
            (2, "lazy") => Durability::Lazy,
            (2, "sync") => Durability::Sync,
            _ => return state.answer(desk, |out| write::error(out, WORDS)),
        };
        let given = desk.set_durability(wanted);
        state.answer(desk, |out| match given {
            true => write::ok(out),
            false => write::error(out, &refusal(group, wanted)),
        });
    }

    /// LOCKSTEP.VIEWSTAMP: the connection's last write.
    pub(super) fn viewstamp(&mut self, state: &mut State, desk: &mut Desk<'_, Store>) -> Taken {
        if refuse_in_transaction(state, desk) {
            return Taken::Yes;
        }
        let Some((last, durable)) = desk.last_write() else { return Taken::No };
        let protocol = state.protocol;
        state.answer(desk, |out| push_viewstamp(out, protocol, last, durable));
        Taken::Yes
    }

    /// WAITAOF numlocal numreplicas timeout. What is durable is on the disks of a majority.
    pub(super) fn waitaof(
        &mut self,
        state: &State,
        command: &Command<'_>,
        desk: &mut Desk<'_, Store>,
    ) -> Taken {
        let (wanted, timeout) = match waitaof_arguments(command, self.bounds.durability) {
            Ok(arguments) => arguments,
            Err(text) => {
                state.answer(desk, |out| write::error(out, text));
                return Taken::Yes;
            }
        };
        let hopeless = self.bounds.durability == Durability::Memory;
        if hopeless || !wanted {
            let Some((_, durable)) = desk.last_write() else { return Taken::No };
            state.answer(desk, |out| self.synced(durable && !hopeless, out));
            return Taken::Yes;
        }
        let note = if state.muted == Muted::No { WAITAOF } else { SILENT };
        let patience = (timeout > 0).then(|| timeout.saturating_mul(1000));
        match desk.ask_durable(note, patience) {
            None => return Taken::No,
            Some(true) => state.answer(desk, |out| self.synced(true, out)),
            Some(false) => {}
        }
        Taken::Yes
    }

    /// WAITAOF inside a transaction does not wait.
    pub(super) fn waitaof_now(
        &self,
        command: &Command<'_>,
        desk: &mut Desk<'_, Store>,
        out: &mut Vec<u8>,
    ) {
        match waitaof_arguments(command, self.bounds.durability) {
            Ok(_) => {
                let durable = match self.bounds.durability {
                    Durability::Memory => false,
                    // What is not answered yet is executed before the transaction, and durable.
                    Durability::Sync => true,
                    Durability::Lazy => desk.last_write().is_some_and(|(_, durable)| durable),
                };
                self.synced(durable, out);
            }
            Err(text) => write::error(out, text),
        }
    }

    /// How many disks hold what the connection has written: this one's and the others'.
    pub(super) fn synced(&self, reached: bool, out: &mut Vec<u8>) {
        write::array(out, 2);
        write::integer(out, i64::from(reached));
        write::integer(out, if reached { self.bounds.replicas as i64 / 2 } else { 0 });
    }
}

fn refuse_in_transaction(state: &mut State, desk: &mut Desk<'_, Store>) -> bool {
    let inside = state.multi.is_some();
    if inside {
        state.spoil();
        state.answer(desk, |out| write::error(out, TRANSACTION));
    }
    inside
}

fn push_viewstamp(out: &mut Vec<u8>, protocol: Protocol, last: Viewstamp, durable: bool) {
    if last == Viewstamp::default() {
        return write::null(out, protocol);
    }
    write::map(out, protocol, 3);
    write::bulk(out, b"view");
    write::integer(out, last.view.0 as i64);
    write::bulk(out, b"op");
    write::integer(out, last.op.0 as i64);
    write::bulk(out, b"durable");
    write::boolean(out, protocol, durable);
}

/// Whether anything is to be waited for, and for how many milliseconds at most; 0 for ever. The
/// texts are Redis's.
fn waitaof_arguments(
    command: &Command<'_>,
    durability: Durability,
) -> Result<(bool, u64), &'static str> {
    let number = |index| resp::parse_i64(command.get(index).unwrap_or_default());
    let local = number(1).ok_or("ERR value is not an integer or out of range")?;
    if !(0..=1).contains(&local) {
        return Err("ERR value is out of range, value must between 0 and 1");
    }
    let replicas = number(2).filter(|&replicas| replicas >= 0);
    let replicas = replicas.ok_or("ERR value is out of range, must be positive")?;
    let timeout = number(3).ok_or("ERR timeout is not an integer or out of range")?;
    let timeout = u64::try_from(timeout).map_err(|_| "ERR timeout is negative")?;
    if local > 0 && durability == Durability::Memory {
        return Err("ERR WAITAOF cannot be used when numlocal is set but appendonly is disabled.");
    }
    Ok((local > 0 || replicas > 0, timeout))
}
