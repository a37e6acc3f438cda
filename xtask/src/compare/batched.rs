//! Batched puts, as in [Mao] figure 4-11: 100 clients that keep 100 puts on their way each.
//!
//! Rivals run with several settings, in the same rounds as ours, and count with their best one.
//! Every system has three servers, and its keys exist before it is measured. etcd's benchmark has
//! no clients with several puts on their way: as many clients share the connections instead.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, ensure};

use super::{Figures, Row, Target, etcd, median, primary_port, zookeeper};
use crate::servers::{self, Server};

/// Bytes of a value, in turn.
const VALUE_SIZES: [usize; 2] = [8, 1024];

const CLIENTS: usize = 100;
const OUTSTANDING: usize = 100;
const KEYS: &str = etcd::KEY_SPACE;

/// Connections and clients of etcd's benchmark. Beyond 5,000 on their way etcd refuses puts.
const ETCD_SETTINGS: [(u32, u32); 3] = [(16, 1_000), (100, 1_000), (100, 4_000)];

/// Puts that warm etcd up, and tell how many a measurement needs.
const ETCD_WARM_UP: u64 = 20_000;

/// Seconds that warm the others up.
const WARM_UP: u64 = 2;

/// What to measure, and with what.
pub struct Setup<'a> {
    pub lockstep: &'a Path,
    pub directory: &'a Path,
    /// Ours, one group each.
    pub durabilities: &'a [String],
    pub etcd: Option<&'a etcd::Tools>,
    pub zookeeper: Option<&'a zookeeper::Installed>,
    pub repetitions: usize,
    /// Of one measurement.
    pub seconds: u64,
}

/// Whose figures.
#[derive(Clone, Copy, PartialEq, Eq)]
enum System {
    Ours,
    Etcd,
    ZooKeeper,
}

/// A system with a setting.
struct Contender<'a> {
    system: System,
    name: String,
    measure: Box<dyn Fn() -> Result<Figures> + 'a>,
    seen: Vec<Figures>,
}

impl<'a> Contender<'a> {
    fn new(
        system: System,
        name: impl Into<String>,
        measure: impl Fn() -> Result<Figures> + 'a,
    ) -> Self {
        Self { system, name: name.into(), measure: Box::new(measure), seen: Vec::new() }
    }

    fn run(&mut self) -> Result<()> {
        // Nobody pays for what another left to be written to disk.
        servers::run(&mut Command::new("sync"))?;
        let figures = (self.measure)().with_context(|| self.name.clone())?;
        eprintln!(
            "{}: {:.0} puts per second, p50 {:.0} us, p99 {:.0} us",
            self.name, figures.per_second, figures.p50_us, figures.p99_us
        );
        self.seen.push(figures);
        Ok(())
    }

    fn median(&self) -> Figures {
        let each = |figure: fn(&Figures) -> f64| median(self.seen.iter().map(figure).collect());
        Figures {
            per_second: each(|seen| seen.per_second),
            p50_us: each(|seen| seen.p50_us),
            p99_us: each(|seen| seen.p99_us),
        }
    }
}

/// Measures everybody.
pub fn measure(setup: &Setup<'_>) -> Result<Vec<Row>> {
    ensure!(setup.seconds > 0, "--seconds must be at least 1");
    let mut rows = Vec::new();
    if setup.etcd.is_none() && setup.zookeeper.is_none() {
        return Ok(rows);
    }
    for size in VALUE_SIZES {
        let directory = setup.directory.join(format!("batched-{size}"));
        rows.extend(measure_size(setup, &directory, size)?);
        // Gigabytes.
        fs::remove_dir_all(&directory)?;
    }
    Ok(rows)
}

fn measure_size(setup: &Setup<'_>, directory: &Path, size: usize) -> Result<Vec<Row>> {
    let demos = setup.durabilities.iter().map(|durability| {
        let demo = Server::demo(setup.lockstep, directory, durability)?;
        Ok((durability.as_str(), demo))
    });
    let demos: Vec<(&str, Server)> = demos.collect::<Result<_>>()?;
    let start_etcd = |tools| etcd::Cluster::start(tools, &directory.join("etcd"));
    let etcd = setup.etcd.map(start_etcd).transpose()?;
    let start_zookeeper = |found| zookeeper::Cluster::start(found, &directory.join("zookeeper"));
    let zookeeper = setup.zookeeper.map(start_zookeeper).transpose()?;

    let mut contenders = Vec::new();
    for (durability, demo) in &demos {
        contenders.push(ours(setup, durability, demo, size)?);
    }
    if let (Some(tools), Some(cluster)) = (setup.etcd, &etcd) {
        contenders.extend(etcd_contenders(setup, tools, cluster, size)?);
    }
    if let (Some(installed), Some(cluster)) = (setup.zookeeper, &zookeeper) {
        contenders.extend(zookeeper_contenders(setup, installed, cluster, size)?);
    }
    for round in 0..setup.repetitions {
        eprintln!("batched puts of {size} bytes, round {}", round + 1);
        contenders.iter_mut().try_for_each(Contender::run)?;
    }
    Ok(rows(&contenders, size))
}

