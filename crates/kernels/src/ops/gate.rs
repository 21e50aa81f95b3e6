//! The gate of the feed-forward block, and the residual sum.

use super::exp;
use crate::Isa;
use crate::lanes::{self, Kernel, LANES, Lanes, Vector, WIDE};

/// `x += y` on one row.
///
/// # Panics
/// When the slices differ in length.
pub fn add(isa: Isa, x: &mut [f32], y: &[f32]) {
    assert!(x.len() == y.len(), "sum of {} and {} numbers", x.len(), y.len());
    lanes::run(isa, Add { x, y });
}

struct Add<'a> {
    x: &'a mut [f32],
    y: &'a [f32],
}

impl Kernel for Add<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Lanes>(self, s: S) {
        let (x, x_tail) = self.x.as_chunks_mut::<LANES>();
        let (y, y_tail) = self.y.as_chunks::<LANES>();
        for (x, y) in x.iter_mut().zip(y) {
            s.store(s.add(s.load(x), s.load(y)), x);
        }
        for (x, y) in x_tail.iter_mut().zip(y_tail) {
            *x += y;
        }
    }
}

/// `out = gate / (1 + e^-gate) * up` on one row of the feed-forward block; all slices are `[intermediate]`.
///
/// # Panics
/// When the slices differ in length.
pub fn silu_mul(isa: Isa, gate: &[f32], up: &[f32], out: &mut [f32]) {
    assert!(gate.len() == up.len() && gate.len() == out.len(), "gate of {} by {}", gate.len(), up.len());
    lanes::run(isa, SiluMul { gate, up, out });
}

struct SiluMul<'a> {
    gate: &'a [f32],
    up: &'a [f32],
    out: &'a mut [f32],
}

impl Kernel for SiluMul<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Lanes>(self, s: S) {
        let w = s.wide();
        let (gate, gate_tail) = self.gate.as_chunks::<WIDE>();
        let (up, up_tail) = self.up.as_chunks::<WIDE>();
        let (out, out_tail) = self.out.as_chunks_mut::<WIDE>();
        for ((gate, up), out) in gate.iter().zip(up).zip(out) {
            w.store(w.mul(silu(w, w.load(gate)), w.load(up)), out);
        }
        let tails = gate_tail.chunks(LANES).zip(up_tail.chunks(LANES)).zip(out_tail.chunks_mut(LANES));
        for ((gate, up), out) in tails {
            let (gate, up) = (lanes::load_part(s, gate), lanes::load_part(s, up));
            lanes::store_part(s, s.mul(silu(s, gate), up), out);
        }
    }
}

#[inline(always)]
fn silu<S: Vector>(s: S, x: S::V) -> S::V {
    s.div(x, s.add(exp(s, s.sub(s.splat(0.0), x)), s.splat(1.0)))
}
