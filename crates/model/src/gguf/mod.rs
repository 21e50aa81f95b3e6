//! GGUF files: the reader of the header, and access to the tensors of a memory-mapped file.
//!
//! A GGUF file is one file with everything a model needs: typed metadata (architecture, hyper-parameters, vocabulary,
//! chat template) and tensors in block formats. Files come from strangers, so nothing in the header is believed: every
//! count and length is compared with the bytes that are left before anything is allocated, and every tensor must lie
//! inside the file and apart from the others. A file that breaks a rule gives an error naming file, field and offset.
//!
//! This room knows the container only. What a key means for a model is in [`crate::config`], what a tensor is called in
//! [`crate::weights`].

mod metadata;
mod read;

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use crate::mmap::Mapped;
use kernels::Format;

pub use metadata::{Array, Metadata, Value};

/// What is wrong with a GGUF file, and where.
#[derive(Debug, thiserror::Error)]
pub enum GgufError {
    /// The file cannot be opened or mapped.
    #[error("{file}: cannot read the file: {source}")]
    Io {
        /// The file.
        file: String,
        /// The system's answer.
        source: std::io::Error,
    },
    /// The file ends before the field does.
    #[error(
        "{file}: truncated: {field} at byte {offset} needs {needed} bytes, the file has {left} left; download the file again"
    )]
    Truncated {
        /// The file.
        file: String,
        /// The field being read.
        field: String,
        /// Where the field starts.
        offset: usize,
        /// Bytes that the field needs, at the least.
        needed: u64,
        /// Bytes that are left.
        left: usize,
    },
    /// A field says something that cannot be.
    #[error("{file}: {field} at byte {offset}: {problem}")]
    Invalid {
        /// The file.
        file: String,
        /// The field.
        field: String,
        /// Where the field starts.
        offset: usize,
        /// What is wrong with it.
        problem: String,
    },
    /// A tensor in a format that there is no kernel for.
    #[error(
        "{file}: tensor {tensor} has the unsupported quantisation type {found}; supported are F32, F16, BF16, Q4_0, Q4_1, \
         Q5_0, Q5_1, Q8_0, Q4_K, Q5_K and Q6_K"
    )]
    UnsupportedFormat {
        /// The file.
        file: String,
        /// The tensor.
        tensor: String,
        /// Name or number of the type.
        found: String,
    },
    /// A metadata key that the model needs is not there.
    #[error("{file}: metadata key {key} is missing")]
    Missing {
        /// The file.
        file: String,
        /// The key.
        key: String,
    },
    /// A metadata value has another type than needed, or does not fit into it.
    #[error("{file}: metadata key {key} is {found}, where {wanted} is needed")]
    WrongType {
        /// The file.
        file: String,
        /// The key.
        key: String,
        /// What the file has.
        found: String,
        /// What is needed.
        wanted: &'static str,
    },
}

/// One tensor of a GGUF file. Its bytes were checked to lie inside the file, apart from all others.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TensorInfo {
    /// Name in the file, such as `blk.0.attn_q.weight`.
    pub name: String,
    /// Number format.
    pub format: Format,
    /// Row-major shape, slowest dimension first: a matrix is `[out, in]`. (The file has it the other way round.)
    pub shape: Vec<usize>,
    /// First byte, counted from the start of the file.
    pub offset: usize,
    /// Length in bytes.
    pub bytes: usize,
}

/// An open GGUF file: checked header, mapped tensors.
#[derive(Debug)]
pub struct Gguf {
    path: PathBuf,
    map: Mapped,
    metadata: Metadata,
    tensors: Vec<TensorInfo>,
    index: HashMap<String, usize>,
}

impl Gguf {
    /// Maps the file and checks its header.
    ///
    /// # Errors
    /// When the file cannot be read, or anything in its header is wrong.
    pub fn open(path: &Path) -> Result<Gguf, GgufError> {
        let name = path.display().to_string();
        let io = |source| GgufError::Io { file: name.clone(), source };
        let map = Mapped::open(path).map_err(io)?;
        let (metadata, tensors) = Gguf::parse(&map, &name)?;
        let index = tensors.iter().enumerate().map(|(i, t)| (t.name.clone(), i)).collect();
        Ok(Gguf { path: path.to_path_buf(), map, metadata, tensors, index })
    }

    /// Checks the header of a whole file given as bytes. `name` is what errors call the file.
    ///
    /// # Errors
    /// When anything in the header is wrong, or a tensor does not lie inside `bytes`.
    pub fn parse(bytes: &[u8], name: &str) -> Result<(Metadata, Vec<TensorInfo>), GgufError> {
        read::header(bytes, name)
    }

    /// The metadata.
    pub fn metadata(&self) -> &Metadata {
        &self.metadata
    }

    /// Takes the metadata out, so that it can be dropped before the weights are packed: the vocabulary in it is large.
    /// The pages of the header are given back as well.
    pub fn take_metadata(&mut self) -> Metadata {
        let header = self.tensors.iter().map(|tensor| tensor.offset).min().unwrap_or(0);
        self.map.release(0..header);
        let empty = Metadata::new(&self.path.display().to_string());
        std::mem::replace(&mut self.metadata, empty)
    }

    /// All tensors, in the order of the file.
    pub fn tensors(&self) -> &[TensorInfo] {
        &self.tensors
    }

    /// The tensor called `name` in the file.
    pub fn tensor(&self, name: &str) -> Option<&TensorInfo> {
        self.index.get(name).map(|&i| &self.tensors[i])
    }

    /// The bytes of a tensor of this file.
    pub fn data(&self, tensor: &TensorInfo) -> &[u8] {
        self.map.get(tensor.offset..tensor.offset.saturating_add(tensor.bytes)).unwrap_or_default()
    }

    /// Where the file is.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The whole mapped file.
    pub(crate) fn map(&self) -> &Mapped {
        &self.map
    }
}
