//! The body of every product: one panel of weights, or two, by a tile of rows, in registers.
//!
//! For an output, the sum runs over the inputs from first to last in one chain of fused steps. How many rows a tile
//! has, and whether its weights come from the packed panel or from the unpacked copy in the cache, changes no step of
//! that chain: this is where promise 1 is kept.
//!
//! The loops over rows and panels of a tile count by index, and nothing returns an array: the compiler then unrolls
//! them early and keeps every sum in a register.
#![allow(clippy::needless_range_loop)]

use std::ops::Range;

use super::BLOCK;
use super::quant::{Block, Quant, vectors};
use crate::activations::BlockScale;
use crate::simd::Simd;

/// Rows that run over one unpacked panel before the next: their bytes stay in the second-level cache.
const STRETCH: usize = 128;

/// The rows on the left side.
#[derive(Clone, Copy)]
pub(super) struct Left {
    pub(super) rows: usize,
    pub(super) inputs: usize,
    pub(super) values: *const f32,
    pub(super) bytes: *const i8,
    pub(super) scales: *const BlockScale,
}

/// Where results go: row `r`, output `o` at `start + r * outputs + o`.
#[derive(Clone, Copy)]
pub(super) struct Out {
    pub(super) start: *mut f32,
    pub(super) outputs: usize,
    /// Added to what is there rather than stored.
    pub(super) accumulate: bool,
}

/// Rows of the tiles that `rows` rows are cut into, as even as they get, at most `most` each.
fn tile_sizes(rows: usize, most: usize) -> impl Iterator<Item = Range<usize>> {
    let tiles = rows.div_ceil(most).max(1);
    (0..tiles).map(move |tile| rows * tile / tiles..rows * (tile + 1) / tiles)
}

/// Writes one row's results for one panel.
#[inline(always)]
unsafe fn store<S: Simd>(sum: S::Floats, row: usize, panel: usize, out: Out) {
    let first = panel * S::LANES;
    let width = out.outputs - first;
    // SAFETY: the caller's row and this panel's outputs are inside the result.
    unsafe {
        let to = out.start.add(row * out.outputs + first);
        if width >= S::LANES {
            // Fused with a factor of one, the step rounds as the addition alone below.
            let sum = if out.accumulate { S::fma(S::floats(to), S::splat(1.0), sum) } else { sum };
            S::store_floats(to, sum);
            return;
        }
        let mut lanes = [0.0f32; 16];
        S::store_floats(lanes.as_mut_ptr(), sum);
        for (lane, &value) in lanes[..width].iter().enumerate() {
            let to = to.add(lane);
            *to = if out.accumulate { *to + value } else { value };
        }
    }
}

/// An unpacked panel: per block eight vectors, and the scales in f32.
struct Unpacked {
    weights: *mut u8,
    scales: *mut f32,
}

impl Unpacked {
    /// Room for `blocks` blocks, those of all panels of a tile together, in `room`.
    fn new<S: Simd>(room: &mut Vec<u64>, blocks: usize) -> Unpacked {
        let weights = blocks * 32 * S::LANES;
        let scales = blocks * 3 * S::LANES * size_of::<f32>();
        let need = (weights + scales + 64) / size_of::<u64>() + 1;
        if room.len() < need {
            room.resize(need, 0);
        }
        let start = room.as_mut_ptr().cast::<u8>();
        // SAFETY: 64 bytes were added for the alignment, so both parts stay inside.
        let weights_start = unsafe { start.add(start.align_offset(64)) };
        // SAFETY: as above; the weights' length is a multiple of 64, so the scales are aligned too.
        Unpacked { weights: weights_start, scales: unsafe { weights_start.add(weights).cast() } }
    }

    #[inline(always)]
    unsafe fn put<S: Simd, Q: Quant>(&self, at: usize, block: Block<S>) {
        // SAFETY: the caller's `at` is below the blocks that there is room for.
        unsafe {
            let weights = self.weights.add(at * 32 * S::LANES);
            for j in 0..8 {
                S::store_bytes(weights.add(4 * S::LANES * j), block.weights[j]);
            }
            let scales = self.scales.add(at * 3 * S::LANES);
            S::store_floats(scales, block.scale[0]);
            S::store_floats(scales.add(S::LANES), if Q::HALVES { block.scale[1] } else { block.min });
        }
    }

