//! `lockstep bench order`: the evaluation of NOPaxos ([NOPaxos] 6) over again on one machine, as
//! tables, plots and JSON.
//!
//! All protocols have one transport (UDP on loopback), one service (it echoes), one kind of client
//! and one loop per replica, so that they differ in nothing but themselves. Replicas, sequencer and
//! clients have a socket each and share nothing but a flag that says when to count; each core has
//! one thread, which gives turns to those who are on it. What is compared is measured in turn
//! within one run.

mod echo;
mod failover;
mod figures;
mod group;
mod load;
mod member;
mod stamp;
mod turns;
mod wire;

use std::io::IsTerminal;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use clap::{Args, ValueEnum};
use indicatif::{ProgressBar, ProgressStyle};
use serde::Serialize;

use group::Setting;
use member::Loss;
pub use turns::Wait;

/// A protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Order {
    /// One replica that answers at once
    Unreplicated,
    /// Viewstamped replication, one request in each PREPARE
    Vr,
    /// Viewstamped replication as the product runs it: up to 8 batches on their way
    VrBatched,
    /// Fast Paxos
    FastPaxos,
    /// Speculative Paxos
    SpeculativePaxos,
    /// NOPaxos with an end-host sequencer
    Nopaxos,
}

impl Order {
    const ALL: [Order; 6] = [
        Order::Unreplicated,
        Order::Vr,
        Order::VrBatched,
        Order::FastPaxos,
        Order::SpeculativePaxos,
        Order::Nopaxos,
    ];

    fn name(self) -> &'static str {
        match self {
            Order::Unreplicated => "unreplicated",
            Order::Vr => "vr",
            Order::VrBatched => "vr, batched",
            Order::FastPaxos => "fast paxos",
            Order::SpeculativePaxos => "speculative paxos",
            Order::Nopaxos => "nopaxos",
        }
    }

    fn replicas(self, replicas: u8) -> u8 {
        if self == Order::Unreplicated { 1 } else { replicas }
    }
}

/// A part of the evaluation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Part {
    /// Latency against throughput as clients grow (Figure 7)
    Latency,
    /// Throughput while datagrams are lost, and while they overtake each other (Figure 9)
    Loss,
    /// Throughput and messages per request, by replicas (Figure 10)
    Replicas,
    /// Throughput while the sequencer fails and another one takes its place (Figure 11)
    Failover,
}

/// What to measure.
#[derive(Args, Clone, Debug)]
pub struct OrderOptions {
    /// Which parts; with the default settings they take about 8 minutes
    #[arg(
        long,
        value_enum,
        value_delimiter = ',',
        default_value = "latency,loss,replicas,failover"
    )]
    pub parts: Vec<Part>,
    /// Which protocols
    #[arg(
        long,
        value_enum,
        value_delimiter = ',',
        default_value = "unreplicated,vr,vr-batched,fast-paxos,speculative-paxos,nopaxos"
    )]
    pub orders: Vec<Order>,
    /// Replicas of a group, but for unreplicated: 3, 5, 7 or 9
    #[arg(long, default_value_t = 3)]
    pub replicas: u8,
    /// Sizes of groups for the part `replicas`
    #[arg(long, value_delimiter = ',', default_value = "3,5,7,9")]
    pub sizes: Vec<u8>,
    /// Clients, each with one request on its way
    #[arg(long, value_delimiter = ',', default_value = "1,2,4,8,16,32,64,128")]
    pub clients: Vec<usize>,
    /// Clients of the parts that look for the most throughput
    #[arg(long, default_value_t = 32)]
    pub busy_clients: usize,
    /// Percent of datagrams that are lost
    #[arg(long, value_delimiter = ',', default_value = "0,0.001,0.01,0.1,0.5,1")]
    pub losses: Vec<f64>,
    /// Bytes of a request and of its answer
    #[arg(long, default_value_t = 32)]
    pub bytes: usize,
    /// Cores, by number, of: the clients, the sequencer, and the replicas in turn (the last one
    /// again where there are more replicas). Those on one core take turns on one thread [default:
    /// all cores in turn]
    #[arg(long, value_delimiter = ',', value_name = "CORE")]
    pub cores: Vec<usize>,
    /// Send and receive one datagram in each system call, as the authors' prototype does; otherwise
    /// those of one turn share them
    #[arg(long)]
    pub one_by_one: bool,
    /// Have the sequencer send each message once, to a multicast address that all replicas hear, as
    /// a network of switches would; otherwise it sends a copy to each
    #[arg(long)]
    pub multicast: bool,
    /// How long NOPaxos's replicas wait for a message that others have overtaken, in microseconds
    #[arg(long, default_value_t = 20)]
    pub patience_us: u64,
    /// How threads wait for datagrams
    #[arg(long, value_enum, default_value = "spin")]
    pub wait: Wait,
    /// Seconds that each measurement takes, after a quarter as many to warm up
    #[arg(long, default_value_t = 1.0)]
    pub seconds: f64,
    /// Measurements of each setting, whose median counts
    #[arg(long, default_value_t = 3)]
    pub rounds: usize,
    /// Sequencers that fail
    #[arg(long, default_value_t = 20)]
    pub failovers: usize,
    /// Milliseconds from a sequencer's failure until clients use the next one. The bench switches
    /// by itself: nobody has to notice the failure
    #[arg(long, default_value_t = 20)]
    pub detection_ms: u64,
    /// Seconds after which the run ends with what it has
    #[arg(long, default_value_t = 1200)]
    pub limit_s: u64,
    /// Where figures go; made if missing
    #[arg(long, default_value = "order-figures")]
    pub out: PathBuf,
}

