//! The backbone of block drafts: layers that look at a target's hidden states beside a block of tokens (DFlash, Chen et al.
//! 2026; DSpark; DFlash 2).
//!
//! A layer's keys and values of a committed position are projections of the target's features there, the same for every
//! block to come: they are written once, when the target has run, into layers [attached](kv::KvCache::attach) to the
//! target's pages. A block is a forward like any other, in most layers one whose rows all see each other. Which tokens are
//! drafted may not enter.

use std::sync::Arc;

use kernels::{AttentionRow, KvFormat, KvLayer, Pool, Product, Strided, add, multiply, rms_norm};
use kv::Layers;

use super::convolution::{Convolution, ConvolutionShape, Side};
use super::{Model, Output, Workspace};
use crate::architecture::Layer;
use crate::batch::{ForwardError, Plan, Segment, Tap, Visibility};
use crate::config::Config;
use crate::load::{Linear, LoadError, LoadOptions, Loader};
use crate::weights::Weights;

/// What the rows of a block see of each other in a layer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Sight {
    /// All rows see all.
    Around,
    /// A row sees those before it, and itself.
    Back,
}

/// What the checkpoint of a block draft has beside its layers.
#[derive(Debug, Clone, PartialEq)]
pub struct BlockShape {
    /// Hidden states of the target that are fused into one feature.
    pub taps: usize,
    /// Tokens that its own head knows; `None`: it has the target's head.
    pub head: Option<usize>,
    /// What rows see, in every layer: `[layers]`.
    pub sight: Vec<Sight>,
    /// The convolutions around its sublayers, where it has some.
    pub convolution: Option<ConvolutionShape>,
    /// What embeddings are multiplied by.
    pub embedding_scale: f32,
}

/// The layers of a block draft, between the target's embedding and its head.
pub struct Backbone {
    model: Model,
    /// From the features of all taps to one: `[hidden, taps * hidden of the target]`.
    fuse: Linear,
    /// `[hidden]`
    fused_norm: Vec<f32>,
    /// Width of one feature.
    feature: usize,
    sight: Vec<Sight>,
    /// Around attention and around the feed-forward, in every layer; or none.
    convolutions: Vec<[Convolution; 2]>,
    embedding_scale: f32,
}

impl Backbone {
    /// Loads the layers of a draft for `target`, whose embedding it has, and whose head unless it has one of its own.
    ///
    /// # Errors
    /// When a tensor is missing, has the wrong shape or a format that cannot be used.
    pub fn load(
        weights: &Weights,
        config: Config,
        shape: BlockShape,
        target: &Model,
        pool: &Pool,
        options: LoadOptions,
    ) -> Result<Backbone, LoadError> {
        let loader = Loader::new(weights, pool, options, "");
        let feature = target.config.hidden;
        let (hidden, layers) = (config.hidden, config.layers);
        let fuse = loader.linear("fc", [hidden, shape.taps * feature], false)?;
        let fused_norm = loader.vector("hidden_norm.weight", hidden)?;
        let embedding = Arc::clone(&target.embedding);
        // A head that is tied to an embedding is the embedding.
        let head = match shape.head {
            Some(known) => Some(Arc::new(loader.matrix("lm_head.weight", [known, hidden])?)),
            None => target.head.clone(),
        };
        let around = |layer: usize, shape| {
            let load = |part: &str| Convolution::load(&loader, &format!("layers.{layer}.{part}_conv"), shape, hidden);
            Ok([load("attention")?, load("mlp")?])
        };
        let convolutions = match shape.convolution {
            Some(shape) => (0..layers).map(|layer| around(layer, shape)).collect::<Result<_, LoadError>>()?,
            None => Vec::new(),
        };
        let model = Model::body(&loader, options.isa, config, embedding, head)?;
        let BlockShape { sight, embedding_scale, .. } = shape;
        Ok(Backbone { model, fuse, fused_norm, feature, sight, convolutions, embedding_scale })
    }

