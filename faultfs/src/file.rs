//! One file in its two states: as written, and as it would be after a power cut.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use crate::disk::Chance;

pub(crate) const PAGE: u64 = 4096;
const SECTOR: usize = 512;

type Page = [u8; PAGE as usize];

/// One image of a file's content. A page that is not there is zeros.
#[derive(Clone, Debug, Default)]
struct Image {
    pages: BTreeMap<u64, Arc<Page>>,
    length: u64,
}

/// A file: what was written and what was synced. Pages are shared between the two until they are
/// written again.
#[derive(Debug, Default)]
pub(crate) struct FileNode {
    written: Image,
    synced: Image,
    /// Pages that may differ between the two and that a sync brings over.
    dirty: BTreeSet<u64>,
    is_length_dirty: bool,
    /// Bytes that fallocate has set aside, from the start; a multiple of the page.
    allocated: u64,
    /// How many written pages lie beyond those.
    beyond: u64,
}

impl FileNode {
    pub(crate) fn length(&self) -> u64 {
        self.written.length
    }

    /// The bytes of the disk that the file takes.
    pub(crate) fn space(&self) -> u64 {
        self.allocated + self.beyond * PAGE
    }

    /// What [`FileNode::space`] would be after a write.
    pub(crate) fn space_with(&self, offset: u64, length: u64) -> u64 {
        let first = (offset / PAGE).max(self.allocated / PAGE);
        let end = (offset + length).div_ceil(PAGE);
        if end <= first {
            return self.space();
        }
        let there = self.written.pages.range(first..end).count() as u64;
        self.space() + (end - first - there) * PAGE
    }

    fn count_beyond(&mut self) {
        self.beyond = self.written.pages.range(self.allocated / PAGE..).count() as u64;
    }

    pub(crate) fn read(&self, offset: u64, length: u64) -> Vec<u8> {
        let end = offset.saturating_add(length).min(self.written.length);
        let mut out = Vec::with_capacity(end.saturating_sub(offset) as usize);
        let mut at = offset;
        while at < end {
            let within = (at % PAGE) as usize;
            let count = ((PAGE - at % PAGE).min(end - at)) as usize;
            match self.written.pages.get(&(at / PAGE)) {
                Some(page) => out.extend_from_slice(&page[within..within + count]),
                None => out.resize(out.len() + count, 0),
            }
            at += count as u64;
        }
        out
    }

    pub(crate) fn write(&mut self, offset: u64, mut bytes: &[u8]) {
        let mut at = offset;
        while !bytes.is_empty() {
            let within = (at % PAGE) as usize;
            let count = (PAGE as usize - within).min(bytes.len());
            let page = match self.written.pages.entry(at / PAGE) {
                Entry::Occupied(page) => page.into_mut(),
                Entry::Vacant(hole) => {
                    self.beyond += u64::from(at >= self.allocated);
                    hole.insert(Arc::new([0; _]))
                }
            };
            Arc::make_mut(page)[within..within + count].copy_from_slice(&bytes[..count]);
            self.dirty.insert(at / PAGE);
            bytes = &bytes[count..];
            at += count as u64;
        }
        if at > self.written.length {
            self.set_length(at);
        }
    }

    pub(crate) fn truncate(&mut self, length: u64) {
        if length < self.written.length {
            let gone = self.written.pages.split_off(&length.div_ceil(PAGE));
            self.dirty.extend(gone.into_keys());
            self.allocated = self.allocated.min(length.next_multiple_of(PAGE));
            self.count_beyond();
            if let Some(page) = self.written.pages.get_mut(&(length / PAGE)) {
                Arc::make_mut(page)[(length % PAGE) as usize..].fill(0);
                self.dirty.insert(length / PAGE);
            }
        }
        self.set_length(length);
    }

    /// Sets space aside; without `keep_size` the file grows as well.
    pub(crate) fn allocate(&mut self, end: u64, keep_size: bool) {
        self.allocated = self.allocated.max(end.next_multiple_of(PAGE));
        self.count_beyond();
        if !keep_size && end > self.written.length {
            self.set_length(end);
        }
    }

    fn set_length(&mut self, length: u64) {
        self.is_length_dirty |= length != self.written.length;
        self.written.length = length;
    }

    /// Brings what was written over to what is synced.
    pub(crate) fn sync(&mut self) {
        for index in std::mem::take(&mut self.dirty) {
            match self.written.pages.get(&index) {
                Some(page) => self.synced.pages.insert(index, page.clone()),
                None => self.synced.pages.remove(&index),
            };
        }
        if std::mem::take(&mut self.is_length_dirty) {
            self.synced.length = self.written.length;
        }
    }

    /// Whether a power cut could take something from it.
    pub(crate) fn is_unsynced(&self) -> bool {
        !self.dirty.is_empty() || self.is_length_dirty
    }

    /// A sync that has failed: what it should have stored counts as clean and is never stored.
    pub(crate) fn fail_sync(&mut self) {
        self.dirty.clear();
        self.is_length_dirty = false;
    }

    /// Loses what was not synced.
    pub(crate) fn drop_unsynced(&mut self) {
        self.written = self.synced.clone();
        self.dirty.clear();
        self.is_length_dirty = false;
        self.allocated = self.allocated.min(self.synced.length.next_multiple_of(PAGE));
        self.count_beyond();
    }

    /// Loses a random part of what was not synced; the rest has arrived.
    pub(crate) fn tear(&mut self, chance: &mut Chance) {
        for index in std::mem::take(&mut self.dirty) {
            let empty = Arc::new([0; _]);
            let new = self.written.pages.get(&index).unwrap_or(&empty);
            let old = self.synced.pages.entry(index).or_insert_with(|| Arc::new([0; _]));
            let old = Arc::make_mut(old);
            for (old, new) in old.chunks_mut(SECTOR).zip(new.chunks(SECTOR)) {
                if old != new && chance.coin() {
                    old.copy_from_slice(new);
                }
            }
        }
        if std::mem::take(&mut self.is_length_dirty) && chance.coin() {
            self.synced.length = self.written.length;
        }
        // Beyond the end there is nothing, whatever arrived there.
        let length = self.synced.length;
        self.synced.pages.split_off(&length.div_ceil(PAGE));
        if let Some(page) = self.synced.pages.get_mut(&(length / PAGE)) {
            Arc::make_mut(page)[(length % PAGE) as usize..].fill(0);
        }
        self.drop_unsynced();
    }
}
