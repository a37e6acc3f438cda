//! The disk as a value, without FUSE: a tree of two-image nodes, and the faults.

use std::collections::{HashMap, HashSet};
use std::ffi::{OsStr, OsString};

use crate::command::Command;
use crate::file::FileNode;
use crate::folder::FolderNode;

/// The inode of the root directory.
pub(crate) const ROOT: u64 = 1;
/// The inode of the control file, which is no part of the tree.
pub(crate) const CONTROL: u64 = 2;
/// The size of the disk unless it is told otherwise, in bytes.
const CAPACITY: u64 = 1 << 40;

/// Why an operation is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Refused {
    NoEntry,
    Exists,
    NotFolder,
    IsFolder,
    NotEmpty,
    NoSpace,
    Io,
}

#[derive(Debug)]
pub(crate) enum Node {
    File(FileNode),
    Folder(FolderNode),
}

/// A seeded source of decisions (splitmix64).
#[derive(Debug)]
pub(crate) struct Chance(u64);

impl Chance {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    pub(crate) fn coin(&mut self) -> bool {
        self.next() & 1 == 1
    }

    pub(crate) fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound
    }
}

/// The disk.
#[derive(Debug)]
pub(crate) struct Disk {
    nodes: HashMap<u64, Node>,
    open: HashMap<u64, u64>,
    next_inode: u64,
    capacity: u64,
    used: u64,
    syncs: u64,
    fail_fsync: Option<u64>,
    /// How many changes and syncs are left until the power goes.
    power: Option<u64>,
    /// Milliseconds by which writes and syncs are delayed.
    pub(crate) stall_ms: u64,
}

impl Disk {
    pub(crate) fn new() -> Disk {
        Disk {
            nodes: HashMap::from([(ROOT, Node::Folder(FolderNode::default()))]),
            open: HashMap::new(),
            next_inode: CONTROL + 1,
            capacity: CAPACITY,
            used: 0,
            syncs: 0,
            fail_fsync: None,
            power: None,
            stall_ms: 0,
        }
    }

    /// One change or sync, as long as there is power.
    fn step(&mut self) -> Result<(), Refused> {
        match &mut self.power {
            None => Ok(()),
            Some(0) => Err(Refused::Io),
            Some(left) => {
                *left -= 1;
                Ok(())
            }
        }
    }

    pub(crate) fn node(&self, inode: u64) -> Result<&Node, Refused> {
        self.nodes.get(&inode).ok_or(Refused::NoEntry)
    }

    pub(crate) fn folder(&self, inode: u64) -> Result<&FolderNode, Refused> {
        match self.node(inode)? {
            Node::Folder(folder) => Ok(folder),
            Node::File(_) => Err(Refused::NotFolder),
        }
    }

    fn folder_mut(&mut self, inode: u64) -> Result<&mut FolderNode, Refused> {
        match self.nodes.get_mut(&inode).ok_or(Refused::NoEntry)? {
            Node::Folder(folder) => Ok(folder),
            Node::File(_) => Err(Refused::NotFolder),
        }
    }

    pub(crate) fn file(&self, inode: u64) -> Result<&FileNode, Refused> {
        match self.node(inode)? {
            Node::File(file) => Ok(file),
            Node::Folder(_) => Err(Refused::IsFolder),
        }
    }

    pub(crate) fn lookup(&self, parent: u64, name: &OsStr) -> Result<u64, Refused> {
        self.folder(parent)?.get(name).ok_or(Refused::NoEntry)
    }

    /// The names of a directory with their inodes.
    pub(crate) fn list(&self, inode: u64) -> Result<Vec<(OsString, u64)>, Refused> {
        let entries = self.folder(inode)?.entries();
        Ok(entries.iter().map(|(name, inode)| (name.clone(), *inode)).collect())
    }

    /// Makes a file or a directory.
    pub(crate) fn create(&mut self, parent: u64, name: &OsStr, node: Node) -> Result<u64, Refused> {
        self.step()?;
        let inode = self.next_inode;
        let folder = self.folder_mut(parent)?;
        if folder.get(name).is_some() {
            return Err(Refused::Exists);
        }
        folder.set(name, inode);
        self.next_inode += 1;
        self.nodes.insert(inode, node);
        Ok(inode)
    }

