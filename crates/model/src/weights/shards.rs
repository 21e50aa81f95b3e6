//! The weight files of a directory: which of them are read, and what is in them all together.

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use kernels::Format;
use serde::Deserialize;

use super::{Found, Origin, WeightsError, beside, broken, is_git_lfs_pointer, map, safetensors, torch};
use crate::mmap::Mapped;

/// A file that weights may be in, or the list of several.
#[derive(Debug, Clone, Copy)]
pub(crate) struct WeightFile {
    /// Its name.
    pub(crate) name: &'static str,
    pub(crate) origin: Origin,
    /// It names the files that hold the weights.
    pub(crate) is_index: bool,
}

/// Where weights may be, what is preferred first.
pub(crate) const FILES: [WeightFile; 7] = [
    WeightFile { name: "model.safetensors", origin: Origin::Safetensors, is_index: false },
    WeightFile { name: "model.safetensors.index.json", origin: Origin::Safetensors, is_index: true },
    WeightFile { name: "medusa_lm_head.safetensors", origin: Origin::Safetensors, is_index: false },
    WeightFile { name: "pytorch_model.bin", origin: Origin::Torch, is_index: false },
    WeightFile { name: "pytorch_model.bin.index.json", origin: Origin::Torch, is_index: true },
    WeightFile { name: "medusa_lm_head.pt", origin: Origin::Torch, is_index: false },
    WeightFile { name: "hydra_lm_head.pt", origin: Origin::Torch, is_index: false },
];

/// Mapped files and what is in them.
#[derive(Debug)]
pub(super) struct Shards {
    pub(super) origin: Origin,
    /// The file, or the index of several.
    source: PathBuf,
    files: Vec<(PathBuf, Mapped)>,
    /// With the number of the file that each is in.
    tensors: HashMap<String, (usize, Entry)>,
}

/// Where a tensor lies in its file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Entry {
    /// Its numbers, or what they are called where they are none that matrices are made of.
    pub(super) format: Result<Format, String>,
    pub(super) shape: Vec<usize>,
    pub(super) offset: usize,
    pub(super) bytes: usize,
}

/// Of an index only this is read.
#[derive(Deserialize)]
struct Index {
    weight_map: HashMap<String, String>,
}

/// The file in a directory that says where its weights are.
pub(super) fn find(dir: &Path) -> Option<WeightFile> {
    FILES.into_iter().find(|file| dir.join(file.name).exists())
}

impl Shards {
    pub(super) fn open(dir: &Path) -> Result<Shards, WeightsError> {
        let file = find(dir).ok_or_else(|| WeightsError::NoWeights { dir: dir.display().to_string() })?;
        let source = dir.join(file.name);
        let mut shards =
            Shards { origin: file.origin, source: source.clone(), files: Vec::new(), tensors: HashMap::new() };
        if file.is_index {
            shards.add_all(dir, &source)?
        } else {
            shards.add(source)?
        }
        Ok(shards)
    }

    /// Adds the files that an index names.
    fn add_all(&mut self, dir: &Path, index: &Path) -> Result<(), WeightsError> {
        let io = |source| WeightsError::Io { file: index.display().to_string(), source };
        let bytes = std::fs::read(index).map_err(io)?;
        let Index { weight_map } =
            serde_json::from_slice(&bytes).map_err(|e| broken(index, format!("not an index of tensors: {e}")))?;
        let mut names: Vec<&String> = weight_map.values().collect();
        names.sort_unstable();
        names.dedup();
        for name in names {
            let path = beside(dir, name).ok_or_else(|| {
                broken(index, format!("weight_map names the file {name:?}, which is not a plain file name"))
            })?;
            self.add(path)?;
        }
        for (tensor, file) in &weight_map {
            let found = self.tensors.get(tensor).map(|(at, _)| &self.files[*at].0);
            if found.is_none_or(|path| path.file_name() != Some(file.as_ref())) {
                return Err(broken(
                    index,
                    format!("weight_map says that tensor {tensor} is in {file}, which is not so"),
                ));
            }
        }
        Ok(())
    }

    fn add(&mut self, path: PathBuf) -> Result<(), WeightsError> {
        let map = map(&path)?;
        if is_git_lfs_pointer(&map) {
            return Err(broken(&path, "a Git LFS pointer, not the weights themselves; run `git lfs pull` there"));
        }
        let entries = match self.origin {
            Origin::Torch => torch::entries(&map),
            Origin::Safetensors | Origin::Gguf => safetensors::entries(&map),
        };
        for (name, entry) in entries.map_err(|problem| broken(&path, problem))? {
            if self.tensors.insert(name.clone(), (self.files.len(), entry)).is_some() {
                return Err(broken(&path, format!("tensor {name} is in another file of the model as well")));
            }
        }
        self.files.push((path, map));
        Ok(())
    }

    pub(super) fn find(&self, name: &str) -> Option<Found<'_>> {
        let (name, (file, entry)) = self.tensors.get_key_value(name)?;
        let (file, map) = &self.files[*file];
        let data = map.get(entry.offset..entry.offset + entry.bytes)?;
        let (format, shape) = (entry.format.clone(), &entry.shape);
        Some(Found { file, name, format, shape, data, map, offset: entry.offset })
    }

    pub(super) fn names(&self) -> impl Iterator<Item = &str> {
        self.tensors.keys().map(String::as_str)
    }

    pub(super) fn bytes(&self) -> u64 {
        self.files.iter().map(|(_, map)| map.len() as u64).sum()
    }

    /// Where a missing tensor should have been.
    pub(super) fn source(&self) -> &Path {
        &self.source
    }
}
