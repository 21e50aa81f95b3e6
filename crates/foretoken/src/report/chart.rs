//! Charts as inline SVG: lines, dots and bars over two axes, with a legend. Colours come from the page, so that one
//! drawing serves light and dark; every mark says its numbers when pointed at.

use std::fmt::Write;

use super::axis::{Layout, Scale, number};
use super::page::escape;

const WIDTH: f64 = 640.0;
const HEIGHT: f64 = 340.0;
/// Room for what stands beside the plot.
const LEFT: f64 = 68.0;
const RIGHT: f64 = 24.0;
const TOP: f64 = 16.0;
const BOTTOM: f64 = 46.0;
/// A row of a chart whose rows have names.
const ROW: f64 = 32.0;
/// A letter of a tick, more or less.
const LETTER: f64 = 6.8;
/// Colours that a page has.
pub(crate) const COLOURS: usize = 10;

/// A drawing with all that is needed to read it.
#[derive(Debug, Clone)]
pub(crate) struct Chart {
    pub(crate) title: String,
    /// What is counted, in a sentence.
    pub(crate) about: String,
    pub(crate) x: Axis,
    pub(crate) y: Axis,
    pub(crate) series: Vec<Series>,
    /// Moments or limits worth a vertical line: where, and what.
    pub(crate) rules: Vec<(f64, String)>,
}

/// One direction of a chart.
#[derive(Debug, Clone)]
pub(crate) struct Axis {
    /// What, in which unit.
    pub(crate) label: String,
    pub(crate) scale: Scale,
}

/// How the points of a series are drawn.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Mark {
    /// Joined in their order.
    Line,
    /// Joined in their order, by a line that steps back behind the others.
    Dashed,
    /// Each by itself.
    Dots,
    /// From zero up. All series of bars share the room of a place.
    Bars,
}

/// Points that belong together.
#[derive(Debug, Clone)]
pub(crate) struct Series {
    pub(crate) name: String,
    /// Which of the page's colours, counted round.
    pub(crate) colour: usize,
    pub(crate) mark: Mark,
    pub(crate) points: Vec<Point>,
}

/// One measured value.
#[derive(Debug, Clone, Default)]
pub(crate) struct Point {
    pub(crate) x: f64,
    pub(crate) y: f64,
    /// Stands beside the point, if not empty.
    pub(crate) label: String,
}

impl Axis {
    pub(crate) fn new(label: impl Into<String>, scale: Scale) -> Self {
        Self { label: label.into(), scale }
    }
}

impl Point {
    pub(crate) fn new(x: f64, y: f64) -> Self {
        Self { x, y, label: String::new() }
    }

    pub(crate) fn labelled(x: f64, y: f64, label: impl Into<String>) -> Self {
        Self { x, y, label: label.into() }
    }
}

/// A chart with its axes laid out.
struct Drawing<'a> {
    chart: &'a Chart,
    x: Layout,
    y: Layout,
    /// Room for what stands on the left of the plot.
    left: f64,
    height: f64,
    svg: String,
}