    #[inline(always)]
    unsafe fn get<S: Simd, Q: Quant>(&self, at: usize) -> Block<S> {
        // SAFETY: the caller's `at` has been put.
        unsafe {
            let weights = vectors::<S>(self.weights.add(at * 32 * S::LANES));
            let scales = self.scales.add(at * 3 * S::LANES);
            let (first, second) = (S::floats(scales), S::floats(scales.add(S::LANES)));
            if Q::HALVES {
                Block { weights, scale: [first, second], min: first }
            } else {
                Block { weights, scale: [first; 2], min: second }
            }
        }
    }
}

/// Adds one block's products to the sums of `R` rows by `P` panels.
#[inline(always)]
unsafe fn step<S: Simd, Q: Quant, const R: usize, const P: usize>(
    sums: &mut [[S::Floats; R]; P],
    panels: &[Block<S>; P],
    (bytes, inputs): (*const i8, usize),
    (scales, blocks): (*const BlockScale, usize),
) {
    // SAFETY: the rows at `bytes` and `scales` are valid for a block by the caller's contract, and the machine runs `S`.
    unsafe {
        let mut x = [BlockScale::default(); R];
        for r in 0..R {
            x[r] = *scales.add(r * blocks);
        }
        if Q::HALVES {
            let mut first: [&[S::Bytes; 4]; P] = [&*panels[0].weights.as_ptr().cast(); P];
            let mut last = first;
            for p in 0..P {
                first[p] = &*panels[p].weights.as_ptr().cast();
                last[p] = &*panels[p].weights.as_ptr().add(4).cast();
            }
            let low = S::dot_signed::<4, 4, R, P>(first, bytes, inputs, half_sums(&x, 0));
            let high = S::dot_signed::<4, 4, R, P>(last, bytes.add(16), inputs, half_sums(&x, 1));
            for p in 0..P {
                for r in 0..R {
                    let scale = S::splat(x[r].scale);
                    sums[p][r] = S::fma(low[p][r], S::mul(panels[p].scale[0], scale), sums[p][r]);
                    sums[p][r] = S::fma(high[p][r], S::mul(panels[p].scale[1], scale), sums[p][r]);
                }
            }
            return;
        }
        let mut weights = [&panels[0].weights; P];
        for p in 0..P {
            weights[p] = &panels[p].weights;
        }
        let products = if Q::SIGNED {
            let (low, high) = (half_sums(&x, 0), half_sums(&x, 1));
            let mut both = [0; R];
            for r in 0..R {
                both[r] = low[r] + high[r];
            }
            S::dot_signed::<8, 1, R, P>(weights, bytes, inputs, both)
        } else if Q::RUN == 8 {
            S::dot::<8, 8, R, P>(weights, bytes, inputs)
        } else {
            S::dot::<8, 4, R, P>(weights, bytes, inputs)
        };
        for p in 0..P {
            for r in 0..R {
                sums[p][r] = S::fma(products[p][r], S::mul(panels[p].scale[0], S::splat(x[r].scale)), sums[p][r]);
                if Q::MIN {
                    sums[p][r] = S::fma(panels[p].min, S::splat(x[r].sum), sums[p][r]);
                }
            }
        }
    }
}

/// The sums of one half of each row's block.
#[inline(always)]
fn half_sums<const R: usize>(x: &[BlockScale; R], half: usize) -> [i32; R] {
    let mut sums = [0; R];
    for r in 0..R {
        sums[r] = x[r].halves[half];
    }
    sums
}

/// The panels that a tile multiplies by: `P` in a row, of which the first `wanted` are there.
#[derive(Clone, Copy)]
struct Panels {
    first: usize,
    wanted: usize,
    /// The first panel's bytes.
    packed: *const u8,
    /// Bytes from one panel to the next; 0 where the tile takes the only one twice.
    stride: usize,
}

