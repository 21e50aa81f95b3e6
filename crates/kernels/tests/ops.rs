//! The row operations against f64, on every instruction set of this machine.

use kernels::{Isa, Rope, RopeLayout, add, rms_norm, rms_norm_in_place, silu_mul, softmax};
use proptest::prelude::*;

/// Rows of every tail length, values of every size that activations have.
fn row() -> impl Strategy<Value = Vec<f32>> {
    let value = prop_oneof![8 => -8.0f32..8.0, 1 => -3e4f32..3e4, 1 => -1e-6f32..1e-6, 1 => Just(0.0)];
    prop::collection::vec(value, 1..150)
}

/// Two rows of one length.
fn rows() -> impl Strategy<Value = (Vec<f32>, Vec<f32>)> {
    row().prop_flat_map(|x| {
        let len = x.len();
        (Just(x), prop::collection::vec(-4.0f32..4.0, len))
    })
}

#[track_caller]
fn assert_close(isa: Isa, got: &[f32], want: impl IntoIterator<Item = f64>, relative: f64, absolute: f64) {
    let want: Vec<f64> = want.into_iter().collect();
    assert_eq!(got.len(), want.len());
    for (i, (&got, want)) in got.iter().zip(want).enumerate() {
        let error = (f64::from(got) - want).abs();
        assert!(error <= want.abs() * relative + absolute, "{isa} [{i}]: {got} is not {want}");
    }
}

proptest! {
    #[test]
    fn rms_norm_is_that_of_f64((x, weight) in rows(), eps in prop_oneof![Just(1e-5f32), Just(1e-6), Just(0.1)]) {
        let mean = x.iter().map(|&v| f64::from(v).powi(2)).sum::<f64>() / x.len() as f64;
        let inverse = 1.0 / (mean + f64::from(eps)).sqrt();
        for isa in Isa::available() {
            let mut out = vec![f32::NAN; x.len()];
            rms_norm(isa, &x, &weight, eps, &mut out);
            let want = x.iter().zip(&weight).map(|(&x, &w)| f64::from(x) * inverse * f64::from(w));
            assert_close(isa, &out, want, 2e-6, 0.0);
            let mut in_place = x.clone();
            rms_norm_in_place(isa, &mut in_place, &weight, eps);
            prop_assert_eq!(in_place, out);
        }
    }

    #[test]
    fn add_is_exact((mut x, y) in rows()) {
        let want: Vec<f32> = x.iter().zip(&y).map(|(x, y)| x + y).collect();
        let before = x.clone();
        for isa in Isa::available() {
            x.copy_from_slice(&before);
            add(isa, &mut x, &y);
            prop_assert_eq!(&x, &want);
        }
    }

    #[test]
    fn silu_mul_is_that_of_f64((gate, up) in rows()) {
        for isa in Isa::available() {
            let mut out = vec![f32::NAN; gate.len()];
            silu_mul(isa, &gate, &up, &mut out);
            let want = gate.iter().zip(&up).map(|(&gate, &up)| {
                let gate = f64::from(gate);
                gate / (1.0 + (-gate).exp()) * f64::from(up)
            });
            assert_close(isa, &out, want, 1e-6, 1e-37);
        }
    }

    #[test]
    fn softmax_is_that_of_f64(x in row()) {
        let max = x.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        let exps: Vec<f64> = x.iter().map(|&x| f64::from(x - max).exp()).collect();
        let sum: f64 = exps.iter().sum();
        for isa in Isa::available() {
            let mut out = x.clone();
            softmax(isa, &mut out);
            assert_close(isa, &out, exps.iter().map(|e| e / sum), 1e-6, 1e-37);
        }
    }

    #[test]
    fn rotation_is_that_of_f64(half in 1usize..40, untouched in 0usize..5, position in 0u32..1_000_000, seed: u64) {
        let inv_freq: Vec<f32> = (0..half).map(|i| 10_000f32.powf(-(i as f32) / half as f32)).collect();
        let head: Vec<f32> = (0..2 * half + untouched).map(|i| ((seed >> (i % 60)) as i16) as f32 / 8192.0).collect();
        for (isa, layout) in Isa::available().into_iter().flat_map(|isa| [(isa, RopeLayout::Halves), (isa, RopeLayout::Pairs)]) {
            let rope = Rope::new(inv_freq.clone(), 1.25, layout);
            let mut angles = vec![f32::NAN; rope.angles_len()];
            rope.angles(position, &mut angles);
            let mut got = head.clone();
            rope.rotate(isa, &mut got, &angles);
            let mut want: Vec<f64> = head.iter().map(|&x| f64::from(x)).collect();
            for (i, freq) in inv_freq.iter().enumerate() {
                let (a, b) = match layout {
                    RopeLayout::Halves => (i, i + half),
                    RopeLayout::Pairs => (2 * i, 2 * i + 1),
                };
                let (sin, cos) = f64::from(position as f32 * freq).sin_cos();
                (want[a], want[b]) = (1.25 * (want[a] * cos - want[b] * sin), 1.25 * (want[b] * cos + want[a] * sin));
            }
            assert_close(isa, &got, want, 1e-6, 2e-6);
        }
    }
}

#[test]
fn extremes() {
    for isa in Isa::available() {
        let gate = [f32::NEG_INFINITY, -1e30, -100.0, 0.0, 100.0, 1e30, f32::INFINITY, f32::NAN, 90.0];
        let mut out = [0.0; 9];
        silu_mul(isa, &gate, &[1.0; 9], &mut out);
        // -∞ / ∞ is not a number, as in every implementation of the formula.
        assert!(out[0].is_nan() && out[7].is_nan(), "{isa} {out:?}");
        assert_eq!([out[1], out[2], out[3]], [0.0; 3], "{isa}");
        assert_eq!([out[4], out[5], out[6], out[8]], [100.0, 1e30, f32::INFINITY, 90.0], "{isa}");

        let mut masked = [f32::NEG_INFINITY, 1.0, f32::NEG_INFINITY, 1.0, -3e38];
        softmax(isa, &mut masked);
        assert_eq!(masked, [0.0, 0.5, 0.0, 0.5, 0.0], "{isa}");
        let mut huge = [3e38, -3e38, 3e38];
        softmax(isa, &mut huge);
        assert_eq!(huge, [0.5, 0.0, 0.5], "{isa}");
        for bad in [f32::NAN, f32::INFINITY] {
            let mut row = [0.0; 19];
            row[17] = bad;
            softmax(isa, &mut row);
            assert!(row.iter().all(|x| x.is_nan()), "{isa} {row:?}");
        }
        let mut empty: [f32; 0] = [];
        softmax(isa, &mut empty);
        rms_norm(isa, &[], &[], 1e-5, &mut []);

        let mut zeros = [0.0; 576];
        rms_norm_in_place(isa, &mut zeros, &[1.0; 576], 1e-6);
        assert_eq!(zeros, [0.0; 576], "{isa}");
    }
}
