//! The wide vectors in AVX-512. Vectors of eight lanes stay those of AVX2.

use std::arch::x86_64::*;

use super::avx2::Avx2;
use super::{Kernel, Vector, WIDE};

/// Proof that this machine has AVX-512 (F, BW, DQ, VL): made only in [`run`].
#[derive(Clone, Copy)]
pub(super) struct Zmm(());

/// Runs a kernel's body compiled for AVX-512, AVX2, FMA and F16C.
#[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512dq,avx512vl")]
pub(super) fn run<K: Kernel>(kernel: K) -> K::Output {
    kernel.run(Avx2(Zmm(())))
}

/// Calls intrinsics of the sets that a `Zmm` value proves.
macro_rules! proven {
    ($call:expr) => {
        // SAFETY: a `Zmm` exists only where the machine has AVX-512; memory is reached through references to arrays as
        // long as the vector, by instructions that need no alignment.
        unsafe { $call }
    };
}

impl Vector for Zmm {
    const REGISTERS: usize = 32;
    type V = __m512;
    type Floats = [f32; WIDE];
    type Halves = [u16; WIDE];

    #[inline(always)]
    fn splat(self, x: f32) -> __m512 {
        proven!(_mm512_set1_ps(x))
    }

    #[inline(always)]
    fn load(self, from: &[f32; WIDE]) -> __m512 {
        proven!(_mm512_loadu_ps(from.as_ptr()))
    }

    #[inline(always)]
    fn store(self, v: __m512, to: &mut [f32; WIDE]) {
        proven!(_mm512_storeu_ps(to.as_mut_ptr(), v));
    }

    #[inline(always)]
    fn load_f16(self, from: &[u16; WIDE]) -> __m512 {
        proven!(_mm512_cvtph_ps(_mm256_loadu_si256(from.as_ptr().cast())))
    }

    #[inline(always)]
    fn add(self, a: __m512, b: __m512) -> __m512 {
        proven!(_mm512_add_ps(a, b))
    }

    #[inline(always)]
    fn sub(self, a: __m512, b: __m512) -> __m512 {
        proven!(_mm512_sub_ps(a, b))
    }

    #[inline(always)]
    fn mul(self, a: __m512, b: __m512) -> __m512 {
        proven!(_mm512_mul_ps(a, b))
    }

    #[inline(always)]
    fn div(self, a: __m512, b: __m512) -> __m512 {
        proven!(_mm512_div_ps(a, b))
    }

    #[inline(always)]
    fn mul_add(self, a: __m512, b: __m512, c: __m512) -> __m512 {
        proven!(_mm512_fmadd_ps(a, b, c))
    }

    #[inline(always)]
    fn min(self, a: __m512, b: __m512) -> __m512 {
        proven!(_mm512_min_ps(a, b))
    }

    #[inline(always)]
    fn max(self, a: __m512, b: __m512) -> __m512 {
        proven!(_mm512_max_ps(a, b))
    }

    #[inline(always)]
    fn exp2(self, n: __m512) -> __m512 {
        proven!({
            let biased = _mm512_add_epi32(_mm512_cvtps_epi32(n), _mm512_set1_epi32(127));
            _mm512_castsi512_ps(_mm512_slli_epi32::<23>(biased))
        })
    }
}
