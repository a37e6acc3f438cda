//! Three replicas as processes of this program.

use std::fs::File;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use lockstep_client::{Client, Options};

const REPLICAS: u16 = 3;
/// How an emulated disk stands still, as `--emulate-disk-stall` takes it.
const STALL: &str = "50/1000";
const READY: Duration = Duration::from_secs(20);

/// A running group; it ends with this value.
pub(super) struct Group {
    children: Vec<Child>,
    peers: Vec<String>,
}

impl Group {
    /// Starts a new group on six ports from `port` on, with its data below `directory`. If it
    /// `stalls`, the disk of the first primary stands still now and then.
    pub fn start(
        mode: &str,
        port: u16,
        disk_us: u64,
        stalls: bool,
        directory: &Path,
    ) -> Result<Group> {
        std::fs::create_dir_all(directory)
            .with_context(|| format!("cannot make {}", directory.display()))?;
        let address = |port: u16| format!("127.0.0.1:{port}");
        let peers: Vec<_> = (0..REPLICAS).map(|id| address(port + id)).collect();
        let mut group = Group { children: Vec::new(), peers };
        let program = std::env::current_exe().context("where is this program?")?;
        for id in 0..REPLICAS {
            let log = File::create(directory.join(format!("{id}.log")))?;
            let mut command = Command::new(&program);
            command.args(["serve", "--bootstrap", "--durability", mode, "--peers"]);
            command.arg(group.peers.join(",")).arg("--id").arg(id.to_string());
            command.arg("--resp").arg(address(port + REPLICAS + id));
            command.arg("--dir").arg(directory.join(id.to_string()));
            command.arg("--die-with-parent").arg(std::process::id().to_string());
            if disk_us > 0 {
                command.arg("--emulate-disk-latency").arg(disk_us.to_string());
            }
            if stalls && id == 0 {
                command.args(["--emulate-disk-stall", STALL]);
            }
            command.stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log);
            group.children.push(command.spawn().context("cannot start a replica")?);
        }
        group.wait(directory)?;
        Ok(group)
    }

    /// Where the replicas reach each other, and native clients them.
    pub fn peers(&self) -> &[String] {
        &self.peers
    }

    fn wait(&mut self, directory: &Path) -> Result<()> {
        let end = Instant::now() + READY;
        while Instant::now() < end {
            let served = Client::connect(&self.peers, Options::default())
                .and_then(|mut client| client.set(b"ready", b"yes"));
            // Replicas of an earlier run would serve in the place of those that could not start.
            if self.children.iter_mut().any(|child| matches!(child.try_wait(), Ok(Some(_)))) {
                break;
            }
            if served.is_ok() {
                return Ok(());
            }
        }
        let words = std::fs::read_to_string(directory.join("0.log")).unwrap_or_default();
        bail!("the group does not serve; the first replica said:\n{words}")
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        for child in &mut self.children {
            // Whoever has ended already needs no killing.
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}
