//! The gate of a feed-forward.

use candle_core::{CpuStorage, CustomOp2, Layout, Result, Shape, Tensor};
use rayon::prelude::*;

use super::{numbers, values};

/// Numbers that a thread takes at a time.
const PART: usize = 1 << 14;

struct SiluMul;

/// `silu(gate) * up`, number by number.
pub(crate) fn silu_mul(gate: &Tensor, up: &Tensor) -> Result<Tensor> {
    gate.apply_op2(up, SiluMul)
}

fn sigmoid(x: f32) -> f32 {
    1.0 / (1.0 + (-x).exp())
}

impl CustomOp2 for SiluMul {
    fn name(&self) -> &'static str {
        "silu mul"
    }

    fn cpu_fwd(&self, gate: &CpuStorage, layout: &Layout, up: &CpuStorage, of: &Layout) -> Result<(CpuStorage, Shape)> {
        let (gate, up) = (numbers(gate, layout)?, numbers(up, of)?);
        let mut out = vec![0.0; gate.len()];
        out.par_iter_mut().zip(gate).zip(up).with_min_len(PART).for_each(|((out, &g), &u)| *out = g * sigmoid(g) * u);
        Ok((CpuStorage::F32(out), layout.shape().clone()))
    }

    fn bwd(
        &self,
        gate: &Tensor,
        up: &Tensor,
        _: &Tensor,
        gradient: &Tensor,
    ) -> Result<(Option<Tensor>, Option<Tensor>)> {
        let (mut gates, mut ups, gradients) = (values(gate)?, values(up)?, values(gradient)?);
        gates.par_iter_mut().zip(&mut ups).zip(&gradients).with_min_len(PART).for_each(|((gate, up), &gradient)| {
            let s = sigmoid(*gate);
            let silu = *gate * s;
            (*gate, *up) = (gradient * *up * (s + silu * (1.0 - s)), gradient * silu);
        });
        let of = |values: Vec<f32>| Tensor::from_vec(values, gate.shape(), gate.device());
        Ok((Some(of(gates)?), Some(of(ups)?)))
    }
}
