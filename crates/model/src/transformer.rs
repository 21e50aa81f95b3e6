//! The forward: rows of tokens in, logits and hidden states out.
//!
//! Plain arithmetic in the order of the model, one operation of crate `kernels` after another over all rows of the
//! batch. Nothing here depends on how many rows there are but the lengths of the loops: a row's result is the same in
//! every batch. Requests, sampling and the choice of what to run may not enter.

mod block;
mod convolution;
mod eagle;
mod prefix;
mod skip;

use std::sync::Arc;

use kernels::{
    Activations, Attention, AttentionRow, Isa, KvFormat, KvLayer, KvSlot, Matrix, Pool, Product, Rope, Strided, add,
    multiply, rms_norm, rms_norm_in_place, silu_mul,
};
use kv::{KvCache, Layers};

use crate::architecture::{self, Layer};
use crate::batch::{ForwardError, Plan, Segment, Tap};
use crate::config::Config;
use crate::load::{Linear, LoadError, LoadOptions, Loader};
use crate::weights::Weights;

pub use block::{Backbone, BlockShape, Sight};
pub use convolution::ConvolutionShape;
pub use eagle::{Eagle, EagleKind, EagleShape};
pub use prefix::PrefixLayer;
pub use skip::SkipError;

/// A loaded model.
///
/// What is large lies behind `Arc`, so that a model without some of its layers costs no memory of its own.
pub struct Model {
    config: Config,
    isa: Isa,
    rope: Rope,
    /// `[vocab, hidden]`
    embedding: Arc<Matrix>,
    layers: Vec<Arc<Layer>>,
    /// `[hidden]`; `None`: the head takes what comes out of the layers.
    norm: Option<Vec<f32>>,
    /// `[vocab, hidden]`; `None`: the embedding.
    head: Option<Arc<Matrix>>,
}

/// The buffers of a forward and its results, reused from step to step.
#[derive(Debug, Default)]
pub struct Workspace {
    plan: Plan,
    /// Cosines and sines of each row's position, `[rows, head_dim]`.
    angles: Vec<f32>,
    /// The residual stream, `[rows, hidden]`.
    hidden: Vec<f32>,
    /// Left side of the products.
    x: Activations,
    /// Queries, `[rows, heads * head_dim]`.
    q: Vec<f32>,
    /// Keys, `[rows, kv_heads * head_dim]`.
    k: Vec<f32>,
    /// Values, `[rows, kv_heads * head_dim]`.
    v: Vec<f32>,
    /// Result of attention, `[rows, heads * head_dim]`.
    attended: Vec<f32>,
    /// `[rows, intermediate]`
    gate: Vec<f32>,
    /// `[rows, intermediate]`
    up: Vec<f32>,
    logits: Vec<f32>,
    taps: Vec<Vec<f32>>,
    convolution: convolution::Buffers,
}

/// What a forward gives.
#[derive(Debug, Clone, Copy)]
pub struct Output<'a> {
    /// Logits of the rows asked for, segment by segment: `[wanted, vocab]`.
    pub logits: &'a [f32],
    /// Hidden states of all rows, one for each tap asked for: `[rows, hidden]`.
    pub taps: &'a [Vec<f32>],
}

impl Model {
    /// Loads and packs the weights of a model that `config` describes.
    ///
    /// # Errors
    /// When a tensor is missing, has the wrong shape or a format that cannot be used.
    pub fn load(weights: &Weights, config: Config, pool: &Pool, options: LoadOptions) -> Result<Model, LoadError> {
        let loader = Loader::new(weights, pool, options, "model.");
        let Config { vocab, hidden, tie_word_embeddings, .. } = config;
        // The largest matrices first: what is held of the file beside them is then least.
        let table = |name: &str| loader.matrix(name, [vocab, hidden]).map(Arc::new);
        let embedding = table(&loader.body("embed_tokens.weight"))?;
        let head = (!tie_word_embeddings).then(|| table("lm_head.weight")).transpose()?;
        Model::body(&loader, options.isa, config, embedding, head)
    }

    /// The layers between an embedding and a head.
    fn body(
        loader: &Loader<'_>,
        isa: Isa,
        config: Config,
        embedding: Arc<Matrix>,
        head: Option<Arc<Matrix>>,
    ) -> Result<Model, LoadError> {
        let layer = |index| architecture::layer(loader, &config, index).map(Arc::new);
        let layers = (0..config.layers).map(layer).collect::<Result<_, _>>()?;
        let norm = Some(loader.vector(&loader.body("norm.weight"), config.hidden)?);
        Ok(Model { isa, rope: Model::rope(&config), embedding, layers, norm, head, config })
    }

