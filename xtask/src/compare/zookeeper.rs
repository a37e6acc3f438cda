//! A three-server ZooKeeper from the Debian packages, set up as in [Mao] 4.6.5.
//!
//! Snapshots are off and the global limit of outstanding requests is 2,000. Everything else that
//! matters is the default: each server syncs its log before it acknowledges (forceSync).

mod load;
mod session;

use std::fs;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, bail};

pub use load::{Load, create_nodes, set_data};

use crate::servers::{self, Server, local};

const MEMBERS: u16 = 3;

/// The part of the Debian package zookeeper that has the servers.
const JAR_PACKAGE: &str = "libzookeeper-java";

/// How long a server may take to say what it is.
const PATIENCE: Duration = Duration::from_secs(2);

/// What all servers have in common.
const CONFIGURATION: &str = "\
dataDir=./data
clientPortAddress=127.0.0.1
tickTime=2000
initLimit=10
syncLimit=5
maxClientCnxns=0
admin.enableServer=false
4lw.commands.whitelist=srvr
globalOutstandingLimit=2000
snapCount=1000000000
snapSizeLimitInKb=-1
";

/// What is needed to start a server.
pub struct Installed {
    java: PathBuf,
    jars: Vec<PathBuf>,
    /// Of the servers.
    pub version: String,
}

/// Finds the packages, or installs them.
pub fn find(install: bool) -> Result<Installed> {
    let jar = || packaged(JAR_PACKAGE, "zookeeper.jar");
    if install && jar().is_none() {
        apt_get(&["update"])?;
        apt_get(&["install", "-y", "--no-install-recommends", "zookeeper"])?;
    }
    let Some(jar) = jar() else {
        bail!("no zookeeper.jar (Debian: apt-get install -y zookeeper; or --install-zookeeper)");
    };
    let java = servers::on_path("java").context("java is not on the PATH")?;
    let mut query = Command::new("dpkg-query");
    let version = servers::run(query.args(["-W", "-f", "${Version}", JAR_PACKAGE]))?;
    // Without a logger a server that cannot start would not say why.
    let logger = packaged("libslf4j-java", "slf4j-simple.jar");
    Ok(Installed { java, jars: [jar].into_iter().chain(logger).collect(), version })
}

/// A file of an installed Debian package.
fn packaged(package: &str, name: &str) -> Option<PathBuf> {
    let printed = servers::run(Command::new("dpkg").args(["-L", package])).ok()?;
    let mut files = printed.lines().map(PathBuf::from);
    files.find(|file| servers::file_name(file) == name && file.is_file())
}

fn apt_get(arguments: &[&str]) -> Result<()> {
    let mut command = Command::new("apt-get");
    servers::run(command.args(arguments).env("DEBIAN_FRONTEND", "noninteractive"))?;
    Ok(())
}

/// The servers.
pub struct Cluster {
    members: Vec<Server>,
}

impl Cluster {
    /// Starts it, each server with a directory of its own, and waits until it has a leader.
    pub fn start(installed: &Installed, directory: &Path) -> Result<Self> {
        // Each server has a port for clients, one for its peers and one for elections.
        let first = servers::free_ports(3 * MEMBERS)?;
        let port = |member: u16, which: u16| first + 3 * (member - 1) + which;
        let everyone: String = (1..=MEMBERS)
            .map(|id| format!("server.{id}=127.0.0.1:{}:{}\n", port(id, 1), port(id, 2)))
            .collect();
        let mut members = Vec::new();
        for id in 1..=MEMBERS {
            let name = format!("z{id}");
            let own = directory.join(&name);
            fs::create_dir_all(own.join("data"))?;
            fs::write(own.join("data").join("myid"), id.to_string())?;
            let client_port = format!("clientPort={}\n", port(id, 0));
            fs::write(own.join("zoo.cfg"), [CONFIGURATION, &client_port, &everyone].concat())?;
            let mut command = Command::new(&installed.java);
            command
                .args(["-Xms1g", "-Xmx1g", "-Dzookeeper.jmx.log4j.disable=true"])
                .arg("-Dorg.slf4j.simpleLogger.defaultLogLevel=warn")
                .arg("-cp")
                .arg(std::env::join_paths(&installed.jars)?)
                .args(["org.apache.zookeeper.server.quorum.QuorumPeerMain", "./zoo.cfg"]);
            members.push(Server::start(&name, &mut command, &own, port(id, 0))?);
        }
        for member in &mut members {
            member.wait(|member| mode(member.port).is_some())?;
        }
        Ok(Self { members })
    }

    /// Where the servers serve their clients.
    pub fn ports(&self) -> Vec<u16> {
        self.members.iter().map(|member| member.port).collect()
    }

    /// Where the leader does.
    pub fn leader(&self) -> Result<u16> {
        let is_leader = |port: &u16| mode(*port).as_deref() == Some("leader");
        self.ports().into_iter().find(is_leader).context("ZooKeeper has no leader")
    }
}

/// Whether a server leads or follows, once it does.
fn mode(port: u16) -> Option<String> {
    let mut socket = TcpStream::connect_timeout(&local(port), PATIENCE).ok()?;
    socket.set_read_timeout(Some(PATIENCE)).ok()?;
    socket.write_all(b"srvr").ok()?;
    let mut printed = String::new();
    socket.read_to_string(&mut printed).ok()?;
    printed.lines().find_map(|line| line.strip_prefix("Mode: ")).map(str::to_string)
}
