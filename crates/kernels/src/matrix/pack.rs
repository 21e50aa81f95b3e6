//! From rows of GGUF or safetensors numbers to panels, once at load; and a single row back, for embeddings.

use std::ops::Range;

use half::{bf16, f16};

use super::quant::{Q4_0, Q4_1, Q4K, Q5_0, Q5_1, Q5K, Q6K, Q8_0, Quant};
use super::unpack::Lane;
use super::{BLOCK, Compute, Matrix};
use crate::Isa;
use crate::aligned::Arena;
use crate::format::{Format, FormatError};
use crate::pool::{Disjoint, Pool};
use crate::simd::Simd;
use crate::simd::portable::Portable;

/// Bytes of the original that are packed between two calls of `done`.
const STRETCH: usize = 4 << 20;

/// A matrix that cannot be packed.
#[derive(Debug, thiserror::Error)]
pub enum PackError {
    /// The bytes do not fit the shape.
    #[error(transparent)]
    Format(#[from] FormatError),
    /// A matrix without outputs or inputs.
    #[error("a matrix of {outputs} outputs and {inputs} inputs is empty")]
    Empty {
        /// Outputs.
        outputs: usize,
        /// Inputs.
        inputs: usize,
    },
}

/// Runs `$body` with `$quant` standing for the type of a quantised format.
macro_rules! with_quant {
    ($format:expr, $quant:ident => $body:expr) => {
        with_quant!(@arms $format, $quant, $body, Q4_0 Q4_1 Q5_0 Q5_1 Q8_0 Q4K Q5K Q6K)
    };
    (@arms $format:expr, $quant:ident, $body:expr, $($name:ident)*) => {
        match $format {
            $(Format::$name => {
                type $quant = $name;
                $body
            })*
            Format::F32 | Format::F16 | Format::BF16 => unreachable!("a dense format has its own branch"),
        }
    };
}
pub(super) use with_quant;

/// Packs matrices, of one model as a rule, for one instruction set.
pub struct Packer<'a> {
    pool: &'a Pool,
    isa: Isa,
    compute: Compute,
    arena: Arena,
}

