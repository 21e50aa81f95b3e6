//! The exact decoding of one block of each format. Products and sums are rounded one by one (no fused multiply-add), as
//! the published decoders do, so that the bits agree with theirs.

use half::{bf16, f16};

use super::Format;

/// Decodes the blocks in `bytes` to `out`; the caller has checked that both are the same whole number of blocks.
pub(super) fn blocks(format: Format, bytes: &[u8], out: &mut [f32]) {
    match format {
        Format::F32 => scalars(bytes, out, f32::from_le_bytes),
        Format::F16 => scalars(bytes, out, |b| f16::from_le_bytes(b).to_f32()),
        Format::BF16 => scalars(bytes, out, |b| bf16::from_le_bytes(b).to_f32()),
        Format::Q4_0 => each::<18, 32>(bytes, out, q4_0),
        Format::Q4_1 => each::<20, 32>(bytes, out, q4_1),
        Format::Q5_0 => each::<22, 32>(bytes, out, q5_0),
        Format::Q5_1 => each::<24, 32>(bytes, out, q5_1),
        Format::Q8_0 => each::<34, 32>(bytes, out, q8_0),
        Format::Q4K => each::<144, 256>(bytes, out, q4_k),
        Format::Q5K => each::<176, 256>(bytes, out, q5_k),
        Format::Q6K => each::<210, 256>(bytes, out, q6_k),
    }
}

fn scalars<const B: usize>(bytes: &[u8], out: &mut [f32], decode: impl Fn([u8; B]) -> f32) {
    for (value, &raw) in out.iter_mut().zip(bytes.as_chunks::<B>().0) {
        *value = decode(raw);
    }
}

/// Runs `decode` on every block of `B` bytes and `N` values.
fn each<const B: usize, const N: usize>(bytes: &[u8], out: &mut [f32], decode: impl Fn(&[u8; B], &mut [f32; N])) {
    for (values, block) in out.as_chunks_mut::<N>().0.iter_mut().zip(bytes.as_chunks::<B>().0) {
        decode(block, values);
    }
}

/// The half-precision number at byte `at`.
fn half_at(block: &[u8], at: usize) -> f32 {
    f16::from_le_bytes([block[at], block[at + 1]]).to_f32()
}

fn q4_0(block: &[u8; 18], out: &mut [f32; 32]) {
    let d = half_at(block, 0);
    for (j, &q) in block[2..].iter().enumerate() {
        out[j] = d * (f32::from(q & 15) - 8.0);
        out[j + 16] = d * (f32::from(q >> 4) - 8.0);
    }
}

fn q4_1(block: &[u8; 20], out: &mut [f32; 32]) {
    let (d, m) = (half_at(block, 0), half_at(block, 2));
    for (j, &q) in block[4..].iter().enumerate() {
        out[j] = d * f32::from(q & 15) + m;
        out[j + 16] = d * f32::from(q >> 4) + m;
    }
}

/// The two 5-bit numbers that byte `j` of a 32-value block holds: values `j` and `j + 16`.
fn five_bits(high: &[u8], j: usize, q: u8) -> (u8, u8) {
    let bit = |i: usize| (high[i / 8] >> (i % 8)) & 1;
    ((q & 15) | (bit(j) << 4), (q >> 4) | (bit(j + 16) << 4))
}

fn q5_0(block: &[u8; 22], out: &mut [f32; 32]) {
    let d = half_at(block, 0);
    for (j, &q) in block[6..].iter().enumerate() {
        let (low, high) = five_bits(&block[2..6], j, q);
        out[j] = d * (f32::from(low) - 16.0);
        out[j + 16] = d * (f32::from(high) - 16.0);
    }
}

fn q5_1(block: &[u8; 24], out: &mut [f32; 32]) {
    let (d, m) = (half_at(block, 0), half_at(block, 2));
    for (j, &q) in block[8..].iter().enumerate() {
        let (low, high) = five_bits(&block[4..8], j, q);
        out[j] = d * f32::from(low) + m;
        out[j + 16] = d * f32::from(high) + m;
    }
}

fn q8_0(block: &[u8; 34], out: &mut [f32; 32]) {
    let d = half_at(block, 0);
    for (value, &q) in out.iter_mut().zip(&block[2..]) {
        *value = d * f32::from(q.cast_signed());
    }
}

/// The 6-bit scale and minimum of group `g` (of 8) in the 12 bytes that `Q4K` and `Q5K` share.
fn scale_and_min(packed: &[u8], g: usize) -> (u8, u8) {
    if g < 4 {
        (packed[g] & 63, packed[g + 4] & 63)
    } else {
        let (low, scale_top, min_top) = (packed[g + 4], packed[g - 4] >> 6, packed[g] >> 6);
        ((low & 15) | (scale_top << 4), (low >> 4) | (min_top << 4))
    }
}

fn q4_k(block: &[u8; 144], out: &mut [f32; 256]) {
    let (d, dmin) = (half_at(block, 0), half_at(block, 2));
    for (g, group) in out.as_chunks_mut::<32>().0.iter_mut().enumerate() {
        let (scale, min) = scale_and_min(&block[4..16], g);
        let (scale, min) = (d * f32::from(scale), dmin * f32::from(min));
        let nibbles = &block[16 + g / 2 * 32..][..32];
        for (value, &q) in group.iter_mut().zip(nibbles) {
            *value = scale * f32::from((q >> (g % 2 * 4)) & 15) - min;
        }
    }
}

fn q5_k(block: &[u8; 176], out: &mut [f32; 256]) {
    let (d, dmin) = (half_at(block, 0), half_at(block, 2));
    let high = &block[16..48];
    for (g, group) in out.as_chunks_mut::<32>().0.iter_mut().enumerate() {
        let (scale, min) = scale_and_min(&block[4..16], g);
        let (scale, min) = (d * f32::from(scale), dmin * f32::from(min));
        let nibbles = &block[48 + g / 2 * 32..][..32];
        for ((value, &q), &h) in group.iter_mut().zip(nibbles).zip(high) {
            let q = ((q >> (g % 2 * 4)) & 15) | (((h >> g) & 1) << 4);
            *value = scale * f32::from(q) - min;
        }
    }
}

fn q6_k(block: &[u8; 210], out: &mut [f32; 256]) {
    let d = half_at(block, 208);
    let (low, rest) = block.split_at(128);
    for (i, value) in out.iter_mut().enumerate() {
        // Each half of 128 values has 64 bytes of low nibbles and 32 bytes of high pairs, in four runs of 32 values.
        let (half, run, l) = (i / 128, i / 32 % 4, i % 32);
        let nibble = (low[half * 64 + run % 2 * 32 + l] >> (run / 2 * 4)) & 15;
        let pair = (rest[half * 32 + l] >> (run * 2)) & 3;
        let scale = rest[64 + i / 16].cast_signed();
        *value = d * f32::from(scale) * (f32::from(nibble | (pair << 4)) - 32.0);
    }
}
