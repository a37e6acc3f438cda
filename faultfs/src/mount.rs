//! Mounting the disk, and telling where that cannot be done.

use std::fmt;
use std::path::{Path, PathBuf};

use fuser::{BackgroundSession, Config, MountOption, SessionACL};
use rustix::mount::{UnmountFlags, unmount};

use crate::command::Command;
use crate::fs::Shared;

/// FUSE cannot be used here; why. A test that needs it says so and skips.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unavailable(pub String);

impl fmt::Display for Unavailable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "cannot mount a FUSE file system: {}", self.0)
    }
}

impl std::error::Error for Unavailable {}

/// A mounted disk. It is unmounted, and its content lost, when it is dropped.
#[derive(Debug)]
pub struct FaultDisk {
    path: PathBuf,
    shared: Shared,
    session: Option<BackgroundSession>,
}

impl FaultDisk {
    /// Mounts an empty disk on a directory, which is made if it is missing. Needs root and
    /// `/dev/fuse`, or `fusermount3`. A mount left over by a process that died is replaced.
    ///
    /// # Errors
    /// The reason why there is no FUSE here.
    pub fn mount(path: &Path) -> Result<FaultDisk, Unavailable> {
        const NOT_CONNECTED: i32 = 107;
        if std::fs::metadata(path).is_err_and(|e| e.raw_os_error() == Some(NOT_CONNECTED)) {
            let _ = unmount(path, UnmountFlags::DETACH);
        }
        let unavailable = |e: std::io::Error| Unavailable(format!("{}: {e}", path.display()));
        std::fs::create_dir_all(path).map_err(unavailable)?;
        let path = path.canonicalize().map_err(unavailable)?;
        let mut config = Config::default();
        config.mount_options =
            vec![MountOption::FSName("faultfs".to_owned()), MountOption::NoAtime];
        config.acl = SessionACL::All;
        // One that stalls must not keep the others from being told to stop.
        config.n_threads = Some(4);
        let shared = Shared::new();
        let session = fuser::spawn_mount(shared.clone(), &path, &config).map_err(unavailable)?;
        Ok(FaultDisk { path, shared, session: Some(session) })
    }

    /// Where it is mounted.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Does one of the faults.
    pub fn command(&self, command: Command) {
        self.shared.lock().command(command);
    }

    /// Loses everything unsynced: a power cut.
    pub fn drop_unsynced(&self) {
        self.command(Command::Drop);
    }

    /// A power cut in the middle of writing: a random part of what was unsynced has arrived.
    pub fn tear_unsynced(&self, seed: u64) {
        self.command(Command::Torn { seed });
    }

    /// Lets `after` more syncs succeed and the next one fail with `EIO`.
    pub fn fail_fsync(&self, after: u64) {
        self.command(Command::FailFsync { after });
    }

    /// Lets `after` more changes and syncs succeed; from then on the power is off, until
    /// [`FaultDisk::drop_unsynced`] or [`FaultDisk::tear_unsynced`].
    pub fn cut(&self, after: u64) {
        self.command(Command::Cut { after });
    }

    /// Delays each write and sync by this many milliseconds.
    pub fn stall(&self, ms: u64) {
        self.command(Command::Stall { ms });
    }

    /// Leaves this many bytes of space.
    pub fn full(&self, free: u64) {
        self.command(Command::Full { free });
    }

    /// Ends failures, stalls and limits.
    pub fn ok(&self) {
        self.command(Command::Ok);
    }

    /// How many files and directories a power cut could take something from now.
    pub fn unsynced(&self) -> usize {
        self.shared.lock().unsynced()
    }

    /// How many syncs there have been, the failed ones included.
    pub fn syncs(&self) -> u64 {
        self.shared.lock().syncs()
    }

    /// Waits until somebody unmounts the disk.
    ///
    /// # Errors
    /// If the session with the kernel broke.
    pub fn wait(mut self) -> std::io::Result<()> {
        self.session.take().expect("there until the drop").join()
    }
}

impl Drop for FaultDisk {
    fn drop(&mut self) {
        if let Some(session) = self.session.take() {
            // Detached, so that a handle that is still open cannot keep the mount; its session ends
            // with it.
            let _ = unmount(&self.path, UnmountFlags::DETACH);
            drop(session);
        }
    }
}
