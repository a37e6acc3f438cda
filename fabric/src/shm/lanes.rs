//! The owner's book of one exclusive region: who was granted it, and which lanes may be used again.
//!
//! A lane is its process's alone from the grant on. It comes back to the owner when the process has
//! renounced, which it says after its last store; or has ended, which the kernel says. Since a
//! process is granted the region again only then, a lane per process is enough, for ever.

use std::ops::Range;

use smr::ReplicaId;

use super::segment::Segment;
use crate::contract::{GrantNumber, RegionId};
use crate::holder::{self, Holder};

#[derive(Clone, Copy, Default)]
struct Lane {
    /// The last grant that opened it and whose process has not ended since.
    last: Option<GrantNumber>,
    /// How many of its words are known to be zero, from the first; none while it is in use.
    zeroed: usize,
}

pub(crate) struct Lanes {
    region: RegionId,
    me: ReplicaId,
    lanes: Vec<Lane>,
}

impl Lanes {
    /// A fresh region: its owner holds it.
    pub(crate) fn new(segment: &Segment, region: RegionId, me: ReplicaId) -> Lanes {
        let words = segment.lane(region, me.0).len();
        let clean = Lane { last: None, zeroed: words };
        let mut lanes = vec![clean; usize::from(segment.layout.geometry.processes)];
        lanes[me.index()].zeroed = 0;
        holder::grant(segment.holder(region), Holder::new(GrantNumber(1), me.0));
        Lanes { region, me, lanes }
    }

    /// Whether no store of the process to its lane is still to come.
    fn is_quiet(&self, segment: &Segment, process: ReplicaId) -> bool {
        let renounced = segment.renounced(self.region, process);
        // The owner's own stores are this thread's.
        process == self.me
            || self.lanes[process.index()].last.is_none_or(|n| holder::has_renounced(renounced, n))
    }

    /// Hands the region over; nothing happens if `to` has not renounced its last grant.
    pub(crate) fn grant(
        &mut self,
        segment: &Segment,
        to: ReplicaId,
        keep: &[Range<u32>],
    ) -> Option<GrantNumber> {
        let geometry = &segment.layout.geometry;
        for range in keep {
            geometry.range(self.region, range.start, range.len());
        }
        if !self.is_quiet(segment, to) {
            return None;
        }
        let word = segment.holder(self.region);
        let former = holder::revoke(word);
        if former.lane() != to.0 {
            let next = segment.lane(self.region, to.0);
            holder::clear(&next[self.lanes[to.index()].zeroed..]);
            let image = segment.lane(self.region, former.lane());
            for range in keep {
                let range = range.start as usize..range.end as usize;
                holder::adopt(&image[range.clone()], &next[range]);
            }
        }
        let number = GrantNumber(former.number().0 + 1);
        self.lanes[to.index()] = Lane { last: Some(number), zeroed: 0 };
        holder::grant(word, Holder::new(number, to.0));
        Some(number)
    }

    pub(crate) fn revoke(&mut self, segment: &Segment) {
        holder::revoke(segment.holder(self.region));
    }

    /// The process has ended: it makes no store any more, and its successor holds nothing.
    pub(crate) fn process_ended(&mut self, segment: &Segment, process: ReplicaId) {
        if Holder::load(segment.holder(self.region)).lane() == process.0 {
            self.revoke(segment);
        }
        self.lanes[process.index()].last = None;
    }

    /// Zeroes up to `budget` words of lanes that will be used again, so that the next grant need
    /// not; returns what is left of the budget.
    pub(crate) fn sweep(&mut self, segment: &Segment, mut budget: usize) -> usize {
        let image = Holder::load(segment.holder(self.region)).lane();
        for lane in 0..segment.layout.geometry.processes {
            let words = segment.lane(self.region, lane);
            let zeroed = self.lanes[usize::from(lane)].zeroed;
            if lane == image || zeroed == words.len() || !self.is_quiet(segment, ReplicaId(lane)) {
                continue;
            }
            let end = words.len().min(zeroed + budget);
            holder::clear(&words[zeroed..end]);
            self.lanes[usize::from(lane)].zeroed = end;
            budget -= end - zeroed;
        }
        budget
    }
}
