//! Results as text.

use std::io::{self, Write};

use serde_json::Value;

use super::intruder::Setting;
use super::point::{Point, Summary};
use super::prefix::SharedPrefix;
use crate::report::number;
use cli::machine;

/// The conditions of a run.
pub(crate) fn head(out: &mut impl Write, report: &Value) -> io::Result<()> {
    let of_report = |name: &str| report[name].as_str().unwrap_or_default();
    writeln!(out, "{}  {}", of_report("date"), of_report("command"))?;
    writeln!(out, "{}", machine::one_line())?;
    writeln!(out, "{}", subject(report))?;
    let workload = &report["workload"];
    let text = |name: &str| workload[name].as_str().unwrap_or_default();
    let ends = if workload["ignore_eos"] == true { "end tokens ignored" } else { "ends where the model ends" };
    writeln!(
        out,
        "{}, prompts: {}; at most {} tokens out, {ends}, temperature {}, seed {}",
        text("path"),
        text("prompts"),
        workload["max_tokens"],
        workload["temperature"],
        workload["seed"],
    )?;
    out.flush()
}

/// What was measured, in a line.
pub(crate) fn subject(report: &Value) -> String {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let model = text(&report["model"]);
    match (&report["server"], report["url"].as_str()) {
        (Value::Object(server), _) => {
            let of = |name: &str| server.get(name).map(text).unwrap_or_default();
            let [threads, budget] = ["threads", "row_budget"].map(|name| server.get(name).unwrap_or(&Value::Null));
            format!(
                "foretoken {} ({}), {model}, {}, {}, {threads} threads, KV {}, row budget {budget}",
                text(&report["version"]),
                text(&report["commit"]),
                of("isa"),
                of("compute"),
                of("kv_format"),
            )
        }
        (_, url) => format!("server at {}, {model}", url.unwrap_or("-")),
    }
}

/// Heads of the columns of [`row`].
pub(crate) fn columns(out: &mut impl Write) -> io::Result<()> {
    writeln!(out, "\nms as p50 / p99, each stream's tokens/s as p50; total tokens/s has the time of prompts in it")?;
    writeln!(
        out,
        "{:>7}{:>10}{:>8}{:>10}{:>16}{:>18}{:>16}{:>16}{:>16}",
        "clients",
        "answered",
        "req/s",
        "total/s",
        "each stream/s",
        "first token",
        "per token",
        "gap p99 / max",
        "whole"
    )?;
    out.flush()
}

/// One point in a line.
pub(crate) fn row(out: &mut impl Write, point: &Point) -> io::Result<()> {
    let answered = format!("{}/{}", point.answered, point.requests);
    let pair = |summary: &Summary| format!("{} / {}", figure(summary.p50), figure(summary.p99));
    let gap = format!("{} / {}", figure(point.gap_ms.p99), figure(point.gap_ms.max));
    writeln!(
        out,
        "{:>7}{answered:>10}{:>8}{:>10}{:>16}{:>18}{:>16}{gap:>16}{:>16}",
        point.name(),
        number(point.requests_per_s),
        number(point.output_tokens_per_s),
        figure(point.stream_tokens_per_s.p50),
        pair(&point.ttft_ms),
        pair(&point.tpot_ms),
        pair(&point.e2e_ms),
    )?;
    out.flush()
}

/// What must be known beside the rows.
pub(crate) fn notes(out: &mut impl Write, points: &[Point]) -> io::Result<()> {
    for point in points {
        for note in point.notes() {
            writeln!(out, "at {}: {note}", point.name())?;
        }
    }
    Ok(())
}

/// What a long prompt did, a line for each round.
pub(crate) fn intruder(out: &mut impl Write, setting: &Setting) -> io::Result<()> {
    writeln!(out, "\na long prompt arrives while {} answers are under way: {}", setting.streams, setting.name)?;
    for (round, at) in setting.rounds.iter().zip(1..) {
        writeln!(
            out,
            "  round {at}: {} tokens in; largest gap of an answer {} ms before, {} ms with it; its first token after {} ms",
            round.prompt_tokens,
            number(round.gap_before_ms),
            number(round.gap_during_ms),
            number(round.ttft_ms),
        )?;
    }
    out.flush()
}

/// What a shared prefix was worth, a line for each round.
pub(crate) fn shared_prefix(out: &mut impl Write, measured: &SharedPrefix) -> io::Result<()> {
    writeln!(out, "\ntwo requests share {} tokens: first token, ms", measured.shared_tokens)?;
    for (pair, at) in measured.rounds.iter().zip(1..) {
        writeln!(
            out,
            "  round {at}: first {} ({} of {} tokens cached), second {} ({} cached): {} times sooner",
            number(pair.first_ttft_ms),
            pair.first_cached_tokens,
            pair.prompt_tokens,
            number(pair.second_ttft_ms),
            pair.second_cached_tokens,
            number(pair.first_ttft_ms / pair.second_ttft_ms),
        )?;
    }
    out.flush()
}

/// A figure, or a dash where there is none.
pub(crate) fn figure(value: Option<f64>) -> String {
    value.map_or("-".to_owned(), number)
}