    /// The target's embedding of a token, `[hidden]`, as it goes into the layers but for its scale.
    pub fn embedding(&self, token: u32, out: &mut [f32]) {
        self.model.embed(token, out);
    }

    /// Its shape.
    pub fn config(&self) -> &Config {
        &self.model.config
    }

    /// The layers that it needs in the target's pages.
    pub fn kv_layout(&self, format: KvFormat) -> kv::Layout {
        self.model.kv_layout(format)
    }

    /// Writes the keys and values of all layers for the rows of a `batch` that the target has computed: `features` of each
    /// tap, `[rows, hidden of the target]`.
    ///
    /// # Errors
    /// [`ForwardError`] when the layers are not the backbone's, or the batch cannot be.
    pub fn read(
        &self,
        workspace: &mut Workspace,
        pool: &Pool,
        kv: Layers<'_>,
        batch: &[Segment<'_>],
        features: &[&[f32]],
    ) -> Result<(), ForwardError> {
        let Backbone { model, fuse, fused_norm, feature, .. } = self;
        model.check(&kv, &[])?;
        // The target may go further than the draft can follow.
        workspace.plan.make(batch, usize::MAX, usize::MAX)?;
        let (rows, isa, eps) = (workspace.plan.tokens.len(), model.isa, model.config.norm_eps);
        let (hidden_width, kv_width) = (model.config.hidden, model.config.kv_width());
        let Workspace { plan, angles, hidden, x, k, v, .. } = workspace;
        let angles_len = model.rope.angles_len();
        for (buffer, width) in [(&mut *hidden, hidden_width), (&mut *k, kv_width), (&mut *v, kv_width)] {
            buffer.resize(rows * width, 0.0);
        }
        angles.resize(rows * angles_len, 0.0);
        pool.for_each_row(angles, rows, |row, out| model.rope.angles(plan.positions[row], out));
        x.fill(pool, isa, (rows, fuse.matrix.inputs()), fuse.matrix.format().is_quantised(), |row, out| {
            for (out, from) in out.chunks_exact_mut(*feature).zip(features) {
                out.copy_from_slice(&from[row * feature..(row + 1) * feature]);
            }
        });
        multiply(pool, x, &mut [Product::new(&fuse.matrix, hidden)]);
        let linears = model.layers.iter().flat_map(|layer| [&layer.k, &layer.v]);
        let quantise = linears.into_iter().any(|linear| linear.matrix.format().is_quantised());
        x.fill(pool, isa, (rows, hidden_width), quantise, |row, out| {
            rms_norm(isa, &hidden[row * hidden_width..(row + 1) * hidden_width], fused_norm, eps, out);
        });
        for (layer, kv_layer) in model.layers.iter().zip(kv.layers) {
            multiply(pool, x, &mut [Product::new(&layer.k.matrix, k), Product::new(&layer.v.matrix, v)]);
            let k_norm = layer.qk_norm.as_ref().map(|[_, k]| k);
            pool.for_each_row(k, rows, |row, k| {
                model.place(k, &angles[row * angles_len..(row + 1) * angles_len], &layer.k, k_norm);
            });
            model.add_bias(pool, &layer.v, v);
            let [keys, values] = [&k[..], &v[..]].map(|data| Strided { data, stride: kv_width });
            kv_layer.append(pool, isa, &plan.slots, keys, values);
        }
        Ok(())
    }

    /// Runs blocks, all of the same number of rows: the logits that the segments ask for, and the hidden states of all rows
    /// after the final norm as the only tap. The keys and values of the blocks' rows are written to their slots, where the
    /// next rows that the target computes there overwrite them.
    ///
    /// # Errors
    /// As [`Model::forward`].
    pub fn forward<'w>(
        &self,
        workspace: &'w mut Workspace,
        pool: &Pool,
        kv: Layers<'_>,
        blocks: &[Segment<'_>],
    ) -> Result<Output<'w>, ForwardError> {
        let (model, taps) = (&self.model, &[Tap::Final]);
        model.check(&kv, taps)?;
        workspace.plan.make(blocks, model.config.vocab, model.config.context)?;
        workspace.size(model, taps.len());
        model.embed_rows(workspace, pool);
        if self.embedding_scale != 1.0 {
            workspace.hidden.iter_mut().for_each(|value| *value *= self.embedding_scale);
        }
        let plan = std::mem::take(&mut workspace.plan);
        let backwards: Vec<Segment<'_>> =
            blocks.iter().map(|block| Segment { visibility: Visibility::Causal, ..*block }).collect();
        let around = plan.attention_rows(blocks);
        let back = if self.sight.contains(&Sight::Back) { plan.attention_rows(&backwards) } else { Vec::new() };
        let rows =
            Rows { plan: &plan, around: &around, back: &back, block: blocks.first().map_or(1, |b| b.tokens.len()) };
        for ((index, layer), kv_layer) in model.layers.iter().enumerate().zip(kv.layers) {
            match self.convolutions.get(index) {
                None => self.layer(workspace, pool, kv_layer, &rows, (index, layer)),
                Some(around) => self.convolved_layer(workspace, pool, kv_layer, &rows, (index, layer), around),
            }
        }
        model.finish(workspace, pool, &plan, taps);
        workspace.plan = plan;
        Ok(Output { logits: &workspace.logits, taps: &workspace.taps })
    }

