//! `foretoken calibrate`: makes the confidences of a trained drafter true.
//!
//! The model answers prompts greedily, and the drafter says at each token how sure it is of each of its drafts. Temperatures
//! and shifts are fitted on half of the answers and judged on the others (Sequential Temperature Scaling, DSpark, section
//! 3.2.1), and written beside the draft.

mod page;

use std::fs;
use std::io::{self, Write};
use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use clap::Args;
use cli::load::{Loaded, ModelArgs};
use cli::progress;
use cli::prompts::{self, Encoder};
use draft::{Drafter, Target, Text};
use model::LoadOptions;
use serde_json::{Value, json};
use spec::{Block, Proposal, SequentialTemperature, expected_calibration_error, reliability};

use crate::bench::spec::questions::Questions;
use crate::draft_model::learned_draft;
use crate::report::{Report, save};

/// Bins of a calibration error.
const BINS: usize = 10;

/// The file that a drafter's temperatures are read from.
const FILE: &str = "calibration.json";

#[derive(Debug, Args)]
pub(crate) struct CalibrateArgs {
    /// The drafter: its directory, or a repository that is cached. The temperatures are written there
    #[arg(long, value_name = "DRAFTER")]
    draft: String,
    /// Prompts that it was not trained on, one JSON object a line: {"turns"} (the first is asked), {"prompt"} or {"messages"}
    #[arg(long, value_name = "FILE")]
    prompts: PathBuf,
    /// Prompts that are answered, of every category in turn
    #[arg(long, value_name = "N", default_value = "64")]
    count: NonZeroUsize,
    /// Tokens of an answer at most
    #[arg(long, value_name = "N", default_value = "128")]
    max_tokens: NonZeroUsize,
    /// Longest prompt that is answered, in tokens
    #[arg(long, value_name = "N", default_value = "1024")]
    max_prompt: NonZeroUsize,
    /// Write the page with the reliability diagrams here [default: calibration.html beside the drafter]
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
    /// Write all results to a file
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    #[command(flatten)]
    model: ModelArgs,
}

/// What is known of one place of a block.
struct Place {
    /// How likely drafts up to here were said to stand, and whether they did: as the drafter says it, and calibrated.
    said: [Vec<(f64, bool)>; 2],
    temperature: f64,
    shift: f64,
}

/// Fits, writes and prints.
///
/// # Errors
/// When the prompts, the model or the drafter cannot be had or run, or the drafter has no confidences to calibrate.
pub(crate) fn run(args: &CalibrateArgs) -> Result<()> {
    let mut report = Report::new("calibrate");
    let lines = prompts::read(&args.prompts)?;
    let loaded = args.model.load(true)?;
    let Some(dir) = learned_draft(&args.draft)? else { bail!("{} is no trained drafter", args.draft) };
    let texts = args.answers(&loaded, &lines, &dir)?;
    let [fitted, judged] = args.blocks(&loaded, &dir, &texts)?;
    let temperatures = SequentialTemperature::fit(&fitted, BINS).context("cannot fit temperatures")?;
    let places = places(&judged, &temperatures);
    let file = dir.join(FILE);
    save(
        &file,
        &format!("{:#}\n", json!({ "temperatures": temperatures.temperatures(), "shifts": temperatures.shifts() })),
    )?;
    report.set("model", loaded.name.as_str());
    report.set("drafter", args.draft.as_str());
    report.set("blocks", json!({ "fitted": fitted.len(), "judged": judged.len() }));
    report.set("places", places.iter().map(Place::to_json).collect::<Result<Value>>()?);
    report.write(args.json.as_deref())?;
    let page = args.html.clone().unwrap_or_else(|| dir.join("calibration.html"));
    save(&page, &page::render(&places, &report.to_json())?)?;
    print(&mut io::stdout().lock(), &places, [&file, &page])
}

