//! The lanes in plain Rust, for any machine.

use half::f16;

use super::pair::Pair;
use super::{LANES, Lanes, Vector};

/// Plain Rust. Products and sums are rounded one by one: a fused multiply-add without hardware is a slow library call.
#[derive(Clone, Copy)]
pub(super) struct Portable;

#[inline(always)]
fn zip(a: [f32; LANES], b: [f32; LANES], f: impl Fn(f32, f32) -> f32) -> [f32; LANES] {
    std::array::from_fn(|i| f(a[i], b[i]))
}

/// What `half` computes, without its look at the machine for every number.
#[inline(always)]
fn half_to_single(half: u16) -> f32 {
    let bits = u32::from(half & 0x7fff) << 13;
    // The exponent's bias is 112 more in single precision; as a product this holds for subnormal numbers too.
    let finite = (f32::from_bits(bits) * f32::from_bits((127 + 112) << 23)).to_bits();
    let magnitude = if half & 0x7c00 == 0x7c00 { bits | 0x7f80_0000 } else { finite };
    f32::from_bits(magnitude | u32::from(half & 0x8000) << 16)
}

impl Vector for Portable {
    const REGISTERS: usize = 16;
    type V = [f32; LANES];
    type Floats = [f32; LANES];
    type Halves = [u16; LANES];

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
        from.map(half_to_single)
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
        // Added to 1.5 * 2^23, a whole number stands in the low bits; the shift leaves it alone as the exponent.
        n.map(|n| f32::from_bits((n + 12_582_912.0).to_bits().wrapping_add(127) << 23))
    }
}

impl Lanes for Portable {
    type Wide = Pair<Portable>;

    #[inline(always)]
    fn wide(self) -> Pair<Portable> {
        Pair(self)
    }

    #[inline(always)]
    fn store_f16(self, v: Self::V, to: &mut [u16; LANES]) {
        *to = v.map(|x| f16::from_f32(x).to_bits());
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

    #[inline(always)]
    fn prefetch<T>(self, _at: &T) {}
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_half_converts_as_the_library_does() {
        for bits in 0..=u16::MAX {
            let (got, want) = (half_to_single(bits), f16::from_bits(bits).to_f32());
            assert!(
                got.to_bits() == want.to_bits() || (got.is_nan() && want.is_nan()),
                "{bits:#x}: {got} is not {want}"
            );
        }
    }
}
