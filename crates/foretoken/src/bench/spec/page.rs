//! Results as an HTML page.

use engine::batch::{DRAFT_POSITIONS, Reason};
use serde_json::Value;

use super::crowd::{Leg, Point};
use super::single::{ALL, Summary};
use super::table::{self, figure, fixed, percent};
use super::{Results, Single};
use crate::report::{Axis, Chart, Mark, Page, Point as Dot, Scale, Series, number};

/// The page of a run; `report` is its JSON.
pub(crate) fn render(results: &Results, report: &Value) -> String {
    let model = report["model"].as_str().unwrap_or_default();
    let mut page = Page::new(&format!("Speculative decoding: {model}"));
    page.paragraph(
        "What drafts earn against plain decoding. Every figure was measured in the run described below, in which plain \
         decoding and all drafters answered the same prompts in turns, there and back. Times are taken where tokens \
         leave the engine; counts are the engine's own.",
    );
    page.paragraph(&verdict(results));
    results.singles.iter().for_each(|one| single(&mut page, one, &results.drafters));
    let mut temperatures: Vec<f32> = results.points.iter().map(|point| point.temperature).collect();
    temperatures.dedup();
    for temperature in temperatures {
        let points: Vec<&Point> = results.points.iter().filter(|point| point.temperature == temperature).collect();
        crowd(&mut page, temperature, &points, &results.drafters);
    }
    conditions(&mut page, report);
    page.finish()
}

fn verdict(results: &Results) -> String {
    let checks = &results.checks;
    let compared =
        format!("{} answers were compared, token by token, with the first of plain decoding", checks.compared);
    match &checks.differences[..] {
        [] => format!("{compared}: all are the same."),
        [first, ..] => format!("{compared}: {} differ, first {first}.", checks.differences.len()),
    }
}

/// A series for each drafter; `points` gives those of the n-th.
fn by_drafter(drafters: &[String], mark: Mark, points: impl Fn(usize) -> Vec<Dot>) -> Vec<Series> {
    let series =
        |(at, drafter): (usize, &String)| Series { name: drafter.clone(), colour: at, mark, points: points(at) };
    drafters.iter().enumerate().map(series).filter(|series| !series.points.is_empty()).collect()
}

/// How far from the middle of its row the n-th of so many dots stands, that none hides another.
fn beside(nth: usize, of: usize) -> f64 {
    ((nth as f64 + 0.5) / of as f64 - 0.5) * 0.7
}

fn single(page: &mut Page, Single { temperature, summaries, .. }: &Single, drafters: &[String]) {
    page.heading(&format!("One request at a time, temperature {temperature}"));
    let of = |at: usize| summaries.iter().filter(move |summary| summary.drafter == drafters[at]);
    let categories: Vec<String> = of(0).map(|summary| summary.category.clone()).collect();
    let rows = |title: &str, about: &str, unit: &str, rule: (f64, &str), value: &dyn Fn(&Summary) -> Option<f64>| {
        let dots = |at: usize| {
            let dot = |(row, summary)| Some(Dot::new(value(summary)?, row as f64 + beside(at, drafters.len())));
            of(at).enumerate().filter_map(dot).collect()
        };
        Chart {
            title: title.to_owned(),
            about: about.to_owned(),
            x: Axis::new(unit, Scale::Linear),
            y: Axis::new("", Scale::Names(categories.clone())),
            series: by_drafter(drafters, Mark::Dots, dots),
            rules: vec![(rule.0, rule.1.to_owned())],
        }
    };
    let accepted = |at: usize| {
        let all = of(at).find(|summary| summary.category == ALL);
        let dot = |distance| Some(Dot::new((distance - 1) as f64, all?.drafted.work.acceptance_at(distance)? * 100.0));
        (1..=DRAFT_POSITIONS).filter_map(dot).collect()
    };
    let plain = (1.0, "plain");
    page.charts(&[
        rows(
            "Speed-up of decoding",
            "Seconds after the first token, plain by drafted, of the sums over the prompts",
            "times plain",
            plain,
            &|summary| summary.decode.total,
        ),
        rows(
            "Speed-up of whole answers",
            "Seconds from request to last token, plain by drafted, of the sums over the prompts",
            "times plain",
            plain,
            &|summary| summary.whole.total,
        ),
        rows(
            "Tokens per step",
            "Tokens committed per step of a request after its first token, the bonus token included",
            "tokens",
            (1.0, "plain"),
            &|summary| summary.drafted.tau(),
        ),
        Chart {
            title: "Acceptance by position".into(),
            about: "Of the steps in which a draft so far from the newest token was checked, those in which one was \
                    accepted; all prompts"
                .into(),
            x: Axis::new(
                "distance from the newest token",
                Scale::Names((1..=DRAFT_POSITIONS).map(table::position).collect()),
            ),
            y: Axis::new("%", Scale::Linear),
            series: by_drafter(drafters, Mark::Line, accepted),
            rules: Vec::new(),
        },
    ]);
    single_table(page, summaries);
    position_table(page, summaries);
    silence_table(page, summaries);
}

