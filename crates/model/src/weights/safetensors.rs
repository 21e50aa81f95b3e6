//! Safetensors: one file, or several with an index.

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use kernels::Format;
use safetensors::{Dtype, SafeTensors};
use serde::Deserialize;

use super::{Found, WeightsError, beside, broken, is_git_lfs_pointer, map};
use crate::mmap::Mapped;

const SINGLE: &str = "model.safetensors";
const INDEX: &str = "model.safetensors.index.json";

/// Mapped safetensors files and what is in them.
#[derive(Debug)]
pub(super) struct Shards {
    /// The file, or the index of several.
    source: PathBuf,
    files: Vec<(PathBuf, Mapped)>,
    tensors: HashMap<String, Entry>,
}

#[derive(Debug)]
struct Entry {
    file: usize,
    dtype: Dtype,
    shape: Vec<usize>,
    offset: usize,
    bytes: usize,
}

#[derive(Deserialize)]
struct Index {
    weight_map: HashMap<String, String>,
}

impl Shards {
    pub(super) fn open(dir: &Path) -> Result<Shards, WeightsError> {
        let (single, index) = (dir.join(SINGLE), dir.join(INDEX));
        if single.exists() {
            let mut shards = Shards { source: single.clone(), files: Vec::new(), tensors: HashMap::new() };
            shards.add(single)?;
            return Ok(shards);
        }
        if index.exists() {
            return Shards::open_index(dir, index);
        }
        let pickled = dir.join("pytorch_model.bin").exists() || dir.join("pytorch_model.bin.index.json").exists();
        let hint = if pickled {
            "its pytorch_model.bin is not supported, convert it to safetensors"
        } else {
            "download the model again, or name a .gguf file"
        };
        Err(WeightsError::NoWeights { dir: dir.display().to_string(), hint })
    }

    fn open_index(dir: &Path, index: PathBuf) -> Result<Shards, WeightsError> {
        let io = |source| WeightsError::Io { file: index.display().to_string(), source };
        let bytes = std::fs::read(&index).map_err(io)?;
        let Index { weight_map } =
            serde_json::from_slice(&bytes).map_err(|e| broken(&index, format!("not an index of tensors: {e}")))?;
        let mut names: Vec<&String> = weight_map.values().collect();
        names.sort_unstable();
        names.dedup();
        let mut shards = Shards { source: index.clone(), files: Vec::new(), tensors: HashMap::new() };
        for name in names {
            let path = beside(dir, name).ok_or_else(|| {
                broken(&index, format!("weight_map names the file {name:?}, which is not a plain file name"))
            })?;
            shards.add(path)?;
        }
        for (tensor, file) in &weight_map {
            let found = shards.tensors.get(tensor).map(|entry| &shards.files[entry.file].0);
            if found.is_none_or(|path| path.file_name() != Some(file.as_ref())) {
                return Err(broken(
                    &index,
                    format!("weight_map says that tensor {tensor} is in {file}, which is not so"),
                ));
            }
        }
        Ok(shards)
    }

    fn add(&mut self, path: PathBuf) -> Result<(), WeightsError> {
        let map = map(&path)?;
        if is_git_lfs_pointer(&map) {
            return Err(broken(&path, "a Git LFS pointer, not the weights themselves; run `git lfs pull` there"));
        }
        let (header, metadata) = SafeTensors::read_metadata(&map)
            .map_err(|e| broken(&path, format!("not a sound safetensors file: {e}; download it again")))?;
        for (name, info) in metadata.tensors() {
            // Offsets count from the end of the header, which follows eight bytes of its length.
            let (start, end) = info.data_offsets;
            let entry = Entry {
                file: self.files.len(),
                dtype: info.dtype,
                shape: info.shape.clone(),
                offset: 8 + header + start,
                bytes: end - start,
            };
            if self.tensors.insert(name.clone(), entry).is_some() {
                return Err(broken(&path, format!("tensor {name} is in another file of the model as well")));
            }
        }
        self.files.push((path, map));
        Ok(())
    }

    pub(super) fn find(&self, name: &str) -> Option<Found<'_>> {
        let (name, entry) = self.tensors.get_key_value(name)?;
        let (file, map) = &self.files[entry.file];
        let format = match entry.dtype {
            Dtype::F32 => Ok(Format::F32),
            Dtype::F16 => Ok(Format::F16),
            Dtype::BF16 => Ok(Format::BF16),
            other => Err(format!("{other:?}")),
        };
        let data = map.get(entry.offset..entry.offset + entry.bytes)?;
        Some(Found { file, name, format, shape: &entry.shape, data, map, offset: entry.offset })
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
