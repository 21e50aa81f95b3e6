//! Results as text.

use std::io::{self, Write};

use engine::batch::DRAFT_POSITIONS;
use serde_json::Value;

use super::contest::Checks;
use super::crowd::Point;
use super::single::{ALL, Summary};
use crate::report::number;
use cli::machine;

/// Differences that are shown; all of them are in the JSON.
const SHOWN: usize = 10;

/// The conditions of a run.
pub(crate) fn head(out: &mut impl Write, report: &Value) -> io::Result<()> {
    let of_report = |name: &str| report[name].as_str().unwrap_or_default();
    writeln!(out, "{}  {}", of_report("date"), of_report("command"))?;
    writeln!(out, "{}", machine::one_line())?;
    writeln!(out, "{}", subject(report))?;
    writeln!(out, "{}", asked(report))?;
    out.flush()
}

/// What was measured, in a line.
pub(crate) fn subject(report: &Value) -> String {
    let of = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let engine = &report["engine"];
    format!(
        "foretoken {} ({}), {}, {}, {}, {} threads, KV {}, row budget {}, at most {} drafts, acceptance {}",
        of(&report["version"]),
        of(&report["commit"]),
        of(&report["model"]),
        of(&engine["isa"]),
        of(&engine["compute"]),
        engine["threads"],
        of(&engine["kv_format"]),
        engine["row_budget"],
        engine["draft_max"],
        of(&engine["acceptance"]),
    )
}

/// What was asked, in a line.
pub(crate) fn asked(report: &Value) -> String {
    let prompts = &report["prompts"];
    let fit: u64 = prompts["fit"].as_object().into_iter().flatten().filter_map(|(_, count)| count.as_u64()).sum();
    let too_long = prompts["too_long"].as_array().map_or(0, Vec::len);
    let limit = prompts["limit_per_category"].as_u64();
    let limit = limit.map_or(String::new(), |limit| format!(", one at a time {limit} of each category at most"));
    let template = if prompts["chat_template"] == true { "in the chat template" } else { "as they stand" };
    let ends = if prompts["ignore_eos"] == true { "end tokens ignored" } else { "ends where the model ends" };
    format!(
        "{}: {fit} prompts, first turns only, {template}{limit}; {too_long} more are longer than the context and skipped; \
         at most {} tokens out, {ends}, seed {}",
        prompts["file"].as_str().unwrap_or_default(),
        prompts["max_tokens"],
        prompts["seed"],
    )
}

/// One request at a time: a table for each drafter, and one of acceptance.
pub(crate) fn single(
    out: &mut impl Write,
    temperature: f32,
    summaries: &[Summary],
    drafters: &[String],
) -> io::Result<()> {
    writeln!(out, "\none request at a time, temperature {temperature}: each prompt plainly and drafted in turns")?;
    writeln!(out, "tau: tokens per step of a request after its first token; checked: drafts of such a step")?;
    writeln!(
        out,
        "times: plain seconds by drafted seconds, of the sums (total) and over the prompts; whole: with prompts"
    )?;
    for drafter in drafters {
        writeln!(out, "\n{drafter}")?;
        writeln!(
            out,
            "{:<16}{:>7}{:>7}{:>9}{:>9}{:>18}{:>9}{:>8}{:>7}{:>8}{:>9}{:>9}{:>7}",
            "category",
            "prompts",
            "tau",
            "checked",
            "accepted",
            "tokens/s (median)",
            "times",
            "median",
            "least",
            "whole",
            "propose",
            "forward",
            "rest"
        )?;
        for summary in summaries.iter().filter(|summary| summary.drafter == *drafter) {
            row(out, summary)?;
        }
    }
    positions(out, summaries)?;
    out.flush()
}

fn row(out: &mut impl Write, summary: &Summary) -> io::Result<()> {
    let rates = summary.median_rates.map(figure).join(" > ");
    let [propose, forward, rest] = summary.drafted.work.shares().map(percent);
    writeln!(
        out,
        "{:<16}{:>7}{:>7}{:>9}{:>9}{rates:>18}{:>9}{:>8}{:>7}{:>8}{propose:>9}{forward:>9}{rest:>7}",
        summary.category,
        summary.prompts,
        fixed(summary.drafted.tau(), 2),
        fixed(summary.drafted.budget(), 2),
        percent(summary.drafted.acceptance()),
        fixed(summary.decode.total, 3),
        fixed(summary.decode.median, 3),
        fixed(summary.decode.least, 3),
        fixed(summary.whole.total, 3),
    )
}

