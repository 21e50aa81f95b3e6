//! A target's weights in f32, as a draft begins with them: in the order and layout of Hugging Face's files, whatever file they
//! come from.

use candle_core::{Device, Tensor};
use model::config::{Config, RopeLayout};
use model::weights::Weights;

use crate::TrainError;
use crate::vocabulary::DraftVocabulary;

/// The weights of a target, and its shape.
pub struct TargetWeights<'a> {
    /// Its files.
    pub weights: &'a Weights,
    /// Its shape.
    pub config: &'a Config,
}

impl TargetWeights<'_> {
    /// The embedding, `[vocab, hidden]`.
    pub(crate) fn embedding(&self) -> Result<Tensor, TrainError> {
        let Config { vocab, hidden, .. } = *self.config;
        self.tensor("model.embed_tokens.weight", &[vocab, hidden])
    }

    /// The rows of the head that a draft knows, `[known, hidden]`.
    pub(crate) fn head(&self, vocabulary: &DraftVocabulary) -> Result<Tensor, TrainError> {
        let Config { vocab, hidden, tie_word_embeddings, .. } = *self.config;
        let name = if tie_word_embeddings { "model.embed_tokens.weight" } else { "lm_head.weight" };
        let head = self.tensor(name, &[vocab, hidden])?;
        let ids = Tensor::new(vocabulary.ids(), &Device::Cpu)?;
        Ok(head.index_select(&ids, 0)?)
    }

    /// The final norm, `[hidden]`.
    pub(crate) fn norm(&self) -> Result<Tensor, TrainError> {
        self.tensor("model.norm.weight", &[self.config.hidden])
    }

    /// A tensor of layer `layer`, by what its name ends with.
    pub(crate) fn in_layer(&self, layer: usize, name: &str, shape: &[usize]) -> Result<Tensor, TrainError> {
        let tensor = self.tensor(&format!("model.layers.{layer}.{name}"), shape)?;
        let turned = name.starts_with("self_attn.q_proj") || name.starts_with("self_attn.k_proj");
        match self.config.rope.layout {
            RopeLayout::Pairs if turned => self.to_halves(&tensor),
            _ => Ok(tensor),
        }
    }

    /// Rows of heads in which 2i turns with 2i + 1, as rows in which i turns with i + half.
    fn to_halves(&self, rows: &Tensor) -> Result<Tensor, TrainError> {
        let (count, head) = (rows.dim(0)?, self.config.head_dim);
        let from = |row: usize| {
            let (at, within) = (row / head * head, row % head);
            at + if within < head / 2 { 2 * within } else { 2 * (within - head / 2) + 1 }
        };
        let order: Vec<u32> = (0..count).map(|row| from(row) as u32).collect();
        Ok(rows.index_select(&Tensor::new(order, &Device::Cpu)?, 0)?)
    }

    fn tensor(&self, name: &str, shape: &[usize]) -> Result<Tensor, TrainError> {
        Ok(Tensor::from_vec(self.weights.tensor(name, shape)?.to_f32()?, shape, &Device::Cpu)?)
    }
}
