//! The layer of feature-level drafts (EAGLE-3, Li et al. 2025, arXiv 2503.01840): a target's hidden state at a position and
//! the token after it in, a guess of the hidden state there out.
//!
//! A row is a pair: the token of its own position, and the feature of the position before. So the keys and values at a
//! position depend on the text up to there and no further, like the target's own, and lie in the same slot of layers
//! [attached](kv::KvCache::attach) to its pages. The first position has no pair, and nobody sees its slot. Rotation counts
//! pairs: the row at position p is at angle p − 1. Which tokens are drafted may not enter.

use std::sync::Arc;

use kernels::{KvFormat, KvSlot, Matrix, Packer, Pool, Product, Strided, multiply, rms_norm};
use kv::{Layers, Layout};

use super::{Model, Output, Workspace};
use crate::architecture::Layer;
use crate::batch::{ForwardError, Plan, Segment};
use crate::config::{Architecture, Config};
use crate::load::{Linear, LoadError, LoadOptions, Loader};
use crate::weights::Weights;

/// What a checkpoint of such a draft has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EagleShape {
    /// Hidden states of the target that are fused into one feature.
    pub taps: usize,
    /// Tokens that its own head knows; `None`: it has the target's head.
    pub head: Option<usize>,
}

/// The layer, between the target's embedding and a head.
pub struct Eagle {
    /// Of one layer, whose projections take an embedding and a feature side by side.
    model: Model,
    /// `[hidden]`
    feature_norm: Vec<f32>,
    /// From the hidden states of all taps to one feature: `[hidden, taps * hidden of the target]`.
    fuse: Linear,
    /// Width of a hidden state of the target.
    tapped: usize,
}

impl Eagle {
    /// Loads the layer of a draft for `target`.
    ///
    /// # Errors
    /// When a tensor is missing, has the wrong shape or a format that cannot be used.
    pub fn load(
        weights: &Weights,
        config: Config,
        shape: EagleShape,
        target: &Model,
        pool: &Pool,
        options: LoadOptions,
    ) -> Result<Eagle, LoadError> {
        let loader = Loader { weights, packer: Packer::new(pool, options.isa, options.compute), prefix: "" };
        let layer = if weights.has("midlayer.self_attn.q_proj.weight") { "midlayer" } else { "layers.0" };
        let (hidden, tapped) = (config.hidden, target.config.hidden);
        let fuse = loader.linear("fc", [hidden, shape.taps * tapped], weights.has("fc.bias"))?;
        let feature_norm = loader.vector(&format!("{layer}.hidden_norm.weight"), hidden)?;
        let head = match shape.head {
            Some(known) => Some(Arc::new(loader.matrix("lm_head.weight", [known, hidden])?)),
            None => target.head.clone(),
        };
        let model = Model {
            layers: vec![Arc::new(pair_layer(&loader, &config, layer)?)],
            norm: loader.vector("norm.weight", hidden)?,
            embedding: embedding(&loader, &config, target)?,
            head,
            isa: options.isa,
            rope: Model::rope(&config),
            config: Config { layers: 1, ..config },
        };
        Ok(Eagle { model, feature_norm, fuse, tapped })
    }

    /// Its shape.
    pub fn config(&self) -> &Config {
        &self.model.config
    }

    /// Tokens that its head knows.
    pub fn known(&self) -> usize {
        self.model.head().outputs()
    }

    /// The layers that it needs in the target's pages: its own, and one that holds the feature of each position.
    pub fn kv_layouts(&self, format: KvFormat) -> [Layout; 2] {
        let features = Layout { layers: 1, kv_heads: 1, head_dim: self.model.config.hidden / 2, format };
        [self.model.kv_layout(format), features]
    }

