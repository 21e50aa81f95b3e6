//! The few vector operations that the matrix product is written in, one implementation per instruction set.
//!
//! A kernel body is written once, generic over [`Simd`]; every set thus runs the same arithmetic in the same order.
//! What differs is only the width of a panel ([`Simd::LANES`] outputs) and how 8-bit products are summed, which is
//! exact in every variant. Loops over arrays of vectors count by index, so that they unroll early and the vectors stay
//! in registers. Nothing that knows a weight format may enter: see `matrix/quant.rs` for those.

#![allow(clippy::needless_range_loop)]

#[cfg(target_arch = "x86_64")]
pub(crate) mod avx2;
#[cfg(target_arch = "x86_64")]
pub(crate) mod avx512;
pub(crate) mod portable;

/// Vector operations on a panel of [`Self::LANES`] outputs.
///
/// # Safety
/// Every method may be called only on a machine that has the instruction set ([`crate::Isa::runs_here`]), and pointers
/// must be valid for the bytes that the method says it reads or writes. Methods are inlined into callers that enable
/// the target features, as `std::arch` needs.
pub(crate) trait Simd: Copy {
    /// Outputs in a panel: the lanes of [`Self::Floats`].
    const LANES: usize;
    /// Rows that one register tile of a quantised product holds.
    const ROWS: usize;
    /// Panels side by side in a tile of a quantised product, 1 or 2: a row's bytes are spread once for all of them.
    const PANELS: usize;
    /// Rows that one register tile of a dense product holds.
    const DENSE_ROWS: usize;
    /// `4 * LANES` bytes: four consecutive weights of each output.
    type Bytes: Copy;
    /// `LANES` floats, one for each output.
    type Floats: Copy;

    /// Reads `4 * LANES` bytes.
    unsafe fn bytes(from: *const u8) -> Self::Bytes;
    /// Writes `4 * LANES` bytes.
    unsafe fn store_bytes(to: *mut u8, bytes: Self::Bytes);
    /// The low four bits of every byte.
    unsafe fn low(bytes: Self::Bytes) -> Self::Bytes;
    /// The high four bits of every byte, moved down.
    unsafe fn high(bytes: Self::Bytes) -> Self::Bytes;
    /// Bit `J` of every byte, moved to bit 4.
    unsafe fn bit_to_4<const J: i32>(bytes: Self::Bytes) -> Self::Bytes;
    /// Bits `2J` and `2J + 1` of every byte, moved to bits 4 and 5.
    unsafe fn pair_to_4<const J: i32>(bytes: Self::Bytes) -> Self::Bytes;
    /// Bytewise or.
    unsafe fn or(a: Self::Bytes, b: Self::Bytes) -> Self::Bytes;
    /// Subtracts `value` from every byte.
    unsafe fn minus(bytes: Self::Bytes, value: i8) -> Self::Bytes;

    /// Reads `LANES` floats.
    unsafe fn floats(from: *const f32) -> Self::Floats;
    /// Writes `LANES` floats.
    unsafe fn store_floats(to: *mut f32, floats: Self::Floats);
    /// Reads `LANES` f16 numbers.
    unsafe fn halves(from: *const u8) -> Self::Floats;
    /// Reads `LANES` bf16 numbers.
    unsafe fn bfloats(from: *const u8) -> Self::Floats;
    /// Reads `LANES` unsigned bytes as numbers.
    unsafe fn unsigned(from: *const u8) -> Self::Floats;
    /// Reads `LANES` signed bytes as numbers.
    unsafe fn signed(from: *const u8) -> Self::Floats;
    /// One number in every lane.
    unsafe fn splat(value: f32) -> Self::Floats;
    /// `a * b`.
    unsafe fn mul(a: Self::Floats, b: Self::Floats) -> Self::Floats;
    /// `a * b + c`.
    unsafe fn fma(a: Self::Floats, b: Self::Floats, c: Self::Floats) -> Self::Floats;

    /// For each of `P` panels, `R` rows and each output the exact sum of unsigned weights by `4 * N` signed bytes, as a
    /// float: row `r`'s bytes are at `x + r * stride`.
    ///
    /// `RUN` is how many products of the weights by 8-bit numbers fit 16 bits: weights are below `2^15 / (254 * RUN)`.
    unsafe fn dot<const N: usize, const RUN: usize, const R: usize, const P: usize>(
        weights: [&[Self::Bytes; N]; P],
        x: *const i8,
        stride: usize,
    ) -> [[Self::Floats; R]; P];
    /// The same for signed weights (at least -128, and at most `2^15 / (254 * RUN)` in magnitude); `sums[r]` is the sum
    /// of row `r`'s bytes.
    unsafe fn dot_signed<const N: usize, const RUN: usize, const R: usize, const P: usize>(
        weights: [&[Self::Bytes; N]; P],
        x: *const i8,
        stride: usize,
        sums: [i32; R],
    ) -> [[Self::Floats; R]; P];

    /// Asks for the cache line at `from`, which need not be valid.
    unsafe fn prefetch(from: *const u8);
}
