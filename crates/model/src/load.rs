//! From a weight file to packed matrices: each tensor is read once, packed, and its pages given back.

use kernels::{Compute, Format, Isa, Matrix, PackError, Packer, Pool};

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
    /// Whether matrices of floats become 8-bit ones (Q8_0) as they are loaded, where their rows are whole blocks.
    pub quantise: bool,
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
    /// Whether matrices of floats become 8-bit ones.
    pub quantise: bool,
}

impl<'a> Loader<'a> {
    /// A loader on these threads.
    pub fn new(weights: &'a Weights, pool: &'a Pool, options: LoadOptions, prefix: &'static str) -> Loader<'a> {
        let LoadOptions { isa, compute, quantise } = options;
        Loader { weights, packer: Packer::new(pool, isa, compute), prefix, quantise }
    }

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
        let packed = match self.quantise && !tensor.format.is_quantised() && inputs % Format::Q8_0.block_len() == 0 {
            false => self.packer.pack(tensor.format, (outputs, inputs), tensor.data, done),
            true => {
                let bytes = Format::quantise_q8_0(&tensor.to_f32()?).map_err(PackError::from);
                bytes.and_then(|bytes| self.packer.pack(Format::Q8_0, (outputs, inputs), &bytes, |_| ()))
            }
        };
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
