//! Line and bar plots as SVG files. The figures that they show are always written beside them as
//! JSON.

use std::path::Path;

use anyhow::{Context, Result, ensure};
use plotters::coord::ranged1d::{AsRangedCoord, ValueFormatter};
use plotters::coord::types::RangedCoordf64;
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};

const SIZE: (u32, u32) = (800, 500);
const COLOURS: [RGBColor; 8] = [
    RGBColor(31, 119, 180),
    RGBColor(214, 39, 40),
    RGBColor(44, 160, 44),
    RGBColor(148, 103, 189),
    RGBColor(255, 127, 14),
    RGBColor(23, 190, 207),
    RGBColor(140, 86, 75),
    RGBColor(127, 127, 127),
];

/// A line.
#[derive(Clone, Debug)]
pub struct Series {
    /// What it is of.
    pub name: String,
    /// Its points, x ascending.
    pub points: Vec<(f64, f64)>,
}

/// A plot.
#[derive(Clone, Debug)]
pub struct Plot {
    /// What it shows.
    pub title: String,
    /// The quantity and unit of the x axis.
    pub x: String,
    /// The quantity and unit of the y axis.
    pub y: String,
    /// Whether the y axis is logarithmic; it begins at zero otherwise.
    pub logarithmic: bool,
    /// The lines.
    pub series: Vec<Series>,
}

impl Plot {
    /// Writes the plot to `path`.
    ///
    /// # Errors
    /// If there are no points, one of them is not finite, or the file cannot be written.
    pub fn write(&self, path: &Path) -> Result<()> {
        let points = || self.series.iter().flat_map(|series| &series.points);
        ensure!(points().next().is_some(), "{}: there is nothing to plot", self.title);
        ensure!(points().all(|(x, y)| x.is_finite() && y.is_finite()), "{}: no number", self.title);
        let ends = |of: fn(&(f64, f64)) -> f64| {
            points().map(of).fold((f64::MAX, f64::MIN), |(l, h), v| (l.min(v), h.max(v)))
        };
        let ((left, right), (low, high)) = (ends(|point| point.0), ends(|point| point.1));
        let right = if right > left { right } else { left + 1.0 };
        let drawn = if self.logarithmic {
            ensure!(low > 0.0, "{}: a logarithmic axis needs positive values", self.title);
            self.draw(path, left..right, (low / 1.5..high * 1.5).log_scale())
        } else {
            let top = if high > 0.0 { high * 1.1 } else { 1.0 };
            self.draw::<_, RangedCoordf64>(path, left..right, 0.0..top)
        };
        drawn.with_context(|| format!("cannot write {}", path.display()))
    }

    fn draw<R, C>(&self, path: &Path, x: std::ops::Range<f64>, y: R) -> Result<()>
    where
        R: AsRangedCoord<Value = f64, CoordDescType = C>,
        C: Ranged<ValueType = f64> + ValueFormatter<f64>,
    {
        let area = SVGBackend::new(path, SIZE).into_drawing_area();
        area.fill(&WHITE)?;
        let mut chart = ChartBuilder::on(&area)
            .caption(&self.title, ("sans-serif", 20))
            .margin(16)
            .x_label_area_size(40)
            .y_label_area_size(80)
            .build_cartesian_2d(x, y)?;
        let mut mesh = chart.configure_mesh();
        mesh.x_desc(&self.x).y_desc(&self.y).light_line_style(WHITE);
        mesh.draw()?;
        for (series, colour) in self.series.iter().zip(COLOURS.iter().cycle()) {
            let line = LineSeries::new(series.points.iter().copied(), colour.stroke_width(2));
            chart
                .draw_series(line.point_size(3))?
                .label(&series.name)
                .legend(|(x, y)| PathElement::new([(x, y), (x + 16, y)], colour.stroke_width(2)));
        }
        let mut legend = chart.configure_series_labels();
        legend.position(SeriesLabelPosition::LowerRight).background_style(WHITE.mix(0.8));
        legend.border_style(BLACK).draw()?;
        Ok(area.present()?)
    }
}

/// Bars in groups.
#[derive(Clone, Debug)]
pub struct Bars {
    /// What they show.
    pub title: String,
    /// The quantity and unit of the y axis, which begins at zero.
    pub y: String,
    /// Group, bar and value. Bars of the same name have the same colour in all groups.
    pub values: Vec<(String, String, f64)>,
}

/// Space between groups, in bars.
const GAP: f64 = 1.0;

impl Bars {
    /// Writes the plot to `path`.
    ///
    /// # Errors
    /// If there are no values, one of them is not finite, or the file cannot be written.
    pub fn write(&self, path: &Path) -> Result<()> {
        ensure!(!self.values.is_empty(), "{}: there is nothing to plot", self.title);
        ensure!(self.values.iter().all(|value| value.2.is_finite()), "{}: no number", self.title);
        self.draw(path).with_context(|| format!("cannot write {}", path.display()))
    }

