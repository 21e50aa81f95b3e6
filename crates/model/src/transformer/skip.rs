//! A model that leaves some of its layers out: a cheap guess at what the whole one says.
//!
//! It shares the weights of the whole model and is otherwise a model of its own, with its own keys and values: they are
//! not those of the whole model, for what enters a layer depends on the layers before.

use std::sync::Arc;

use super::Model;
use crate::config::Config;

/// Layers that cannot be left out.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum SkipError {
    /// The model has no such layer.
    #[error("layer {layer} cannot be skipped: the model has the layers 0 to {}", .layers - 1)]
    NoSuchLayer {
        /// What was to be skipped.
        layer: usize,
        /// Layers of the model.
        layers: usize,
    },
    /// No layer would be left.
    #[error("all {layers} layers are to be skipped: one must be left")]
    NothingLeft {
        /// Layers of the model.
        layers: usize,
    },
}

impl Model {
    /// The model without the layers `skipped`, in any order: it shares the weights of those that are left. Its layers
    /// are numbered anew, and so are those of the K/V cache that it needs.
    ///
    /// # Errors
    /// A layer that the model does not have, and when none would be left.
    pub fn without_layers(&self, skipped: &[usize]) -> Result<Model, SkipError> {
        let layers = self.layers.len();
        if let Some(&layer) = skipped.iter().find(|&&layer| layer >= layers) {
            return Err(SkipError::NoSuchLayer { layer, layers });
        }
        let kept: Vec<usize> = (0..layers).filter(|layer| !skipped.contains(layer)).collect();
        if kept.is_empty() {
            return Err(SkipError::NothingLeft { layers });
        }
        let windows = kept.iter().map(|&layer| self.config.windows[layer]).collect();
        let config = Config { layers: kept.len(), windows, ..self.config.clone() };
        let layers = kept.iter().map(|&layer| Arc::clone(&self.layers[layer])).collect();
        Ok(Model {
            config,
            layers,
            isa: self.isa,
            rope: self.rope.clone(),
            embedding: Arc::clone(&self.embedding),
            norm: self.norm.clone(),
            head: self.head.clone(),
        })
    }
}