    fn layer(
        &self,
        workspace: &mut Workspace,
        pool: &Pool,
        kv_layer: &mut KvLayer,
        rows: &Rows<'_>,
        (index, layer): (usize, &Layer),
    ) {
        let (model, count) = (&self.model, rows.around.len());
        let Workspace { hidden, x, .. } = &mut *workspace;
        model.norm(x, pool, hidden, count, &layer.input_norm, &[&layer.q, &layer.k, &layer.v]);
        model.write(workspace, pool, kv_layer, &rows.plan.slots, layer);
        self.see(workspace, pool, kv_layer, rows, (index, layer));
        let (Workspace { hidden, x, attended, .. }, q_width) = (&mut *workspace, model.config.q_width());
        model.project(x, pool, hidden, count, &layer.o, |row, out| {
            out.copy_from_slice(&attended[row * q_width..(row + 1) * q_width]);
        });
        model.feed_forward(workspace, pool, count, layer);
    }

    /// The same with convolutions on both sides of both sublayers.
    fn convolved_layer(
        &self,
        workspace: &mut Workspace,
        pool: &Pool,
        kv_layer: &mut KvLayer,
        rows: &Rows<'_>,
        (index, layer): (usize, &Layer),
        [attention, mlp]: &[Convolution; 2],
    ) {
        let (model, q_width) = (&self.model, self.model.config.q_width());
        let count = rows.around.len();
        self.enter(workspace, pool, rows, attention, &layer.input_norm, &[&layer.q, &layer.k, &layer.v]);
        model.write(workspace, pool, kv_layer, &rows.plan.slots, layer);
        self.see(workspace, pool, kv_layer, rows, (index, layer));
        let Workspace { x, attended, .. } = &mut *workspace;
        let matrix = &layer.o.matrix;
        x.fill(pool, model.isa, (count, q_width), matrix.format().is_quantised(), |row, out| {
            out.copy_from_slice(&attended[row * q_width..(row + 1) * q_width]);
        });
        self.leave(workspace, pool, rows, attention, &layer.o);
        self.enter(workspace, pool, rows, mlp, &layer.post_norm, &[&layer.gate, &layer.up]);
        model.widen(workspace, pool, layer);
        let Workspace { x, gate, up, .. } = &mut *workspace;
        let matrix = &layer.down.matrix;
        x.fill(pool, model.isa, (count, matrix.inputs()), matrix.format().is_quantised(), |row, out| {
            model.gated(gate, up, row, out);
        });
        self.leave(workspace, pool, rows, mlp, &layer.down);
    }

