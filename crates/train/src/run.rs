//! What a training begins with: a target, texts and options become a [`Trainer`].

use std::path::Path;
use std::sync::Arc;

use kernels::{Isa, Pool};
use model::{Model, Tap};
use rand::seq::index;

use crate::TrainError;
use crate::chance::{Purpose, chance};
use crate::dspark::{Dspark, DsparkShape};
use crate::features::FeatureStore;
use crate::target::TargetWeights;
use crate::texts::Text;
use crate::trainer::{TrainOptions, Trainer};
use crate::vocabulary::DraftVocabulary;

/// A target that runs.
pub struct RunningTarget {
    /// The model.
    pub model: Arc<Model>,
    /// Its threads.
    pub pool: Pool,
    /// The instruction set that it was packed for.
    pub isa: Isa,
}

/// What a training keeps beside the drafter.
#[derive(Debug, Clone, Copy)]
pub struct Keeping<'a> {
    /// The folder of features.
    pub features: &'a Path,
    /// Bytes that it may have.
    pub bytes: u64,
    /// Texts that are held out, at most; never more than a tenth.
    pub held_out: usize,
}

/// A training of DSpark that has not begun. `draft_vocab`: tokens that the drafter knows; `None`: all.
///
/// # Errors
/// When the shape does not suit the target, there are too few texts, or a file or folder cannot be used.
pub fn dspark(
    target: RunningTarget,
    weights: &TargetWeights<'_>,
    texts: Vec<Text>,
    (shape, draft_vocab): (DsparkShape, Option<usize>),
    options: TrainOptions,
    keeping: Keeping<'_>,
) -> Result<Trainer, TrainError> {
    let vocab = weights.config.vocab;
    // Answers of which a draft could learn nothing are left out.
    let texts: Vec<Text> = texts.into_iter().filter(|text| text.tokens.len() > text.prompt + 1).collect();
    if let Some(token) = texts.iter().flat_map(|text| &text.tokens).find(|token| **token as usize >= vocab) {
        return Err(TrainError::option("--target", format!("has {vocab} tokens, and a text has the token {token}")));
    }
    let [texts, held_out] = split(texts, keeping.held_out, options.seed);
    let vocabulary = match draft_vocab {
        Some(size) if size > vocab => {
            let problem = format!("is {size}, and the target has {vocab} tokens");
            return Err(TrainError::option("--draft-vocab", problem));
        }
        Some(size) => DraftVocabulary::most_frequent(size, vocab, &texts),
        None => DraftVocabulary::whole(vocab),
    };
    let taps = shape.taps.iter().map(|&tap| Tap::Layer(tap)).collect();
    let drafter = Dspark::begin(shape, vocabulary, weights, target.isa, options.seed)?;
    let RunningTarget { model, pool, isa } = target;
    let store = FeatureStore::new((model, pool, isa), taps, keeping.features, keeping.bytes)?;
    Trainer::new(drafter, store, [texts, held_out], options)
}

/// Texts to learn from, and at most so many that are held out.
fn split(texts: Vec<Text>, held_out: usize, seed: u64) -> [Vec<Text>; 2] {
    let count = held_out.min(texts.len() / 10);
    let chosen = index::sample(&mut chance(seed, Purpose::HeldOut, 0), texts.len(), count);
    let mut held = vec![false; texts.len()];
    chosen.into_iter().for_each(|at| held[at] = true);
    let (held, rest): (Vec<_>, Vec<_>) = texts.into_iter().zip(held).partition(|(_, held)| *held);
    [rest, held].map(|texts| texts.into_iter().map(|(text, _)| text).collect())
}