    pub(crate) fn remove(
        &mut self,
        parent: u64,
        name: &OsStr,
        folder: bool,
    ) -> Result<(), Refused> {
        self.step()?;
        let inode = self.lookup(parent, name)?;
        match (self.node(inode)?, folder) {
            (Node::Folder(node), true) if !node.entries().is_empty() => {
                return Err(Refused::NotEmpty);
            }
            (Node::Folder(_), false) => return Err(Refused::IsFolder),
            (Node::File(_), true) => return Err(Refused::NotFolder),
            _ => {}
        }
        self.folder_mut(parent)?.remove(name);
        Ok(())
    }

    pub(crate) fn rename(
        &mut self,
        parent: u64,
        name: &OsStr,
        new_parent: u64,
        new_name: &OsStr,
    ) -> Result<(), Refused> {
        self.step()?;
        let inode = self.lookup(parent, name)?;
        if let Some(target) = self.folder(new_parent)?.get(new_name) {
            match (self.node(inode)?, self.node(target)?) {
                (Node::Folder(_), Node::File(_)) => return Err(Refused::NotFolder),
                (Node::File(_), Node::Folder(_)) => return Err(Refused::IsFolder),
                (_, Node::Folder(node)) if !node.entries().is_empty() => {
                    return Err(Refused::NotEmpty);
                }
                _ => {}
            }
        }
        if parent == new_parent {
            if name != new_name {
                self.folder_mut(parent)?.rename(name, new_name, inode);
            }
            return Ok(());
        }
        self.folder_mut(new_parent)?.set(new_name, inode);
        self.folder_mut(parent)?.remove(name);
        Ok(())
    }

    /// Changes a file, if the disk has the space that it then takes.
    fn change<R>(
        &mut self,
        inode: u64,
        space: impl FnOnce(&FileNode) -> u64,
        change: impl FnOnce(&mut FileNode) -> R,
    ) -> Result<R, Refused> {
        self.step()?;
        let free = self.capacity.saturating_sub(self.used);
        let file = match self.nodes.get_mut(&inode).ok_or(Refused::NoEntry)? {
            Node::File(file) => file,
            Node::Folder(_) => return Err(Refused::IsFolder),
        };
        let before = file.space();
        let wanted = space(file);
        if wanted.saturating_sub(before) > free {
            return Err(Refused::NoSpace);
        }
        let result = change(file);
        self.used = self.used - before + file.space();
        Ok(result)
    }

    pub(crate) fn write(&mut self, inode: u64, offset: u64, bytes: &[u8]) -> Result<(), Refused> {
        let length = bytes.len() as u64;
        let space = |file: &FileNode| file.space_with(offset, length);
        self.change(inode, space, |file| file.write(offset, bytes))
    }

    pub(crate) fn truncate(&mut self, inode: u64, length: u64) -> Result<(), Refused> {
        self.change(inode, FileNode::space, |file| file.truncate(length))
    }

    pub(crate) fn allocate(
        &mut self,
        inode: u64,
        end: u64,
        keep_size: bool,
    ) -> Result<(), Refused> {
        let space = |file: &FileNode| file.space_with(0, end);
        self.change(inode, space, |file| file.allocate(end, keep_size))
    }

    /// fsync of a file or a directory.
    pub(crate) fn sync(&mut self, inode: u64) -> Result<(), Refused> {
        self.step()?;
        let fails = self.fail_fsync == Some(0);
        self.fail_fsync = self.fail_fsync.and_then(|after| after.checked_sub(1));
        self.syncs += 1;
        match (self.nodes.get_mut(&inode).ok_or(Refused::NoEntry)?, fails) {
            (Node::File(file), false) => file.sync(),
            (Node::File(file), true) => file.fail_sync(),
            (Node::Folder(folder), false) => {
                folder.sync();
                self.collect();
            }
            (Node::Folder(folder), true) => folder.fail_sync(),
        }
        if fails { Err(Refused::Io) } else { Ok(()) }
    }

    pub(crate) fn opened(&mut self, inode: u64) {
        *self.open.entry(inode).or_default() += 1;
    }