impl Chart {
    /// The chart as an HTML figure.
    pub(crate) fn to_html(&self) -> String {
        let points = || self.series.iter().flat_map(|series| &series.points);
        let rules = self.rules.iter().map(|(x, _)| *x);
        let x = Layout::new(&self.x.scale, points().map(|point| point.x).chain(rules));
        let y = Layout::new(&self.y.scale, points().map(|point| point.y));
        let widest = y.ticks.iter().map(|(_, text)| text.chars().count()).max().unwrap_or(0);
        let label = if self.y.label.is_empty() { 0.0 } else { 22.0 };
        let left = LEFT.max(widest as f64 * LETTER + 12.0 + label);
        let height = match &self.y.scale {
            Scale::Names(names) => TOP + BOTTOM + ROW * names.len() as f64,
            _ => HEIGHT,
        };
        let mut drawing = Drawing { chart: self, x, y, left, height, svg: String::new() };
        drawing.axes();
        drawing.rules();
        let bars = self.series.iter().filter(|series| series.mark == Mark::Bars).count();
        let mut bar = 0;
        for series in &self.series {
            match series.mark {
                Mark::Bars => {
                    drawing.bars(series, bar, bars);
                    bar += 1;
                }
                Mark::Line | Mark::Dashed => drawing.line(series),
                // A row with a name has few dots, and each is a result.
                Mark::Dots if matches!(self.y.scale, Scale::Names(_)) => drawing.dots(series, 4.5),
                Mark::Dots => drawing.dots(series, 2.5),
            }
        }
        let (title, about) = (escape(&self.title), escape(&self.about));
        let legend = self.legend();
        let svg = drawing.svg;
        format!(
            "<figure><figcaption><b>{title}</b><span>{about}</span></figcaption>{legend}\
             <svg viewBox=\"0 0 {WIDTH} {height}\" role=\"img\" aria-label=\"{title}\">{svg}</svg></figure>\n"
        )
    }

    /// Nothing where there is nothing to tell apart.
    fn legend(&self) -> String {
        if self.series.len() < 2 {
            return String::new();
        }
        let entry = |series: &Series| {
            let kind = match series.mark {
                Mark::Line => "line",
                Mark::Dashed => "dashed",
                Mark::Dots => "dot",
                Mark::Bars => "bar",
            };
            let (colour, name) = (series.colour % COLOURS, escape(&series.name));
            format!("<li><i class=\"{kind} c{colour}\"></i>{name}</li>")
        };
        format!("<ul class=\"legend\">{}</ul>", self.series.iter().map(entry).collect::<String>())
    }
}

