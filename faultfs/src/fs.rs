//! Answers the kernel's requests from the [`Disk`].

use std::ffi::OsStr;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime};

use fuser::{
    BsdFileFlags, Errno, FileAttr, FileHandle, FileType, Filesystem, FopenFlags, Generation,
    INodeNo, KernelConfig, LockOwner, OpenFlags, RenameFlags, ReplyAttr, ReplyCreate, ReplyData,
    ReplyDirectory, ReplyEmpty, ReplyEntry, ReplyOpen, ReplyStatfs, ReplyWrite, Request, TimeOrNow,
    WriteFlags,
};

use crate::command::{CONTROL_FILE, Command};
use crate::disk::{CONTROL, Disk, Node, ROOT, Refused};
use crate::file::{FileNode, PAGE};
use crate::folder::FolderNode;

/// The kernel keeps nothing: a fault changes names and lengths behind its back.
const NO_CACHE: Duration = Duration::ZERO;
/// The largest write that the kernel sends, in bytes.
const MAX_WRITE: u32 = 1 << 20;
/// `O_DSYNC`, which `O_SYNC` includes.
const O_DSYNC: i32 = 0o10000;
const FALLOC_KEEP_SIZE: i32 = 1;

/// The disk, shared with the session's threads.
#[derive(Clone, Debug)]
pub(crate) struct Shared(Arc<Mutex<Disk>>);

impl Shared {
    pub(crate) fn new() -> Shared {
        Shared(Arc::new(Mutex::new(Disk::new())))
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, Disk> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn stall(&self) {
        let ms = self.lock().stall_ms;
        if ms > 0 {
            std::thread::sleep(Duration::from_millis(ms));
        }
    }

    fn sync(&self, inode: u64) -> Result<(), Refused> {
        self.stall();
        self.lock().sync(inode)
    }

    fn write(&self, inode: u64, offset: u64, bytes: &[u8], flags: OpenFlags) -> Result<(), Errno> {
        if inode == CONTROL {
            let text = std::str::from_utf8(bytes).map_err(|_| Errno::EINVAL)?;
            let command: Command = text.parse().map_err(|_| Errno::EINVAL)?;
            self.lock().command(command);
            return Ok(());
        }
        self.stall();
        let mut disk = self.lock();
        disk.write(inode, offset, bytes).map_err(errno)?;
        if flags.0 & O_DSYNC != 0 {
            disk.sync(inode).map_err(errno)?;
        }
        Ok(())
    }

    fn attributes(&self, inode: u64) -> Result<FileAttr, Refused> {
        let disk = self.lock();
        let (kind, size, space) = match inode {
            CONTROL => (FileType::RegularFile, 0, 0),
            _ => match disk.node(inode)? {
                Node::File(file) => (FileType::RegularFile, file.length(), file.space()),
                Node::Folder(_) => (FileType::Directory, PAGE, 0),
            },
        };
        let time = SystemTime::UNIX_EPOCH;
        Ok(FileAttr {
            ino: INodeNo(inode),
            size,
            blocks: space / 512,
            atime: time,
            mtime: time,
            ctime: time,
            crtime: time,
            kind,
            perm: if kind == FileType::Directory { 0o777 } else { 0o666 },
            nlink: 1,
            uid: 0,
            gid: 0,
            rdev: 0,
            blksize: PAGE as u32,
            flags: 0,
        })
    }

    fn entry(&self, inode: Result<u64, Refused>, reply: ReplyEntry) {
        match inode.and_then(|inode| self.attributes(inode)) {
            Ok(attributes) => reply.entry(&NO_CACHE, &attributes, Generation(0)),
            Err(refused) => reply.error(errno(refused)),
        }
    }
}

fn errno(refused: Refused) -> Errno {
    match refused {
        Refused::NoEntry => Errno::ENOENT,
        Refused::Exists => Errno::EEXIST,
        Refused::NotFolder => Errno::ENOTDIR,
        Refused::IsFolder => Errno::EISDIR,
        Refused::NotEmpty => Errno::ENOTEMPTY,
        Refused::NoSpace => Errno::ENOSPC,
        Refused::Io => Errno::EIO,
    }
}

fn empty(result: Result<(), Refused>, reply: ReplyEmpty) {
    match result {
        Ok(()) => reply.ok(),
        Err(refused) => reply.error(errno(refused)),
    }
}

impl Filesystem for Shared {
    fn init(&mut self, _request: &Request, config: &mut KernelConfig) -> io::Result<()> {
        // An older kernel's limit is as good.
        let _ = config.set_max_write(MAX_WRITE);
        Ok(())
    }

