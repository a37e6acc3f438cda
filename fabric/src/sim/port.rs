//! A simulated process's face to the fabric.

use smr::ReplicaId;

use super::flight::Action;
use super::memory::Memory;
use super::world::World;
use crate::contract::{Access, Completion, Fabric, RegionId, Status, Verb, VerbId};

/// One process, while it runs. See [`World::port`].
pub struct Port<'a> {
    pub(crate) world: &'a mut World,
    pub(crate) me: ReplicaId,
}

impl Port<'_> {
    fn must_be_exclusive(&self, region: RegionId) {
        let access = self.world.geometry.regions[region.index()].access;
        assert!(access == Access::Exclusive, "the region is open");
    }

    fn memory(&self) -> &Memory {
        self.world.processes[self.me.index()].memory.as_ref().expect("it lives")
    }
}

impl Fabric for Port<'_> {
    fn me(&self) -> ReplicaId {
        self.me
    }

    fn post(&mut self, id: VerbId, verb: Verb<'_>) {
        let geometry = &self.world.geometry;
        let (to, region, offset, action) = match verb {
            Verb::Write { to, under, words } => {
                geometry.range(to.region, to.offset, words.len());
                let access = geometry.regions[to.region.index()].access;
                let exclusive = access == Access::Exclusive;
                let action = Action::Write { under, exclusive, words: words.to_vec() };
                (to.process, to.region, to.offset, action)
            }
            Verb::Read { from, words } => {
                geometry.range(from.region, from.offset, words as usize);
                let action = Action::Read { words: vec![0; words as usize] };
                (from.process, from.region, from.offset, action)
            }
            Verb::Grant { region, to, keep } => {
                self.must_be_exclusive(region);
                for range in keep {
                    geometry.range(region, range.start, range.len());
                }
                assert!(to.0 < geometry.processes, "no such process");
                (self.me, region, 0, Action::Grant { to, keep: keep.to_vec() })
            }
            Verb::Revoke { region } => {
                self.must_be_exclusive(region);
                (self.me, region, 0, Action::Revoke)
            }
            Verb::Renounce { owner, region } => {
                self.must_be_exclusive(region);
                (owner, region, 0, Action::Renounce)
            }
        };
        self.world.launch(self.me, id, to, region, offset as usize, action);
    }

    fn poll(&mut self, words: &mut Vec<u64>) -> Option<Completion> {
        let (completion, read) = self.world.processes[self.me.index()].done.pop_front()?;
        *words = read;
        Some(completion)
    }

    fn load(&self, region: RegionId, offset: u32, words: &mut [u64]) {
        let range = self.world.geometry.range(region, offset, words.len());
        self.memory().region(region).load(range, words);
    }

    fn store(&mut self, region: RegionId, offset: u32, words: &[u64]) -> Status {
        let range = self.world.geometry.range(region, offset, words.len());
        let arrived = self.world.arrival();
        let memory = &mut self.world.processes[self.me.index()].memory;
        let memory = memory.as_mut().expect("it lives");
        match memory.region_mut(region).store(range, words, arrived) {
            true => Status::Ok,
            false => Status::Refused,
        }
    }
}
