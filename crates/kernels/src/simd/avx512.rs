//! AVX-512 with VNNI: panels of 16 outputs, four 8-bit products summed into 32 bits by one instruction.

use std::arch::x86_64::*;

use super::Simd;

/// AVX-512 (F, BW, DQ, VL) with VNNI.
#[derive(Clone, Copy)]
pub(crate) struct Avx512;

/// The four bytes at `x` in every output's place.
#[inline(always)]
unsafe fn spread(x: *const i8) -> __m512i {
    // SAFETY: valid for four bytes by the caller's contract.
    unsafe { _mm512_set1_epi32(x.cast::<i32>().read_unaligned()) }
}

/// Exact sums as floats.
#[inline(always)]
unsafe fn floats<const R: usize, const P: usize>(sums: [[__m512i; R]; P]) -> [[__m512; R]; P] {
    // SAFETY: AVX-512 is there by the caller's contract.
    unsafe {
        let mut floats = [[_mm512_setzero_ps(); R]; P];
        for p in 0..P {
            for r in 0..R {
                floats[p][r] = _mm512_cvtepi32_ps(sums[p][r]);
            }
        }
        floats
    }
}

impl Simd for Avx512 {
    const LANES: usize = 16;
    const ROWS: usize = 8;
    const PANELS: usize = 2;
    const DENSE_ROWS: usize = 8;
    type Bytes = __m512i;
    type Floats = __m512;

    #[inline(always)]
    unsafe fn bytes(from: *const u8) -> __m512i {
        // SAFETY: valid for 64 bytes by the contract; the load is unaligned.
        unsafe { _mm512_loadu_si512(from.cast()) }
    }
    #[inline(always)]
    unsafe fn store_bytes(to: *mut u8, bytes: __m512i) {
        // SAFETY: valid for 64 bytes by the contract; the store is unaligned.
        unsafe { _mm512_storeu_si512(to.cast(), bytes) }
    }
    #[inline(always)]
    unsafe fn low(bytes: __m512i) -> __m512i {
        // SAFETY: AVX-512 is there by the contract.
        unsafe { _mm512_and_si512(bytes, _mm512_set1_epi8(15)) }
    }
    #[inline(always)]
    unsafe fn high(bytes: __m512i) -> __m512i {
        // SAFETY: AVX-512 is there by the contract.
        unsafe { _mm512_and_si512(_mm512_srli_epi16::<4>(bytes), _mm512_set1_epi8(15)) }
    }
    #[inline(always)]
    unsafe fn bit_to_4<const J: i32>(bytes: __m512i) -> __m512i {
        // SAFETY: AVX-512 is there by the contract.
        unsafe {
            let moved = if J < 4 {
                _mm512_sll_epi16(bytes, _mm_cvtsi32_si128(4 - J))
            } else {
                _mm512_srl_epi16(bytes, _mm_cvtsi32_si128(J - 4))
            };
            _mm512_and_si512(moved, _mm512_set1_epi8(0x10))
        }
    }
    #[inline(always)]
    unsafe fn pair_to_4<const J: i32>(bytes: __m512i) -> __m512i {
        // SAFETY: AVX-512 is there by the contract.
        unsafe {
            let moved = if J < 2 {
                _mm512_sll_epi16(bytes, _mm_cvtsi32_si128(4 - 2 * J))
            } else {
                _mm512_srl_epi16(bytes, _mm_cvtsi32_si128(2 * J - 4))
            };
            _mm512_and_si512(moved, _mm512_set1_epi8(0x30))
        }
    }
    #[inline(always)]
    unsafe fn or(a: __m512i, b: __m512i) -> __m512i {
        // SAFETY: AVX-512 is there by the contract.
        unsafe { _mm512_or_si512(a, b) }
    }
    #[inline(always)]
    unsafe fn minus(bytes: __m512i, value: i8) -> __m512i {
        // SAFETY: AVX-512 is there by the contract.
        unsafe { _mm512_sub_epi8(bytes, _mm512_set1_epi8(value)) }
    }

