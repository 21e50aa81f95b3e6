//! Eight `f32` lanes, or twice as many: the vocabulary in which ops and attention are written once and compiled for each instruction set.
//!
//! A kernel is a small struct with its arguments and one generic body ([`Kernel`]); [`run`] compiles the body for every
//! set and picks one per call. Nothing that knows what the lanes mean may enter here.

#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;
mod pair;
mod portable;

use crate::Isa;

/// Lanes of one vector.
pub(crate) const LANES: usize = 8;

/// Lanes of a wide vector.
pub(crate) const WIDE: usize = 2 * LANES;

/// Vectors of one length: memory and arithmetic. A value of the type proves that this machine runs the instruction set,
/// so the methods are safe to call.
pub(crate) trait Vector: Copy {
    /// Vectors that fit the registers.
    const REGISTERS: usize;
    /// One vector.
    type V: Copy;
    /// Its numbers in memory.
    type Floats;
    /// Its numbers in memory, in half precision bits.
    type Halves;

    /// `x` in every lane.
    fn splat(self, x: f32) -> Self::V;
    /// The lanes from memory.
    fn load(self, from: &Self::Floats) -> Self::V;
    /// The lanes to memory.
    fn store(self, v: Self::V, to: &mut Self::Floats);
    /// The lanes from half precision bits.
    fn load_f16(self, from: &Self::Halves) -> Self::V;

    /// `a + b`.
    fn add(self, a: Self::V, b: Self::V) -> Self::V;
    /// `a - b`.
    fn sub(self, a: Self::V, b: Self::V) -> Self::V;
    /// `a * b`.
    fn mul(self, a: Self::V, b: Self::V) -> Self::V;
    /// `a / b`.
    fn div(self, a: Self::V, b: Self::V) -> Self::V;
    /// `a * b + c`, fused where the set has it.
    fn mul_add(self, a: Self::V, b: Self::V, c: Self::V) -> Self::V;
    /// The smaller one; `b` where either is not a number.
    fn min(self, a: Self::V, b: Self::V) -> Self::V;
    /// The larger one; `b` where either is not a number.
    fn max(self, a: Self::V, b: Self::V) -> Self::V;
    /// 2 to the power of a whole number in -126..=127.
    fn exp2(self, n: Self::V) -> Self::V;
}

/// Vectors of [`LANES`] numbers, and of [`WIDE`] ones for loops whose lanes never meet: there the width is a matter of
/// speed alone.
pub(crate) trait Lanes: Vector<Floats = [f32; LANES], Halves = [u16; LANES]> {
    /// The vectors of [`WIDE`] numbers.
    type Wide: Vector<Floats = [f32; WIDE], Halves = [u16; WIDE]>;

    /// The wide vectors of the same set.
    fn wide(self) -> Self::Wide;
    /// The lanes as half precision bits, rounded to nearest even.
    fn store_f16(self, v: Self::V, to: &mut [u16; LANES]);
    /// Rotates the four pairs of neighbouring lanes `(a, b)` by four angles: `(a cos - b sin, b cos + a sin)`.
    fn rotate_pairs(self, v: Self::V, cos: &[f32; LANES / 2], sin: &[f32; LANES / 2]) -> Self::V;
    /// Asks for the cache line of `at`, to be read soon.
    fn prefetch<T>(self, at: &T);
}

/// A kernel's arguments and its body. The body and everything it calls are `#[inline(always)]`: only what is inlined
/// into [`run`]'s callees is compiled for their instruction set.
pub(crate) trait Kernel {
    /// What the kernel returns.
    type Output;

    /// The body.
    fn run<S: Lanes>(self, s: S) -> Self::Output;
}

/// Runs a kernel on `isa`.
///
/// # Panics
/// When this machine does not have `isa`.
#[inline]
pub(crate) fn run<K: Kernel>(isa: Isa, kernel: K) -> K::Output {
    match isa {
        Isa::Portable => kernel.run(portable::Portable),
        #[cfg(target_arch = "x86_64")]
        Isa::Avx2 => {
            assert!(isa.runs_here(), "this machine does not have {isa}");
            // SAFETY: the machine has AVX2, FMA and F16C, by the check above.
            unsafe { avx2::run(kernel) }
        }
        #[cfg(target_arch = "x86_64")]
        Isa::Avx512 => {
            assert!(isa.runs_here(), "this machine does not have {isa}");
            // SAFETY: the machine has AVX-512 and what AVX2 stands for, by the check above.
            unsafe { avx512::run(kernel) }
        }
        #[cfg(not(target_arch = "x86_64"))]
        _ => panic!("this machine does not have {isa}"),
    }
}

/// The first `x.len()` lanes from memory, 0 in the others. `x` is no longer than a vector.
#[inline(always)]
pub(crate) fn load_part<S: Lanes>(s: S, x: &[f32]) -> S::V {
    let mut lanes = [0.0; LANES];
    lanes[..x.len()].copy_from_slice(x);
    s.load(&lanes)
}

/// The first `to.len()` lanes to memory. `to` is no longer than a vector.
#[inline(always)]
pub(crate) fn store_part<S: Lanes>(s: S, v: S::V, to: &mut [f32]) {
    let all = lanes(s, v);
    to.copy_from_slice(&all[..to.len()]);
}

/// The lanes as an array.
#[inline(always)]
pub(crate) fn lanes<S: Lanes>(s: S, v: S::V) -> [f32; LANES] {
    let mut lanes = [0.0; LANES];
    s.store(v, &mut lanes);
    lanes
}

/// The sum of the lanes, always in the same order.
#[inline(always)]
pub(crate) fn sum<S: Lanes>(s: S, v: S::V) -> f32 {
    let [a, b, c, d, e, f, g, h] = lanes(s, v);
    ((a + e) + (c + g)) + ((b + f) + (d + h))
}

/// The largest lane.
#[inline(always)]
pub(crate) fn largest<S: Lanes>(s: S, v: S::V) -> f32 {
    lanes(s, v).into_iter().fold(f32::NEG_INFINITY, f32::max)
}
