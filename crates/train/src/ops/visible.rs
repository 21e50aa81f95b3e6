//! Softmax over the keys that a row sees.

use std::ops::Range;
use std::sync::Arc;

use candle_core::{CpuStorage, CustomOp1, Layout, Result, Shape, Tensor};
use rayon::prelude::*;

use super::{numbers, values};

/// What the rows of an attention see.
#[derive(Debug, Clone)]
pub(crate) struct Visible {
    /// For each row two ranges of keys.
    keys: Arc<Vec<[Range<usize>; 2]>>,
    /// Consecutive rows of scores that belong to one of these: the heads that share keys.
    group: usize,
    scale: f32,
}

impl Visible {
    /// `keys`: for each row two ranges that do not meet, not both empty; `group`: rows of scores to each; `scale`: factor on
    /// scores.
    pub(crate) fn new(keys: Vec<[Range<usize>; 2]>, group: usize, scale: f32) -> Visible {
        Visible { keys: Arc::new(keys), group, scale }
    }

    fn of(&self, row: usize) -> &[Range<usize>; 2] {
        &self.keys[row / self.group % self.keys.len()]
    }
}

struct VisibleSoftmax(Visible);

/// Weights of keys from their scores, `[heads, rows * group, keys]`: softmax over what each row sees, and 0 elsewhere.
pub(crate) fn visible_softmax(scores: &Tensor, visible: &Visible) -> Result<Tensor> {
    scores.apply_op1(VisibleSoftmax(visible.clone()))
}

fn exponentials(scores: &[f32], weights: &mut [f32], (greatest, scale): (f32, f32)) -> f32 {
    let mut sum = 0.0;
    for (score, weight) in scores.iter().zip(weights) {
        *weight = ((score - greatest) * scale).exp();
        sum += *weight;
    }
    sum
}

impl CustomOp1 for VisibleSoftmax {
    fn name(&self) -> &'static str {
        "visible softmax"
    }

    fn cpu_fwd(&self, scores: &CpuStorage, layout: &Layout) -> Result<(CpuStorage, Shape)> {
        let (scores, Self(visible)) = (numbers(scores, layout)?, self);
        let keys = layout.dims().last().copied().unwrap_or(1).max(1);
        let mut out = vec![0.0; scores.len()];
        out.par_chunks_mut(keys).zip(scores.par_chunks(keys)).with_min_len(32).enumerate().for_each(
            |(row, (out, scores))| {
                let ranges = visible.of(row);
                let seen = ranges.iter().flat_map(|range| &scores[range.clone()]);
                let greatest = seen.fold(f32::NEG_INFINITY, |a, &b| a.max(b));
                let at = (greatest, visible.scale);
                let sum: f32 =
                    ranges.iter().map(|range| exponentials(&scores[range.clone()], &mut out[range.clone()], at)).sum();
                ranges.iter().for_each(|range| out[range.clone()].iter_mut().for_each(|weight| *weight /= sum));
            },
        );
        Ok((CpuStorage::F32(out), layout.shape().clone()))
    }

    fn bwd(&self, scores: &Tensor, weights: &Tensor, gradient: &Tensor) -> Result<Option<Tensor>> {
        let (weights, mut gradients, Self(visible)) = (values(weights)?, values(gradient)?, self);
        let keys = scores.dims().last().copied().unwrap_or(1).max(1);
        gradients.par_chunks_mut(keys).zip(weights.par_chunks(keys)).with_min_len(32).for_each(
            |(gradients, weights)| {
                // Where nothing is seen the weight is 0, and so is the gradient.
                let mean: f32 = gradients.iter().zip(weights).map(|(gradient, weight)| gradient * weight).sum();
                let scale = visible.scale;
                gradients
                    .iter_mut()
                    .zip(weights)
                    .for_each(|(gradient, weight)| *gradient = weight * (*gradient - mean) * scale);
            },
        );
        Tensor::from_vec(gradients, scores.shape(), scores.device()).map(Some)
    }
}
