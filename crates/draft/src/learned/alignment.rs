//! Trying out what a checkpoint leaves open: whether a block's first row gives a draft, and whose hidden states its layer ids
//! mean.
//!
//! The name of a format does not settle it ("dspark" has been written both ways), and a wrong guess is silent: drafts come,
//! and hardly one stands. So the target writes a few short texts, and the draft is asked about them in every way that the
//! file could mean. Who is right about the next token most often is what was meant.

use kernels::Pool;
use kv::{KvCache, Sequence};
use model::{ForwardError, Logits, Segment, Tap, Visibility, Workspace};

use super::block::BlockDraft;
use super::{LearnedError, Target};
use crate::{Ask, Choose, Computed, Drafter, Greedy, Key, Round};

/// Texts that the target writes.
const TEXTS: u32 = 4;

/// Tokens that a text begins with, and those that the target writes.
const BEGINNING: usize = 4;
const WRITTEN: usize = 24;

/// A text, and the target's hidden states at all of its tokens but the last.
struct Text {
    tokens: Vec<u32>,
    /// `[tokens - 1, hidden]` for each tap.
    states: Vec<(Tap, Vec<f32>)>,
}

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
    let failed = |error: ForwardError| LearnedError::Trial { message: error.to_string() };
    let readings = readings(&draft.format.taps, target.model.config().layers);
    let mut wanted: Vec<Tap> = readings.iter().flat_map(|reading| reading.taps.clone()).collect();
    wanted.sort_by_key(|tap| if let Tap::Layer(layer) = tap { layer + 1 } else { 0 });
    wanted.dedup();
    let texts: Vec<Text> =
        (0..TEXTS).map(|text| write(text, &wanted, target, pool)).collect::<Result<_, _>>().map_err(failed)?;
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

/// Has the target write a text after a few tokens that nobody chose.
fn write(number: u32, wanted: &[Tap], target: Target<'_>, pool: &Pool) -> Result<Text, ForwardError> {
    let Target { model, vocab, kv_format } = target;
    let all = BEGINNING + WRITTEN;
    let mut cache = KvCache::new(model.kv_layout(kv_format), all.div_ceil(kernels::PAGE));
    let (mut sequence, mut workspace) = (Sequence::new(), Workspace::new());
    let places = (0..BEGINNING as u32).map(|at| number * BEGINNING as u32 + at + 1);
    // Spread over the vocabulary.
    let mut tokens: Vec<u32> = places.map(|at| (at.wrapping_mul(2_654_435_761) as usize % vocab) as u32).collect();
    let mut states: Vec<(Tap, Vec<f32>)> = wanted.iter().map(|&tap| (tap, Vec::new())).collect();
    let mut start = 0;
    while tokens.len() < all {
        let rows = &tokens[start..];
        // The cache has pages for all.
        let _ = cache.reserve(&mut sequence, tokens.len());
        let (visibility, logits) = (Visibility::Causal, Logits::Last);
        let segment = Segment { sequence: &sequence, start, tokens: rows, visibility, logits };
        let output = model.forward(&mut workspace, pool, &mut cache, &[segment], wanted)?;
        for ((_, all), new) in states.iter_mut().zip(output.taps) {
            all.extend_from_slice(new);
        }
        start = tokens.len();
        let said = Greedy.choose(&[], &output.logits[..vocab.min(output.logits.len())]);
        tokens.push(said.map_or(0, |said| said.token));
    }
    Ok(Text { tokens, states })
}

/// About how many tokens of a text the draft is right, if each is its first draft.
fn right(draft: &mut BlockDraft, text: &Text, target: Target<'_>, pool: &Pool) -> Result<usize, LearnedError> {
    let failed = |error: crate::DraftError| LearnedError::Trial { message: error.to_string() };
    let pages = (text.tokens.len() + draft.slots_ahead()).div_ceil(kernels::PAGE);
    let mut cache = KvCache::new(target.model.kv_layout(target.kv_format), pages);
    draft.attach(&mut cache);
    let (mut sequence, mut right) = (Sequence::new(), 0);
    let _ = cache.reserve(&mut sequence, text.tokens.len() + draft.slots_ahead());
    let width = target.model.config().hidden;
    for anchor in 1..text.tokens.len() - 1 {
        let row = (anchor - 1) * width..anchor * width;
        let taps: Vec<(Tap, &[f32])> = text.states.iter().map(|(tap, all)| (*tap, &all[row.clone()])).collect();
        let (start, rows) = (anchor - 1, &text.tokens[anchor - 1..anchor]);
        let (visibility, logits) = (Visibility::Causal, Logits::None);
        let batch = [Segment { sequence: &sequence, start, tokens: rows, visibility, logits }];
        draft.computed(&mut Computed { pool, cache: &mut cache, taps: &taps, batch: &batch }).map_err(failed)?;
        if anchor + 1 < BEGINNING {
            continue;
        }
        let ask = Ask {
            key: Key { request: 0, choice: 0 },
            tokens: &text.tokens[..=anchor],
            prompt: 1,
            predicted: &[],
            max_drafts: 1,
            remaining: text.tokens.len(),
            choose: &Greedy,
            sequence: &sequence,
        };
        let mut round = Round { pool, cache: &mut cache, step_seconds: 1.0, row_seconds: 1.0 };
        let said = draft.propose(&mut round, &[ask]).map_err(failed)?.pop();
        if let Some(Ok(proposal)) = said {
            right += usize::from(proposal.tree().tokens().get(1) == Some(&text.tokens[anchor + 1]));
        }
    }
    Ok(right)
}