/// How far drafts stand.
fn positions(out: &mut impl Write, summaries: &[Summary]) -> io::Result<()> {
    let all: Vec<&Summary> = summaries.iter().filter(|summary| summary.category == ALL).collect();
    let reached = |distance: &usize| all.iter().any(|all| all.drafted.work.acceptance_at(*distance).is_some());
    let distances: Vec<usize> = (1..=DRAFT_POSITIONS).filter(reached).collect();
    if distances.is_empty() {
        return Ok(());
    }
    writeln!(out, "\naccepted drafts by distance from the newest token, of the steps in which one was checked")?;
    write!(out, "{:<16}", "drafter")?;
    for distance in &distances {
        write!(out, "{:>7}", position(*distance))?;
    }
    for summary in all {
        write!(out, "\n{:<16}", summary.drafter)?;
        for &distance in &distances {
            write!(out, "{:>7}", percent(summary.drafted.work.acceptance_at(distance)))?;
        }
    }
    writeln!(out)
}

/// A distance from the anchor, the last of which has all that are further.
pub(crate) fn position(distance: usize) -> String {
    if distance == DRAFT_POSITIONS { format!("{distance}+") } else { distance.to_string() }
}

/// Many requests at once: a table for each drafter.
pub(crate) fn crowd(out: &mut impl Write, temperature: f32, points: &[Point], drafters: &[String]) -> io::Result<()> {
    if points.is_empty() {
        return Ok(());
    }
    writeln!(out, "\nmany requests at once, temperature {temperature}: without and with drafts in turns")?;
    writeln!(out, "off, on: output tokens of all answers by the whole time, prompts included")?;
    writeln!(out, "tau, checked: tokens and checked drafts per step of a request after its first token")?;
    for (at, drafter) in drafters.iter().enumerate() {
        writeln!(
            out,
            "\n{drafter}\n{:>8}{:>10}{:>9}{:>9}{:>8}{:>7}{:>9}{:>10}{:>11}{:>9}",
            "clients", "requests", "off/s", "on/s", "on/off", "tau", "checked", "accepted", "rows/step", "propose"
        )?;
        for point in points {
            let leg = &point.on[at];
            writeln!(
                out,
                "{:>8}{:>10}{:>9}{:>9}{:>8}{:>7}{:>9}{:>10}{:>11}{:>9}",
                point.clients,
                point.requests,
                figure(point.off.throughput()),
                figure(leg.throughput()),
                fixed(point.gain(at), 3),
                fixed(leg.tally.tau(), 2),
                fixed(leg.tally.budget(), 2),
                percent(leg.tally.acceptance()),
                figure(leg.tally.work.rows_per_step()),
                percent(leg.tally.work.shares()[0]),
            )?;
        }
    }
    out.flush()
}

/// Whether all said the same.
pub(crate) fn checks(out: &mut impl Write, checks: &Checks) -> io::Result<()> {
    let (compared, differ) = (checks.compared, checks.differences.len());
    writeln!(out, "\n{compared} answers compared with the first of plain decoding, token by token: {differ} differ")?;
    for difference in checks.differences.iter().take(SHOWN) {
        writeln!(out, "  {difference}")?;
    }
    if differ > SHOWN {
        writeln!(out, "  and {} more", differ - SHOWN)?;
    }
    out.flush()
}

/// A figure with so many decimals, or a dash where there is none.
pub(crate) fn fixed(value: Option<f64>, decimals: usize) -> String {
    value.map_or("-".to_owned(), |value| format!("{value:.decimals$}"))
}

/// A figure, or a dash where there is none.
pub(crate) fn figure(value: Option<f64>) -> String {
    value.map_or("-".to_owned(), number)
}

/// A share of a hundred, or a dash where there is none.
pub(crate) fn percent(value: Option<f64>) -> String {
    value.map_or("-".to_owned(), |value| format!("{:.1}%", value * 100.0))
}