impl<'a> Packer<'a> {
    /// A packer for products on `isa` of the kind `compute`.
    pub fn new(pool: &'a Pool, isa: Isa, compute: Compute) -> Packer<'a> {
        Packer { pool, isa, compute, arena: Arena::default() }
    }

    /// Packs a matrix `[outputs, inputs]` whose rows stand one after another in `data`.
    ///
    /// `done(range)` is called with each stretch of `data` that is packed and not read again, so that the pages of a
    /// file can be released on the way.
    ///
    /// # Errors
    /// [`PackError`] when the data does not fit the shape.
    pub fn pack(
        &self,
        format: Format,
        (outputs, inputs): (usize, usize),
        data: &[u8],
        done: impl Fn(Range<usize>),
    ) -> Result<Matrix, PackError> {
        if outputs == 0 || inputs == 0 {
            return Err(PackError::Empty { outputs, inputs });
        }
        let want = format.bytes(outputs, inputs)?;
        if data.len() != want {
            return Err(FormatError::Size { format, got: data.len(), want }.into());
        }
        let Packer { pool, isa, compute, ref arena } = *self;
        let packed = if compute == Compute::F32 { Format::F32 } else { format };
        let lanes = lanes(isa);
        let panel_bytes = panel_bytes(packed, lanes, inputs);
        let mut bytes = arena.zeroed(outputs.div_ceil(lanes) * panel_bytes);
        let row_bytes = want / outputs;
        let step = (STRETCH / (lanes * row_bytes)).max(1);
        let panels = outputs.div_ceil(lanes);
        for first in (0..panels).step_by(step) {
            let stretch = first..(first + step).min(panels);
            let target =
                Disjoint::new(&mut bytes.as_mut_slice()[stretch.start * panel_bytes..stretch.end * panel_bytes]);
            pool.for_each(stretch.len(), |i| {
                let rows = (first + i) * lanes..((first + i + 1) * lanes).min(outputs);
                // SAFETY: each panel is one item, and panels do not overlap.
                let panel = unsafe { target.slice(i * panel_bytes..(i + 1) * panel_bytes) };
                let rows = &data[rows.start * row_bytes..rows.end * row_bytes];
                pack_panel(format, packed, rows, row_bytes, panel, lanes);
            });
            done(stretch.start * lanes * row_bytes..(stretch.end * lanes).min(outputs) * row_bytes);
        }
        Ok(Matrix { isa, format: packed, outputs, inputs, lanes, panel_bytes, bytes })
    }
}

impl Matrix {
    /// Decodes output `row` to f32, `[inputs]`: exactly what the file says.
    ///
    /// # Panics
    /// When there is no such row or `out` has another length.
    pub fn row(&self, row: usize, out: &mut [f32]) {
        assert!(row < self.outputs && out.len() == self.inputs, "row {row} of {self:?} into {} values", out.len());
        let (panel, lane) = (row / self.lanes, row % self.lanes);
        // SAFETY: the panel is inside the buffer, which `pack` sized for all panels.
        let panel =
            unsafe { std::slice::from_raw_parts(self.bytes.as_ptr().add(panel * self.panel_bytes), self.panel_bytes) };
        match self.format {
            Format::F32 => dense(panel, self.lanes, lane, out, |b: [u8; 4]| f32::from_le_bytes(b)),
            Format::F16 => dense(panel, self.lanes, lane, out, |b: [u8; 2]| f16::from_le_bytes(b).to_f32()),
            Format::BF16 => dense(panel, self.lanes, lane, out, |b: [u8; 2]| bf16::from_le_bytes(b).to_f32()),
            quantised => with_quant!(quantised, Q => quantised_row::<Q>(panel, self.lanes, lane, out)),
        }
    }
}

fn lanes(isa: Isa) -> usize {
    match isa {
        Isa::Portable => Portable::LANES,
        #[cfg(target_arch = "x86_64")]
        Isa::Avx2 => crate::simd::avx2::Avx2::LANES,
        #[cfg(target_arch = "x86_64")]
        Isa::Avx512 => crate::simd::avx512::Avx512::LANES,
        #[cfg(not(target_arch = "x86_64"))]
        _ => Portable::LANES,
    }
}

fn panel_bytes(format: Format, lanes: usize, inputs: usize) -> usize {
    match format {
        Format::F32 | Format::F16 | Format::BF16 => inputs * lanes * format.block_bytes(),
        quantised => with_quant!(quantised, Q => inputs / (BLOCK * Q::BLOCKS) * Q::chunk_bytes(lanes)),
    }
}

fn pack_panel(format: Format, packed: Format, rows: &[u8], row_bytes: usize, panel: &mut [u8], lanes: usize) {
    for (lane, row) in rows.chunks_exact(row_bytes).enumerate() {
        match packed {
            Format::F32 => pack_f32(format, row, panel, lanes, lane),
            Format::F16 | Format::BF16 => {
                for (i, value) in row.chunks_exact(2).enumerate() {
                    let at = 2 * (i * lanes + lane);
                    panel[at..at + 2].copy_from_slice(value);
                }
            }
            quantised => with_quant!(quantised, Q => pack_quantised::<Q>(row, panel, lanes, lane)),
        }
    }
}

fn pack_f32(format: Format, row: &[u8], panel: &mut [u8], lanes: usize, lane: usize) {
    let mut values = vec![0.0; row.len() / format.block_bytes() * format.block_len()];
    if format.decode(row, &mut values).is_err() {
        unreachable!("`pack` has checked the size of the data");
    }
    for (i, value) in values.iter().enumerate() {
        let at = 4 * (i * lanes + lane);
        panel[at..at + 4].copy_from_slice(&value.to_le_bytes());
    }
}

fn pack_quantised<Q: Quant>(row: &[u8], panel: &mut [u8], lanes: usize, lane: usize) {
    let chunks = panel.chunks_exact_mut(Q::chunk_bytes(lanes));
    for (block, chunk) in row.chunks_exact(Q::FORMAT.block_bytes()).zip(chunks) {
        Q::pack(block, Lane { chunk, lanes, lane });
    }
}

fn dense<const N: usize>(panel: &[u8], lanes: usize, lane: usize, out: &mut [f32], number: impl Fn([u8; N]) -> f32) {
    for (i, out) in out.iter_mut().enumerate() {
        let at = N * (i * lanes + lane);
        *out = number(std::array::from_fn(|b| panel[at + b]));
    }
}

/// One lane of a panel. The portable set reads panels of its own width, so a wider panel is first narrowed to it.
fn quantised_row<Q: Quant>(panel: &[u8], lanes: usize, lane: usize, out: &mut [f32]) {
    let narrow = Portable::LANES;
    let mut chunk_narrow = vec![0u8; Q::chunk_bytes(narrow)];
    let chunks = panel.chunks_exact(Q::chunk_bytes(lanes));
    for (chunk, out) in chunks.zip(out.chunks_exact_mut(BLOCK * Q::BLOCKS)) {
        narrow_chunk(chunk, lanes, lane / narrow, &mut chunk_narrow, Q::fields());
        for (block, out) in out.chunks_exact_mut(BLOCK).enumerate() {
            // SAFETY: the chunk has the length that the portable set reads, and `block` is below `BLOCKS`.
            let block = unsafe { Q::load::<Portable>(chunk_narrow.as_ptr(), block) };
            decode_lane::<Q>(&block, lane % narrow, out);
        }
    }
}

/// Copies lanes `8 part..8 part + 8` of every field of a chunk.
fn narrow_chunk(chunk: &[u8], lanes: usize, part: usize, narrow: &mut [u8], fields: impl Iterator<Item = usize>) {
    let (mut from, mut to) = (0, 0);
    for field in fields {
        let width = field * Portable::LANES;
        let start = from + part * width;
        narrow[to..to + width].copy_from_slice(&chunk[start..start + width]);
        from += field * lanes;
        to += width;
    }
}

fn decode_lane<Q: Quant>(block: &super::quant::Block<Portable>, lane: usize, out: &mut [f32]) {
    for (i, out) in out.iter_mut().enumerate() {
        let byte = block.weights[i / 4][4 * lane + i % 4];
        let q = if Q::SIGNED { f32::from(byte as i8) } else { f32::from(byte) };
        let value = block.scale[if Q::HALVES { i / 16 } else { 0 }][lane] * q;
        *out = if Q::MIN { value + block.min[lane] } else { value };
    }
}
