//! The memory of one simulated process, with what its permissions are.

use std::ops::Range;

use smr::ReplicaId;

use super::flight::Part;
use crate::contract::{Access, Geometry, GrantNumber, RegionId};

pub(crate) struct Region {
    access: Access,
    /// What has arrived: verbs read this.
    placed: Vec<Word>,
    /// What the owner's processor sees.
    seen: Vec<Word>,
    owner: ReplicaId,
    holder: Option<ReplicaId>,
    number: GrantNumber,
    /// By process: the last grant to a process that has not ended since; 0 for none.
    granted: Vec<GrantNumber>,
    /// By process: it makes no write under grants up to this one.
    renounced: Vec<GrantNumber>,
}

/// A word and when it arrived: what is seen late takes the place of nothing later.
#[derive(Clone, Copy, Default)]
struct Word {
    value: u64,
    arrived: Arrival,
}

/// Numbers the moments at which words arrive, growing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Arrival(pub(crate) u64);

pub(crate) struct Memory {
    regions: Vec<Region>,
}

impl Memory {
    pub(crate) fn new(geometry: &Geometry, owner: ReplicaId) -> Memory {
        let none = vec![GrantNumber(0); usize::from(geometry.processes)];
        let region = |spec: &crate::RegionSpec| Region {
            access: spec.access,
            placed: vec![Word::default(); spec.words as usize],
            seen: vec![Word::default(); spec.words as usize],
            owner,
            holder: Some(owner),
            number: GrantNumber(1),
            granted: none.clone(),
            renounced: none.clone(),
        };
        Memory { regions: geometry.regions.iter().map(region).collect() }
    }

    pub(crate) fn region(&self, region: RegionId) -> &Region {
        &self.regions[region.index()]
    }

    pub(crate) fn region_mut(&mut self, region: RegionId) -> &mut Region {
        &mut self.regions[region.index()]
    }

    /// The process makes no write any more, and its successor holds nothing.
    pub(crate) fn process_ended(&mut self, process: ReplicaId) {
        for region in &mut self.regions {
            if region.holder == Some(process) {
                region.holder = None;
            }
            region.granted[process.index()] = GrantNumber(0);
        }
    }
}

impl Region {
    pub(crate) fn may_write(&self, process: ReplicaId, under: GrantNumber) -> bool {
        self.access == Access::Open
            || self.holder == Some(process)
                && self.number == under
                && self.renounced[process.index()] < under
    }

    /// Whether the grant is the process's last one, and over.
    pub(crate) fn was_revoked(&self, process: ReplicaId, under: GrantNumber) -> bool {
        self.granted[process.index()] == under && !self.may_write(process, under)
    }

    /// Words of a write arrive.
    pub(crate) fn place(&mut self, offset: usize, words: &[u64], part: Part, arrived: Arrival) {
        for (index, &value) in words.iter().enumerate().filter(|&(index, _)| part.holds(index)) {
            self.placed[offset + index] = Word { value, arrived };
        }
    }

    /// The owner's processor sees words that arrived then, and none that came later.
    pub(crate) fn reveal(&mut self, offset: usize, words: &[u64], part: Part, arrived: Arrival) {
        for (index, &value) in words.iter().enumerate().filter(|&(index, _)| part.holds(index)) {
            let seen = &mut self.seen[offset + index];
            if seen.arrived < arrived {
                *seen = Word { value, arrived };
            }
        }
    }

    /// A verb reads words.
    pub(crate) fn fetch(&self, offset: usize, words: &mut [u64], part: Part) {
        for (index, word) in words.iter_mut().enumerate().filter(|&(index, _)| part.holds(index)) {
            *word = self.placed[offset + index].value;
        }
    }

    pub(crate) fn load(&self, range: Range<usize>, words: &mut [u64]) {
        for (word, seen) in words.iter_mut().zip(&self.seen[range]) {
            *word = seen.value;
        }
    }

    /// The owner writes; false if it may not.
    pub(crate) fn store(&mut self, range: Range<usize>, words: &[u64], arrived: Arrival) -> bool {
        let may = self.access == Access::Open || self.holder == Some(self.owner);
        if may {
            for (at, &value) in range.zip(words) {
                self.placed[at] = Word { value, arrived };
                self.seen[at] = Word { value, arrived };
            }
        }
        may
    }

    /// Hands the region over, unless `to` has not renounced its last grant.
    pub(crate) fn grant(
        &mut self,
        to: ReplicaId,
        keep: &[Range<u32>],
        forget: bool,
    ) -> Option<GrantNumber> {
        let to_index = to.index();
        if to != self.owner && self.renounced[to_index] < self.granted[to_index] {
            return None;
        }
        if forget {
            for (offset, word) in (0_u32..).zip(&mut self.placed) {
                if !keep.iter().any(|range| range.contains(&offset)) {
                    word.value = 0;
                }
            }
        }
        self.revoke();
        self.number = GrantNumber(self.number.0 + 1);
        self.granted[to_index] = self.number;
        self.holder = Some(to);
        Some(self.number)
    }

    /// The card confirms only when everything that it let in can be seen.
    pub(crate) fn revoke(&mut self) {
        self.holder = None;
        self.seen.copy_from_slice(&self.placed);
    }

    pub(crate) fn renounce(&mut self, process: ReplicaId) {
        self.renounced[process.index()] = self.number;
    }
}
