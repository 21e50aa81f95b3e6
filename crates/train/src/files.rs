//! Files that are there whole or not at all.

use std::collections::HashMap;
use std::fs;
use std::path::Path;

use safetensors::Dtype;
use safetensors::tensor::TensorView;

use crate::TrainError;

/// A tensor as it goes to a file: name, type, shape, and its numbers in little-endian order.
pub(crate) type Written = (String, Dtype, Vec<usize>, Vec<u8>);

/// Writes tensors, and what is said about them, as safetensors.
///
/// # Errors
/// When the file cannot be written.
pub(crate) fn write_tensors(
    path: &Path,
    about: Option<HashMap<String, String>>,
    tensors: Vec<Written>,
) -> Result<(), TrainError> {
    let broken = |source| TrainError::Safetensors { file: path.display().to_string(), source };
    let mut views = Vec::with_capacity(tensors.len());
    for (name, kind, shape, bytes) in &tensors {
        views.push((name.clone(), TensorView::new(*kind, shape.clone(), bytes).map_err(broken)?));
    }
    write(path, &safetensors::serialize(views, about).map_err(broken)?)
}

/// Writes a file.
///
/// # Errors
/// When it cannot be written.
pub(crate) fn write(path: &Path, bytes: &[u8]) -> Result<(), TrainError> {
    let unfinished = path.with_extension("unfinished");
    let written = fs::write(&unfinished, bytes).and_then(|()| fs::rename(&unfinished, path));
    written.map_err(|source| TrainError::io("write", path, source))
}
