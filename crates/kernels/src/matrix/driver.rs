//! Cutting products into items for the pool and sending each to the body for its format and instruction set.

use std::cell::RefCell;
use std::ops::Range;

use super::Matrix;
use super::pack::with_quant;
use super::quant::{Q4_0, Q4_1, Q4K, Q5_0, Q5_1, Q5K, Q6K, Q8_0, Quant};
use super::tile::{self, Dense, Left, Out};
use crate::Isa;
use crate::activations::Activations;
use crate::format::Format;
use crate::pool::Pool;
use crate::simd::portable::Portable;

/// Bytes of weights in an item: small enough that threads end together, large enough that handing out costs nothing.
const ITEM: usize = 48 << 10;

thread_local! {
    /// Room for one unpacked panel.
    static ROOM: RefCell<Vec<u64>> = const { RefCell::new(Vec::new()) };
}

/// One matrix of a joint product, and where its result goes.
pub struct Product<'a> {
    /// The weights.
    pub matrix: &'a Matrix,
    /// The result, `[rows, outputs]`.
    pub out: &'a mut [f32],
    /// Adds to what `out` holds rather than storing.
    pub accumulate: bool,
}

impl<'a> Product<'a> {
    /// A product that is stored.
    pub fn new(matrix: &'a Matrix, out: &'a mut [f32]) -> Product<'a> {
        Product { matrix, out, accumulate: false }
    }
}

/// What a thread needs of one product.
struct Job<'a> {
    matrix: &'a Matrix,
    out: Out,
    panels_per_item: usize,
    /// The number of the first item after this job's.
    end: usize,
}

// SAFETY: items write disjoint outputs of `out`, which the products borrow exclusively.
unsafe impl Sync for Job<'_> {}

/// What a thread needs of the left side.
struct Shared(Left);

// SAFETY: read only, and borrowed for the whole call.
unsafe impl Sync for Shared {}

/// Multiplies the rows `x` by several matrices in one parallel region.
///
/// Each result's bits are a function of its row of `x` and its row of the matrix alone.
///
/// # Panics
/// When a matrix has other inputs than `x`, a result has no room for the rows, or `x` was not quantised for a
/// quantised matrix.
pub fn multiply(pool: &Pool, x: &Activations, products: &mut [Product<'_>]) {
    let rows = x.rows();
    if rows == 0 {
        return;
    }
    let quantised = products.iter().any(|product| product.matrix.format.is_quantised());
    let (bytes, scales) = if quantised { x.quantised() } else { (std::ptr::null(), std::ptr::null()) };
    let left = Shared(Left { rows, inputs: x.cols(), values: x.values_ptr(), bytes, scales });
    let mut end = 0;
    let jobs: Vec<Job<'_>> = products
        .iter_mut()
        .map(|product| {
            let Product { matrix, out, accumulate } = product;
            assert!(matrix.inputs == x.cols(), "{matrix:?} by rows of {} values", x.cols());
            assert!(out.len() >= rows * matrix.outputs, "{rows} rows of {matrix:?} into {} values", out.len());
            // Even, since some bodies take panels in pairs.
            let panels_per_item = (ITEM / matrix.panel_bytes).next_multiple_of(2).max(2);
            end += matrix.panels().div_ceil(panels_per_item);
            let out = Out { start: out.as_mut_ptr(), outputs: matrix.outputs, accumulate: *accumulate };
            Job { matrix, out, panels_per_item, end }
        })
        .collect();
    // The closure takes the whole wrappers, whose `Sync` says why they may be shared.
    let (jobs, left) = (&jobs, &left);
    pool.for_each(end, |item| {
        let index = jobs.partition_point(|job| job.end <= item);
        let job = &jobs[index];
        let first = if index == 0 { 0 } else { jobs[index - 1].end };
        let start = (item - first) * job.panels_per_item;
        run(job, left, start..(start + job.panels_per_item).min(job.matrix.panels()));
    });
}

fn run(job: &Job<'_>, left: &Shared, panels: Range<usize>) {
    let Job { matrix, out, .. } = job;
    let weights = matrix.bytes.as_ptr();
    match matrix.format {
        Format::F32 => dense::<tile::F32>(matrix.isa, weights, panels, left.0, *out),
        Format::F16 => dense::<tile::F16>(matrix.isa, weights, panels, left.0, *out),
        Format::BF16 => dense::<tile::BF16>(matrix.isa, weights, panels, left.0, *out),
        format => with_quant!(format, Q => quantised::<Q>(matrix.isa, weights, panels, left.0, *out)),
    }
}

fn quantised<Q: Quant>(isa: Isa, weights: *const u8, panels: Range<usize>, x: Left, out: Out) {
    ROOM.with_borrow_mut(|room| {
        // SAFETY: `multiply` has checked the shapes and hands each panel to one thread; an `Isa` in use runs here.
        unsafe {
            match isa {
                #[cfg(target_arch = "x86_64")]
                Isa::Avx2 => x86::quantised_avx2::<Q>(weights, panels, x, out, room),
                #[cfg(target_arch = "x86_64")]
                Isa::Avx512 => x86::quantised_avx512::<Q>(weights, panels, x, out, room),
                _ => tile::quantised::<Portable, Q>(weights, panels, x, out, room),
            }
        }
    });
}

fn dense<D: Dense>(isa: Isa, weights: *const u8, panels: Range<usize>, x: Left, out: Out) {
    // SAFETY: as for `quantised`.
    unsafe {
        match isa {
            #[cfg(target_arch = "x86_64")]
            Isa::Avx2 => x86::dense_avx2::<D>(weights, panels, x, out),
            #[cfg(target_arch = "x86_64")]
            Isa::Avx512 => x86::dense_avx512::<D>(weights, panels, x, out),
            _ => tile::dense::<Portable, D>(weights, panels, x, out),
        }
    }
}

/// The bodies compiled for each x86 set: the generic ones are inlined here, where the features are on.
#[cfg(target_arch = "x86_64")]
mod x86 {
    use super::*;
    use crate::simd::avx2::Avx2;
    use crate::simd::avx512::Avx512;

    #[target_feature(enable = "avx2,fma,f16c")]
    pub(super) unsafe fn quantised_avx2<Q: Quant>(
        weights: *const u8,
        panels: Range<usize>,
        x: Left,
        out: Out,
        room: &mut Vec<u64>,
    ) {
        // SAFETY: the contract is the same.
        unsafe { tile::quantised::<Avx2, Q>(weights, panels, x, out, room) }
    }

    #[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")]
    pub(super) unsafe fn quantised_avx512<Q: Quant>(
        weights: *const u8,
        panels: Range<usize>,
        x: Left,
        out: Out,
        room: &mut Vec<u64>,
    ) {
        // SAFETY: the contract is the same.
        unsafe { tile::quantised::<Avx512, Q>(weights, panels, x, out, room) }
    }

    #[target_feature(enable = "avx2,fma,f16c")]
    pub(super) unsafe fn dense_avx2<D: Dense>(weights: *const u8, panels: Range<usize>, x: Left, out: Out) {
        // SAFETY: the contract is the same.
        unsafe { tile::dense::<Avx2, D>(weights, panels, x, out) }
    }

    #[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")]
    pub(super) unsafe fn dense_avx512<D: Dense>(weights: *const u8, panels: Range<usize>, x: Left, out: Out) {
        // SAFETY: the contract is the same.
        unsafe { tile::dense::<Avx512, D>(weights, panels, x, out) }
    }
}
