//! Servers that a task starts, and that end with it.

use std::fs::{self, File};
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use bench::client::{Client, Value};
use bench::status::Group;

/// How long a server may take to serve, and to stop.
const PATIENCE: Duration = Duration::from_secs(30);

/// Replicas of a group.
pub const REPLICAS: u16 = 3;

/// Ports below those that the kernel hands out by itself.
const PORTS: std::ops::Range<u16> = 20_000..32_000;

/// A server in a process group of its own, which is killed when this is dropped.
pub struct Server {
    name: String,
    child: Child,
    log: PathBuf,
    /// Where it serves its clients.
    pub port: u16,
}

impl Server {
    /// Starts a program in a directory of its own; its output goes to a file there.
    pub fn start(name: &str, command: &mut Command, directory: &Path, port: u16) -> Result<Self> {
        fs::create_dir_all(directory)?;
        let log = directory.join(format!("{name}.log"));
        let output = File::create(&log)?;
        let child = command
            .current_dir(directory)
            .stdin(Stdio::null())
            .stdout(output.try_clone()?)
            .stderr(output)
            .process_group(0)
            .spawn()
            .with_context(|| format!("cannot start {name} ({command:?})"))?;
        Ok(Self { name: name.to_string(), child, log, port })
    }

    /// A Redis or Valkey that writes nothing to disk.
    pub fn redis(program: &Path, directory: &Path, replica_of: Option<u16>) -> Result<Self> {
        let port = free_ports(1)?;
        let name = format!("{}-{port}", file_name(program));
        let mut command = Command::new(program);
        command.args(["--port", &port.to_string(), "--save", "", "--appendonly", "no"]);
        if let Some(primary) = replica_of {
            command.args(["--replicaof", &format!("127.0.0.1 {primary}")]);
        }
        let mut server = Self::start(&name, &mut command, directory, port)?;
        let is_ready = |port| match replica_of {
            Some(_) => answers(port, &[b"INFO", b"replication"], "master_link_status:up"),
            None => answers(port, &[b"PING"], "PONG"),
        };
        server.wait(|server| is_ready(server.port))?;
        Ok(server)
    }

    /// A demo group of ours, on consecutive ports, followed by those for memcached's clients.
    pub fn demo(program: &Path, directory: &Path, durability: &str) -> Result<Self> {
        let port = free_ports(2 * REPLICAS)?;
        let mut command = Command::new(program);
        command.args(["demo", "--port", &port.to_string(), "--durability", durability]);
        command.args(["--memcached-port", &(port + REPLICAS).to_string()]);
        let data = directory.join(format!("demo-{port}"));
        command.arg("--dir").arg(&data);
        let mut server = Self::start(&format!("demo-{port}"), &mut command, directory, port)?;
        server.wait(|server| {
            let whole = server.group().wait_until_whole(Duration::ZERO).is_ok();
            whole && answers(server.port, &[b"PING"], "PONG")
        })?;
        Ok(server)
    }

    /// The replicas of a demo.
    pub fn group(&self) -> Group {
        Group::local(self.port, REPLICAS)
    }

    /// The process that was started.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Waits until it is ready, or says what it wrote before it ended.
    pub fn wait(&mut self, is_ready: impl Fn(&Self) -> bool) -> Result<()> {
        let deadline = Instant::now() + PATIENCE;
        while !is_ready(self) {
            if let Some(status) = self.child.try_wait()? {
                bail!("{} ended with {status}:\n{}", self.name, self.last_words());
            }
            if Instant::now() > deadline {
                bail!("{} does not serve after {PATIENCE:?}:\n{}", self.name, self.last_words());
            }
            std::thread::sleep(Duration::from_millis(50));
        }
        Ok(())
    }

    fn last_words(&self) -> String {
        let text = fs::read_to_string(&self.log).unwrap_or_default();
        let lines: Vec<&str> = text.lines().collect();
        lines[lines.len().saturating_sub(20)..].join("\n")
    }

