//! What was measured, as tables, as plots and as JSON.

use std::path::Path;

use anyhow::{Context, Result};

use super::failover;
use super::group::{Measured, Setting};
use super::turns::Outcome;
use super::{Order, Part, Point, Points};
use crate::plot::{Plot, Series};

/// The authors' C++ prototype on a machine of this kind, with namespaces: the median with one
/// client in microseconds, and requests per second with 32.
const AUTHORS: (f64, f64) = (50.0, 52_586.0);

/// Writes `points.json` and the plots.
pub(super) fn write(points: &Points, out: &Path) -> Result<()> {
    let path = out.join("points.json");
    let text = serde_json::to_string_pretty(points)? + "\n";
    std::fs::write(&path, text).with_context(|| format!("cannot write {}", path.display()))?;
    let latency = medians(points, Part::Latency);
    let x = |point: &Median| point.per_second / 1e3;
    plot(
        &latency,
        x,
        |point| point.p50_us,
        out,
        "latency.svg",
        Text {
            title: "Latency against throughput, as clients grow",
            x: "thousand requests per second",
            y: "microseconds, median",
            logarithmic: true,
        },
    )?;
    let loss: Vec<_> = medians(points, Part::Loss)
        .into_iter()
        .filter(|point| point.setting.late.is_none() && !point.legs_alone())
        .collect();
    let x = |point: &Median| point.setting.loss.requests as f64 / 1e4;
    plot(
        &loss,
        x,
        |point| point.per_second / 1e3,
        out,
        "loss.svg",
        Text {
            title: "Throughput while datagrams are lost",
            x: "percent of the datagrams to replicas",
            y: "thousand requests per second",
            logarithmic: false,
        },
    )?;
    let sizes = medians(points, Part::Replicas);
    let x = |point: &Median| f64::from(point.setting.replicas);
    plot(
        &sizes,
        x,
        |point| point.per_second / 1e3,
        out,
        "replicas.svg",
        Text {
            title: "Throughput by replicas",
            x: "replicas",
            y: "thousand requests per second",
            logarithmic: false,
        },
    )?;
    plot(
        &sizes,
        x,
        |point| point.messages.0,
        out,
        "messages.svg",
        Text {
            title: "Messages received and sent at the leader, counted",
            x: "replicas",
            y: "messages per request",
            logarithmic: false,
        },
    )?;
    match &points.failover {
        Some(figures) => by_time(figures, out),
        None => Ok(()),
    }
}

struct Text {
    title: &'static str,
    x: &'static str,
    y: &'static str,
    logarithmic: bool,
}

fn plot(
    medians: &[Median],
    x: impl Fn(&Median) -> f64,
    y: impl Fn(&Median) -> f64,
    out: &Path,
    file: &str,
    text: Text,
) -> Result<()> {
    let line = |order: Order| Series {
        name: order.name().to_owned(),
        points: medians
            .iter()
            .filter(|point| point.setting.order == order)
            .map(|point| (x(point), y(point)))
            .collect(),
    };
    let series: Vec<_> =
        Order::ALL.into_iter().map(line).filter(|line| !line.points.is_empty()).collect();
    if series.is_empty() {
        return Ok(());
    }
    let Text { title, x, y, logarithmic } = text;
    let (title, x, y) = (title.to_owned(), x.to_owned(), y.to_owned());
    Plot { title, x, y, logarithmic, series }.write(&out.join(file))
}

fn by_time(figures: &failover::Figures, out: &Path) -> Result<()> {
    Plot {
        title: "NOPaxos: throughput through a fail-over of the sequencer".to_owned(),
        x: "milliseconds since the failure".to_owned(),
        y: "requests per second".to_owned(),
        logarithmic: false,
        series: vec![Series {
            name: format!("switched after {} ms", figures.detection_ms),
            points: figures.timeline.clone(),
        }],
    }
    .write(&out.join("failover.svg"))
}

/// The medians of a setting's rounds.
struct Median<'a> {
    setting: Setting,
    rounds: usize,
    per_second: f64,
    p50_us: f64,
    p99_us: f64,
    /// Per request, at the leader and at the busiest other replica.
    messages: (f64, f64),
    /// The round whose throughput is the median.
    middle: &'a Measured,
}

impl Median<'_> {
    fn legs_alone(&self) -> bool {
        self.setting.loss.requests != self.setting.loss.messages
    }
}

fn middle(mut values: Vec<f64>) -> f64 {
    values.sort_unstable_by(f64::total_cmp);
    values[values.len() / 2]
}