/// `R` rows from `row` on by `P` panels, unpacked to `copy` where `COPY`.
///
/// `ahead` is how far the panels after these ones are: their bytes are asked for on the way, so that they arrive while
/// these are multiplied. The machine's own prefetching stops at page borders, and a panel is about a page.
#[inline(always)]
unsafe fn quantised_tile<S: Simd, Q: Quant, const R: usize, const P: usize, const COPY: bool>(
    panels: Panels,
    copy: &Unpacked,
    x: Left,
    row: usize,
    ahead: Option<usize>,
    out: Out,
) {
    let blocks = x.inputs / BLOCK;
    let chunk_bytes = Q::chunk_bytes(S::LANES);
    // SAFETY: the machine runs `S`; the panels hold `inputs` inputs and both sides have rows `row..row + R`.
    unsafe {
        let mut sums = [[S::splat(0.0); R]; P];
        let bytes = x.bytes.add(row * x.inputs);
        let scales = x.scales.add(row * blocks);
        for chunk in 0..blocks / Q::BLOCKS {
            if let Some(ahead) = ahead {
                for p in 0..P {
                    let next = panels.packed.wrapping_add(p * panels.stride + chunk * chunk_bytes + ahead);
                    for line in (0..chunk_bytes).step_by(64) {
                        S::prefetch(next.wrapping_add(line));
                    }
                }
            }
            for part in 0..Q::BLOCKS {
                let at = chunk * Q::BLOCKS + part;
                // No closure here: its body would not be compiled for the set, and its calls not be inlined.
                let from = panels.packed.add(chunk * chunk_bytes);
                let first = if COPY { copy.get::<S, Q>(at * P) } else { Q::load::<S>(from, part) };
                let mut block = [first; P];
                for p in 1..P {
                    block[p] = if COPY {
                        copy.get::<S, Q>(at * P + p)
                    } else {
                        Q::load::<S>(from.add(p * panels.stride), part)
                    };
                }
                step::<S, Q, R, P>(&mut sums, &block, (bytes.add(at * BLOCK), x.inputs), (scales.add(at), blocks));
            }
        }
        for p in 0..P {
            if p < panels.wanted {
                for r in 0..R {
                    store::<S>(sums[p][r], row + r, panels.first + p, out);
                }
            }
        }
    }
}

/// All rows by the panels `panels` of a quantised matrix.
///
/// # Safety
/// The machine runs `S`; `weights` holds panels of `x.inputs` inputs up to `panels.end`; `out` has room for all rows
/// and outputs, of which nobody else touches these.
#[inline(always)]
pub(super) unsafe fn quantised<S: Simd, Q: Quant>(
    weights: *const u8,
    panels: Range<usize>,
    x: Left,
    out: Out,
    room: &mut Vec<u64>,
) {
    // SAFETY: the contract is the same.
    unsafe {
        // Two sums a row and panel, where every 16 inputs have their own scale, are too many for the registers.
        if S::PANELS == 2 && !Q::HALVES {
            quantised_by::<S, Q, 2>(weights, panels, x, out, room)
        } else {
            quantised_by::<S, Q, 1>(weights, panels, x, out, room)
        }
    }
}

/// [`quantised`], `P` panels at a time.
#[inline(always)]
unsafe fn quantised_by<S: Simd, Q: Quant, const P: usize>(
    weights: *const u8,
    range: Range<usize>,
    x: Left,
    out: Out,
    room: &mut Vec<u64>,
) {
    let blocks = x.inputs / BLOCK;
    let panel_bytes = blocks / Q::BLOCKS * Q::chunk_bytes(S::LANES);
    // One tile reads the panels once: unpacking them to memory first would be an extra trip.
    let copied = x.rows > S::ROWS;
    let copy = Unpacked::new::<S>(room, blocks * P);
    for start in (0..x.rows).step_by(STRETCH) {
        let rows = (x.rows - start).min(STRETCH);
        for first in range.clone().step_by(P) {
            let wanted = range.end - first;
            let stride = if wanted < P { 0 } else { panel_bytes };
            // SAFETY: by the contract; every row, panel and block index is below the sizes that `x` and `range` have.
            unsafe {
                let panels = Panels { first, wanted, packed: weights.add(first * panel_bytes), stride };
                if copied {
                    unpack::<S, Q, P>(panels, &copy, blocks);
                }
                for tile in tile_sizes(rows, S::ROWS) {
                    let row = start + tile.start;
                    let ahead = (tile.start == 0).then_some(P * panel_bytes);
                    macro_rules! tile {
                        ($r:literal) => {
                            if copied {
                                quantised_tile::<S, Q, $r, P, true>(panels, &copy, x, row, ahead, out)
                            } else {
                                quantised_tile::<S, Q, $r, P, false>(panels, &copy, x, row, ahead, out)
                            }
                        };
                    }
                    match tile.len() {
                        1 => tile!(1),
                        2 => tile!(2),
                        3 => tile!(3),
                        4 => tile!(4),
                        5 if S::ROWS > 4 => tile!(5),
                        6 if S::ROWS > 4 => tile!(6),
                        7 if S::ROWS > 4 => tile!(7),
                        _ if S::ROWS > 4 => tile!(8),
                        _ => {}
                    }
                }
            }
        }
    }
}

