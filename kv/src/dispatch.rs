//! Takes requests apart and runs what is in them.

use std::sync::atomic::Ordering;

use masstree::Guard;
use resp::{Protocol, write};
use smr::{BadCheckpoint, Context, ReadOutcome, StateMachine};

use crate::call::{ReadCall, WriteCall};
use crate::checkpoint::{self, Checkpoint};
use crate::error::Error;
use crate::random::mix;
use crate::reply::push_item;
use crate::request::{self, Item, Reader};
use crate::store::{Store, Undo};
use crate::table::{self, Run, Spec};
use crate::{items, transaction};

/// Keys whose time has come that every request removes on the side, at most.
const SWEEP_ON_THE_SIDE: usize = 20;

/// And that a request for just that removes, at most.
const SWEEP: usize = 1000;

/// What all commands of a request have in common while they run.
pub(crate) struct Surroundings<'a> {
    pub guard: &'a Guard,
    pub unix_ms: u64,
    pub reply: &'a mut Vec<u8>,
    /// Where the random draws of the next command start.
    pub seed: u64,
}

impl StateMachine for Store {
    type Undo = Undo;

    fn apply(&mut self, context: Context, request: &[u8], reply: &mut Vec<u8>) -> Undo {
        let guard = &masstree::pin();
        self.begin();
        if self.flush_is_due(context.unix_ms) {
            self.flush();
            self.set_flush_ms(0);
        }
        self.sweep(context.unix_ms, SWEEP_ON_THE_SIDE, guard);
        let seed = mix(mix(context.position.0) ^ u64::from(context.index));
        let around = &mut Surroundings { guard, unix_ms: context.unix_ms, reply, seed };
        let mut from = Reader::new(request);
        let mut args = Vec::new();
        while !from.is_empty() {
            let item = from.item();
            let sound = item.is_ok();
            push_item(around, |around| match item {
                Ok((protocol, item)) => self.apply_item(around, protocol, item, &mut args),
                Err(request::Malformed) => write::error(around.reply, MALFORMED),
            });
            if !sound {
                break;
            }
        }
        self.end()
    }

    fn undo(&mut self, undo: Undo) {
        self.take_back(undo, &masstree::pin());
    }

    fn read(&self, unix_ms: u64, request: &[u8], reply: &mut Vec<u8>) -> ReadOutcome {
        let guard = &masstree::pin();
        if self.flush_is_due(unix_ms) {
            return ReadOutcome::MustLog;
        }
        // Only what is drawn at random depends on it, and outside the log that may be anything.
        let draw = self.draws.fetch_add(1, Ordering::Relaxed);
        let around = &mut Surroundings { guard, unix_ms, reply, seed: mix(draw) };
        let mut from = Reader::new(request);
        let mut args = Vec::new();
        while !from.is_empty() {
            let item = from.item();
            let sound = item.is_ok();
            let outcome = push_item(around, |around| match item {
                Ok((protocol, item)) => self.read_item(around, protocol, item, &mut args),
                Err(request::Malformed) => {
                    write::error(around.reply, MALFORMED);
                    ReadOutcome::Done
                }
            });
            if outcome == ReadOutcome::MustLog || !sound {
                return outcome;
            }
        }
        ReadOutcome::Done
    }

    fn wakeup(&self) -> Option<u64> {
        self.next_due(&masstree::pin())
    }

    fn wakeup_request(&self) -> Vec<u8> {
        let mut request = Vec::new();
        request::push_sweep(&mut request);
        request
    }

    fn checkpoint_begin(&mut self) {
        self.checkpoint = Some(Checkpoint::new(&self.trees, self.totals));
    }

    fn checkpoint_next(&mut self, budget: usize, out: &mut Vec<u8>) -> bool {
        let checkpoint = self.checkpoint.as_mut().expect("a checkpoint was begun");
        let last = checkpoint.next(budget, out, &masstree::pin());
        if last {
            self.checkpoint = None;
        }
        last
    }

    fn checkpoint_abort(&mut self) {
        self.checkpoint = None;
    }

    fn restore_begin(&mut self) {
        self.reset();
    }

    fn restore_chunk(&mut self, chunk: &[u8]) -> Result<(), BadCheckpoint> {
        checkpoint::restore(self, chunk, &masstree::pin())
    }
}

pub(crate) const MALFORMED: &str = "ERR malformed request";
const UNKNOWN: &str = "ERR unknown command";
const LOCAL: &str = "ERR the command cannot be executed here";
const NESTED: &str = "ERR a transaction holds commands only";

