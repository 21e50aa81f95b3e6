//! The tensors of one model, memory-mapped, under one set of names whatever file they came from.
//!
//! An architecture asks for a tensor by its Hugging Face name and with the shape that its config implies; it gets bytes
//! in the format of the file, or an error naming file, tensor and what differs. Nothing is copied or converted here but
//! what [`Tensor::to_f32`] is asked for, such as norms and biases; packing matrices is the business of crate `kernels`.

mod names;
mod safetensors;
mod shards;
mod torch;

use std::ops::Range;
use std::path::{Path, PathBuf};

use kernels::Format;

use self::shards::Shards;
use crate::gguf::{Gguf, GgufError};
use crate::mmap::Mapped;

pub(crate) use self::shards::{FILES, WeightFile};

/// What is wrong with a model's weights, and where.
#[derive(Debug, thiserror::Error)]
pub enum WeightsError {
    /// A file cannot be opened or mapped.
    #[error("{file}: cannot read the file: {source}")]
    Io {
        /// The file.
        file: String,
        /// The system's answer.
        source: std::io::Error,
    },
    /// A directory has no weights in a format that can be read.
    #[error(
        "{dir}: there is neither model.safetensors nor pytorch_model.bin, nor an index of several; download the model again, or name a .gguf file"
    )]
    NoWeights {
        /// The directory.
        dir: String,
    },
    /// A file of weights or its index is broken.
    #[error("{file}: {problem}")]
    Broken {
        /// The file.
        file: String,
        /// What is wrong with it.
        problem: String,
    },
    /// The header of a GGUF file is wrong.
    #[error(transparent)]
    Gguf(#[from] GgufError),
    /// The model needs a tensor that is not there.
    #[error("{file}: tensor {tensor} is missing")]
    Missing {
        /// The file or directory.
        file: String,
        /// The tensor, as the file would call it.
        tensor: String,
    },
    /// A tensor has another shape than the config implies.
    #[error("{file}: tensor {tensor} has the shape {found:?}, where the model's config needs {wanted:?}")]
    Shape {
        /// The file.
        file: String,
        /// The tensor, as the file calls it.
        tensor: String,
        /// The shape in the file.
        found: Vec<usize>,
        /// The shape asked for.
        wanted: Vec<usize>,
    },
    /// A tensor's numbers are in a format that cannot be used.
    #[error("{file}: tensor {tensor} has numbers of type {found}; {supported}")]
    Format {
        /// The file.
        file: String,
        /// The tensor, as the file calls it.
        tensor: String,
        /// The format in the file.
        found: String,
        /// What would do.
        supported: &'static str,
    },
}

/// The kind of file that weights came from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Origin {
    /// One GGUF file.
    Gguf,
    /// Safetensors files in a directory.
    Safetensors,
    /// Files of PyTorch in a directory.
    Torch,
}

/// One model's tensors.
#[derive(Debug)]
pub struct Weights {
    store: Store,
}

#[derive(Debug)]
enum Store {
    Gguf(Box<Gguf>),
    Shards(Shards),
}

/// A tensor, as it lies in the file.
#[derive(Debug, Clone)]
pub struct Tensor<'a> {
    /// Number format.
    pub format: Format,
    /// Shape, slowest dimension first: a matrix is `[out, in]`.
    pub shape: Vec<usize>,
    /// The bytes, row after row.
    pub data: &'a [u8],
    file: &'a Path,
    name: &'a str,
}

/// Where a tensor is: everything that finding it tells.
struct Found<'a> {
    file: &'a Path,
    name: &'a str,
    format: Result<Format, String>,
    shape: &'a [usize],
    data: &'a [u8],
    map: &'a Mapped,
    offset: usize,
}

impl Weights {
    /// Maps a GGUF file.
    ///
    /// # Errors
    /// When the file cannot be read or its header is wrong.
    pub fn open_gguf(path: &Path) -> Result<Weights, WeightsError> {
        Ok(Weights::from_gguf(Gguf::open(path)?))
    }

    /// The tensors of a GGUF file that is mapped already.
    pub fn from_gguf(gguf: Gguf) -> Weights {
        Weights { store: Store::Gguf(Box::new(gguf)) }
    }

    /// Maps `model.safetensors` of a directory, or the files that `model.safetensors.index.json` lists; where there is
    /// neither, `pytorch_model.bin`, the files that its index lists, or the heads of Medusa or Hydra.
    ///
    /// # Errors
    /// When there are none, or one of them cannot be read or is broken.
    pub fn open_dir(dir: &Path) -> Result<Weights, WeightsError> {
        Ok(Weights { store: Store::Shards(Shards::open(dir)?) })
    }

    /// Whether a directory has weights that [`Weights::open_dir`] would open.
    pub fn are_in(dir: &Path) -> bool {
        shards::find(dir).is_some()
    }

    /// The GGUF file, where the weights are from one: it holds config and tokenizer as well.
    pub fn gguf(&self) -> Option<&Gguf> {
        match &self.store {
            Store::Gguf(gguf) => Some(gguf),
            Store::Shards(_) => None,
        }
    }

    /// What kind of file the weights are from.
    pub fn origin(&self) -> Origin {
        match self.store {
            Store::Gguf(_) => Origin::Gguf,
            Store::Shards(ref shards) => shards.origin,
        }
    }

    /// Size of the weight files, in bytes.
    pub fn bytes_on_disk(&self) -> u64 {
        match &self.store {
            Store::Gguf(gguf) => gguf.map().len() as u64,
            Store::Shards(shards) => shards.bytes(),
        }
    }

