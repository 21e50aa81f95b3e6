//! Results as an HTML page: one run by itself, or several beside each other.

use std::path::Path;

use anyhow::{Context, Result, bail};
use serde::Deserialize;
use serde_json::Value;

use super::intruder::{Round, Setting};
use super::point::{Point, Summary};
use super::prefix::SharedPrefix;
use super::table::{self, figure};
use crate::report::{self, Axis, Chart, Mark, Page, Scale, Series, number};

/// Milliseconds before and after the long prompt that its chart shows.
const AROUND_MS: f64 = 1000.0;

/// A run as its JSON has it.
#[derive(Debug, Clone, Deserialize)]
pub(crate) struct Run {
    label: String,
    date: String,
    command: String,
    points: Vec<Point>,
    intruder: Option<Vec<Setting>>,
    shared_prefix: Option<SharedPrefix>,
    /// All of it, for the conditions.
    #[serde(skip)]
    report: Value,
}

impl Run {
    /// # Errors
    /// When `report` is not one of this bench.
    pub(crate) fn from_json(report: Value) -> Result<Self> {
        if report["bench"] != "serve" {
            bail!("it is not a report of foretoken bench serve");
        }
        let run: Self = serde_json::from_value(report.clone())?;
        Ok(Self { report, ..run })
    }

    /// Reads a run from the file that `--json` wrote.
    ///
    /// # Errors
    /// When the file cannot be read or is something else.
    pub(crate) fn read(path: &Path) -> Result<Self> {
        let name = || format!("cannot compare with '{}'", path.display());
        let text = std::fs::read_to_string(path).with_context(name)?;
        serde_json::from_str(&text).map_err(anyhow::Error::from).and_then(Self::from_json).with_context(name)
    }
}

/// The page of `runs`, the main one first.
pub(crate) fn render(runs: &[Run]) -> String {
    let labels: Vec<&str> = runs.iter().map(|run| run.label.as_str()).collect();
    let mut page = Page::new(&format!("Serving: {}", labels.join(" and ")));
    page.paragraph(
        "What clients saw. Every figure was measured in the run that is named with it: tokens are counted by the \
         server's usage, times by the client from before it connects. A percentile is one of the measured values.",
    );
    load(&mut page, runs, "Clients that wait for their answers (closed loop)", "clients", &|point: &Point| {
        point.concurrency.map(|clients| clients as f64)
    });
    load(&mut page, runs, "Requests by chance (open loop, Poisson)", "requests/s sent", &|point: &Point| point.rate);
    intruders(&mut page, runs);
    prefixes(&mut page, runs);
    conditions(&mut page, runs);
    page.finish()
}

/// The points of one kind of load, those for which `at` says where they stand.
fn load(page: &mut Page, runs: &[Run], title: &str, unit: &str, at: &dyn Fn(&Point) -> Option<f64>) {
    let all = || runs.iter().flat_map(|run| &run.points);
    let mut places: Vec<f64> = all().filter_map(at).collect();
    if places.is_empty() {
        return;
    }
    places.sort_by(f64::total_cmp);
    places.dedup();
    page.heading(title);
    let axis = || Axis::new(unit, Scale::LogAt(places.clone()));
    let line = |value: &dyn Fn(&Point) -> f64| -> Vec<Series> {
        let of = |run: &Run| {
            let points = run.points.iter().filter_map(|point| Some(report::Point::new(at(point)?, value(point))));
            points.collect()
        };
        by_run(runs, Mark::Line, &of)
    };
    let pareto = |run: &Run| -> Vec<report::Point> {
        let place = |point: &Point| {
            let speed = point.stream_tokens_per_s.p50?;
            at(point).map(|_| report::Point::labelled(speed, point.output_tokens_per_s, point.name()))
        };
        run.points.iter().filter_map(place).collect()
    };
    let spread = |title: &str, about: &str, of: fn(&Point) -> &Summary| Chart {
        title: title.to_owned(),
        about: about.to_owned(),
        x: axis(),
        y: Axis::new("ms", Scale::Linear),
        series: percentiles(runs, at, of),
        rules: Vec::new(),
    };
    page.charts(&[
        Chart {
            title: "Throughput".into(),
            about: "Output tokens of all answers by the whole time, in which the prompts are".into(),
            x: axis(),
            y: Axis::new("tokens/s", Scale::Linear),
            series: line(&|point| point.output_tokens_per_s),
            rules: Vec::new(),
        },
        Chart {
            title: "Speed of one against throughput of all".into(),
            about: format!("Up and to the right is better; each point says its {unit}"),
            x: Axis::new("tokens/s of one answer while it decodes (median)", Scale::Linear),
            y: Axis::new("tokens/s of all", Scale::Linear),
            series: by_run(runs, Mark::Line, &pareto),
            rules: Vec::new(),
        },
        spread("Time to first token", "From before connecting to the first text", |point| &point.ttft_ms),
        spread("Time per output token", "First text to last, by the tokens after the first", |point| &point.tpot_ms),
        spread("Gaps", "From one event with text to the next, all answers", |point| &point.gap_ms),
        spread("Whole answers", "From before connecting to the end of the stream", |point| &point.e2e_ms),
    ]);
    points_table(page, runs, at);
}

