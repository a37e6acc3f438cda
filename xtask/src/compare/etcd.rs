//! A three-node etcd with its defaults, and etcd's own benchmark.
//!
//! Debian's etcd is years old. Go builds a current one, but not with `go install`: etcd's modules
//! contain replace directives. A module of one's own that requires them works.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};

use crate::servers::{self, Server};

const MEMBERS: usize = 3;

/// Puts go to as many keys.
pub const KEY_SPACE: &str = "100000";

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

/// A cluster with its defaults: every put is on disk at a majority.
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
        // A put succeeds once there is a leader.
        cluster.members[0].wait(|_| put(tools, &endpoints, 1, 1).is_ok())?;
        Ok(cluster)
    }

    fn endpoints(&self) -> String {
        let endpoints: Vec<String> =
            self.members.iter().map(|member| format!("127.0.0.1:{}", member.port)).collect();
        endpoints.join(",")
    }

    /// Puts of 1,000 clients that each wait for one, over 100 connections to the leader.
    pub fn puts_per_second(&self, tools: &Tools, total: u64) -> Result<f64> {
        let printed = put(tools, &self.endpoints(), 1000, total)?;
        parse(&printed).with_context(|| format!("cannot understand etcd-benchmark:\n{printed}"))
    }
}

fn put(tools: &Tools, endpoints: &str, clients: u32, total: u64) -> Result<String> {
    let mut command = Command::new(&tools.benchmark);
    command
        .args(["--endpoints", endpoints, "--target-leader", "put"])
        .args(["--conns", &clients.min(100).to_string(), "--clients", &clients.to_string()])
        .args(["--key-size", "16", "--val-size", "64", "--key-space-size", KEY_SPACE])
        .args(["--total", &total.to_string()]);
    servers::run(&mut command)
}

fn parse(printed: &str) -> Option<f64> {
    let rest = printed.lines().find_map(|line| line.trim().strip_prefix("Requests/sec:"))?;
    rest.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_benchmark_is_understood() {
        let printed = "Summary:\n  Total:\t1.2 secs.\n  Requests/sec:\t15170.1234\n";
        assert_eq!(parse(printed), Some(15_170.123_4));
        assert_eq!(parse("Summary:\n"), None);
    }
}