    /// Norms the residual stream, convolves it, and puts it to the left of `linears`.
    fn enter(
        &self,
        workspace: &mut Workspace,
        pool: &Pool,
        rows: &Rows<'_>,
        around: &Convolution,
        norm: &[f32],
        linears: &[&Linear],
    ) {
        let (isa, eps, width) = (self.model.isa, self.model.config.norm_eps, self.model.config.hidden);
        let Workspace { hidden, x, convolution, .. } = workspace;
        convolution.before.resize(hidden.len(), 0.0);
        pool.for_each_row(&mut convolution.before, rows.around.len(), |row, out| {
            rms_norm(isa, &hidden[row * width..(row + 1) * width], norm, eps, out);
        });
        around.look(x, pool, isa, convolution);
        around.run(pool, Side::Before, rows.block, convolution);
        let quantise = linears.iter().any(|linear| linear.matrix.format().is_quantised());
        x.fill(pool, isa, (rows.around.len(), width), quantise, |row, out| {
            out.copy_from_slice(&convolution.after[row * width..(row + 1) * width]);
        });
    }

    /// Multiplies what lies to the left by a sublayer's last matrix, convolves that and adds it to the residual stream.
    fn leave(&self, workspace: &mut Workspace, pool: &Pool, rows: &Rows<'_>, around: &Convolution, last: &Linear) {
        let (model, width) = (&self.model, self.model.config.hidden);
        let Workspace { hidden, x, convolution, .. } = workspace;
        multiply(pool, x, &mut [Product::new(&last.matrix, &mut convolution.before)]);
        model.add_bias(pool, last, &mut convolution.before);
        around.run(pool, Side::After, rows.block, convolution);
        pool.for_each_row(hidden, rows.around.len(), |row, out| {
            add(model.isa, out, &convolution.after[row * width..(row + 1) * width]);
        });
    }

    /// What all rows find at the positions that they see in a layer.
    fn see(
        &self,
        workspace: &mut Workspace,
        pool: &Pool,
        kv_layer: &KvLayer,
        rows: &Rows<'_>,
        (index, layer): (usize, &Layer),
    ) {
        match (self.sight[index], layer.window) {
            (Sight::Back, window) => self.model.see(workspace, pool, kv_layer, rows.back, window, 0),
            (Sight::Around, None) => self.model.see(workspace, pool, kv_layer, rows.around, None, 0),
            (Sight::Around, Some(window)) => self.see_around(workspace, pool, kv_layer, rows, window),
        }
    }

    /// Each row sees as far back as the window reaches from its own place, and all of the block. The kernel counts a window
    /// from the last position that a row sees, the block's end: rows at the same place of their blocks go together, with
    /// a window that is longer by what lies between.
    fn see_around(&self, workspace: &mut Workspace, pool: &Pool, kv_layer: &KvLayer, rows: &Rows<'_>, window: usize) {
        let (config, width) = (&self.model.config, self.model.config.q_width());
        let Workspace { q, attended, .. } = workspace;
        for place in 0..rows.block {
            let sees: Vec<AttentionRow<'_>> = rows.around.iter().skip(place).step_by(rows.block).copied().collect();
            let attention = kernels::Attention {
                heads: config.heads,
                scale: 1.0 / (config.head_dim as f32).sqrt(),
                window: Some(window + rows.block - 1 - place),
                first: 0,
            };
            let queries = Strided { data: &q[place * width..], stride: rows.block * width };
            let out = Strided { data: &mut attended[place * width..], stride: rows.block * width };
            attention.attend(pool, self.model.isa, kv_layer, &sees, queries, out);
        }
    }
}

/// The rows of blocks in a forward.
struct Rows<'a> {
    plan: &'a Plan,
    /// What they see where all see all.
    around: &'a [AttentionRow<'a>],
    /// What they see where they see those before them; empty where no layer does.
    back: &'a [AttentionRow<'a>],
    /// Rows of a block.
    block: usize,
}
