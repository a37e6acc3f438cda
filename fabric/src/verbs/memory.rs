//! A process's own regions, in memory that its card shares, and which channel goes where.
//!
//! Each exclusive region has a holder word behind its last word, as `crate::holder` lays it out,
//! where a writer reads whether its grant is in force.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use super::block::Block;
use super::card::{Card, Domain};
use super::error::Error;
use super::frame::Remote;
use crate::contract::{Access, Geometry, RegionId};
use crate::holder::Holder;

impl Geometry {
    /// How many channels lead to a process: one to its open regions, one to each exclusive one.
    pub(crate) fn channels(&self) -> u8 {
        let exclusive = self.regions.iter().filter(|region| region.access == Access::Exclusive);
        u8::try_from(exclusive.count() + 1).expect("up to 254 exclusive regions go over cards")
    }

    /// The channel that leads to a region.
    pub(crate) fn channel(&self, region: RegionId) -> u8 {
        if self.regions[region.index()].access == Access::Open {
            return 0;
        }
        let before = &self.regions[..region.index()];
        before.iter().filter(|region| region.access == Access::Exclusive).count() as u8 + 1
    }

    /// The exclusive region that a channel above 0 leads to.
    pub(crate) fn exclusive(&self, channel: u8) -> Option<RegionId> {
        (0..self.regions.len())
            .map(|index| RegionId(index as u8))
            .find(|&region| channel > 0 && self.channel(region) == channel)
    }
}

/// A process's own regions, to read from any of its threads.
#[derive(Clone)]
pub struct Own {
    pub(crate) geometry: Arc<Geometry>,
    /// By region.
    blocks: Arc<[Block]>,
}

impl Own {
    /// Makes the regions; returns the domain of each channel beside.
    pub(crate) fn new(
        card: &Arc<Card>,
        geometry: Arc<Geometry>,
    ) -> Result<(Own, Vec<Arc<Domain>>), Error> {
        let domains = (0..geometry.channels()).map(|_| Domain::new(card));
        let domains = domains.collect::<Result<Vec<_>, _>>()?;
        let block = |index: usize| {
            let region = RegionId(index as u8);
            let spec = geometry.regions[index];
            let words = spec.words as usize + usize::from(spec.access == Access::Exclusive);
            Block::shared(&domains[usize::from(geometry.channel(region))], words)
        };
        let blocks: Result<Arc<[Block]>, Error> = (0..geometry.regions.len()).map(block).collect();
        Ok((Own { blocks: blocks?, geometry }, domains))
    }

    /// Where the regions are, for peers.
    pub(crate) fn remotes(&self) -> Vec<Remote> {
        let remote = |block: &Block| Remote { address: block.address(), key: block.remote_key() };
        self.blocks.iter().map(remote).collect()
    }

    pub(crate) fn words(&self, region: RegionId, offset: u32, words: usize) -> &[AtomicU64] {
        let range = self.geometry.range(region, offset, words);
        &self.blocks[region.index()].words()[range]
    }

    /// Reads words, each at its own moment.
    ///
    /// # Panics
    /// If the words are not all inside the region.
    pub fn read(&self, region: RegionId, offset: u32, words: &mut [u64]) {
        let cells = self.words(region, offset, words.len());
        for (value, cell) in words.iter_mut().zip(cells) {
            // Acquire: the card writes in order, and this process's stores are releases.
            *value = cell.load(Ordering::Acquire);
        }
    }

    pub(crate) fn write(&self, region: RegionId, offset: u32, words: &[u64]) {
        for (&value, cell) in words.iter().zip(self.words(region, offset, words.len())) {
            // Release: pairs with the acquire in `read`.
            cell.store(value, Ordering::Release);
        }
    }

    pub(crate) fn set_holder(&self, region: RegionId, holder: Holder) {
        let words = self.blocks[region.index()].words();
        let word = words.last().expect("an exclusive region has a holder word");
        // Release: what was done for the grant comes first, also in the eyes of the card.
        word.store(holder.bits(), Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::contract::RegionSpec;

    #[test]
    fn channels_lead_to_their_regions() {
        let spec = |access| RegionSpec { access, words: 1 };
        let (open, exclusive) = (spec(Access::Open), spec(Access::Exclusive));
        let regions = vec![open, exclusive, open, exclusive];
        let geometry = Geometry { processes: 3, regions };
        assert_eq!(geometry.channels(), 3);
        let channels: Vec<_> = (0..4).map(|region| geometry.channel(RegionId(region))).collect();
        assert_eq!(channels, [0, 1, 0, 2]);
        let back: Vec<_> = (0..4).map(|channel| geometry.exclusive(channel)).collect();
        assert_eq!(back, [None, Some(RegionId(1)), Some(RegionId(3)), None]);
    }
}
