//! What is in one safetensors file.

use kernels::Format;
use safetensors::{Dtype, SafeTensors};

use super::shards::Entry;

/// The tensors of a file.
///
/// # Errors
/// What is wrong with the file, and what to do.
pub(super) fn entries(bytes: &[u8]) -> Result<Vec<(String, Entry)>, String> {
    let (header, metadata) = SafeTensors::read_metadata(bytes)
        .map_err(|e| format!("not a sound safetensors file: {e}; download it again"))?;
    let entry = |(name, info): (String, &safetensors::tensor::TensorInfo)| {
        // Offsets count from the end of the header, which follows eight bytes of its length.
        let (start, end) = info.data_offsets;
        let format = match info.dtype {
            Dtype::F32 => Ok(Format::F32),
            Dtype::F16 => Ok(Format::F16),
            Dtype::BF16 => Ok(Format::BF16),
            other => Err(format!("{other:?}")),
        };
        (name, Entry { format, shape: info.shape.clone(), offset: 8 + header + start, bytes: end - start })
    };
    Ok(metadata.tensors().into_iter().map(entry).collect())
}