/// A series for each run that has points.
fn by_run(runs: &[Run], mark: Mark, points: &dyn Fn(&Run) -> Vec<report::Point>) -> Vec<Series> {
    let series = |(colour, run): (usize, &Run)| Series { name: run.label.clone(), colour, mark, points: points(run) };
    runs.iter().enumerate().map(series).filter(|series| !series.points.is_empty()).collect()
}

/// Of one run all percentiles, of several the median and the 99th.
fn percentiles(runs: &[Run], at: &dyn Fn(&Point) -> Option<f64>, of: fn(&Point) -> &Summary) -> Vec<Series> {
    type Pick = fn(&Summary) -> Option<f64>;
    let picks: [(&str, Pick); 4] =
        [("p50", |all| all.p50), ("p90", |all| all.p90), ("p99", |all| all.p99), ("max", |all| all.max)];
    let points = |run: &Run, pick: Pick| -> Vec<report::Point> {
        let point = |point: &Point| Some(report::Point::new(at(point)?, pick(of(point))?));
        run.points.iter().filter_map(point).collect()
    };
    if let [run] = runs {
        let series = |(colour, (name, pick)): (usize, (&str, Pick))| {
            let mark = if name == "max" { Mark::Dashed } else { Mark::Line };
            Series { name: name.to_owned(), colour, mark, points: points(run, pick) }
        };
        return picks.into_iter().enumerate().map(series).collect();
    }
    let marks = [(picks[0], Mark::Line), (picks[2], Mark::Dashed)];
    let each = runs.iter().enumerate().flat_map(|(colour, run)| {
        marks.map(|((name, pick), mark)| {
            let name = format!("{}, {name}", run.label);
            Series { name, colour, mark, points: points(run, pick) }
        })
    });
    each.filter(|series| !series.points.is_empty()).collect()
}

fn points_table(page: &mut Page, runs: &[Run], at: &dyn Fn(&Point) -> Option<f64>) {
    let heads = [
        "run",
        "load",
        "answered",
        "requests/s",
        "tokens/s",
        "tokens/s of one",
        "TTFT ms p50",
        "p90",
        "p99",
        "max",
        "TPOT ms p50",
        "p90",
        "p99",
        "max",
        "gap ms p99",
        "max",
        "whole ms p50",
        "p99",
        "tokens out",
        "events",
        "tokens in",
        "cached",
    ];
    let row = |run: &Run, point: &Point| -> Vec<String> {
        let all = |summary: &Summary| [summary.p50, summary.p90, summary.p99, summary.max].map(figure);
        let mut row = vec![run.label.clone(), point.name(), format!("{}/{}", point.answered, point.requests)];
        row.extend([point.requests_per_s, point.output_tokens_per_s].map(number));
        row.push(figure(point.stream_tokens_per_s.p50));
        row.extend(all(&point.ttft_ms));
        row.extend(all(&point.tpot_ms));
        row.extend([point.gap_ms.p99, point.gap_ms.max, point.e2e_ms.p50, point.e2e_ms.p99].map(figure));
        row.extend([point.output_tokens, point.events as u64, point.prompt_tokens, point.cached_tokens].map(whole));
        row
    };
    let points = || runs.iter().flat_map(|run| run.points.iter().map(move |point| (run, point)));
    let here = || points().filter(|(_, point)| at(point).is_some());
    page.table(&heads, &here().map(|(run, point)| row(run, point)).collect::<Vec<_>>());
    for (run, point) in here() {
        for note in point.notes() {
            page.paragraph(&format!("{} at {}: {note}.", run.label, point.name()));
        }
    }
}

/// A count, to the last digit.
fn whole(count: u64) -> String {
    count.to_string()
}

