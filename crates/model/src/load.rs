//! From a weight file to packed matrices: each tensor is read once, packed, and its pages given back.

use kernels::{Compute, Isa, Matrix, PackError, Packer};

use crate::weights::{Weights, WeightsError};

/// A model that cannot be loaded.
#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    /// A tensor is missing or of the wrong kind.
    #[error(transparent)]
    Weights(#[from] WeightsError),
    /// A matrix's bytes do not make a matrix.
    #[error("tensor {tensor}: {source}")]
    Pack {
        /// The tensor's Hugging Face name.
        tensor: String,
        /// What is wrong.
        source: PackError,
    },
}

/// How a model is loaded.
#[derive(Debug, Clone, Copy)]
pub struct LoadOptions {
    /// The instruction set to pack for.
    pub isa: Isa,
    /// Whether matrices are multiplied as stored or in f32.
    pub compute: Compute,
}

/// A matrix `[out, in]` and what is added to its result.
pub struct Linear {
    /// The matrix.
    pub matrix: Matrix,
    /// `[out]`
    pub bias: Option<Vec<f32>>,
}

/// What loading a tensor needs.
pub struct Loader<'a> {
    /// Where the tensors are.
    pub weights: &'a Weights,
    /// What packs matrices.
    pub packer: Packer<'a>,
    /// What names of the body begin with: `model.`, or nothing in drafts.
    pub prefix: &'static str,
}

impl Loader<'_> {
    /// The name of a tensor of the body.
    pub(crate) fn body(&self, part: &str) -> String {
        format!("{}{part}", self.prefix)
    }

    /// The name of a tensor of a layer.
    pub(crate) fn in_layer(&self, index: usize, part: &str) -> String {
        self.body(&format!("layers.{index}.{part}"))
    }

    /// A norm or bias `[len]` in f32.
    ///
    /// # Errors
    /// When it is missing, or has another shape or a format that cannot be used.
    pub fn vector(&self, name: &str, len: usize) -> Result<Vec<f32>, LoadError> {
        Ok(self.weights.tensor(name, &[len])?.to_f32()?)
    }

    /// A packed matrix `[out, in]`.
    ///
    /// # Errors
    /// When it is missing, or has another shape or a format that cannot be used.
    pub fn matrix(&self, name: &str, [outputs, inputs]: [usize; 2]) -> Result<Matrix, LoadError> {
        let tensor = self.weights.tensor(name, &[outputs, inputs])?;
        let done = |range| self.weights.release(name, range);
        let packed = self.packer.pack(tensor.format, (outputs, inputs), tensor.data, done);
        packed.map_err(|source| LoadError::Pack { tensor: name.into(), source })
    }

    /// A matrix `name.weight`, with `name.bias` where the config has one.
    ///
    /// # Errors
    /// When one of them is missing, or has another shape or a format that cannot be used.
    pub fn linear(&self, name: &str, shape: [usize; 2], bias: bool) -> Result<Linear, LoadError> {
        let matrix = self.matrix(&format!("{name}.weight"), shape)?;
        let bias = bias.then(|| self.vector(&format!("{name}.bias"), shape[0])).transpose()?;
        Ok(Linear { matrix, bias })
    }
}
