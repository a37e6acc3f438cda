//! `cargo xtask clients`: stock libraries of Redis and memcached, with their defaults, and
//! memcached's own `memccapable`, against a demo group.
//!
//! Each library is installed below the target directory. One whose tools or packages cannot be had
//! is skipped, and said to be.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};

use crate::servers::{self, REPLICAS, Server};

/// What to test.
#[derive(clap::Args)]
pub struct Arguments {
    /// Redis ports of servers that run already; without any ports, a demo group is started
    #[arg(long, value_delimiter = ',')]
    ports: Vec<u16>,
    /// Memcached ports of servers that run already
    #[arg(long, value_delimiter = ',')]
    memcached_ports: Vec<u16>,
    /// Durability of the demo group
    #[arg(long, default_value = "memory")]
    durability: String,
}

/// What a library speaks.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Protocol {
    Redis,
    Memcached,
}

/// A library: what it needs, how it is installed, and how its script is run.
struct Library {
    name: &'static str,
    protocol: Protocol,
    needs: &'static [&'static str],
    install: fn(&Path) -> Result<()>,
    command: fn(&Path, &Path) -> Command,
}

const LIBRARIES: &[Library] = &[
    Library {
        name: "redis-py",
        protocol: Protocol::Redis,
        needs: &["python3"],
        install: |directory| install_python(directory, "redis"),
        command: |directory, scripts| {
            let mut command = Command::new(python(directory));
            command.arg(scripts.join("client.py"));
            command
        },
    },
    Library {
        name: "node-redis",
        protocol: Protocol::Redis,
        needs: &["node", "npm"],
        install: |directory| install_node(directory, "redis", "client_node.mjs"),
        command: |directory, _| node(directory, "client_node.mjs"),
    },
    Library {
        name: "ioredis",
        protocol: Protocol::Redis,
        needs: &["node", "npm"],
        install: |directory| install_node(directory, "ioredis", "client_ioredis.mjs"),
        command: |directory, _| node(directory, "client_ioredis.mjs"),
    },
    Library {
        name: "go-redis",
        protocol: Protocol::Redis,
        needs: &["go"],
        install: install_go,
        command: |directory, _| Command::new(directory.join("client")),
    },
    Library {
        name: "pymemcache",
        protocol: Protocol::Memcached,
        needs: &["python3"],
        install: |directory| install_python(directory, "pymemcache"),
        command: |directory, scripts| {
            let mut command = Command::new(python(directory));
            command.arg(scripts.join("client_memcached.py"));
            command
        },
    },
    Library {
        name: "memccapable",
        protocol: Protocol::Memcached,
        needs: &["memccapable", "sh"],
        install: |_| Ok(()),
        command: |_, _| {
            let mut command = Command::new("sh");
            command.args(["-c", MEMCCAPABLE, "sh"]);
            command
        },
    },
];

/// Debian has it in libmemcached-tools. It tests one server at a time.
const MEMCCAPABLE: &str = "for port; do memccapable -a -h 127.0.0.1 -p $port || exit 1; done; \
                           echo memccapable -a, $# replicas";

/// Runs every library's script against every replica.
pub fn run(arguments: &Arguments) -> Result<()> {
    let demo = if arguments.ports.is_empty() && arguments.memcached_ports.is_empty() {
        let data = servers::empty_directory("clients-demo")?;
        Some(Server::demo(&servers::lockstep()?, &data, &arguments.durability)?)
    } else {
        None
    };
    let (redis, memcached) = match &demo {
        Some(demo) => {
            let next = demo.port + REPLICAS;
            ((demo.port..next).collect(), (next..next + REPLICAS).collect())
        }
        None => (arguments.ports.clone(), arguments.memcached_ports.clone()),
    };
    let mut failures = 0;
    for library in LIBRARIES {
        let ports = match library.protocol {
            Protocol::Redis => &redis,
            Protocol::Memcached => &memcached,
        };
        match try_library(library, ports) {
            Ok(Outcome::Passed(said)) => println!("{:<12} passed ({said})", library.name),
            Ok(Outcome::Skipped(why)) => println!("{:<12} SKIPPED: {why}", library.name),
            Err(error) => {
                failures += 1;
                println!("{:<12} FAILED: {error:#}", library.name);
            }
        }
    }
    match failures {
        0 => Ok(()),
        count => bail!("{count} libraries failed"),
    }
}

