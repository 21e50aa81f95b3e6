//! One more layer over a target's hidden states, which carries what the text so far says about what is to come (the prefix
//! attention of Hydra++, Ankner et al. 2024, arXiv 2402.05109, section 4).
//!
//! It is a decoder layer of the target's shape and a norm, with the hidden state of a position in the place of an embedding.
//! Its keys and values lie in a layer [attached](kv::KvCache::attach) to the target's pages. What is made of its output may
//! not enter.

use std::sync::Arc;

use kernels::{KvFormat, Pool};
use kv::{Layers, Layout};

use super::{Model, Workspace};
use crate::batch::{ForwardError, Logits, Segment, Tap};
use crate::config::{Architecture, Config};
use crate::load::{LoadError, LoadOptions, Loader};
use crate::weights::Weights;

/// A decoder layer of Llama over hidden states.
pub struct PrefixLayer {
    /// Of one layer.
    model: Model,
}

impl PrefixLayer {
    /// What the names of its tensors begin with, as the Hydra repository spells it.
    pub const PREFIX: &'static str = "prefix_embeding_layer.";

    /// Loads the layer over the hidden states of `target`.
    ///
    /// # Errors
    /// When a tensor is missing, has the wrong shape or a format that cannot be used.
    pub fn load(
        weights: &Weights,
        target: &Model,
        pool: &Pool,
        options: LoadOptions,
    ) -> Result<PrefixLayer, LoadError> {
        let loader = Loader::new(weights, pool, options, Self::PREFIX);
        let (layers, windows, architecture) = (1, vec![None], Architecture::Llama);
        let (qkv_bias, output_bias, mlp_bias) = (false, false, false);
        let shape = target.config.clone();
        let config = Config { architecture, layers, windows, qkv_bias, output_bias, mlp_bias, ..shape };
        let (embedding, head) = (Arc::clone(&target.embedding), target.head.clone());
        Ok(PrefixLayer { model: Model::body(&loader, options.isa, config, embedding, head)? })
    }

    /// The layer that it needs in the target's pages.
    pub fn kv_layout(&self, format: KvFormat) -> Layout {
        self.model.kv_layout(format)
    }

    /// Runs the layer over the rows of a `batch` that the target has computed, with their hidden `states`, `[rows, hidden]`:
    /// what comes out after the norm, `[rows, hidden]`.
    ///
    /// # Errors
    /// [`ForwardError`] when the layer is not its own, or the batch cannot be.
    pub fn forward<'w>(
        &self,
        workspace: &'w mut Workspace,
        pool: &Pool,
        kv: Layers<'_>,
        batch: &[Segment<'_>],
        states: &[f32],
    ) -> Result<&'w [f32], ForwardError> {
        let model = &self.model;
        model.check(&kv, &[])?;
        let batch: Vec<Segment<'_>> =
            batch.iter().map(|&segment| Segment { logits: Logits::None, ..segment }).collect();
        workspace.plan.make(&batch, usize::MAX, usize::MAX)?;
        workspace.size(model, 1);
        let plan = std::mem::take(&mut workspace.plan);
        let sees = plan.attention_rows(&batch);
        workspace.hidden.copy_from_slice(states);
        pool.for_each_row(&mut workspace.angles, sees.len(), |row, out| model.rope.angles(plan.positions[row], out));
        for (layer, kv_layer) in model.layers.iter().zip(kv.layers) {
            model.attention(workspace, pool, kv_layer, &plan, &sees, layer);
            model.feed_forward(workspace, pool, sees.len(), layer);
        }
        model.finish(workspace, pool, &plan, &[Tap::Final]);
        workspace.plan = plan;
        Ok(&workspace.taps[0])
    }
}
