//! AVX2, FMA and F16C: panels of 8 outputs.
//!
//! 8-bit products are summed in pairs in 16 bits by `maddubs`, up to `RUN` pairs before they are widened: what fits is
//! a matter of the weights' range, so 4-bit weights need one widening for a block of 32 and 8-bit ones one a vector.

use std::arch::x86_64::*;

use super::Simd;

/// AVX2 with FMA and F16C.
#[derive(Clone, Copy)]
pub(crate) struct Avx2;

/// The four bytes at `x` in every output's place.
#[inline(always)]
unsafe fn spread(x: *const i8) -> __m256i {
    // SAFETY: valid for four bytes by the caller's contract.
    unsafe { _mm256_set1_epi32(x.cast::<i32>().read_unaligned()) }
}

/// Sums of pairs of products of the weights by the four bytes at `x`, in 16 bits.
///
/// `maddubs` wants one side unsigned. Where the weights are `SIGNED` it gets |w|, and their sign moves to x: a weight of
/// -128 is 128 there, and x is at least -127, so that its negation fits.
#[inline(always)]
unsafe fn pairs<const SIGNED: bool>(weights: __m256i, x: *const i8) -> __m256i {
    // SAFETY: AVX2 is there and `x` is valid for four bytes by the caller's contract.
    unsafe {
        if SIGNED {
            _mm256_maddubs_epi16(_mm256_abs_epi8(weights), _mm256_sign_epi8(spread(x), weights))
        } else {
            _mm256_maddubs_epi16(weights, spread(x))
        }
    }
}

/// [`Simd::dot`] and [`Simd::dot_signed`].
#[inline(always)]
unsafe fn each_panel<const N: usize, const RUN: usize, const R: usize, const P: usize, const SIGNED: bool>(
    weights: [&[__m256i; N]; P],
    x: *const i8,
    stride: usize,
) -> [[__m256; R]; P] {
    // SAFETY: the contract is the same.
    unsafe {
        let mut panels = [[_mm256_setzero_ps(); R]; P];
        for p in 0..P {
            panels[p] = dots::<N, RUN, R, SIGNED>(weights[p], x, stride);
        }
        panels
    }
}

/// The sums of one panel.
#[inline(always)]
unsafe fn dots<const N: usize, const RUN: usize, const R: usize, const SIGNED: bool>(
    weights: &[__m256i; N],
    x: *const i8,
    stride: usize,
) -> [__m256; R] {
    // SAFETY: AVX2 is there and row `r` is valid for 4N bytes by the caller's contract.
    unsafe {
        let ones = _mm256_set1_epi16(1);
        let mut totals = [_mm256_setzero_si256(); R];
        for group in 0..N / RUN {
            let mut runs = [_mm256_setzero_si256(); R];
            for j in group * RUN..(group + 1) * RUN {
                for r in 0..R {
                    let product = pairs::<SIGNED>(weights[j], x.add(r * stride + 4 * j));
                    runs[r] = _mm256_add_epi16(runs[r], product);
                }
            }
            for r in 0..R {
                totals[r] = _mm256_add_epi32(totals[r], _mm256_madd_epi16(runs[r], ones));
            }
        }
        let mut floats = [_mm256_setzero_ps(); R];
        for r in 0..R {
            floats[r] = _mm256_cvtepi32_ps(totals[r]);
        }
        floats
    }
}

impl Simd for Avx2 {
    const LANES: usize = 8;
    const ROWS: usize = 8;
    const PANELS: usize = 1;
    const DENSE_ROWS: usize = 6;
    type Bytes = __m256i;
    type Floats = __m256;

