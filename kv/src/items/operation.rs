//! The bytes of a memcached command in a request.
//!
//! An operation (one byte), marks (one byte: which of the optional numbers are there, and what is
//! yes or no), the numbers, 8 bytes each, in the order of the code below; then strings. Of `get`,
//! instead of a key, all keys to the end of the item. Little-endian.

use memcached::{Arithmetic, Command, Delete, Fetch, Mode, Store};

use crate::request::{Malformed, Reader, Strings, push_string, push_strings};

/// A command that concerns the state.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Operation<'a> {
    Get { keys: Strings<'a>, touch: Option<i64> },
    Fetch(Fetch<'a>),
    Store(Store<'a>),
    Delete(Delete<'a>),
    Arithmetic(Arithmetic<'a>),
    Flush(i64),
}

const GET: u8 = 0;
const FETCH: u8 = 1;
const STORE: u8 = 2;
const DELETE: u8 = 3;
const ARITHMETIC: u8 = 4;
const FLUSH: u8 = 5;

const MODES: [Mode; 5] = [Mode::Set, Mode::Add, Mode::Replace, Mode::Append, Mode::Prepend];

/// Whether a command changes the state. `None` if it does not concern it. One that is no write may
/// still turn out to change something: then it is executed in the log by itself.
pub fn is_write(command: &Command<'_>) -> Option<bool> {
    match command {
        Command::Get { touch, .. } => Some(touch.is_some()),
        Command::Fetch(fetch, _) => Some(fetch.touch.is_some()),
        Command::Debug(..) => Some(false),
        Command::Store(..)
        | Command::Delete(..)
        | Command::Arithmetic(..)
        | Command::FlushAll(..) => Some(true),
        Command::Stats(_)
        | Command::Version
        | Command::Verbosity(_)
        | Command::NoOp
        | Command::Quit => None,
    }
}

/// Optional numbers, of which the marks say which are there.
struct Numbers<'a> {
    out: &'a mut Vec<u8>,
    marks: usize,
    next: u8,
}

impl<'a> Numbers<'a> {
    fn new(out: &'a mut Vec<u8>, operation: u8) -> Numbers<'a> {
        out.push(operation);
        let marks = out.len();
        out.push(0);
        Numbers { out, marks, next: 0 }
    }

    fn mark(&mut self, yes: bool) {
        self.out[self.marks] |= u8::from(yes) << self.next;
        self.next += 1;
    }

    fn unsigned(&mut self, number: Option<u64>) {
        self.mark(number.is_some());
        if let Some(number) = number {
            self.out.extend_from_slice(&number.to_le_bytes());
        }
    }

    fn signed(&mut self, number: Option<i64>) {
        self.unsigned(number.map(i64::cast_unsigned));
    }
}

/// Appends a command.
///
/// # Panics
/// If it does not concern the state, or is 4 GiB or longer.
pub(crate) fn push(out: &mut Vec<u8>, command: &Command<'_>) {
    match command {
        Command::Get { keys, touch, .. } => {
            Numbers::new(out, GET).signed(*touch);
            push_strings(out, *keys);
        }
        Command::Fetch(fetch, _) | Command::Debug(fetch, _) => push_fetch(out, fetch),
        Command::Store(store, _) => push_store(out, store),
        Command::Delete(delete, _) => {
            let mut numbers = Numbers::new(out, DELETE);
            numbers.unsigned(delete.compare);
            numbers.unsigned(delete.new_cas);
            numbers.signed(delete.exptime);
            numbers.mark(delete.invalidate);
            numbers.mark(delete.empty);
            push_string(out, &delete.key);
        }
        Command::Arithmetic(arithmetic, _) => {
            let mut numbers = Numbers::new(out, ARITHMETIC);
            numbers.unsigned(arithmetic.compare);
            numbers.unsigned(arithmetic.new_cas);
            numbers.signed(arithmetic.exptime);
            numbers.signed(arithmetic.create.map(|(exptime, _)| exptime));
            numbers.unsigned(arithmetic.create.map(|(_, initial)| initial));
            numbers.unsigned(Some(arithmetic.delta));
            numbers.mark(arithmetic.decrement);
            push_string(out, &arithmetic.key);
        }
        Command::FlushAll(delay, _) => Numbers::new(out, FLUSH).signed(Some(*delay)),
        other => panic!("{other:?} does not concern the state"),
    }
}

fn push_fetch(out: &mut Vec<u8>, fetch: &Fetch<'_>) {
    let mut numbers = Numbers::new(out, FETCH);
    numbers.signed(fetch.touch);
    numbers.signed(fetch.vivify);
    numbers.unsigned(fetch.new_cas);
    numbers.signed(fetch.recache);
    numbers.mark(fetch.value);
    push_string(out, &fetch.key);
}

fn push_store(out: &mut Vec<u8>, store: &Store<'_>) {
    out.reserve(64 + store.key.len() + store.value.len());
    let mut numbers = Numbers::new(out, STORE);
    numbers.unsigned(store.compare);
    numbers.unsigned(store.new_cas);
    numbers.signed(store.vivify);
    numbers.signed(Some(store.exptime).filter(|&exptime| exptime != 0));
    numbers.mark(store.invalidate);
    out.push(store.mode as u8);
    out.extend_from_slice(&store.flags.to_le_bytes());
    push_string(out, &store.key);
    push_string(out, store.value);
}

/// Reads what [`Numbers`] wrote, in the same order.
struct Marks<'r, 'a> {
    from: &'r mut Reader<'a>,
    marks: u8,
}

impl Marks<'_, '_> {
    fn mark(&mut self) -> bool {
        let mark = self.marks & 1 != 0;
        self.marks >>= 1;
        mark
    }

    fn unsigned(&mut self) -> Result<Option<u64>, Malformed> {
        if self.mark() { self.from.u64().map(Some) } else { Ok(None) }
    }

    fn signed(&mut self) -> Result<Option<i64>, Malformed> {
        Ok(self.unsigned()?.map(u64::cast_signed))
    }
}

impl<'a> Operation<'a> {
    /// Reads what [`push`] wrote.
    pub(crate) fn read(from: &mut Reader<'a>) -> Result<Operation<'a>, Malformed> {
        let [operation, marks] = from.array()?;
        let mut numbers = Marks { from, marks };
        match operation {
            GET => {
                let touch = numbers.signed()?;
                let keys = from.strings()?;
                if { keys }.any(|key| key.len() > crate::MAX_KEY_LEN) {
                    return Err(Malformed);
                }
                Ok(Operation::Get { keys, touch })
            }
            FETCH => Operation::read_fetch(numbers),
            STORE => Operation::read_store(numbers),
            DELETE => {
                let (compare, new_cas) = (numbers.unsigned()?, numbers.unsigned()?);
                let exptime = numbers.signed()?;
                let (invalidate, empty) = (numbers.mark(), numbers.mark());
                let key = key(from)?.into();
                let delete = Delete { key, compare, invalidate, empty, exptime, new_cas };
                Ok(Operation::Delete(delete))
            }
            ARITHMETIC => Operation::read_arithmetic(numbers),
            FLUSH => numbers.signed()?.map(Operation::Flush).ok_or(Malformed),
            _ => Err(Malformed),
        }
    }

    fn read_fetch(mut numbers: Marks<'_, 'a>) -> Result<Operation<'a>, Malformed> {
        let (touch, vivify) = (numbers.signed()?, numbers.signed()?);
        let (new_cas, recache) = (numbers.unsigned()?, numbers.signed()?);
        let value = numbers.mark();
        let key = key(numbers.from)?.into();
        Ok(Operation::Fetch(Fetch { key, value, touch, vivify, new_cas, recache }))
    }

    fn read_store(mut numbers: Marks<'_, 'a>) -> Result<Operation<'a>, Malformed> {
        let (compare, new_cas) = (numbers.unsigned()?, numbers.unsigned()?);
        let (vivify, exptime) = (numbers.signed()?, numbers.signed()?);
        let invalidate = numbers.mark();
        let from = numbers.from;
        let [mode] = from.array()?;
        let mode = *MODES.get(usize::from(mode)).ok_or(Malformed)?;
        let flags = u32::from_le_bytes(from.array()?);
        let key = key(from)?.into();
        let value = from.string()?;
        let exptime = exptime.unwrap_or(0);
        let store =
            Store { key, mode, flags, exptime, compare, invalidate, new_cas, vivify, value };
        Ok(Operation::Store(store))
    }

    fn read_arithmetic(mut numbers: Marks<'_, 'a>) -> Result<Operation<'a>, Malformed> {
        let (compare, new_cas) = (numbers.unsigned()?, numbers.unsigned()?);
        let exptime = numbers.signed()?;
        let create = numbers.signed()?;
        let create = create.zip(numbers.unsigned()?);
        let delta = numbers.unsigned()?.ok_or(Malformed)?;
        let decrement = numbers.mark();
        let key = key(numbers.from)?.into();
        let arithmetic = Arithmetic { key, delta, decrement, compare, exptime, create, new_cas };
        Ok(Operation::Arithmetic(arithmetic))
    }
}

fn key<'a>(from: &mut Reader<'a>) -> Result<&'a [u8], Malformed> {
    let key = from.string()?;
    if key.len() > crate::MAX_KEY_LEN { Err(Malformed) } else { Ok(key) }
}
