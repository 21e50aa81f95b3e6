//! A plan as a table of at most 80 columns: each figure with the formula behind it, and the numbers put in.

use std::io::{self, Write};

use spec::KvShape;

use super::size::{brief, grouped};
use super::{Batch, Earning, Plan};

pub(super) const BATCH: &str = "(memory − weights) / KV per request, rounded down";
pub(super) const TOKENS: &str = "E[τ] = (1 − α^(K+1)) / (1 − α)";
pub(super) const SPEEDUP: &str = "speed-up = E[τ] / (V + K · c)";

/// Where the column of formulas begins.
const INDENT: usize = 28;

/// The formula of a token's bytes.
pub(super) fn per_token(kv: &KvShape) -> &'static str {
    match kv {
        KvShape::Heads { .. } => "2 · layers · KV heads · head size · bits / 8",
        KvShape::Latent { .. } => "layers · (latent + rotary key) · bits / 8",
    }
}

/// The formula of a request's bytes.
pub(super) fn per_request(plan: &Plan) -> &'static str {
    if plan.slides() { "sum of KV per token · min(context, window)" } else { "KV per token · context" }
}

pub(super) fn print(plan: &Plan, out: &mut impl Write) -> io::Result<()> {
    writeln!(out, "{}", plan.name)?;
    writeln!(out, "{}", plan.shape.attention)?;
    let context = grouped(plan.context);
    writeln!(out, "{context} tokens a request, keys and values in {} bits a number\n", plan.kv.bits())?;
    if let Some(made_for) = plan.shape.context.filter(|&made_for| made_for < plan.context) {
        writeln!(out, "The model was made for {} tokens only.\n", grouped(made_for))?;
    }
    keys_and_values(plan, out)?;
    if let Some(batch) = &plan.batch {
        print_batch(plan, batch, out)?;
    }
    if let Some(earning) = &plan.earning {
        writeln!(out)?;
        print_earning(earning, out)?;
    }
    Ok(())
}

/// A figure and the first line of what is behind it.
fn figure(out: &mut impl Write, label: &str, value: &str, behind: &str) -> io::Result<()> {
    writeln!(out, "{label:<16}{value:<12}{behind}")
}

/// A further line of what is behind a figure.
fn behind(out: &mut impl Write, text: &str) -> io::Result<()> {
    writeln!(out, "{:INDENT$}{text}", "")
}

fn keys_and_values(plan: &Plan, out: &mut impl Write) -> io::Result<()> {
    let parts = || plan.shape.parts.iter().zip(&plan.part_bytes);
    let formula = plan.shape.parts.first().map_or("", |part| per_token(&part.kv));
    figure(out, "KV per token", &brief(plan.bytes_per_token), formula)?;
    for (at, (part, bytes)) in parts().enumerate() {
        let sign = if at == 0 { '=' } else { '+' };
        behind(out, &format!("{sign} {} = {} B", put_in(&part.kv, plan.kv.bits()), grouped(*bytes)))?;
    }
    figure(out, "KV per request", &brief(plan.bytes_per_request), per_request(plan))?;
    if plan.slides() {
        for (at, (part, bytes)) in parts().enumerate() {
            let sign = if at == 0 { '=' } else { '+' };
            behind(out, &format!("{sign} {} · {}", grouped(*bytes), grouped(part.seen(plan.context))))?;
        }
        behind(out, &format!("= {} B", grouped(plan.bytes_per_request)))?;
        let kept = "with all tokens kept, as Foretoken does";
        return figure(out, "", &brief(plan.bytes_kept_whole), kept);
    }
    let (token, context) = (grouped(plan.bytes_per_token), grouped(plan.context));
    behind(out, &format!("= {token} · {context} = {} B", grouped(plan.bytes_per_request)))
}

fn put_in(kv: &KvShape, bits: u64) -> String {
    match kv {
        KvShape::Heads { layers, kv_heads, head_dim } => format!("2 · {layers} · {kv_heads} · {head_dim} · {bits} / 8"),
        KvShape::Latent { layers, latent, rotary } => format!("{layers} · ({latent} + {rotary}) · {bits} / 8"),
    }
}

fn print_batch(plan: &Plan, batch: &Batch, out: &mut impl Write) -> io::Result<()> {
    let Batch { memory, weights, requests, requests_kept_whole } = batch;
    // The source of a count is too long for what is left of the line.
    let (first, rest) = weights.source.split_once(" counted").unwrap_or((&weights.source, ""));
    figure(out, "weights", &brief(weights.bytes), first)?;
    if !rest.is_empty() {
        behind(out, &format!("counted{rest}"))?;
    }
    figure(out, "largest batch", &grouped(*requests), BATCH)?;
    let [memory_bytes, weight_bytes] = [*memory, weights.bytes].map(grouped);
    behind(out, &format!("= ({memory_bytes} − {weight_bytes})"))?;
    behind(out, &format!("/ {}", grouped(plan.bytes_per_request)))?;
    if plan.slides() {
        figure(out, "", &grouped(*requests_kept_whole), "with all tokens kept, as Foretoken does")?;
    }
    if *memory <= weights.bytes {
        behind(out, &format!("the weights alone leave none of {}", brief(*memory)))?;
    }
    Ok(())
}

fn print_earning(earning: &Earning, out: &mut impl Write) -> io::Result<()> {
    let Earning { acceptance, draft_cost, rows, best: (drafts, speedup) } = earning;
    writeln!(out, "drafting with acceptance α = {acceptance}, a draft costs c = {draft_cost} plain steps\n")?;
    writeln!(out, "{:>8}{:>16}{:>9}{:>12}", "drafts K", "verify cost V", "E[τ]", "speed-up")?;
    for row in rows {
        let mark = if row.drafts == *drafts { "  best γ" } else { "" };
        let (k, v) = (row.drafts, row.verify_cost);
        writeln!(out, "{k:>8}{v:>16.2}{:>9.4}{:>12.4}{mark}", row.tokens, row.speedup)?;
    }
    writeln!(out)?;
    let most = rows.len();
    match drafts {
        0 => figure(out, "best γ", "0", &format!("no K up to {most} has a speed-up above 1: do not draft"))?,
        _ => {
            let what = format!("the K up to {most} with the greatest speed-up, {speedup:.4}");
            figure(out, "best γ", &drafts.to_string(), &what)?;
        }
    }
    behind(out, TOKENS)?;
    behind(out, SPEEDUP)
}
