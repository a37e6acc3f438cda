//! What was measured, as tables, as plots and as JSON.

use std::path::Path;

use anyhow::{Context, Result};

use super::failover::{self, BUCKETS};
use super::job::{Attachment, Service, Spread};
use super::served;
use super::{LatencyPoint, Part, Points, ThroughputPoint};
use crate::plot::{Plot, Series};

/// Writes `points.json` and the plots.
pub(super) fn write(points: &Points, out: &Path) -> Result<()> {
    let path = out.join("points.json");
    let text = serde_json::to_string_pretty(points)? + "\n";
    std::fs::write(&path, text).with_context(|| format!("cannot write {}", path.display()))?;
    by_payload(&of(points, Part::Latency), out)?;
    let throughput: Vec<_> =
        points.throughput.iter().filter(|point| point.part == Part::Throughput).collect();
    if !throughput.is_empty() {
        by_throughput(&throughput, out)?;
    }
    if !points.fail_over.is_empty() {
        by_time(&points.fail_over, out)?;
    }
    Ok(())
}

fn of(points: &Points, part: Part) -> Vec<&LatencyPoint> {
    points.latency.iter().filter(|point| point.part == part).collect()
}

fn setting(point: &LatencyPoint) -> String {
    let what = &point.what;
    let paced = if what.interval.is_some() { ", paced" } else { "" };
    match what.service {
        Service::Sum if what.attachment == Attachment::Handover => {
            format!("handed over{paced}")
        }
        Service::Sum => format!("stand-alone{paced}"),
        service => {
            let how = if what.replicated { "replicated" } else { "unreplicated" };
            format!("{}, {}, {how}{paced}", service.name(), what.attachment.name())
        }
    }
}

/// Figures 3 and 4: medians of all settings, and the spread stand-alone.
fn by_payload(points: &[&LatencyPoint], out: &Path) -> Result<()> {
    let mut names: Vec<String> = Vec::new();
    for point in points {
        if !names.contains(&setting(point)) {
            names.push(setting(point));
        }
    }
    if names.is_empty() {
        return Ok(());
    }
    let line = |name: &str, of: &str, value: fn(&Spread) -> u64| Series {
        name: format!("{name}{of}"),
        points: points
            .iter()
            .filter(|point| setting(point) == name)
            .map(|point| (point.what.bytes as f64, value(&point.outcome.latency) as f64 / 1e3))
            .collect(),
    };
    let medians = names.iter().map(|name| line(name, "", |spread| spread.p50)).collect();
    let spread = vec![
        line("stand-alone", ": p1", |spread| spread.p1),
        line("stand-alone", ": p50", |spread| spread.p50),
        line("stand-alone", ": p99", |spread| spread.p99),
    ];
    for (title, file, series) in [
        ("Latency by payload, medians", "latency.svg", medians),
        ("Replication latency by payload", "latency-spread.svg", spread),
    ] {
        let (x, y) = ("bytes".to_owned(), "microseconds".to_owned());
        let plot = Plot { title: title.to_owned(), x, y, logarithmic: false, series };
        plot.write(&out.join(file))?;
    }
    Ok(())
}

/// Figure 7: a line per number of outstanding requests, a point per batch.
fn by_throughput(points: &[&ThroughputPoint], out: &Path) -> Result<()> {
    let mut series: Vec<Series> = Vec::new();
    for point in points {
        let outstanding = point.what.outstanding;
        let name = match point.protocol {
            true => format!("{outstanding} outstanding"),
            false => "copying alone".to_owned(),
        };
        let place = (point.per_second() / 1e6, point.outcome.latency.p50 as f64 / 1e3);
        match series.iter_mut().find(|series| series.name == name) {
            Some(series) => series.points.push(place),
            None => series.push(Series { name, points: vec![place] }),
        }
    }
    Plot {
        title: "Latency against throughput, batches from 1 on, 64 bytes each".to_owned(),
        x: "million commands per second".to_owned(),
        y: "microseconds, median of a request".to_owned(),
        logarithmic: true,
        series,
    }
    .write(&out.join("throughput.svg"))
}

/// Figure 6.
fn by_time(figures: &[failover::Figures], out: &Path) -> Result<()> {
    let line = |figures: &failover::Figures| Series {
        name: format!("{:?}, heartbeat {} us", figures.failure, figures.heartbeat_us),
        points: figures.histogram[..BUCKETS]
            .iter()
            .enumerate()
            .map(|(bucket, &count)| (bucket as f64 / 100.0, count as f64))
            .collect(),
    };
    Plot {
        title: "Fail-over times".to_owned(),
        x: "milliseconds, by hundredths".to_owned(),
        y: "fail-overs".to_owned(),
        logarithmic: false,
        series: figures.iter().map(line).collect(),
    }
    .write(&out.join("fail-over.svg"))
}

/// Prints the tables.
pub(super) fn print(points: &Points) {
    println!(
        "leader on core {}, followers on {} and {}, applications with a thread of their own on {}; \
         load of the machine {:.1} before, {:.1} after",
        points.cores[0],
        points.cores[1],
        points.cores[2],
        points.cores[3],
        points.load_before,
        points.load_after
    );
    for part in [Part::Latency, Part::Orders] {
        let points = of(points, part);
        if !points.is_empty() {
            print_latencies(&points);
        }
    }
    let ratios = points.latency.iter().filter(|point| point.what.replicated);
    for point in ratios {
        print_ratio(point, &points.latency);
    }
    if !points.keys.is_empty() {
        print_keys(&points.keys);
    }
    for figures in &points.fail_over {
        print_fail_over(figures);
    }
    for part in [Part::Orders, Part::Suspicions, Part::Throughput] {
        let of_part: Vec<_> = points.throughput.iter().filter(|p| p.part == part).collect();
        match part {
            Part::Suspicions => of_part.into_iter().for_each(print_suspicions),
            _ if !of_part.is_empty() => print_throughput(&of_part),
            _ => {}
        }
    }
}