/// Unpacks `P` panels, block by block side by side.
#[inline(always)]
unsafe fn unpack<S: Simd, Q: Quant, const P: usize>(panels: Panels, copy: &Unpacked, blocks: usize) {
    for chunk in 0..blocks / Q::BLOCKS {
        for part in 0..Q::BLOCKS {
            for p in 0..P {
                // SAFETY: the caller's panels and copy all have `blocks` blocks.
                unsafe {
                    let from = panels.packed.add(p * panels.stride + chunk * Q::chunk_bytes(S::LANES));
                    copy.put::<S, Q>((chunk * Q::BLOCKS + part) * P + p, Q::load::<S>(from, part));
                }
            }
        }
    }
}

/// How a dense format reads the weights of one input.
pub(super) trait Dense {
    /// Bytes a number.
    const BYTES: usize;
    /// Reads `LANES` numbers.
    ///
    /// # Safety
    /// As for [`Simd`].
    unsafe fn read<S: Simd>(from: *const u8) -> S::Floats;
}

macro_rules! dense {
    ($name:ident, $bytes:literal, $read:ident, $cast:ty) => {
        #[doc = concat!("Weights of ", stringify!($bytes), " bytes.")]
        pub(super) struct $name;
        impl Dense for $name {
            const BYTES: usize = $bytes;
            #[inline(always)]
            unsafe fn read<S: Simd>(from: *const u8) -> S::Floats {
                // SAFETY: the contract is the same.
                unsafe { S::$read(from.cast::<$cast>()) }
            }
        }
    };
}
dense!(F32, 4, floats, f32);
dense!(F16, 2, halves, u8);
dense!(BF16, 2, bfloats, u8);

/// `R` rows from `row` on by the panel `panel` of a dense matrix, and by the next one too where `PAIR`.
#[inline(always)]
unsafe fn dense_tile<S: Simd, D: Dense, const R: usize, const PAIR: bool>(
    weights: *const u8,
    panel_bytes: usize,
    x: Left,
    row: usize,
    panel: usize,
    out: Out,
) {
    // SAFETY: the machine runs `S`; the panels hold `inputs` inputs and both sides have rows `row..row + R`.
    unsafe {
        let (mut first, mut second) = ([S::splat(0.0); R], [S::splat(0.0); R]);
        let values = x.values.add(row * x.inputs);
        let from = weights.add(panel * panel_bytes);
        for i in 0..x.inputs {
            let at = i * S::LANES * D::BYTES;
            let left = D::read::<S>(from.add(at));
            let right = if PAIR { D::read::<S>(from.add(panel_bytes + at)) } else { left };
            for r in 0..R {
                let value = S::splat(*values.add(r * x.inputs + i));
                first[r] = S::fma(left, value, first[r]);
                if PAIR {
                    second[r] = S::fma(right, value, second[r]);
                }
            }
        }
        for r in 0..R {
            store::<S>(first[r], row + r, panel, out);
            if PAIR {
                store::<S>(second[r], row + r, panel + 1, out);
            }
        }
    }
}

/// All rows by the panels `panels` of a dense matrix.
///
/// # Safety
/// As for [`quantised`].
#[inline(always)]
pub(super) unsafe fn dense<S: Simd, D: Dense>(weights: *const u8, panels: Range<usize>, x: Left, out: Out) {
    let panel_bytes = x.inputs * S::LANES * D::BYTES;
    let mut panel = panels.start;
    while panel < panels.end {
        let pair = panel + 1 < panels.end;
        for tile in tile_sizes(x.rows, S::DENSE_ROWS) {
            macro_rules! tile {
                ($r:literal) => {
                    // SAFETY: by the contract; the tile's rows and panels exist.
                    unsafe {
                        if pair {
                            dense_tile::<S, D, $r, true>(weights, panel_bytes, x, tile.start, panel, out)
                        } else {
                            dense_tile::<S, D, $r, false>(weights, panel_bytes, x, tile.start, panel, out)
                        }
                    }
                };
            }
            match tile.len() {
                1 => tile!(1),
                2 => tile!(2),
                3 => tile!(3),
                4 => tile!(4),
                5 if S::DENSE_ROWS > 4 => tile!(5),
                6 if S::DENSE_ROWS > 4 => tile!(6),
                7 if S::DENSE_ROWS > 6 => tile!(7),
                8 if S::DENSE_ROWS > 6 => tile!(8),
                _ => {}
            }
        }
        panel += if pair { 2 } else { 1 };
    }
}
