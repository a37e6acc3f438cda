//! One process's memory, as it and its peers see it.

use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use smr::ReplicaId;

use super::error::Error;
use super::layout::Layout;
use super::mapping::{self, Mapping};
use crate::contract::{Access, Place, RegionId};
use crate::{holder, words};

/// Words that are fetched ahead at most: a core has room for some tens of lines on their way.
const FETCHED: usize = 64;

#[derive(Clone)]
pub(crate) struct Segment {
    mapping: Arc<Mapping>,
    pub(crate) layout: Arc<Layout>,
}

impl Segment {
    /// Maps the memory that `owner` has just made.
    pub(crate) fn create(
        file: impl AsFd,
        layout: Arc<Layout>,
        owner: ReplicaId,
    ) -> Result<Segment, Error> {
        let mapping = Arc::new(Mapping::new(file, layout.words)?);
        for (cell, value) in mapping.words().iter().zip(layout.header(owner)) {
            // Relaxed: the file is passed on later, by the kernel.
            cell.store(value, std::sync::atomic::Ordering::Relaxed);
        }
        Ok(Segment { mapping, layout })
    }

    /// Maps a peer's memory, if its shape is the same; returns whose it is.
    pub(crate) fn open(
        file: impl AsFd,
        layout: Arc<Layout>,
    ) -> Result<(Segment, ReplicaId), Error> {
        let mapping = Arc::new(Mapping::new(file, layout.words)?);
        let load = |cell: &AtomicU64| cell.load(std::sync::atomic::Ordering::Relaxed);
        let found: Vec<u64> = mapping.words().iter().take(4 + 255).map(load).collect();
        let owner = ReplicaId(u8::try_from(found[1]).unwrap_or(u8::MAX));
        if owner.0 >= layout.geometry.processes || !found.starts_with(&layout.header(owner)) {
            return Err(Error::NotAPeer { what: "its memory has another shape" });
        }
        Ok((Segment { mapping, layout }, owner))
    }

    #[inline]
    pub(crate) fn holder(&self, region: RegionId) -> &AtomicU64 {
        &self.mapping.words()[self.layout.holder(region)]
    }

    pub(crate) fn renounced(&self, region: RegionId, process: ReplicaId) -> &AtomicU64 {
        &self.mapping.words()[self.layout.renounced(region, process)]
    }

    /// All words of a lane.
    #[inline]
    pub(crate) fn lane(&self, region: RegionId, lane: u8) -> &[AtomicU64] {
        &self.mapping.words()[self.layout.lane(region, lane)]
    }

    /// Reads the region as everybody may.
    pub(crate) fn read(&self, region: RegionId, offset: u32, words: &mut [u64]) {
        let range = self.layout.geometry.range(region, offset, words.len());
        match self.layout.access(region) {
            Access::Open => {
                // Acquires: they pair with the releases in `write_open`.
                words::load(&self.lane(region, 0)[range], words);
            }
            Access::Exclusive => {
                let lane = |lane| &self.lane(region, lane)[range.clone()];
                holder::read(self.holder(region), lane, words);
            }
        }
    }

    /// Has the processor fetch the lines that `writer` will store to, the first ones of many.
    #[inline]
    pub(crate) fn fetch(&self, to: Place, writer: ReplicaId, words: u32) {
        let lane = match self.layout.access(to.region) {
            Access::Open => 0,
            Access::Exclusive => writer.0,
        };
        let start = to.offset as usize;
        let end = start + (words as usize).min(FETCHED);
        mapping::fetch(&self.lane(to.region, lane)[start..end]);
    }

    /// Writes an open region.
    #[inline]
    pub(crate) fn write_open(&self, region: RegionId, offset: u32, words: &[u64]) {
        assert!(self.layout.access(region) == Access::Open, "the region is exclusive");
        let range = self.layout.geometry.range(region, offset, words.len());
        // Releases: a reader that sees a word sees all that this process wrote before.
        words::store(&self.lane(region, 0)[range], words);
    }
}

/// One process's regions for any thread: every region to read, the open ones to write. Keeps the
/// memory of a process that has ended.
#[derive(Clone)]
pub struct Window(pub(crate) Segment);

impl Window {
    /// Reads words, each at its own moment.
    ///
    /// # Panics
    /// If the words are not all inside the region.
    pub fn read(&self, region: RegionId, offset: u32, words: &mut [u64]) {
        self.0.read(region, offset, words);
    }

    /// Writes words of an open region.
    ///
    /// # Panics
    /// If the region is exclusive, or the words are not all inside it.
    pub fn write(&self, region: RegionId, offset: u32, words: &[u64]) {
        self.0.write_open(region, offset, words);
    }
}
