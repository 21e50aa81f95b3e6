//! DSpark (section 3): layers over the target's features and a block of masks, a head that makes a draft depend on the one
//! before, and one that says how sure each is.
//!
//! The forward here is the one of [`model::Backbone`], with gradients. How the weights move may not enter.

mod begin;
mod export;
mod layer;
#[cfg(test)]
mod tests;

use std::path::Path;

use candle_core::{Device, Tensor};
use kernels::Isa;
use model::config::{Architecture, Config};

use crate::TrainError;
use crate::batch::{Batch, BatchText, BlockShape};
use crate::head_loss::{Head, HeadInputs, LossWeights, RowSays};
use crate::ops::{Rotation, Visible, rms_norm, times_constant};
use crate::parameters::Parameters;
use crate::target::TargetWeights;
use crate::trainer::{Profile, timed};
use crate::vocabulary::DraftVocabulary;

use layer::{Layer, Sight};

pub use export::About;

/// What a drafter will be.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DsparkShape {
    /// Layers of the target that its own begin as, one for each.
    pub layers: Vec<usize>,
    /// Rows of a block, and drafts of a round.
    pub block: usize,
    /// Of the head that makes a draft depend on the one before.
    pub rank: usize,
    /// The token that stands for what is to be drafted.
    pub mask: u32,
    /// Layers of the target whose outputs it reads, in ascending order.
    pub taps: Vec<usize>,
}

/// Weights of the losses: 0.1 cross-entropy, 0.9 distance, 1 confidence (equation 12).
const LOSS: LossWeights = LossWeights { cross_entropy: 0.1, variation: 0.9 };
const CONFIDENCE: f64 = 1.0;

/// The weight of the cross-entropy at the beginning, and the share of the training in which it falls to its own: what the
/// distance asks for is in proportion to what the draft already gives a token, so that it hardly moves one that has learned
/// nothing.
const FIRST_CROSS_ENTROPY: f32 = 1.0;
const FALLS_FOR: f32 = 0.3;

/// Weights of the losses where such a share of the training is done.
fn loss_weights(done: f32) -> LossWeights {
    let first = (1.0 - done / FALLS_FOR).max(0.0);
    let cross_entropy = LOSS.cross_entropy + (FIRST_CROSS_ENTROPY - LOSS.cross_entropy) * first;
    LossWeights { cross_entropy, ..LOSS }
}

/// A drafter in training.
pub(crate) struct Dspark {
    pub(crate) shape: DsparkShape,
    /// Of its layers: the target's, with as many as it has.
    pub(crate) config: Config,
    pub(crate) vocabulary: DraftVocabulary,
    pub(crate) parameters: Parameters,
    /// The target's, `[vocab, hidden]`.
    embedding: Tensor,
    /// The target's.
    head: Head,
}

/// What comes out of the layers.
struct Hidden {
    /// After the final norm, `[rows, hidden]`.
    hidden: Tensor,
    /// Embeddings of the tokens before the drafts, `[rows, rank]`.
    before: Tensor,
    /// Logits of the confidences, `[rows]`.
    sure: Tensor,
}

impl Dspark {
    /// A drafter that has learned nothing: its layers are some of the target's, its feature is the last tap.
    pub(crate) fn begin(
        shape: DsparkShape,
        vocabulary: DraftVocabulary,
        target: &TargetWeights<'_>,
        isa: Isa,
        seed: u64,
    ) -> Result<Dspark, TrainError> {
        let config = begin::config(&shape, target.config)?;
        let parameters = begin::parameters(&shape, &config, vocabulary.len(), target, seed)?;
        let head = Head { weights: target.head(&vocabulary)?, isa };
        Ok(Dspark { shape, config, vocabulary, parameters, embedding: target.embedding()?, head })
    }

    pub(crate) fn block_shape(&self) -> BlockShape {
        BlockShape { block: self.shape.block, mask: self.shape.mask }
    }

    /// The loss of a batch where a share `done` of the training is done, and what its rows say.
    pub(crate) fn loss(
        &self,
        batch: &Batch,
        done: f32,
        profile: &mut Profile,
    ) -> Result<(Tensor, Vec<RowSays>), TrainError> {
        let Hidden { hidden, before, sure } = timed(&mut profile.layers, || self.forward(batch))?;
        let targets = batch.targets();
        let inputs = HeadInputs { hidden: &hidden, before: &before, bias: self.parameters.get("markov_w2")? };
        let (loss, says) = timed(&mut profile.head, || self.head.loss(&inputs, &targets, loss_weights(done)))?;
        let weights: Vec<f32> = targets.iter().map(|target| target.weight).collect();
        let confidence = confidence_loss(&sure, &says, &weights)?;
        Ok(((loss + (confidence * CONFIDENCE)?)?, says))
    }

