//! What clients did and saw, as the checker wants it.
//!
//! Times are nanoseconds since some instant that all clients of a history share. An operation
//! whose outcome is not known (the connection broke, the server gave up) stays open for ever: it
//! may take effect at any time after its invocation, or never.

use std::fmt;

/// The state of a key: missing, or a number.
pub type Value = Option<i64>;

/// What was done, with what came back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// `SET` to this value.
    Set(i64),
    /// `GET` found this.
    Get(Value),
    /// `INCR` answered this; nothing where the answer is not known.
    Increment(Option<i64>),
}

/// One operation of one client on one key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Operation {
    /// Who asked; used in explanations only.
    pub client: u32,
    /// On what.
    pub key: u32,
    /// What was asked and answered.
    pub action: Action,
    /// When the request was about to be sent.
    pub invoked: u64,
    /// When the answer had been received; nothing where the outcome is not known.
    pub completed: Option<u64>,
}

impl Operation {
    /// The end of the time in which the operation took effect.
    pub fn end(&self) -> u64 {
        self.completed.unwrap_or(u64::MAX)
    }

    /// Whether the operation changes the key.
    pub fn is_write(&self) -> bool {
        !matches!(self.action, Action::Get(_))
    }
}

impl fmt::Display for Operation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let micros = |time: u64| time as f64 / 1e3;
        write!(f, "[{:.1} .. ", micros(self.invoked))?;
        match self.completed {
            Some(time) => write!(f, "{:.1} us]", micros(time))?,
            None => f.write_str("unknown]")?,
        }
        write!(f, " client {}: ", self.client)?;
        match self.action {
            Action::Set(value) => write!(f, "SET {value}"),
            Action::Get(Some(value)) => write!(f, "GET found {value}"),
            Action::Get(None) => f.write_str("GET found nothing"),
            Action::Increment(Some(value)) => write!(f, "INCR answered {value}"),
            Action::Increment(None) => f.write_str("INCR"),
        }
    }
}

/// Operations in no particular order.
#[derive(Clone, Debug, Default)]
pub struct History {
    /// The operations.
    pub operations: Vec<Operation>,
}

impl History {
    /// The operations of each key, keys in order, operations in the order of their invocation.
    pub fn by_key(&self) -> Vec<Vec<Operation>> {
        let mut sorted = self.operations.clone();
        sorted.sort_by_key(|operation| (operation.key, operation.invoked));
        sorted.chunk_by(|a, b| a.key == b.key).map(<[Operation]>::to_vec).collect()
    }

    /// Writes that were acknowledged.
    pub fn acknowledged_writes(&self) -> u64 {
        let acknowledged =
            |operation: &&Operation| operation.is_write() && operation.completed.is_some();
        self.operations.iter().filter(acknowledged).count() as u64
    }

    /// Operations whose outcome is not known.
    pub fn unknown(&self) -> u64 {
        self.operations.iter().filter(|operation| operation.completed.is_none()).count() as u64
    }

    /// How many acknowledged writes these reads, made after everything else, prove to be gone.
    pub fn lost_writes(&self, reads: &[Operation]) -> u64 {
        let empty = Vec::new();
        let keys = self.by_key();
        let mut worst = std::collections::BTreeMap::new();
        for read in reads {
            let Operation { action: Action::Get(found), completed: Some(_), .. } = *read else {
                continue;
            };
            let key = keys.iter().find(|key| key[0].key == read.key).unwrap_or(&empty);
            let lost = lost_writes(key, found);
            let entry = worst.entry(read.key).or_insert(0);
            *entry = lost.max(*entry);
        }
        worst.values().sum()
    }
}

/// How many acknowledged writes of one key are gone if this is what it holds in the end.
fn lost_writes(key: &[Operation], found: Value) -> u64 {
    let acknowledged = |operation: &&Operation| operation.completed.is_some();
    let increments = key
        .iter()
        .filter(acknowledged)
        .filter(|operation| matches!(operation.action, Action::Increment(_)))
        .count() as i64;
    if increments > 0 {
        return (increments - found.unwrap_or(0)).max(0) as u64;
    }
    let written_at = match found {
        None => 0,
        Some(value) => {
            let write = key.iter().find(|operation| operation.action == Action::Set(value));
            // A value from nowhere is for the checker to report; it does not tell what is lost.
            write.map_or(u64::MAX, Operation::end)
        }
    };
    key.iter()
        .filter(acknowledged)
        .filter(|operation| matches!(operation.action, Action::Set(_)))
        .filter(|operation| operation.invoked > written_at)
        .count() as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    fn operation(action: Action, invoked: u64, completed: Option<u64>) -> Operation {
        Operation { client: 0, key: 0, action, invoked, completed }
    }

    #[test]
    fn lost_registers_are_those_after_the_one_found() {
        let history = History {
            operations: vec![
                operation(Action::Set(1), 1, Some(2)),
                operation(Action::Set(2), 3, Some(4)),
                operation(Action::Set(3), 5, None),
                operation(Action::Set(4), 6, Some(7)),
            ],
        };
        let read = |found| [operation(Action::Get(found), 10, Some(11))];
        assert_eq!(history.lost_writes(&read(Some(4))), 0);
        assert_eq!(history.lost_writes(&read(Some(3))), 0, "it may have been the last");
        assert_eq!(history.lost_writes(&read(Some(2))), 1);
        assert_eq!(history.lost_writes(&read(Some(1))), 2);
        assert_eq!(history.lost_writes(&read(None)), 3);
        assert_eq!(history.acknowledged_writes(), 3);
        assert_eq!(history.unknown(), 1);
    }

    #[test]
    fn lost_increments_are_counted() {
        let history = History {
            operations: vec![
                operation(Action::Increment(Some(1)), 1, Some(2)),
                operation(Action::Increment(Some(2)), 3, Some(4)),
                operation(Action::Increment(None), 5, None),
            ],
        };
        let read = |found| [operation(Action::Get(found), 10, Some(11))];
        assert_eq!(history.lost_writes(&read(Some(3))), 0);
        assert_eq!(history.lost_writes(&read(Some(2))), 0);
        assert_eq!(history.lost_writes(&read(Some(1))), 1);
        assert_eq!(history.lost_writes(&read(None)), 2);
    }

    #[test]
    fn keys_are_separated() {
        let mut late = operation(Action::Set(1), 9, Some(10));
        late.key = 1;
        let mut early = operation(Action::Get(None), 1, Some(2));
        early.key = 1;
        let history =
            History { operations: vec![late, operation(Action::Set(2), 3, Some(4)), early] };
        let keys = history.by_key();
        assert_eq!(keys.len(), 2);
        assert_eq!(keys[1], [early, late]);
    }
}
