//! `lockstep bench index`: the index beside other ordered maps, on the workloads of [Mao] 3.3, as
//! tables, JSON and plots. The study itself is `indexbench`; `cargo bench -p masstree` runs it too.

use std::collections::BTreeSet;
use std::path::Path;

use anyhow::Result;
pub use indexbench::study::StudyOptions;
use indexbench::study::{self, Part, Point};

use crate::plot::{Bars, Plot, Series};

/// Runs the study, and plots what it saw if there is a directory for it.
///
/// # Errors
/// If the study fails, or a file cannot be written.
pub fn run(options: &StudyOptions) -> Result<()> {
    let points = study::run(options, &["bench", "index"])?;
    if let Some(out) = options.out.as_ref().filter(|_| !points.is_empty()) {
        figures(&points, out)?;
        println!("\nfigures and points.json are in {}", out.display());
    }
    Ok(())
}

fn figures(points: &[Point], out: &Path) -> Result<()> {
    let groups: BTreeSet<_> = points.iter().map(|p| (p.part, p.threads, p.form)).collect();
    for &(part, threads, form) in &groups {
        let of_group =
            || points.iter().filter(|p| (p.part, p.threads, p.form) == (part, threads, form));
        match part {
            Part::Workloads => {
                let path = out.join(format!("workloads-{form}-{threads}.svg"));
                let title = format!("{form} keys, {threads} thread(s)");
                bars(title, of_group().filter(|p| p.what != "resident MB")).write(&path)?;
                let path = out.join(format!("memory-{form}-{threads}.svg"));
                let title = format!("{form} keys, resident memory");
                let memory = bars(title, of_group().filter(|p| p.what == "resident MB"));
                Bars { y: "MB".into(), ..memory }.write(&path)?;
            }
            Part::Factors => {
                let path = out.join(format!("factors-{threads}.svg"));
                let title = format!("Step by step, {form} keys, {threads} thread(s)");
                let rates: Vec<_> = of_group().filter(|p| p.what != "resident MB").collect();
                let turned = rates.into_iter().map(|p| (&p.map[..], &p.what[..], p.median));
                Bars { title, y: RATE.into(), values: collect(turned) }.write(&path)?;
            }
            Part::Skew => {
                let path = out.join(format!("skew-{threads}.svg"));
                let x = |p: &Point| p.what.strip_prefix("skewed ")?.parse().ok();
                lines("Gets under skew", "delta", of_group(), x).write(&path)?;
            }
            Part::Prefix | Part::Reference => {}
        }
    }
    let parted = |part: Part| points.iter().filter(move |p| p.part == part);
    for threads in points.iter().map(|p| p.threads).collect::<BTreeSet<_>>() {
        let of = |part| parted(part).filter(move |p| p.threads == threads);
        if of(Part::Prefix).next().is_some() {
            let gets = of(Part::Prefix).filter(|p| p.what == "get");
            let plot = lines("Gets with a shared prefix", "bytes of a key", gets, |p| {
                Some(f64::from(p.form.longest()))
            });
            plot.write(&out.join(format!("prefix-{threads}.svg")))?;
        }
        if of(Part::Reference).next().is_some() {
            let title = format!("The authors' workloads, {threads} thread(s)");
            let path = out.join(format!("reference-{threads}.svg"));
            bars(title, of(Part::Reference)).write(&path)?;
        }
    }
    scaling(points, out)
}

const RATE: &str = "million operations/s";