    fn lookup(&self, _request: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        if parent.0 == ROOT && name == CONTROL_FILE {
            return self.entry(Ok(CONTROL), reply);
        }
        let found = self.lock().lookup(parent.0, name);
        self.entry(found, reply);
    }

    fn getattr(&self, _: &Request, inode: INodeNo, _: Option<FileHandle>, reply: ReplyAttr) {
        match self.attributes(inode.0) {
            Ok(attributes) => reply.attr(&NO_CACHE, &attributes),
            Err(refused) => reply.error(errno(refused)),
        }
    }

    fn setattr(
        &self,
        _request: &Request,
        inode: INodeNo,
        _mode: Option<u32>,
        _uid: Option<u32>,
        _gid: Option<u32>,
        size: Option<u64>,
        _atime: Option<TimeOrNow>,
        _mtime: Option<TimeOrNow>,
        _ctime: Option<SystemTime>,
        _handle: Option<FileHandle>,
        _crtime: Option<SystemTime>,
        _chgtime: Option<SystemTime>,
        _bkuptime: Option<SystemTime>,
        _flags: Option<BsdFileFlags>,
        reply: ReplyAttr,
    ) {
        let truncated = match size {
            Some(size) if inode.0 != CONTROL => self.lock().truncate(inode.0, size),
            _ => Ok(()),
        };
        match truncated.and_then(|()| self.attributes(inode.0)) {
            Ok(attributes) => reply.attr(&NO_CACHE, &attributes),
            Err(refused) => reply.error(errno(refused)),
        }
    }

    fn mkdir(
        &self,
        _request: &Request,
        parent: INodeNo,
        name: &OsStr,
        _mode: u32,
        _umask: u32,
        reply: ReplyEntry,
    ) {
        let folder = Node::Folder(FolderNode::default());
        let created = self.lock().create(parent.0, name, folder);
        self.entry(created, reply);
    }

    fn unlink(&self, _request: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        let removed = self.lock().remove(parent.0, name, false);
        empty(removed, reply);
    }

    fn rmdir(&self, _request: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        let removed = self.lock().remove(parent.0, name, true);
        empty(removed, reply);
    }

    fn rename(
        &self,
        _request: &Request,
        parent: INodeNo,
        name: &OsStr,
        new_parent: INodeNo,
        new_name: &OsStr,
        flags: RenameFlags,
        reply: ReplyEmpty,
    ) {
        if !flags.is_empty() {
            return reply.error(Errno::EINVAL);
        }
        let renamed = self.lock().rename(parent.0, name, new_parent.0, new_name);
        empty(renamed, reply);
    }

    fn create(
        &self,
        _request: &Request,
        parent: INodeNo,
        name: &OsStr,
        _mode: u32,
        _umask: u32,
        _flags: i32,
        reply: ReplyCreate,
    ) {
        let created = self.lock().create(parent.0, name, Node::File(FileNode::default()));
        match created.and_then(|inode| self.attributes(inode)) {
            Ok(attributes) => {
                self.lock().opened(attributes.ino.0);
                let flags = FopenFlags::FOPEN_DIRECT_IO;
                reply.created(&NO_CACHE, &attributes, Generation(0), FileHandle(0), flags);
            }
            Err(refused) => reply.error(errno(refused)),
        }
    }

