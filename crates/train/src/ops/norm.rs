//! RMSNorm.

use candle_core::{CpuStorage, CustomOp2, Layout, Result, Shape, Tensor};
use rayon::prelude::*;

use super::{numbers, values};

/// Rows whose gradients of the weight are summed by one thread.
const PART: usize = 64;

struct RmsNorm {
    eps: f32,
}

/// Rows of `x`, `[.., n]`, divided by their root mean square and multiplied by `weight`, `[n]`.
pub(crate) fn rms_norm(x: &Tensor, weight: &Tensor, eps: f32) -> Result<Tensor> {
    x.apply_op2(weight, RmsNorm { eps })
}

impl RmsNorm {
    /// One by the root mean square.
    fn factor(&self, row: &[f32]) -> f32 {
        let squares: f32 = row.iter().map(|x| x * x).sum();
        1.0 / (squares / row.len() as f32 + self.eps).sqrt()
    }

    /// The gradient of a row into `out`, and that of the weight added to `weight_out`.
    fn row_gradient(&self, [row, weight, gradient]: [&[f32]; 3], out: &mut [f32], weight_out: &mut [f32]) {
        let factor = self.factor(row);
        let mut along = 0.0;
        for (((&x, &w), &g), sum) in row.iter().zip(weight).zip(gradient).zip(&mut *weight_out) {
            along += g * w * x;
            *sum += g * x * factor;
        }
        let back = along * factor * factor * factor / row.len() as f32;
        for (((&x, &w), &g), out) in row.iter().zip(weight).zip(gradient).zip(out) {
            *out = g * w * factor - x * back;
        }
    }
}

impl CustomOp2 for RmsNorm {
    fn name(&self) -> &'static str {
        "rms norm"
    }

    fn cpu_fwd(
        &self,
        x: &CpuStorage,
        layout: &Layout,
        weight: &CpuStorage,
        of: &Layout,
    ) -> Result<(CpuStorage, Shape)> {
        let (x, weight) = (numbers(x, layout)?, numbers(weight, of)?);
        let mut out = vec![0.0; x.len()];
        out.par_chunks_mut(weight.len()).zip(x.par_chunks(weight.len())).with_min_len(PART).for_each(|(out, row)| {
            let factor = self.factor(row);
            out.iter_mut().zip(row).zip(weight).for_each(|((out, x), w)| *out = x * factor * w);
        });
        Ok((CpuStorage::F32(out), layout.shape().clone()))
    }

    fn bwd(
        &self,
        x: &Tensor,
        weight: &Tensor,
        _: &Tensor,
        gradient: &Tensor,
    ) -> Result<(Option<Tensor>, Option<Tensor>)> {
        let (rows, weights, gradients) = (values(x)?, values(weight)?, values(gradient)?);
        let (width, mut out) = (weights.len(), vec![0.0; rows.len()]);
        let parts =
            out.par_chunks_mut(PART * width).zip(rows.par_chunks(PART * width)).zip(gradients.par_chunks(PART * width));
        let sums: Vec<Vec<f32>> = parts
            .map(|((out, rows), gradients)| {
                let mut sum = vec![0.0; width];
                for ((out, row), gradient) in
                    out.chunks_exact_mut(width).zip(rows.chunks_exact(width)).zip(gradients.chunks_exact(width))
                {
                    self.row_gradient([row, &weights, gradient], out, &mut sum);
                }
                sum
            })
            .collect();
        let mut total = vec![0.0; width];
        for sum in &sums {
            total.iter_mut().zip(sum).for_each(|(total, part)| *total += part);
        }
        let of = |values: Vec<f32>, like: &Tensor| Tensor::from_vec(values, like.shape(), like.device());
        Ok((Some(of(out, x)?), Some(of(total, weight)?)))
    }
}