    pub(crate) fn released(&mut self, inode: u64) {
        let Some(count) = self.open.get_mut(&inode) else {
            return;
        };
        *count -= 1;
        if *count == 0 {
            self.open.remove(&inode);
            self.collect();
        }
    }

    pub(crate) fn command(&mut self, command: Command) {
        match command {
            Command::Drop => {
                self.power = None;
                for node in self.nodes.values_mut() {
                    match node {
                        Node::File(file) => file.drop_unsynced(),
                        Node::Folder(folder) => folder.drop_unsynced(),
                    }
                }
                self.collect();
            }
            Command::Torn { seed } => {
                self.power = None;
                self.tear(&mut Chance(seed));
            }
            Command::Cut { after } => self.power = Some(after),
            Command::FailFsync { after } => self.fail_fsync = Some(after),
            Command::Stall { ms } => self.stall_ms = ms,
            Command::Full { free } => self.capacity = self.used + free,
            Command::Ok => {
                self.fail_fsync = None;
                self.power = None;
                self.stall_ms = 0;
                self.capacity = CAPACITY;
            }
        }
    }

    fn tear(&mut self, chance: &mut Chance) {
        // In the order of the inodes, so that a seed decides alike each time.
        let mut inodes: Vec<u64> = self.nodes.keys().copied().collect();
        inodes.sort_unstable();
        for inode in inodes {
            match self.nodes.get_mut(&inode) {
                Some(Node::File(file)) => file.tear(chance),
                Some(Node::Folder(folder)) => folder.tear(chance),
                None => {}
            }
        }
        self.collect();
    }

    /// Frees the nodes that nothing names and nobody has open, and counts the space anew.
    fn collect(&mut self) {
        let mut kept = HashSet::new();
        let mut next: Vec<u64> = self.open.keys().copied().chain([ROOT]).collect();
        while let Some(inode) = next.pop() {
            if let (true, Some(Node::Folder(folder))) = (kept.insert(inode), self.nodes.get(&inode))
            {
                next.extend(folder.named());
            }
        }
        self.nodes.retain(|inode, _| kept.contains(inode));
        let space = |node: &Node| match node {
            Node::File(file) => file.space(),
            Node::Folder(_) => 0,
        };
        self.used = self.nodes.values().map(space).sum();
    }

    /// Size and free space, in bytes.
    pub(crate) fn space(&self) -> (u64, u64) {
        (self.capacity, self.capacity.saturating_sub(self.used))
    }

    /// How many files and directories have something that is not synced.
    pub(crate) fn unsynced(&self) -> usize {
        let is_unsynced = |node: &&Node| match node {
            Node::File(file) => file.is_unsynced(),
            Node::Folder(folder) => folder.is_unsynced(),
        };
        self.nodes.values().filter(is_unsynced).count()
    }

    /// How many syncs were asked for.
    pub(crate) fn syncs(&self) -> u64 {
        self.syncs
    }

