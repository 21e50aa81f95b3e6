//! The left side of a product: rows of f32, and the same rows in 8 bits for the quantised formats.
//!
//! A block of 32 values shares one scale, so that a value's 8 bits depend on its own block and on nothing else.

use crate::Isa;
use crate::matrix::BLOCK;
use crate::pool::{Disjoint, Pool};

/// What a block of 32 quantised values needs beside its bytes.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(crate) struct BlockScale {
    /// The scale: value = `scale * byte`. NaN when a value of the block is not finite, so that it is never hidden.
    pub(crate) scale: f32,
    /// `scale` times the sum of the bytes.
    pub(crate) sum: f32,
    /// The sums of the first 16 bytes and of the last 16.
    pub(crate) halves: [i32; 2],
}

/// Rows of activations, `[rows, cols]`, reused from step to step.
#[derive(Debug, Default)]
pub struct Activations {
    rows: usize,
    cols: usize,
    values: Vec<f32>,
    bytes: Vec<i8>,
    scales: Vec<BlockScale>,
    quantised: bool,
}

impl Activations {
    /// No rows yet.
    pub fn new() -> Activations {
        Activations::default()
    }

    /// Rows.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Values a row.
    pub fn cols(&self) -> usize {
        self.cols
    }

    /// Row `row`, `[cols]`.
    ///
    /// # Panics
    /// When there is no such row.
    pub fn row(&self, row: usize) -> &[f32] {
        &self.values[row * self.cols..(row + 1) * self.cols]
    }

    /// Makes `rows` rows of `cols` values and has `write(row, values)` fill each, in parallel; also in 8 bits where
    /// `quantise` (needed by a product with a quantised matrix).
    ///
    /// # Panics
    /// When `quantise` and `cols` is not a multiple of 32: no quantised matrix has such inputs.
    pub fn fill(
        &mut self,
        pool: &Pool,
        isa: Isa,
        (rows, cols): (usize, usize),
        quantise: bool,
        write: impl Fn(usize, &mut [f32]) + Sync,
    ) {
        assert!(!quantise || cols % BLOCK == 0, "{cols} inputs cannot be quantised in blocks of {BLOCK}");
        (self.rows, self.cols, self.quantised) = (rows, cols, quantise);
        grow(&mut self.values, rows * cols);
        if quantise {
            grow(&mut self.bytes, rows * cols);
            grow(&mut self.scales, rows * cols / BLOCK);
        }
        let values = Disjoint::new(&mut self.values);
        let bytes = Disjoint::new(&mut self.bytes);
        let scales = Disjoint::new(&mut self.scales);
        let row = |row: usize| {
            // SAFETY: each row is one item, and rows do not overlap.
            let values = unsafe { values.slice(row * cols..(row + 1) * cols) };
            write(row, values);
            if quantise {
                let blocks = cols / BLOCK;
                // SAFETY: as above.
                let (bytes, scales) = unsafe {
                    (bytes.slice(row * cols..(row + 1) * cols), scales.slice(row * blocks..(row + 1) * blocks))
                };
                quantise_row(isa, values, bytes, scales);
            }
        };
        // A few rows take less time than handing them out.
        if rows < 4 { (0..rows).for_each(row) } else { pool.for_each(rows, row) }
    }

    pub(crate) fn values_ptr(&self) -> *const f32 {
        self.values.as_ptr()
    }

    /// The bytes and scales of all rows.
    ///
    /// # Panics
    /// When the rows were not quantised.
    pub(crate) fn quantised(&self) -> (*const i8, *const BlockScale) {
        assert!(self.quantised, "a quantised matrix needs quantised activations");
        (self.bytes.as_ptr(), self.scales.as_ptr())
    }
}

/// Makes room for `len` elements; never shrinks, so that a steady step allocates nothing.
fn grow<T: Clone + Default>(buffer: &mut Vec<T>, len: usize) {
    if buffer.len() < len {
        buffer.resize(len, T::default());
    }
}

fn quantise_row(isa: Isa, values: &[f32], bytes: &mut [i8], scales: &mut [BlockScale]) {
    match isa {
        #[cfg(target_arch = "x86_64")]
        // SAFETY: both sets include AVX2, and an `Isa` in use runs here.
        Isa::Avx2 | Isa::Avx512 => unsafe { quantise_row_avx2(values, bytes, scales) },
        _ => quantise_row_portable(values, bytes, scales),
    }
}

fn quantise_row_portable(values: &[f32], bytes: &mut [i8], scales: &mut [BlockScale]) {
    let blocks = values.chunks_exact(BLOCK).zip(bytes.chunks_exact_mut(BLOCK));
    for ((values, bytes), block) in blocks.zip(scales) {
        let largest = values.iter().fold(0.0f32, |largest, v| largest.max(v.abs()));
        let finite = values.iter().all(|v| v.is_finite());
        let inverse = if largest > 0.0 { 127.0 / largest } else { 0.0 };
        for (byte, value) in bytes.iter_mut().zip(values) {
            *byte = (value * inverse).round_ties_even().clamp(-127.0, 127.0) as i8;
        }
        let sum = |half: &[i8]| half.iter().map(|&b| i32::from(b)).sum::<i32>();
        *block = block_scale(largest, finite, [sum(&bytes[..16]), sum(&bytes[16..])]);
    }
}