fn intruders(page: &mut Page, runs: &[Run]) {
    let many = runs.len() > 1;
    let name = |run: &Run, setting: &Setting| match many {
        true => format!("{}, {}", run.label, setting.name),
        false => setting.name.clone(),
    };
    let settings: Vec<(String, &Setting)> = (runs.iter())
        .flat_map(|run| run.intruder.iter().flatten().map(move |setting| (name(run, setting), setting)))
        .collect();
    let Some((_, any)) = settings.first() else { return };
    let tokens = any.rounds.first().map_or(0, |round| round.prompt_tokens);
    page.heading("A long prompt arrives");
    page.paragraph(&format!(
        "{} answers are under way when a prompt of {tokens} tokens arrives: how long their next tokens wait for it.",
        any.streams
    ));
    let timeline = |(colour, (name, setting)): (usize, &(String, &Setting))| {
        let round = setting.rounds.first();
        let shown = |round: &Round| {
            let last = round.ttft_ms + AROUND_MS;
            let seen = round.gaps_ms.iter().filter(move |(end, gap)| *end >= -AROUND_MS && end - gap <= last);
            seen.map(|&(end, gap)| report::Point::new(end / 1e3, gap)).collect()
        };
        Series { name: name.clone(), colour, mark: Mark::Dots, points: round.map(shown).unwrap_or_default() }
    };
    let bars = |colour: usize, name: &str, of: fn(&Round) -> f64| {
        let bar = |(at, (_, setting)): (usize, &(String, &Setting))| {
            let largest = setting.largest(of).p50?;
            Some(report::Point::labelled(at as f64, largest, number(largest)))
        };
        let points = settings.iter().enumerate().filter_map(bar).collect();
        Series { name: name.to_owned(), colour, mark: Mark::Bars, points }
    };
    page.charts(&[
        Chart {
            title: "Every gap around the arrival".into(),
            about:
                "One dot for each event of each answer: when it came, and how long after the one before; first round"
                    .into(),
            x: Axis::new("seconds after the long prompt was sent", Scale::Linear),
            y: Axis::new("ms since the event before", Scale::Log),
            series: settings.iter().enumerate().map(timeline).collect(),
            rules: vec![(0.0, "long prompt sent".into())],
        },
        Chart {
            title: "Largest gap of any answer".into(),
            about: "Median over the rounds".into(),
            x: Axis::new("", Scale::Names(settings.iter().map(|(name, _)| name.clone()).collect())),
            y: Axis::new("ms", Scale::Linear),
            series: vec![
                bars(0, "before", |round| round.gap_before_ms),
                bars(1, "while the long prompt is computed", |round| round.gap_during_ms),
            ],
            rules: Vec::new(),
        },
    ]);
    let heads = ["setting", "round", "tokens in", "largest gap before, ms", "with it, ms", "its first token, ms"];
    let rows = settings.iter().flat_map(|(name, setting)| {
        setting.rounds.iter().zip(1u64..).map(move |(round, at)| {
            let mut row = vec![name.clone(), whole(at), whole(round.prompt_tokens)];
            row.extend([round.gap_before_ms, round.gap_during_ms, round.ttft_ms].map(number));
            row
        })
    });
    page.table(&heads, &rows.collect::<Vec<_>>());
}

fn prefixes(page: &mut Page, runs: &[Run]) {
    let measured: Vec<(&str, &SharedPrefix)> =
        runs.iter().filter_map(|run| Some((run.label.as_str(), run.shared_prefix.as_ref()?))).collect();
    let Some((_, any)) = measured.first() else { return };
    page.heading("A shared prefix");
    page.paragraph(&format!(
        "Two requests, one after the other, whose first {} tokens are the same and were never sent before.",
        any.shared_tokens
    ));
    let bars = |colour: usize, name: &str, of: fn(&super::prefix::Pair) -> f64| {
        let bar = |(at, (_, prefix)): (usize, &(&str, &SharedPrefix))| {
            let ms = Summary::of(prefix.rounds.iter().map(of)).p50?;
            Some(report::Point::labelled(at as f64, ms, number(ms)))
        };
        let points = measured.iter().enumerate().filter_map(bar).collect();
        Series { name: name.to_owned(), colour, mark: Mark::Bars, points }
    };
    page.charts(&[Chart {
        title: "Time to first token".into(),
        about: "Median over the rounds".into(),
        x: Axis::new("", Scale::Names(measured.iter().map(|(label, _)| (*label).to_owned()).collect())),
        y: Axis::new("ms", Scale::Linear),
        series: vec![
            bars(0, "first request", |pair| pair.first_ttft_ms),
            bars(1, "second request", |pair| pair.second_ttft_ms),
        ],
        rules: Vec::new(),
    }]);
    let heads = ["run", "round", "tokens in", "first, ms", "cached", "second, ms", "cached", "first by second"];
    let rows = measured.iter().flat_map(|(label, prefix)| {
        prefix.rounds.iter().zip(1u64..).map(move |(pair, at)| {
            vec![
                (*label).to_owned(),
                whole(at),
                whole(pair.prompt_tokens),
                number(pair.first_ttft_ms),
                whole(pair.first_cached_tokens),
                number(pair.second_ttft_ms),
                whole(pair.second_cached_tokens),
                number(pair.first_ttft_ms / pair.second_ttft_ms),
            ]
        })
    });
    page.table(&heads, &rows.collect::<Vec<_>>());
}

fn conditions(page: &mut Page, runs: &[Run]) {
    page.heading("Conditions");
    for run in runs {
        let machine = &run.report["machine"];
        let text = |value: &Value| value.as_str().map_or_else(|| value.to_string(), str::to_owned);
        let flags: Vec<&str> = machine["flags"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
        let workload = run.report["workload"].as_object().into_iter().flatten();
        let workload: Vec<String> = workload.map(|(name, value)| format!("{name}: {}", text(value))).collect();
        page.facts(&[
            ("run", run.label.clone()),
            ("measured", table::subject(&run.report)),
            (
                "client's machine",
                format!(
                    "{}, {} cores ({}), load before the run {}",
                    text(&machine["cpu"]),
                    machine["cores"],
                    flags.join(" "),
                    machine["load"]
                ),
            ),
            ("date", run.date.clone()),
            ("command", run.command.clone()),
            ("requests", workload.join("; ")),
        ]);
    }
}
