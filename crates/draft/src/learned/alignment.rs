//! Trying out what a checkpoint leaves open: whether a block's first row gives a draft, and whose hidden states its layer ids
//! mean.
//!
//! The name of a format does not settle it ("dspark" has been written both ways), and a wrong guess is silent: drafts come,
//! and hardly one stands. So the target writes a few short texts, and the draft is asked about them in every way that the
//! file could mean. Who is right about the next token most often is what was meant.

use kernels::Pool;
use model::Tap;

use super::block::BlockDraft;
use super::{LearnedError, Target};
use crate::trial::Text;

/// Texts that the target writes.
const TEXTS: u32 = 4;

/// Tokens that a text begins with, and those that the target writes.
const BEGINNING: usize = 4;
const WRITTEN: usize = 24;

/// A way to read a checkpoint.
#[derive(Debug, Clone, PartialEq)]
struct Reading {
    anchor_first: bool,
    taps: Vec<Tap>,
    /// Layers that the taps are off from what the file says.
    offset: i64,
}

/// Decides what the file of a draft leaves open. Answers how it came out.
///
/// # Errors
/// When the target or the draft cannot run.
pub(super) fn decide(draft: &mut BlockDraft, target: Target<'_>, pool: &Pool) -> Result<String, LearnedError> {
    let readings = readings(&draft.format.taps, target.model.config().layers);
    let mut wanted: Vec<Tap> = readings.iter().flat_map(|reading| reading.taps.clone()).collect();
    wanted.sort_by_key(|tap| if let Tap::Layer(layer) = tap { layer + 1 } else { 0 });
    wanted.dedup();
    let write = |text| Text::write(target, pool, &beginning(text, target.vocab), WRITTEN, &[], &wanted);
    let texts: Vec<Text> = (0..TEXTS).map(write).collect::<Result<_, _>>()?;
    let mut best: Option<(usize, &Reading)> = None;
    let mut said = Vec::new();
    for reading in &readings {
        draft.format.anchor_first = Some(reading.anchor_first);
        draft.format.taps.clone_from(&reading.taps);
        let right = texts.iter().map(|text| right(draft, text, target, pool)).sum::<Result<usize, _>>()?;
        said.push(format!("{right} {}", reading.words()));
        // The first of equals: what the file says comes before what is off from it.
        if best.is_none_or(|(most, _)| right > most) {
            best = Some((right, reading));
        }
    }
    let Some((right, reading)) = best else { return Ok(String::new()) };
    draft.format.anchor_first = Some(reading.anchor_first);
    draft.format.taps.clone_from(&reading.taps);
    let (all, words) = (TEXTS as usize * WRITTEN, reading.words());
    Ok(format!(
        "the file leaves open how the draft is aligned; read {words} it is right about {right} of {all} next tokens ({})",
        said.join(", ")
    ))
}

/// All ways to read it, the likeliest to be meant first.
fn readings(taps: &[Tap], layers: usize) -> Vec<Reading> {
    let shifted = |offset: i64| -> Option<Vec<Tap>> {
        let shift = |tap: &Tap| match (if let Tap::Layer(layer) = tap { *layer as i64 } else { -1 }) + offset {
            -1 => Some(Tap::Embedding),
            layer => usize::try_from(layer).ok().filter(|&layer| layer < layers).map(Tap::Layer),
        };
        taps.iter().map(shift).collect()
    };
    let both = |offset| [true, false].map(|anchor_first| (offset, anchor_first));
    let reading = |(offset, anchor_first)| Some(Reading { anchor_first, taps: shifted(offset)?, offset });
    [0, -1, 1].into_iter().flat_map(both).filter_map(reading).collect()
}

impl Reading {
    fn words(&self) -> String {
        let first = if self.anchor_first { "with a draft from the anchor's row" } else { "without one from it" };
        match self.offset {
            0 => first.to_owned(),
            offset => format!("{first} and taps {offset:+} layers off"),
        }
    }
}

/// A few tokens that nobody chose, spread over the vocabulary.
fn beginning(number: u32, vocab: usize) -> Vec<u32> {
    let places = (0..BEGINNING as u32).map(|at| number * BEGINNING as u32 + at + 1);
    places.map(|at| (at.wrapping_mul(2_654_435_761) as usize % vocab) as u32).collect()
}

/// About how many tokens of a text the draft is right, if each is its first draft.
fn right(draft: &mut BlockDraft, text: &Text, target: Target<'_>, pool: &Pool) -> Result<usize, LearnedError> {
    let mut right = 0;
    text.follow(draft, target, pool, 1, |anchor, proposal| {
        right += usize::from(proposal.tree().tokens().get(1) == Some(&text.tokens()[anchor + 1]));
    })?;
    Ok(right)
}