fn single_table(page: &mut Page, summaries: &[Summary]) {
    let heads = [
        "drafter",
        "category",
        "prompts",
        "tokens out",
        "tau",
        "drafts a step",
        "accepted",
        "plain tokens/s, median",
        "drafted tokens/s, median",
        "decode, times: total",
        "median",
        "least",
        "whole, times: total",
        "median",
        "step: propose",
        "forward",
        "rest",
    ];
    let row = |summary: &Summary| {
        let mut row = vec![summary.drafter.clone(), summary.category.clone(), summary.prompts.to_string()];
        row.push(summary.drafted.output_tokens.to_string());
        row.extend([summary.drafted.tau(), summary.drafted.budget()].map(|value| fixed(value, 2)));
        row.push(percent(summary.drafted.acceptance()));
        row.extend(summary.median_rates.map(figure));
        let times = [summary.decode.total, summary.decode.median, summary.decode.least];
        row.extend(times.into_iter().chain([summary.whole.total, summary.whole.median]).map(|value| fixed(value, 3)));
        row.extend(summary.drafted.work.shares().map(percent));
        row
    };
    let (all, categories): (Vec<&Summary>, Vec<&Summary>) =
        summaries.iter().partition(|summary| summary.category == ALL);
    page.table(&heads, &all.into_iter().chain(categories).map(row).collect::<Vec<_>>());
}

/// How far drafts stand, with the counts: a share of few steps says little.
fn position_table(page: &mut Page, summaries: &[Summary]) {
    let mut heads = vec!["accepted of checked, by distance".to_owned()];
    heads.extend((1..=DRAFT_POSITIONS).map(table::position));
    let cell = |(accepted, checked): (&u64, &u64)| match checked {
        0 => "-".to_owned(),
        checked => format!("{accepted} of {checked}"),
    };
    let row = |summary: &Summary| {
        let counts = &summary.drafted.work.drafts;
        let cells = counts.accepted_at.iter().zip(&counts.checked_at).map(cell);
        std::iter::once(summary.drafter.clone()).chain(cells).collect()
    };
    let heads: Vec<&str> = heads.iter().map(String::as_str).collect();
    let all = summaries.iter().filter(|summary| summary.category == ALL);
    page.table(&heads, &all.map(row).collect::<Vec<_>>());
}

/// Why nothing was drafted, and how true confidences and predicted times were.
fn silence_table(page: &mut Page, summaries: &[Summary]) {
    let mut heads =
        vec!["drafter", "steps with drafts", "mean confidence", "stood", "Brier score", "forward by predicted"];
    let reasons: Vec<String> = Reason::ALL.iter().map(|reason| format!("without: {}", reason.name())).collect();
    heads.extend(reasons.iter().map(String::as_str));
    let row = |summary: &Summary| {
        let figures = summary.drafted.work.calibration();
        let mut row = vec![summary.drafter.clone(), summary.drafted.work.drafts.proposals.to_string()];
        row.extend(figures.map(figure));
        row.extend(summary.drafted.work.drafts.silent.map(|steps| steps.to_string()));
        row
    };
    page.paragraph(
        "Over all prompts: steps of a request with drafts, and without by reason; how sure drafts were against how often \
         they stood, of those whose fate is known; seconds of forwards against what the cost curve said.",
    );
    let all = summaries.iter().filter(|summary| summary.category == ALL);
    page.table(&heads, &all.map(row).collect::<Vec<_>>());
}

