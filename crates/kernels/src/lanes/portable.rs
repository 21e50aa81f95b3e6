//! The lanes in plain Rust, for any machine.

use half::f16;

use super::{LANES, Lanes};

/// Plain Rust. Products and sums are rounded one by one: a fused multiply-add without hardware is a slow library call.
#[derive(Clone, Copy)]
pub(super) struct Portable;

#[inline(always)]
fn zip(a: [f32; LANES], b: [f32; LANES], f: impl Fn(f32, f32) -> f32) -> [f32; LANES] {
    std::array::from_fn(|i| f(a[i], b[i]))
}

impl Lanes for Portable {
    type V = [f32; LANES];

    #[inline(always)]
    fn splat(self, x: f32) -> Self::V {
        [x; LANES]
    }

    #[inline(always)]
    fn load(self, from: &[f32; LANES]) -> Self::V {
        *from
    }

    #[inline(always)]
    fn store(self, v: Self::V, to: &mut [f32; LANES]) {
        *to = v;
    }

    #[inline(always)]
    fn load_f16(self, from: &[u16; LANES]) -> Self::V {
        from.map(|bits| f16::from_bits(bits).to_f32())
    }

    #[inline(always)]
    fn store_f16(self, v: Self::V, to: &mut [u16; LANES]) {
        *to = v.map(|x| f16::from_f32(x).to_bits());
    }

    #[inline(always)]
    fn add(self, a: Self::V, b: Self::V) -> Self::V {
        zip(a, b, |a, b| a + b)
    }

    #[inline(always)]
    fn sub(self, a: Self::V, b: Self::V) -> Self::V {
        zip(a, b, |a, b| a - b)
    }

    #[inline(always)]
    fn mul(self, a: Self::V, b: Self::V) -> Self::V {
        zip(a, b, |a, b| a * b)
    }

    #[inline(always)]
    fn div(self, a: Self::V, b: Self::V) -> Self::V {
        zip(a, b, |a, b| a / b)
    }

    #[inline(always)]
    fn mul_add(self, a: Self::V, b: Self::V, c: Self::V) -> Self::V {
        zip(zip(a, b, |a, b| a * b), c, |product, c| product + c)
    }

    #[inline(always)]
    fn min(self, a: Self::V, b: Self::V) -> Self::V {
        zip(a, b, |a, b| if a < b { a } else { b })
    }

    #[inline(always)]
    fn max(self, a: Self::V, b: Self::V) -> Self::V {
        zip(a, b, |a, b| if a > b { a } else { b })
    }

    #[inline(always)]
    fn exp2(self, n: Self::V) -> Self::V {
        n.map(|n| f32::from_bits(((n as i32 + 127) << 23).cast_unsigned()))
    }

    #[inline(always)]
    fn rotate_pairs(self, v: Self::V, cos: &[f32; LANES / 2], sin: &[f32; LANES / 2]) -> Self::V {
        let mut out = v;
        for (i, (&cos, &sin)) in cos.iter().zip(sin).enumerate() {
            let (a, b) = (v[2 * i], v[2 * i + 1]);
            out[2 * i] = a * cos - b * sin;
            out[2 * i + 1] = b * cos + a * sin;
        }
        out
    }
}
