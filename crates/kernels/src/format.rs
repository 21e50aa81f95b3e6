//! Number formats of weights on disk: block geometry and the exact decoding that everything else is tested against.

mod decode;

/// A number format of a weight matrix, as stored in GGUF or safetensors. A row of a matrix is a whole number of blocks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[allow(missing_docs)]
pub enum Format {
    F32,
    F16,
    BF16,
    Q4_0,
    Q4_1,
    Q5_0,
    Q5_1,
    Q8_0,
    Q4K,
    Q5K,
    Q6K,
}

/// Bytes that cannot be what the format says.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum FormatError {
    /// The row length is not a multiple of the block length.
    #[error("a row of {cols} values is not a whole number of {format:?} blocks of {block}")]
    RaggedRow {
        /// The format.
        format: Format,
        /// Values a row.
        cols: usize,
        /// Values a block.
        block: usize,
    },
    /// The byte count does not fit the shape.
    #[error("{format:?} data of {got} bytes where {want} are needed")]
    Size {
        /// The format.
        format: Format,
        /// Bytes given.
        got: usize,
        /// Bytes that the shape needs.
        want: usize,
    },
}

impl Format {
    /// Values in one block.
    pub fn block_len(self) -> usize {
        match self {
            Format::F32 | Format::F16 | Format::BF16 => 1,
            Format::Q4_0 | Format::Q4_1 | Format::Q5_0 | Format::Q5_1 | Format::Q8_0 => 32,
            Format::Q4K | Format::Q5K | Format::Q6K => 256,
        }
    }

    /// Bytes of one block.
    pub fn block_bytes(self) -> usize {
        match self {
            Format::F32 => 4,
            Format::F16 | Format::BF16 => 2,
            Format::Q4_0 => 18,
            Format::Q4_1 => 20,
            Format::Q5_0 => 22,
            Format::Q5_1 => 24,
            Format::Q8_0 => 34,
            Format::Q4K => 144,
            Format::Q5K => 176,
            Format::Q6K => 210,
        }
    }

    /// Whether the format is block-quantised (multiplied with 8-bit activations) rather than floating point.
    pub fn is_quantised(self) -> bool {
        self.block_len() > 1
    }

    /// Bytes of `values` numbers that form whole rows of `cols`.
    ///
    /// # Errors
    /// [`FormatError::RaggedRow`] when a row is not a whole number of blocks.
    pub fn bytes(self, rows: usize, cols: usize) -> Result<usize, FormatError> {
        let block = self.block_len();
        if !cols.is_multiple_of(block) {
            return Err(FormatError::RaggedRow { format: self, cols, block });
        }
        let want = (cols / block).checked_mul(self.block_bytes()).and_then(|row| row.checked_mul(rows));
        want.ok_or(FormatError::Size { format: self, got: 0, want: usize::MAX })
    }

    /// The bytes of `values` in [`Format::Q8_0`], whole blocks of them: each block's greatest magnitude is 127 steps of its
    /// scale.
    ///
    /// # Errors
    /// [`FormatError::RaggedRow`] when they are not a whole number of blocks.
    pub fn quantise_q8_0(values: &[f32]) -> Result<Vec<u8>, FormatError> {
        let mut bytes = Vec::with_capacity(Format::Q8_0.bytes(1, values.len())?);
        for block in values.chunks_exact(Format::Q8_0.block_len()) {
            let scale = block.iter().fold(0.0f32, |greatest, value| greatest.max(value.abs())) / 127.0;
            let inverse = if scale > 0.0 { 1.0 / scale } else { 0.0 };
            bytes.extend_from_slice(&half::f16::from_f32(scale).to_le_bytes());
            bytes.extend(block.iter().map(|value| (value * inverse).round() as i8 as u8));
        }
        Ok(bytes)
    }

    /// Decodes whole blocks: `bytes` holds the blocks of exactly `out.len()` values. This is the exact meaning of the
    /// bytes; every packed form must agree with it.
    ///
    /// # Errors
    /// [`FormatError::RaggedRow`] when `out` is not a whole number of blocks, [`FormatError::Size`] when `bytes` is not
    /// as long as they are. Nothing is written then.
    pub fn decode(self, bytes: &[u8], out: &mut [f32]) -> Result<(), FormatError> {
        let want = self.bytes(1, out.len())?;
        if bytes.len() != want {
            return Err(FormatError::Size { format: self, got: bytes.len(), want });
        }
        decode::blocks(self, bytes, out);
        Ok(())
    }
}