enum Outcome {
    Passed(String),
    Skipped(String),
}

fn try_library(library: &Library, ports: &[u16]) -> Result<Outcome> {
    for program in library.needs {
        if servers::on_path(program).is_none() {
            return Ok(Outcome::Skipped(format!("{program} is not installed")));
        }
    }
    if ports.is_empty() {
        return Ok(Outcome::Skipped("no ports were given for it".to_owned()));
    }
    let directory = servers::directory(&format!("clients/{}", library.name))?;
    if let Err(error) = (library.install)(&directory) {
        return Ok(Outcome::Skipped(format!("cannot be installed: {error:#}")));
    }
    let mut command = (library.command)(&directory, &scripts());
    let said = servers::run(command.args(ports.iter().map(ToString::to_string)))?;
    // The last line says what passed.
    Ok(Outcome::Passed(said.trim().lines().last().unwrap_or_default().to_owned()))
}

fn scripts() -> PathBuf {
    servers::workspace().join("xtask").join("clients")
}

fn python(directory: &Path) -> PathBuf {
    directory.join("venv").join("bin").join("python")
}

/// Does what needs the network once per directory.
fn once(directory: &Path, install: impl FnOnce() -> Result<()>) -> Result<()> {
    let done = directory.join("installed");
    if !done.is_file() {
        install()?;
        fs::write(done, "")?;
    }
    Ok(())
}

fn install_python(directory: &Path, package: &str) -> Result<()> {
    once(directory, || {
        let venv = directory.join("venv");
        servers::run(Command::new("python3").args(["-m", "venv"]).arg(venv))?;
        let mut pip = Command::new(python(directory));
        pip.args(["-m", "pip", "install", "--quiet", "--disable-pip-version-check", package]);
        servers::run(&mut pip)?;
        Ok(())
    })
}

/// Node looks for packages beside the script, so the script is copied to where they are.
fn install_node(directory: &Path, package: &str, script: &str) -> Result<()> {
    fs::copy(scripts().join(script), directory.join(script)).context(script.to_string())?;
    once(directory, || {
        fs::write(directory.join("package.json"), "{\"private\": true}\n")?;
        let mut npm = Command::new("npm");
        npm.current_dir(directory).args(["install", "--silent", "--no-audit", "--no-fund"]);
        servers::run(npm.arg(package))?;
        Ok(())
    })
}

fn node(directory: &Path, script: &str) -> Command {
    let mut command = Command::new("node");
    command.arg(directory.join(script));
    command
}

fn install_go(directory: &Path) -> Result<()> {
    fs::copy(scripts().join("client.go"), directory.join("main.go"))?;
    let go = |arguments: &[&str]| {
        servers::run(Command::new("go").current_dir(directory).args(arguments))
    };
    once(directory, || {
        if !directory.join("go.mod").is_file() {
            go(&["mod", "init", "client"])?;
        }
        go(&["get", "github.com/redis/go-redis/v9@latest"])?;
        Ok(())
    })?;
    go(&["build", "-o", "client", "."])?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_script_is_there() {
        let scripts_of = ["client.py", "client_node.mjs", "client_ioredis.mjs", "client.go"];
        for script in scripts_of.iter().chain(&["client_memcached.py"]) {
            assert!(scripts().join(script).is_file(), "{script}");
        }
    }

    #[test]
    fn a_missing_tool_is_skipped() {
        let library = Library {
            name: "none",
            protocol: Protocol::Redis,
            needs: &["no-such-program"],
            install: |_| bail!("not reached"),
            command: |_, _| Command::new("no-such-program"),
        };
        assert!(matches!(try_library(&library, &[]), Ok(Outcome::Skipped(_))));
    }
}