impl OrderOptions {
    fn check(&self) -> Result<()> {
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        ensure!(
            self.cores.is_empty() || self.cores.len() >= 3,
            "--cores must name at least three: the clients', the sequencer's, the replicas'"
        );
        ensure!(
            self.cores.iter().all(|&core| core < cores),
            "--cores: this machine's cores are 0 to {}",
            cores - 1
        );
        let is_size = |&size: &u8| [3, 5, 7, 9].contains(&size);
        ensure!(is_size(&self.replicas), "--replicas must be 3, 5, 7 or 9");
        ensure!(self.sizes.iter().all(is_size), "--sizes must be of 3, 5, 7 and 9");
        ensure!(
            self.clients.iter().chain([&self.busy_clients]).all(|c| (1..=2_000).contains(c)),
            "--clients and --busy-clients must be between 1 and 2000"
        );
        ensure!(
            self.losses.iter().all(|percent| (0.0..=50.0).contains(percent)),
            "--losses must be between 0 and 50 percent"
        );
        ensure!((1..=1_024).contains(&self.bytes), "--bytes must be between 1 and 1024");
        ensure!(
            self.seconds > 0.0 && self.seconds < 3600.0,
            "--seconds must be more than 0 and less than 3600"
        );
        ensure!(
            self.rounds > 0 && self.failovers > 0,
            "--rounds and --failovers must be at least 1"
        );
        ensure!(self.detection_ms <= 10_000, "--detection-ms must be at most 10000");
        Ok(())
    }

    /// The cores of the clients, of the sequencer, and of a replica.
    fn core(&self, thread: usize) -> usize {
        self.cores[thread.min(self.cores.len() - 1)]
    }

    fn setting(&self, order: Order, clients: usize) -> Setting {
        let replicas = order.replicas(self.replicas);
        Setting { order, replicas, clients, loss: Loss::default(), late: None }
    }
}

/// A measurement.
#[derive(Clone, Debug, Serialize)]
struct Point {
    part: Part,
    #[serde(flatten)]
    setting: Setting,
    #[serde(flatten)]
    measured: group::Measured,
}

/// Everything that was measured.
#[derive(Debug, Serialize)]
struct Points {
    /// Of the machine: processes that want a core.
    load_before: f64,
    load_after: f64,
    /// Of the clients, the sequencer, and the replicas.
    cores: Vec<usize>,
    wait: Wait,
    one_by_one: bool,
    multicast: bool,
    bytes: usize,
    points: Vec<Point>,
    failover: Option<failover::Figures>,
}