fn ours<'a>(
    setup: &'a Setup<'_>,
    durability: &str,
    demo: &Server,
    size: usize,
) -> Result<Contender<'a>> {
    let port = primary_port(demo)?;
    let load = move |seconds: u64, more: &[&str]| -> Result<Figures> {
        let mut command = Command::new(setup.lockstep);
        command
            .args(["bench", "--addresses", &format!("127.0.0.1:{port}"), "--mix", "set=1"])
            .args(["--clients", &CLIENTS.to_string(), "--pipeline", &OUTSTANDING.to_string()])
            .args(["--keys", KEYS, "--value-size", &size.to_string()])
            .args(["--duration", &seconds.to_string(), "--json"])
            .args(more);
        let printed = servers::run(&mut command)?;
        parse(&printed).with_context(|| format!("puts were refused or lost:\n{printed}"))
    };
    load(1, &["--preload"])?;
    Ok(Contender::new(System::Ours, durability, move || {
        load(WARM_UP, &[])?;
        load(setup.seconds, &[])
    }))
}

/// The figures of a load of ours, if everything was acknowledged.
fn parse(printed: &str) -> Option<Figures> {
    let report: serde_json::Value = serde_json::from_str(printed).ok()?;
    if report["errors"] != 0 || report["unanswered"] != 0 {
        return None;
    }
    let figure = |name| report["total"][name].as_f64();
    Some(Figures {
        per_second: figure("per_second")?,
        p50_us: figure("p50_us")?,
        p99_us: figure("p99_us")?,
    })
}

fn etcd_contenders<'a>(
    setup: &'a Setup<'_>,
    tools: &'a etcd::Tools,
    cluster: &'a etcd::Cluster,
    value_size: usize,
) -> Result<Vec<Contender<'a>>> {
    cluster.fill(tools, value_size)?;
    let contender = |(connections, clients)| {
        let version = &tools.version;
        let name = format!("etcd {version}, {clients} clients on {connections} connections");
        Contender::new(System::Etcd, name, move || {
            let load = etcd::Load { connections, clients, value_size };
            let speed = cluster.puts(tools, &load, ETCD_WARM_UP)?.per_second;
            let total = (speed * setup.seconds as f64) as u64;
            cluster.puts(tools, &load, total.max(u64::from(clients)))
        })
    };
    Ok(ETCD_SETTINGS.into_iter().map(contender).collect())
}

fn zookeeper_contenders<'a>(
    setup: &'a Setup<'_>,
    installed: &zookeeper::Installed,
    cluster: &zookeeper::Cluster,
    value_size: usize,
) -> Result<Vec<Contender<'a>>> {
    let keys = KEYS.parse().expect("a constant");
    let load = |ports| zookeeper::Load {
        ports,
        sessions: CLIENTS,
        outstanding: OUTSTANDING,
        keys,
        value_size,
    };
    zookeeper::create_nodes(&load(cluster.ports()))?;
    let settings = [("every server", cluster.ports()), ("the leader", vec![cluster.leader()?])];
    let contender = |(at, ports)| {
        let load = load(ports);
        let name = format!("ZooKeeper {}, sessions at {at}", installed.version);
        Contender::new(System::ZooKeeper, name, move || {
            let seconds = Duration::from_secs;
            zookeeper::set_data(&load, seconds(WARM_UP), seconds(setup.seconds))
        })
    };
    Ok(settings.into_iter().map(contender).collect())
}

/// Each of ours beside each rival's best.
fn rows(contenders: &[Contender<'_>], size: usize) -> Vec<Row> {
    let best = |system| {
        let of_it = contenders.iter().filter(|contender| contender.system == system);
        let each = of_it.map(|contender| (contender.name.as_str(), contender.median()));
        each.max_by(|(_, one), (_, other)| one.per_second.total_cmp(&other.per_second))
    };
    let rivals = [System::Etcd, System::ZooKeeper].map(best);
    let mut rows = Vec::new();
    for ours in contenders.iter().filter(|contender| contender.system == System::Ours) {
        let figures = ours.median();
        for (name, theirs) in rivals.into_iter().flatten() {
            let durability = &ours.name;
            let mut row = |figure, ours, theirs, target| {
                let what = format!("batched puts of {size} B, {durability}: {figure}");
                rows.push(Row { what, peer: name.to_string(), ours, theirs, target });
            };
            // What lazy is for; the others show what it gains.
            let target = (durability == "lazy").then_some(Target::AtLeast(5.0));
            row("per second", figures.per_second, theirs.per_second, target);
            row("p50 in us", figures.p50_us, theirs.p50_us, None);
            row("p99 in us", figures.p99_us, theirs.p99_us, None);
        }
    }
    rows
}

#[cfg(test)]
mod tests {
    use super::*;

    fn contender(system: System, name: &str, per_second: f64) -> Contender<'static> {
        let figures = Figures { per_second, p50_us: 1.0, p99_us: 2.0 };
        let mut contender = Contender::new(system, name, move || Ok(figures));
        contender.seen = vec![figures; 3];
        contender
    }

    #[test]
    fn a_rival_counts_with_its_best_setting() {
        let contenders = [
            contender(System::Ours, "lazy", 100.0),
            contender(System::Etcd, "etcd, few", 10.0),
            contender(System::Etcd, "etcd, many", 20.0),
        ];
        let rows = rows(&contenders, 8);
        assert_eq!(rows.len(), 3);
        assert_eq!((rows[0].peer.as_str(), rows[0].ratio()), ("etcd, many", 5.0));
        assert!(rows[0].target.is_some_and(|target| target.is_met(5.0)));
    }

    #[test]
    fn refused_puts_are_no_figures() {
        let report = |errors| {
            let total = serde_json::json!({"per_second": 3.0, "p50_us": 1.0, "p99_us": 2.0});
            serde_json::json!({"errors": errors, "unanswered": 0, "total": total}).to_string()
        };
        assert_eq!(parse(&report(0)).map(|figures| figures.per_second), Some(3.0));
        assert!(parse(&report(1)).is_none());
    }
}