    fn open(&self, _request: &Request, inode: INodeNo, _flags: OpenFlags, reply: ReplyOpen) {
        self.lock().opened(inode.0);
        reply.opened(FileHandle(0), FopenFlags::FOPEN_DIRECT_IO);
    }

    fn release(
        &self,
        _request: &Request,
        inode: INodeNo,
        _handle: FileHandle,
        _flags: OpenFlags,
        _owner: Option<LockOwner>,
        _flush: bool,
        reply: ReplyEmpty,
    ) {
        self.lock().released(inode.0);
        reply.ok();
    }

    fn flush(
        &self,
        _request: &Request,
        _inode: INodeNo,
        _handle: FileHandle,
        _owner: LockOwner,
        reply: ReplyEmpty,
    ) {
        reply.ok();
    }

    fn read(
        &self,
        _request: &Request,
        inode: INodeNo,
        _handle: FileHandle,
        offset: u64,
        size: u32,
        _flags: OpenFlags,
        _owner: Option<LockOwner>,
        reply: ReplyData,
    ) {
        let bytes = match inode.0 {
            CONTROL => {
                let status = self.lock().status().into_bytes();
                let rest = status.into_iter().skip(offset as usize);
                Ok(rest.take(size as usize).collect())
            }
            inode => self.lock().file(inode).map(|file| file.read(offset, u64::from(size))),
        };
        match bytes {
            Ok(bytes) => reply.data(&bytes),
            Err(refused) => reply.error(errno(refused)),
        }
    }

    fn write(
        &self,
        _request: &Request,
        inode: INodeNo,
        _handle: FileHandle,
        offset: u64,
        data: &[u8],
        _write_flags: WriteFlags,
        flags: OpenFlags,
        _owner: Option<LockOwner>,
        reply: ReplyWrite,
    ) {
        match Shared::write(self, inode.0, offset, data, flags) {
            Ok(()) => reply.written(data.len() as u32),
            Err(errno) => reply.error(errno),
        }
    }

    fn fsync(
        &self,
        _request: &Request,
        inode: INodeNo,
        _handle: FileHandle,
        _datasync: bool,
        reply: ReplyEmpty,
    ) {
        empty(self.sync(inode.0), reply);
    }

    fn fsyncdir(
        &self,
        _request: &Request,
        inode: INodeNo,
        _handle: FileHandle,
        _datasync: bool,
        reply: ReplyEmpty,
    ) {
        empty(self.sync(inode.0), reply);
    }

    fn readdir(
        &self,
        _request: &Request,
        inode: INodeNo,
        _handle: FileHandle,
        offset: u64,
        mut reply: ReplyDirectory,
    ) {
        let disk = self.lock();
        let names = match disk.list(inode.0) {
            Ok(names) => names,
            Err(refused) => return reply.error(errno(refused)),
        };
        for (index, (name, inode)) in names.into_iter().enumerate().skip(offset as usize) {
            let kind = match disk.node(inode) {
                Ok(Node::Folder(_)) => FileType::Directory,
                _ => FileType::RegularFile,
            };
            if reply.add(INodeNo(inode), index as u64 + 1, kind, name) {
                break;
            }
        }
        reply.ok();
    }

    fn statfs(&self, _request: &Request, _inode: INodeNo, reply: ReplyStatfs) {
        let (size, free) = self.lock().space();
        let block = PAGE as u32;
        reply.statfs(size / PAGE, free / PAGE, free / PAGE, 1 << 20, 1 << 20, block, 255, block);
    }

    fn fallocate(
        &self,
        _request: &Request,
        inode: INodeNo,
        _handle: FileHandle,
        offset: u64,
        length: u64,
        mode: i32,
        reply: ReplyEmpty,
    ) {
        if mode & !FALLOC_KEEP_SIZE != 0 {
            return reply.error(Errno::EOPNOTSUPP);
        }
        let end = offset.saturating_add(length);
        empty(self.lock().allocate(inode.0, end, mode & FALLOC_KEEP_SIZE != 0), reply);
    }
}
