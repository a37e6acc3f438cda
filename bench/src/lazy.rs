//! `lockstep bench lazy`: the evaluation of Lazy VSR ([Mao] 4.6.1, 4.6.2, 4.6.5) over again, as
//! plots and JSON: lazy against sync (and memory) on the disk as it is and with an emulated
//! latency.
//!
//! The groups of one disk run side by side and are measured in turn, so that a busy machine hits
//! all of them; what is not being measured is idle. Load is closed: a client sends its next request
//! when an earlier one is answered.

mod figures;
mod group;

use std::collections::BTreeSet;
use std::io::IsTerminal;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use clap::{Args, ValueEnum};
use hdrhistogram::Histogram;
use indicatif::{ProgressBar, ProgressStyle};
use lockstep_client::load::{self, Load};
use lockstep_client::{Client, MAX_NATIVE_CLIENTS, Options};
use serde::Serialize;

use group::Group;

/// Between measurements, so that the disk ends what one group has left it before the next is
/// measured.
const PAUSE: Duration = Duration::from_millis(100);

/// A part of the evaluation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Part {
    /// One connection with 1 and with 20 puts outstanding, and with puts that come at half the rate
    /// that `memory` had then: medians of several rounds
    Ratios,
    /// Throughput and latency against clients (Figures 4-5 to 4-8)
    Clients,
    /// Throughput against the share of durable puts (Figure 4-9)
    Share,
    /// Puts one by one and in batches (Figure 4-11)
    Batched,
    /// The primary's disk stands still for 50 ms in every second (EMULATED), and does not
    Stall,
}

impl Part {
    /// Whether it has a measurement of such a group.
    fn wants(self, mode: Mode, stalls: bool) -> bool {
        match self {
            Part::Ratios | Part::Clients => !stalls,
            Part::Share => !stalls && mode == Mode::Lazy,
            Part::Batched => !stalls && mode != Mode::Memory,
            Part::Stall => mode != Mode::Memory,
        }
    }

    /// The groups that it needs.
    fn kinds(self) -> impl Iterator<Item = (Mode, bool)> {
        let modes = [Mode::Memory, Mode::Lazy, Mode::Sync];
        let kinds = modes.into_iter().flat_map(|mode| [(mode, false), (mode, true)]);
        kinds.filter(move |&(mode, stalls)| self.wants(mode, stalls))
    }
}

/// What to measure.
#[derive(Args, Clone, Debug)]
pub struct LazyOptions {
    /// Which parts. What a crash takes is measured by the command for chaos, with `kill-all`
    #[arg(
        long,
        value_enum,
        value_delimiter = ',',
        default_value = "ratios,clients,share,batched,stall"
    )]
    pub parts: Vec<Part>,
    /// Microseconds that each forced write takes longer than the disk needs (EMULATED); 0 is the
    /// disk as it is
    #[arg(long, value_delimiter = ',', default_value = "0,500,10000", value_name = "MICROS")]
    pub disks: Vec<u64>,
    /// Bytes of a value
    #[arg(long, value_delimiter = ',', default_value = "8,1024", value_name = "BYTES")]
    pub sizes: Vec<usize>,
    /// Clients with one put outstanding each
    #[arg(long, value_delimiter = ',', default_value = "1,5,10,20,40,70,100")]
    pub clients: Vec<usize>,
    /// Percent of the puts that are durable
    #[arg(long, value_delimiter = ',', default_value = "0,1,5,10,20,40,60,80,100")]
    pub shares: Vec<u32>,
    /// Seconds that each measurement takes
    #[arg(long, default_value_t = 2.0)]
    pub seconds: f64,
    /// Measurements of each ratio, whose median counts
    #[arg(long, default_value_t = 5)]
    pub rounds: usize,
    /// Where figures go; made if missing
    #[arg(long, default_value = "lazy-figures")]
    pub out: PathBuf,
    /// Where the replicas keep their data, on the disk to be measured, in a new directory that is
    /// removed afterwards [default: in the directory of the figures]
    #[arg(long)]
    pub dir: Option<PathBuf>,
    /// The groups use 24 ports from here on
    #[arg(long, default_value_t = 7600)]
    pub port: u16,
}

/// What an acknowledgement means.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case")]
enum Mode {
    Memory,
    Lazy,
    Sync,
}