/// Throughput per thread against threads ([Mao] figure 3-10), of ours.
fn scaling(points: &[Point], out: &Path) -> Result<()> {
    let ours = points.iter().filter(|p| p.part == Part::Workloads && p.map == "ours");
    let ours: Vec<&Point> = ours.filter(|p| p.what == "put" || p.what == "get").collect();
    if ours.iter().map(|p| p.threads).collect::<BTreeSet<_>>().len() < 2 {
        return Ok(());
    }
    let names: BTreeSet<_> = ours.iter().map(|p| format!("{} {}", p.form, p.what)).collect();
    let series = names.into_iter().map(|name| {
        let mine = ours.iter().filter(|p| format!("{} {}", p.form, p.what) == name);
        let mut points: Vec<_> =
            mine.map(|p| (p.threads as f64, p.median / p.threads as f64)).collect();
        points.sort_by(|a, b| a.0.total_cmp(&b.0));
        Series { name, points }
    });
    let plot = Plot {
        title: "Throughput per thread".into(),
        x: "threads".into(),
        y: RATE.into(),
        logarithmic: false,
        series: series.collect(),
    };
    plot.write(&out.join("threads.svg"))
}

fn bars<'a>(title: String, points: impl Iterator<Item = &'a Point>) -> Bars {
    let values = collect(points.map(|p| (&p.what[..], &p.map[..], p.median)));
    Bars { title, y: RATE.into(), values }
}

fn collect<'a>(
    values: impl Iterator<Item = (&'a str, &'a str, f64)>,
) -> Vec<(String, String, f64)> {
    values.map(|(group, bar, value)| (group.to_string(), bar.to_string(), value)).collect()
}

fn lines<'a>(
    title: &str,
    x_name: &str,
    points: impl Iterator<Item = &'a Point>,
    x: impl Fn(&Point) -> Option<f64>,
) -> Plot {
    let mut series: Vec<Series> = Vec::new();
    for point in points {
        let Some(x) = x(point) else { continue };
        let at = series.iter().position(|series| series.name == point.map).unwrap_or_else(|| {
            series.push(Series { name: point.map.clone(), points: Vec::new() });
            series.len() - 1
        });
        series[at].points.push((x, point.median));
    }
    for one in &mut series {
        one.points.sort_by(|a, b| a.0.total_cmp(&b.0));
    }
    let (title, x, y) = (title.to_string(), x_name.to_string(), RATE.to_string());
    Plot { title, x, y, logarithmic: false, series }
}

#[cfg(test)]
mod tests {
    use super::*;
    use indexbench::keys::Form;

    fn point(part: Part, threads: u64, form: Form, what: &str, map: &str) -> Point {
        let (what, map) = (what.to_string(), map.to_string());
        Point { part, threads, form, what, map, median: 1.5, samples: vec![1.5] }
    }

    #[test]
    fn every_part_is_drawn() {
        let mut points = Vec::new();
        for map in ["ours", "plain"] {
            for threads in [1, 2] {
                for what in ["put", "get", "resident MB"] {
                    points.push(point(Part::Workloads, threads, Form::Decimal, what, map));
                    points.push(point(Part::Factors, threads, Form::Decimal, what, map));
                    points.push(point(Part::Prefix, threads, Form::Binary, what, map));
                    points.push(point(Part::Prefix, threads, Form::Prefixed(40), what, map));
                }
                for what in ["skewed 0", "skewed 9"] {
                    points.push(point(Part::Skew, threads, Form::Decimal, what, map));
                }
                points.push(point(Part::Reference, threads, Form::Decimal, "rw1 puts", map));
            }
        }
        let out = std::env::temp_dir().join(format!("bench-index-{}", std::process::id()));
        std::fs::create_dir_all(&out).expect("made");
        figures(&points, &out).expect("drawn");
        let mut names: Vec<_> = std::fs::read_dir(&out)
            .expect("there")
            .map(|file| file.expect("a file").file_name().into_string().expect("a name"))
            .collect();
        names.sort();
        std::fs::remove_dir_all(&out).expect("removed");
        let expected = [
            "factors-1.svg",
            "factors-2.svg",
            "memory-decimal-1.svg",
            "memory-decimal-2.svg",
            "prefix-1.svg",
            "prefix-2.svg",
            "reference-1.svg",
            "reference-2.svg",
            "skew-1.svg",
            "skew-2.svg",
            "threads.svg",
            "workloads-decimal-1.svg",
            "workloads-decimal-2.svg",
        ];
        assert_eq!(names, expected);
    }
}