    /// The state, for people and tests.
    pub(crate) fn status(&self) -> String {
        format!(
            "used {}\nfree {}\nsyncs {}\nstall-ms {}\nfail-fsync {}\n",
            self.used,
            self.space().1,
            self.syncs,
            self.stall_ms,
            self.fail_fsync.map_or("none".to_owned(), |after| after.to_string()),
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::file::PAGE;

    fn name(text: &str) -> &OsStr {
        OsStr::new(text)
    }

    fn file(disk: &mut Disk, text: &str) -> u64 {
        disk.create(ROOT, name(text), Node::File(FileNode::default())).expect("created")
    }

    #[test]
    fn unsynced_content_is_lost_and_synced_stays() {
        let mut disk = Disk::new();
        let inode = file(&mut disk, "a");
        disk.sync(ROOT).expect("synced");
        disk.write(inode, 0, b"kept").expect("written");
        disk.sync(inode).expect("synced");
        assert_eq!(disk.unsynced(), 0);
        disk.write(inode, 2, b"lost lost").expect("written");
        assert_eq!(disk.unsynced(), 1);
        disk.command(Command::Drop);
        assert_eq!(disk.unsynced(), 0);
        assert_eq!(disk.file(inode).expect("there").read(0, 100), b"kept");
        disk.truncate(inode, 1).expect("truncated");
        disk.command(Command::Drop);
        assert_eq!(disk.file(inode).expect("there").read(0, 100), b"kept");
    }

    #[test]
    fn names_need_a_sync_of_their_directory() {
        let mut disk = Disk::new();
        let inode = file(&mut disk, "a");
        disk.write(inode, 0, b"x").expect("written");
        disk.sync(inode).expect("synced");
        disk.sync(ROOT).expect("synced");
        disk.rename(ROOT, name("a"), ROOT, name("b")).expect("renamed");
        file(&mut disk, "c");
        disk.command(Command::Drop);
        assert_eq!(disk.lookup(ROOT, name("a")), Ok(inode));
        assert_eq!(disk.lookup(ROOT, name("b")), Err(Refused::NoEntry));
        assert_eq!(disk.lookup(ROOT, name("c")), Err(Refused::NoEntry));
        disk.remove(ROOT, name("a"), false).expect("removed");
        disk.command(Command::Drop);
        assert_eq!(disk.lookup(ROOT, name("a")), Ok(inode));
    }

    #[test]
    fn a_torn_write_keeps_whole_sectors() {
        let mut seen = HashSet::new();
        for seed in 0..64 {
            let mut disk = Disk::new();
            let inode = file(&mut disk, "a");
            disk.write(inode, 0, &[1; 1024]).expect("written");
            disk.sync(inode).expect("synced");
            disk.sync(ROOT).expect("synced");
            disk.write(inode, 0, &[2; 1024]).expect("written");
            disk.command(Command::Torn { seed });
            let bytes = disk.file(inode).expect("there").read(0, 2000);
            assert_eq!(bytes.len(), 1024);
            for sector in bytes.chunks(512) {
                assert!(sector.iter().all(|byte| *byte == sector[0]));
            }
            seen.insert((bytes[0], bytes[512]));
        }
        assert_eq!(seen.len(), 4, "all four ways to tear two sectors");
    }

    #[test]
    fn a_failed_sync_never_stores_what_it_missed() {
        let mut disk = Disk::new();
        let inode = file(&mut disk, "a");
        disk.sync(ROOT).expect("synced");
        disk.command(Command::FailFsync { after: 1 });
        disk.write(inode, 0, b"1").expect("written");
        disk.sync(inode).expect("the first succeeds");
        disk.write(inode, 0, b"2").expect("written");
        assert_eq!(disk.sync(inode), Err(Refused::Io));
        disk.sync(inode).expect("as if nothing had happened");
        assert_eq!(disk.file(inode).expect("there").read(0, 1), b"2");
        disk.command(Command::Drop);
        assert_eq!(disk.file(inode).expect("there").read(0, 1), b"1");
    }

    #[test]
    fn without_power_nothing_changes() {
        let mut disk = Disk::new();
        let inode = file(&mut disk, "a");
        disk.sync(ROOT).expect("synced");
        disk.command(Command::Cut { after: 1 });
        disk.write(inode, 0, b"1").expect("still on");
        assert_eq!(disk.write(inode, 0, b"2"), Err(Refused::Io));
        assert_eq!(disk.sync(inode), Err(Refused::Io));
        assert_eq!(disk.remove(ROOT, name("a"), false), Err(Refused::Io));
        disk.command(Command::Drop);
        assert_eq!(disk.file(inode).expect("there").length(), 0);
        disk.sync(inode).expect("on again");
    }

    #[test]
    fn space_ends_and_comes_back() {
        let mut disk = Disk::new();
        let inode = file(&mut disk, "a");
        disk.command(Command::Full { free: 2 * PAGE });
        disk.write(inode, 0, &[1; PAGE as usize]).expect("fits");
        assert_eq!(disk.allocate(inode, 3 * PAGE, false), Err(Refused::NoSpace));
        disk.allocate(inode, 2 * PAGE, false).expect("fits");
        assert_eq!(disk.write(inode, 2 * PAGE, b"x"), Err(Refused::NoSpace));
        disk.write(inode, PAGE, b"x").expect("was set aside");
        disk.remove(ROOT, name("a"), false).expect("removed");
        disk.sync(ROOT).expect("synced");
        assert_eq!(disk.space().1, 2 * PAGE);
    }
}
