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
pub(crate) struct Linear {
    pub(crate) matrix: Matrix,
    /// `[out]`
    pub(crate) bias: Option<Vec<f32>>,
}

/// What loading a tensor needs.
pub(crate) struct Loader<'a> {
    pub(crate) weights: &'a Weights,
    pub(crate) packer: Packer<'a>,
}

impl Loader<'_> {
    /// A norm or bias `[len]` in f32.
    pub(crate) fn vector(&self, name: &str, len: usize) -> Result<Vec<f32>, LoadError> {
        Ok(self.weights.tensor(name, &[len])?.to_f32()?)
    }

    /// A packed matrix `[out, in]`.
    pub(crate) fn matrix(&self, name: &str, [outputs, inputs]: [usize; 2]) -> Result<Matrix, LoadError> {
        let tensor = self.weights.tensor(name, &[outputs, inputs])?;
        let done = |range| self.weights.release(name, range);
        let packed = self.packer.pack(tensor.format, (outputs, inputs), tensor.data, done);
        packed.map_err(|source| LoadError::Pack { tensor: name.into(), source })
    }

    /// A matrix `name.weight`, with `name.bias` where the config has one.
    pub(crate) fn linear(&self, name: &str, shape: [usize; 2], bias: bool) -> Result<Linear, LoadError> {
        let matrix = self.matrix(&format!("{name}.weight"), shape)?;
        let bias = bias.then(|| self.vector(&format!("{name}.bias"), shape[0])).transpose()?;
        Ok(Linear { matrix, bias })
    }
}
