//! Where things are in a segment, in words of 64 bits. Native byte order: it never leaves the
//! machine.
//!
//! | words | what |
//! |---|---|
//! | 0 to 511 | header: magic, owner, processes, number of regions, then each region's shape |
//! | then, per exclusive region | the holder word; a word per process for what it renounced |
//! | then, from a page's start, per region | its lanes, each from a page's start |
//!
//! Words that different processes store to are 128 bytes apart: two lines, since processors fetch
//! neighbours in pairs. An open region has one lane, an exclusive one has one per process.

use std::ops::Range;

use smr::ReplicaId;

use crate::contract::{Access, Geometry, RegionId, RegionSpec};

const PAGE: usize = 512;
const APART: usize = 16;
/// Its digits change whenever what stands in memory changes its meaning.
const MAGIC: u64 = u64::from_ne_bytes(*b"LSFABR02");

struct Placed {
    access: Access,
    words: usize,
    /// The holder word; what process p renounced is `APART * (1 + p)` further on.
    control: usize,
    lanes: usize,
    stride: usize,
}

pub(crate) struct Layout {
    pub(crate) geometry: Geometry,
    regions: Vec<Placed>,
    /// The segment's length.
    pub(crate) words: usize,
}

impl Layout {
    pub(crate) fn new(geometry: Geometry) -> Layout {
        geometry.check();
        let processes = usize::from(geometry.processes);
        let mut at = PAGE;
        let control = |spec: &RegionSpec, at: &mut usize| {
            let start = *at;
            if spec.access == Access::Exclusive {
                *at += APART * (1 + processes);
            }
            start
        };
        let controls: Vec<_> = geometry.regions.iter().map(|r| control(r, &mut at)).collect();
        let place = |(spec, &control): (&RegionSpec, &usize)| {
            let words = spec.words as usize;
            let stride = words.next_multiple_of(PAGE);
            let lanes = at.next_multiple_of(PAGE);
            let count = if spec.access == Access::Exclusive { processes } else { 1 };
            at = lanes + count * stride;
            Placed { access: spec.access, words, control, lanes, stride }
        };
        let regions = geometry.regions.iter().zip(&controls).map(place).collect();
        Layout { regions, words: at, geometry }
    }

    /// The first words of the segment of `owner`.
    pub(crate) fn header(&self, owner: ReplicaId) -> Vec<u64> {
        let shape = |spec: &RegionSpec| {
            u64::from(spec.words) << 1 | u64::from(spec.access == Access::Exclusive)
        };
        let regions = &self.geometry.regions;
        let fixed =
            [MAGIC, u64::from(owner.0), u64::from(self.geometry.processes), regions.len() as u64];
        fixed.into_iter().chain(regions.iter().map(shape)).collect()
    }

    pub(crate) fn access(&self, region: RegionId) -> Access {
        self.regions[region.index()].access
    }

    /// The holder word of an exclusive region.
    pub(crate) fn holder(&self, region: RegionId) -> usize {
        self.regions[region.index()].control
    }

    /// The word that says what `process` renounced of an exclusive region.
    pub(crate) fn renounced(&self, region: RegionId, process: ReplicaId) -> usize {
        assert!(process.0 < self.geometry.processes, "no such process");
        self.holder(region) + APART * (1 + process.index())
    }

    /// All words of a lane; an open region has lane 0 alone.
    pub(crate) fn lane(&self, region: RegionId, lane: u8) -> Range<usize> {
        let placed = &self.regions[region.index()];
        let start = placed.lanes + usize::from(lane) * placed.stride;
        start..start + placed.words
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_overlaps() {
        let regions = [(Access::Open, 1), (Access::Exclusive, 513), (Access::Exclusive, 512)]
            .map(|(access, words)| RegionSpec { access, words });
        let layout = Layout::new(Geometry { processes: 3, regions: regions.to_vec() });
        let mut taken = vec![false; layout.words];
        let mut take = |range: Range<usize>| {
            for word in range {
                assert!(!taken[word], "word {word} is used twice");
                taken[word] = true;
            }
        };
        take(0..layout.header(ReplicaId(0)).len());
        take(layout.lane(RegionId(0), 0));
        for region in [RegionId(1), RegionId(2)] {
            take(layout.holder(region)..layout.holder(region) + 1);
            for process in 0..3 {
                let renounced = layout.renounced(region, ReplicaId(process));
                take(renounced..renounced + 1);
                take(layout.lane(region, process));
                assert_eq!(layout.lane(region, process).start % PAGE, 0);
            }
        }
    }
}