    #[inline(always)]
    unsafe fn bytes(from: *const u8) -> __m256i {
        // SAFETY: valid for 32 bytes by the contract; the load is unaligned.
        unsafe { _mm256_loadu_si256(from.cast()) }
    }
    #[inline(always)]
    unsafe fn store_bytes(to: *mut u8, bytes: __m256i) {
        // SAFETY: valid for 32 bytes by the contract; the store is unaligned.
        unsafe { _mm256_storeu_si256(to.cast(), bytes) }
    }
    #[inline(always)]
    unsafe fn low(bytes: __m256i) -> __m256i {
        // SAFETY: AVX2 is there by the contract.
        unsafe { _mm256_and_si256(bytes, _mm256_set1_epi8(15)) }
    }
    #[inline(always)]
    unsafe fn high(bytes: __m256i) -> __m256i {
        // SAFETY: AVX2 is there by the contract.
        unsafe { _mm256_and_si256(_mm256_srli_epi16::<4>(bytes), _mm256_set1_epi8(15)) }
    }
    #[inline(always)]
    unsafe fn bit_to_4<const J: i32>(bytes: __m256i) -> __m256i {
        // SAFETY: AVX2 is there by the contract.
        unsafe {
            let moved = if J < 4 {
                _mm256_sll_epi16(bytes, _mm_cvtsi32_si128(4 - J))
            } else {
                _mm256_srl_epi16(bytes, _mm_cvtsi32_si128(J - 4))
            };
            _mm256_and_si256(moved, _mm256_set1_epi8(0x10))
        }
    }
    #[inline(always)]
    unsafe fn pair_to_4<const J: i32>(bytes: __m256i) -> __m256i {
        // SAFETY: AVX2 is there by the contract.
        unsafe {
            let moved = if J < 2 {
                _mm256_sll_epi16(bytes, _mm_cvtsi32_si128(4 - 2 * J))
            } else {
                _mm256_srl_epi16(bytes, _mm_cvtsi32_si128(2 * J - 4))
            };
            _mm256_and_si256(moved, _mm256_set1_epi8(0x30))
        }
    }
    #[inline(always)]
    unsafe fn or(a: __m256i, b: __m256i) -> __m256i {
        // SAFETY: AVX2 is there by the contract.
        unsafe { _mm256_or_si256(a, b) }
    }
    #[inline(always)]
    unsafe fn minus(bytes: __m256i, value: i8) -> __m256i {
        // SAFETY: AVX2 is there by the contract.
        unsafe { _mm256_sub_epi8(bytes, _mm256_set1_epi8(value)) }
    }

    #[inline(always)]
    unsafe fn floats(from: *const f32) -> __m256 {
        // SAFETY: valid for 8 floats by the contract; the load is unaligned.
        unsafe { _mm256_loadu_ps(from) }
    }
    #[inline(always)]
    unsafe fn store_floats(to: *mut f32, floats: __m256) {
        // SAFETY: valid for 8 floats by the contract; the store is unaligned.
        unsafe { _mm256_storeu_ps(to, floats) }
    }
    #[inline(always)]
    unsafe fn halves(from: *const u8) -> __m256 {
        // SAFETY: valid for 16 bytes by the contract; F16C is there.
        unsafe { _mm256_cvtph_ps(_mm_loadu_si128(from.cast())) }
    }
    #[inline(always)]
    unsafe fn bfloats(from: *const u8) -> __m256 {
        // SAFETY: valid for 16 bytes by the contract. A bf16 is the upper half of an f32.
        unsafe {
            let wide = _mm256_cvtepu16_epi32(_mm_loadu_si128(from.cast()));
            _mm256_castsi256_ps(_mm256_slli_epi32::<16>(wide))
        }
    }
    #[inline(always)]
    unsafe fn unsigned(from: *const u8) -> __m256 {
        // SAFETY: valid for 8 bytes by the contract.
        unsafe { _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(_mm_loadl_epi64(from.cast()))) }
    }
    #[inline(always)]
    unsafe fn signed(from: *const u8) -> __m256 {
        // SAFETY: valid for 8 bytes by the contract.
        unsafe { _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64(from.cast()))) }
    }
    #[inline(always)]
    unsafe fn splat(value: f32) -> __m256 {
        // SAFETY: AVX2 is there by the contract.
        unsafe { _mm256_set1_ps(value) }
    }
    #[inline(always)]
    unsafe fn mul(a: __m256, b: __m256) -> __m256 {
        // SAFETY: AVX2 is there by the contract.
        unsafe { _mm256_mul_ps(a, b) }
    }
    #[inline(always)]
    unsafe fn fma(a: __m256, b: __m256, c: __m256) -> __m256 {
        // SAFETY: FMA is there by the contract.
        unsafe { _mm256_fmadd_ps(a, b, c) }
    }

    #[inline(always)]
    unsafe fn dot<const N: usize, const RUN: usize, const R: usize, const P: usize>(
        weights: [&[__m256i; N]; P],
        x: *const i8,
        stride: usize,
    ) -> [[__m256; R]; P] {
        // SAFETY: the contract is the same.
        unsafe { each_panel::<N, RUN, R, P, false>(weights, x, stride) }
    }
    #[inline(always)]
    unsafe fn dot_signed<const N: usize, const RUN: usize, const R: usize, const P: usize>(
        weights: [&[__m256i; N]; P],
        x: *const i8,
        stride: usize,
        _sums: [i32; R],
    ) -> [[__m256; R]; P] {
        // SAFETY: the contract is the same.
        unsafe { each_panel::<N, RUN, R, P, true>(weights, x, stride) }
    }

    #[inline(always)]
    unsafe fn prefetch(from: *const u8) {
        // SAFETY: a prefetch never faults.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(from.cast()) }
    }
}