impl Store {
    pub(crate) fn apply_item<'a>(
        &mut self,
        around: &mut Surroundings<'_>,
        protocol: Protocol,
        item: Item<'a>,
        args: &mut Vec<&'a [u8]>,
    ) {
        match item {
            Item::Command { id, args: packed } => {
                args.clear();
                args.extend(packed);
                self.apply_command(around, protocol, id, args);
            }
            Item::Transaction { watches, commands } => {
                transaction::apply(self, around, protocol, watches, commands);
            }
            Item::Versions(keys) => {
                self.settle_all(keys, around);
                transaction::versions(self, around, keys, &mut Vec::new());
            }
            Item::Sweep => {
                self.sweep(around.unix_ms, SWEEP, around.guard);
                write::ok(around.reply);
            }
            Item::Literal(bytes) => around.reply.extend_from_slice(bytes),
            Item::Memcached(operation) => items::apply(self, around, &operation),
        }
    }

    pub(crate) fn read_item<'a>(
        &self,
        around: &mut Surroundings<'_>,
        protocol: Protocol,
        item: Item<'a>,
        args: &mut Vec<&'a [u8]>,
    ) -> ReadOutcome {
        match item {
            Item::Command { id, args: packed } => {
                args.clear();
                args.extend(packed);
                self.read_command(around, protocol, id, args)
            }
            Item::Transaction { watches, commands } => {
                transaction::read(self, around, protocol, watches, commands)
            }
            Item::Versions(keys) => {
                let mut expired = Vec::new();
                transaction::versions(self, around, keys, &mut expired);
                if expired.is_empty() { ReadOutcome::Done } else { ReadOutcome::MustLog }
            }
            Item::Sweep => ReadOutcome::MustLog,
            Item::Memcached(operation) => items::read(self, around, &operation),
            Item::Literal(bytes) => {
                around.reply.extend_from_slice(bytes);
                ReadOutcome::Done
            }
        }
    }

    /// Runs an item of a transaction.
    pub(crate) fn apply_nested<'a>(
        &mut self,
        around: &mut Surroundings<'_>,
        protocol: Protocol,
        item: Item<'a>,
        args: &mut Vec<&'a [u8]>,
    ) {
        match item {
            Item::Command { .. } | Item::Literal(_) => {
                self.apply_item(around, protocol, item, args);
            }
            _ => write::error(around.reply, NESTED),
        }
    }

    /// Runs an item of a transaction that changes nothing.
    pub(crate) fn read_nested<'a>(
        &self,
        around: &mut Surroundings<'_>,
        protocol: Protocol,
        item: Item<'a>,
        args: &mut Vec<&'a [u8]>,
    ) -> ReadOutcome {
        match item {
            Item::Command { .. } | Item::Literal(_) => self.read_item(around, protocol, item, args),
            _ => {
                write::error(around.reply, NESTED);
                ReadOutcome::Done
            }
        }
    }

    #[inline]
    fn apply_command(
        &mut self,
        around: &mut Surroundings<'_>,
        protocol: Protocol,
        id: u16,
        args: &[&[u8]],
    ) {
        let start = around.reply.len();
        let Some(spec) = table::spec(id) else { return write::error(around.reply, UNKNOWN) };
        around.seed = mix(around.seed);
        let result = match (check(spec, args), spec.run) {
            (Err(error), _) => Err(error),
            (Ok(()), Run::Local) => Err(Error::Text(LOCAL)),
            (Ok(()), Run::Read(run)) => {
                if self.sizes().expiring > 0 {
                    self.settle_all(table::keys(spec, args), around);
                }
                let mut expired = Vec::new();
                let result = run(&mut around.read(self, protocol, &mut expired, true), args);
                self.settle_all(expired.iter().map(|key| &key[..]), around);
                result
            }
            (Ok(()), Run::Write(run)) => {
                let (guard, unix_ms) = (around.guard, around.unix_ms);
                let (reply, seed) = (&mut *around.reply, around.seed);
                run(&mut WriteCall { store: self, guard, unix_ms, protocol, reply, seed }, args)
            }
        };
        if let Err(error) = result {
            around.reply.truncate(start);
            error.write(spec, args, around.reply);
        }
    }

    #[inline]
    fn read_command(
        &self,
        around: &mut Surroundings<'_>,
        protocol: Protocol,
        id: u16,
        args: &[&[u8]],
    ) -> ReadOutcome {
        let start = around.reply.len();
        let Some(spec) = table::spec(id) else {
            write::error(around.reply, UNKNOWN);
            return ReadOutcome::Done;
        };
        around.seed = mix(around.seed);
        let mut expired = Vec::new();
        let result = match (check(spec, args), spec.run) {
            (Err(error), _) => Err(error),
            (Ok(()), Run::Local) => Err(Error::Text(LOCAL)),
            (Ok(()), Run::Read(run)) => {
                run(&mut around.read(self, protocol, &mut expired, false), args)
            }
            (Ok(()), Run::Write(_)) => return ReadOutcome::MustLog,
        };
        if !expired.is_empty() {
            return ReadOutcome::MustLog;
        }
        if let Err(error) = result {
            around.reply.truncate(start);
            error.write(spec, args, around.reply);
        }
        ReadOutcome::Done
    }

    /// Removes what has expired of these keys.
    pub(crate) fn settle_all<'a>(
        &mut self,
        keys: impl Iterator<Item = &'a [u8]>,
        around: &Surroundings<'_>,
    ) {
        for key in keys.filter(|key| key.len() <= crate::MAX_KEY_LEN) {
            self.settle(key, around.unix_ms, around.guard);
        }
    }
}

impl Surroundings<'_> {
    fn read<'b>(
        &'b mut self,
        store: &'b Store,
        protocol: Protocol,
        expired: &'b mut Vec<Box<[u8]>>,
        logged: bool,
    ) -> ReadCall<'b> {
        ReadCall {
            store,
            guard: self.guard,
            unix_ms: self.unix_ms,
            protocol,
            reply: self.reply,
            seed: self.seed,
            expired,
            logged,
        }
    }
}

/// Refuses a wrong number of arguments, and keys that are too long for the trees.
#[inline]
fn check(spec: &Spec, args: &[&[u8]]) -> Result<(), Error> {
    if !spec.accepts(args.len() + 1) {
        return Err(Error::Arity);
    }
    if table::keys(spec, args).any(|key| key.len() > crate::MAX_KEY_LEN) {
        return Err(Error::KeyTooLong);
    }
    Ok(())
}
