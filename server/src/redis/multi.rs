//! MULTI, EXEC, DISCARD, WATCH and UNWATCH. A transaction is one item of a request; the service
//! executes it as a whole, if no watched key has another version.

use kv::{Place, Spec, Store};
use node::Desk;
use resp::{Command, write};

use super::session::{Multi, Muted, State};
use super::{DISK_FULL, PLAIN, Redis, SILENT, Taken, WATCH};

/// Commands that take effect at once although a transaction is being put together.
pub(super) fn is_immediate(spec: &Spec) -> bool {
    matches!(spec.name, "multi" | "exec" | "discard" | "watch" | "quit" | "reset")
}

impl Redis {
    /// Adds a command to the transaction.
    pub(super) fn queue(
        &mut self,
        state: &mut State,
        spec: &'static Spec,
        command: &Command<'_>,
        desk: &mut Desk<'_, Store>,
    ) -> Taken {
        let protocol = state.protocol;
        if spec.cursor.is_some() {
            state.spoil();
            let text = format!("ERR {} is not supported inside MULTI", spec.name.to_uppercase());
            state.answer(desk, |out| write::error(out, &text));
            return Taken::Yes;
        }
        let literal = (spec.place == Place::Local).then(|| {
            let mut reply = Vec::new();
            self.run_local(state, spec, command, desk, &mut reply);
            reply
        });
        let most = self.bounds.command_bytes;
        let multi = state.multi.as_mut().expect("the caller has seen it");
        if multi.commands.len() + command.iter().map(|arg| arg.len() + 4).sum::<usize>() > most {
            multi.spoiled = true;
            state.answer(desk, |out| write::error(out, "ERR the transaction is too long"));
            return Taken::Yes;
        }
        match literal {
            Some(reply) => kv::request::push_literal(&mut multi.commands, &reply),
            None => command.with_slices(|argv| {
                kv::request::push_command(&mut multi.commands, protocol, spec, argv);
            }),
        }
        multi.count += 1;
        multi.writes |= spec.place == Place::Write;
        multi.grows |= spec.grows;
        state.answer(desk, |out| write::simple(out, "QUEUED"));
        Taken::Yes
    }

    pub(super) fn multi(&mut self, state: &mut State, desk: &mut Desk<'_, Store>) -> Taken {
        if state.multi.is_some() {
            state.answer(desk, |out| write::error(out, "ERR MULTI calls can not be nested"));
        } else {
            state.multi = Some(Multi::default());
            state.answer(desk, write::ok);
        }
        Taken::Yes
    }

    pub(super) fn discard(&mut self, state: &mut State, desk: &mut Desk<'_, Store>) -> Taken {
        if !state.watching.is_empty() {
            return Taken::No;
        }
        if state.multi.take().is_none() {
            state.answer(desk, |out| write::error(out, "ERR DISCARD without MULTI"));
        } else {
            state.unwatch();
            state.answer(desk, write::ok);
        }
        Taken::Yes
    }

    pub(super) fn exec(&mut self, state: &mut State, desk: &mut Desk<'_, Store>) -> Taken {
        let Some(multi) = &state.multi else {
            state.answer(desk, |out| write::error(out, "ERR EXEC without MULTI"));
            return Taken::Yes;
        };
        // The versions must be known.
        if !state.watching.is_empty() {
            return Taken::No;
        }
        let too_long = state.watched_bytes + multi.commands.len() > self.bounds.command_bytes;
        let refusal = if too_long {
            Some("ERR the transaction is too long")
        } else if multi.spoiled {
            Some("EXECABORT Transaction discarded because of previous errors.")
        } else if multi.grows && desk.status().disk_full {
            Some(DISK_FULL)
        } else {
            None
        };
        let nothing = multi.count == 0 && state.watches.is_empty();
        if refusal.is_some() || nothing {
            state.multi = None;
            state.unwatch();
            state.answer(desk, |out| match refusal {
                Some(text) => write::error(out, text),
                None => write::array(out, 0),
            });
            return Taken::Yes;
        }
        let push = |body: &mut Vec<u8>| {
            let watches: Vec<(&[u8], u64)> =
                state.watches.iter().map(|(key, version)| (&key[..], *version)).collect();
            kv::request::push_transaction(body, state.protocol, &watches, &multi.commands);
        };
        let note = if state.muted == Muted::No { PLAIN } else { SILENT };
        let submitted = if multi.writes || !state.watches.is_empty() {
            desk.write(note, push)
        } else {
            desk.read(note, push)
        };
        if !submitted {
            return Taken::No;
        }
        state.multi = None;
        state.unwatch();
        Taken::Yes
    }

    pub(super) fn watch(
        &mut self,
        state: &mut State,
        command: &Command<'_>,
        desk: &mut Desk<'_, Store>,
    ) -> Taken {
        if state.multi.is_some() {
            state.answer(desk, |out| write::error(out, "ERR WATCH inside MULTI is not allowed"));
            return Taken::Yes;
        }
        let keys: Vec<&[u8]> = command.iter().skip(1).collect();
        let bytes: usize = keys.iter().map(|key| key.len() + 16).sum();
        if state.watched_bytes + bytes > self.bounds.command_bytes {
            state.answer(desk, |out| write::error(out, "ERR too many keys are watched"));
            return Taken::Yes;
        }
        if !desk.read(WATCH, |body| kv::request::push_versions(body, &keys)) {
            return Taken::No;
        }
        state.watched_bytes += bytes;
        state.watching.push_back(keys.into_iter().map(<[u8]>::to_vec).collect());
        Taken::Yes
    }

    pub(super) fn unwatch(&mut self, state: &mut State, desk: &mut Desk<'_, Store>) -> Taken {
        if !state.watching.is_empty() {
            return Taken::No;
        }
        state.unwatch();
        state.answer(desk, write::ok);
        Taken::Yes
    }
}