fn crowd(page: &mut Page, temperature: f32, points: &[&Point], drafters: &[String]) {
    page.heading(&format!("Many requests at once, temperature {temperature}"));
    let clients = || Axis::new("clients", Scale::LogAt(points.iter().map(|point| point.clients as f64).collect()));
    let lines = |value: &dyn Fn(&Point, usize) -> Option<f64>| {
        let dots = |at: usize| {
            points.iter().filter_map(|point| Some(Dot::new(point.clients as f64, value(point, at)?))).collect()
        };
        by_drafter(drafters, Mark::Line, dots)
    };
    let chart = |title: &str, about: &str, unit: &str, series: Vec<Series>| Chart {
        title: title.to_owned(),
        about: about.to_owned(),
        x: clients(),
        y: Axis::new(unit, Scale::Linear),
        series,
        rules: Vec::new(),
    };
    let off = |point: &&Point| Some(Dot::new(point.clients as f64, point.off.throughput()?));
    let mut throughput = lines(&|point, at| point.on[at].throughput());
    let (name, colour) = ("off".to_owned(), drafters.len());
    throughput.push(Series { name, colour, mark: Mark::Dashed, points: points.iter().filter_map(off).collect() });
    page.charts(&[
        front(points, drafters),
        chart(
            "Throughput",
            "Output tokens of all answers by the whole time, in which the prompts are",
            "tokens/s",
            throughput,
        ),
        chart(
            "Gain",
            "Throughput with drafts by throughput without; 1 is no gain and no loss",
            "on / off",
            lines(&|point, at| point.gain(at)),
        ),
        chart(
            "Verification budget",
            "Drafts that were checked per step of a request after its first token",
            "drafts",
            lines(&|point, at| point.on[at].tally.budget()),
        ),
        chart(
            "Tokens per step",
            "Tokens committed per step of a request after its first token, the bonus token included",
            "tokens",
            lines(&|point, at| point.on[at].tally.tau()),
        ),
    ]);
    crowd_table(page, points, drafters);
}

/// What everybody gets against what each gets: a line from one client to the most for each drafter.
fn front(points: &[&Point], drafters: &[String]) -> Chart {
    let dot = |leg: &Leg| Some(Dot::new(leg.tally.decode_rate()?, leg.throughput()?));
    let mut series =
        by_drafter(drafters, Mark::Line, |at| points.iter().filter_map(|point| dot(&point.on[at])).collect());
    let off = points.iter().filter_map(|point| dot(&point.off)).collect();
    series.push(Series { name: "off".to_owned(), colour: drafters.len(), mark: Mark::Dashed, points: off });
    Chart {
        title: "Throughput against the speed of one request".into(),
        about:
            "Output tokens of all answers by the whole time, over tokens after the first by the seconds that a request \
                took for them; a point for each number of clients, the most on the left"
                .into(),
        x: Axis::new("tokens/s of a request", Scale::Linear),
        y: Axis::new("tokens/s of all", Scale::Linear),
        series,
        rules: Vec::new(),
    }
}

fn crowd_table(page: &mut Page, points: &[&Point], drafters: &[String]) {
    let heads = [
        "drafter",
        "clients",
        "answers",
        "tokens out",
        "seconds",
        "tokens/s",
        "on / off",
        "tau",
        "drafts a step",
        "accepted",
        "rows a step",
        "step: propose",
        "forward",
        "rest",
    ];
    let row = |name: &str, point: &Point, leg: &Leg, gain: Option<f64>| {
        let tally = &leg.tally;
        let mut row = vec![name.to_owned(), point.clients.to_string(), tally.answers.to_string()];
        row.extend([tally.output_tokens.to_string(), number(leg.seconds), figure(leg.throughput())]);
        row.push(fixed(gain, 3));
        row.extend([tally.tau(), tally.budget()].map(|value| fixed(value, 2)));
        row.push(percent(tally.acceptance()));
        row.push(figure(tally.work.rows_per_step()));
        row.extend(tally.work.shares().map(percent));
        row
    };
    let rows = points.iter().flat_map(|point| {
        let on = drafters.iter().enumerate().map(|(at, drafter)| row(drafter, point, &point.on[at], point.gain(at)));
        std::iter::once(row("off", point, &point.off, None)).chain(on).collect::<Vec<_>>()
    });
    page.table(&heads, &rows.collect::<Vec<_>>());
}

fn conditions(page: &mut Page, report: &Value) {
    page.heading("Conditions");
    let machine = &report["machine"];
    let text = |value: &Value| value.as_str().map_or_else(|| value.to_string(), str::to_owned);
    let flags: Vec<&str> = machine["flags"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
    page.facts(&[
        ("measured", table::subject(report)),
        (
            "machine",
            format!(
                "{}, {} cores ({}), load before the run {}",
                text(&machine["cpu"]),
                machine["cores"],
                flags.join(" "),
                machine["load"]
            ),
        ),
        ("prompts", table::asked(report)),
        ("times there and back", report["repeat"].to_string()),
        ("date", text(&report["date"])),
        ("command", text(&report["command"])),
    ]);
}
