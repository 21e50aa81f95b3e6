//! The lanes in AVX2 with FMA and F16C.

use std::arch::x86_64::*;

use super::pair::Pair;
use super::{Kernel, LANES, Lanes, Vector, WIDE};

/// Proof that this machine has AVX2, FMA and F16C: made only in [`run`], and in [`super::avx512::run`] with its own wide
/// vectors `W` beside.
#[derive(Clone, Copy)]
pub(super) struct Avx2<W>(pub(super) W);

/// Runs a kernel's body compiled for AVX2, FMA and F16C.
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) fn run<K: Kernel>(kernel: K) -> K::Output {
    kernel.run(Avx2(Pair(Avx2(()))))
}

/// Calls intrinsics of the sets that an `Avx2` value proves.
macro_rules! proven {
    ($call:expr) => {
        // SAFETY: an `Avx2` exists only where the machine has AVX2, FMA and F16C; memory is reached through references
        // to arrays as long as the vector, by instructions that need no alignment.
        unsafe { $call }
    };
}

impl<W: Copy> Vector for Avx2<W> {
    const REGISTERS: usize = 16;
    type V = __m256;
    type Floats = [f32; LANES];
    type Halves = [u16; LANES];

    #[inline(always)]
    fn splat(self, x: f32) -> __m256 {
        proven!(_mm256_set1_ps(x))
    }

    #[inline(always)]
    fn load(self, from: &[f32; LANES]) -> __m256 {
        proven!(_mm256_loadu_ps(from.as_ptr()))
    }

    #[inline(always)]
    fn store(self, v: __m256, to: &mut [f32; LANES]) {
        proven!(_mm256_storeu_ps(to.as_mut_ptr(), v));
    }

    #[inline(always)]
    fn load_f16(self, from: &[u16; LANES]) -> __m256 {
        proven!(_mm256_cvtph_ps(_mm_loadu_si128(from.as_ptr().cast())))
    }

    #[inline(always)]
    fn add(self, a: __m256, b: __m256) -> __m256 {
        proven!(_mm256_add_ps(a, b))
    }

    #[inline(always)]
    fn sub(self, a: __m256, b: __m256) -> __m256 {
        proven!(_mm256_sub_ps(a, b))
    }

    #[inline(always)]
    fn mul(self, a: __m256, b: __m256) -> __m256 {
        proven!(_mm256_mul_ps(a, b))
    }

    #[inline(always)]
    fn div(self, a: __m256, b: __m256) -> __m256 {
        proven!(_mm256_div_ps(a, b))
    }

    #[inline(always)]
    fn mul_add(self, a: __m256, b: __m256, c: __m256) -> __m256 {
        proven!(_mm256_fmadd_ps(a, b, c))
    }

    #[inline(always)]
    fn min(self, a: __m256, b: __m256) -> __m256 {
        proven!(_mm256_min_ps(a, b))
    }

    #[inline(always)]
    fn max(self, a: __m256, b: __m256) -> __m256 {
        proven!(_mm256_max_ps(a, b))
    }

    #[inline(always)]
    fn exp2(self, n: __m256) -> __m256 {
        proven!({
            let biased = _mm256_add_epi32(_mm256_cvtps_epi32(n), _mm256_set1_epi32(127));
            _mm256_castsi256_ps(_mm256_slli_epi32::<23>(biased))
        })
    }
}

impl<W: Vector<Floats = [f32; WIDE], Halves = [u16; WIDE]>> Lanes for Avx2<W> {
    type Wide = W;

    #[inline(always)]
    fn wide(self) -> W {
        self.0
    }

    #[inline(always)]
    fn store_f16(self, v: __m256, to: &mut [u16; LANES]) {
        proven!(_mm_storeu_si128(to.as_mut_ptr().cast(), _mm256_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(v)));
    }

    #[inline(always)]
    fn rotate_pairs(self, v: __m256, cos: &[f32; LANES / 2], sin: &[f32; LANES / 2]) -> __m256 {
        proven!({
            let twice = _mm256_setr_epi32(0, 0, 1, 1, 2, 2, 3, 3);
            let cos = _mm256_permutevar8x32_ps(_mm256_castps128_ps256(_mm_loadu_ps(cos.as_ptr())), twice);
            let sin = _mm256_permutevar8x32_ps(_mm256_castps128_ps256(_mm_loadu_ps(sin.as_ptr())), twice);
            let swapped = _mm256_permute_ps::<0b10_11_00_01>(v);
            _mm256_fmaddsub_ps(v, cos, _mm256_mul_ps(swapped, sin))
        })
    }

    #[inline(always)]
    fn prefetch<T>(self, at: &T) {
        proven!(_mm_prefetch::<_MM_HINT_T0>(std::ptr::from_ref(at).cast()));
    }
}