impl Mode {
    fn name(self) -> &'static str {
        match self {
            Mode::Memory => "memory",
            Mode::Lazy => "lazy",
            Mode::Sync => "sync",
        }
    }
}

/// How a load is shaped.
#[derive(Clone, Copy, Debug, Serialize)]
struct Shape {
    clients: usize,
    /// Requests, per client.
    outstanding: usize,
    /// Puts per request.
    batch: usize,
    value_bytes: usize,
    durable_percent: u32,
    /// Requests that fall due in a second; without it each follows an answer.
    rate: Option<u32>,
}

/// One measurement.
#[derive(Clone, Debug, Serialize)]
struct Point {
    part: Part,
    mode: Mode,
    /// Added to each forced write, in microseconds.
    emulated_disk_us: u64,
    /// The primary's disk stands still now and then.
    emulated_stalls: bool,
    shape: Shape,
    puts_per_second: f64,
    mean_us: f64,
    p50_us: u64,
    p99_us: u64,
    p999_us: u64,
    max_us: u64,
}

/// A group that is measured.
struct Subject {
    mode: Mode,
    disk_us: u64,
    stalls: bool,
    group: Group,
}

/// Runs the parts, writes figures and JSON, and prints the table.
///
/// # Errors
/// If a group does not serve, a put fails, or a file cannot be written.
pub fn run(options: &LazyOptions) -> Result<()> {
    ensure!(options.seconds > 0.0 && options.rounds > 0, "there is nothing to measure");
    ensure!(
        options.clients.iter().all(|clients| (1..=MAX_NATIVE_CLIENTS).contains(clients)),
        "--clients must be between 1 and {MAX_NATIVE_CLIENTS}, the most that a replica takes"
    );
    std::fs::create_dir_all(&options.out)
        .with_context(|| format!("cannot make {}", options.out.display()))?;
    let above = options.dir.as_ref().unwrap_or(&options.out);
    let data = above.join(format!("lockstep-bench-{}", std::process::id()));
    ensure!(!data.exists(), "{} is there already: remove it", data.display());
    let bar = progress(options);
    let mut points = Vec::new();
    for &disk in &options.disks {
        let measured = on_disk(options, disk, &data, &bar);
        std::fs::remove_dir_all(&data).ok();
        points.extend(measured?);
    }
    bar.finish_and_clear();
    figures::write(&points, &options.out)?;
    figures::print(&points);
    println!("figures and points.json are in {}", options.out.display());
    Ok(())
}

fn on_disk(options: &LazyOptions, disk: u64, data: &Path, bar: &ProgressBar) -> Result<Vec<Point>> {
    let (stalling, others): (Vec<Part>, Vec<Part>) =
        options.parts.iter().partition(|&&part| part == Part::Stall);
    let mut points = Vec::new();
    for parts in [others, stalling] {
        let kinds: BTreeSet<_> = parts.iter().flat_map(|part| part.kinds()).collect();
        let mut subjects = Vec::new();
        for (port, (mode, stalls)) in (options.port..).step_by(6).zip(kinds) {
            let directory = data.join(format!("{}-{port}", mode.name()));
            let group = Group::start(mode.name(), port, disk, stalls, &directory)?;
            subjects.push(Subject { mode, disk_us: disk, stalls, group });
        }
        for part in parts {
            measure_part(options, part, &subjects, bar, &mut points)?;
        }
        drop(subjects);
        std::fs::remove_dir_all(data).ok();
    }
    Ok(points)
}

fn measure_part(
    options: &LazyOptions,
    part: Part,
    subjects: &[Subject],
    bar: &ProgressBar,
    points: &mut Vec<Point>,
) -> Result<()> {
    let first = points.len();
    for mut shape in shapes(options, part) {
        if shape.rate.is_some() {
            shape.rate = Some(half_of_memory(&points[first..]));
        }
        for _ in 0..rounds(options, part) {
            let wanted = subjects.iter().filter(|subject| part.wants(subject.mode, subject.stalls));
            // A disk that cannot keep up with that makes a queue and no figure.
            let wanted = wanted.filter(|s| shape.rate.is_none() || s.mode != Mode::Sync);
            for subject in wanted {
                bar.set_message(format!("{} {shape:?}", subject.mode.name()));
                points.push(measure(part, subject, shape, options.seconds)?);
                bar.inc(1);
            }
        }
    }
    Ok(())
}

