//! One folder in its two states: as changed, and as it would be after a power cut.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};

use crate::disk::Chance;

type Entries = BTreeMap<OsString, u64>;

/// A change of a directory.
#[derive(Clone, Debug)]
enum Change {
    Set(OsString, u64),
    Remove(OsString),
    /// Within one directory, so that both halves arrive together.
    Rename(OsString, OsString, u64),
}

/// A directory: its entries as they are and as they are synced.
#[derive(Debug, Default)]
pub(crate) struct FolderNode {
    entries: Entries,
    synced: Entries,
    /// What leads from `synced` to `entries`, in order.
    changes: Vec<Change>,
}

impl FolderNode {
    pub(crate) fn get(&self, name: &OsStr) -> Option<u64> {
        self.entries.get(name).copied()
    }

    pub(crate) fn entries(&self) -> &BTreeMap<OsString, u64> {
        &self.entries
    }

    /// Every inode that is named, now or after a power cut.
    pub(crate) fn named(&self) -> impl Iterator<Item = u64> {
        let pending = self.changes.iter().filter_map(|change| match change {
            Change::Set(_, inode) | Change::Rename(_, _, inode) => Some(*inode),
            Change::Remove(_) => None,
        });
        self.entries.values().chain(self.synced.values()).copied().chain(pending)
    }

    pub(crate) fn set(&mut self, name: &OsStr, inode: u64) {
        self.change(Change::Set(name.to_owned(), inode));
    }

    pub(crate) fn remove(&mut self, name: &OsStr) {
        self.change(Change::Remove(name.to_owned()));
    }

    pub(crate) fn rename(&mut self, from: &OsStr, to: &OsStr, inode: u64) {
        self.change(Change::Rename(from.to_owned(), to.to_owned(), inode));
    }

    fn change(&mut self, change: Change) {
        apply(&mut self.entries, &change);
        self.changes.push(change);
    }

    pub(crate) fn sync(&mut self) {
        self.synced.clone_from(&self.entries);
        self.changes.clear();
    }

    /// Whether a power cut could take something from it.
    pub(crate) fn is_unsynced(&self) -> bool {
        !self.changes.is_empty()
    }

    /// A sync that has failed: nothing was stored, and the next one tries again.
    pub(crate) fn fail_sync(&self) {}

    pub(crate) fn drop_unsynced(&mut self) {
        self.entries.clone_from(&self.synced);
        self.changes.clear();
    }

    /// The first few changes have arrived, the others are lost: directories are journalled.
    pub(crate) fn tear(&mut self, chance: &mut Chance) {
        let arrived = chance.below(self.changes.len() as u64 + 1) as usize;
        for change in &self.changes[..arrived] {
            apply(&mut self.synced, change);
        }
        self.drop_unsynced();
    }
}

fn apply(entries: &mut Entries, change: &Change) {
    match change {
        Change::Set(name, inode) => {
            entries.insert(name.clone(), *inode);
        }
        Change::Remove(name) => {
            entries.remove(name);
        }
        Change::Rename(from, to, inode) => {
            entries.remove(from);
            entries.insert(to.clone(), *inode);
        }
    }
}