    fn names(&self, of: fn(&(String, String, f64)) -> &String) -> Vec<&str> {
        let mut names: Vec<&str> = Vec::new();
        for value in &self.values {
            if !names.contains(&of(value).as_str()) {
                names.push(of(value));
            }
        }
        names
    }

    fn draw(&self, path: &Path) -> Result<()> {
        let (groups, bars) = (self.names(|value| &value.0), self.names(|value| &value.1));
        let pitch = bars.len() as f64 + GAP;
        let top = self.values.iter().map(|value| value.2).fold(0.0, f64::max);
        let top = if top > 0.0 { top * 1.1 } else { 1.0 };
        let area = SVGBackend::new(path, SIZE).into_drawing_area();
        area.fill(&WHITE)?;
        let mut chart = ChartBuilder::on(&area)
            .caption(&self.title, ("sans-serif", 20))
            .margin(16)
            .x_label_area_size(40)
            .y_label_area_size(80)
            .build_cartesian_2d(-GAP..pitch * groups.len() as f64, 0.0..top)?;
        let mut mesh = chart.configure_mesh();
        mesh.y_desc(&self.y).light_line_style(WHITE).disable_x_mesh().disable_x_axis();
        mesh.draw()?;
        for (i, group) in groups.iter().enumerate() {
            // Where a label of the x axis would be: below the middle of its group.
            let middle = (i as f64 + 0.5) * pitch - GAP / 2.0;
            let (x, y) = chart.backend_coord(&(middle, 0.0));
            let centred = TextStyle::from(("sans-serif", 12).into_font())
                .pos(Pos::new(HPos::Center, VPos::Top));
            // Every other label is lower, so that long ones have room.
            let below = y + 6 + 14 * (i as i32 % 2);
            area.draw(&Text::new(*group, (x, below), centred))?;
        }
        for (at, (bar, colour)) in bars.iter().zip(COLOURS.iter().cycle()).enumerate() {
            let of_bar =
                self.values.iter().filter(|value| value.1 == *bar).map(|(group, _, value)| {
                    let group = groups.iter().position(|name| name == group).unwrap_or_default();
                    let left = group as f64 * pitch + at as f64;
                    Rectangle::new([(left, 0.0), (left + 0.9, *value)], colour.filled())
                });
            chart
                .draw_series(of_bar)?
                .label(*bar)
                .legend(|(x, y)| Rectangle::new([(x, y - 5), (x + 12, y + 5)], colour.filled()));
        }
        let mut legend = chart.configure_series_labels();
        legend.position(SeriesLabelPosition::UpperRight).background_style(WHITE.mix(0.8));
        legend.border_style(BLACK).draw()?;
        Ok(area.present()?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plot(points: Vec<(f64, f64)>, logarithmic: bool) -> Plot {
        let series = vec![Series { name: "lazy".into(), points }];
        let (x, y) = ("clients".into(), "puts/s".into());
        Plot { title: "Throughput".into(), x, y, logarithmic, series }
    }

    #[test]
    fn a_plot_shows_its_lines_and_refuses_nonsense() {
        let path = std::env::temp_dir().join(format!("bench-plot-{}.svg", std::process::id()));
        for logarithmic in [false, true] {
            plot(vec![(1.0, 10.0), (20.0, 4000.0)], logarithmic).write(&path).expect("written");
            let text = std::fs::read_to_string(&path).expect("there");
            assert!(text.contains("polyline") && text.contains("lazy"), "{text}");
        }
        plot(Vec::new(), false).write(&path).expect_err("nothing to plot");
        plot(vec![(1.0, f64::NAN)], false).write(&path).expect_err("no number");
        plot(vec![(1.0, 0.0)], true).write(&path).expect_err("no logarithm");
        std::fs::remove_file(&path).expect("removed");
    }

    #[test]
    fn bars_have_names_and_refuse_nonsense() {
        let path = std::env::temp_dir().join(format!("bench-bars-{}.svg", std::process::id()));
        let bars = |values: &[(&str, &str, f64)]| Bars {
            title: "Rates".into(),
            y: "puts/s".into(),
            values: values.iter().map(|(g, b, v)| (g.to_string(), b.to_string(), *v)).collect(),
        };
        let values = [("put", "ours", 1.0), ("put", "other", 0.5), ("get", "ours", 2.0)];
        bars(&values).write(&path).expect("written");
        let text = std::fs::read_to_string(&path).expect("there");
        assert!(["put", "get", "ours", "other"].iter().all(|name| text.contains(name)), "{text}");
        bars(&[]).write(&path).expect_err("nothing to plot");
        bars(&[("put", "ours", f64::INFINITY)]).write(&path).expect_err("no number");
        std::fs::remove_file(&path).expect("removed");
    }
}