    fn rope(config: &Config) -> Rope {
        let (inv_freq, scale) = config.inv_freq();
        Rope::new(inv_freq, scale, config.rope.layout)
    }

    /// The model's shape.
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// The K/V cache that the model needs.
    pub fn kv_layout(&self, format: KvFormat) -> kv::Layout {
        let Config { layers, kv_heads, head_dim, .. } = self.config;
        kv::Layout { layers, kv_heads, head_dim, format }
    }

    /// The embedding of a token that the model knows: `[hidden]`.
    pub fn embed(&self, token: u32, out: &mut [f32]) {
        self.embedding.row(token as usize, out);
    }

    /// Bytes of weights that a forward of one row reads.
    pub fn bytes_per_row(&self) -> usize {
        let layer = |layer: &Arc<Layer>| {
            let Layer { q, k, v, o, gate, up, down, .. } = &**layer;
            [q, k, v, o, gate, up, down].iter().map(|linear| linear.matrix.packed_bytes()).sum::<usize>()
        };
        self.layers.iter().map(layer).sum::<usize>() + self.head().packed_bytes()
    }

    /// Multiply-adds of the matrices in a forward of one row with logits.
    pub fn multiply_adds_per_row(&self) -> usize {
        let layer = |layer: &Arc<Layer>| {
            let Layer { q, k, v, o, gate, up, down, .. } = &**layer;
            let size = |linear: &&Linear| linear.matrix.outputs() * linear.matrix.inputs();
            [q, k, v, o, gate, up, down].iter().map(size).sum::<usize>()
        };
        self.layers.iter().map(layer).sum::<usize>() + self.head().outputs() * self.head().inputs()
    }

    fn head(&self) -> &Matrix {
        self.head.as_deref().unwrap_or(&self.embedding)
    }