/// Half the median rate of `memory` when it was busiest, in requests per second.
fn half_of_memory(points: &[Point]) -> u32 {
    let busy = |point: &&Point| point.mode == Mode::Memory && point.shape.outstanding > 1;
    let mut rates: Vec<f64> = points.iter().filter(busy).map(|p| p.puts_per_second).collect();
    rates.sort_unstable_by(f64::total_cmp);
    (rates[rates.len() / 2] / 2.0) as u32
}

fn rounds(options: &LazyOptions, part: Part) -> usize {
    if part == Part::Ratios { options.rounds } else { 1 }
}

/// The loads of a part.
fn shapes(options: &LazyOptions, part: Part) -> Vec<Shape> {
    let one = Shape {
        clients: 1,
        outstanding: 1,
        batch: 1,
        value_bytes: 1024,
        durable_percent: 0,
        rate: None,
    };
    let sized =
        |shape: Shape| options.sizes.iter().map(move |&value_bytes| Shape { value_bytes, ..shape });
    match part {
        Part::Ratios => {
            let busy = Shape { outstanding: 20, ..one };
            // The rate is known when `busy` has been measured.
            vec![one, busy, Shape { rate: Some(0), ..busy }]
        }
        Part::Clients => {
            options.clients.iter().flat_map(|&clients| sized(Shape { clients, ..one })).collect()
        }
        Part::Share => {
            let shares = options.shares.iter();
            shares
                .map(|&durable_percent| Shape { durable_percent, outstanding: 20, ..one })
                .collect()
        }
        Part::Batched => {
            let single = Shape { clients: 100, ..one };
            let batched = Shape { batch: 100, ..single };
            [single, batched].into_iter().flat_map(sized).collect()
        }
        Part::Stall => vec![Shape { clients: 20, ..one }],
    }
}

fn progress(options: &LazyOptions) -> ProgressBar {
    let count = |part| shapes(options, part).len() * part.kinds().count() * rounds(options, part);
    let all = options.parts.iter().map(|&part| count(part));
    let bar = ProgressBar::new((all.sum::<usize>() * options.disks.len()) as u64);
    if !std::io::stderr().is_terminal() {
        return ProgressBar::hidden();
    }
    let style = ProgressStyle::with_template("{bar:40} {pos}/{len} {eta} left  {msg}");
    bar.with_style(style.expect("a constant"))
}

fn measure(part: Part, subject: &Subject, shape: Shape, seconds: f64) -> Result<Point> {
    let mut clients = Vec::new();
    for _ in 0..shape.clients {
        clients.push(Client::connect(subject.group.peers(), Options::default())?);
    }
    let load = Load {
        outstanding: shape.outstanding,
        batch: shape.batch,
        value_bytes: shape.value_bytes,
        durable: f64::from(shape.durable_percent) / 100.0,
        rate: shape.rate.map(f64::from),
        duration: Duration::from_secs_f64(seconds / 4.0),
        ..Load::default()
    };
    // The first quarter warms up.
    run_load(&mut clients, &load, |_| {})?;
    let load = Load { duration: Duration::from_secs_f64(seconds), ..load };
    // Microseconds, up to a minute.
    let mut latencies = Histogram::<u64>::new_with_bounds(1, 60_000_000, 3)?;
    let tally = run_load(&mut clients, &load, |micros| latencies.saturating_record(micros))?;
    let puts = tally.answered as f64 * shape.batch as f64;
    clients[0].session().flush().context("what was put does not become durable")?;
    drop(clients);
    std::thread::sleep(PAUSE);
    Ok(Point {
        part,
        mode: subject.mode,
        emulated_disk_us: subject.disk_us,
        emulated_stalls: subject.stalls,
        shape,
        puts_per_second: puts / tally.elapsed.as_secs_f64(),
        mean_us: latencies.mean(),
        p50_us: latencies.value_at_quantile(0.5),
        p99_us: latencies.value_at_quantile(0.99),
        p999_us: latencies.value_at_quantile(0.999),
        max_us: latencies.max(),
    })
}

fn run_load(clients: &mut [Client], load: &Load, mut each: impl FnMut(u64)) -> Result<load::Tally> {
    let mut first = None;
    let sample = |sample: load::Sample| each(sample.took.as_micros() as u64);
    let tally = load::run(clients, load, sample, |_, error| {
        first.get_or_insert(error);
    })?;
    match first {
        Some(error) => Err(error).context("a put failed"),
        None => Ok(tally),
    }
}
