//! `foretoken bench skip`: which layers the model can leave out to draft for itself, and whether that pays.
//!
//! The target answers prompts greedily. A set of layers is judged by one forward over each answer: where the model
//! without them agrees with the target decides what chains of its drafts would have done, token by token. With the
//! measured costs of steps that is a speed.

mod judge;
mod score;
mod search;
#[cfg(test)]
mod tests;

use std::io::{self, Write};
use std::num::NonZeroUsize;
use std::path::PathBuf;

use anyhow::{Result, bail};
use clap::Args;
use serde_json::{Value, json};

use self::judge::{Judge, Text};
use self::search::{Candidate, Found};
use super::spec::questions::Questions;
use crate::draft_model::SkipSet;
use crate::report::Report;
use cli::load::{Loaded, ModelArgs};
use cli::progress;
use cli::prompts;
use cli::prompts::Encoder;

/// What is searched, and how long.
#[derive(Debug, Args)]
pub(crate) struct SkipArgs {
    /// Prompts whose answers judge, one JSON object a line: {"turns"} (the first is asked), {"prompt"} or {"messages"}
    #[arg(long, value_name = "FILE")]
    prompts: PathBuf,
    /// Prompts that are answered, of every category in turn
    #[arg(long, value_name = "N", default_value = "8")]
    count: NonZeroUsize,
    /// Longest prompt that is answered, in tokens
    #[arg(long, value_name = "N", default_value = "512")]
    max_prompt: NonZeroUsize,
    /// Tokens of an answer at most
    #[arg(long, value_name = "N", default_value = "64")]
    max_tokens: NonZeroUsize,
    /// Give the prompts to the model as they stand, without its chat template
    #[arg(long)]
    raw: bool,
    /// Drafts in a step at most
    #[arg(long, value_name = "N", default_value_t = 8, value_parser = clap::value_parser!(u16).range(1..=64))]
    draft_max: u16,
    /// Sets of layers that are tried at most
    #[arg(long, value_name = "N", default_value_t = 150)]
    sets: usize,
    /// Decides which changes are tried at the end
    #[arg(long, value_name = "SEED", default_value_t = 0)]
    seed: u64,
    /// Write all results to a file
    #[arg(long, value_name = "FILE", help_heading = "Output")]
    json: Option<PathBuf>,
    #[command(flatten)]
    model: ModelArgs,
}

/// Searches, and prints what was found.
///
/// # Errors
/// When the prompts or the model cannot be had or run.
pub(crate) fn run(args: &SkipArgs) -> Result<()> {
    let mut report = Report::new("skip");
    let lines = prompts::read(&args.prompts)?;
    let loaded = args.model.load(!args.raw)?;
    if !args.raw && loaded.template.is_none() {
        bail!("{} has no chat template: add --raw to continue prompts as they stand", loaded.name);
    }
    let template = loaded.template.as_ref().filter(|_| !args.raw);
    let encoder = Encoder { tokenizer: &loaded.tokenizer, template };
    let longest = args.max_prompt.get().min(loaded.model.config().context.saturating_sub(args.max_tokens.get()));
    let questions = Questions::new(&lines, &[], &encoder, longest + 1)?;
    let prompts: Vec<&[u32]> =
        questions.mixed(args.count.get()).into_iter().map(|question| &question.tokens[..]).collect();
    let bar = progress::steps("answers of the whole model", prompts.len() as u64);
    let texts = judge::answer(&loaded, &prompts, args.max_tokens.get(), &bar)?;
    bar.finish_and_clear();
    let judge = Judge::new(&loaded, &texts, args.draft_max.into())?;
    let (found, best) = args.search(&judge)?;
    args.describe(&loaded, &judge, &mut report);
    report.set("by_size", found.by_size.iter().map(candidate).collect::<Value>());
    report.set("sets_tried", found.tried);
    report.set("best", best.as_ref().map_or(Value::Null, candidate));
    report.write(args.json.as_deref())?;
    print(&mut io::stdout().lock(), &judge, &found, best.as_ref())
}

impl SkipArgs {
    /// The best sets, and the best of them with its cost measured.
    fn search(&self, judge: &Judge<'_>) -> Result<(Found, Option<Candidate>)> {
        if judge.texts.iter().all(|text| text.draftable() == 0) {
            bail!("no answer has a second token, so that there is nothing to draft: ask other prompts");
        }
        let layers = judge.loaded.model.config().layers;
        let bar = progress::steps("sets of layers", self.sets as u64);
        let found = search::search(layers, self.sets, self.seed, |skipped| {
            let candidate = judge.judge(skipped, judge.predict(skipped.len()));
            bar.inc(1);
            candidate
        })?;
        bar.finish_and_clear();
        let measured = |best: &Candidate| judge.judge(&best.skipped, judge.measure(&best.skipped)?);
        let best = found.best().map(measured).transpose()?;
        Ok((found, best))
    }

    fn describe(&self, loaded: &Loaded, judge: &Judge<'_>, report: &mut Report) {
        report.set("model", loaded.name.as_str());
        report.set("threads", loaded.pool.threads());
        report.set("layers", loaded.model.config().layers);
        report.set("prompts", judge.texts.len());
        report.set("draftable_tokens", draftable(judge.texts));
        report.set("seed", self.seed);
        report.set("target_seconds_by_rows", judge.target.clone());
    }
}

fn draftable(texts: &[Text]) -> usize {
    texts.iter().map(Text::draftable).sum()
}

fn candidate(candidate: &Candidate) -> Value {
    let Candidate { skipped, agreement, score } = candidate;
    json!({
        "skipped": skipped,
        "draft": format!("skip:{}", SkipSet::Layers(skipped.clone())),
        "agreement": agreement,
        "drafts": score.drafts,
        "accepted": score.accepted,
        "tokens_per_step": score.tokens_per_step,
        "speedup": score.speedup,
    })
}

/// Says what was found, and whether it pays.
fn print(out: &mut impl Write, judge: &Judge<'_>, found: &Found, best: Option<&Candidate>) -> Result<()> {
    let (model, texts) = (&judge.loaded.model, judge.texts);
    let (layers, tokens) = (model.config().layers, draftable(texts));
    writeln!(out, "{}: {layers} layers, a row takes {:.2} ms", judge.loaded.name, judge.target[0] * 1e3)?;
    writeln!(
        out,
        "{} sets tried on {tokens} tokens of {} answers; the fastest of each size:",
        found.tried,
        texts.len()
    )?;
    writeln!(out, "skipped  row cost  agrees  drafts  accepted  tokens/step  speed-up  layers")?;
    for Candidate { skipped, agreement, score } in &found.by_size {
        writeln!(
            out,
            "{:>7}  {:>8.2}  {agreement:>6.2}  {:>6}  {:>8.2}  {:>11.2}  {:>8.2}  {}",
            skipped.len(),
            judge.predict(skipped.len()) / judge.target[0],
            score.drafts,
            score.accepted,
            score.tokens_per_step,
            score.speedup,
            SkipSet::Layers(skipped.clone()),
        )?;
    }
    let Some(Candidate { skipped, score, .. }) = best else {
        return Ok(writeln!(out, "no set was tried")?);
    };
    let (set, speedup) = (SkipSet::Layers(skipped.clone()), score.speedup);
    match speedup > 1.0 {
        true => writeln!(
            out,
            "best: --draft skip:{set} --draft-max {}, with its cost measured: {speedup:.2} times plain decoding is expected",
            score.drafts
        )?,
        false => writeln!(
            out,
            "no set pays: the best, skip:{set}, is expected to decode at {speedup:.2} of the plain speed"
        )?,
    }
    Ok(())
}