    /// Runs every row of `batch`: writes its keys and values to `cache`, and returns the logits that the segments ask
    /// for and the hidden states `taps` of all rows.
    ///
    /// # Errors
    /// [`ForwardError`] when a segment asks for what cannot be; the cache is then untouched.
    pub fn forward<'w>(
        &self,
        workspace: &'w mut Workspace,
        pool: &Pool,
        cache: &mut KvCache,
        batch: &[Segment<'_>],
        taps: &[Tap],
    ) -> Result<Output<'w>, ForwardError> {
        self.forward_in(workspace, pool, cache.layers(), batch, taps)
    }

    /// The same in layers that may be attached to another model's cache.
    ///
    /// # Errors
    /// As [`Model::forward`].
    pub fn forward_in<'w>(
        &self,
        workspace: &'w mut Workspace,
        pool: &Pool,
        kv: Layers<'_>,
        batch: &[Segment<'_>],
        taps: &[Tap],
    ) -> Result<Output<'w>, ForwardError> {
        self.check(&kv, taps)?;
        workspace.plan.make(batch, self.config.vocab, self.config.context)?;
        workspace.size(self, taps.len());
        self.embed_rows(workspace, pool);
        workspace.tap(taps, Tap::Embedding);
        // What each row sees is the same in every layer. It borrows the plan, which therefore steps out of the buffers.
        let plan = std::mem::take(&mut workspace.plan);
        let rows = plan.attention_rows(batch);
        for ((index, layer), kv_layer) in self.layers.iter().enumerate().zip(kv.layers) {
            self.attention(workspace, pool, kv_layer, &plan, &rows, layer);
            self.feed_forward(workspace, pool, rows.len(), layer);
            workspace.tap(taps, Tap::Layer(index));
        }
        self.finish(workspace, pool, &plan, taps);
        workspace.plan = plan;
        Ok(Output { logits: &workspace.logits, taps: &workspace.taps })
    }

    fn check(&self, kv: &Layers<'_>, taps: &[Tap]) -> Result<(), ForwardError> {
        let layers = self.layers.len();
        for tap in taps {
            if let Tap::Layer(layer) = *tap
                && layer >= layers
            {
                return Err(ForwardError::NoSuchLayer { layer, layers });
            }
        }
        let (found, needed) = (kv.layout, self.kv_layout(kv.layout.format));
        if found != needed {
            return Err(ForwardError::Cache { found: format!("{found:?}"), needed: format!("{needed:?}") });
        }
        Ok(())
    }

    /// Embeddings and rotation angles of all rows.
    fn embed_rows(&self, workspace: &mut Workspace, pool: &Pool) {
        let Workspace { plan, angles, hidden, .. } = workspace;
        let rows = plan.tokens.len();
        pool.for_each_row(hidden, rows, |row, out| self.embedding.row(plan.tokens[row] as usize, out));
        pool.for_each_row(angles, rows, |row, out| self.rope.angles(plan.positions[row], out));
    }

    /// Norm, projections, rotation, attention and output projection, added to the residual stream.
    fn attention(
        &self,
        workspace: &mut Workspace,
        pool: &Pool,
        kv_layer: &mut KvLayer,
        plan: &Plan,
        sees: &[AttentionRow<'_>],
        layer: &Layer,
    ) {
        let Workspace { hidden, x, .. } = workspace;
        self.norm(x, pool, hidden, sees.len(), &layer.input_norm, &[&layer.q, &layer.k, &layer.v]);
        self.attend(workspace, pool, kv_layer, &plan.slots, sees, layer, 0);
    }

    /// The same from the left side of the projections on; nobody sees the positions below `first`.
    #[allow(clippy::too_many_arguments, reason = "what a layer's attention is about")]
    fn attend(
        &self,
        workspace: &mut Workspace,
        pool: &Pool,
        kv_layer: &mut KvLayer,
        slots: &[KvSlot],
        sees: &[AttentionRow<'_>],
        layer: &Layer,
        first: usize,
    ) {
        self.write(workspace, pool, kv_layer, slots, layer);
        self.see(workspace, pool, kv_layer, sees, layer.window, first);
        let (Workspace { hidden, x, attended, .. }, q_width) = (workspace, self.config.q_width());
        self.project(x, pool, hidden, sees.len(), &layer.o, |row, out| {
            out.copy_from_slice(&attended[row * q_width..(row + 1) * q_width]);
        });
    }

    /// Queries of all rows, and their keys and values into their slots.
    fn write(&self, workspace: &mut Workspace, pool: &Pool, kv_layer: &mut KvLayer, slots: &[KvSlot], layer: &Layer) {
        let kv_width = self.config.kv_width();
        let Workspace { angles, x, q, k, v, .. } = workspace;
        let rows = slots.len();
        multiply(
            pool,
            x,
            &mut [Product::new(&layer.q.matrix, q), Product::new(&layer.k.matrix, k), Product::new(&layer.v.matrix, v)],
        );
        let [q_norm, k_norm] = layer.qk_norm.as_ref().map_or([None; 2], |[q, k]| [Some(q), Some(k)]);
        let angles_len = self.rope.angles_len();
        pool.for_each_row_of_two((q, k), rows, |row, q, k| {
            let angles = &angles[row * angles_len..(row + 1) * angles_len];
            self.place(q, angles, &layer.q, q_norm);
            self.place(k, angles, &layer.k, k_norm);
        });
        self.add_bias(pool, &layer.v, v);
        let (keys, values) = (Strided { data: &k[..], stride: kv_width }, Strided { data: &v[..], stride: kv_width });
        kv_layer.append(pool, self.isa, slots, keys, values);
    }

    /// What all rows find at the positions that they see.
    fn see(
        &self,
        workspace: &mut Workspace,
        pool: &Pool,
        kv_layer: &KvLayer,
        sees: &[AttentionRow<'_>],
        window: Option<usize>,
        first: usize,
    ) {
        let (config, q_width) = (&self.config, self.config.q_width());
        let Workspace { q, attended, .. } = workspace;
        let scale = 1.0 / (config.head_dim as f32).sqrt();
        let attention = Attention { heads: config.heads, scale, window, first };
        let queries = Strided { data: &q[..], stride: q_width };
        let out = Strided { data: &mut attended[..], stride: q_width };
        attention.attend(pool, self.isa, kv_layer, sees, queries, out);
    }

    /// Norm and gated feed-forward, added to the residual stream.
    fn feed_forward(&self, workspace: &mut Workspace, pool: &Pool, rows: usize, layer: &Layer) {
        let Workspace { hidden, x, .. } = &mut *workspace;
        self.norm(x, pool, hidden, rows, &layer.post_norm, &[&layer.gate, &layer.up]);
        self.widen(workspace, pool, layer);
        let Workspace { hidden, x, gate, up, .. } = workspace;
        self.project(x, pool, hidden, rows, &layer.down, |row, out| self.gated(gate, up, row, out));
    }

    /// The two products that the feed-forward's gate is made of.
    fn widen(&self, workspace: &mut Workspace, pool: &Pool, layer: &Layer) {
        let Workspace { x, gate, up, .. } = workspace;
        multiply(pool, x, &mut [Product::new(&layer.gate.matrix, gate), Product::new(&layer.up.matrix, up)]);
        self.add_bias(pool, &layer.gate, gate);
        self.add_bias(pool, &layer.up, up);
    }

    /// What goes into the last product of the feed-forward, of one row.
    fn gated(&self, gate: &[f32], up: &[f32], row: usize, out: &mut [f32]) {
        let row = row * self.config.intermediate..(row + 1) * self.config.intermediate;
        silu_mul(self.isa, &gate[row.clone()], &up[row], out);
    }

    /// Final norm and head, for the rows whose logits are wanted.
    fn finish(&self, workspace: &mut Workspace, pool: &Pool, plan: &Plan, taps: &[Tap]) {
        let Workspace { hidden, x, logits, taps: tapped, .. } = workspace;
        let width = self.config.hidden;
        let norm = |row: usize, out: &mut [f32]| {
            let row = &hidden[row * width..(row + 1) * width];
            match &self.norm {
                Some(norm) => rms_norm(self.isa, row, norm, self.config.norm_eps, out),
                None => out.copy_from_slice(row),
            }
        };
        for (tap, out) in taps.iter().zip(tapped) {
            if *tap == Tap::Final {
                pool.for_each_row(out, plan.tokens.len(), norm);
            }
        }
        let head = self.head();
        let shape = (plan.logit_rows.len(), width);
        x.fill(pool, self.isa, shape, head.format().is_quantised(), |row, out| norm(plan.logit_rows[row], out));
        multiply(pool, x, &mut [Product::new(head, logits)]);
    }

    /// Norms the residual stream into `x`, in the form that `linears` need. Without a weight it goes there as it is.
    fn norm(&self, x: &mut Activations, pool: &Pool, hidden: &[f32], rows: usize, weight: &[f32], linears: &[&Linear]) {
        let width = self.config.hidden;
        let quantise = linears.iter().any(|linear| linear.matrix.format().is_quantised());
        x.fill(pool, self.isa, (rows, width), quantise, |row, out| {
            let row = &hidden[row * width..(row + 1) * width];
            match weight.is_empty() {
                false => rms_norm(self.isa, row, weight, self.config.norm_eps, out),
                true => out.copy_from_slice(row),
            }
        });
    }

    /// Fills `x` row by row, multiplies it by `linear` and adds the result to the residual stream.
    fn project(
        &self,
        x: &mut Activations,
        pool: &Pool,
        hidden: &mut [f32],
        rows: usize,
        linear: &Linear,
        write: impl Fn(usize, &mut [f32]) + Sync,
    ) {
        let matrix = &linear.matrix;
        x.fill(pool, self.isa, (rows, matrix.inputs()), matrix.format().is_quantised(), write);
        multiply(pool, x, &mut [Product { accumulate: true, ..Product::new(matrix, hidden) }]);
        self.add_bias(pool, linear, hidden);
    }

    /// Bias, norm where there is one, and rotation of every head of `part`, `[heads * head_dim]`.
    fn place(&self, part: &mut [f32], angles: &[f32], linear: &Linear, norm: Option<&Vec<f32>>) {
        if let Some(bias) = &linear.bias {
            add(self.isa, part, bias);
        }
        for head in part.chunks_exact_mut(self.config.head_dim) {
            if let Some(norm) = norm {
                rms_norm_in_place(self.isa, head, norm, self.config.norm_eps);
            }
            self.rope.rotate(self.isa, head, angles);
        }
    }

    /// Adds the bias, where there is one, to every row of `values`, `[rows, out]`.
    fn add_bias(&self, pool: &Pool, linear: &Linear, values: &mut [f32]) {
        if let Some(bias) = &linear.bias {
            pool.for_each_row(values, values.len() / bias.len(), |_, row| add(self.isa, row, bias));
        }
    }
}

impl Workspace {
    /// No buffers yet.
    pub fn new() -> Workspace {
        Workspace::default()
    }

    /// Makes every buffer as long as the planned rows need.
    fn size(&mut self, model: &Model, taps: usize) {
        let config = &model.config;
        let (rows, q_width) = (self.plan.tokens.len(), config.q_width());
        for (buffer, width) in [
            (&mut self.angles, model.rope.angles_len()),
            (&mut self.hidden, config.hidden),
            (&mut self.q, q_width),
            (&mut self.k, config.kv_width()),
            (&mut self.v, config.kv_width()),
            (&mut self.attended, q_width),
            (&mut self.gate, config.intermediate),
            (&mut self.up, config.intermediate),
        ] {
            buffer.resize(rows * width, 0.0);
        }
        self.logits.resize(self.plan.logit_rows.len() * model.head().outputs(), 0.0);
        self.taps.resize_with(taps, Vec::new);
        for tap in &mut self.taps {
            tap.resize(rows * config.hidden, 0.0);
        }
    }

    /// Copies the residual stream to every tap that is `reached`.
    fn tap(&mut self, taps: &[Tap], reached: Tap) {
        for (tap, out) in taps.iter().zip(&mut self.taps) {
            if *tap == reached {
                out.copy_from_slice(&self.hidden);
            }
        }
    }
}