fn print_latencies(points: &[&LatencyPoint]) {
    println!(
        "\n{:<48}{:>6}{:>10}{:>10}{:>10}{:>12}{:>12}{:>11}{:>9}",
        "latency, ns", "bytes", "p1", "p50", "p99", "p99.9", "max", "preempted", "deposed"
    );
    for point in points {
        let spread = &point.outcome.latency;
        println!(
            "{:<48}{:>6}{:>10}{:>10}{:>10}{:>12}{:>12}{:>11}{:>9}",
            setting(point),
            point.what.bytes,
            spread.p1,
            spread.p50,
            spread.p99,
            spread.p999,
            spread.max,
            point.outcome.preempted,
            point.outcome.deposed
        );
    }
}

/// What replication adds to the same measurement without it.
fn print_ratio(point: &LatencyPoint, points: &[LatencyPoint]) {
    let same = |other: &&LatencyPoint| {
        let (a, b) = (&point.what, &other.what);
        let of = |what: &super::Latency| (what.service, what.attachment, what.interval, what.bytes);
        !b.replicated && of(a) == of(b)
    };
    let Some(alone) = points.iter().find(same) else { return };
    let (with, without) = (point.outcome.latency.p50, alone.outcome.latency.p50);
    let attachment: Attachment = point.what.attachment;
    println!(
        "{}, {} bytes, {}{}: replication adds {} ns to a median of {without} ns ({:+.0} %)",
        point.what.service.name(),
        point.what.bytes,
        attachment.name(),
        if point.what.interval.is_some() { ", paced" } else { "" },
        with as i64 - without as i64,
        (with as f64 / without as f64 - 1.0) * 100.0
    );
}

fn print_keys(figures: &[served::Figures]) {
    println!(
        "\n{:<52}{:>14}{:>10}{:>10}{:>8}",
        "SET, medians of rounds", "per second", "p50 us", "p99 us", "ratio"
    );
    for figures in figures {
        let sides = [("unreplicated", figures.unreplicated), ("replicated", figures.replicated)];
        for (name, side) in sides {
            println!(
                "{:<52}{:>14.0}{:>10.1}{:>10.1}{:>8.2}",
                format!(
                    "{:?}, {} clients, pipeline {}, {name}",
                    figures.protocol, figures.clients, figures.pipeline
                ),
                side.per_second,
                side.p50_us,
                side.p99_us,
                side.per_second / figures.unreplicated.per_second
            );
        }
    }
}

fn print_fail_over(figures: &failover::Figures) {
    let failure = format!("{:?}", figures.failure).to_lowercase();
    println!(
        "\nfail-over, {failure}, heartbeat {} us, {} rounds: {} requests acknowledged, {} lost; {} \
         false suspicions in {:.1} s",
        figures.heartbeat_us,
        figures.rounds,
        figures.acknowledged,
        figures.lost,
        figures.false_suspicions,
        figures.observed_seconds
    );
    println!("{:<24}{:>10}{:>10}{:>10}{:>10}", "us", "p1", "p50", "p99", "max");
    for (name, spread) in [
        ("detection", &figures.detection),
        ("permission switch", &figures.permission_switch),
        ("catch-up", &figures.catch_up),
        ("first commit", &figures.first_commit),
        ("in all", &figures.all),
    ] {
        let micros = |nanos: u64| nanos as f64 / 1e3;
        let Spread { p1, p50, p99, max, .. } = *spread;
        println!(
            "{name:<24}{:>10.1}{:>10.1}{:>10.1}{:>10.1}",
            micros(p1),
            micros(p50),
            micros(p99),
            micros(max)
        );
    }
}

fn print_suspicions(point: &ThroughputPoint) {
    let outcome = &point.outcome;
    println!(
        "\nfull load, heartbeat {} us: {} false suspicions in {:.0} s ({:.0} an hour); the leader \
         was preempted {} times, its longest pause took {:.1} ms",
        point.heartbeat_us,
        outcome.deposed,
        outcome.seconds,
        outcome.deposed as f64 / outcome.seconds * 3600.0,
        outcome.preempted,
        outcome.latency.max as f64 / 1e6
    );
}

fn print_throughput(points: &[&ThroughputPoint]) {
    println!(
        "\n{:<16}{:>12}{:>8}{:>12}{:>12}{:>10}{:>10}{:>10}{:>10}{:>8}",
        "throughput",
        "outstanding",
        "batch",
        "M/s",
        "GB/s",
        "p50 us",
        "p99 us",
        "waits, %",
        "preempted",
        "deposed"
    );
    for point in points {
        let spread = &point.outcome.latency;
        let service = match (point.protocol, point.what.service) {
            (false, _) => "copying alone",
            (true, Service::Sum) => "replication",
            (true, service) => service.name(),
        };
        let bytes = point.per_second() * super::COMMAND as f64;
        println!(
            "{service:<16}{:>12}{:>8}{:>12.2}{:>12}{:>10.1}{:>10.1}{:>10.0}{:>10}{:>8}",
            point.what.outstanding,
            point.what.batch,
            point.per_second() / 1e6,
            // Orders have lengths of their own.
            match point.what.service {
                Service::Sum => format!("{:.2}", bytes / 1e9),
                _ => "-".to_owned(),
            },
            spread.p50 as f64 / 1e3,
            spread.p99 as f64 / 1e3,
            point.outcome.waited_seconds / point.outcome.seconds * 100.0,
            point.outcome.preempted,
            point.outcome.deposed
        );
    }
}