/// A part's settings in the order in which they were measured.
fn medians(points: &Points, part: Part) -> Vec<Median<'_>> {
    let of_part: Vec<&Point> = points.points.iter().filter(|point| point.part == part).collect();
    let mut settings: Vec<Setting> = Vec::new();
    for point in &of_part {
        if !settings.contains(&point.setting) {
            settings.push(point.setting);
        }
    }
    let median = |setting: Setting| {
        let mut rounds: Vec<&Measured> = of_part
            .iter()
            .filter(|point| point.setting == setting)
            .map(|point| &point.measured)
            .collect();
        rounds.sort_unstable_by(|a, b| a.per_second.total_cmp(&b.per_second));
        let of = |value: fn(&Measured) -> f64| middle(rounds.iter().map(|m| value(m)).collect());
        let others = |measured: &Measured| {
            (1..measured.members.len()).map(|id| measured.messages(id)).fold(0.0, f64::max)
        };
        Median {
            setting,
            rounds: rounds.len(),
            per_second: of(|measured| measured.per_second),
            p50_us: of(|measured| measured.latency_us.p50),
            p99_us: of(|measured| measured.latency_us.p99),
            messages: (of(|measured| measured.messages(0)), of(others)),
            middle: rounds[rounds.len() / 2],
        }
    };
    settings.into_iter().map(median).collect()
}

/// Prints the tables.
pub(super) fn print(points: &Points) {
    println!(
        "one process, a thread per core: core {} (clients), {} (sequencer), {:?} (replicas; those \
         on one core take turns), waiting by `{:?}`; UDP on loopback, {}{}; echo of {} bytes; \
         closed loop: each client asks when it was answered, so that stalls count once \
         (coordinated omission); load of the machine {:.1} before, {:.1} after",
        points.cores[0],
        points.cores[1],
        &points.cores[2..],
        points.wait,
        match points.one_by_one {
            true => "a system call for each datagram",
            false => "datagrams of one turn share system calls",
        },
        if points.multicast { ", the sequencer's by multicast" } else { "" },
        points.bytes,
        points.load_before,
        points.load_after
    );
    let latency = medians(points, Part::Latency);
    if !latency.is_empty() {
        table("latency against throughput", &latency);
        accounts(&latency);
        ratios(&latency);
    }
    let loss = medians(points, Part::Loss);
    if !loss.is_empty() {
        table("loss and reordering", &loss);
        survival(&loss);
    }
    let sizes = medians(points, Part::Replicas);
    if !sizes.is_empty() {
        table("by replicas", &sizes);
    }
    if let Some(figures) = &points.failover {
        print_failover(figures);
    }
}

fn table(title: &str, medians: &[Median]) {
    println!(
        "\n{:<62}{:>12}{:>10}{:>10}{:>10}{:>10}",
        format!("{title}, medians of {} rounds", medians[0].rounds),
        "per second",
        "p50 us",
        "p99 us",
        "leader",
        "others"
    );
    println!("{:<62}{:>12}{:>10}{:>10}{:>20}", "", "", "", "", "messages per request");
    for point in medians {
        let legs = if point.legs_alone() { ", of requests alone" } else { "" };
        println!(
            "{:<62}{:>12.0}{:>10.1}{:>10.1}{:>10.2}{:>10.2}",
            format!("{}{legs}", point.setting),
            point.per_second,
            point.p50_us,
            point.p99_us,
            point.messages.0,
            point.messages.1
        );
    }
}

fn at<'a, 'b>(medians: &'b [Median<'a>], order: Order, clients: usize) -> Option<&'b Median<'a>> {
    medians.iter().find(|point| (point.setting.order, point.setting.clients) == (order, clients))
}

