//! The quantised formats as the product sees them: how a panel stores a block and how it is read back into vectors.
//!
//! A panel is [`Simd::LANES`] outputs. It is cut along the inputs into *chunks* of one GGUF block (32 inputs, or 256 for
//! the K formats); a chunk keeps the scales of all lanes side by side, then the weights, so that one load serves every
//! lane. Vector `j` of a block holds the inputs `4j..4j+4` of each output. No bit of the original is dropped, and
//! nothing is stored wider than it was but for the 6-bit scales of Q4_K and Q5_K.

#![allow(clippy::needless_range_loop)] // As in `tile.rs`.

use super::unpack::{Lane, Plane};
use crate::format::Format;
use crate::simd::Simd;

/// Inputs in a block: the length that activations are quantised by.
pub(crate) const BLOCK: usize = 32;

/// One block of a panel, ready for the product: eight vectors of weights and the numbers that scale their sums.
#[derive(Clone, Copy)]
pub(crate) struct Block<S: Simd> {
    pub(crate) weights: [S::Bytes; 8],
    /// The scale; of the first 16 inputs and the last 16 where [`Quant::HALVES`].
    pub(crate) scale: [S::Floats; 2],
    /// What is added for each input, where [`Quant::MIN`].
    pub(crate) min: S::Floats,
}

/// A quantised format in a panel.
pub(crate) trait Quant {
    /// The format on disk.
    const FORMAT: Format;
    /// Blocks of 32 in a chunk.
    const BLOCKS: usize = 1;
    /// Whether the weights in the vectors are signed.
    const SIGNED: bool = false;
    /// Whether every 16 inputs have a scale of their own.
    const HALVES: bool = false;
    /// Whether a constant is added to every weight.
    const MIN: bool = true;
    /// How many products fit 16 bits, as [`Simd::dot`] wants it.
    const RUN: usize;

    /// The fields of a chunk in order: how many bytes a lane has in each.
    const HEAD: &[usize];
    /// The fields of each block, after the head.
    const BODY: &[usize];

