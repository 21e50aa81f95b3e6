//! The backbone of block drafts: layers that look at a target's hidden states beside a block of tokens (DFlash, Chen et al.
//! 2026; DSpark).
//!
//! A layer's keys and values of a committed position are projections of the target's features there, the same for every
//! block to come: they are written once, when the target has run, into layers [attached](kv::KvCache::attach) to the
//! target's pages. A block is a forward like any other, whose rows all see each other. Which tokens are drafted may not
//! enter.

use std::sync::Arc;

use kernels::{KvFormat, Pool, Product, Strided, multiply, rms_norm};
use kv::Layers;

use super::{Model, Output, Workspace};
use crate::batch::{ForwardError, Segment, Tap};
use crate::config::Config;
use crate::load::{Linear, LoadError, LoadOptions, Loader};
use crate::weights::Weights;

/// The layers of a block draft, between the target's embedding and its head.
pub struct Backbone {
    model: Model,
    /// From the features of all taps to one: `[hidden, taps * hidden of the target]`.
    fuse: Linear,
    /// `[hidden]`
    fused_norm: Vec<f32>,
    /// Width of one feature.
    feature: usize,
}

impl Backbone {
    /// Loads the layers of a draft that reads `taps` hidden states of `target`, whose embedding it has, and whose head unless
    /// it has one of its own that knows so many tokens.
    ///
    /// # Errors
    /// When a tensor is missing, has the wrong shape or a format that cannot be used.
    pub fn load(
        weights: &Weights,
        config: Config,
        (taps, head): (usize, Option<usize>),
        target: &Model,
        pool: &Pool,
        options: LoadOptions,
    ) -> Result<Backbone, LoadError> {
        let loader = Loader::new(weights, pool, options, "");
        let feature = target.config.hidden;
        let hidden = config.hidden;
        let fuse = loader.linear("fc", [hidden, taps * feature], false)?;
        let fused_norm = loader.vector("hidden_norm.weight", hidden)?;
        let embedding = Arc::clone(&target.embedding);
        // A head that is tied to an embedding is the embedding.
        let head = match head {
            Some(known) => Some(Arc::new(loader.matrix("lm_head.weight", [known, hidden])?)),
            None => target.head.clone(),
        };
        let model = Model::body(&loader, options.isa, config, embedding, head)?;
        Ok(Backbone { model, fuse, fused_norm, feature })
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
        let Backbone { model, fuse, fused_norm, feature } = self;
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

    /// Runs blocks: the logits that the segments ask for, and the hidden states of all rows after the final norm as the
    /// only tap. The keys and values of the blocks' rows are written to their slots, where the next rows that the target
    /// computes there overwrite them.
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
        self.model.forward_in(workspace, pool, kv, blocks, &[Tap::Final])
    }
}
