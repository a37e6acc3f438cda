//! A verb under way.

use std::ops::Range;

use smr::ReplicaId;
use smr::rng::Rng;

use crate::contract::{GrantNumber, RegionId, Status, VerbId};

/// The words of a verb that move at one moment.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Part {
    /// How many words the verb has.
    pub(crate) len: usize,
    pub(crate) seed: u64,
    /// In how many parts they move, from 1.
    pub(crate) parts: u8,
    /// Which of them this is, from 0.
    pub(crate) part: u8,
}

impl Part {
    /// Whether the parts are pieces in the order of the words, and not any subsets.
    pub(crate) fn is_ascending(self) -> bool {
        self.seed & 1 == 0
    }

    pub(crate) fn holds(self, index: usize) -> bool {
        let parts = usize::from(self.parts);
        let part = if self.is_ascending() {
            index * parts / self.len
        } else {
            Rng::new(self.seed.wrapping_add(index as u64)).below(parts as u64) as usize
        };
        part == usize::from(self.part)
    }
}

pub(crate) enum Action {
    Write { under: GrantNumber, exclusive: bool, words: Vec<u64> },
    Read { words: Vec<u64> },
    Grant { to: ReplicaId, keep: Vec<Range<u32>> },
    Revoke,
    Renounce,
}

impl Action {
    /// How many words it moves.
    pub(crate) fn len(&self) -> usize {
        match self {
            Action::Write { words, .. } | Action::Read { words } => words.len(),
            Action::Grant { .. } | Action::Revoke | Action::Renounce => 0,
        }
    }

    /// Whether a process does it to its own permissions.
    pub(crate) fn is_switch(&self) -> bool {
        matches!(self, Action::Grant { .. } | Action::Revoke)
    }
}

pub(crate) struct Flight {
    /// Grows in the order of setting off.
    pub(crate) key: u64,
    pub(crate) id: VerbId,
    pub(crate) from: ReplicaId,
    /// Which process of that id posted it.
    pub(crate) life: u32,
    pub(crate) to: ReplicaId,
    /// Which memory of that id it goes to.
    pub(crate) memory_life: u32,
    pub(crate) region: RegionId,
    pub(crate) offset: usize,
    pub(crate) action: Action,
    pub(crate) seed: u64,
    pub(crate) parts: u8,
    /// Where in the queue it is given up, unless it was put off.
    pub(crate) give_up: (u64, u64),
    /// How many of the parts have moved.
    pub(crate) moved: u8,
    pub(crate) status: Status,
    pub(crate) grant: Option<GrantNumber>,
}

impl Flight {
    pub(crate) fn part(&self, part: u8) -> Part {
        Part { len: self.action.len(), seed: self.seed, parts: self.parts, part }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_divide_the_words() {
        for seed in 0..100 {
            for parts in 1..=4 {
                let part = |part| Part { len: 9, seed, parts, part };
                for index in 0..9 {
                    assert_eq!((0..parts).filter(|&p| part(p).holds(index)).count(), 1);
                }
            }
        }
        let torn = Part { len: 64, seed: 1, parts: 4, part: 0 };
        assert!((1..64).any(|index| torn.holds(index) != torn.holds(index - 1)));
    }
}
