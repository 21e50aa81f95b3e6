//! Softmax of one row.

use super::exp;
use crate::Isa;
use crate::lanes::{self, Kernel, LANES, Lanes};

/// `x = e^(x - max) / Σ e^(x - max)`. A row with a number that is not finite, other than -∞ beside finite ones (which
/// gives 0), becomes not a number throughout.
pub fn softmax(isa: Isa, x: &mut [f32]) {
    lanes::run(isa, Softmax { x });
}

struct Softmax<'a> {
    x: &'a mut [f32],
}

impl Kernel for Softmax<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Lanes>(self, s: S) {
        let max = s.splat(max(s, self.x));
        let (x, tail) = self.x.as_chunks_mut::<LANES>();
        let mut sum = s.splat(0.0);
        for x in x.iter_mut() {
            let e = exp(s, s.sub(s.load(x), max));
            sum = s.add(sum, e);
            s.store(e, x);
        }
        let mut total = lanes::sum(s, sum);
        if !tail.is_empty() {
            lanes::store_part(s, exp(s, s.sub(lanes::load_part(s, tail), max)), tail);
            total += tail.iter().sum::<f32>();
        }
        let divisor = s.splat(total);
        for x in x {
            s.store(s.div(s.load(x), divisor), x);
        }
        for x in tail {
            *x /= total;
        }
    }
}

#[inline(always)]
fn max<S: Lanes>(s: S, x: &[f32]) -> f32 {
    let (x, tail) = x.as_chunks::<LANES>();
    let mut max = s.splat(f32::NEG_INFINITY);
    for x in x {
        max = s.max(max, s.load(x));
    }
    tail.iter().copied().fold(lanes::largest(s, max), f32::max)
}
