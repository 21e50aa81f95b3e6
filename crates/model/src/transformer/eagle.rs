//! The layer of feature-level drafts: a target's hidden state at a position and the token after it in, a guess of the hidden
//! state there out (EAGLE, Li et al. 2024, arXiv 2401.15077; EAGLE-3, Li et al. 2025, arXiv 2503.01840; the modules for
//! multi-token prediction of DeepSeek-V3, arXiv 2412.19437).
//!
//! A row is a pair: the token of its own position, and the feature of the position before. So the keys and values at a
//! position depend on the text up to there and no further, like the target's own, and lie in the same slot of layers
//! [attached](kv::KvCache::attach) to its pages. The first position has no pair, and nobody sees its slot. Rotation counts
//! pairs: the row at position p is at angle p − 1. Where several modules follow each other, each takes for the feature of a
//! position what the one before it gave there, so that each has its first pair a position later. Which tokens are drafted
//! may not enter.

mod load;

use kernels::{KvFormat, KvSlot, Pool, Product, Strided, multiply, rms_norm, rms_norm_in_place};
use kv::{Layers, Layout};

use super::{Model, Output, Workspace};
use crate::batch::{ForwardError, Later, Plan, Segment, Tap};
use crate::config::Config;
use crate::load::Linear;

/// How such a draft puts a token and a feature together.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EagleKind {
    /// EAGLE-1 and 2: one matrix makes one row of both, and the layer and the head do without a norm before them. The
    /// feature is the target's last hidden state.
    First,
    /// EAGLE-3: the projections take both side by side, each normed. The feature is fused from so many hidden states.
    Third {
        /// Hidden states of the target that are fused into one feature.
        taps: usize,
        /// The normed feature goes on beside the attention, and not the feature as it came.
        normed_residual: bool,
    },
    /// A module for multi-token prediction: one matrix makes one row of both, each normed. The feature is the target's last
    /// hidden state. The module is layer `layer` of the checkpoint.
    Module {
        /// Its number.
        layer: usize,
    },
    /// A module as Qwen3-Next has it: weights of norms are stored less 1, all modules share what is not their layer, and the
    /// feature of the next one is normed.
    Next {
        /// Its number among the modules.
        layer: usize,
    },
}

/// What a checkpoint of such a draft has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EagleShape {
    /// How it puts a token and a feature together.
    pub kind: EagleKind,
    /// Tokens that its own head knows; `None`: it has the target's head.
    pub head: Option<usize>,
    /// Modules that come before it.
    pub depth: usize,
}

/// A token's embedding and a feature put together.
enum Joint {
    /// For projections that take both.
    Wide {
        /// `[hidden]`
        feature_norm: Vec<f32>,
        normed_residual: bool,
    },
    /// `[hidden, 2 * hidden]`, and the norms before it, of the embedding and of the feature.
    Fused { fuse: Linear, norms: Option<[Vec<f32>; 2]>, first_embedding_is_zero: bool },
}

/// The layer, between the target's embedding and a head.
pub struct Eagle {
    /// Of one layer.
    model: Model,
    joint: Joint,
    /// From the hidden states of all taps to one feature: `[hidden, taps * hidden of the target]`. `None`: the one hidden
    /// state is the feature.
    fuse: Option<Linear>,
    /// Width of a hidden state of the target.
    tapped: usize,
    /// Modules that come before it: so many positions beside the first have no pair.
    depth: usize,
    /// The feature of the next row is what the head takes, and not what comes out of the layer.
    normed_feature: bool,
}

impl Eagle {
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
    /// values of all pairs: `taps`, `[rows, hidden of the target]` each. Where modules come before it, the only tap is what
    /// they gave ([`Eagle::features`]) for the same batch.
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
        // The first position of a text has no pair, and with each module before this one, one more.
        let (first, later) = (self.depth + 1, Later::new(batch, self.depth + 1));
        workspace.plan.make(&later.from(self.depth), usize::MAX, usize::MAX)?;
        let plan = std::mem::take(&mut workspace.plan);
        self.fuse(workspace, pool, plan.tokens.len(), taps);
        let width = self.model.config.hidden;
        let half = width / 2;
        let part = |from: usize| Strided { data: &workspace.hidden[from..], stride: width };
        if !plan.tokens.is_empty() {
            features.layers[0].append(pool, self.model.isa, &plan.slots, part(0), part(half));
        }
        workspace.plan = plan;
        let pairs = later.from(first);
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

