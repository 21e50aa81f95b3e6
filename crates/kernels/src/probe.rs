//! What the machine itself can do: the ceilings that kernel times are held against.
//!
//! Three loops, each as plain as the ceiling it measures: reading memory, 8-bit multiply-adds, f32 multiply-adds. They
//! belong here because they must use the instructions that the kernels use; a kernel may not be timed here. Every loop
//! reads its operands through `black_box`, so that the compiler can neither drop it nor lift work out of it.

use std::hint::black_box;
use std::sync::Barrier;
use std::time::Instant;

use crate::Isa;

/// Operands of the multiply-adds: they stay in the first-level cache.
const OPERAND_BYTES: usize = 4096;

/// Operands on whole cache lines: a load that straddles two takes twice as long.
#[repr(align(64))]
struct Aligned<T>(T);

/// Passes over the operands between two looks at the clock: some tens of milliseconds of work.
const PASSES: usize = 1 << 17;

/// Median bytes a second that `threads` threads read together from `bytes` of memory, over `repeats` sweeps.
///
/// Every thread owns an equal share of the memory and touches it first, as the weights of a model are shared out.
/// Returns 0 when there is nothing to read.
pub fn read_bandwidth(isa: Isa, threads: usize, bytes: usize, repeats: usize) -> f64 {
    let threads = threads.max(1);
    let words = bytes / threads / size_of::<u64>();
    if words == 0 || repeats == 0 {
        return 0.0;
    }
    let work = |barrier: &Barrier| {
        let memory: Vec<u64> = (0..words as u64).collect();
        sweep(isa, &memory);
        timed(barrier, repeats, || sweep(isa, &memory))
    };
    (threads * words * size_of::<u64>()) as f64 / together(threads, repeats, work)
}

/// Median 8-bit multiply-adds a second of `threads` threads together: unsigned by signed bytes into 32-bit sums.
pub fn int8_rate(isa: Isa, threads: usize, repeats: usize) -> f64 {
    let threads = threads.max(1);
    let work = |barrier: &Barrier| {
        let operands = Aligned([1i8; OPERAND_BYTES]);
        timed(barrier, repeats, || int8_passes(isa, &operands.0))
    };
    (threads * PASSES * OPERAND_BYTES) as f64 / together(threads, repeats, work)
}

/// Median f32 multiply-adds a second of `threads` threads together (twice that in floating point operations).
pub fn f32_rate(isa: Isa, threads: usize, repeats: usize) -> f64 {
    let threads = threads.max(1);
    let work = |barrier: &Barrier| {
        let operands = Aligned([1e-3f32; OPERAND_BYTES / size_of::<f32>()]);
        timed(barrier, repeats, || f32_passes(isa, &operands.0))
    };
    (threads * PASSES * OPERAND_BYTES / size_of::<f32>()) as f64 / together(threads, repeats, work)
}

/// Seconds of each of `repeats` calls of `body`, all threads starting each one together.
fn timed(barrier: &Barrier, repeats: usize, mut body: impl FnMut()) -> Vec<f64> {
    let mut seconds = Vec::with_capacity(repeats);
    body();
    for _ in 0..repeats {
        barrier.wait();
        let start = Instant::now();
        body();
        seconds.push(start.elapsed().as_secs_f64());
    }
    seconds
}

/// Runs `work` on `threads` threads; returns the median over the repeats of the slowest thread's seconds.
fn together(threads: usize, repeats: usize, work: impl Fn(&Barrier) -> Vec<f64> + Sync) -> f64 {
    let barrier = Barrier::new(threads);
    let mut slowest = vec![0.0f64; repeats];
    std::thread::scope(|scope| {
        let handles: Vec<_> = (0..threads).map(|_| scope.spawn(|| work(&barrier))).collect();
        for handle in handles {
            let seconds = handle.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
            for (slow, second) in slowest.iter_mut().zip(seconds) {
                *slow = slow.max(second);
            }
        }
    });
    slowest.sort_by(f64::total_cmp);
    slowest.get(repeats / 2).copied().unwrap_or(f64::INFINITY)
}

fn sweep(isa: Isa, memory: &[u64]) {
    let memory = black_box(memory);
    let sum = match isa {
        #[cfg(target_arch = "x86_64")]
        // SAFETY: the guard has just asked the machine for AVX2.
        Isa::Avx2 | Isa::Avx512 if Isa::Avx2.runs_here() => unsafe { x86::sum(memory) },
        _ => sum(memory),
    };
    black_box(sum);
}

fn int8_passes(isa: Isa, operands: &[i8; OPERAND_BYTES]) {
    match isa {
        #[cfg(target_arch = "x86_64")]
        // SAFETY: the guard has just asked the machine for AVX-512 and VNNI.
        Isa::Avx512 if isa.runs_here() => unsafe { x86::int8_avx512(operands) },
        #[cfg(target_arch = "x86_64")]
        // SAFETY: the guard has just asked the machine for AVX2.
        Isa::Avx2 if isa.runs_here() => unsafe { x86::int8_avx2(operands) },
        _ => int8_portable(operands),
    }
}

fn f32_passes(isa: Isa, operands: &[f32; OPERAND_BYTES / 4]) {
    match isa {
        #[cfg(target_arch = "x86_64")]
        // SAFETY: the guard has just asked the machine for AVX-512.
        Isa::Avx512 if isa.runs_here() => unsafe { x86::f32_avx512(operands) },
        #[cfg(target_arch = "x86_64")]
        // SAFETY: the guard has just asked the machine for AVX2 and FMA.
        Isa::Avx2 if isa.runs_here() => unsafe { x86::f32_avx2(operands) },
        _ => f32_portable(operands),
    }
}