    /// Asks the process to end and gives it time for it.
    fn terminate(&mut self) {
        let _ = signal("-TERM", &self.pid().to_string());
        let deadline = Instant::now() + PATIENCE;
        while Instant::now() < deadline {
            if !matches!(self.child.try_wait(), Ok(None)) {
                return;
            }
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.terminate();
        // Whatever it started and left behind is in its process group.
        let _ = signal("-KILL", &format!("-{}", self.pid()));
        let _ = self.child.wait();
    }
}

fn signal(which: &str, whom: &str) -> std::io::Result<()> {
    Command::new("kill").args([which, "--", whom]).stderr(Stdio::null()).status().map(|_| ())
}

/// The address of a port on this machine.
pub fn local(port: u16) -> SocketAddr {
    SocketAddr::from((Ipv4Addr::LOCALHOST, port))
}

/// Whether a server answers a command with something that contains this text.
pub fn answers(port: u16, command: &[&[u8]], text: &str) -> bool {
    let reply = Client::connect(local(port), Duration::from_secs(2))
        .and_then(|mut client| client.request(command));
    match reply {
        Ok(Value::Error(_)) | Err(_) => false,
        Ok(reply) => {
            let bytes = reply.as_bytes().unwrap_or_default();
            String::from_utf8_lossy(bytes).contains(text)
        }
    }
}

/// The first of so many consecutive ports on which nobody listens.
pub fn free_ports(count: u16) -> Result<u16> {
    // Tasks that run at the same time start at different places.
    let range = PORTS.end - PORTS.start;
    let offset = (std::process::id() % u32::from(range)) as u16;
    for step in 0..range {
        let first = PORTS.start + (offset + step * 7) % range;
        let is_free = |port| TcpListener::bind((Ipv4Addr::LOCALHOST, port)).is_ok();
        if PORTS.end - first > count && (first..first + count).all(is_free) {
            return Ok(first);
        }
    }
    bail!("no {count} free ports between {} and {}", PORTS.start, PORTS.end)
}

/// Where a program is, if it is on the PATH.
pub fn on_path(program: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH")?;
    std::env::split_paths(&path).map(|directory| directory.join(program)).find(|p| p.is_file())
}

/// A program's name without its directory.
pub fn file_name(program: &Path) -> String {
    program.file_name().unwrap_or_default().to_string_lossy().into_owned()
}

/// The root of the workspace.
pub fn workspace() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("xtask has a parent").to_path_buf()
}

/// Where Cargo builds.
pub fn target() -> PathBuf {
    match std::env::var_os("CARGO_TARGET_DIR") {
        Some(directory) => workspace().join(directory),
        None => workspace().join("target"),
    }
}

/// A directory for a task, below the target directory. It may hold what an earlier run left.
pub fn directory(task: &str) -> Result<PathBuf> {
    let directory = target().join("xtask").join(task);
    fs::create_dir_all(&directory)
        .with_context(|| format!("cannot create {}", directory.display()))?;
    Ok(directory)
}

/// The same, emptied.
pub fn empty_directory(task: &str) -> Result<PathBuf> {
    let directory = directory(task)?;
    fs::remove_dir_all(&directory)?;
    fs::create_dir_all(&directory)?;
    Ok(directory)
}

/// The program of this workspace, built for release.
pub fn lockstep() -> Result<PathBuf> {
    let program = target().join("release").join("lockstep");
    ensure!(program.is_file(), "{} is missing: run cargo build --release first", program.display());
    Ok(program)
}

/// Runs a program to its end and returns what it printed; its errors are part of ours.
pub fn run(command: &mut Command) -> Result<String> {
    let output = command
        .stdin(Stdio::null())
        .output()
        .with_context(|| format!("cannot run {:?}", command.get_program()))?;
    let printed = String::from_utf8_lossy(&output.stdout).into_owned();
    if !output.status.success() {
        let errors = String::from_utf8_lossy(&output.stderr);
        bail!("{command:?} ended with {}:\n{printed}{errors}", output.status);
    }
    Ok(printed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn free_ports_are_consecutive_and_free() {
        let first = free_ports(3).unwrap();
        assert!(PORTS.contains(&first) && PORTS.contains(&(first + 2)));
        let held = TcpListener::bind((Ipv4Addr::LOCALHOST, first + 1)).unwrap();
        let other = free_ports(3).unwrap();
        let held = held.local_addr().unwrap().port();
        assert!(!(other..other + 3).contains(&held));
    }

    #[test]
    fn a_server_that_ends_at_once_says_why() {
        let directory = empty_directory("test-servers").unwrap();
        let mut command = Command::new("sh");
        command.args(["-c", "echo broken; exit 3"]);
        let mut server = Server::start("sh", &mut command, &directory, 1).unwrap();
        let error = server.wait(|_| false).unwrap_err().to_string();
        assert!(error.contains("broken") && error.contains('3'), "{error}");
    }

    #[test]
    fn a_server_is_gone_when_dropped() {
        let directory = empty_directory("test-drop").unwrap();
        let mut command = Command::new("sh");
        command.args(["-c", "sleep 1000 & echo $! > child; wait"]);
        let mut server = Server::start("sh", &mut command, &directory, 1).unwrap();
        let written = |_: &Server| {
            fs::read_to_string(directory.join("child")).is_ok_and(|t| t.ends_with('\n'))
        };
        server.wait(written).unwrap();
        let child = fs::read_to_string(directory.join("child")).unwrap();
        drop(server);
        // It ends a moment after it is killed, and stays a zombie until its new parent notices.
        let is_gone = || {
            let state = fs::read_to_string(format!("/proc/{}/stat", child.trim()));
            state.map_or(true, |state| state.contains(") Z"))
        };
        let deadline = Instant::now() + PATIENCE;
        while !is_gone() {
            assert!(Instant::now() < deadline, "the child of a dropped server still runs");
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}
