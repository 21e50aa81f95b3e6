//! What is in the caches.

use std::path::{Path, PathBuf};

use super::{Settings, SourceError, pip};

/// A model in a cache.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CachedModel {
    /// What [`super::ModelId`] understands: `owner/name` or `pip:PACKAGE`.
    pub name: String,
    /// The directory that holds it.
    pub path: PathBuf,
    /// Bytes of its files on disk, each counted once.
    pub bytes: u64,
    /// How many files it has.
    pub files: usize,
}

pub(super) fn all(settings: &Settings) -> Result<Vec<CachedModel>, SourceError> {
    let mut models = Vec::new();
    for path in directories(&settings.hub_cache)? {
        let repo = path.file_name().and_then(|n| n.to_str()).and_then(|n| n.strip_prefix("models--"));
        let Some(repo) = repo.filter(|r| !r.is_empty()) else { continue };
        let (bytes, files) = size(&path.join("blobs"));
        models.push(CachedModel { name: repo.replacen("--", "/", 1), path, bytes, files });
    }
    for path in directories(&pip::home(settings))? {
        let Some(package) = path.file_name().and_then(|n| n.to_str()).filter(|n| !n.starts_with('.')) else { continue };
        let (bytes, files) = size(&path);
        models.push(CachedModel { name: format!("pip:{package}"), path, bytes, files });
    }
    models.retain(|m| m.files > 0);
    models.sort_by(|a, b| a.name.cmp(&b.name));
    Ok(models)
}

/// The directories in a directory, which need not exist.
fn directories(path: &Path) -> Result<Vec<PathBuf>, SourceError> {
    match std::fs::read_dir(path) {
        Ok(entries) => Ok(entries.flatten().map(|e| e.path()).filter(|p| p.is_dir()).collect()),
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => Ok(Vec::new()),
        Err(e) => Err(SourceError::io(path, "read")(e)),
    }
}

/// Bytes and number of the files in a directory. Locks and unfinished downloads, ours and other programs', do not count,
/// nor does a file that vanishes meanwhile.
fn size(path: &Path) -> (u64, usize) {
    let entries = std::fs::read_dir(path).into_iter().flatten().flatten();
    let passing =
        |path: &Path| ["lock", "part", "incomplete"].iter().any(|end| path.extension().is_some_and(|e| e == *end));
    let files = entries.filter(|e| !passing(&e.path()));
    let sizes = files.filter_map(|e| e.metadata().ok()).filter(|m| m.is_file()).map(|m| m.len());
    sizes.fold((0, 0), |(bytes, files), size| (bytes + size, files + 1))
}
