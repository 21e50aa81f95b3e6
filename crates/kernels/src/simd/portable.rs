//! Plain Rust in the shape of the vector sets: the same panels, the same exact integer sums.
//!
//! Floating-point steps are a multiplication and an addition, each rounded: a fused step in software would cost more
//! than all the rest.

use half::{bf16, f16};

use super::Simd;

const LANES: usize = 8;

/// The portable set.
#[derive(Clone, Copy)]
pub(crate) struct Portable;

/// Sums of `4 * N` products for each output, with each weight as `widen` reads it.
///
/// # Safety
/// `x` is valid for `4 * N` bytes.
#[inline(always)]
unsafe fn sums<const N: usize>(
    weights: &[[u8; 4 * LANES]; N],
    x: *const i8,
    widen: impl Fn(u8) -> i32,
) -> [f32; LANES] {
    let mut sums = [0i32; LANES];
    for (j, vector) in weights.iter().enumerate() {
        for b in 0..4 {
            // SAFETY: 4j + b < 4N.
            let value = i32::from(unsafe { *x.add(4 * j + b) });
            for (lane, sum) in sums.iter_mut().enumerate() {
                *sum += widen(vector[4 * lane + b]) * value;
            }
        }
    }
    sums.map(|sum| sum as f32)
}

impl Simd for Portable {
    const LANES: usize = LANES;
    const ROWS: usize = 4;
    const PANELS: usize = 1;
    const DENSE_ROWS: usize = 4;
    type Bytes = [u8; 4 * LANES];
    type Floats = [f32; LANES];

    #[inline(always)]
    unsafe fn bytes(from: *const u8) -> Self::Bytes {
        // SAFETY: valid for 32 bytes by the contract; arrays of bytes have no alignment.
        unsafe { from.cast::<Self::Bytes>().read() }
    }
    #[inline(always)]
    unsafe fn store_bytes(to: *mut u8, bytes: Self::Bytes) {
        // SAFETY: valid for 32 bytes by the contract.
        unsafe { to.cast::<Self::Bytes>().write(bytes) }
    }
    #[inline(always)]
    unsafe fn low(bytes: Self::Bytes) -> Self::Bytes {
        bytes.map(|b| b & 15)
    }
    #[inline(always)]
    unsafe fn high(bytes: Self::Bytes) -> Self::Bytes {
        bytes.map(|b| b >> 4)
    }
    #[inline(always)]
    unsafe fn bit_to_4<const J: i32>(bytes: Self::Bytes) -> Self::Bytes {
        bytes.map(|b| ((b >> J) & 1) << 4)
    }
    #[inline(always)]
    unsafe fn pair_to_4<const J: i32>(bytes: Self::Bytes) -> Self::Bytes {
        bytes.map(|b| ((b >> (2 * J)) & 3) << 4)
    }
    #[inline(always)]
    unsafe fn or(a: Self::Bytes, b: Self::Bytes) -> Self::Bytes {
        std::array::from_fn(|i| a[i] | b[i])
    }
    #[inline(always)]
    unsafe fn minus(bytes: Self::Bytes, value: i8) -> Self::Bytes {
        bytes.map(|b| b.wrapping_sub(value as u8))
    }

    #[inline(always)]
    unsafe fn floats(from: *const f32) -> Self::Floats {
        // SAFETY: valid for 8 floats by the contract.
        unsafe { from.cast::<Self::Floats>().read_unaligned() }
    }
    #[inline(always)]
    unsafe fn store_floats(to: *mut f32, floats: Self::Floats) {
        // SAFETY: valid for 8 floats by the contract.
        unsafe { to.cast::<Self::Floats>().write_unaligned(floats) }
    }
    #[inline(always)]
    unsafe fn halves(from: *const u8) -> Self::Floats {
        // SAFETY: valid for 16 bytes by the contract.
        let bits = unsafe { from.cast::<[u16; LANES]>().read_unaligned() };
        bits.map(|bits| f16::from_bits(bits).to_f32())
    }
    #[inline(always)]
    unsafe fn bfloats(from: *const u8) -> Self::Floats {
        // SAFETY: valid for 16 bytes by the contract.
        let bits = unsafe { from.cast::<[u16; LANES]>().read_unaligned() };
        bits.map(|bits| bf16::from_bits(bits).to_f32())
    }
    #[inline(always)]
    unsafe fn unsigned(from: *const u8) -> Self::Floats {
        // SAFETY: valid for 8 bytes by the contract.
        unsafe { from.cast::<[u8; LANES]>().read() }.map(f32::from)
    }
    #[inline(always)]
    unsafe fn signed(from: *const u8) -> Self::Floats {
        // SAFETY: valid for 8 bytes by the contract.
        unsafe { from.cast::<[i8; LANES]>().read() }.map(f32::from)
    }
    #[inline(always)]
    unsafe fn splat(value: f32) -> Self::Floats {
        [value; LANES]
    }
    #[inline(always)]
    unsafe fn mul(a: Self::Floats, b: Self::Floats) -> Self::Floats {
        std::array::from_fn(|i| a[i] * b[i])
    }
    #[inline(always)]
    unsafe fn fma(a: Self::Floats, b: Self::Floats, c: Self::Floats) -> Self::Floats {
        std::array::from_fn(|i| a[i] * b[i] + c[i])
    }

    #[inline(always)]
    unsafe fn dot<const N: usize, const RUN: usize, const R: usize, const P: usize>(
        weights: [&[Self::Bytes; N]; P],
        x: *const i8,
        stride: usize,
    ) -> [[Self::Floats; R]; P] {
        // SAFETY: row `r` is valid for 4N bytes by the contract.
        weights.map(|w| std::array::from_fn(|r| unsafe { sums(w, x.add(r * stride), i32::from) }))
    }
    #[inline(always)]
    unsafe fn dot_signed<const N: usize, const RUN: usize, const R: usize, const P: usize>(
        weights: [&[Self::Bytes; N]; P],
        x: *const i8,
        stride: usize,
        _sums: [i32; R],
    ) -> [[Self::Floats; R]; P] {
        // SAFETY: row `r` is valid for 4N bytes by the contract.
        weights.map(|w| std::array::from_fn(|r| unsafe { sums(w, x.add(r * stride), |b| i32::from(b as i8)) }))
    }

    #[inline(always)]
    unsafe fn prefetch(_from: *const u8) {}
}