/// Several vectors of running sums, so that the loop waits for memory and not for its own additions.
#[inline(always)]
fn sum(memory: &[u64]) -> u64 {
    let mut sums = [0u64; 32];
    let (chunks, rest) = memory.as_chunks::<32>();
    for chunk in chunks {
        for (sum, word) in sums.iter_mut().zip(chunk) {
            *sum = sum.wrapping_add(*word);
        }
    }
    sums.iter().chain(rest).fold(0, |total, word| total.wrapping_add(*word))
}

fn int8_portable(operands: &[i8; OPERAND_BYTES]) {
    let mut sums = [0i32; 64];
    for _ in 0..PASSES {
        for chunk in black_box(operands).as_chunks::<64>().0 {
            for (sum, byte) in sums.iter_mut().zip(chunk) {
                *sum = sum.wrapping_add(i32::from(*byte as u8) * i32::from(*byte));
            }
        }
    }
    black_box(sums);
}

fn f32_portable(operands: &[f32; OPERAND_BYTES / 4]) {
    let mut sums = [0f32; 32];
    for _ in 0..PASSES {
        for chunk in black_box(operands).as_chunks::<32>().0 {
            for (sum, value) in sums.iter_mut().zip(chunk) {
                *sum += value * value;
            }
        }
    }
    black_box(sums);
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use std::arch::x86_64::*;
    use std::hint::black_box;

    use super::{OPERAND_BYTES, PASSES};

    /// Independent chains: enough to hide the latency of a multiply-add on every machine in use.
    const CHAINS: usize = 8;

    #[target_feature(enable = "avx2")]
    pub(super) fn sum(memory: &[u64]) -> u64 {
        super::sum(memory)
    }

    #[target_feature(enable = "avx2")]
    pub(super) fn int8_avx2(operands: &[i8; OPERAND_BYTES]) {
        let mut sums = [_mm256_setzero_si256(); CHAINS];
        let ones = _mm256_set1_epi16(1);
        let left = black_box(_mm256_set1_epi8(1));
        for _ in 0..PASSES {
            for chunk in black_box(operands).as_chunks::<{ 32 * CHAINS }>().0 {
                for (chain, sum) in sums.iter_mut().enumerate() {
                    // SAFETY: `chunk` holds CHAINS vectors of 32 bytes, and the load needs no alignment.
                    let right = unsafe { _mm256_loadu_si256(chunk.as_ptr().add(32 * chain).cast()) };
                    *sum = _mm256_add_epi32(*sum, _mm256_madd_epi16(_mm256_maddubs_epi16(left, right), ones));
                }
            }
        }
        black_box(sums);
    }

    #[target_feature(enable = "avx2,fma")]
    pub(super) fn f32_avx2(operands: &[f32; OPERAND_BYTES / 4]) {
        let mut sums = [_mm256_setzero_ps(); CHAINS];
        let left = black_box(_mm256_set1_ps(1e-3));
        for _ in 0..PASSES {
            for chunk in black_box(operands).as_chunks::<{ 8 * CHAINS }>().0 {
                for (chain, sum) in sums.iter_mut().enumerate() {
                    // SAFETY: `chunk` holds CHAINS vectors of 8 values, and the load needs no alignment.
                    let right = unsafe { _mm256_loadu_ps(chunk.as_ptr().add(8 * chain)) };
                    *sum = _mm256_fmadd_ps(left, right, *sum);
                }
            }
        }
        black_box(sums);
    }

    #[target_feature(enable = "avx512f,avx512vnni")]
    pub(super) fn int8_avx512(operands: &[i8; OPERAND_BYTES]) {
        let mut sums = [_mm512_setzero_si512(); CHAINS];
        let left = black_box(_mm512_set1_epi8(1));
        for _ in 0..PASSES {
            for chunk in black_box(operands).as_chunks::<{ 64 * CHAINS }>().0 {
                for (chain, sum) in sums.iter_mut().enumerate() {
                    // SAFETY: `chunk` holds CHAINS vectors of 64 bytes, and the load needs no alignment.
                    let right = unsafe { _mm512_loadu_si512(chunk.as_ptr().add(64 * chain).cast()) };
                    *sum = _mm512_dpbusd_epi32(*sum, left, right);
                }
            }
        }
        black_box(sums);
    }

    #[target_feature(enable = "avx512f")]
    pub(super) fn f32_avx512(operands: &[f32; OPERAND_BYTES / 4]) {
        let mut sums = [_mm512_setzero_ps(); CHAINS];
        let left = black_box(_mm512_set1_ps(1e-3));
        for _ in 0..PASSES {
            for chunk in black_box(operands).as_chunks::<{ 16 * CHAINS }>().0 {
                for (chain, sum) in sums.iter_mut().enumerate() {
                    // SAFETY: `chunk` holds CHAINS vectors of 16 values, and the load needs no alignment.
                    let right = unsafe { _mm512_loadu_ps(chunk.as_ptr().add(16 * chain)) };
                    *sum = _mm512_fmadd_ps(left, right, *sum);
                }
            }
        }
        black_box(sums);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The rates themselves are the machine's; that a probe runs on every set and counts something is ours.
    #[test]
    fn every_probe_runs_on_every_instruction_set() {
        for isa in Isa::available() {
            for threads in [1, 2] {
                assert!(read_bandwidth(isa, threads, 1 << 20, 2) > 0.0, "{isa} read, {threads} threads");
            }
            if isa != Isa::Portable {
                assert!(int8_rate(isa, 1, 1) > 0.0, "{isa} int8");
                assert!(f32_rate(isa, 1, 1) > 0.0, "{isa} f32");
            }
        }
        assert_eq!(read_bandwidth(Isa::Portable, 4, 0, 3), 0.0, "nothing to read");
    }
}