/// A copy of the drafter's files without the temperatures that it may have.
fn uncalibrated(dir: &Path) -> Result<tempfile::TempDir> {
    let copy = tempfile::tempdir()?;
    for entry in fs::read_dir(dir).with_context(|| format!("cannot read '{}'", dir.display()))? {
        let path = entry?.path();
        let Some(name) = path.file_name().filter(|name| *name != FILE && path.is_file()) else { continue };
        let to = copy.path().join(name);
        // Files of a cache may be links, and may lie on another disk.
        let from = path.canonicalize()?;
        if fs::hard_link(&from, &to).is_err() {
            fs::copy(&from, &to).with_context(|| format!("cannot copy '{}'", path.display()))?;
        }
    }
    Ok(copy)
}

impl CalibrateArgs {
    fn drafter(&self, loaded: &Loaded, dir: &Path) -> Result<Box<dyn Drafter>> {
        let copy = uncalibrated(dir)?;
        let options = LoadOptions { isa: loaded.isa, compute: loaded.compute, quantise: false };
        let drafter = draft::load_learned(copy.path(), target(loaded), &loaded.pool, options)?;
        if drafter.name() != "dspark" {
            let kind = drafter.name();
            bail!(
                "{} is of the kind {kind}, which has no confidences of its own: they are learnt while it drafts",
                self.draft
            );
        }
        Ok(drafter)
    }

    /// The model's answers.
    fn answers(&self, loaded: &Loaded, lines: &[prompts::Line], dir: &Path) -> Result<Vec<Text>> {
        let encoder = Encoder { tokenizer: &loaded.tokenizer, template: loaded.template.as_ref() };
        let room = loaded.model.config().context.saturating_sub(self.max_tokens.get());
        let questions = Questions::new(lines, &[], &encoder, self.max_prompt.get().min(room) + 1)?;
        let questions = questions.mixed(self.count.get());
        let (taps, ends) = (self.drafter(loaded, dir)?.taps(), loaded.tokenizer.eos());
        let bar = progress::steps("answers", questions.len() as u64);
        let write = |tokens: &[u32]| {
            let text = Text::write(target(loaded), &loaded.pool, tokens, self.max_tokens.get(), ends, &taps);
            bar.inc(1);
            Ok(text?)
        };
        let texts = questions.into_iter().map(|question| write(&question.tokens)).collect();
        bar.finish_and_clear();
        texts
    }

    /// What the drafter says along the answers: on those to fit by, and on those to judge by.
    fn blocks(&self, loaded: &Loaded, dir: &Path, texts: &[Text]) -> Result<[Vec<Block>; 2]> {
        let mut drafter = self.drafter(loaded, dir)?;
        let mut blocks = [Vec::new(), Vec::new()];
        let bar = progress::steps("answers followed", texts.len() as u64);
        for (number, text) in texts.iter().enumerate() {
            text.follow(drafter.as_mut(), target(loaded), &loaded.pool, usize::MAX, |anchor, proposal| {
                blocks[number % 2].extend(block(proposal, &text.tokens()[anchor + 1..]));
            })?;
            bar.inc(1);
        }
        bar.finish_and_clear();
        match &blocks {
            [fitted, judged] if fitted.is_empty() || judged.is_empty() => {
                bail!("the answers are too few or too short: give more prompts")
            }
            _ => Ok(blocks),
        }
    }
}

fn target(loaded: &Loaded) -> Target<'_> {
    let Loaded { model, tokenizer, kv_format, .. } = loaded;
    Target { model, vocab: model.config().vocab.min(tokenizer.vocab_size()), kv_format: *kv_format }
}

/// A chain of drafts as far as the text goes; `None`: no draft can be judged.
fn block(proposal: &Proposal, text: &[u32]) -> Option<Block> {
    let tree = proposal.tree();
    let drafts = &tree.tokens()[1..tree.len().min(text.len() + 1)];
    let confidences = tree.confidences()[1..=drafts.len()].to_vec();
    let accepted = drafts.iter().zip(text).take_while(|(draft, token)| draft == token).count();
    (!drafts.is_empty()).then_some(Block { confidences, accepted })
}