/// Runs the parts, writes figures and JSON, and prints the tables.
///
/// # Errors
/// If an option makes no sense, a protocol loses what it acknowledged, the time is over before all
/// is measured, or a file cannot be written.
pub fn run(options: &OrderOptions) -> Result<()> {
    options.check()?;
    let mut options = options.clone();
    if options.cores.is_empty() {
        // Now: who is pinned to one core sees no others.
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        options.cores = (0..2 + usize::from(smr::MAX_REPLICAS)).map(|at| at % cores).collect();
    }
    let options = &options;
    std::fs::create_dir_all(&options.out)
        .with_context(|| format!("cannot make {}", options.out.display()))?;
    let end = Instant::now() + Duration::from_secs(options.limit_s);
    let settings: Vec<_> = options.parts.iter().flat_map(|&part| settings(options, part)).collect();
    let failovers = if options.parts.contains(&Part::Failover) { options.failovers } else { 0 };
    let bar = progress(settings.len() + failovers);
    let mut points = Points {
        load_before: crate::cores::load(),
        load_after: 0.0,
        cores: (0..2 + usize::from(options.replicas)).map(|thread| options.core(thread)).collect(),
        wait: options.wait,
        one_by_one: options.one_by_one,
        multicast: options.multicast,
        bytes: options.bytes,
        points: Vec::new(),
        failover: None,
    };
    let measured = measure(options, &settings, &mut points, &bar, end);
    bar.finish_and_clear();
    points.load_after = crate::cores::load();
    figures::write(&points, &options.out)?;
    figures::print(&points);
    println!("plots and points.json are in {}", options.out.display());
    measured
}

fn measure(
    options: &OrderOptions,
    settings: &[(Part, Setting)],
    points: &mut Points,
    bar: &ProgressBar,
    end: Instant,
) -> Result<()> {
    for &(part, setting) in settings {
        ensure!(Instant::now() < end, "not all was measured within --limit-s");
        bar.set_message(setting.to_string());
        let measured = group::measure(options, setting, end)
            .with_context(|| format!("{setting} was not measured"))?;
        points.points.push(Point { part, setting, measured });
        bar.inc(1);
    }
    if options.parts.contains(&Part::Failover) {
        let each = |round| {
            bar.set_message(format!("fail-over of the sequencer, round {round}"));
            bar.inc(1);
        };
        points.failover = Some(failover::measure(options, end, each)?);
    }
    Ok(())
}

/// The measurements of a part. Those that are compared follow each other.
fn settings(options: &OrderOptions, part: Part) -> Vec<(Part, Setting)> {
    let busy = |order| options.setting(order, options.busy_clients);
    let mut all = Vec::new();
    let mut in_turn = |group: Vec<Setting>| {
        for _ in 0..options.rounds {
            all.extend(group.iter().map(|&setting| (part, setting)));
        }
    };
    let orders = || options.orders.iter().copied();
    match part {
        Part::Latency => {
            for &clients in &options.clients {
                in_turn(orders().map(|order| options.setting(order, clients)).collect());
            }
        }
        Part::Loss => {
            let mut group = Vec::new();
            for &percent in &options.losses {
                let chance = (percent * 10_000.0).round() as u64;
                let both = Loss { requests: chance, messages: chance };
                group.extend(orders().map(|order| Setting { loss: both, ..busy(order) }));
                if options.orders.contains(&Order::Nopaxos) && chance > 0 {
                    let loss = Loss { requests: chance, messages: 0 };
                    group.push(Setting { loss, ..busy(Order::Nopaxos) });
                }
            }
            in_turn(group);
            let relayed = |order| [0, 200].map(|late| Setting { late: Some(late), ..busy(order) });
            let multicast = orders().filter(|order| {
                matches!(order, Order::Nopaxos | Order::FastPaxos | Order::SpeculativePaxos)
            });
            in_turn(multicast.flat_map(relayed).collect());
        }
        Part::Replicas => {
            let group = |&replicas: &u8| {
                let orders = orders().filter(|&order| order != Order::Unreplicated);
                orders.map(|order| Setting { replicas, ..busy(order) }).collect::<Vec<_>>()
            };
            in_turn(options.sizes.iter().flat_map(group).collect());
        }
        Part::Failover => {}
    }
    all
}

fn progress(count: usize) -> ProgressBar {
    if !std::io::stderr().is_terminal() {
        return ProgressBar::hidden();
    }
    let style = ProgressStyle::with_template("{bar:30} {pos}/{len} {eta} left  {msg}");
    ProgressBar::new(count as u64).with_style(style.expect("a constant"))
}
