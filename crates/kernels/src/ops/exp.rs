//! The exponential of a vector's lanes.

use crate::lanes::Vector;

/// Past these, e^x rounds to 0 and overflows.
const LOW: f32 = -104.0;
const HIGH: f32 = 89.0;
/// Adding it rounds to a whole number in the low mantissa bits; subtracting it again leaves that number.
const ROUND: f32 = 12_582_912.0;
/// ln 2 as a part of 11 bits, whose product with a whole number below 2^13 is exact, and the rest.
const LN_2_HIGH: f32 = 0.692_871_1;
const LN_2_LOW: f32 = 0.000_276_086_8;
/// Minimax fit of (e^r - 1 - r) / r^2 on |r| <= ln 2 / 2; the error in e^r is 3e-9 of it.
const Q: [f32; 5] = [0.499_999_94, 0.166_665_2, 0.041_668_393, 0.008_368_749, 0.001_381_455_5];

/// e^x, within 2 units in the last place; 0 and infinity at the ends, not a number where `x` is not.
#[inline(always)]
pub(crate) fn exp<S: Vector>(s: S, x: S::V) -> S::V {
    // The bound comes first: `min` and `max` then keep what is not a number.
    let x = s.max(s.splat(LOW), s.min(s.splat(HIGH), x));
    let round = s.splat(ROUND);
    let n = s.sub(s.mul_add(x, s.splat(std::f32::consts::LOG2_E), round), round);
    let r = s.mul_add(n, s.splat(-LN_2_LOW), s.mul_add(n, s.splat(-LN_2_HIGH), x));
    let mut q = s.splat(Q[4]);
    for c in [Q[3], Q[2], Q[1], Q[0]] {
        q = s.mul_add(q, r, s.splat(c));
    }
    let e = s.add(s.mul_add(s.mul(r, r), q, r), s.splat(1.0));
    // Two factors: n reaches from -150 to 128, one more than a single power of two holds at either end.
    let half = s.sub(s.mul_add(n, s.splat(0.5), round), round);
    s.mul(s.mul(e, s.exp2(half)), s.exp2(s.sub(n, half)))
}

#[cfg(test)]
mod tests {
    use super::exp;
    use crate::Isa;
    use crate::lanes::{self, Kernel, LANES, Lanes, Vector, WIDE};

    struct Exp([f32; LANES]);

    impl Kernel for Exp {
        type Output = [f32; LANES];

        #[inline(always)]
        fn run<S: Lanes>(self, s: S) -> [f32; LANES] {
            let narrow = lanes::lanes(s, exp(s, s.load(&self.0)));
            let (wide, mut twice) = (s.wide(), [0.0; WIDE]);
            twice.as_chunks_mut::<LANES>().0.fill(self.0);
            let mut out = [0.0; WIDE];
            wide.store(exp(wide, wide.load(&twice)), &mut out);
            for half in out.as_chunks::<LANES>().0 {
                assert_eq!(half.map(f32::to_bits), narrow.map(f32::to_bits), "wide of {:?}", self.0);
            }
            narrow
        }
    }

    #[test]
    fn within_two_units_in_the_last_place_everywhere() {
        for isa in Isa::available() {
            // Every bit pattern whose low 11 bits are 0: all exponents, signs, infinities.
            for high in 0..1u32 << 18 {
                let x: [f32; LANES] = std::array::from_fn(|i| f32::from_bits((high * 8 + i as u32) << 11));
                for (x, got) in x.into_iter().zip(lanes::run(isa, Exp(x))) {
                    check(isa, x, got);
                }
            }
        }
    }

    fn check(isa: Isa, x: f32, got: f32) {
        let want = f64::from(x).exp();
        if want.is_nan() {
            return assert!(got.is_nan(), "{isa} exp({x}) = {got}");
        }
        let rounded = want as f32;
        if rounded.is_infinite() || rounded == 0.0 {
            return assert_eq!(got, rounded, "{isa} exp({x})");
        }
        let unit = f64::from(f32::from_bits(rounded.to_bits() + 1)) - f64::from(rounded);
        assert!((f64::from(got) - want).abs() <= 2.0 * unit, "{isa} exp({x}) = {got}, not {want}");
    }
}