    /// The names of all tensors, as the files have them.
    pub fn names(&self) -> Vec<&str> {
        match &self.store {
            Store::Gguf(gguf) => gguf.tensors().iter().map(|info| &*info.name).collect(),
            Store::Shards(shards) => shards.names().collect(),
        }
    }

    /// The shape of the tensor with this Hugging Face name, slowest dimension first; `None`: there is none.
    pub fn shape(&self, name: &str) -> Option<&[usize]> {
        self.find(name).map(|found| found.shape)
    }

    /// Whether there is a tensor with this Hugging Face name.
    pub fn has(&self, name: &str) -> bool {
        self.find(name).is_some()
    }

    /// The tensor with this Hugging Face name, which must have the shape given (slowest dimension first).
    ///
    /// # Errors
    /// When it is missing, has another shape, or a number format that cannot be used.
    pub fn tensor(&self, name: &str, shape: &[usize]) -> Result<Tensor<'_>, WeightsError> {
        let found = self.find(name).ok_or_else(|| self.missing(name))?;
        let file = found.file.display().to_string();
        if found.shape != shape {
            let (found, name) = (found.shape.to_vec(), found.name.into());
            return Err(WeightsError::Shape { file, tensor: name, found, wanted: shape.to_vec() });
        }
        match found.format {
            Ok(format) => {
                Ok(Tensor { format, shape: shape.to_vec(), data: found.data, file: found.file, name: found.name })
            }
            Err(other) => {
                let supported = "supported are F32, F16 and BF16";
                Err(WeightsError::Format { file, tensor: found.name.into(), found: other, supported })
            }
        }
    }

    /// A tensor `[len]` of whole numbers of 64 or 32 bits with this name.
    ///
    /// # Errors
    /// When it is missing, has another shape or other numbers.
    pub fn integers(&self, name: &str, len: usize) -> Result<Vec<i64>, WeightsError> {
        let found = self.find(name).ok_or_else(|| self.missing(name))?;
        let (file, tensor) = (found.file.display().to_string(), found.name.to_owned());
        if found.shape != [len] {
            return Err(WeightsError::Shape { file, tensor, found: found.shape.to_vec(), wanted: vec![len] });
        }
        match &found.format {
            Err(kind) if kind == "I64" => Ok(found.data.as_chunks().0.iter().map(|&b| i64::from_le_bytes(b)).collect()),
            Err(kind) if kind == "I32" => {
                Ok(found.data.as_chunks().0.iter().map(|&b| i64::from(i32::from_le_bytes(b))).collect())
            }
            other => {
                let found = other.as_ref().map_or_else(Clone::clone, |format| format!("{format:?}"));
                Err(WeightsError::Format { file, tensor, found, supported: "whole numbers are I64 or I32" })
            }
        }
    }

    /// Tells the system that the pages of the bytes `range` of a tensor are not needed any more, once they are packed.
    /// Reading them again would only be slow.
    pub fn release(&self, name: &str, range: Range<usize>) {
        let Some(found) = self.find(name) else { return };
        let end = range.end.min(found.data.len());
        found.map.release(found.offset + range.start.min(end)..found.offset + end);
    }

    fn find(&self, name: &str) -> Option<Found<'_>> {
        match &self.store {
            Store::Gguf(gguf) => {
                let info = gguf.tensor(&names::gguf(name)?)?;
                Some(Found {
                    file: gguf.path(),
                    name: &info.name,
                    format: Ok(info.format),
                    shape: &info.shape,
                    data: gguf.data(info),
                    map: gguf.map(),
                    offset: info.offset,
                })
            }
            Store::Shards(shards) => shards.find(name),
        }
    }

    fn missing(&self, name: &str) -> WeightsError {
        let (file, tensor) = match &self.store {
            Store::Gguf(gguf) => (gguf.path(), names::gguf(name).unwrap_or_else(|| name.into())),
            Store::Shards(shards) => (shards.source(), name.into()),
        };
        WeightsError::Missing { file: file.display().to_string(), tensor }
    }
}

impl Tensor<'_> {
    /// The values in f32, row after row.
    ///
    /// # Errors
    /// When the bytes are not what format and shape say; opening the files has checked it.
    pub fn to_f32(&self) -> Result<Vec<f32>, WeightsError> {
        let mut out = vec![0.0; self.shape.iter().product()];
        match self.format.decode(self.data, &mut out) {
            Ok(()) => Ok(out),
            Err(e) => Err(broken(self.file, format!("tensor {}: {e}", self.name))),
        }
    }
}

/// Maps a file for reading.
fn map(path: &Path) -> Result<Mapped, WeightsError> {
    Mapped::open(path).map_err(|source| WeightsError::Io { file: path.display().to_string(), source })
}

/// Why a file is no weight file, when it is the stand-in that git leaves for large files.
pub(crate) fn is_git_lfs_pointer(bytes: &[u8]) -> bool {
    bytes.starts_with(b"version https://git-lfs")
}

fn broken(file: &Path, problem: impl Into<String>) -> WeightsError {
    WeightsError::Broken { file: file.display().to_string(), problem: problem.into() }
}

/// Path of a file beside others, from an index that nobody vouches for: a plain name, nothing that leads elsewhere.
fn beside(dir: &Path, name: &str) -> Option<PathBuf> {
    let mut parts = Path::new(name).components();
    let plain =
        matches!((parts.next(), parts.next()), (Some(std::path::Component::Normal(part)), None) if part == name);
    plain.then(|| dir.join(name))
}
