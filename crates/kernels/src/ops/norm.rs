//! Root mean square norm.

use crate::Isa;
use crate::lanes::{self, Kernel, LANES, Lanes};

/// `out = x / sqrt(mean(x²) + eps) * weight` on one row; all slices are `[hidden]`.
///
/// # Panics
/// When the slices differ in length.
pub fn rms_norm(isa: Isa, x: &[f32], weight: &[f32], eps: f32, out: &mut [f32]) {
    assert!(x.len() == weight.len() && x.len() == out.len(), "norm of {} by {}", x.len(), weight.len());
    out.copy_from_slice(x);
    lanes::run(isa, RmsNorm { x: out, weight, eps });
}

/// [`rms_norm`] with the row itself as output: for the norms of single heads.
///
/// # Panics
/// When the slices differ in length.
pub fn rms_norm_in_place(isa: Isa, x: &mut [f32], weight: &[f32], eps: f32) {
    assert!(x.len() == weight.len(), "norm of {} by {}", x.len(), weight.len());
    lanes::run(isa, RmsNorm { x, weight, eps });
}

struct RmsNorm<'a> {
    x: &'a mut [f32],
    weight: &'a [f32],
    eps: f32,
}

impl Kernel for RmsNorm<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Lanes>(self, s: S) {
        let mean = sum_of_squares(s, self.x) / self.x.len() as f32;
        let inverse = 1.0 / (mean + self.eps).sqrt();
        let factor = s.splat(inverse);
        let (x, x_tail) = self.x.as_chunks_mut::<LANES>();
        let (weight, weight_tail) = self.weight.as_chunks::<LANES>();
        for (x, weight) in x.iter_mut().zip(weight) {
            s.store(s.mul(s.mul(s.load(x), factor), s.load(weight)), x);
        }
        for (x, weight) in x_tail.iter_mut().zip(weight_tail) {
            *x = *x * inverse * weight;
        }
    }
}

/// Four chains of eight lanes, so that the sum of a row does not wait for itself.
#[inline(always)]
fn sum_of_squares<S: Lanes>(s: S, x: &[f32]) -> f32 {
    let mut sums = [s.splat(0.0); 4];
    let (vectors, tail) = x.as_chunks::<LANES>();
    let (fours, rest) = vectors.as_chunks::<4>();
    for four in fours {
        for (sum, x) in sums.iter_mut().zip(four) {
            let x = s.load(x);
            *sum = s.mul_add(x, x, *sum);
        }
    }
    for (sum, x) in sums.iter_mut().zip(rest) {
        let x = s.load(x);
        *sum = s.mul_add(x, x, *sum);
    }
    if !tail.is_empty() {
        let x = lanes::load_part(s, tail);
        sums[3] = s.mul_add(x, x, sums[3]);
    }
    lanes::sum(s, s.add(s.add(sums[0], sums[1]), s.add(sums[2], sums[3])))
}
