//! The key-value store as its users see it, over RESP and memcached's text protocol: one replica
//! alone against three that share memory ([Mu] 7.2, Figure 5), measured in turn.

use std::fs::File;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use serde::Serialize;

use super::MuOptions;
use super::process::REPLICAS;
use crate::client::Client;
use crate::load::{self, LoadOptions, Protocol};

const READY: Duration = Duration::from_secs(20);
/// Measurements of each, in turn, whose medians count.
const ROUNDS: usize = 5;

/// A load: what is spoken, connections, and commands on their way on each.
const LOADS: [(Protocol, usize, usize); 5] = [
    (Protocol::Resp, 1, 1),
    (Protocol::Resp, 50, 1),
    (Protocol::Resp, 50, 16),
    (Protocol::Memcached, 1, 1),
    (Protocol::Memcached, 50, 1),
];

/// What the medians of several rounds say of SETs of 64 bytes.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Figures {
    pub(super) protocol: Protocol,
    pub(super) clients: usize,
    pub(super) pipeline: usize,
    pub(super) unreplicated: Side,
    pub(super) replicated: Side,
}

#[derive(Clone, Copy, Debug, Serialize)]
pub(super) struct Side {
    pub(super) per_second: f64,
    pub(super) p50_us: f64,
    pub(super) p99_us: f64,
}

/// Replicas that end with this value.
struct Served {
    children: Vec<Child>,
    address: String,
    /// For memcached clients.
    memcached: String,
}

impl Served {
    /// Starts a group whose first replica leads and serves on the first of its ports.
    fn start(replicas: u8, port: u16, directory: &Path) -> Result<Served> {
        std::fs::create_dir_all(directory)
            .with_context(|| format!("cannot make {}", directory.display()))?;
        let address = |port: u16| format!("127.0.0.1:{port}");
        let peers: Vec<String> =
            (0..replicas).map(|id| address(port + u16::from(REPLICAS + id))).collect();
        let memcached = port + 2 * u16::from(REPLICAS);
        let mut served =
            Served { children: Vec::new(), address: address(port), memcached: address(memcached) };
        for id in 0..replicas {
            let log = File::create(directory.join(format!("{id}.log")))?;
            let mut command = Command::new(std::env::current_exe()?);
            command.args(["serve", "--bootstrap", "--durability", "memory", "--peers"]);
            command.arg(peers.join(",")).arg("--id").arg(id.to_string());
            command.arg("--resp").arg(address(port + u16::from(id)));
            command.arg("--dir").arg(directory.join(id.to_string()));
            command.arg("--die-with-parent").arg(std::process::id().to_string());
            if id == 0 {
                command.arg("--memcached-port").arg(memcached.to_string());
            }
            if replicas > 1 {
                command.args(["--order", "mu", "--memory"]).arg(directory.join("memory"));
            }
            command.stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log);
            served.children.push(command.spawn().context("cannot start a replica")?);
        }
        served.wait(directory)?;
        Ok(served)
    }

    fn wait(&mut self, directory: &Path) -> Result<()> {
        let end = Instant::now() + READY;
        let address = self.address.parse().context("an address")?;
        while Instant::now() < end {
            // Replicas of an earlier run would serve in the place of those that could not start.
            if self.children.iter_mut().any(|child| matches!(child.try_wait(), Ok(Some(_)))) {
                break;
            }
            let asked = Client::connect(address, Duration::from_secs(1))
                .and_then(|mut client| client.request(&[b"SET", b"ready", b"yes"]));
            if matches!(asked, Ok(resp::Value::Simple(_))) {
                return Ok(());
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        let words = std::fs::read_to_string(directory.join("0.log")).unwrap_or_default();
        bail!("the group does not serve; the first replica said:\n{words}")
    }

    fn measure(
        &self,
        (protocol, clients, pipeline): (Protocol, usize, usize),
        seconds: f64,
    ) -> Result<Side> {
        let address = match protocol {
            Protocol::Resp => &self.address,
            Protocol::Memcached => &self.memcached,
        };
        let options = LoadOptions {
            addresses: vec![address.clone()],
            protocol,
            clients,
            pipeline,
            mix: "set=1".parse().expect("a constant"),
            duration: seconds,
            ..LoadOptions::default()
        };
        let report = load::run(&options)?;
        if let Some(error) = report.first_error {
            bail!("a SET failed: {error}");
        }
        let total = report.total;
        Ok(Side { per_second: total.per_second, p50_us: total.p50_us, p99_us: total.p99_us })
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        for child in &mut self.children {
            // Whoever has ended already needs no killing.
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// How many measurements [`measure`] makes.
pub(super) const COUNT: usize = LOADS.len() * ROUNDS * 2;

pub(super) fn measure(options: &MuOptions, mut each: impl FnMut(String)) -> Result<Vec<Figures>> {
    let data = options.out.join(format!("data-{}", std::process::id()));
    let measured = (|| {
        let alone = Served::start(1, options.port, &data.join("alone"))?;
        let three = Served::start(REPLICAS, options.port + 8, &data.join("mu"))?;
        let mut figures = Vec::new();
        for load in LOADS {
            let mut sides: [Vec<Side>; 2] = Default::default();
            for round in 1..=ROUNDS {
                for (served, sides) in [&alone, &three].into_iter().zip(&mut sides) {
                    let (protocol, clients, pipeline) = load;
                    each(format!(
                        "{protocol:?}, {clients} clients, pipeline {pipeline}, {round}/{ROUNDS}"
                    ));
                    sides.push(served.measure(load, options.seconds)?);
                }
            }
            let [unreplicated, replicated] = sides.map(|sides| median(&sides));
            let (protocol, clients, pipeline) = load;
            figures.push(Figures { protocol, clients, pipeline, unreplicated, replicated });
        }
        Ok(figures)
    })();
    // What could not be removed is in the way of nobody.
    let _ = std::fs::remove_dir_all(&data);
    measured
}

/// Each figure's own median.
fn median(sides: &[Side]) -> Side {
    let of = |value: fn(&Side) -> f64| {
        let mut values: Vec<f64> = sides.iter().map(value).collect();
        values.sort_unstable_by(f64::total_cmp);
        values[values.len() / 2]
    };
    Side {
        per_second: of(|side| side.per_second),
        p50_us: of(|side| side.p50_us),
        p99_us: of(|side| side.p99_us),
    }
}