    #[inline(always)]
    unsafe fn floats(from: *const f32) -> __m512 {
        // SAFETY: valid for 16 floats by the contract; the load is unaligned.
        unsafe { _mm512_loadu_ps(from) }
    }
    #[inline(always)]
    unsafe fn store_floats(to: *mut f32, floats: __m512) {
        // SAFETY: valid for 16 floats by the contract; the store is unaligned.
        unsafe { _mm512_storeu_ps(to, floats) }
    }
    #[inline(always)]
    unsafe fn halves(from: *const u8) -> __m512 {
        // SAFETY: valid for 32 bytes by the contract.
        unsafe { _mm512_cvtph_ps(_mm256_loadu_si256(from.cast())) }
    }
    #[inline(always)]
    unsafe fn bfloats(from: *const u8) -> __m512 {
        // SAFETY: valid for 32 bytes by the contract. A bf16 is the upper half of an f32.
        unsafe {
            let wide = _mm512_cvtepu16_epi32(_mm256_loadu_si256(from.cast()));
            _mm512_castsi512_ps(_mm512_slli_epi32::<16>(wide))
        }
    }
    #[inline(always)]
    unsafe fn unsigned(from: *const u8) -> __m512 {
        // SAFETY: valid for 16 bytes by the contract.
        unsafe { _mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(_mm_loadu_si128(from.cast()))) }
    }
    #[inline(always)]
    unsafe fn signed(from: *const u8) -> __m512 {
        // SAFETY: valid for 16 bytes by the contract.
        unsafe { _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128(from.cast()))) }
    }
    #[inline(always)]
    unsafe fn splat(value: f32) -> __m512 {
        // SAFETY: AVX-512 is there by the contract.
        unsafe { _mm512_set1_ps(value) }
    }
    #[inline(always)]
    unsafe fn mul(a: __m512, b: __m512) -> __m512 {
        // SAFETY: AVX-512 is there by the contract.
        unsafe { _mm512_mul_ps(a, b) }
    }
    #[inline(always)]
    unsafe fn fma(a: __m512, b: __m512, c: __m512) -> __m512 {
        // SAFETY: AVX-512 is there by the contract.
        unsafe { _mm512_fmadd_ps(a, b, c) }
    }

    #[inline(always)]
    unsafe fn dot<const N: usize, const RUN: usize, const R: usize, const P: usize>(
        weights: [&[__m512i; N]; P],
        x: *const i8,
        stride: usize,
    ) -> [[__m512; R]; P] {
        // SAFETY: VNNI is there and row `r` is valid for 4N bytes by the contract.
        unsafe {
            let mut totals = [[_mm512_setzero_si512(); R]; P];
            for j in 0..N {
                for r in 0..R {
                    let x = spread(x.add(r * stride + 4 * j));
                    for p in 0..P {
                        totals[p][r] = _mm512_dpbusd_epi32(totals[p][r], weights[p][j], x);
                    }
                }
            }
            floats(totals)
        }
    }
    #[inline(always)]
    unsafe fn dot_signed<const N: usize, const RUN: usize, const R: usize, const P: usize>(
        weights: [&[__m512i; N]; P],
        x: *const i8,
        stride: usize,
        sums: [i32; R],
    ) -> [[__m512; R]; P] {
        // The instruction wants unsigned weights: w + 128, whose share of 128 times the sum of x is taken off first.
        // SAFETY: VNNI is there and row `r` is valid for 4N bytes by the contract.
        unsafe {
            let mut totals = [[_mm512_setzero_si512(); R]; P];
            for r in 0..R {
                let share = _mm512_set1_epi32(-128 * sums[r]);
                for p in 0..P {
                    totals[p][r] = share;
                }
            }
            for j in 0..N {
                let mut unsigned = [_mm512_setzero_si512(); P];
                for p in 0..P {
                    unsigned[p] = _mm512_xor_si512(weights[p][j], _mm512_set1_epi8(-128));
                }
                for r in 0..R {
                    let x = spread(x.add(r * stride + 4 * j));
                    for p in 0..P {
                        totals[p][r] = _mm512_dpbusd_epi32(totals[p][r], unsigned[p], x);
                    }
                }
            }
            floats(totals)
        }
    }

    #[inline(always)]
    unsafe fn prefetch(from: *const u8) {
        // SAFETY: a prefetch never faults.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(from.cast()) }
    }
}
