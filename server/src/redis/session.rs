//! What is kept for a connection.

use std::collections::{HashMap, VecDeque};

use kv::Store;
use node::{ConnectionId, Desk};
use resp::{Limits, Parser, Protocol, write};

/// A connection.
pub struct Session {
    pub(super) parser: Parser,
    pub(super) state: State,
}

/// Which answers the client does not want (CLIENT REPLY).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Muted {
    No,
    /// None until told otherwise.
    Off,
    /// The command after the present one.
    Next,
    /// The present command.
    This,
}

/// All but the parser, which a command under way borrows.
pub(super) struct State {
    pub id: ConnectionId,
    pub protocol: Protocol,
    pub muted: Muted,
    pub multi: Option<Multi>,
    /// Watched keys with the versions they had.
    pub watches: HashMap<Vec<u8>, u64>,
    /// Keys of each WATCH that is not answered.
    pub watching: VecDeque<Vec<Vec<u8>>>,
    /// Bytes of all these keys, as a transaction carries them.
    pub watched_bytes: usize,
}

/// A transaction that is being put together.
#[derive(Default)]
pub(super) struct Multi {
    /// The commands, as items of a request.
    pub commands: Vec<u8>,
    pub count: usize,
    /// Some of them change the state.
    pub writes: bool,
    /// Some of them may need space.
    pub grows: bool,
    /// One of them was refused.
    pub spoiled: bool,
}

impl Session {
    pub(super) fn new(id: ConnectionId, bulk_len: usize) -> Session {
        let limits = Limits { bulk_len, ..Limits::default() };
        let state = State {
            id,
            protocol: Protocol::V2,
            muted: Muted::No,
            multi: None,
            watches: HashMap::new(),
            watching: VecDeque::new(),
            watched_bytes: 0,
        };
        Session { parser: Parser::new(limits), state }
    }
}

impl State {
    /// Answers a command here and now, unless the client does not want that.
    pub fn answer(&self, desk: &mut Desk<'_, Store>, write: impl FnOnce(&mut Vec<u8>)) {
        match self.muted {
            Muted::Off | Muted::This => desk.answer(|_| {}),
            Muted::No | Muted::Next => desk.answer(write),
        }
    }

    /// A command was taken.
    pub fn after_command(&mut self) {
        self.muted = match self.muted {
            Muted::Next => Muted::This,
            Muted::This => Muted::No,
            muted => muted,
        };
    }

    /// A command was refused: a transaction that it is in will not be executed.
    pub fn spoil(&mut self) {
        if let Some(multi) = &mut self.multi {
            multi.spoiled = true;
        }
    }

    /// As after the connection was made.
    pub fn reset(&mut self) {
        self.protocol = Protocol::V2;
        self.muted = Muted::No;
        self.multi = None;
        self.unwatch();
    }

    /// Forgets the watched keys. No WATCH may be unanswered.
    pub fn unwatch(&mut self) {
        self.watches.clear();
        self.watched_bytes = 0;
    }

    /// A WATCH is answered.
    pub fn watched(&mut self, versions: impl Iterator<Item = u64>, out: &mut Vec<u8>) {
        let keys = self.watching.pop_front().unwrap_or_default();
        // A key that is watched already keeps its first version, as in Redis.
        for (key, version) in keys.into_iter().zip(versions) {
            self.watches.entry(key).or_insert(version);
        }
        write::ok(out);
    }

    /// A WATCH came to nothing: no version is known, so that EXEC must not go through.
    pub fn watch_failed(&mut self) {
        let keys = self.watching.pop_front().unwrap_or_default();
        self.watches.extend(keys.into_iter().map(|key| (key, u64::MAX)));
    }
}