    /// Fuses the hidden states of a `batch` that the target has computed, keeps the features, and writes the keys and
    /// values of all pairs: `taps`, `[rows, hidden of the target]` each.
    ///
    /// # Errors
    /// [`ForwardError`] when the layers are not the draft's, or the batch cannot be.
    pub fn read(
        &self,
        workspace: &mut Workspace,
        pool: &Pool,
        [mut own, features]: [Layers<'_>; 2],
        batch: &[Segment<'_>],
        taps: &[&[f32]],
    ) -> Result<(), ForwardError> {
        self.model.check(&own, &[])?;
        workspace.plan.make(batch, usize::MAX, usize::MAX)?;
        let plan = std::mem::take(&mut workspace.plan);
        self.fuse(workspace, pool, plan.tokens.len(), taps);
        let width = self.model.config.hidden;
        let half = width / 2;
        let part = |from: usize| Strided { data: &workspace.hidden[from..], stride: width };
        if !plan.tokens.is_empty() {
            features.layers[0].append(pool, self.model.isa, &plan.slots, part(0), part(half));
        }
        workspace.plan = plan;
        // The first position of a text has no pair.
        let pairs: Vec<Segment<'_>> = batch.iter().map(Segment::without_first_position).collect();
        workspace.plan.make(&pairs, usize::MAX, usize::MAX)?;
        let before: Vec<Option<KvSlot>> = workspace.plan.before.clone();
        let mut known = vec![0.0; before.len() * width];
        for (row, slot) in known.chunks_exact_mut(width).zip(before) {
            let (k, v) = row.split_at_mut(half);
            if let Some(slot) = slot {
                features.layers[0].read(slot, k, v);
            }
        }
        self.pairs(workspace, pool, &mut own, &pairs, &known);
        Ok(())
    }

    /// The feature that is kept of the position in a slot, `[hidden]`.
    pub fn feature(&self, features: &Layers<'_>, slot: KvSlot, out: &mut [f32]) {
        let (k, v) = out.split_at_mut(self.model.config.hidden / 2);
        features.layers[0].read(slot, k, v);
    }

    /// Runs pairs: `features` are those of the positions before the rows', `[rows, hidden]`. Gives the logits that the
    /// segments ask for, over what the head [knows](Eagle::known), and as the only tap what stands for the feature of each
    /// row, `[rows, hidden]`.
    ///
    /// # Errors
    /// [`ForwardError`] when the layers are not the draft's, or the batch cannot be.
    pub fn forward<'w>(
        &self,
        workspace: &'w mut Workspace,
        pool: &Pool,
        mut own: Layers<'_>,
        batch: &[Segment<'_>],
        features: &[f32],
    ) -> Result<Output<'w>, ForwardError> {
        self.model.check(&own, &[])?;
        workspace.plan.make(batch, self.model.config.vocab, self.model.config.context)?;
        self.pairs(workspace, pool, &mut own, batch, features);
        let plan = std::mem::take(&mut workspace.plan);
        workspace.logits.resize(plan.logit_rows.len() * self.known(), 0.0);
        workspace.taps.resize_with(1, Vec::new);
        workspace.taps[0].clone_from(&workspace.hidden);
        self.model.finish(workspace, pool, &plan, &[]);
        workspace.plan = plan;
        Ok(Output { logits: &workspace.logits, taps: &workspace.taps[..1] })
    }

    /// One feature of each row from the hidden states of all taps.
    fn fuse(&self, workspace: &mut Workspace, pool: &Pool, rows: usize, taps: &[&[f32]]) {
        let Eagle { model, fuse, tapped, .. } = self;
        let Workspace { hidden, x, .. } = workspace;
        hidden.resize(rows * model.config.hidden, 0.0);
        x.fill(pool, model.isa, (rows, fuse.matrix.inputs()), fuse.matrix.format().is_quantised(), |row, out| {
            for (out, from) in out.chunks_exact_mut(*tapped).zip(taps) {
                out.copy_from_slice(&from[row * tapped..(row + 1) * tapped]);
            }
        });
        multiply(pool, x, &mut [Product::new(&fuse.matrix, hidden)]);
        model.add_bias(pool, fuse, hidden);
    }

    /// The layer over the planned rows: their keys and values into `own`, what comes out into the workspace.
    fn pairs(
        &self,
        workspace: &mut Workspace,
        pool: &Pool,
        own: &mut Layers<'_>,
        batch: &[Segment<'_>],
        features: &[f32],
    ) {
        let Eagle { model, feature_norm, .. } = self;
        let (layer, isa, eps) = (&model.layers[0], model.isa, model.config.norm_eps);
        workspace.size(model, 0);
        let plan: Plan = std::mem::take(&mut workspace.plan);
        let (rows, width) = (plan.tokens.len(), model.config.hidden);
        let Workspace { angles, hidden, x, up, .. } = workspace;
        pool.for_each_row(angles, rows, |row, out| model.rope.angles(plan.positions[row].saturating_sub(1), out));
        // The embeddings, for a while.
        up.resize(rows * width.max(model.config.intermediate), 0.0);
        let embeddings = &mut up[..rows * width];
        pool.for_each_row(embeddings, rows, |row, out| model.embedding.row(plan.tokens[row] as usize, out));
        let quantise = [&layer.q, &layer.k, &layer.v].iter().any(|linear| linear.matrix.format().is_quantised());
        let of = |row: usize| row * width..(row + 1) * width;
        x.fill(pool, isa, (rows, 2 * width), quantise, |row, out| {
            let (first, second) = out.split_at_mut(width);
            rms_norm(isa, &embeddings[of(row)], &layer.input_norm, eps, first);
            rms_norm(isa, &features[of(row)], feature_norm, eps, second);
        });
        hidden.copy_from_slice(&features[..rows * width]);
        up.resize(rows * model.config.intermediate, 0.0);
        let sees = plan.attention_rows(batch);
        model.attend(workspace, pool, &mut own.layers[0], &plan.slots, &sees, layer, 1);
        model.feed_forward(workspace, pool, rows, layer);
        workspace.plan = plan;
    }
}

/// The layer's tensors: its projections are twice as wide as a decoder's.
fn pair_layer(loader: &Loader<'_>, config: &Config, name: &str) -> Result<Layer, LoadError> {
    let Config { hidden, intermediate, head_dim, .. } = *config;
    let (q_width, kv_width) = (config.q_width(), config.kv_width());
    let at = |part: &str| format!("{name}.{part}");
    let norm = |part: &str| loader.vector(&at(&format!("self_attn.{part}_norm.weight")), head_dim);
    Ok(Layer {
        input_norm: loader.vector(&at("input_layernorm.weight"), hidden)?,
        q: loader.linear(&at("self_attn.q_proj"), [q_width, 2 * hidden], config.qkv_bias)?,
        k: loader.linear(&at("self_attn.k_proj"), [kv_width, 2 * hidden], config.qkv_bias)?,
        v: loader.linear(&at("self_attn.v_proj"), [kv_width, 2 * hidden], config.qkv_bias)?,
        qk_norm: match config.architecture {
            Architecture::Qwen3 => Some([norm("q")?, norm("k")?]),
            _ => None,
        },
        o: loader.linear(&at("self_attn.o_proj"), [hidden, q_width], config.output_bias)?,
        post_norm: loader.vector(&at("post_attention_layernorm.weight"), hidden)?,
        gate: loader.linear(&at("mlp.gate_proj"), [intermediate, hidden], config.mlp_bias)?,
        up: loader.linear(&at("mlp.up_proj"), [intermediate, hidden], config.mlp_bias)?,
        down: loader.linear(&at("mlp.down_proj"), [hidden, intermediate], config.mlp_bias)?,
        window: None,
    })
}

/// Its own, or else the target's.
fn embedding(loader: &Loader<'_>, config: &Config, target: &Model) -> Result<Arc<Matrix>, LoadError> {
    if loader.weights.has("embed_tokens.weight") {
        return Ok(Arc::new(loader.matrix("embed_tokens.weight", [config.vocab, config.hidden])?));
    }
    Ok(Arc::clone(&target.embedding))
}