    /// What the rows of a batch say, and the confidences of their drafts.
    pub(crate) fn says(&self, batch: &Batch) -> Result<(Vec<RowSays>, Vec<f32>), TrainError> {
        let Hidden { hidden, before, sure } = self.forward(batch)?;
        let bias = self.parameters.get("markov_w2")?;
        let says = self.head.says(&HeadInputs { hidden: &hidden, before: &before, bias }, &batch.targets())?;
        let sure = crate::ops::values(&sure)?.into_iter().map(|logit| 1.0 / (1.0 + (-logit).exp()));
        Ok((says, sure.collect()))
    }

    fn forward(&self, batch: &Batch) -> Result<Hidden, TrainError> {
        let get = |name: &str| self.parameters.get(name);
        let eps = self.config.norm_eps;
        let features: Vec<&Tensor> = batch.texts.iter().map(|text| &text.features).collect();
        let fused = times_constant(&Tensor::cat(&features, 0)?, get("fc")?)?;
        let fused = rms_norm(&fused, get("hidden_norm")?, eps)?;
        let sight = self.sight(batch);
        let index = |ids: &[u32]| Tensor::new(ids, &Device::Cpu);
        let mut x = self.embedding.index_select(&index(&batch.tokens)?, 0)?;
        for number in 0..self.shape.layers.len() {
            x = Layer { number, config: &self.config, parameters: &self.parameters }.forward(&x, &fused, &sight)?;
        }
        let hidden = rms_norm(&x, get("norm")?, eps)?;
        let before = get("markov_w1")?.index_select(&index(&batch.before)?, 0)?;
        let sure = (hidden.matmul(get("confidence.hidden")?)? + before.matmul(get("confidence.before")?)?)?;
        let sure = sure.broadcast_add(get("confidence.bias")?)?.flatten_all()?;
        Ok(Hidden { hidden, before, sure })
    }

    /// What the rows of a batch see, and where they are.
    fn sight(&self, batch: &Batch) -> Sight {
        let (block, config) = (self.shape.block, &self.config);
        let scale = 1.0 / (config.head_dim as f32).sqrt();
        let group = config.heads / config.kv_heads;
        let context = |text: &BatchText| text.anchors.last().copied().unwrap_or(0);
        let visible = |text: &BatchText| {
            let row = |row: usize| {
                let first = context(text) + row / block * block;
                [0..text.anchors[row / block], first..first + block]
            };
            Visible::new((0..text.rows.len()).map(row).collect(), group, scale)
        };
        let (inv_freq, grows) = config.inv_freq();
        let mut keys = Vec::new();
        for text in &batch.texts {
            keys.extend(0..context(text) as u32);
            keys.extend_from_slice(&batch.positions[text.rows.clone()]);
        }
        Sight {
            contexts: batch.texts.iter().map(context).collect(),
            rows: batch.texts.iter().map(|text| text.rows.len()).collect(),
            visible: batch.texts.iter().map(visible).collect(),
            queries: Rotation::new(&inv_freq, grows, &batch.positions),
            keys: Rotation::new(&inv_freq, grows, &keys),
        }
    }

    /// Writes the drafter to a directory.
    ///
    /// # Errors
    /// When its files cannot be written, or the target's positions cannot be described in them.
    pub(crate) fn export(&self, dir: &Path, about: &About) -> Result<(), TrainError> {
        export::write(self, dir, about)
    }
}

/// Binary cross-entropy of confidences with the acceptance that rows have (equation 11).
fn confidence_loss(sure: &Tensor, says: &[RowSays], weights: &[f32]) -> Result<Tensor, TrainError> {
    let total: f32 = weights.iter().sum::<f32>().max(f32::MIN_POSITIVE);
    let tensor = |values: Vec<f32>| Tensor::new(values, &Device::Cpu);
    let wanted = tensor(says.iter().map(|says| says.acceptance).collect())?;
    let weights = tensor(weights.iter().map(|weight| weight / total).collect())?;
    // ln(1 + e^x) - x wanted, where e^x may be too large for a number.
    let large = (sure.abs()?.neg()?.exp()? + 1.0)?.log()?;
    let each = ((sure.relu()? + large)? - (sure * wanted)?)?;
    Ok((each * weights)?.sum_all()?)
}

/// The family that a draft's layers are of: sliding windows have no place in them.
pub(crate) fn architecture(target: Architecture) -> Architecture {
    match target {
        Architecture::Mistral => Architecture::Llama,
        other => other,
    }
}
