//! Memcached's items: strings of the one key space with client flags, cas numbers and marks.
//!
//! A string's cas number is its version, so strings set by Redis clients have one, too, at no cost.
//! What a plain string cannot say (flags other than 0, a mark, a cas number that is not the
//! version) stands behind its bytes ([`Facts`]), in a value of kind `Item`. Collections are misses
//! to `get`; what would change one from within is refused.
//!
//! Invariant: a change gives a key a new version, always. One that must not show in the cas number
//! (`touch`, a won recache) keeps the old number among the facts.

mod answer;
mod change;
mod facts;
mod get;
mod operation;

pub use answer::{Answer, Found, Outcome};
pub(crate) use facts::Facts;
pub use operation::is_write;
pub(crate) use operation::{Operation, push as push_operation};

use smr::ReadOutcome;

use crate::dispatch::Surroundings;
use crate::store::Store;

/// Seconds above which an expiration time counts from 1970.
const RELATIVE: i64 = 60 * 60 * 24 * 30;

/// When an item expires.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Expires {
    /// At this time in milliseconds since 1970; 0 for never.
    At(u64),
    /// It is not there at all.
    Already,
}

impl Expires {
    /// From memcached's expiration time.
    pub(crate) fn parse(exptime: i64, unix_ms: u64) -> Expires {
        let ms = exptime.unsigned_abs().saturating_mul(1000);
        match exptime {
            0 => Expires::At(0),
            ..0 => Expires::Already,
            1..=RELATIVE => Expires::At(unix_ms.saturating_add(ms)),
            _ if ms <= unix_ms => Expires::Already,
            _ => Expires::At(ms),
        }
    }
}

/// Executes a command in the log.
pub(crate) fn apply(store: &mut Store, around: &mut Surroundings<'_>, operation: &Operation<'_>) {
    let (guard, unix_ms) = (around.guard, around.unix_ms);
    let mut change = change::Change { store, guard, unix_ms, reply: around.reply };
    match operation {
        Operation::Get { keys, touch: None } => {
            if change.store.sizes().expiring > 0 {
                for key in *keys {
                    change.store.settle(key, unix_ms, guard);
                }
            }
            let got = get::get(change.store, guard, unix_ms, *keys, change.reply);
            debug_assert!(got, "what has expired was removed");
        }
        Operation::Get { keys, touch: Some(exptime) } => change.get_and_touch(*keys, *exptime),
        Operation::Fetch(fetch) => change.fetch(fetch),
        Operation::Store(item) => change.store(item),
        Operation::Delete(delete) => change.delete(delete),
        Operation::Arithmetic(arithmetic) => change.arithmetic(arithmetic),
        Operation::Flush(delay) => change.flush(*delay),
    }
}

/// Executes a command beside the log, if it changes nothing.
pub(crate) fn read(
    store: &Store,
    around: &mut Surroundings<'_>,
    operation: &Operation<'_>,
) -> ReadOutcome {
    let (guard, unix_ms) = (around.guard, around.unix_ms);
    let answered = match operation {
        Operation::Get { keys, touch: None } => {
            get::get(store, guard, unix_ms, *keys, around.reply)
        }
        Operation::Fetch(fetch) => get::fetch(store, guard, unix_ms, fetch, around.reply),
        _ => false,
    };
    if answered { ReadOutcome::Done } else { ReadOutcome::MustLog }
}
