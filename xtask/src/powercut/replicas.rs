//! The replicas of a group as processes of their own, which die together.

use std::fmt;
use std::fs::File;
use std::io::Write;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use bench::status::Group;

use crate::servers::{self, REPLICAS};

/// How long the group may take from its start until it is whole.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// The statuses are asked for at least this often, and between them whether all still run.
const POLL: Duration = Duration::from_millis(100);

/// Small, so that the power also goes while a segment or a checkpoint is begun or finished.
const SMALL: &[&str] = &["--segment-bytes", "262144", "--checkpoint-bytes", "524288"];

/// What an acknowledgement of the group means.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Durability {
    /// Nothing acknowledged may be lost
    Sync,
    /// The loss is measured: it must be a suffix, and nothing that was reported durable
    Lazy,
}

impl Durability {
    /// The word for the replicas' command line.
    pub fn name(self) -> &'static str {
        match self {
            Durability::Sync => "sync",
            Durability::Lazy => "lazy",
        }
    }
}

/// The group does not do what it must: a replica has ended, or has lost its state, or no write is
/// acknowledged any more.
#[derive(Debug)]
pub struct Stuck(pub String);

impl fmt::Display for Stuck {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Stuck {}

/// A group. Its processes are killed when it is dropped.
pub struct Replicas {
    program: PathBuf,
    data: PathBuf,
    logs: PathBuf,
    port: u16,
    durability: Durability,
    flags: Vec<&'static str>,
    running: Vec<Child>,
}

impl Replicas {
    /// A group that has not been started: its data goes to one place and its logs to another.
    pub fn new(
        program: PathBuf,
        data: &Path,
        logs: &Path,
        durability: Durability,
        no_fsync: bool,
    ) -> Result<Self> {
        let mut flags = SMALL.to_vec();
        flags.extend(no_fsync.then_some("--unsafe-no-fsync"));
        let port = servers::free_ports(2 * REPLICAS)?;
        let (data, logs) = (data.to_path_buf(), logs.to_path_buf());
        Ok(Self { program, data, logs, port, durability, flags, running: Vec::new() })
    }

    /// Where the replicas serve their clients.
    pub fn group(&self) -> Group {
        Group::local(self.port, REPLICAS)
    }

    /// Starts them all for the first time.
    pub fn create(&mut self) -> Result<()> {
        for id in 0..REPLICAS {
            File::create(self.log(id)).context("cannot write the replicas' logs")?;
        }
        self.spawn(&["--bootstrap"])
    }

    /// Starts them all with what their disk holds.
    pub fn start(&mut self) -> Result<()> {
        self.spawn(&[])
    }

    fn spawn(&mut self, more: &[&str]) -> Result<()> {
        assert!(self.running.is_empty(), "the old processes are dead");
        let address = |port| SocketAddr::from((Ipv4Addr::LOCALHOST, port)).to_string();
        let peers: Vec<String> =
            (0..REPLICAS).map(|id| address(self.port + REPLICAS + id)).collect();
        for id in 0..REPLICAS {
            let mut log = File::options().append(true).open(self.log(id))?;
            writeln!(log, "-- power on")?;
            let mut command = Command::new(&self.program);
            command.args(["serve", "--id", &id.to_string(), "--peers", &peers.join(",")]);
            command.args(["--resp", &address(self.port + id)]);
            command.args(["--durability", self.durability.name()]);
            command.arg("--dir").arg(self.data.join(id.to_string()));
            command.args(&self.flags).args(more);
            // No process may outlive the disk that it writes to.
            command.args(["--die-with-parent", &std::process::id().to_string()]);
            command.stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log);
            let child = command.spawn();
            self.running.push(child.with_context(|| format!("cannot start {command:?}"))?);
        }
        Ok(())
    }

    /// SIGKILL for all of them at once. When this returns they are dead, and none of their writes
    /// is under way.
    pub fn kill(&mut self) -> Result<()> {
        for child in &mut self.running {
            child.kill().context("cannot kill a replica")?;
        }
        for mut child in self.running.drain(..) {
            // A process is only done when its last thread has left its last write.
            child.wait().context("cannot wait for a replica")?;
        }
        Ok(())
    }

    /// Waits until every replica takes its part and is caught up.
    pub fn wait_until_whole(&mut self) -> Result<()> {
        let deadline = Instant::now() + PATIENCE;
        let group = self.group();
        loop {
            let Err(why) = group.wait_until_whole(POLL) else { return Ok(()) };
            self.all_run()?;
            let statuses = group.statuses();
            let has_lost = |role: &str| role == "state-lost";
            if statuses.iter().flatten().any(|status| has_lost(&status.role)) {
                return Err(Stuck(format!("the state is lost: {why:#}")).into());
            }
            if Instant::now() > deadline {
                let words = self.last_words();
                return Err(Stuck(format!("not whole after {PATIENCE:?}: {why:#}\n{words}")).into());
            }
        }
    }

    /// Fails if one has ended.
    pub fn all_run(&mut self) -> Result<()> {
        for (id, child) in self.running.iter_mut().enumerate() {
            if let Some(status) = child.try_wait()? {
                let words = self.last_words();
                let why = format!("replica {id} has ended by itself ({status})\n{words}");
                return Err(Stuck(why).into());
            }
        }
        Ok(())
    }

    /// What a replica has written so far.
    pub fn log_text(&self, id: u16) -> String {
        std::fs::read_to_string(self.log(id)).unwrap_or_default()
    }

    fn log(&self, id: u16) -> PathBuf {
        self.logs.join(format!("replica-{id}.log"))
    }

    fn last_words(&self) -> String {
        let last = |id| {
            let text = self.log_text(id);
            let lines: Vec<&str> = text.lines().collect();
            lines[lines.len().saturating_sub(8)..].join("\n")
        };
        let logs: Vec<String> = (0..REPLICAS).map(last).collect();
        logs.join("\n")
    }
}

impl Drop for Replicas {
    fn drop(&mut self) {
        // Those that are left die with this process.
        let _ = self.kill();
    }
}