#[inline(always)]
fn block_scale(largest: f32, finite: bool, halves: [i32; 2]) -> BlockScale {
    let scale = if finite { largest / 127.0 } else { f32::NAN };
    BlockScale { scale, sum: scale * (halves[0] + halves[1]) as f32, halves }
}

/// As [`quantise_row_portable`], to the bit.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,fma,f16c")]
fn quantise_row_avx2(values: &[f32], bytes: &mut [i8], scales: &mut [BlockScale]) {
    use std::arch::x86_64::*;
    let sign = _mm256_set1_ps(-0.0);
    let limit = _mm256_set1_ps(127.0);
    // After the two packs, which work in halves of 128 bits, the groups of four bytes stand in this order.
    let order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
    let blocks = values.chunks_exact(BLOCK).zip(bytes.chunks_exact_mut(BLOCK));
    for ((values, bytes), block) in blocks.zip(scales) {
        // SAFETY: a block has 32 values.
        let v: [__m256; 4] = std::array::from_fn(|i| unsafe { _mm256_loadu_ps(values.as_ptr().add(8 * i)) });
        let abs = v.map(|v| _mm256_andnot_ps(sign, v));
        let max = _mm256_max_ps(_mm256_max_ps(abs[0], abs[1]), _mm256_max_ps(abs[2], abs[3]));
        // 0 * x is 0 for every finite x and NaN for the others.
        let zeros = abs.map(|v| _mm256_mul_ps(v, _mm256_setzero_ps()));
        let odd = _mm256_add_ps(_mm256_add_ps(zeros[0], zeros[1]), _mm256_add_ps(zeros[2], zeros[3]));
        let finite = _mm256_movemask_ps(_mm256_cmp_ps::<_CMP_UNORD_Q>(odd, odd)) == 0;
        let four = _mm_max_ps(_mm256_castps256_ps128(max), _mm256_extractf128_ps::<1>(max));
        let two = _mm_max_ps(four, _mm_movehl_ps(four, four));
        let largest = _mm_cvtss_f32(_mm_max_ss(two, _mm_shuffle_ps::<1>(two, two)));
        let inverse = _mm256_set1_ps(if largest > 0.0 { 127.0 / largest } else { 0.0 });
        let q = v.map(|v| {
            let scaled = _mm256_mul_ps(v, inverse);
            let clamped = _mm256_max_ps(_mm256_min_ps(scaled, limit), _mm256_xor_ps(limit, sign));
            _mm256_cvtps_epi32(clamped)
        });
        let low = _mm256_packs_epi32(q[0], q[1]);
        let high = _mm256_packs_epi32(q[2], q[3]);
        let packed = _mm256_permutevar8x32_epi32(_mm256_packs_epi16(low, high), order);
        // SAFETY: a block has 32 bytes.
        unsafe { _mm256_storeu_si256(bytes.as_mut_ptr().cast(), packed) };
        let pairs = _mm256_maddubs_epi16(_mm256_set1_epi8(1), packed);
        let fours = _mm256_madd_epi16(pairs, _mm256_set1_epi16(1));
        let (first, last) = (_mm256_castsi256_si128(fours), _mm256_extracti128_si256::<1>(fours));
        let sums = _mm_hadd_epi32(_mm_hadd_epi32(first, last), _mm_setzero_si128());
        *block = block_scale(largest, finite, [_mm_cvtsi128_si32(sums), _mm_extract_epi32::<1>(sums)]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::num::NonZeroUsize;

    fn filled(isa: Isa, values: &[f32]) -> Activations {
        let mut x = Activations::new();
        let pool = Pool::new(NonZeroUsize::MIN);
        x.fill(&pool, isa, (1, values.len()), true, |_, row| row.copy_from_slice(values));
        x
    }

    #[test]
    fn every_set_quantises_to_the_same_bits() {
        let mut state = 1u32;
        let values: Vec<f32> = (0..32 * 50)
            .map(|i| {
                state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                ((state >> 8) as f32 / 8_388_608.0 - 1.0) * (i as f32 / 100.0).exp2()
            })
            .collect();
        let portable = filled(Isa::Portable, &values);
        for isa in Isa::available() {
            let x = filled(isa, &values);
            assert_eq!(x.bytes, portable.bytes, "{isa}");
            assert_eq!(x.scales, portable.scales, "{isa}");
        }
        for (block, scale) in portable.bytes.chunks(32).zip(&portable.scales) {
            assert_eq!(block[..16].iter().map(|&b| i32::from(b)).sum::<i32>(), scale.halves[0]);
            assert_eq!(block.iter().map(|b| b.unsigned_abs()).max(), Some(127));
        }
    }

    #[test]
    fn a_value_that_is_not_finite_is_never_hidden() {
        for isa in Isa::available() {
            for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
                let mut values = vec![1.0; 64];
                values[37] = bad;
                let x = filled(isa, &values);
                assert!(x.scales[0].scale.is_finite() && x.scales[1].scale.is_nan(), "{isa} {bad}");
            }
            assert_eq!(filled(isa, &[0.0; 32]).scales[0], BlockScale::default());
        }
    }
}
