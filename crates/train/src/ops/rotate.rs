//! Rotary position embedding.

use std::sync::Arc;

use candle_core::{CpuStorage, CustomOp1, Layout, Result, Shape, Tensor};
use rayon::prelude::*;

use super::{numbers, values};

/// Cosines and sines of the positions of some rows.
#[derive(Debug, Clone)]
pub(crate) struct Rotation {
    /// Pairs of a head.
    half: usize,
    /// For each row the cosines and then the sines: `[rows, 2 * half]`.
    angles: Arc<Vec<f32>>,
}

impl Rotation {
    /// Of rows at these positions: pair i turns by `inv_freq[i]` for each position, and grows by `scale`.
    pub(crate) fn new(inv_freq: &[f32], scale: f32, positions: &[u32]) -> Rotation {
        let angles = positions.iter().flat_map(|&position| {
            let angle = move |freq: &f32| position as f32 * freq;
            let cosines = inv_freq.iter().map(move |freq| angle(freq).cos() * scale);
            cosines.chain(inv_freq.iter().map(move |freq| angle(freq).sin() * scale))
        });
        Rotation { half: inv_freq.len(), angles: Arc::new(angles.collect()) }
    }

    /// Turns every head of all rows, `[rows, heads * 2 * half]`; `sign` -1: back.
    fn turn(&self, rows: &mut [f32], sign: f32) {
        let (half, width) = (self.half, 2 * self.half);
        let count = self.angles.len() / width;
        if count == 0 {
            return;
        }
        let row_width = rows.len() / count;
        rows.par_chunks_mut(row_width).zip(self.angles.par_chunks(width)).with_min_len(64).for_each(|(row, angles)| {
            let (cosines, sines) = angles.split_at(half);
            for head in row.chunks_exact_mut(width) {
                let (first, second) = head.split_at_mut(half);
                for (((a, b), cos), sin) in first.iter_mut().zip(second).zip(cosines).zip(sines) {
                    (*a, *b) = (*a * cos - *b * sin * sign, *b * cos + *a * sin * sign);
                }
            }
        });
    }
}

struct Rotate(Rotation);

/// Turns number i of every head with number i + half, by the row's position.
pub(crate) fn rotate(x: &Tensor, rotation: &Rotation) -> Result<Tensor> {
    x.apply_op1(Rotate(rotation.clone()))
}

impl CustomOp1 for Rotate {
    fn name(&self) -> &'static str {
        "rotate"
    }

    fn cpu_fwd(&self, x: &CpuStorage, layout: &Layout) -> Result<(CpuStorage, Shape)> {
        let mut rows = numbers(x, layout)?.to_vec();
        self.0.turn(&mut rows, 1.0);
        Ok((CpuStorage::F32(rows), layout.shape().clone()))
    }

    fn bwd(&self, x: &Tensor, _: &Tensor, gradient: &Tensor) -> Result<Option<Tensor>> {
        let mut rows = values(gradient)?;
        self.0.turn(&mut rows, -1.0);
        Tensor::from_vec(rows, x.shape(), x.device()).map(Some)
    }
}
