//! Learned drafters, loaded from the checkpoints that their authors publish.
//!
//! Whatever a checkpoint calls its fields and tensors, it is resolved here to one description ([`format`]) of what the
//! drafter computes. What it computes with the target's own arithmetic is in crate `model`.

mod alignment;
mod block;
mod domino;
mod feature;
mod follow;
mod format;
mod grove;
mod growth;
mod heads;
mod hydra;
mod inspect;
mod medusa;
mod residual;
mod selector;
mod states;
#[cfg(test)]
mod tests;

use std::borrow::Cow;
use std::path::Path;
use std::sync::Arc;

use kernels::{KvFormat, Pool};
use model::config::{Config, ConfigError};
use model::weights::{Weights, WeightsError};
use model::{LoadError, LoadOptions, Model, Tap};

use block::BlockDraft;
use feature::FeatureDraft;
use format::Format;
use hydra::HydraDraft;
use medusa::MedusaDraft;

pub use inspect::is_untrained;

use crate::{Computed, Drafter, TrialError, Words};

/// A checkpoint that cannot draft.
#[derive(Debug, thiserror::Error)]
pub enum LearnedError {
    /// Its `config.json` cannot be used.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// A field that says how it drafts is missing or wrong.
    #[error("{file}: {field} {problem}")]
    Field {
        /// The file.
        file: String,
        /// The field.
        field: &'static str,
        /// What is wrong with it.
        problem: String,
    },
    /// Its weights cannot be opened.
    #[error(transparent)]
    Weights(#[from] WeightsError),
    /// It has weights that such a drafter has no use for: it is another.
    #[error(
        "{dir}: nothing is known of the tensor {tensor} in a drafter of this kind, so that it would draft badly: it is of a newer kind, or broken"
    )]
    Unknown {
        /// The directory.
        dir: String,
        /// The tensor.
        tensor: String,
    },
    /// It has a layer of a kind that nobody here computes.
    #[error("{dir}: its layer has {what} ({tensor}), which drafters cannot have here yet")]
    Unsupported {
        /// The directory.
        dir: String,
        /// What the layer has.
        what: &'static str,
        /// A tensor that shows it.
        tensor: String,
    },
    /// Its weights are not those of such a drafter.
    #[error(transparent)]
    Load(#[from] LoadError),
    /// What its files leave open could not be tried.
    #[error("what the drafter's files leave open could not be tried: {0}")]
    Trial(#[from] TrialError),
    /// It was made for another target.
    #[error(
        "the drafter was made for a target with {what} {draft}, and this one has {target}: name the drafter of this target"
    )]
    OtherTarget {
        /// What differs.
        what: &'static str,
        /// What the drafter has.
        draft: usize,
        /// What the target has.
        target: usize,
    },
}

/// What a learned drafter drafts for.
#[derive(Clone, Copy)]
pub struct Target<'a> {
    /// The target.
    pub model: &'a Arc<Model>,
    /// Tokens that it knows: ids below this.
    pub vocab: usize,
    /// Number format of keys and values.
    pub kv_format: KvFormat,
}

/// Whether the directory holds a learned drafter, by what its `config.json` says, and not a model of its own.
///
/// # Errors
/// When there is no `config.json` that can be read.
pub fn is_learned(dir: &Path) -> Result<bool, LearnedError> {
    Ok(Format::read(dir)?.is_some())
}

/// Loads the learned drafter in a directory for a target.
///
/// # Errors
/// [`LearnedError`], which names what is missing or does not fit.
pub fn load(
    dir: &Path,
    target: Target<'_>,
    pool: &Pool,
    options: LoadOptions,
) -> Result<Box<dyn Drafter>, LearnedError> {
    let Some(format) = Format::read(dir)? else {
        let (file, field) = (dir.join("config.json").display().to_string(), "architectures");
        return Err(LearnedError::Field { file, field, problem: "names no learned drafter".into() });
    };
    let weights = Weights::open_dir(dir)?;
    let unknown = |name: &&str| !format.knows(name);
    if let Some(tensor) = weights.names().into_iter().filter(unknown).min() {
        return Err(LearnedError::Unknown { dir: dir.display().to_string(), tensor: tensor.to_owned() });
    }
    format.check_layers(dir, &weights)?;
    let config = || match format.part() {
        Some(part) => Config::from_part(dir, part),
        None => Config::from_dir(dir),
    };
    let config = config();
    Ok(match format {
        Format::Block(format) => {
            let temperatures = format::calibration(dir, format.drafts())?;
            let open = format.anchor_first.is_none();
            let mut draft = BlockDraft::load(&weights, config?, (format, temperatures), target, pool, options)?;
            if open {
                let verdict = alignment::decide(&mut draft, target, pool)?;
                tracing::info!("{}: {verdict}", dir.display());
            }
            Box::new(draft)
        }
        Format::Feature(format) => Box::new(FeatureDraft::load(&weights, config?, format, target, pool, options)?),
        Format::Medusa(format) => Box::new(MedusaDraft::load(&weights, format, target, pool, options)?),
        Format::Hydra(format) => Box::new(HydraDraft::load(&weights, format, target, pool, options)?),
    })
}

/// The target's token for each of those that a draft's head knows: the file has their distances. `None`: they are the same.
fn known_ids(weights: &Weights, known: usize, vocab: usize) -> Result<Option<Vec<u32>>, LearnedError> {
    if !weights.has("d2t") {
        return Ok(None);
    }
    let offsets = weights.integers("d2t", known)?;
    let id = |(id, offset): (usize, i64)| {
        let token = id as i64 + offset;
        u32::try_from(token).ok().filter(|&token| (token as usize) < vocab).ok_or(LearnedError::OtherTarget {
            what: "d2t with the token",
            draft: token.max(0) as usize,
            target: vocab,
        })
    };
    offsets.into_iter().enumerate().map(id).collect::<Result<_, _>>().map(Some)
}

/// Logits over the target's vocabulary from those over the draft's.
fn spread<'l>(logits: &'l [f32], ids: Option<&[u32]>, vocab: usize) -> Cow<'l, [f32]> {
    if ids.is_none() {
        return Cow::Borrowed(&logits[..vocab.min(logits.len())]);
    }
    let mut all = Vec::new();
    Words::new(logits, ids, vocab).spread(&mut all);
    Cow::Owned(all)
}

/// Refuses taps that the target does not have.
fn fits_taps(taps: &[Tap], target: Target<'_>) -> Result<(), LearnedError> {
    let needed = taps.iter().map(|tap| if let Tap::Layer(layer) = tap { layer + 1 } else { 0 }).max().unwrap_or(0);
    let layers = target.model.config().layers;
    if needed > layers {
        return Err(LearnedError::OtherTarget { what: "at least as many layers as", draft: needed, target: layers });
    }
    Ok(())
}

/// Of what the target has computed, the hidden states that a drafter reads, in its own order.
fn gathered<'a>(computed: &Computed<'a>, taps: &[Tap]) -> Vec<&'a [f32]> {
    let find = |tap: &Tap| computed.taps.iter().find(|(other, _)| other == tap).map(|(_, values)| *values);
    taps.iter().filter_map(find).collect()
}
