//! What an audit found, as tables that grow while it runs, and as JSON.

use std::io::{self, Write};

use serde_json::{Value, json};

use super::identity::{self, Difference, Source};
use super::law;
use crate::draft::Kind;

/// The heads of the columns of identity.
pub(super) fn identity_head(out: &mut impl Write) -> io::Result<()> {
    let (drafter, rule, at_once, threads, requests) = ("drafter", "rule", "at once", "threads", "requests");
    write!(out, "{drafter:<16} {rule:<6} {at_once:>8} {threads:>7} {requests:>8}")?;
    writeln!(out, " {:>7} {:>7} {:>8}  verdict", "tokens", "drafts", "accepted")
}

pub(super) fn identity_row(row: &identity::Row, out: &mut impl Write) -> io::Result<()> {
    let identity::Run { rule, shape, .. } = &row.run;
    let at_once = format!("{}{}", shape.at_once, if shape.tight { "*" } else { "" });
    let (drafter, rule) = (row.run.drafter.to_string(), rule.name());
    write!(out, "{drafter:<16} {rule:<6} {at_once:>8} {:>7} {:>8}", shape.threads, row.requests)?;
    let (checked, accepted) = (row.drafts.checked, row.drafts.accepted);
    let lost = if row.preemptions > 0 { format!(", {} preempted", row.preemptions) } else { String::new() };
    writeln!(out, " {:>7} {checked:>7} {accepted:>8}  {}{lost}", row.tokens, verdict(row))
}

fn drafts(row: &identity::Row) -> bool {
    row.run.drafter != Source::Named(Kind::None)
}

fn verdict(row: &identity::Row) -> &'static str {
    match (&row.first, drafts(row) && row.drafts.checked == 0) {
        (Some(_), _) => "DIFFERENT",
        (None, true) => "identical, but nothing was drafted",
        (None, false) => "identical",
    }
}

/// What was drafted at each temperature, over all runs of a drafter.
pub(super) fn by_temperature(rows: &[identity::Row], out: &mut impl Write) -> io::Result<()> {
    let mut sums: Vec<(String, f32, usize, usize)> = Vec::new();
    for row in rows.iter().filter(|row| drafts(row)) {
        for part in &row.by_temperature {
            let key = (row.run.drafter.to_string(), part.temperature);
            let index = sums.iter().position(|sum| sum.0 == key.0 && sum.1 == key.1).unwrap_or_else(|| {
                sums.push((key.0, key.1, 0, 0));
                sums.len() - 1
            });
            sums[index].2 += part.checked;
            sums[index].3 += part.accepted;
        }
    }
    if !sums.is_empty() {
        writeln!(out, "\n{:<16} {:>11} {:>7} {:>8}", "drafter", "temperature", "drafts", "accepted")?;
    }
    for (drafter, temperature, checked, accepted) in sums {
        let nothing = if checked == 0 { "  nothing was drafted: this proves nothing of it" } else { "" };
        writeln!(out, "{drafter:<16} {temperature:>11} {checked:>7} {accepted:>8}{nothing}")?;
    }
    Ok(())
}

/// The first difference of a run, in full.
pub(super) fn difference(row: &identity::Row, out: &mut impl Write) -> io::Result<()> {
    let Some(Difference { prompt, temperature, position, expected, found, before }) = &row.first else { return Ok(()) };
    let shape = row.run.shape;
    writeln!(
        out,
        "\nFirst difference: prompt {} at temperature {temperature}, drafter {}, rule {}, {} at once{}, {} threads",
        prompt,
        row.run.drafter,
        row.run.rule,
        shape.at_once,
        if shape.tight { " in too little memory" } else { "" },
        shape.threads
    )?;
    writeln!(out, "  at token {} of the answer, after {before:?}", position + 1)?;
    writeln!(out, "  expected {expected}")?;
    writeln!(out, "  found    {found}")
}

/// The heads of the columns of the law.
pub(super) fn law_head(out: &mut impl Write) -> io::Result<()> {
    write!(out, "{:<29} {:<6} {:<30} {:>8}", "drafter", "rule", "sampling", "answers")?;
    writeln!(out, " {:>7} {:>8} {:>9}  verdict", "drafts", "accepted", "least p")
}

pub(super) fn law_row(row: &law::Row, out: &mut impl Write) -> io::Result<()> {
    let law::Row { drafter, rule, sampling, requests, checked, accepted, p, .. } = row;
    write!(out, "{drafter:<29} {rule:<6} {sampling:<30} {requests:>8}")?;
    writeln!(out, " {checked:>7} {accepted:>8} {p:>9.1e}  {}", law_verdict(row))?;
    if row.must_hold != row.holds {
        writeln!(out, "  furthest off: {}", row.worst)?;
    }
    Ok(())
}

fn law_verdict(row: &law::Row) -> &'static str {
    match (row.must_hold, row.holds) {
        _ if row.identical == Some(false) => "OTHER ANSWERS than without drafts",
        (true, true) if row.identical == Some(true) => "identical",
        (true, true) => "the law holds",
        (true, false) => "ANOTHER LAW",
        (false, false) => "caught, as it has to be",
        (false, true) => "NOT CAUGHT: the tests are too weak",
    }
}

pub(super) fn identity_json(row: &identity::Row) -> Value {
    let shape = row.run.shape;
    let first = row.first.as_ref().map(|first| {
        json!({
            "prompt": first.prompt,
            "temperature": first.temperature,
            "position": first.position,
            "expected": first.expected,
            "found": first.found,
            "before": first.before,
        })
    });
    let parts = row.by_temperature.iter().map(|part| {
        json!({ "temperature": part.temperature, "checked_drafts": part.checked, "accepted_drafts": part.accepted })
    });
    json!({
        "drafter": row.run.drafter.to_string(),
        "rule": row.run.rule.name(),
        "at_once": shape.at_once,
        "threads": shape.threads,
        "tight_memory": shape.tight,
        "preemptions": row.preemptions,
        "requests": row.requests,
        "tokens": row.tokens,
        "checked_drafts": row.drafts.checked,
        "accepted_drafts": row.drafts.accepted,
        "by_temperature": parts.collect::<Vec<_>>(),
        "identical": row.first.is_none(),
        "first_difference": first,
    })
}

pub(super) fn law_json(row: &law::Row) -> Value {
    json!({
        "drafter": row.drafter,
        "rule": row.rule,
        "sampling": row.sampling,
        "answers": row.requests,
        "checked_drafts": row.checked,
        "accepted_drafts": row.accepted,
        "tests": row.tests,
        "least_p": row.p,
        "identical": row.identical,
        "law_holds": row.holds,
        "must_hold": row.must_hold,
        "furthest_off": row.worst,
    })
}
