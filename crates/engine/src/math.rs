//! `exp` and `ln` whose bits are the same on every machine, in loops that the compiler vectorises.
//!
//! The standard library's versions call the platform's, which differ between systems and versions in the last bit; a
//! token drawn from a seed must not. Both are plain additions and multiplications without fused steps.

use std::f64::consts::LN_2;

/// Adding and subtracting this rounds an `f32` of small magnitude to the nearest integer, left in the low mantissa bits.
const ROUND: f32 = 12_582_912.0;

/// Below this `exp` underflows; it is taken as 0.
const LEAST: f32 = -87.0;

/// e^x for x at most 0 (−∞ gives 0), to a relative error of 2e-7.
#[inline(always)]
pub(crate) fn exp(x: f32) -> f32 {
    // Cody and Waite: x = n ln 2 + r, with ln 2 split so that n times its head is exact.
    const LN_2_HEAD: f32 = 355.0 / 512.0;
    const LN_2_TAIL: f32 = -2.121_944_4e-4;
    let clamped = if x > LEAST { x } else { LEAST };
    let shifted = clamped * std::f32::consts::LOG2_E + ROUND;
    let n = shifted - ROUND;
    let r = (clamped - n * LN_2_HEAD) - n * LN_2_TAIL;
    let mut series = 1.0 / 5040.0;
    for coefficient in [1.0 / 720.0, 1.0 / 120.0, 1.0 / 24.0, 1.0 / 6.0, 0.5, 1.0, 1.0] {
        series = series * r + coefficient;
    }
    // The low bits of `shifted` are n in two's complement: moved into the exponent they multiply by 2^n.
    let scale = f32::from_bits((shifted.to_bits() << 23).wrapping_add(0x3f80_0000));
    if x > LEAST { series * scale } else { 0.0 }
}

/// Natural logarithm of a positive normal `x`, to a relative error of 1e-15, also next to 1.
#[inline]
pub(crate) fn ln(x: f64) -> f64 {
    const MANTISSA: u64 = (1 << 52) - 1;
    const SQRT_2_MANTISSA: u64 = 0x6_a09e_667f_3bcd;
    let bits = x.to_bits();
    // x = m 2^e with m in [1/√2, √2), so that m - 1 loses nothing near 1.
    let halve = u64::from(bits & MANTISSA > SQRT_2_MANTISSA);
    let exponent = (bits >> 52) as i64 - 1023 + halve as i64;
    let m = f64::from_bits((bits & MANTISSA) | ((1023 - halve) << 52));
    // ln m = 2 artanh(s), s = (m - 1) / (m + 1), |s| < 0.172.
    let s = (m - 1.0) / (m + 1.0);
    let square = s * s;
    let mut series = 1.0 / 21.0;
    for odd in [19.0, 17.0, 15.0, 13.0, 11.0, 9.0, 7.0, 5.0, 3.0] {
        series = series * square + 1.0 / odd;
    }
    exponent as f64 * LN_2 + (2.0 * s + 2.0 * s * square * series)
}

/// Σ e^(x − `shift`) over the row `[n]`, accumulated in f64 in an order that depends on n alone. Every x is at most
/// `shift`.
pub(crate) fn sum_exp(row: &[f32], shift: f32) -> f64 {
    const LANES: usize = 16;
    let mut lanes = [0.0f64; LANES];
    let (chunks, tail) = row.as_chunks::<LANES>();
    for chunk in chunks {
        let mut terms = [0.0f32; LANES];
        for (term, &x) in terms.iter_mut().zip(chunk) {
            *term = exp(x - shift);
        }
        for (lane, &term) in lanes.iter_mut().zip(&terms) {
            *lane += f64::from(term);
        }
    }
    let tail: f64 = tail.iter().map(|&x| f64::from(exp(x - shift))).sum();
    lanes.iter().sum::<f64>() + tail
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::f64::consts::SQRT_2;

    #[test]
    fn exp_is_close_over_its_range() {
        for i in 0..=870_000 {
            let x = -(i as f32) * 1e-4;
            let want = f64::from(x).exp();
            let got = f64::from(exp(x));
            assert!((got - want).abs() <= 2e-7 * want || x <= LEAST, "exp({x}) = {got}, not {want}");
        }
        assert_eq!(exp(0.0), 1.0);
        assert_eq!(exp(f32::NEG_INFINITY), 0.0);
        assert_eq!(exp(-1e30), 0.0);
    }

    #[test]
    fn ln_is_close_at_every_scale_and_next_to_one() {
        let near_one =
            (1..2000u32).flat_map(|i| [1.0 - f64::from(i) * 2f64.powi(-53), 1.0 + f64::from(i) * 2f64.powi(-52)]);
        let scales = (-900..900).flat_map(|e| [1.0, 1.1, SQRT_2, SQRT_2.next_up(), 1.9999].map(|m| m * 2f64.powi(e)));
        for x in near_one.chain(scales) {
            let (got, want) = (ln(x), x.ln());
            assert!((got - want).abs() <= 1e-15 * want.abs(), "ln({x:e}) = {got:e}, not {want:e}");
        }
        assert_eq!(ln(1.0), 0.0);
    }

    #[test]
    fn sum_exp_agrees_with_f64_for_every_length() {
        for n in [1usize, 15, 16, 17, 100, 1000] {
            let row: Vec<f32> = (0..n).map(|i| -((i * 37 % 101) as f32) * 0.31).collect();
            let want: f64 = row.iter().map(|&x| f64::from(x).exp()).sum();
            assert!((sum_exp(&row, 0.0) - want).abs() < 3e-7 * want);
        }
    }
}