/// Who spends how much on a request, where there are most requests at a time up to 32.
fn accounts(medians: &[Median]) {
    let clients = medians.iter().map(|point| point.setting.clients).filter(|&c| c <= 32).max();
    let Some(clients) = clients else { return };
    println!(
        "\n{:<62}{:>10}{:>12}{:>10}",
        format!("processor time and system calls per request, {clients} clients"),
        "busy us",
        "datagrams",
        "calls"
    );
    for order in Order::ALL {
        let Some(point) = at(medians, order, clients) else { continue };
        let measured = point.middle;
        let per = |of: &[&Outcome], value: fn(&Outcome) -> u64| {
            of.iter().map(|outcome| value(outcome)).sum::<u64>() as f64
                / measured.requests.max(1) as f64
        };
        let row = |name: &str, of: &[&Outcome]| {
            println!(
                "{:<62}{:>10.2}{:>12.2}{:>10.2}",
                format!("{}: {name}", order.name()),
                per(of, |outcome| outcome.busy_us),
                per(of, |outcome| outcome.counts.received + outcome.counts.sent),
                per(of, |outcome| outcome.counts.calls)
            );
        };
        row("clients", &[&measured.clients_loop]);
        if let Some(sequencer) = &measured.sequencer {
            row("sequencer", &[sequencer]);
        }
        row("leader", &[&measured.members[0]]);
        let others: Vec<_> = measured.members[1..].iter().collect();
        if !others.is_empty() {
            row("all other replicas", &others);
        }
        let group: Vec<_> = measured.sequencer.iter().chain(&measured.members).collect();
        let all: Vec<_> = group.iter().copied().chain([&measured.clients_loop]).collect();
        row("everybody", &all);
        let busiest = group.iter().map(|&one| per(&[one], |outcome| outcome.busy_us));
        let busiest = busiest.fold(0.0, f64::max);
        if busiest > 0.0 {
            println!(
                "{:<62}{busiest:>10.2}  would bound {:.0} requests per second",
                format!("{}: the busiest of the group, had each a core", order.name()),
                1e6 / busiest
            );
        }
    }
    println!("(busy: the time of turns that had something to do, the kernel's part included)");
}

/// What NOPaxos is measured by.
fn ratios(medians: &[Median]) {
    println!();
    if let Some(ours) = at(medians, Order::Nopaxos, 1) {
        println!(
            "one client: nopaxos {:.1} us at the median; authors' C++ {:.0} us, recorded earlier \
             on a machine of this kind",
            ours.p50_us, AUTHORS.0
        );
        if let Some(vr) = at(medians, Order::Vr, 1) {
            println!("  vr {:.1} us: {:.2} times as long", vr.p50_us, vr.p50_us / ours.p50_us);
        }
        if let Some(alone) = at(medians, Order::Unreplicated, 1) {
            let more = ours.p50_us - alone.p50_us;
            println!("  unreplicated {:.1} us: nopaxos takes {more:+.1} us", alone.p50_us);
        }
    }
    if let Some(ours) = at(medians, Order::Nopaxos, 32) {
        println!(
            "32 clients: nopaxos {:.0} requests per second, {:.2} times the authors' C++ ({:.0}, \
             recorded earlier)",
            ours.per_second,
            ours.per_second / AUTHORS.1,
            AUTHORS.1
        );
        for order in Order::ALL.into_iter().filter(|&order| order != Order::Nopaxos) {
            let Some(other) = at(medians, order, 32) else { continue };
            println!(
                "  {}: {:.0} requests per second; nopaxos has {:.2} times as many",
                order.name(),
                other.per_second,
                ours.per_second / other.per_second
            );
        }
    }
}

/// What is left of the throughput.
fn survival(medians: &[Median]) {
    println!();
    for point in medians {
        let Setting { order, loss, late, .. } = point.setting;
        let calm = medians.iter().find(|other| {
            let other = other.setting;
            other.order == order
                && other.loss.requests == 0
                && other.late == late.map(|_| 0)
                && (loss.requests > 0 || late.is_some_and(|late| late > 0))
        });
        let Some(calm) = calm else { continue };
        let legs = if point.legs_alone() { ", of requests alone" } else { "" };
        println!(
            "{}{legs}: {:.0} % of the throughput without",
            point.setting,
            100.0 * point.per_second / calm.per_second
        );
    }
}

fn print_failover(figures: &failover::Figures) {
    let of = |values: &[f64], share: f64| {
        let last = values.len().saturating_sub(1) as f64;
        values.get((share * last).round() as usize).copied().unwrap_or(f64::NAN)
    };
    println!(
        "\nfail-over of the sequencer, {} rounds; the bench has clients use the next one after {} \
         ms (there is no controller here, and nobody has to notice the failure): answers again \
         after {:.1} ms at the median, {:.1} at most; 90 % of the throughput after {:.1} ms at the \
         median; {} requests acknowledged, none lost",
        figures.rounds,
        figures.detection_ms,
        of(&figures.back_ms, 0.5),
        of(&figures.back_ms, 1.0),
        of(&figures.peak_ms, 0.5),
        figures.acknowledged
    );
}
