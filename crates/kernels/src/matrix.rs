//! Weight matrices packed for the skinny product `y = x Wᵀ`, M = 1 to some hundred rows.
//!
//! What decides the layout is that one body serves every M: a panel of [`crate::simd::Simd::LANES`] outputs is a
//! contiguous stream, read once for a tile of rows, and an output's sum runs over the inputs in order, whatever M.

mod driver;
mod pack;
mod quant;
mod tile;
mod unpack;

pub use driver::{Product, multiply};
pub use pack::{PackError, Packer};
pub(crate) use quant::BLOCK;

use crate::Isa;
use crate::aligned::Aligned;
use crate::format::Format;

/// How a matrix is multiplied.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Compute {
    /// As stored: quantised formats by 8-bit activations, the others by f32.
    Stored,
    /// Everything decoded to f32 at load and multiplied in f32: four to eight times the memory, for parity.
    F32,
}

/// A matrix `[outputs, inputs]`, packed for one instruction set.
pub struct Matrix {
    isa: Isa,
    format: Format,
    outputs: usize,
    inputs: usize,
    lanes: usize,
    panel_bytes: usize,
    bytes: Aligned,
}

impl Matrix {
    /// Outputs: the length of a result row.
    pub fn outputs(&self) -> usize {
        self.outputs
    }

    /// Inputs: the length of a row of activations.
    pub fn inputs(&self) -> usize {
        self.inputs
    }

    /// The format that is multiplied (f32 under [`Compute::F32`], whatever the file had).
    pub fn format(&self) -> Format {
        self.format
    }

    /// Bytes that one product reads.
    pub fn packed_bytes(&self) -> usize {
        self.bytes.len()
    }

    fn panels(&self) -> usize {
        self.outputs.div_ceil(self.lanes)
    }
}

impl std::fmt::Debug for Matrix {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Matrix({:?} [{}, {}] for {})", self.format, self.outputs, self.inputs, self.isa)
    }
}
