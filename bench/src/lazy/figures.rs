//! What was measured, as a table, as plots and as JSON.

use std::path::Path;

use anyhow::{Context, Result};

use super::{Mode, Part, Point};
use crate::plot::{Plot, Series};

const MODES: [Mode; 3] = [Mode::Memory, Mode::Lazy, Mode::Sync];

/// Writes `points.json` and the plots.
pub(super) fn write(points: &[Point], out: &Path) -> Result<()> {
    let path = out.join("points.json");
    let text = serde_json::to_string_pretty(points)? + "\n";
    std::fs::write(&path, text).with_context(|| format!("cannot write {}", path.display()))?;
    for disk in distinct(points, |point| point.emulated_disk_us) {
        let here: Vec<_> = points.iter().filter(|p| p.emulated_disk_us == disk).collect();
        let clients = of(&here, Part::Clients);
        for size in distinct(clients.iter().copied(), |point| point.shape.value_bytes) {
            let sized: Vec<_> =
                clients.iter().copied().filter(|p| p.shape.value_bytes == size).collect();
            by_clients(&sized, size, disk, out)?;
        }
        let shares = of(&here, Part::Share);
        if !shares.is_empty() {
            by_share(&shares, disk, out)?;
        }
        let batched = of(&here, Part::Batched);
        if !batched.is_empty() {
            by_batch(&batched, disk, out)?;
        }
    }
    Ok(())
}

fn of<'a>(points: &[&'a Point], part: Part) -> Vec<&'a Point> {
    points.iter().copied().filter(|point| point.part == part).collect()
}

fn distinct<'a, T: Ord>(
    points: impl IntoIterator<Item = &'a Point>,
    value: impl Fn(&Point) -> T,
) -> Vec<T> {
    let mut values: Vec<T> = points.into_iter().map(value).collect();
    values.sort_unstable();
    values.dedup();
    values
}

fn disk_name(disk: u64) -> String {
    match disk {
        0 => "disk as it is".to_owned(),
        _ => format!("EMULATED disk latency {} ms", disk as f64 / 1000.0),
    }
}

/// Figures 4-5 to 4-8.
fn by_clients(points: &[&Point], size: usize, disk: u64, out: &Path) -> Result<()> {
    let lines = |value: fn(&Point) -> f64| -> Vec<Series> {
        let line = |mode: Mode| Series {
            name: mode.name().to_owned(),
            points: points
                .iter()
                .filter(|point| point.mode == mode)
                .map(|point| (point.shape.clients as f64, value(point)))
                .collect(),
        };
        MODES.map(line).into_iter().filter(|series| !series.points.is_empty()).collect()
    };
    let title = |what: &str| format!("{what}, puts of {size} bytes, {}", disk_name(disk));
    let x = "clients, one put outstanding each".to_owned();
    Plot {
        title: title("Throughput"),
        x: x.clone(),
        y: "puts per second".to_owned(),
        logarithmic: false,
        series: lines(|point| point.puts_per_second),
    }
    .write(&out.join(format!("throughput-{size}-{disk}us.svg")))?;
    Plot {
        title: title("Mean latency"),
        x,
        y: "milliseconds".to_owned(),
        logarithmic: true,
        series: lines(|point| point.mean_us / 1000.0),
    }
    .write(&out.join(format!("latency-{size}-{disk}us.svg")))
}

/// Figure 4-9.
fn by_share(points: &[&Point], disk: u64, out: &Path) -> Result<()> {
    let line = points.iter().map(|p| (f64::from(p.shape.durable_percent), p.puts_per_second));
    Plot {
        title: format!("Share of durable puts, 1024 bytes, {}", disk_name(disk)),
        x: "percent of the puts that are durable".to_owned(),
        y: "puts per second".to_owned(),
        logarithmic: false,
        series: vec![Series { name: "lazy".to_owned(), points: line.collect() }],
    }
    .write(&out.join(format!("share-{disk}us.svg")))
}

/// Figure 4-11.
fn by_batch(points: &[&Point], disk: u64, out: &Path) -> Result<()> {
    let mut series = Vec::new();
    for size in distinct(points.iter().copied(), |point| point.shape.value_bytes) {
        for mode in MODES {
            let here = points.iter().filter(|p| p.shape.value_bytes == size && p.mode == mode);
            let points: Vec<_> = here.map(|p| (p.shape.batch as f64, p.puts_per_second)).collect();
            if !points.is_empty() {
                series.push(Series { name: format!("{}, {size} bytes", mode.name()), points });
            }
        }
    }
    Plot {
        title: format!("Puts in batches, 100 clients, {}", disk_name(disk)),
        x: "puts per request".to_owned(),
        y: "puts per second".to_owned(),
        logarithmic: true,
        series,
    }
    .write(&out.join(format!("batched-{disk}us.svg")))
}

/// Prints the ratios, the batched puts and the stalls.
pub(super) fn print(points: &[Point]) {
    for part in [Part::Ratios, Part::Batched, Part::Stall] {
        let chosen: Vec<_> = points.iter().filter(|point| point.part == part).collect();
        for disk in distinct(chosen.iter().copied(), |point| point.emulated_disk_us) {
            let here: Vec<_> =
                chosen.iter().copied().filter(|p| p.emulated_disk_us == disk).collect();
            println!("{}", disk_name(disk));
            let load = |p: &Point| {
                let shape = p.shape;
                let load = (shape.clients, shape.outstanding, shape.batch, shape.value_bytes);
                (load, p.emulated_stalls, shape.rate)
            };
            for key in distinct(here.iter().copied(), load) {
                let ((clients, outstanding, batch, bytes), stalls, rate) = key;
                let paced = rate.map(|rate| format!(", {rate} due in a second"));
                println!(
                    "  {clients} clients, {outstanding} requests of {batch} puts of {bytes} \
                     bytes{}{}",
                    paced.unwrap_or_default(),
                    if stalls { ", EMULATED stalls of a disk" } else { "" }
                );
                let same: Vec<_> = here.iter().copied().filter(|p| load(p) == key).collect();
                print_modes(&same);
            }
        }
    }
}

fn print_modes(points: &[&Point]) {
    let median_of = |mode: Mode, value: fn(&Point) -> f64| {
        let mut values: Vec<_> =
            points.iter().filter(|point| point.mode == mode).map(|point| value(point)).collect();
        values.sort_unstable_by(f64::total_cmp);
        values.get(values.len() / 2).copied()
    };
    let lazy = median_of(Mode::Lazy, |point| point.puts_per_second);
    for mode in MODES {
        let Some(rate) = median_of(mode, |point| point.puts_per_second) else { continue };
        let value = |of: fn(&Point) -> f64| median_of(mode, of).unwrap_or_default();
        println!(
            "    {:<7} {:>9.0} puts/s (lazy has {:>5.2} of it), mean {:>7.0} us, p50 {:>6.0} us, \
             p99 {:>6.0} us, p99.9 {:>6.0} us, max {:>6.0} us",
            mode.name(),
            rate,
            lazy.unwrap_or_default() / rate,
            value(|point| point.mean_us),
            value(|point| point.p50_us as f64),
            value(|point| point.p99_us as f64),
            value(|point| point.p999_us as f64),
            value(|point| point.max_us as f64),
        );
    }
}
