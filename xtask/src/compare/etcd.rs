//! A three-node etcd with its defaults, and etcd's own benchmark.
//!
//! Debian's etcd is years old. Go builds a current one, but not with `go install`: etcd's modules
//! contain replace directives. A module of one's own that requires them works.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail, ensure};

use super::Figures;
use crate::servers::{self, Server};

const MEMBERS: usize = 3;

/// Puts go to as many keys.
pub const KEY_SPACE: &str = "100000";

/// The default, 2 GB, is too little for what a long run leaves behind.
const QUOTA: &str = "8589934592";

const SERVER_MODULE: &str = "go.etcd.io/etcd/server/v3";
const SERVER_VERSION: &str = "v3.7.1";
const BENCHMARK_MODULE: &str = "go.etcd.io/etcd/v3/tools/benchmark";
/// The benchmark is part of etcd's root module, whose versions come more rarely.
const BENCHMARK_VERSION: &str = "v3.6.8";

/// The programs.
pub struct Tools {
    server: PathBuf,
    benchmark: PathBuf,
    /// Of the server.
    pub version: String,
}

/// Finds the programs on the PATH, or where an earlier run built them, or builds them.
pub fn find(build: bool) -> Result<Tools> {
    let built = servers::directory("etcd")?;
    let find = |names: &[&str], built: PathBuf| {
        names.iter().find_map(|name| servers::on_path(name)).or(built.is_file().then_some(built))
    };
    let server = || find(&["etcd"], built.join("etcd"));
    let benchmark = || find(&["etcd-benchmark"], built.join("etcd-benchmark"));
    if build && server().is_none() {
        go_build(&built, "etcd", SERVER_MODULE, SERVER_VERSION)?;
    }
    if build && benchmark().is_none() {
        go_build(&built, "etcd-benchmark", BENCHMARK_MODULE, BENCHMARK_VERSION)?;
    }
    let (Some(server), Some(benchmark)) = (server(), benchmark()) else {
        bail!("etcd or etcd-benchmark is not on the PATH; --build-etcd builds both with Go");
    };
    let printed = servers::run(Command::new(&server).arg("--version"))?;
    let version = printed.lines().find_map(|line| line.strip_prefix("etcd Version: "));
    let version = version.unwrap_or("of unknown version").to_string();
    Ok(Tools { server, benchmark, version })
}

fn go_build(directory: &Path, name: &str, module: &str, version: &str) -> Result<()> {
    if servers::on_path("go").is_none() {
        bail!("go is not installed");
    }
    eprintln!("building {name} {version} with Go");
    let source = directory.join(format!("{name}-module"));
    std::fs::create_dir_all(&source)?;
    std::fs::write(source.join("go.mod"), format!("module {name}\n\ngo 1.24\n"))?;
    let go =
        |arguments: &[&str]| servers::run(Command::new("go").current_dir(&source).args(arguments));
    go(&["get", &format!("{module}@{version}")])?;
    let program = directory.join(name);
    let program = program.to_str().context("the target directory is not UTF-8")?;
    go(&["build", "-o", program, module])?;
    Ok(())
}

/// A cluster with its defaults but for the quota: every put is on disk at a majority.
pub struct Cluster {
    members: Vec<Server>,
}

impl Cluster {
    pub fn start(tools: &Tools, directory: &Path) -> Result<Self> {
        // Each member has a port for clients and one for its peers.
        let first = servers::free_ports(2 * MEMBERS as u16)?;
        let url = |member: usize, peers: usize| {
            format!("http://127.0.0.1:{}", usize::from(first) + 2 * member + peers)
        };
        let everyone: Vec<String> =
            (0..MEMBERS).map(|member| format!("m{member}={}", url(member, 1))).collect();
        let mut members = Vec::new();
        for member in 0..MEMBERS {
            let name = format!("m{member}");
            let mut command = Command::new(&tools.server);
            command
                .args(["--name", &name, "--data-dir", &name, "--log-level", "error"])
                .args(["--quota-backend-bytes", QUOTA])
                .args(["--listen-client-urls", &url(member, 0)])
                .args(["--advertise-client-urls", &url(member, 0)])
                .args(["--listen-peer-urls", &url(member, 1)])
                .args(["--initial-advertise-peer-urls", &url(member, 1)])
                .args(["--initial-cluster", &everyone.join(",")]);
            let port = first + 2 * member as u16;
            members.push(Server::start(&name, &mut command, directory, port)?);
        }
        let mut cluster = Self { members };
        let endpoints = cluster.endpoints();
        let load = Load { connections: 1, clients: 1, value_size: 8 };
        // A put succeeds once there is a leader.
        cluster.members[0].wait(|_| put(tools, &endpoints, &load, &["--total", "1"]).is_ok())?;
        Ok(cluster)
    }

    fn endpoints(&self) -> String {
        let endpoints: Vec<String> =
            self.members.iter().map(|member| format!("127.0.0.1:{}", member.port)).collect();
        endpoints.join(",")
    }

    /// Puts to random keys.
    pub fn puts(&self, tools: &Tools, load: &Load, total: u64) -> Result<Figures> {
        let printed = put(tools, &self.endpoints(), load, &["--total", &total.to_string()])?;
        parse(&printed).with_context(|| format!("cannot understand etcd-benchmark:\n{printed}"))
    }

    /// Puts every key once.
    pub fn fill(&self, tools: &Tools, value_size: usize) -> Result<()> {
        let load = Load { connections: 100, clients: 1000, value_size };
        put(tools, &self.endpoints(), &load, &["--sequential-keys", "--total", KEY_SPACE])?;
        Ok(())
    }
}

/// Clients that each wait for one put, over connections to the leader.
pub struct Load {
    /// Connections, which the clients share.
    pub connections: u32,
    /// Clients.
    pub clients: u32,
    /// Bytes of a value.
    pub value_size: usize,
}

fn put(tools: &Tools, endpoints: &str, load: &Load, more: &[&str]) -> Result<String> {
    let mut command = Command::new(&tools.benchmark);
    command
        .args(["--endpoints", endpoints, "--target-leader", "put"])
        .args(["--conns", &load.connections.to_string(), "--clients", &load.clients.to_string()])
        .args(["--key-size", "16", "--val-size", &load.value_size.to_string()])
        .args(["--key-space-size", KEY_SPACE])
        .args(more);
    let printed = servers::run(&mut command)?;
    // It ends well all the same.
    ensure!(!printed.contains("Error distribution"), "etcd refused puts:\n{printed}");
    Ok(printed)
}

fn parse(printed: &str) -> Option<Figures> {
    let after = |name| printed.lines().find_map(|line| line.trim().strip_prefix(name));
    let per_second = after("Requests/sec:")?.trim().parse().ok()?;
    let micros = |name| {
        let seconds: f64 = after(name)?.trim().strip_suffix(" secs.")?.parse().ok()?;
        Some(seconds * 1e6)
    };
    Some(Figures { per_second, p50_us: micros("50% in ")?, p99_us: micros("99% in ")? })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_benchmark_is_understood() {
        let printed = "Summary:\n  Total:\t1.2 secs.\n  Requests/sec:\t15170.1234\n\n\
            Latency distribution:\n  50% in 0.3622 secs.\n  99% in 0.8440 secs.\n";
        let figures = parse(printed).unwrap();
        assert_eq!(figures.per_second, 15_170.123_4);
        assert_eq!((figures.p50_us.round(), figures.p99_us.round()), (362_200.0, 844_000.0));
        assert!(parse("Summary:\n").is_none());
    }
}
