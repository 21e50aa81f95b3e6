//! What a training begins with: a target, texts and options become a [`Trainer`].

use std::path::Path;
use std::sync::Arc;

use kernels::{Isa, Pool};
use model::Model;
use rand::Rng;

use crate::TrainError;
use crate::chance::{Purpose, chance};
use crate::checkpoint::{Checkpoint, Reached};
use crate::drafter::{Drafter, DrafterShape};
use crate::features::FeatureStore;
use crate::target::TargetWeights;
use crate::texts::{Origin, Text};
use crate::trainer::{TrainOptions, Trainer};
use crate::vocabulary::DraftVocabulary;

/// One text of so many is not learned from.
const HELD_OUT: u32 = 20;

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
    /// Texts that are held out and looked at, at most.
    pub held_out: usize,
    /// The file that the training goes on from, where it is there; [`Trainer::save`] writes such files.
    pub checkpoint: &'a Path,
}

/// A training, from its beginning or its checkpoint. `draft_vocab`: tokens that the drafter knows; `None`: all.
///
/// # Errors
/// When the shape does not suit the target or the checkpoint, there are too few texts, or a file or folder cannot be used.
pub fn begin(
    target: RunningTarget,
    weights: &TargetWeights<'_>,
    texts: Vec<Text>,
    (shape, draft_vocab): (DrafterShape, Option<usize>),
    options: TrainOptions,
    keeping: Keeping<'_>,
) -> Result<Trainer, TrainError> {
    let vocab = weights.config.vocab;
    // Answers of which a draft could learn nothing are left out, and those without a pair before them.
    let suits = |text: &Text| text.tokens.len() > text.prompt + 1 && text.prompt > 1;
    let texts: Vec<Text> = texts.into_iter().filter(suits).collect();
    if let Some(token) = texts.iter().flat_map(|text| &text.tokens).find(|token| **token as usize >= vocab) {
        return Err(TrainError::option("--target", format!("has {vocab} tokens, and a text has the token {token}")));
    }
    let [texts, held_out] = split(texts, keeping.held_out, options.seed);
    let checkpoint = Checkpoint::open(keeping.checkpoint)?;
    let vocabulary = match (draft_vocab, &checkpoint) {
        (Some(size), _) if size > vocab => {
            let problem = format!("is {size}, and the target has {vocab} tokens");
            return Err(TrainError::option("--draft-vocab", problem));
        }
        // There may be more texts than there were when the training began; what the drafter knows stays.
        (Some(size), Some(checkpoint)) => checkpoint.vocabulary(size, vocab)?,
        (Some(size), None) => DraftVocabulary::most_frequent(size, vocab, &texts),
        (None, _) => DraftVocabulary::whole(vocab),
    };
    let taps = shape.features();
    let mut drafter = Drafter::begin(shape, vocabulary, weights, target.isa, options.seed)?;
    let reached = checkpoint.map_or(Ok(Reached::default()), |checkpoint| checkpoint.restore(&mut drafter))?;
    let RunningTarget { model, pool, isa } = target;
    let store = FeatureStore::new((model, pool, isa), taps, keeping.features, keeping.bytes)?;
    Trainer::new(drafter, store, [texts, held_out], options, reached)
}

/// Texts to learn from, and at most so many that are held out. Which are never learned from is a matter of each alone, so
/// that it stays when others come.
fn split(texts: Vec<Text>, held_out: usize, seed: u64) -> [Vec<Text>; 2] {
    let is_held = |text: &Text| {
        let (origin, number) = text.key();
        let which = 2 * u64::from(number) + u64::from(origin == Origin::Own);
        chance(seed, Purpose::HeldOut, which).random_range(0..HELD_OUT) == 0
    };
    let (mut held, rest): (Vec<Text>, Vec<Text>) = texts.into_iter().partition(is_held);
    held.sort_by_key(|text| (text.number, text.origin));
    held.truncate(held_out);
    [rest, held]
}