    /// Every field of a chunk in order, the blocks' included.
    fn fields() -> impl Iterator<Item = usize> {
        Self::HEAD.iter().copied().chain((0..Self::BLOCKS).flat_map(|_| Self::BODY.iter().copied()))
    }
    /// Bytes of a chunk of a panel of `lanes` outputs.
    #[inline(always)]
    fn chunk_bytes(lanes: usize) -> usize {
        const fn total(fields: &[usize]) -> usize {
            let (mut sum, mut i) = (0, 0);
            while i < fields.len() {
                sum += fields[i];
                i += 1;
            }
            sum
        }
        (const { total(Self::HEAD) + Self::BLOCKS * total(Self::BODY) }) * lanes
    }
    /// Stores the block of one output in lane `lane` of a zeroed chunk.
    fn pack(block: &[u8], lane: Lane<'_>);
    /// Reads block `block` of a chunk.
    ///
    /// # Safety
    /// `chunk` is valid for `chunk_bytes(S::LANES)` bytes, `block < BLOCKS`, and the machine runs `S`.
    unsafe fn load<S: Simd>(chunk: *const u8, block: usize) -> Block<S>;
}

/// Eight vectors from four that hold two nibbles a byte: the low ones are the first 16 inputs.
#[inline(always)]
unsafe fn nibbles<S: Simd>(from: *const u8) -> [S::Bytes; 8] {
    let width = 4 * S::LANES;
    // SAFETY: the caller's `from` is valid for four vectors.
    unsafe {
        let packed =
            [S::bytes(from), S::bytes(from.add(width)), S::bytes(from.add(2 * width)), S::bytes(from.add(3 * width))];
        [
            S::low(packed[0]),
            S::low(packed[1]),
            S::low(packed[2]),
            S::low(packed[3]),
            S::high(packed[0]),
            S::high(packed[1]),
            S::high(packed[2]),
            S::high(packed[3]),
        ]
    }
}

/// Eight vectors of bytes.
#[inline(always)]
pub(super) unsafe fn vectors<S: Simd>(from: *const u8) -> [S::Bytes; 8] {
    let width = 4 * S::LANES;
    // SAFETY: the caller's `from` is valid for eight vectors.
    unsafe {
        [
            S::bytes(from),
            S::bytes(from.add(width)),
            S::bytes(from.add(2 * width)),
            S::bytes(from.add(3 * width)),
            S::bytes(from.add(4 * width)),
            S::bytes(from.add(5 * width)),
            S::bytes(from.add(6 * width)),
            S::bytes(from.add(7 * width)),
        ]
    }
}

/// From 0..64 to -32..32.
#[inline(always)]
unsafe fn minus_32<S: Simd>(mut weights: [S::Bytes; 8]) -> [S::Bytes; 8] {
    for j in 0..8 {
        // SAFETY: the machine runs `S`.
        weights[j] = unsafe { S::minus(weights[j], 32) };
    }
    weights
}

/// Puts the fifth bit of every weight, one vector of bits, above its nibbles.
#[inline(always)]
unsafe fn with_fifth<S: Simd>(low: [S::Bytes; 8], bits: *const u8) -> [S::Bytes; 8] {
    // SAFETY: the caller's `bits` is valid for one vector.
    unsafe {
        let bits = S::bytes(bits);
        [
            S::or(low[0], S::bit_to_4::<0>(bits)),
            S::or(low[1], S::bit_to_4::<1>(bits)),
            S::or(low[2], S::bit_to_4::<2>(bits)),
            S::or(low[3], S::bit_to_4::<3>(bits)),
            S::or(low[4], S::bit_to_4::<4>(bits)),
            S::or(low[5], S::bit_to_4::<5>(bits)),
            S::or(low[6], S::bit_to_4::<6>(bits)),
            S::or(low[7], S::bit_to_4::<7>(bits)),
        ]
    }
}

/// Q4_0: `d (q - 8)`, q of 4 bits.
pub(crate) struct Q4_0;
impl Quant for Q4_0 {
    const FORMAT: Format = Format::Q4_0;
    const RUN: usize = 8;
    const HEAD: &[usize] = &[2];
    const BODY: &[usize] = &[4, 4, 4, 4];
    fn pack(block: &[u8], mut lane: Lane<'_>) {
        lane.half(0, &block[0..2]);
        let q = Plane::nibbles(&block[2..18]);
        lane.nibbles(2, &q);
    }
    #[inline(always)]
    unsafe fn load<S: Simd>(chunk: *const u8, _block: usize) -> Block<S> {
        // SAFETY: the offsets are those of `pack`.
        unsafe {
            let scale = S::halves(chunk);
            let min = S::mul(scale, S::splat(-8.0));
            Block { weights: nibbles::<S>(chunk.add(2 * S::LANES)), scale: [scale; 2], min }
        }
    }
}

/// Q4_1: `d q + m`, q of 4 bits.
pub(crate) struct Q4_1;
impl Quant for Q4_1 {
    const FORMAT: Format = Format::Q4_1;
    const RUN: usize = 8;
    const HEAD: &[usize] = &[2, 2];
    const BODY: &[usize] = &[4, 4, 4, 4];
    fn pack(block: &[u8], mut lane: Lane<'_>) {
        lane.half(0, &block[0..2]);
        lane.half(2, &block[2..4]);
        lane.nibbles(4, &Plane::nibbles(&block[4..20]));
    }
    #[inline(always)]
    unsafe fn load<S: Simd>(chunk: *const u8, _block: usize) -> Block<S> {
        // SAFETY: the offsets are those of `pack`.
        unsafe {
            Block {
                weights: nibbles::<S>(chunk.add(4 * S::LANES)),
                scale: [S::halves(chunk); 2],
                min: S::halves(chunk.add(2 * S::LANES)),
            }
        }
    }
}

/// Q5_0: `d (q - 16)`, q of 5 bits.
pub(crate) struct Q5_0;
impl Quant for Q5_0 {
    const FORMAT: Format = Format::Q5_0;
    const RUN: usize = 4;
    const HEAD: &[usize] = &[2];
    const BODY: &[usize] = &[4, 4, 4, 4, 4];
    fn pack(block: &[u8], mut lane: Lane<'_>) {
        lane.half(0, &block[0..2]);
        let q = Plane::nibbles(&block[6..22]).with_fifth(&block[2..6]);
        lane.nibbles(2, &q);
        lane.fifth_bits(18, &q);
    }
    #[inline(always)]
    unsafe fn load<S: Simd>(chunk: *const u8, _block: usize) -> Block<S> {
        // SAFETY: the offsets are those of `pack`.
        unsafe {
            let scale = S::halves(chunk);
            let low = nibbles::<S>(chunk.add(2 * S::LANES));
            let weights = with_fifth::<S>(low, chunk.add(18 * S::LANES));
            Block { weights, scale: [scale; 2], min: S::mul(scale, S::splat(-16.0)) }
        }
    }
}

/// Q5_1: `d q + m`, q of 5 bits.
pub(crate) struct Q5_1;
impl Quant for Q5_1 {
    const FORMAT: Format = Format::Q5_1;
    const RUN: usize = 4;
    const HEAD: &[usize] = &[2, 2];
    const BODY: &[usize] = &[4, 4, 4, 4, 4];
    fn pack(block: &[u8], mut lane: Lane<'_>) {
        lane.half(0, &block[0..2]);
        lane.half(2, &block[2..4]);
        let q = Plane::nibbles(&block[8..24]).with_fifth(&block[4..8]);
        lane.nibbles(4, &q);
        lane.fifth_bits(20, &q);
    }
    #[inline(always)]
    unsafe fn load<S: Simd>(chunk: *const u8, _block: usize) -> Block<S> {
        // SAFETY: the offsets are those of `pack`.
        unsafe {
            let low = nibbles::<S>(chunk.add(4 * S::LANES));
            Block {
                weights: with_fifth::<S>(low, chunk.add(20 * S::LANES)),
                scale: [S::halves(chunk); 2],
                min: S::halves(chunk.add(2 * S::LANES)),
            }
        }
    }
}

/// Q8_0: `d q`, q of 8 bits.
pub(crate) struct Q8_0;
impl Quant for Q8_0 {
    const FORMAT: Format = Format::Q8_0;
    const SIGNED: bool = true;
    const MIN: bool = false;
    const RUN: usize = 1;
    const HEAD: &[usize] = &[2];
    const BODY: &[usize] = &[4, 4, 4, 4, 4, 4, 4, 4];
    fn pack(block: &[u8], mut lane: Lane<'_>) {
        lane.half(0, &block[0..2]);
        lane.bytes(2, &block[2..34]);
    }
    #[inline(always)]
    unsafe fn load<S: Simd>(chunk: *const u8, _block: usize) -> Block<S> {
        // SAFETY: the offsets are those of `pack`.
        unsafe {
            let scale = S::halves(chunk);
            let q = chunk.add(2 * S::LANES);
            Block { weights: vectors::<S>(q), scale: [scale; 2], min: scale }
        }
    }
}

/// Offset of block `block` in a chunk of Q4_K or Q5_K whose blocks take `bytes` a lane.
fn k_block(lanes: usize, block: usize, bytes: usize) -> usize {
    4 * lanes + block * bytes * lanes
}

/// The scales of a K block: `d * s` for a lane and `-dmin * m` for what is added.
#[inline(always)]
unsafe fn k_scales<S: Simd>(chunk: *const u8, block: *const u8) -> (S::Floats, S::Floats) {
    // SAFETY: the caller's pointers are to the chunk's head (two halves a lane) and the block's (two bytes a lane).
    unsafe {
        let scale = S::mul(S::halves(chunk), S::unsigned(block));
        let min = S::mul(S::halves(chunk.add(2 * S::LANES)), S::unsigned(block.add(S::LANES)));
        (scale, S::mul(min, S::splat(-1.0)))
    }
}

/// Q4_K: `d s q - dmin m`, q of 4 bits, s and m of 6 bits for 32 weights, d and dmin for 256.
pub(crate) struct Q4K;
impl Quant for Q4K {
    const FORMAT: Format = Format::Q4K;
    const BLOCKS: usize = 8;
    const RUN: usize = 8;
    const HEAD: &[usize] = &[2, 2];
    const BODY: &[usize] = &[1, 1, 4, 4, 4, 4];
    fn pack(block: &[u8], mut lane: Lane<'_>) {
        lane.half(0, &block[0..2]);
        lane.half(2, &block[2..4]);
        for i in 0..8 {
            let at = 4 + 18 * i;
            let (scale, min) = super::unpack::k_scale_min(&block[4..16], i);
            lane.byte(at, scale);
            lane.byte(at + 1, min);
            lane.nibbles(at + 2, &Plane::k_nibbles(&block[16..144], i));
        }
    }
    #[inline(always)]
    unsafe fn load<S: Simd>(chunk: *const u8, block: usize) -> Block<S> {
        // SAFETY: the offsets are those of `pack`.
        unsafe {
            let at = chunk.add(k_block(S::LANES, block, 18));
            let (scale, min) = k_scales::<S>(chunk, at);
            Block { weights: nibbles::<S>(at.add(2 * S::LANES)), scale: [scale; 2], min }
        }
    }
}

/// Q5_K: `d s q - dmin m`, q of 5 bits, scales as in Q4_K.
pub(crate) struct Q5K;
impl Quant for Q5K {
    const FORMAT: Format = Format::Q5K;
    const BLOCKS: usize = 8;
    const RUN: usize = 4;
    const HEAD: &[usize] = &[2, 2];
    const BODY: &[usize] = &[1, 1, 4, 4, 4, 4, 4];
    fn pack(block: &[u8], mut lane: Lane<'_>) {
        lane.half(0, &block[0..2]);
        lane.half(2, &block[2..4]);
        for i in 0..8 {
            let at = 4 + 22 * i;
            let (scale, min) = super::unpack::k_scale_min(&block[4..16], i);
            lane.byte(at, scale);
            lane.byte(at + 1, min);
            let q = Plane::k_nibbles(&block[48..176], i).with_k_fifth(&block[16..48], i);
            lane.nibbles(at + 2, &q);
            lane.fifth_bits(at + 18, &q);
        }
    }
    #[inline(always)]
    unsafe fn load<S: Simd>(chunk: *const u8, block: usize) -> Block<S> {
        // SAFETY: the offsets are those of `pack`.
        unsafe {
            let at = chunk.add(k_block(S::LANES, block, 22));
            let (scale, min) = k_scales::<S>(chunk, at);
            let low = nibbles::<S>(at.add(2 * S::LANES));
            Block { weights: with_fifth::<S>(low, at.add(18 * S::LANES)), scale: [scale; 2], min }
        }
    }
}

/// Q6_K: `d s (q - 32)`, q of 6 bits, s a signed byte for 16 weights, d for 256.
pub(crate) struct Q6K;
impl Quant for Q6K {
    const FORMAT: Format = Format::Q6K;
    const BLOCKS: usize = 8;
    const SIGNED: bool = true;
    const HALVES: bool = true;
    const MIN: bool = false;
    const RUN: usize = 4;
    const HEAD: &[usize] = &[2];
    const BODY: &[usize] = &[1, 1, 4, 4, 4, 4, 4, 4];
    fn pack(block: &[u8], mut lane: Lane<'_>) {
        lane.half(0, &block[208..210]);
        for i in 0..8 {
            let at = 2 + 26 * i;
            lane.byte(at, block[192 + 2 * i]);
            lane.byte(at + 1, block[192 + 2 * i + 1]);
            let q = Plane::six_bits(&block[0..128], &block[128..192], i);
            lane.nibbles(at + 2, &q);
            lane.upper_pairs(at + 18, &q);
        }
    }
    #[inline(always)]
    unsafe fn load<S: Simd>(chunk: *const u8, block: usize) -> Block<S> {
        // SAFETY: the offsets are those of `pack`.
        unsafe {
            let at = chunk.add(2 * S::LANES + block * 26 * S::LANES);
            let d = S::halves(chunk);
            let scale = [S::mul(d, S::signed(at)), S::mul(d, S::signed(at.add(S::LANES)))];
            let low = nibbles::<S>(at.add(2 * S::LANES));
            let (first, last) = (S::bytes(at.add(18 * S::LANES)), S::bytes(at.add(22 * S::LANES)));
            let weights = [
                S::or(low[0], S::pair_to_4::<0>(first)),
                S::or(low[1], S::pair_to_4::<1>(first)),
                S::or(low[2], S::pair_to_4::<2>(first)),
                S::or(low[3], S::pair_to_4::<3>(first)),
                S::or(low[4], S::pair_to_4::<0>(last)),
                S::or(low[5], S::pair_to_4::<1>(last)),
                S::or(low[6], S::pair_to_4::<2>(last)),
                S::or(low[7], S::pair_to_4::<3>(last)),
            ];
            Block { weights: minus_32::<S>(weights), scale, min: scale[0] }
        }
    }
}