/// Place by place, how likely drafts were said to stand and whether they did.
fn places(blocks: &[Block], temperatures: &SequentialTemperature) -> Vec<Place> {
    let place = |at: usize| {
        let said = |calibrated: bool| {
            let confidence = |(place, &said): (usize, &f64)| match calibrated {
                true => temperatures.confidence(place, said),
                false => said,
            };
            let survival = |block: &Block| block.confidences[..=at].iter().enumerate().map(confidence).product::<f64>();
            let long = blocks.iter().filter(|block| block.confidences.len() > at);
            long.map(|block| (survival(block), block.accepted > at)).collect()
        };
        let (temperature, shift) = (temperatures.temperatures()[at], temperatures.shifts()[at]);
        Place { said: [said(false), said(true)], temperature, shift }
    };
    let longest = blocks.iter().map(|block| block.confidences.len()).max().unwrap_or(0);
    (0..longest.min(temperatures.temperatures().len())).map(place).collect()
}

impl Place {
    /// The calibration error as the drafter says it, and calibrated.
    fn errors(&self) -> Result<[f64; 2]> {
        let error = |said: &[(f64, bool)]| expected_calibration_error(said, BINS).context("cannot judge a place");
        Ok([error(&self.said[0])?, error(&self.said[1])?])
    }

    fn stood(&self) -> f64 {
        self.said[0].iter().filter(|(_, stood)| *stood).count() as f64 / self.said[0].len().max(1) as f64
    }

    fn to_json(&self) -> Result<Value> {
        let [before, after] = self.errors()?;
        let diagram = |said: &[(f64, bool)]| -> Result<Value> {
            let bins = reliability(said, BINS)?;
            Ok(bins.iter().map(|bin| json!([bin.count, bin.predicted, bin.observed])).collect())
        };
        Ok(json!({
            "drafts": self.said[0].len(), "stood": self.stood(), "temperature": self.temperature, "shift": self.shift,
            "error_before": before, "error_after": after,
            "bins_before": diagram(&self.said[0])?, "bins_after": diagram(&self.said[1])?,
        }))
    }
}

fn print(out: &mut impl Write, places: &[Place], [file, page]: [&Path; 2]) -> Result<()> {
    writeln!(out, "place   drafts   stood  temperature   shift  error before   after")?;
    for (at, place) in places.iter().enumerate() {
        let [before, after] = place.errors()?.map(|error| 100.0 * error);
        let (drafts, stood) = (place.said[0].len(), 100.0 * place.stood());
        writeln!(
            out,
            "{:>5}  {drafts:>7}  {stood:>5.1}%  {:>11.3}  {:>6.3}  {before:>11.2}%  {after:>5.2}%",
            at + 1,
            place.temperature,
            place.shift
        )?;
    }
    writeln!(out, "temperatures: {}\nreliability diagrams: {}", file.display(), page.display())?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_chain_is_judged_as_far_as_the_text_goes() {
        let mut proposal = Proposal::new(1);
        for (at, (token, confidence)) in [(5, 0.9), (6, 0.8), (7, 0.7)].into_iter().enumerate() {
            proposal.add_point(at, token, confidence).unwrap();
        }
        let blocks = [
            block(&proposal, &[5, 6, 9, 1]).unwrap(),
            block(&proposal, &[5, 6]).unwrap(),
            block(&proposal, &[4]).unwrap(),
        ];
        assert_eq!((blocks[0].confidences.len(), blocks[0].accepted), (3, 2));
        assert_eq!((blocks[1].confidences.len(), blocks[1].accepted), (2, 2));
        assert_eq!((blocks[2].confidences.len(), blocks[2].accepted), (1, 0));
        assert!(block(&proposal, &[]).is_none());
        let places = places(&blocks, &SequentialTemperature::new(vec![1.0, 2.0, 1.0]).unwrap());
        assert_eq!(places.iter().map(|place| place.said[0].len()).collect::<Vec<_>>(), [3, 2, 1]);
        assert!((places[1].said[0][0].0 - 0.72).abs() < 1e-9 && places[1].said[0][0].1);
        // 0.8 at temperature 2 is 2/3.
        assert!((places[1].said[1][0].0 - 0.6).abs() < 1e-9);
        assert!(!places[2].said[0][0].1);
    }
}