impl Drawing<'_> {
    fn at(&self, x: f64, y: f64) -> Option<(f64, f64)> {
        Some((self.left + self.x.place(x)? * (WIDTH - self.left - RIGHT), self.across(y)?))
    }

    /// How far down a value of the vertical axis is drawn: names are read from the top, values grow from the bottom.
    fn across(&self, y: f64) -> Option<f64> {
        let place = self.y.place(y)?;
        let place = if matches!(self.chart.y.scale, Scale::Names(_)) { place } else { 1.0 - place };
        Some(TOP + place * (self.height - TOP - BOTTOM))
    }

    fn axes(&mut self) {
        let (left, base, end) = (self.left, self.height - BOTTOM, WIDTH - RIGHT);
        for (value, text) in self.y.ticks.clone() {
            let Some(y) = self.across(value) else { continue };
            self.put(format_args!("<line class=\"grid\" x1=\"{left}\" x2=\"{end}\" y1=\"{y:.1}\" y2=\"{y:.1}\"/>"));
            let (x, text) = (left - 8.0, escape(&text));
            self.put(format_args!("<text class=\"tick end\" x=\"{x}\" y=\"{:.1}\">{text}</text>", y + 4.0));
        }
        for (value, text) in self.x.ticks.clone() {
            let Some(place) = self.x.place(value) else { continue };
            let x = left + place * (end - left);
            self.put(format_args!(
                "<line class=\"axis\" x1=\"{x:.1}\" x2=\"{x:.1}\" y1=\"{base}\" y2=\"{}\"/>",
                base + 4.0
            ));
            let text = escape(&text);
            self.put(format_args!("<text class=\"tick middle\" x=\"{x:.1}\" y=\"{}\">{text}</text>", base + 18.0));
        }
        self.put(format_args!("<line class=\"axis\" x1=\"{left}\" x2=\"{end}\" y1=\"{base}\" y2=\"{base}\"/>"));
        let (x_label, y_label) = (escape(&self.chart.x.label), escape(&self.chart.y.label));
        let (x, y) = ((left + end) / 2.0, (TOP + base) / 2.0);
        self.put(format_args!("<text class=\"label middle\" x=\"{x}\" y=\"{}\">{x_label}</text>", base + BOTTOM - 8.0));
        self.put(format_args!(
            "<text class=\"label middle\" transform=\"translate(14 {y}) rotate(-90)\">{y_label}</text>"
        ));
    }

    fn rules(&mut self) {
        for (value, text) in &self.chart.rules {
            let Some(place) = self.x.place(*value) else { continue };
            let x = self.left + place * (WIDTH - self.left - RIGHT);
            let (base, text) = (self.height - BOTTOM, escape(text));
            self.put(format_args!("<line class=\"rule\" x1=\"{x:.1}\" x2=\"{x:.1}\" y1=\"{TOP}\" y2=\"{base}\"/>"));
            self.put(format_args!("<text class=\"tick\" x=\"{:.1}\" y=\"{}\">{text}</text>", x + 5.0, TOP - 5.0));
        }
    }

    fn line(&mut self, series: &Series) {
        let places: Vec<String> = (series.points.iter())
            .filter_map(|point| self.at(point.x, point.y))
            .map(|(x, y)| format!("{x:.1},{y:.1}"))
            .collect();
        let dashed = if series.mark == Mark::Dashed { " dashed" } else { "" };
        let colour = series.colour % COLOURS;
        self.put(format_args!("<polyline class=\"line{dashed} c{colour}\" points=\"{}\"/>", places.join(" ")));
        self.dots(series, 4.0);
    }

    fn dots(&mut self, series: &Series, radius: f64) {
        let colour = series.colour % COLOURS;
        for point in &series.points {
            let Some((x, y)) = self.at(point.x, point.y) else { continue };
            let hint = self.hint(series, point);
            self.put(format_args!(
                "<circle class=\"dot c{colour}\" cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"{radius}\">{hint}</circle>"
            ));
            self.label(point, x, y);
        }
    }

    /// The `nth` of `of` series of bars.
    fn bars(&mut self, series: &Series, nth: usize, of: usize) {
        let place = (WIDTH - self.left - RIGHT) / self.x.ticks.len().max(1) as f64;
        let width = (place * 0.7 / of as f64).min(56.0);
        let colour = series.colour % COLOURS;
        for point in &series.points {
            let Some((x, y)) = self.at(point.x, point.y) else { continue };
            let base = self.at(point.x, 0.0).map_or(self.height - BOTTOM, |(_, base)| base);
            let left = x + width * (nth as f64 - of as f64 / 2.0);
            let (top, height) = (y.min(base), (base - y).abs());
            let hint = self.hint(series, point);
            self.put(format_args!(
                "<rect class=\"bar c{colour}\" x=\"{:.1}\" y=\"{top:.1}\" width=\"{:.1}\" height=\"{height:.1}\" \
                 rx=\"2\">{hint}</rect>",
                left + 1.0,
                width - 2.0
            ));
            self.label(point, left + width / 2.0, top);
        }
    }

    fn label(&mut self, point: &Point, x: f64, y: f64) {
        if !point.label.is_empty() {
            let label = escape(&point.label);
            self.put(format_args!(
                "<text class=\"value middle\" x=\"{x:.1}\" y=\"{:.1}\">{label}</text>",
                (y - 9.0).max(10.0)
            ));
        }
    }

    fn hint(&self, series: &Series, point: &Point) -> String {
        let say = |axis: &Axis, value: f64| match &axis.scale {
            Scale::Names(names) => names.get(value.round().max(0.0) as usize).cloned().unwrap_or_default(),
            _ => format!("{} {}", number(value), axis.label),
        };
        let (x, y) = (say(&self.chart.x, point.x), say(&self.chart.y, point.y));
        // What was measured first, then where.
        let (what, place) = if matches!(self.chart.y.scale, Scale::Names(_)) { (x, y) } else { (y, x) };
        let text = format!("{}: {what} at {place}", series.name);
        format!("<title>{}</title>", escape(&text))
    }

    fn put(&mut self, part: std::fmt::Arguments<'_>) {
        // Writing to a String does not fail.
        let _ = self.svg.write_fmt(part);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chart(mark: Mark, x: Scale, points: Vec<Point>) -> Chart {
        let series = |name: &str, colour| Series { name: name.into(), colour, mark, points: points.clone() };
        Chart {
            title: "A < B".into(),
            about: "counts".into(),
            x: Axis::new("clients", x),
            y: Axis::new("tokens/s", Scale::Linear),
            series: vec![series("one", 0), series("two", 11)],
            rules: vec![(2.0, "here".into())],
        }
    }

    #[test]
    fn lines_have_their_points_legend_and_hints() {
        let points = vec![Point::new(1.0, 100.0), Point::labelled(2.0, 200.0, "2"), Point::new(4.0, f64::NAN)];
        let html = chart(Mark::Line, Scale::LogAt(vec![1.0, 2.0, 4.0]), points).to_html();
        assert_eq!(html.matches("<polyline").count(), 2);
        // A value that is none is left out, and nothing else.
        assert_eq!(html.matches("<circle").count(), 4);
        assert!(html.contains("A &lt; B") && !html.contains("A < B"));
        assert!(html.contains("<title>one: 200 tokens/s at 2 clients</title>"), "{html}");
        assert!(html.contains("class=\"line c1\"") && html.matches("<li>").count() == 2);
        assert!(html.contains(">here</text>") && !html.contains("NaN"));
    }

    #[test]
    fn bars_stand_side_by_side_on_zero() {
        let names = Scale::Names(vec!["first".into(), "second".into()]);
        let html = chart(Mark::Bars, names, vec![Point::new(0.0, 50.0), Point::new(1.0, 100.0)]).to_html();
        assert_eq!(html.matches("<rect").count(), 4);
        let attribute = |rect: &str, name: &str| -> f64 {
            let after = rect.split(&format!(" {name}=\"")).nth(1).unwrap();
            after.split('"').next().unwrap().parse().unwrap()
        };
        let rects: Vec<&str> = html.split("<rect").skip(1).collect();
        for rect in &rects {
            assert_eq!(attribute(rect, "y") + attribute(rect, "height"), HEIGHT - BOTTOM);
        }
        assert_eq!(attribute(rects[1], "height"), 2.0 * attribute(rects[0], "height"));
        assert!(attribute(rects[2], "x") >= attribute(rects[0], "x") + attribute(rects[0], "width"));
    }

    #[test]
    fn named_rows_are_read_from_the_top_and_have_room_for_their_names() {
        let mut chart = chart(Mark::Dots, Scale::Linear, vec![Point::new(1.5, 0.2), Point::new(2.0, 1.0)]);
        chart.x.label = "times".into();
        chart.y = Axis::new("", Scale::Names(vec!["a name of twenty-six chars".into(), "second".into()]));
        let html = chart.to_html();
        assert!(html.contains("<title>one: 1.5 times at a name of twenty-six chars</title>"), "{html}");
        assert!(html.contains(&format!("viewBox=\"0 0 640 {}\"", TOP + BOTTOM + 2.0 * ROW)));
        let of = |mark: &str, name: &str| -> Vec<f64> {
            let after = |piece: &str| piece.split(&format!(" {name}=\"")).nth(1).unwrap().to_owned();
            let mark = format!("<{mark}");
            let marks = html.split(&mark).skip(1).map(after);
            marks.map(|after| after.split('"').next().unwrap().parse().unwrap()).collect()
        };
        let down = of("circle", "cy");
        assert!(down[0] < down[1] && down[1] < TOP + 2.0 * ROW, "{down:?}");
        assert!(of("line class=\"grid\"", "x1").iter().all(|&left| left > 26.0 * LETTER));
    }

    #[test]
    fn one_series_needs_no_legend_and_no_points_no_care() {
        let mut chart = chart(Mark::Dots, Scale::Linear, Vec::new());
        chart.series.pop();
        let html = chart.to_html();
        assert!(!html.contains("<ul") && html.contains("<svg"));
    }
}