    /// What stands for the features of the rows that were run last, for the module that comes after it: `[rows, hidden]`.
    pub fn features(&self, workspace: &Workspace, pool: &Pool) -> Vec<f32> {
        let mut features = workspace.hidden.clone();
        let Model { isa, norm, config, .. } = &self.model;
        if let (true, Some(norm)) = (self.normed_feature && !features.is_empty(), norm) {
            let rows = features.len() / config.hidden;
            pool.for_each_row(&mut features, rows, |_, row| rms_norm_in_place(*isa, row, norm, config.norm_eps));
        }
        features
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
        self.model.finish(workspace, pool, &plan, if self.normed_feature { &[Tap::Final] } else { &[] });
        workspace.plan = plan;
        Ok(Output { logits: &workspace.logits, taps: &workspace.taps[..1] })
    }

    /// One feature of each row from the hidden states of all taps.
    fn fuse(&self, workspace: &mut Workspace, pool: &Pool, rows: usize, taps: &[&[f32]]) {
        let Eagle { model, fuse, tapped, .. } = self;
        let Workspace { hidden, x, .. } = workspace;
        hidden.resize(rows * model.config.hidden, 0.0);
        let Some(fuse) = fuse else {
            return taps.iter().take(1).for_each(|state| hidden.copy_from_slice(state));
        };
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
        let Eagle { model, joint, depth, .. } = self;
        let layer = &model.layers[0];
        workspace.size(model, 0);
        let plan: Plan = std::mem::take(&mut workspace.plan);
        let rows = plan.tokens.len();
        let positions = &plan.positions;
        pool.for_each_row(&mut workspace.angles, rows, |row, out| {
            model.rope.angles(positions[row].saturating_sub(1), out);
        });
        self.join(workspace, pool, &plan, features);
        if let Joint::Fused { .. } = joint {
            let Workspace { hidden, x, .. } = workspace;
            model.norm(x, pool, hidden, rows, &layer.input_norm, &[&layer.q, &layer.k, &layer.v]);
        }
        let sees = plan.attention_rows(batch);
        model.attend(workspace, pool, &mut own.layers[0], &plan.slots, &sees, layer, depth + 1);
        model.feed_forward(workspace, pool, rows, layer);
        workspace.plan = plan;
    }

    /// Puts the rows' embeddings and features together: what goes on beside the attention into the residual stream, and
    /// where the projections take both, their left side.
    fn join(&self, workspace: &mut Workspace, pool: &Pool, plan: &Plan, features: &[f32]) {
        let Eagle { model, joint, .. } = self;
        let (layer, isa, eps) = (&model.layers[0], model.isa, model.config.norm_eps);
        let (rows, width) = (plan.tokens.len(), model.config.hidden);
        let Workspace { hidden, x, up, .. } = workspace;
        // The embeddings, for a while.
        let inner = up.len();
        up.resize(rows * width, 0.0);
        pool.for_each_row(up, rows, |row, out| model.embedding.row(plan.tokens[row] as usize, out));
        let of = |row: usize| row * width..(row + 1) * width;
        match joint {
            Joint::Wide { feature_norm, normed_residual } => {
                let quantise =
                    [&layer.q, &layer.k, &layer.v].iter().any(|linear| linear.matrix.format().is_quantised());
                x.fill(pool, isa, (rows, 2 * width), quantise, |row, out| {
                    let (first, second) = out.split_at_mut(width);
                    rms_norm(isa, &up[of(row)], &layer.input_norm, eps, first);
                    rms_norm(isa, &features[of(row)], feature_norm, eps, second);
                });
                hidden.copy_from_slice(&features[..rows * width]);
                if *normed_residual {
                    pool.for_each_row(hidden, rows, |_, row| rms_norm_in_place(isa, row, feature_norm, eps));
                }
            }
            Joint::Fused { fuse, norms, first_embedding_is_zero } => {
                x.fill(pool, isa, (rows, 2 * width), fuse.matrix.format().is_quantised(), |row, out| {
                    let (first, second) = out.split_at_mut(width);
                    match norms {
                        Some([embedding, feature]) => {
                            rms_norm(isa, &up[of(row)], embedding, eps, first);
                            rms_norm(isa, &features[of(row)], feature, eps, second);
                        }
                        None => {
                            first.copy_from_slice(&up[of(row)]);
                            second.copy_from_slice(&features[of(row)]);
                        }
                    }
                    if *first_embedding_is_zero && plan.positions[row] <= 1 {
                        first.fill(0.0);
                    }
                });
                multiply(pool, x, &mut [Product::new(&fuse.matrix, hidden)]);
                model.add_bias(pool, fuse, hidden);
            }
        }
        up.resize(inner, 0.0);
    }
}
