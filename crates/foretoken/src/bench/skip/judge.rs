//! Judges models that skip layers by answers of the whole model: where they agree, and what they cost.

use std::num::NonZeroUsize;
use std::ops::ControlFlow;

use anyhow::Result;
use engine::{Drafting, Engine, EngineOptions, SamplingParams, measure_cost};
use indicatif::ProgressBar;
use kernels::{PAGE, Pool};
use kv::{KvCache, Sequence};
use model::{Logits, Model, Segment, Visibility, Workspace};

use super::score::{Costs, agreement, score};
use super::search::Candidate;
use cli::load::Loaded;

/// Rows of one forward.
const ROWS: usize = 256;

/// A prompt and the target's greedy answer to it.
#[derive(Debug)]
pub(crate) struct Text {
    tokens: Vec<u32>,
    /// How many of them are the prompt.
    prompt: usize,
}

impl Text {
    /// The tokens that can be drafted: all of the answer but its first, which comes of the prompt.
    pub(crate) fn draftable(&self) -> usize {
        (self.tokens.len() - self.prompt).saturating_sub(1)
    }
}

/// Answers each of `prompts` by the target, greedily, in up to `max_tokens` tokens.
///
/// # Errors
/// When a prompt cannot be answered.
pub(crate) fn answer(loaded: &Loaded, prompts: &[&[u32]], max_tokens: usize, bar: &ProgressBar) -> Result<Vec<Text>> {
    let pool = Pool::new(NonZeroUsize::new(loaded.pool.threads()).unwrap_or(NonZeroUsize::MIN));
    let options = EngineOptions { kv_format: loaded.kv_format, ..EngineOptions::default() };
    let mut engine = Engine::new(loaded.model.clone(), loaded.tokenizer.clone(), pool, options, None);
    let params = SamplingParams { temperature: 0.0, max_tokens: Some(max_tokens), ..SamplingParams::default() };
    let mut texts = Vec::new();
    for &prompt in prompts {
        let mut tokens = prompt.to_vec();
        engine.generate(prompt, params.clone(), &Drafting::default(), |delta| {
            tokens.push(delta.token);
            ControlFlow::Continue(())
        })?;
        bar.inc(1);
        texts.push(Text { tokens, prompt: prompt.len() });
    }
    Ok(texts)
}

/// What a judge needs.
pub(crate) struct Judge<'a> {
    pub(crate) loaded: &'a Loaded,
    pub(crate) texts: &'a [Text],
    /// The target's steps; those of drafts are worked out.
    pub(crate) target: Vec<f64>,
    /// Seconds of a row of a model that has no layers, and of each layer.
    draft: (f64, f64),
    /// Tokens of a text on average.
    context: usize,
}

impl<'a> Judge<'a> {
    /// Measures what rows cost, with all layers and with half of them.
    ///
    /// # Errors
    /// When they cannot be measured.
    pub(crate) fn new(loaded: &'a Loaded, texts: &'a [Text], max_drafts: usize) -> Result<Self> {
        let context = texts.iter().map(|text| text.tokens.len()).sum::<usize>() / texts.len().max(1);
        let curve = measure_cost(&loaded.model, &loaded.pool, loaded.kv_format)?;
        let target = (1..=max_drafts + 1).map(|rows| curve.seconds(rows, context)).collect();
        let mut judge = Self { loaded, texts, target, draft: (0.0, 0.0), context };
        let layers = loaded.model.config().layers;
        let skipped: Vec<usize> = (0..layers / 2).collect();
        if !skipped.is_empty() {
            let (whole, half) = (judge.target[0], judge.measure(&skipped)?);
            // All layers of these architectures have the same matrices.
            let layer = ((whole - half) / skipped.len() as f64).max(0.0);
            judge.draft = ((whole - layer * layers as f64).max(0.0), layer);
        }
        Ok(judge)
    }

    /// Seconds of one row without these layers, measured.
    ///
    /// # Errors
    /// When they cannot be measured, or not be skipped.
    pub(crate) fn measure(&self, skipped: &[usize]) -> Result<f64> {
        let model = self.loaded.model.without_layers(skipped)?;
        Ok(measure_cost(&model, &self.loaded.pool, self.loaded.kv_format)?.seconds(1, self.context))
    }

    /// Seconds of one row without so many layers, worked out.
    pub(crate) fn predict(&self, skipped: usize) -> f64 {
        self.draft.0 + self.draft.1 * (self.loaded.model.config().layers - skipped) as f64
    }

    /// Judges the model without these layers, whose rows cost `seconds`.
    ///
    /// # Errors
    /// When they cannot be skipped.
    pub(crate) fn judge(&self, skipped: &[usize], seconds: f64) -> Result<Candidate> {
        let model = self.loaded.model.without_layers(skipped)?;
        let mut workspace = Workspace::new();
        let agrees = |text| self.agreements(&model, text, &mut workspace);
        let agreements: Vec<Vec<bool>> = self.texts.iter().map(agrees).collect::<Result<_>>()?;
        let costs = Costs { target: self.target.clone(), draft: seconds };
        let (agreement, score) = (agreement(&agreements), score(&agreements, &costs));
        Ok(Candidate { skipped: skipped.to_vec(), agreement, score })
    }

    /// Where `model`, given everything before, says what the text says: `[draftable]`.
    fn agreements(&self, model: &Model, text: &Text, workspace: &mut Workspace) -> Result<Vec<bool>> {
        let vocab = model.config().vocab.min(self.loaded.tokenizer.vocab_size());
        let read = &text.tokens[..text.tokens.len() - 1];
        let mut cache = KvCache::new(model.kv_layout(self.loaded.kv_format), read.len().div_ceil(PAGE));
        let mut sequence = Sequence::new();
        cache.reserve(&mut sequence, read.len())?;
        let mut agreements = Vec::with_capacity(text.draftable());
        for (number, tokens) in read.chunks(ROWS).enumerate() {
            let start = number * ROWS;
            // The row of a token says the next one.
            let said: Vec<usize> = (0..tokens.len()).filter(|row| start + row >= text.prompt).collect();
            let (visibility, logits) = (Visibility::Causal, Logits::Rows(&said));
            let segment = Segment { sequence: &sequence, start, tokens, visibility, logits };
            let output = model.forward(workspace, &self.loaded.pool, &mut cache, &[segment], &[])?;
            let rows = output.logits.chunks_exact(model.config().vocab);
            let agrees =
                |(row, logits): (&usize, &[f32])| likeliest(&logits[..vocab]) == text.tokens[start + row + 1] as usize;
            agreements.extend(said.iter().zip(rows).map(agrees));
        }
        Ok(agreements)
    }
}

/// The index of the greatest logit, the first of equals.
fn likeliest(logits: &[f32]) -> usize {
    let better = |best: usize, next: usize| if logits[next] > logits[best] { next } else { best };
    (0..logits.len()).fold(0, better)
}
